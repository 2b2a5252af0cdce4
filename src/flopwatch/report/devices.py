"""The table of devices, and all that is known of one."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.account.devices import DTYPES, Device, Figure, Peak
from flopwatch.report.columns import Column, Kind
from flopwatch.report.tables import Sheet, lay_out

EXPLANATION = (
    "10^12 operations in a second, dense, sums in float32; GB as makers count; links with both "
    "directions together; `flopwatch devices NAME` has the sources"
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
    return Sheet(
        title="devices",
        conditions=EXPLANATION,
        remarks=[],
        **lay_out(columns, [devices]),
    )


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
