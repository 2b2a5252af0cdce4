"""What int8 layers gain over dense ones, alone and in a model, and what they cost.

    python benchmarks/switchback_layers.py            about 40 minutes
    python benchmarks/switchback_layers.py --part layers --shape 768x3072
    python benchmarks/switchback_layers.py --part model

layers      4096 tokens, float32, every variant side by side with `nn.Linear`, under the retained
            allocator and, at width 768, the default one: forward, and forward and backward with all
            gradients
peer        ours beside torchao's int8 training, compiled (pip install -e ".[peers]")
break_even   the batch from which on int8 pays
model       the whole training step of OPT-125m at 4 x 128 tokens, with its feed-forward layers
            exchanged, then with all linear layers of its blocks
memory      the peak of a forward and backward pass
error       of outputs and input gradients, on Gaussian data

Ratios are speedups over dense, measured by `flopwatch run switchback`, with their 99 % intervals.
What can be reached depends on the CPU: instructions for int8 products (VNNI) allow 4 forward and 2
for both passes; without them int16 has to do, which allows 2 and 1.5.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence

from rows import count_missed, describe, describe_speedup, print_step, run

from flopwatch.analysis.break_even import find_break_evens
from flopwatch.analysis.statistics import Estimate, by_round, pair_ratio, totals_by_round
from flopwatch.analysis.summary import Row
from flopwatch.output.case_tables import describe_break_even
from flopwatch.output.units import format_bytes

TOKENS = 4096
SHAPES = ["768x3072", "3072x768", "1024x4096", "4096x1024", "2048x8192", "8192x2048"]
INT8 = ["switchback:rowwise", "switchback:global", "switchback:global:int8", "llm-int8"]
JUDGED = ["switchback:rowwise", "switchback:global"]
PEER = "torchao-int8"
WITH_VNNI = {"layer": 1.6, "feed-forward": 1.15, "linear": 1.2}
WITHOUT = {"layer": 1.2, "feed-forward": 1.05, "linear": 1.08}
"""Least speedups, forward and backward: of layers, and of a step with these exchanged. In both
cases 80 % of what the instructions allow a layer."""
LARGEST_ERROR = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=list(PARTS), help="only this one")
    parser.add_argument("--shape", choices=SHAPES, action="append", help="only these layers")
    given = parser.parse_args()
    chosen = [given.part] if given.part else list(PARTS)
    way = find_way()
    print(f"int8 products by way of: {way}", flush=True)
    reach = WITH_VNNI if way == "vnni" else WITHOUT
    missed = sum(PARTS[part](given.shape or SHAPES, reach) for part in chosen)
    print(f"\n{missed} figures missed" if missed else "\nall figures reached")
    return 1 if missed else 0


def find_way() -> str:
    from flopwatch.layers.kernels import int8_cpu

    return int8_cpu.find_way()


def compare_layers(shapes: Sequence[str], reach: dict[str, float]) -> int:
    missed = print_layers(run_layers(shapes, INT8, "retain"), "retain", reach["layer"])
    narrow = [shape for shape in shapes if "768" in shape]
    if narrow:  # beside them, what page faults cost
        print_layers(run_layers(narrow, INT8, "default"), "default", None)
    return missed


def run_layers(
    shapes: Sequence[str],
    variants: Sequence[str],
    allocator: str,
    tokens: str = str(TOKENS),
    options: Sequence[str] = (),
) -> list[Row]:
    return run(
        "switchback",
        ["--set", f"tokens={tokens}", "--set", f"shape={','.join(shapes)}", *options]
        + ["--set", f"variant=dense,{','.join(variants)}", "--allocator", allocator],
    )


def print_layers(rows: Sequence[Row], allocator: str, reach: float | None) -> int:
    """The table, and how many figures fall short."""
    tokens = rows[0].record.params["tokens"]
    print(f"\nSpeedup over nn.Linear, {tokens} tokens, float32, allocator {allocator}")
    judged = []
    for row in rows:
        if row.record.variant == "dense":
            continue
        inputs, outputs = row.record.params["shape"]
        forward = describe_speedup(row, estimate_forward(row))
        is_judged = reach is not None and row.record.variant in JUDGED
        told = f"   reach {reach}" if is_judged else ""
        judged += [row] if is_judged else []
        print(
            f"{inputs:>5} to {outputs:<5} {row.record.variant:24} forward {forward:20} "
            f"both {describe(row):20}{told}",
            flush=True,
        )
    return 0 if reach is None else count_missed(judged, [reach] * len(judged))


def estimate_forward(row: Row) -> Estimate | None:
    """The speedup of the forward pass alone, round by round."""
    if row.against is None or "forward" not in row.record.samples_ns:
        return None
    own, dense = (
        by_round(record, record.samples_ns["forward"][record.warmup_samples :])
        for record in (row.record, row.against)
    )
    return pair_ratio(dense, own)


def compare_with_peer(shapes: Sequence[str], reach: dict[str, float]) -> int:
    """Ours must not be behind, where the peer runs at all."""
    if importlib.util.find_spec("torchao") is None:
        print('\nno peer: torchao is not installed; pip install -c constraints.txt -e ".[peers]"')
        return 0
    # Where torch has no fast int8 product, few tokens do: the peer may be slow.
    tokens = str(TOKENS if reach is WITH_VNNI else 64)
    rows = run_layers(shapes, [*JUDGED, PEER], "retain", tokens)
    print_layers(rows, "retain", None)
    peers = {tuple(r.record.params["shape"]): r for r in rows if r.record.variant == PEER}
    ours = [row for row in rows if row.record.variant in JUDGED]
    return sum(is_behind(row, peers[tuple(row.record.params["shape"])]) for row in ours)


def is_behind(row: Row, peer: Row) -> bool:
    """Judged within rounds; what failed is behind whatever was measured."""
    if row.total_ns is None or peer.total_ns is None:
        return row.total_ns is None
    ratio = pair_ratio(totals_by_round(row.record), totals_by_round(peer.record))
    return ratio is None or ratio.value > 1


def find_where_it_pays(shapes: Sequence[str], reach: dict[str, float]) -> int:
    rows = run_layers(shapes[:2], JUDGED, "retain", "16,64,256,1024", ["--case-budget", "4s"])
    print("\nThe batch from which on int8 pays, forward and backward, retained allocator")
    for break_even in find_break_evens(rows):
        first = break_even.rows[0].record
        speedups = ", ".join(f"{break_even.place(row)}: {describe(row)}" for row in break_even.rows)
        inputs, outputs = first.params["shape"]
        pays = describe_break_even(break_even)
        print(f"{inputs:>5} to {outputs:<5} {first.variant:20} {pays} ({speedups})")
    return 0


def compare_steps(shapes: Sequence[str], reach: dict[str, float]) -> int:
    missed = 0
    for swapped in ("feed-forward", "linear"):
        options = [f"swapped={swapped}", "model=opt-125m", "micro_batch=4"]
        rows = run(
            "switchback",
            [word for option in options for word in ("--filter", option)]
            + ["--filter", f"variant={','.join(INT8)}"],
        )
        print(f"\nWhole training step of OPT-125m, 4 x 128 tokens, float32, exchanged: {swapped}")
        steps = [row for row in rows if row.record.variant != "dense"]
        for row in steps:
            print_step(row, reach[swapped])
        judged = [row for row in steps if row.record.variant in JUDGED]
        missed += count_missed(judged, [reach[swapped]] * len(judged))
    return missed


def measure_memory(shapes: Sequence[str], reach: dict[str, float]) -> int:
    """Bytes do not depend on how long one looks."""
    rows = run_layers(shapes[:2], INT8, "retain", options=["--case-budget", "500ms"])
    print("\nPeak memory of one forward and backward pass, beyond weights, input and gradient")
    for row in rows:
        inputs, outputs = row.record.params["shape"]
        kept = row.record.facts.get("kept_for_backward_bytes")
        peak = row.record.peak_memory_bytes
        print(
            f"{inputs:>5} to {outputs:<5} {row.record.variant:24} "
            f"peak {describe_bytes(peak):>9}   "
            f"kept from forward to backward {describe_bytes(kept)}"
        )
    return 0


def describe_bytes(size_bytes: float | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(int(size_bytes))


def measure_errors(shapes: Sequence[str], reach: dict[str, float]) -> int:
    """Against the same weights in nn.Linear, in float64: |difference| / |value|."""
    import torch
    from torch import nn

    from flopwatch import layers

    print("\nRelative error on Gaussian data, 512 tokens: output, input gradient, weight gradient")
    missed = 0
    for shape in shapes:
        inputs, outputs = map(int, shape.split("x"))
        torch.manual_seed(0)
        dense = nn.Linear(inputs, outputs)
        x, grad = torch.randn(512, inputs), torch.randn(512, outputs)
        weight, bias = dense.weight.detach().double(), dense.bias.detach().double()
        exact = [
            x.double() @ weight.t() + bias,
            grad.double() @ weight,
            grad.double().t() @ x.double(),
        ]
        for spec in INT8:
            layer = layers.make(spec, inputs, outputs)
            layer.load_state_dict(dense.state_dict())
            x.grad = None
            y = layer(x.requires_grad_())
            y.backward(grad)
            found = [y.detach(), x.grad, layer.weight.grad]
            errors = [
                float((value - right).norm() / right.norm())
                for value, right in zip(found, exact, strict=True)
            ]
            missed += spec in JUDGED and max(errors[:2]) > LARGEST_ERROR
            print(f"{inputs:>5} to {outputs:<5} {spec:24} " + "  ".join(f"{e:.2%}" for e in errors))
            x = x.detach()
    return missed


PARTS: dict[str, Callable[[Sequence[str], dict[str, float]], int]] = {
    "layers": compare_layers,
    "peer": compare_with_peer,
    "break_even": find_where_it_pays,
    "model": compare_steps,
    "memory": measure_memory,
    "error": measure_errors,
}


if __name__ == "__main__":
    sys.exit(main())
