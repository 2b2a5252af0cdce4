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

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor.parallel import loss_parallel

from flopwatch.devices.base import open_backend
from flopwatch.devices.kinds import is_host
from flopwatch.devices.matmul_rates import describe_emulation
from flopwatch.errors import Unsupported
from flopwatch.jobs.combinations import require_combination, require_divisible
from flopwatch.jobs.flops import FORWARD_BACKWARD, GRAD_ACCUM
from flopwatch.jobs.parallelism import Parallelism, count_job_shards
from flopwatch.jobs.training_job import Recompute, TrainingJob, drop_variant
from flopwatch.layers.layer_workload import list_notes
from flopwatch.layers.swapping import count_parameters
from flopwatch.models.builder import (
    put_on,
)
from flopwatch.models.device_mesh import JobMesh, find_own
from flopwatch.models.exchange_notes import RankJournal, note_owned_parameters
from flopwatch.models.initialisation import mix_seed
from flopwatch.models.job_gradients import gather_named, list_gradients
from flopwatch.models.model_making import Filler, compile_blocks, make_model
from flopwatch.models.parallelize import GATHERED, Shared, keeps_gathered, share
from flopwatch.models.pipeline import Pipeline, TiedWeight, list_own_layers
from flopwatch.models.step_workload import (
    OPTIMIZERS,
    choose_float32,
    find_setting,
)
from flopwatch.models.tensor_parallel import align_gradients, divide_alike
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
