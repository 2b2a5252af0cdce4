"""Nominal figures of devices that people train on, every one with its source.

Peaks are those of matmuls (tensor or matrix cores where a dtype has them), dense, with sums
in float32. Makers like to print sparse ones, and GeForce cards have half the rate where sums are
float32: each source says what was made of its figures. They were compared with what others have
copied from these documents, not with the documents; where nothing was found to compare with, the
source says so. What is not known is left out.

The name that the driver of an MI250 gives, AMD Instinct MI250X/MI250, is not here, since it is two
devices'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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

    def find_peak(self, dtype: str) -> Peak | None:
        """Dense; None where the device has no such arithmetic, or where it is not known."""
        return self.rates.dense.get(SPELLINGS.get(dtype, dtype))


HALVED = "; its tensor figures are with sparsity, and halved here"
UNCHECKED = "; written from memory of it, not checked against it"
UNCHECKED_WIDE = "; float64 and float32 not checked against it"
UNCHECKED_HALVES = "; float16 and bfloat16 not checked against it"

V100_SHEET = "NVIDIA V100 Tensor Core GPU data sheet, 2020"
T4_SHEET = "NVIDIA T4 Tensor Core GPU data sheet, 2019"
A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet, 2021"
A800_SHEET = f"NVIDIA A800 Tensor Core GPU data sheet, 2022{UNCHECKED}"
A30_SHEET = f"NVIDIA A30 Tensor Core GPU data sheet, 2021{UNCHECKED}"
A40_SHEET = "NVIDIA A40 data sheet, 2020"
A10_SHEET = f"NVIDIA A10 Tensor Core GPU data sheet, 2021{UNCHECKED}"
A10G_SHEET = f"NVIDIA A10G data sheet (Amazon EC2 G5), 2021{UNCHECKED}"
GA102_PAPER = "NVIDIA Ampere GA102 GPU Architecture, whitepaper V2, 2021, appendices"
ADA_PAPER = "NVIDIA Ada GPU Architecture, whitepaper V2, 2023, appendices"
L4_SHEET = "NVIDIA L4 Tensor Core GPU data sheet, 2023"
L40_SHEET = "NVIDIA L40 data sheet, 2022"
L40S_SHEET = "NVIDIA L40S data sheet, 2023"
H100_PAPER = "NVIDIA H100 Tensor Core GPU Architecture, whitepaper, 2022, tables of peak rates"
H100_SHEET = "NVIDIA H100 Tensor Core GPU data sheet, 2023"
H100_NVL_SHEET = (
    f"NVIDIA H100 Tensor Core GPU data sheet, 2024, for one card of an NVL pair{UNCHECKED}"
)
H200_SHEET = "NVIDIA H200 Tensor Core GPU data sheet, 2024"
GH200_SHEET = f"NVIDIA GH200 Grace Hopper Superchip data sheet, 2023{UNCHECKED}"
H800_SHEET = f"NVIDIA H800 Tensor Core GPU data sheet, 2023{UNCHECKED}"
SAME_AS_SXM = ": those of the H100 SXM, which its whitepaper has with more digits"
H20_SHEET = "the press on NVIDIA H20, 2023; NVIDIA has published no data sheet"
BLACKWELL_SHEET = "NVIDIA Blackwell data sheet, 2025, figures of one GPU"
B300_SHEET = "NVIDIA HGX B300 specification, 2025, an eighth of a board"
GB300_SHEET = f"NVIDIA GB300 NVL72 specification, 2025, figures of one GPU{UNCHECKED}"
BOTH_FLOAT4 = " (but float4, of which it has both)"
RTX_BLACKWELL_PAPER = "NVIDIA RTX Blackwell GPU Architecture, whitepaper V1, 2025, appendices"
WIDE_SUMS = "; with sums in float32, at half the rate of float16 sums"
MI200_SHEET = "AMD Instinct MI200 series data sheet, 2021"
MI200_HALF = f"{MI200_SHEET}: half of a package, since torch sees each of its two dies as a device"
MI300X_SHEET = "AMD Instinct MI300X data sheet, 2023"
MI325X_SHEET = "AMD Instinct MI325X data sheet, 2024"
MI350_SHEET = "AMD Instinct MI350 series data sheets, 2025"

Tera = float | tuple[float, float]
"""10^12 operations in a second: dense, or dense and sparse."""
Links = tuple[str, float] | tuple[str, float, float]
"""What joins cards, and how fast; and how fast the bridge between two is, where there are any."""


def _rate(source: str, **by_dtype: Tera) -> Rates:
    pairs = {dtype: n if isinstance(n, tuple) else (n, None) for dtype, n in by_dtype.items()}
    return Rates(
        dense={d: Peak(flops_per_s=n * 1e12, source=source) for d, (n, _) in pairs.items()},
        sparse={d: Peak(flops_per_s=n * 1e12, source=source) for d, (_, n) in pairs.items() if n},
    )


def _cite(source: str, rates: Rates, without: str | None = None) -> Rates:
    """The same figures, from another source; `without` is a dtype that it has less of."""
    return Rates(
        dense={d: replace(p, source=source) for d, p in rates.dense.items() if d != without},
        sparse={d: replace(p, source=source) for d, p in rates.sparse.items()},
    )


def _device(
    name: str,
    rates: Rates,
    source: str,
    memory: tuple[float, float],
    link: Links | None,
    drivers: str = "",
    shorts: str = "",
) -> Device:
    """`source` is that of its memory (GB and GB/s) and its link (GB/s, both directions); names are
    parted by commas."""
    memory_gb, bandwidth_gb_per_s = (Figure(value, source) for value in memory)
    return Device(
        name=name,
        drivers=tuple(drivers.split(", ")) if drivers else (),
        shorts=tuple(shorts.split(", ")) if shorts else (),
        rates=rates,
        memory_gb=memory_gb,
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        link=None if link is None else Link(*link[:2], source),
        bridge=Link(BRIDGE, link[2], source) if link and len(link) > 2 else None,
    )


# fmt: off
V100_SXM = _rate(V100_SHEET, float64=7.8, float32=15.7, float16=125)
V100_PCIE = _rate(V100_SHEET, float64=7, float32=14, float16=112)
A100 = _rate(
    A100_SHEET, float64=19.5, float32=19.5, tf32=(156, 312), float16=(312, 624),
    bfloat16=(312, 624), int8=(624, 1248),
)
H100_SXM = _rate(
    H100_PAPER, float64=66.9, float32=66.9, tf32=(494.7, 989.4), float16=(989.4, 1978.9),
    bfloat16=(989.4, 1978.9), float8=(1978.9, 3957.8), int8=(1978.9, 3957.8),
)
H100_PCIE = _rate(
    H100_PAPER, float64=51.2, float32=51.2, tf32=(378, 756), float16=(756, 1513),
    bfloat16=(756, 1513), float8=(1513, 3026), int8=(1513, 3026),
)
H100_NVL = _rate(
    f"{H100_NVL_SHEET}{HALVED}", float64=60, float32=60, tf32=(417.5, 835), float16=(835.5, 1671),
    bfloat16=(835.5, 1671), float8=(1670.5, 3341), int8=(1670.5, 3341),
)
MI300X = _rate(
    MI300X_SHEET, float64=163.4, float32=163.4, tf32=(653.7, 1307.4), float16=(1307.4, 2614.9),
    bfloat16=(1307.4, 2614.9), float8=(2614.9, 5229.8), int8=(2614.9, 5229.8),
)

A800 = _cite(A800_SHEET, A100)

PCIE_3 = ("PCIe 3.0 x16", 32.0)
PCIE_4 = ("PCIe 4.0 x16", 64.0)
PCIE_5 = ("PCIe 5.0 x16", 128.0)
FABRIC = "Infinity Fabric"
BRIDGE = "NVLink bridge"

DEVICES: tuple[Device, ...] = (
    _device("V100-SXM-16GB", V100_SXM, V100_SHEET, (16, 900), ("NVLink", 300),
            "Tesla V100-SXM2-16GB", "V100, V100-16GB, V100-SXM, V100-SXM2"),
    _device("V100-SXM-32GB", V100_SXM, V100_SHEET, (32, 900), ("NVLink", 300),
            "Tesla V100-SXM2-32GB", "V100, V100-32GB, V100-SXM, V100-SXM2"),
    _device("V100-PCIe-16GB", V100_PCIE, V100_SHEET, (16, 900), PCIE_3, "Tesla V100-PCIE-16GB",
            "V100, V100-16GB, V100-PCIe"),
    _device("V100-PCIe-32GB", V100_PCIE, V100_SHEET, (32, 900), PCIE_3, "Tesla V100-PCIE-32GB",
            "V100, V100-32GB, V100-PCIe"),
    _device("T4", _rate(T4_SHEET, float32=8.1, float16=65, int8=130),
            T4_SHEET, (16, 320), PCIE_3, "Tesla T4"),
    _device("A100-SXM-40GB", A100, A100_SHEET, (40, 1555), ("NVLink", 600),
            "A100-SXM4-40GB, A100-SXM-40GB", "A100, A100-40GB, A100-SXM, A100-SXM4"),
    _device("A100-SXM-80GB", A100, A100_SHEET, (80, 2039), ("NVLink", 600),
            "A100-SXM4-80GB, A100-SXM-80GB", "A100, A100-80GB, A100-SXM, A100-SXM4"),
    _device("A100-PCIe-40GB", A100, A100_SHEET, (40, 1555), (*PCIE_4, 600), "A100-PCIE-40GB",
            "A100, A100-40GB, A100-PCIe"),
    _device("A100-PCIe-80GB", A100, A100_SHEET, (80, 1935), (*PCIE_4, 600),
            "A100 80GB PCIe, A100-PCIE-80GB", "A100, A100-80GB, A100-PCIe"),
    _device("A800-SXM-80GB", A800, A800_SHEET, (80, 2039), ("NVLink", 400), "A800-SXM4-80GB",
            "A800, A800-80GB, A800-SXM"),
    _device("A800-PCIe-80GB", A800, A800_SHEET, (80, 1935), (*PCIE_4, 400), "A800 80GB PCIe",
            "A800, A800-80GB, A800-PCIe"),
    _device("A30", _rate(A30_SHEET, float64=10.3, float32=10.3, tf32=(82, 165), float16=(165, 330),
            bfloat16=(165, 330), int8=(330, 661)),
            A30_SHEET, (24, 933), (*PCIE_4, 200), "A30"),
    _device("A40", _rate(A40_SHEET, float32=37.4, tf32=(74.8, 149.6), float16=(149.7, 299.4),
            bfloat16=(149.7, 299.4), int8=(299.3, 598.6)),
            A40_SHEET, (48, 696), (*PCIE_4, 112.5), "A40"),
    _device("A10", _rate(A10_SHEET, float32=31.2, tf32=(62.5, 125), float16=(125, 250),
            bfloat16=(125, 250), int8=(250, 500)),
            A10_SHEET, (24, 600), PCIE_4, "A10"),
    _device("A10G", _rate(A10G_SHEET, float32=35, tf32=(35, 70), float16=(70, 140),
            bfloat16=(70, 140), int8=(140, 280)),
            A10G_SHEET, (24, 600), PCIE_4, "A10G"),
    _device("RTX-A6000", _rate(f"{GA102_PAPER}{UNCHECKED}", float32=38.7, tf32=(77.4, 154.8),
            float16=(154.8, 309.7), bfloat16=(154.8, 309.7), int8=(309.7, 619.3)),
            GA102_PAPER, (48, 768), (*PCIE_4, 112.5), "RTX A6000", "A6000"),
    _device("RTX-3090", _rate(f"{GA102_PAPER}{WIDE_SUMS}{UNCHECKED}", float32=35.6, tf32=(35.6, 71),
            float16=(71, 142), bfloat16=(71, 142), int8=(284, 568)),
            GA102_PAPER, (24, 936), (*PCIE_4, 112.5), "GeForce RTX 3090", "3090"),
    _device("L4", _rate(f"{L4_SHEET}{HALVED}{UNCHECKED_HALVES}", float32=30.3, tf32=(60, 120),
            float16=(121, 242), bfloat16=(121, 242), float8=(242.5, 485), int8=(242.5, 485)),
            L4_SHEET, (24, 300), PCIE_4, "L4"),
    _device("L40", _rate(L40_SHEET, float32=90.5, tf32=(90.5, 181), float16=(181.05, 362.1),
            bfloat16=(181.05, 362.1), float8=(362, 724), int8=(362, 724)),
            L40_SHEET, (48, 864), PCIE_4, "L40"),
    _device("L40S", _rate(L40S_SHEET, float32=91.6, tf32=(183, 366), float16=(362.05, 733),
            bfloat16=(362.05, 733), float8=(733, 1466), int8=(733, 1466)),
            L40S_SHEET, (48, 864), PCIE_4, "L40S"),
    _device("RTX-6000-Ada", _rate(f"{ADA_PAPER}{UNCHECKED}", float32=91.1, tf32=(182.1, 364.2),
            float16=(364.2, 728.5), bfloat16=(364.2, 728.5), float8=(728.5, 1457),
            int8=(728.5, 1457)),
            f"{ADA_PAPER}{UNCHECKED}", (48, 960), PCIE_4, "RTX 6000 Ada Generation", "6000-Ada"),
    _device("RTX-4090", _rate(f"{ADA_PAPER}{WIDE_SUMS}", float32=82.6, tf32=(82.6, 165.2),
            float16=(165.2, 330.4), bfloat16=(165.2, 330.4), float8=(330.3, 660.6),
            int8=(660.6, 1321.2)),
            ADA_PAPER, (24, 1008), PCIE_4, "GeForce RTX 4090", "4090"),
    _device("RTX-5090", _rate(f"{RTX_BLACKWELL_PAPER}{WIDE_SUMS}{UNCHECKED}", float32=104.8,
            tf32=(104.8, 209.5), float16=(209.5, 419), bfloat16=(209.5, 419), float8=(419, 838),
            float4=(1676, 3352), int8=(838, 1676)),
            RTX_BLACKWELL_PAPER, (32, 1792), PCIE_5, "GeForce RTX 5090", "5090"),
    _device("H100-SXM", H100_SXM, H100_SHEET, (80, 3350), ("NVLink", 900), "H100 80GB HBM3",
            "H100, H100-SXM5, H100-SXM-80GB, H100-80GB"),
    _device("H100-PCIe", H100_PCIE, H100_SHEET, (80, 2000), (*PCIE_5, 600), "H100 PCIe",
            "H100, H100-PCIe-80GB, H100-80GB"),
    _device("H100-NVL", H100_NVL, H100_NVL_SHEET, (94, 3900), (*PCIE_5, 600), "H100 NVL",
            "H100, H100-94GB"),
    _device("H200-SXM", _cite(f"{H200_SHEET}{SAME_AS_SXM}", H100_SXM),
            H200_SHEET, (141, 4800), ("NVLink", 900), "H200", "H200, H200-141GB"),
    _device("H200-NVL", _cite(f"{H200_SHEET}{HALVED}{UNCHECKED}", H100_NVL),
            f"{H200_SHEET}{UNCHECKED}", (141, 4800), (*PCIE_5, 900), "H200 NVL",
            "H200, H200-141GB"),
    _device("GH200", _cite(f"{GH200_SHEET}{SAME_AS_SXM}", H100_SXM),
            GH200_SHEET, (96, 4000), ("NVLink", 900), "GH200 480GB", "GH200-96GB"),
    _device("H800-SXM", _cite(f"{H800_SHEET}{SAME_AS_SXM}", H100_SXM, without="float64"),
            H800_SHEET, (80, 3350), ("NVLink", 400), "H800", "H800"),
    _device("H800-PCIe", _cite(f"{H800_SHEET}{HALVED}", H100_PCIE, without="float64"),
            H800_SHEET, (80, 2000), (*PCIE_5, 400), "H800 PCIe", "H800"),
    _device("H20", _rate(H20_SHEET, float64=1, float32=44, tf32=74, float16=148, bfloat16=148,
            float8=296, int8=296),
            H20_SHEET, (96, 4000), ("NVLink", 900), "H20"),
    _device("B200", _rate(f"{BLACKWELL_SHEET}{HALVED}", float64=37, float32=75, tf32=(1100, 2200),
            float16=(2250, 4500), bfloat16=(2250, 4500), float8=(4500, 9000), float4=(9000, 18000),
            int8=(4500, 9000)),
            BLACKWELL_SHEET, (180, 7700), ("NVLink", 1800), "B200"),
    _device("GB200", _rate(f"{BLACKWELL_SHEET}{HALVED}", float64=40, float32=80, tf32=(1250, 2500),
            float16=(2500, 5000), bfloat16=(2500, 5000), float8=(5000, 10000),
            float4=(10000, 20000), int8=(5000, 10000)),
            BLACKWELL_SHEET, (186, 8000), ("NVLink", 1800), "GB200"),
    _device("B300", _rate(f"{B300_SHEET}{HALVED}{BOTH_FLOAT4}", float64=1.25, float32=75,
            tf32=(1125, 2250), float16=(2250, 4500), bfloat16=(2250, 4500), float8=(4500, 9000),
            float4=(13125, 18000)),
            B300_SHEET, (288, 8000), ("NVLink", 1800), "B300 SXM6 AC"),
    _device("GB300", _rate(f"{GB300_SHEET}{HALVED}{BOTH_FLOAT4}", float64=1.3, float32=80,
            tf32=(1250, 2500), float16=(2500, 5000), bfloat16=(2500, 5000), float8=(5000, 10000),
            float4=(15000, 20000)),
            GB300_SHEET, (288, 8000), ("NVLink", 1800), "GB300"),
    _device("MI250X-GCD", _rate(MI200_HALF, float64=47.85, float32=47.85, float16=191.5,
            bfloat16=191.5, int8=191.5),
            MI200_HALF, (64, 1638.4), (FABRIC, 400), "AMD Instinct MI250X", "MI250X"),
    _device("MI250X-package", _rate(MI200_SHEET, float64=95.7, float32=95.7, float16=383,
            bfloat16=383, int8=383),
            MI200_SHEET, (128, 3276.8), (FABRIC, 800), shorts="MI250X"),
    _device("MI250-GCD", _rate(MI200_HALF, float64=45.25, float32=45.25, float16=181.05,
            bfloat16=181.05, int8=181.05),
            MI200_HALF, (64, 1638.4), (FABRIC, 300), shorts="MI250"),
    _device("MI250-package", _rate(MI200_SHEET, float64=90.5, float32=90.5, float16=362.1,
            bfloat16=362.1, int8=362.1),
            MI200_SHEET, (128, 3276.8), (FABRIC, 600), shorts="MI250"),
    _device("MI300X", MI300X, MI300X_SHEET, (192, 5300), (FABRIC, 896),
            "AMD Instinct MI300X, AMD Instinct MI300X OAM, AMD Instinct MI300X VF"),
    _device("MI325X", _cite(MI325X_SHEET, MI300X),
            MI325X_SHEET, (256, 6000), (FABRIC, 896),
            "AMD Instinct MI325X, AMD Instinct MI325X OAM"),
    _device("MI350X", _rate(f"{MI350_SHEET}{UNCHECKED_WIDE}", float64=72.1, float32=144.2,
            float16=(2306.9, 4613.7), bfloat16=(2306.9, 4613.7), float8=(4613.7, 9227.5),
            float4=9227.5, int8=(4613.7, 9227.5)),
            MI350_SHEET, (288, 8000), (FABRIC, 1075.2),
            "AMD Instinct MI350X, AMD Instinct MI350X OAM"),
    _device("MI355X", _rate(f"{MI350_SHEET}{UNCHECKED_WIDE}", float64=78.6, float32=157.3,
            float16=(2516.6, 5033.2), bfloat16=(2516.6, 5033.2), float8=(5033.2, 10066.3),
            float4=10066.3, int8=(5033.2, 10066.3)),
            MI350_SHEET, (288, 8000), (FABRIC, 1075.2),
            "AMD Instinct MI355X, AMD Instinct MI355X OAM"),
)
# fmt: on
