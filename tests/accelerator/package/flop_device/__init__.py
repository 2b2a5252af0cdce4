"""An accelerator for tests, `flop`, as a package of its own would bring it to torch.

torch loads it by its entry point (`torch.backends`) in every process that imports torch and has
this folder on its path: the compiled part is the file that FLOP_LIBRARY names.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

NAME = "flop"


def load() -> None:
    """Called by torch, at the end of its own import."""
    path = os.environ.get("FLOP_LIBRARY")
    if not path or "flop_native" in sys.modules:
        return
    import torch

    loader = ExtensionFileLoader("flop_native", path)
    spec = spec_from_loader("flop_native", loader)
    native = module_from_spec(spec)
    torch.utils.rename_privateuse1_backend(NAME)
    loader.exec_module(native)
    sys.modules["flop_native"] = native
    from flop_device import device_module

    torch._register_device_module(NAME, device_module)
    torch.utils.generate_methods_for_privateuse1_backend()
    if torch.distributed.is_available():
        torch.distributed.Backend.register_backend("floplink", make_collectives, devices=[NAME])


def make_collectives(store: Any, rank: int, ranks: int, timeout: Any) -> Any:
    import flop_native
    from torch.distributed import PrefixStore, ProcessGroupGloo

    inner = ProcessGroupGloo(PrefixStore(NAME, store), rank, ranks, timeout)
    return flop_native.make_collectives(inner)
