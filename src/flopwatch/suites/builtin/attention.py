"""Causal self-attention: written out, compiled, and as torch's own kernel.

Attention of one layer without its projections, forward and backward, over sequence lengths and head
sizes:

    plain      two matmuls with a softmax between them, every step a tensor of its own
    compiled   the same function through torch.compile, which makes one pass of the steps between
               the matmuls; the fact compile_s says what compiling took
    sdpa       torch.nn.functional.scaled_dot_product_attention, which never has all scores at once

The first two hold micro_batch x heads x seq_len x seq_len scores more than once, and run out of
memory first.

FLOPs are those of the two matmuls over all scores, four times the scores times the head size
forward and twice that backward, for every variant: half of them fall on masked scores, which
sdpa leaves out, and sdpa recomputes some for its backward pass. So a variant's rate says how fast
the result was computed, and may exceed what the hardware can do.

Each variant is checked against the plain formula in float32, computed in slices.
"""

from __future__ import annotations

from typing import Any

import flopwatch
from flopwatch.devices.kinds import Devices, is_host
from flopwatch.errors import UsageError
from flopwatch.suites.grids import require_counts

COUNTS = ("micro_batch", "heads", "head_size", "seq_len")
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def accept(axis: str, value: Any) -> None:
    """Refuse a value from the command line that makes no sense."""
    if axis not in COUNTS:
        raise UsageError(
            f"the suite attention accepts only its own values of {axis!r}; use --filter"
        )
    require_counts(axis, value, 1)


Grid = dict[str, list[Any]]
DTYPES = ["float32", "bfloat16", "float16"]
ON_HOST: Grid = {
    "micro_batch": [8],
    "heads": [1],
    "head_size": [16, 32, 64, 128],
    "seq_len": [256, 1024, 4096, 8192, 16384],
    "dtype": DTYPES,
}
ON_ACCELERATORS: Grid = {
    "micro_batch": [4],
    "heads": [16],
    "head_size": [64, 128],
    "seq_len": [1024, 2048, 4096, 8192, 16384],
    "dtype": ["bfloat16", "float16", "float32"],
}


def list_axes(devices: Devices) -> Grid:
    return ON_HOST if devices.are_host else ON_ACCELERATORS


def list_quick(devices: Devices) -> list[Grid]:
    quick = {**list_axes(devices), "dtype": [devices.kind.usual_dtype]}
    quick["head_size"], lengths = ([64], (256, 1024)) if devices.are_host else ([128], (1024, 4096))
    return [
        {**quick, "seq_len": [lengths[0]], "variant": ["plain", "sdpa"]},  # compiling takes time
        {**quick, "seq_len": [lengths[1]]},
    ]


def ask_for_others(devices: Devices) -> Grid:
    """Many CPUs emulate short types, at a hundredth of the speed; accelerators are made for
    them."""
    return {"dtype": [dtype for dtype in DTYPES if dtype != devices.kind.usual_dtype]}


suite = flopwatch.Suite(
    "attention",
    axes=list_axes,
    variants=["plain", "compiled", "sdpa"],
    quick=list_quick,
    on_request=ask_for_others,
    accepts=accept,
)


@suite.build
def build(case: flopwatch.Case) -> flopwatch.Workload:
    from flopwatch.layers.causal_attention import make_workload
    from flopwatch.layers.layer_workload import Setting

    setting = Setting(device=case.device, dtype=case.dtype)
    return make_workload(case.variant, find_shape(case), setting)


@suite.reference
def reference(case: flopwatch.Case) -> flopwatch.Workload:
    from flopwatch.layers.causal_attention import make_reference
    from flopwatch.layers.layer_workload import Setting

    return make_reference(find_shape(case), Setting(device=case.device, dtype=case.dtype))


@suite.flops
def count_flops(case: flopwatch.Case) -> dict[str, float]:
    """A multiplication and an addition for each score and feature, in two matmuls; backward, each
    matmul has two."""
    forward = 4 * count_scores(case) * case.head_size
    return {"forward": forward, "backward": 2 * forward}


@suite.bytes
def count_bytes(case: flopwatch.Case) -> dict[str, float]:
    """The least, as if no score ever left the cache: forward reads q, k and v and writes the
    output; backward reads these four and the output's gradient, and writes three gradients."""
    rows = case.micro_batch * case.heads * case.seq_len
    values = float(rows * case.head_size * ITEM_BYTES[case.dtype])
    return {"forward": 4 * values, "backward": 8 * values}


@suite.memory
def estimate_memory(case: flopwatch.Case) -> dict[str, float]:
    """Bytes by part; their sum is what a process with this variant holds at its peak. Left out is
    the work space of sdpa's threads, a MiB or two for each."""
    item_bytes = ITEM_BYTES[case.dtype]
    rows = case.micro_batch * case.heads * case.seq_len
    scores, values = count_scores(case) * item_bytes, rows * case.head_size * item_bytes
    sums = rows * 4  # of each row's exponentials, always in float32
    # On a CPU, compiled code makes all scores of a short type float32 first.
    is_widened = is_host(case.device) and case.dtype != "float32"
    saved, temporary = {
        # Probabilities and output; then the gradients of probabilities, scores and v.
        "plain": (scores + values, 2 * scores + values),
        # The scores' gradient takes the place of the probabilities'.
        "compiled": (scores + values + sums, 3 * scores if is_widened else scores + values),
        # The output; then the gradients of q, k and v, and a copy of one of them.
        "sdpa": (values + sums, 4 * values),
    }[case.variant]
    return {
        "inputs": 4 * values + case.seq_len**2,  # the mask has a byte a score, for all sequences
        "reference": 4 * rows * case.head_size * 4,  # its output and gradients are kept
        "saved for backward": saved,
        "temporary peak": temporary,
    }


def count_scores(case: flopwatch.Case) -> int:
    scores: int = case.micro_batch * case.heads * case.seq_len**2
    return scores


def find_shape(case: flopwatch.Case) -> tuple[int, int, int, int]:
    return case.micro_batch, case.heads, case.seq_len, case.head_size
