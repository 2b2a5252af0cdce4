"""Whether the peaks of `flopwatch peaks` are those that others measure, and the same every time.

    python benchmarks/peaks.py         about five minutes, on a machine that does nothing else

Two figures: the best rate of matmuls, dtype by dtype, against the best that
torch.utils.benchmark finds for the same matmuls, interleaved in one process; and two runs of
`flopwatch peaks` one after the other, matmuls and memory. Collectives are shown, and not judged:
the system's scheduler has its say in them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.benchmark import Timer

from flopwatch.devices import system_files
from flopwatch.devices.best_times import BLOCK_NS, Trial
from flopwatch.devices.matmul_rates import MatmulSweep, find_arithmetic, list_dtypes
from flopwatch.settings import Device
from flopwatch.worker import limits

ROUNDS = 12
LONGEST_NS = 0.1e9
REACH = 0.05


def main() -> int:
    device: Device = "cuda" if torch.cuda.is_available() else "cpu"
    missed = compare_with_others(device)
    missed += compare_runs()
    print("all reached" if not missed else f"{missed} missed")
    return 1 if missed else 0


def compare_with_others(device: Device) -> int:
    limits.limit_threads(system_files.count_usable_cores(system_files.read_cpu_quota_cores()))
    sweeps = {
        dtype: MatmulSweep(find_arithmetic(dtype, device), device, LONGEST_NS)
        for dtype in list_dtypes(device)
    }
    theirs: dict[str, float] = dict.fromkeys(sweeps, 0.0)
    for _ in range(ROUNDS):
        trials = [(dtype, trial) for dtype, sweep in sweeps.items() for trial in sweep.extend()]
        for dtype, trial in random.sample(trials, len(trials)):
            trial.run_block()
            theirs[dtype] = max(theirs[dtype], time_by_timer(trial))
    missed = 0
    for dtype, sweep in sweeps.items():
        if sweep.trials:
            ours = max(trial.rate_per_s for trial in sweep.trials.values())
            missed += show(f"{dtype}, over torch.utils.benchmark", ours, theirs[dtype], "FLOP/s")
    return missed


def time_by_timer(trial: Trial) -> float:
    """Work in a second, the best of a block."""
    timer = Timer("run()", globals={"run": trial.prepare()}, num_threads=torch.get_num_threads())
    measured = timer.blocked_autorange(min_run_time=BLOCK_NS / 1e9)
    return trial.work / min(measured.times)


def compare_runs() -> int:
    with tempfile.TemporaryDirectory() as folder:
        first, second = (measure(Path(folder) / "peaks.jsonl") for _ in range(2))
    print(
        f"background load: {first['background_share']:.1%} and "
        f"{second['background_share']:.1%} of the cores"
    )
    missed = 0
    for kind, bests in first["best"].items():
        for name, value in bests.items():
            if value is not None:
                other = second["best"][kind][name]
                is_far = show(f"{name}, first run over second", value, other, kind)
                missed += is_far and kind != "bus_bytes_per_s"
    return missed


def measure(out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "flopwatch", "peaks", "--json", "--out", str(out)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def show(name: str, ours: float, theirs: float, unit: str) -> bool:
    """Whether they are too far apart."""
    ratio = ours / theirs
    reach = f"reach: {1 - REACH:.2f} to {1 + REACH:.2f}"
    print(f"{name:45} {ratio:6.3f}   ({ours:.4g} / {theirs:.4g} {unit}; {reach})", flush=True)
    return abs(ratio - 1) > REACH


if __name__ == "__main__":
    sys.exit(main())
