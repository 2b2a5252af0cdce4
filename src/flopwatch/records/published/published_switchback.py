"""The SwitchBack benchmark: a JSON object a line for every layer and batch.

A line has the times of parts and three sums of them. The parts become the records ``parts:...``, as
the suite switchback measures them. The sums become whole layers, so that there are speedups; they
were not measured as wholes, and a note says so.
"""

from __future__ import annotations

import json
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.training_job import LinearLayer
from flopwatch.layers import registry
from flopwatch.records.foreign import make_published, name_run
from flopwatch.records.quantities import LARGEST_INT
from flopwatch.records.record import Record
from flopwatch.suites.case import Case

STANDARD, ROWWISE, GLOBAL, CASTS = (
    f"parts:{name}" for name in ("standard", "rowwise", "global", "casts")
)
STANDARD_MATMULS = ("standard_fwd", "standard_gx", "standard_gw")
INT8_MATMULS = ("rowwise_fwd", "rowwise_bwd", "global_fwd", "global_bwd")
"""The parts that are matmuls; the others quantise or cast."""
SUMS = {
    STANDARD: [*STANDARD_MATMULS],
    ROWWISE: [
        "x_quantize_rowwise",
        "w_quantize_rowwise",
        "rowwise_fwd",
        "g_quantize_rowwise",
        "w_quantize_colwise_transpose",
        "rowwise_bwd",
        "standard_gw",
    ],
    GLOBAL: [
        "x_quantize_rowwise",
        "w_quantize_global",
        "global_fwd",
        "g_quantize_rowwise",
        "w_quantize_global_transpose",
        "global_bwd",
        "standard_gw",
    ],
    CASTS: ["cast_x", "cast_w", "cast_g"],
}
"""By variant: the parts of a layer (see `layers.int8_parts`) in the order in which it runs them;
casts to int8 are the least that quantising can take."""
WHOLES = {
    STANDARD: "dense",
    ROWWISE: "switchback:rowwise",
    GLOBAL: "switchback:global",
    CASTS: None,
}
"""By variant: the layer that its parts make up, if they do."""

BASELINE = "dense"
TOTALS = {
    "time_standard": (BASELINE, STANDARD),
    "time_rowwise": ("switchback:rowwise", ROWWISE),
    "time_global": ("switchback:global", GLOBAL),
}
"""By the published sum: the layer that it stands for, and the variant that has its parts."""
FORWARD = {
    *("standard_fwd", "rowwise_fwd", "global_fwd"),
    *("x_quantize_rowwise", "w_quantize_rowwise", "w_quantize_global"),
}
"""Parts that a forward pass needs; all others belong to the backward pass."""
DIMENSIONS = ("repeat", "batch_size", "dim_out", "dim_in")
NS_PER_MS = 1e6
SUM_NOTE = (
    "the time of a whole layer is the published sum of its parts, which were timed one by one: no "
    "whole layer was measured"
)


def read_switchback(text: str) -> list[Record]:
    """Lines that are no JSON objects are passed over."""
    run = name_run("switchback", text)
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("{"):
            records += _make_records(run, number, _parse(number, line))
    if not records:
        raise UsageError(
            "there are no lines of the SwitchBack benchmark in it; give its info.jsonl, a JSON "
            "object a line"
        )
    return records


def _parse(number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError(f"line {number} is cut off or is not JSON; mend or delete it") from None
    times = (*dict.fromkeys(part for parts in SUMS.values() for part in parts), *TOTALS)
    for key in (*DIMENSIONS, *times):
        value = found.get(key)
        kind = int if key in DIMENSIONS else int | float
        if not isinstance(value, kind) or isinstance(value, bool) or not 0 < value < LARGEST_INT:
            raise UsageError(
                f"line {number} has {value!r:.40} for {key!r}; a line of the SwitchBack benchmark "
                "has a number above 0 there"
            )
    return dict(found)


def _make_records(run: str, number: int, line: dict[str, Any]) -> list[Record]:
    params = {
        "level": "layer",
        "tokens": line["batch_size"],
        "shape": [line["dim_in"], line["dim_out"]],
        "dtype": "float16",
    }
    samples: dict[str, dict[str, float]] = {}
    for variant, parts in TOTALS.values():
        samples[variant] = {"forward": 0.0, "backward": 0.0}
        for part in SUMS[parts]:
            samples[variant]["forward" if part in FORWARD else "backward"] += line[part] * NS_PER_MS
    for variant in (STANDARD, ROWWISE, GLOBAL, CASTS):
        samples[variant] = {part: line[part] * NS_PER_MS for part in SUMS[variant]}
    wholes = {layer: [name] for name, (layer, _) in TOTALS.items()}
    records = []
    for variant, times_ns in samples.items():
        if variant in SUMS:
            more: dict[str, Any] = {"kind": "parts", "parts_of": WHOLES[variant]}
        else:
            more = _describe_layer(line, variant)
        record = make_published(
            run,
            Case(suite="switchback", variant=variant, params=params),
            printed={"line": number, "ms": {key: line[key] for key in {**SUMS, **wholes}[variant]}},
            times_ns=times_ns,
            calls=line["repeat"],
            baseline=BASELINE,
            conditions={"dtype": "float16", "autocast": "off"},
            **more,
        )
        records.append(record)
    return records


def _describe_layer(line: dict[str, Any], variant: str) -> dict[str, Any]:
    tokens, inputs, outputs = line["batch_size"], line["dim_in"], line["dim_out"]
    layer = LinearLayer(
        tokens=tokens, inputs=inputs, outputs=outputs, dtype="float16", linear=variant
    )
    return {
        "job": layer.to_dict(),
        "flops": registry.count_flops_by_dtype(variant, tokens, inputs, outputs, "float16"),
        "notes": [SUM_NOTE],
    }
