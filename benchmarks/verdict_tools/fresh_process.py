"""Calling a function in a process of its own, that has torch but nothing else of ours.

Forked from a server that has only imported torch and the tools: an import takes seconds, and says
nothing about a tool. No thread of torch has been started there.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

Result = TypeVar("Result")
PRELOADED = [
    "torch",
    "torch.utils.benchmark",
    "flopwatch.worker.inline",
    "flopwatch.devices.cpu",
]


class Failed(Exception):
    """The function has raised, died or taken too long."""


def call_in_fresh_process(
    function: Callable[..., Result], *arguments: object, timeout_s: float = 600
) -> Result:
    context = get_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(timeout_s):
            raise Failed(f"no answer within {timeout_s:g} s")
        result, error = receiver.recv()
    except EOFError:
        raise Failed("its process died") from None
    finally:
        process.kill()
        process.join()
        receiver.close()
    if error is not None:
        raise Failed(error)
    return result  # type: ignore[no-any-return]


@cache
def get_context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _send_result(sender: Connection, function: Callable[..., Any], arguments: Any) -> None:
    try:
        sender.send((function(*arguments), None))
    except Exception:
        sender.send((None, traceback.format_exc()))
