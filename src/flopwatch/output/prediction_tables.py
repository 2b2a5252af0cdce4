"""Predicted jobs: speed with its interval, where the time goes, and what memory holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from flopwatch.output.tables import Column, Sheet, bytes_column, lay_out, share_column
from flopwatch.output.units import format_bytes, format_share, format_time, plural
from flopwatch.prediction.cost import Bound, Part
from flopwatch.prediction.cost_parameters import PRIORS, write_parameters
from flopwatch.prediction.memory_need import KEPT
from flopwatch.prediction.predictions import Prediction
from flopwatch.prediction.questions import Answer, Predicted, describe_job

NS = 1e9
BREAKDOWN = {
    "matmuls": "linear layers of blocks",
    "head": "the head",
    "attention": "attention",
    "element-wise": "norms, activations, residuals",
    "loss": "the loss, over all logits",
    "communication": "communication that is waited for",
    "optimizer": "optimizer",
    "overhead": "launches and fixed overheads",
    "memory pressure": "memory given back and asked for again",
}
"""What the parts of a cost are called in a table."""


def list_sheets(
    answers: Sequence[Answer], *, with_parameters: bool = False, refusals: Sequence[str] = ()
) -> list[Sheet]:
    """`refusals` are sentences about combinations that cannot be."""
    if len(answers) > 1 or refusals:
        return [_make_table(answers, refusals)]
    prediction = answers[0].prediction
    return [
        _make_headline(answers[0]),
        _make_breakdown(prediction),
        _make_memory(prediction),
        *([_make_parameters(prediction)] if with_parameters else []),
    ]


def _make_headline(answer: Answer) -> Sheet:
    return Sheet(
        title=f"predict {_name(answer)}",
        conditions=_describe_source(answer.prediction),
        remarks=list(answer.prediction.warnings),
        **lay_out(_list_columns([answer]), [[answer]]),
    )


def _make_table(answers: Sequence[Answer], refusals: Sequence[str]) -> Sheet:
    first = answers[0]
    differing = [
        axis for axis in first.asked if len({str(each.asked[axis]) for each in answers}) > 1
    ]
    fixed = [f"{axis}={value}" for axis, value in first.asked.items() if axis not in differing]
    sources = dict.fromkeys(_describe_source(each.prediction) for each in answers)
    return Sheet(
        title=" ".join(["predict", *fixed]),
        conditions="; ".join(sources),
        remarks=[
            *list_warnings([each.prediction for each in answers]),
            *(f"left out: {refusal}" for refusal in refusals),
        ],
        **lay_out(
            [
                *(_axis_column(axis) for axis in differing),
                *_list_columns(answers),
            ],
            [answers],
        ),
    )


def list_warnings(predictions: Sequence[Prediction]) -> list[str]:
    """Each once, with how many it is about."""
    warnings = Counter(warning for each in predictions for warning in each.warnings)
    return [
        warning if count == len(predictions) else f"{warning} ({count} of {len(predictions)})"
        for warning, count in warnings.items()
    ]


def _axis_column(axis: str) -> Column[Answer]:
    return Column(axis, lambda answer: str(answer.asked[axis]), "word")


def _list_columns(answers: Sequence[Answer]) -> list[Column[Answer]]:
    again = any(each.prediction.job.recompute != "none" for each in answers)
    return [
        Column(
            "tokens/s",
            lambda a: f"{a.prediction.tokens_per_s:,.0f}",
            value=lambda a: a.prediction.tokens_per_s,
        ),
        Column("9 of 10", lambda a: _format_interval(a.prediction), "interval"),
        Column(
            "of one device",
            lambda a: f"{a.prediction.tokens_per_s / a.prediction.job.ranks:,.0f}",
            "detail",
        ),
        Column(
            "step",
            lambda a: format_time(a.prediction.cost.step_s * NS),
            value=lambda a: a.prediction.cost.step_s * NS,
        ),
        share_column("MFU", lambda a: a.prediction.utilisation.mfu, "share"),
        *([share_column("HFU", lambda a: a.prediction.utilisation.hfu, "share")] if again else []),
        bytes_column("memory", lambda a: a.prediction.memory.total_bytes, "memory"),
        Column("fits", lambda a: {True: "yes", False: "no", None: "?"}[a.prediction.memory.fits],
               "word"),
    ]  # fmt: skip


def _make_breakdown(prediction: Prediction) -> Sheet:
    rows = _sum_parts(prediction.cost.parts)
    whole_s = prediction.cost.step_s
    columns: list[Column[Part]] = [
        Column("where the time goes", lambda part: BREAKDOWN[part.name], "word"),
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
        conditions=f"could gain: what is above the {_name_peak(prediction)} or full bandwidth, of "
        "the step",
        remarks=[],
        **lay_out(columns, [rows]),
    )


def _sum_parts(parts: Sequence[Part]) -> list[Part]:
    """One for each name, the longest first."""
    sums: dict[str, tuple[float, float, Bound]] = {}
    for part in parts:
        time_s, ideal_s, _ = sums.get(part.name, (0.0, 0.0, part.bound))
        sums[part.name] = (time_s + part.time_s, ideal_s + part.ideal_s, part.bound)
    rows = [
        Part(name=name, phase="forward", time_s=time_s, ideal_s=ideal_s, bound=bound)
        for name, (time_s, ideal_s, bound) in sums.items()
    ]
    return sorted(rows, key=lambda part: -part.time_s)


def _make_memory(prediction: Prediction) -> Sheet:
    memory = prediction.memory
    rows = sorted(memory.parts.items(), key=lambda part: -part[1])
    columns: list[Column[tuple[str, float]]] = [
        Column("held by one rank", lambda row: row[0], "word"),
        bytes_column("size", lambda row: row[1]),
        share_column("share", lambda row: row[1] / memory.total_bytes),
    ]
    available = memory.available_bytes
    room = "of an unknown amount" if available is None else f"of {format_bytes(available)}"
    return Sheet(
        title=f"memory: {format_bytes(memory.total_bytes)} {room}",
        conditions="at its most",
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
        f"published jobs of {prediction.stack.family} let one infer"
    ]


def _make_parameters(prediction: Prediction) -> Sheet:
    values = write_parameters(prediction.stack.parameters)
    columns: list[Column[str]] = [
        Column("parameter", lambda name: name, "word"),
        Column("value", lambda name: f"{values[name]:.3g}", value=lambda name: values[name]),
        Column("unit", lambda name: PRIORS[name].unit, "word"),
        Column("meaning", lambda name: PRIORS[name].meaning, "word"),
    ]
    laid = lay_out(columns, [list(values)])
    return Sheet(
        title=f"parameters of {prediction.stack.name}",
        conditions=prediction.stack.source,
        remarks=[],
        **{**laid, "text_columns": 1, "words": [True, False, True, True]},
    )


def _name(answer: Answer) -> str:
    job, machine = answer.prediction.job, answer.prediction.machine
    return f"{answer.asked['model']} on {job.ranks} x {machine.name}: {describe_job(job)}"


def _describe_source(prediction: Prediction) -> str:
    stack = prediction.stack
    fitted = f", fitted to {plural(stack.rows, 'job')}" if stack.rows else f": {stack.source}"
    return f"stack {stack.name}{fitted}; MFU by exact, of the {_name_peak(prediction)}"


def _name_peak(prediction: Prediction) -> str:
    return "measured peak" if prediction.machine.is_measured else "data sheet's peak"


def _format_interval(prediction: Prediction) -> str:
    return f"{prediction.low:,.0f} to {prediction.high:,.0f}"


def as_dict(answer: Answer) -> dict[str, Any]:
    """For ``--json``."""
    return {**answer.asked, **prediction_as_dict(answer.prediction)}


def prediction_as_dict(prediction: Prediction) -> dict[str, Any]:
    memory = prediction.memory
    return {
        "device": prediction.machine.name,
        "ranks": prediction.job.ranks,
        "parameters": prediction.job.parameters,
        "stack": prediction.stack.name,
        "predicted_tokens_per_s": prediction.tokens_per_s,
        "low": prediction.low,
        "high": prediction.high,
        "step_s": prediction.cost.step_s,
        "mfu": prediction.utilisation.mfu,
        "hfu": prediction.utilisation.hfu,
        "convention": prediction.utilisation.convention,
        "fits": memory.fits,
        "memory_bytes": memory.parts,
        "available_bytes": memory.available_bytes,
        "parts": [
            {
                "name": part.name,
                "time_s": part.time_s,
                "ideal_s": part.ideal_s,
                "bound": part.bound,
            }
            for part in _sum_parts(prediction.cost.parts)
        ],
        "warnings": list(prediction.warnings),
        "sources": list(prediction.machine.sources),
    }


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
