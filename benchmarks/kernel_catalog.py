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
from flopwatch.layers.kernels.int8_tiles import TILES, Tile

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "sm_120": GPUTarget("cuda", 120, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""A100, H100, B200, RTX PRO 6000 and MI300X."""

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


def list_builds(target: str) -> list[Build]:
    """All for that architecture."""
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


def list_matmuls(target: str) -> Iterator[Build]:
    """Each shape of tiles for the two ways in which b can lie, and for sizes that fit no tile; and
    what scales the sums of those that are not scaled at once."""
    for tile in TILES[target]:
        forms = _list_persistent(tile) if tile.persistent else _list_plain(tile)
        yield from forms
    for dtype in FLOATS:
        yield Build(
            int8_triton_matmul.scale_sums_kernel,
            dtype,
            {"sums": "*i32", **_list_operands(dtype)},
            {"ONE_B_SCALE": False, "HAS_BIAS": True, "TILE": int8_triton_matmul.SCALE_TILE},
        )


def _list_plain(tile: Tile) -> Iterator[Build]:
    for dtype, form, constants in (
        ("bf16", "columns of b", {"b_row_stride": 1, "EVEN_K": True, "HAS_BIAS": True}),
        ("fp32", "rows of b", {"b_column_stride": 1, "EVEN_K": True, **NO_BIAS}),
        ("fp16", "odd", {"b_row_stride": 1, "EVEN_K": False, "HAS_BIAS": True}),
    ):
        out = {"out": "*i32"} if tile.splits > 1 else {}
        yield Build(
            int8_triton_matmul.multiply_kernel,
            f"{dtype}, {form}, {tile}",
            {"a": "*i8", "b": "*i8", **_list_operands(dtype), **out},
            {"ONE_B_SCALE": form == "rows of b", "SPLITS": tile.splits, **constants}
            | int8_triton_matmul.name_sizes(tile),
            _list_options(tile),
            odd=frozenset({"m", "n"} if form == "odd" else ()),
        )


def _list_persistent(tile: Tile) -> Iterator[Build]:
    for dtype, form, constants in (
        ("bf16", "columns of b", {"ONE_B_SCALE": False, "HAS_BIAS": True}),
        ("fp32", "one scale", {"ONE_B_SCALE": True, **NO_BIAS}),
        ("fp16", "odd", {"ONE_B_SCALE": False, "HAS_BIAS": True}),
    ):
        tiles = {"a": f"tensordesc<i8[{tile.m}, {tile.k}]>"}
        tiles["b"] = f"tensordesc<i8[{tile.n}, {tile.k}]>"
        yield Build(
            int8_triton_matmul.multiply_persistent_kernel,
            f"{dtype}, {form}, {tile}",
            {**tiles, **_list_operands(dtype)},
            {**constants, **int8_triton_matmul.name_sizes(tile)},
            _list_options(tile),
            odd=frozenset({"a", "b", "m"} if form == "odd" else {"a", "b"}),
        )


def _list_operands(dtype: str) -> dict[str, str]:
    scales = {"a_scales": "*fp32", "b_scales": "*fp32"}
    return {**scales, "bias": f"*{dtype}", "out": f"*{dtype}"}


def _list_options(tile: Tile) -> dict[str, int]:
    return {"num_warps": tile.warps, "num_stages": tile.stages}


KIB = 1024
SHARED_LIMITS_BYTES = {
    "sm_80": 163 * KIB,
    "sm_90": 227 * KIB,
    "sm_100": 227 * KIB,
    "sm_120": 99 * KIB,
    "gfx942": 64 * KIB,
}
"""Of one block of threads, by target."""
MATRIX_INSTRUCTIONS = re.compile(
    r"\b(?:tcgen05\.mma\.[\w.:]+|wgmma\.mma_async\.sync\.aligned\.[\w.]+"
    r"|mma\.sync\.aligned\.[\w.]+|v_s?mfmac?_\w+)"
)
PTXAS_REPORT = re.compile(
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
    matrix_instruction: str | None
    """The one that uses tensor cores, if any does."""
    assembly: str
    """PTX, or what AMD has in its place."""


def compile_build(build: Build, target: str) -> Resources:
    """The build, compiled to machine code of that architecture, past Triton's cache."""
    with _listen() as log:
        compiled = compile(make_source(build), target=TARGETS[target], options=dict(build.options))
    read = _read_amd if TARGETS[target].backend == "hip" else _read_nvidia
    return read(compiled, log.getvalue(), target)


def _read_nvidia(compiled: Any, log: str, target: str) -> Resources:
    """From what ptxas says."""
    report = PTXAS_REPORT.search(log)
    assert report is not None, f"ptxas said nothing of {compiled.name}: {log}"
    ptx = compiled.asm["ptx"]
    assert f".target {target}" in ptx
    instruction = MATRIX_INSTRUCTIONS.search(ptx)
    return Resources(
        registers=int(report["registers"]),
        shared_bytes=compiled.metadata.shared,
        spill_store_bytes=int(report["store"]),
        spill_load_bytes=int(report["load"]),
        matrix_instruction=instruction[0] if instruction else None,
        assembly=ptx,
    )


def _read_amd(compiled: Any, log: str, target: str) -> Resources:
    """From what the assembler is told; a spilt register is stored and loaded in 4 bytes."""
    assembly = compiled.asm["amdgcn"]
    assert f"--{target}" in assembly

    def find(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s+(\d+)", assembly)[-1])

    spilt_bytes = 4 * find("vgpr_spill_count") + find("private_segment_fixed_size")
    instruction = MATRIX_INSTRUCTIONS.search(assembly)
    return Resources(
        registers=find("vgpr_count"),
        shared_bytes=compiled.metadata.shared,
        spill_store_bytes=spilt_bytes,
        spill_load_bytes=spilt_bytes,
        matrix_instruction=instruction[0] if instruction else None,
        assembly=assembly,
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
