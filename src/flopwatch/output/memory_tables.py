"""What a training step needs in memory, as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flopwatch.jobs.memory_capacity import SHORTEST, Answer
from flopwatch.jobs.step_memory import Tensor
from flopwatch.output.tables import Column, Sheet, bytes_column, count_column, lay_out, share_column
from flopwatch.output.units import format_bytes, format_count, plural

Quantity = Literal["batch", "context"]
CONDITIONS = "predicted from dimensions: tensors alone, from the second step on"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    peak_bytes: int
    """At the peak of the step."""
    most_bytes: int
    """When there is most of it."""
    share: float
    detail: str = ""


def list_sheets(answers: Sequence[Answer]) -> list[Sheet]:
    """Of one model in detail, of several a line each."""
    if len(answers) > 1:
        return [_make_comparison(answers)]
    return [
        _make_part_sheet(answers[0]),
        _make_phase_sheet(answers[0]),
        _make_tensor_sheet(*answers),
    ]


def list_sentences(answers: Sequence[Answer]) -> list[str]:
    if len(answers) > 1:
        return []
    (answer,) = answers
    plan, room = answer.plan, format_bytes(answer.room_bytes)
    verdict = "fits" if answer.fits else "does not fit"
    texts = f"texts of {plural(plan.context, 'token')}"
    batch = f"a batch of {plan.batch:,}"
    return [
        f"It {verdict} into {room}, which is what there is for tensors.",
        f"Not even one text of {plural(plan.context, 'token')} fits."
        if answer.largest_batch == 0
        else f"Of {texts}, the largest batch that fits is {answer.largest_batch:,}.",
        f"In {batch}, not even texts of {plural(SHORTEST, 'token')} fit."
        if answer.largest_context == 0
        else f"In {batch}, the longest texts that fit have "
        f"{plural(answer.largest_context, 'token')}.",
    ]


def list_largest(answers: Sequence[Answer], quantity: Quantity) -> list[str]:
    """The number alone; of several models, each with its name."""
    numbers = {a.model: getattr(a, f"largest_{quantity}") for a in answers}
    if len(answers) == 1:
        return [str(number) for number in numbers.values()]
    return [f"{model} {number}" for model, number in numbers.items()]


def as_dict(answer: Answer) -> dict[str, Any]:
    """For ``--json``."""
    return {
        **asdict(answer),
        "footprint": answer.footprint.as_dict(),
        "fits": answer.fits,
    }


def _describe(answer: Answer) -> str:
    plan = answer.plan
    return ", ".join(
        [
            f"{plan.batch} x {plan.context} tokens",
            plan.precision,
            plan.optimizer,
            f"{plan.attention} attention",
            *(["checkpointed"] if plan.checkpointed else []),
            plan.device,
        ]
    )


def _make_part_sheet(answer: Answer) -> Sheet:
    columns: list[Column[Part]] = [
        Column("part", lambda part: part.name, "word"),
        bytes_column("at the peak", lambda part: part.peak_bytes),
        share_column("share", lambda part: part.share),
        bytes_column("at most", lambda part: part.most_bytes),
        Column("", lambda part: part.detail, "word"),
    ]
    parts = _list_parts(answer)
    return Sheet(
        title=f"memory {answer.model}, {_describe(answer)}",
        conditions=f"{CONDITIONS}; the peak is in: {answer.footprint.peak.name}",
        remarks=[],
        **lay_out(columns, [parts[:-1], parts[-1:]]),
    )


def _list_parts(answer: Answer) -> list[Part]:
    """The last is their sum."""
    found = answer.footprint
    moments = (found.forward, found.backward, found.optimizer)
    blocks = f"{plural(found.layers, 'block')} x {format_bytes(found.block_bytes)}"
    most = {
        "activations": found.activation_bytes,
        "gradients": found.gradient_bytes,
        "temporary": max(moment.temporary_bytes for moment in moments),
    }
    details = {
        "parameters": format_count(found.parameters),
        "buffers": "positions and input",
        "activations": f"{blocks}, rest {format_bytes(found.rest_bytes)}",
    }
    parts = [
        Part(name, size, most.get(name, size), size / found.peak_bytes, details.get(name, ""))
        for name, size in found.parts().items()
    ]
    return [*parts, Part("all", found.peak_bytes, found.peak_bytes, 1.0)]


def _make_phase_sheet(answer: Answer) -> Sheet:
    found = answer.footprint
    rows = [
        ("forward", found.forward_peak_bytes),
        ("forward and backward", found.backward_peak_bytes),
        ("whole step, with the optimizer", found.peak_bytes),
    ]
    columns: list[Column[tuple[str, int]]] = [
        Column("what runs", lambda row: row[0], "word"),
        bytes_column("peak", lambda row: row[1]),
    ]
    return Sheet(
        title=f"memory {answer.model}, by what runs",
        conditions="all tensors of the process; an optimizer's state only where there is one",
        remarks=[],
        **lay_out(columns, [rows]),
    )


def _make_tensor_sheet(answer: Answer) -> Sheet:
    columns: list[Column[Tensor]] = [
        Column("tensor", lambda tensor: tensor.name, "word"),
        Column("shape", lambda tensor: " x ".join(map(str, tensor.shape))),
        bytes_column("size", lambda tensor: tensor.size_bytes),
        Column("how many", lambda t: str(t.count), value=lambda t: t.count),
        bytes_column("together", lambda tensor: tensor.count * tensor.size_bytes),
    ]
    return Sheet(
        title=f"memory {answer.model}, largest tensors",
        conditions="parameters, and what the backward pass needs",
        remarks=[],
        **lay_out(columns, [answer.footprint.tensors]),
    )


def _make_comparison(answers: Sequence[Answer]) -> Sheet:
    columns: list[Column[Answer]] = [
        Column("model", lambda answer: answer.model, "word"),
        count_column("parameters", lambda answer: answer.footprint.parameters),
        bytes_column("their bytes", lambda answer: answer.footprint.parameter_bytes),
        bytes_column("optimizer state", lambda answer: answer.footprint.optimizer_bytes),
        bytes_column("activations", lambda answer: answer.footprint.activation_bytes),
        bytes_column("gradients", lambda answer: answer.footprint.gradient_bytes),
        bytes_column("peak", lambda answer: answer.footprint.peak_bytes),
        Column("largest batch", lambda a: f"{a.largest_batch:,}", value=lambda a: a.largest_batch),
        Column(
            "longest text", lambda a: f"{a.largest_context:,}", value=lambda a: a.largest_context
        ),
        Column("fits", lambda answer: "yes" if answer.fits else "no", "word"),
    ]
    room = format_bytes(answers[0].room_bytes)
    return Sheet(
        title=f"memory, {_describe(answers[0])}",
        conditions=f"{CONDITIONS}; {room} are what there is for them",
        remarks=[],
        **lay_out(columns, [answers]),
    )
