"""Linear layers to measure, and what puts them into models.

from flopwatch import layers

layer = layers.make("dyad:auto:4", 768, 3072)
print(layers.swap(model, "dyad:auto:4", match="*.fc[12]"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flopwatch.layers.dyad import Dyad, convert_published
    from flopwatch.layers.registry import make, register
    from flopwatch.layers.replacement import Swap, swap

__all__ = ["Dyad", "Swap", "convert_published", "make", "register", "swap"]

_HOMES = {
    "Dyad": "dyad",
    "Swap": "replacement",
    "convert_published": "dyad",
    "make": "registry",
    "register": "registry",
    "swap": "replacement",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: specs are read where torch is not wanted.
    if name not in _HOMES:
        raise AttributeError(f"module 'flopwatch.layers' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"flopwatch.layers.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
