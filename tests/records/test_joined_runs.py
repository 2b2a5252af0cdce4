"""A monitored run is many lines of a file, and one record for every reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.errors import CorruptFile
from flopwatch.records.joined_runs import NO_STEP, count_tokens, join_ranks
from flopwatch.records.monitored import (
    Continuation,
    CountedFlops,
    MeterReading,
    Monitored,
    MonitoredEvent,
    RankSteps,
    encode_continuation,
)
from flopwatch.records.query import query
from flopwatch.records.record import Record, decode, decode_line, encode
from flopwatch.records.store import Store, read
from tests.conftest import make_record

FLOPS = CountedFlops(model=6e6, hardware=8e6, dtype="bfloat16", source="number", convention="given")
STOPPED = MonitoredEvent(kind="pause", name="checkpoint", begin_ns=5.0, duration_ns=7.0)


def make_first_line(rank: int = 0, **changes: object) -> Record:
    content: dict[str, object] = {
        "rank": rank,
        "world_size": 2,
        "data_parallel": 2,
        "started_unix_s": 1e9,
        "clock": "perf_counter",
        "tokens_per_step": 64.0,
        "first_steps": 1,
    }
    return make_record(
        suite="monitor",
        status="skipped",
        message=NO_STEP,
        samples_ns={},
        rounds=[],
        calls_per_sample=[],
        steady=None,
        stop_reason=None,
        monitored=Monitored(**{**content, **changes}),  # type: ignore[arg-type]
    )


def make_line(rank: int, *steps: int, **changes: object) -> Continuation:
    count = len(steps)
    continued = RankSteps(
        rank=rank,
        zero_unix_s=1e9 + rank,
        seen_ns=100.0 * max(steps, default=0),
        steps=list(steps),
        begin_ns=[100.0 * step for step in steps],
        time_ns=[100.0 + rank] * count,
        parts_ns={"forward": [30.0] * count},
        arrived_ns=[None] * count,
        micro_batches=[1] * count,
        tokens=[None] * count,
        padded_tokens=[None] * count,
    )
    names = {"flops", "notes", "end", "flops_missing", "job"}
    of_line = {name: value for name, value in changes.items() if name in names}
    of_rank = {name: value for name, value in changes.items() if name not in names}
    return Continuation(
        case_id="i",
        group_id="g",
        run_id="r",
        continued=replace(continued, **of_rank),  # type: ignore[arg-type]
        **of_line,  # type: ignore[arg-type]
    )


def write(path: Path, *lines: Record | Continuation) -> Path:
    with Store.open(path) as store:
        for line in lines:
            if isinstance(line, Continuation):
                store.append_continuation(line)
            else:
                store.append(line)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_readers_get_one_record_a_run(path: Path) -> None:
    other = make_record(case_id="another")
    write(
        path,
        make_first_line(),
        make_line(0, 0, 1, events=[STOPPED]),
        other,
        make_line(1, 0, 1, 2),
        make_line(0, 2, parts_ns={"forward": [30.0], "data": [4.0]}, flops=FLOPS, end="closed"),
    )

    first, record = read(path).records

    assert first == other
    assert record.status == "ok"
    assert record.samples_ns == {"step": [100.0, 100.0, 100.0]}
    assert record.rounds == [0, 1, 2]
    assert record.warmup_samples == 1
    assert record.facts["tokens"] == 64.0
    assert record.flops == {"step": {"bfloat16": 64 * 6e6}}
    assert record.conditions == {"dtype": "bfloat16"}
    monitored = record.monitored
    assert monitored is not None
    assert monitored.end == "closed"
    assert [rank.rank for rank in monitored.ranks] == [0, 1]
    zero, one = monitored.ranks
    assert zero.parts_ns == {"forward": [30.0] * 3, "data": [None, None, 4.0]}
    assert zero.events == [STOPPED]
    assert zero.seen_ns == 200.0
    assert one.steps == [0, 1, 2]
    assert decode(encode(record)) == record


def test_a_run_that_was_killed_has_no_end(path: Path) -> None:
    write(path, make_first_line(), make_line(0, 0, 1))
    path.write_bytes(path.read_bytes() + encode_continuation(make_line(0, 2))[:-20])

    contents = read(path)

    (record,) = contents.records
    assert record.rounds == [0, 1]
    assert record.monitored is not None
    assert record.monitored.end is None
    assert "cut short" in contents.warnings[0]


def test_a_run_without_steps_is_a_row(path: Path) -> None:
    (record,) = read(write(path, make_first_line())).records
    assert (record.status, record.message) == ("skipped", NO_STEP)


def test_a_restart_is_another_run_of_the_same_case(path: Path) -> None:
    write(
        path,
        make_first_line(),
        make_line(0, 0, 1),
        replace(make_first_line(), run_id="again"),
        replace(make_line(0, 1, 2), run_id="again"),
    )
    one, two = read(path).records
    assert one.case_id == two.case_id
    assert (one.rounds, two.rounds) == ([0, 1], [1, 2])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (replace(make_line(0, 2), run_id="unknown"), "it continues a run whose first line"),
        (make_line(0, 1, 2), "it repeats steps of rank 0"),
        (make_line(0, 3, 2), "the numbers of rank 0's steps do not rise"),
        (make_line(0, 2, 3, tokens=[1]), "rank 0 has 2 steps but 1 of tokens"),
        (make_line(0, 2, time_ns=[-1.0]), "it is not a record"),
        (make_line(0, 2, parts_ns={"lunch": [1.0]}), "it is not a record"),
    ],
)
def test_a_line_that_cannot_be_right_is_corrupt(path: Path, line: Continuation, why: str) -> None:
    write(path, make_first_line(), make_line(0, 0, 1), line, make_line(0, 7))

    with pytest.raises(CorruptFile, match=why):
        read(path)

    contents = read(path, skip_corrupt=True)
    assert contents.records[0].rounds == [0, 1, 7]
    assert "line 3 was skipped" in contents.warnings[0]


def test_a_line_that_continues_is_no_record_by_itself() -> None:
    line = encode_continuation(make_line(0, 0))
    assert isinstance(decode_line(line), Continuation)
    with pytest.raises(CorruptFile, match="continues one"):
        decode(line)


def test_lines_are_slim() -> None:
    """Of a step a second there are a hundred thousand a day."""
    assert len(encode_continuation(make_line(0))) < 150
    assert len(encode_continuation(make_line(0, 4))) < 400


def test_ranks_of_nodes_with_files_of_their_own_belong_together(tmp_path: Path) -> None:
    here = write(tmp_path / "0.jsonl", make_first_line(), make_line(0, 0, 1, flops=FLOPS))
    there = write(tmp_path / "1.jsonl", make_first_line(1), make_line(1, 0, 1), make_record())

    records = join_ranks([*read(there).records, *read(here).records])

    joined, other = sorted(records, key=lambda record: record.monitored is None)
    assert joined.monitored is not None
    assert [rank.rank for rank in joined.monitored.ranks] == [0, 1]
    assert joined.samples_ns == {"step": [100.0, 100.0]}
    assert joined.monitored.flops == FLOPS
    assert other.monitored is None


def test_a_step_has_the_tokens_of_all_ranks(path: Path) -> None:
    write(
        path,
        make_first_line(),
        make_line(0, 0, 1, tokens=[10, None], padded_tokens=[16, None]),
        make_line(1, 0, 1, tokens=[30, 32], padded_tokens=[32, None]),
    )
    (record,) = read(path).records
    assert record.monitored is not None
    # A mean of 10, 32 (the run's 64 over two ranks), 30 and 32, on each of two ranks.
    assert count_tokens(record.monitored) == 52.0
    assert count_tokens(record.monitored, padded=True) == 2 * (16 + 32 + 32 + 32) / 4


def test_queries_see_the_run(path: Path) -> None:
    write(path, make_first_line(), make_line(0, 0, 1, 2, readings=[MeterReading(at_ns=1.0)]))
    found = query([path], "SELECT suite, samples, monitored->>'world_size' FROM records")
    assert found.rows == [("monitor", 3, "2")]
    assert query([path], "SELECT sum(ns) FROM samples").rows == [(300.0,)]
