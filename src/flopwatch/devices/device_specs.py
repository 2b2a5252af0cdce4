"""What is known of a device that people train on: a data sheet's figures, each with its source, and
what no data sheet says. `device_table` has the devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flopwatch.jobs.precision import Peak

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


@dataclass(frozen=True, slots=True)
class Node:
    """What is usually built around a device: no data sheet of it says."""

    devices: int
    """That their links join, in one machine or, as in a rack of NVLink, in several."""
    network_gbit: float
    """Of each device, to those of other nodes, in one direction."""
    source: str


USUAL_NODE = Node(8, 100.0, "assumed where nothing better is known")


@dataclass(frozen=True, kw_only=True, slots=True)
class Practice:
    """What no data sheet says: the node, and what others have measured."""

    node: Node = USUAL_NODE
    matmul_share: Figure | None = None
    """What large matmuls of ordinary numbers reach of the peak, in all dtypes but float8: power
    runs out before arithmetic does. None: not known."""
    float8_share: Figure | None = None
    attention_share: Figure | None = None
    """What attention kernels can have of the peak, where they are not written for its
    instructions."""
    has_inline_ecc: bool = False
    """Whether its memory also keeps what corrects its errors, unless that is switched off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    name: str
    drivers: tuple[str, ...] = ()
    """The names that drivers report, in full but for a leading ``NVIDIA``, which not all write."""
    shorts: tuple[str, ...] = ()
    """What people also write for `name`; several devices may share one."""
    rates: Rates
    memory_gb: Figure | None
    """As the maker counts: whether in units of 10^9 or 2^30 bytes is not said. None, like the next
    two, where it is not known."""
    bandwidth_gb_per_s: Figure | None
    """Of its memory."""
    link: Link | None
    bridge: Link | None = None
    """What joins pairs of cards; more than two exchange through their link."""
    practice: Practice = Practice()
    kind: str = "cuda"
    """What torch calls such devices."""

    def find_peak(self, dtype: str) -> Peak | None:
        """Dense; None where the device has no such arithmetic, or where it is not known."""
        return self.rates.dense.get(SPELLINGS.get(dtype, dtype))
