"""Can its verdicts be trusted? False alarms, and what is missed.

Runs benchmarks/suites/identical.py as a user would: identical variants compared 200 times (four
kinds of work, 50 times each, every comparison in a worker of its own), and 100 comparisons with a
variant that does 5 % more. Default settings.

    python benchmarks/trust.py            about 25 minutes
    python benchmarks/trust.py --repeats 5
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from flopwatch.analysis.summary import Row, summarize
from flopwatch.records.store import read

SUITE = Path(__file__).parent / "suites" / "identical.py"
MAX_FALSE_ALARMS = 0.02
MIN_DETECTED = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=50, help="of each of four kinds of work")
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        identical = run("again", repeats, Path(folder))
        more = run("more", (repeats + 1) // 2, Path(folder))
    print_counts("identical", identical)
    print_counts("5 % more work", more)
    false_alarms = share(identical, "faster", "slower")
    detected = share(more, "slower")
    print(f"false alarms   {false_alarms:6.1%} of {len(identical)}   (reach: at most 2 %)")
    print(f"5 % detected   {detected:6.1%} of {len(more)}   (reach: at least 95 %)")
    return 0 if false_alarms <= MAX_FALSE_ALARMS and detected >= MIN_DETECTED else 1


def run(compared: str, repeats: int, folder: Path) -> list[Row]:
    out = folder / f"{compared}.jsonl"
    chosen = ",".join(map(str, range(repeats)))
    subprocess.run(
        [sys.executable, "-m", "flopwatch", "run", str(SUITE), "--out", str(out), "--json"]
        + ["--filter", f"compared={compared}", "--filter", f"repeat={chosen}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return [row for row in summarize(read(out).records) if row.speedup is not None]


def share(rows: list[Row], *verdicts: str) -> float:
    return sum(row.verdict in verdicts for row in rows) / len(rows)


def print_counts(title: str, rows: list[Row]) -> None:
    for work in dict.fromkeys(row.record.params["work"] for row in rows):
        chosen = [row for row in rows if row.record.params["work"] == work]
        verdicts = Counter(row.verdict for row in chosen)
        stops = Counter(row.record.stop_reason for row in chosen)
        spread = sorted(row.speedup.value for row in chosen if row.speedup)
        print(
            f"{title:14} {work:8} verdicts {dict(verdicts)}, stopped {dict(stops)}, "
            f"speedups {spread[0]:.3f} to {spread[-1]:.3f}"
        )


if __name__ == "__main__":
    sys.exit(main())
