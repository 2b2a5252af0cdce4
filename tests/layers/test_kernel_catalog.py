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

INSTRUCTIONS = {
    "sm_80": "mma.sync.aligned.m16n8k32.row.col",
    "sm_90": "wgmma.mma_async.sync.aligned.m64n",
    "sm_100": "mma.sync.aligned.m16n8k32.row.col",
    "sm_120": "mma.sync.aligned.m16n8k32.row.col",
    "gfx942": "v_mfma_i32_",
}
"""What multiplies int8 on each."""
OLDER = ("sm_80", "sm_90")
"""For which every dtype is compiled in `make test`; one will do for the others, and the benchmark
compiles all."""


def name_builds(builds: dict[str, list[Build]]) -> list[object]:
    return [
        pytest.param(build, target, id=f"{target}-{build.name}-{build.case}")
        for target, some in builds.items()
        for build in some
    ]


def check(build: Build, target: str) -> Resources:
    taken = compile_build(build, target)
    assert taken.registers > 0
    assert (taken.spill_store_bytes, taken.spill_load_bytes) == (0, 0)
    assert taken.shared_bytes <= SHARED_LIMITS_BYTES[target]
    return taken


PASSES = {target: [*list_dyad(), *list_quantizing()] for target in TARGETS}
FEW_PASSES = {
    target: [b for b in builds if target in OLDER or b.case.startswith("bf16")]
    for target, builds in PASSES.items()
}


@pytest.mark.parametrize(("build", "target"), name_builds(FEW_PASSES))
def test_passes_over_memory_compile(build: Build, target: str) -> None:
    check_pass(build, target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "target"),
    name_builds({t: [b for b in PASSES[t] if b not in FEW_PASSES[t]] for t in TARGETS}),
)
def test_passes_over_memory_compile_for_every_dtype(build: Build, target: str) -> None:
    check_pass(build, target)


def check_pass(build: Build, target: str) -> None:
    taken = check(build, target)
    assert taken.matrix_instruction is None
    if build.name.startswith("quantize") and target.startswith("sm"):
        # All is rounded as in plain torch.
        assert "div.rn.f32" in taken.assembly
        assert "div.full" not in taken.assembly
        assert "fma." not in taken.assembly


MATMULS = {target: list(list_matmuls(target)) for target in TARGETS}
FEW_MATMULS = {
    target: [
        *[b for b in builds if b.name == "multiply_kernel"][:3],  # one tile in all its forms
        *[b for b in builds if b.name == "multiply_kernel" and "splits" in b.case][:1],
        *[b for b in builds if b.name == "multiply_persistent_kernel"][:1],
        *[b for b in builds if b.name == "scale_sums_kernel"][:1],
    ]
    for target, builds in MATMULS.items()
}


@pytest.mark.parametrize(("build", "target"), name_builds(FEW_MATMULS))
def test_products_compile(build: Build, target: str) -> None:
    check_product(build, target)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "target"),
    name_builds({t: [b for b in MATMULS[t] if b not in FEW_MATMULS[t]] for t in TARGETS}),
)
def test_products_of_every_tile_compile(build: Build, target: str) -> None:
    check_product(build, target)


def check_product(build: Build, target: str) -> None:
    """Int8 on tensor cores; on NVIDIA's fed by asynchronous copies of 16 bytes, or by TMA."""
    taken = check(build, target)
    if build.name == "scale_sums_kernel":
        assert taken.matrix_instruction is None
        return
    assert taken.matrix_instruction is not None
    assert taken.matrix_instruction.startswith(INSTRUCTIONS[target])
    if target.startswith("gfx"):
        assert taken.matrix_instruction.endswith("_i8")
        return
    assert ".s32.s8.s8" in taken.matrix_instruction
    is_persistent = build.name == "multiply_persistent_kernel"
    copy = "cp.async.bulk.tensor" if is_persistent else "cp.async.cg.shared.global [ %r"
    assert copy in taken.assembly


@pytest.mark.parametrize("target", OLDER)
def test_transposing_reads_and_writes_neighbours_together(target: str) -> None:
    builds = {build.case: build for build in list_quantizing()}
    ptx = compile_build(builds["fp32, by column, transposed"], target).assembly
    assert "ld.global.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx  # 16 of int8


def test_the_benchmark_prints_what_kernels_take() -> None:
    command = [sys.executable, BENCHMARK, "--kernel", "read_both_kernel", "--target", "sm_90"]
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
