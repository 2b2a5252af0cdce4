"""What a Triton kernel takes of a GPU, from compiling it: no GPU is needed."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from flopwatch.layers.kernels.catalog import Build

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
