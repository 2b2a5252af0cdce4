"""For the tests of Triton kernels: a copy of their module whose kernels the interpreter runs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import triton.language as tl
from triton.language import core, standard
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


@contextmanager
def interpret(module: ModuleType) -> Iterator[ModuleType]:
    """The module once more, its kernels run by Triton's interpreter on the CPU.

    Triton reads TRITON_INTERPRET when a function is decorated, so its own library, which was
    imported before, is exchanged too. Nothing can be compiled meanwhile; afterwards it can, once
    the language's core is what it was: a call from kernel to library leaves it changed.
    """
    before = dict(vars(core))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for name, function in list(vars(standard).items()):
            if isinstance(function, JITFunction):
                interpreted = InterpretedFunction(function.fn)
                for home in (standard, tl):
                    if getattr(home, name, None) is function:
                        patch.setattr(home, name, interpreted)
        assert module.__file__ is not None
        spec = importlib.util.spec_from_file_location("interpreted_kernels", module.__file__)
        assert spec is not None
        assert spec.loader is not None
        copy = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, copy)  # where dataclasses look for their module
        spec.loader.exec_module(copy)
        yield copy
    vars(core).update(before)
