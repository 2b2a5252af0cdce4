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
    """The first column has words, the others numbers.

    >>> rows = [["small", 0.5], ["xl", 12.25], ["2.7b", "OOM"]]
    >>> print(*draw_grid(["size", "time"], rows), sep="\\n")
    +--------+--------+
    | size   |   time |
    +========+========+
    | small  |   0.5  |
    +--------+--------+
    | xl     |  12.25 |
    +--------+--------+
    | 2.7b   |    OOM |
    +--------+--------+
    """
    columns = [[row[position] for row in rows] for position in range(len(headings))]
    texts = [
        [heading, *_align_points(cells)] for heading, cells in zip(headings, columns, strict=True)
    ]
    widths = [max(len(text[0]) + MIN_PADDING, *map(len, text)) for text in texts]
    head, *body = ("| " + " | ".join(_pad(row, widths)) + " |" for row in zip(*texts, strict=True))
    thin, thick = ("+" + "+".join(mark * (width + 2) for width in widths) + "+" for mark in "-=")
    return [thin, head, thick, *(line for row in body for line in (row, thin))]


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    name, *numbers = row
    first, *others = widths
    return [name.ljust(first), *map(str.rjust, numbers, others)]


def _align_points(cells: Sequence[Cell]) -> list[str]:
    """Numbers as text, filled up behind. A word has no point, and ends where the column does."""
    decimals = [_count_decimals(cell) for cell in cells]
    return [
        _format(cell) + " " * (0 if isinstance(cell, str) else max(decimals) - own)
        for cell, own in zip(cells, decimals, strict=True)
    ]


def _format(cell: Cell) -> str:
    if cell is None:
        return ""
    return cell if isinstance(cell, str) else f"{cell:g}"


def _count_decimals(cell: Cell) -> int:
    """Characters from the decimal point on, an exponent included."""
    if cell is None or isinstance(cell, str):
        return 0
    text = f"{cell:g}"
    return len(text) - len(text.partition("." if "." in text else "e")[0])
