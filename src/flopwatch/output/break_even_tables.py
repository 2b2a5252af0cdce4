"""From which batch on variants pay, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.break_even import AXIS, Crossing, Crossover, find_crossovers, other_params
from flopwatch.analysis.statistics import CONFIDENCE, Verdict
from flopwatch.analysis.summary import Row
from flopwatch.output.columns import UNLIKE, Column, axis_column
from flopwatch.output.tables import Sheet, choose_axes, divide, lay_out
from flopwatch.output.units import format_ratio

BELOW: dict[Verdict, str] = {
    "slower": "it is slower",
    "same": "it is as fast",
    "unclear": "that is unclear",
}
"""How a batch just below those that pay is told."""


def make_crossover_sheets(rows: Sequence[Row], axis: str = AXIS) -> list[Sheet]:
    """One for every table of cases that has variants at several batches."""
    return [
        _make_sheet(alike, found)
        for alike in divide(rows)
        if (found := find_crossovers(alike, axis))
    ]


def group_crossovers(crossovers: Sequence[Crossover]) -> list[list[Crossover]]:
    """Variants of the same shape, dtype and so on together."""
    groups: dict[str, list[Crossover]] = {}
    for crossover in crossovers:
        others = other_params(crossover.rows[0], crossover.axis)
        groups.setdefault(others, []).append(crossover)
    return list(groups.values())


def list_tokens(crossovers: Sequence[Crossover]) -> list[int]:
    """The values of their axis."""
    return sorted({crossover.place(row) for crossover in crossovers for row in crossover.rows})


def _make_sheet(rows: Sequence[Row], crossovers: Sequence[Crossover]) -> Sheet:
    title, axes = choose_axes(rows)
    axis, baseline = crossovers[0].axis, rows[0].record.baseline
    columns: list[Column[Crossover]] = [
        *(axis_column(name, lambda crossover: crossover.rows[0]) for name in axes if name != axis),
        Column("variant", lambda crossover: crossover.rows[0].record.variant, "word"),
        *map(_value_column, list_tokens(crossovers)),
    ]
    remarks = []
    if any(crossover.crossings for crossover in crossovers):
        columns.append(Column("crosses 1 at", _crossing_cell, "number", _crossing_value))
        remarks.append(_explain_crossings(crossovers))
    columns.append(Column("pays", describe_crossover, "word"))
    return Sheet(
        title=f"{title}, speedup by {axis}",
        conditions=f"pays: {_name_ground(crossovers)} faster than {baseline}, at all "
        f"{_name_values(axis)} measured from there on",
        remarks=remarks,
        **lay_out(columns, group_crossovers(crossovers)),
    )


def _explain_crossings(crossovers: Sequence[Crossover]) -> str:
    crossed = [crossover for crossover in crossovers if crossover.crossings]
    straight = "crosses 1 at: interpolated straight in logarithms between measured values"
    if all(crossover.is_bare for crossover in crossed):
        return f"{straight}; single values have no interval, and so the point has none"
    return (
        f"{straight}; in brackets where the ends of the {100 * CONFIDENCE:g} % intervals cross, "
        "which covers noise and not the curve's shape"
    )


def _name_ground(crossovers: Sequence[Crossover]) -> str:
    is_bare = all(crossover.is_bare for crossover in crossovers)
    return "by single values, without a verdict," if is_bare else "by its verdict"


def _name_values(axis: str) -> str:
    return "batches" if axis == AXIS else f"values of {axis}"


def _value_column(value: int) -> Column[Crossover]:
    def find(crossover: Crossover) -> float | None:
        row = next((row for row in crossover.rows if crossover.place(row) == value), None)
        return None if row is None or row.speedup is None else row.speedup.value

    return Column(str(value), lambda crossover: format_ratio(find(crossover)), "detail", find)


def _crossing_cell(crossover: Crossover) -> str:
    """Of several, points only: the table would have no room for anything else."""
    if len(crossover.crossings) > 1:
        return ", ".join(_round(crossing.point) for crossing in crossover.crossings)
    return "".join(map(format_crossing, crossover.crossings))


def _crossing_value(crossover: Crossover) -> float | None:
    """The first, for sorting."""
    return crossover.crossings[0].point if crossover.crossings else None


def format_crossing(crossing: Crossing) -> str:
    if crossing.low is None or crossing.high is None:
        return f"about {_round(crossing.point)}"
    return f"{_round(crossing.point)} [{_round(crossing.low)}, {_round(crossing.high)}]"


def _round(value: float) -> str:
    """
    >>> [_round(value) for value in (7.0312, 143.7, 12345.0)]
    ['7.03', '144', '12300']
    """
    return f"{float(f'{value:.3g}'):.12g}"


def describe_crossover(crossover: Crossover) -> str:
    unlike = UNLIKE if any(row.unlike for row in crossover.rows) else ""
    return ", ".join(filter(None, [_describe(crossover), unlike]))


def _describe(crossover: Crossover) -> str:
    if crossover.is_bare and crossover.outcome != "unclear":
        return _describe_bare(crossover)
    rows, paying, below = crossover.rows, crossover.paying, crossover.below
    axis, place = crossover.axis, crossover.place
    if below is None:
        return f"at {_every(axis)} measured, from {_name_value(axis, place(rows[0]))} on"
    several = f", and it crosses {len(crossover.crossings)} times"
    to_and_fro = several if crossover.outcome == "several" else ""
    if paying:
        assert below.verdict is not None
        return (
            f"from {_name_value(axis, place(paying[0]))} on; "
            f"at {place(below)} {BELOW[below.verdict]}{to_and_fro}"
        )
    last = _name_value(axis, place(rows[-1]))
    faster = [str(place(row)) for row in rows if row.verdict == "faster"]
    is_unclear = rows[-1].verdict == "unclear"
    if faster:
        last = f"{'unclear' if is_unclear else 'not'} at {last}"
        return f"{last}, but at {', '.join(faster)}{to_and_fro}"
    return f"{'unclear' if is_unclear else 'never'}, up to {last}"


def _name_value(axis: str, value: object) -> str:
    """
    >>> _name_value("tokens", 64), _name_value("batch_size", 64)
    ('64 tokens', 'batch_size 64')
    """
    return f"{value} {axis}" if axis == AXIS else f"{axis} {value}"


def _every(axis: str) -> str:
    return "every batch" if axis == AXIS else "every value"


def _describe_bare(crossover: Crossover) -> str:
    """By values without intervals, which make no verdict."""
    rows, axis, place = crossover.rows, crossover.axis, crossover.place
    first, last = (_name_value(axis, place(row)) for row in (rows[0], rows[-1]))
    pairs = [f"{place(each.below)} and {place(each.above)}" for each in crossover.crossings]
    between = f"between {_name_value(axis, ', '.join(pairs))}"
    words = {
        "from": f"from {between} on",
        "up-to": f"up to {between}",
        "always": f"at {_every(axis)} measured, from {first} on",
        "never": f"never, up to {last}",
        "several": f"to and fro: it crosses {between}",
    }
    return f"{words[crossover.outcome]}, by values alone"
