"""The suite steps in the layout of the published CS336 tables.

They have a row for every size of a model, with the mean and the standard deviation of its forward
and its backward pass, in seconds. What they do not say (batch, context, precision, optimizer,
variant and what it was measured on) stands above each table. The usual tables below have medians,
intervals and ratios within rounds, and the optimizer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from flopwatch.analysis.summary import Row
from flopwatch.analysis.warmup import Spread, measure_spread
from flopwatch.errors import UsageError
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
from flopwatch.report.layouts import Printout
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
    lines: list[str] = []
    for table in _divide(chosen):
        lines += [describe_table(table[0].record)]
        lines += [*draw_grid(make_headings(PHASES), [_make_cells(row) for row in table]), ""]
    has_means = any(max(row.record.loops, default=1) > 1 for row in chosen)
    return Printout(
        lines=lines,
        content=[_as_dict(row) for row in chosen],
        remarks=[*REMARKS, *([OF_MEANS] if has_means else [])],
    )


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
