"""What a device can do, as the cost model needs it: from data sheets, or as measured here.

Of a data sheet's peak, large matmuls of ordinary numbers reach a share that the maker does not
print, and between nodes, data sheets say nothing at all: an entry of the device table has both as
its `practice`; `--network` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flopwatch.devices.device_names import (
    describe_unknown,
    find_device,
    find_devices,
    split_hardware,
)
from flopwatch.devices.device_specs import USUAL_NODE, Device
from flopwatch.devices.kinds import is_host
from flopwatch.devices.measured_peaks import BUS_PASSES, Operation, Peaks
from flopwatch.errors import UsageError
from flopwatch.jobs.precision import PRECISIONS
from flopwatch.settings import Device as DeviceKind

UNKNOWN_SHARE = 0.75
"""What large matmuls reach of the peak, where no measurement is known."""
RESERVED = 0.985
"""Of a GPU's memory, what a process can have: the driver keeps the rest."""
INLINE_ECC = 15 / 16 * RESERVED
"""Cards with GDDR memory keep what corrects its errors in it, unless that is switched off."""
GIB, GB = 2.0**30, 1e9
GIGABIT = 1e9 / 8
SLOWEST, FASTEST = 1.0, 1e30
"""In a second: what lies outside was measured nowhere, and would spoil the arithmetic."""


USUAL_PROCESSORS = 128
PROCESSORS = {
    "V100": 80, "T4": 40, "A100": 108, "A800": 108, "A40": 84, "L40": 142, "H100-PCIe": 114,
    "H100": 132, "H200": 132, "H800": 132, "GH200": 132, "H20": 78, "B200": 148, "GB200": 148,
    "B300": 148, "GB300": 148, "MI250": 104, "MI300A": 228, "MI300X": 304, "MI308X": 80,
    "MI325X": 304, "MI350X": 256, "MI355X": 256, "RTX-4090": 128, "RTX-5090": 170,
}  # fmt: skip
"""By the beginning of a device's name; from data sheets and whitepapers, from memory."""
POWER_W = {
    "V100": 300, "A100-PCIe": 300, "A100": 400, "A800": 400, "H100-PCIe": 350, "H100": 700,
    "H200": 700, "H800": 700, "GH200": 700, "H20": 400, "B200": 1000, "GB200": 1200, "B300": 1400,
    "GB300": 1400, "MI250": 560, "MI300X": 750, "MI325X": 1000, "MI350X": 1000, "MI355X": 1400,
}  # fmt: skip
"""That a device may draw, likewise."""
HOST_GB_PER_S = {
    "": 25, "V100": 12, "T4": 12, "H100": 50, "H200": 50, "H800": 50, "H20": 50, "B200": 50,
    "B300": 50, "MI3": 50, "RTX-5090": 50, "GH200": 350, "GB200": 350, "GB300": 350,
}  # fmt: skip
"""To the host's memory, in one direction, by the beginning of a device's name: about 80 % of 16
lanes of PCIe 3.0, 4.0 and 5.0, and of NVLink to a Grace."""
POWER_EXPONENT = 0.5
"""Of power, that the rate of large matmuls grows with where power limits it: chosen by hand.
Voltage falls with the clock, so that half of the power is more than half of the clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLink:
    """What an exchange among some ranks was measured to take."""

    step_s: float
    """Of one of the steps that it has in a ring, however little is sent."""
    bytes_per_s: float
    """That each rank's link carries."""


def count_ring_steps(operation: Operation, ranks: int) -> int:
    """
    >>> [count_ring_steps(name, 4) for name in ("all-reduce", "all-gather", "send-receive")]
    [6, 3, 1]
    """
    return 1 if operation == "send-receive" else BUS_PASSES[operation] * (ranks - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    name: str
    """Of one device."""
    peak_flops_per_s: Mapping[str, float]
    """By dtype: nominal, or the best that was measured."""
    sustained: Mapping[str, float] = field(default_factory=dict)
    """What large matmuls reach of it, by dtype; 1 where the peak was measured."""
    attention_share: float = 1.0
    """What attention kernels can have of the peak that are not written for its instructions."""
    power_share: float = 1.0
    """What a limit of its power leaves of all rates."""
    bandwidth_bytes_per_s: float
    memory_bytes: float | None
    """That a process can have; None: not known."""
    link_bytes_per_s: float | None
    """To its neighbours in the same machine, in one direction; None: not known."""
    bridge_bytes_per_s: float | None = None
    """To the one that a bridge joins it to; None: there is no bridge."""
    network_bytes_per_s: float | None
    """To other machines, in one direction."""
    measured_links: Mapping[int, Mapping[Operation, MeasuredLink]] = field(default_factory=dict)
    """By the number of ranks that were there; empty where nothing was measured."""
    cores: int | None = None
    """Of a CPU, that all its ranks share."""
    ranks_per_core: float = 1.0
    """More than 1 where ranks that wait leave their cores to others."""
    host_bytes_per_s: float = 25e9
    """To the memory of its host, in one direction: what PCIe 4.0 x16 reaches, if nothing else is
    known."""
    per_node: int = USUAL_NODE.devices
    """Devices that their own links join."""
    processors: int = USUAL_PROCESSORS
    """Streaming multiprocessors or compute units; 0 of a CPU, whose matmuls have no waves."""
    device: DeviceKind
    is_measured: bool = False
    sources: tuple[str, ...] = ()

    def find_link(self, ranks: int) -> float | None:
        """Bytes/s among so many of its kind in one machine, in one direction."""
        return (self.bridge_bytes_per_s if ranks == 2 else None) or self.link_bytes_per_s

    def find_exchange(
        self, operation: Operation, members: int, ranks: int
    ) -> tuple[float, float | None]:
        """Among some of a job's ranks: seconds for nothing, and bytes/s of a link. All of a node's
        ranks send at once, so that what was measured with about as many counts."""
        if members < 2 or not self.measured_links:
            return 0.0, self.find_link(ranks)
        nearest = min(self.measured_links, key=lambda number: abs(number - ranks))
        found = self.measured_links[nearest].get(operation)
        if found is None:
            return 0.0, self.find_link(ranks)
        return found.step_s * count_ring_steps(operation, members), found.bytes_per_s

    def find_rate(self, dtype: str) -> float | None:
        """FLOP/s of large matmuls; None where the device has no such arithmetic."""
        peak = self.peak_flops_per_s.get(dtype)
        return None if peak is None else peak * self.sustained.get(dtype, UNKNOWN_SHARE)

    def require_rate(self, dtype: str) -> float:
        rate = self.find_rate(dtype)
        if rate is None:
            known = [n for n, a in PRECISIONS.items() if a.matmul_dtype in self.peak_flops_per_s]
            raise UsageError(
                f"{self.name} has no known peak in {dtype}; choose one of the precisions "
                f"{', '.join(known)}"
            )
        return rate


POWER = re.compile(r"[\s_-]*(\d{3,4})\s*w(?:att)?s?$", re.IGNORECASE)


def split_power(device: str) -> tuple[str, float | None]:
    """The name of a device, and the power that it is limited to.

    >>> split_power("h100_500w"), split_power("h100_80gb")
    (('h100', 500.0), ('h100_80gb', None))
    """
    found = POWER.search(device)
    return (device[: found.start()], float(found[1])) if found else (device, None)


def find_by_beginning(table: Mapping[str, int], name: str) -> int:
    """The entry whose key is the longest beginning of a device's name; 0 where there is none."""
    fitting = [key for key in table if name.startswith(key)]
    return table[max(fitting, key=len)] if fitting else 0


def limit_power(machine: Machine, power_w: float) -> Machine:
    """The same where its devices may not draw more than that.

    >>> limited = limit_power(find_machine("H100-SXM")[1], 500)
    >>> round(limited.find_rate("bfloat16") / 1e12)
    609
    """
    usual = find_by_beginning(POWER_W, machine.name)
    if not usual or power_w >= usual:
        return machine
    share = (power_w / usual) ** POWER_EXPONENT
    return replace(
        machine,
        sustained={
            dtype: share * machine.sustained.get(dtype, UNKNOWN_SHARE)
            for dtype in machine.peak_flops_per_s
        },
        power_share=share,
    )


def find_machine(hardware: str, network_gbit: float | None = None) -> tuple[int, Machine]:
    """How many devices, and what one of them can do. Of devices that share a name, the first: SXM
    before PCIe, as most jobs of several devices have them. An H100-SXM-500W may draw no more.

    >>> count, machine = find_machine("8xA100-80GB")
    >>> count, machine.name, round(machine.find_rate("bfloat16") / 1e12)
    (8, 'A100-SXM-80GB', 257)
    >>> find_machine("h100_80gb")[1].name
    'H100-SXM'
    """
    count, text = split_hardware(hardware)
    name, power_w = split_power(text)
    candidates = find_devices(name)
    if not candidates:
        raise UsageError(describe_unknown(name))
    machine = describe_device(candidates[0], network_gbit)
    return count, machine if power_w is None else limit_power(machine, power_w)


def describe_device(device: Device, network_gbit: float | None = None) -> Machine:
    """From its data sheet, and what others have measured."""
    if device.bandwidth_gb_per_s is None:
        raise UsageError(
            f"the memory bandwidth of {device.name} is not known here, and nothing can be predicted"
            " without it; choose another that `flopwatch peaks --list` has"
        )
    link, practice = device.link, device.practice
    sustained = {
        dtype: figure
        for dtype in device.rates.dense
        if (figure := practice.float8_share if dtype == "float8" else practice.matmul_share)
    }
    attention = practice.attention_share
    sources = [
        *dict.fromkeys(peak.source for peak in device.rates.dense.values()),
        device.bandwidth_gb_per_s.source,
        *(figure.source for figure in sustained.values()),
        *([attention.source] if attention else []),
    ]
    return Machine(
        name=device.name,
        peak_flops_per_s={d: peak.flops_per_s for d, peak in device.rates.dense.items()},
        sustained={dtype: figure.value for dtype, figure in sustained.items()},
        attention_share=attention.value if attention else 1.0,
        bandwidth_bytes_per_s=device.bandwidth_gb_per_s.value * GB,
        memory_bytes=_find_memory(device),
        link_bytes_per_s=link.gb_per_s / 2 * GB if link else None,
        bridge_bytes_per_s=device.bridge.gb_per_s / 2 * GB if device.bridge else None,
        network_bytes_per_s=(network_gbit or practice.node.network_gbit) * GIGABIT,
        host_bytes_per_s=find_by_beginning(HOST_GB_PER_S, device.name) * GB,
        per_node=practice.node.devices,
        processors=find_by_beginning(PROCESSORS, device.name) or USUAL_PROCESSORS,
        device=device.kind,
        sources=tuple(dict.fromkeys(sources)),
    )


def describe_measured(peaks: Peaks, memory_bytes: float | None) -> Machine | None:
    """A machine as `flopwatch peaks` has measured it; None where that lacks what is needed. On a
    CPU ranks share all of it, and `memory_bytes` is what it has; an accelerator has what its data
    sheet says, and attention kernels have their share of its peak."""
    # Operators of a model read about as much as they write, as a copy does.
    stream = peaks.find_bandwidth("copy") or peaks.find_bandwidth("triad")
    rates = {curve.dtype: peak for curve in peaks.matmuls if (peak := peaks.find_peak(curve.dtype))}
    if stream is None or not rates:
        return None
    if not all(map(is_rate, (stream.bytes_per_s, *(p.flops_per_s for p in rates.values())))):
        return None
    exchange = peaks.find_exchange("all-gather")
    reach = exchange.bus_bytes_per_s if exchange else None
    sheet = find_device(peaks.setup.gpu_name or "")
    attention = sheet.practice.attention_share if sheet else None
    if not is_host(peaks.setup.device):
        memory_bytes = _find_memory(sheet) if sheet else None
    return Machine(
        name=peaks.setup.gpu_name or peaks.setup.cpu_model or "this machine",
        peak_flops_per_s={dtype: peak.flops_per_s for dtype, peak in rates.items()},
        sustained=dict.fromkeys(rates, 1.0),
        attention_share=attention.value if attention else 1.0,
        bandwidth_bytes_per_s=stream.bytes_per_s,
        memory_bytes=memory_bytes,
        link_bytes_per_s=reach,
        network_bytes_per_s=reach,
        measured_links=_read_links(peaks),
        cores=peaks.setup.threads if is_host(peaks.setup.device) else None,
        processors=0
        if is_host(peaks.setup.device)
        else find_by_beginning(PROCESSORS, sheet.name if sheet else "") or USUAL_PROCESSORS,
        device=peaks.setup.device,
        is_measured=True,
        sources=tuple(dict.fromkeys(peak.source for peak in rates.values())),
    )


def _read_links(peaks: Peaks) -> dict[int, dict[Operation, MeasuredLink]]:
    links: dict[int, dict[Operation, MeasuredLink]] = {}
    for ranks in peaks.list_group_sizes():
        for operation in BUS_PASSES:
            best = peaks.find_exchange(operation, ranks)
            least = peaks.find_latency(operation, ranks)
            if best is None or least is None or not is_rate(best.bus_bytes_per_s):
                continue
            # Less its bytes: the shortest that was measured has some.
            least_s = least.time_ns / 1e9 * (1 - least.size_bytes / best.size_bytes)
            step_s = least_s / count_ring_steps(operation, ranks)
            links.setdefault(ranks, {})[operation] = MeasuredLink(
                step_s=max(step_s, 0.0), bytes_per_s=best.bus_bytes_per_s
            )
    return links


def _find_memory(device: Device) -> float | None:
    """That a process can have."""
    share = INLINE_ECC if device.practice.has_inline_ecc else RESERVED
    return device.memory_gb.value * GIB * share if device.memory_gb else None


def is_rate(per_second: float) -> bool:
    return SLOWEST <= per_second <= FASTEST


def share_among(machine: Machine, ranks: int) -> Machine:
    """What one rank has of a machine whose ranks share its cores and its memory's bandwidth."""
    memory_bytes = machine.memory_bytes
    return replace(
        machine,
        peak_flops_per_s={d: rate / ranks for d, rate in machine.peak_flops_per_s.items()},
        bandwidth_bytes_per_s=machine.bandwidth_bytes_per_s / ranks,
        memory_bytes=None if memory_bytes is None else memory_bytes / ranks,
        ranks_per_core=max(1.0, ranks / machine.cores) if machine.cores else 1.0,
    )
