"""Tokens, MFU, HFU and energy of a monitored run.

MFU counts useful tokens; HFU counts padding and what is recomputed, too: the device computes both.
The peak is the nominal one of the device, or where that is not known, the one that `flopwatch
peaks` has measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.record_device import (
    find_device_name,
    find_record_device,
    list_standards,
    name_arithmetic,
)
from flopwatch.devices.kinds import is_host
from flopwatch.jobs.precision import Peak
from flopwatch.records.monitored import CountedFlops, FlopsSource, MeterReading, Monitored
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


def count_tokens(starts: Sequence[tuple[Record, int]], step_ns: float) -> Tokens | None:
    """Of records, each with the number of its first steps; None where nobody said."""
    useful, padded, total, steps = 0.0, 0.0, 0.0, 0
    for record, first_steps in starts:
        monitored = record.monitored
        if monitored is None:
            continue
        counted = _count_by_step(monitored)
        if counted is None:
            return None
        total += sum(pair[0] for pair in counted)
        steady = counted[first_steps:]
        useful += sum(pair[0] for pair in steady)
        padded += sum(pair[1] for pair in steady)
        steps += len(steady)
    if not steps or not total:
        return None
    per_step = useful / steps
    return Tokens(
        per_step=per_step,
        padded_per_step=padded / steps,
        per_s=per_step / step_ns * 1e9,
        total=total,
    )


def _count_by_step(monitored: Monitored) -> list[tuple[float, float]] | None:
    """Useful tokens and those with padding, of all ranks, for every step of the lowest rank."""
    main = monitored.ranks[0]
    others = [dict(zip(rank.steps, zip(rank.tokens, rank.padded_tokens, strict=True), strict=True))
              for rank in monitored.ranks[1:]
              if any(tokens is not None for tokens in rank.tokens)]  # fmt: skip
    told = monitored.tokens_per_step
    found: list[tuple[float, float]] = []
    for number, own, computed in zip(main.steps, main.tokens, main.padded_tokens, strict=True):
        pairs = [pair for pair in ((own, computed), *(o.get(number, (None, None)) for o in others))
                 if pair[0] is not None]  # fmt: skip
        if not pairs:
            if told is None:
                return None
            found.append((told, told))
            continue
        scale = monitored.data_parallel / len(pairs)
        useful = scale * sum(tokens or 0 for tokens, _ in pairs)
        padded = scale * sum(
            (tokens or 0) if with_padding is None else with_padding
            for tokens, with_padding in pairs
        )
        found.append((useful, max(useful, padded)))
    return found


def count_run_devices(record: Record) -> int:
    """A rank has a device of its own; on a CPU all of them share it."""
    assert record.monitored is not None
    return 1 if is_host(record.settings.device) else max(1, record.monitored.world_size)


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
    per_step = _count_step_flops(monitored, flops, tokens)
    if per_step is None:
        return None, "tokens of a step are not known; give Monitor tokens_per_step"
    model, hardware = per_step
    devices, dtype = count_run_devices(record), name_arithmetic(record, flops.dtype)
    peak = _find_peak(record, dtype)
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
    )
    return found, None if peak is not None else _describe_missing_peak(record, dtype)


def _count_step_flops(
    monitored: Monitored, flops: CountedFlops, tokens: Tokens | None
) -> tuple[float, float | None] | None:
    """Of the model and of the hardware, of all ranks; None where tokens are not known."""
    if flops.unit == "token":
        if tokens is None:
            return None
        hardware = None if flops.hardware is None else flops.hardware * tokens.padded_per_step
        return flops.model * tokens.per_step, hardware
    counts = [count for rank in monitored.ranks for count in rank.micro_batches if count]
    if not counts:
        return None
    batches = sum(counts) / len(counts) * monitored.world_size
    useful = 1.0 if tokens is None else 1 - tokens.padding_share
    hardware = None if flops.hardware is None else flops.hardware * batches
    return flops.model * batches * useful, hardware


def _find_peak(record: Record, dtype: str) -> Peak | None:
    found = [find(dtype) for find in list_standards(record).values()]
    return next((peak for peak in found if peak is not None), None)


def _describe_missing_peak(record: Record, dtype: str) -> str:
    name, device = find_device_name(record), find_record_device(record)
    reason = "the nominal peak of a CPU is not known"
    if device is not None:
        reason = f"{device.name} has no nominal peak in {dtype}"
    elif name is not None:
        reason = f"{name} is not in the table of devices"
    return f"{reason}; `flopwatch peaks` measures one, and later runs carry it"


def find_energy(records: Sequence[Record], tokens: Tokens | None) -> Energy | None:
    """Between the first and the last reading of each meter; None without two readings."""
    energy_j, duration_s, ranks = 0.0, 0.0, 0
    steps = 0.0
    for record in records:
        monitored = record.monitored
        if monitored is None:
            continue
        spans = [
            span for rank in monitored.ranks if (span := _measure_energy(rank.readings)) is not None
        ]
        energy_j += sum(joule for joule, _, _ in spans)
        duration_s += max((seconds for _, seconds, _ in spans), default=0.0)
        ranks = max(ranks, len(spans))
        if spans:
            _, _, (first_ns, last_ns) = spans[0]
            main = monitored.ranks[0]
            steps += sum(first_ns <= begin <= last_ns for begin in main.begin_ns)
    if not ranks or duration_s <= 0:
        return None
    # Meters of some ranks only: their share of the tokens.
    share = ranks / max(1, records[-1].monitored.world_size if records[-1].monitored else 1)
    if is_host(records[-1].settings.device):
        share = 1.0
    counted = None if tokens is None else tokens.per_step * steps * share
    return Energy(
        energy_j=energy_j,
        duration_s=duration_s,
        j_per_token=energy_j / counted if counted else None,
        ranks=ranks,
    )


def _measure_energy(
    readings: Sequence[MeterReading],
) -> tuple[float, float, tuple[float, float]] | None:
    """Joules, seconds, and from when to when."""
    known = [(one.at_ns, one.energy_j) for one in readings if one.energy_j is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    (first_ns, first_j), (last_ns, last_j) = known[0], known[-1]
    if last_j < first_j:  # a meter that was reset
        return None
    return last_j - first_j, (last_ns - first_ns) / 1e9, (first_ns, last_ns)
