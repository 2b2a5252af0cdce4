"""The int8 matmul on GPUs: exact sums on tensor cores, then scales and bias, in one kernel."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SHORTEST_SIDE = 64
"""Of a tile of the result, for the narrowest matrix too."""

TILES = [
    # m, n, k, stages, warps, targets
    (128, 256, 64, 4, 8, (80, 90)),
    (256, 128, 64, 4, 8, (80,)),
    (128, 256, 128, 4, 8, (90,)),
    (128, 128, 128, 4, 8, (80, 90)),
    (128, 128, 64, 4, 4, (80, 90)),
    (128, 128, 128, 3, 4, (90,)),
    (64, 256, 128, 3, 4, (90,)),
    (128, 64, 64, 5, 4, (80, 90)),
    (64, 128, 64, 5, 4, (80, 90)),
    (64, 64, 128, 5, 4, (80, 90)),
]
"""What is tried. Each fits into the registers of its targets: sm_90 leaves operands in shared
memory, of which it has more."""
ALIGNMENT = 16
"""Where rows begin, in bytes: otherwise they would be read byte after byte, and registers spilt."""
GROUP = 8
"""Rows of tiles whose programs run one after the other, to meet in the L2 cache."""

CONFIGS = {
    triton.Config(
        {"TILE_M": m, "TILE_N": n, "TILE_K": k, "GROUP": GROUP}, num_stages=stages, num_warps=warps
    ): targets
    for m, n, k, stages, warps, targets in TILES
}
"""With the targets of each."""


def list_configs(capability: int) -> list[triton.Config]:
    """What is tried on sm_<capability>."""
    target = 90 if capability >= 90 else 80
    return [config for config, targets in CONFIGS.items() if target in targets]


def choose_configs(
    configs: list[triton.Config], named: dict[str, Any], **_: Any
) -> list[triton.Config]:
    """Without the tiles of other devices and those that would be more than half empty."""
    major, minor = torch.cuda.get_device_capability(named["a"].device)
    highest = max(SHORTEST_SIDE, named["m_bucket"])
    widest = max(SHORTEST_SIDE, triton.next_power_of_2(named["n"]))
    return [
        config
        for config in list_configs(10 * major + minor)
        if config.kwargs["TILE_M"] <= highest and config.kwargs["TILE_N"] <= widest
    ]


@triton.autotune(
    list(CONFIGS),
    # Numbers of tokens may change from call to call: only their powers of 2 count. The stride says
    # which way b lies: tiles that suit one way need not suit the other.
    key=["m_bucket", "n", "k", "b_row_stride"],
    prune_configs_by={"early_config_prune": choose_configs},
)
@triton.heuristics({"EVEN_K": lambda given: given["k"] % given["TILE_K"] == 0})
@triton.jit(do_not_specialize=["m_bucket"])  # it is there for the key alone
def multiply_kernel(
    a,
    b,
    a_scales,
    b_scales,
    bias,
    out,
    m,
    n,
    k,
    a_row_stride,
    b_row_stride,
    b_column_stride,
    m_bucket,
    ONE_B_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    tile_row, tile_column = find_place(tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N), GROUP)
    row = tile_row * TILE_M + tl.arange(0, TILE_M)
    column = tile_column * TILE_N + tl.arange(0, TILE_N)
    step = tl.arange(0, TILE_K)
    a += row[:, None].to(tl.int64) * a_row_stride + step[None, :]
    b += step[:, None].to(tl.int64) * b_row_stride
    b += column[None, :].to(tl.int64) * b_column_stride
    in_rows = (row < m)[:, None]
    in_columns = (column < n)[None, :]

    total = tl.zeros((TILE_M, TILE_N), tl.int32)
    for start in range(0, k, TILE_K):
        if EVEN_K:
            a_tile = tl.load(a, mask=in_rows, other=0)
            b_tile = tl.load(b, mask=in_columns, other=0)
        else:
            left = step < k - start
            a_tile = tl.load(a, mask=in_rows & left[None, :], other=0)
            b_tile = tl.load(b, mask=in_columns & left[:, None], other=0)
        total = tl.dot(a_tile, b_tile, total, out_dtype=tl.int32)
        a += TILE_K
        b += tl.full((), TILE_K, tl.int64) * b_row_stride

    product = total.to(tl.float32) * tl.load(a_scales + row, mask=row < m)[:, None]
    if ONE_B_SCALE:
        product *= tl.load(b_scales)
    else:
        product *= tl.load(b_scales + column, mask=column < n)[None, :]
    if HAS_BIAS:
        product += tl.load(bias + column, mask=column < n).to(tl.float32)[None, :]
    # Only a tile's corner needs 64 bits; for all of its places, registers would not do.
    out += tile_row.to(tl.int64) * TILE_M * n + tile_column * TILE_N
    places = tl.arange(0, TILE_M)[:, None] * n + tl.arange(0, TILE_N)[None, :]
    tl.store(out + places, product.to(out.dtype.element_ty), mask=in_rows & in_columns)


@triton.jit
def find_place(high, wide, GROUP: tl.constexpr):
    """The row and column of this program's tile, down the columns of one group after the other."""
    program = tl.program_id(0)
    first = program // (GROUP * wide) * GROUP
    rows = tl.minimum(high - first, GROUP)
    place = program % (GROUP * wide)
    return first + place % rows, place // rows


def multiply(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    m, n = a.shape[0], b.shape[1]
    out = a.new_empty(m, n, dtype=dtype)
    if not out.numel():
        return out
    a = align(a)
    if not (b.shape[0] % ALIGNMENT == 0 and is_aligned(b)):
        b = align(b.t()).t()
    k = a.shape[1]

    def count_tiles(chosen: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, chosen["TILE_M"]) * triton.cdiv(n, chosen["TILE_N"]),)

    with torch.cuda.device_of(a):  # Triton launches on the current one
        multiply_kernel[count_tiles](
            a,
            b,
            a_scales.contiguous(),
            b_scales.contiguous(),
            bias if bias is None else bias.contiguous(),
            out,
            m,
            n,
            k,
            a.stride(0),
            *b.stride(),
            triton.next_power_of_2(m),
            ONE_B_SCALE=b_scales.dim() == 0,
            HAS_BIAS=bias is not None,
        )
    return out


def align(x: Tensor) -> Tensor:
    """The rows side by side with as many zeros as they need: 16 bytes are then read at a time."""
    if is_aligned(x):
        return x
    rows, columns = x.shape
    padded = x.new_zeros(rows, triton.cdiv(columns, ALIGNMENT) * ALIGNMENT)
    padded[:, :columns] = x
    return padded


def is_aligned(x: Tensor) -> bool:
    starts = (x.data_ptr(), x.shape[1], x.stride(0))
    return x.stride(1) == 1 and not any(start % ALIGNMENT for start in starts)
