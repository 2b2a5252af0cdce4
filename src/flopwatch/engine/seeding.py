"""The same start for all that is random."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def from_seed(seed: int, make: Callable[[Given], Made], given: Given) -> Made:
    """Call it with all random generators in the same state for every variant."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    return make(given)
