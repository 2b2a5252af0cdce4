"""What is stored of a group, whatever its worker reports."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from flopwatch.records.store import Store, read
from flopwatch.runner import group_runner
from flopwatch.runner.group_runner import Interrupts, append_record
from tests.conftest import make_record


def test_a_record_that_nobody_could_read_is_stored_as_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    good = make_record(variant="good")
    twice = make_record(variant="twice", rounds=[0] * 20, sources={"mine.py": "0" * 16})
    with Store.open(path) as store:
        stored = [append_record(store, record) for record in (twice, good)]
    assert read(path).records == stored
    crashed, same = stored
    assert same == good
    assert (crashed.status, crashed.variant) == ("crash", "twice")
    assert crashed.message == "broken report: it has two samples of one round"
    assert crashed.sources == twice.sources  # so that it is not measured again
    assert not crashed.rounds


def test_a_worker_that_was_signalled_with_its_run_is_not_to_blame() -> None:
    """Slurm signals all processes of a job, and the worker may die of it first."""

    def is_told(exit_code: int, count: int) -> bool:
        interrupts = Interrupts(is_urgent=True)
        interrupts.count = count
        worker, context = (
            SimpleNamespace(exit_code=exit_code),
            SimpleNamespace(interrupts=interrupts),
        )
        return group_runner._is_told_to_end(cast(Any, worker), cast(Any, context))

    assert is_told(-signal.SIGTERM, 1)
    assert not is_told(-signal.SIGTERM, 0)
    assert not is_told(-signal.SIGKILL, 1)
