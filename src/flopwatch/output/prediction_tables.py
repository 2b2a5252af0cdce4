"""Predicted jobs: speed with its interval, the breakdown of a step, and memory; and plans: the
best few configurations, and what the others lose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from flopwatch.output.tables import Column, Sheet, bytes_column, lay_out, share_column
from flopwatch.output.units import format_bytes, format_count, format_share, format_time, plural
from flopwatch.prediction.cost import Part
from flopwatch.prediction.job_lists import AXES, Predicted
from flopwatch.prediction.plans import DAY_S, Loser, Plan
from flopwatch.prediction.predictions import KEPT, NEARLY_FULL, Prediction
from flopwatch.prediction.software_stacks import PRIORS

NS = 1e9
BREAKDOWN = {
    "matmuls": "linear layers of blocks",
    "head": "the head",
    "attention": "attention",
    "element-wise": "norms, activations, residuals",
    "loss": "the loss",
    "communication": "exposed communication",
    "optimizer": "optimizer",
    "overhead": "kernel launches, fixed overhead",
    "memory pressure": "freeing and allocating again, memory nearly full",
}
"""What the parts of a cost are called in a table."""


def list_sheets(
    predictions: Sequence[Prediction],
    *,
    with_parameters: bool = False,
    refusals: Sequence[str] = (),
) -> list[Sheet]:
    """`refusals` are sentences about combinations that cannot be."""
    if len(predictions) > 1 or refusals:
        return [_make_table(predictions, refusals)]
    prediction = predictions[0]
    return [
        _make_headline(predictions[0]),
        _make_breakdown(prediction),
        _make_memory(prediction),
        *([_make_parameters(prediction)] if with_parameters else []),
    ]


def _make_headline(prediction: Prediction) -> Sheet:
    return Sheet(
        title=f"predict {_name(prediction)}",
        conditions=_describe_source(prediction),
        remarks=list(prediction.warnings),
        **lay_out(_list_columns([prediction]), [[prediction]]),
    )


def _make_table(predictions: Sequence[Prediction], refusals: Sequence[str]) -> Sheet:
    asked = [list_asked(each) for each in predictions]
    differing = [axis for axis in AXES if len({str(each[axis]) for each in asked}) > 1]
    fixed = [f"{axis}={value}" for axis, value in asked[0].items() if axis not in differing]
    sources = dict.fromkeys(_describe_source(each) for each in predictions)
    return Sheet(
        title=" ".join(["predict", *fixed]),
        conditions="; ".join(sources),
        remarks=[
            *list_warnings(predictions),
            *(f"left out: {refusal}" for refusal in refusals),
        ],
        **lay_out(
            [
                *(_axis_column(axis) for axis in differing),
                *_list_columns(predictions),
            ],
            [predictions],
        ),
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
    again = any(each.job.recompute != "none" for each in predictions)
    return [
        Column(
            "tokens/s",
            lambda a: f"{a.tokens_per_s:,.0f}",
            value=lambda a: a.tokens_per_s,
        ),
        Column("90 % interval", lambda p: f"{p.low:,.0f} to {p.high:,.0f}", "interval"),
        Column(
            "of one device",
            lambda a: f"{a.tokens_per_s / a.job.ranks:,.0f}",
            "detail",
        ),
        Column(
            "step",
            lambda a: format_time(a.cost.step_s * NS),
            value=lambda a: a.cost.step_s * NS,
        ),
        share_column("MFU", lambda a: a.utilisation.mfu, "share"),
        *([share_column("HFU", lambda a: a.utilisation.hfu, "share")] if again else []),
        bytes_column("memory", lambda a: a.memory.total_bytes, "memory"),
        Column("fits", lambda a: {True: "yes", False: "no", None: "?"}[a.memory.fits],
               "word"),
    ]  # fmt: skip


def _make_breakdown(prediction: Prediction) -> Sheet:
    rows = prediction.list_parts()
    whole_s = prediction.cost.step_s
    columns: list[Column[Part]] = [
        Column("part of the step", lambda part: BREAKDOWN[part.name], "word"),
        Column("time", lambda p: format_time(p.time_s * NS), value=lambda p: p.time_s * NS),
        share_column("share", lambda part: part.time_s / whole_s),
        Column(
            "could gain",
            lambda part: format_share((part.time_s - part.ideal_s) / whole_s),
            value=lambda part: (part.time_s - part.ideal_s) / whole_s,
        ),
        Column("bound by", lambda part: part.bound, "word"),
    ]
    return Sheet(
        title="one step of one rank",
        conditions="could gain: share of the step above the time at the "
        f"{_name_peak(prediction)} or full bandwidth",
        remarks=[],
        **lay_out(columns, [rows]),
    )


def _make_memory(prediction: Prediction) -> Sheet:
    memory = prediction.memory
    rows = sorted(memory.parts.items(), key=lambda part: -part[1])
    columns: list[Column[tuple[str, float]]] = [
        Column("memory of one rank", lambda row: row[0], "word"),
        bytes_column("size", lambda row: row[1]),
        share_column("share", lambda row: row[1] / memory.total_bytes),
    ]
    available = memory.available_bytes
    room = "of an unknown amount" if available is None else f"of {format_bytes(available)}"
    return Sheet(
        title=f"memory: {format_bytes(memory.total_bytes)} {room}",
        conditions="at the peak of a step",
        remarks=_note_scale(prediction),
        **lay_out(columns, [rows]),
    )


def _note_scale(prediction: Prediction) -> list[str]:
    """`flopwatch memory` is about our own transformer, and differs by this."""
    kept = KEPT.get(prediction.stack.family)
    if kept is None:
        return []
    return [
        f"activations are {kept:g} times those of our own transformer (`flopwatch memory`), as "
        f"inferred from published jobs of {prediction.stack.family}"
    ]


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
        conditions=prediction.stack.source,
        remarks=[],
        **lay_out(columns, [list(values)]),
    )


def _name(prediction: Prediction) -> str:
    job, machine = prediction.job, prediction.machine
    return f"{job.ranks} x {machine.name}: {replace(job, hardware=None)}"


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
    """The row, with what was predicted of it."""
    prediction = predicted.prediction
    return {
        **predicted.row.cells,
        "predicted_tokens_per_s": round(prediction.tokens_per_s, 1),
        "low": round(prediction.low, 1),
        "high": round(prediction.high, 1),
        "fits": prediction.memory.fits,
    }


def describe_errors(rows: Sequence[Predicted]) -> str | None:
    """One line; None where nothing was measured."""
    measured = [each for each in rows if each.error is not None]
    if not measured:
        return None
    errors = [abs(each.error or 0.0) for each in measured]
    inside = sum(
        each.prediction.low <= (each.row.tokens_per_s or 0.0) <= each.prediction.high
        for each in measured
    )
    return (
        f"{plural(len(errors), 'row')} with a measured speed: mean absolute error "
        f"{100 * sum(errors) / len(errors):.1f} %, largest {100 * max(errors):.1f} %; "
        f"{100 * inside / len(errors):.0f} % lie inside their interval"
    )


CHOICES = {"sharding": "sharding", "recompute": "recompute", "micro_batch": "micro-batch"}


def list_plan_sheets(plan: Plan) -> list[Sheet]:
    return [_make_best(plan), *([_make_losers(plan)] if plan.losers else [])]


def _make_best(plan: Plan) -> Sheet:
    columns: list[Column[Prediction]] = [
        Column("sharding", lambda p: p.job.sharding, "word"),
        Column("recompute", lambda p: p.job.recompute, "word"),
        Column("micro-batch", lambda p: str(p.job.micro_batch)),
        Column("grad-accum", lambda p: str(p.job.grad_accum), "detail"),
        Column("tokens a step", lambda p: f"{p.job.tokens_per_step:,}", "detail"),
        Column("tokens/s", lambda p: f"{p.tokens_per_s:,.0f}", value=lambda p: p.tokens_per_s),
        Column("90 % interval", lambda p: f"{p.low:,.0f} to {p.high:,.0f}", "interval"),
        Column(
            "step", lambda p: format_time(p.cost.step_s * NS), value=lambda p: p.cost.step_s * NS
        ),
        share_column("MFU", lambda p: p.utilisation.mfu, "share"),
        bytes_column("memory", lambda p: p.memory.total_bytes, "memory"),
        Column("days", lambda p: f"{plan.find_time_s(p) / DAY_S:,.1f}", value=plan.find_time_s),
        Column(
            "GPU-hours", lambda p: f"{plan.find_device_hours(p):,.0f}", value=plan.find_device_hours
        ),
    ]
    if plan.price is not None:
        columns.append(
            Column("cost", lambda p: f"{plan.find_cost(p) or 0:,.0f}", value=plan.find_cost)
        )
    return Sheet(
        title=f"plan {plan.job.name} on {plan.job.ranks} x {plan.machine.name}: seq_len "
        f"{plan.job.seq_len:,}, about {format_count(plan.global_batch_tokens)} tokens a step, "
        f"{format_count(plan.train_tokens)} in all",
        conditions=f"software stack {plan.stack.name}; {plan.fitting} of {plan.tried} "
        "configurations that were tried fit, with "
        f"{100 * (1 - NEARLY_FULL):.0f} % of the memory to spare",
        remarks=list(plan.best[0].warnings),
        **lay_out(columns, [plan.best]),
    )


def _make_losers(plan: Plan) -> Sheet:
    winner = plan.best[0]
    columns: list[Column[Loser]] = [
        Column("instead", lambda loser: CHOICES[loser.axis], "word"),
        Column("of", lambda loser: loser.value, "word"),
        Column(
            "tokens/s",
            lambda loser: f"{loser.best.tokens_per_s:,.0f}" if loser.best else "",
            value=lambda loser: loser.best.tokens_per_s if loser.best else None,
        ),
        share_column(
            "of the best",
            lambda loser: loser.best.tokens_per_s / winner.tokens_per_s if loser.best else None,
        ),
        Column("why", lambda loser: loser.reason, "word"),
    ]
    return Sheet(
        title="what the others lose",
        conditions="the best of each, against the first above",
        remarks=[],
        **lay_out(columns, [plan.losers]),
    )
