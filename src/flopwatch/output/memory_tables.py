"""What a training step needs in memory, as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flopwatch.jobs.rank_memory import Memory
from flopwatch.jobs.step_memory import StepMemory, Tensor
from flopwatch.output.tables import Column, Sheet, bytes_column, count_column, lay_out, share_column
from flopwatch.output.units import format_bytes, format_count, plural

Quantity = Literal["micro-batch", "seq-len"]
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


def list_sheets(answers: Sequence[Memory]) -> list[Sheet]:
    """Of one model in detail, of several a line each."""
    if len(answers) > 1:
        return [_make_comparison(answers)]
    return [
        _make_part_sheet(answers[0]),
        _make_phase_sheet(answers[0]),
        _make_tensor_sheet(*answers),
    ]


def list_sentences(answers: Sequence[Memory]) -> list[str]:
    if len(answers) > 1:
        return []
    (answer,) = answers
    job, available = answer.job, format_bytes(answer.available_bytes or 0)
    verdict = "fits" if answer.fits else "does not fit"
    return [
        f"It {verdict} into {available}, which is what there is for tensors.",
        f"No micro-batch fits at seq_len {job.seq_len:,}."
        if answer.largest_micro_batch == 0
        else f"At seq_len {job.seq_len:,}, the largest micro-batch that fits is "
        f"{answer.largest_micro_batch:,}.",
        f"No sequence length fits at micro-batch {job.micro_batch:,}."
        if answer.largest_seq_len == 0
        else f"At micro-batch {job.micro_batch:,}, the longest sequence that fits has "
        f"{plural(answer.largest_seq_len or 0, 'token')}.",
    ]


def list_largest(answers: Sequence[Memory], quantity: Quantity) -> list[str]:
    """The number alone; of several models, each with its name."""
    field = f"largest_{quantity.replace('-', '_')}"
    numbers = {each.job.name: getattr(each, field) for each in answers}
    if len(answers) == 1:
        return [str(number) for number in numbers.values()]
    return [f"{model} {number}" for model, number in numbers.items()]


def _describe(answer: Memory) -> str:
    job = answer.job
    return ", ".join(
        [
            f"{job.micro_batch} x {job.seq_len} tokens",
            job.precision,
            job.optimizer,
            f"{job.attention} attention",
            *([f"recompute {job.recompute}"] if job.recompute != "none" else []),
        ]
    )


def _find_step(answer: Memory) -> StepMemory:
    assert answer.step is not None  # one process has all of the model
    return answer.step


def _make_part_sheet(answer: Memory) -> Sheet:
    columns: list[Column[Part]] = [
        Column("part", lambda part: part.name, "word"),
        bytes_column("at the peak", lambda part: part.peak_bytes),
        share_column("share", lambda part: part.share),
        bytes_column("at most", lambda part: part.most_bytes),
        Column("", lambda part: part.detail, "word"),
    ]
    parts = _list_parts(answer)
    return Sheet(
        title=f"memory {answer.job.name}, {_describe(answer)}",
        conditions=f"{CONDITIONS}; the peak is in: {_find_step(answer).peak.name}",
        remarks=[],
        **lay_out(columns, [parts[:-1], parts[-1:]]),
    )


def _list_parts(answer: Memory) -> list[Part]:
    """The last is their sum."""
    found = _find_step(answer)
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


def _make_phase_sheet(answer: Memory) -> Sheet:
    found = _find_step(answer)
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
        title=f"memory {answer.job.name}, by what runs",
        conditions="all tensors of the process; an optimizer's state only where there is one",
        remarks=[],
        **lay_out(columns, [rows]),
    )


def _make_tensor_sheet(answer: Memory) -> Sheet:
    columns: list[Column[Tensor]] = [
        Column("tensor", lambda tensor: tensor.name, "word"),
        Column("shape", lambda tensor: " x ".join(map(str, tensor.shape))),
        bytes_column("size", lambda tensor: tensor.size_bytes),
        Column("how many", lambda t: str(t.count), value=lambda t: t.count),
        bytes_column("together", lambda tensor: tensor.count * tensor.size_bytes),
    ]
    return Sheet(
        title=f"memory {answer.job.name}, largest tensors",
        conditions="parameters, and what the backward pass needs",
        remarks=[],
        **lay_out(columns, [_find_step(answer).tensors]),
    )


def _make_comparison(answers: Sequence[Memory]) -> Sheet:
    columns: list[Column[Memory]] = [
        Column("model", lambda answer: answer.job.name, "word"),
        count_column("parameters", lambda answer: _find_step(answer).parameters),
        bytes_column("their bytes", lambda answer: _find_step(answer).parameter_bytes),
        bytes_column("optimizer state", lambda answer: _find_step(answer).optimizer_bytes),
        bytes_column("activations", lambda answer: _find_step(answer).activation_bytes),
        bytes_column("gradients", lambda answer: _find_step(answer).gradient_bytes),
        bytes_column("peak", lambda answer: _find_step(answer).peak_bytes),
        Column(
            "largest micro-batch",
            lambda a: f"{a.largest_micro_batch:,}",
            value=lambda a: a.largest_micro_batch,
        ),
        Column(
            "longest sequence",
            lambda a: f"{a.largest_seq_len:,}",
            value=lambda a: a.largest_seq_len,
        ),
        Column("fits", lambda answer: "yes" if answer.fits else "no", "word"),
    ]
    available = format_bytes(answers[0].available_bytes or 0)
    return Sheet(
        title=f"memory, {_describe(answers[0])}",
        conditions=f"{CONDITIONS}; {available} are what there is for them",
        remarks=[],
        **lay_out(columns, [answers]),
    )
