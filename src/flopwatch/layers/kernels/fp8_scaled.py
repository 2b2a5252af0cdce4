"""Float8 matmuls by `torch._scaled_mm`, on devices that compute in float8: NVIDIA's since sm_89,
AMD's since gfx942, Intel's where torch has it."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from flopwatch.layers.fp8_plain import FORWARD, GRADIENT, QUANTIZE, Quantized

KINDS_OF_DEVICES = ("cuda", "xpu")
"""On others torch's operator, where there is one, computes in other dtypes itself."""
MULTIPLE = 16
"""Of the inner dimension and of b's rows, without which there is no such matmul."""
GFX942 = {FORWARD: torch.float8_e4m3fnuz, GRADIENT: torch.float8_e5m2fnuz}
"""MI300's own float8 numbers, which have no negative zero and less range."""


@torch.compiler.assume_constant_result
def is_native(device: str) -> bool:
    """Whether layers compute in float8 there."""
    return _find_obstacle(device) is None


@torch.compiler.assume_constant_result
def choose_dtype(dtype: torch.dtype, device: str) -> torch.dtype:
    """The device's own one of that kind."""
    return GFX942[dtype] if _is_gfx942(device) else dtype


@cache
def _find_obstacle(device: str) -> str | None:
    """Why not; by trying, since it depends on the device, its libraries and torch's build."""
    if device not in KINDS_OF_DEVICES:
        return f"{device} devices do not compute in float8"
    try:
        x = torch.ones(MULTIPLE, MULTIPLE, device=device)
        for quantize in QUANTIZE.values():
            for left in (FORWARD, GRADIENT):
                a = quantize(x, choose_dtype(left, device))
                b = quantize(x, choose_dtype(FORWARD, device))
                multiply(a, b, None, torch.bfloat16).sum().item()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return " ".join(str(error).split())
    return None


@cache
def _is_gfx942(device: str) -> bool:
    if device != "cuda" or torch.version.hip is None:
        return False
    name: str = torch.cuda.get_device_properties().gcnArchName
    return name.startswith("gfx94")


def multiply(a: Quantized, b: Quantized, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """As `fp8_plain.multiply`: a @ b.T. With a scale for every row torch gives bfloat16 only."""
    (a_values, a_scales), (b_values, b_scales) = pad(a), pad(b)
    is_one = a_scales.numel() == 1 and b_scales.numel() == 1
    out_dtype = dtype if is_one else torch.bfloat16
    # In float32 torch adds no bias; in another dtype than the result's, neither.
    fused = bias if bias is not None and bias.dtype == out_dtype != torch.float32 else None
    y = torch._scaled_mm(
        a_values,
        b_values.t(),
        scale_a=a_scales.view(()) if is_one else a_scales,
        scale_b=b_scales.view(()) if is_one else b_scales.t(),
        bias=fused,
        out_dtype=out_dtype,
        # As is usual: outputs bear sums of 14 bits, gradients do not.
        use_fast_accum=a_values.dtype in (FORWARD, GFX942[FORWARD]),
    )
    y = y.to(dtype)
    return y if bias is None or fused is not None else y + bias.to(dtype)


def pad(quantized: Quantized) -> Quantized:
    """Rows with as many zeros behind them as they need to be a multiple of 16 long."""
    values, scales = quantized
    missing = -values.shape[1] % MULTIPLE
    if not missing:
        return values, scales
    # As bytes, which torch can pad; 0 is 0 in every float8 dtype.
    padded = functional.pad(values.view(torch.uint8), (0, missing)).view(values.dtype)
    return padded, scales
