"""Graphs of kernels: what is captured and replayed, on a fake of torch.cuda."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flopwatch.devices.base import GraphBackend, Phases, open_backend
from flopwatch.devices.cpu import CpuClock
from flopwatch.devices.cuda import RUNS_BEFORE_CAPTURE, CudaBackend
from flopwatch.errors import Unsupported
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models import step_workload
from flopwatch.worker.agreement import compare, gather
from flopwatch.worker.sampling import run_once

TINY = "gpt:hidden_size=32:layers=2:heads=4:vocabulary=101:positions=16"


class FakeStream:
    def wait_stream(self, other: FakeStream) -> None:
        assert other is not self


class FakeCuda:
    """What is called inside `graph` is kept, and called again by `replay`."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.pools: set[Any] = set()
        self.capturing: list[str] | None = None
        self.main, self.Stream = FakeStream(), FakeStream
        self.Event = SimpleNamespace
        outer = self

        class CUDAGraph:
            def __init__(self) -> None:
                self.work: list[str] = []

            def replay(self) -> None:
                outer.words += self.work

        self.CUDAGraph = CUDAGraph

    def current_stream(self) -> FakeStream:
        return self.main

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        yield

    def graph_pool_handle(self) -> object:
        return object()

    @contextmanager
    def graph(self, graph: Any, pool: object) -> Iterator[None]:
        self.pools.add(pool)
        self.capturing = graph.work
        yield
        self.capturing = None

    def launch(self, word: str) -> str:
        (self.words if self.capturing is None else self.capturing).append(word)
        return word


def test_every_phase_is_captured_once_and_replayed_by_one_call() -> None:
    cuda = FakeCuda()
    seen: list[str] = []

    def backward(loss: str) -> None:
        seen.append(loss)
        cuda.launch("gradients")

    phases: Phases = {"forward": lambda: cuda.launch("loss"), "backward": backward}
    backend = CudaBackend(SimpleNamespace(cuda=cuda))
    assert isinstance(backend, GraphBackend)
    graphs = backend.capture(lambda: cuda.launch("prepare"), phases)
    run = ["prepare", "loss", "gradients"]
    assert cuda.words == [*run * RUNS_BEFORE_CAPTURE, "prepare"]  # captured work does not run
    assert len(cuda.pools) == 1
    calls = len(seen)
    cuda.words.clear()
    assert graphs["forward"]() == "loss"
    assert graphs["backward"]("loss") is None
    assert cuda.words == ["loss", "gradients"]
    assert len(seen) == calls  # no Python


class StaticBackend:
    """What a graph does to tensors, on a CPU: a replay writes to those of the captured run."""

    def __init__(self, step: step_workload.TrainingStep) -> None:
        self._step = step

    def capture(self, prepare: Any, phases: Phases) -> Phases:
        assert all(group["capturable"] for group in self._step.optimizers[0].param_groups)
        prepare()
        loss = phases["forward"]()
        phases["backward"](loss)
        static = [p.grad for p in self._step.shared.model.parameters()]

        def replay_backward(_: Any) -> None:
            fresh = self._step.forward()
            grads = torch.autograd.grad(fresh, list(self._step.shared.model.parameters()))
            for tensor, new in zip(static, grads, strict=True):
                tensor.copy_(new)

        return {"forward": lambda: loss, "backward": replay_backward, "optimizer": lambda _: None}


def test_gradients_of_a_graph_stay_while_other_variants_clear_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = TrainingJob(TINY, 16, micro_batch=2, precision="fp32")
    torch.manual_seed(0)
    step = step_workload.TrainingStep(step_workload.share_model(job, "cpu"), job)
    monkeypatch.setattr(step_workload, "open_backend", lambda device: StaticBackend(step))
    graphed = step_workload.make_workload(parse_variant(job, "cuda-graph"), "cpu")
    eager = step_workload.make_workload(job, "cpu")
    assert graphed.instrument is None
    run_once(eager)
    for parameter in graphed.gradients.values():  # somebody else's
        parameter.grad = None
    expected = gather(eager, CpuClock()).values
    found = gather(graphed, CpuClock()).values
    assert len(found) == 1 + len(graphed.gradients)
    assert compare(found, expected, against="eager", tolerance=1e-6) is not None
    assert not any(group["capturable"] for group in step.shared.optimizer.param_groups)


@pytest.mark.parametrize("word", ["cuda-graph", "reduce-overhead"])
def test_a_device_without_graphs_refuses_them_in_one_sentence(word: str) -> None:
    assert not isinstance(open_backend("cpu"), GraphBackend)
    job = parse_variant(TrainingJob(TINY, 16, precision="fp32"), word)
    assert job.graphs
    assert job.compiled == (word == "reduce-overhead")
    with pytest.raises(Unsupported, match="are of CUDA, and the device is cpu; leave cuda-graph"):
        step_workload.make_workload(job, "cpu")


def test_an_optimizer_that_counts_on_the_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CudaBackend(SimpleNamespace(cuda=FakeCuda()))
    monkeypatch.setattr(step_workload, "open_backend", lambda device: backend)
    job = TrainingJob(TINY, 16, precision="fp32", optimizer="adamw-unfused")
    with pytest.raises(Unsupported, match="take the optimizer adamw or sgd"):
        step_workload.require_graphs(parse_variant(job, "cuda-graph"), "cuda")
