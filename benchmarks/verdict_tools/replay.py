"""Comparisons on recorded noise: flopwatch's own sampler, on a clock that plays back a recording.

The sampler is the real one, with its warm-up, its stopping rule and its settings; only what a call
takes comes from the recording. So do the seconds until it stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flopwatch.analysis.statistics import Estimate
from flopwatch.devices.base import Clock
from flopwatch.records.record import Stop
from flopwatch.settings import Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.rank_times import Share
from flopwatch.worker.sampling import MIN_SAMPLE_NS, Sampler, split_measured
from verdict_tools.recorded_noise import Window


class Playback:
    """A device whose time passes as it was recorded.

    A call between two marks takes a sample's time; any other one is the untimed call before it, and
    takes half of what else its round took.
    """

    name = "playback"
    resolution_ns = 1.0

    def __init__(self, window: Window, factor: float) -> None:
        if min(window.a_ns.min(), window.b_ns.min()) < MIN_SAMPLE_NS:
            raise ValueError("samples are so short that they would be looped; record longer ones")
        self.clock: Clock = self
        self._now_ns = 0.0
        self._is_timed = False
        rests_ns = (window.rest_ns / 2).tolist()
        self.workloads = {
            "a": self._make_workload(window.a_ns.tolist(), rests_ns),
            "b": self._make_workload((factor * window.b_ns).tolist(), rests_ns),
        }

    def _make_workload(self, times_ns: Sequence[float], rests_ns: Sequence[float]) -> Workload:
        return Workload(phases={"call": self._make_call(times_ns, rests_ns)})

    def _make_call(
        self, times_ns: Sequence[float], rests_ns: Sequence[float]
    ) -> Callable[[], None]:
        count, place = len(times_ns), 0

        def call() -> None:
            nonlocal place
            if self._is_timed:
                self._now_ns += times_ns[place]
                place = (place + 1) % count
            else:
                self._now_ns += rests_ns[place]

        return call

    def mark(self) -> float:
        self._is_timed = not self._is_timed
        return self._now_ns

    def elapsed_ns(self, marks: Sequence[float]) -> list[float]:
        return [end - start for start, end in zip(marks, marks[1:], strict=False)]

    def now_s(self) -> float:
        return self._now_ns / 1e9

    def evict(self) -> None:
        raise NotImplementedError("recorded with hot caches")

    @property
    def drain(self) -> None:
        """Calls have done their work when they return."""

    def take_shares(self, calls: int) -> Sequence[Share]:
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    ratios: list[float]
    """Of b's times to a's, in the measured rounds."""
    times_ns: list[float]
    """Of a in them."""
    stop_reason: Stop
    seconds: float


def compare_again(window: Window, factor: float, settings: Settings) -> Compared:
    """As if b had taken `factor` times as long."""
    playback = Playback(window, factor)
    sampler = Sampler(
        playback.workloads, baseline="a", settings=settings, target=playback, now_s=playback.now_s
    )
    outcome = sampler.run()
    times_ns, (ratios,) = split_measured(sampler.series, "a", outcome.warmup_rounds)
    return Compared(
        ratios=ratios,
        times_ns=times_ns[0],
        stop_reason=outcome.stop_reason,
        seconds=playback.now_s(),
    )


def holds(estimate: Estimate, truth: float) -> bool | None:
    """Whether its interval does; None where there is no interval."""
    if estimate.low is None or estimate.high is None:
        return None
    return estimate.low <= truth <= estimate.high
