"""A whole model's training step as a workload, in any mode: see `jobs.variants`.

All modes of a group share one model in memory; each puts its layers in and chooses its attention
before a step, which is not timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from flopwatch.devices.matmul_rate import describe_emulation
from flopwatch.errors import LayerError, Unsupported
from flopwatch.jobs.model_shapes import ARCHITECTURES, Shape
from flopwatch.jobs.variants import PRECISIONS, Attention, Mode, Recompute
from flopwatch.layers.layer_workload import Plain, Setting, list_notes
from flopwatch.layers.swapping import find_linear, make_alike
from flopwatch.models.builder import build, choose_attention, choose_recompute, find_attention
from flopwatch.models.training_step import Cast, SharedModel, TrainingStep, time_modules
from flopwatch.models.transformer import FeedForward, SelfAttention, Transformer
from flopwatch.settings import Device
from flopwatch.suites.suite import Stopwatch, Workload
from flopwatch.worker.compilation import Compilation

SHORT_CONTEXT = 256
"""Tokens up to which the scores of plain attention are small beside what else a block keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What all modes of a group have in common."""

    shape: Shape
    batch: int
    context: int
    precision: str
    optimizer: str
    device: Device

    @property
    def setting(self) -> Setting:
        return find_setting(self.precision, self.device)


def find_setting(precision: str, device: Device) -> Setting:
    chosen = PRECISIONS[precision]
    return Setting(device=device, dtype=chosen.dtype, autocast=chosen.autocast)


class ModeStep(TrainingStep):
    """A training step in one mode."""

    def __init__(
        self, shared: SharedModel, mode: Mode, layers: Mapping[str, nn.Module], cast: Cast
    ) -> None:
        super().__init__(shared, layers, cast)
        self.mode = mode

    def prepare(self) -> None:
        super().prepare()
        choose_attention(self.shared.model, self.mode.attention)
        choose_recompute(self.shared.model, self.mode.recompute)

    @contextmanager
    def instrument(self, stopwatch: Stopwatch) -> Iterator[None]:
        with time_modules(find_parts(self.shared.model), stopwatch):
            yield


def make_workload(job: Job, mode: Mode) -> Workload:
    shared = share_model(job)
    step = ModeStep(shared, mode, _make_layers(job, shared, mode), job.setting.cast)
    compilation = None
    if mode.compiled:
        compilation = Compilation(job.device)
        step.call = torch.compile(shared.model, dynamic=False)

    def list_facts() -> dict[str, float]:
        facts = _count(job, shared.model)
        return facts if compilation is None else {**facts, **compilation.finish()}

    return Workload(
        renewable=False,
        phases=step.phases,
        gradients=step.find_comparable(),
        reset=step.prepare,
        instrument=step.instrument if _can_be_instrumented(mode, shared.model) else None,
        conditions=job.setting.conditions,
        facts=list_facts,
        notes=[*_list_notes(job, mode, shared.model), *list_notes(mode.spec, job.device)],
    )


def _can_be_instrumented(mode: Mode, model: nn.Module) -> bool:
    """Hooks would break what is compiled, and run again where blocks are computed again."""
    return not mode.compiled and mode.recompute == "none" and bool(find_parts(model))


def make_reference(job: Job, mode: Mode) -> Workload:
    """The same with nothing but plain formulas: attention as it is defined, linear layers as
    products, nothing compiled. Long texts are computed block by block, as plain attention needs
    more memory than what is checked by it."""
    shared = share_model(job)
    layers = {n: Plain(layer) for n, layer in _make_layers(job, shared, mode).items()}
    recompute: Recompute = "full" if job.context > SHORT_CONTEXT else "none"
    plain = Mode(attention="plain", recompute=recompute)
    step = ModeStep(shared, plain, layers, job.setting.cast)
    return Workload(phases=step.phases, gradients=step.find_comparable(), reset=step.prepare)


def find_parts(model: nn.Module) -> dict[str, list[nn.Module]]:
    """The modules that are timed inside a step, by region."""
    if isinstance(model, Transformer):
        modules = list(model.modules())
        return {
            "attention": [module for module in modules if isinstance(module, SelfAttention)],
            "feed-forward": [module for module in modules if isinstance(module, FeedForward)],
            "head": [model.head],
        }
    architecture: str = model.config.model_type  # type: ignore[union-attr,assignment]
    known = ARCHITECTURES.get(architecture)
    if known is None:
        return {}
    return {"feed-forward": list(find_linear(model, known.feed_forward).values())}


@lru_cache(maxsize=1)
def share_model(job: Job) -> SharedModel:
    model = build(job.shape, device=job.device, dtype=job.setting.dtype)
    ids = torch.randint(job.shape.vocabulary, (job.batch, job.context), device=job.device)
    return SharedModel(model, ids, optimizer=job.optimizer)


def _make_layers(job: Job, shared: SharedModel, mode: Mode) -> dict[str, nn.Module]:
    """Those that the mode puts in the place of the model's own, by name."""
    if mode.spec == "dense":
        return {}
    shared.exchange({})  # the names and sizes are those of the model's own layers
    # The same weights every time, whether or not the model had to be built first.
    torch.manual_seed(torch.initial_seed())
    try:
        chosen = find_linear(shared.model, find_pattern(job.shape, mode.match))
        return {name: make_alike(mode.spec, name, old) for name, old in chosen.items()}
    except LayerError as error:  # blocks that do not divide, say
        raise Unsupported(str(error)) from None


def find_pattern(shape: Shape, match: str) -> str:
    known = ARCHITECTURES.get(shape.architecture)
    if known is None and match in ("feed-forward", "linear"):
        raise Unsupported(
            f"which layers of {shape.architecture} are {match} is not known; name them by a "
            "pattern, as in dyad:auto:4@*.mlp.*"
        )
    names = {} if known is None else {"feed-forward": known.feed_forward, "linear": known.blocks}
    return names.get(match, match)


def _count(job: Job, model: nn.Module) -> dict[str, float]:
    return {
        "tokens": job.batch * job.context,
        "parameters": sum(p.numel() for p in model.parameters()),
        "hidden_size": job.shape.hidden_size,
        "layers": job.shape.layers,
    }


def _list_notes(job: Job, mode: Mode, model: nn.Module) -> list[str]:
    notes = []
    in_force: Attention = find_attention(model)
    if in_force != mode.attention:
        notes.append(f"{job.shape.architecture} has no {mode.attention} attention: {in_force}")
    emulation = describe_emulation(PRECISIONS[job.precision].product_dtype, job.device)
    return notes if emulation is None else [*notes, emulation]
