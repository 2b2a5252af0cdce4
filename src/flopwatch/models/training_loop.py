"""A job that really trains, on one rank or many, as a workload.

A step is a global batch of fresh synthetic sequences, drawn before it and not timed. Each rank
computes its share of them in micro-batches, and gradients are those of the mean loss over the whole
batch, whoever computed which part of it. So all ways to share a model, and all ways to divide a
batch, compute the same: their losses must be equal, and are checked.

    grad_accum     forward and backward of all micro-batches but the last, where there are several
    forward        of the last one
    backward       of the last one, and whatever has to be done until gradients are averages
    optimizer

Synthetic sequences: token ids that follow from a seed, a step, and a sequence's place in its batch.

However a batch is divided among ranks and micro-batches, it consists of the same sequences, so that
all ways to train on it must find the same losses.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from inspect import signature
from types import MethodType
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from flopwatch.devices.base import open_backend
from flopwatch.devices.kinds import HOST, is_host
from flopwatch.devices.matmul_rates import describe_emulation
from flopwatch.errors import LayerError, Unsupported
from flopwatch.jobs.combinations import require_combination, require_divisible
from flopwatch.jobs.flops import FORWARD_BACKWARD, GRAD_ACCUM
from flopwatch.jobs.parallelism import Parallelism, count_job_shards
from flopwatch.jobs.training_job import Recompute, TrainingJob, drop_variant
from flopwatch.layers.layer_workload import Plain, list_notes
from flopwatch.layers.swapping import count_parameters, find_linear, install, make_alike
from flopwatch.models.builder import (
    build,
    build_empty,
    choose_attention,
    choose_mixing,
    choose_recompute,
    find_blocks,
    list_initialisers,
    put_on,
)
from flopwatch.models.device_mesh import JobMesh, find_own
from flopwatch.models.exchange_notes import RankJournal, note_owned_parameters
from flopwatch.models.initialisation import fill_modules, fill_parameters, mix_seed
from flopwatch.models.parallelize import GATHERED, Shared, keeps_gathered, share
from flopwatch.models.pipeline import Pipeline, TiedWeight, list_own_layers
from flopwatch.models.step_workload import (
    FICKLE,
    OPTIMIZERS,
    choose_float32,
    find_pattern,
    find_setting,
)
from flopwatch.models.tensor_parallel import align_gradients, divide_alike, restore_rows
from flopwatch.models.transformer import Rotation
from flopwatch.settings import Device
from flopwatch.suites.workload import Workload
from flopwatch.worker.compilation import Compilation
from flopwatch.worker.instruments import Diverged
from flopwatch.worker.rank_times import Journal


def draw_sequences(
    vocabulary: int, seq_len: int, seed: int, step: int, places: Iterable[int]
) -> Tensor:
    """Token ids, a row for each of these places in the batch of a step.

    The k-th token is about as frequent as 1 / k, as words are, so that there is something to learn
    within a few steps, and a loss that does not fall reveals a mistake.

    >>> draw_sequences(100, 5, 0, 3, [7]).equal(draw_sequences(100, 5, 0, 3, [6, 7])[1:])
    True
    """
    generator = torch.Generator()
    rows = []
    for place in places:
        generator.manual_seed(mix_seed(seed, step, place))
        shares = torch.rand(seq_len, generator=generator, dtype=torch.float64)
        rows.append(((vocabulary + 1.0) ** shares).long() - 1)
    return torch.stack(rows)


LEARNING_RATE = 1e-4
"""Small: what is timed is a training that goes well."""


class Loop:
    """The training of one variant on one rank, step by step."""

    def __init__(
        self,
        job: TrainingJob,
        device: Device,
        models: Sequence[nn.Module],
        shared: Sequence[Shared],
        mesh: JobMesh,
        journal: Journal,
    ) -> None:
        """A rank has one model, or a stage or several of a pipeline."""
        self.journal = journal
        self.job = job
        self.device = device
        self.setting = find_setting(job, device)
        self.models = models
        self.shared = shared
        self.mesh = mesh
        self.optimizer = open_optimizer(job, models, mesh)
        if job.sharding == "zero1" and mesh.data is not None:
            note_owned_parameters(self.optimizer, mesh.data, journal)
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE
        first = mesh.data_rank * job.local_batch
        self._places = range(first, first + job.local_batch)
        self._seed = torch.initial_seed()
        self._batches: list[Tensor] = []
        """Of the steps to come."""
        self._sequences: list[Tensor] = []
        self._loss: Tensor | None = None
        self.losses: list[list[Tensor]] = []
        """Of this rank: in each step, those of its micro-batches, over their number."""
        self.expert_rows: list[Tensor] = []
        """Of this rank: in each step, how often its tokens went through each expert, by mixture;
        none where the model has none."""
        # Of logits that ranks divide, both passes are computed in a way of their own.
        self._dividing = loss_parallel if job.parallelism.tensor > 1 else nullcontext

    def prepare(self) -> None:
        """Draw the sequences of the next step, and clear gradients."""
        self.draw_ahead(1)()

    def draw_ahead(self, steps: int) -> Callable[[], None]:
        """The sequences of so many steps, copied to the device at once: a copy would wait for the
        step before it. What is returned begins a step, and waits for nothing."""
        job, first = self.job, len(self.losses)
        choose_float32(job, self.device)
        drawn = torch.stack(
            [
                draw_sequences(job.shape.vocabulary, job.seq_len, self._seed, step, self._places)
                for step in range(first, first + steps)
            ]
        )
        self._batches = list(drawn.to(self.device))
        return self._begin

    def _begin(self) -> None:
        self._sequences = list(self._batches.pop(0).split(self.job.micro_batch))
        self.losses.append([])
        self._loss = None
        self.optimizer.zero_grad(set_to_none=True)

    def accumulate(self) -> None:
        *others, _ = self._sequences
        with self.shared[0].hold(), self._dividing():
            for ids in others:
                self._compute_loss(ids).backward()

    def forward(self, _: None = None) -> None:
        with self._dividing():
            self._loss = self._compute_loss(self._sequences[-1])

    def backward(self, _: None = None) -> None:
        assert self._loss is not None
        with self._dividing():
            self._loss.backward()
        self.finish()

    def finish(self) -> None:
        """When the last backward pass has returned: gradients are those of the global batch
        then."""
        if self.job.parallelism.tensor > 1:
            align_gradients(self.models)
        for shared in self.shared:
            shared.finish()

    def update(self, _: None = None) -> None:
        self.optimizer.step()

    def _compute_loss(self, ids: Tensor) -> Tensor:
        with self.setting.cast():
            output = self.shared[0].call(input_ids=ids, labels=ids)
        loss: Tensor = output.loss / self.job.grad_accum
        self._note_rows(getattr(output, "expert_rows", None))
        self.losses[-1].append(find_own(loss.detach()))
        return loss

    def _note_rows(self, rows: Tensor | None) -> None:
        """Of a micro-batch."""
        if rows is None:
            return
        if len(self.expert_rows) < len(self.losses):
            self.expert_rows.append(torch.zeros_like(rows))
        self.expert_rows[-1] += rows

    @property
    def phases(self) -> dict[str, Callable[..., Any]]:
        """They pass nothing on: a rank's own loss is no result that could be compared."""
        first = {GRAD_ACCUM: self.accumulate} if self.job.grad_accum > 1 else {}
        second = {"forward": self.forward, "backward": self.backward, "optimizer": self.update}
        return {**first, **second}

    def average_losses(self) -> list[float]:
        """Of each step so far, over the global batch; all ranks must ask for it at once. Those that
        share sequences have the same loss; of a pipeline's ranks, one has it."""
        own = torch.stack([sum(losses, torch.zeros(())) for losses in self.losses])
        if distributed.is_initialized():
            own = own.to(self.device)
            distributed.all_reduce(own)
        with_loss = self.job.ranks / self.job.parallelism.pipeline
        losses: list[float] = (own / with_loss).tolist()
        return losses

    def find_values(self) -> dict[str, Tensor]:
        """What must be the same however ranks share the model; all of them must ask for it."""
        loss = torch.tensor(self.average_losses()[-1])
        if not loss.isfinite():
            raise Diverged(
                f"its loss is {loss.item()} in step {len(self.losses)}; a training that diverges "
                "is not timed"
            )
        return {"loss": loss, **self.list_gradients()}

    def list_gradients(self) -> dict[str, Tensor]:
        return list_gradients(self.models[0])

    def average_imbalances(self) -> list[float]:
        """Of each step so far, the tokens of the busiest expert over the mean of all experts, in
        the whole global batch: the mean of all mixtures. All ranks must ask for it at once."""
        if not self.expert_rows:
            return []
        rows = torch.stack(self.expert_rows)  # steps, mixtures, experts
        if distributed.is_initialized():
            distributed.all_reduce(rows)
        rows = rows.double()
        found: list[float] = (rows.amax(dim=-1) / rows.mean(dim=-1)).mean(dim=-1).tolist()
        return found

    def tell_losses(self) -> Iterator[dict[str, float]]:
        losses, imbalances = self.average_losses(), self.average_imbalances()
        for step, loss in enumerate(losses, 1):
            more = {"expert_imbalance": imbalances[step - 1]} if imbalances else {}
            yield {"step": step, "loss": loss, **more}


class PipelineLoop(Loop):
    """Of a rank that has stages of a pipeline, whose schedule does both passes of all micro-batches
    at once."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        job, calls = self.job, [shared.call for shared in self.shared]
        cast, journal = self.setting.cast, self.journal
        self.pipeline = Pipeline(job, self.mesh, calls, self.device, cast, journal)
        self._tied = TiedWeight(job, self.mesh, self.models, journal) if job.shape.is_tied else None

    @property
    def phases(self) -> dict[str, Callable[..., Any]]:
        return {FORWARD_BACKWARD: self.pass_through, "optimizer": self.update}

    def pass_through(self) -> None:
        with self._dividing():
            self.losses[-1] = list(map(find_own, self.pipeline.run(torch.cat(self._sequences))))
        self.finish()
        if self._tied is not None:
            self._tied.sum_gradients()

    def list_gradients(self) -> dict[str, Tensor]:
        """Of all stages, from the ranks that have them."""
        own = {name: g for model in self.models for name, g in list_gradients(model).items()}
        if self._tied is not None:
            own.pop("norm of grad head.weight", None)  # it is the embedding's
        return gather_named(own, self.mesh.find("pp").get_group(), self.device)


def count_job_parameters(job: TrainingJob, models: Sequence[nn.Module], mesh: JobMesh) -> int:
    """Of the whole model, each once, however ranks divide it; all of them must ask for it."""
    split = job.parallelism
    if split.model_ranks == 1:
        return count_parameters(models[0])
    own = {name: p for model in models for name, p in model.named_parameters()}
    if split.pipeline > 1 and job.shape.is_ours and job.shape.is_tied:
        own.pop("head.weight", None)  # a copy of the embedding
    total = torch.tensor(sum(divide_alike(p, p.detach()).numel() for p in own.values()))
    if split.pipeline > 1:
        total = total.to(next(iter(own.values())).device)
        distributed.all_reduce(total, group=mesh.find("pp").get_group())
    return int(total)


def gather_named(own: Mapping[str, Tensor], group: Any, device: Device) -> dict[str, Tensor]:
    """The tensors of all ranks of a group, each of which has others."""
    shapes = json.dumps({name: list(tensor.shape) for name, tensor in own.items()}).encode()
    texts = _gather_uneven(torch.frombuffer(bytearray(shapes), dtype=torch.uint8).to(device), group)
    values = _gather_uneven(torch.cat([tensor.flatten().float() for tensor in own.values()]), group)
    found = {}
    for text, flat in zip(texts, values, strict=True):
        named = json.loads(bytes(text.tolist()))
        parts = flat.split([math.prod(shape) for shape in named.values()])
        for (name, shape), part in zip(named.items(), parts, strict=True):
            found[name] = part.view(shape)
    return found


def _gather_uneven(flat: Tensor, group: Any) -> list[Tensor]:
    """Of every rank."""
    device = flat.device
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(group.size())]
    distributed.all_gather(sizes, torch.tensor([flat.numel()], device=device), group=group)
    longest = int(max(sizes))
    boxes = [torch.zeros(longest, dtype=flat.dtype, device=device) for _ in sizes]
    padded = functional.pad(flat, (0, longest - flat.numel()))
    distributed.all_gather(boxes, padded, group=group)
    return [box[: int(size)] for box, size in zip(boxes, sizes, strict=True)]


def open_optimizer(
    job: TrainingJob, models: Sequence[nn.Module], mesh: JobMesh
) -> torch.optim.Optimizer:
    groups: Any = group_parameters(models)
    if job.sharding != "zero1" or mesh.data is None:
        return OPTIMIZERS[job.optimizer](groups)
    with warnings.catch_warnings():  # it imports what torch itself calls outdated
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    (group,) = groups
    make: Any = OPTIMIZERS[job.optimizer]
    return ZeroRedundancyOptimizer(group["params"], make, process_group=mesh.data.get_group())


def group_parameters(models: Sequence[nn.Module]) -> list[dict[str, Any]]:
    """For an optimizer, which computes with all parameters of a group at once: those that are
    divided among the same ranks, and those that are not."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for model in models:
        for parameter in model.parameters():
            groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return [{"params": parameters} for parameters in groups.values()]


def list_gradients(model: nn.Module) -> dict[str, Tensor]:
    """All of the small ones, and the norms of the large ones: between them, every part of the
    backward pass. Left out are those that rounding decides."""
    found = {}
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        if gradient is None or name.endswith(FICKLE):
            continue
        gradient = divide_alike(parameter, gradient)
        if parameter.dim() == 1:
            owner = model.get_submodule(name.rpartition(".")[0])
            found[f"grad {name}"] = restore_rows(owner, _make_whole(gradient))
        else:
            found[f"norm of grad {name}"] = _make_whole(torch.linalg.vector_norm(gradient))
    return found


def _make_whole(tensor: Any) -> Tensor:
    """What ranks have parts of."""
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def make_workload(job: TrainingJob, device: Device) -> Workload:
    if job.graphs:
        raise Unsupported(
            "graphs of kernels are measured in the suite steps only; leave cuda-graph and "
            "reduce-overhead out"
        )
    # Refuses what cannot be, before it takes time.
    count_job_shards(job.parallelism)
    require_divisible(job)
    require_combination(job, on_host=is_host(device))
    journal = RankJournal(open_backend(device).clock)
    if job.compiled and job.parallelism.tensor > 1:
        journal.is_complete = False  # what a compiled graph exchanges is not noted
    mesh = JobMesh(job.parallelism, device)
    is_divided = job.parallelism.pipeline > 1
    models = [
        make_model(job, is_empty=True, layers=layers)
        for layers in (list_own_layers(job, mesh) if is_divided else [None])
    ]
    compilation = Compilation(device) if job.compiled else None
    shared = []
    for model in models:
        if compilation is not None:
            compile_blocks(model)
        shared.append(share(model, job, device, journal, Filler(model, job, device), mesh))
    loop = (PipelineLoop if is_divided else Loop)(job, device, models, shared, mesh, journal)
    parameters = count_job_parameters(job, models, mesh)
    emulation = describe_emulation(job.arithmetic.matmul_dtype, device)
    facts = list_facts(job, parameters)
    return Workload(
        renewable=False,
        phases=loop.phases,
        reset=loop.prepare,
        ahead=None if is_host(device) else loop.draw_ahead,
        values=loop.find_values,
        journal=journal,
        curves=loop.tell_losses,
        conditions=loop.setting.conditions,
        facts=lambda: {**facts, **({} if compilation is None else compilation.finish())},
        notes=[
            *shared[0].notes,
            *([GATHERED] if job.sharding == "full" and keeps_gathered(job.parallelism) else []),
            *([emulation] if emulation else []),
            *list_notes(job.linear, device),
        ],
    )


def make_model(
    job: TrainingJob,
    *,
    plain: bool = False,
    is_empty: bool = False,
    layers: range | None = None,
) -> nn.Module:
    """In the host's memory, with weights from torch's current seed, the same ones for every way to
    share it. With `plain`, swapped layers and experts are computed by the plain formula; with
    `is_empty`, its matrices take no memory, and it gets all that by a `Filler`. With `layers`, a
    stage of it."""
    is_whole = job.shape.is_ours and not is_empty
    dtype = job.arithmetic.dtype
    model = build(job.shape, dtype=dtype) if is_whole else build_empty(job.shape, dtype, layers)
    choose_attention(model, job.attention)
    choose_recompute(model, job.recompute)
    choose_mixing(model, "plain" if plain else "grouped")
    if is_whole:
        swap_layers(model, job, find_swapped(model, job))
    elif not is_empty:
        fill = Filler(model, job, HOST)
        for part in (*find_blocks(model), model):
            fill(part)
    if plain and not job.is_dense:
        chosen = find_linear(model, find_pattern(job))
        install(model, {name: Plain(layer) for name, layer in chosen.items()})
    return model


def find_swapped(model: nn.Module, job: TrainingJob) -> list[str]:
    """Names of the layers that the variant replaces."""
    try:
        return [] if job.is_dense else [*find_linear(model, find_pattern(job))]
    except LayerError as error:
        raise Unsupported(str(error)) from None


def swap_layers(model: nn.Module, job: TrainingJob, names: Sequence[str]) -> None:
    """Each from a seed of its own, like every parameter of a model."""
    seed = torch.initial_seed()
    for name in names:
        torch.manual_seed(mix_seed(seed, name))
        try:
            made = make_alike(job.linear, name, model.get_submodule(name))
        except LayerError as error:  # blocks that do not divide, say
            raise Unsupported(str(error)) from None
        install(model, {name: made})
    torch.manual_seed(seed)


class Filler:
    """Gives an empty model its weights, part by part, in the memory of a device: those that
    `make_model` would have given it."""

    def __init__(self, model: nn.Module, job: TrainingJob, device: Device) -> None:
        self._model: Any = model
        self._job = job
        self._device = device
        self._dtype: torch.dtype = getattr(torch, job.arithmetic.dtype)
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        if job.shape.is_ours and job.shape.is_tied:  # a stage has the head without the embedding
            drawn_as = {"head.weight": "embedding.weight"}
            self._names = {key: drawn_as.get(name, name) for key, name in self._names.items()}
        self._parts = {module: name for name, module in model.named_modules()}
        self._draws = {} if job.shape.is_ours else list_initialisers(model)
        self._filled: set[nn.Module] = set()
        self._swapped = find_swapped(model, job)
        """Those that are still to be replaced."""

    def __call__(self, part: nn.Module) -> None:
        """What of it is still empty."""
        if self._job.shape.is_ours:
            self._fill_ours(part)
        else:
            draws = self._draws
            fill_modules(part, self._parts, lambda m: draws[m](m), self._dtype, self._filled)
            self._filled.add(part)
        prefix = self._parts[part]
        inside = [name for name in self._swapped if not prefix or name.startswith(f"{prefix}.")]
        for name in inside:  # drawn on the host, too
            self._model.get_submodule(name).to(HOST)
            swap_layers(self._model, self._job, [name])
            self._model.get_submodule(name).to(self._device)
        self._swapped = [name for name in self._swapped if name not in inside]

    def _fill_ours(self, part: nn.Module) -> None:
        fill_parameters(part, self._names, self._model.draw, self._device)
        for module in part.modules():
            if isinstance(module, Rotation):
                module.to_empty(device=HOST).initialize()
                module.to(self._device)


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


def make_reference(job: TrainingJob, device: Device) -> Workload:
    """The ordinary loop over the whole global batch, on one rank, micro-batch by micro-batch."""
    seed = torch.initial_seed()
    # What is recomputed gives the same, and needs no more memory than what is checked.
    recompute: Recompute = "none" if job.recompute == "none" else "full"
    plain = replace(
        drop_variant(job),
        grad_accum=job.global_batch // job.micro_batch,
        parallelism=Parallelism(),
        linear=job.linear,
        swapped=job.swapped,
        recompute=recompute,
    )
    return Workload(
        phases={"step": lambda: None}, values=lambda: compute_expected(plain, device, seed)
    )


@lru_cache(maxsize=8)
def compute_expected(job: TrainingJob, device: Device, seed: int) -> Mapping[str, Tensor]:
    """Loss and gradients of the first step, which many variants have in common."""
    torch.manual_seed(seed)
    choose_float32(job, device)
    model = make_model(job, plain=True)
    put_on(device, model)
    ids = draw_sequences(job.shape.vocabulary, job.seq_len, seed, 0, range(job.global_batch))
    batches = ids.to(device).split(job.micro_batch)
    total, setting = torch.zeros((), device=device), find_setting(job, device)
    for batch in batches:
        with setting.cast():
            loss = model(input_ids=batch, labels=batch).loss / len(batches)
        loss.backward()
        total += loss.detach()
    return {"loss": total.cpu(), **list_gradients(model)}


def list_facts(job: TrainingJob, parameters: int) -> dict[str, float]:
    return {
        "tokens": job.tokens_per_step,
        "sequences": job.global_batch,
        "parameters": parameters,
        "micro_batch": job.micro_batch,
        "grad_accum": job.grad_accum,
        "global_batch": job.global_batch,
        "seq_len": job.seq_len,
        "hidden_size": job.shape.hidden_size,
        "layers": job.shape.layers,
        "ranks": job.ranks,
    }
