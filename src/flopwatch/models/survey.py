"""What a model of any architecture has, needs and computes, from a step on tensors without memory.

Fake tensors have shapes and types, and operations on them give fake tensors: a step runs as it
would, but computes nothing and holds nothing, so that models can be surveyed that no machine could
hold. Whatever storages it makes are followed until they are gone.

A model has many equal blocks: two steps, of one block and of two, give what each block adds.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
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
from flopwatch.models.transformer import Transformer

BLOCK_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


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
        one, two = (run_step(replace(job, model=replace(shape, layers=n))) for n in (1, 2))
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
    peaks: dict[str, Moment] = field(default_factory=dict)
    """forward; early: backward, until the last block is done; late: after that."""
    tensors: Counter[Tensor] = field(default_factory=Counter)
    """Parameters, and what is kept."""


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
                _describe(_generalise(name), p) for name, p in model.named_parameters()
            ),
        )
        with TensorWatch(model, held) as watch:
            with _make_cast(job):
                loss = model(input_ids=ids, labels=ids).loss
            trace.kept_bytes = watch.finish_forward()
            trace.tensors.update(watch.kept.values())
            loss.backward()
        trace.peaks = watch.peaks
    return trace


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


class TensorWatch(TorchDispatchMode):
    """Follows all storages that operations make, until they are gone."""

    def __init__(self, model: nn.Module, held: list[torch.Tensor]) -> None:
        super().__init__()
        self.peaks: dict[str, Moment] = {}
        self.kept: dict[int, Tensor] = {}
        self._held = held  # so that no other storage takes their places
        self._known = {_identify(tensor) for tensor in held}
        self._live: dict[int, Tensor] = {}
        self._watches: dict[int, weakref.finalize[Any, Any]] = {}
        self._live_bytes = self._kept_bytes = self._gradient_bytes = 0
        self._part = "forward"
        self._where: list[str] = []
        names = {name for name, _ in model.named_parameters()}
        numbers = [int(n) for name in names for n in BLOCK_NUMBER.findall(name)[:1]]
        last = f".{max(numbers, default=0)}."
        self._awaited = {name for name in names if last in name}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._note_gradient(name))
            for name, parameter in model.named_parameters()
        ]
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._note_entry(name)))
            self._hooks.append(module.register_forward_hook(self._note_exit))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        for watch in self._watches.values():
            watch.detach()  # else it would hold us, and we what it waits for

    def finish_forward(self) -> int:
        self._part = "early"
        self.kept = dict(self._live)
        self._kept_bytes = self._live_bytes
        return self._kept_bytes

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        result = operation(*arguments, **(options or {}))
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor):
                self._follow(made, operation)
        self._look()
        return result

    def _follow(self, tensor: torch.Tensor, operation: Any) -> None:
        identity = _identify(tensor)
        if identity in self._known:
            return
        module = (self._where[-1] if self._where else "") or "model"
        name = f"{_generalise(module)}: {operation._schema.name.partition('::')[2]}"
        self._known.add(identity)
        self._live[identity] = _describe(name, tensor)
        self._live_bytes += tensor.untyped_storage().nbytes()
        storage = tensor.untyped_storage()
        self._watches[identity] = weakref.finalize(
            storage, self._forget, identity, storage.nbytes()
        )

    def _forget(self, identity: int, size_bytes: int) -> None:
        self._known.discard(identity)
        self._watches.pop(identity, None)
        self._live.pop(identity, None)
        self._live_bytes -= size_bytes
        if self.kept.pop(identity, None) is not None:
            self._kept_bytes -= size_bytes

    def _look(self) -> None:
        peak = self.peaks.get(self._part)
        if peak is not None and peak.total_bytes >= self._live_bytes:
            return
        kept_bytes = self._live_bytes if self._part == "forward" else self._kept_bytes
        self.peaks[self._part] = Moment(
            name="forward" if self._part == "forward" else "backward",
            activation_bytes=kept_bytes,
            gradient_bytes=self._gradient_bytes,
            temporary_bytes=self._live_bytes - kept_bytes - self._gradient_bytes,
        )

    def _note_entry(self, name: str) -> Callable[..., None]:
        return lambda *_: self._where.append(name)

    def _note_exit(self, *_: Any) -> None:
        self._where.pop()

    def _note_gradient(self, name: str) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            self._gradient_bytes += parameter.numel() * parameter.element_size()
            self._awaited.discard(name)
            if not self._awaited:
                self._part = "late"

        return note


def _identify(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _generalise(name: str) -> str:
    """Without the number of the block."""
    return BLOCK_NUMBER.sub("*", f"{name}.")[:-1]


def _describe(name: str, tensor: torch.Tensor) -> Tensor:
    """What its storage holds, which may be more than itself."""
    shape = tuple(tensor.shape)
    size_bytes = tensor.untyped_storage().nbytes()
    if tensor.numel() * tensor.element_size() != size_bytes:
        shape = (size_bytes // tensor.element_size(),)
    return Tensor(name, shape, tensor.element_size())


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
