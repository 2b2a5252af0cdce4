"""The program that `present_accelerators.find_accelerators` runs: it lists what torch computes on.

It is started by its file name in an interpreter of its own, since a driver may hang, or kill the
process, and imports nothing of flopwatch. On standard output it writes one JSON object, on its own
line:

    {"device": "cuda", "names": ["NVIDIA H100 80GB HBM3"], "complaints": []}
    {"device": null, "names": [], "complaints": ["CUDA initialization: ..."]}
    {"no_torch": "ModuleNotFoundError: ..."}
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any


def main() -> None:
    with warnings.catch_warnings(record=True) as caught:  # how torch says that a driver is broken
        warnings.simplefilter("always")
        try:
            import torch
        except Exception as error:
            _say(no_torch=_one_line(error))
            return
        caught.clear()
        found, complaints = list_accelerators(torch)
    complaints += [" ".join(str(one.message).split())[:200] for one in caught]
    device = found[0] if found else None
    _say(device=device, names=found[1] if found else [], complaints=complaints)


def list_accelerators(torch: Any) -> tuple[tuple[str, list[str]] | None, list[str]]:
    """The kind and the names of all that this process can use, None where it has none; and what
    went wrong while they were looked for."""
    try:
        device = _name_kind(torch)
        if device is None:
            return None, []
        module = torch.get_device_module(device)
        count = int(module.device_count())
        name = getattr(module, "get_device_name", lambda number: device)
        return ((device, [str(name(number)) for number in range(count)]) if count else None), []
    except Exception as error:
        return None, [_one_line(error)]


def _name_kind(torch: Any) -> str | None:
    if not hasattr(torch, "accelerator"):  # before torch 2.6
        return "cuda" if torch.cuda.is_available() else None
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not torch.accelerator.is_available():
        return None
    return str(accelerator.type)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _say(**content: object) -> None:
    sys.stdout.write("\n" + json.dumps(content) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
