"""Every Triton kernel of the package, compiled for GPUs that need not be there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no build for this platform")

import flopwatch

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "kernels.py"
sys.path.append(str(BENCHMARK.parent))

from kernel_catalog import (  # noqa: E402
    SHARED_LIMITS_BYTES,
    TARGETS,
    Build,
    Resources,
    compile_build,
    list_builds,
    list_dyad,
    list_matmuls,
    list_quantizing,
)

TENSOR_CORES = {80: "mma.sync.aligned.m16n8k32.row.col", 90: "wgmma.mma_async.sync.aligned.m64n"}


def name_builds(target: int, builds: list[Build]) -> list[object]:
    return [pytest.param(b, target, id=f"{target}-{b.name}-{b.case}") for b in builds]


def check(build: Build, target: int) -> Resources:
    taken = compile_build(build, target)
    assert taken.registers > 0
    assert (taken.spill_store_bytes, taken.spill_load_bytes) == (0, 0)
    assert taken.shared_bytes <= SHARED_LIMITS_BYTES[target]
    return taken


@pytest.mark.parametrize(
    ("build", "target"),
    [case for t in TARGETS for case in name_builds(t, [*list_dyad(), *list_quantizing()])],
)
def test_passes_over_memory_compile(build: Build, target: int) -> None:
    taken = check(build, target)
    assert taken.tensor_cores is None
    if build.name.startswith("quantize"):  # all is rounded as in plain torch
        assert "div.rn.f32" in taken.ptx
        assert "div.full" not in taken.ptx
        assert "fma." not in taken.ptx


FEW = {target: list(list_matmuls(target))[:3] for target in TARGETS}
"""One configuration in all its forms."""


@pytest.mark.parametrize(
    ("build", "target"), [case for t in TARGETS for case in name_builds(t, FEW[t])]
)
def test_products_compile(build: Build, target: int) -> None:
    check_product(build, target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "target"),
    [case for t in TARGETS for case in name_builds(t, list(list_matmuls(t))[len(FEW[t]) :])],
)
def test_products_of_every_configuration_compile(build: Build, target: int) -> None:
    check_product(build, target)


def check_product(build: Build, target: int) -> None:
    """Int8 on tensor cores, fed by asynchronous copies of 16 bytes."""
    taken = check(build, target)
    assert taken.tensor_cores is not None
    assert taken.tensor_cores.startswith(TENSOR_CORES[target])
    assert ".s32.s8.s8" in taken.tensor_cores
    assert "cp.async.cg.shared.global [ %r" in taken.ptx


@pytest.mark.parametrize("target", TARGETS)
def test_transposing_reads_and_writes_neighbours_together(target: int) -> None:
    builds = {build.case: build for build in list_quantizing()}
    ptx = compile_build(builds["fp32, by column, transposed"], target).ptx
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx  # 16 of int8


def test_the_benchmark_prints_what_kernels_take() -> None:
    command = [sys.executable, BENCHMARK, "--kernel", "read_both_kernel", "--target", "90"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[1] == "sm_90"
    assert [line.split()[:2] for line in lines[3:-2]] == [
        ["read_both_kernel", dtype] for dtype in ("fp32", "bf16", "fp16", "fp64")
    ]
    assert lines[-1] == "all figures reached"


def test_the_benchmark_says_that_triton_is_missing() -> None:
    code = (
        f"import runpy, sys; sys.modules['triton'] = None; sys.argv = ['']; "
        f"sys.path.insert(0, {str(BENCHMARK.parent)!r}); "
        f"runpy.run_path({str(BENCHMARK)!r}, run_name='__main__')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Triton is missing: install it with `pip install triton` (Linux).\n"


def test_the_catalogue_has_what_is_launched() -> None:
    launched = set()
    for path in Path(flopwatch.__file__).parent.rglob("*.py"):
        launched |= find_launched(path.read_text())
    assert launched == {build.name for target in TARGETS for build in list_builds(target)}


def find_launched(source: str) -> set[str]:
    """The functions under @triton.jit that the module calls with a grid: `kernel[grid](...)`."""
    nodes = list(ast.walk(ast.parse(source)))
    kernels = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(one).startswith("triton.jit") for one in node.decorator_list)
    }
    called = {
        ast.unparse(node.func.value)
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    }
    return kernels & called
