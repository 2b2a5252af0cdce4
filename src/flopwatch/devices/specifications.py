"""A device as its maker specifies it: every figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flopwatch.jobs.precision import Peak

__all__ = ["DTYPES", "SPELLINGS", "Device", "Figure", "Link", "Peak", "Rates"]

DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "float4", "int8")
"""What peaks are given for. tf32 is float32 whose matmuls are rounded to 10 bits of mantissa."""

SPELLINGS = {
    "float8_e4m3fn": "float8",
    "float8_e4m3fnuz": "float8",
    "float8_e5m2": "float8",
    "float8_e5m2fnuz": "float8",
    "float4_e2m1fn_x2": "float4",
}
"""What torch calls the narrow ones, which are equally fast."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Any other number of a data sheet."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Link:
    """What joins a device to its likes, or where nothing does, to its host."""

    kind: str
    gb_per_s: float
    """Of all its lanes, both directions together, as makers count: one direction has half of it."""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Peaks by dtype."""

    dense: Mapping[str, Peak]
    sparse: Mapping[str, Peak] = field(default_factory=dict)
    """With two of every four weights zero, which no ordinary training has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    name: str
    drivers: tuple[str, ...] = ()
    """The names that drivers report, in full but for a leading ``NVIDIA``, which not all write."""
    shorts: tuple[str, ...] = ()
    """What people write besides `name`; several devices may share one."""
    rates: Rates
    memory_gb: Figure | None
    """As the maker counts: whether in units of 10^9 or 2^30 bytes is not said. None, like the next
    two, where it is not known."""
    bandwidth_gb_per_s: Figure | None
    """Of its memory."""
    link: Link | None
    bridge: Link | None = None
    """What joins pairs of cards besides; more of them talk through their link."""

    def find_peak(self, dtype: str) -> Peak | None:
        """Dense; None where the device has no such arithmetic, or where it is not known."""
        return self.rates.dense.get(SPELLINGS.get(dtype, dtype))
