"""Kernels by name: calls, operators, FLOPs from shapes, limits of the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flopwatch.traces.explained_trace import explain_trace
from flopwatch.traces.flop_counts import FORMULAS, count_work, name_arithmetic
from flopwatch.traces.kernel_summary import find_trace_device, place_kernel
from flopwatch.traces.trace_events import Shape
from tests.traces.trace_maker import TraceMaker, make_training_step


def count(operator: str, dims: str, values: str = "", types: str = '["float"]') -> Any:
    shape = Shape(dims=dims.encode(), types=types.encode(), values=values.encode())
    work = count_work(operator, shape)
    return None if work is None else work.flops


def test_kernels_have_calls_operators_and_flops(tmp_path: Path) -> None:
    maker = TraceMaker()
    for number in range(3):
        make_training_step(maker, 100.0 * number, number)
    found = explain_trace(maker.write(tmp_path / "trace.json"))
    gemm = next(use for use in found.kernels if use.name.endswith("tn_n"))
    assert (gemm.kind, gemm.operator, gemm.calls, gemm.time_ns) == (
        "matmul", "aten::addmm", 3, 30_000
    )  # fmt: skip
    assert (gemm.flops, gemm.flops_ns) == (3 * 2 * 64 * 32 * 16, 30_000)
    assert gemm.size_bytes == 3 * 2 * (64 * 32 + 32 * 16 + 64 * 16)
    assert gemm.arithmetic == "bfloat16"
    placed = place_kernel(gemm, find_trace_device(found.device))
    assert placed is not None
    assert placed.bound == "memory"
    assert placed.reached_flops_per_s == gemm.flops / 30e-6
    backward = next(use for use in found.kernels if use.name.endswith("nt_n"))
    assert (backward.operator, backward.flops, backward.flops_per_s) == ("aten::mm", None, None)
    assert place_kernel(backward, find_trace_device(found.device)) is None
    assert [use.time_ns for use in found.kernels] == sorted(
        (use.time_ns for use in found.kernels), reverse=True
    )
    by_operator = {use.name: use for use in found.operators}
    assert by_operator["aten::mm"].time_ns == 30_000
    assert by_operator["c10d::allreduce_"].kind == "communication"


def test_of_several_kernels_of_an_operator_the_longest_has_its_flops(tmp_path: Path) -> None:
    maker = TraceMaker()
    dims = {"Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"]}
    maker.operator("aten::mm", 0, 10, **dims)
    maker.kernel("gemm", 5, 20, launched=1)
    maker.kernel("splitKreduce_kernel", 25, 3, launched=3)
    gemm, rest = explain_trace(maker.write(tmp_path / "trace.json")).kernels
    assert (gemm.flops, rest.flops) == (1024, None)


@pytest.mark.parametrize(
    ("operator", "dims", "values", "flops"),
    [
        ("aten::mm", "[[4, 5], [5, 6]]", "", 240),
        ("aten::bmm", "[[3, 4, 5], [3, 5, 6]]", "", 720),
        ("aten::addmm", "[[6], [4, 5], [5, 6]]", "", 240),
        ("aten::baddbmm", "[[1], [3, 4, 5], [3, 5, 6]]", "", 720),
        ("aten::_flash_attention_forward", "[[2, 8, 3, 4], [2, 8, 3, 4], [2, 8, 3, 4]]", "",
         2 * 2 * 3 * 8 * 8 * 8),
        ("aten::_scaled_dot_product_flash_attention_for_cpu",
         "[[2, 3, 8, 4], [2, 3, 8, 4], [2, 3, 8, 4]]", "", 2 * 2 * 3 * 8 * 8 * 8),
        ("aten::_flash_attention_backward",
         "[[2, 8, 3, 4], [2, 8, 3, 4], [2, 8, 3, 4], [2, 8, 3, 4]]", "",
         2.5 * 2 * 2 * 3 * 8 * 8 * 8),
        ("aten::convolution", "[[1, 3, 8, 8], [16, 3, 3, 3], [16]]",
         '["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]',
         2 * 16 * 64 * 27),
        ("aten::convolution_backward", "[[1, 16, 8, 8], [1, 3, 8, 8], [16, 3, 3, 3]]", "",
         4 * 16 * 64 * 27),
        ("aten::mm", "[[4, 5], [6, 6]]", "", None),
        ("aten::mm", "[[4], []]", "", None),
        ("aten::mm", '{"a": 1}', "", None),
        ("aten::mm", "[[-4, 5], [5, 6]]", "", None),
        ("aten::_flash_attention_forward", "[[16, 3, 4], [16, 3, 4], [16, 3, 4]]", "", None),
        ("aten::convolution", "[[1, 3, 8, 8], [16, 3, 3, 3], [16]]", "", None),
    ],
)  # fmt: skip
def test_flops_follow_from_shapes(
    operator: str, dims: str, values: str, flops: float | None
) -> None:
    assert count(operator, dims, values) == flops


@pytest.mark.parametrize(
    "dims", ["[]", "[[]]", "7", "null", '"x"', "[[[1]]]", "[[null, 2], 3]", "["]
)
def test_shapes_of_any_kind_do_no_harm(dims: str) -> None:
    for operator in FORMULAS:
        assert count(f"aten::{operator}", dims) is None
        assert count(f"aten::{operator}", dims, dims, dims) is None


def test_flops_agree_with_torchs_own_counter(recorded: Path) -> None:
    """Forward and backward of a linear layer, as torch.utils.flop_counter has them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 10))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(16, 32)).sum().backward()
    found = explain_trace(recorded)
    assert sum(use.flops or 0 for use in found.kernels) == 3 * counter.get_total_flops()


def test_float32_matmuls_of_tensor_cores_are_tf32() -> None:
    assert name_arithmetic("float32", "sm80_xmma_gemm_tf32f32_tf32f32") == "tf32"
    assert name_arithmetic("float32", "ampere_sgemm_128x64_nn") == "float32"
    assert name_arithmetic("bfloat16", "cutlass_80_tensorop_s1688gemm") == "bfloat16"


def test_devices_are_found_by_their_drivers_names() -> None:
    found = [
        find_trace_device(name) for name in ("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X VF")
    ]
    assert [device and device.name for device in found] == ["H100-SXM", "MI300X"]
    assert find_trace_device("NVIDIA Z80") is None
    assert find_trace_device(None) is None
