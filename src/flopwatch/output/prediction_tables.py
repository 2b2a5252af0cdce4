"""Predicted jobs: speed with its interval, the breakdown of a step, and memory; plans: the best few
configurations, and what the others lose; and how good predictions are, of published jobs that were
held out and of your own records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from flopwatch.output.tables import Column, Sheet, number
from flopwatch.output.units import format_bytes, format_count, format_signed_share, plural
from flopwatch.prediction.calibration import Calibration
from flopwatch.prediction.cost import Part
from flopwatch.prediction.fit import Fit, Found
from flopwatch.prediction.job_lists import AXES, Predicted
from flopwatch.prediction.plans import DAY_S, Loser, Plan
from flopwatch.prediction.predictions import KEPT, NEARLY_FULL, Prediction
from flopwatch.prediction.software_stacks import PRIORS
from flopwatch.prediction.validation import STEP, Judged, Score, Tally

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


CHOICES = {
    "tensor": "tensor",
    "sequence": "sequence parallel",
    "pipeline": "pipeline",
    "virtual_stages": "virtual stages",
    "schedule": "schedule",
    "context": "context",
    "expert": "expert",
    "sharding": "sharding",
    "recompute": "recompute",
    "micro_batch": "micro-batch",
}
SPLITS = ("tensor", "pipeline", "context", "expert", "data")
"""Columns of a plan, where any of its configurations has them."""


def list_plan_sheets(plan: Plan) -> list[Sheet]:
    return [_make_best(plan), *([_make_losers(plan)] if plan.losers else [])]


def _make_best(plan: Plan) -> Sheet:
    columns: list[Column[Prediction]] = [
        *(
            _split_column(name)
            for name in SPLITS
            if any(getattr(each.job.parallelism, name) > 1 for each in plan.best)
        ),
        Column("sharding", lambda p: p.job.sharding, "word"),
        Column("recompute", lambda p: p.job.recompute, "word"),
        Column("micro-batch", lambda p: str(p.job.micro_batch)),
        Column("grad-accum", lambda p: str(p.job.grad_accum), "detail"),
        number("tokens a step", "integer", lambda p: p.job.tokens_per_step, "detail"),
        SPEED,
        INTERVAL,
        STEP_TIME,
        MFU,
        MEMORY,
        Column("days", lambda p: f"{plan.find_time_s(p) / DAY_S:,.1f}", value=plan.find_time_s),
        number("GPU-hours", "integer", plan.find_device_hours),
        *([number("cost", "integer", plan.find_cost)] if plan.price is not None else []),
    ]
    return Sheet(
        title=f"plan {plan.job.name} on {plan.job.ranks} x {plan.machine.name}: seq_len "
        f"{plan.job.seq_len:,}, about {format_count(plan.global_batch_tokens)} tokens a step, "
        f"{format_count(plan.train_tokens)} in all",
        columns=columns,
        items=[plan.best],
        conditions=f"software stack {plan.stack.name}; {plan.fitting:,} of {plan.tried:,} "
        "configurations that were tried fit, with "
        f"{100 * (1 - NEARLY_FULL):.0f} % of the memory to spare; tensor +sp: with sequence "
        "parallelism, pipeline 8x5: of 5 virtual stages each",
        remarks=[*([plan.remark] if plan.remark else []), *plan.best[0].warnings],
    )


def _split_column(name: str) -> Column[Prediction]:
    def show(prediction: Prediction) -> str:
        split = prediction.job.parallelism
        chunks = f"x{split.virtual_stages}" if split.virtual_stages > 1 else ""
        more = {"tensor": "+sp" if split.sequence else "", "pipeline": chunks}
        return f"{getattr(split, name)}{more.get(name, '')}"

    return Column(name, show, value=lambda p: getattr(p.job.parallelism, name))


def _make_losers(plan: Plan) -> Sheet:
    best = plan.best[0].tokens_per_s

    def find_speed(loser: Loser) -> float | None:
        return loser.best.tokens_per_s if loser.best else None

    def find_share(loser: Loser) -> float | None:
        return loser.best.tokens_per_s / best if loser.best else None

    columns: list[Column[Loser]] = [
        Column("instead", lambda loser: CHOICES[loser.axis], "word"),
        Column("of", lambda loser: loser.value, "word"),
        number("tokens/s", "integer", find_speed),
        number("of the best", "share", find_share),
        Column("why", lambda loser: loser.reason, "word"),
    ]
    return Sheet(
        title="what the others lose",
        columns=columns,
        items=[plan.losers],
        conditions="the best of each, against the first above",
    )


TOO_EFFICIENT = 1.3
"""Of the peak: what lies above cannot be a peak that was measured a little too low."""


def list_validation_sheets(scores: Sequence[Score]) -> list[Sheet]:
    columns: list[Column[Score]] = [
        Column("left out", lambda score: score.split, "word"),
        Column("source", lambda score: score.table, "word"),
        number("jobs", "integer", lambda score: score.rows),
        number("mean error", "share", lambda score: score.mean_error),
        number("median", "share", lambda score: score.median_error),
        number("largest", "share", lambda score: score.largest_error),
        number("in interval", "share", lambda score: score.coverage),
        _optional("rank correlation", lambda score: score.rank_correlation),
        _optional("share of the best", lambda score: score.best_share),
        number("constant MFU", "share", lambda score: score.constant_mfu_error),
        number("FLOPs + bandwidth", "share", lambda score: score.roofline_error),
    ]
    splits = dict.fromkeys(score.split for score in scores)
    return [
        Sheet(
            title="tokens/s of training jobs that the fit has not seen",
            columns=columns,
            items=[[score for score in scores if score.split == split] for split in splits],
            conditions="published on A100 and V100; errors of predicted over measured tokens/s, "
            "less 1; 90 % should be inside their interval. Constant MFU, the best for each source "
            "in hindsight, and FLOPs + bandwidth, with every efficiency at 1, are the mean errors "
            "of baselines",
            remarks=[_describe_split(scores, split) for split in splits],
        ),
    ]


def _optional(name: str, find: Callable[[Score], float | None]) -> Column[Score]:
    def show(score: Score) -> str:
        value = find(score)
        return "" if value is None else f"{value:.2f}"

    return Column(name, show, value=find)


def _describe_split(scores: Sequence[Score], split: str) -> str:
    """Over the sources, of which a part of one does not count again."""
    own = [score for score in scores if score.split == split and ", " not in score.table]
    mean = sum(score.mean_error for score in own) / len(own)
    return f"{split}: {100 * mean:.1f} % mean error over {plural(len(own), 'source')}"


def validation_as_dict(scores: Sequence[Score]) -> dict[str, Any]:
    return {"jobs": list(map(asdict, scores))}


def list_calibration_sheets(calibration: Calibration, fit: Fit) -> list[Sheet]:
    columns: list[Column[Found]] = [
        Column("parameter", lambda found: found.unknown.name, "word"),
        Column("value", lambda found: f"{found.value:.3g}", value=lambda found: found.value),
        Column("±", lambda found: f"{100 * found.error:.0f} %", value=lambda found: found.error),
        Column("expected", lambda found: f"{found.unknown.prior.expected:.3g}"),
        number("determined", "share", lambda found: found.determined),
        Column("unit", lambda found: found.unknown.prior.unit, "word"),
    ]
    return [
        Sheet(
            title=f"calibrated by {plural(calibration.rows, 'record')}: a model that is not among "
            f"them is predicted within {100 * calibration.scatter:.0f} %, two times out of three",
            columns=columns,
            items=[sorted(fit.found, key=lambda found: -found.determined)],
            conditions="determined: how much of what was uncertain the records have settled; the "
            "rest is as expected",
            remarks=_warn_of_efficiencies(fit),
        )
    ]


def _warn_of_efficiencies(fit: Fit) -> list[str]:
    """More than the machine can do was seen: it can do more than its peaks say."""
    return [
        f"{found.unknown.name} is {found.value:.2g}, more than there is: the peaks are too low, as "
        "they are if other work ran meanwhile; measure them again with `flopwatch peaks`"
        for found in fit.found
        if found.unknown.name.endswith("_efficiency") and found.value > TOO_EFFICIENT
    ]


def calibration_as_dict(calibration: Calibration, fit: Fit) -> dict[str, Any]:
    return {
        **asdict(calibration),
        "found": [
            {
                "name": found.unknown.name,
                "value": found.value,
                "error": found.error,
                "expected": found.unknown.prior.expected,
                "determined": found.determined,
            }
            for found in fit.found
        ],
    }


def list_scorecard_sheets(judged: Sequence[Judged], tallies: Sequence[Tally]) -> list[Sheet]:
    columns: list[Column[Judged]] = [
        Column("case", _name_case, "word"),
        Column("taken", lambda each: each.record.measured_at.partition("T")[0], "detail"),
        number("predicted", "s", lambda each: each.predicted_s),
        number("measured", "s", lambda each: each.measured_s),
        Column("error", lambda each: format_signed_share(each.errors[STEP])),
        Column("inside", lambda each: "yes" if each.is_inside else "no", "word"),
    ]
    overview: list[Column[Tally]] = [
        Column("of", lambda tally: tally.name, "word"),
        number("records", "integer", lambda tally: tally.rows),
        number("mean error", "share", lambda tally: tally.mean_error),
        Column("bias", lambda t: format_signed_share(t.bias), value=lambda tally: tally.bias),
        number("largest", "share", lambda tally: tally.largest_error),
        number("in interval", "share", lambda tally: tally.inside),
    ]
    return [
        Sheet(
            title="predictions and measurements",
            columns=columns,
            items=[judged],
            conditions="errors of times: predicted over measured, less 1",
        ),
        Sheet(
            title="in all",
            columns=overview,
            items=[tallies],
            conditions="bias: above 0 where predictions are too slow; phases have no interval",
        ),
    ]


def _name_case(judged: Judged) -> str:
    record = judged.record
    return f"{record.suite} {record.params.get('model')} {record.variant}"


def scorecard_as_dict(judged: Sequence[Judged], tallies: Sequence[Tally]) -> dict[str, Any]:
    return {
        "records": [
            {
                "case_id": each.record.case_id,
                "suite": each.record.suite,
                "variant": each.record.variant,
                "params": each.record.params,
                "measured_at": each.record.measured_at,
                "predicted_s": each.predicted_s,
                "measured_s": each.measured_s,
                "is_inside": each.is_inside,
                "errors": each.errors,
            }
            for each in judged
        ],
        "tallies": list(map(asdict, tallies)),
    }
