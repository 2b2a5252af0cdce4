"""How much a given memory has room for: the largest micro-batch and sequence length of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.devices import environment
from flopwatch.devices.kinds import HOST, find_kind, is_host
from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import UNSHARDED, is_data_only
from flopwatch.jobs.rank_memory import Memory, estimate_rank_memory
from flopwatch.jobs.step_memory import StepMemory
from flopwatch.jobs.training_job import TrainingJob, read_job
from flopwatch.models.job_estimates import estimate_step
from flopwatch.prediction.cost import require_predictable
from flopwatch.prediction.hardware import find_machine
from flopwatch.prediction.job_arrays import Placed, make_arrays
from flopwatch.prediction.stage_memory import estimate_stage_memory
from flopwatch.runner import session
from flopwatch.runner.host import MEMORY_SHARE
from flopwatch.runner.memory_fit import PROCESS_BYTES
from flopwatch.settings import Device

SHORTEST = 2
"""Tokens of a sequence: one alone has no next one to be learnt."""
UTMOST = 2**24
"""Nobody asks for larger micro-batches or longer sequences."""
ANY_DEVICE = "A100-80GB"
GROWTH = 4
"""From one trial to the next, until something does not fit."""


def find_available_bytes(fit_bytes: float | None, device: Device) -> int:
    """For tensors: of the size given, or of as much of this machine's free memory as a run takes,
    without what else a process needs."""
    if fit_bytes is None:
        if not is_host(device):
            unit = find_kind(device).unit
            raise UsageError(
                f"how much memory a {unit} has must be said; add for example --fit 24G"
            )
        free_bytes = environment.machine(Path.cwd())["machine"]["memory_available_bytes"]
        fit_bytes = int(MEMORY_SHARE * free_bytes)
    if fit_bytes <= PROCESS_BYTES:
        raise UsageError(
            f"a process with torch takes {PROCESS_BYTES >> 20} MiB before it has a tensor; choose "
            "more for --fit"
        )
    return int(fit_bytes) - PROCESS_BYTES


def find_capacity(job: TrainingJob, device: Device, available_bytes: int) -> Memory:
    """Models of the library transformers need torch, and are estimated in a process that has it;
    where ranks divide the model, or it cannot be built (experts, windows, state spaces), it is
    estimated by `stage_memory`."""
    is_kept = job.offload == "none" and job.recompute_layers is None
    if not (is_kept and is_data_only(job.parallelism)):
        return estimate_by_stage(job, available_bytes)
    if job.shape.is_ours:
        return estimate_capacity(job, device, available_bytes)
    arguments = {"job": job.to_dict(), "target": device, "available_bytes": available_bytes}
    try:
        content = session.call("find_capacity", arguments, device=HOST)
    except UsageError:
        return estimate_by_stage(job, available_bytes)
    step = msgspec.convert(content.pop("step"), StepMemory | None)
    return Memory(job=job, available_bytes=available_bytes, step=step, **content)


def survey(
    job: Mapping[str, Any], target: Device, available_bytes: int, device: str
) -> dict[str, Any]:
    """In a worker, whose own device does not matter."""
    memory = estimate_capacity(read_job(job), target, available_bytes)
    names = ("parts", "step", "largest_micro_batch", "largest_seq_len")
    return {name: getattr(memory, name) for name in names}


def estimate_capacity(job: TrainingJob, device: Device, available_bytes: int) -> Memory:
    on_host = is_host(device)

    @lru_cache
    def count(micro_batch: int, seq_len: int) -> int:
        tried = replace(job, micro_batch=micro_batch, seq_len=seq_len)
        return sum(estimate_rank_memory(tried, on_host=on_host, estimate=estimate_step).values())

    return Memory(
        job=job,
        parts=estimate_rank_memory(job, on_host=on_host, estimate=estimate_step),
        available_bytes=available_bytes,
        step=estimate_step(job, on_host=on_host) if job.sharding in UNSHARDED else None,
        largest_micro_batch=find_largest(
            lambda micro_batch: count(micro_batch, job.seq_len), available_bytes
        ),
        largest_seq_len=find_largest(
            lambda seq_len: count(job.micro_batch, seq_len), available_bytes, SHORTEST
        ),
    )


def estimate_by_stage(job: TrainingJob, available_bytes: int) -> Memory:
    """Of the fullest pipeline stage. What a device can do does not matter for its memory, so that
    any will do."""
    require_predictable(job, "memory")
    machine = find_machine(ANY_DEVICE)[1]

    def count(tried: TrainingJob) -> dict[str, float]:
        sizes = estimate_stage_memory(make_arrays([Placed(tried, machine)]))
        return {name: float(size[0]) for name, size in sizes.items() if size[0]}

    def total(tried: TrainingJob) -> int:
        return int(sum(count(tried).values()))

    return Memory(
        job=job,
        parts=count(job),
        available_bytes=available_bytes,
        largest_micro_batch=find_largest(
            lambda number: total(replace(job, micro_batch=number)), available_bytes
        ),
        largest_seq_len=find_largest(
            lambda number: total(replace(job, seq_len=number)), available_bytes, SHORTEST
        ),
    )


def find_largest(count_bytes: Callable[[int], int], available_bytes: int, least: int = 1) -> int:
    """The largest number, from `least` on, whose bytes are available; 0 where none is so
    small. The bytes must not shrink as the number grows.

    >>> find_largest(lambda number: 10 + 3 * number, 100)
    30
    """
    if count_bytes(least) > available_bytes:
        return 0
    fits, exceeds = least, GROWTH * least
    while count_bytes(exceeds) <= available_bytes:
        fits, exceeds = exceeds, GROWTH * exceeds
        if exceeds > UTMOST:
            return fits
    is_halved = True
    while exceeds - fits > 1:
        width = exceeds - fits
        tried = fits + width // 2
        if is_halved:
            # Where the bytes were in proportion: at once the answer, if the rest is a line.
            low, high = count_bytes(fits), count_bytes(exceeds)
            tried = fits + (available_bytes - low) * width // (high - low)
            tried = min(max(tried, fits + 1), exceeds - 1)
        if count_bytes(tried) <= available_bytes:
            fits = tried
        else:
            exceeds = tried
        is_halved = not is_halved or exceeds - fits <= width // 2
    return fits
