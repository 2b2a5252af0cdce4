"""A job that really trains, on one rank or many, as a workload.

A step is a global batch of fresh synthetic texts, drawn before it and not timed. Each rank computes
its share of them in micro-batches, and gradients are those of the mean loss over the whole batch,
whoever computed which part of it. So all ways to share a model, and all ways to divide a batch,
walk the same path: their losses must be equal, and are checked.

    accumulation   forward and backward of all micro-batches but the last, where there are several
    forward        of the last one
    backward       of the last one, and whatever has to be done until gradients are averages
    optimizer

Synthetic texts: token ids that follow from a seed, a step, and a text's place in its batch.

However a batch is divided among ranks and micro-batches, it consists of the same texts, so that all
ways to train on it must find the same losses.
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from types import MethodType
from typing import Any

import psutil
import torch
from torch import Tensor, distributed, nn

from flopwatch.devices.backends import open_target
from flopwatch.devices.matmul_rate import describe_emulation
from flopwatch.errors import LayerError, Unsupported
from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.variants import PRECISIONS, Mode, Recompute, count_on_machine, count_shards
from flopwatch.layers.layer_workload import Plain, Setting, list_notes
from flopwatch.layers.swapping import count_parameters, find_linear, install, swap
from flopwatch.models.builder import build, choose_attention, choose_recompute, find_blocks
from flopwatch.models.parallelize import Shared, share
from flopwatch.models.step_workload import find_pattern, find_setting
from flopwatch.models.training_step import FICKLE, OPTIMIZERS
from flopwatch.settings import Device
from flopwatch.suites.suite import Workload
from flopwatch.worker.compilation import Compilation
from flopwatch.worker.instruments import Journal
from flopwatch.worker.study import Diverged


def draw_texts(
    vocabulary: int, context: int, seed: int, step: int, places: Iterable[int]
) -> Tensor:
    """Token ids, a row for each of these places in the batch of a step.

    The k-th token is about as frequent as 1 / k, as words are, so that there is something to learn
    within a few steps, and a loss that does not fall tells of a mistake.

    >>> draw_texts(100, 5, 0, 3, [7]).equal(draw_texts(100, 5, 0, 3, [6, 7])[1:])
    True
    """
    generator = torch.Generator()
    rows = []
    for place in places:
        generator.manual_seed(_mix(seed, step, place))
        shares = torch.rand(context, generator=generator, dtype=torch.float64)
        rows.append(((vocabulary + 1.0) ** shares).long() - 1)
    return torch.stack(rows)


def _mix(*numbers: int) -> int:
    """One seed of several: neighbouring ones give texts that have nothing in common."""
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


LEARNING_RATE = 1e-4
"""Small: what is timed is a training that goes well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """What all modes of a group have in common."""

    shape: Shape
    context: int
    ranks: int
    micro_batch: int
    """Texts that a rank computes at once."""
    accumulation: int
    """Micro-batches of a rank in a step."""
    precision: str
    optimizer: str
    device: Device

    @property
    def setting(self) -> Setting:
        return find_setting(self.precision, self.device)

    @property
    def local_batch(self) -> int:
        """Texts of a rank in a step."""
        return self.micro_batch * self.accumulation

    @property
    def global_batch(self) -> int:
        return self.local_batch * self.ranks


class Loop:
    """The training of one variant on one rank, step by step."""

    def __init__(self, job: TrainingJob, model: nn.Module, shared: Shared) -> None:
        self.job = job
        self.model = model
        self.shared = shared
        self.optimizer = OPTIMIZERS[job.optimizer](list(model.parameters()))
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        self._places = range(rank * job.local_batch, (rank + 1) * job.local_batch)
        self._seed = torch.initial_seed()
        self._texts: list[Tensor] = []
        self._loss: Tensor | None = None
        self.losses: list[list[Tensor]] = []
        """Of this rank: in each step, those of its micro-batches, over their number."""

    def prepare(self) -> None:
        """Draw the texts of the next step, and clear gradients."""
        job, step = self.job, len(self.losses)
        texts = draw_texts(job.shape.vocabulary, job.context, self._seed, step, self._places)
        self._texts = list(texts.to(job.device).split(job.micro_batch))
        self.losses.append([])
        self._loss = None
        self.optimizer.zero_grad(set_to_none=True)

    def accumulate(self) -> None:
        *others, _ = self._texts
        with self.shared.hold():
            for texts in others:
                self._compute_loss(texts).backward()

    def forward(self, _: None = None) -> None:
        self._loss = self._compute_loss(self._texts[-1])

    def backward(self, _: None = None) -> None:
        assert self._loss is not None
        self._loss.backward()
        self.shared.finish()

    def update(self, _: None = None) -> None:
        self.optimizer.step()

    def _compute_loss(self, texts: Tensor) -> Tensor:
        with self.job.setting.cast():
            loss: Tensor = self.shared.call(input_ids=texts, labels=texts).loss
        loss = loss / self.job.accumulation
        self.losses[-1].append(loss.detach())
        return loss

    @property
    def phases(self) -> dict[str, Callable[..., Any]]:
        """They pass nothing on: a rank's own loss is no result that could be compared."""
        first = {"accumulation": self.accumulate} if self.job.accumulation > 1 else {}
        second = {"forward": self.forward, "backward": self.backward, "optimizer": self.update}
        return {**first, **second}

    def average_losses(self) -> list[float]:
        """Of each step so far, over the global batch; all ranks must ask for it at once."""
        own = torch.stack([torch.stack(losses).float().sum() for losses in self.losses])
        if distributed.is_initialized():
            distributed.all_reduce(own)
        losses: list[float] = (own / self.job.ranks).tolist()
        return losses

    def find_values(self) -> dict[str, Tensor]:
        """What must be the same however ranks share the model; all of them must ask for it."""
        loss = torch.tensor(self.average_losses()[-1])
        if not loss.isfinite():
            raise Diverged(
                f"its loss is {loss.item()} in step {len(self.losses)}; a training that diverges "
                "is not timed"
            )
        return {"loss": loss, **list_gradients(self.model)}

    def tell_losses(self) -> Iterator[dict[str, float]]:
        for step, loss in enumerate(self.average_losses(), 1):
            yield {"step": step, "loss": loss}


def list_gradients(model: nn.Module) -> dict[str, Tensor]:
    """All of the small ones, and the norms of the large ones: between them, every part of the
    backward pass. Left out are those that rounding decides."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        if gradient is None or name.endswith(FICKLE):
            continue
        if parameter.dim() == 1:
            found[f"grad {name}"] = _make_whole(gradient)
        else:
            found[f"norm of grad {name}"] = _make_whole(torch.linalg.vector_norm(gradient))
    return found


def _make_whole(tensor: Any) -> Tensor:
    """What ranks have parts of."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def make_workload(job: TrainingJob, mode: Mode) -> Workload:
    assert mode.sharding is not None
    # Refuses what cannot be, before it takes time.
    count_shards(mode.sharding, job.ranks, count_on_machine(job.ranks))
    journal = Journal(open_target(job.device).clock)
    model = make_model(job, mode)
    parameters = count_parameters(model)
    compilation = Compilation(job.device) if mode.compiled else None
    if compilation is not None:
        compile_blocks(model)
    precision = PRECISIONS[job.precision]
    loop = Loop(job, model, share(model, mode.sharding, precision, job.device, journal))
    emulation = describe_emulation(precision.product_dtype, job.device)
    facts = list_facts(job, parameters)
    return Workload(
        renewable=False,
        phases=loop.phases,
        reset=loop.prepare,
        values=loop.find_values,
        journal=journal,
        study=loop.tell_losses,
        conditions=job.setting.conditions,
        facts=lambda: {**facts, **({} if compilation is None else compilation.finish())},
        notes=[*([emulation] if emulation else []), *list_notes(mode.spec, job.device)],
    )


def make_model(job: TrainingJob, mode: Mode, *, plain: bool = False) -> nn.Module:
    """On the CPU, with weights from torch's current seed, the same ones for every way to share it;
    with `plain`, in which exchanged layers are computed by the plain formula."""
    model = build(job.shape, dtype=job.setting.dtype)
    choose_attention(model, mode.attention)
    choose_recompute(model, mode.recompute)
    if mode.spec == "dense":
        return model
    pattern = find_pattern(job.shape, mode.match)
    try:
        swap(model, mode.spec, pattern)
    except LayerError as error:  # blocks that do not divide, say
        raise Unsupported(str(error)) from None
    if plain:
        install(model, {n: Plain(layer) for n, layer in find_linear(model, pattern).items()})
    return model


def compile_blocks(model: nn.Module) -> None:
    """Each block by itself: what gathers its parameters or averages its gradients lies between
    blocks, and would tear a graph of the whole model apart. Blocks of one kind are compiled once
    for all of them, but not for another variant's: each pays for its own, as if it were alone."""
    is_known = "isolate_recompiles" in signature(torch.compile).parameters
    options: dict[str, Any] = {"isolate_recompiles": True} if is_known else {}
    kinds = {type(block) for block in find_blocks(model)}
    compiled = {kind: torch.compile(kind.forward, dynamic=False, **options) for kind in kinds}
    for block in find_blocks(model):
        block.forward = MethodType(compiled[type(block)], block)


def count_free_bytes(device: Device) -> int:
    """That this process can still take."""
    if device == "cuda":
        free_bytes: int = torch.cuda.mem_get_info()[0]
        return free_bytes
    free_bytes = psutil.virtual_memory().available
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit_bytes == resource.RLIM_INFINITY:
        return free_bytes
    return min(free_bytes, limit_bytes - psutil.Process().memory_info().data)


def make_reference(job: TrainingJob, mode: Mode) -> Workload:
    """The ordinary loop over the whole global batch, on one rank, micro-batch by micro-batch."""
    seed = torch.initial_seed()
    # What is computed again gives the same, and needs no more memory than what is checked.
    recompute: Recompute = "none" if mode.recompute == "none" else "full"
    plain = Mode(spec=mode.spec, match=mode.match, recompute=recompute)
    return Workload(
        phases={"step": lambda: None}, values=lambda: compute_expected(job, plain, seed)
    )


@lru_cache(maxsize=8)
def compute_expected(job: TrainingJob, mode: Mode, seed: int) -> Mapping[str, Tensor]:
    """Loss and gradients of the first step, which many variants have in common."""
    torch.manual_seed(seed)
    model = make_model(job, mode, plain=True).to(job.device)
    texts = draw_texts(job.shape.vocabulary, job.context, seed, 0, range(job.global_batch))
    batches = texts.to(job.device).split(job.micro_batch)
    total = torch.zeros((), device=job.device)
    for batch in batches:
        with job.setting.cast():
            loss = model(input_ids=batch, labels=batch).loss / len(batches)
        loss.backward()
        total += loss.detach()
    return {"loss": total.cpu(), **list_gradients(model)}


def list_facts(job: TrainingJob, parameters: int) -> dict[str, float]:
    return {
        "tokens": job.global_batch * job.context,
        "sequences": job.global_batch,
        "parameters": parameters,
        "micro_batch": job.micro_batch,
        "accumulation": job.accumulation,
        "global_batch": job.global_batch,
        "context": job.context,
        "hidden_size": job.shape.hidden_size,
        "layers": job.shape.layers,
        "ranks": job.ranks,
    }
