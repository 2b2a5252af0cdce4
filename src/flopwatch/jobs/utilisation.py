"""How much of what the hardware could do a training job does, in any convention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.record_device import (
    count_ranks,
    describe_missing_peak,
    find_rank_peak,
    find_record_device,
    name_arithmetic,
)
from flopwatch.devices.specifications import Device, Peak
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import CONVENTIONS, Convention, Training
from flopwatch.jobs.model_shapes import ARCHITECTURES, find_dimensions
from flopwatch.jobs.variants import OTHER_NAMES, PRECISIONS, Mode, parse_training_mode
from flopwatch.records.record import Record

UNKNOWN_PEAK = (
    "the peak is not known; give --hardware, as in 8xA100-80GB, or --peak, in TFLOP/s of one device"
)
MOST_SHARE = 10
"""A larger one tells nothing but that something is wrong."""
ALL = tuple(CONVENTIONS.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Utilisation:
    """In one convention. Shares of the peak are None where that is not known."""

    convention: str
    model_flops_per_token: float
    hardware_flops_per_token: float
    tokens_per_s: float
    """Of all devices together."""
    mfu: float | None
    hfu: float | None
    mfu_star: float | None
    """From parameters only; None too where the convention has no such number."""
    hfu_star: float | None
    peak_flops_per_s: float | None
    """Of one device."""
    peak_source: str | None
    missing: str | None
    """Why there are no shares, and what to do."""
    impossible: str | None
    """Why this cannot be, where it is more than the peak."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assessment:
    """Of one record."""

    training: Training
    device: Device | None
    """None where it is not in the table of devices, as no CPU is."""
    utilisations: list[Utilisation]
    """In those of the wanted conventions that can be applied."""


def assess(
    training: Training,
    tokens_per_s: float,
    *,
    devices: int,
    peak: Peak | None,
    missing: str = UNKNOWN_PEAK,
    conventions: Sequence[Convention] = ALL,
) -> list[Utilisation]:
    """One for each convention; `peak` is that of one device, and `missing` says why there is none,
    where it is None."""
    return [_assess(training, tokens_per_s, devices, peak, missing, each) for each in conventions]


def find_tokens_per_s(
    training: Training, mfu: float, *, devices: int, peak: Peak, convention: Convention
) -> float:
    """The reverse: how fast a job is that reaches such an MFU."""
    return mfu * devices * peak.flops_per_s / convention.count_model_flops(training)


def assess_record(
    record: Record,
    tokens_per_s: float | None,
    *,
    conventions: Sequence[Convention] = ALL,
) -> Assessment:
    """From a record of the suite training, by the nominal peak of the device that it names, or
    where that is not known, by the one that was measured.

    Where layers are exchanged, or transformers has built what has no count here, only conventions
    that count by parameters can be applied.
    """
    mode = parse_training_mode(record.variant)
    training = read_training(record, mode)
    dtype = find_product_dtype(record)
    applied = conventions
    if mode.spec != "dense" or training.shape.architecture not in ARCHITECTURES:
        applied = [each for each in conventions if not each.needs_parts]
    utilisations = []
    if tokens_per_s is not None:
        utilisations = assess(
            training,
            tokens_per_s,
            devices=count_ranks(record),
            peak=None if dtype is None else find_rank_peak(record, dtype),
            missing=describe_missing_peak(record, dtype),
            conventions=applied,
        )
    return Assessment(
        training=training, device=find_record_device(record), utilisations=utilisations
    )


def read_training(record: Record, mode: Mode) -> Training:
    model, tokens = (record.params.get(axis) for axis in ("model", "context"))
    if not isinstance(model, str) or not isinstance(tokens, int):
        raise UsageError(
            f"a record of {record.suite!r} does not say its model and its context; only the suite "
            "training has what a utilisation needs"
        )
    parameters = record.facts.get("parameters")
    return Training(
        shape=find_dimensions(model),
        tokens=tokens,
        recompute=mode.recompute,
        parameters=None if parameters is None else round(parameters),
    )


def find_product_dtype(record: Record) -> str | None:
    """That its products are in; None where it does not say."""
    name = str(record.params.get("precision"))
    precision = PRECISIONS.get(OTHER_NAMES.get(name, name))
    return None if precision is None else name_arithmetic(record, precision.product_dtype)


def _assess(
    training: Training,
    tokens_per_s: float,
    devices: int,
    peak: Peak | None,
    missing: str,
    convention: Convention,
) -> Utilisation:
    def share(flops_per_token: float | None) -> float | None:
        if peak is None or flops_per_token is None:
            return None
        return flops_per_token * tokens_per_s / (devices * peak.flops_per_s)

    model = convention.count_model_flops(training)
    hardware = convention.count_hardware_flops(training)
    model_star = convention.count_model_star_flops
    hardware_star = convention.count_hardware_star_flops
    hfu = share(hardware)
    return Utilisation(
        convention=convention.name,
        model_flops_per_token=model,
        hardware_flops_per_token=hardware,
        tokens_per_s=tokens_per_s,
        mfu=share(model),
        hfu=hfu,
        mfu_star=share(model_star(training) if model_star else None),
        hfu_star=share(hardware_star(training) if hardware_star else None),
        peak_flops_per_s=None if peak is None else peak.flops_per_s,
        peak_source=None if peak is None else peak.source,
        missing=missing if peak is None else None,
        impossible=_describe_impossible(convention, hfu),
    )


def _describe_impossible(convention: Convention, hfu: float | None) -> str | None:
    """Hardware computes at least what the model needs: HFU is the larger of the two."""
    if hfu is None or hfu <= 1:
        return None
    share = f"{100 * hfu:.1f} %" if hfu <= MOST_SHARE else f"more than {100 * MOST_SHARE} %"
    return (
        f"{share} of the peak by {convention.name} is impossible: the tokens/s, the number of "
        "devices or the peak is wrong, or the convention counts what was not computed"
    )
