"""Slow steps of a monitored run, and what most likely made each of them slow.

A step is slow where it takes longer than its neighbours by more than their scatter: the median of
the steps before and after it, whichever is the longer, so that a run that becomes slower for good
has no slow step, and five times the median deviation, at least a fifth of the median.

Its excess over that median is compared with what each cause explains: the excess of the time spent
waiting for data, for other ranks or for the network, and how long garbage collections inside it
took. The cause is the one that explains most of it, and at least half; where two explain nearly as
much, the more specific one: a collection of garbage while the loader runs also makes the data late.
Causes without a duration of their own (allocator retries, a pause right before, lower clocks) count
where no other explains it, unless they are there in most steps. Otherwise the cause is unknown, and
the part of the step that grew most is named.

Pauses themselves are no part of any step, and are listed by their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]
    Places = np.ndarray[Any, np.dtype[np.int64]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]

BLOCK = 64
"""Steps that share a median: one for every single step of a million would take minutes."""
BLOCKS = 16
SHORTEST_BLOCK = 8
"""A short run has this many blocks, of so many steps at least."""
REACH = 4
"""Blocks before a step's own, and after it, that are its neighbours."""
MOST_WINDOWS = 4096
"""At a time: all those of a million steps would fill the memory."""
DEVIATIONS = 5.0
LEAST_EXCESS = 0.2
"""Of the median: less is not worth a line."""
NORMAL_DEVIATION = 1.4826
LEAST_EXPLAINED = 0.5
NEARLY = 0.8
"""Of what the best cause explains, a more specific one must explain as much."""

USUAL = 0.5
"""Of all steps: what is there in more of them does not make one slower than the others."""

Cause = Literal[
    "garbage collection", "other ranks", "communication", "data", "allocator retries", "pause",
    "throttling", "unknown",
]  # fmt: skip
"""pause: it was right before the step, or in it. other ranks: they came later to a collective;
communication: all ranks waited alike."""
TIMED: tuple[Cause, ...] = ("garbage collection", "other ranks", "communication", "data")
"""Causes that have a duration, the most specific first."""
PRESENT: tuple[Cause, ...] = ("allocator retries", "pause", "throttling")
"""Causes that are only known to have been there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowStep:
    number: int
    """Of the step, as the run counts them."""
    place: int
    """Among the steps of its session."""
    step_ns: float
    excess_ns: float
    """Over the median of its neighbours."""
    cause: Cause
    explained_ns: float | None
    """Of the excess, by the cause; None where that has no duration."""
    part: str | None
    """Of the step, that grew most; None where its parts are not known."""
    rank: int | None = None
    """Where other ranks are the cause: the one that came last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known of the steps of one session; all arrays are parallel to its steps."""

    numbers: Array
    step_ns: Array
    parts_ns: Mapping[str, Array]
    """By name of the part; NaN where it is not known."""
    timed_ns: Mapping[Cause, Array]
    """By cause: the time that it took in each step, whatever is usual."""
    present: Mapping[Cause, Flags]
    """By cause: whether it was there."""


def find_slow_steps(evidence: Evidence, first_steps: int = 0) -> list[SlowStep]:
    """Of the steps after the first ones, which are slow for reasons of their own."""
    import numpy as np

    step_ns = evidence.step_ns[first_steps:]
    if len(step_ns) < 3:
        return []
    level, scatter = find_levels(step_ns)
    excess = step_ns - level
    places = np.flatnonzero(excess > np.maximum(DEVIATIONS * scatter, LEAST_EXCESS * level))
    if not len(places):
        return []
    timed = {cause: _find_excess(evidence.timed_ns[cause][first_steps:], places)
             for cause in TIMED if cause in evidence.timed_ns}  # fmt: skip
    parts = {
        name: _find_excess(values[first_steps:], places)
        for name, values in evidence.parts_ns.items()
    }
    marks = {cause: evidence.present[cause][first_steps:] for cause in PRESENT
             if cause in evidence.present}  # fmt: skip
    telling = {cause: there for cause, there in marks.items() if there.mean() <= USUAL}
    found = []
    for position, place in enumerate(places.tolist()):
        over = float(excess[place])
        cause, explained = _choose_cause(
            over,
            {cause: float(values[position]) for cause, values in timed.items()},
            [cause for cause, there in telling.items() if there[place]],
        )
        grown = {name: float(values[position]) for name, values in parts.items()}
        found.append(
            SlowStep(
                number=int(evidence.numbers[first_steps + place]),
                place=first_steps + place,
                step_ns=float(step_ns[place]),
                excess_ns=over,
                cause=cause,
                explained_ns=explained,
                part=max(grown, key=lambda name: grown[name]) if grown else None,
            )
        )
    return found


def _choose_cause(
    excess_ns: float, explained_ns: Mapping[Cause, float], present: Sequence[Cause]
) -> tuple[Cause, float | None]:
    most_ns = max(explained_ns.values(), default=0.0)
    if most_ns >= LEAST_EXPLAINED * excess_ns:
        cause = next(c for c in TIMED if explained_ns.get(c, 0.0) >= NEARLY * most_ns)
        return cause, explained_ns[cause]
    return (present[0], None) if present else ("unknown", None)


def _find_excess(values: Array, places: Places) -> Array:
    """Of the values at some places over what is usual around them; unknown ones have none."""
    import numpy as np

    known: Array = np.nan_to_num(values, nan=0.0)
    level, _ = find_levels(known, places)
    excess: Array = known[places] - level
    return excess


def find_levels(values: Array, places: Places | None = None) -> tuple[Array, Array]:
    """What is usual at each place, or at some, and how much it scatters (as a standard deviation):
    medians of the neighbours before it or after it, whichever is higher."""
    import numpy as np

    count = len(values)
    size = min(BLOCK, max(SHORTEST_BLOCK, count // BLOCKS))
    width = min(count, (1 + REACH) * size)
    blocks = (np.arange(count) if places is None else places) // size
    shown, positions = np.unique(blocks, return_inverse=True)
    # A block is the last of its neighbours before, and the first of those after.
    sides = [np.clip(first, 0, count - width) for first in ((shown - REACH) * size, shown * size)]
    starts, windows = np.unique(np.concatenate(sides), return_inverse=True)
    medians, scatters = _find_medians(values, starts, width)
    before, after = np.split(windows, 2)
    higher = np.where(medians[after] > medians[before], after, before)[positions]
    return medians[higher], scatters[higher]


def _find_medians(values: Array, starts: Places, width: int) -> tuple[Array, Array]:
    """Of the windows that start there, and their scatter."""
    import numpy as np

    windows = np.lib.stride_tricks.sliding_window_view(values, width)
    medians, scatters = np.empty(len(starts)), np.empty(len(starts))
    for first in range(0, len(starts), MOST_WINDOWS):
        some = slice(first, first + MOST_WINDOWS)
        chosen = windows[starts[some]]
        medians[some] = np.median(chosen, axis=1)
        deviations = np.abs(chosen - medians[some, None])
        scatters[some] = NORMAL_DEVIATION * np.median(deviations, axis=1)
    return medians, scatters


def name_late_ranks(
    slow: Sequence[SlowStep], waiting_ns: Array, ranks: Sequence[int]
) -> list[SlowStep]:
    """With the rank that the others waited for, where they did; `waiting_ns` has a row a rank and a
    column a step."""
    import numpy as np

    named = []
    for step in slow:
        column = waiting_ns[:, step.place]
        is_known = step.cause == "other ranks" and not np.isnan(column).any()
        rank = ranks[int(np.argmin(column))] if is_known else None
        named.append(replace(step, rank=rank))
    return named
