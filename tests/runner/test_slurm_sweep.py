"""What becomes of a sweep's files, without a Slurm: `tests/slurm` has one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from flopwatch.cli.main import cli
from flopwatch.errors import UsageError
from flopwatch.records.record import Record, encode
from flopwatch.records.store import Store, read
from flopwatch.runner.schedule import Group
from flopwatch.runner.session import Options
from flopwatch.runner.slurm_launcher import find_shape, pack
from flopwatch.runner.slurm_queue import ENDS, JobState, Resources, Shape
from flopwatch.runner.slurm_sweep import (
    DONE,
    Attempt,
    Collector,
    Ending,
    Part,
    SentPart,
    Sweep,
    read_sent_parts,
    remove_closed,
    write_ids,
    write_sweep,
)
from flopwatch.settings import Settings
from tests.conftest import make_record


def make_group(number: int, **changes: object) -> Group:
    content = {"suite": "demo", "baseline": "a", "params": {"n": number}, "variants": ("a", "b")}
    return Group(**{**content, **changes})  # type: ignore[arg-type]


def make_sent(folder: Path, groups: list[Group]) -> SentPart:
    part = Part(groups=groups, shape=Shape(), request="r")
    sweep = Sweep(
        name="flopwatch-1",
        options=Options(suite="demo", settings=Settings(), out=Path("x.jsonl")),
        settings=Settings(),
        parts=[part],
    )
    write_sweep(folder / "1", sweep)
    write_ids(folder / "1", {0: "12"})
    [sent] = read_sent_parts(folder)
    assert [group.id for group in sent.part.groups] == [group.id for group in groups]
    assert sent.sweep.options.out == Path("x.jsonl")
    return sent


def make_row(group: Group, variant: str, run: str = "job", **changes: object) -> Record:
    return make_record(case_id=group.case_id(variant), group_id=group.id, variant=variant,
                       params=dict(group.params), run_id=run, **changes)  # fmt: skip


def store(attempt: Attempt, *records: Record) -> None:
    with Store.open(attempt.records_path) as part:
        for record in records:
            part.append(record)


def test_records_are_taken_over_once_and_torn_lines_later(tmp_path: Path) -> None:
    groups = [make_group(1), make_group(2)]
    sent = make_sent(tmp_path / "jobs", groups)
    attempt = Attempt(sent.folder, 0, 0)
    attempt.begin({"job_id": "12", "node": "n1"})
    whole = encode(make_row(groups[0], "b")) + b"\n"
    attempt.records_path.write_bytes(encode(make_row(groups[0], "a")) + b"\n" + whole[:50])
    out = tmp_path / "out.jsonl"
    with Store.open(out) as results:
        collector = Collector(results, [])
        assert sent.collect(collector) == 1
        assert sent.collect(collector) == 0
        with attempt.records_path.open("ab") as file:
            file.write(whole[50:])
        assert sent.collect(collector) == 1
        [again] = read_sent_parts(tmp_path / "jobs")
        again.collect(Collector(results, read(out).records))
        assert [group.params["n"] for group in again.list_unfinished()] == [2]
    assert [record.variant for record in read(out).records] == ["a", "b"]


def test_the_end_of_a_job_makes_rows_of_what_it_has_not_stored(tmp_path: Path) -> None:
    """Requeued once: the second start is killed by the time limit. The row of the group that was
    in work has the conditions of what was measured."""
    groups = [make_group(number) for number in (1, 2, 3)]
    sent = make_sent(tmp_path / "jobs", groups)
    conditions = {"machine": {"machine_id": "m"}, "slurm": {"request": "r"}}
    for restarts in (0, 1):
        attempt = Attempt(sent.folder, 0, restarts)
        attempt.begin({"job_id": "12", "node": "n1", "restarts": restarts})
        attempt.begin_group(groups[restarts])
        if restarts:
            assert [record.variant for record in attempt.read_earlier()] == []
            ok = [make_row(groups[0], v, environment=conditions) for v in ("a", "b")]
            stopped = make_row(groups[1], "a", status="skipped", cause="interrupted", samples_ns={},
                               rounds=[], calls_per_sample=[])  # fmt: skip
            store(attempt, *ok, stopped)
    out = tmp_path / "out.jsonl"
    with Store.open(out) as results:
        collector = Collector(results, [])
        sent.collect(collector)
        sent.close(ENDS["TIMEOUT"], collector, JobState(name="TIMEOUT", nodes="n1"))
    rows = [(r.params["n"], r.status, r.cause) for r in read(out).records if r.status != "ok"]
    assert rows == [
        *[(1, "skipped", "preempted")] * 2,
        *[(2, "timeout", None)] * 2,
        *[(3, "skipped", "time-limit")] * 2,
    ]
    last = read(out).records[-1]
    assert last.message == (
        "not measured: job 12 on n1 reached its time limit; raise --time, or lower --groups-per-job"
    )
    assert last.environment["machine"] == {"machine_id": "m"}
    assert last.environment["slurm"]["state"] == "TIMEOUT"
    remove_closed(tmp_path / "jobs")
    assert not list((tmp_path / "jobs").iterdir())


def test_where_the_job_chooses_a_value_any_of_them_is_done(tmp_path: Path) -> None:
    group = make_group(1, params={"n": 1, "batch": 1}, candidates={"batch": [1, 2, 4]})
    sent = make_sent(tmp_path / "jobs", [group])
    attempt = Attempt(sent.folder, 0, 0)
    attempt.begin({})
    large, fits = (make_group(1, params={"n": 1, "batch": batch}) for batch in (4, 2))
    failed = {"samples_ns": {}, "rounds": [], "calls_per_sample": []}
    store(attempt, make_row(large, "a", status="oom", **failed), make_row(fits, "a", "2"))
    attempt.end(Ending(why=DONE))
    with Store.open(tmp_path / "out.jsonl") as results:
        sent.collect(Collector(results, []))
    assert [group.variants for group in sent.list_unfinished()] == [("b",)]
    assert [record.params["batch"] for record in sent.list_tries()] == [4]
    assert sent.read_ending() == Ending(why=DONE)


def test_short_groups_share_jobs_and_few_ranks_get_few_nodes() -> None:
    resources = Resources(nodes=2, ranks_per_node=8, max_jobs=3)

    def shape(ranks: int) -> Shape:
        return find_shape(make_group(1, params={"ranks": ranks}), resources)

    assert [shape(ranks) for ranks in (1, 8, 9, 16)] == [
        Shape(nodes=1, tasks_per_node=1),
        Shape(nodes=1, tasks_per_node=8),
        Shape(nodes=2, tasks_per_node=5),
        Shape(nodes=2, tasks_per_node=8),
    ]

    def count(groups: list[Group], **changes: object) -> list[int]:
        asked = Resources(**{"max_jobs": 3, **changes})  # type: ignore[arg-type]
        parts = pack(groups, asked, lambda group: "r", Settings(budget_s=1.0))
        assert sorted(g.params["n"] for part in parts for g in part.groups) == list(
            range(len(groups))
        )
        return [len(part.groups) for part in parts]

    groups = [make_group(number) for number in range(10)]
    assert count(groups) == [4, 3, 3]
    assert count(groups[:2]) == [1, 1]
    assert count(groups, groups_per_job=4) == [4, 4, 2]
    many = [make_group(number) for number in range(1200)]  # over an hour of work
    assert len(count(many)) > 3
    assert max(count(many, time_s=120.0)) < max(count(many))


def test_without_slurm_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(cli, ["run", "activations", "--launcher", "slurm"])
    assert done.exit_code != 0
    assert isinstance(done.exception, UsageError)
    assert "--launcher slurm needs sbatch" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nodes", "2"], "--nodes is for --launcher slurm"),
        (["--launcher", "slurm", "--slurm-arg", "Gres"], "not of the form name=value"),
    ],
)
def test_idle_and_broken_options_are_refused(words: list[str], why: str) -> None:
    done = CliRunner().invoke(cli, ["run", "activations", *words])
    assert done.exit_code != 0
    assert why in done.output + str(done.exception)


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path / "nowhere", 0, 0)
    with pytest.raises(Exception, match="cannot be written") as refused:
        attempt.begin({})
    assert os.strerror(2) in str(refused.value)
