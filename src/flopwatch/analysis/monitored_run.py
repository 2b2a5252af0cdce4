"""A monitored run: all starts of one training, and what its steps come to.

A start is a record, made by `flopwatch.Monitor`; runs of one name and model are restarts of the
same training. What is said of steps is said of the lowest rank, which has seen all of them; ranks
are compared with each other in `stragglers`. The first steps (compilation, allocation) are apart:
the steady step is that of all later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from flopwatch.analysis.goodput import Attempt, Goodput, find_goodput
from flopwatch.analysis.monitored_rates import (
    Energy,
    RunUtilisation,
    Tokens,
    count_tokens,
    find_energy,
    find_run_utilisation,
)
from flopwatch.analysis.slow_steps import (
    Cause,
    Evidence,
    SlowStep,
    find_levels,
    find_slow_steps,
    name_late_ranks,
)
from flopwatch.analysis.statistics import Estimate, estimate_median
from flopwatch.analysis.stragglers import Stragglers, find_stragglers
from flopwatch.records.monitored import End, RankSteps
from flopwatch.records.record import Record

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

OTHER = "other"
PARTS = ("data", "forward", "loss", "backward", "communication", "optimizer", OTHER)
"""Of a step, in order."""
MOST_VALUES = 4000
"""Of which an interval is computed: of a million steps it is that of medians of blocks."""
EARLY = 1.25
"""Times the usual step: a leading step that takes longer is one of the first steps, too."""
MOST_EARLY = 20

PartName = Literal["data", "forward", "loss", "backward", "communication", "optimizer", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    name: str
    mean_ns: float
    share: float
    """Of the mean step; all of them add up to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSteps:
    count: int
    total_ns: float
    longest_ns: float
    excess_ns: float
    """Over as many steady steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    name: str
    count: int
    total_ns: float
    longest_ns: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RunMemory:
    peak_bytes: int | None
    end_bytes: int | None
    """When it was last looked at."""
    phases_bytes: dict[str, int]
    """The most that was held at the end of each part of a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One start of a run, as far as its lowest rank has seen it."""

    record: Record
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
    def main(self) -> RankSteps:
        assert self.record.monitored is not None
        return self.record.monitored.ranks[0]

    @property
    def steady_ns(self) -> Array:
        return self.step_ns[self.first_steps :]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """All that is said of one run. Times of steps are of the steady ones, of all starts."""

    name: str
    starts: list[Start]
    """In order; those without any step are left out."""
    world_size: int
    ranks_seen: int
    steps: int
    """Of all starts together."""
    step_ns: Estimate
    """The median."""
    mean_step_ns: float
    parts: list[StepPart]
    """Of the mean step. Empty where no part is known."""
    first: FirstSteps | None
    slow: list[tuple[Start, SlowStep]]
    slow_causes: dict[Cause, int]
    """How many slow steps each has, the most frequent first."""
    slow_lost_ns: float
    pauses: list[Pause]
    """The longest first."""
    collections: Pause | None
    """Of garbage, inside steps and outside."""
    tokens: Tokens | None
    utilisation: RunUtilisation | None
    missing: str | None
    """Why there is no MFU, and what to do."""
    stragglers: Stragglers | None
    goodput: Goodput | None
    memory: RunMemory
    energy: Energy | None
    end: End | None

    @property
    def data_share(self) -> float | None:
        """Of the wall clock, spent waiting for data, first steps and restarts included."""
        return self.share_of_wall("data")

    def share_of_wall(self, part: str) -> float | None:
        import numpy as np

        known = [start.parts_ns[part] for start in self.starts if part in start.parts_ns]
        if not known or self.goodput is None:
            return None
        return sum(float(np.nansum(values)) for values in known) / 1e9 / self.goodput.wall_s

    def find_part(self, name: str) -> StepPart | None:
        return next((part for part in self.parts if part.name == name), None)


def split_runs(records: Iterable[Record]) -> list[list[Record]]:
    """The starts of each run, in order. One that begins at or before the first step of one that was
    closed is another run of the same name, not a restart."""
    by_case: dict[str, list[Record]] = {}
    for record in records:
        if record.monitored is not None:
            by_case.setdefault(record.case_id, []).append(record)
    runs: list[list[Record]] = []
    for starts in by_case.values():
        runs.append([])
        for record in sorted(starts, key=_find_start):
            if runs[-1] and _is_another(runs[-1], record):
                runs.append([])
            runs[-1].append(record)
    return runs


def _find_start(record: Record) -> float:
    return 0.0 if record.monitored is None else record.monitored.started_unix_s


def _is_another(starts: Sequence[Record], record: Record) -> bool:
    last = starts[-1].monitored
    if last is None or last.end != "closed":
        return False
    firsts = [number for one in starts if (number := _find_first_step(one)) is not None]
    first = _find_first_step(record)
    return first is not None and bool(firsts) and first <= min(firsts)


def _find_first_step(record: Record) -> int | None:
    ranks = [] if record.monitored is None else record.monitored.ranks
    return ranks[0].steps[0] if ranks and ranks[0].steps else None


def summarize_run(records: Sequence[Record]) -> RunSummary | None:
    """Of the starts of one run; None where no step has ended."""
    import numpy as np

    starts = [start for record in records if (start := read_start(record)) is not None]
    if not starts:
        return None
    newest = starts[-1].record
    assert newest.monitored is not None
    steady = np.concatenate([start.steady_ns for start in starts])
    step_ns = estimate_typical(steady)
    slow = [(start, step) for start in starts for step in start.slow]
    tokens = count_tokens([(start.record, start.first_steps) for start in starts], step_ns.value)
    utilisation, missing = find_run_utilisation(newest, tokens, step_ns.value)
    waiting = [start.waiting_ns for start in starts if start.waiting_ns is not None]
    is_alike = len(waiting) == len(starts) and len({len(one) for one in waiting}) == 1
    causes = Counter(step.cause for _, step in slow)
    return RunSummary(
        name=newest.variant,
        starts=starts,
        world_size=newest.monitored.world_size,
        ranks_seen=len(newest.monitored.ranks),
        steps=sum(len(start.step_ns) for start in starts),
        step_ns=step_ns,
        mean_step_ns=float(steady.mean()),
        parts=split_step(starts),
        first=_sum_first(starts, step_ns.value),
        slow=slow,
        slow_causes=dict(causes.most_common()),
        slow_lost_ns=sum(step.excess_ns for _, step in slow),
        pauses=list_pauses(starts, "pause"),
        collections=_sum_collections(starts),
        tokens=tokens,
        utilisation=utilisation,
        missing=missing,
        stragglers=find_stragglers(
            np.concatenate([one[:, s.first_steps :] for one, s in zip(waiting, starts, strict=True)],
                           axis=1), steady, starts[-1].ranks,
        ) if is_alike else None,
        goodput=find_goodput([_make_attempt(start) for start in starts]),
        memory=_find_memory(starts),
        energy=find_energy([start.record for start in starts], tokens),
        end=newest.monitored.end,
    )  # fmt: skip


def read_start(record: Record) -> Start | None:
    """None where it has no step."""
    import numpy as np

    monitored = record.monitored
    if monitored is None or not monitored.ranks or not monitored.ranks[0].steps:
        return None
    main = monitored.ranks[0]
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

    numbers: list[int] = []
    rows: list[Array] = []
    for rank in ranks:
        values = rank.parts_ns.get("communication")
        if values is None:
            continue
        row = np.full(len(main.steps), np.nan)
        theirs = np.asarray(rank.steps, dtype=np.int64)
        places = np.searchsorted(main.steps, theirs)
        inside = places < len(main.steps)
        inside[inside] = np.asarray(main.steps)[places[inside]] == theirs[inside]
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
    """How long events of a kind took in each step that they began in."""
    import numpy as np

    total = np.zeros(len(start.step_ns))
    events = [event for event in start.main.events if event.kind == kind]
    if events:
        begins = np.array([event.begin_ns for event in events])
        places = np.searchsorted(start.begin_ns, begins, side="right") - 1
        kept = places >= 0
        durations = np.array([event.duration_ns for event in events])
        np.add.at(total, places[kept], durations[kept])
    return total


def _mark_events(start: Start, kind: str, *, also_next: bool = False) -> Array:
    """In which steps an event of a kind was there, and perhaps in the next one."""
    import numpy as np

    marks = np.zeros(len(start.step_ns), dtype=bool)
    for event in start.main.events:
        if event.kind == kind:
            first, last = np.searchsorted(
                start.begin_ns, [event.begin_ns, event.begin_ns + event.duration_ns], side="right"
            )
            marks[max(0, int(first) - 1) : int(last) + also_next] = True
    return marks


def estimate_typical(values: Array) -> Estimate:
    """The median with its interval; of very many values that of medians of blocks, which are as
    good and much quicker to compute."""
    import numpy as np

    if len(values) <= MOST_VALUES:
        return estimate_median(values.tolist())
    blocks = [float(np.median(block)) for block in np.array_split(values, MOST_VALUES // 4)]
    found = estimate_median(blocks)
    shift = float(np.median(values)) - found.value
    return Estimate(
        value=found.value + shift,
        low=None if found.low is None else found.low + shift,
        high=None if found.high is None else found.high + shift,
        samples=len(values),
    )


def split_step(starts: Sequence[Start]) -> list[StepPart]:
    """Of the mean of all steady steps; "other" is what is in no part, so that they add up."""
    import numpy as np

    names = [name for name in PARTS if any(name in start.parts_ns for start in starts)]
    if not names:
        return []
    count = sum(len(start.steady_ns) for start in starts)
    mean_ns = sum(float(start.steady_ns.sum()) for start in starts) / count
    means = {
        name: sum(
            float(np.nansum(start.parts_ns[name][start.first_steps :]))
            for start in starts
            if name in start.parts_ns
        )
        / count
        for name in names
    }
    # Clocks of a host and a device may disagree by a little.
    excess = max(1.0, sum(means.values()) / mean_ns)
    means = {name: value / excess for name, value in means.items()}
    means[OTHER] = max(0.0, mean_ns - sum(means.values()))
    return [StepPart(name=name, mean_ns=ns, share=ns / mean_ns) for name, ns in means.items()]


def _sum_first(starts: Sequence[Start], usual_ns: float) -> FirstSteps | None:
    times = [start.step_ns[: start.first_steps] for start in starts if start.first_steps]
    if not times:
        return None
    count, total_ns = sum(map(len, times)), sum(float(one.sum()) for one in times)
    return FirstSteps(
        count=count,
        total_ns=total_ns,
        longest_ns=max(float(one.max()) for one in times),
        excess_ns=max(0.0, total_ns - count * usual_ns),
    )


def list_pauses(starts: Sequence[Start], kind: str) -> list[Pause]:
    """Of events of a kind, by name; the longest first."""
    times: dict[str, list[float]] = {}
    for start in starts:
        for event in start.main.events:
            if event.kind == kind:
                times.setdefault(event.name, []).append(event.duration_ns)
    found = [
        Pause(name=name, count=len(each), total_ns=sum(each), longest_ns=max(each))
        for name, each in times.items()
    ]
    return sorted(found, key=lambda pause: -pause.total_ns)


def _sum_collections(starts: Sequence[Start]) -> Pause | None:
    found = list_pauses(starts, "gc")
    if not found:
        return None
    return Pause(
        name="garbage collection",
        count=sum(one.count for one in found),
        total_ns=sum(one.total_ns for one in found),
        longest_ns=max(one.longest_ns for one in found),
    )


def _make_attempt(start: Start) -> Attempt:
    import numpy as np

    monitored, main = start.record.monitored, start.main
    assert monitored is not None
    pauses: dict[str, float] = {}
    for event in main.events:
        if event.kind == "pause":
            pauses[event.name] = pauses.get(event.name, 0.0) + event.duration_ns / 1e9
    usual = start.step_ns.copy()
    early = slice(None, start.first_steps)
    usual[early] = np.minimum(usual[early], start.level_ns[early])
    for step in start.slow:
        usual[step.place] = step.step_ns - step.excess_ns
    last_s = (float(start.begin_ns[-1]) + float(start.step_ns[-1])) / 1e9
    return Attempt(
        began_s=monitored.started_unix_s,
        ended_s=main.zero_unix_s + max(last_s, main.seen_ns / 1e9),
        begin_s=main.zero_unix_s + float(start.begin_ns[0]) / 1e9,
        numbers=start.numbers,
        step_ns=start.step_ns,
        usual_ns=usual,
        first_steps=start.first_steps,
        pauses_s=pauses,
    )


def _find_memory(starts: Sequence[Start]) -> RunMemory:
    """Of all ranks that have a monitor: the most that any of them held."""
    readings = [
        reading
        for start in starts
        if start.record.monitored is not None
        for rank in start.record.monitored.ranks
        for reading in rank.readings
    ]
    peaks = [one.peak_memory_bytes for one in readings if one.peak_memory_bytes is not None]
    held = [one.memory_bytes for one in readings if one.memory_bytes is not None]
    phases: dict[str, int] = {}
    for reading in readings:
        for name, size_bytes in reading.phase_memory_bytes.items():
            phases[name] = max(phases.get(name, 0), size_bytes)
    return RunMemory(
        peak_bytes=max([*peaks, *held], default=None),
        end_bytes=held[-1] if held else None,
        phases_bytes=phases,
    )


def describe_causes(causes: Mapping[Cause, int]) -> str:
    """
    >>> describe_causes({"data": 5, "unknown": 2})
    '5 data, 2 unknown'
    """
    return ", ".join(f"{count} {cause}" for cause, count in causes.items())
