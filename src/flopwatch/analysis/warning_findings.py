"""What warnings are made of: cases with their samples, baseline and trend, and what is found.

A trend: timing noise is skewed, has outliers, and neighbours move together: all of that fakes
trends. The test is therefore Spearman's correlation of the samples' ranks with their order, judged
by as many independent samples as the ranks are worth once the trend itself, or a step if that
explains more, is taken out of them.

Two modes: whether samples lie around two levels instead of one. Of all ways to cut the ordered
samples in two, neither part smaller than a quarter, the one with the widest gap is taken: the
distance between the lower part's 90 % quantile and the upper part's 10 % quantile, over the
distance of their medians. Quantiles, so that outliers neither fill a gap nor make one; logarithms,
so that skewed noise is no second level. Samples without any structure, spread evenly, give gaps of
0.2 and a chance part that falls with their number: what exceeds 0.2 + 3 / sqrt(n) is a level of its
own, but for less than one such series in a thousand.

`tests/analysis/test_warnings_simulated.py` counts the false alarms of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flopwatch.analysis.statistics import median, totals_by_round
from flopwatch.analysis.summary import Row, choose_newest, is_foreign, summarize
from flopwatch.records.record import Record

if TYPE_CHECKING:
    import numpy as np

    from flopwatch.analysis.monitored_run import RunSummary

    Array = np.ndarray[Any, np.dtype[np.float64]]

LEAST_CHANGE = 0.05
"""A trend, or two levels, that differ by less: verdicts need 3 %, and intervals say the rest."""
FEWEST_FOR_TREND = 12
"""A shorter series of correlated noise looks like a trend."""
SPEARMAN = 1.06
"""Ranks scatter a little more than the values that Fisher's transformation was made for."""
FEWEST_FOR_MODES = 16
"""With fewer, no gap is too wide for chance."""
LEAST_SHARE = 0.25
"""A smaller part is outliers, which a median ignores."""
EVEN_GAP = 0.2
MODES_THRESHOLD = 3.0
FOR_EACH_TENFOLD = 0.3
"""Added to CHANCE for ten times as many series, each of which may raise an alarm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    chance: float
    """How likely noise without a trend correlates with its order as much."""
    change: float
    """From the median of the first third to that of the last, relatively."""
    late_change: float
    """The same from the second third on: much less than `change` where the level has settled."""


def find_trend(values: Sequence[float], least_change: float = 0.0) -> Trend | None:
    """None where there are too few. Where the level changed by less than `least_change`, chance is
    not asked: it is 1.

    >>> find_trend([1.0] * 11) is None
    True
    >>> trend = find_trend([100 + (7 * n) % 5 + 2 * n for n in range(40)])
    >>> trend.chance < 1e-6, round(trend.change, 2)
    (True, 0.47)
    """
    import numpy as np

    count = len(values)
    if count < FEWEST_FOR_TREND:
        return None
    third = count // 3
    first, second, last = map(median, (values[:third], values[third:-third], values[-third:]))
    change = last / first - 1
    is_small = abs(change) < least_change
    return Trend(
        chance=1.0 if is_small else _find_chance(np.asarray(values, dtype=float)),
        change=change,
        late_change=last / second - 1,
    )


def _find_chance(series: Array) -> float:
    import numpy as np

    count = len(series)
    order: Array = np.arange(count, dtype=float) - (count - 1) / 2
    ranks = _rank(series)
    spread = math.sqrt(float(order @ order) * float(ranks @ ranks))
    if spread == 0:
        return 1.0
    correlation = float(ranks @ order) / spread
    effective = count * _find_independence(_take_out_trend(ranks, order))
    if effective <= 4:
        return 1.0
    transformed = math.atanh(min(abs(correlation), 1 - 1e-9))
    return math.erfc(transformed * math.sqrt((effective - 3) / SPEARMAN / 2))


def _rank(series: Array) -> Array:
    """Around 0; equal values share their mean rank, so that a coarse clock fakes nothing."""
    import numpy as np

    _, places, counts = np.unique(series, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Array = (ends - (counts + 1) / 2)[places]
    return ranks - float(ranks.mean())


def _take_out_trend(ranks: Array, order: Array) -> Array:
    """What is left of the ranks without a line, or without a step where that leaves less: a step is
    a change of level, not noise that moves together."""
    import numpy as np

    count = len(ranks)
    without_line = ranks - order * float(ranks @ order) / float(order @ order)
    before = np.arange(1, count)
    sums = np.cumsum(ranks)[:-1]
    explained = sums**2 * count / (before * (count - before))
    least = max(2, count // 5)
    place = least + int(np.argmax(explained[least - 1 : count - least]))
    earlier = np.arange(count) < place
    total = sums[place - 1]
    without_step = ranks - np.where(earlier, total / place, -total / (count - place))
    is_line = without_line @ without_line <= without_step @ without_step
    return without_line if is_line else without_step


def _find_independence(noise: Array) -> float:
    """What share of the samples is left if those that move together are counted as one."""
    variance = float(noise @ noise)
    if variance == 0:
        return 1.0
    correlation = float(noise[1:] @ noise[:-1]) / variance
    # Short series seem less correlated than they are, the more so once a trend is taken out.
    correlation = max(0.0, correlation + (1 + 4 * correlation) / len(noise))
    return max(0.0, (1 - correlation) / (1 + correlation))


@dataclass(frozen=True, kw_only=True, slots=True)
class Modes:
    low: float
    high: float
    """Medians of the two parts."""
    high_share: float

    @property
    def distance(self) -> float:
        """How much more the higher one is, relatively."""
        return self.high / self.low - 1


def find_modes(values: Sequence[float], num_series: int = 1) -> Modes | None:
    """None where one level explains the values, or they are too few; `num_series` is how many
    series are looked at.

    >>> find_modes([100 + (7 * n) % 11 for n in range(40)]) is None
    True
    >>> modes = find_modes([(100, 100, 130)[n % 3] + (7 * n) % 5 for n in range(40)])
    >>> modes.low, modes.high, round(modes.high_share, 2)
    (102.0, 132.0, 0.33)
    """
    import numpy as np

    count = len(values)
    if count < FEWEST_FOR_MODES:
        return None
    ordered = np.sort(np.asarray(values, dtype=float))
    logs = np.log(ordered)
    least = math.ceil(LEAST_SHARE * count)
    lower = np.arange(least, count - least + 1)  # how many are in the lower part
    upper = count - lower
    distance = logs[lower + upper // 2] - logs[(lower - 1) // 2]
    top = np.rint(0.9 * (lower - 1)).astype(int)
    bottom = lower + np.rint(0.1 * (upper - 1)).astype(int)
    gaps = (logs[bottom] - logs[top]) / np.where(distance > 0, distance, np.inf)
    best = int(np.argmax(gaps))
    chance = MODES_THRESHOLD + FOR_EACH_TENFOLD * math.log10(max(1, num_series))
    if gaps[best] <= EVEN_GAP + chance / math.sqrt(count):
        return None
    # Quantiles leave the place of the cut open; the widest step between neighbours decides.
    first, last = int(top[best]), int(bottom[best])
    cut = first + 1 + int(np.argmax(np.diff(logs[first : last + 1])))
    return Modes(
        low=float(np.median(ordered[:cut])),
        high=float(np.median(ordered[cut:])),
        high_share=(count - cut) / count,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One case's part of a warning."""

    record: Record
    fact: str
    """With its numbers, to be read after the case's name."""
    size: float = 0.0
    """The larger, the worse, among findings of one cause."""
    cause: str = ""
    """Findings of one kind and cause are one warning."""
    advice: str | None = None
    """Where that of its kind does not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A record that a table would show."""

    record: Record
    baseline: Record | None
    """Of its own run and group, whatever became of it; None for a baseline, and where there is
    none."""
    table: tuple[str, frozenset[str], str, str]
    """Equal for records that share a table, as in `output.tables.divide`."""
    totals_ns: list[float] = field(default_factory=list)
    """Of the measured samples; empty where it failed."""
    ratios: list[float] = field(default_factory=list)
    """Its time over the baseline's, in the rounds that have both; empty for what is in parts."""
    trend: Trend | None = None
    """Of its times; None where they are too few."""
    ratio_trend: Trend | None = None
    monitored: RunSummary | None = None
    """Of a monitored run: all its starts."""

    @property
    def is_foreign(self) -> bool:
        return is_foreign(self.record)

    @property
    def is_baseline(self) -> bool:
        return self.record.variant == self.record.baseline

    @property
    def is_rival(self) -> bool:
        """Whether it is compared with a baseline."""
        return not self.is_baseline and self.record.kind == "whole"

    def found(
        self, fact: str, size: float = 0.0, cause: str = "", advice: str | None = None
    ) -> Finding:
        return Finding(record=self.record, fact=fact, size=size, cause=cause, advice=advice)


def gather(records: Iterable[Record], rows: Sequence[Row] | None = None) -> list[Case]:
    """What tables would show: the newest record of every case, baseline and set of conditions."""
    every = list(records)
    listed = [record for record in every if record.monitored is None]
    by_name = {(record.run_id, record.group_id, record.variant): record for record in listed}
    totals: dict[int, dict[int, float]] = {}

    def find_totals(record: Record) -> dict[int, float]:
        # Every variant of a group asks for the baseline's.
        if id(record) not in totals:
            totals[id(record)] = totals_by_round(record)
        return totals[id(record)]

    cases = []
    for (_, _, measured_with), record in choose_newest(listed).items():
        baseline = by_name.get((record.run_id, record.group_id, record.baseline))
        is_baseline = record.variant == record.baseline
        own = find_totals(record) if record.status == "ok" else {}
        is_rival = not is_baseline and record.kind == "whole"
        theirs = find_totals(baseline) if own and is_rival and baseline is not None else {}
        totals_ns = list(own.values())
        ratios = [own[round_] / theirs[round_] for round_ in own if round_ in theirs]
        case = Case(
            record=record,
            baseline=None if is_baseline else baseline,
            table=(record.suite, frozenset(record.params), record.baseline, measured_with),
            totals_ns=totals_ns,
            ratios=ratios,
            trend=find_trend(totals_ns, LEAST_CHANGE),
            ratio_trend=find_trend(ratios, LEAST_CHANGE),
        )
        cases.append(case)
    monitored = [record for record in every if record.monitored is not None]
    return [*cases, *_gather_runs(summarize(monitored) if rows is None else rows)]


def _gather_runs(rows: Sequence[Row]) -> list[Case]:
    """Of monitored training loops."""
    return [
        Case(
            record=row.record,
            baseline=None,
            table=(row.record.suite, frozenset(row.record.params), row.record.baseline, ""),
            totals_ns=[] if row.total_ns is None else [row.total_ns.value],
            monitored=row.monitored,
        )
        for row in rows
        if row.record.monitored is not None
    ]


def group_cases(cases: Iterable[Case], key: Callable[[Case], Hashable]) -> list[list[Case]]:
    groups: dict[Hashable, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case), []).append(case)
    return list(groups.values())
