"""Every Triton kernel of the package as it is compiled, and what it takes of a GPU: registers,
shared memory, spills. Compiling needs no GPU. `kernels.py` prints it, and a test checks it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from typing import Any

import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from flopwatch.layers.kernels import dyad_triton, int8_triton, int8_triton_matmul

TARGETS = (80, 90)
"""A100 and H100."""

FLOATS = ("fp32", "bf16", "fp16")
NO_BIAS = {"HAS_BIAS": False, "bias": None}


@dataclass(frozen=True)
class Build:
    """A kernel with all that the compiler has to know of its arguments.

    What is neither a constant nor a pointer is a size. Of all but the odd ones the compiler is told
    that they are multiples of 16, as most are in a model.
    """

    kernel: Any
    case: str
    pointers: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, int] = field(default_factory=dict)
    odd: frozenset[str] = frozenset()
    size: str = "i32"

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @property
    def function(self) -> JITFunction:
        """The kernel itself, without what chooses its configuration."""
        kernel = self.kernel
        while not isinstance(kernel, JITFunction):
            kernel = kernel.fn
        return kernel


def list_builds(target: int) -> list[Build]:
    """All for sm_<target>."""
    return [*list_dyad(), *list_quantizing(), *list_matmuls(target)]


def list_dyad() -> Iterator[Build]:
    for dtype in (*FLOATS, "fp64"):
        both = {"rows": f"*{dtype}", "both": f"*{dtype}"}
        blocks = {"BLOCKS": 4, "TILE": dyad_triton.TILE}
        wide = {"HAS_BIAS": True, "WIDE": tl.float64 if dtype == "fp64" else tl.float32}
        yield Build(dyad_triton.read_both_kernel, dtype, both, blocks)
        yield Build(
            dyad_triton.write_both_kernel, dtype, {**both, "bias": f"*{dtype}"}, {**wide, **blocks}
        )


def list_quantizing() -> Iterator[Build]:
    """Each for every dtype, then once for a large matrix that is a multiple of nothing."""
    for dtype in FLOATS:
        yield from _list_quantizing(dtype, dtype)
    odd = frozenset({"x", "q", "out", "rows", "columns", "row_stride"})
    for build in _list_quantizing("fp32", "fp32, odd"):
        yield replace(build, odd=odd, size="i64")


def _list_quantizing(dtype: str, case: str) -> Iterator[Build]:
    x, q = {"x": f"*{dtype}"}, {"q": "*i8", "scales": "*fp32"}
    tile = int8_triton.ROW_TILE
    warps = {"num_warps": int8_triton.choose_warps(tile)}
    for whole, length in ((True, "whole"), (False, "long")):
        yield Build(
            int8_triton.quantize_rowwise_kernel,
            f"{case}, {length} row",
            {**x, **q},
            {"WHOLE": whole, "TILE": tile},
            warps,
        )
    yield Build(
        int8_triton.dequantize_rowwise_kernel,
        case,
        {**q, "out": f"*{dtype}"},
        {"TILE": int8_triton.DEQUANTIZE_TILE},
    )
    tiles = {"ROWS": int8_triton.TILE_ROWS, "COLUMNS": int8_triton.TILE_COLUMNS}
    warps = {"num_warps": int8_triton.TILE_WARPS}
    x["largest"] = "*i32"
    for by_column, scale in ((True, "by column"), (False, "global")):
        constants = {"BY_COLUMN": by_column, **tiles}
        yield Build(int8_triton.find_largest_kernel, f"{case}, {scale}", x, constants, warps)
    for by_column, transposed, form in (
        (True, True, "by column, transposed"),
        (False, True, "global, transposed"),
        (False, False, "global"),
    ):
        yield Build(
            int8_triton.quantize_tile_kernel,
            f"{case}, {form}",
            {**x, **q},
            {"BY_COLUMN": by_column, "TRANSPOSED": transposed, **tiles},
            warps,
        )


def list_matmuls(target: int) -> Iterator[Build]:
    """Each configuration for the two ways in which b can lie, and for sizes that fit no tile."""
    for config in int8_triton_matmul.list_configs(target):
        tile = "x".join(str(config.kwargs[name]) for name in ("TILE_M", "TILE_N", "TILE_K"))
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        for dtype, form, constants in (
            ("bf16", "columns of b", {"b_row_stride": 1, "EVEN_K": True, "HAS_BIAS": True}),
            ("fp32", "rows of b", {"b_column_stride": 1, "EVEN_K": True, **NO_BIAS}),
            ("fp16", "odd", {"b_row_stride": 1, "EVEN_K": False, "HAS_BIAS": True}),
        ):
            yield Build(
                int8_triton_matmul.multiply_kernel,
                f"{dtype}, {form}, {tile}",
                {"a": "*i8", "b": "*i8", "a_scales": "*fp32", "b_scales": "*fp32"}
                | {"bias": f"*{dtype}", "out": f"*{dtype}"},
                {"ONE_B_SCALE": form == "rows of b", **constants, **config.kwargs},
                options,
                odd=frozenset({"m_bucket", "m", "n"} if form == "odd" else {"m_bucket"}),
            )


SHARED_LIMITS_BYTES = {80: 163 * 1024, 90: 227 * 1024}
"""Of one block of threads, by target."""
TENSOR_CORES = re.compile(r"\b(?:wgmma\.mma_async|mma)\.sync\.aligned\.[\w.]+")
REPORT = re.compile(
    r"(?P<store>\d+) bytes spill stores, (?P<load>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclass(frozen=True)
class Resources:
    """Registers are of a thread, shared memory is of a block."""

    registers: int
    shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    tensor_cores: str | None
    """The instruction that uses them, if any does."""
    ptx: str


def compile_build(build: Build, target: int) -> Resources:
    """The build, compiled to machine code of sm_<target>, past Triton's cache."""
    with _listen() as log:
        compiled = compile(
            make_source(build), target=GPUTarget("cuda", target, 32), options=dict(build.options)
        )
    report = REPORT.search(log.getvalue())
    assert report is not None, f"ptxas said nothing of {build.name}: {log.getvalue()}"
    ptx = compiled.asm["ptx"]
    assert f".target sm_{target}" in ptx
    instruction = TENSOR_CORES.search(ptx)
    return Resources(
        registers=int(report["registers"]),
        shared_bytes=compiled.metadata.shared,
        spill_store_bytes=int(report["store"]),
        spill_load_bytes=int(report["load"]),
        tensor_cores=instruction[0] if instruction else None,
        ptx=ptx,
    )


def make_source(build: Build) -> Any:
    """The build in the terms of Triton's compiler."""
    given = {**build.pointers, **dict.fromkeys(build.constants, "constexpr")}
    signature = {name: given.get(name, build.size) for name in build.function.arg_names}
    hints = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind != "constexpr" and name not in build.odd
    }
    return ASTSource(build.function, signature, dict(build.constants), hints)


@contextmanager
def _listen() -> Iterator[io.StringIO]:
    """What ptxas says of registers, which Triton prints if asked, and only if it compiles anew."""
    log = io.StringIO()
    with knobs.compilation.scope(), knobs.nvidia.scope(), redirect_stdout(log):
        knobs.compilation.always_compile = True
        knobs.nvidia.dump_ptxas_log = True
        yield log
