"""Int8 arithmetic on CPUs."""

from flopwatch.layers.int8_plain import (
    dequantize_rowwise,
    multiply,
    quantize_columnwise_transpose,
    quantize_global,
    quantize_global_transpose,
    quantize_rowwise,
)

__all__ = [
    "dequantize_rowwise",
    "multiply",
    "quantize_columnwise_transpose",
    "quantize_global",
    "quantize_global_transpose",
    "quantize_rowwise",
]
