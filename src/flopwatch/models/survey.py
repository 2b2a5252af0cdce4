"""What a model of any architecture has, needs and computes, from a step on tensors without memory.

Fake tensors have shapes and types, and operations on them give fake tensors: a step runs as it
would, but computes nothing and holds nothing, so that models can be surveyed that no machine could
hold. Whatever storages it makes are followed until they are gone.

A model has many equal blocks: two steps, of one block and of two, give what each block adds. And
tensors grow in proportion to the micro-batch: from steps with two of them follow all others, moment
by moment. (A micro-batch of one is a step of its own: some operations take views there.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.devices.kinds import HOST
from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.jobs.expert_memory import Growth, count_expert_growth
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape, has_own_experts
from flopwatch.jobs.step_memory import (
    MOMENTS,
    Moment,
    StepMemory,
    Tensor,
    choose_largest,
    find_update_peak,
)
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models import builder
from flopwatch.models.builder import choose_attention, choose_recompute
from flopwatch.models.tensor_watch import (
    BLOCK_NUMBER,
    TensorWatch,
    describe_storage,
    generalise_name,
)
from flopwatch.models.transformer import Transformer


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """What a model has and what its forward pass computes."""

    parameters: int
    """Shared ones count once."""
    block_weights: int
    """Of all linear layers inside blocks, without biases."""
    other_weights: int
    """Of all others: the head, and projections from and to embeddings of another size."""
    attention_flops: int
    """Of the matmuls of queries with keys and of scores with values, in full."""
    forward_flops: int
    """Of all matmuls of one forward pass."""


def estimate(job: TrainingJob, *, on_host: bool = True) -> StepMemory:
    """By running steps on fake tensors; for models of the library transformers, and to check what
    `jobs.activation_memory` says about ours."""
    # What can only be accounted for: padding is built as tokens, and experts are added to a model
    # with one feed-forward part, unless its architecture has them.
    shape = replace(job.shape, vocabulary=job.shape.rows, padded_vocabulary=None)
    are_added = job.shape.experts is not None and not has_own_experts(job.shape.architecture)
    if are_added:
        shape = replace(shape, experts=None, active_experts=None)
    with _explained(job.shape):
        one, two = (trace_step(replace(job, model=replace(shape, layers=n))) for n in (1, 2))
    if are_added:
        growth = count_expert_growth(job, on_host=on_host)
        _add_experts(one, job, growth, 1)
        _add_experts(two, job, growth, 2)
    return _extrapolate(one, two, job, on_host)


def _add_experts(trace: Trace, job: TrainingJob, growth: Growth, blocks: int) -> None:
    """What a step with experts in so many blocks would hold beyond what a step without held."""
    shape, kept_bytes = job.shape, blocks * growth.kept_bytes
    gradient_bytes = blocks * growth.parameters * job.arithmetic.parameter_bytes
    trace.parameters += blocks * growth.parameters
    trace.kept_bytes += kept_bytes
    for part, peak in trace.peaks.items():
        is_forward, is_late = part == "forward", part == "late"
        cached_bytes = blocks * growth.cached_bytes if is_forward else 0
        temporary_bytes = growth.forward_bytes if is_forward else growth.backward_bytes
        trace.peaks[part] = replace(
            peak,
            activation_bytes=peak.activation_bytes + (0 if is_late else kept_bytes),
            gradient_bytes=peak.gradient_bytes + (gradient_bytes if is_late else 0),
            temporary_bytes=peak.temporary_bytes + temporary_bytes + cached_bytes,
        )
    for tensor in trace.tensors:
        place, is_kept, _ = tensor.name.partition(": ")
        if fnmatch(place.removesuffix(".weight"), ARCHITECTURES[shape.architecture].feed_forward):
            trace.tensors[tensor] *= (shape.active_experts if is_kept else shape.experts) or 1


def survey(job: TrainingJob) -> Survey:
    """Of a model of the library transformers, for a forward pass of one micro-batch."""
    shape = job.shape
    model = builder.build(shape, device="meta")
    linear = {name: module for name, module in model.named_modules() if _is_linear(module)}
    in_blocks = {name for name in linear if BLOCK_NUMBER.search(f"{name}.")}
    weights = {name: module.weight.numel() for name, module in linear.items()}
    with _explained(shape):
        one, two = (
            _count_matmuls(replace(shape, layers=n), job.micro_batch, job.seq_len)
            for n in (1, min(2, shape.layers))
        )
    attention_flops = one + (two - one) * (shape.layers - 1)
    all_weights = sum(weights.values())
    block_weights = sum(weights[name] for name in in_blocks)
    return Survey(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        block_weights=block_weights,
        other_weights=all_weights - block_weights,
        attention_flops=attention_flops,
        forward_flops=2 * job.micro_batch_tokens * all_weights + attention_flops,
    )


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _count_matmuls(shape: Shape, batch: int, tokens: int) -> int:
    """FLOPs of all matmuls that are neither in a linear layer nor in the making of rotary
    positions, which takes a small one in some versions."""
    with _faking():
        model = _settle(builder.build_from_transformers(shape, attention="eager"))
        ids = torch.zeros(batch, tokens, dtype=torch.long)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(input_ids=ids)
    others = {
        name
        for name, module in model.named_modules()
        if _is_linear(module) or name.endswith("rotary_emb")
    }
    counted = {
        name.partition(".")[2]: sum(operations.values())
        for name, operations in counter.get_flop_counts().items()
    }
    return counter.get_total_flops() - sum(counted.get(name, 0) for name in others)


LOOKS: dict[str, Callable[..., Any]] = {
    "find_packed_sequence_indices": lambda *_: None,
    "is_tracing": lambda *_: False,
    "fast_all": lambda *_: True,
}
"""How transformers finds out that sequences are neither padded nor packed, and need no mask: it
looks at values. Fake tensors have none, and would be given masks that real ones are not."""


@contextmanager
def _faking() -> Iterator[None]:
    """Fake tensors that are taken for sequences without padding."""
    masks: Any = None
    with suppress(ImportError):  # old versions have no such module
        from transformers import masking_utils as masks
    originals = {name: getattr(masks, name) for name in LOOKS if hasattr(masks, name)}
    try:
        for name in originals:
            setattr(masks, name, LOOKS[name])
        with FakeTensorMode():
            yield
    finally:
        for name, original in originals.items():
            setattr(masks, name, original)


@contextmanager
def _explained(shape: Shape) -> Iterator[None]:
    try:
        yield
    except FlopwatchError:
        raise
    except Exception as error:
        raise UsageError(
            f"a step of {shape.architecture!r} cannot be surveyed without computing it "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); a measurement may "
            "still work"
        ) from error


@dataclass
class Trace:
    """What a step on fake tensors held."""

    parameters: int
    largest_bytes: int
    """Of the largest parameter."""
    buffer_bytes: int
    kept_bytes: int = 0
    """At the end of the forward pass."""
    moments: Mapping[str, Moments] = field(default_factory=dict)
    """All of a step: forward; early: backward, until the last block is done; late: after that."""
    tensors: Counter[Tensor] = field(default_factory=Counter)
    """Parameters, and what is kept."""

    def __post_init__(self) -> None:
        self.peaks = {part: _find_peak(part, moments) for part, moments in self.moments.items()}


Moments = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""A row for each operation: bytes of all tensors there, of activations and of gradients."""


def _find_peak(part: str, moments: Moments) -> Moment:
    live_bytes, kept_bytes, gradient_bytes = moments[moments[:, 0].argmax()].tolist()
    return Moment(
        name="forward" if part == "forward" else "backward",
        activation_bytes=kept_bytes,
        gradient_bytes=gradient_bytes,
        temporary_bytes=live_bytes - kept_bytes - gradient_bytes,
    )


MOST_KEPT = 64
_KEPT: dict[TrainingJob, dict[int, Trace]] = {}
"""Steps that were run, by job but for its micro-batch, and by that."""


def trace_step(job: TrainingJob) -> Trace:
    """What `run_step` gives, from steps of two other micro-batches where these were run."""
    alike = TrainingJob(
        job.shape,
        job.seq_len,
        precision=job.precision,
        recompute=job.recompute,
        attention=job.attention,
    )
    if alike not in _KEPT and len(_KEPT) >= MOST_KEPT:
        del _KEPT[next(iter(_KEPT))]
    known = _KEPT.setdefault(alike, {})
    trace = known.get(job.micro_batch) or _scale(known, job.micro_batch)
    if trace is None:
        trace = known[job.micro_batch] = run_step(replace(alike, micro_batch=job.micro_batch))
    return replace(trace, tensors=Counter(trace.tensors))


def _scale(known: Mapping[int, Trace], size: int) -> Trace | None:
    """To another micro-batch; None where no two are known, or not of the same operations."""
    low, high = (sorted(other for other in known if other > 1) + [0, 0])[:2]
    if not high or size == 1:
        return None
    one, two = known[low], known[high]

    def scale(less: Any, more: Any) -> Any:
        return less + (more - less) // (high - low) * (size - low)

    if [(t.name, n) for t, n in one.tensors.items()] != [
        (t.name, n) for t, n in two.tensors.items()
    ]:
        return None
    if {p: len(m) for p, m in one.moments.items()} != {p: len(m) for p, m in two.moments.items()}:
        return None
    return Trace(
        parameters=one.parameters,
        largest_bytes=one.largest_bytes,
        buffer_bytes=scale(one.buffer_bytes, two.buffer_bytes),
        kept_bytes=scale(one.kept_bytes, two.kept_bytes),
        moments={part: scale(rows, two.moments[part]) for part, rows in one.moments.items()},
        tensors=Counter(
            {
                replace(less, shape=tuple(map(scale, less.shape, more.shape))): number
                for (less, number), more in zip(one.tensors.items(), two.tensors, strict=True)
            }
        ),
    )


def run_step(job: TrainingJob) -> Trace:
    with _faking():
        model = _make_model(job)
        ids = torch.zeros(job.micro_batch, job.seq_len, dtype=torch.long)
        held = [*model.parameters(), *model.buffers(), ids]
        trace = Trace(
            parameters=sum(p.numel() for p in model.parameters()),
            largest_bytes=max(p.numel() for p in model.parameters())
            * job.arithmetic.parameter_bytes,
            buffer_bytes=sum(t.untyped_storage().nbytes() for t in [*model.buffers(), ids]),
            tensors=Counter(
                describe_storage(generalise_name(name), p) for name, p in model.named_parameters()
            ),
        )
        with TensorWatch(model, held) as watch:
            with _make_cast(job):
                loss = model(input_ids=ids, labels=ids).loss
            trace.kept_bytes = watch.finish_forward()
            trace.tensors.update(watch.kept.values())
            loss.backward()
    return replace(trace, moments={part: np.array(rows) for part, rows in watch.rows.items()})


def _make_cast(job: TrainingJob) -> AbstractContextManager[object]:
    autocast = job.arithmetic.autocast
    if autocast is None:
        return nullcontext()
    return torch.autocast(HOST, dtype=getattr(torch, autocast))


def _make_model(job: TrainingJob) -> nn.Module:
    shape, dtype = job.shape, job.arithmetic.dtype
    model: nn.Module
    if shape.is_ours:
        model = Transformer(shape).train()
        for parameter in model.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype))
    else:
        model = builder.build(shape, dtype=dtype)
    choose_attention(model, job.attention)
    choose_recompute(model, job.recompute)
    return _settle(model)


def _settle(model: nn.Module) -> nn.Module:
    """Not in training mode, in which some models skip random layers, which fake tensors have no
    values for. Without dropout all else is the same; only activation checkpointing needs that
    mode."""
    model.eval()
    for module in model.modules():
        if any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(module).__mro__):
            module.train()
    return model


def _extrapolate(one: Trace, two: Trace, job: TrainingJob, on_host: bool) -> StepMemory:
    """`one` and `two` are of one block and of two."""
    shape = job.shape
    nearest, more = (two, shape.layers - 2) if shape.layers > 1 else (one, 0)
    size_bytes = job.arithmetic.parameter_bytes
    block_parameters = two.parameters - one.parameters
    block_bytes = two.kept_bytes - one.kept_bytes
    parameters = nearest.parameters + more * block_parameters
    kept_bytes = nearest.kept_bytes + more * block_bytes
    forward, early = nearest.peaks["forward"], nearest.peaks["early"]
    late = nearest.peaks.get("late", early)
    grown_bytes = more * (two.peaks["forward"].total_bytes - one.peaks["forward"].total_bytes)
    early = replace(early, activation_bytes=early.activation_bytes + more * block_bytes)
    late = replace(late, gradient_bytes=late.gradient_bytes + more * block_parameters * size_bytes)
    return StepMemory(
        parameters=parameters,
        parameter_bytes=parameters * size_bytes,
        buffer_bytes=nearest.buffer_bytes,
        gradient_bytes=parameters * size_bytes,
        optimizer_bytes=MOMENTS[job.optimizer] * parameters * size_bytes,
        layers=shape.layers,
        block_bytes=block_bytes,
        rest_bytes=kept_bytes - shape.layers * block_bytes,
        forward=Moment(
            name=forward.name,
            activation_bytes=kept_bytes,
            temporary_bytes=forward.total_bytes + grown_bytes - kept_bytes,
        ),
        backward=max(early, late, key=lambda moment: moment.total_bytes),
        optimizer=find_update_peak(
            job, parameters * size_bytes, nearest.largest_bytes, on_host=on_host
        ),
        tensors=choose_largest(
            [
                replace(tensor, count=count + more * (count - one.tensors[tensor]))
                for tensor, count in nearest.tensors.items()
            ]
        ),
    )
