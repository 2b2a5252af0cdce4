"""Functions that ranks are called for: their answer counts, whatever becomes of the ranks then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flopwatch.runner import local_launcher
from flopwatch.runner.host import call_function
from flopwatch.runner.local_launcher import Launcher
from flopwatch.runner.rank_processes import LocalRanks, start_ranks
from flopwatch.settings import Settings

SUITE = """
import os, signal, time
from torch import distributed
import flopwatch
from flopwatch.worker import communicator

suite = flopwatch.Suite("ending", axes={{"n": [1]}}, variants=["plain"])
suite.build(lambda case: lambda: None)
communicator.CLOSE_S = {close_s}

def destroy():
    open(os.path.dirname(__file__) + "/" + str(distributed.get_rank()), "w").close()
    {then}

distributed.destroy_process_group = destroy
"""


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Any]:
    """Call a function on two ranks that load a suite, which changes how they end."""
    settings = Settings(silence_limit_s=3600.0)
    (tmp_path / "records.jsonl").write_text("")
    launch = partial(Launcher, environment={})
    with launch() as launcher, closing(LocalRanks(launch)) as ranks:

        def call(then: str, close_s: float = 60.0) -> Any:
            path = tmp_path / "ending.py"
            path.write_text(SUITE.format(then=then, close_s=close_s))
            given = {"suite_path": str(path), "records_path": str(tmp_path / "records.jsonl")}
            start = partial(start_ranks, launcher, ranks, ranks=2)
            return call_function(start, "compute_columns", given, settings)

        yield call


def list_closed(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name in "01"}


def test_a_called_function_leaves_no_process_group_behind(call: Any, tmp_path: Path) -> None:
    assert call("pass") == []
    assert list_closed(tmp_path) == {"0", "1"}


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_hangs_at_its_end_does_not_cost_the_answer(
    call: Any, tmp_path: Path, rank: str
) -> None:
    assert call(f"distributed.get_rank() == {rank} and time.sleep(1000)", close_s=0.5) == []
    assert list_closed(tmp_path) == {"0", "1"}


def test_a_process_that_cannot_even_end_is_ended(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_launcher, "LEAVING_S", 1.0)
    assert call("os.kill(os.getpid(), signal.SIGSTOP)") == []


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_dies_at_its_end_does_not_cost_the_answer(call: Any, rank: str) -> None:
    assert call(f"distributed.get_rank() == {rank} and os.abort()") == []
