"""What short floating-point numbers do to a sum, and what autocast makes of a model.

`observe` runs in a worker; the rest of the package uses what it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

ADDEND = 0.01
TIMES = 1000
CASTS = ("off", "float16", "bfloat16")
TOKENS, INPUTS, HIDDEN, CLASSES = 8, 16, 32, 4


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a sum is made."""

    sum_dtype: str
    number_dtype: str
    is_cast: bool = False
    """Whether each number becomes of the sum's dtype before it is added."""


RECIPES = (
    Recipe(sum_dtype="float32", number_dtype="float32"),
    Recipe(sum_dtype="float16", number_dtype="float16"),
    Recipe(sum_dtype="float32", number_dtype="float16"),
    Recipe(sum_dtype="float32", number_dtype="float16", is_cast=True),
)


@dataclass(frozen=True, kw_only=True)
class Sum:
    recipe: Recipe
    shown: str
    """As torch prints it."""
    exact: str
    """All decimals of it."""
    bits: str
    """In hexadecimal."""
    error: float
    """Beyond what it would be without rounding."""


@dataclass(frozen=True, kw_only=True)
class Cast:
    """What the parts of a small model are, with autocast to a dtype."""

    autocast: str
    dtypes: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Observed:
    device: str
    sums: Sequence[Sum]
    casts: Sequence[Cast]


def observe(device: str) -> Observed:
    return Observed(
        device=device,
        sums=[add_up(recipe) for recipe in RECIPES],
        casts=[run_model(device, cast) for cast in CASTS],
    )


def add_up(recipe: Recipe) -> Sum:
    """Add the number many times."""
    import torch

    total = torch.tensor(0, dtype=getattr(torch, recipe.sum_dtype))
    number = torch.tensor(ADDEND, dtype=getattr(torch, recipe.number_dtype))
    for _ in range(TIMES):
        total += number.to(total.dtype) if recipe.is_cast else number
    width = total.element_size()
    bits = total.view({2: torch.int16, 4: torch.int32}[width]).item()
    return Sum(
        recipe=recipe,
        shown=repr(total),
        exact=str(Decimal(total.item())),
        bits=f"0x{int(bits) % 2 ** (8 * width):0{2 * width}x}",
        error=total.item() - TIMES * ADDEND,
    )


def run_model(device: str, autocast: str) -> Cast:
    """A step of linear, ReLU, layer norm, linear and cross-entropy, forward and backward."""
    import torch
    from torch import nn

    first = nn.Linear(INPUTS, HIDDEN, bias=False, device=device)
    norm = nn.LayerNorm(HIDDEN, device=device)
    last = nn.Linear(HIDDEN, CLASSES, bias=False, device=device)
    parameters = [*first.parameters(), *norm.parameters(), *last.parameters()]
    x = torch.randn(TOKENS, INPUTS, device=device)
    targets = torch.randint(CLASSES, (TOKENS,), device=device)
    is_on = autocast != "off"
    dtype = getattr(torch, autocast) if is_on else None
    with torch.autocast(device, dtype, enabled=is_on):
        hidden = first(x)
        normed = norm(hidden.relu())
        logits = last(normed)
        loss: Any = nn.functional.cross_entropy(logits, targets)
    loss.backward()
    found: dict[str, list[Any]] = {
        "parameters": parameters,
        "first layer's output": [hidden],
        "norm's output": [normed],
        "logits": [logits],
        "loss": [loss],
        "gradients": [parameter.grad for parameter in parameters],
    }
    return Cast(
        autocast=autocast, dtypes={name: _name_dtypes(tensors) for name, tensors in found.items()}
    )


def _name_dtypes(tensors: Sequence[Any]) -> str:
    names = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
    return ", ".join(sorted(names))
