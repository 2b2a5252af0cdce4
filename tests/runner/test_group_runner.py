"""What is stored of a group, whatever its worker reports."""

from __future__ import annotations

from pathlib import Path

from flopwatch.records.store import Store, read
from flopwatch.runner.group_runner import append_record
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
