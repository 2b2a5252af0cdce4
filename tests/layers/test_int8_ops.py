"""Int8 arithmetic: the plain version against what it promises, the fast ones against the plain."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.errors import LayerError
from flopwatch.layers import int8_ops, int8_plain
from flopwatch.layers.kernels import int8_cpu, native

QUANTIZE = [
    "quantize_rowwise",
    "quantize_columnwise_transpose",
    "quantize_global",
    "quantize_global_transpose",
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = [(1, 1), (3, 5), (64, 64), (65, 130), (7, 200), (300, 77), (0, 5), (5, 0), (0, 0)]
"""Less than a tile of the C++ code, just one, and no multiple of one."""
PRODUCTS = [(1, 1, 1), (5, 16, 16), (6, 17, 33), (400, 70, 50), (33, 2083, 17), (7, 0, 4),
            (0, 3, 4), (3, 4, 0)]  # fmt: skip
"""m, k, n: odd lengths, more than a block of rows, more than float32 adds up exactly."""


@pytest.fixture(params=["native", "eager"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With our C++ code, and where there is no compiler."""
    if request.param == "eager":
        monkeypatch.setattr(native, "load", lambda name: "there is no C++ compiler")
    elif isinstance(library := native.load("int8"), str):
        pytest.skip(library)
    return request.param  # type: ignore[no-any-return]


def make(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Random numbers, among them rows of zeros, and of what int8 cannot hold."""
    x = torch.randn(rows, columns).to(dtype)
    if rows > 4 and columns > 4:
        x[1] = 0
        x[2, columns // 2] = torch.nan
        x[3, columns - 1] = -torch.inf
        x[rows - 1] *= 1e-38  # denormal; zero in float16
    return x


@pytest.mark.parametrize("name", QUANTIZE)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_quantizing_agrees_exactly(
    compiler: str, name: str, dtype: torch.dtype, rows: int, columns: int
) -> None:
    x = make(rows, columns, dtype)
    q, scales = getattr(int8_ops, name)(x)
    expected_q, expected_scales = getattr(int8_plain, name)(x)
    assert torch.equal(q, expected_q)
    torch.testing.assert_close(scales, expected_scales, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", QUANTIZE)
def test_quantizing_what_is_not_contiguous(name: str) -> None:
    wide = torch.randn(40, 60)
    for x in (wide.t(), wide[:, 3:30], wide[::2], torch.randn(1, 9).expand(5, 9)):
        expected = getattr(int8_plain, name)(x.contiguous())
        assert len(expected) == 2
        for found, wanted in zip(getattr(int8_ops, name)(x), expected, strict=True):
            assert torch.equal(found, wanted)


def test_what_quantizing_promises() -> None:
    x = torch.tensor([[0.5, -127.0, 1.5, 2.5], [0.0, 0.0, 0.0, 0.0], [1e-40, 0.0, 0.0, 0.0]])
    q, scales = int8_ops.quantize_rowwise(x)
    assert q.tolist() == [[0, -127, 2, 2], [0, 0, 0, 0], [0, 0, 0, 0]]  # halves to even
    assert scales.tolist() == [1.0, 0.0, 0.0]
    q, scale = int8_ops.quantize_global(x)
    assert scale.shape == ()
    assert q.abs().max() == 127


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", QUANTIZE)
def test_what_is_not_finite_does_not_vanish(compiler: str, name: str, odd: float) -> None:
    x = torch.randn(100, 100)
    x[70, 30] = odd
    q, scales = getattr(int8_ops, name)(x)
    lost = scales.isnan()
    place = {"quantize_rowwise": 70, "quantize_columnwise_transpose": 30}.get(name)
    assert lost.sum() == 1
    assert place is None or lost[place]
    assert not (q if place is None else q[place]).any()
    assert scales[~lost].isfinite().all()


@pytest.mark.parametrize("way", int8_cpu.WAYS)
@pytest.mark.parametrize(("m", "k", "n"), PRODUCTS)
def test_every_way_to_the_product(way: str, m: int, k: int, n: int, compiler: str) -> None:
    if way == "native" and compiler == "eager":
        pytest.skip("it needs the compiler")
    layouts = itertools.product(["rows", "columns"], ["one", "many"], [True, False], DTYPES)
    for layout, scales, has_bias, dtype in layouts:
        a = torch.randint(-127, 128, (m, k), dtype=torch.int8)
        b = torch.randint(-127, 128, (k, n), dtype=torch.int8)
        b = b if layout == "rows" else b.t().contiguous().t()
        a_scales = torch.rand(m)
        b_scales = torch.rand(()) if scales == "one" else torch.rand(n)
        bias = torch.randn(n) if has_bias else None
        found = int8_cpu.WAYS[way](a, b, a_scales, b_scales, bias, dtype)
        expected = int8_plain.multiply(a, b, a_scales, b_scales, bias, dtype)
        assert found.dtype == dtype
        # The fast ones may add the bias without rounding before it: one step of the last digit,
        # where both nearly cancel.
        tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2e-3}
        torch.testing.assert_close(found, expected, **tolerance)


@pytest.mark.parametrize("way", int8_cpu.WAYS)
def test_whole_numbers_are_exact(way: str) -> None:
    if way == "native" and isinstance(library := native.load("int8"), str):
        pytest.skip(library)
    m, k, n = 400, 4099, 35  # several blocks of rows, and work for several threads
    a = torch.full((m, k), 127, dtype=torch.int8)
    a[::2] = torch.randint(-127, 128, (k,), dtype=torch.int8)
    b = torch.randint(-127, 128, (n, k), dtype=torch.int8).t()
    b[:, 0] = 127  # the largest sum there is: 4099 * 127 * 127
    ones = torch.ones(m), torch.ones(n)
    found = int8_cpu.WAYS[way](a, b, *ones, None, torch.float32)
    assert torch.equal(found, int8_plain.multiply_exactly(a, b).float())


@pytest.mark.parametrize("way", int8_cpu.WAYS)
def test_autocast_does_not_touch_whole_numbers(way: str) -> None:
    if way == "native" and isinstance(library := native.load("int8"), str):
        pytest.skip(library)
    a = torch.randint(-127, 128, (8, 300), dtype=torch.int8)
    b = torch.randint(-127, 128, (300, 6), dtype=torch.int8)
    ones = torch.ones(8), torch.ones(6)
    with torch.autocast("cpu", torch.bfloat16):
        found = int8_cpu.WAYS[way](a, b, *ones, None, torch.float32)
    assert torch.equal(found, int8_plain.multiply_exactly(a, b).float())


A, B = torch.ones(4, 8, dtype=torch.int8), torch.ones(8, 3, dtype=torch.int8)
FOUR, THREE = torch.ones(4), torch.ones(3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: int8_ops.quantize_rowwise(torch.ones(3)), r"matrices of float32.*shape \(3,\)"),
        (lambda: int8_ops.quantize_global(torch.ones(3, 3).double()), "not torch.float64"),
        (lambda: int8_ops.multiply(A, B[:5], FOUR, THREE, None, torch.float32), "cannot be mul"),
        (
            lambda: int8_ops.multiply(A.float(), B, FOUR, THREE, None, torch.float32),
            "from torch.fl",
        ),
        (
            lambda: int8_ops.multiply(A, B, FOUR.bfloat16(), THREE, None, torch.float32),
            "4 rows need",
        ),
        (lambda: int8_ops.multiply(A, B, FOUR, FOUR, None, torch.float32), "3 rows need"),
        (lambda: int8_ops.multiply(A, B, FOUR, THREE, FOUR, torch.float32), "bias has shape"),
        (lambda: int8_ops.multiply(A, B, FOUR, THREE, None, torch.float64), "to torch.float64"),
        (
            lambda: int8_ops.dequantize_rowwise(A, THREE, torch.float32),
            "4 rows need as many scales",
        ),
    ],
)
def test_operators_refuse_what_kernels_would_not_notice(
    call: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(LayerError, match=sentence):
        call()


def test_torch_s_own_int8_product_is_exact() -> None:
    a = torch.randint(-127, 128, (20, 70), dtype=torch.int8)
    b = torch.randint(-127, 128, (70, 30), dtype=torch.int8)
    sums = torch.empty(20, 30, dtype=torch.int32)
    assert torch.equal(int8_cpu.multiply_int8(a, b, sums).long(), int8_plain.multiply_exactly(a, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantizing(compiler: str, dtype: torch.dtype) -> None:
    q = torch.randint(-127, 128, (9, 33), dtype=torch.int8)
    scales = torch.rand(9)
    scales[3] = torch.nan
    found = int8_ops.dequantize_rowwise(q, scales, dtype)
    expected = int8_plain.dequantize_rowwise(q, scales, dtype)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    assert found[3].isnan().all()


def test_operators_pass_torch_s_own_checks() -> None:
    x, w = torch.randn(6, 8), torch.randn(5, 8)
    checks = ("test_schema", "test_faketensor")
    for name in QUANTIZE:
        torch.library.opcheck(getattr(torch.ops.flopwatch, f"int8_{name}"), (x,), test_utils=checks)
    rows, scales = int8_ops.quantize_rowwise(x)
    weight, weight_scales = int8_ops.quantize_rowwise(w)
    torch.library.opcheck(
        torch.ops.flopwatch.int8_multiply,
        (rows, weight.t(), scales, weight_scales, torch.randn(5), torch.bfloat16),
        test_utils=checks,
    )
    torch.library.opcheck(
        torch.ops.flopwatch.int8_dequantize_rowwise,
        (rows, scales, torch.float16),
        test_utils=checks,
    )


def test_the_flop_counter_sees_the_product() -> None:
    a, b = torch.ones(4, 6, dtype=torch.int8), torch.ones(6, 5, dtype=torch.int8)
    with FlopCounterMode(display=False) as counter:
        int8_ops.multiply(a, b, torch.ones(4), torch.ones(()), None, torch.float32)
    assert counter.get_total_flops() == 2 * 4 * 6 * 5


def test_a_machine_s_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_cpu, "_has_vnni", lambda: True)
    assert int8_cpu.find_way() == "vnni"
    monkeypatch.setattr(int8_cpu, "_has_vnni", lambda: False)
    monkeypatch.setattr(native, "load", lambda name: "there is no C++ compiler")
    assert int8_cpu.find_way() == "float"
    said = int8_cpu.describe()
    assert said is not None
    assert "since there is no C++ compiler" in said


def test_onednn_capped_below_vnni_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    int8_cpu._has_vnni.cache_clear()
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert not int8_cpu._has_vnni()
    int8_cpu._has_vnni.cache_clear()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    assert int8_cpu._has_vnni()
    int8_cpu._has_vnni.cache_clear()


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    code = (
        "import torch\n"
        "from flopwatch.layers import int8_ops as o\n"
        "torch.manual_seed(0)\n"
        "x, w = torch.randn(700, 300), torch.randn(500, 300)\n"
        "a, s = o.quantize_rowwise(x)\n"
        "b, t = o.quantize_global(w)\n"
        "print(o.multiply(a, b.t(), s, t, None, torch.float32).double().sum().item())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OMP_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2", "3")
    }
    assert len(outputs) == 1
