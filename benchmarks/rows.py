"""What the benchmarks of layers share: a suite run by the command line, and its rows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flopwatch.analysis.statistics import Estimate
from flopwatch.analysis.summary import Row, summarize
from flopwatch.output.units import format_speedup
from flopwatch.records.store import read


def run(suite: str, options: Sequence[str]) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / f"{suite}.jsonl"
        command = [sys.executable, "-m", "flopwatch", "run", suite, "--out", str(out), "--json"]
        done = subprocess.run([*command, *options], check=False, stdout=subprocess.DEVNULL)
        if done.returncode > 1:  # 1: a case failed, which its row will tell
            sys.exit(done.returncode)
        return summarize(read(out).records)


def describe(row: Row) -> str:
    return describe_speedup(row, row.speedup)


def describe_speedup(row: Row, speedup: Estimate | None) -> str:
    return format_speedup(speedup) if speedup else row.record.status


def print_step(row: Row, reach: float) -> None:
    """A whole training step, and the exchanged layers inside it."""
    limit = "unknown" if row.limit is None else f"{row.limit:.2f}x"
    print(f"{row.record.variant:18} {describe(row):20} limit {limit}, reach {reach}")
    for region, inside in row.regions.items():
        gained = format_speedup(inside.speedup) if inside.speedup else "unknown"
        print(f"  {region:24} {gained}, {inside.share.value:.1%} of its step", flush=True)


def count_missed(rows: Sequence[Row], reach: Sequence[float]) -> int:
    return sum(
        row.speedup is None or row.speedup.value < least
        for row, least in zip(rows, reach, strict=True)
    )
