"""torch.compile: whether it works here, and how long it takes.

What torch keeps of earlier compilations, on disk and in memory, would make the second run of a
benchmark another one than the first, by a factor of ten. So each measured compilation begins with
an empty cache, which is thrown away afterwards; and what the compiler does once in a process (it
loads itself and tries the CPU's instructions, for seconds) is over before the first one.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import cache
from typing import Any

from flopwatch.devices.environment import find_compiler
from flopwatch.devices.kinds import is_host
from flopwatch.errors import Unsupported

MESSAGE_LENGTH = 200


def is_compiler_used() -> bool:
    """Whether this process has loaded it: importing torch alone does not."""
    return "torch._dynamo" in sys.modules


def compile_seconds() -> float:
    """What torch.compile has taken in this process so far, backward passes included.

    torch counts from 0 again after `torch._dynamo.reset()`.
    """
    if not is_compiler_used():  # and importing it takes seconds
        return 0.0
    from torch._dynamo.utils import calculate_time_spent

    return calculate_time_spent().get("total_wall_time", 0.0)


class Compilation:
    """From before the first call of something compiled until its passes have run once."""

    _cache = ExitStack()
    """Of the one that is going on."""

    def __init__(self, device: str) -> None:
        """Raises Unsupported where torch.compile does not work."""
        start_compiler(device)
        from torch._inductor.utils import fresh_cache

        self._cache.close()  # the one before may have failed in its first call
        self._cache.enter_context(fresh_cache())
        self._before_s, self._before_graphs = compile_seconds(), count_graphs()

    def finish(self) -> dict[str, float]:
        """The facts: seconds that torch.compile took, and into how many graphs it divided what it
        was given: 1 if it was compiled whole."""
        self._cache.close()  # what is compiled is loaded
        return {
            "compile_s": compile_seconds() - self._before_s,
            "graphs": count_graphs() - self._before_graphs,
        }


def count_graphs() -> int:
    """That were compiled in this process so far."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


@cache
def start_compiler(device: str) -> None:
    """Have the compiler do what it does once in a process. Raises Unsupported where it fails."""
    if is_host(device) and find_compiler() is None:
        raise Unsupported(
            "torch.compile needs a C++ compiler here; install g++, or name one in CXX"
        )
    import torch

    x = torch.ones(64, device=device, requires_grad=True)
    try:
        torch.compile(_try, dynamic=False)(x).sum().backward()
    except Exception as error:
        message = " ".join(str(error).split())[:MESSAGE_LENGTH]
        raise Unsupported(
            f"torch.compile fails here even on a trivial function: {message}"
        ) from error


def _try(x: Any) -> Any:
    return x.exp() * x
