"""What measuring adds to a step of a training job: ours against a bare loop of the same parts.

Both train models of their own, shared in the same way by the same parts of torch, on the same
ranks, in turn and in random order, started by the same word. Ours has phases, a journal of its
exchanges and a report from every rank; the bare loop has torch's wrappers, a clock before and after
the step, and nothing else: DistributedDataParallel, fully_shard, parallelize_module,
torch.distributed.pipelining, and fully_shard of layers that parallelize_module has divided.

Both must have trained to the same losses, or what they do is not the same. Rounds go on until the
interval of the ratio is narrower than the reach, or the time is spent. Reach: within 1 %.

    python benchmarks/training_overhead.py
    python benchmarks/training_overhead.py --way full --way pp --minutes 3
    python benchmarks/training_overhead.py --way fsdp-tp               on 4 ranks
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from flopwatch.analysis.statistics import estimate_ratio, median
from flopwatch.devices.cpu import CpuBackend, CpuClock
from flopwatch.jobs.parallelism import Parallelism, divide_layers
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models.builder import build, find_blocks
from flopwatch.models.tensor_parallel import plan_block, plan_rest
from flopwatch.models.training_loop import draw_sequences, group_parameters, make_workload
from flopwatch.models.transformer import build as build_stage
from flopwatch.models.transformer import next_token_loss
from flopwatch.suites.workload import Workload
from flopwatch.worker.communicator import Communicator
from flopwatch.worker.messages import RankPlace
from flopwatch.worker.rank_devices import DeviceWatch
from flopwatch.worker.rank_roles import OtherRank, RankZero
from flopwatch.worker.timed_runs import time_phases

REACH = 0.01
WARMUP_ROUNDS = 3
LEAST_ROUNDS = 20
PATIENCE_S = 600.0
SAME_LOSS = 0.05
"""How far losses may be apart: weights of divided models are drawn in another order."""


class Way:
    """How ranks share a model: the variant of our suite, and the bare loop."""

    def __init__(self, variant: str, ranks: int, make: Callable[[TrainingJob], Bare]) -> None:
        self.variant = variant
        self.ranks = ranks
        self.make = make


class Bare:
    """As anybody would write it: a model whole on each rank, whatever wraps it."""

    def __init__(self, job: TrainingJob, model: nn.Module, wrapped: Any) -> None:
        self.job = job
        self.model: Any = wrapped
        self.is_divided = job.parallelism.tensor > 1
        self.is_ddp = isinstance(wrapped, DistributedDataParallel)
        self.optimizer = torch.optim.AdamW(group_parameters([model]), lr=1e-4, fused=True)
        self.place = distributed.get_rank() // job.parallelism.model_ranks
        self.sequences: list[Tensor] = []
        self.loss = 0.0
        self.steps_s: list[float] = []

    def prepare(self) -> None:
        job, step = self.job, len(self.steps_s)
        places = range(self.place * job.local_batch, (self.place + 1) * job.local_batch)
        drawn = draw_sequences(job.shape.vocabulary, job.seq_len, 0, step, places)
        self.sequences = list(torch.split(drawn, job.micro_batch))
        self.optimizer.zero_grad(set_to_none=True)

    def run(self) -> None:
        start_s = time.perf_counter()
        losses = self.pass_through()
        self.optimizer.step()
        self.steps_s.append(time.perf_counter() - start_s)
        self.loss = float(sum(losses)) if losses else math.nan  # on the stage that has it

    def pass_through(self) -> list[Tensor]:
        losses = []
        with loss_parallel() if self.is_divided else nullcontext():
            for number, ids in enumerate(self.sequences, 1):
                is_last = number == len(self.sequences)
                with self.model.no_sync() if self.is_ddp and not is_last else nullcontext():
                    loss = self.model(input_ids=ids, labels=ids).loss / len(self.sequences)
                    loss.backward()
                losses.append(own(loss.detach()))
        return losses


class BarePipeline(Bare):
    def __init__(self, job: TrainingJob) -> None:
        rank, stages = distributed.get_rank(), job.parallelism.pipeline
        layers = divide_layers(job.shape.layers, stages)[rank]
        model = build_stage(job.shape, layers=layers)
        super().__init__(job, model, model)
        self.is_first, self.is_last = rank == 0, rank == stages - 1
        stage = PipelineStage(model, rank, stages, torch.device("cpu"))
        self.schedule = Schedule1F1B(
            stage, job.grad_accum, loss_fn=self.compute_loss, scale_grads=False
        )

    def compute_loss(self, logits: Tensor, ids: Tensor) -> Tensor:
        return next_token_loss(logits, ids) / self.job.grad_accum

    def pass_through(self) -> list[Tensor]:
        ids, losses = torch.cat(self.sequences), list[Tensor]()
        given: dict[str, Any] = {"target": ids, "losses": losses} if self.is_last else {}
        self.schedule.step(*([ids] if self.is_first else []), **given, return_outputs=False)
        return [loss.detach() for loss in losses]


def own(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


def make_ddp(job: TrainingJob) -> Bare:
    model = build(job.shape)
    return Bare(job, model, DistributedDataParallel(model, gradient_as_bucket_view=True))


def make_sharded(job: TrainingJob) -> Bare:
    model, mesh = build(job.shape), init_device_mesh("cpu", (job.ranks,))
    return Bare(job, model, shard(model, mesh))


def make_divided(job: TrainingJob) -> Bare:
    model, mesh = build(job.shape), init_device_mesh("cpu", (job.ranks,))
    return Bare(job, model, divide(model, mesh))


def make_sharded_and_divided(job: TrainingJob) -> Bare:
    split = job.parallelism
    mesh = init_device_mesh("cpu", (split.data, split.tensor), mesh_dim_names=("dp", "tp"))
    model = divide(build(job.shape), mesh["tp"])
    return Bare(job, model, shard(model, mesh["dp"]))


def divide(model: Any, mesh: Any) -> nn.Module:
    """By the plan of the suite: what is compared is the loop around it."""
    for block in find_blocks(model):
        parallelize_module(block, mesh, plan_block(sequence=False), src_data_rank=None)
    parallelize_module(model, mesh, plan_rest(model, sequence=False), src_data_rank=None)
    model.tie()
    return model  # type: ignore[no-any-return]


def shard(model: nn.Module, mesh: Any) -> nn.Module:
    for block in find_blocks(model):
        fully_shard(block, mesh=mesh)
    # Stays from the forward to the backward pass, which begins with it.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return model


WAYS: Mapping[str, Way] = {
    "ddp": Way("ddp", 2, make_ddp),
    "full": Way("full", 2, make_sharded),
    "tp": Way("tp2", 2, make_divided),
    "pp": Way("pp2", 2, BarePipeline),
    "fsdp-tp": Way("full+tp2", 4, make_sharded_and_divided),
}


def measure(rank: int, port: int, job: TrainingJob, given: dict[str, Any], results: Any) -> None:
    """One rank: the first leads, and sends the times of all."""
    torch.set_num_threads(1)
    way = WAYS[given["way"]]
    place = RankPlace(
        rank=rank,
        ranks=way.ranks,
        local_rank=rank,
        local_ranks=way.ranks,
        node_ranks=way.ranks,
        address="127.0.0.1",
        port=port,
    )
    comm, clock, target = Communicator(place, "cpu", PATIENCE_S), CpuClock(), CpuBackend()
    shared = parse_variant(job, way.variant)
    torch.manual_seed(0)
    bare = way.make(shared)

    def make(variant: str) -> Workload:
        if variant == "bare":
            return Workload(phases={"step": bare.run}, reset=bare.prepare)
        torch.manual_seed(0)
        return make_workload(shared, "cpu")

    if rank > 0:
        for _ in OtherRank(comm, clock, make, DeviceWatch(target, "cpu"), target).follow_orders():
            pass
        times_s = {}
    else:
        rank0 = RankZero(comm, clock, lambda: None)
        times_s = take_turns(rank0, make, given["minutes"])
        rank0.leave()
    all_bare: list[Any] = [None] * way.ranks
    distributed.all_gather_object(all_bare, (bare.steps_s, bare.loss))
    steps_s, losses = zip(*all_bare, strict=True)
    # Both sides by the same clock: each rank's own, the slowest of them.
    slowest_s = [max(times) for times in zip(*steps_s, strict=True)]
    if rank == 0:
        known = [loss for loss in losses if not math.isnan(loss)]
        loss = sum(known) / len(known)
        results.put({**times_s, "bare": slowest_s[WARMUP_ROUNDS:], "loss": loss})
    distributed.barrier()


def take_turns(rank0: RankZero, make: Callable[[str], Workload], minutes: float) -> dict[str, Any]:
    names = ("ours", "bare")
    loads, plain = {}, {}
    for name in names:
        plain[name] = rank0.build(name, partial(make, name))
        loads[name] = rank0.synchronize(name, plain[name])
    times_s: dict[str, list[float]] = {name: [] for name in names}
    started_s, rounds = time.monotonic(), 0
    while rounds < WARMUP_ROUNDS + LEAST_ROUNDS or (
        time.monotonic() - started_s < 60 * minutes and not is_narrow(times_s)
    ):
        for name in random.sample(names, len(names)):
            times_s[name].append(sum(time_phases(loads[name], 1, rank0)) / 1e9)
        rounds += 1
    curves = loads["ours"].curves
    assert curves is not None
    *_, last = curves()
    return {
        "ours": times_s["ours"][WARMUP_ROUNDS:],
        "own loss": last["loss"],
    }


def is_narrow(times_s: Mapping[str, list[float]]) -> bool:
    ours, bare = (times_s[name][WARMUP_ROUNDS:] for name in ("ours", "bare"))
    ratio = estimate_ratio(ours, bare)
    return ratio.low is not None and ratio.high is not None and ratio.high - ratio.low < REACH


def run_way(job: TrainingJob, given: dict[str, Any]) -> bool:
    """Prints a line: what measuring adds, relative to the bare loop; whether that is proved to be
    within reach."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [
        context.Process(target=measure, args=(rank, port, job, given, results))
        for rank in range(WAYS[given["way"]].ranks)
    ]
    for process in ranks:
        process.start()
    while results.empty():
        if any(process.exitcode for process in ranks):
            sys.exit("a rank has failed")
        time.sleep(0.1)
    found = results.get()
    for process in ranks:
        process.join()
    ratio = estimate_ratio(found["ours"], found["bare"])
    low, high = ratio.low or 0.0, ratio.high or math.inf
    ours, bare = (1e3 * median(found[name]) for name in ("ours", "bare"))
    is_same = abs(found["own loss"] / found["loss"] - 1) < SAME_LOSS
    print(
        f"{given['way']:8} ours {ours:8.2f} ms, bare {bare:8.2f} ms (medians of "
        f"{len(found['ours'])}): measuring adds {ratio.value - 1:+.2%} [{low - 1:+.2%}, "
        f"{high - 1:+.2%}]; losses {found['own loss']:.3f}, {found['loss']:.3f}"
        + ("" if is_same else ": not the same work"),
        flush=True,
    )
    return is_same and high - 1 <= REACH


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--way", choices=list(WAYS), action="append")
    parser.add_argument("--model", default="gpt:hidden_size=256:layers=4:tied=false")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--grad-accum", type=int, default=1, help="of as many ranks as there are")
    parser.add_argument("--minutes", type=float, default=5.0, help="at the most, for each way")
    given = parser.parse_args()
    is_reached = True
    for name in given.way or WAYS:
        job = TrainingJob(
            given.model,
            given.seq_len,
            micro_batch=given.micro_batch,
            # A pipeline needs micro-batches to pass through it.
            grad_accum=given.grad_accum * (2 if name == "pp" else 1),
            precision="fp32",
            parallelism=Parallelism(data=WAYS[name].ranks),
        )
        is_reached &= run_way(job, {"way": name, "minutes": given.minutes})
    print(f"reach: at most {REACH:.0%}, the whole interval")
    sys.exit(not is_reached)


if __name__ == "__main__":
    main()
