"""What Slurm says about the job that this process is in: the environment's section "slurm".

    job_id     of an array: 12_3
    cluster, partition
    node       the one that this process is on, and `nodes`, all of the job's
    restarts   how often Slurm has requeued the job
    gpus       which of the node's GPUs the job has, where it has asked for some

Nodes of one partition count as one machine: its name, not a node's, makes the machine's id, and of
the cores that a job was given only their number counts. Else no two jobs could be compared. What
makes nodes differ, such as their CPU and GPU, is compared by itself, and `flopwatch check` names a
node that is slower than the others.
"""

from __future__ import annotations

import hashlib
import re
from itertools import product
from typing import Any

from flopwatch import env


def read_slurm(environ: env.Environ = None) -> dict[str, Any] | None:
    """None outside of a job."""
    if not env.read("SLURM_JOB_ID", environ):
        return None
    restarts = env.read("SLURM_RESTART_COUNT", environ)
    facts = {
        "job_id": name_job(environ),
        "cluster": env.read("SLURM_CLUSTER_NAME", environ),
        "partition": env.read("SLURM_JOB_PARTITION", environ),
        "node": env.read("SLURMD_NODENAME", environ),
        "nodes": expand_nodes(env.read("SLURM_JOB_NODELIST", environ)),
        "restarts": int(restarts) if restarts.isdecimal() else None,
        "gpus": env.read("SLURM_JOB_GPUS", environ),
    }
    return {name: fact for name, fact in facts.items() if fact not in ("", [], None)}


def name_job(environ: env.Environ = None) -> str:
    """As squeue does: an array's id and the number within it."""
    array = env.read("SLURM_ARRAY_JOB_ID", environ)
    if array:
        return f"{array}_{env.read('SLURM_ARRAY_TASK_ID', environ)}"
    return env.read("SLURM_JOB_ID", environ)


def describe_as_one_machine(machine: dict[str, Any], slurm: dict[str, Any]) -> dict[str, Any]:
    """The section "machine" of any node of the partition."""
    name = f"flopwatch slurm {slurm.get('cluster')} {slurm.get('partition')}"
    ours = {**machine, "machine_id": hashlib.sha256(name.encode()).hexdigest()[:12]}
    if "affinity" in machine:
        ours["affinity"] = f"{machine['usable_cores']} cores"
    return ours


def expand_nodes(text: str) -> list[str]:
    """
    >>> expand_nodes("n[08-10,3],gpu1,r[1-2]c[1-2]")
    ['n08', 'n09', 'n10', 'n3', 'gpu1', 'r1c1', 'r1c2', 'r2c1', 'r2c2']
    """
    nodes: list[str] = []
    for name in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        pieces = re.split(r"\[([^\]]*)\]", name)  # plain, range, plain, range, ..., plain
        choices = [_expand(p) if n % 2 else [p] for n, p in enumerate(pieces)]
        nodes += ["".join(chosen) for chosen in product(*choices)]
    return nodes


def _expand(ranges: str) -> list[str]:
    numbers: list[str] = []
    for piece in ranges.split(","):
        first, dash, last = piece.partition("-")
        if not dash:
            numbers.append(first)
        else:
            numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """Tasks by node, as Slurm writes them.

    >>> expand_counts("2(x3),1")
    [2, 2, 2, 1]
    """
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    return counts
