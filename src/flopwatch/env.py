"""The environment variables that change what flopwatch does. No other module reads them.

Besides, `devices.environment` stores some variables in records, and workers inherit all of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

Environ = Mapping[str, str] | None
"""Variables by name; None: those of this process."""

PEAKS, CALIBRATION = "FLOPWATCH_PEAKS", "FLOPWATCH_CALIBRATION"
PORT, SECRET = "FLOPWATCH_PORT", "FLOPWATCH_SECRET"

VARIABLES = {
    PEAKS: "file of measured peaks, in place of flopwatch/peaks.jsonl in the cache folder",
    CALIBRATION: "file of calibrations, in place of calibrations.jsonl next to the peaks",
    "FLOPWATCH_NATIVE": "off: do without kernels that are compiled when they are first needed",
    PORT: "port of rank 0, in place of the one after MASTER_PORT",
    SECRET: "text by which ranks recognise each other, in place of the key in the cache folder",
    # torchrun, or a scheduler that does the same
    "RANK": "number of this rank",
    "WORLD_SIZE": "number of ranks",
    "LOCAL_RANK": "number of this rank on its node",
    "LOCAL_WORLD_SIZE": "number of ranks on this node",
    "MASTER_ADDR": "node of rank 0",
    "MASTER_PORT": "port that torchrun uses itself",
    "TORCHELASTIC_RUN_ID": "set: torchrun has started this process",
    "TORCHELASTIC_RESTART_COUNT": "how often torchrun has started the ranks again",
    "TORCHELASTIC_ERROR_FILE": "a file in a folder of torchrun's that its ranks on a node share",
    # Slurm, which sets them in its jobs
    "SLURM_JOB_ID": "set: this is a job",
    "SLURM_ARRAY_JOB_ID": "of the array that the job is one of",
    "SLURM_ARRAY_TASK_ID": "its number in that",
    "SLURM_CLUSTER_NAME": "recorded",
    "SLURM_JOB_PARTITION": "recorded",
    "SLURM_JOB_NODELIST": "recorded: all nodes of the job",
    "SLURM_JOB_GPUS": "recorded: which GPUs of a node the job has",
    "SLURM_RESTART_COUNT": "how often the job was requeued",
    "SLURMD_NODENAME": "the node that this process is on",
    "SLURM_STEP_ID": "number of the call of srun within the job",
    "SLURM_STEP_NUM_TASKS": "number of ranks that srun has started",
    "SLURM_STEP_TASKS_PER_NODE": "by node",
    "SLURM_STEP_NODELIST": "nodes that they run on",
    "SLURM_PROCID": "number of this rank",
    "SLURM_LOCALID": "number of this rank on its node",
    # the system
    "XDG_CACHE_HOME": "folder for caches, in place of ~/.cache",
    "HOME": "withheld from records",
    "COLUMNS": "width of tables",
    "TERM": "dumb: no line that changes",
    "CXX": "C++ compiler",
    "KUBERNETES_SERVICE_HOST": "set: this is a container of Kubernetes",
    "NSYS_PROFILING_SESSION_ID": "set: Nsight Systems profiles this process",
    # libraries
    "ONEDNN_MAX_CPU_ISA": "highest instruction set that oneDNN may use",
    "DNNL_MAX_CPU_ISA": "the same, by its older name",
    "ATEN_CPU_CAPABILITY": "highest instruction set that torch's own kernels may use",
    "LD_PRELOAD": "libraries loaded first: perhaps an allocator",
    "GLIBC_TUNABLES": "settings of glibc's malloc, as are the next five",
    "MALLOC_ARENA_MAX": "",
    "MALLOC_MMAP_MAX_": "",
    "MALLOC_MMAP_THRESHOLD_": "",
    "MALLOC_TOP_PAD_": "",
    "MALLOC_TRIM_THRESHOLD_": "",
    "MALLOC_CONF": "settings of jemalloc",
    "TCMALLOC_RELEASE_RATE": "setting of tcmalloc",
    "THP_MEM_ALLOC_ENABLE": "1: torch asks for huge pages",
}


def read(name: str, environ: Environ = None) -> str:
    """Empty where it is not set."""
    if name not in VARIABLES:
        raise KeyError(f"{name} is not in env.VARIABLES; add it there, with its meaning")
    return (os.environ if environ is None else environ).get(name, "")


def has_peer_ranks(environ: Environ = None) -> bool:
    """Whether torchrun or srun has started others like this process, none of them its child."""
    is_step = read("SLURM_STEP_NUM_TASKS", environ) not in ("", "1")
    return is_step or bool(read("TORCHELASTIC_RUN_ID", environ))


def read_ranks_per_node(ranks: int, environ: Environ = None) -> int:
    """Of a running job of so many ranks, as torchrun passes it to each; outside of a job, all."""
    return int(read("LOCAL_WORLD_SIZE", environ) or ranks)


def find_cache_folder(environ: Environ = None) -> Path:
    """Where flopwatch keeps what it can make again."""
    return Path(read("XDG_CACHE_HOME", environ) or os.path.expanduser("~/.cache")) / "flopwatch"
