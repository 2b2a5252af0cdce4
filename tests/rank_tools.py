"""Functions on several ranks at once: processes that are forked from a server which has torch."""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT_S = 240.0


def run_on_ranks(ranks: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What the function, of some test module, gives on each rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "flopwatch.models.training_loop"])
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            context.Process(
                target=_serve,
                args=(rank, ranks, Path(folder) / "store", pipes[rank][1], function, arguments),
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            answers = [_receive(rank, pipe) for rank, (pipe, _) in enumerate(pipes)]
        finally:
            for process, ends in zip(processes, pipes, strict=True):
                process.kill()
                process.join()
                process.close()
                for end in ends:
                    end.close()
    return answers


def _receive(rank: int, pipe: Connection) -> Any:
    assert pipe.poll(TIMEOUT_S), f"rank {rank} says nothing"
    is_fine, answer = pickle.loads(pipe.recv_bytes())
    assert is_fine, f"rank {rank}: {answer}"
    return answer


def _serve(
    rank: int,
    ranks: int,
    store: Path,
    pipe: Connection,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch
    from torch import distributed

    warnings.simplefilter("error", FutureWarning)  # torch uses its own old names elsewhere
    torch.set_num_threads(1)
    try:
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
        )
        # As bytes: tensors would be sent as memory to share, which ends with this process.
        pipe.send_bytes(pickle.dumps((True, function(*arguments))))
        distributed.barrier()
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
