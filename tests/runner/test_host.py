"""Functions that need torch, called in a process of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from flopwatch.errors import SuiteError, UsageError
from flopwatch.runner import host, session
from flopwatch.runner.local_launcher import Launcher, Worker
from flopwatch.settings import Settings
from flopwatch.worker.called_functions import FUNCTIONS, find_function
from flopwatch.worker.messages import Call

SETTINGS = Settings(threads=1)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(preload=("torch",), environment={}, fork=True) as made:
        yield made


def call(launcher: Launcher, function: str, **arguments: Any) -> Any:
    return host.call_function(launcher.start, function, arguments, SETTINGS)


def test_what_a_function_returns_comes_back_as_plain_data(launcher: Launcher) -> None:
    observed = call(launcher, "observe_precision", device="cpu")
    assert observed["device"] == "cpu"
    assert observed["sums"][0]["recipe"]["sum_dtype"] == "float32"


def test_our_own_errors_come_back_as_their_sentence(launcher: Launcher) -> None:
    arguments = {"job": {"model": "huge"}, "target": "cpu", "available_bytes": 1}
    with pytest.raises(UsageError, match="^this is no training job"):
        call(launcher, "find_capacity", **arguments, device="cpu")


@pytest.mark.parametrize("function", ["os:abort", "abort", "flopwatch.worker.profiler:profile"])
def test_a_function_that_is_not_registered_is_not_called(launcher: Launcher, function: str) -> None:
    with pytest.raises(UsageError, match=f"^there is no function '{function}' for workers to call"):
        call(launcher, function)


def test_all_registered_functions_are_there() -> None:
    assert all(callable(find_function(name)) for name in FUNCTIONS)


def test_a_death_is_an_error_and_survived(launcher: Launcher) -> None:
    def start(request: Call) -> Worker:
        worker = launcher.start(request)
        os.kill(worker.process.pid, signal.SIGABRT)
        return worker

    with pytest.raises(SuiteError, match="^measure_speed failed: died with SIGABRT during "):
        host.call_function(
            start, "measure_speed", {"dtypes": ["float32"], "device": "cpu"}, SETTINGS
        )
    with pytest.raises(SuiteError, match="^measure_speed failed: TypeError: "):
        call(launcher, "measure_speed", size=3)


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="^--device cuda, but torch finds no accelerator"):
        session.call("observe_precision", {}, device="cuda")
