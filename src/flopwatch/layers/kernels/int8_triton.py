"""Int8 arithmetic on GPUs: `int8_plain`'s functions in Triton. The matmul has its own module.

A row is quantised by one program, which reads it once if it fits into registers. A scale of a
column or of the whole matrix takes two kernels, both by tiles: `find_largest_kernel`, then
`quantize_tile_kernel`, which writes a tile as it is or transposed.

Magnitudes are compared as bits: of two floats without a sign the larger has the larger bits, and
NaN's are the largest of all, so that none is lost on the way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flopwatch.layers import int8_plain
from flopwatch.layers.kernels.int8_triton_matmul import multiply

__all__ = [
    "dequantize_rowwise",
    "multiply",
    "quantize_columnwise_transpose",
    "quantize_global",
    "quantize_global_transpose",
    "quantize_rowwise",
]

ROW_TILE = 8192
"""The longest row that one program keeps in registers."""
TILE_ROWS = TILE_COLUMNS = 64
TILE_WARPS = 8
DEQUANTIZE_TILE = 1024

LARGEST = tl.constexpr(float(int8_plain.LARGEST))
SMALLEST = tl.constexpr(int8_plain.SMALLEST)
MAGNITUDE = tl.constexpr(0x7FFFFFFF)
"""All bits of a float32 but its sign."""
INFINITY = tl.constexpr(0x7F800000)
"""The bits of infinity, which only NaN's exceed."""


@triton.jit
def find_magnitude(value):
    """The magnitude of float32 as bits."""
    return value.to(tl.int32, bitcast=True) & MAGNITUDE


@triton.jit
def find_factor(bits):
    """127 / largest; 0 where q has to be 0."""
    largest = bits.to(tl.float32, bitcast=True)
    usable = largest >= SMALLEST  # which NaN is not, and infinity has the factor 0
    return tl.where(usable, tl.div_rn(LARGEST, tl.where(usable, largest, 1.0)), 0.0)


@triton.jit
def find_scale(bits):
    largest = tl.where(bits < INFINITY, bits.to(tl.float32, bitcast=True), float("nan"))
    return tl.where(largest < SMALLEST, 0.0, tl.div_rn(largest, LARGEST))


@triton.jit
def round_to_int8(value, factor):
    """value * factor, halves to even.

    By comparing: the interpreter has no rint, and the usual trick, adding and subtracting a large
    number, rounds differently where the compiler fuses the product with the sum.
    """
    product = tl.where(factor > 0, value, 0.0) * factor
    low = tl.floor(product)
    q = low.to(tl.int32)
    middle = low + 0.5
    up = (product > middle) | ((product == middle) & (q % 2 != 0))
    return (q + up.to(tl.int32)).to(tl.int8)


@triton.jit
def quantize_rowwise_kernel(
    x,
    q,
    scales,
    columns,
    row_stride,
    WHOLE: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    x += row * row_stride
    q += row * columns
    n = tl.arange(0, TILE)
    if WHOLE:
        value = tl.load(x + n, mask=n < columns, other=0.0).to(tl.float32)
        largest = tl.max(find_magnitude(value), 0)
        tl.store(q + n, round_to_int8(value, find_factor(largest)), mask=n < columns)
    else:
        magnitudes = tl.zeros([TILE], tl.int32)
        for start in range(0, columns, TILE):
            inside = n < columns - start
            value = tl.load(x + start + n, mask=inside, other=0.0).to(tl.float32)
            magnitudes = tl.maximum(magnitudes, find_magnitude(value))
        largest = tl.max(magnitudes, 0)
        factor = find_factor(largest)
        for start in range(0, columns, TILE):
            inside = n < columns - start
            value = tl.load(x + start + n, mask=inside, other=0.0).to(tl.float32)
            tl.store(q + start + n, round_to_int8(value, factor), mask=inside)
    tl.store(scales + row, find_scale(largest))


@triton.jit
def find_tile(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The rows and columns of this program's tile."""
    across = tl.cdiv(columns, COLUMNS)
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    return row, column


@triton.jit
def find_largest_kernel(
    x,
    largest,
    rows,
    columns,
    row_stride,
    BY_COLUMN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Into `largest`, which holds zeros: the bits of the largest magnitude, or of each column's."""
    row, column = find_tile(rows, columns, ROWS, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(x + row[:, None] * row_stride + column[None, :], mask=inside, other=0.0)
    highest = tl.max(find_magnitude(value.to(tl.float32)), 0)
    if BY_COLUMN:
        tl.atomic_max(largest + column, highest, mask=column < columns, sem="relaxed")
    else:
        tl.atomic_max(largest, tl.max(highest, 0), sem="relaxed")


@triton.jit
def quantize_tile_kernel(
    x,
    largest,
    q,
    scales,
    rows,
    columns,
    row_stride,
    BY_COLUMN: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row, column = find_tile(rows, columns, ROWS, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    value = tl.load(x + row[:, None] * row_stride + column[None, :], mask=inside, other=0.0)
    if BY_COLUMN:
        bits = tl.load(largest + column, mask=column < columns, other=0)
        factor = find_factor(bits)[None, :]
        if tl.program_id(0) < tl.cdiv(columns, COLUMNS):
            tl.store(scales + column, find_scale(bits), mask=column < columns)
    else:
        bits = tl.load(largest)
        factor = find_factor(bits)
        if tl.program_id(0) == 0:
            tl.store(scales, find_scale(bits))
    tile = round_to_int8(value.to(tl.float32), factor)
    if TRANSPOSED:  # through shared memory, so that neighbours are written together too
        places = q + column.to(tl.int64)[:, None] * rows + row[None, :]
        tl.store(places, tl.trans(tile), mask=tl.trans(inside))
    else:
        tl.store(q + row[:, None] * columns + column[None, :], tile, mask=inside)


@triton.jit
def dequantize_rowwise_kernel(q, scales, out, columns, row_stride, TILE: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    value = tl.load(q + row * row_stride + n, mask=n < columns).to(tl.float32)
    value *= tl.load(scales + row)
    tl.store(out + row * columns + n, value.to(out.dtype.element_ty), mask=n < columns)


def quantize_rowwise(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    q = x.new_empty(rows, columns, dtype=torch.int8)
    if not x.numel():
        return q, x.new_zeros(rows, dtype=torch.float32)
    scales = x.new_empty(rows, dtype=torch.float32)
    x = _join_rows(x)
    tile = min(triton.next_power_of_2(columns), ROW_TILE)
    with torch.accelerator.device_index(x.device.index):  # Triton launches on the current one
        quantize_rowwise_kernel[(rows,)](
            x,
            q,
            scales,
            columns,
            x.stride(0),
            WHOLE=columns <= tile,
            TILE=tile,
            num_warps=choose_warps(tile),
        )
    return q, scales


def choose_warps(tile: int) -> int:
    """Enough of them for no more than 32 values in a thread."""
    return max(4, tile // 1024)


def quantize_columnwise_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantize_tiles(x, by_column=True, transposed=True)


def quantize_global(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantize_tiles(x, by_column=False, transposed=False)


def quantize_global_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantize_tiles(x, by_column=False, transposed=True)


def _quantize_tiles(x: Tensor, by_column: bool, transposed: bool) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    q = x.new_empty((columns, rows) if transposed else (rows, columns), dtype=torch.int8)
    largest = x.new_zeros(columns if by_column else (), dtype=torch.int32)
    if not x.numel():
        return q, largest.float()
    scales = torch.empty_like(largest, dtype=torch.float32)
    x = _join_rows(x)
    grid = (triton.cdiv(rows, TILE_ROWS) * triton.cdiv(columns, TILE_COLUMNS),)
    sizes = (rows, columns, x.stride(0), by_column)
    tile = {"ROWS": TILE_ROWS, "COLUMNS": TILE_COLUMNS, "num_warps": TILE_WARPS}
    with torch.accelerator.device_index(x.device.index):
        find_largest_kernel[grid](x, largest, *sizes, **tile)
        quantize_tile_kernel[grid](x, largest, q, scales, *sizes, transposed, **tile)
    return q, scales


def dequantize_rowwise(q: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    rows, columns = q.shape
    out = q.new_empty(rows, columns, dtype=dtype)
    if q.numel():
        q = _join_rows(q)
        with torch.accelerator.device_index(q.device.index):
            dequantize_rowwise_kernel[(rows, triton.cdiv(columns, DEQUANTIZE_TILE))](
                q, scales.contiguous(), out, columns, q.stride(0), TILE=DEQUANTIZE_TILE
            )
    return out


def _join_rows(x: Tensor) -> Tensor:
    """The matrix with each of its rows contiguous."""
    return x if x.stride(1) == 1 else x.contiguous()
