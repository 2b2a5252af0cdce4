"""Training jobs as tables and sentences: utilisation in all conventions, what its FLOPs consist of,
and what a step needs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from flopwatch.jobs.conventions import CONVENTIONS, Convention
from flopwatch.jobs.flops import Passes, count_bytes_by_part, count_flops_by_part
from flopwatch.jobs.parameters import Part, count_parameters
from flopwatch.jobs.rank_memory import Memory
from flopwatch.jobs.step_memory import StepMemory, Tensor
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.jobs.utilisation import MOST_SHARE, JobUtilisation, Utilisation
from flopwatch.output.model_tables import describe_feed_forward
from flopwatch.output.tables import Column, Kind, Sheet, number
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
        number("tokens/s", "integer", lambda one: one.tokens_per_s),
        number("of one device", "integer", lambda o: o.tokens_per_s / answer.devices, "detail"),
    ]
    columns: list[Column[Utilisation]] = [
        Column("convention", lambda one: one.convention, "word"),
        number("model", "count", lambda one: one.model_flops_per_token, "rate"),
        number("hardware", "count", lambda one: one.hardware_flops_per_token, "rate"),
        *(rates if answer.asked_mfu is not None else []),
        _share_column("MFU", "mfu"),
        _share_column("HFU", "hfu"),
        _share_column("MFU*", "mfu_star", "fact"),
        _share_column("HFU*", "hfu_star", "fact"),
    ]
    # The largest of those that cannot be stands for all.
    impossible = [one for one in found if one.impossible]
    worst = sorted(impossible, key=lambda one: one.hfu or 0.0, reverse=True)[:1]
    return Sheet(
        title=f"mfu {_describe_mfu(answer)}",
        columns=[column for column in columns if any(map(column.cell, found))],
        items=[found],
        conditions=f"{_describe_shape(answer)}; {_describe_peak(answer)}; model, hardware: FLOPs "
        "of a token",
        remarks=[str(one.impossible) for one in worst],
    )


def _describe_shape(answer: JobUtilisation) -> str:
    """What the model's name stands for, and what was taken where it does not say."""
    shape = answer.job.shape
    words = [
        f"{shape.hidden_size:,} wide",
        f"{shape.layers} layers",
        f"{shape.heads} heads",
        f"feed-forward {describe_feed_forward(shape) or 'none'}",
        f"vocabulary {shape.vocabulary:,}"
        + (f" padded to {shape.rows:,}" if shape.padding else ""),
    ]
    return f"{format_count(count_parameters(shape))} parameters ({', '.join(words)})"


def _make_flop_sheet(answer: JobUtilisation) -> Sheet:
    flops, sizes = _count_parts(answer.job)
    whole = sum(passes.total for passes in flops.values())
    # Each row: its name, and what it computes and moves.
    rows = [(str(part), flops[part], sizes[part]) for part in flops if sizes[part].total]
    columns: list[Column[tuple[str, Passes, Passes]]] = [
        Column("part", lambda row: row[0], "word"),
        number("forward", "count", lambda row: row[1].forward),
        number("backward", "count", lambda row: row[1].backward),
        number("again", "count", lambda row: row[1].recomputed, "rate"),
        number("share", "share", lambda row: row[1].total / whole),
        number("bytes", "bytes", lambda row: row[2].total),
        number("FLOPs/byte", "count", lambda row: row[1].total / row[2].total, "fact"),
    ]
    return Sheet(
        title=f"parts {_describe_mfu(answer)}",
        columns=columns,
        items=[rows],
        conditions=PART_CONDITIONS,
    )


def _count_parts(job: TrainingJob) -> tuple[dict[Part, Passes], dict[Part, Passes]]:
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
    def cell(one: Utilisation) -> str:
        share: float | None = getattr(one, field)
        if share is None:
            return ""
        return f"{100 * share:.2f} %" if share <= MOST_SHARE else f"> {100 * MOST_SHARE} %"

    return Column(name, cell, kind, lambda one: getattr(one, field))


Quantity = Literal["micro-batch", "seq-len"]
MEMORY_CONDITIONS = "predicted from dimensions: tensors alone, from the second step on"


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
        number("at the peak", "bytes", lambda part: part[1]),
        number("share", "share", lambda part: part[1] / total),
    ]
    return Sheet(
        title=f"memory {answer.job.name}, {_describe(answer)}",
        columns=columns,
        items=[list(answer.parts.items()), [("all", total)]],
        conditions=f"{MEMORY_CONDITIONS}; on each rank",
    )


def _make_part_sheet(answer: Memory, step: StepMemory) -> Sheet:
    blocks = f"{plural(step.layers, 'block')} x {format_bytes(step.block_bytes)}"
    moments = (step.forward, step.backward, step.optimizer)
    most = {
        "activations": step.activation_bytes,
        "gradients": step.gradient_bytes,
        "temporary": max(moment.temporary_bytes for moment in moments),
    }
    details = {
        "parameters": format_count(step.parameters),
        "buffers": "positions and input",
        "activations": f"{blocks}, rest {format_bytes(step.rest_bytes)}",
    }
    columns: list[Column[tuple[str, int]]] = [
        Column("part", lambda part: part[0], "word"),
        number("at the peak", "bytes", lambda part: part[1]),
        number("share", "share", lambda part: part[1] / step.peak_bytes),
        number("at most", "bytes", lambda part: most.get(part[0], part[1])),
        Column("", lambda part: details.get(part[0], ""), "word"),
    ]
    return Sheet(
        title=f"memory {answer.job.name}, {_describe(answer)}",
        columns=columns,
        items=[list(step.parts().items()), [("all", step.peak_bytes)]],
        conditions=f"{MEMORY_CONDITIONS}; the peak is in: {step.peak.name}",
    )


def _make_phase_sheet(answer: Memory, step: StepMemory) -> Sheet:
    rows = [
        ("forward", step.forward_peak_bytes),
        ("forward and backward", step.backward_peak_bytes),
        ("whole step, with the optimizer", step.peak_bytes),
    ]
    columns: list[Column[tuple[str, int]]] = [
        Column("phases", lambda row: row[0], "word"),
        number("peak", "bytes", lambda row: row[1]),
    ]
    return Sheet(
        title=f"memory {answer.job.name}, by phase",
        columns=columns,
        items=[rows],
        conditions="all tensors of the process; an optimizer's state only where there is one",
    )


def _make_tensor_sheet(answer: Memory, step: StepMemory) -> Sheet:
    columns: list[Column[Tensor]] = [
        Column("tensor", lambda tensor: tensor.name, "word"),
        Column("shape", lambda tensor: " x ".join(map(str, tensor.shape))),
        number("size", "bytes", lambda tensor: tensor.size_bytes),
        number("how many", "integer", lambda tensor: tensor.count),
        number("together", "bytes", lambda tensor: tensor.count * tensor.size_bytes),
    ]
    return Sheet(
        title=f"memory {answer.job.name}, largest tensors",
        columns=columns,
        items=[step.tensors],
        conditions="parameters, and what the backward pass needs",
    )


def _make_comparison(answers: Sequence[Memory]) -> Sheet:
    def find_most(answer: Memory, part: str, field: str) -> float:
        """What a step has of it at most, or where only the peak is known, there."""
        most: float = getattr(answer.step, field) if answer.step else answer.parts[part]
        return most

    columns: list[Column[Memory]] = [
        Column("model", lambda answer: answer.job.name, "word"),
        number("parameters", "count", lambda a: (a.step or a.job).parameters),
        number("their bytes", "bytes", lambda a: a.parts["parameters"]),
        number("optimizer state", "bytes", lambda a: a.parts["optimizer state"]),
        number("activations", "bytes", lambda a: find_most(a, "activations", "activation_bytes")),
        number("gradients", "bytes", lambda a: find_most(a, "gradients", "gradient_bytes")),
        number("peak", "bytes", lambda a: a.total_bytes),
        number("largest micro-batch", "integer", lambda a: a.largest_micro_batch),
        number("longest sequence", "integer", lambda a: a.largest_seq_len),
        Column("fits", lambda answer: "yes" if answer.fits else "no", "word"),
    ]
    available = format_bytes(answers[0].available_bytes or 0)
    return Sheet(
        title=f"memory, {_describe(answers[0])}",
        columns=columns,
        items=[answers],
        conditions=f"{MEMORY_CONDITIONS}; {available} are available",
    )
