"""The suite switchback's layers in the layout of the published SwitchBack benchmark.

It has a JSON object a line for every layer and batch: how long each part takes, in milliseconds,
and three sums of parts: a standard layer, a row-wise and a global SwitchBack layer. Times are means
over the measured samples, as published, and sums are made of them on reading. The usual tables
below have medians, intervals and ratios within rounds, and whole layers.

A part stands in a line once, and the suite measures some of them in several variants. The weight
gradient is that of the standard layer. Quantising the input and the gradient by rows is the same
work in both SwitchBack layers: its mean is over the samples of both.

A published line does not say its dtype, nor on what it was measured. Lines that differ in such
things are kept together, and a remark says which lines are what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from flopwatch.analysis.comparable import conditions
from flopwatch.analysis.summary import Row
from flopwatch.errors import UsageError
from flopwatch.output.layouts import Printout, make_published_sheet, warn_of_imprecise
from flopwatch.output.remarks import describe_conditions
from flopwatch.records.foreign import find_printed
from flopwatch.records.published.published_switchback import (
    CASTS,
    GLOBAL,
    ROWWISE,
    STANDARD,
    SUMS,
    TOTALS,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import label

PARTS: dict[str, tuple[str, ...]] = {
    "standard_fwd": (STANDARD,),
    "standard_gw": (STANDARD,),
    "standard_gx": (STANDARD,),
    "rowwise_fwd": (ROWWISE,),
    "rowwise_bwd": (ROWWISE,),
    "global_fwd": (GLOBAL,),
    "global_bwd": (GLOBAL,),
    "x_quantize_rowwise": (ROWWISE, GLOBAL),
    "g_quantize_rowwise": (ROWWISE, GLOBAL),
    "w_quantize_rowwise": (ROWWISE,),
    "w_quantize_colwise_transpose": (ROWWISE,),
    "w_quantize_global": (GLOBAL,),
    "w_quantize_global_transpose": (GLOBAL,),
    "cast_x": (CASTS,),
    "cast_g": (CASTS,),
    "cast_w": (CASTS,),
}
"""In the published order: the variants whose samples a part's mean is over."""

SOURCES = {variant for sources in PARTS.values() for variant in sources}

Group = dict[str, Row]
"""The rows of one layer and batch, by variant."""


def lay_out(rows: Sequence[Row]) -> Printout:
    groups = _group([row for row in rows if _is_of_a_layer(row.record)])
    if not groups:
        raise UsageError(
            "the layout 'switchback' shows layers of suites that declare it, and there are "
            "none; measure some with: flopwatch run switchback --filter level=layer"
        )
    blocks: dict[str, list[dict[str, Any]]] = {}
    remarks = []
    used: list[Row] = []
    for group in groups:
        record = next(iter(group.values())).record
        reason = find_gap(group)
        if reason is None:
            used += [row for variant, row in group.items() if variant in SOURCES]
            blocks.setdefault(_describe_block(record), []).append(make_line(group))
        else:
            remarks.append(f"no line for {label(record.params)}: {reason}")
    content = [line for block in blocks.values() for line in block]
    return Printout(
        lines=[json.dumps(line) for line in content],
        content=content,
        remarks=[*_number_blocks(blocks), *remarks, *warn_of_imprecise(used)],
        tables=[
            make_published_sheet(title, [*block[0]], [[*line.values()] for line in block])
            for title, block in blocks.items()
        ],
    )


def _is_of_a_layer(record: Record) -> bool:
    tokens, shape = record.params.get("tokens"), record.params.get("shape")
    return (
        (record.layout, record.params.get("level")) == ("switchback", "layer")
        and isinstance(tokens, int)
        and isinstance(shape, list)
        and len(shape) == 2
    )


def _group(rows: Sequence[Row]) -> list[Group]:
    groups: dict[tuple[str, str], Group] = {}
    for row in rows:
        key = (conditions(row.record), row.record.group_id)
        groups.setdefault(key, {})[row.record.variant] = row
    return list(groups.values())


def find_gap(group: Mapping[str, Row]) -> str | None:
    """Why there can be no line, or None."""
    variants = dict.fromkeys(variant for sources in PARTS.values() for variant in sources)
    for variant in variants:
        if variant not in group:
            return f"{variant} was not measured"
        row = group[variant]
        if row.record.status != "ok":
            return f"{variant}: {row.record.status}: {row.record.message}"
        absent = [part for part, sources in PARTS.items() if variant in sources]
        absent = [part for part in absent if part not in row.phases_ns]
        if absent:
            return f"{variant} has no times of {', '.join(absent)}"
    if len({group[variant].record.run_id for variant in variants}) > 1:
        return "its parts are from different runs; measure them together with --rerun"
    return None


def make_line(group: Mapping[str, Row]) -> dict[str, Any]:
    """With the published keys in their order."""
    records = {variant: row.record for variant, row in group.items()}
    dim_in, dim_out = records[STANDARD].params["shape"]
    times_ms = {
        part: _mean_ms([records[variant] for variant in sources], part)
        for part, sources in PARTS.items()
    }
    return {
        # The fewest calls that a mean is over.
        "repeat": min(
            sum(records[variant].calls_per_sample[records[variant].warmup_samples :])
            for variant in dict.fromkeys(v for sources in PARTS.values() for v in sources)
        ),
        "batch_size": records[STANDARD].params["tokens"],
        "dim_out": dim_out,
        "dim_in": dim_in,
        "wm": divide_up(max(dim_in, dim_out), min(dim_in, dim_out)),
        "switch": dim_out < dim_in,
        **times_ms,
        **{name: _find_total_ms(records, name, times_ms) for name in TOTALS},
    }


def _find_total_ms(
    records: Mapping[str, Record], name: str, times_ms: Mapping[str, float]
) -> float:
    """Of published figures, the printed sum: adding up again may differ in its last digit."""
    whole, parts = TOTALS[name]
    printed = _find_printed_ms(records[whole], name) if whole in records else None
    return sum(times_ms[part] for part in SUMS[parts]) if printed is None else printed


def divide_up(wide: int, narrow: int) -> float:
    """A whole number, or four decimals, rounded up as published: the narrow side times it then
    reaches the wide one.

    >>> divide_up(3072, 768), divide_up(6144, 1408)
    (4, 4.3637)
    """
    return wide // narrow if wide % narrow == 0 else -(-wide * 10_000 // narrow) / 10_000


def _mean_ms(records: Sequence[Record], part: str) -> float:
    """Of published figures, as printed: in nanoseconds the last digit may differ."""
    printed = _find_printed_ms(records[0], part)
    if printed is not None:
        return printed
    measured = (record.samples_ns[part][record.warmup_samples :] for record in records)
    return fmean([ns for times_ns in measured for ns in times_ns]) / 1e6


def _find_printed_ms(record: Record, name: str) -> float | None:
    found: Mapping[str, float] = (find_printed(record) or {}).get("ms", {})
    return found.get(name)


def _describe_block(record: Record) -> str:
    """What a published line does not say."""
    shown = ("level", "tokens", "shape")
    others = {axis: value for axis, value in record.params.items() if axis not in shown}
    return "; ".join(filter(None, [label(others), describe_conditions(record)]))


def _number_blocks(blocks: Mapping[str, Sequence[Any]]) -> list[str]:
    remarks = []
    last = 0
    for description, lines in blocks.items():
        first, last = last + 1, last + len(lines)
        which = f"line {first}" if first == last else f"lines {first} to {last}"
        remarks.append(f"{which}: {description}")
    return remarks
