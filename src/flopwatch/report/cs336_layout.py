"""The suite steps in the layout of the published CS336 tables.

They have a row for every size of a model, with the mean and the standard deviation of its forward
and its backward pass, in seconds. What they do not say (batch, context, precision, optimizer,
variant and what it was measured on) stands above each table. The usual tables below have medians,
intervals and ratios within rounds, and the optimizer.

Published figures are printed as they were: a model that was too large is below its table, not in
it, and sums in short floating-point numbers follow at the end.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from flopwatch.analysis.summary import Row
from flopwatch.analysis.warmup import Spread, measure_spread
from flopwatch.errors import UsageError
from flopwatch.records.published.entries import find_printed
from flopwatch.records.record import Record
from flopwatch.report.footprints import find_estimate_bytes
from flopwatch.report.grid import (
    Cell,
    describe_table,
    draw_grid,
    make_headings,
    name_experiment,
    table_key,
)
from flopwatch.report.layouts import Printout, PublishedTable
from flopwatch.report.remarks import describe_conditions
from flopwatch.report.units import format_bytes
from flopwatch.room import is_misfit

PHASES = ("forward", "backward")
OPTIMIZER = "optimizer"
REMARKS = (
    "times are means over the measured steps, in seconds, warm-up left out; std is the sample "
    "standard deviation (divided by n - 1)",
    "forward includes the loss; backward is all gradients, and what checkpointing computes again; "
    "clearing gradients is not timed",
    "the published tables have no column for the optimizer: its times are in the usual ones, and "
    "its mean with --json",
)
PUBLISHED_REMARK = "published means and standard deviations are as printed, in seconds"
OF_MEANS = (
    "short steps were timed several at a time: the std of those is that of their means, and less "
    "than that of single steps"
)


def lay_out(rows: Sequence[Row]) -> Printout:
    chosen = [row for row in rows if _is_of_a_model(row.record)]
    if not chosen:
        raise UsageError(
            "the layout 'cs336' shows models of the suite steps, and these results have none; "
            "measure some with: flopwatch run steps"
        )
    sums = [row.record for row in rows if _is_published_sum(row.record)]
    tables = _divide(chosen)
    lines = [line for table in tables for line in _draw_table(table)]
    return Printout(
        lines=[*lines, *map(_draw_sum, sums), *([""] if sums else [])],
        content=[*map(_as_dict, chosen), *map(_sum_as_dict, sums)],
        remarks=_find_remarks([row.record for row in chosen]),
        tables=[
            PublishedTable(
                describe_table(table[0].record), make_headings(PHASES), [*map(_make_cells, table)]
            )
            for table in tables
        ],
    )


def _draw_table(table: Sequence[Row]) -> list[str]:
    below = [row for row in table if _is_told_below(row.record)]
    cells = [_make_cells(row) for row in table if row not in below]
    return [
        describe_table(table[0].record),
        *draw_grid(make_headings(PHASES), cells),
        *(f"{name_experiment(row.record)}: out of memory" for row in below),
        "",
    ]


def _is_told_below(record: Record) -> bool:
    return record.status == "oom" and find_printed(record) is not None


def _find_remarks(records: Sequence[Record]) -> list[str]:
    own = [record for record in records if find_printed(record) is None]
    has_means = any(max(record.loops, default=1) > 1 for record in own)
    return [
        *(REMARKS if own else ()),
        *([OF_MEANS] if has_means else []),
        *([PUBLISHED_REMARK] if len(own) < len(records) else []),
    ]


def _is_published_sum(record: Record) -> bool:
    return record.suite == "precision" and find_printed(record) is not None


def _draw_sum(record: Record) -> str:
    """As torch prints it."""
    dtype = ", dtype=torch.float16" if record.variant == "float16" else ""
    return f"tensor({record.facts['sum']:.4f}{dtype})"


def _sum_as_dict(record: Record) -> dict[str, Any]:
    return {
        "params": record.params,
        "variant": record.variant,
        "sum": record.facts["sum"],
        "run": record.run,
        "id": record.id,
    }


def _is_of_a_model(record: Record) -> bool:
    return record.suite == "steps" and "model" in record.params


def _divide(rows: Sequence[Row]) -> list[list[Row]]:
    tables: dict[Hashable, list[Row]] = {}
    for row in rows:
        tables.setdefault(table_key(row.record), []).append(row)
    return list(tables.values())


def _make_cells(row: Row) -> list[Cell]:
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
    if not _lacks_memory(record):
        return record.status, None
    needed_bytes = find_estimate_bytes(record)
    return "OOM", None if needed_bytes is None else f"needs {format_bytes(needed_bytes)}"


def _lacks_memory(record: Record) -> bool:
    """Whether it ran out of memory, or was not even tried because it would."""
    return record.status == "oom" or is_misfit(record)


def _as_dict(row: Row) -> dict[str, Any]:
    record = row.record
    times: dict[str, float | None] = {}
    for phase in (*PHASES, OPTIMIZER):
        spread = _find_spread(row, phase)
        times[f"{phase}_mean_s"] = spread.mean_s if spread else None
        times[f"{phase}_std_s"] = spread.std_s if spread else None
    return {
        "experiment_name": name_experiment(record),
        "params": record.params,
        "variant": record.variant,
        "status": record.status,
        "reason": record.reason,
        **times,
        "samples": len(record.rounds) - record.warmup_samples,
        "warmup_samples": record.warmup_samples,
        "needed_bytes": find_estimate_bytes(record),
        "measured_on": describe_conditions(record),
        "run": record.run,
        "id": record.id,
    }
