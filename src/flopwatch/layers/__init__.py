"""Linear layers to measure, and what puts them into models.

from flopwatch import layers

layer = layers.make("dyad:auto:4", 768, 3072)
layer = layers.SwitchBack(768, 3072)
layer = layers.Fp8Linear(768, 3072, scales="tensorwise")
print(layers.swap(model, "dyad:auto:4", match="*.fc[12]"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwatch.lazy import load_lazily

if TYPE_CHECKING:
    from flopwatch.layers.dyad_layer import Dyad, convert_published
    from flopwatch.layers.fp8_layer import Fp8Linear
    from flopwatch.layers.registry import make, register
    from flopwatch.layers.swapping import Swap, swap
    from flopwatch.layers.switchback_layer import SwitchBack

__all__ = [
    "Dyad",
    "Fp8Linear",
    "Swap",
    "SwitchBack",
    "convert_published",
    "make",
    "register",
    "swap",
]

_HOMES = {
    "Dyad": "dyad_layer",
    "Fp8Linear": "fp8_layer",
    "Swap": "swapping",
    "SwitchBack": "switchback_layer",
    "convert_published": "dyad_layer",
    "make": "registry",
    "register": "registry",
    "swap": "swapping",
}


__getattr__ = load_lazily(__name__, _HOMES, needs="torch")


def __dir__() -> list[str]:
    return __all__
