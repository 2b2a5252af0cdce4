"""What arrives in trackers is what the record says, read back from their own files."""

from __future__ import annotations

import io
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from torch import nn

import flopwatch
from flopwatch.errors import UsageError
from flopwatch.monitor.base import RunFacts, StepFacts
from flopwatch.monitor.live_steps import LOG_EVERY_S, LiveSteps
from flopwatch.monitor.prometheus_endpoint import Prometheus
from flopwatch.monitor.step_metrics import list_metrics
from flopwatch.monitor.trackers import TRACKERS, open_trackers
from flopwatch.output.live_line import TerminalLine
from flopwatch.records.monitored import End, RankSteps

from .loops import Ear, draw, find_loss, find_monitored, find_rank, make_model, read_run
from .tracker_files import (
    read_mlflow,
    read_prometheus,
    read_tensorboard,
    read_trackio,
    read_wandb,
)

STEPS, TOKENS, PADDED = 12, 24, 32


class ReadAtTheEnd(Prometheus):
    """Which closes its door when the training ends."""

    def close(self, end: End) -> None:
        self.samples = read_prometheus(self.port)
        super().close(end)


def train(monitor: flopwatch.Monitor, model: nn.Module, steps: int = STEPS) -> None:
    """With padding, and checkpoints."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(monitor.data(draw(steps))):
        with monitor.step(tokens=TOKENS, padded_tokens=PADDED):
            find_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        if number % 5 == 4:
            with monitor.pause("checkpoint"):
                torch.save(model.state_dict(), io.BytesIO())


@dataclass(frozen=True)
class Run:
    folder: Path
    record: RankSteps
    ear: Ear
    facts: RunFacts
    samples: dict[str, float]
    """Of Prometheus."""

    def expected(self) -> dict[str, dict[int, float]]:
        """By metric and step, from the record."""
        told = {
            "flopwatch/step_time_s": self.record.time_ns,
            **{f"flopwatch/{part}_s": times for part, times in self.record.parts_ns.items()},
        }
        return {
            name: {
                step: time_ns / 1e9
                for step, time_ns in zip(self.record.steps, times, strict=True)
                if time_ns is not None
            }
            for name, times in told.items()
        }


def read_rank(out: Path) -> RankSteps:
    return find_rank(read_run(out))


@pytest.fixture(scope="module")
def run(kept: Path) -> Run:
    """One short training that all trackers follow."""
    out = kept / "run.jsonl"
    prometheus, ear = ReadAtTheEnd(0), Ear()
    trackers = [
        ear, f"tensorboard:{kept / 'tensorboard'}", "wandb:tiny", "mlflow:tiny", "trackio:tiny",
        prometheus,
    ]  # fmt: skip
    model = make_model()
    with flopwatch.Monitor(model, out=out, name="tiny", live=False, trackers=trackers) as monitor:
        train(monitor, model)
    return Run(
        folder=kept,
        record=read_rank(out),
        ear=ear,
        facts=ear.runs[0],
        samples=prometheus.samples,
    )


def assert_same(
    found: dict[str, dict[int, float]], expected: dict[str, dict[int, float]], relative: float
) -> None:
    for name, points in expected.items():
        assert found[name] == pytest.approx(points, rel=relative), name
    assert set(found["flopwatch/tokens"].values()) == {TOKENS}
    assert set(found["flopwatch/padded_tokens"].values()) == {PADDED}


def test_the_record_has_all_steps(run: Run) -> None:
    assert run.record.steps == list(range(STEPS))
    assert [step.number for step in run.ear.told] == run.record.steps
    assert run.ear.ends == ["closed"]
    assert {"data", "forward", "backward", "optimizer"} <= set(run.record.parts_ns)


def test_tensorboard_has_what_the_record_says(run: Run) -> None:
    found = read_tensorboard(run.folder / "tensorboard")

    assert_same(found, run.expected(), relative=1e-6)  # it keeps 32 bits


def test_wandb_has_what_the_record_says(run: Run) -> None:
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    history, config = read_wandb(file)
    found: dict[str, dict[int, float]] = {}
    for row in history:
        for name, value in row.items():
            found.setdefault(name, {})[int(row["flopwatch/step"])] = value

    assert_same(found, run.expected(), relative=1e-9)
    assert config["flopwatch"]["run_id"] == run.facts.run_id  # type: ignore[index]


def test_mlflow_has_what_the_record_says(run: Run) -> None:
    found, tags = read_mlflow("tiny")

    assert_same(found, run.expected(), relative=1e-9)
    assert tags["flopwatch.run_id"] == run.facts.run_id


def test_trackio_has_what_the_record_says(run: Run) -> None:
    found, name = read_trackio("tiny")

    assert_same(found, run.expected(), relative=1e-9)
    assert name == f"tiny-{run.facts.run_id}"


def test_prometheus_serves_what_the_record_says(run: Run) -> None:
    samples = run.samples
    expected = run.expected()
    pauses = [event for event in run.record.events if event.kind == "pause"]

    assert samples["flopwatch_steps_total"] == STEPS
    assert samples["flopwatch_tokens_total"] == STEPS * TOKENS
    assert samples["flopwatch_step"] == STEPS - 1
    for name, points in expected.items():
        part = name.removeprefix("flopwatch/").removesuffix("_s")
        sample = {"step_time": "flopwatch_step_seconds_total"}.get(
            part, f"flopwatch_part_seconds_total{{part={part}}}"
        )
        assert samples[sample] == pytest.approx(sum(points.values())), name
    paused_s = sum(event.duration_ns for event in pauses) / 1e9
    assert len(pauses) == 2
    assert samples["flopwatch_pause_seconds_total{name=checkpoint}"] == pytest.approx(paused_s)


def test_a_port_in_use_is_a_warning_and_the_rest_goes_on(tmp_path: Path) -> None:
    out, model, ear = tmp_path / "run.jsonl", make_model(), Ear()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monitor = flopwatch.Monitor(model, out=out, live=False, trackers=[Prometheus(port), ear])
        with pytest.warns(RuntimeWarning, match=f"127.0.0.1:{port}") as caught:  # noqa: PT031
            train(monitor, model)
            monitor.close()

    assert len(caught) == 1
    assert read_rank(out).steps == [step.number for step in ear.told] == list(range(STEPS))


def test_a_monitor_that_is_closed_while_it_stores_steps_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, ear = tmp_path / "run.jsonl", Ear()
    monitor = flopwatch.Monitor(out=out, live=False, trackers=[ear])
    recorder, is_storing, is_closed = monitor._recorder, Event(), Event()
    look = recorder._look_for_flops

    def look_slowly(steps: Any, is_last: bool) -> None:
        is_storing.set()
        assert is_closed.wait(60)
        look(steps, is_last)

    monkeypatch.setattr(recorder, "_look_for_flops", look_slowly)
    monitor.tick()
    assert is_storing.wait(60)
    monitor.tick()
    recorder.stop("closed")
    is_closed.set()
    monitor.close()

    record = read_run(out)
    assert find_rank(record).steps == [step.number for step in ear.told] == [0, 1]
    assert find_monitored(record).end == "closed"


def test_a_run_of_ones_own_is_used_and_left_open(kept: Path, tmp_path: Path) -> None:
    """In all three that know of open runs; rows that are numbered by hand stay as they are."""
    import mlflow
    import trackio
    import wandb

    mlflow.set_experiment("mine")
    model = make_model()
    with mlflow.start_run(), wandb.init(project="mine", dir=tmp_path) as wandb_run:
        trackio_run = trackio.init(project="mine", name="by hand")
        out = tmp_path / "run.jsonl"
        trackers = ["wandb", "mlflow", "trackio"]
        with flopwatch.Monitor(model, out=out, live=False, trackers=trackers) as monitor:
            train(monitor, model)
        wandb_run.log({"loss": 1.0}, step=3)
        wandb_run.log({"loss": 0.5}, step=4)
        mlflow.log_metric("loss", 1.0)
        trackio_run.log({"loss": 1.0}, step=STEPS)
        trackio.finish()

    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history, _ = read_wandb(file)
    assert [row["loss"] for row in history if "loss" in row] == [1.0, 0.5]
    assert [row["flopwatch/step"] for row in history if "flopwatch/step" in row] == [STEPS - 1]
    points, _ = read_mlflow("mine")
    assert set(points["flopwatch/step_time_s"]) == set(range(STEPS))
    assert points["loss"] == {0: 1.0}
    found, name = read_trackio("mine")
    assert name == "by hand"
    assert set(found["flopwatch/step_time_s"]) == set(range(STEPS))
    assert found["loss"] == {STEPS: 1.0}


def fail(sentence: str) -> None:
    raise AssertionError(sentence)


def make_step(**changed: Any) -> StepFacts:
    step = StepFacts(
        number=1239,
        ended_unix_s=1.8e9,
        time_s=0.2,
        parts_s={"data": 0.01, "forward": 0.05, "backward": 0.1, "loss": None},
        other_s=0.04,
        paused_s=0.0,
        is_first=False,
        tokens=8192,
        padded_tokens=8192,
        tokens_per_s=40960.0,
        mfu=0.412,
        hfu=0.412,
        memory_bytes=None,
        peak_memory_bytes=None,
        energy_j=None,
    )
    return replace(step, **changed)


def make_run(**changed: Any) -> RunFacts:
    run = RunFacts(
        run_id="1",
        name="tiny",
        out=Path("results/run.jsonl"),
        started_unix_s=1.8e9,
        rank=0,
        world_size=1,
        data_parallel=1,
        device="cpu",
        device_name=None,
        devices=1,
        parameters=None,
        trainable_parameters=None,
        tokens_per_step=None,
        flops=None,
        peak_flops_per_s=None,
        peak_source=None,
        missing=None,
    )
    return replace(run, **changed)


def test_what_is_not_known_is_left_out() -> None:
    metrics = list_metrics(make_step(mfu=None))

    assert metrics["flopwatch/data_s"] == 0.01
    assert not {"flopwatch/mfu", "flopwatch/loss_s", "flopwatch/energy_j"} & set(metrics)


def test_trackers_are_named(tmp_path: Path) -> None:
    ear = Ear()
    wanted = ["wandb", f"tensorboard:{tmp_path}", "prometheus:9400", ear]
    named = open_trackers(wanted, fail)

    assert [type(tracker) for tracker in named] == [
        *(TRACKERS[name] for name in ("wandb", "tensorboard", "prometheus")), Ear,
    ]  # fmt: skip
    assert isinstance(named[2], Prometheus)
    assert named[2].port == 9400


@pytest.mark.parametrize(
    ("name", "message"),
    [("comet:x", "no tracker 'comet'.*tensorboard, wandb"), ("prometheus:high", "PORT")],
)
def test_a_name_that_is_none_is_one_sentence(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        open_trackers([name], fail)


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_library_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopwatch.lazy.find_spec", lambda package: None)

    said: list[str] = []

    assert open_trackers([name], said.append) == []
    assert len(said) == 1
    assert re.fullmatch(
        rf"{name} is left out: this needs .*pip install 'flopwatch\[{name}\]'", said[0]
    )


def test_a_terminal_has_one_line_that_is_written_anew() -> None:
    terminal, log = io.StringIO(), io.StringIO()
    live = LiveSteps(line=TerminalLine(terminal), log=log)
    live.start(make_run())
    live.steps([make_step()])
    live.steps([make_step(number=1240), make_step(number=1241)])
    live.close("closed")

    shown = terminal.getvalue().split("\r\x1b[K")
    assert shown == [
        "",
        "step 1,239: 41.0k tokens/s, MFU 41.2 %, 200 ms a step (backward 50 %, forward 2",
        "step 1,241: 41.0k tokens/s, MFU 41.2 %, 200 ms a step (backward 50 %, forward 2",
        "",
    ]
    assert log.getvalue() == (
        "flopwatch: 3 steps: 41.0k tokens/s, MFU 41.2 %, 200 ms a step (backward 50 %, forward "
        "25 %, other 20 %, data 5 %); more: flopwatch show results/run.jsonl\n"
    )


def test_a_log_has_a_line_now_and_then() -> None:
    """And none of the first steps, in which a model is compiled."""
    log, now_s = io.StringIO(), 0.0
    live = LiveSteps(log=log, now_s=lambda: now_s)
    live.start(make_run(missing="the model cannot be counted"))
    live.steps([make_step(number=0, is_first=True, mfu=None)])
    for number in (1, 2, 3):
        live.steps([make_step(number=number, mfu=None)])
        now_s += LOG_EVERY_S / 2
    live.close("closed")

    lines = log.getvalue().splitlines()
    assert [line.partition(": ")[2].partition(":")[0] for line in lines] == [
        "step 1",
        "step 3",
        "3 steps after the first 1",
    ]
    assert "no MFU: the model cannot be counted" in lines[-1]
