"""A whole model's training step as a workload, in any variant: see `jobs.training_job`.

All variants of a group share one model in memory; each puts its layers in and chooses its attention
before a step, which is not timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import torch
from torch import nn

from flopwatch.devices.matmul_rates import describe_emulation
from flopwatch.errors import LayerError, Unsupported
from flopwatch.jobs.model_shapes import ARCHITECTURES
from flopwatch.jobs.training_job import Attention, Recompute, TrainingJob, drop_variant
from flopwatch.layers.layer_workload import Plain, Setting, list_notes
from flopwatch.layers.swapping import find_linear, make_alike
from flopwatch.models.builder import build, choose_attention, choose_recompute, find_attention
from flopwatch.models.training_step import Cast, SharedModel, TrainingStep, time_modules
from flopwatch.models.transformer import FeedForward, SelfAttention, Transformer
from flopwatch.settings import Device
from flopwatch.suites.suite import Stopwatch, Workload
from flopwatch.worker.compilation import Compilation

SHORT_SEQUENCE = 256
"""Tokens up to which the scores of plain attention are small for what a block keeps."""


def find_setting(job: TrainingJob, device: Device) -> Setting:
    precision = job.arithmetic
    return Setting(device=device, dtype=precision.dtype, autocast=precision.autocast)


class JobStep(TrainingStep):
    """A training step in the way of one variant."""

    def __init__(
        self, shared: SharedModel, job: TrainingJob, layers: Mapping[str, nn.Module], cast: Cast
    ) -> None:
        super().__init__(shared, layers, cast)
        self.job = job

    def prepare(self) -> None:
        super().prepare()
        choose_attention(self.shared.model, self.job.attention)
        choose_recompute(self.shared.model, self.job.recompute)

    @contextmanager
    def instrument(self, stopwatch: Stopwatch) -> Iterator[None]:
        with time_modules(find_parts(self.shared.model), stopwatch):
            yield


def make_workload(job: TrainingJob, device: Device) -> Workload:
    shared, setting = share_model(job, device), find_setting(job, device)
    step = JobStep(shared, job, _make_layers(job, shared), setting.cast)
    compilation = None
    if job.compiled:
        compilation = Compilation(device)
        step.call = torch.compile(shared.model, dynamic=False)

    def list_facts() -> dict[str, float]:
        facts = _count(job, shared.model)
        return facts if compilation is None else {**facts, **compilation.finish()}

    return Workload(
        renewable=False,
        phases=step.phases,
        gradients=step.find_comparable(),
        reset=step.prepare,
        instrument=step.instrument if _can_be_instrumented(job, shared.model) else None,
        conditions=setting.conditions,
        facts=list_facts,
        notes=[*_list_notes(job, device, shared.model), *list_notes(job.linear, device)],
    )


def _can_be_instrumented(job: TrainingJob, model: nn.Module) -> bool:
    """Hooks would break what is compiled, and run again where blocks are recomputed."""
    return not job.compiled and job.recompute == "none" and bool(find_parts(model))


def make_reference(job: TrainingJob, device: Device) -> Workload:
    """The same with nothing but plain formulas: attention as it is defined, linear layers as
    matmuls, nothing compiled. Long sequences are computed block by block, as plain attention needs
    more memory than what is checked by it."""
    shared = share_model(job, device)
    layers = {n: Plain(layer) for n, layer in _make_layers(job, shared).items()}
    recompute: Recompute = "full" if job.seq_len > SHORT_SEQUENCE else "none"
    plain = replace(drop_variant(job), attention="plain", recompute=recompute)
    step = JobStep(shared, plain, layers, find_setting(job, device).cast)
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


def share_model(job: TrainingJob, device: Device) -> SharedModel:
    """The same for all variants of a job."""
    return _share_model(drop_variant(job), device)


@lru_cache(maxsize=1)
def _share_model(job: TrainingJob, device: Device) -> SharedModel:
    model = build(job.shape, device=device, dtype=job.arithmetic.dtype)
    ids = torch.randint(job.shape.vocabulary, (job.micro_batch, job.seq_len), device=device)
    return SharedModel(model, ids, optimizer=job.optimizer)


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
    if known is None and job.swapped in ("feed-forward", "linear"):
        raise Unsupported(
            f"which layers of {job.shape.architecture} are {job.swapped} is not known; name them "
            "by a pattern, as in dyad:auto:4@*.mlp.*"
        )
    names = {} if known is None else {"feed-forward": known.feed_forward, "linear": known.blocks}
    return names.get(job.swapped, job.swapped)


def _count(job: TrainingJob, model: nn.Module) -> dict[str, float]:
    return {
        "tokens": job.micro_batch_tokens,
        "parameters": sum(p.numel() for p in model.parameters()),
        "hidden_size": job.shape.hidden_size,
        "layers": job.shape.layers,
    }


def _list_notes(job: TrainingJob, device: Device, model: nn.Module) -> list[str]:
    notes = []
    in_force: Attention = find_attention(model)
    if in_force != job.attention:
        notes.append(f"{job.shape.architecture} has no {job.attention} attention: {in_force}")
    emulation = describe_emulation(job.arithmetic.matmul_dtype, device)
    return notes if emulation is None else [*notes, emulation]
