"""Whether a device waits for Python: a fake one, whose queue is worked through meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from flopwatch.analysis.measurement_warnings import find_launch_bound
from flopwatch.analysis.warning_findings import gather
from flopwatch.records.record import Record, decode, encode
from flopwatch.settings import Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.rank_roles import SingleProcess
from flopwatch.worker.sampling import First, Sampler, Series
from tests.conftest import make_record

pytestmark = pytest.mark.usefixtures("uncollected")
DEPTH = 1000


class FakeDevice:
    """Each launch takes the caller some time, and the device some other. A full queue stops the
    caller."""

    name = "fake events"
    resolution_ns = 500.0

    def __init__(self, launch_ns: float, kernel_ns: float) -> None:
        self.launch_ns, self.kernel_ns = launch_ns, kernel_ns
        self.host_ns = self.busy_until_ns = 0.0

    def launch(self, number: int) -> None:
        for _ in range(number):
            self.host_ns += self.launch_ns
            room_ns = self.busy_until_ns - DEPTH * self.kernel_ns
            self.host_ns = max(self.host_ns, room_ns)
            self.busy_until_ns = max(self.busy_until_ns, self.host_ns) + self.kernel_ns

    def mark(self) -> float:
        return max(self.host_ns, self.busy_until_ns)

    def elapsed_ns(self, marks: Sequence[float]) -> list[float]:
        self.synchronize()
        return [end - start for start, end in zip(marks, marks[1:], strict=False)]

    def synchronize(self) -> None:
        self.host_ns = max(self.host_ns, self.busy_until_ns)

    def evict(self) -> None:
        raise AssertionError


def sample(device: FakeDevice, kernels: int, has_queue: bool = True) -> Series:
    sampler = Sampler(
        {"a": Workload(phases={"f": lambda: device.launch(kernels)}, reset=lambda: None)},
        baseline="a",
        settings=Settings(device="cuda", budget_s=1.0),
        target=SingleProcess(device, device.evict, device.synchronize if has_queue else None),
        first_calls={"a": First(phase_ns=[1e6])},
        now_s=lambda: device.host_ns / 1e9,
    )
    sampler.run()
    return sampler.series[0]


def store(series: Series) -> Record:
    """As it is in a file."""
    return decode(
        encode(
            make_record(
                samples_ns={"f": [row[0] for row in series.phase_ns]},
                rounds=series.rounds,
                calls_per_sample=series.calls_per_sample,
                queue=series.describe_queue(0, len(series.rounds)),
                settings=Settings(device="cuda"),
            )
        )
    )


def find(series: Series) -> list[str]:
    return [finding.fact for finding in find_launch_bound(gather([store(series)]))]


def test_a_device_that_is_faster_than_python_is_launch_bound() -> None:
    (fact,) = find(sample(FakeDevice(launch_ns=10e3, kernel_ns=2e3), kernels=300))
    assert fact.startswith("launch-bound: 100 % of the time the device waited for Python")


@pytest.mark.parametrize("kernels", [1, 300, 5000, 20_000])
def test_a_device_that_is_slower_is_not_however_long_its_queue_is(kernels: int) -> None:
    """Python runs ahead until the queue is full, and is then as slow as the device."""
    series = sample(FakeDevice(launch_ns=5e3, kernel_ns=20e3), kernels)
    assert find(series) == []
    if kernels > DEPTH:
        assert series.queue[-1] is not None
        enqueue_ns, drain_ns = series.queue[-1]
        assert enqueue_ns >= 0.9 * series.totals_ns[-1]
        assert drain_ns == pytest.approx(DEPTH * 20e3, rel=0.01)


def test_the_first_call_and_a_device_without_a_queue_are_not_known() -> None:
    device = FakeDevice(launch_ns=10e3, kernel_ns=2e3)
    queue = store(sample(device, 300)).queue
    assert queue is not None
    assert queue.enqueue_ns[0] is queue.drain_ns[0] is None
    assert None not in queue.enqueue_ns[1:]
    series = sample(device, 300, has_queue=False)
    assert series.describe_queue(0, 1) is None
    assert store(series).queue is None


def test_a_queue_is_of_all_rounds() -> None:
    record = store(sample(FakeDevice(launch_ns=10e3, kernel_ns=2e3), 300))
    content: dict[str, Any] = msgspec.json.decode(encode(record))
    content["queue"]["drain_ns"].pop()
    with pytest.raises(Exception, match="of drain_ns"):
        decode(msgspec.json.encode(content))
