"""Pipeline parallelism: ranks that each have some of the layers, by torch.distributed.pipelining.

A step's micro-batches pass through the stages, forward and backward, in the order of a schedule
(`jobs.parallelism.SCHEDULES`). A stage is made with its own layers only, so that nothing has to
trace a whole model. The last stage computes the loss; where stages lie in a V, the first rank has
it. Losses are divided by the number of micro-batches before they are differentiated, and torch,
which would do so with gradients afterwards, is told not to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from flopwatch.jobs.parallelism import SCHEDULES, divide_layers
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.device_mesh import JobMesh, find_own
from flopwatch.models.exchange_notes import PIPELINE, note_turns
from flopwatch.models.transformer import next_token_loss
from flopwatch.worker.rank_times import Exchange, Journal

SCALES = False
"""Whether torch divides gradients by the number of micro-batches: losses are divided already."""


def list_own_layers(job: TrainingJob, mesh: JobMesh) -> list[range]:
    """Of each stage that this rank has."""
    split = job.parallelism
    layers = divide_layers(job.shape.layers, split.stages)
    return [layers[number] for number in split.list_stages(mesh.find_place("pp"))]


class Pipeline:
    """A rank's part of it."""

    def __init__(
        self,
        job: TrainingJob,
        mesh: JobMesh,
        calls: Sequence[Any],
        device: str,
        cast: Callable[[], AbstractContextManager[object]],
        journal: Journal,
    ) -> None:
        """`calls` are this rank's stages, as they are called."""
        split = job.parallelism
        self._job = job
        self._cast = cast
        numbers = split.list_stages(mesh.find_place("pp"))
        self._is_first, self.is_last = 0 in numbers, split.stages - 1 in numbers
        group = mesh.find("pp").get_group()
        stages = [
            PipelineStage(call, number, split.stages, torch.device(device), group=group)
            for call, number in zip(calls, numbers, strict=True)
        ]
        for call in calls:
            # Torch finds out by a first pass what stages send each other; of that pass, as of all
            # forward passes here, DistributedDataParallel must see nothing.
            unseen = getattr(call, "no_sync", nullcontext)
            call.forward = self._casting(call.forward, unseen)
        for stage in stages:
            note_turns(stage, journal)
        kind: Any = get_schedule_class(SCHEDULES[split.schedule].torch_name)
        own = stages[0] if issubclass(kind, PipelineScheduleSingle) else stages
        self._schedule = kind(
            own, n_microbatches=job.grad_accum, loss_fn=self._compute_loss, scale_grads=SCALES
        )

    def run(self, ids: Tensor) -> list[Tensor]:
        """Forward and backward of all micro-batches. The losses are those of the last stage."""
        losses: list[Tensor] = []
        self._schedule.step(
            *([ids] if self._is_first else []),
            **({"target": ids, "losses": losses} if self.is_last else {}),
            return_outputs=False,
        )
        return [loss.detach() for loss in losses]

    def _compute_loss(self, logits: Tensor, ids: Tensor) -> Tensor:
        with self._cast():
            return next_token_loss(logits, ids) / self._job.grad_accum

    def _casting(
        self, forward: Callable[..., Tensor], unseen: Callable[[], AbstractContextManager[object]]
    ) -> Callable[..., Tensor]:
        def cast(x: Tensor) -> Tensor:
            with self._cast(), unseen():
                return forward(x)

        return cast


class TiedWeight:
    """The embedding of the first stage, which is the head of the last one, too: each has a copy,
    and both have the sum of their gradients."""

    def __init__(
        self, job: TrainingJob, mesh: JobMesh, stages: Sequence[Any], journal: Journal
    ) -> None:
        self._journal = journal
        split = job.parallelism
        last_rank = next(
            rank for rank in range(split.pipeline) if split.stages - 1 in split.list_stages(rank)
        )
        ends = [end for stage in stages for end in (stage.embedding, stage.head)]
        self._weights = [end.weight for end in ends if end is not None]
        self._peer: int | None = None
        self._group = mesh.find("pp").get_group()
        if self._weights and last_rank != 0:
            place = last_rank if mesh.find_place("pp") == 0 else 0
            self._peer = distributed.get_global_rank(self._group, place)

    def sum_gradients(self) -> None:
        gradients = [find_own(weight.grad) for weight in self._weights if weight.grad is not None]
        if self._peer is not None:
            (own,) = gradients
            other = torch.empty_like(own)
            sent = [
                distributed.P2POp(kind, tensor, self._peer, self._group)
                for kind, tensor in ((distributed.isend, own), (distributed.irecv, other))
            ]
            ranks = sorted((distributed.get_rank(), self._peer))
            with self._journal.visit(Exchange("all-reduce", tuple(ranks), PIPELINE)):
                for work in distributed.batch_isend_irecv(sent):
                    work.wait()
            own += other
        elif gradients:
            total = torch.stack(gradients).sum(0)
            for gradient in gradients:
                gradient.copy_(total)
