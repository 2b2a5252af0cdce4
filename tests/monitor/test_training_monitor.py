"""A monitor in real, tiny trainings: what it sees, what it costs nobody, and how it ends."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset

import flopwatch
from flopwatch import Monitor
from flopwatch.analysis.summary import make_row
from flopwatch.devices.cpu import CpuClock
from flopwatch.devices.measured_peaks import Curve, Matmul, Peaks, append, read_setup
from flopwatch.errors import UsageError
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.device_mesh import JobMesh
from flopwatch.models.model_making import make_model as make_job_model
from flopwatch.models.parallelize import share
from flopwatch.models.training_loop import Loop
from flopwatch.monitor import run_recorder, training_monitor
from flopwatch.records.store import read
from flopwatch.worker.rank_times import Journal
from tests.monitor.loops import (
    BATCH,
    LENGTH,
    TOKENS,
    WEIGHTS,
    Ear,
    draw,
    find_loss,
    find_monitored,
    find_rank,
    make_model,
    read_run,
    train,
    train_alone,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "run.jsonl"


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = list(gc.callbacks)
    yield
    assert gc.callbacks == before
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks
    assert not training_monitor._live


def list_hooks(model: nn.Module) -> list[Any]:
    return [*model._forward_pre_hooks.values(), *model._forward_hooks.values()]


def test_a_loop_is_one_record(path: Path) -> None:
    model = make_model()
    with Monitor(model, tokens_per_step=TOKENS, out=path, live=False, name="tiny") as monitor:
        losses = train(monitor, model)
        with monitor.pause("checkpoint"):
            pass
        monitor.tick()
    assert not list_hooks(model)
    assert not monitor.is_active

    record = read_run(path)
    monitored, steps = find_monitored(record), find_rank(record)
    assert (record.suite, record.variant, record.status) == ("monitor", "tiny", "ok")
    assert record.rounds == list(range(7))
    assert record.params["ranks"] == 1
    assert record.facts["tokens"] == TOKENS
    assert monitored.end == "closed"
    assert monitored.clock == "perf_counter"
    assert set(steps.parts_ns) == {"data", "forward", "loss", "backward", "optimizer"}
    whole = range(6)
    for number in whole:
        times = [steps.parts_ns[part][number] for part in steps.parts_ns]
        assert all(time_ns is not None and time_ns >= 0 for time_ns in times)
        assert sum(time_ns or 0 for time_ns in times) <= steps.time_ns[number]
    assert steps.parts_ns["forward"][6] is None
    assert steps.micro_batches == [1] * 6 + [0]
    assert steps.begin_ns == sorted(steps.begin_ns)
    (pause,) = [event for event in steps.events if event.kind == "pause"]
    assert pause.name == "checkpoint"
    flops = monitored.flops
    assert flops is not None
    assert (flops.source, flops.convention, flops.unit) == ("module", "counted", "token")
    # Three passes over each weight, but for the first layer's input, which is an embedding's
    # output and has a gradient, too.
    assert flops.model == 6 * WEIGHTS == flops.hardware
    assert record.flops == {"step": {"float32": 6 * WEIGHTS * TOKENS}}
    assert losses == train_alone()


def test_ticks_are_enough(path: Path) -> None:
    monitor = Monitor(out=path, live=False, flops_per_token=100.0)
    for tokens in (10, 0, torch.tensor(12)):
        monitor.tick(tokens=tokens, padded_tokens=16)
    monitor.close()
    monitor.close()

    record = read_run(path)
    steps = find_rank(record)
    assert steps.tokens == [10, 0, 12]
    assert steps.padded_tokens == [16] * 3
    assert steps.parts_ns == {}
    assert record.facts["tokens"] == pytest.approx(22 / 3)
    flops = find_monitored(record).flops
    assert flops is not None
    assert (flops.source, flops.model, flops.hardware) == ("number", 100.0, None)


def test_trackers_are_told_of_useful_tokens_and_mfu(path: Path, tmp_path: Path) -> None:
    path_of_peaks = tmp_path / "peaks.jsonl"
    os.environ["FLOPWATCH_PEAKS"] = str(path_of_peaks)
    try:
        with Monitor(out=path, live=False, flops_per_token=1.0) as monitor:
            monitor.tick()
        record = read_run(path)
        matmul = Matmul(rows=1, inner=1, columns=1, flops_per_s=1e6, blocks=1, repeats=1)
        curve = Curve(dtype="float32", measured_at="2026-01-01", points=[matmul])
        peaks = Peaks(
            setup=read_setup(record.environment, record.settings),
            measured_at="2026-01-01",
            quick=True,
            matmuls=[curve],
            streams=[],
            cache_bytes=1,
        )
        append(path_of_peaks, [peaks])
        ear, late = Ear(), Ear()
        with Monitor(
            out=path, live=False, flops_per_token=50.0, dtype="fp32", trackers=[ear]
        ) as monitor:
            monitor.tick(tokens=8, padded_tokens=16)
            monitor.add_tracker(late)
            monitor.tick(tokens=4)
            monitor.close()
            assert monitor.latest == ear.told[-1]
    finally:
        del os.environ["FLOPWATCH_PEAKS"]

    (run,) = ear.runs
    assert run.peak_flops_per_s == 1e6
    assert run.missing is None
    assert run.flops is not None
    assert run.out == path
    first, second = ear.told
    assert (first.number, second.number) == (0, 1)
    assert (first.tokens, first.padded_tokens, second.padded_tokens) == (8, 16, 4)
    assert first.tokens_per_s == pytest.approx(8 / first.time_s)
    assert first.mfu == pytest.approx(50 * 8 / first.time_s / 1e6)
    assert first.hfu is None
    assert first.is_first
    assert first.peak_memory_bytes is not None
    assert ear.ends == late.ends == ["closed"]
    assert late.told == ear.told


def test_a_tracker_that_raises_is_left_out(path: Path) -> None:
    class Broken(Ear):
        def steps(self, steps: object) -> None:
            raise RuntimeError("no network")

    ear = Ear()
    monitor = Monitor(out=path, live=False, trackers=[Broken(), ear])
    monitor.tick()
    with pytest.warns(RuntimeWarning, match="Broken is left out from now on .*no network"):
        monitor.close()
    assert len(ear.told) == 1
    assert read_run(path).rounds == [0]


def test_suite_and_monitor_find_the_same_mfu(path: Path, tmp_path: Path) -> None:
    """The same steps of the suite `training`, timed by both."""
    job = TrainingJob(
        "decoder:hidden_size=64:layers=2:vocabulary=500", 32, micro_batch=2, precision="fp32"
    )
    model, clock = make_job_model(job), CpuClock()
    mesh = JobMesh(job.parallelism, "cpu")
    journal = Journal(clock)
    loop = Loop(job, "cpu", [model], [share(model, job, "cpu", journal)], mesh, journal)
    monitor = Monitor(model, job=job, tokens_per_step=job.tokens_per_step, out=path, live=False)
    suite_ns = []
    for _ in range(8):
        with monitor.pause("drawing sequences"):
            loop.prepare()
        marks = [clock.mark()]
        for phase in loop.phases.values():
            phase()
            marks.append(clock.mark())
        monitor.tick()
        suite_ns.append(sum(clock.elapsed_ns(marks)))
    monitor.close()

    record = read_run(path)
    flops = find_monitored(record).flops
    assert flops is not None
    assert (flops.source, flops.convention) == ("job", "exact")
    row = make_row(record, None)
    assert row.utilisation is not None
    assert row.utilisation.model_flops_per_token == flops.model
    assert row.tokens_per_s is not None
    # The monitor's step is a little longer: it ends after the suite's last mark.
    for monitor_ns, ns in zip(record.samples_ns["step"], suite_ns, strict=True):
        assert 0 <= monitor_ns - ns < 0.02 * ns + 1e6


def test_accumulated_gradients_are_micro_batches_of_one_step(path: Path) -> None:
    model = make_model()
    with Monitor(model, out=path, live=False) as monitor:
        train(monitor, model, 2, micro_batches=3)
    assert find_rank(read_run(path)).micro_batches == [3, 3]


def test_collections_of_garbage_are_events(path: Path) -> None:
    model = make_model()
    with Monitor(model, out=path, live=False) as monitor:
        train(monitor, model, 3, inside=lambda step: gc.collect() if step == 1 else None)
    steps = find_rank(read_run(path))
    found = [event for event in steps.events if event.kind == "gc"]
    begin_ns, end_ns = steps.begin_ns[1], steps.begin_ns[2]
    assert any(begin_ns <= e.begin_ns < end_ns and e.name == "generation 2" for e in found)


def test_models_that_alternate(path: Path) -> None:
    generator, critic = make_model(), make_model()
    with Monitor([generator, critic], out=path, live=False) as monitor:
        train(monitor, generator, 2)
        train(monitor, critic, 2)
        assert len(list_hooks(generator)) == len(list_hooks(critic)) == 2
    record = read_run(path)
    assert record.variant == "Sequential+Sequential"
    assert find_rank(record).parts_ns["optimizer"].count(None) == 0
    assert "several models" in (find_monitored(record).flops_missing or "")


def test_optimizers_of_other_models_are_not_ours(path: Path) -> None:
    model, other = make_model(), make_model()
    with Monitor(model, out=path, live=False) as monitor:
        train(monitor, other, 2)
    assert set(find_rank(read_run(path)).parts_ns) == {"data"}


def test_two_monitors_on_one_file_are_two_runs(path: Path) -> None:
    first, second = (Monitor(out=path, live=False, name="a") for _ in range(2))
    for monitor in (first, second, first):
        monitor.tick()
    second.close()
    first.close()
    records = read(path).records
    assert sorted(len(record.rounds) for record in records) == [1, 2]
    assert len({record.case_id for record in records}) == 1
    assert len({record.run_id for record in records}) == 2


def test_a_restart_goes_on_at_its_step(path: Path) -> None:
    with Monitor(out=path, live=False, first_step=100) as monitor:
        monitor.tick()
        monitor.tick()
    assert read_run(path).rounds == [100, 101]


def test_an_exception_of_the_training_is_its_own(path: Path) -> None:
    model = make_model()
    with pytest.raises(ZeroDivisionError), Monitor(model, out=path, live=False) as monitor:
        train(monitor, model, 3, inside=lambda step: 1 / (1 - step))
    record = read_run(path)
    assert find_monitored(record).end == "exception"
    assert record.rounds == [0]


def test_a_step_that_failed_is_a_part_of_the_next(path: Path) -> None:
    monitor = Monitor(out=path, live=False)
    with pytest.raises(MemoryError), monitor.step():
        raise MemoryError
    with monitor.step():
        pass
    monitor.close()
    assert read_run(path).rounds == [0]


def test_steps_inside_of_steps_are_ignored_with_one_warning(path: Path) -> None:
    monitor = Monitor(out=path, live=False)

    def overlap() -> None:
        for _ in range(2):
            with monitor.step():
                with monitor.step():
                    pass
                monitor.tick()

    with pytest.warns(RuntimeWarning) as said:
        overlap()
    monitor.close()
    assert read_run(path).rounds == [0, 1]
    assert len(said) == 2
    assert "the inner one is ignored" in str(said[0].message)
    assert "tick() inside of step() is ignored" in str(said[1].message)


def test_a_loop_that_never_steps_is_told_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_monitor, "MOST_MARKS", 20)
    model = make_model()
    monitor = Monitor(model, out=path, live=False)

    def loop() -> None:
        for ids in draw(30):
            find_loss(model, ids).backward()

    with pytest.warns(RuntimeWarning, match=r"no step has ended so far.*monitor\.tick\(\)"):
        loop()
    assert len(monitor._step.marks) <= 21
    with pytest.warns(RuntimeWarning, match="no step was recorded"):
        monitor.close()
    assert read_run(path).status == "skipped"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"tokens_per_step": 0}, "tokens_per_step is 0"),
        ({"flops_per_token": float("nan")}, "flops_per_token is nan"),
        ({"convention": "mine"}, "there is no convention 'mine'"),
        ({"model": "llama"}, "model is of type str"),
        ({"job": "7b"}, "job is of type str"),
        ({"first_step": -1}, "first_step is -1"),
        ({"dtype": "bf17"}, "dtype is 'bf17'; choose one of"),
        ({"data_parallel": 0}, "data_parallel is 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    arguments: dict[str, Any], why: str, path: Path
) -> None:
    with pytest.raises(UsageError, match=why):
        Monitor(out=path, **arguments)
    assert not path.exists()


def test_other_peoples_files_are_left_alone(tmp_path: Path) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear reader\n")
    with pytest.warns(RuntimeWarning, match="nothing is stored any more: .*letter.txt"):
        monitor = Monitor(out=letter, live=False)
    ear = Ear()
    monitor.add_tracker(ear)
    monitor.tick()
    monitor.close()
    assert letter.read_text() == "Dear reader\n"
    assert len(ear.told) == 1


def test_a_full_disk_loses_nothing_that_fits_later(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_recorder, "FLUSH_S", 1e6)
    write = os.write

    def refuse(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monitor = Monitor(out=path, live=False)
    monkeypatch.setattr("flopwatch.records.store.os.write", refuse)
    monitor.tick()
    with pytest.warns(RuntimeWarning, match="the disk is full; steps are kept in memory"):
        monitor._recorder._flush()
    monkeypatch.setattr("flopwatch.records.store.os.write", write)
    monitor.tick()
    monitor.close()
    assert read_run(path).rounds == [0, 1]


def test_what_fails_disables_the_monitor_and_not_the_training(path: Path) -> None:
    model = make_model()
    monitor = Monitor(model, out=path, live=False)

    class Clock:
        name = "broken"

        def can_mark(self) -> bool:
            raise RuntimeError("device lost")

    def fail(step: int) -> None:
        if step == 2:
            monitor._clock = Clock()  # type: ignore[assignment]

    with pytest.warns(RuntimeWarning, match="disabled itself.*device lost") as said:
        losses = train(monitor, model, inside=fail)
    assert len(said) == 1
    assert losses == train_alone()
    assert not list_hooks(model)
    monitor.close()
    record = read_run(path)
    assert record.rounds == [0, 1]
    assert find_monitored(record).end == "disabled"


def test_warnings_that_are_errors_do_not_reach_the_training(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor = Monitor(out=tmp_path, live=False)  # a folder
        with monitor.step(), monitor.step():
            pass
        monitor.close()


def test_copies_of_the_model_are_not_watched(path: Path) -> None:
    model = make_model()
    monitor = Monitor(model, out=path, live=False)
    average = copy.deepcopy(model)
    average(draw(1)[0]).sum().backward()
    stored = pickle.dumps(model)
    torch.save(model, io.BytesIO())
    assert b"flopwatch" not in stored
    pickle.loads(stored)(draw(1)[0])
    assert monitor._step.marks == []
    monitor.tick()
    monitor.close()


def test_evaluation_inside_of_a_step_asks_for_no_gradients(path: Path) -> None:
    model = make_model()

    def evaluate(step: int) -> None:
        with torch.no_grad():
            model(draw(1)[0])

    with Monitor(model, out=path, live=False) as monitor:
        train(monitor, model, 2, inside=evaluate)
    assert find_rank(read_run(path)).micro_batches == [1, 1]


def test_a_clock_that_jumps_changes_no_step(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor(out=path, live=False)
    monitor.tick()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monitor.tick()
    monitor.close()
    record = read_run(path)
    assert all(ns > 0 for ns in record.samples_ns["step"])
    assert find_rank(record).zero_unix_s == find_monitored(record).started_unix_s > 1e9


def test_a_model_on_meta_can_be_watched(path: Path) -> None:
    model = make_model().to("meta")
    with Monitor(model, out=path, live=False) as monitor:
        for ids in draw(2):
            find_loss(model, ids.to("meta")).backward()
            monitor.tick()
    record = read_run(path)
    assert record.rounds == [0, 1]
    flops = find_monitored(record).flops
    assert flops is not None
    assert flops.model == 6 * WEIGHTS


class WatchedSet(Dataset[bool]):
    monitor: Monitor

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> bool:
        self.monitor.tick()  # must not count, or write
        self.monitor.close()
        return self.monitor.is_active


def test_workers_of_a_loader_have_no_part_in_the_run(path: Path) -> None:
    data = WatchedSet()
    data.monitor = Monitor(out=path, live=False)
    loader = DataLoader(data, batch_size=1, num_workers=1, multiprocessing_context="fork")
    watched = data.monitor.data(loader)
    assert len(watched) == 2
    assert watched.batch_size == 1
    for active in watched:
        assert not active.item()
        data.monitor.tick()
    data.monitor.close()
    record = read_run(path)
    assert record.rounds == [0, 1]
    assert find_rank(record).parts_ns["data"][0] is not None


class Whole(nn.Module):
    """Of one's own: torch compiles no class of its own in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()

    def forward(self, ids: torch.Tensor) -> Any:
        return self.inner(ids)


@pytest.mark.parametrize("way", ["wrapped", "in place", "before"])
def test_compiled_models_stay_one_graph(way: str, path: Path) -> None:
    graphs = []

    def backend(graph: Any, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    options: dict[str, Any] = {"backend": backend, "fullgraph": True}
    model = Whole()
    if way == "wrapped":
        watched: Any = torch.compile(model, **options)
        monitor = Monitor(watched, out=path, live=False)
    elif way == "in place":
        model.compile(**options)
        monitor, watched = Monitor(model, out=path, live=False), model
    else:
        monitor = Monitor(model, out=path, live=False)
        watched = torch.compile(model, **options)
    with monitor:
        losses = train(monitor, watched)

    assert len(graphs) == 1
    assert losses == pytest.approx(train_alone())
    steps = find_rank(read_run(path))
    expected = {"data", "optimizer"} if way == "before" else {"forward", "loss", "backward"}
    assert expected <= set(steps.parts_ns)
    if way == "in place":
        find_loss(model, draw(1)[0])
        assert len(graphs) == 1


def test_it_is_a_part_of_the_package() -> None:
    assert flopwatch.Monitor is Monitor
    assert BATCH * LENGTH == TOKENS
