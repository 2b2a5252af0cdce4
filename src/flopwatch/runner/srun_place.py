"""The place of a process that srun has started, among the tasks of its step: each is a rank.

    srun --nodes 2 --ntasks-per-node 8 python -m flopwatch run training ...

Slurm's variables say which rank it is and where rank 0 runs; no other need be set. A script that
sbatch runs has most of them, too, but is no task of a step, and so no rank.
"""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import suppress

from flopwatch import env
from flopwatch.devices.slurm_facts import expand_counts, expand_nodes
from flopwatch.errors import UsageError
from flopwatch.runner.rank_addresses import JOB_PORTS, LAST_PORT
from flopwatch.worker.messages import RankPlace

FIRST_PORT = 12000
PORTS = JOB_PORTS + 2
"""Of one job, so that several on one node do not get in each other's way."""
MOST_JOBS = 1000
"""Whose ports differ, all below those that the system gives to anybody."""
ANSWER_S = 10.0


def find_step_place(environ: env.Environ = None) -> RankPlace | None:
    """None where this is not one of several tasks of a step."""
    if env.read("SLURM_STEP_NUM_TASKS", environ) in ("", "1"):
        return None
    ranks = _read_number("SLURM_STEP_NUM_TASKS", environ)
    by_node = expand_counts(env.read("SLURM_STEP_TASKS_PER_NODE", environ))
    nodes = expand_nodes(env.read("SLURM_STEP_NODELIST", environ))
    rank, local_rank = _read_number("SLURM_PROCID", environ), _read_number("SLURM_LOCALID", environ)
    number = _find_node(nodes, by_node, environ)
    if rank != sum(by_node[:number]) + local_rank:
        raise UsageError(
            "srun has dealt this job's tasks out over the nodes in turns, and ranks of a node must "
            "follow each other; add --distribution=block to srun"
        )
    is_alike = len(set(by_node)) == 1
    return RankPlace(
        rank=rank,
        ranks=ranks,
        local_rank=local_rank,
        local_ranks=by_node[number],
        node_ranks=by_node[0] if is_alike else ranks,
        address=env.read("MASTER_ADDR", environ) or find_address(nodes[0]),
        port=_choose_port(environ),
    )


def is_step(environ: env.Environ = None) -> bool:
    """Whether srun has started the ranks, and not torchrun."""
    return not env.read("RANK", environ) and find_step_place(environ) is not None


def _find_node(nodes: list[str], by_node: list[int], environ: env.Environ) -> int:
    node = env.read("SLURMD_NODENAME", environ)
    if node in nodes and len(nodes) == len(by_node):
        return nodes.index(node)
    raise UsageError(
        "this is one of several tasks of srun, but SLURM_STEP_NODELIST, SLURM_STEP_TASKS_PER_NODE "
        "and SLURMD_NODENAME do not say on which node; start flopwatch with srun itself, or with "
        "torchrun"
    )


def _choose_port(environ: env.Environ) -> int:
    if env.read(env.PORT, environ):
        return _read_number(env.PORT, environ, LAST_PORT)
    job, step = _read_number("SLURM_JOB_ID", environ), env.read("SLURM_STEP_ID", environ)
    offset = job * 7 + int(step if step.isdecimal() else 0)
    return FIRST_PORT + PORTS * (offset % MOST_JOBS)


def find_address(node: str) -> str:
    """Where other nodes reach it: by its name, or where that is none, as Slurm does."""
    with suppress(OSError):
        socket.getaddrinfo(node, None)
        return node
    with suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(
            ["scontrol", "show", "node", "-o", node],
            capture_output=True, text=True, timeout=ANSWER_S, check=True,
        ).stdout  # fmt: skip
        if found := re.search(r"NodeAddr=(\S+)", answer):
            return found[1]
    return node


def _read_number(name: str, environ: env.Environ, highest: int = 10**9) -> int:
    text = env.read(name, environ)
    if text.isdecimal() and len(text) < 11 and int(text) <= highest:
        return int(text)
    raise UsageError(
        f"the environment says that this is one of several tasks of srun, but {name} is "
        f"{text[:40]!r} and not a number up to {highest}"
    )
