"""The int8 matmul on GPUs: exact sums on tensor cores, then scales and bias.

Ways to compute it, of which `kernel_tuner` chooses one for every size, by measuring them:

    multiply_kernel             sums, scales and bias in one kernel, in one of many shapes of tiles
    the same with splits        for few tokens: sums of parts, added up in memory as whole numbers,
                                so exactly, and scaled by a second kernel
    multiply_persistent_kernel  for sm_90 and sm_100: tiles copied by TMA, programs that stay
    torch._int_mm               the vendor's, and the second kernel
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from flopwatch.layers.kernels import int8_eager, kernel_tuner
from flopwatch.layers.kernels.int8_tiles import Tile, find_architecture, list_tiles, round_up

ALIGNMENT = 16
"""Where rows begin, in bytes: otherwise they would be read byte after byte, and registers spilt."""
GROUP = 8
"""Rows of tiles whose programs run one after the other, to meet in the L2 cache."""
SCALE_TILE = 1024


@triton.jit
def place_tile(number, high, wide, GROUP: tl.constexpr):
    """The row and column of a tile, down the columns of one group after the other."""
    first = number // (GROUP * wide) * GROUP
    rows = tl.minimum(high - first, GROUP)
    place = number % (GROUP * wide)
    return first + place % rows, place // rows


@triton.jit
def write_tile(
    total,
    a_scales,
    b_scales,
    bias,
    out,
    m,
    n,
    tile_row,
    tile_column,
    ONE_B_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
):
    """What the sums of a tile stand for, and the bias."""
    row = tile_row * TILE_M + tl.arange(0, TILE_M)
    column = tile_column * TILE_N + tl.arange(0, TILE_N)
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
    inside = (row < m)[:, None] & (column < n)[None, :]
    tl.store(out + places, product.to(out.dtype.element_ty), mask=inside)


@triton.heuristics({"EVEN_K": lambda given: given["k"] % given["TILE_K"] == 0})
@triton.jit
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
    ONE_B_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EVEN_K: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """With splits, `out` holds zeros, and the sums themselves are added to it."""
    high, wide = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    tile_row, tile_column = place_tile(tl.program_id(0), high, wide, GROUP)
    row = tile_row * TILE_M + tl.arange(0, TILE_M)
    column = tile_column * TILE_N + tl.arange(0, TILE_N)
    step = tl.arange(0, TILE_K)
    a += row[:, None].to(tl.int64) * a_row_stride + step[None, :]
    b += step[:, None].to(tl.int64) * b_row_stride
    b += column[None, :].to(tl.int64) * b_column_stride
    first = 0
    if SPLITS > 1:
        first = tl.program_id(1) * TILE_K
        a += first
        b += first.to(tl.int64) * b_row_stride
    in_rows = (row < m)[:, None]
    in_columns = (column < n)[None, :]

    total = tl.zeros((TILE_M, TILE_N), tl.int32)
    for start in range(first, k, SPLITS * TILE_K):
        if EVEN_K:
            a_tile = tl.load(a, mask=in_rows, other=0)
            b_tile = tl.load(b, mask=in_columns, other=0)
        else:
            left = step < k - start
            a_tile = tl.load(a, mask=in_rows & left[None, :], other=0)
            b_tile = tl.load(b, mask=in_columns & left[:, None], other=0)
        total = tl.dot(a_tile, b_tile, total, out_dtype=tl.int32)
        a += SPLITS * TILE_K
        b += tl.full((), SPLITS * TILE_K, tl.int64) * b_row_stride

    if SPLITS > 1:
        out += tile_row.to(tl.int64) * TILE_M * n + tile_column * TILE_N
        places = tl.arange(0, TILE_M)[:, None] * n + tl.arange(0, TILE_N)[None, :]
        tl.atomic_add(out + places, total, mask=in_rows & in_columns, sem="relaxed")
    else:
        write_tile(
            total, a_scales, b_scales, bias, out, m, n, tile_row, tile_column,
            ONE_B_SCALE, HAS_BIAS, TILE_M, TILE_N,
        )  # fmt: skip


@triton.jit
def multiply_persistent_kernel(
    a,
    b,
    a_scales,
    b_scales,
    bias,
    out,
    m,
    n,
    k,
    ONE_B_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """`a` (m, k) and `b` (n, k) are descriptors of tiles, which give zeros beyond the edges."""
    high, wide = tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N)
    for tile in tl.range(tl.program_id(0), high * wide, tl.num_programs(0)):
        tile_row, tile_column = place_tile(tile, high, wide, GROUP)
        total = tl.zeros((TILE_M, TILE_N), tl.int32)
        for start in range(0, k, TILE_K):
            a_tile = a.load([tile_row * TILE_M, start])
            b_tile = b.load([tile_column * TILE_N, start])
            total = tl.dot(a_tile, b_tile.T, total, out_dtype=tl.int32)
        write_tile(
            total, a_scales, b_scales, bias, out, m, n, tile_row, tile_column,
            ONE_B_SCALE, HAS_BIAS, TILE_M, TILE_N,
        )  # fmt: skip


@triton.jit
def scale_sums_kernel(
    sums,
    a_scales,
    b_scales,
    bias,
    out,
    n,
    ONE_B_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < n
    product = tl.load(sums + row * n + column, mask=inside).to(tl.float32)
    product *= tl.load(a_scales + row)
    if ONE_B_SCALE:
        product *= tl.load(b_scales)
    else:
        product *= tl.load(b_scales + column, mask=inside)
    if HAS_BIAS:
        product += tl.load(bias + column, mask=inside).to(tl.float32)
    tl.store(out + row * n + column, product.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class Task:
    """A matmul: what `multiply` is given, as kernels want it, and where the result goes."""

    a: Tensor
    b: Tensor
    a_scales: Tensor
    b_scales: Tensor
    bias: Tensor | None
    out: Tensor

    @property
    def key(self) -> tuple[object, ...]:
        """What the choice of a way depends on. Numbers of tokens may change from call to call: only
        their powers of 2 count. The stride says which way b lies."""
        scales, bias = self.b_scales.dim(), self.bias is not None
        sizes = (round_up(len(self.a)), *self.b.shape, self.b.stride(0) == 1)
        return (*sizes, self.out.dtype, scales, bias, self.out.device)

    @property
    def options(self) -> dict[str, bool]:
        return {"ONE_B_SCALE": self.b_scales.dim() == 0, "HAS_BIAS": self.bias is not None}


Way = Callable[[Task], None]
_chosen: dict[tuple[object, ...], Way] = {}


def multiply(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    out = a.new_empty(a.shape[0], b.shape[1], dtype=dtype)
    if not out.numel():
        return out
    if not (b.shape[0] % ALIGNMENT == 0 and is_aligned(b)):
        b = align(b.t()).t()
    bias = None if bias is None else bias.contiguous()
    task = Task(align(a), b, a_scales.contiguous(), b_scales.contiguous(), bias, out)
    key = task.key
    with torch.accelerator.device_index(a.device.index):  # Triton launches on the current one
        if key not in _chosen:
            _chosen[key] = choose_way(task)
        _chosen[key](task)
    return out


def choose_way(task: Task) -> Way:
    ways = dict(list_ways(task))
    key = ", ".join(str(part) for part in task.key[:-1])  # without the device's number
    calls = {name: partial(way, task) for name, way in ways.items()}
    return ways[kernel_tuner.choose(describe_setting(task.a.device), key, calls)]


@cache
def describe_setting(device: torch.device) -> tuple[str, ...]:
    """What makes one way the fastest, besides the sizes."""
    sources = [Path(__file__), Path(__file__).with_name("int8_tiles.py")]
    device_name = name_device(device)
    return (
        *(device_name, str(torch.__version__), triton.__version__),
        *(path.read_text() for path in sources),
    )


def name_device(device: torch.device) -> str:
    if device.type == "cpu":
        return "Triton's interpreter"
    return str(torch.get_device_module(device).get_device_name(device))


def list_ways(task: Task) -> Iterator[tuple[str, Way]]:
    """By name; the first needs nothing that a GPU might not have."""
    architecture, processors = find_gpu(task.a.device)
    m, k = round_up(len(task.a)), task.a.shape[1]
    is_contiguous = task.b.stride(0) == 1
    tiles = list_tiles(
        architecture, m, task.b.shape[1], k, processors=processors, contiguous=is_contiguous
    )
    for tile in sorted(tiles, key=lambda tile: tile.persistent):
        yield str(tile), partial(run_tile, tile)
    if int8_eager.can_multiply(task.a, task.b):
        yield "torch._int_mm", run_int_mm


@cache
def find_gpu(device: torch.device) -> tuple[str, int]:
    """Its architecture, and how many programs run at once on its processors."""
    if device.type == "cpu":  # in Triton's interpreter
        return "sm_80", 4
    from triton.runtime import driver

    target = driver.active.get_current_target()
    properties = driver.active.utils.get_device_properties(driver.active.get_current_device())
    return find_architecture(target.backend, target.arch), properties["multiprocessor_count"]


def run_tile(tile: Tile, task: Task) -> None:
    if tile.persistent:
        run_persistent(tile, task)
    elif tile.splits > 1:
        sums = torch.zeros_like(task.out, dtype=torch.int32)
        run_plain(tile, task, sums)
        scale_sums(sums, task)
    else:
        run_plain(tile, task, task.out)


def run_plain(tile: Tile, task: Task, out: Tensor) -> None:
    (m, k), n = task.a.shape, task.b.shape[1]
    grid = (triton.cdiv(m, tile.m) * triton.cdiv(n, tile.n), tile.splits)
    multiply_kernel[grid](
        task.a,
        task.b,
        task.a_scales,
        task.b_scales,
        task.bias,
        out,
        m,
        n,
        k,
        task.a.stride(0),
        *task.b.stride(),
        **task.options,
        SPLITS=tile.splits,
        **name_sizes(tile),
        num_stages=tile.stages,
        num_warps=tile.warps,
    )


def run_persistent(tile: Tile, task: Task) -> None:
    (m, k), n = task.a.shape, task.b.shape[1]
    _, processors = find_gpu(task.a.device)
    multiply_persistent_kernel[(processors,)](
        TensorDescriptor.from_tensor(task.a, [tile.m, tile.k]),
        TensorDescriptor.from_tensor(task.b.t(), [tile.n, tile.k]),
        task.a_scales,
        task.b_scales,
        task.bias,
        task.out,
        m,
        n,
        k,
        **task.options,
        **name_sizes(tile),
        num_stages=tile.stages,
        num_warps=tile.warps,
    )


def name_sizes(tile: Tile) -> dict[str, int]:
    """As the kernels call them."""
    return {"TILE_M": tile.m, "TILE_N": tile.n, "TILE_K": tile.k, "GROUP": GROUP}


def run_int_mm(task: Task) -> None:
    scale_sums(torch._int_mm(task.a, task.b), task)


def scale_sums(sums: Tensor, task: Task) -> None:
    m, n = sums.shape
    scale_sums_kernel[(m, triton.cdiv(n, SCALE_TILE))](
        sums,
        task.a_scales,
        task.b_scales,
        task.bias,
        task.out,
        n,
        **task.options,
        TILE=SCALE_TILE,
    )


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
