"""The table of devices, all that is known of one, and the measured peaks of a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec

from flopwatch.devices.best_times import CLOSE, ENOUGH_REPEATS
from flopwatch.devices.device_names import find_device
from flopwatch.devices.device_specs import DTYPES, Device, Figure, Practice
from flopwatch.devices.matmul_rates import EMULATED
from flopwatch.devices.measured_peaks import (
    BEYOND_CACHES,
    BUS_PASSES,
    Curve,
    Exchange,
    Kernel,
    Operation,
    Peaks,
    Stream,
)
from flopwatch.jobs.precision import Peak
from flopwatch.output.tables import Column, Kind, Sheet, Unit, number
from flopwatch.output.units import format_bytes, format_rate, format_ratio, format_time, plural

EXPLANATION = (
    "10^12 operations in a second, dense, sums in float32; GB as makers count; links with both "
    "directions together; `flopwatch peaks DEVICE` has the sources"
)

LESS_ASKED_FOR: dict[str, Kind] = {
    "float64": "detail",
    "float4": "detail",
    "int8": "detail",
    "tf32": "rate",
    "float16": "rate",
}
"""Columns that a narrow terminal can do without."""


def make_sheet(devices: Sequence[Device]) -> Sheet:
    """A line a device."""
    columns: list[Column[Device]] = [
        Column("device", lambda device: device.name, "word"),
        *map(_peak_column, DTYPES),
        Column("GB", lambda device: _format(device.memory_gb)),
        Column("GB/s", lambda device: _format(device.bandwidth_gb_per_s)),
        Column("link", lambda device: device.link.kind if device.link else "", "fact"),
        Column("link GB/s", lambda d: f"{d.link.gb_per_s:g}" if d.link else "", "fact"),
    ]
    return Sheet(title="devices", columns=columns, items=[devices], conditions=EXPLANATION)


def list_figures(device: Device) -> list[tuple[str, str, str]]:
    """Of one device: what, how much, and from where."""
    links = [link for link in (device.link, device.bridge) if link]
    others = [
        ("memory", device.memory_gb, "GB"),
        ("memory bandwidth", device.bandwidth_gb_per_s, "GB/s"),
        *((f"{link.kind}, both directions", Figure(link.gb_per_s, link.source), "GB/s")
          for link in links),
    ]  # fmt: skip
    return [
        *(_describe_peak(dtype, peak) for dtype, peak in device.rates.dense.items()),
        *(_describe_peak(f"{d}, sparse", peak) for d, peak in device.rates.sparse.items()),
        *((what, f"{f.value:g} {unit}", f.source) for what, f, unit in others if f is not None),
        *_list_practice(device.practice),
    ]


def _list_practice(practice: Practice) -> list[tuple[str, str, str]]:
    node = practice.node
    shares = {
        "large matmuls": practice.matmul_share,
        "large float8 matmuls": practice.float8_share,
        "attention kernels": practice.attention_share,
    }
    return [
        ("devices joined by links", f"{node.devices}", node.source),
        ("network, one direction", f"{node.network_gbit:g} Gbit/s", node.source),
        *((what, f"{100 * f.value:.0f} % of peak", f.source) for what, f in shares.items() if f),
    ]


def list_names(device: Device) -> list[str]:
    """Sentences about what it is called."""
    drivers = f"Drivers call it {' or '.join(device.drivers)}." if device.drivers else None
    shorts = f"Also written {', '.join(device.shorts)}." if device.shorts else None
    return [sentence for sentence in (drivers, shorts) if sentence]


def _peak_column(dtype: str) -> Column[Device]:
    def cell(device: Device) -> str:
        peak = device.find_peak(dtype)
        return "" if peak is None else f"{peak.flops_per_s / 1e12:g}"

    return Column(dtype, cell, LESS_ASKED_FOR.get(dtype, "number"))


def _describe_peak(what: str, peak: Peak) -> tuple[str, str, str]:
    unit = "Top/s" if what.startswith("int") else "TFLOP/s"
    return what, f"{peak.flops_per_s / 1e12:g} {unit}", peak.source


def _format(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.value:g}"


KERNELS: dict[Kernel, str] = {
    "read": "sum of one array",
    "copy": "one array into another",
    "triad": "a + 3 b into a third",
}
BUSY = 0.05
"""A larger share of the cores for others is worth a remark."""
COUNTED = (
    "Counted is every array once, read or written. Where a CPU first fetches what it is about to "
    "overwrite, it moves half as much again in a copy, and a third more in a triad."
)


def answer_peaks(peaks: Peaks) -> list[str]:
    """The best of everything, in a sentence each."""
    rates = [
        f"{format_rate(curve.best.flops_per_s, 'FLOP/s')} in {curve.dtype}{_add_sustained(curve)}"
        for curve in peaks.matmuls
        if curve.best is not None
    ]
    streams = {kernel: peaks.find_bandwidth(kernel) for kernel in KERNELS}
    passes = [
        f"{kernel} {format_rate(best.bytes_per_s, 'B/s')}"
        for kernel, best in streams.items()
        if best is not None
    ]
    found = {"Matmuls reach": rates, "Memory, beyond the caches:": passes}
    for ranks in peaks.list_group_sizes():
        found[f"Among {ranks} ranks:"] = [
            _describe_exchange(peaks, operation, ranks)
            for operation in BUS_PASSES
            if peaks.find_exchange(operation, ranks)
        ]
    return [f"{what} {', '.join(values)}." for what, values in found.items() if values]


def _describe_exchange(peaks: Peaks, operation: Operation, ranks: int) -> str:
    best, least = peaks.find_exchange(operation, ranks), peaks.find_latency(operation, ranks)
    assert best is not None
    assert least is not None
    return (
        f"{operation} {format_rate(best.bus_bytes_per_s, 'B/s')}, at least "
        f"{format_time(least.time_ns)}"
    )


def _add_sustained(curve: Curve) -> str:
    rate = curve.sustained_flops_per_s
    return "" if rate is None else f" (sustained {format_rate(rate, 'FLOP/s')})"


def list_best_sheets(peaks: Peaks) -> list[Sheet]:
    """The usual ones: what was reached at which size is in `list_sheets`."""
    nominal = find_device(peaks.setup.gpu_name) if peaks.setup.gpu_name else None
    return [
        replace(_make_best_sheet(peaks, nominal), remarks=[]),  # the answer has them
        _make_memory_sheet(peaks, nominal),
    ]


def list_sheets(peaks: Peaks) -> list[Sheet]:
    nominal = find_device(peaks.setup.gpu_name) if peaks.setup.gpu_name else None
    matmuls = {
        curve.dtype: {point.shape: point.flops_per_s for point in curve.points}
        for curve in peaks.matmuls
    }
    streams: dict[str, dict[int, float]] = {kernel: {} for kernel in KERNELS}
    for stream in peaks.streams:
        streams[stream.kernel][stream.size_bytes] = stream.bytes_per_s
    return [
        _make_best_sheet(peaks, nominal),
        Sheet(
            title="matmuls, by size",
            conditions="rows x inner x columns; a shape that would take too long is left out",
            **_lay_out_curves(Column("shape", str, "word"), "FLOP/s", matmuls),
        ),
        _make_memory_sheet(peaks, nominal),
        Sheet(
            title="memory, by size",
            conditions="of all arrays of a pass together; what fits into a cache shows its speed",
            **_lay_out_curves(Column("size", format_bytes, "word"), "B/s", streams),
        ),
        *(_make_exchange_sheet(peaks, ranks) for ranks in peaks.list_group_sizes()),
    ]


def _lay_out_curves(
    label: Column[Any], unit: Unit, curves: Mapping[str, Mapping[Any, float]]
) -> dict[str, Any]:
    """Columns and items of a sheet with a line for each size, and what each curve reached there."""

    def curve_column(name: str) -> Column[Any]:
        return number(name, unit, curves[name].get)

    # The curve that went furthest has all sizes of the others.
    longest_first = sorted(curves.values(), key=len, reverse=True)
    sizes = dict.fromkeys(size for curve in longest_first for size in curve)
    return {"columns": [label, *map(curve_column, curves)], "items": [list(sizes)]}


def as_dict(peaks: Peaks) -> dict[str, Any]:
    """For ``--json``: what is stored, and the best of it."""
    curves = {curve.dtype: curve.best for curve in peaks.matmuls}
    streams = {kernel: peaks.find_bandwidth(kernel) for kernel in KERNELS}
    exchanges = {operation: peaks.find_exchange(operation) for operation in BUS_PASSES}
    return {
        **msgspec.to_builtins(peaks),
        "best": {
            "flops_per_s": {d: best and best.flops_per_s for d, best in curves.items()},
            "sustained_flops_per_s": {c.dtype: c.sustained_flops_per_s for c in peaks.matmuls},
            "memory_bytes_per_s": {k: best and best.bytes_per_s for k, best in streams.items()},
            "bus_bytes_per_s": {o: best and best.bus_bytes_per_s for o, best in exchanges.items()},
        },
    }


def _describe(peaks: Peaks) -> str:
    setup = peaks.setup
    where = setup.gpu_name or setup.cpu_model or "unknown CPU"
    threads = [] if setup.threads is None else [plural(setup.threads, "thread")]
    quick = ["quick"] if peaks.quick else []
    return ", ".join([setup.device, *threads, where, f"torch {setup.torch_version}", *quick])


def _make_best_sheet(peaks: Peaks, nominal: Device | None) -> Sheet:
    plain = peaks.find_peak("float32")

    def relate(curve: Curve) -> str:
        if curve.best is None or plain is None:
            return ""
        return format_ratio(curve.best.flops_per_s / plain.flops_per_s)

    def count(curve: Curve) -> str:
        return f"{curve.best.repeats} of {curve.best.blocks} blocks" if curve.best else ""

    columns: list[Column[Curve]] = [
        Column("dtype", lambda curve: curve.dtype, "word"),
        number("best", "FLOP/s", lambda curve: curve.best.flops_per_s if curve.best else None),
        *(
            [number("sustained", "FLOP/s", lambda curve: curve.sustained_flops_per_s)]
            if any(curve.sustained_flops_per_s is not None for curve in peaks.matmuls)
            else []
        ),
        Column("at", lambda curve: curve.best.shape if curve.best else ""),
        Column("to float32", relate),
        Column(f"within {CLOSE:.0%}".replace("%", " %"), count),
        *([] if nominal is None else _list_nominal_columns(nominal)),
    ]
    return Sheet(
        title="matmuls",
        columns=columns,
        items=[peaks.matmuls],
        conditions=_describe(peaks),
        remarks=list_matmul_remarks(peaks),
    )


def _list_nominal_columns(device: Device) -> list[Column[Curve]]:
    def find(curve: Curve) -> float | None:
        peak = device.find_peak(curve.dtype)
        return peak.flops_per_s if peak else None

    def share(curve: Curve) -> str:
        """Of the rate that utilisation is computed by."""
        flops_per_s = find(curve)
        return f"{curve.reach / flops_per_s:.0%}" if curve.reach and flops_per_s else ""

    return [number("nominal", "FLOP/s", find), Column("of it", share)]


def list_matmul_remarks(peaks: Peaks) -> list[str]:
    """What could not be measured, is emulated, was seen only once, or was disturbed."""
    plain, other_work = peaks.find_peak("float32"), peaks.background_share
    bests = {curve.dtype: curve.best for curve in peaks.matmuls}
    remarks = [f"{c.dtype}: none ({c.reason})" for c in peaks.matmuls if c.best is None]
    for dtype, best in bests.items():
        times = plain.flops_per_s / best.flops_per_s if plain and best else 0.0
        if times >= EMULATED:
            remarks.append(f"{dtype} is emulated here: float32 is {times:.0f} times as fast")
    lone = [dtype for dtype, best in bests.items() if best and best.repeats < ENOUGH_REPEATS]
    if lone:
        remarks.append(
            f"seen once and not again: the best of {', '.join(lone)}; measure in a quieter hour"
        )
    if other_work is not None and other_work >= BUSY:
        remarks.append(
            f"other work took {100 * other_work:.0f} % of all cores' time: the peaks may be "
            "higher, those of memory above all"
        )
    return remarks


def _make_memory_sheet(peaks: Peaks, nominal: Device | None) -> Sheet:
    figure = nominal.bandwidth_gb_per_s if nominal else None
    found = [(kernel, peaks.find_bandwidth(kernel)) for kernel in KERNELS]
    columns: list[Column[tuple[Kernel, Stream | None]]] = [
        Column("pass", lambda row: row[0], "word"),
        Column("", lambda row: KERNELS[row[0]], "word"),
        number("best", "B/s", lambda row: row[1].bytes_per_s if row[1] else None),
        number("over", "bytes", lambda row: row[1].size_bytes if row[1] else None),
        *([Column("nominal", lambda row: f"{figure.value:g} GB/s")] if figure else []),
    ]
    is_short = any(best is None for _, best in found)
    return Sheet(
        title="memory",
        columns=columns,
        items=[found],
        conditions=f"beyond {BEYOND_CACHES} times all last-level caches, which have "
        f"{format_bytes(peaks.cache_bytes)}",
        remarks=[
            *(["there is too little free memory for such arrays"] if is_short else []),
            COUNTED,
        ],
    )


def _make_exchange_sheet(peaks: Peaks, ranks: int) -> Sheet:
    exchanges = [exchange for exchange in peaks.exchanges if exchange.ranks == ranks]
    first = exchanges[0]
    columns: list[Column[Exchange]] = [
        Column("collective", lambda exchange: exchange.operation, "word"),
        number("size", "bytes", lambda exchange: exchange.size_bytes),
        number("time", "ns", lambda exchange: exchange.time_ns),
        number("algorithm", "B/s", lambda exchange: exchange.algorithm_bytes_per_s),
        number("bus", "B/s", lambda exchange: exchange.bus_bytes_per_s),
    ]
    missing = [name for name in BUS_PASSES if peaks.find_exchange(name, ranks) is None]
    return Sheet(
        title=f"collectives over {ranks} ranks",
        columns=columns,
        items=[list(group) for _, group in groupby(exchanges, lambda e: e.operation)],
        conditions=f"{first.backend}, float32; the size is that of the whole array, which an "
        "all-gather gives and the others take; send-receive: each rank to the next, all at once",
        remarks=[
            "algorithm: size / time. bus: that times 2 (n - 1) / n for an all-reduce, 1 for "
            "send-receive and (n - 1) / n for the others, n ranks: what each link must carry, as "
            "nccl-tests count.",
            *(f"{name}: {first.backend} does not have it" for name in missing),
        ],
    )
