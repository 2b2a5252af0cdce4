"""Exceptions of measured code, as a record tells them."""

from __future__ import annotations

import traceback
from pathlib import Path

from flopwatch.engine import limits
from flopwatch.engine.agreement import WrongResult
from flopwatch.engine.sources import is_project_file
from flopwatch.engine.study import Diverged
from flopwatch.errors import FlopwatchError, Unsupported
from flopwatch.records.record import Status


def explain(error: BaseException) -> str:
    """An exception as one line, with the place in the user's code where it arose."""
    message = " ".join(str(error).split())
    if isinstance(error, FlopwatchError | Unsupported | WrongResult | Diverged):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_project_file(frame.filename)]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return ": ".join(filter(None, [type(error).__name__, message])) + place


LOSSES = (
    *("connection closed", "connection reset", "connection refused", "broken pipe"),
    *("socket closed", "timed out", "application timeout", "connectfullmesh failed"),
)
"""What torch.distributed says where another rank has ended or stays away, in small letters."""


def is_loss_of_peer(error: BaseException) -> bool:
    """Whether it only tells that another rank is gone, which has a reason of its own."""
    said = str(error).lower()
    return type(error).__name__.startswith("Dist") or any(text in said for text in LOSSES)


NO_THREAD = ("can't start new thread", "resource temporarily unavailable")
"""What is said where a thread cannot be had, in small letters: for lack of memory for its stack, or
because there are too many."""


def tell(error: BaseException, limit_bytes: int | None) -> tuple[Status, str]:
    """Status and reason; where there is no memory left, not even for a thread, with the limit."""
    status, reason = classify(error), explain(error)
    if isinstance(error, MemoryError) or any(text in reason.lower() for text in NO_THREAD):
        shortage = limits.describe_shortage(limit_bytes)
        if shortage is not None:
            return "oom", f"{reason}: {shortage}"
    return status, reason


def classify(error: BaseException) -> Status:
    """The status that an exception gives its variant."""
    message = str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "oom"
    if isinstance(error, RuntimeError) and "can't allocate memory" in message:
        return "oom"
    if isinstance(error, WrongResult | Diverged):
        return "wrong"
    if isinstance(error, Unsupported | NotImplementedError) or "not implemented for" in message:
        return "unsupported"
    return "crash"
