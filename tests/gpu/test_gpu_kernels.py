"""Kernels beside their plain references, at the sizes that they are made for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flopwatch.devices.base import open_backend
from flopwatch.suites.case import Case
from flopwatch.suites.catalog import find_suite, load_suite
from flopwatch.worker import agreement

pytestmark = pytest.mark.gpu

SHAPES = [(4096, 16384), (16384, 4096), (768, 3072), (1000, 3000)]
DYADS = ["dyad:auto:4", "dyad:auto:8", "dyad:it:4", "dyad:ot:4", "dyad:dt:4", "dyad:it:4:published"]
INT8 = ["switchback:rowwise", "switchback:global", "switchback:global:int8", "llm-int8"]
PARTS = ["parts:standard", "parts:rowwise", "parts:global", "parts:casts"]


def check(suite_name: str, variant: str, device: str, **params: Any) -> None:
    """That outputs and all gradients of a case agree with its reference's."""
    suite = load_suite(find_suite(suite_name).path)
    case = Case(suite=suite_name, variant=variant, params=params, device=device)
    backend = open_backend(device)
    torch.manual_seed(0)
    found = agreement.gather(suite.build_case(case), backend.clock).values
    torch.manual_seed(0)
    reference = suite.build_reference(case)
    assert reference is not None
    expected = agreement.gather(reference, backend.clock).values
    backend.synchronize()
    tolerance = suite.tolerance(case)
    assert agreement.compare(found, expected, against="the reference", tolerance=tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("variant", DYADS)
def test_dyad(device: str, variant: str, shape: tuple[int, int], dtype: str) -> None:
    sizes = {"level": "layer", "tokens": 4096, "shape": list(shape)}
    check("dyad", variant, device, **sizes, dtype=dtype, autocast="off")


@pytest.mark.parametrize("tokens", [16, 1000, 16384])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", [*INT8, *PARTS])
def test_int8(device: str, variant: str, shape: tuple[int, int], tokens: int) -> None:
    sizes = {"level": "layer", "tokens": tokens, "shape": list(shape)}
    check("switchback", variant, device, **sizes, dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("variant", ["plain", "compiled", "sdpa"])
def test_attention(device: str, variant: str, dtype: str) -> None:
    sizes = {"micro_batch": 2, "heads": 16, "head_size": 128, "seq_len": 2048}
    check("attention", variant, device, **sizes, dtype=dtype)


@pytest.mark.parametrize("variant", ["relu", "gelu", "gelu_tanh", "silu", "relu_squared"])
def test_activations(device: str, variant: str) -> None:
    check("activations", variant, device, shape=[16384, 8192], dtype="bfloat16")
