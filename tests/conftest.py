"""Shared pieces: a clock that only moves when told, and workloads that tell it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from flopwatch.records.record import Record
from flopwatch.runner.local_launcher import Launcher, Worker
from flopwatch.runner.worker_processes import Server
from flopwatch.suites.workload import Workload
from flopwatch.worker.rank_times import Share
from tests.warm_servers import ServerPool

# How long an example takes says something about the machine, and the same examples every time mean
# that who changed nothing breaks nothing.
settings.register_profile(
    "flopwatch", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("flopwatch")

# A shell has what it starts in the background ignore Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

JOB_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "FLOPWATCH_PORT",
    "FLOPWATCH_SECRET",
)


class FakeClock:
    """Time that passes only when a fake workload spends it."""

    name = "fake"
    resolution_ns = 10.0
    drain = None

    def __init__(self) -> None:
        self.now_ns = 0.0
        self.clock = self  # it is a target too
        self.evictions: list[float] = []

    def evict(self) -> None:
        self.evictions.append(self.now_ns)

    def take_shares(self, calls: int) -> list[Share]:
        return []

    def spend(self, ns: float) -> None:
        self.now_ns += ns

    def mark(self) -> float:
        return self.now_ns

    def elapsed_ns(self, marks: Sequence[float]) -> list[float]:
        return [end - start for start, end in zip(marks, marks[1:], strict=False)]

    def now_s(self) -> float:
        return self.now_ns / 1e9

    def workload(self, *times_ns: float | Callable[[], float]) -> Workload:
        """A workload with a phase for each time; a callable gives a new time every call."""

        def phase(time_ns: float | Callable[[], float]) -> Callable[..., None]:
            return lambda *_: self.spend(time_ns() if callable(time_ns) else time_ns)

        return Workload(phases={f"phase{i}": phase(t) for i, t in enumerate(times_ns)})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def uncollected(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fake clock a second passes at once, and garbage would be collected in every round: for
    a tenth of a real second each time, in a process with torch."""
    if "garbage" not in request.node.name:
        monkeypatch.setattr("flopwatch.worker.limits.gc.collect", lambda: 0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So small matmuls only wait for further ones: for minutes, where all cores are busy."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hung workers have more time to say where they are: on a busy machine they need it."""
    request_stack = Worker.request_stack

    def wait(worker: Worker) -> None:
        request_stack(worker)
        time.sleep(2.0)

    monkeypatch.setattr(Worker, "request_stack", wait)


@pytest.fixture(scope="session")
def server_pool() -> Iterator[ServerPool]:
    pool = ServerPool()
    yield pool
    pool.close()


@pytest.fixture(autouse=True)
def warm_server(
    request: pytest.FixtureRequest, server_pool: ServerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are forked from servers that earlier tests have left: none imports torch anew. Not
    where the server itself is tested."""

    def start(launcher: Launcher) -> Server:
        return server_pool.take(launcher._environment, launcher._preload)

    if request.node.get_closest_marker("own_server") is None:
        monkeypatch.setattr(Launcher, "_start_server", start)


@pytest.fixture(autouse=True)
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that a scheduler has started are no ranks of a job, and users' settings not theirs."""
    scheduled = [name for name in os.environ if name.startswith("SLURM")]
    for name in (*JOB_VARIABLES, *scheduled, "FLOPWATCH_PEAKS", "FLOPWATCH_CALIBRATION", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests must not read or write the user's own cache; they share one, since probing is slow."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def make_record(**changes: object) -> Record:
    """A small complete record."""
    content: dict[str, object] = {
        "case_id": "i",
        "group_id": "g",
        "run_id": "r",
        "suite": "demo",
        "variant": "a",
        "baseline": "a",
        "params": {"size": 4},
        "status": "ok",
        "samples_ns": {"call": [100.0] * 20},
        "rounds": list(range(20)),
        "calls_per_sample": [1] * 20,
        "steady": True,
        "stop_reason": "precise",
        "measured_at": "2026-01-01T00:00:00+00:00",
    }
    return Record(**{**content, **changes})  # type: ignore[arg-type]
