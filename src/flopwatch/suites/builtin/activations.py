"""Activation functions of transformers, forward and backward, against ReLU.

What does GELU cost over ReLU, and its tanh form over the exact one? Activations do next to no
arithmetic: they read and write memory, so the bytes that they must move are declared, and the
table shows how close to the memory's speed each comes. On a CPU, small sizes stay in the cache and
show the arithmetic; the large one is what a transformer's feed-forward layer sees. On accelerators
all are larger than any cache.

Each variant is checked against a plain formula in float64, outputs and input gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flopwatch
from flopwatch.devices.kinds import Devices
from flopwatch.errors import UsageError
from flopwatch.suites.grids import require_counts

Grid = dict[str, list[Any]]


def list_axes(devices: Devices) -> Grid:
    """Shapes are tokens and features. Accelerators have caches of up to 256 MiB."""
    if devices.are_host:
        shapes, dtypes = [(64, 3072), (1024, 3072), (4096, 3072)], ["float32", "bfloat16"]
    else:
        shapes, dtypes = [(16384, 8192), (32768, 8192)], ["bfloat16", "float32"]
    return {"shape": shapes, "dtype": dtypes}


def list_quick(devices: Devices) -> Grid:
    if devices.are_host:
        return {"shape": [(1024, 3072)], "dtype": ["float32", "bfloat16"]}
    return {"shape": [(32768, 8192)], "dtype": ["bfloat16"]}


def accept(axis: str, value: Any) -> None:
    """Refuse a value from the command line that makes no sense."""
    if axis != "shape":
        raise UsageError(
            f"the suite activations accepts only its own values of {axis!r}; use --filter"
        )
    require_counts(axis, value, 2)


suite = flopwatch.Suite(
    "activations",
    axes=list_axes,
    variants=["relu", "gelu", "gelu_tanh", "silu", "relu_squared"],
    baseline="relu",
    quick=list_quick,
    accepts=accept,
)

ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@suite.build
def build(case: flopwatch.Case) -> flopwatch.Workload:
    from torch.nn import functional

    activations: dict[str, Callable[[Any], Any]] = {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
        "relu_squared": lambda x: functional.relu(x).square(),
    }
    return make_workload(case, activations[case.variant], case.dtype)


@suite.reference
def reference(case: flopwatch.Case) -> flopwatch.Workload:
    """The textbook formulas, in float64."""
    import torch

    formulas = {
        "relu": lambda x: x.clamp(min=0),
        "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: (
            x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        ),
        "silu": lambda x: x / (1 + torch.exp(-x)),
        "relu_squared": lambda x: x.clamp(min=0) ** 2,
    }
    return make_workload(case, formulas[case.variant], "float64")


@suite.bytes
def count_bytes(case: flopwatch.Case) -> dict[str, float]:
    """Forward reads x and writes y; backward reads x and the gradient of y, writes that of x."""
    tokens, features = case.shape
    size = tokens * features * ITEM_BYTES[case.dtype]
    return {"forward": 2 * size, "backward": 3 * size}


def make_workload(
    case: flopwatch.Case, activation: Callable[[Any], Any], dtype: str
) -> flopwatch.Workload:
    import torch

    # Drawn in the case's own dtype first, so that case and reference see the same numbers.
    drawn = torch.randn(2, *case.shape, device=case.device).to(getattr(torch, case.dtype))
    x, grad = drawn.to(getattr(torch, dtype)).unbind()
    x = x.clone().requires_grad_()

    def clear_gradient() -> None:
        x.grad = None

    return flopwatch.Workload(
        phases={"forward": lambda: activation(x), "backward": lambda y: y.backward(grad)},
        gradients={"x": x},
        reset=clear_gradient,
    )
