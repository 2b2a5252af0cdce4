"""Published tables of experiments, as the Python package tabulate draws its grids.

A row an experiment, then mean and standard deviation of each phase in seconds. Columns are as wide
as their heading and two more, or as their widest cell; numbers have six significant digits, and
their decimal points are below one another.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from flopwatch.analysis.summary import conditions
from flopwatch.case import format_value, label
from flopwatch.records.record import Record
from flopwatch.report.remarks import describe_conditions

Cell = str | float | None
"""None where there is nothing to say."""

MIN_PADDING = 2
MODEL = "model"
EXPERIMENT = "Experiment_name"
PUBLISHED_PHASES = {"forward": "Forward"}
"""Phases that the published headings write otherwise."""


def make_headings(phases: Sequence[str]) -> list[str]:
    """
    >>> make_headings(["forward", "backward"])
    ['Experiment_name', 'Forward time', 'Forward std', 'backward time', 'backward std']
    """
    names = [PUBLISHED_PHASES.get(phase, phase) for phase in phases]
    return [EXPERIMENT, *(f"{name} {what}" for name in names for what in ("time", "std"))]


def name_experiment(record: Record) -> str:
    """What stands in the first column: the model, or where there is none, the whole case."""
    named = record.params.get(MODEL)
    return label(record.params) if named is None else format_value(named)


def table_key(record: Record) -> Hashable:
    """Equal for records whose experiments may stand in one table."""
    return conditions(record), describe_table(record)


def describe_table(record: Record) -> str:
    """What the rows of a table share."""
    others = {axis: value for axis, value in record.params.items() if axis != MODEL}
    shared = label(others) if MODEL in record.params else ""
    what = " ".join(filter(None, [record.suite, record.variant, shared]))
    return f"{what}; {describe_conditions(record)}"


def draw_grid(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """
    >>> print(*draw_grid(["size", "time"], [["small", 0.5], ["xl", 12.25], ["2.7b", "OOM"]]), sep="\\n")
    +--------+--------+
    | size   |   time |
    +========+========+
    | small  |   0.5  |
    +--------+--------+
    | xl     |  12.25 |
    +--------+--------+
    | 2.7b   |    OOM |
    +--------+--------+
    """  # noqa: E501  (what is printed)
    columns = [
        _align(heading, [row[position] for row in rows])
        for position, heading in enumerate(headings)
    ]
    widths = [len(column[0]) for column in columns]
    head, *body = ("| " + " | ".join(cells) + " |" for cells in zip(*columns, strict=True))
    thin, thick = ("+" + "+".join(mark * (width + 2) for width in widths) + "+" for mark in "-=")
    return [thin, head, thick, *(line for row in body for line in (row, thin))]


def _align(heading: str, cells: Sequence[Cell]) -> list[str]:
    """A column, heading first. Words are on the left where there are only words."""
    texts = [cell if isinstance(cell, str) else _format_number(cell) for cell in cells]
    is_number = [cell is not None and not isinstance(cell, str) for cell in cells]
    most = max((_count_decimals(t) for t, n in zip(texts, is_number, strict=True) if n), default=0)
    # A word among numbers has no point to stand below: it ends where the column ends.
    padded = [
        text + " " * (most - _count_decimals(text)) if numeric else text
        for text, numeric in zip(texts, is_number, strict=True)
    ]
    width = max(len(heading) + MIN_PADDING, *map(len, padded), 0)
    pad = str.rjust if any(is_number) else str.ljust
    return [pad(text, width) for text in (heading, *padded)]


def _format_number(number: float | None) -> str:
    return "" if number is None else f"{number:g}"


def _count_decimals(text: str) -> int:
    """Characters from the decimal point on, an exponent included."""
    whole = text.partition("." if "." in text else "e")[0]
    return len(text) - len(whole)
