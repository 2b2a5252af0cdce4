"""The whole of `flopwatch peaks`: collectives over several processes, matmuls and memory in one.

Collectives are measured among 2 ranks and among more: the accelerators of this node, or 4 ranks of
a CPU, which share its cores as those of a job do. Under torchrun they are those of all its ranks,
on one node or on several, and the rest is measured by rank 0 once the others have ended. They wait
for it a minute: so collectives come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from flopwatch.devices import environment, instruction_sets
from flopwatch.devices.best_times import PATIENCE
from flopwatch.devices.kinds import is_host
from flopwatch.devices.matmul_rates import list_dtypes
from flopwatch.devices.measured_peaks import Curve, Exchange, Peaks, Stream, read_setup
from flopwatch.devices.peak_measurement import EFFORTS
from flopwatch.devices.present_accelerators import choose_devices
from flopwatch.devices.system_files import count_usable_cores, read_cpu_quota_cores
from flopwatch.errors import UsageError
from flopwatch.output.units import format_duration
from flopwatch.runner import session
from flopwatch.runner.torchrun_launcher import find_place
from flopwatch.settings import Device, Settings

CPU_RANKS = (2, 4)
OVERHEAD_S = 8.0
"""To start processes with torch, and to make random numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakOptions:
    device: Device
    device_index: int | None = None
    """Of the only one that is wanted."""
    threads: int | None
    """None: usable cores."""
    dtypes: Sequence[str]
    ranks: tuple[int, ...]
    """Among how many collectives are measured; none: not at all."""
    quick: bool

    @property
    def wanted_device(self) -> Device:
        number = self.device_index
        return self.device if number is None else f"{self.device}:{number}"

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
    devices, place = choose_devices(device), find_place()
    chosen: Device = devices.kind.name
    known = list_dtypes(chosen)
    strange = [dtype for dtype in dtypes if dtype not in known]
    if strange:
        raise UsageError(
            f"there are no {strange[0]} matmuls on {chosen}; choose --dtype from {', '.join(known)}"
        )
    if place is not None:
        if (ranks or 0) > place.ranks:
            raise UsageError(
                f"--ranks {ranks}, but torchrun has started {place.ranks}; choose at most "
                f"{place.ranks}"
            )
        ranks = place.ranks if ranks is None else ranks
    cores = count_usable_cores(read_cpu_quota_cores())
    most = cores if devices.are_host else devices.count
    if place is None and ranks is not None and ranks > max(most, 1):
        things = f"{devices.kind.unit}s"
        raise UsageError(
            f"--ranks {ranks}, but there are {most} {things}, and each rank needs its own; "
            f"choose at most {most}"
        )
    chosen_ranks: tuple[int, ...]
    if ranks is not None:
        chosen_ranks = (ranks,) if ranks > 1 else ()
    elif most < 2:
        chosen_ranks = ()
    else:
        chosen_ranks = CPU_RANKS if devices.are_host else tuple(sorted({2, most}))
    return PeakOptions(
        device=chosen,
        device_index=devices.index,
        threads=threads,
        dtypes=dtypes or known,
        ranks=chosen_ranks,
        quick=quick,
    )


def describe_time(options: PeakOptions) -> str:
    effort = EFFORTS[options.effort]
    measuring_s = effort.alone_s + effort.exchanges_s * len(options.ranks)
    fixed_s = OVERHEAD_S
    if not is_host(options.device):
        fixed_s += len(options.dtypes) * (effort.load_s + effort.sustained_s)
    usual, most = (format_duration(fixed_s + n * measuring_s) for n in (1, PATIENCE))
    return f"this takes about {usual}, and up to {most} while the machine is busy"


def serve_rank_zero(options: PeakOptions) -> bool:
    """Whether torchrun has started this process as another rank than 0, which has then done all
    that rank 0 wanted of it."""
    place = find_place()
    if place is None or place.rank == 0:
        return False
    for _ in options.ranks:
        session.serve_rank(place)
    return True


def measure_peaks(options: PeakOptions) -> Peaks:
    exchanges = [each for ranks in options.ranks for each in _measure_exchanges(options, ranks)]
    found = session.call(
        "measure_peaks",
        {"dtypes": list(options.dtypes), "effort": options.effort},
        device=options.wanted_device,
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
        exchanges=exchanges,
    )


def _measure_exchanges(options: PeakOptions, ranks: int) -> list[Exchange]:
    found = session.call(
        "measure_collectives",
        {"effort": options.effort},
        device=options.wanted_device,
        threads=options.threads,
        ranks=ranks,
    )
    return msgspec.convert(found, list[Exchange])
