"""What flopwatch costs, and whether its times are the times that others measure.

    python benchmarks/overhead.py         about two minutes

Four figures, each from measurements that take turns: starting a worker against a fresh interpreter
that imports torch; processor time of the runner while a worker measures; the median of a known
workload against torch.utils.benchmark; `flopwatch --help` against `python -c pass`.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

from flopwatch.output.progress import TerminalWatcher
from flopwatch.records.record import Record
from flopwatch.runner import session
from flopwatch.runner.local_launcher import Launcher
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings
from flopwatch.suites.catalog import find_suite
from flopwatch.worker.messages import Describe, Returned

SUITE = Path(__file__).parent / "suites" / "identical.py"


def main() -> int:
    figures = [
        ("worker start / fresh interpreter with torch", *compare_starts(), 0.1),
        ("processor time of the runner / one core", *measure_runner(), 0.01),
        ("|median / torch.utils.benchmark - 1|", *compare_medians(), 0.02),
        ("flopwatch --help / python -c pass", *compare_help(), 8.0),
    ]
    for name, value, detail, reach in figures:
        print(f"{name:45} {value:8.4f}   (reach: at most {reach:g}; {detail})")
    return 0 if all(value <= reach for _, value, _, reach in figures) else 1


def compare_starts(times: int = 15) -> tuple[float, str]:
    suite_file = find_suite("activations")
    request = Describe(settings=Settings(), suite_path=str(suite_file.path), quick=True)
    with Launcher(environment={}) as launcher:

        def fork() -> None:
            worker = launcher.start(request)
            assert [type(report) for report in worker.reports(60)] == [Returned]
            worker.close()

        forked, fresh = take_turns(times, fork, lambda: run_python("-c", "import torch"))
    return median(forked) / median(fresh), f"{median(forked):.4f} s against {median(fresh):.3f} s"


def measure_runner() -> tuple[float, str]:
    """Of a whole measuring phase, with a drawn progress bar, in this process."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    times_s: list[tuple[float, float]] = []

    class Watcher(TerminalWatcher):
        def begin_group(self, group: Group) -> None:
            times_s.append((time.monotonic(), time.process_time()))
            super().begin_group(group)

        def end_group(self, group: Group, records: Sequence[Record]) -> None:
            super().end_group(group, records)
            times_s.append((time.monotonic(), time.process_time()))

    with tempfile.TemporaryDirectory() as folder, Watcher(console) as watcher:
        options = session.Options(
            suite=str(SUITE),
            settings=Settings(target_interval=0.0001, budget_s=10),
            filters=["work=matmul", "repeat=0,1,2", "compared=again"],
            out=Path(folder) / "x.jsonl",
        )
        session.run(options, watcher)
    (first_s, first_cpu_s), (last_s, last_cpu_s) = times_s[0], times_s[-1]
    used_s, passed_s = last_cpu_s - first_cpu_s, last_s - first_s
    return used_s / passed_s, f"{used_s:.3f} s in {passed_s:.1f} s, records stored included"


def compare_medians(times: int = 25) -> tuple[float, str]:
    import torch
    from torch.utils.benchmark import Timer

    import flopwatch

    a, b = torch.randn(384, 384), torch.randn(384, 384)
    names = {"a": a, "b": b}
    timer = Timer("a @ b", globals=names, num_threads=torch.get_num_threads())
    ratios = []
    for _ in range(times):
        ours_s = flopwatch.measure(lambda: a @ b, budget_s=1.0).time_ns.value / 1e9
        theirs_s = timer.blocked_autorange(min_run_time=0.8).median
        ratios.append(ours_s / theirs_s)
    return abs(median(ratios) - 1), f"ratios {min(ratios):.3f} to {max(ratios):.3f}"


def compare_help(times: int = 21) -> tuple[float, str]:
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "flopwatch", "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "| torch" not in loaded.stderr, "flopwatch --help imported torch"
    ours, bare = take_turns(
        times, lambda: run_python("-m", "flopwatch", "--help"), lambda: run_python("-c", "pass")
    )
    return median(ours) / median(bare), f"{median(ours):.3f} s against {median(bare):.3f} s"


def take_turns(times: int, *functions: Callable[[], object]) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in functions]
    for _ in range(times):
        for durations, function in zip(taken, functions, strict=True):
            start_s = time.perf_counter()
            function()
            durations.append(time.perf_counter() - start_s)
    return taken


def run_python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
