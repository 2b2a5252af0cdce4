"""DYAD's Triton kernels, in the interpreter, against the plain versions."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no build for this platform")

from flopwatch.layers import Dyad, dyad_matmul
from flopwatch.layers.dyad_layer import FORMS
from flopwatch.layers.kernels import dyad_triton as kernels
from tests.triton_tools import interpret

SHAPES = [(1, 4, 4), (5, 12, 3), (3, 2, 2), (2, 3072, 4), (7, 1032, 8), (4, 1024, 1), (0, 8, 4)]
"""Tokens, features, blocks: less than a tile, more than one, and no multiple of one."""


@pytest.fixture(scope="module")
def interpreted() -> Iterator[ModuleType]:
    with interpret(kernels) as module:
        yield module


@pytest.mark.parametrize(("tokens", "features", "blocks"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_read_both(
    interpreted: ModuleType, tokens: int, features: int, blocks: int, dtype: torch.dtype
) -> None:
    rows = torch.randn(tokens, features, dtype=dtype)
    expected = dyad_matmul.read_both(rows, blocks)
    assert torch.equal(interpreted.read_both(rows, blocks), expected)


def test_read_both_of_strided_rows(interpreted: ModuleType) -> None:
    wide = torch.randn(6, 24)
    for rows in (wide[:, :12], wide[::2], wide[:, ::2], torch.randn(12, 6).t()):
        assert torch.equal(interpreted.read_both(rows, 3), dyad_matmul.read_both(rows, 3))


@pytest.mark.parametrize(("tokens", "features", "blocks"), SHAPES)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_write_both(
    interpreted: ModuleType,
    tokens: int,
    features: int,
    blocks: int,
    with_bias: bool,
    dtype: torch.dtype,
) -> None:
    both = torch.randn(blocks, tokens, 2 * features // blocks, dtype=dtype)
    bias = torch.randn(features, dtype=dtype) if with_bias else None
    found, expected = torch.full((2, tokens, features), torch.nan, dtype=dtype)
    interpreted.write_both(both, bias, found)
    dyad_matmul.write_both(both, bias, expected)
    # The kernel rounds once, the plain version after every addition.
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.float16 else {}
    torch.testing.assert_close(found, expected, **tolerance)


def test_write_both_into_strided_rows(interpreted: ModuleType) -> None:
    both, wide = torch.randn(3, 6, 8), torch.zeros(6, 24)
    interpreted.write_both(both, None, wide[:, :12])
    expected = torch.empty(6, 12)
    dyad_matmul.write_both(both, None, expected)
    torch.testing.assert_close(wide[:, :12], expected)
    assert not wide[:, 12:].any()


@pytest.mark.parametrize("variant", ["it", "ot", "dt"])
def test_the_whole_layer_with_kernels(
    interpreted: ModuleType, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: the fast product with the kernels in the place of the plain copies."""
    monkeypatch.setattr(dyad_matmul, "_find_kernels", lambda rows: interpreted)
    monkeypatch.setattr(dyad_matmul, "HOST_PART_TOKENS", 3)
    layer = Dyad(8, 12, 4, variant, dtype=torch.float64)
    x = torch.randn(7, 8, dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return FORMS["fast"](x, weight, bias, layer.structure)

    torch.testing.assert_close(
        layer(x), torch.nn.functional.linear(x, layer.to_dense(), layer.bias)
    )
    assert torch.autograd.gradcheck(function, (x, layer.weight, layer.bias), fast_mode=True)
