"""A monitored run: all starts of one training, and what its steps come to.

A start is a record, made by `flopwatch.Monitor`; runs of one name and model are restarts of the
same training. The first steps of each start are apart: the steady step is that of all later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from flopwatch.analysis.goodput import Attempt, Goodput, find_goodput
from flopwatch.analysis.monitored_rates import (
    Energy,
    RunUtilisation,
    Tokens,
    count_run_tokens,
    find_energy,
    find_run_utilisation,
)
from flopwatch.analysis.monitored_steps import OTHER, Start, find_main, read_start
from flopwatch.analysis.slow_steps import Cause, SlowStep
from flopwatch.analysis.statistics import Estimate, as_interval, estimate_median
from flopwatch.analysis.stragglers import Stragglers, find_stragglers
from flopwatch.records.monitored import End
from flopwatch.records.record import Record

if TYPE_CHECKING:
    import numpy as np

    from flopwatch.jobs.utilisation import Utilisation

    Array = np.ndarray[Any, np.dtype[np.float64]]

PARTS = ("data", "forward", "loss", "backward", "communication", "optimizer", OTHER)
"""Of a step, in order."""
MOST_VALUES = 4000
"""Of which an interval is computed: of a million steps it is that of medians of blocks."""


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
    def records(self) -> list[Record]:
        return [start.record for start in self.starts]

    @property
    def steady_steps(self) -> int:
        return sum(len(start.steady_ns) for start in self.starts)

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

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "starts": len(self.starts),
            "world_size": self.world_size,
            "ranks_seen": self.ranks_seen,
            "steps": self.steps,
            "step_ns": as_interval(self.step_ns),
            "mean_step_ns": self.mean_step_ns,
            "parts": [asdict(part) for part in self.parts],
            "data_share_of_wall": self.data_share,
            "first_steps": None if self.first is None else asdict(self.first),
            "slow_steps": [
                {**asdict(step), "run_id": start.record.run_id} for start, step in self.slow
            ],
            "slow_causes": self.slow_causes,
            "slow_lost_ns": self.slow_lost_ns,
            "pauses": [asdict(pause) for pause in self.pauses],
            "garbage_collections": None if self.collections is None else asdict(self.collections),
            "tokens": None
            if self.tokens is None
            else {**asdict(self.tokens), "padding_share": self.tokens.padding_share},
            "utilisation": None if self.utilisation is None else asdict(self.utilisation),
            "missing": self.missing,
            "stragglers": None if self.stragglers is None else asdict(self.stragglers),
            "goodput": None if self.goodput is None else asdict(self.goodput),
            "memory": asdict(self.memory),
            "energy": None
            if self.energy is None
            else {**asdict(self.energy), "power_w": self.energy.power_w},
            "end": self.end,
        }


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
    main = find_main(record)
    return None if main is None else main.steps[0]


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
    tokens = count_run_tokens([start.record for start in starts], step_ns.value)
    utilisation, missing = find_run_utilisation(newest, tokens, step_ns.value)
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
        stragglers=_compare_ranks(starts),
        goodput=find_goodput([_make_attempt(start) for start in starts]),
        memory=_find_memory(starts),
        energy=find_energy([start.record for start in starts], tokens),
        end=newest.monitored.end,
    )


def _compare_ranks(starts: Sequence[Start]) -> Stragglers | None:
    """Of all starts with the ranks of the newest one."""
    import numpy as np

    alike = [start for start in starts if start.ranks == starts[-1].ranks]
    known = [
        (start.waiting_ns[:, start.first_steps :], start.steady_ns)
        for start in alike
        if start.waiting_ns is not None
    ]
    if not known:
        return None
    waiting_ns = np.concatenate([waiting for waiting, _ in known], axis=1)
    steady_ns = np.concatenate([times for _, times in known])
    return find_stragglers(waiting_ns, steady_ns, starts[-1].ranks)


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
        paused_s=sum(event.duration_ns for event in main.events if event.kind == "pause") / 1e9,
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


def as_utilisation(run: RunSummary) -> Utilisation | None:
    """As tables of training jobs have it; None where nobody said how many tokens a step has."""
    from flopwatch.jobs.utilisation import Utilisation

    used, tokens = run.utilisation, run.tokens
    if used is None or tokens is None:
        return None
    model = used.model_flops_per_s / tokens.per_s
    recomputed = used.hfu / used.mfu if used.hfu and used.mfu else 1.0
    return Utilisation(
        convention=used.convention,
        model_flops_per_token=model,
        hardware_flops_per_token=model * recomputed,
        tokens_per_s=tokens.per_s,
        mfu=used.mfu,
        hfu=used.hfu,
        mfu_star=None,
        hfu_star=None,
        peak_flops_per_s=used.peak_flops_per_s,
        peak_source=used.peak_source,
        missing=run.missing,
        impossible=None,
    )


def describe_causes(causes: Mapping[Cause, int]) -> str:
    """
    >>> describe_causes({"data": 5, "unknown": 2})
    '5 data, 2 unknown'
    """
    return ", ".join(f"{count} {cause}" for cause, count in causes.items())
