"""Chooses among ways to compute the same by measuring each once, and keeps what was chosen for
other processes.

What is kept are names of ways, in a file of this user alone (`private_files`): whoever can write it
can at most make a matmul slower. A file that cannot be trusted or read is as good as none, and
where none can be written, every process measures for itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress

import torch

from flopwatch import env
from flopwatch.private_files import NotPrivate, open_folder, read_file, write_file

Way = Callable[[], object]


def choose(about: tuple[str, ...], key: str, ways: Mapping[str, Way]) -> str:
    """The name of the fastest of the ways, which all leave the same result.

    `about` is all that the choice depends on besides the key: the device, versions, sources.
    """
    if len(ways) == 1 or _is_capturing():
        return next(iter(ways))  # nothing can be measured while a graph is captured
    file = f"tuned-{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]}.json"
    known = read(file).get(key)
    if known in ways:
        return str(known)
    times_ms = {name: measure(way) for name, way in ways.items()}
    chosen = min(times_ms, key=lambda name: times_ms[name])
    if times_ms[chosen] == float("inf"):
        ways[chosen]()  # which says why
    keep(file, key, chosen)
    return chosen


def measure(way: Way) -> float:
    """Milliseconds; infinitely many where the device cannot compute it so."""
    from triton.runtime import driver

    try:
        way()
        median, *_ = driver.active.get_benchmarker()(way, quantiles=(0.5, 0.2, 0.8))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001  too little shared memory, or torch refuses the sizes
        return float("inf")
    return float(median)


def read(file: str) -> dict[str, str]:
    """What is kept, by key; nothing where it cannot be trusted."""
    try:
        with open_folder(env.find_cache_folder()) as folder:
            content = read_file(folder, file)
        found = json.loads(content)
    except (NotPrivate, OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: name for key, name in found.items() if isinstance(name, str)}


def keep(file: str, key: str, chosen: str) -> None:
    """Of two processes that do so at once, one may lose its choice, which is then made again."""
    content = json.dumps({**read(file), key: chosen}, indent=0, sort_keys=True)
    with suppress(NotPrivate, OSError), open_folder(env.find_cache_folder()) as folder:
        write_file(folder, file, content.encode())


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
