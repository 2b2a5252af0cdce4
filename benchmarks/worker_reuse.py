"""What it saves that a spawned worker serves several groups, as workers do on accelerators.

    python benchmarks/worker_reuse.py         about a minute

Groups of a tiny suite are built, checked and run a few times by workers that are spawned on the
CPU, with and without reuse, in turns; beside them those that are forked, as on the CPU otherwise.
What an accelerator takes to start comes on top there.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from flopwatch.runner.local_launcher import Launcher
from flopwatch.settings import Settings
from flopwatch.worker.messages import Finished, MeasureGroup

GROUPS = 12
REACH = 5.0
SUITE = """
import torch
import flopwatch

suite = flopwatch.Suite("tiny", axes={"n": [1]}, variants=["one", "two"])

@suite.build
def build(case):
    x = torch.ones(64)
    return lambda: x + x
"""


def main() -> int:
    times_s: dict[str, list[float]] = {"fresh": [], "reused": [], "forked": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        Launcher(environment={}, fork=False, keep=False) as fresh,
        Launcher(environment={}, fork=False) as reused,
        Launcher(environment={}) as forked,
    ):
        path = Path(folder) / "tiny.py"
        path.write_text(SUITE)
        measure_group(reused, path, 0)  # its first is fresh, too
        for number in range(1, GROUPS + 1):
            for name, launcher in (("fresh", fresh), ("reused", reused), ("forked", forked)):
                times_s[name].append(measure_group(launcher, path, number))
    for name, taken_s in times_s.items():
        print(f"{name:8} {median(taken_s):7.3f} s a group   {1 / median(taken_s):6.2f} groups/s")
    ratio = median(times_s["fresh"]) / median(times_s["reused"])
    print(f"groups a second with reuse / without: {ratio:.1f} (reach: at least {REACH:g})")
    return 0 if ratio >= REACH else 1


def measure_group(launcher: Launcher, suite: Path, number: int) -> float:
    """How long a group takes from the request until its worker is done."""
    request = MeasureGroup(
        settings=Settings(),
        suite_path=str(suite),
        params={"n": number},
        variants=["one", "two"],
        baseline="one",
        cache_bytes=None,
        is_probe=True,
    )
    start_s = time.perf_counter()
    with closing(launcher.start(request)) as worker:
        reports = list(worker.reports(60.0))
    assert any(isinstance(report, Finished) for report in reports), reports
    return time.perf_counter() - start_s


if __name__ == "__main__":
    sys.exit(main())
