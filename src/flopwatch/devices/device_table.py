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
from dataclasses import replace

from flopwatch.devices.device_specs import (
    DTYPES,
    SPELLINGS,
    Device,
    Figure,
    Link,
    Node,
    Practice,
    Rates,
)
from flopwatch.jobs.precision import Peak

__all__ = [
    "DEVICES", "DTYPES", "SPELLINGS", "Device", "Figure", "Link", "Node", "Practice", "Rates",
]  # fmt: skip

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
DGX_2_SHEET = f"NVIDIA DGX-2 data sheet, 2018, a sixteenth of it{UNCHECKED}"
H100_64_SHEET = f"Barcelona Supercomputing Center on MareNostrum 5, 2023{UNCHECKED}{SAME_AS_SXM}"
H100_94_SHEET = f"Institute of Science Tokyo on TSUBAME 4, 2024{UNCHECKED}{SAME_AS_SXM}"
H100_96_SHEET = f"the press on NVIDIA H100 with 96 GB, 2023{UNCHECKED}{SAME_AS_SXM}"
H20_3E_SHEET = f"the press on NVIDIA H20-3e, 2025{UNCHECKED}; NVIDIA has published no data sheet"
RTX_PRO_PAPER = "NVIDIA RTX Blackwell PRO GPU Architecture, whitepaper V1, 2025, appendices"
RTX_PRO_SERVER = (
    f"NVIDIA RTX PRO 6000 Blackwell Server Edition data sheet, 2025{UNCHECKED}; peaks are those of "
    "the Workstation Edition, by the ratio of both in float32"
)
MI300A_SHEET = f"AMD Instinct MI300A data sheet, 2023{UNCHECKED}"
MI308X_SHEET = (
    "80 of the 304 compute units of an MI300X (data sheet, 2023), at its clock: AMD has published "
    "no data sheet of MI308X, whose firmware can limit it further"
)
GAUDI2_SHEET = "Intel Gaudi 2 AI accelerator white paper, 2022"
GAUDI3_SHEET = "Intel Gaudi 3 AI accelerator white paper, 2024"
GAUDI3_CLOCK = "; at the 1.6 GHz that it runs at, where the first edition has 1835 at 1.75 GHz"
V5E_PAGE, V5P_PAGE, V6E_PAGE, V7_PAGE = (
    f"Google Cloud documentation of TPU {name}, 2025" for name in ("v5e", "v5p", "v6e", "7x")
)

# What is built around a device, and what others have measured: see `Practice`.

LARGE_A100 = "8192-wide bfloat16 matmuls of normal numbers at 257 TFLOP/s (thonking.ai, 2024)"
LARGE_H100 = "large cuBLAS matmuls on H100 at about 720 TFLOP/s in bfloat16, 1280 in float8"
LARGE_MI300X = "large matmuls on MI300X at about 620 TFLOP/s in bfloat16, 990 in float8"
LARGE_MI250X = (
    "large matmuls on a die of MI250X at about 125 TFLOP/s in bfloat16 (AxoNN, SC24, 2024), from "
    "memory"
)
LARGE_B200 = "8192-wide bfloat16 matmuls of cuBLAS at 1610 TFLOP/s (pyptx.dev, 2025)"
FROM_MEMORY = "; of SemiAnalysis, 2024, from memory"
SLOW_ATTENTION = Figure(
    0.5,
    "FlashAttention-2 is 1.6 times as fast on H100 as on A100 (arXiv 2307.08691), where the peak "
    "is 3.2 times as high: it does not use the instructions that the peak needs",
)

DGX_1 = Node(8, 50.0, "NVIDIA DGX-1, 2017: eight, and four adapters of 100 Gbit/s")
DGX_2 = Node(16, 50.0, "NVIDIA DGX-2, 2018: sixteen, and eight adapters of 100 Gbit/s")
DGX_A100 = Node(8, 200.0, "NVIDIA DGX A100, 2020: eight, and an adapter of 200 Gbit/s for each")
DGX_H100 = Node(8, 400.0, "NVIDIA DGX H100, 2022: eight, and an adapter of 400 Gbit/s for each")
QUAD_H100 = Node(4, 200.0, "MareNostrum 5 and TSUBAME 4, 2023: four, and 200 Gbit/s for each")
NVL72 = Node(72, 400.0, "NVIDIA GB200 NVL72, 2024: 72, and an adapter of 400 Gbit/s for each")
EIGHT_OF_AMD = Node(8, 400.0, "usual servers with MI300X, 2023: eight, and 400 Gbit/s for each")
MI250_NODE = Node(8, 200.0, "assumed as in NVIDIA DGX A100, 2020")
MI300A_NODE = Node(4, 200.0, "El Capitan, 2024: four, and an adapter of 200 Gbit/s for each")
GAUDI2_NODE = Node(8, 300.0, "Intel HLS-Gaudi 2, 2022: eight, and three ports of 100 Gbit/s each")
GAUDI3_NODE = Node(8, 600.0, "Intel HLB-325, 2024: eight, and three ports of 200 Gbit/s each")

OTHER = Practice()
WITH_GDDR = Practice(has_inline_ecc=True)
VOLTA = Practice(node=DGX_1)
AMPERE = Practice(node=DGX_A100, matmul_share=Figure(257 / 312, LARGE_A100))
HOPPER_CARD = Practice(node=DGX_H100, attention_share=SLOW_ATTENTION)
HOPPER = replace(
    HOPPER_CARD,
    matmul_share=Figure(720 / 989.4, f"{LARGE_H100}{FROM_MEMORY}"),
    float8_share=Figure(1280 / 1978.9, f"{LARGE_H100}{FROM_MEMORY}"),
)
H20_NODE = Practice(node=DGX_H100)
BLACKWELL = replace(HOPPER_CARD, matmul_share=Figure(1610 / 2250, LARGE_B200))
BLACKWELL_RACK = replace(BLACKWELL, node=NVL72)
CDNA_2 = Practice(node=MI250_NODE, matmul_share=Figure(125 / 191.5, LARGE_MI250X))
CDNA_4 = Practice(node=EIGHT_OF_AMD)
CDNA_3 = Practice(
    node=EIGHT_OF_AMD,
    matmul_share=Figure(620 / 1307.4, f"{LARGE_MI300X}{FROM_MEMORY}"),
    float8_share=Figure(990 / 2614.9, f"{LARGE_MI300X}{FROM_MEMORY}"),
)

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


def _scale(source: str, rates: Rates, ratio: float) -> Rates:
    """Peaks of a device that differs in size or clock only."""

    def scale(peaks: Mapping[str, Peak]) -> dict[str, Peak]:
        return {
            dtype: Peak(flops_per_s=round(peak.flops_per_s * ratio, -10), source=source)
            for dtype, peak in peaks.items()
        }

    return Rates(dense=scale(rates.dense), sparse=scale(rates.sparse))


def _pod(chips: int, network_gbit: float, source: str) -> Practice:
    """Its links join all chips of a pod, as a torus."""
    return Practice(node=Node(chips, network_gbit, source))


def _device(  # noqa: PLR0913, PLR0917 (a line of the table)
    name: str,
    practice: Practice,
    rates: Rates,
    source: str,
    memory: tuple[float, float],
    link: Links | None,
    drivers: str = "",
    shorts: str = "",
    kind: str = "cuda",
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
        practice=practice,
        kind=kind,
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

RTX_PRO_6000 = _rate(
    RTX_PRO_PAPER, float32=125.95, tf32=(251.9, 503.8), float16=(503.8, 1007.6),
    bfloat16=(503.8, 1007.6), float8=(1007.6, 2015.2), float4=(2015.2, 4030.4),
    int8=(1007.6, 2015.2),
)
H20_RATES = _rate(
    H20_SHEET, float64=1, float32=44, tf32=74, float16=148, bfloat16=148, float8=296, int8=296,
)
A800 = _cite(A800_SHEET, A100)

PCIE_3 = ("PCIe 3.0 x16", 32.0)
PCIE_4 = ("PCIe 4.0 x16", 64.0)
PCIE_5 = ("PCIe 5.0 x16", 128.0)
FABRIC = "Infinity Fabric"
BRIDGE = "NVLink bridge"

DEVICES: tuple[Device, ...] = (
    _device("V100-SXM-16GB", VOLTA, V100_SXM, V100_SHEET, (16, 900), ("NVLink", 300),
            "Tesla V100-SXM2-16GB", "V100, V100-16GB, V100-SXM, V100-SXM2"),
    _device("V100-SXM-32GB", VOLTA, V100_SXM, V100_SHEET, (32, 900), ("NVLink", 300),
            "Tesla V100-SXM2-32GB", "V100, V100-32GB, V100-SXM, V100-SXM2"),
    _device("V100-PCIe-16GB", VOLTA, V100_PCIE, V100_SHEET, (16, 900), PCIE_3,
            "Tesla V100-PCIE-16GB", "V100, V100-16GB, V100-PCIe"),
    _device("V100-PCIe-32GB", VOLTA, V100_PCIE, V100_SHEET, (32, 900), PCIE_3,
            "Tesla V100-PCIE-32GB", "V100, V100-32GB, V100-PCIe"),
    _device("V100S-PCIe-32GB", VOLTA, _rate(V100_SHEET, float64=8.2, float32=16.4, float16=130),
            V100_SHEET, (32, 1134), PCIE_3, "Tesla V100S-PCIE-32GB", "V100S, V100S-PCIe"),
    _device("V100-SXM3-32GB", Practice(node=DGX_2), _cite(DGX_2_SHEET, V100_SXM),
            DGX_2_SHEET, (32, 981), ("NVLink", 300),
            "Tesla V100-SXM3-32GB, Tesla V100-SXM3-32GB-H", "V100-SXM3"),
    _device("T4", WITH_GDDR, _rate(T4_SHEET, float32=8.1, float16=65, int8=130),
            T4_SHEET, (16, 320), PCIE_3, "Tesla T4"),
    _device("A100-SXM-40GB", AMPERE, A100, A100_SHEET, (40, 1555), ("NVLink", 600),
            "A100-SXM4-40GB, A100-SXM-40GB", "A100, A100-40GB, A100-SXM, A100-SXM4"),
    _device("A100-SXM-80GB", AMPERE, A100, A100_SHEET, (80, 2039), ("NVLink", 600),
            "A100-SXM4-80GB, A100-SXM-80GB", "A100, A100-80GB, A100-SXM, A100-SXM4"),
    _device("A100-PCIe-40GB", AMPERE, A100, A100_SHEET, (40, 1555), (*PCIE_4, 600),
            "A100-PCIE-40GB", "A100, A100-40GB, A100-PCIe"),
    _device("A100-PCIe-80GB", AMPERE, A100, A100_SHEET, (80, 1935), (*PCIE_4, 600),
            "A100 80GB PCIe, A100-PCIE-80GB", "A100, A100-80GB, A100-PCIe"),
    _device("A800-SXM-80GB", AMPERE, A800, A800_SHEET, (80, 2039), ("NVLink", 400),
            "A800-SXM4-80GB", "A800, A800-80GB, A800-SXM"),
    _device("A800-PCIe-80GB", AMPERE, A800, A800_SHEET, (80, 1935), (*PCIE_4, 400),
            "A800 80GB PCIe", "A800, A800-80GB, A800-PCIe"),
    _device("A30", OTHER, _rate(A30_SHEET, float64=10.3, float32=10.3, tf32=(82, 165),
            float16=(165, 330), bfloat16=(165, 330), int8=(330, 661)),
            A30_SHEET, (24, 933), (*PCIE_4, 200), "A30"),
    _device("A40", WITH_GDDR, _rate(A40_SHEET, float32=37.4, tf32=(74.8, 149.6),
            float16=(149.7, 299.4), bfloat16=(149.7, 299.4), int8=(299.3, 598.6)),
            A40_SHEET, (48, 696), (*PCIE_4, 112.5), "A40"),
    _device("A10", WITH_GDDR, _rate(A10_SHEET, float32=31.2, tf32=(62.5, 125), float16=(125, 250),
            bfloat16=(125, 250), int8=(250, 500)),
            A10_SHEET, (24, 600), PCIE_4, "A10"),
    _device("A10G", WITH_GDDR, _rate(A10G_SHEET, float32=35, tf32=(35, 70), float16=(70, 140),
            bfloat16=(70, 140), int8=(140, 280)),
            A10G_SHEET, (24, 600), PCIE_4, "A10G"),
    _device("RTX-A6000", OTHER, _rate(f"{GA102_PAPER}{UNCHECKED}", float32=38.7, tf32=(77.4, 154.8),
            float16=(154.8, 309.7), bfloat16=(154.8, 309.7), int8=(309.7, 619.3)),
            GA102_PAPER, (48, 768), (*PCIE_4, 112.5), "RTX A6000", "A6000"),
    _device("RTX-3090", OTHER, _rate(f"{GA102_PAPER}{WIDE_SUMS}{UNCHECKED}", float32=35.6,
            tf32=(35.6, 71), float16=(71, 142), bfloat16=(71, 142), int8=(284, 568)),
            GA102_PAPER, (24, 936), (*PCIE_4, 112.5), "GeForce RTX 3090", "3090"),
    _device("L4", WITH_GDDR, _rate(f"{L4_SHEET}{HALVED}{UNCHECKED_HALVES}", float32=30.3,
            tf32=(60, 120), float16=(121, 242), bfloat16=(121, 242), float8=(242.5, 485),
            int8=(242.5, 485)),
            L4_SHEET, (24, 300), PCIE_4, "L4"),
    _device("L40", WITH_GDDR, _rate(L40_SHEET, float32=90.5, tf32=(90.5, 181),
            float16=(181.05, 362.1), bfloat16=(181.05, 362.1), float8=(362, 724), int8=(362, 724)),
            L40_SHEET, (48, 864), PCIE_4, "L40"),
    _device("L40S", WITH_GDDR, _rate(L40S_SHEET, float32=91.6, tf32=(183, 366),
            float16=(362.05, 733), bfloat16=(362.05, 733), float8=(733, 1466), int8=(733, 1466)),
            L40S_SHEET, (48, 864), PCIE_4, "L40S"),
    _device("RTX-6000-Ada", OTHER, _rate(f"{ADA_PAPER}{UNCHECKED}", float32=91.1,
            tf32=(182.1, 364.2), float16=(364.2, 728.5), bfloat16=(364.2, 728.5),
            float8=(728.5, 1457), int8=(728.5, 1457)),
            f"{ADA_PAPER}{UNCHECKED}", (48, 960), PCIE_4, "RTX 6000 Ada Generation", "6000-Ada"),
    _device("RTX-4090", OTHER, _rate(f"{ADA_PAPER}{WIDE_SUMS}", float32=82.6, tf32=(82.6, 165.2),
            float16=(165.2, 330.4), bfloat16=(165.2, 330.4), float8=(330.3, 660.6),
            int8=(660.6, 1321.2)),
            ADA_PAPER, (24, 1008), PCIE_4, "GeForce RTX 4090", "4090"),
    _device("RTX-5090", OTHER, _rate(f"{RTX_BLACKWELL_PAPER}{WIDE_SUMS}{UNCHECKED}", float32=104.8,
            tf32=(104.8, 209.5), float16=(209.5, 419), bfloat16=(209.5, 419), float8=(419, 838),
            float4=(1676, 3352), int8=(838, 1676)),
            RTX_BLACKWELL_PAPER, (32, 1792), PCIE_5, "GeForce RTX 5090", "5090"),
    _device("RTX-PRO-6000", OTHER, RTX_PRO_6000, RTX_PRO_PAPER, (96, 1792), PCIE_5,
            "RTX PRO 6000 Blackwell Workstation Edition", "RTX-PRO-6000-Workstation, PRO-6000"),
    _device("RTX-PRO-6000-Server", OTHER, _scale(RTX_PRO_SERVER, RTX_PRO_6000, 120 / 125.95),
            RTX_PRO_SERVER, (96, 1597), PCIE_5, "RTX PRO 6000 Blackwell Server Edition"),
    _device("H100-SXM", HOPPER, H100_SXM, H100_SHEET, (80, 3350), ("NVLink", 900), "H100 80GB HBM3",
            "H100, H100-SXM5, H100-SXM-80GB, H100-80GB"),
    _device("H100-PCIe", HOPPER_CARD, H100_PCIE, H100_SHEET, (80, 2000), (*PCIE_5, 600),
            "H100 PCIe", "H100, H100-PCIe-80GB, H100-80GB"),
    _device("H100-NVL", HOPPER_CARD, H100_NVL, H100_NVL_SHEET, (94, 3900), (*PCIE_5, 600),
            "H100 NVL", "H100, H100-94GB"),
    _device("H100-SXM-64GB", replace(HOPPER, node=QUAD_H100), _cite(H100_64_SHEET, H100_SXM),
            H100_64_SHEET, (64, 2020), ("NVLink", 900), "H100 64GB HBM2", "H100-64GB"),
    _device("H100-SXM-94GB", replace(HOPPER, node=QUAD_H100), _cite(H100_94_SHEET, H100_SXM),
            H100_94_SHEET, (94, 2400), ("NVLink", 900), shorts="H100-94GB, H100-SXM5-94GB"),
    _device("H100-SXM-96GB", HOPPER, _cite(H100_96_SHEET, H100_SXM),
            H100_96_SHEET, (96, 3350), ("NVLink", 900), "H100 96GB HBM3", "H100-96GB"),
    _device("H200-SXM", HOPPER, _cite(f"{H200_SHEET}{SAME_AS_SXM}", H100_SXM),
            H200_SHEET, (141, 4800), ("NVLink", 900), "H200", "H200, H200-141GB"),
    _device("H200-NVL", HOPPER_CARD, _cite(f"{H200_SHEET}{HALVED}{UNCHECKED}", H100_NVL),
            f"{H200_SHEET}{UNCHECKED}", (141, 4800), (*PCIE_5, 900), "H200 NVL",
            "H200, H200-141GB"),
    _device("GH200", HOPPER, _cite(f"{GH200_SHEET}{SAME_AS_SXM}", H100_SXM),
            GH200_SHEET, (96, 4000), ("NVLink", 900), "GH200 480GB, GH200 120GB", "GH200-96GB"),
    _device("GH200-144GB", HOPPER, _cite(f"{GH200_SHEET}{SAME_AS_SXM}", H100_SXM),
            GH200_SHEET, (144, 4900), ("NVLink", 900), "GH200 144G HBM3e", "GH200-144G"),
    _device("H800-SXM", HOPPER, _cite(f"{H800_SHEET}{SAME_AS_SXM}", H100_SXM, without="float64"),
            H800_SHEET, (80, 3350), ("NVLink", 400), "H800", "H800"),
    _device("H800-PCIe", HOPPER_CARD, _cite(f"{H800_SHEET}{HALVED}", H100_PCIE, without="float64"),
            H800_SHEET, (80, 2000), (*PCIE_5, 400), "H800 PCIe", "H800"),
    _device("H20", H20_NODE, H20_RATES, H20_SHEET, (96, 4000), ("NVLink", 900), "H20"),
    _device("H20-3e", H20_NODE, _cite(H20_3E_SHEET, H20_RATES),
            H20_3E_SHEET, (141, 4800), ("NVLink", 900), "H20-3e", "H20-141GB"),
    _device("B200", BLACKWELL, _rate(f"{BLACKWELL_SHEET}{HALVED}", float64=37, float32=75,
            tf32=(1100, 2200), float16=(2250, 4500), bfloat16=(2250, 4500), float8=(4500, 9000),
            float4=(9000, 18000), int8=(4500, 9000)),
            BLACKWELL_SHEET, (180, 7700), ("NVLink", 1800), "B200"),
    _device("GB200", BLACKWELL_RACK, _rate(f"{BLACKWELL_SHEET}{HALVED}", float64=40, float32=80,
            tf32=(1250, 2500), float16=(2500, 5000), bfloat16=(2500, 5000), float8=(5000, 10000),
            float4=(10000, 20000), int8=(5000, 10000)),
            BLACKWELL_SHEET, (186, 8000), ("NVLink", 1800), "GB200"),
    _device("B300", BLACKWELL, _rate(f"{B300_SHEET}{HALVED}{BOTH_FLOAT4}", float64=1.25, float32=75,
            tf32=(1125, 2250), float16=(2250, 4500), bfloat16=(2250, 4500), float8=(4500, 9000),
            float4=(13125, 18000)),
            B300_SHEET, (288, 8000), ("NVLink", 1800), "B300 SXM6 AC"),
    _device("GB300", BLACKWELL_RACK, _rate(f"{GB300_SHEET}{HALVED}{BOTH_FLOAT4}", float64=1.3,
            float32=80, tf32=(1250, 2500), float16=(2500, 5000), bfloat16=(2500, 5000),
            float8=(5000, 10000), float4=(15000, 20000)),
            GB300_SHEET, (288, 8000), ("NVLink", 1800), "GB300"),
    _device("MI250X-GCD", CDNA_2, _rate(MI200_HALF, float64=47.85, float32=47.85, float16=191.5,
            bfloat16=191.5, int8=191.5),
            MI200_HALF, (64, 1638.4), (FABRIC, 400), "AMD Instinct MI250X", "MI250X"),
    _device("MI250X-package", CDNA_2, _rate(MI200_SHEET, float64=95.7, float32=95.7, float16=383,
            bfloat16=383, int8=383),
            MI200_SHEET, (128, 3276.8), (FABRIC, 800), shorts="MI250X"),
    _device("MI250-GCD", CDNA_2, _rate(MI200_HALF, float64=45.25, float32=45.25, float16=181.05,
            bfloat16=181.05, int8=181.05),
            MI200_HALF, (64, 1638.4), (FABRIC, 300), shorts="MI250"),
    _device("MI250-package", CDNA_2, _rate(MI200_SHEET, float64=90.5, float32=90.5, float16=362.1,
            bfloat16=362.1, int8=362.1),
            MI200_SHEET, (128, 3276.8), (FABRIC, 600), shorts="MI250"),
    _device("MI300X", CDNA_3, MI300X, MI300X_SHEET, (192, 5300), (FABRIC, 896),
            "AMD Instinct MI300X, AMD Instinct MI300X OAM, AMD Instinct MI300X VF"),
    _device("MI300A", Practice(node=MI300A_NODE), _rate(MI300A_SHEET, float64=122.6, float32=122.6,
            tf32=(490.3, 980.6), float16=(980.6, 1961.2), bfloat16=(980.6, 1961.2),
            float8=(1961.2, 3922.3), int8=(1961.2, 3922.3)),
            MI300A_SHEET, (128, 5300), (FABRIC, 768), "AMD Instinct MI300A"),
    _device("MI308X", CDNA_3, _scale(MI308X_SHEET, MI300X, 80 / 304),
            MI308X_SHEET, (192, 5300), (FABRIC, 896), "AMD Instinct MI308X"),
    _device("MI325X", CDNA_3, _cite(MI325X_SHEET, MI300X),
            MI325X_SHEET, (256, 6000), (FABRIC, 896),
            "AMD Instinct MI325X, AMD Instinct MI325X OAM"),
    _device("MI350X", CDNA_4, _rate(f"{MI350_SHEET}{UNCHECKED_WIDE}", float64=72.1, float32=144.2,
            float16=(2306.9, 4613.7), bfloat16=(2306.9, 4613.7), float8=(4613.7, 9227.5),
            float4=9227.5, int8=(4613.7, 9227.5)),
            MI350_SHEET, (288, 8000), (FABRIC, 1075.2),
            "AMD Instinct MI350X, AMD Instinct MI350X OAM"),
    _device("MI355X", CDNA_4, _rate(f"{MI350_SHEET}{UNCHECKED_WIDE}", float64=78.6, float32=157.3,
            float16=(2516.6, 5033.2), bfloat16=(2516.6, 5033.2), float8=(5033.2, 10066.3),
            float4=10066.3, int8=(5033.2, 10066.3)),
            MI350_SHEET, (288, 8000), (FABRIC, 1075.2),
            "AMD Instinct MI355X, AMD Instinct MI355X OAM"),
    _device("Gaudi2", Practice(node=GAUDI2_NODE), _rate(GAUDI2_SHEET, bfloat16=432, float8=865),
            GAUDI2_SHEET, (96, 2460), ("RoCE", 525), "GAUDI2", "Gaudi-2", "hpu"),
    _device("Gaudi3", Practice(node=GAUDI3_NODE), _rate(f"{GAUDI3_SHEET}{GAUDI3_CLOCK}",
            float32=229, tf32=459, float16=459, bfloat16=1677, float8=1677),
            GAUDI3_SHEET, (128, 3700), ("RoCE", 1050), "GAUDI3", "Gaudi-3", "hpu"),
    _device("TPU-v5e", _pod(256, 25, V5E_PAGE), _rate(V5E_PAGE, bfloat16=197, int8=393),
            V5E_PAGE, (16, 819), ("ICI", 400), "TPU v5e, TPU v5 lite", "v5e", "xla"),
    _device("TPU-v5p", _pod(8960, 50, V5P_PAGE), _rate(V5P_PAGE, bfloat16=459, int8=918),
            V5P_PAGE, (95, 2765), ("ICI", 1200), "TPU v5p, TPU v5", "v5p", "xla"),
    _device("TPU-v6e", _pod(256, 100, V6E_PAGE), _rate(V6E_PAGE, bfloat16=918, int8=1836),
            V6E_PAGE, (32, 1638), ("ICI", 800), "TPU v6e, TPU v6 lite", "v6e, Trillium", "xla"),
    _device("TPU-v7", _pod(9216, 100, V7_PAGE), _rate(V7_PAGE, bfloat16=2307, float8=4614),
            V7_PAGE, (192, 7380), ("ICI", 1200), "TPU7x", "TPU-v7x, v7, Ironwood", "xla"),
)
# fmt: on
