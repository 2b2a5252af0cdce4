"""The whole of `flopwatch peaks`: matmuls and memory in one process, collectives over several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from flopwatch.devices import environment, instruction_sets
from flopwatch.devices.accelerators import choose_devices
from flopwatch.devices.best_times import PATIENCE
from flopwatch.devices.matmul_rates import DTYPES
from flopwatch.devices.measured_peaks import Curve, Exchange, Peaks, Stream, read_setup
from flopwatch.devices.peak_measurement import EFFORTS
from flopwatch.devices.system_files import count_usable_cores, read_cpu_quota_cores
from flopwatch.errors import UsageError
from flopwatch.output.units import format_duration
from flopwatch.runner import session
from flopwatch.settings import Device, Settings

CPU_RANKS = 2
OVERHEAD_S = 8.0
"""To start processes with torch, and to make random numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakOptions:
    device: Device
    threads: int | None
    """None: usable cores."""
    dtypes: Sequence[str]
    ranks: int
    """1: no collectives."""
    quick: bool

    @property
    def effort(self) -> str:
        return "quick" if self.quick else "full"


def choose_options(
    *,
    device: Device | None,
    threads: int | None,
    dtypes: Sequence[str],
    ranks: int | None,
    quick: bool,
) -> PeakOptions:
    """With this machine's own values where the user left the choice."""
    devices = choose_devices(device)
    chosen: Device = devices.kind.name
    strange = [dtype for dtype in dtypes if dtype not in DTYPES[chosen]]
    if strange:
        raise UsageError(
            f"there are no {strange[0]} matmuls on {chosen}; choose --dtype from "
            f"{', '.join(DTYPES[chosen])}"
        )
    cores = count_usable_cores(read_cpu_quota_cores())
    most = cores if devices.are_host else devices.count
    if ranks is not None and ranks > max(most, 1):
        things = f"{devices.kind.unit}s"
        raise UsageError(
            f"--ranks {ranks}, but there are {most} {things}, and each rank needs its own; "
            f"choose at most {most}"
        )
    usual = min(most, CPU_RANKS) if devices.are_host else most
    return PeakOptions(
        device=chosen,
        threads=threads,
        dtypes=dtypes or DTYPES[chosen],
        ranks=usual if ranks is None else ranks,
        quick=quick,
    )


def describe_time(options: PeakOptions) -> str:
    effort = EFFORTS[options.effort]
    exchanges_s = effort.exchanges_s if options.ranks > 1 else 0.0
    measuring_s = effort.alone_s + exchanges_s
    usual, most = (format_duration(OVERHEAD_S + n * measuring_s) for n in (1, PATIENCE))
    return f"this takes about {usual}, and up to {most} while the machine is busy"


def measure_peaks(options: PeakOptions) -> Peaks:
    found = session.call(
        "measure_peaks",
        {"dtypes": list(options.dtypes), "effort": options.effort},
        device=options.device,
        threads=options.threads,
    )
    facts = {
        **environment.machine(Path.cwd()),
        "isa": instruction_sets.describe(instruction_sets.probe()),
        "torch": found["torch"],
    }
    settings = Settings(device=options.device, threads=found["torch"]["threads"])
    return Peaks(
        setup=read_setup(facts, settings),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        quick=options.quick,
        matmuls=msgspec.convert(found["matmuls"], list[Curve]),
        streams=msgspec.convert(found["streams"], list[Stream]),
        cache_bytes=found["cache_bytes"],
        background_share=found["background_share"],
        exchanges=_measure_exchanges(options) if options.ranks > 1 else [],
    )


def _measure_exchanges(options: PeakOptions) -> list[Exchange]:
    found = session.call(
        "measure_collectives",
        {"effort": options.effort},
        device=options.device,
        threads=options.threads,
        ranks=options.ranks,
    )
    return msgspec.convert(found, list[Exchange])
