"""What it saves that a spawned worker serves several groups, as workers do on accelerators.

    python benchmarks/worker_reuse.py         about two minutes

Groups of a tiny suite are built, checked and run a few times by workers that are spawned, with and
without reuse, in turns: on the accelerator of the tests (tests/accelerator), whose library every
process loads and starts, and on the CPU; there beside those that are forked, as otherwise on CPUs.
What a real accelerator takes to start comes on top.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from flopwatch.devices.kinds import HOST
from flopwatch.runner.local_launcher import Launcher
from flopwatch.settings import Device, Settings
from flopwatch.worker.messages import Finished, MeasureGroup

GROUPS = 12
REACH = 5.0
SUITE = """
import torch
import flopwatch

suite = flopwatch.Suite("tiny", axes={"n": [1]}, variants=["one", "two"])

@suite.build
def build(case):
    x = torch.ones(64, device=case.device)
    return lambda: x + x
"""


def main() -> int:
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.py"
        path.write_text(SUITE)
        for device, variables in list_devices():
            ratios.append(compare(path, device, variables))
    return 0 if min(ratios) >= REACH else 1


def list_devices() -> list[tuple[Device, dict[str, str]]]:
    """Each with the variables of processes that have it."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.accelerator.device_build import NotBuilt, build_device, name_environment

    try:
        return [("flop", name_environment(build_device())), (HOST, {})]
    except NotBuilt as reason:
        print(f"the accelerator of the tests cannot be built: {reason}")
        return [(HOST, {})]


def compare(path: Path, device: Device, variables: dict[str, str]) -> float:
    """Groups a second with reuse over those without."""
    times_s: dict[str, list[float]] = {}
    with (
        Launcher(environment=variables, fork=False, keep=False) as fresh,
        Launcher(environment=variables, fork=False) as reused,
        Launcher(environment=variables) as forked,
    ):
        launchers = {"fresh": fresh, "reused": reused}
        if device == HOST:
            launchers["forked"] = forked
        measure_group(reused, path, device, 0)  # its first is fresh, too
        for number in range(1, GROUPS + 1):
            for name, launcher in launchers.items():
                taken_s = measure_group(launcher, path, device, number)
                times_s.setdefault(name, []).append(taken_s)
    for name, all_s in times_s.items():
        taken_s = median(all_s)
        print(f"{device:5} {name:8} {taken_s:7.3f} s a group   {1 / taken_s:6.2f} groups/s")
    ratio = median(times_s["fresh"]) / median(times_s["reused"])
    print(
        f"{device}: groups a second with reuse / without: {ratio:.1f} (reach: at least {REACH:g})"
    )
    return ratio


def measure_group(launcher: Launcher, suite: Path, device: Device, number: int) -> float:
    """How long a group takes from the request until its worker is done."""
    request = MeasureGroup(
        settings=Settings(device=device),
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
