"""From which batch on variants pay, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.break_even import AXIS, BreakEven, Crossing, find_break_evens, other_params
from flopwatch.analysis.statistics import CONFIDENCE, Verdict
from flopwatch.analysis.summary import Row
from flopwatch.output.columns import NOT_COMPARABLE, axis_column
from flopwatch.output.tables import Column, Sheet, choose_axes, divide, lay_out
from flopwatch.output.units import format_ratio

BELOW: dict[Verdict, str] = {
    "slower": "it is slower",
    "same": "it is as fast",
    "unclear": "that is unclear",
}
"""How a batch just below those that pay is told."""


def make_break_even_sheets(rows: Sequence[Row], axis: str = AXIS) -> list[Sheet]:
    """One for every table of cases that has variants at several batches."""
    return [
        _make_sheet(alike, found)
        for alike in divide(rows)
        if (found := find_break_evens(alike, axis))
    ]


def group_break_evens(break_evens: Sequence[BreakEven]) -> list[list[BreakEven]]:
    """Variants of the same shape, dtype and so on together."""
    groups: dict[str, list[BreakEven]] = {}
    for break_even in break_evens:
        others = other_params(break_even.rows[0], break_even.axis)
        groups.setdefault(others, []).append(break_even)
    return list(groups.values())


def list_tokens(break_evens: Sequence[BreakEven]) -> list[int]:
    """The values of their axis."""
    return sorted({break_even.place(row) for break_even in break_evens for row in break_even.rows})


def _make_sheet(rows: Sequence[Row], break_evens: Sequence[BreakEven]) -> Sheet:
    title, axes = choose_axes(rows)
    axis, baseline = break_evens[0].axis, rows[0].record.baseline
    columns: list[Column[BreakEven]] = [
        *(
            axis_column(name, lambda break_even: break_even.rows[0])
            for name in axes
            if name != axis
        ),
        Column("variant", lambda break_even: break_even.rows[0].record.variant, "word"),
        *map(_value_column, list_tokens(break_evens)),
    ]
    remarks = []
    if any(break_even.crossings for break_even in break_evens):
        columns.append(Column("crosses 1 at", _crossing_cell, "number", _crossing_value))
        remarks.append(_explain_crossings(break_evens))
    columns.append(Column("pays", describe_break_even, "word"))
    return Sheet(
        title=f"{title}, speedup by {axis}",
        conditions=f"pays: {_name_ground(break_evens)} faster than {baseline}, at all "
        f"{_name_values(axis)} measured from there on",
        remarks=remarks,
        **lay_out(columns, group_break_evens(break_evens)),
    )


def _explain_crossings(break_evens: Sequence[BreakEven]) -> str:
    crossed = [break_even for break_even in break_evens if break_even.crossings]
    straight = "crosses 1 at: interpolated straight in logarithms between measured values"
    if all(break_even.is_bare for break_even in crossed):
        return f"{straight}; single values have no interval, and so the point has none"
    return (
        f"{straight}; in brackets where the ends of the {100 * CONFIDENCE:g} % intervals cross, "
        "which covers noise and not the curve's shape"
    )


def _name_ground(break_evens: Sequence[BreakEven]) -> str:
    is_bare = all(break_even.is_bare for break_even in break_evens)
    return "by single values, without a verdict," if is_bare else "by its verdict"


def _name_values(axis: str) -> str:
    return "batches" if axis == AXIS else f"values of {axis}"


def _value_column(value: int) -> Column[BreakEven]:
    def find(break_even: BreakEven) -> float | None:
        row = next((row for row in break_even.rows if break_even.place(row) == value), None)
        return None if row is None or row.speedup is None else row.speedup.value

    return Column(str(value), lambda break_even: format_ratio(find(break_even)), "detail", find)


def _crossing_cell(break_even: BreakEven) -> str:
    """Of several, points only: the table would have no room for anything else."""
    if len(break_even.crossings) > 1:
        return ", ".join(_round(crossing.point) for crossing in break_even.crossings)
    return "".join(map(format_crossing, break_even.crossings))


def _crossing_value(break_even: BreakEven) -> float | None:
    """The first, for sorting."""
    return break_even.crossings[0].point if break_even.crossings else None


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


def describe_break_even(break_even: BreakEven) -> str:
    unlike = NOT_COMPARABLE if any(row.unlike for row in break_even.rows) else ""
    return ", ".join(filter(None, [_describe(break_even), unlike]))


def _describe(break_even: BreakEven) -> str:
    if break_even.is_bare and break_even.outcome != "unclear":
        return _describe_bare(break_even)
    rows, paying, below = break_even.rows, break_even.paying, break_even.below
    axis, place = break_even.axis, break_even.place
    if below is None:
        return f"at {_every(axis)} measured, from {_name_value(axis, place(rows[0]))} on"
    several = f", and it crosses {len(break_even.crossings)} times"
    to_and_fro = several if break_even.outcome == "several" else ""
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


def _describe_bare(break_even: BreakEven) -> str:
    """By values without intervals, which make no verdict."""
    rows, axis, place = break_even.rows, break_even.axis, break_even.place
    first, last = (_name_value(axis, place(row)) for row in (rows[0], rows[-1]))
    pairs = [f"{place(each.below)} and {place(each.above)}" for each in break_even.crossings]
    between = f"between {_name_value(axis, ', '.join(pairs))}"
    words = {
        "from": f"from {between} on",
        "up-to": f"up to {between}",
        "always": f"at {_every(axis)} measured, from {first} on",
        "never": f"never, up to {last}",
        "several": f"to and fro: it crosses {between}",
    }
    return f"{words[break_even.outcome]}, by values alone"
