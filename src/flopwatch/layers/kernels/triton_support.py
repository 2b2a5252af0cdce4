"""Where Triton's kernels can run, and why not where they cannot: callers have a plain way then.

Triton compiles a helper in C when a process first uses a GPU, with the compiler that CC names, and
keeps it in its cache. Where there is no compiler and nothing kept, or CC is broken, that fails,
with whatever exception running a command can give.
"""

from __future__ import annotations

import subprocess
from functools import cache

BACKENDS = {"cuda": ("cuda", "hip"), "xpu": ("xpu",)}
"""Triton's backends by torch's name of the device that they are for."""
LONGEST_REASON = 200


@cache
def find_obstacle(device: str) -> str | None:
    """Why kernels cannot run on this kind of device, in a clause; None: they can."""
    if device not in BACKENDS:
        return f"Triton has no backend for {device}"
    try:
        from triton.runtime import driver
    except ImportError:  # a build of torch without Triton
        return "Triton is not installed"
    try:
        backend = driver.active.get_current_target().backend
    except Exception as error:  # noqa: BLE001  anything that compiling and loading C can raise
        return f"Triton cannot start here ({_explain(error)})"
    if backend not in BACKENDS[device]:
        return f"Triton compiles for {backend} here"
    return None


def _explain(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):  # whose text is the whole command
        return f"{error.cmd[0]} fails with exit code {error.returncode}"
    return " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__


def describe(device: str, what: str) -> str | None:
    """What a reader of timings should know of layers that would use the kernels."""
    obstacle = find_obstacle(device)
    if obstacle is None:
        return None
    return f"{what} run in eager torch, since {obstacle}; with Triton they are faster"
