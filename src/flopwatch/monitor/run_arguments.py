"""The arguments of a monitor, checked and completed by what can be seen of the model."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwatch.devices.base import PolledClock, find_device_in_use, open_backend
from flopwatch.devices.device_table import DTYPES, SPELLINGS
from flopwatch.devices.kinds import is_host
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import find_conventions
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.monitor.flops_sources import FlopsRequest
from flopwatch.monitor.run_identity import find_place, take_number
from flopwatch.monitor.run_lines import RunRequest

if TYPE_CHECKING:
    from torch import nn

SHORT_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}


def list_models(model: nn.Module | Sequence[nn.Module] | None) -> list[nn.Module]:
    if model is None:
        return []
    models: Any = [model] if hasattr(model, "register_forward_hook") else list(model)
    for each in models:
        if not hasattr(each, "register_forward_hook"):
            raise UsageError(
                f"model is of type {type(each).__name__}; give a torch.nn.Module, or a list of them"
            )
    return list(models)


def make_request(  # noqa: PLR0913  as the monitor's own arguments
    flops: FlopsRequest,
    *,
    tokens_per_step: float | None,
    data_parallel: int | None,
    device: str | None,
    out: str | Path | None,
    name: str | None,
    params: Mapping[str, Any] | None,
    first_step: int,
    first_steps: int,
    is_live: bool,
) -> tuple[PolledClock | None, RunRequest]:
    """The clock of the device, if it has one of its own, and what is to be recorded."""
    _refuse_nonsense(flops, tokens_per_step, data_parallel, first_step, first_steps)
    models, job, place = flops.models, flops.job, find_place()
    device = device or _find_device(models)
    clock = _open_clock(device)
    parameters = _count_parameters(models)
    name = name or _name_run(models, job)
    identity = {
        "model": name if job is None else job.name,
        "parameters": None if parameters is None else parameters[0],
        "tokens_per_step": tokens_per_step,
        "ranks": place.world_size,
        **(params or {}),
    }
    return clock, RunRequest(
        name=name,
        params={key: value for key, value in identity.items() if value is not None},
        out=None if out is None else Path(out),
        place=place,
        number=take_number(),
        device=device,
        clock="perf_counter" if clock is None else clock.name,
        tokens_per_step=tokens_per_step,
        first_step=first_step,
        first_steps=first_steps,
        flops=replace(
            flops,
            dtype=None if flops.dtype is None else find_dtype_name(flops.dtype),
            world_size=place.world_size,
            data_parallel=data_parallel or _find_data_parallel(job, place.world_size),
        ),
        parameters=None if parameters is None else parameters[0],
        trainable_parameters=None if parameters is None else parameters[1],
        is_live=is_live,
        started_unix_s=time.time(),
        zero_ns=time.perf_counter_ns(),
    )


def find_dtype_name(dtype: object) -> str:
    """As peaks are listed by.

    >>> find_dtype_name("bf16"), find_dtype_name("torch.float8_e4m3fn")
    ('bfloat16', 'float8')
    """
    name = str(dtype).removeprefix("torch.")
    found = SHORT_NAMES.get(name) or SPELLINGS.get(name, name)
    if found not in DTYPES:
        raise UsageError(f"dtype is {name[:40]!r}; choose one of {', '.join(DTYPES)}")
    return found


def _refuse_nonsense(
    flops: FlopsRequest,
    tokens_per_step: float | None,
    data_parallel: int | None,
    first_step: int,
    first_steps: int,
) -> None:
    find_conventions([flops.convention])
    positive = {
        "tokens_per_step": tokens_per_step,
        "flops_per_token": flops.flops_per_token,
        "seq_len": flops.seq_len,
        "data_parallel": data_parallel,
    }
    for name, value in positive.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name} is {value}; give a number above 0, or leave it out")
    for name, value in {"first_step": first_step, "first_steps": first_steps}.items():
        if value < 0:
            raise UsageError(f"{name} is {value}; give 0 or more")
    if flops.job is not None and not isinstance(flops.job, TrainingJob):
        raise UsageError(f"job is of type {type(flops.job).__name__}; give a flopwatch.TrainingJob")


def _find_device(models: Sequence[nn.Module]) -> str:
    """Where most parameters are. Those on meta have no memory yet: where they will be, nobody has
    said."""
    counts: dict[str, int] = {}
    for model in models:
        for parameter in model.parameters():
            kind = parameter.device.type
            counts[kind] = counts.get(kind, 0) + parameter.numel()
    counts.pop("meta", None)
    return max(counts, key=lambda kind: counts[kind], default=find_device_in_use())


def _open_clock(device: str) -> PolledClock | None:
    """None: the host's, where work is done when its call returns, or where the device has no events
    with times."""
    if is_host(device):
        return None
    clock = open_backend(device).clock
    return clock if isinstance(clock, PolledClock) else None


def _count_parameters(models: Sequence[nn.Module]) -> tuple[int, int] | None:
    """All, and those that are trained; shared ones count once."""
    if not models:
        return None
    found = {id(p): p for model in models for p in model.parameters()}
    trained = sum(p.numel() for p in found.values() if p.requires_grad)
    return sum(p.numel() for p in found.values()), trained


def _name_run(models: Sequence[nn.Module], job: TrainingJob | None) -> str:
    if job is not None:
        return job.name
    if not models:
        return "training"
    from flopwatch.models.module_flops import unwrap

    return "+".join(type(unwrap(model)).__name__.removeprefix("FSDP") for model in models)


def _find_data_parallel(job: TrainingJob | None, world_size: int) -> int:
    if job is not None and job.ranks == world_size:
        return job.parallelism.data
    return world_size
