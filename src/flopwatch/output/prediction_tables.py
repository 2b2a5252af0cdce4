"""Predicted jobs: speed with its interval, the breakdown of a step, and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from flopwatch.output.tables import Column, Sheet, number
from flopwatch.output.units import format_bytes, plural
from flopwatch.prediction.cost import Part
from flopwatch.prediction.job_lists import AXES, Predicted
from flopwatch.prediction.predictions import KEPT, Prediction
from flopwatch.prediction.software_stacks import PRIORS

BREAKDOWN = {
    "matmuls": "linear layers of blocks",
    "head": "the head",
    "embedding": "the embedding",
    "attention": "attention",
    "element-wise": "norms, activations, residuals",
    "loss": "the loss",
    "communication": "exposed communication",
    "tensor-parallel communication": "tensor-parallel communication",
    "context-parallel communication": "context-parallel communication",
    "expert-parallel communication": "expert-parallel communication",
    "pipeline communication": "sending to the next stage",
    "pipeline bubble": "pipeline bubble, uneven stages",
    "slow ranks": "waiting for slow ranks",
    "optimizer": "optimizer",
    "overhead": "kernel launches, fixed overhead",
    "gradient sums": "adding up gradients of micro-batches",
    "offloading": "offloading to the host",
    "memory pressure": "freeing and allocating again, memory nearly full",
}
"""What the parts of a cost are called in a table."""
FITS = {True: "yes", False: "no", None: "?"}
SPEED: Column[Prediction] = number("tokens/s", "integer", lambda p: p.tokens_per_s)
INTERVAL: Column[Prediction] = Column(
    "90 % interval", lambda p: f"{p.low:,.0f} to {p.high:,.0f}", "interval"
)
STEP_TIME: Column[Prediction] = number("step", "s", lambda p: p.cost.step_s)
MFU: Column[Prediction] = number("MFU", "share", lambda p: p.utilisation.mfu, "share")
HFU: Column[Prediction] = number("HFU", "share", lambda p: p.utilisation.hfu, "share")
MEMORY: Column[Prediction] = number("memory", "bytes", lambda p: p.memory.total_bytes, "memory")


def list_sheets(
    predictions: Sequence[Prediction],
    *,
    with_parameters: bool = False,
    refusals: Sequence[str] = (),
) -> list[Sheet]:
    """Of one job in detail, of several a line each. `refusals` are sentences about combinations
    that cannot be."""
    if len(predictions) > 1 or refusals:
        return [_make_table(predictions, refusals)]
    (prediction,) = predictions
    job, machine = prediction.job, prediction.machine
    return [
        Sheet(
            title=f"predict {job.ranks} x {machine.name}: {replace(job, hardware=None)}",
            columns=_list_columns(predictions),
            items=[predictions],
            conditions=_describe_source(prediction),
            remarks=prediction.warnings,
        ),
        _make_breakdown(prediction),
        _make_memory(prediction),
        *([_make_parameters(prediction)] if with_parameters else []),
    ]


def _make_table(predictions: Sequence[Prediction], refusals: Sequence[str]) -> Sheet:
    asked = [list_asked(each) for each in predictions]
    differing = [axis for axis in AXES if len({str(each[axis]) for each in asked}) > 1]
    fixed = [f"{axis}={value}" for axis, value in asked[0].items() if axis not in differing]
    return Sheet(
        title=" ".join(["predict", *fixed]),
        columns=[*map(_axis_column, differing), *_list_columns(predictions)],
        items=[predictions],
        conditions="; ".join(dict.fromkeys(map(_describe_source, predictions))),
        remarks=[
            *list_warnings(predictions),
            *(f"left out: {refusal}" for refusal in refusals),
        ],
    )


def list_warnings(predictions: Sequence[Prediction]) -> list[str]:
    """Each once, with how many it is about."""
    counted = Counter(text for each in predictions for text in each.warnings)
    return [
        text if count == len(predictions) else f"{text} ({count} of {len(predictions)})"
        for text, count in counted.items()
    ]


def _axis_column(axis: str) -> Column[Prediction]:
    return Column(axis, lambda prediction: str(list_asked(prediction)[axis]), "word")


def _list_columns(predictions: Sequence[Prediction]) -> list[Column[Prediction]]:
    recomputes = any(each.job.recompute != "none" for each in predictions)
    return [
        SPEED,
        INTERVAL,
        number("of one device", "integer", lambda p: p.tokens_per_s / p.job.ranks, "detail"),
        STEP_TIME,
        MFU,
        *([HFU] if recomputes else []),
        MEMORY,
        Column("fits", lambda prediction: FITS[prediction.memory.fits], "word"),
    ]


def _make_breakdown(prediction: Prediction) -> Sheet:
    whole_s = prediction.cost.step_s
    columns: list[Column[Part]] = [
        Column("part of the step", lambda part: BREAKDOWN[part.name], "word"),
        number("time", "s", lambda part: part.time_s),
        number("share", "share", lambda part: part.time_s / whole_s),
        number("could gain", "share", lambda part: (part.time_s - part.ideal_s) / whole_s),
        Column("bound by", lambda part: part.bound, "word"),
    ]
    return Sheet(
        title="one step of one rank",
        columns=columns,
        items=[prediction.list_parts()],
        conditions="could gain: share of the step above the time at the "
        f"{_name_peak(prediction)} or full bandwidth",
    )


def _make_memory(prediction: Prediction) -> Sheet:
    memory, family = prediction.memory, prediction.stack.family
    columns: list[Column[tuple[str, float]]] = [
        Column("memory of one rank", lambda part: part[0], "word"),
        number("size", "bytes", lambda part: part[1]),
        number("share", "share", lambda part: part[1] / memory.total_bytes),
    ]
    available = memory.available_bytes
    room = "of an unknown amount" if available is None else f"of {format_bytes(available)}"
    # `flopwatch memory` is about our own transformer, and differs by this.
    scale = (
        f"activations are {KEPT.get(family, 1):g} times those of our own transformer (`flopwatch "
        f"memory`), as inferred from published jobs of {family}"
    )
    return Sheet(
        title=f"memory: {format_bytes(memory.total_bytes)} {room}",
        columns=columns,
        items=[sorted(memory.parts.items(), key=lambda part: -part[1])],
        conditions="at the peak of a step",
        remarks=[scale] if family in KEPT else [],
    )


def _make_parameters(prediction: Prediction) -> Sheet:
    values = asdict(prediction.stack.parameters)
    columns: list[Column[str]] = [
        Column("parameter", lambda name: name, "word"),
        Column("value", lambda name: f"{values[name]:.3g}", value=lambda name: values[name]),
        Column("unit", lambda name: PRIORS[name].unit, "word"),
        Column("meaning", lambda name: PRIORS[name].meaning, "word"),
    ]
    return Sheet(
        title=f"parameters of {prediction.stack.name}",
        columns=columns,
        items=[list(values)],
        conditions=prediction.stack.source,
    )


def _describe_source(prediction: Prediction) -> str:
    stack = prediction.stack
    fitted = f", fitted to {plural(stack.rows, 'job')}" if stack.rows else f": {stack.source}"
    return f"software stack {stack.name}{fitted}; MFU by exact, of the {_name_peak(prediction)}"


def _name_peak(prediction: Prediction) -> str:
    return "measured peak" if prediction.machine.is_measured else "nominal peak"


def as_dict(prediction: Prediction) -> dict[str, Any]:
    """For ``--json``."""
    return {**list_asked(prediction), **prediction.to_dict()}


def list_asked(prediction: Prediction) -> dict[str, Any]:
    """What may differ between jobs."""
    job = prediction.job
    return {axis: job.name if axis == "model" else getattr(job, axis) for axis in AXES}


def row_as_dict(predicted: Predicted) -> dict[str, Any]:
    """The row, with what was predicted of it, or why nothing was."""
    found = predicted.prediction
    return {
        **predicted.row.cells,
        "predicted_tokens_per_s": None if found is None else round(found.tokens_per_s, 1),
        "low": None if found is None else round(found.low, 1),
        "high": None if found is None else round(found.high, 1),
        "fits": None if found is None else found.memory.fits,
        "reason": predicted.reason,
    }


def describe_errors(rows: Sequence[Predicted]) -> str | None:
    """One line; None where nothing was measured."""
    measured = [(each, each.prediction) for each in rows if each.error is not None]
    if not measured:
        return None
    errors = [abs(each.error or 0.0) for each, _ in measured]
    inside = sum(
        found.low <= (each.row.tokens_per_s or 0.0) <= found.high
        for each, found in measured
        if found is not None
    )
    return (
        f"{plural(len(errors), 'row')} with a measured speed: mean absolute error "
        f"{100 * sum(errors) / len(errors):.1f} %, largest {100 * max(errors):.1f} %; "
        f"{100 * inside / len(errors):.0f} % lie inside their interval"
    )
