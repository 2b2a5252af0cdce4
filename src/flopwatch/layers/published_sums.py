"""Layers by their parts: the published totals (arXiv 2304.13013). Without torch: suites and reports
read it."""

from __future__ import annotations

STANDARD, ROWWISE, GLOBAL, CASTS = (
    f"parts:{name}" for name in ("standard", "rowwise", "global", "casts")
)
SUMS = {
    STANDARD: ["standard_fwd", "standard_gx", "standard_gw"],
    ROWWISE: [
        "x_quantize_rowwise",
        "w_quantize_rowwise",
        "rowwise_fwd",
        "g_quantize_rowwise",
        "w_quantize_colwise_transpose",
        "rowwise_bwd",
        "standard_gw",
    ],
    GLOBAL: [
        "x_quantize_rowwise",
        "w_quantize_global",
        "global_fwd",
        "g_quantize_rowwise",
        "w_quantize_global_transpose",
        "global_bwd",
        "standard_gw",
    ],
    CASTS: ["cast_x", "cast_w", "cast_g"],
}
"""By variant: the parts of a layer (see `layers.int8_parts`) in the order in which it runs them;
casts to int8 are the least that quantising can take."""
WHOLES = {
    STANDARD: "dense",
    ROWWISE: "switchback:rowwise",
    GLOBAL: "switchback:global",
    CASTS: None,
}
"""By variant: the layer that its parts make up, if they do."""
