"""How long single kernels of an int8 linear layer take on a GPU.

A matrix product (rows x depth, times depth x columns) is cut into tiles of 128 x 128 results, which
the processors of the GPU work off in waves:

    wave    = 2 * tile * depth / (efficiency * peak of a processor)
              + 2 bytes * tile / (result_bytes_per_second of a processor)
    seconds = ramp_seconds + waves * wave

Results leave at the end of a tile, and meanwhile nothing is multiplied: that, not the reading of
operands, is why products of little depth are slow. The last wave is rarely full. Of what it would
take if all of its places were taken, ``tail`` counts: 1 where a kernel has one size of tiles, less
where a library has others to choose from or splits the depth.

Float16 products begin at a high clock, and when they have run for ``boost_seconds`` take
``1 + throttling`` times as long. A published time is a mean over 64 calls after 32 calls, so that
short kernels are timed before the clock falls and long ones after.

Quantising is held up by memory, by arithmetic or by the host:

    seconds = max(calls * host_seconds, passes * ramp_seconds + bytes / bytes_per_second)

By rows, one block has a row in its registers, on lanes whose number is a power of two: where the
row is not, lanes are idle. Arithmetic and memory overlap but for what a 6-norm of their times
says. Rows of more than 8192 do not fit, and lanes take ``spill`` times as long. Globally, one pass
takes the magnitudes, one their maximum and one divides, 9 bytes a number; the last one takes
``transposition`` times as long if it transposes. By columns, every lane reads a number in a line of
memory of its own, ``lane_seconds`` each; where the matrix is larger than ``reach_bytes``, and what
a block reads at once is on several pages, addresses have to be looked up besides: ``miss_seconds``,
times ``spill`` for columns that do not fit.

All of this is inferred from times: nobody published clocks or counters. That the clock falls and
that addresses are looked up are the explanations that fit, not observations.

Left out: which of its kernels cuBLAS chooses (four of the published float16 products ran at 60 % of
their neighbours' speed, all of 1280 and 5120, and other batches of the same did not), depths that
are no multiple of a tile's, what the L2 cache saves between passes, and how busy the host was with
other things: where it determines the time, the published runs of 1024 and 1280 are a third slower
than all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TILE = 128
"""Results in a row and in a column of a tile."""
RESULT_BYTES = 2
"""Results are float16, of int8 products as well."""
LARGEST_ROW = 8192
"""Numbers that a block of 256 threads can have in its registers."""
THREADS = 256
PAGE_BYTES = 2**21
OVERLAP = 6
"""The norm that joins times of which the longer one hides most of the shorter one."""
QUANTIZE_BYTES = 3
"""Of a number that is read as float16 and written as int8."""
MAXIMUM_BYTES = 6
"""Of a number whose magnitude is written, and then read for the maximum."""
GLOBAL_PASSES = 3
WARMUP_CALLS, TIMED_CALLS = 32, 64
"""Of a published time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    processors: int
    peak_flops_per_second: Mapping[str, float]
    """By dtype."""


A100 = Gpu(processors=108, peak_flops_per_second={"float16": 312e12, "int8": 624e12})
"""The benchmark does not name its GPU. Int8 products reach 594 TFLOP/s, quantising 1.36 TB/s, and
int8 products lose most where tiles fill few waves of 108: an A100 with 40 GB, whose memory has
1.56 TB/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A linear layer and what goes through it."""

    tokens: int
    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """Of matrices with rows x depth and depth x columns."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix:
    rows: int
    columns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductCost:
    efficiency: float
    """Of the peak, while there are tiles for all processors."""
    result_bytes_per_second: float
    """Of all processors."""
    ramp_seconds: float
    """From the end of one kernel until the next is in full swing."""
    tail: float
    """What counts of empty places in the last wave."""
    throttling: float | None = None
    """How much longer kernels take once the clock has fallen; None where it does not."""
    boost_seconds: float | None = None
    """Until then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationCost:
    """Of all ways to quantise: their kernels run on the same processors and memory."""

    host_seconds: float
    """What the host needs to start one Triton kernel."""
    global_calls: float
    """What it needs for a maximum and a kernel, in units of that."""
    ramp_seconds: float
    bytes_per_second: float
    lanes_per_second: float
    """Numbers in registers that are compared, divided and rounded."""
    spill: float
    transposition: float
    lane_seconds: float
    miss_seconds: float
    reach_bytes: float


def predict_product_seconds(product: Product, cost: ProductCost, gpu: Gpu, dtype: str) -> float:
    tiles = math.ceil(product.rows / TILE) * math.ceil(product.columns / TILE)
    waves = _count_waves(tiles / gpu.processors, min(cost.tail, 1.0))
    results = gpu.processors * TILE**2
    flops_per_second = cost.efficiency * gpu.peak_flops_per_second[dtype]
    wave_seconds = results * (
        2 * product.depth / flops_per_second + RESULT_BYTES / cost.result_bytes_per_second
    )
    return cost.ramp_seconds + _throttle(waves * wave_seconds, cost)


def _count_waves(full: float, tail: float) -> float:
    """`full` is the number of waves if the last one could be cut."""
    return max(1.0, full + tail * (math.ceil(full) - full))


def _throttle(seconds: float, cost: ProductCost) -> float:
    """The mean of the calls that are timed."""
    if cost.throttling is None or cost.boost_seconds is None:
        return seconds
    fast = min(max(cost.boost_seconds / seconds - WARMUP_CALLS, 0.0), TIMED_CALLS)
    return seconds * (1 + cost.throttling * (1 - fast / TIMED_CALLS))


def predict_rowwise_seconds(matrix: Matrix, cost: QuantizationCost) -> float:
    numbers = matrix.rows * matrix.columns
    memory_seconds = QUANTIZE_BYTES * numbers / cost.bytes_per_second
    lanes = matrix.rows * _round_up(matrix.columns)
    lanes_seconds = lanes / cost.lanes_per_second * _spill(matrix.columns, cost)
    device_seconds = cost.ramp_seconds + _overlap(memory_seconds, lanes_seconds)
    return max(cost.host_seconds, device_seconds)


def predict_columnwise_seconds(matrix: Matrix, cost: QuantizationCost) -> float:
    """Every column is read from top to bottom and written as a row."""
    numbers = matrix.rows * matrix.columns
    unreached = _exceed(RESULT_BYTES * numbers, cost.reach_bytes)
    scattered = _exceed(RESULT_BYTES * THREADS * matrix.columns, PAGE_BYTES)
    missed_seconds = cost.miss_seconds * unreached * scattered * _spill(matrix.rows, cost)
    device_seconds = cost.ramp_seconds + numbers * (cost.lane_seconds + missed_seconds)
    return max(cost.host_seconds, device_seconds)


def predict_global_seconds(matrix: Matrix, cost: QuantizationCost) -> float:
    return _predict_global_seconds(matrix, cost, QUANTIZE_BYTES)


def predict_global_transpose_seconds(matrix: Matrix, cost: QuantizationCost) -> float:
    return _predict_global_seconds(matrix, cost, QUANTIZE_BYTES * cost.transposition)


def _predict_global_seconds(matrix: Matrix, cost: QuantizationCost, quantize_bytes: float) -> float:
    moved_bytes = matrix.rows * matrix.columns * (MAXIMUM_BYTES + quantize_bytes)
    device_seconds = GLOBAL_PASSES * cost.ramp_seconds + moved_bytes / cost.bytes_per_second
    return max(cost.global_calls * cost.host_seconds, device_seconds)


def _overlap(first_seconds: float, second_seconds: float) -> float:
    """Of two things at the same time: the longer one hides most of the other."""
    return math.pow(first_seconds**OVERLAP + second_seconds**OVERLAP, 1 / OVERLAP)


def _round_up(count: int) -> int:
    """To a power of two."""
    return 1 << (count - 1).bit_length()


def _spill(count: int, cost: QuantizationCost) -> float:
    return cost.spill if count > LARGEST_ROW else 1.0


def _exceed(size: float, limit: float) -> float:
    """The share of `size` that is beyond the limit."""
    return max(0.0, 1 - limit / size)


def _list_forward(layer: Layer) -> Product:
    return Product(rows=layer.tokens, columns=layer.outputs, depth=layer.inputs)


def _list_input_gradient(layer: Layer) -> Product:
    return Product(rows=layer.tokens, columns=layer.inputs, depth=layer.outputs)


def _list_weight_gradient(layer: Layer) -> Product:
    return Product(rows=layer.outputs, columns=layer.inputs, depth=layer.tokens)


def _list_x(layer: Layer) -> Matrix:
    return Matrix(rows=layer.tokens, columns=layer.inputs)


def _list_g(layer: Layer) -> Matrix:
    return Matrix(rows=layer.tokens, columns=layer.outputs)


def _list_w(layer: Layer) -> Matrix:
    return Matrix(rows=layer.outputs, columns=layer.inputs)


FLOAT16_PRODUCTS: Mapping[str, Callable[[Layer], Product]] = {
    "standard_fwd": _list_forward,
    "standard_gw": _list_weight_gradient,
    "standard_gx": _list_input_gradient,
}
INT8_PRODUCTS: Mapping[str, Callable[[Layer], Product]] = {
    "rowwise_fwd": _list_forward,
    "rowwise_bwd": _list_input_gradient,
    "global_fwd": _list_forward,
    "global_bwd": _list_input_gradient,
}
QUANTIZATIONS: Mapping[
    str, tuple[Callable[[Layer], Matrix], Callable[[Matrix, QuantizationCost], float]]
] = {
    "x_quantize_rowwise": (_list_x, predict_rowwise_seconds),
    "g_quantize_rowwise": (_list_g, predict_rowwise_seconds),
    "w_quantize_rowwise": (_list_w, predict_rowwise_seconds),
    "w_quantize_colwise_transpose": (_list_w, predict_columnwise_seconds),
    "w_quantize_global": (_list_w, predict_global_seconds),
    "w_quantize_global_transpose": (_list_w, predict_global_transpose_seconds),
}
"""By the published name of a part: what it works on, and how long that takes."""
