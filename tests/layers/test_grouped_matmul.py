"""Matmuls of groups, by torch's kernel or expert by expert, and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.layers import grouped_matmul
from flopwatch.layers.grouped_matmul import has_kernel, multiply_groups, multiply_plainly

ROWS = [(3, 0, 5, 4), (0, 0, 12, 0), (0, 0, 0, 0), (12, 0, 0, 0)]


def make(
    rows: tuple[int, ...], inputs: int, outputs: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(sum(rows), inputs, dtype=dtype, requires_grad=True)
    weight = torch.randn(len(rows), outputs, inputs, dtype=dtype, requires_grad=True)
    return x, weight, torch.tensor(rows).cumsum(0).int()


def compare(rows: tuple[int, ...], inputs: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight, ends = make(rows, inputs, outputs, dtype)
    found = []
    for multiply in (multiply_groups, multiply_plainly):
        y = multiply(x, weight, ends)
        gradient = torch.linspace(-1, 1, y.numel(), dtype=dtype).view(y.shape)
        found.append([y, *torch.autograd.grad(y, [x, weight], gradient)])
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected)
    of_weight = found[0][2]
    for number, count in enumerate(rows):  # zeros, where an expert has no rows
        assert bool(of_weight[number].any()) == bool(count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 24), (5, 7)])
def test_it_is_the_plain_formula(
    rows: tuple[int, ...], inputs: int, outputs: int, dtype: torch.dtype
) -> None:
    compare(rows, inputs, outputs, dtype)


def test_without_a_kernel_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_matmul, "has_kernel", lambda *_: False)
    for rows in ROWS:
        compare(rows, 16, 24, torch.float32)


def test_a_kernel_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_kernel("cpu", torch.float64)
    monkeypatch.delattr(torch, "_grouped_mm", raising=False)
    assert not has_kernel.__wrapped__("cpu", torch.float32)


def test_it_follows_autocast() -> None:
    x, weight, ends = make(ROWS[0], 16, 24, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = multiply_groups(x, weight, ends)
    assert y.dtype == torch.bfloat16
    of_x, of_weight = torch.autograd.grad(y.sum(), [x, weight])
    assert of_x.dtype == of_weight.dtype == torch.float32


def test_its_flops_are_counted() -> None:
    """FlopCounterMode counts none for an operator that it does not know."""
    x, weight, ends = make(ROWS[0], 16, 24, torch.float32)
    with FlopCounterMode(display=False) as counter:
        y = multiply_groups(x, weight, ends)
        forward = counter.get_total_flops()
        y.sum().backward()
    assert forward == 2 * 12 * 16 * 24
    assert counter.get_total_flops() == 3 * forward


def test_it_is_an_operator_of_torch() -> None:
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    arguments = make(ROWS[0], 16, 24, torch.float32)
    torch.library.opcheck(torch.ops.flopwatch.grouped_matmul, arguments, test_utils=checks)
    gradient = torch.randn(12, 24)
    torch.library.opcheck(
        torch.ops.flopwatch.grouped_matmul_weight_gradient,
        (gradient, arguments[0].detach(), arguments[2]),
        test_utils=checks,
    )
