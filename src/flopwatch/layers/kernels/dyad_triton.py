"""The copies of DYAD's fast matmul on a GPU, each in one pass.

`dyad_matmul` has the plain versions that these are tested against.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 1024


@triton.jit
def find_places(n, token, tokens, size, BLOCKS: tl.constexpr):
    """Where feature n of a token stands among (blocks, tokens, 2 size), in either order."""
    direct = ((n // size).to(tl.int64) * tokens + token) * 2 * size + n % size
    transposed = ((n % BLOCKS).to(tl.int64) * tokens + token) * 2 * size + size + n // BLOCKS
    return direct, transposed


@triton.jit
def read_both_kernel(
    rows,
    both,
    tokens,
    features,
    row_stride,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = n < features
    value = tl.load(rows + token * row_stride + n, mask=inside)
    direct, transposed = find_places(n, token, tokens, features // BLOCKS, BLOCKS)
    tl.store(both + direct, value, mask=inside)
    tl.store(both + transposed, value, mask=inside)


@triton.jit
def write_both_kernel(
    both,
    bias,
    rows,
    tokens,
    features,
    row_stride,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = n < features
    direct, transposed = find_places(n, token, tokens, features // BLOCKS, BLOCKS)
    value = tl.load(both + direct, mask=inside).to(WIDE)
    value += tl.load(both + transposed, mask=inside).to(WIDE)
    if HAS_BIAS:
        value += tl.load(bias + n, mask=inside).to(WIDE)
    tl.store(rows + token * row_stride + n, value.to(rows.dtype.element_ty), mask=inside)


def read_both(rows: Tensor, blocks: int) -> Tensor:
    """A copy of (tokens, features) as (blocks, tokens, 2 features / blocks): in direct order,
    then in transposed order."""
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    tokens, features = rows.shape
    both = rows.new_empty(blocks, tokens, 2 * features // blocks)
    if rows.numel():
        # Triton launches on the current one.
        with torch.accelerator.device_index(rows.device.index):
            read_both_kernel[_grid(rows)](
                rows, both, tokens, features, rows.stride(0), BLOCKS=blocks, TILE=TILE
            )
    return both


def write_both(both: Tensor, bias: Tensor | None, rows: Tensor) -> None:
    """Into `rows`, whose features are contiguous, the sum of both orders, and the bias."""
    tokens, features = rows.shape
    if not rows.numel():
        return
    with torch.accelerator.device_index(rows.device.index):
        write_both_kernel[_grid(rows)](
            both.contiguous(),
            bias,
            rows,
            tokens,
            features,
            rows.stride(0),
            HAS_BIAS=bias is not None,
            WIDE=tl.float64 if rows.dtype == torch.float64 else tl.float32,  # to add up in
            BLOCKS=len(both),
            TILE=TILE,
        )


def _grid(rows: Tensor) -> tuple[int, int]:
    tokens, features = rows.shape
    return tokens, triton.cdiv(features, TILE)
