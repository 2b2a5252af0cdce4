"""What a device can do, as the cost model needs it: from data sheets, or as measured here.

Of a data sheet's peak, large matmuls of ordinary numbers reach a share that the maker does not
print, and between nodes, data sheets say nothing at all: an entry of the device table has both as
its `practice`; `--network` says otherwise.
"""

from __future__ import annotations

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
from flopwatch.devices.measured_peaks import Peaks
from flopwatch.errors import UsageError
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    name: str
    """Of one device."""
    peak_flops_per_s: Mapping[str, float]
    """By dtype: nominal, or the best that was measured."""
    sustained: Mapping[str, float] = field(default_factory=dict)
    """What large matmuls reach of it, by dtype; 1 where the peak was measured."""
    attention_share: float = 1.0
    bandwidth_bytes_per_s: float
    memory_bytes: float | None
    """That a process can have; None: not known."""
    link_bytes_per_s: float | None
    """To its neighbours in the same machine, in one direction; None: not known."""
    bridge_bytes_per_s: float | None = None
    """To the one that a bridge joins it to; None: there is no bridge."""
    network_bytes_per_s: float | None
    """To other machines, in one direction."""
    per_node: int = USUAL_NODE.devices
    """Devices that their own links join."""
    device: DeviceKind
    is_measured: bool = False
    sources: tuple[str, ...] = ()

    def find_link(self, ranks: int) -> float | None:
        """Bytes/s among so many of its kind in one machine, in one direction."""
        return (self.bridge_bytes_per_s if ranks == 2 else None) or self.link_bytes_per_s

    def find_rate(self, dtype: str) -> float | None:
        """FLOP/s of large matmuls; None where the device has no such arithmetic."""
        peak = self.peak_flops_per_s.get(dtype)
        return None if peak is None else peak * self.sustained.get(dtype, UNKNOWN_SHARE)


def find_machine(hardware: str, network_gbit: float | None = None) -> tuple[int, Machine]:
    """How many devices, and what one of them can do. Of devices that share a name, the first: SXM
    before PCIe, as most jobs of several devices have them.

    >>> count, machine = find_machine("8xA100-80GB")
    >>> count, machine.name, round(machine.find_rate("bfloat16") / 1e12)
    (8, 'A100-SXM-80GB', 257)
    >>> find_machine("h100_80gb")[1].name
    'H100-SXM'
    """
    count, name = split_hardware(hardware)
    candidates = find_devices(name)
    if not candidates:
        raise UsageError(describe_unknown(name))
    return count, describe_device(candidates[0], network_gbit)


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
        per_node=practice.node.devices,
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
        device=peaks.setup.device,
        is_measured=True,
        sources=tuple(dict.fromkeys(peak.source for peak in rates.values())),
    )


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
    )
