"""What is noted of the exchanges of torch's own parts, on two ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

from flopwatch.devices.cpu import CpuClock
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models.exchange_notes import RankJournal, note_turns
from flopwatch.models.training_loop import make_workload
from flopwatch.worker.communicator import resolve
from flopwatch.worker.rank_times import Exchange, Run, split
from flopwatch.worker.sampling import run_once
from flopwatch.worker.step_timeline import make_timeline
from flopwatch.worker.timed_runs import mark_run
from tests.rank_tools import run_on_ranks

WIDTH, ROWS, MICRO_BATCHES = 16, 8, 4


def run_noted(step: Any) -> Run:
    journal: RankJournal = step.journal
    assert journal.is_complete
    step()  # the first one learns shapes
    journal.clear()
    marks = [journal.clock.mark()]
    step()
    run = resolve(journal.clock, 0.0, [*marks, journal.clock.mark()], journal.read())
    step()
    assert len(journal.visits) == len(run.stops or ())  # no other step is noted
    return run


class TensorStep:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.journal = RankJournal(CpuClock())
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        layers = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        )
        plan = {"0": SequenceParallel(), "1": ColwiseParallel(), "2": RowwiseParallel()}
        self.model = parallelize_module(layers, mesh, plan)

    def __call__(self) -> None:
        self.model(torch.ones(1, ROWS, WIDTH)).sum().backward()


class PipelineStep:
    def __init__(self, schedule: str) -> None:
        torch.manual_seed(0)
        self.journal = RankJournal(CpuClock())
        rank = torch.distributed.get_rank()
        stage = pipelining.PipelineStage(nn.Linear(WIDTH, WIDTH), rank, 2, torch.device("cpu"))
        note_turns(stage, self.journal)
        kind = pipelining.schedules.get_schedule_class(schedule)
        stages = [stage] if issubclass(kind, pipelining.schedules.PipelineScheduleMulti) else stage
        self.schedule = kind(stages, MICRO_BATCHES, loss_fn=functional.mse_loss)
        self.rank = rank

    def __call__(self) -> None:
        rows = torch.ones(ROWS, WIDTH)
        if self.rank == 0:
            self.schedule.step(rows)
        else:
            self.schedule.step(target=rows)


def note_all() -> list[Run]:
    return [
        run_noted(TensorStep()),
        *(run_noted(PipelineStep(name)) for name in ("GPipe", "1F1B", "InterleavedZeroBubble")),
    ]


def test_exchanges_of_tensor_parallelism_and_pipelines_are_noted_and_matched() -> None:
    first, second = run_on_ranks(2, note_all)
    for runs in zip(first, second, strict=True):
        shares = split(runs)
        for run, share in zip(runs, shares, strict=True):
            assert share.waiting_ns is not None
            assert share.transfer_ns is not None
            stopped_ns = share.waiting_ns + share.transfer_ns + (share.bubble_ns or 0.0)
            assert 0 < stopped_ns < max(each.ended_ns[-1] for each in runs)
            assert all(0 <= stop.here_ns <= stop.arrived_ns for stop in run.stops or ())
    tensor, *pipelines = first
    assert {stop.exchange for stop in tensor.stops} == {
        Exchange("all-gather", (0, 1), "tp"),
        Exchange("reduce-scatter", (0, 1), "tp"),
        Exchange("all-reduce", (0, 1), "tp"),
    }
    assert split([tensor, second[0]])[0].bubble_ns is None
    for run in pipelines:
        assert [stop.exchange.kind for stop in run.stops].count("send") == MICRO_BATCHES
        assert [stop.exchange.kind for stop in run.stops].count("receive") == MICRO_BATCHES
        assert {stop.exchange.ranks for stop in run.stops} == {(0, 1), (1, 0)}
        assert all(stop.left_ns is not None for stop in run.stops)
    for run, works in zip(pipelines, (2, 2, 3), strict=True):
        counted = sorted((turn.micro_batch, turn.work) for turn in run.turns)
        kinds = ("backward", "forward", "weight")[:works]
        assert counted == [(number, work) for number in range(MICRO_BATCHES) for work in kinds]
        assert {turn.stage for turn in run.turns} == {0}


def test_a_stage_that_waits_for_another_is_in_its_bubble() -> None:
    """The first of two stages is slow, so that the second has nothing to do."""
    runs = run_on_ranks(2, note_slow_stage)
    slow, fast = split(runs)
    assert fast.bubble_ns is not None
    assert slow.bubble_ns is not None
    assert fast.bubble_ns > slow.bubble_ns


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        wide = torch.ones(700, 700)
        for _ in range(3):
            wide = wide @ wide / 700
        out: Tensor = self.linear(rows) * wide[0, 0]
        return out


def note_slow_stage() -> Run:
    step = PipelineStep("1F1B")
    if step.rank == 0:
        step.schedule._stage.submod = Slow()
    return run_noted(step)


JOBS = {
    "none": {("all-reduce", "dp_replicate")},
    "ddp": {("all-reduce", "dp_replicate")},
    "zero1": {("all-reduce", "dp_replicate"), ("broadcast", "dp_replicate")},
    "full": {("all-gather", "dp_shard"), ("reduce-scatter", "dp_shard")},
    "tp2": {("all-reduce", "tp")},
    "tp2+sp": {("all-gather", "tp"), ("reduce-scatter", "tp"), ("all-reduce", "tp")},
    "pp2:zbv": {("send", "pp"), ("receive", "pp")},
    "ep2": {("all-to-all", "ep"), ("all-reduce", "dp_replicate")},
    # Its embedding is the head of the last stage, too.
    "pp2": {("send", "pp"), ("receive", "pp"), ("all-reduce", "pp")},
}
MIXTURE = "decoder:hidden_size=32:layers=2:heads=4:vocabulary=100:experts=4:active_experts=2"
MODEL = "gpt:hidden_size=32:layers=4:heads=4:vocabulary=100:positions=16"


def note_job(variant: str) -> tuple[Run, list[str]]:
    torch.manual_seed(0)
    model, split = MIXTURE if "ep" in variant else MODEL, Parallelism(data=2)
    job = TrainingJob(model, 16, grad_accum=2, precision="fp32", parallelism=split)
    workload = make_workload(parse_variant(job, variant), "cpu")
    run_once(workload)
    journal = workload.journal
    assert journal is not None
    assert workload.reset is not None
    workload.reset()
    journal.clear()
    marks = mark_run(workload, journal.clock)
    return resolve(journal.clock, marks[0], marks, journal.read()), list(workload.phases)


def note_jobs() -> list[tuple[Run, list[str]]]:
    return [note_job(variant) for variant in JOBS]


def test_of_every_job_it_is_known_what_its_ranks_did() -> None:
    first, second = run_on_ranks(2, note_jobs)
    for (variant, exchanges), *noted in zip(JOBS.items(), first, second, strict=True):
        runs, phases = [run for run, _ in noted], noted[0][1]
        found = {(s.exchange.kind, s.exchange.dimension) for s in runs[0].stops or ()}
        assert found == exchanges, variant
        began_ns, ended_ns = min(r.began_ns for r in runs), max(r.ended_ns[-1] for r in runs)
        for run, share, lane in zip(runs, split(runs), make_timeline(runs, phases), strict=True):
            assert share.waiting_ns is not None
            assert share.transfer_ns is not None
            assert (share.bubble_ns is not None) == ("pp2" in variant)
            lost_ns = share.waiting_ns + share.transfer_ns + (share.bubble_ns or 0.0)
            assert 0 < lost_ns < ended_ns - began_ns
            assert max(lane.end_ns) <= ended_ns - began_ns + 1
            assert "optimizer" in lane.kind
            assert len(run.turns) == (0 if "pp2" not in variant else 24 if "zbv" in variant else 8)
