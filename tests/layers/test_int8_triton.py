"""The int8 Triton kernels, in the interpreter, against plain torch: the same whole numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton has no build for this platform")

from flopwatch.layers import int8_plain
from flopwatch.layers.kernels import int8_triton, int8_triton_matmul
from flopwatch.layers.kernels.int8_tiles import TILES, Tile, list_tiles
from tests.triton_tools import interpret

QUANTIZERS = [
    "quantize_rowwise",
    "quantize_columnwise_transpose",
    "quantize_global",
    "quantize_global_transpose",
]
DTYPES = [
    torch.float32,
    pytest.param(torch.float16, marks=pytest.mark.slow),
    torch.bfloat16,
]
SHAPES = [
    (1, 1),
    (3, 5),
    (64, 64),
    (65, 63),
    (130, 70),
    (2, 1000),
    (300, 2),
    (0, 7),
    (7, 0),
    (0, 0),
]
"""Less than a tile, just one, no multiple of one, empty."""
WIDE = torch.randn(12, 30)
AWKWARD = {
    "zeros": torch.zeros(3, 4),
    "some zeros": torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 3.0]]),
    "below the smallest": torch.tensor([[2.0**-121, -(2.0**-130)], [2.0**-149, 0.0]]),
    "at the smallest": torch.tensor([[2.0**-120, -(2.0**-121)], [1.5 * 2.0**-120, 2.0**-126]]),
    "denormals among others": torch.tensor([[2.0**-149, 1.0, -(2.0**-140)]]),
    "the largest": torch.tensor([[3.4028235e38, -1e38, 2.0], [1.8e38, 1.7e38, -1.7e38]]),
    "nan": torch.tensor([[1.0, torch.nan, 2.0], [3.0, 4.0, 5.0]]),
    "nan and infinities": torch.tensor(
        [[torch.inf, 1.0, torch.nan], [-torch.inf, 2.0, 1.0], [-0.0, 7.0, -3.0]]
    ),
    "halves": torch.arange(-254, 255)[None, :] / 2.0,
    "transposed": torch.randn(9, 70).t(),
    "every other": WIDE[::2, ::3],
    "part of rows": WIDE[1:, 3:20],
}


@pytest.fixture(scope="module")
def interpreted() -> Iterator[ModuleType]:
    with interpret(int8_triton) as module:
        yield module


SMALL = Tile(64, 64, 128, 5, 4)


@pytest.fixture(scope="module")
def interpreted_product() -> Iterator[ModuleType]:
    """With one shape of tiles, because measuring more takes a GPU."""
    with interpret(int8_triton_matmul) as module:
        module.choose_way = lambda task: partial(module.run_tile, SMALL)
        yield module


def check(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for ours, plain in zip(found, expected, strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (plain.shape, plain.dtype, plain.stride())
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantizing(
    interpreted: ModuleType, name: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    x = torch.randn(shape).to(dtype)
    check(getattr(interpreted, name)(x), getattr(int8_plain, name)(x))


@pytest.mark.parametrize("case", AWKWARD)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantizing_what_is_awkward(
    interpreted: ModuleType, name: str, dtype: torch.dtype, case: str
) -> None:
    x = AWKWARD[case].to(dtype)
    check(getattr(interpreted, name)(x), getattr(int8_plain, name)(x))


@pytest.mark.parametrize("columns", [7, 8, 9, 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_longer_than_registers(
    interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, columns: int
) -> None:
    monkeypatch.setattr(interpreted, "ROW_TILE", 8)
    x = torch.randn(5, columns).to(dtype)
    x[1, -1] = torch.nan
    x[2, -1] = 1000.0
    check(interpreted.quantize_rowwise(x), int8_plain.quantize_rowwise(x))


@pytest.mark.parametrize("shape", [*SHAPES, (2, 1025)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantizing(interpreted: ModuleType, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    q, scales = torch.randint(-127, 128, shape, dtype=torch.int8), torch.rand(shape[0])
    found = interpreted.dequantize_rowwise(q, scales, dtype)
    check_rounded(found, int8_plain.dequantize_rowwise(q, scales, dtype))


def test_dequantizing_what_is_awkward(interpreted: ModuleType) -> None:
    q = torch.randint(-127, 128, (6, 10), dtype=torch.int8)
    scales = torch.tensor([1.0, torch.nan, 0.0])
    for part in (q[::2], q[:3, ::2], q.t()[1:4]):
        found = interpreted.dequantize_rowwise(part, scales, torch.float32)
        check_rounded(found, int8_plain.dequantize_rowwise(part, scales, torch.float32))


def check_rounded(found: Tensor, expected: Tensor) -> None:
    """Equal, but for bfloat16's last bit: the interpreter cuts where a GPU rounds."""
    rtol = 2.0**-7 if expected.dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(found, expected, rtol=rtol, atol=0, equal_nan=True)


Operands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def make_operands(m: int, n: int, k: int, one_scale: bool, with_bias: bool) -> Operands:
    a = torch.randint(-127, 128, (m, k), dtype=torch.int8)
    b = torch.randint(-127, 128, (k, n), dtype=torch.int8)
    b_scales = torch.rand(()) if one_scale else torch.rand(n)
    return a, b, torch.rand(m), b_scales, torch.randn(n) if with_bias else None


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (5, 3, 7), (64, 64, 128), (65, 129, 130), (640, 70, 20), (3, 4, 0), (0, 4, 5),
     (4, 0, 5)],
)  # fmt: skip
@pytest.mark.parametrize("one_scale", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_product(
    interpreted_product: ModuleType, m: int, n: int, k: int, one_scale: bool, with_bias: bool
) -> None:
    operands = make_operands(m, n, k, one_scale, with_bias)
    found = interpreted_product.multiply(*operands, torch.float32)
    check_rounded(found, int8_plain.multiply(*operands, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias_dtype", DTYPES)
def test_dtypes_of_products(
    interpreted_product: ModuleType, dtype: torch.dtype, bias_dtype: torch.dtype
) -> None:
    a, b, a_scales, b_scales, _ = make_operands(9, 10, 33, one_scale=False, with_bias=False)
    operands = (a, b, a_scales / 1000, b_scales, torch.randn(10).to(bias_dtype))
    found = interpreted_product.multiply(*operands, dtype)
    check_rounded(found, int8_plain.multiply(*operands, dtype))


def test_sums_are_exact(interpreted_product: ModuleType) -> None:
    """Beyond what float32 could add up: the last step alone rounds."""
    k = 1 + 2**24 // 127**2
    a, b = torch.full((1, k), 127, dtype=torch.int8), torch.full((k, 2), 127, dtype=torch.int8)
    b[-1] = torch.tensor([126, -127], dtype=torch.int8)
    found = interpreted_product.multiply(a, b, torch.ones(1), torch.ones(()), None, torch.float32)
    assert torch.equal(found, int8_plain.multiply_exactly(a, b).float())


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.t().contiguous().t(),
    "parts of rows": lambda x: torch.cat([x, x], 1)[:, x.shape[1] :],
    "neither": lambda x: x.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.parametrize("size", [144, 67])
@pytest.mark.parametrize("b_place", PLACES)
@pytest.mark.parametrize("a_place", PLACES)
def test_product_of_views(
    interpreted_product: ModuleType, a_place: str, b_place: str, size: int
) -> None:
    a, b, *rest = make_operands(5, size, size, one_scale=False, with_bias=True)
    views = PLACES[a_place](a), PLACES[b_place](b)
    found = interpreted_product.multiply(*views, *rest, torch.float32)
    check_rounded(found, int8_plain.multiply(a, b, *rest, torch.float32))


def test_aligned_rows_are_not_copied() -> None:
    whole = torch.zeros(4, 64, dtype=torch.int8)
    for x in (whole, whole[:, 16:48], whole[::2]):
        assert int8_triton_matmul.align(x) is x
    for x in (
        whole[:, :9],
        whole[:, 1:17],
        whole.view(-1)[: 4 * 40].view(8, 20)[:, :16],
        whole.t(),
    ):
        assert int8_triton_matmul.align(x).shape[1] == -(-x.shape[1] // 16) * 16
        assert int8_triton_matmul.is_aligned(int8_triton_matmul.align(x))


def test_what_is_not_finite_stays(interpreted_product: ModuleType) -> None:
    operands = make_operands(4, 5, 6, one_scale=False, with_bias=False)
    operands[2][1] = torch.nan
    operands[3][2] = torch.nan
    found = interpreted_product.multiply(*operands, torch.float32)
    assert found.isnan().sum() == 5 + 4 - 1
    check_rounded(found, int8_plain.multiply(*operands, torch.float32))


WAYS = {replace(tile, stages=1, warps=1): tile for tiles in TILES.values() for tile in tiles}
"""Those that differ for the interpreter."""


@pytest.mark.parametrize("tile", WAYS.values(), ids=str)
def test_every_tile(interpreted_product: ModuleType, tile: Tile) -> None:
    a, b, *rest = make_operands(257, 272, 208, one_scale=False, with_bias=True)
    check_way(interpreted_product, partial(interpreted_product.run_tile, tile), a, b, *rest)


def test_splits_and_ends_of_the_inner_dimension(interpreted_product: ModuleType) -> None:
    """More splits than there are parts, and a last part that is cut short."""
    for splits, k in ((2, 64), (16, 208), (3, 1040)):
        tile = Tile(64, 64, 128, 2, 4, splits=splits)
        a, b, *rest = make_operands(5, 70, k, one_scale=True, with_bias=False)
        check_way(interpreted_product, partial(interpreted_product.run_tile, tile), a, b, *rest)


@pytest.mark.parametrize("one_scale", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_torch_s_own_product(
    interpreted_product: ModuleType, one_scale: bool, with_bias: bool
) -> None:
    operands = make_operands(33, 1032, 64, one_scale, with_bias)
    check_way(interpreted_product, interpreted_product.run_int_mm, *operands)


def check_way(
    module: ModuleType,
    way: Callable[[Any], None],
    a: Tensor,
    b: Tensor,
    a_scales: Tensor,
    b_scales: Tensor,
    bias: Tensor | None,
) -> None:
    aligned = module.align(b.t()).t()
    out = torch.full((len(a), b.shape[1]), torch.nan)
    way(module.Task(module.align(a), aligned, a_scales, b_scales, bias, out))
    expected = int8_plain.multiply(a, b, a_scales, b_scales, bias, torch.float32)
    check_rounded(out, expected)


def list_sides(architecture: str, m: int, n: int, k: int = 64, **given: Any) -> set[Any]:
    where = {"processors": 100, "contiguous": True, **given}
    return {(tile.m, tile.n) for tile in list_tiles(architecture, m, n, k, **where)}


def test_what_is_tried_depends_on_sizes() -> None:
    everything = {(128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64)}
    assert list_sides("sm_80", 4096, 4096) == everything
    assert list_sides("sm_120", 128, 1) == {(128, 64), (64, 64)}
    assert list_sides("sm_90", 1, 256) == {(64, 64), (64, 128), (64, 256)}
    assert list_sides("gfx942", 1, 1) == {(64, 64)}


@pytest.mark.parametrize("architecture", TILES)
def test_few_tokens_share_the_inner_dimension(architecture: str) -> None:
    def find_splits(m: int, k: int) -> set[int]:
        tiles = list_tiles(architecture, m, 768, k, processors=100, contiguous=True)
        return {tile.splits for tile in tiles}

    assert find_splits(16, 4096) == {1, 4, 16}
    assert find_splits(16, 1024) == {1, 4}  # too short for 16
    assert find_splits(4096, 4096) == {1}  # tiles enough


def test_persistent_programs_need_columns_in_one_piece_and_work() -> None:
    def has_persistent(m: int, n: int = 4096, contiguous: bool = True) -> bool:
        tiles = list_tiles("sm_90", m, n, 4096, processors=100, contiguous=contiguous)
        return any(tile.persistent for tile in tiles)

    assert has_persistent(4096)
    assert not has_persistent(4096, contiguous=False)
    assert not has_persistent(4096, n=4090)
    assert not has_persistent(64)


def test_similar_batches_have_one_choice_and_each_way_of_b_its_own(
    interpreted_product: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def choose(task: Any) -> Callable[[Any], None]:
        asked.append(task.key)
        return partial(interpreted_product.run_tile, SMALL)

    monkeypatch.setattr(interpreted_product, "choose_way", choose)
    monkeypatch.setattr(interpreted_product, "_chosen", {})
    a, b, *rest = make_operands(70, 48, 64, one_scale=False, with_bias=True)
    other = b.t().contiguous().t()
    scales, *rest = rest
    for m, way, expected in ((70, b, 1), (70, b, 1), (65, b, 1), (64, b, 2), (70, other, 3)):
        found = interpreted_product.multiply(a[:m], way, scales[:m], *rest, torch.float32)
        check_rounded(found, int8_plain.multiply(a[:m], b, scales[:m], *rest, torch.float32))
        assert len(asked) == expected


SECOND_PROCESS = """
import torch
from flopwatch.layers.kernels import int8_triton_matmul, kernel_tuner

times_ms = iter(range(100, 0, -1))
measured = []

def measure(way):
    way()
    measured.append(way)
    return next(times_ms)

kernel_tuner.measure = measure
a = torch.ones(70, 64, dtype=torch.int8)
b = torch.ones(64, 48, dtype=torch.int8)
task_sizes = torch.ones(70), torch.ones(48)
out = int8_triton_matmul.multiply(a, b, *task_sizes, None, torch.float32)
assert (out == 64).all()
(chosen,) = int8_triton_matmul._chosen.values()
print(len(measured), getattr(chosen, "__name__", chosen))
"""


def test_another_process_does_not_measure_again(tmp_path: Path) -> None:
    def run() -> tuple[int, str]:
        environ = {**os.environ, "TRITON_INTERPRET": "1", "XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", SECOND_PROCESS]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        count, _, chosen = done.stdout.strip().partition(" ")
        return int(count), chosen

    assert run() == (3, "run_int_mm")  # two shapes of tiles, and torch's own, the last
    assert run() == (0, "run_int_mm")
