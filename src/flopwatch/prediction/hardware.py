"""What a device can do, as the cost model needs it: from data sheets, or as measured here.

Of a data sheet's peak, large matmuls of ordinary numbers reach a share that the maker does not
print: power runs out before arithmetic does. SUSTAINED has what others have measured. Attention
kernels that are not written for the newest instructions reach less still: ATTENTION.

Between machines, data sheets say nothing at all. NETWORK has what is usually built around a device;
`--network` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flopwatch.devices.device_names import (
    describe_unknown,
    find_device,
    find_devices,
    split_hardware,
)
from flopwatch.devices.device_table import Device, Figure
from flopwatch.devices.measured_peaks import Peaks
from flopwatch.errors import UsageError
from flopwatch.settings import Device as DeviceKind

PER_NODE = 8
"""Devices of one machine, which their own links join."""
UNKNOWN_SHARE = 0.75
"""What large matmuls reach of the peak, where no measurement is known."""
RESERVED = 0.985
"""Of a GPU's memory, what a process can have: the driver keeps the rest."""
WITH_INLINE_ECC = ("T4", "A10", "A10G", "A40", "L4", "L40", "L40S")
INLINE_ECC = 15 / 16 * RESERVED
"""Cards with GDDR memory keep what corrects its errors in it, unless that is switched off."""
GIB, GB = 2.0**30, 1e9
Found = TypeVar("Found")
GIGABIT = 1e9 / 8
SLOWEST, FASTEST = 1.0, 1e30
"""In a second: what lies outside was measured nowhere, and would spoil the arithmetic."""

LARGE_A100 = "8192-wide bfloat16 matmuls of normal numbers at 257 TFLOP/s (thonking.ai, 2024)"
LARGE_H100 = "large cuBLAS matmuls on H100 at about 720 TFLOP/s in bfloat16, 1280 in float8"
LARGE_MI300X = "large matmuls on MI300X at about 620 TFLOP/s in bfloat16, 990 in float8"
LARGE_B200 = "8192-wide bfloat16 matmuls of cuBLAS at 1610 TFLOP/s (pyptx.dev, 2025)"
FROM_MEMORY = "; of SemiAnalysis, 2024, from memory"

SUSTAINED: Mapping[str, Figure] = {
    **dict.fromkeys(("A100", "A800"), Figure(257 / 312, LARGE_A100)),
    **dict.fromkeys(
        ("H100-SXM", "H200-SXM", "H800-SXM", "GH200"),
        Figure(720 / 989.4, f"{LARGE_H100}{FROM_MEMORY}"),
    ),
    **dict.fromkeys(("MI300X", "MI325X"), Figure(620 / 1307.4, f"{LARGE_MI300X}{FROM_MEMORY}")),
    **dict.fromkeys(("B200", "GB200", "B300", "GB300"), Figure(1610 / 2250, LARGE_B200)),
}
"""Of the nominal peak in 16 bits, by the beginning of a device's name."""
SUSTAINED_FLOAT8: Mapping[str, Figure] = {
    **dict.fromkeys(
        ("H100-SXM", "H200-SXM", "H800-SXM", "GH200"),
        Figure(1280 / 1978.9, f"{LARGE_H100}{FROM_MEMORY}"),
    ),
    **dict.fromkeys(("MI300X", "MI325X"), Figure(990 / 2614.9, f"{LARGE_MI300X}{FROM_MEMORY}")),
}

SHARED_MEMORY = (
    "FlashAttention-2 is 1.6 times as fast on H100 as on A100 (arXiv 2307.08691), where the peak "
    "is 3.2 times as high: it does not use the instructions that the peak needs"
)
ATTENTION: Mapping[str, Figure] = {
    name: Figure(0.5, SHARED_MEMORY) for name in ("H100", "H200", "H800", "GH200", "B", "GB")
}
"""What attention kernels written for older instructions can have of the peak."""

NETWORK_GBIT = {
    **dict.fromkeys(("A100", "A800", "MI250"), 200.0),
    **dict.fromkeys(("H100", "H200", "H800", "GH200", "H20", "MI3", "B", "GB"), 400.0),
    "V100": 50.0,
}
"""Of each device, between machines: as many adapters as devices are usual."""
USUAL_GBIT = 100.0


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
    per_node: int = PER_NODE
    device: DeviceKind = "cuda"
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
    link = device.link
    halves, eighths = _look_up(SUSTAINED, device.name), _look_up(SUSTAINED_FLOAT8, device.name)
    sustained = {
        dtype: figure
        for dtype in device.rates.dense
        if (figure := eighths if dtype == "float8" else halves)
    }
    attention = _look_up(ATTENTION, device.name)
    gbit = network_gbit or _look_up(NETWORK_GBIT, device.name) or USUAL_GBIT
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
        network_bytes_per_s=gbit * GIGABIT,
        sources=tuple(dict.fromkeys(sources)),
    )


def describe_measured(peaks: Peaks, memory_bytes: float | None) -> Machine | None:
    """A machine as `flopwatch peaks` has measured it; None where that lacks what is needed. On a
    CPU ranks share all of it, and `memory_bytes` is what it has; a GPU has what its data sheet
    says, and attention kernels have their share of its peak."""
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
    attention = _look_up(ATTENTION, sheet.name) if sheet else None
    if peaks.setup.device == "cuda":
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
    share = INLINE_ECC if device.name in WITH_INLINE_ECC else RESERVED
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


def _look_up(table: Mapping[str, Found], name: str) -> Found | None:
    """By the longest beginning of a name that the table has."""
    matches = [beginning for beginning in table if name.startswith(beginning)]
    return table[max(matches, key=len)] if matches else None
