"""From which batch on a variant pays.

Cases that differ only by their tokens are a series. A variant pays from the smallest measured batch
on at which, as at all larger ones, its verdict is "faster". Between that batch and the next smaller
one the crossover lies: nothing is interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.summary import Row, conditions
from flopwatch.case import digest

AXIS = "tokens"


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossover:
    """One variant over the batches at which it was compared with the baseline."""

    rows: list[Row]
    """By tokens, at least two, each with a verdict."""
    paying: list[Row]
    """The last of them, all "faster"; empty where the last one is not."""

    @property
    def below(self) -> Row | None:
        """The largest batch that is not among those that pay; None where all do."""
        place = len(self.rows) - len(self.paying)
        return self.rows[place - 1] if place else None


def find_crossovers(rows: Sequence[Row]) -> list[Crossover]:
    """Of every variant and set of other parameters, in order of appearance."""
    series: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        record = row.record
        if row.verdict is not None and _is_count(record.params.get(AXIS)):
            key = (record.suite, conditions(record), other_params(row), record.variant)
            series.setdefault(key, []).append(row)
    return [_find_crossover(found) for found in series.values() if len(found) > 1]


def other_params(row: Row) -> str:
    """Equal for cases that differ by their tokens only."""
    return digest({axis: value for axis, value in row.record.params.items() if axis != AXIS})


def count_tokens(row: Row) -> int:
    return int(row.record.params[AXIS])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _find_crossover(rows: Sequence[Row]) -> Crossover:
    ordered = sorted(rows, key=count_tokens)
    others = [place for place, row in enumerate(ordered, 1) if row.verdict != "faster"]
    return Crossover(rows=ordered, paying=ordered[max(others, default=0) :])


def as_dict(crossover: Crossover) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "axis": AXIS,
        "measured": [count_tokens(row) for row in crossover.rows],
        "pays_from": count_tokens(crossover.paying[0]) if crossover.paying else None,
        "below": None if crossover.below is None else count_tokens(crossover.below),
    }
