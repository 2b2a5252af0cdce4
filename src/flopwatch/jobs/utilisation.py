"""How much of what the hardware could do a training job does, in any convention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import CONVENTIONS, Built, Convention, find_conventions
from flopwatch.jobs.precision import Peak
from flopwatch.jobs.training_job import Printed, TrainingJob

UNKNOWN_PEAK = (
    "the peak is not known; give --hardware, as in 8xA100-80GB, or --peak, in TFLOP/s of one device"
)
MOST_SHARE = 10
"""A larger one only says that something is wrong."""
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


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class JobUtilisation(Printed):
    """Of one job, in several conventions."""

    job: TrainingJob
    devices: int
    device: str | None
    """What one of them is called; None where nobody said."""
    peak: Peak | None
    """Of one of them."""
    missing: str = UNKNOWN_PEAK
    """Why there is no peak, where that is so, and what to do."""
    utilisations: tuple[Utilisation, ...]
    asked_mfu: float | None = None
    """Where tokens/s follow from it."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": self.job.to_dict(),
            "devices": self.devices,
            "device": self.device,
            "dtype": self.job.arithmetic.matmul_dtype,
            "peak_flops_per_s": None if self.peak is None else self.peak.flops_per_s,
            "peak_source": None if self.peak is None else self.peak.source,
            "conventions": [asdict(one) for one in self.utilisations],
        }

    def __str__(self) -> str:
        devices = f"{self.devices} x {self.device}" if self.device else f"{self.devices} device(s)"
        lines = [f"MFU on {devices}: {self.job}"]
        for one in self.utilisations:
            shares = [
                f"{name} {100 * share:.1f} %"
                for name, share in (("MFU", one.mfu), ("HFU", one.hfu))
                if share is not None
            ]
            speed = f"{one.tokens_per_s:,.0f} tokens/s"
            lines.append(f"  {one.convention:<16} {', '.join([speed, *shares])}")
        return "\n".join([*lines, *([] if self.peak else [f"  {self.missing}"])])


def compute_utilisations(
    job: TrainingJob,
    tokens_per_s: float,
    *,
    devices: int,
    peak: Peak | None,
    missing: str = UNKNOWN_PEAK,
    conventions: Sequence[Convention] = ALL,
    built: Built = None,
) -> tuple[Utilisation, ...]:
    """One for each convention; `peak` is that of one device, and `missing` says why there is none,
    where it is None."""

    def share(flops_per_token: float | None) -> float | None:
        if peak is None or flops_per_token is None:
            return None
        return flops_per_token * tokens_per_s / (devices * peak.flops_per_s)

    found = []
    for convention in conventions:
        model = convention.count_model_flops(job, built)
        hardware = convention.count_hardware_flops(job, built)
        model_star = convention.count_model_star_flops
        hardware_star = convention.count_hardware_star_flops
        utilisation = Utilisation(
            convention=convention.name,
            model_flops_per_token=model,
            hardware_flops_per_token=hardware,
            tokens_per_s=tokens_per_s,
            mfu=share(model),
            hfu=share(hardware),
            mfu_star=share(model_star(job, built) if model_star else None),
            hfu_star=share(hardware_star(job, built) if hardware_star else None),
            peak_flops_per_s=None if peak is None else peak.flops_per_s,
            peak_source=None if peak is None else peak.source,
            missing=missing if peak is None else None,
            impossible=_describe_impossible(convention, share(hardware)),
        )
        found.append(utilisation)
    return tuple(found)


def find_utilisation(  # noqa: PLR0913  all but the job are given by name
    job: TrainingJob,
    *,
    tokens_per_s: float | None = None,
    mfu: float | None = None,
    devices: int = 1,
    device: str | None = None,
    peak: Peak | None = None,
    missing: str = UNKNOWN_PEAK,
    conventions: Sequence[str] = (),
) -> JobUtilisation:
    """What share of the peak a job reaches at such a speed, or how fast it is at such an MFU."""
    if (tokens_per_s is None) == (mfu is None):
        raise UsageError("give one of tokens_per_s and mfu: the other follows from it")
    found: list[Utilisation] = []
    for convention in find_conventions(conventions):
        speed = tokens_per_s
        if speed is None:
            if peak is None or mfu is None:
                raise UsageError(f"tokens/s at an MFU need a peak: {missing}")
            speed = find_tokens_per_s(job, mfu, devices=devices, peak=peak, convention=convention)
        found += compute_utilisations(
            job, speed, devices=devices, peak=peak, missing=missing, conventions=[convention]
        )
    return JobUtilisation(
        job=job,
        devices=devices,
        device=device,
        peak=peak,
        missing=missing,
        utilisations=tuple(found),
        asked_mfu=mfu,
    )


def find_tokens_per_s(
    job: TrainingJob, mfu: float, *, devices: int, peak: Peak, convention: Convention
) -> float:
    """The reverse: how fast a job is that reaches such an MFU."""
    return mfu * devices * peak.flops_per_s / convention.count_model_flops(job, None)


def _describe_impossible(convention: Convention, hfu: float | None) -> str | None:
    """Hardware computes at least what the model needs: HFU is the larger of the two."""
    if hfu is None or hfu <= 1:
        return None
    share = f"{100 * hfu:.1f} %" if hfu <= MOST_SHARE else f"more than {100 * MOST_SHARE} %"
    return (
        f"{share} of the peak by {convention.name} is impossible: the tokens/s, the number of "
        "devices or the peak is wrong, or the convention counts what was not computed"
    )
