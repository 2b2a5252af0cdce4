"""Which run this process is a rank of.

Ranks agree on the run's id by the store of torch's process group: whoever comes first sets it. That
is no collective: a rank without a monitor keeps nobody waiting.
"""

from __future__ import annotations

import itertools
import mmap
import secrets
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flopwatch import env

Answer = TypeVar("Answer")
STORE_LIMIT_S = 10.0
"""For the store to answer: it may be on a node that is gone."""
WRITTEN_LIMIT_S = 3.0
"""For the rank that came first to write the run's first line."""

_numbers = itertools.count()
"""Of this process's monitors: all ranks are taken to make theirs in the same order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    rank: int
    world_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunIdentity:
    run_id: str
    is_first: bool
    """Whether this rank writes the run's first line."""
    note: str | None = None
    announce: Callable[[], None] = lambda: None
    """Tells other ranks that the first line is written."""
    wait_for_first_line: Callable[[], None] = lambda: None


def find_place() -> RankPlace:
    """By torch's process group, or where there is none, as torchrun says."""
    distributed = _find_distributed()
    if distributed is not None:
        return RankPlace(rank=distributed.get_rank(), world_size=distributed.get_world_size())
    rank, world_size = env.read("RANK"), env.read("WORLD_SIZE")
    if rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size):
        return RankPlace(rank=int(rank), world_size=int(world_size))
    return RankPlace(rank=0, world_size=1)


def take_number() -> int:
    return next(_numbers)


def agree(place: RankPlace, number: int) -> RunIdentity:
    """May take some seconds where the store does not answer."""
    own = secrets.token_hex(8)
    alone = RunIdentity(run_id=own, is_first=True)
    if place.world_size == 1:
        return alone
    distributed = _find_distributed()
    if distributed is None:
        return RunIdentity(
            run_id=own,
            is_first=True,
            note="ranks have records of their own: torch's process group was not there yet when "
            "the monitor was made",
        )
    restarts = env.read("TORCHELASTIC_RESTART_COUNT") or "0"
    key = f"flopwatch/monitor/{restarts}/{number}"
    written = f"{key}/written"
    try:
        store = distributed.distributed_c10d._get_default_store()
        found = _limit(lambda: bytes(store.compare_set(key, "", own)).decode())
    except Exception as error:
        return RunIdentity(
            run_id=own,
            is_first=True,
            note=f"ranks have records of their own: torch's store failed ({error})"[:200],
        )

    def wait() -> None:
        deadline_s = time.monotonic() + WRITTEN_LIMIT_S
        with suppress(Exception):
            while time.monotonic() < deadline_s and not _limit(lambda: store.check([written])):
                time.sleep(0.05)

    def announce() -> None:
        with suppress(Exception):
            _limit(lambda: store.set(written, "1"))

    return RunIdentity(
        run_id=found, is_first=found == own, announce=announce, wait_for_first_line=wait
    )


def has_first_line(path: Path, run_id: str) -> bool:
    """Whether a results file has lines of that run."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as lines:
            return lines.rfind(run_id.encode()) >= 0
    except (OSError, ValueError):  # there is none, or it is empty
        return False


def _limit(ask: Callable[[], Answer]) -> Answer:
    """Its answer, unless that takes too long: then TimeoutError."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True, name="flopwatch store")
    thread.start()
    thread.join(STORE_LIMIT_S)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer in {STORE_LIMIT_S:g} s")
    return answers[0]


def _find_distributed() -> Any | None:
    """torch.distributed, if this process has a process group."""
    if "torch" not in sys.modules:
        return None
    from torch import distributed

    is_there = distributed.is_available() and distributed.is_initialized()
    return distributed if is_there else None
