"""Training jobs as tables and sentences: utilisation in all conventions, what its FLOPs consist of,
and what a step needs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from flopwatch.jobs.conventions import CONVENTIONS, Convention
from flopwatch.jobs.flops import Part as FlopPart
from flopwatch.jobs.flops import (
    Passes,
    count_bytes_by_part,
    count_flops_by_part,
    count_parameters,
)
from flopwatch.jobs.rank_memory import Memory
from flopwatch.jobs.step_memory import StepMemory, Tensor
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.jobs.utilisation import MOST_SHARE, JobUtilisation, Utilisation
from flopwatch.output.tables import (
    Column,
    Kind,
    Sheet,
    bytes_column,
    count_column,
    lay_out,
    share_column,
)
from flopwatch.output.units import format_bytes, format_count, format_rate, plural

PART_CONDITIONS = (
    "FLOPs and bytes of one sequence; again: what the backward pass recomputes; bytes are a lower "
    "bound: operands and results of matmuls once, nothing between"
)


def list_mfu_sheets(answer: JobUtilisation, *, with_parts: bool = False) -> list[Sheet]:
    sheets = [_make_mfu_sheet(answer)]
    return [*sheets, _make_flop_sheet(answer)] if with_parts else sheets


def mfu_as_dict(answer: JobUtilisation) -> dict[str, Any]:
    """For ``--json``."""
    job = answer.job
    flops, sizes = _count_parts(job)
    return {
        **answer.to_dict(),
        "model": job.name,
        "seq_len": job.seq_len,
        "recompute": job.recompute,
        "parameters": count_parameters(job.shape),
        "active_parameters": count_parameters(job.shape, active=True),
        "conventions": [
            {**asdict(one), **_explain(CONVENTIONS[one.convention], job)}
            for one in answer.utilisations
        ],
        "parts": {
            part: {"flops": asdict(flops[part]), "bytes": asdict(sizes[part])} for part in flops
        },
    }


def _explain(convention: Convention, job: TrainingJob) -> dict[str, Any]:
    count = convention.count_parameters
    return {
        "parameters": None if count is None else count(job, None),
        "source": convention.source,
        "formulas": list(convention.formulas),
    }


def list_formulas(conventions: Sequence[Convention]) -> list[str]:
    """Name, source and formulas of each."""
    lines = [SYMBOLS]
    for convention in conventions:
        lines += ["", f"{convention.name}: {convention.source}"]
        lines += [f"  {formula}" for formula in convention.formulas]
    return lines


SYMBOLS = (
    "FLOPs of a token. N: parameters, with the experts that a token goes through; L: layers; "
    "h: hidden size; S: sequence length; V: vocabulary; P: rows that pad it; a: heads; k: key and "
    "value heads; f: feed-forward size; e: experts that a token goes through"
)


def formulas_as_dict(conventions: Sequence[Convention]) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "source": each.source, "formulas": list(each.formulas)}
        for each in conventions
    ]


def _make_mfu_sheet(answer: JobUtilisation) -> Sheet:
    found = answer.utilisations
    rates: list[Column[Utilisation]] = [
        Column("tokens/s", lambda one: f"{one.tokens_per_s:,.0f}", value=lambda o: o.tokens_per_s),
        Column(
            "of one device",
            lambda one: f"{one.tokens_per_s / answer.devices:,.0f}",
            "detail",
        ),
    ]
    columns: list[Column[Utilisation]] = [
        Column("convention", lambda one: one.convention, "word"),
        count_column("model", lambda one: one.model_flops_per_token, "rate"),
        count_column("hardware", lambda one: one.hardware_flops_per_token, "rate"),
        *(rates if answer.asked_mfu is not None else []),
        _share_column("MFU", "mfu"),
        _share_column("HFU", "hfu"),
        _share_column("MFU*", "mfu_star", "fact"),
        _share_column("HFU*", "hfu_star", "fact"),
    ]
    columns = [column for column in columns if any(map(column.cell, found))]
    return Sheet(
        title=f"mfu {_describe_mfu(answer)}",
        conditions=f"{_describe_shape(answer)}; {_describe_peak(answer)}; model, hardware: FLOPs "
        "of a token",
        remarks=_list_impossible(found),
        **lay_out(columns, [found]),
    )


def _list_impossible(found: Sequence[Utilisation]) -> list[str]:
    """The largest stands for all."""
    impossible = [one for one in found if one.impossible]
    worst = max(impossible, key=lambda one: one.hfu or 0.0, default=None)
    return [] if worst is None or worst.impossible is None else [worst.impossible]


def _describe_shape(answer: JobUtilisation) -> str:
    """What the model's name stands for, and what was taken where it does not say."""
    shape = answer.job.shape
    words = [
        f"{shape.hidden_size:,} wide",
        f"{shape.layers} layers",
        f"{shape.heads} heads",
        f"feed-forward {shape.feed_forward_size:,}",
        f"vocabulary {shape.padded_vocabulary or shape.vocabulary:,}",
    ]
    return f"{format_count(count_parameters(shape))} parameters ({', '.join(words)})"


def _make_flop_sheet(answer: JobUtilisation) -> Sheet:
    flops, sizes = _count_parts(answer.job)
    whole = sum(passes.total for passes in flops.values())
    # Each row: its name, and what it computes and moves.
    rows = [(str(part), flops[part], sizes[part]) for part in flops if sizes[part].total]
    columns: list[Column[tuple[str, Passes, Passes]]] = [
        Column("part", lambda row: row[0], "word"),
        count_column("forward", lambda row: row[1].forward),
        count_column("backward", lambda row: row[1].backward),
        count_column("again", lambda row: row[1].recomputed, "rate"),
        share_column("share", lambda row: row[1].total / whole),
        bytes_column("bytes", lambda row: row[2].total),
        count_column("FLOPs/byte", lambda row: row[1].total / row[2].total, "fact"),
    ]
    return Sheet(
        title=f"parts {_describe_mfu(answer)}",
        conditions=PART_CONDITIONS,
        remarks=[],
        **lay_out(columns, [rows]),
    )


def _count_parts(job: TrainingJob) -> tuple[dict[FlopPart, Passes], dict[FlopPart, Passes]]:
    """FLOPs and bytes of one sequence."""
    one = replace(job, micro_batch=1)
    return count_flops_by_part(one), count_bytes_by_part(one)


def _describe_mfu(answer: JobUtilisation) -> str:
    job, devices = answer.job, answer.devices
    asked = () if answer.asked_mfu is not None else answer.utilisations[:1]
    return ", ".join(
        [
            job.name,
            f"seq_len {job.seq_len:,}",
            f"recompute {job.recompute}",
            f"{devices} x {answer.device}" if answer.device else plural(devices, "device"),
            *(f"{one.tokens_per_s:,.0f} tokens/s" for one in asked),
        ]
    )


def _describe_peak(answer: JobUtilisation) -> str:
    peak = answer.peak
    if peak is None:
        return answer.missing
    rate = format_rate(peak.flops_per_s, "FLOP/s")
    dtype = answer.job.arithmetic.matmul_dtype
    return f"peak of one device in {dtype}: {rate} ({peak.source})"


def _share_column(name: str, field: str, kind: Kind = "number") -> Column[Utilisation]:
    def find(one: Utilisation) -> float | None:
        share: float | None = getattr(one, field)
        return share

    return Column(name, lambda one: _format_share(find(one)), kind, find)


def _format_share(share: float | None) -> str:
    if share is None:
        return ""
    return f"{100 * share:.2f} %" if share <= MOST_SHARE else f"> {100 * MOST_SHARE} %"


Quantity = Literal["micro-batch", "seq-len"]
MEMORY_CONDITIONS = "predicted from dimensions: tensors alone, from the second step on"


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    peak_bytes: int
    """At the peak of the step."""
    most_bytes: int
    """When there is most of it."""
    share: float
    detail: str = ""


def list_memory_sheets(answers: Sequence[Memory]) -> list[Sheet]:
    """Of one model in detail, of several a line each."""
    if len(answers) > 1:
        return [_make_comparison(answers)]
    (answer,) = answers
    step = answer.step
    if step is None or step.parts() != answer.parts:
        return [_make_rank_sheet(answer)]
    return [
        _make_part_sheet(answer, step),
        _make_phase_sheet(answer, step),
        _make_tensor_sheet(answer, step),
    ]


def list_sentences(answers: Sequence[Memory]) -> list[str]:
    if len(answers) > 1:
        return []
    (answer,) = answers
    job, available = answer.job, format_bytes(answer.available_bytes or 0)
    verdict = "fits" if answer.fits else "does not fit"
    return [
        f"It {verdict} into {available}, the memory available for tensors.",
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
            *([f"grad-accum {job.grad_accum}"] if job.grad_accum > 1 else []),
            *([str(job.parallelism)] if job.ranks > 1 else []),
        ]
    )


def _make_rank_sheet(answer: Memory) -> Sheet:
    """Of a rank that shares the model with others, or accumulates gradients."""
    total = answer.total_bytes
    columns: list[Column[tuple[str, float]]] = [
        Column("part", lambda part: part[0], "word"),
        bytes_column("at the peak", lambda part: part[1]),
        share_column("share", lambda part: part[1] / total),
    ]
    return Sheet(
        title=f"memory {answer.job.name}, {_describe(answer)}",
        conditions=f"{MEMORY_CONDITIONS}; on each rank",
        remarks=[],
        **lay_out(columns, [list(answer.parts.items()), [("all", total)]]),
    )


def _make_part_sheet(answer: Memory, step: StepMemory) -> Sheet:
    columns: list[Column[Part]] = [
        Column("part", lambda part: part.name, "word"),
        bytes_column("at the peak", lambda part: part.peak_bytes),
        share_column("share", lambda part: part.share),
        bytes_column("at most", lambda part: part.most_bytes),
        Column("", lambda part: part.detail, "word"),
    ]
    parts = _list_parts(step)
    return Sheet(
        title=f"memory {answer.job.name}, {_describe(answer)}",
        conditions=f"{MEMORY_CONDITIONS}; the peak is in: {step.peak.name}",
        remarks=[],
        **lay_out(columns, [parts[:-1], parts[-1:]]),
    )


def _list_parts(found: StepMemory) -> list[Part]:
    """The last is their sum."""
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


def _make_phase_sheet(answer: Memory, found: StepMemory) -> Sheet:
    rows = [
        ("forward", found.forward_peak_bytes),
        ("forward and backward", found.backward_peak_bytes),
        ("whole step, with the optimizer", found.peak_bytes),
    ]
    columns: list[Column[tuple[str, int]]] = [
        Column("phases", lambda row: row[0], "word"),
        bytes_column("peak", lambda row: row[1]),
    ]
    return Sheet(
        title=f"memory {answer.job.name}, by phase",
        conditions="all tensors of the process; an optimizer's state only where there is one",
        remarks=[],
        **lay_out(columns, [rows]),
    )


def _make_tensor_sheet(answer: Memory, step: StepMemory) -> Sheet:
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
        **lay_out(columns, [step.tensors]),
    )


def _make_comparison(answers: Sequence[Memory]) -> Sheet:
    columns: list[Column[Memory]] = [
        Column("model", lambda answer: answer.job.name, "word"),
        count_column("parameters", lambda a: a.step.parameters if a.step else a.job.parameters),
        bytes_column("their bytes", lambda a: a.parts["parameters"]),
        bytes_column("optimizer state", lambda a: a.parts["optimizer state"]),
        bytes_column(
            "activations", lambda a: a.step.activation_bytes if a.step else a.parts["activations"]
        ),
        bytes_column(
            "gradients", lambda a: a.step.gradient_bytes if a.step else a.parts["gradients"]
        ),
        bytes_column("peak", lambda a: a.total_bytes),
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
        conditions=f"{MEMORY_CONDITIONS}; {available} are available",
        remarks=[],
        **lay_out(columns, [answers]),
    )
