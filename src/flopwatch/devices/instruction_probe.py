"""The program that `instruction_sets.probe` runs: small matmuls, each announced before it is run.

It is started by its file name in an interpreter of its own, since it may well be killed by a
signal, and imports nothing of flopwatch. Its arguments are the matmuls to leave out. On standard
output it writes JSON objects, one a line:

    {"no_torch": "ModuleNotFoundError: ..."}                   torch cannot be imported; the end
    {"cpu_capability": "AVX2"}
    {"start": "bfloat16"} {"end": "bfloat16", "error": null}   error: what torch raised
    {"finished": true}

A step that hangs is ended by the kernel with SIGALRM.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from typing import Any

SIZE = 256  # large enough for oneDNN to take the matmul over, small enough to take no time

HANG_S = 30  # a step takes milliseconds

MATMULS = ("float32", "bfloat16", "float16", "int8")


def main(left_out: list[str]) -> None:
    with suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected: no core files
    try:
        import torch
    except Exception as error:
        _say(no_torch=_one_line(error))
        return
    torch.set_num_threads(1)
    capability = None
    with suppress(Exception):
        capability = str(torch.backends.cpu.get_cpu_capability())
    _say(cpu_capability=capability)
    for matmul in MATMULS:
        if matmul not in left_out:
            _say(start=matmul)
            _say(end=matmul, error=_try_matmul(torch, matmul))
    _say(finished=True)


def _try_matmul(torch: Any, matmul: str) -> str | None:
    try:
        if matmul == "int8":
            ones = torch.ones(SIZE, SIZE, dtype=torch.int8)
            torch._int_mm(ones, ones)
        else:
            dtype = getattr(torch, matmul)
            x = torch.ones(SIZE, SIZE, dtype=dtype, requires_grad=True)
            weight = torch.ones(SIZE, SIZE, dtype=dtype, requires_grad=True)
            torch.nn.functional.linear(x, weight).sum().backward()
    except Exception as error:
        return _one_line(error)
    return None


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _say(**content: object) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(HANG_S)  # until the next word
    # Flushed at once: a signal would take what is still in the buffer with it.
    sys.stdout.write("\n" + json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
