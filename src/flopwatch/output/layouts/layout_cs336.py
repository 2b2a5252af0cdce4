"""The suite steps in the layout of the published CS336 tables.

They have a row for every size of a model, with the mean and the standard deviation of its forward
and its backward pass, in seconds. What they do not say (batch, context, precision, optimizer,
variant and what it was measured on) stands above each table. The usual tables below have medians,
intervals and ratios within rounds, and the optimizer.

Published figures are printed as they were: a model that was too large is below its table, not in
it, and sums in short floating-point numbers follow at the end.

Tables are drawn as the grids of the Python package tabulate. Columns are as wide as their heading
and two more, or as their widest cell; numbers have six significant digits, and their decimal points
are below one another.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from flopwatch.analysis.comparable import conditions
from flopwatch.analysis.summary import Row
from flopwatch.analysis.warmup import Spread, measure_spread
from flopwatch.errors import UsageError
from flopwatch.output.layouts import (
    Printout,
    format_published,
    make_published_sheet,
    warn_of_imprecise,
)
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.tables import Value, group_by
from flopwatch.output.training_tables import find_estimate_bytes
from flopwatch.output.units import format_bytes
from flopwatch.records.foreign import find_printed
from flopwatch.records.record import Record, identify
from flopwatch.suites.case import format_value, label

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


def draw_grid(headings: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[str]:
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


def _align_points(cells: Sequence[Value]) -> list[str]:
    """Numbers as text, filled up behind. A word has no point, and ends where the column does."""
    decimals = [_count_decimals(cell) for cell in cells]
    return [
        format_published(cell) + " " * (0 if isinstance(cell, str) else max(decimals) - own)
        for cell, own in zip(cells, decimals, strict=True)
    ]


def _count_decimals(cell: Value) -> int:
    """Characters from the decimal point on, an exponent included."""
    if cell is None or isinstance(cell, str):
        return 0
    text = f"{cell:g}"
    return len(text) - len(text.partition("." if "." in text else "e")[0])


PHASES = ("forward", "backward")
OPTIMIZER = "optimizer"
REMARKS = (
    "times are means over the measured steps, in seconds, warm-up left out; std is the sample "
    "standard deviation (divided by n - 1)",
    "forward includes the loss; backward is all gradients, and what activation checkpointing "
    "recomputes; clearing gradients is not timed",
    "the published tables have no column for the optimizer: its times are in the usual ones, and "
    "its mean with --json",
)
PUBLISHED_REMARK = "published means and standard deviations are as printed, in seconds"
OF_MEANS = (
    "short steps were timed several at a time: the std of those is that of their means, and less "
    "than that of single steps"
)


def lay_out(rows: Sequence[Row]) -> Printout:
    own = [row for row in rows if row.record.layout == "cs336"]
    chosen = [row for row in own if "model" in row.record.params]
    if not chosen:
        raise UsageError(
            "the layout 'cs336' shows models of a suite that declares it, and these results have "
            "none; "
            "measure some with: flopwatch run steps"
        )
    sums = [row.record for row in own if "sum" in row.record.facts]
    tables = group_by(chosen, lambda row: table_key(row.record))
    lines = [line for table in tables for line in _draw_table(table)]
    return Printout(
        lines=[*lines, *map(_draw_sum, sums), *([""] if sums else [])],
        content=[
            *map(_as_dict, chosen),
            *({**identify(record), "sum": record.facts["sum"]} for record in sums),
        ],
        remarks=[
            *_find_remarks([row.record for row in chosen]),
            *warn_of_imprecise(chosen),
        ],
        tables=[
            make_published_sheet(
                describe_table(table[0].record), make_headings(PHASES), [*map(_make_cells, table)]
            )
            for table in tables
        ],
    )


def _draw_table(table: Sequence[Row]) -> list[str]:
    failed = [row for row in table if row.record.status == "oom"]
    below = [row for row in failed if find_printed(row.record) is not None]
    cells = [_make_cells(row) for row in table if row not in below]
    return [
        describe_table(table[0].record),
        *draw_grid(make_headings(PHASES), cells),
        *(f"{name_experiment(row.record)}: out of memory" for row in below),
        "",
    ]


def _find_remarks(records: Sequence[Record]) -> list[str]:
    own = [record for record in records if find_printed(record) is None]
    has_means = any(max(record.calls_per_sample, default=1) > 1 for record in own)
    return [
        *(REMARKS if own else ()),
        *([OF_MEANS] if has_means else []),
        *([PUBLISHED_REMARK] if len(own) < len(records) else []),
    ]


def _draw_sum(record: Record) -> str:
    """As torch prints it."""
    dtype = ", dtype=torch.float16" if record.variant == "float16" else ""
    return f"tensor({record.facts['sum']:.4f}{dtype})"


def _make_cells(row: Row) -> list[Value]:
    name = name_experiment(row.record)
    if row.total_ns is None:
        return [name, *_describe_failure(row.record), None, None]
    spreads = [_find_spread(row, phase) for phase in PHASES]
    return [
        name,
        *(value for s in spreads for value in ((s.mean_s, s.std_s) if s else (None, None))),
    ]


def _find_spread(row: Row, phase: str) -> Spread | None:
    record = row.record
    if row.total_ns is None or phase not in record.samples_ns:
        return None
    if find_printed(record) is not None:
        (mean_ns,) = record.samples_ns[phase]
        return Spread(mean_s=mean_ns / 1e9, std_s=record.facts.get(f"{phase}_std_s"))
    return measure_spread(record.samples_ns[phase][record.warmup_samples :])


def _describe_failure(record: Record) -> tuple[str, str | None]:
    # It ran out of memory, or was not even tried because it would.
    if record.status != "oom" and not record.is_misfit:
        return record.status, None
    needed_bytes = find_estimate_bytes(record)
    return "OOM", None if needed_bytes is None else f"needs {format_bytes(needed_bytes)}"


def _as_dict(row: Row) -> dict[str, Any]:
    record = row.record
    times: dict[str, float | None] = {}
    for phase in (*PHASES, OPTIMIZER):
        spread = _find_spread(row, phase)
        times[f"{phase}_mean_s"] = spread.mean_s if spread else None
        times[f"{phase}_std_s"] = spread.std_s if spread else None
    return {
        "experiment_name": name_experiment(record),
        **identify(record),
        **times,
        "samples": len(record.rounds) - record.warmup_samples,
        "warmup_samples": record.warmup_samples,
        "needed_bytes": find_estimate_bytes(record),
        "measured_on": describe_conditions(record),
    }
