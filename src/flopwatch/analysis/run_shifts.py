"""How two runs of the same cases have moved as a whole: with the machine, or only their baselines.

A ratio to the baseline does not show how fast the machine was. Nor does it show which of its two
sides has changed. The clock shows that, roughly, if the machine was in the same state:

    all cases moved alike, baselines included    the machine was in another state, or something
                                                 changed that all of them share: times say nothing
                                                 about one case alone
    baselines moved, and the others did not      the machine was the same, and the baselines have
                                                 changed: ratios to them say nothing about the rest
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flopwatch.analysis.comparable import Pair
from flopwatch.analysis.statistics import measured_totals_ns, median
from flopwatch.records.record import Record

SCATTERS = 3
"""A shift is more than chance from so many median deviations on."""
STILL = 0.25
"""Of the baselines' shift: what others may have moved by and count as not moved."""
FEWEST_STILL = 2
"""That one case alone stays where it was may be a coincidence."""

Key = tuple[str, str, str]
"""Run, group and variant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineShift:
    """Of a baseline between two runs, by its times."""

    old: Record
    new: Record
    old_ns: float
    new_ns: float

    @property
    def ratio(self) -> float:
        return self.new_ns / self.old_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class RunShifts:
    baselines: list[BaselineShift]
    """Of the baselines that both sides have, with cases that are compared with them."""
    machine: float | None
    """The ratio of times by which all cases moved, baselines included; None: they did not."""
    lone_baseline: float | None
    """The ratio of times by which baselines moved while other cases stayed; None: they did not."""


NO_SHIFTS = RunShifts(baselines=[], machine=None, lone_baseline=None)


def find_shifts(pairs: Sequence[Pair], yardsticks: Collection[Key], threshold: float) -> RunShifts:
    """`yardsticks` are the baselines' records. What is below the threshold or the scatter is no
    shift, and without a baseline nothing shows one."""
    baselines = [pair for pair in pairs if key_of(pair.new[-1]) in yardsticks]
    others = [pair for pair in pairs if key_of(pair.new[-1]) not in yardsticks]
    moves, other_moves = [*map(_find_move, baselines)], [*map(_find_move, others)]
    least = math.log1p(threshold)
    known = bool(moves and other_moves)
    return RunShifts(
        baselines=[
            BaselineShift(
                old=pair.old[-1],
                new=pair.new[-1],
                old_ns=find_middle(pair.old),
                new_ns=find_middle(pair.new),
            )
            for pair in baselines
        ],
        machine=_find_machine(moves, other_moves, least) if known else None,
        lone_baseline=_find_lone(moves, other_moves, least) if known else None,
    )


def _find_machine(
    baselines: Sequence[float], others: Sequence[float], least: float
) -> float | None:
    """From logarithms of ratios of times, as the next."""
    one, other = median(baselines), median(others)
    shared = min(abs(one), abs(other))
    both = [*baselines, *others]
    is_alike = one * other > 0 and 2 * shared >= max(abs(one), abs(other))
    if is_alike and shared > max(least, SCATTERS * _find_scatter(both)):
        return math.exp(median(both))
    return None


def _find_lone(baselines: Sequence[float], others: Sequence[float], least: float) -> float | None:
    one, other = median(baselines), median(others)
    scatter = max(_find_scatter(baselines), _find_scatter(others))
    is_still = len(others) >= FEWEST_STILL and abs(other) <= STILL * abs(one)
    return math.exp(one) if is_still and abs(one) > max(least, SCATTERS * scatter) else None


def _find_scatter(values: Sequence[float]) -> float:
    middle = median(values)
    return median([abs(value - middle) for value in values])


def _find_move(pair: Pair) -> float:
    return math.log(find_middle(pair.new) / find_middle(pair.old))


def find_middle(records: Sequence[Record]) -> float:
    """The median time in ns; of several runs their geometric mean."""
    logs = [math.log(median(measured_totals_ns(record))) for record in records]
    return math.exp(sum(logs) / len(logs))


def key_of(record: Record) -> Key:
    return record.run_id, record.group_id, record.variant
