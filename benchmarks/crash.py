"""Is anything lost when the runner is killed?

A run of many short cases is killed with SIGKILL at a random moment, again and again; every time it
is started anew on the same file, where it repairs a torn line and resumes. A record counts as
acknowledged when the runner has printed its group's line. After every kill all acknowledged
records must be in the file.

    python benchmarks/crash.py             200 kills, about fifteen minutes
    python benchmarks/crash.py --kills 10
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from flopwatch.records.store import read

GROUPS = 400
SUITE = f"""
import flopwatch

suite = flopwatch.Suite("crash", axes={{"number": list(range({GROUPS}))}}, variants=["a", "b"])


@suite.build
def build(case):
    return lambda: sum(range(200))
"""


@dataclass
class Tally:
    kills: int = 0
    acknowledged: set[int] = field(default_factory=set)
    """Groups of the current file whose line was printed."""
    total: int = 0
    lost: int = 0
    torn: int = 0
    """Kills that left a torn line, repaired by the next run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        suite = Path(folder) / "crash.py"
        suite.write_text(SUITE)
        out = Path(folder) / "crash.jsonl"
        while tally.kills < arguments.kills:
            if len(tally.acknowledged) > GROUPS - 40:  # nearly through: begin a new file
                out.unlink()
                tally.acknowledged.clear()
            run_and_kill(suite, out, generator, tally)
            check(out, tally)
    print(
        f"{tally.kills} kills, {tally.total} records acknowledged, {tally.torn} torn lines "
        f"repaired, {tally.lost} records lost   (reach: 0 lost)"
    )
    return 0 if tally.lost == 0 else 1


def run_and_kill(suite: Path, out: Path, generator: random.Random, tally: Tally) -> None:
    command = [sys.executable, "-m", "flopwatch", "run", str(suite), "--out", str(out)]
    runner = subprocess.Popen(
        [*command, "--case-budget", "20ms"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    first_line = threading.Event()
    lines: list[str] = []

    def listen() -> None:
        assert runner.stderr is not None
        for line in runner.stderr:
            lines.append(line)
            if " number=" in line:
                first_line.set()

    listener = threading.Thread(target=listen)
    listener.start()
    if generator.random() < 0.9:
        first_line.wait(60)  # most kills hit the measuring, some the start
    time.sleep(generator.uniform(0, 1.0))
    runner.kill()
    runner.wait()
    listener.join()
    tally.kills += 1
    new = {int(line.split("number=")[1].split(":")[0]) for line in lines if " number=" in line}
    tally.total += 2 * len(new)
    tally.acknowledged |= new
    tally.torn += any("cut short" in line or "end of its line" in line for line in lines)


def check(out: Path, tally: Tally) -> None:
    records = read(out).records if out.exists() else []
    stored = {(record.params["number"], record.variant) for record in records}
    promised = {(number, variant) for number in tally.acknowledged for variant in "ab"}
    tally.lost += len(promised - stored)


if __name__ == "__main__":
    sys.exit(main())
