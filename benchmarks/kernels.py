"""What the Triton kernels take of a GPU: registers, shared memory, spills, matrix instructions.

    python benchmarks/kernels.py                about five minutes
    python benchmarks/kernels.py --kernel multiply_kernel --target sm_90

Every kernel of the package is compiled to machine code, for which no GPU is needed, for all its
dtypes and configurations: those of the product are what autotuning chooses from. A figure is missed
if a kernel spills registers (bytes stored / loaded), or takes more shared memory than a block of
threads can have.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from flopwatch.output.units import format_bytes

if TYPE_CHECKING:
    from kernel_catalog import Build

WIDTHS = (26, 62, 9, 8, 8, 1)
TITLES = ("kernel", "configuration", "registers", "shared", "spilt", "matrix instruction")


def main() -> int:
    try:
        from kernel_catalog import TARGETS, list_builds
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
        print("Triton is missing: install it with `pip install triton` (Linux).", file=sys.stderr)
        return 2
    builds = {target: list_builds(target) for target in TARGETS}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = dict.fromkeys(build.name for found in builds.values() for build in found)
    parser.add_argument("--kernel", choices=names, action="append", help="only these")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only these")
    given = parser.parse_args()
    missed = 0
    for target in given.target or TARGETS:
        print(f"\n{target}")
        print_line(*TITLES)
        for build in builds[target]:
            if build.name in (given.kernel or names):
                missed += print_build(build, target)
    print(f"\n{missed} figures missed" if missed else "\nall figures reached")
    return 1 if missed else 0


def print_build(build: Build, target: str) -> bool:
    """A line of the table; whether the kernel takes too much."""
    from kernel_catalog import SHARED_LIMITS_BYTES, compile_build

    taken = compile_build(build, target)
    spilt = taken.spill_store_bytes + taken.spill_load_bytes
    missed = spilt > 0 or taken.shared_bytes > SHARED_LIMITS_BYTES[target]
    print_line(
        build.name,
        build.case,
        str(taken.registers),
        format_bytes(taken.shared_bytes),
        f"{taken.spill_store_bytes} / {taken.spill_load_bytes}",
        (taken.matrix_instruction or "no") + ("   MISSED" if missed else ""),
    )
    return missed


def print_line(*cells: str) -> None:
    line = "  ".join(f"{cell:{width}}" for cell, width in zip(cells, WIDTHS, strict=True))
    print(line.rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
