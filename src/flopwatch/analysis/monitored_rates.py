"""Tokens, MFU, HFU and energy of a monitored run.

MFU counts useful tokens; HFU counts padding and what is recomputed, too: the device computes both.
The peak is the nominal one of the device, or where that is not known, the one that `flopwatch
peaks` has measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.record_device import (
    Standard,
    count_devices,
    describe_missing_peak,
    list_standards,
    name_arithmetic,
    sum_flops,
)
from flopwatch.devices.kinds import is_host
from flopwatch.jobs.precision import Peak
from flopwatch.records.joined_runs import count_tokens
from flopwatch.records.monitored import CountedFlops, FlopsSource, MeterReading
from flopwatch.records.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """Of all ranks, in steady steps."""

    per_step: float
    """Useful ones, the mean."""
    padded_per_step: float
    """With padding: what is computed."""
    per_s: float
    """Useful ones, at the median step."""
    total: float
    """Useful ones, of all steps of all starts."""

    @property
    def padding_share(self) -> float:
        """Of what is computed."""
        return 1 - self.per_step / self.padded_per_step if self.padded_per_step else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunUtilisation:
    mfu: float | None
    hfu: float | None
    """None where it is not known what is recomputed, or the peak is not."""
    convention: str
    source: FlopsSource
    model_flops_per_s: float
    """Of all devices together."""
    dtype: str
    devices: int
    peak_flops_per_s: float | None
    """Of one device."""
    peak_source: str | None
    peak: Standard | None
    """Which of the two it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Of the devices of all ranks that have a meter."""

    energy_j: float
    duration_s: float
    j_per_token: float | None
    ranks: int

    @property
    def power_w(self) -> float:
        return self.energy_j / self.duration_s


def count_run_tokens(records: Sequence[Record], step_ns: float) -> Tokens | None:
    """None where nobody said how many there are."""
    useful, padded, steps = 0.0, 0.0, 0
    for record in records:
        assert record.monitored is not None
        own, computed = (count_tokens(record.monitored, padded=each) for each in (False, True))
        if not own or not computed:
            return None
        useful += own * len(record.rounds)
        padded += computed * len(record.rounds)
        steps += len(record.rounds)
    if not steps:
        return None
    return Tokens(
        per_step=useful / steps,
        padded_per_step=max(useful, padded) / steps,
        per_s=useful / steps / step_ns * 1e9,
        total=useful,
    )


def find_run_utilisation(
    record: Record, tokens: Tokens | None, step_ns: float
) -> tuple[RunUtilisation | None, str | None]:
    """And why there is no MFU, where that is so."""
    monitored = record.monitored
    assert monitored is not None
    flops = monitored.flops
    if flops is None:
        missing = "the FLOPs of a step are not known; give Monitor a model, a job or a config"
        return None, monitored.flops_missing or missing
    per_step = _count_step_flops(record, flops, tokens)
    if per_step is None:
        return None, "tokens of a step are not known; give Monitor tokens_per_step"
    model, hardware = per_step
    devices, dtype = count_devices(record), name_arithmetic(record, flops.dtype)
    standard, peak = _find_peak(record, dtype)
    scale = None if peak is None else 1e9 / step_ns / (devices * peak.flops_per_s)
    found = RunUtilisation(
        mfu=None if scale is None else model * scale,
        hfu=None if scale is None or hardware is None else hardware * scale,
        convention=flops.convention,
        source=flops.source,
        model_flops_per_s=model / step_ns * 1e9,
        dtype=dtype,
        devices=devices,
        peak_flops_per_s=None if peak is None else peak.flops_per_s,
        peak_source=None if peak is None else peak.source,
        peak=standard,
    )
    return found, None if peak is not None else describe_missing_peak(record, dtype)


def _count_step_flops(
    record: Record, flops: CountedFlops, tokens: Tokens | None
) -> tuple[float, float | None] | None:
    """Of the model and of the hardware, of all ranks; None where they are not known."""
    counted = sum(sum_flops(record.flops).values())
    if not counted:
        return None
    padding = 1.0 if tokens is None else tokens.padded_per_step / tokens.per_step
    recomputed = None if flops.hardware is None else flops.hardware / flops.model
    if flops.unit == "token":
        return counted, None if recomputed is None else counted * recomputed * padding
    # A micro-batch has been counted with its padding.
    return counted / padding, None if recomputed is None else counted * recomputed


def _find_peak(record: Record, dtype: str) -> tuple[Standard | None, Peak | None]:
    found = ((standard, find(dtype)) for standard, find in list_standards(record).items())
    return next(((standard, peak) for standard, peak in found if peak is not None), (None, None))


def find_energy(records: Sequence[Record], tokens: Tokens | None) -> Energy | None:
    """Between the first and the last reading of each meter; None without two readings."""
    energy_j, duration_s, metered_tokens, ranks = 0.0, 0.0, 0.0, 0
    for record in records:
        assert record.monitored is not None
        spans = [
            span
            for rank in record.monitored.ranks
            if (span := _measure_energy(rank.readings)) is not None
        ]
        if not spans:
            continue
        if is_host(record.settings.device):
            spans = spans[:1]  # all ranks read the same meter
        ranks = max(ranks, len(spans))
        energy_j += sum(span.energy_j for span in spans)
        duration_s += max(span.duration_s for span in spans)
        begins = next(rank.begin_ns for rank in record.monitored.ranks if rank.begin_ns)
        steps = sum(spans[0].first_ns <= begin <= spans[0].last_ns for begin in begins)
        # Meters of some ranks have used their share of the tokens.
        share = len(spans) / count_devices(record)
        metered_tokens += 0.0 if tokens is None else tokens.per_step * steps * share
    if not ranks:
        return None
    return Energy(
        energy_j=energy_j,
        duration_s=duration_s,
        j_per_token=energy_j / metered_tokens if metered_tokens else None,
        ranks=ranks,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Metered:
    energy_j: float
    first_ns: float
    last_ns: float

    @property
    def duration_s(self) -> float:
        return (self.last_ns - self.first_ns) / 1e9


def _measure_energy(readings: Sequence[MeterReading]) -> _Metered | None:
    known = [(one.at_ns, one.energy_j) for one in readings if one.energy_j is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    (first_ns, first_j), (last_ns, last_j) = known[0], known[-1]
    if last_j < first_j:  # a meter that was reset
        return None
    return _Metered(energy_j=last_j - first_j, first_ns=first_ns, last_ns=last_ns)
