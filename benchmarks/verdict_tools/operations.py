"""Pairs of functions whose times differ by a known factor.

A function is a loop of identical small units of work, and the slower one of a pair does more of
them: 34 instead of 33 for 3 %. So the truth is the ratio of the counts, whatever the machine is
like; rows of a tensor would not do, since a matmul of 3 % more rows does not take 3 % longer.
`verdicts.py --truth` measures it all the same.

Both functions of a pair use the same tensors, as lambdas of a user do, and are two function
objects. Units are sized by a calibration, so that a call takes about a millisecond, and a training
step ten; where 100 units do not fit into that, because of what each one costs in Python and
autograd, a call takes longer. torch divides GELU and softmax between threads from 32,768 elements
on: in pairs that differ by 1 or 3 % they run on one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

Function = Callable[[], object]

COUNTS = {0: (5, 5), 1: (100, 101), 3: (33, 34), 5: (20, 21), 20: (5, 6)}
"""By difference in percent: units of the faster and of the slower function."""
THREADS = 2
WIDTH, HIDDEN = 64, 256
BLOCKS, SMALLEST_BITS, LARGEST_BITS = 8, 10, 20
"""Of memory that is held while a pair is built: children of one process would all put their tensors
in the same places otherwise, and a place that is slow by chance would be so in every comparison."""
MAX_ROWS = 1 << 16
CALIBRATION_LOOPS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    make_unit: Callable[[int], Function]
    """From a number of rows."""
    target_s: float = 1e-3
    """Of one call of a function, which is a loop of units."""


def make_matmul(rows: int) -> Function:
    import torch

    x, w = torch.randn(rows, 2 * WIDTH), torch.randn(2 * WIDTH, 2 * WIDTH)
    return lambda: x @ w


def make_gelu(rows: int) -> Function:
    import torch

    x = torch.randn(rows, HIDDEN)
    return lambda: torch.nn.functional.gelu(x)


def make_softmax(rows: int) -> Function:
    import torch

    x = torch.randn(rows, HIDDEN)
    return lambda: torch.softmax(x, dim=-1)


def make_layer(rows: int) -> Function:
    """Normalisation, linear, GELU, linear: forward and backward."""
    import torch

    layer = _make_layer()
    parameters = list(layer.parameters())
    x, grad = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
    return lambda: torch.autograd.grad(layer(x), parameters, grad)


def make_step(rows: int) -> Function:
    """Two layers and an output layer: forward, cross-entropy, backward, AdamW."""
    import torch
    from torch import nn

    model = nn.Sequential(_make_layer(), _make_layer(), nn.Linear(WIDTH, HIDDEN))
    # So small a learning rate that the numbers stay what they are, however long it takes.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True)
    x, labels = torch.randn(rows, WIDTH), torch.randint(0, HIDDEN, (rows,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _make_layer() -> nn.Sequential:
    from torch import nn

    parts = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)
    return nn.Sequential(*parts)


OPERATIONS = {
    "matmul": Operation(make_unit=make_matmul),
    "gelu": Operation(make_unit=make_gelu),
    "softmax": Operation(make_unit=make_softmax),
    "layer": Operation(make_unit=make_layer),
    "step": Operation(make_unit=make_step, target_s=1e-2),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """What two functions are made from: the same anew wherever this is sent."""

    operation: str
    percent: int
    """That the slower function does more."""
    rows: int
    seed: int

    @property
    def slower(self) -> str:
        """Which of the two, "a" or "b"; drawn by lot."""
        return random.Random(self.seed).choice("ab")

    def units(self, side: str) -> int:
        return COUNTS[self.percent][side == self.slower]

    @property
    def truth(self) -> float:
        """Time of b over time of a."""
        return self.units("b") / self.units("a")


def build_pair(pair: Pair) -> dict[str, Function]:
    """Both functions, in this process."""
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(pair.seed)
    draw = random.Random(pair.seed)
    sizes = [int(2 ** draw.uniform(SMALLEST_BITS, LARGEST_BITS)) for _ in range(BLOCKS)]
    held = [bytearray(size) for size in sizes]
    unit = OPERATIONS[pair.operation].make_unit(pair.rows)
    del held
    return {side: make_loop(unit, pair.units(side)) for side in "ab"}


def make_loop(unit: Function, count: int) -> Function:
    def loop() -> None:
        for _ in repeat(None, count):
            unit()

    return loop


def find_rows(operation: str, percent: int) -> int:
    """With which a call takes about as long as it should; at least 1."""
    import torch

    torch.set_num_threads(THREADS)
    chosen = OPERATIONS[operation]
    wanted_s = chosen.target_s / COUNTS[percent][0]
    rows, before, before_s = 1, 0, 0.0
    while rows < MAX_ROWS:
        unit_s = time_unit(chosen.make_unit(rows))
        if unit_s >= wanted_s:
            break
        before, before_s, rows = rows, unit_s, 2 * rows
    else:
        return rows
    share = (wanted_s - before_s) / (unit_s - before_s)
    return max(1, before + round(share * (rows - before)))


def time_unit(unit: Function) -> float:
    """The shortest of many short loops: what it takes when nothing is in its way."""
    for _ in range(3):
        unit()
    shortest_s = float("inf")
    for _ in range(CALIBRATION_LOOPS):
        begin_s = time.perf_counter()
        for _ in repeat(None, 3):
            unit()
        shortest_s = min(shortest_s, (time.perf_counter() - begin_s) / 3)
    return shortest_s
