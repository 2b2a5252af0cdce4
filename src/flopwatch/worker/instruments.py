"""What a workload reports from inside: times of its regions, and points of its curves.

Instruments press a stopwatch. While the workload runs it only takes marks of the clock that times
everything else; the times between them are read afterwards, so that regions on a GPU are timed
where they run, too. Hooks of a backward pass may come from another thread than those of the forward
pass.

Curves are what a workload produces as it runs, point by point, once the timing is done.

A model marks its named parts as it runs, ``with region("attention/scores"): ...``. That costs next
to nothing until somebody listens: the profiler (every region is then an event of its trace) or, on
a GPU, Nsight Systems (an NVTX range).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from flopwatch.devices.base import Clock
from flopwatch.errors import SuiteError
from flopwatch.suites.case import require_storable


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one region took, of one run."""

    calls: int
    ns: float


class ClockStopwatch:
    """A `flopwatch.Stopwatch` for the runs of one sample."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[str, Any] = {}
        self._marks: dict[str, list[Any]] = {}
        """By region: start, stop, start, stop, ..."""

    def start(self, region: str) -> None:
        with self._lock:
            if region in self._running:
                raise SuiteError(
                    f"region {region!r} is started again before it was stopped; give regions that "
                    "overlap names of their own"
                )
            self._running[region] = self._clock.mark()

    def stop(self, region: str) -> None:
        mark = self._clock.mark()
        with self._lock:
            if region not in self._running:
                raise SuiteError(f"region {region!r} is stopped but not started; start it first")
            self._marks.setdefault(region, []).extend((self._running.pop(region), mark))

    def read(self, calls_per_sample: int, phases: Collection[str]) -> dict[str, Reading]:
        """What each region took in one of the runs that were made."""
        if self._running:
            raise SuiteError(
                f"region {min(self._running)!r} is started but not stopped; stop it before the run "
                "is over"
            )
        readings = {}
        for region, marks in self._marks.items():
            require_storable(region)
            phase, _, part = region.partition("/")
            if phase not in phases or not part:
                raise SuiteError(
                    f"region {region!r} is not named phase/region, with a phase of its workload "
                    f"({', '.join(phases)})"
                )
            calls, rest = divmod(len(marks) // 2, calls_per_sample)
            if rest:
                raise SuiteError(
                    f"region {region!r} is not run equally often in every run; instrument a part "
                    "that is"
                )
            # Every second one: between a stop and the next start nothing is of interest.
            ns = sum(self._clock.elapsed_ns(marks)[::2])
            readings[region] = Reading(calls=calls, ns=ns / calls_per_sample)
        return readings


STEP = "step"
"""What points of a training are numbered by."""


class Diverged(Exception):
    """A curve has a value that is not finite. The points before it stay."""


class CutShort(Exception):
    """The curves do not end. The points that were taken stay."""


MOST_NUMBERS = 1_000_000
"""That the curves of a case have together: its record should stay readable."""
LONGEST_STUDY_S = 24 * 3600.0


def take_points(
    curves: Callable[[], Iterable[Mapping[str, Any]]],
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[dict[str, float]]:
    """The points as plain numbers, all with the same names. Raises CutShort at the limits."""
    first: dict[str, float] | None = None
    end_s = now_s() + LONGEST_STUDY_S
    for number, point in enumerate(curves(), 1):
        if not isinstance(point, Mapping):
            raise SuiteError(
                f"the curves yield {type(point).__name__}; yield mappings of names to numbers"
            )
        plain = {str(name): _as_number(str(name), value) for name, value in point.items()}
        if first is None:
            first = plain
            for name in plain:
                require_storable(name)
        if plain.keys() != first.keys():
            raise SuiteError(
                f"the first point has {_list(first)}, and point {number} {_list(plain)}; "
                "yield the same names each time"
            )
        for name, value in plain.items():
            # JSON cannot hold it, and what follows means nothing.
            if not math.isfinite(value):
                raise Diverged(_explain_divergence(plain, name, number))
        if number * max(1, len(plain)) > MOST_NUMBERS:
            raise CutShort(
                f"its curves end after {number - 1} points: a record holds {MOST_NUMBERS} numbers"
            )
        yield plain
        if now_s() > end_s:
            raise CutShort(
                f"its curves end after {number} points: they took {LONGEST_STUDY_S / 3600:g} hours"
            )


def _explain_divergence(point: Mapping[str, float], name: str, number: int) -> str:
    """Points of a training are counted in steps."""
    step = point.get(STEP)
    if step is None or not math.isfinite(step):
        place, before = f"its curve diverged: {name} is {point[name]} at point {number}", "points"
    else:
        place, before = f"its training diverged: {name} is {point[name]} in step {step:g}", "steps"
    return f"{place}; the {before} before it are stored"


def _as_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SuiteError(
            f"the curves yield a {type(value).__name__} as {name!r}; yield numbers"
        ) from None


def _list(point: Mapping[str, float]) -> str:
    return ", ".join(point) or "nothing"


Listener = Callable[[str], AbstractContextManager[object]]

_SILENCE: AbstractContextManager[None] = nullcontext()
_listeners: list[Listener] = []
"""The last one is listened to."""


def region(name: str) -> AbstractContextManager[object]:
    """A part of a model, ``part`` or ``part/detail``."""
    return _listeners[-1](name) if _listeners else _SILENCE


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have `listener` enter a context of its own around every region, for as long as this lasts."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()
