"""A model's training step as a workload, forward, backward and optimizer, in any variant of a job.

Variants of a model share everything in which they do not differ: one model in memory, the same
tensors at the same places, so that what differs between their times is what they do otherwise. A
variant puts its own layers in and chooses its attention before each step, which is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from flopwatch.devices.base import GraphBackend, Phases, open_backend
from flopwatch.devices.kinds import find_kind
from flopwatch.devices.matmul_rates import describe_emulation
from flopwatch.errors import LayerError, Unsupported
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.precision import TF32
from flopwatch.jobs.training_job import Recompute, TrainingJob, drop_variant
from flopwatch.layers.layer_workload import Plain, Setting, list_notes
from flopwatch.layers.swapping import count_parameters, find_linear, install, make_alike
from flopwatch.models.builder import (
    build,
    choose_attention,
    choose_mixing,
    choose_recompute,
    find_attention,
)
from flopwatch.models.feed_forward import Mixing
from flopwatch.models.transformer import Transformer
from flopwatch.settings import Device
from flopwatch.suites.workload import Stopwatch, Workload
from flopwatch.worker.compilation import Compilation

SHORT_SEQUENCE = 256
"""Tokens up to which the scores of plain attention are small for what a block keeps."""
FICKLE = ("k_proj.bias", "fc1.bias")
"""Ends of names of parameters whose gradients rounding decides: of OPT's keys, where they are 0 but
for noise, and of what goes through its ReLUs."""


def make_optimizer(parameters: list[nn.Parameter], fused: bool = True) -> torch.optim.Optimizer:
    """AdamW that does all its work and leaves the parameters where they are: with a learning rate
    of 0 the hundredth step computes the same as the first."""
    return torch.optim.AdamW(parameters, lr=0.0, fused=fused)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": make_optimizer,
    "adamw-unfused": partial(make_optimizer, fused=False),
    "sgd": partial(torch.optim.SGD, lr=0.0),
}
"""By the names of `jobs.training_job.OPTIMIZERS`."""


def find_setting(job: TrainingJob, device: str) -> Setting:
    precision = job.arithmetic
    return Setting(device=device, dtype=precision.dtype, autocast=precision.autocast)


def choose_float32(job: TrainingJob, device: Device) -> None:
    """Have float32 matmuls round their operands to tf32, or not. A process has one setting for
    all, and whatever was timed in between may have changed it."""
    if find_kind(device).has_tf32:
        torch.set_float32_matmul_precision("high" if job.precision == TF32 else "highest")


class SharedModel:
    """What all variants have in common."""

    def __init__(self, model: nn.Module, ids: Tensor, optimizer: str = "adamw") -> None:
        """`model` is called like one of transformers: with input_ids and labels, it gives an object
        with a loss."""
        self.model = model
        self.ids = ids
        self.make_optimizer = OPTIMIZERS[optimizer]
        self.optimizer = self.make_optimizer(list(model.parameters()))
        self._originals: dict[str, nn.Module] = {}
        self._installed: Mapping[str, nn.Module] = {}

    def swap_in(self, layers: Mapping[str, nn.Module]) -> None:
        """Put these layers in, and the model's own ones back where others were. Those before them
        keep no gradients, which would fill the memory with those of all variants."""
        for layer in self._installed.values():
            layer.zero_grad(set_to_none=True)
        for name in layers:
            self._originals.setdefault(name, self.model.get_submodule(name))
        restored = {name: self._originals[name] for name in self._installed}
        install(self.model, {**restored, **layers})
        self._installed = layers


class TrainingStep:
    """One variant of a shared model, as phases of a workload."""

    def __init__(
        self,
        shared: SharedModel,
        job: TrainingJob,
        layers: Mapping[str, nn.Module] | None = None,
        parts: Mapping[str, Sequence[str]] | None = None,
        mixing: Mixing = "grouped",
    ) -> None:
        """`layers` take the places of the model's own, by name, and have an optimizer of their own;
        `parts` are the names of the modules that are timed inside the step, by region; `mixing` is
        how experts are computed."""
        self.shared = shared
        self.job = job
        self.layers = layers or {}
        self.parts = parts or {}
        self.mixing: Mixing = mixing
        self.device = shared.ids.device.type
        self.cast = find_setting(job, self.device).cast
        self.call: Callable[..., Any] = shared.model
        own = [p for layer in self.layers.values() for p in layer.parameters()]
        self.optimizers = [shared.optimizer, *([shared.make_optimizer(own)] if own else [])]

    def prepare(self) -> None:
        """Make the model compute in the way of this variant, and clear all gradients."""
        choose_float32(self.job, self.device)
        self.shared.swap_in(self.layers)
        choose_attention(self.shared.model, self.job.attention)
        choose_recompute(self.shared.model, self.job.recompute)
        choose_mixing(self.shared.model, self.mixing)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def forward(self) -> Tensor:
        ids = self.shared.ids
        with self.cast():
            loss: Tensor = self.call(input_ids=ids, labels=ids).loss
        return loss

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def update(self, _: None) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    @property
    def phases(self) -> dict[str, Callable[..., Any]]:
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.update}

    def find_comparable(self) -> dict[str, nn.Parameter]:
        """Parameters whose gradients show whether the step is right: all norms and biases, which
        cover every part of the backward pass and are small, and those of the last swapped layer,
        if there is one.

        Left out are the other swapped layers, and those whose results go through a ReLU: where a
        value before it is next to 0, rounding decides whether its token counts. Nor are the biases
        of keys compared, which the softmax does not see.
        """
        self.prepare()
        *others, last = [*self.layers] or [""]
        return {
            name: parameter
            for name, parameter in self.shared.model.named_parameters()
            if (parameter.dim() == 1 or (last and name.startswith(f"{last}.")))
            and not name.endswith(FICKLE)
            and name.rpartition(".")[0] not in others
        }

    @contextmanager
    def instrument(self, stopwatch: Stopwatch) -> Iterator[None]:
        """Time the parts inside the step, forward and backward, by hooks. What torch itself does to
        hook into a module's backward pass, a few microseconds, falls into its forward region."""
        self.shared.swap_in(self.layers)  # the names are now those of this variant's modules
        hooks = [
            hook
            for region, names in self.parts.items()
            for name in names
            for hook in _hook(self.shared.model.get_submodule(name), region, stopwatch)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _hook(module: nn.Module, region: str, stopwatch: Stopwatch) -> tuple[RemovableHandle, ...]:
    forward, backward = f"forward/{region}", f"backward/{region}"
    return (
        module.register_forward_pre_hook(lambda *_: stopwatch.start(forward)),
        module.register_forward_hook(lambda *_: stopwatch.stop(forward)),
        module.register_full_backward_pre_hook(lambda *_: stopwatch.start(backward)),
        module.register_full_backward_hook(lambda *_: stopwatch.stop(backward)),
    )


class GraphedStep:
    """A training step whose phases are graphs, which were recorded once and write to the same
    tensors each time: gradients, too, which the step's own preparation takes off the parameters."""

    def __init__(self, step: TrainingStep, device: Device) -> None:
        backend = require_graphs(step.job, device)
        with capturable(step.optimizers):
            self._graphs = backend.capture(step.prepare, step.phases)
        self._gradients = {p: p.grad for p in step.shared.model.parameters()}

    def backward(self, loss: Tensor) -> None:
        self._graphs["backward"](loss)
        for parameter, gradient in self._gradients.items():  # while the device computes them
            parameter.grad = gradient

    @property
    def phases(self) -> Phases:
        return {**self._graphs, "backward": self.backward}


def require_graphs(job: TrainingJob, device: Device) -> GraphBackend:
    backend = open_backend(device)
    if not isinstance(backend, GraphBackend):
        raise Unsupported(
            f"graphs of kernels are of CUDA, and the device is {device}; leave cuda-graph and "
            "reduce-overhead out"
        )
    if job.optimizer == "adamw-unfused":
        raise Unsupported(
            "a graph cannot have an optimizer that counts its steps on the host; take the "
            "optimizer adamw or sgd, or leave cuda-graph and reduce-overhead out"
        )
    return backend


@contextmanager
def capturable(optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
    """Torch refuses to record an optimizer that was not made for it. A fused one is the same
    whether or not it was: it has its state on the device."""
    groups = [group for one in optimizers for group in one.param_groups if "capturable" in group]
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False


def compile_model(model: nn.Module, job: TrainingJob) -> Callable[..., Any]:
    if not job.graphs:
        return torch.compile(model, dynamic=False)
    compiled = torch.compile(model, dynamic=False, mode="reduce-overhead")

    def call(**inputs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # what the step before has returned may go
        return compiled(**inputs)

    return call


def make_workload(job: TrainingJob, device: Device, *, counts_tokens: bool = True) -> Workload:
    """Without `counts_tokens` it does not say how many tokens a step has: then a table that
    compares layers, in models and alone, has the same columns for both."""
    if job.graphs:  # before a model is built for nothing
        require_graphs(job, device)
    shared = share_model(job, device)
    step = TrainingStep(shared, job, _make_layers(job, shared), find_parts(job, shared))
    gradients = step.find_comparable()  # and this puts the step's layers in
    facts: dict[str, float] = {
        **({"tokens": job.micro_batch_tokens} if counts_tokens else {}),
        "parameters": count_parameters(shared.model),
        "hidden_size": job.shape.hidden_size,
        "layers": job.shape.layers,
    }
    compilation = None
    if job.compiled:
        compilation = Compilation(device)
        step.call = compile_model(shared.model, job)
    run = GraphedStep(step, device) if job.graphs and not job.compiled else step
    # Hooks would break what is compiled, are not part of a graph, and run again where blocks are
    # recomputed.
    is_plain = not job.compiled and not job.graphs and job.recompute == "none"
    can_be_instrumented = is_plain and step.parts
    return Workload(
        renewable=False,
        phases=run.phases,
        gradients=gradients,
        reset=step.prepare,
        instrument=step.instrument if can_be_instrumented else None,
        conditions=find_setting(job, device).conditions,
        facts=facts if compilation is None else lambda: {**facts, **compilation.finish()},
        notes=[*_list_notes(job, device, shared.model), *list_notes(job.linear, device)],
    )


def make_reference(job: TrainingJob, device: Device) -> Workload:
    """The same with nothing but plain formulas: attention as it is defined, linear layers as
    matmuls, experts one after the other, nothing compiled. Long sequences are computed block by
    block, as plain attention needs more memory than what is checked by it."""
    shared = share_model(job, device)
    layers = {n: Plain(layer) for n, layer in _make_layers(job, shared).items()}
    recompute: Recompute = "full" if job.seq_len > SHORT_SEQUENCE else "none"
    plain = replace(drop_variant(job), attention="plain", recompute=recompute)
    step = TrainingStep(shared, plain, layers, mixing="plain")
    return Workload(phases=step.phases, gradients=step.find_comparable(), reset=step.prepare)


def share_model(job: TrainingJob, device: Device) -> SharedModel:
    """The same for all variants of a job, whether or not they autocast."""
    batch = (job.micro_batch, job.seq_len)
    return _share_model(job.shape, batch, job.arithmetic.dtype, job.optimizer, device)


@lru_cache(maxsize=1)
def _share_model(
    shape: Shape, batch: tuple[int, int], dtype: str, optimizer: str, device: Device
) -> SharedModel:
    model = build(shape, device=device, dtype=dtype)
    return SharedModel(model, torch.randint(shape.vocabulary, batch, device=device), optimizer)


def find_parts(job: TrainingJob, shared: SharedModel) -> dict[str, list[str]]:
    """The names of the modules that are timed inside a step, by region."""
    model = shared.model
    if isinstance(model, Transformer):
        blocks = [f"blocks.{number}" for number in range(job.shape.layers)]
        return {
            "attention": [f"{block}.attention" for block in blocks],
            "feed-forward": [f"{block}.feed_forward" for block in blocks],
            "head": ["head"],
        }
    known = ARCHITECTURES.get(job.shape.architecture)
    if known is None or not known.feed_forward:
        return {}
    shared.swap_in({})  # the names are those of the model's own layers
    if job.swapped == "linear":
        return {"linear": [*find_linear(model, known.blocks)]}
    return {"feed-forward": [*find_linear(model, known.feed_forward)]}


def _make_layers(job: TrainingJob, shared: SharedModel) -> dict[str, nn.Module]:
    """Those that the variant puts in the place of the model's own, by name."""
    if job.is_dense:
        return {}
    shared.swap_in({})  # the names and sizes are those of the model's own layers
    # The same weights every time, whether or not the model had to be built first.
    torch.manual_seed(torch.initial_seed())
    try:
        chosen = find_linear(shared.model, find_pattern(job))
        return {name: make_alike(job.linear, name, old) for name, old in chosen.items()}
    except LayerError as error:  # blocks that do not divide, say
        raise Unsupported(str(error)) from None


def find_pattern(job: TrainingJob) -> str:
    """Of the names of the layers that are swapped."""
    known = ARCHITECTURES.get(job.shape.architecture)
    if known is not None and (not known.feed_forward or job.shape.experts):
        known = None  # experts are no linear layers
    name = job.shape.architecture + (" with experts" if job.shape.experts else "")
    if known is None and job.swapped in ("feed-forward", "linear"):
        raise Unsupported(
            f"which layers of {name} are {job.swapped} is not known; name them by a pattern, as in "
            "dyad:auto:4@*.mlp.*"
        )
    names = {} if known is None else {"feed-forward": known.feed_forward, "linear": known.blocks}
    return names.get(job.swapped, job.swapped)


def _list_notes(job: TrainingJob, device: Device, model: nn.Module) -> list[str]:
    notes = []
    in_force = find_attention(model)
    if in_force != job.attention:
        notes.append(f"{job.shape.architecture} has no {job.attention} attention: {in_force}")
    emulation = describe_emulation(job.arithmetic.matmul_dtype, device)
    return notes if emulation is None else [*notes, emulation]
