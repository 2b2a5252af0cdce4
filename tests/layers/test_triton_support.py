"""Where Triton's kernels cannot run, layers compute in eager torch, and say so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from flopwatch.layers import Dyad, SwitchBack, dyad_matmul, int8_ops, int8_plain, layer_workload
from flopwatch.layers.kernels import triton_support


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What was found out about Triton."""
    triton_support.find_obstacle.cache_clear()
    yield
    triton_support.find_obstacle.cache_clear()


COMPILERS = {
    "missing": ("no/such/compiler", "No such file"),
    "broken": ("false", "(false fails with exit code 1)"),
    "none": (None, "Failed to find C compiler"),
}


@pytest.fixture(params=COMPILERS)
def broken_compiler(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    """A GPU, as far as Triton can see, and a C compiler that does not work; what Triton says."""
    nvidia = pytest.importorskip("triton.backends.nvidia.driver")
    from triton.runtime import driver

    compiler, sentence = COMPILERS[request.param]
    if compiler is None:
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(nvidia, "libcuda_dirs", lambda: [str(tmp_path)])
    nvidia.library_dirs.cache_clear()
    monkeypatch.setattr(nvidia.CudaDriver, "is_active", staticmethod(lambda: True))
    monkeypatch.setattr(driver, "_default", None)
    monkeypatch.setattr(driver, "_active", None)
    # The tensors of this test are on the CPU, which the layers take for that GPU.
    monkeypatch.setitem(triton_support.BACKENDS, "cpu", ("cuda",))
    monkeypatch.setattr(dyad_matmul, "is_host", lambda device: False)
    monkeypatch.setattr(int8_ops, "is_host", lambda device: False)
    return sentence


def test_dyad_without_a_working_c_compiler(broken_compiler: str) -> None:
    layer = Dyad(8, 12, 4, "dt", dtype=torch.float64)
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, functional.linear(x, layer.to_dense(), layer.bias))
    y.sum().backward()
    torch.testing.assert_close(x.grad, layer.to_dense().sum(0).expand(5, 8))
    (note,) = layer_workload.list_notes("dyad:dt:4", "cpu")
    assert note.startswith("the copies of DYAD run in eager torch, since Triton cannot start here")
    assert broken_compiler in note


def test_int8_without_a_working_c_compiler(broken_compiler: str) -> None:
    assert int8_ops.find_module("cpu") == int8_ops.EAGER_MODULE
    layer = SwitchBack(8, 12)
    assert layer(torch.randn(5, 8)).isfinite().all()
    (note,) = layer_workload.list_notes("switchback:rowwise", "cpu")
    assert note.startswith("int8 layers run in eager torch, since Triton cannot start here")
    assert broken_compiler in note


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.runtime", None)
    assert triton_support.find_obstacle("cuda") == "Triton is not installed"


def test_devices_that_triton_does_not_know() -> None:
    """Such as one that another package brings."""
    assert triton_support.find_obstacle("flop") == "Triton has no backend for flop"
    assert int8_ops.find_module("flop") == int8_ops.EAGER_MODULE
    assert int8_ops.find_module("cpu") == int8_ops.HOST_MODULE
    (note,) = layer_workload.list_notes("dyad:it:4", "flop")
    assert "since Triton has no backend for flop" in note
    assert layer_workload.list_notes("dyad:it:4", "cpu") == []
    assert layer_workload.list_notes("dense", "flop") == []


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (33, 2088, 16), (17, 24, 5), (0, 3, 4),
                                           (7, 0, 4), (20, 2083, 24)])  # fmt: skip
def test_int8_on_other_devices(monkeypatch: pytest.MonkeyPatch, m: int, k: int, n: int) -> None:
    """By torch's own int8 matmul where sizes allow it, or in parts that float32 adds up exactly."""
    monkeypatch.setattr(int8_ops, "is_host", lambda device: False)
    assert int8_ops.find_module("cpu") == int8_ops.EAGER_MODULE
    x, weight = torch.randn(m, k), torch.randn(n, k)
    a, a_scales = int8_ops.quantize_rowwise(x)
    assert torch.equal(a, int8_plain.quantize_rowwise(x)[0])
    b, b_scales = int8_ops.quantize_global(weight)
    operands = (a, b.t(), a_scales, b_scales, torch.randn(n), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = int8_ops.multiply(*operands)
    assert torch.equal(found, int8_plain.multiply(*operands))
