"""What DYAD layers gain over dense ones, alone and in a model, and what memory they take.

    python benchmarks/dyad_layers.py            about 25 minutes
    python benchmarks/dyad_layers.py --part layers --allocator retain --shape 768x3072
    python benchmarks/dyad_layers.py --part model

Layers: 4096 tokens, float32, forward and backward with all gradients, every form side by side with
`nn.Linear`, under the retained and the default allocator. Model: the whole training step of
OPT-125m at 4 x 128 tokens, its feed-forward layers exchanged. Ratios are speedups over dense,
measured by `flopwatch run dyad`, with their 99 % intervals.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flopwatch.analysis.summary import Row, summarize
from flopwatch.records.store import read
from flopwatch.report.units import format_bytes, format_speedup

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
    parser.add_argument("--part", choices=["layers", "model"], help="only this one")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="only these layers")
    parser.add_argument("--allocator", choices=["retain", "default"], help="only this one")
    parser.add_argument("--case-budget", default="10s", help="time for one layer")
    given = parser.parse_args()
    shapes: Sequence[str] = given.shape or SHAPES
    missed = 0
    if given.part != "model":
        for allocator in [given.allocator] if given.allocator else ["retain", "default"]:
            rows = measure_layers(shapes, allocator, given.case_budget)
            missed += print_layers(rows, allocator)
            if allocator == "retain":
                print_memory(rows)
    if given.part != "layers":
        missed += print_model(measure_model())
    return 1 if missed else 0


def measure_layers(shapes: Sequence[str], allocator: str, case_budget: str) -> list[Row]:
    specs = [form.format(blocks) for form in FORMS.values() for blocks in BLOCKS]
    return run(
        ["--set", f"tokens={TOKENS}", "--set", f"variant=dense,{','.join(specs)}"]
        + ["--filter", f"shape={','.join(shapes)}", "--filter", "dtype=float32"]
        + ["--filter", "autocast=off", "--allocator", allocator, "--case-budget", case_budget]
    )


def measure_model() -> list[Row]:
    return run(
        ["--filter", "model=opt-125m", "--filter", "batch=4x128", "--filter", "dtype=float32"]
        + ["--filter", "autocast=off", "--filter", "variant=dyad:auto:4,dyad:auto:8"]
        + ["--case-budget", "80s"]
    )


def run(options: Sequence[str]) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "dyad.jsonl"
        command = [sys.executable, "-m", "flopwatch", "run", "dyad", "--out", str(out), "--json"]
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        return summarize(read(out).records)


def print_layers(rows: list[Row], allocator: str) -> int:
    """The table, and how many figures of the fast form fall short."""
    print(f"\nSpeedup over nn.Linear, {TOKENS} tokens, float32, allocator {allocator}")
    found = {(tuple(row.record.params["shape"]), row.record.variant): row for row in rows}
    missed = 0
    for shape in dict.fromkeys(shape for shape, _ in found):
        for title, form in FORMS.items():
            cells = [found[shape, form.format(blocks)] for blocks in BLOCKS]
            line = "   ".join(
                f"{blocks} blocks {speedup(row):22}"
                for blocks, row in zip(BLOCKS, cells, strict=True)
            )
            reach = REACH[min(shape)] if title == FAST else None
            if reach and allocator == "retain":
                missed += count_missed(cells, reach)
                line += f"   reach {reach[0]} and {reach[1]}, FLOP limit 2 and 4"
            print(f"{shape[0]:>5} to {shape[1]:<5} {title:24} {line}")
    return missed


def print_memory(rows: list[Row]) -> None:
    """Peak of a forward and backward pass beyond its inputs, against dense and the one copy."""
    print("\nPeak memory of one forward and backward pass")
    dense = {tuple(r.record.params["shape"]): r for r in rows if r.record.variant == "dense"}
    for row in rows:
        shape = tuple(row.record.params["shape"])
        peak, base = row.record.peak_memory_bytes, dense[shape].record.peak_memory_bytes
        if peak is None or base is None:
            continue
        copy = 2 * 4 * TOKENS * min(shape)
        verdict = "" if peak <= base + copy else "   MORE than dense and the one copy"
        print(
            f"{shape[0]:>5} to {shape[1]:<5} {row.record.variant:22} {format_bytes(peak):>9}   "
            f"dense {format_bytes(base)}, one copy {format_bytes(copy)}{verdict}"
        )


def print_model(rows: list[Row]) -> int:
    print("\nWhole training step of OPT-125m, 4 x 128 tokens, float32, feed-forward exchanged")
    chosen = [row for row in rows if row.record.variant != "dense"]
    for row, reach in zip(chosen, MODEL_REACH, strict=True):
        limit = "unknown" if row.limit is None else f"{row.limit:.2f}x"
        print(f"{row.record.variant:12} {speedup(row):22} limit {limit}, reach {reach}")
    return count_missed(chosen, MODEL_REACH)


def count_missed(rows: Sequence[Row], reach: Sequence[float]) -> int:
    return sum(
        row.speedup is None or row.speedup.value < least
        for row, least in zip(rows, reach, strict=True)
    )


def speedup(row: Row) -> str:
    return format_speedup(row.speedup) if row.speedup else row.record.status


if __name__ == "__main__":
    sys.exit(main())
