"""A sweep of 200 short cases over two nodes of a Slurm, beside the same cases one after the other.

    python benchmarks/slurm_sweep.py         about eight minutes; needs root, slurm-wlm and munge

The nodes are virtual: both are this machine, with its cores. So the cases wait more than they
compute: a call sleeps for 20 ms, and for what is built, checked and written besides, two jobs share
the cores as they would not on nodes of their own. All is counted from the command to its end: two
queues, two jobs that import torch and look at the machine. Of the command that follows the jobs,
the processor time of itself and all that it starts (squeue, a worker that reads the suite) is
counted as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trials.virtual_slurm import VirtualSlurm, find_missing

from flopwatch.records.store import read

CASES = 200
REACH = 1.7
MOST_LOAD = 0.05
SUITE = """
import time
import flopwatch

suite = flopwatch.Suite(
    "short", axes={"number": list(range(CASES))}, variants=["wait"], baseline="wait"
)

@suite.build
def build(case):
    return lambda: time.sleep(0.02)
"""
SLURM = ("--launcher", "slurm", "--max-jobs", "2", "--slurm-arg", "exclusive")


def main() -> int:
    missing = find_missing()
    if missing is not None:
        print(f"nothing is measured: {missing}")
        return 0
    with tempfile.TemporaryDirectory() as name, VirtualSlurm(Path(name) / "slurm") as slurm:
        folder = Path(name)
        (folder / "short.py").write_text(SUITE.replace("CASES", str(CASES)))
        alone_s, _ = run(folder, {}, "alone.jsonl")
        sent_s, busy_s = run(folder, slurm.variables, "sent.jsonl", *SLURM)
        stored = [count_ok(folder / name) for name in ("alone.jsonl", "sent.jsonl")]
    print(f"{CASES} cases one after the other: {alone_s:.0f} s")
    print(
        f"over 2 virtual nodes: {sent_s:.0f} s, {alone_s / sent_s:.2f} times faster (reach {REACH})"
    )
    print(f"processor time of the command: {busy_s:.1f} s, {100 * busy_s / sent_s:.1f} % of a core")
    print(f"cases measured: {stored[0]} and {stored[1]}")
    is_fine = alone_s / sent_s >= REACH and busy_s / sent_s < MOST_LOAD
    return 0 if is_fine and stored == [CASES, CASES] else 1


def run(folder: Path, variables: dict[str, str], out: str, *words: str) -> tuple[float, float]:
    """How long the command takes, and its processor time, with that of its children."""
    started_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "flopwatch", "run", "short.py", "--device", "cpu", "--threads", "1",
         "--case-budget", "1s", "--quiet", "--out", out, *words],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    _, _, usage = os.wait4(process.pid, 0)
    return time.monotonic() - started_s, usage.ru_utime + usage.ru_stime


def count_ok(path: Path) -> int:
    return sum(record.status == "ok" for record in read(path).records)


if __name__ == "__main__":
    sys.exit(main())
