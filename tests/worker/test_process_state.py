"""What a request may leave in its process, so that no other should follow."""

from __future__ import annotations

import resource
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from flopwatch.worker.process_state import read_state, restore

DATA = resource.RLIMIT_DATA


@pytest.fixture(autouse=True)
def state() -> Iterator[None]:
    precision, data_limits = torch.get_float32_matmul_precision(), resource.getrlimit(DATA)
    yield
    torch.set_float32_matmul_precision(precision)
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.backends.cuda.matmul.fp32_precision = "none"
    resource.setrlimit(DATA, data_limits)


def test_a_process_that_nothing_has_changed_is_as_before() -> None:
    before, data_limits = read_state(), resource.getrlimit(DATA)
    resource.setrlimit(DATA, (10**12, data_limits[1]))
    torch.ones(8).sum()
    assert restore(before, data_limits)
    assert resource.getrlimit(DATA) == data_limits


def round_float32() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_float32_matmul_precision("medium"),
        round_float32,
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)),
    ],
)
def test_what_changes_later_measurements_is_noticed(change: Callable[[], object]) -> None:
    before = read_state()
    change()
    assert not restore(before, resource.getrlimit(DATA))


def test_variables_and_the_folder_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    before = read_state()
    monkeypatch.setenv("RANK", "1")  # set for each job
    assert read_state() == before
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert read_state() != before
    monkeypatch.undo()
    monkeypatch.chdir(str(tmp_path))
    assert read_state() != before


def test_threads_and_processes_must_have_ended() -> None:
    before, data_limits = read_state(), resource.getrlimit(DATA)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert not restore(before, data_limits)
    done.set()
    thread.join()
    assert restore(before, data_limits)
    with subprocess.Popen(["sleep", "1000"]) as process:
        assert not restore(before, data_limits)
        process.kill()
    assert restore(before, data_limits)
