"""The steps of one start of a monitored run: their times, what is usual at each of them, which are
slow and why, and how long ranks waited for each other.

What is said of steps is said of the lowest rank that has any. The first steps (compilation,
allocation) are apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwatch.analysis.slow_steps import (
    Cause,
    Evidence,
    SlowStep,
    find_levels,
    find_slow_steps,
    name_late_ranks,
)
from flopwatch.records.monitored import End, RankSteps
from flopwatch.records.record import Record

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]
    Flags = np.ndarray[Any, np.dtype[np.bool_]]

OTHER = "other"
EARLY = 1.25
"""Times the usual step: a leading step that takes longer is one of the first steps, too."""
MOST_EARLY = 20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Start:
    """One start of a run, as far as its lowest rank has seen it."""

    record: Record
    main: RankSteps
    """The lowest rank that has steps."""
    numbers: Array
    begin_ns: Array
    step_ns: Array
    parts_ns: dict[str, Array]
    """NaN where a part is not known; without "other"."""
    first_steps: int
    level_ns: Array
    """What is usual at each step; of the first steps, as at the steady ones after them."""
    slow: list[SlowStep]
    waiting_ns: Array | None
    """By rank and step: waiting for other ranks; None with fewer than two ranks."""
    ranks: list[int]
    """The numbers of the rows of `waiting_ns`."""
    end: End | None

    @property
    def steady_ns(self) -> Array:
        return self.step_ns[self.first_steps :]


def find_main(record: Record) -> RankSteps | None:
    ranks = [] if record.monitored is None else record.monitored.ranks
    return next((rank for rank in ranks if rank.steps), None)


def read_start(record: Record) -> Start | None:
    """None where it has no step."""
    import numpy as np

    monitored = record.monitored
    main = find_main(record)
    if monitored is None or main is None:
        return None
    step_ns: Array = np.asarray(main.time_ns, dtype=float)
    parts_ns = {
        str(name): np.array(values, dtype=float)  # None becomes NaN
        for name, values in main.parts_ns.items()
        if any(value is not None for value in values)
    }
    first_steps = _count_first(step_ns, monitored.first_steps)
    steady = step_ns[first_steps:]
    levels, _ = find_levels(steady)
    levels = np.concatenate([np.full(first_steps, levels[0]), levels])
    ranks, waiting_ns = _find_waiting(monitored.ranks, main)
    start = Start(
        record=record,
        main=main,
        numbers=np.asarray(main.steps, dtype=np.int64),
        begin_ns=np.asarray(main.begin_ns, dtype=float),
        step_ns=step_ns,
        parts_ns=parts_ns,
        first_steps=first_steps,
        level_ns=levels,
        slow=[],
        waiting_ns=waiting_ns,
        ranks=ranks,
        end=monitored.end,
    )
    slow = find_slow_steps(_gather_evidence(start), first_steps)
    if waiting_ns is not None:
        slow = name_late_ranks(slow, waiting_ns, ranks)
    return replace(start, slow=slow)


def _count_first(step_ns: Array, told: int) -> int:
    """As many as the monitor sets apart, and those right after them that are still slower; one at
    least stays steady."""
    import numpy as np

    least = min(told, len(step_ns) - 1)
    usual = float(np.median(step_ns[least:]))
    count = least
    while count < min(least + MOST_EARLY, len(step_ns) // 4) and step_ns[count] > EARLY * usual:
        count += 1
    return count


def _find_waiting(ranks: Sequence[RankSteps], main: RankSteps) -> tuple[list[int], Array | None]:
    """Communication beyond that of the rank that came last: with every rank's own clock, since
    those of two nodes differ."""
    import numpy as np

    own = np.asarray(main.steps, dtype=np.int64)
    numbers: list[int] = []
    rows: list[Array] = []
    for rank in ranks:
        values = rank.parts_ns.get("communication")
        if values is None:
            continue
        row = np.full(len(own), np.nan)
        theirs = np.asarray(rank.steps, dtype=np.int64)
        places = np.searchsorted(own, theirs)
        inside = places < len(own)
        inside[inside] = own[places[inside]] == theirs[inside]
        row[places[inside]] = np.array(values, dtype=float)[inside]
        numbers.append(rank.rank)
        rows.append(row)
    if len(rows) < 2:
        return [], None
    together = np.stack(rows)
    return numbers, together - together.min(axis=0)


def _gather_evidence(start: Start) -> Evidence:
    import numpy as np

    parts_ns = dict(start.parts_ns)
    known = sum((np.nan_to_num(values) for values in parts_ns.values()), np.zeros(1))
    if parts_ns:
        parts_ns[OTHER] = start.step_ns - known
    timed: dict[Cause, Array] = {"garbage collection": _sum_events(start, "gc")}
    if "data" in parts_ns:
        timed["data"] = parts_ns["data"]
    if "communication" in parts_ns:
        waiting = parts_ns["communication"]
        if start.waiting_ns is not None and start.main.rank in start.ranks:
            own = start.waiting_ns[start.ranks.index(start.main.rank)]
            timed["communication"] = waiting - own
            waiting = own
        timed["other ranks"] = waiting
    return Evidence(
        numbers=start.numbers,
        step_ns=start.step_ns,
        parts_ns=parts_ns,
        timed_ns=timed,
        present={
            "allocator retries": _mark_events(start, "allocator-retry"),
            "pause": _mark_events(start, "pause", also_next=True),
            "throttling": _mark_events(start, "throttled"),
        },
    )


def _sum_events(start: Start, kind: str) -> Array:
    """How long events of a kind took in each step that they began in, but for those in pauses,
    which are no part of it."""
    import numpy as np

    total = np.zeros(len(start.step_ns))
    begins, ends = _read_events(start, kind)
    pauses, pause_ends = _read_events(start, "pause")
    if len(pauses):
        before = np.searchsorted(pauses, begins, side="right") - 1
        outside = (before < 0) | (begins >= pause_ends[np.maximum(before, 0)])
        begins, ends = begins[outside], ends[outside]
    places = np.searchsorted(start.begin_ns, begins, side="right") - 1
    kept = places >= 0
    np.add.at(total, places[kept], (ends - begins)[kept])
    return total


def _mark_events(start: Start, kind: str, *, also_next: bool = False) -> Flags:
    """In which steps an event of a kind was there, and perhaps in the next one."""
    import numpy as np

    count = len(start.step_ns)
    begins, ends = _read_events(start, kind)
    first = np.maximum(np.searchsorted(start.begin_ns, begins, side="right") - 1, 0)
    last = np.searchsorted(start.begin_ns, ends, side="right") + also_next
    changes = np.zeros(count + 2)
    np.add.at(changes, np.minimum(first, count), 1)
    np.add.at(changes, np.minimum(last, count), -1)
    marks: Flags = np.cumsum(changes)[:count] > 0
    return marks


def _read_events(start: Start, kind: str) -> tuple[Array, Array]:
    """When they began and ended, in order."""
    import numpy as np

    found = sorted(
        (event.begin_ns, event.begin_ns + event.duration_ns)
        for event in start.main.events
        if event.kind == kind
    )
    both: Array = np.array(found, dtype=float).reshape(-1, 2)
    return both[:, 0], both[:, 1]
