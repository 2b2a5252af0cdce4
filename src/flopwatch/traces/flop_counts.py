"""FLOPs and bytes of operators, from the shapes that a trace has of their inputs.

A multiplication and an addition are two FLOPs. Attention counts all its scores, as if there were no
causal mask, and backward 2.5 times as much as forward, since fused kernels compute scores again.
Bytes are the least that must be moved: operands and results once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from flopwatch.traces.trace_events import Shape

Dims = Sequence[Sequence[int]]
Values = Sequence[str]

DTYPES = {
    "double": ("float64", 8),
    "float": ("float32", 4),
    "c10::BFloat16": ("bfloat16", 2),
    "c10::Half": ("float16", 2),
    "signed char": ("int8", 1),
    "c10::Float8_e4m3fn": ("float8", 1),
    "c10::Float8_e4m3fnuz": ("float8", 1),
    "c10::Float8_e5m2": ("float8", 1),
    "c10::Float8_e5m2fnuz": ("float8", 1),
}
"""By C++'s name of a type: torch's, and the bytes of a number."""
TF32 = ("tf32", "s1688gemm", "s1688fprop", "s1688dgrad", "s1688wgrad")
"""In names of kernels that compute float32 matmuls in TF32."""
SCORES_AGAIN = 2.5


@dataclass(frozen=True, slots=True)
class Work:
    flops: float
    size_bytes: float
    dtype: str


def _count_matmul(first: Sequence[int], second: Sequence[int]) -> tuple[float, float]:
    """Of the last two dimensions, as often as the others say."""
    *batch, rows, inner = first
    columns = second[-1]
    if len(first) < 2 or len(second) < 2 or second[-2] != inner:
        raise ValueError
    count = math.prod(batch)
    moved = rows * inner + inner * columns + rows * columns
    return 2.0 * count * rows * inner * columns, float(count * moved)


def _count_linear(inputs: Sequence[int], weight: Sequence[int]) -> tuple[float, float]:
    outputs, inner = weight
    rows = math.prod(inputs) // inner if inner else 0
    moved = rows * inner + inner * outputs + rows * outputs
    return 2.0 * rows * inner * outputs, float(moved)


def _count_attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *, heads_first: bool
) -> tuple[float, float]:
    batch, heads, queries, width = query
    keys, value_width = key[2], value[3]
    if not heads_first:
        heads, queries, keys = queries, heads, key[1]
    flops = 2.0 * batch * heads * queries * keys * (width + value_width)
    output = batch * heads * queries * value_width
    return flops, float(sum(map(math.prod, (query, key, value))) + output)


def _attention(first: int, *, heads_first: bool, times: float = 1.0) -> Formula:
    """`first` is the place of the queries among the inputs."""

    def count(dims: Dims, values: Values) -> tuple[float, float]:
        query, key, value = dims[first : first + 3]
        flops, elements = _count_attention(query, key, value, heads_first=heads_first)
        # Backward reads the output and its gradient, too, and writes three gradients.
        return times * flops, elements if times == 1.0 else 2 * elements

    return count


def _count_convolution(dims: Dims, values: Values) -> tuple[float, float]:
    """input, weight, bias, stride, padding, dilation, transposed, output_padding, groups."""
    inputs, weight = dims[0], dims[1]
    if values[6] not in ("False", "0"):
        raise ValueError
    stride, padding, dilation = (msgspec.json.decode(values[at]) for at in (3, 4, 5))
    sizes = [
        (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, spread in zip(
            inputs[2:], weight[2:], stride, padding, dilation, strict=True
        )
    ]
    outputs = inputs[0] * weight[0] * math.prod(sizes)
    moved = math.prod(inputs) + math.prod(weight) + outputs
    return 2.0 * outputs * math.prod(weight[1:]), float(moved)


def _count_convolution_backward(dims: Dims, values: Values) -> tuple[float, float]:
    gradient, inputs, weight = dims[:3]
    moved = math.prod(gradient) + 2 * math.prod(inputs) + 2 * math.prod(weight)
    return 4.0 * math.prod(gradient) * math.prod(weight[1:]), float(moved)


Formula = Callable[[Dims, Values], tuple[float, float]]
FORMULAS: dict[str, Formula] = {
    "mm": lambda dims, _: _count_matmul(dims[0], dims[1]),
    "bmm": lambda dims, _: _count_matmul(dims[0], dims[1]),
    "_scaled_mm": lambda dims, _: _count_matmul(dims[0], dims[1]),
    "_int_mm": lambda dims, _: _count_matmul(dims[0], dims[1]),
    "addmm": lambda dims, _: _count_matmul(dims[1], dims[2]),
    "_addmm_activation": lambda dims, _: _count_matmul(dims[1], dims[2]),
    "baddbmm": lambda dims, _: _count_matmul(dims[1], dims[2]),
    "mkldnn_linear": lambda dims, _: _count_linear(dims[0], dims[1]),
    "_mkl_linear": lambda dims, _: _count_linear(dims[0], dims[3]),
    "convolution": _count_convolution,
    "convolution_backward": _count_convolution_backward,
    "_flash_attention_forward": _attention(0, heads_first=False),
    "_efficient_attention_forward": _attention(0, heads_first=False),
    "_flash_attn_forward": _attention(0, heads_first=False),
    "_flash_attention_backward": _attention(1, heads_first=False, times=SCORES_AGAIN),
    "_efficient_attention_backward": _attention(1, heads_first=False, times=SCORES_AGAIN),
    "_flash_attn_backward": _attention(1, heads_first=False, times=SCORES_AGAIN),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(0, heads_first=True),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(
        1, heads_first=True, times=SCORES_AGAIN
    ),
    "_scaled_dot_product_cudnn_attention": _attention(0, heads_first=True),
    "_scaled_dot_product_cudnn_attention_backward": _attention(
        1, heads_first=True, times=SCORES_AGAIN
    ),
}
"""By name without namespace; what they count of the shapes and the values of inputs: FLOPs, and
numbers that are read or written."""


def has_flops(operator: str) -> bool:
    """
    >>> has_flops("aten::mm"), has_flops("aten::add")
    (True, False)
    """
    return operator.rpartition("::")[2] in FORMULAS


def count_work(operator: str, shape: Shape) -> Work | None:
    """None where the shapes are not what the operator needs.

    >>> shape = Shape(dims=b"[[64, 32], [32, 16]]", types=b'["float", "float"]', values=b"")
    >>> count_work("aten::mm", shape)
    Work(flops=65536.0, size_bytes=14336.0, dtype='float32')
    """
    formula = FORMULAS[operator.rpartition("::")[2]]
    try:
        dims = msgspec.json.decode(shape.dims)
        types = msgspec.json.decode(shape.types)
        values = msgspec.json.decode(shape.values or b"[]")
        dtype, size = next(DTYPES[name] for name in types if name in DTYPES)
        flops, elements = formula(dims, values)
    # What a trace holds may be anything.
    except (
        msgspec.DecodeError, ValueError, TypeError, IndexError, KeyError, StopIteration,
        AttributeError, ZeroDivisionError, OverflowError, UnicodeDecodeError, RecursionError,
    ):  # fmt: skip
        return None
    is_count = 0 < flops < 1e24 and 0 < elements < 1e24
    return Work(flops=flops, size_bytes=elements * size, dtype=dtype) if is_count else None


def name_arithmetic(dtype: str, kernel: str) -> str:
    """In which a kernel computes: float32 matmuls may be TF32's.

    >>> name_arithmetic("float32", "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64>")
    'tf32'
    """
    is_tf32 = dtype == "float32" and any(word in kernel for word in TF32)
    return "tf32" if is_tf32 else dtype
