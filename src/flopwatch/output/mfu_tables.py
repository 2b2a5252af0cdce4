"""Utilisation in all conventions side by side, and what their numbers are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from flopwatch.jobs.conventions import CONVENTIONS, Convention
from flopwatch.jobs.flops import (
    Part,
    Passes,
    count_bytes_by_part,
    count_flops_by_part,
    count_parameters,
)
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
from flopwatch.output.units import format_count, format_rate, plural

PART_CONDITIONS = (
    "FLOPs and bytes of one sequence; again: what the backward pass recomputes; bytes are a lower "
    "bound: operands and results of matmuls once, nothing between"
)


def list_sheets(answer: JobUtilisation, *, with_parts: bool = False) -> list[Sheet]:
    sheets = [_make_sheet(answer)]
    return [*sheets, _make_part_sheet(answer)] if with_parts else sheets


def as_dict(answer: JobUtilisation) -> dict[str, Any]:
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


def _make_sheet(answer: JobUtilisation) -> Sheet:
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
        title=f"mfu {_describe(answer)}",
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


def _make_part_sheet(answer: JobUtilisation) -> Sheet:
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
        title=f"parts {_describe(answer)}",
        conditions=PART_CONDITIONS,
        remarks=[],
        **lay_out(columns, [rows]),
    )


def _count_parts(job: TrainingJob) -> tuple[dict[Part, Passes], dict[Part, Passes]]:
    """FLOPs and bytes of one sequence."""
    one = replace(job, micro_batch=1)
    return count_flops_by_part(one), count_bytes_by_part(one)


def _describe(answer: JobUtilisation) -> str:
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
