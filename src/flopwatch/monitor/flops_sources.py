"""FLOPs of a token, from whatever a monitor was given: the first of these that is there.

    a training job            by one of the conventions
    a config                  the same, with the dimensions that it has
    a number                  as it is
    the model's own config    if it has as many parameters as the model
    the model                 its operators are counted, on tensors without memory

Conventions take all parameters for trained. Where some are frozen (LoRA, a backbone), the operators
are counted, whatever else is there. What is not known for sure is None, with a sentence that says
why: no MFU is better than a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.model_shapes import ARCHITECTURES
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.precision import name_precision
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.monitor.loop_configs import read_shape
from flopwatch.records.monitored import CountedFlops, FlopsSource

if TYPE_CHECKING:
    from torch import nn

    from flopwatch.models.module_flops import Call

ADVICE = "give job=, config= or flops_per_token="


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopsRequest:
    """What the user has said."""

    models: Sequence[nn.Module] = ()
    job: TrainingJob | None = None
    config: object | None = None
    flops_per_token: float | None = None
    convention: str = "exact"
    dtype: str | None = None
    seq_len: int | None = None
    world_size: int = 1
    data_parallel: int = 1
    grad_accum: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FlopsAnswer:
    flops: CountedFlops | None = None
    missing: str | None = None
    job: TrainingJob | None = None
    """Where a config made one."""


def find_flops(asked: FlopsRequest, call: Call | None) -> FlopsAnswer:
    """`call` is how the model was first called; None where it was not, or is not known."""
    dtype = asked.dtype or find_dtype(asked.models, call)
    is_all_trained = not _count_frozen(asked.models)
    refused = ""
    try:
        if asked.job is not None and is_all_trained:
            return _count_job(asked.job, "job", asked, asked.job.arithmetic.matmul_dtype)
        if asked.config is not None and is_all_trained:
            try:
                return _count_config(asked, asked.config, call, dtype)
            except UsageError as error:
                refused = f"the config cannot be used ({error}), and "
        if asked.flops_per_token is not None:
            return _give_number(asked.flops_per_token, dtype)
        own = find_config(asked.models[0]) if len(asked.models) == 1 else None
        if own is not None and is_all_trained:
            with suppress(UsageError):
                return _count_config(asked, own, call, dtype)
        return _count_module(asked, call, dtype)
    except FlopwatchError as error:
        return FlopsAnswer(missing=f"{refused}{error}")


def find_config(model: nn.Module) -> object | None:
    """Its own, as models of transformers have one."""
    from flopwatch.models.module_flops import unwrap

    config = getattr(unwrap(model), "config", None)
    return config if hasattr(config, "model_type") or hasattr(config, "n_embd") else None


def find_dtype(models: Sequence[nn.Module], call: Call | None) -> str:
    """Of matmuls: what autocast, or fully_shard, casts to, or else what most parameters have."""
    if call is not None and call.autocast is not None:
        return _name(call.autocast[1])
    counts: dict[str, int] = {}
    for model in models:
        find_state: Any = getattr(model, "_get_fsdp_state", lambda: None)  # of fully_shard
        cast = getattr(getattr(find_state(), "_mp_policy", None), "param_dtype", None)
        if cast is not None:
            return _name(cast)
        for parameter in model.parameters():
            name = _name(parameter.dtype)
            counts[name] = counts.get(name, 0) + parameter.numel()
    return max(counts, key=lambda name: counts[name], default="float32")


def make_job(asked: FlopsRequest, config: object, call: Call | None) -> TrainingJob:
    """What the config and the first call say together. Raises UsageError where that is no job."""
    from flopwatch.models.module_flops import find_tokens

    tokens = None if call is None else find_tokens(call)
    seq_len = asked.seq_len or (None if tokens is None else tokens[1])
    if seq_len is None:
        raise UsageError("it needs seq_len=, since the model's inputs do not show it")
    parameters = sum(p.numel() for model in asked.models for p in model.parameters())
    shape = read_shape(config, parameters or None, seq_len)
    model = asked.models[0] if asked.models else None
    autocast = None if call is None or call.autocast is None else _name(call.autocast[1])
    own = asked.dtype if model is None else find_dtype(asked.models, None)
    try:
        precision = name_precision(own or "float32", autocast if autocast != own else None)
    except FlopwatchError:
        precision = "bf16-mixed"
    return TrainingJob(
        shape,
        seq_len,
        micro_batch=1 if tokens is None else tokens[0],
        grad_accum=max(1, asked.grad_accum),
        precision=precision,
        recompute="full" if getattr(model, "is_gradient_checkpointing", False) else "none",
        parallelism=Parallelism(data=asked.data_parallel),
    )


def _count_config(
    asked: FlopsRequest, config: object, call: Call | None, dtype: str
) -> FlopsAnswer:
    job = make_job(asked, config, call)
    return replace(_count_job(job, "config", asked, dtype), job=job)


def _count_job(
    job: TrainingJob, source: FlopsSource, asked: FlopsRequest, dtype: str
) -> FlopsAnswer:
    convention = CONVENTIONS[asked.convention]
    is_counted = job.is_dense and job.shape.architecture in ARCHITECTURES
    if convention.needs_parts and not is_counted:
        raise UsageError(f"{convention.name} cannot count {job.name}; give flops_per_token=")
    model = convention.count_model_flops(job, None)
    # Whether others than models of transformers recompute activations, a config does not say.
    is_sure = source == "job" or hasattr(
        asked.models[0] if asked.models else None, "is_gradient_checkpointing"
    )
    return FlopsAnswer(
        flops=CountedFlops(
            model=model,
            hardware=convention.count_hardware_flops(job, None) if is_sure else None,
            dtype=asked.dtype or dtype,
            source=source,
            convention=convention.name,
            remark=f"FLOPs by the convention {convention.name}, from the "
            + ("training job" if source == "job" else "dimensions of the config"),
        )
    )


def _give_number(flops_per_token: float, dtype: str) -> FlopsAnswer:
    return FlopsAnswer(
        flops=CountedFlops(
            model=flops_per_token,
            hardware=None,
            dtype=dtype,
            source="number",
            convention="given",
            remark="FLOPs of a token as they were given",
        )
    )


def _count_module(asked: FlopsRequest, call: Call | None, dtype: str) -> FlopsAnswer:
    from flopwatch.models.module_flops import count_module_flops, find_tokens

    if len(asked.models) != 1:
        what = "several models are" if asked.models else "no model is"
        raise UsageError(f"FLOPs are not known: {what} watched; {ADVICE}")
    (model,) = asked.models
    if call is None:
        raise UsageError(f"FLOPs are not known: the model was not called; {ADVICE}")
    if asked.data_parallel != asked.world_size and not _has_whole_shapes(model):
        raise UsageError(
            "FLOPs are not known: a rank has only a part of the model, or of a sequence; " + ADVICE
        )
    try:
        counted = count_module_flops(model, call)
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(
            f"the model's FLOPs cannot be counted without computing it ({text}); {ADVICE}"
        ) from None
    if counted.uncounted:
        names = ", ".join(list(counted.uncounted)[:3])
        raise UsageError(f"the FLOPs of {names} are not known; {ADVICE}")
    if counted.forward == 0:
        raise UsageError(f"the model multiplies no matrices; {ADVICE}")
    tokens = find_tokens(call)
    number = 1 if tokens is None else tokens[0] * tokens[1]
    model_flops = (counted.forward + counted.backward) / number
    return FlopsAnswer(
        flops=CountedFlops(
            model=model_flops,
            hardware=model_flops + counted.recomputed / number,
            dtype=dtype,
            source="module",
            convention="counted",
            unit="micro-batch" if tokens is None else "token",
            remark="FLOPs of all matmuls of the model's first forward and backward pass, attention "
            "in full",
        )
    )


def _count_frozen(models: Sequence[nn.Module]) -> int:
    """Matrices that are not trained."""
    return sum(
        not parameter.requires_grad and parameter.ndim > 1
        for model in models
        for parameter in model.parameters()
    )


def _has_whole_shapes(model: nn.Module) -> bool:
    """Whether its parameters know what they are on all ranks together, as DTensors do."""
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
