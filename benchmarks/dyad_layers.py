"""What DYAD layers gain over dense ones, alone and in a model, and what memory they take.

    python benchmarks/dyad_layers.py            about 25 minutes
    python benchmarks/dyad_layers.py --part layers --shape 768x3072
    python benchmarks/dyad_layers.py --part model

Layers: 4096 tokens, float32, forward and backward with all gradients, every form side by side with
`nn.Linear`, under the retained allocator and, at width 768, the default one. Model: the whole
training step of OPT-125m at 4 x 128 tokens, its feed-forward layers exchanged. Ratios are speedups
over dense, measured by `flopwatch run dyad`, with their 99 % intervals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rows import count_missed, describe, print_step, run

from flopwatch.analysis.summary import Row
from flopwatch.output.units import format_bytes

TOKENS = 4096
SHAPES = ["768x3072", "3072x768", "1024x4096", "4096x1024", "2048x8192", "8192x2048"]
FAST = "fast form, variant auto"
FORMS = {
    "published, token-major": "dyad:it:{}:published",
    "plain bmm on views": "dyad:auto:{}:split",
    FAST: "dyad:auto:{}",
}
BLOCKS = (4, 8)
REACH = {768: (1.65, 2.8), 1024: (1.7, 2.85), 2048: (1.8, 3.1)}
"""By the narrow side, for 4 and 8 blocks, with the retained allocator."""
MODEL_REACH = (1.15, 1.33)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=["layers", "memory", "model"], help="only this one")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="only these layers")
    given = parser.parse_args()
    shapes: Sequence[str] = given.shape or SHAPES
    missed = 0
    if given.part in (None, "layers"):
        missed += print_layers(measure_layers(shapes, "retain"), "retain")
        narrow = [shape for shape in shapes if "768" in shape]
        if narrow:  # beside them, what page faults cost
            print_layers(measure_layers(narrow, "default"), "default")
    if given.part in (None, "memory"):
        missed += print_memory(measure_memory(shapes))
    if given.part in (None, "model"):
        missed += print_model(measure_model())
    print(f"\n{missed} figures missed" if missed else "\nall figures reached")
    return 1 if missed else 0


def measure_layers(shapes: Sequence[str], allocator: str) -> list[Row]:
    specs = [form.format(blocks) for form in FORMS.values() for blocks in BLOCKS]
    return run_layers(shapes, specs, ["--allocator", allocator])


def measure_memory(shapes: Sequence[str]) -> list[Row]:
    """Bytes do not depend on how long one looks."""
    specs = [f"dyad:{variant}:{b}" for variant in ("it", "ot", "dt") for b in BLOCKS]
    return run_layers(shapes, specs, ["--case-budget", "500ms"])


def run_layers(shapes: Sequence[str], specs: Sequence[str], options: Sequence[str]) -> list[Row]:
    return run(
        "dyad",
        ["--set", f"tokens={TOKENS}", "--set", f"variant=dense,{','.join(specs)}"]
        + ["--filter", f"shape={','.join(shapes)}", *options],
    )


def measure_model() -> list[Row]:
    return run(
        "dyad",
        ["--filter", "model=opt-125m", "--filter", "micro_batch=4", "--case-budget", "80s"]
        + ["--filter", "variant=dyad:auto:4,dyad:auto:8"],
    )


def print_layers(rows: list[Row], allocator: str) -> int:
    """The table, and how many figures of the fast form fall short."""
    print(f"\nSpeedup over nn.Linear, {TOKENS} tokens, float32, allocator {allocator}")
    found = {(tuple(row.record.params["shape"]), row.record.variant): row for row in rows}
    missed = 0
    for shape in dict.fromkeys(shape for shape, _ in found):
        for title, form in FORMS.items():
            cells = [found[shape, form.format(blocks)] for blocks in BLOCKS]
            line = "   ".join(
                f"{blocks} blocks {describe(row):20}"
                for blocks, row in zip(BLOCKS, cells, strict=True)
            )
            if title == FAST and allocator == "retain":
                reach = REACH[min(shape)]
                missed += count_missed(cells, reach)
                line += f"   reach {reach[0]} and {reach[1]}, FLOP limit 2 and 4"
            print(f"{shape[0]:>5} to {shape[1]:<5} {title:24} {line}", flush=True)
    return missed


def print_memory(rows: list[Row]) -> int:
    """Peak of a forward and backward pass beyond its inputs, and how many take more than dense and
    one copy: of the side that the variant moves, in both orders."""
    print("\nPeak memory of one forward and backward pass, beyond weights, input and gradient")
    dense = {tuple(r.record.params["shape"]): r for r in rows if r.record.variant == "dense"}
    missed = 0
    for row in rows:
        inputs, outputs = row.record.params["shape"]
        peak, base = (r.record.peak_memory_bytes for r in (row, dense[inputs, outputs]))
        if row.record.variant == "dense" or peak is None or base is None:
            continue
        copy = 2 * 4 * TOKENS * (outputs if ":ot:" in row.record.variant else inputs)
        missed += peak > base + copy
        print(
            f"{inputs:>5} to {outputs:<5} {row.record.variant:10} {format_bytes(peak):>9}   "
            f"dense {format_bytes(base)}, one copy {format_bytes(copy)}"
            f"{'   MISSED' if peak > base + copy else ''}"
        )
    return missed


def print_model(rows: list[Row]) -> int:
    print("\nWhole training step of OPT-125m, 4 x 128 tokens, float32, feed-forward exchanged")
    chosen = [row for row in rows if row.record.variant != "dense"]
    for row, reach in zip(chosen, MODEL_REACH, strict=True):
        print_step(row, reach)
    return count_missed(chosen, MODEL_REACH)


if __name__ == "__main__":
    sys.exit(main())
