"""Int8 arithmetic on CPUs, fast: the functions of `int8_plain`, in C++ where it can be compiled.

There are three ways to compute the matmul, the first that this machine has:

    vnni    torch._int_mm, which uses the CPU's instructions for sums of int8 products
    native  our own, for CPUs without them, on which torch._int_mm takes 30 times as long as float32
    float   torch's float32 matmul of the whole numbers, in parts so short that it is exact

Without a compiler, quantising and dequantising are a few passes of eager torch each, and the
matmul is the first or the last of the three.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from flopwatch import env
from flopwatch.layers import int8_plain
from flopwatch.layers.kernels import int8_eager, native

LETTERS = {torch.float32: "f", torch.bfloat16: "b", torch.float16: "h"}
"""How the C++ functions call the dtypes."""
PART_ROWS = 1024
"""Rows of a matmul whose whole numbers are kept at a time: they stay in memory that is warm."""
FEW = 1 << 14
"""Fewer numbers than that are quicker with one thread."""


def quantize_rowwise(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantize("quantize_rowwise", x, x.shape, x.shape[:1])


def quantize_columnwise_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantize("quantize_columnwise_transpose", x, x.shape[::-1], x.shape[1:])


def quantize_global(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantize("quantize_global", x, x.shape, ())


def quantize_global_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    return _quantize("quantize_global_transpose", x, x.shape[::-1], ())


def dequantize_rowwise(q: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    library = _load()
    if library is None:
        return int8_plain.dequantize_rowwise(q, scales, dtype)
    q, scales = q.contiguous(), scales.contiguous()
    x = torch.empty(q.shape, dtype=dtype)
    function = getattr(library, f"dequantize_rowwise_{LETTERS[dtype]}")
    function(_at(q), _at(scales), _at(x), *map(_long, q.shape), _threads(q.numel()))
    return x


def multiply(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    a = a.contiguous()
    a_scales, b_scales = a_scales.contiguous(), b_scales.contiguous()
    bias = None if bias is None else bias.float().contiguous()
    return WAYS[find_way()](a, b, a_scales, b_scales, bias, dtype)


def find_way() -> str:
    """How matmuls are computed here."""
    if _has_vnni():
        return "vnni"
    return "float" if _load() is None else "native"


def describe() -> str | None:
    """What a reader of timings should know about how they were made here."""
    library = native.load("int8")
    if isinstance(library, str):
        return (
            f"int8 layers quantise in eager torch, since {library}, and multiply by way of "
            f"{find_way()}; with a C++ compiler they are faster"
        )
    if not library.has_openmp:
        return "int8 layers use one thread, since the C++ compiler here has no OpenMP"
    if library.note:
        return library.note
    if find_way() == "native":
        return (
            "this CPU has no int8 instructions (VNNI); they are computed in int16, at "
            "best twice as fast as float32"
        )
    return None


def _quantize(name: str, x: Tensor, shape: Any, scales_shape: Any) -> tuple[Tensor, Tensor]:
    library = _load()
    if library is None:
        made: tuple[Tensor, Tensor] = getattr(int8_plain, name)(x)
        return made
    x = x.contiguous()
    q = torch.empty(shape, dtype=torch.int8)
    scales = torch.empty(scales_shape, dtype=torch.float32)
    function = getattr(library, f"{name}_{LETTERS[x.dtype]}")
    function(_at(x), _at(q), _at(scales), *map(_long, x.shape), _threads(x.numel()))
    return q, scales


def _multiply_vnni(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    m, n = len(a), b.shape[1]
    out = torch.empty(m, n, dtype=dtype)
    sums = torch.empty(min(m, PART_ROWS), n, dtype=torch.int32)
    for first in range(0, m, PART_ROWS):
        rows = slice(first, min(first + PART_ROWS, m))
        part = multiply_int8(a[rows], b, sums[: rows.stop - first])
        _scale_sums(part, a_scales[rows], b_scales, bias, out[rows])
    return out


def multiply_int8(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a @ b in int32. The one place that uses torch's private function: no public one does it."""
    if a.shape[1] == 0 or out.numel() == 0:
        return out.zero_()
    return torch._int_mm(a, b, out=out)


def _multiply_native(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    library = _load()
    (m, k), n = a.shape, b.shape[1]
    has_rows = not b.t().is_contiguous()
    b = b.contiguous() if has_rows else b
    out = torch.empty(m, n, dtype=dtype)
    if out.numel():
        threads = _threads(m * n * k // 64)
        size = library.count_scratch(_long(n), _long(k), threads)
        scratch = torch.empty(size, dtype=torch.int16)
        getattr(library, f"multiply_{LETTERS[dtype]}")(
            _at(a),
            _at(b),
            _long(has_rows),
            _at(a_scales),
            _at(b_scales),
            _long(b_scales.dim()),
            None if bias is None else _at(bias),
            _at(out),
            *map(_long, (m, n, k)),
            _at(scratch),
            threads,
        )
    return out


def _multiply_float(
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    sums = int8_eager.multiply_as_floats(a, b)
    out = torch.empty(sums.shape, dtype=dtype)
    _scale_sums(sums, a_scales, b_scales, bias, out)
    return out


WAYS: dict[str, Callable[..., Tensor]] = {
    "vnni": _multiply_vnni,
    "native": _multiply_native,
    "float": _multiply_float,
}


def _scale_sums(
    sums: Tensor, a_scales: Tensor, b_scales: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """Into `out`, what the sums stand for."""
    library = _load()
    if library is None:
        out.copy_(int8_plain.scale_sums(sums, a_scales, b_scales, bias))
        return
    getattr(library, f"scale_sums_{LETTERS[out.dtype]}")(
        _at(sums),
        _at(a_scales),
        _at(b_scales),
        _long(b_scales.dim()),
        None if bias is None else _at(bias),
        _at(out),
        *map(_long, sums.shape),
        _threads(sums.numel()),
    )


@cache
def _has_vnni() -> bool:
    """As oneDNN, which multiplies, will see it."""
    capped = env.read("ONEDNN_MAX_CPU_ISA").upper() in WITHOUT_VNNI
    return bool(torch.cpu._is_vnni_supported()) and not capped


WITHOUT_VNNI = ("SSE41", "AVX", "AVX2", "AVX512_CORE")
"""Instruction sets at which oneDNN can be capped."""


def _load() -> Any:
    library = native.load("int8")
    if isinstance(library, str):
        return None
    library.count_scratch.restype = ctypes.c_int64  # ctypes takes results for int otherwise
    return library


def _threads(size: int) -> int:
    return 1 if size < FEW else torch.get_num_threads()


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _long(number: int) -> ctypes.c_int64:
    return ctypes.c_int64(number)
