"""Functions that need torch, called in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flopwatch.errors import SuiteError, UsageError
from flopwatch.runner import session, worker_calls
from flopwatch.runner.local_launcher import Launcher
from flopwatch.settings import Settings

SETTINGS = Settings(threads=1)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(preload=("torch",), environment={}, fork=True) as made:
        yield made


def test_what_a_function_returns_comes_back_as_plain_data(launcher: Launcher) -> None:
    arguments = {"text": "small:layers=3"}
    shape = worker_calls.call(
        launcher.start, "flopwatch.jobs.model_shapes:find_shape", arguments, SETTINGS
    )
    assert (shape["layers"], shape["architecture"]) == (3, "decoder")


def test_our_own_errors_come_back_as_their_sentence(launcher: Launcher) -> None:
    with pytest.raises(UsageError, match="^there is no model 'huge'; choose one of small"):
        worker_calls.call(
            launcher.start, "flopwatch.jobs.model_shapes:find_shape", {"text": "huge"}, SETTINGS
        )


def test_a_death_is_told_and_survived(launcher: Launcher) -> None:
    with pytest.raises(SuiteError, match="^abort failed: died with SIGABRT"):
        worker_calls.call(launcher.start, "os:abort", {}, SETTINGS)
    with pytest.raises(SuiteError, match="^sqrt failed: TypeError: "):
        worker_calls.call(launcher.start, "math:sqrt", {}, SETTINGS)


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="torch finds no CUDA device here"):
        session.call("flopwatch.jobs.model_shapes:find_shape", {"text": "small"}, device="cuda")
