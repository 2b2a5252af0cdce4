"""What a case took in one run, and how much that differs from run to run.

Two runs of the same code differ by more than the scatter inside each of them tells: tensors lie
elsewhere in memory, the neighbours on the machine are others. With several runs of the same cases
on a side, that is measured: the scatter of a case's medians, over all cases together. With one run
on each side it is taken from the cases themselves: half of them at least have changed alike, or
not at all, so that the half whose ratios lie closest together scatters by what differs from run to
run. What lies far out to one side of that half is left out: it may have changed. Where cases lie
far out to both sides, faster and slower, nothing is left out: code that changes goes one way, and a
machine that places tensors luckily or not, both. With fewer than 8 cases it is not known; the
threshold of a verdict must stand for it then.

The same cases in two sets of records: an old one and a new one.

A case is the same where suite, variant and parameters are. An axis that has one value in all of the
old records of a suite and another one in all of its new ones (batch 32 there, 64 here) does not
keep cases apart: that is what you want to compare, though it is not comparable. The
variant counts as such an axis, too.

Records of one case that were measured under different conditions (threads, cache, versions) are
compared under the same conditions where there are any, and otherwise newest with newest. Of each
run, the newest record counts; several runs of a case are kept together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flopwatch.analysis.comparable import Differences
from flopwatch.analysis.ratio_tests import MOST_BLOCKS, Separate, bootstrap_error
from flopwatch.analysis.statistics import measured_totals_ns, median, totals_by_round
from flopwatch.analysis.summary import conditions, is_timed
from flopwatch.records.record import Record
from flopwatch.suites.case import digest, format_value

FEWEST_CASES = 8
FEWEST_REPEATS = 4
"""Degrees of freedom, over all cases."""
WEIGHT_OF_ALL = 4
"""Degrees of freedom of the spread of all cases, against a case's own repeats."""
NORMAL_DEVIATION = 1.4826
"""From the median deviation to the standard deviation, for a normal distribution."""

OUTLYING = 2.5
"""Deviations from the middle at which a case is taken to have changed."""
FAR_OUT = 3.5
"""And at which it cannot be chance."""
CLIPPED = 1.06
"""What leaving those out takes off the deviation of a normal distribution."""

Source = Literal["repeats", "cases"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """One case in one run."""

    log_time: float
    """Of the median time in ns, or of its ratio to the baseline's."""
    error: float | None
    """Standard error of that by the samples of this run; None where they are too few."""
    samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """The takes of one case, one a run."""

    old: Sequence[Take]
    new: Sequence[Take]

    @property
    def log_old(self) -> float:
        return _mean([take.log_time for take in self.old])

    @property
    def log_new(self) -> float:
        return _mean([take.log_time for take in self.new])

    @property
    def log_ratio(self) -> float:
        return self.log_new - self.log_old

    @property
    def repeats(self) -> tuple[float, int]:
        """Squared deviations of the runs from their side's mean, without what the scatter inside
        them explains, and degrees of freedom."""
        squares = sum((take.log_time - self.log_old) ** 2 for take in self.old)
        squares += sum((take.log_time - self.log_new) ** 2 for take in self.new)
        freedom = len(self.old) + len(self.new) - 2
        inside = _mean([(take.error or 0.0) ** 2 for take in (*self.old, *self.new)])
        return squares - freedom * inside, freedom

    @property
    def within(self) -> float | None:
        """Standard error of the ratio by what is seen inside the runs."""
        errors = [_error_of_mean(self.old), _error_of_mean(self.new)]
        known = [error for error in errors if error is not None]
        return math.hypot(*known) if len(known) == 2 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How much a case differs from run to run, as the standard deviation of its log time."""

    deviation: float
    freedom: float
    source: Source


def take(record: Record, baseline: Record | None = None) -> Take:
    """By the time, or where a baseline is given, by the ratio to it within rounds."""
    if baseline is None:
        logs = [math.log(ns) for ns in measured_totals_ns(record)]
    else:
        theirs = totals_by_round(baseline)
        mine = totals_by_round(record)
        logs = [math.log(mine[r] / theirs[r]) for r in sorted(mine.keys() & theirs.keys())]
    return Take(log_time=median(logs), error=bootstrap_error(logs), samples=len(logs))


def find_spread(cases: Sequence[Sides]) -> Spread | None:
    return _from_repeats(cases) or _from_cases(cases)


def weigh(sides: Sides, spread: Spread | None) -> Separate | None:
    """What the takes of a case say about its ratio; None where there are too few samples."""
    within = sides.within
    if within is None:
        return None
    deviation, freedom = (0.0, 0.0) if spread is None else _find_own_deviation(sides, spread)
    between = deviation * math.sqrt(1 / len(sides.old) + 1 / len(sides.new))
    samples = [sum(take.samples for take in takes) for takes in (sides.old, sides.new)]
    inside = [min(MOST_BLOCKS, take.samples) - 1 for take in (*sides.old, *sides.new)]
    return Separate(
        log_ratio=sides.log_ratio,
        within=within,
        between=between,
        freedom=_join_freedom([(within, float(sum(inside))), (between, freedom)]),
        samples=min(samples),
        runs=min(len(sides.old), len(sides.new)),
    )


def _find_own_deviation(sides: Sides, spread: Spread) -> tuple[float, float]:
    """Of this case, with its degrees of freedom. Some cases differ more from run to run than
    others, and a few runs of one say little: its own repeats are averaged with all cases."""
    squares, freedom = sides.repeats
    if not freedom:
        return spread.deviation, spread.freedom
    weight = min(float(WEIGHT_OF_ALL), spread.freedom)
    squared = (weight * spread.deviation**2 + squares) / (weight + freedom)
    return math.sqrt(max(0.0, squared)), weight + freedom


def _from_repeats(cases: Sequence[Sides]) -> Spread | None:
    repeats = [sides.repeats for sides in cases]
    freedom = sum(own for _, own in repeats)
    if freedom < FEWEST_REPEATS:
        return None
    squares = sum(own for own, _ in repeats)
    deviation = math.sqrt(max(0.0, squares) / freedom)
    return Spread(deviation=deviation, freedom=freedom, source="repeats")


def _from_cases(cases: Sequence[Sides]) -> Spread | None:
    known = [sides for sides in cases if sides.within is not None]
    if len(known) < FEWEST_CASES:
        return None
    ratios = [sides.log_ratio for sides in known]
    middle, rough = _find_closest_half(ratios)
    kept = [ratio for ratio in ratios if abs(ratio - middle) <= OUTLYING * rough]
    far = [ratio for ratio in ratios if abs(ratio - middle) > FAR_OUT * rough]
    if any(ratio > middle for ratio in far) and any(ratio < middle for ratio in far):
        kept = ratios  # a machine that does so to the same code, not a change of it
    freedom = len(kept) - 1
    squares = sum((ratio - _mean(kept)) ** 2 for ratio in kept)
    deviation = math.sqrt(squares / freedom) * (CLIPPED if len(kept) < len(ratios) else 1.0)
    inside = median([sides.within or 0.0 for sides in known])
    # Both sides of a ratio have their share of it.
    squared = max(0.0, deviation**2 - inside**2) / 2
    return Spread(deviation=math.sqrt(squared), freedom=freedom, source="cases")


def _find_closest_half(values: Sequence[float]) -> tuple[float, float]:
    """The middle of the half of them that lies closest together, and the standard deviation that
    its width lets one expect, for a normal distribution (Rousseeuw and Leroy)."""
    ordered, half = sorted(values), (len(values) + 1) // 2
    starts = range(len(values) - half + 1)
    low, high = min(
        ((ordered[start], ordered[start + half - 1]) for start in starts),
        key=lambda ends: ends[1] - ends[0],
    )
    few = 1 + 5 / (len(values) - 1)  # the closest of few lies closer than a half does
    return (low + high) / 2, NORMAL_DEVIATION * few * (high - low) / 2


def _error_of_mean(takes: Sequence[Take]) -> float | None:
    errors = [take.error for take in takes if take.error is not None]
    return math.hypot(*errors) / len(takes) if len(errors) == len(takes) else None


def _join_freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Of a sum of squared errors, by Welch and Satterthwaite."""
    total = sum(error**2 for error, _ in parts)
    uncertain = sum(error**4 / freedom for error, freedom in parts if freedom > 0)
    return total**2 / uncertain if uncertain > 0 else math.inf


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


VARIANT = "variant"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    old: list[Record]
    """One a run, the newest last, all measured under the same conditions."""
    new: list[Record]
    moved: Differences = field(default_factory=dict)
    """Axes in which the sides differ as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    pairs: list[Pair]
    broken: list[Record]
    """New records of cases that were measured before and failed now."""
    fixed: list[Record]
    """New records of cases that had failed before."""
    only_old: list[Record]
    only_new: list[Record]


def match(old: Sequence[Record], new: Sequence[Record]) -> Matched:
    moved = _find_moved(old, new)
    before, after = _by_case(old, moved), _by_case(new, moved)
    pairs: list[Pair] = []
    broken: list[Record] = []
    fixed: list[Record] = []
    for case in [case for case in before if case in after]:
        timed_before = [record for record in before[case] if is_timed(record)]
        timed_after = [record for record in after[case] if is_timed(record)]
        if timed_before and timed_after and not _has_broken(after[case]):
            changes = moved.get(before[case][0].suite, {})
            pairs += _pair(timed_before, timed_after, changes)
        elif timed_before:
            broken.append(after[case][-1])
        elif timed_after:
            fixed.append(after[case][-1])
    return Matched(
        pairs=pairs,
        broken=broken,
        fixed=fixed,
        only_old=[records[-1] for case, records in before.items() if case not in after],
        only_new=[records[-1] for case, records in after.items() if case not in before],
    )


def _has_broken(records: Sequence[Record]) -> bool:
    """Whether the newest one tells of a failure; one that was only skipped tells of nothing."""
    told = [record for record in records if record.status != "skipped"]
    return bool(told) and not is_timed(told[-1])


def _find_moved(old: Sequence[Record], new: Sequence[Record]) -> dict[str, Differences]:
    """By suite."""
    before, after = _list_values(old), _list_values(new)
    return {
        suite: {
            axis: (before[suite].get(axis, _NOTHING)[0], after[suite].get(axis, _NOTHING)[0])
            for axis in {**before[suite], **after[suite]}
            if _is_moved(before[suite].get(axis, _NOTHING), after[suite].get(axis, _NOTHING))
        }
        for suite in before
        if suite in after
    }


_NOTHING: list[str | None] = [None]


def _list_values(records: Sequence[Record]) -> dict[str, dict[str, list[str | None]]]:
    """By suite and axis, the values that there are."""
    values: dict[str, dict[str, dict[str | None, None]]] = {}
    for record in records:
        axes = values.setdefault(record.suite, {})
        for axis, value in {**record.params, VARIANT: record.variant}.items():
            axes.setdefault(axis, {})[format_value(value)] = None
    return {s: {a: list(found) for a, found in axes.items()} for s, axes in values.items()}


def _is_moved(old: Sequence[str | None], new: Sequence[str | None]) -> bool:
    return len(old) == len(new) == 1 and old[0] != new[0]


def _by_case(
    records: Sequence[Record], moved: Mapping[str, Differences]
) -> dict[str, list[Record]]:
    cases: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.measured_at):
        ignored = moved.get(record.suite, {})
        axes: dict[str, Any] = {**record.params, VARIANT: record.variant}
        kept = {axis: value for axis, value in axes.items() if axis not in ignored}
        cases.setdefault(digest([record.suite, kept]), []).append(record)
    return cases


def _pair(old: Sequence[Record], new: Sequence[Record], moved: Differences) -> list[Pair]:
    """One for every set of conditions that both have, or else one of the newest."""
    before, after = _by_conditions(old), _by_conditions(new)
    shared = [same for same in before if same in after]
    if shared:
        return [Pair(old=before[same], new=after[same], moved=moved) for same in shared]
    return [Pair(old=before[conditions(old[-1])], new=after[conditions(new[-1])], moved=moved)]


def _by_conditions(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The newest record of each run."""
    alike: dict[str, dict[str, Record]] = {}
    for record in records:
        alike.setdefault(conditions(record), {})[record.run_id] = record
    return {like: list(runs.values()) for like, runs in alike.items()}
