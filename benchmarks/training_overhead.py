"""What measuring adds to a step of a training job: ours against a loop written by hand, on 2 ranks.

Both train models of their own, shared in the same way, in turn and in random order, started by the
same word. Ours has phases, a journal of its collectives and a report from every rank; the loop by
hand has torch's own wrapper, a clock before and after the step, and nothing else. Reach: within
1 %.

    python benchmarks/training_overhead.py
    python benchmarks/training_overhead.py --way full --model small --rounds 20
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import socket
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from flopwatch.analysis.statistics import estimate_ratio, median
from flopwatch.devices.cpu import CpuBackend, CpuClock
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models.builder import build, find_blocks
from flopwatch.models.training_loop import draw_sequences, make_workload
from flopwatch.suites.workload import Workload
from flopwatch.worker.communicator import Communicator
from flopwatch.worker.messages import RankPlace
from flopwatch.worker.rank_devices import DeviceWatch
from flopwatch.worker.rank_roles import OtherRank, RankZero
from flopwatch.worker.timed_runs import time_phases

REACH = 0.01
RANKS = 2
WARMUP_ROUNDS = 3
WAYS = ["ddp", "full"]
PATIENCE_S = 600.0


class ByHand:
    """As anybody would write it."""

    def __init__(self, job: TrainingJob, way: str) -> None:
        self.job = job
        model = build(job.shape)
        self.model: Any = WRAPPERS[way](model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self.sequences: list[Tensor] = []
        self.steps_s: list[float] = []

    def prepare(self) -> None:
        rank, step = distributed.get_rank(), len(self.steps_s)
        places = range(rank * self.job.local_batch, (rank + 1) * self.job.local_batch)
        drawn = draw_sequences(self.job.shape.vocabulary, self.job.seq_len, 0, step, places)
        self.sequences = list(torch.split(drawn, self.job.micro_batch))
        self.optimizer.zero_grad(set_to_none=True)

    def run(self) -> None:
        start_s = time.perf_counter()
        for number, ids in enumerate(self.sequences, 1):
            is_last = number == len(self.sequences)
            with nullcontext() if is_last or not is_ddp(self.model) else self.model.no_sync():
                loss = self.model(input_ids=ids, labels=ids).loss / len(self.sequences)
                loss.backward()
        self.optimizer.step()
        self.steps_s.append(time.perf_counter() - start_s)


def is_ddp(model: nn.Module) -> bool:
    return isinstance(model, DistributedDataParallel)


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (RANKS,))
    for block in find_blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # in place
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "ddp": lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True),
    "full": shard,
}


def measure(rank: int, port: int, job: TrainingJob, given: dict[str, Any], results: Any) -> None:
    """One rank: the first leads, and sends the times of both."""
    torch.set_num_threads(1)
    place = RankPlace(
        rank=rank,
        ranks=RANKS,
        local_rank=rank,
        local_ranks=RANKS,
        node_ranks=RANKS,
        address="127.0.0.1",
        port=port,
    )
    comm, clock = Communicator(place, "cpu", PATIENCE_S), CpuClock()
    torch.manual_seed(0)
    by_hand = ByHand(job, given["way"])

    def make(variant: str) -> Workload:
        if variant == "by hand":
            return Workload(phases={"step": by_hand.run}, reset=by_hand.prepare)
        return make_workload(parse_variant(job, given["way"]), "cpu")

    if rank > 0:
        watch = DeviceWatch(CpuBackend(), "cpu")
        for _ in OtherRank(comm, clock, make, watch).follow_orders():
            pass
        times_s = {}
    else:
        rank0 = RankZero(comm, clock, lambda: None)
        times_s = take_turns(rank0, make, given["rounds"])
        rank0.leave()
    all_by_hand: list[Any] = [None] * RANKS
    distributed.all_gather_object(all_by_hand, by_hand.steps_s)
    slowest_s = [max(times) for times in zip(*all_by_hand, strict=True)]
    if rank == 0:
        results.put({**times_s, "by hand": slowest_s[WARMUP_ROUNDS:]})
    distributed.barrier()


def take_turns(
    rank0: RankZero, make: Callable[[str], Workload], rounds: int
) -> dict[str, list[float]]:
    names = ("ours", "by hand")
    loads = {}
    for name in names:
        loads[name] = rank0.synchronize(name, rank0.build(name, partial(make, name)))
    times_s: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(WARMUP_ROUNDS + rounds):
        for name in random.sample(names, len(names)):
            times_s[name].append(sum(time_phases(loads[name], 1, rank0)) / 1e9)
    return {name: times[WARMUP_ROUNDS:] for name, times in times_s.items()}


def run_way(job: TrainingJob, given: dict[str, Any]) -> float:
    """Prints a line, and gives what measuring adds, relative to the loop by hand."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    ranks = [
        context.Process(target=measure, args=(rank, port, job, given, results))
        for rank in range(RANKS)
    ]
    for process in ranks:
        process.start()
    while results.empty():
        if any(process.exitcode for process in ranks):
            sys.exit("a rank has failed")
        time.sleep(0.1)
    times_s = results.get()
    for process in ranks:
        process.join()
    ratio = estimate_ratio(times_s["ours"], times_s["by hand"])
    interval = (
        ""
        if ratio.low is None or ratio.high is None
        else f" [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]"
    )
    ours, by_hand = (1e3 * median(times_s[name]) for name in ("ours", "by hand"))
    print(
        f"{given['way']:12} ours {ours:8.2f} ms, by hand {by_hand:8.2f} ms (medians of "
        f"{len(times_s['ours'])}): measuring adds {ratio.value - 1:+.2%}{interval}"
    )
    return ratio.value - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--model", default="gpt:hidden_size=256:layers=4")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    given = parser.parse_args()
    job = TrainingJob(
        given.model,
        given.seq_len,
        micro_batch=given.micro_batch,
        grad_accum=given.grad_accum,
        precision="fp32",
        parallelism=Parallelism(data=RANKS),
    )
    found = [run_way(job, {"way": way, "rounds": given.rounds}) for way in given.way or WAYS]
    print(f"reach: at most {REACH:.0%}")
    sys.exit(max(found) > REACH)


if __name__ == "__main__":
    main()
