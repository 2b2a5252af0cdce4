"""What goes wrong in jobs of ranks, and what is said of it."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flopwatch.errors import UsageError, WorkerError
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.runner import rank_connection, rank_processes, session, torchrun_launcher
from flopwatch.runner.memory_fit import Capacity, describe_idle, describe_misfits, split_by_fit
from flopwatch.runner.schedule import Group
from flopwatch.runner.worker_death import explain_hang_of_ranks
from flopwatch.worker.instruments import Diverged, take_points
from flopwatch.worker.messages import RankPlace
from tests.runner.test_session import QUICK, SilentWatcher

SUITE = """
import os, signal
import torch
from torch import distributed
import flopwatch

suite = flopwatch.Suite(
    "job",
    axes={"ranks": [1, 2], "size": [8]},
    variants=["even", "killed", "stopped", "hungry"],
    accepts=lambda axis, value: axis != "ranks" or value <= 4,
    searches={"size": lambda case: range(1, 101)},
)

@suite.build
def build(case):
    rank, calls = distributed.get_rank(), []
    x = torch.full((case.size,), 1.0)
    if case.variant == "hungry" and case.size > 11:
        raise MemoryError("it is too much")

    def meet():
        calls.append(rank)
        if rank == 1 and len(calls) > 3 and case.variant in ("killed", "stopped"):
            kind = signal.SIGKILL if case.variant == "killed" else signal.SIGSTOP
            os.kill(os.getpid(), kind)
        summed = x.clone()
        distributed.all_reduce(summed)
        return summed

    return meet
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(SUITE)
    return path


def run(path: Path | str, folder: Path, *chosen: str, **changes: Any) -> session.Report:
    return session.run(make_options(path, folder, *chosen, **changes), SilentWatcher())


def make_options(path: Path | str, folder: Path, *chosen: str, **changes: Any) -> session.Options:
    options = session.Options(
        suite=str(path), settings=QUICK, chosen=chosen, out=folder / "out.jsonl", force=True
    )
    return replace(options, **changes)


def by_variant(report: session.Report) -> dict[str, Record]:
    return {record.variant: record for record in report.measured}


# What was not asked for is not refused.


def preview(*chosen: str, **changes: Any) -> session.Preview:
    options = make_options("training", Path(), *chosen, **changes)
    return session.preview(options)


@pytest.mark.parametrize("chosen", [["ranks=16"], ["micro_batch=3"], ["ranks=4", "variant=hybrid"]])
def test_nobody_is_refused_for_a_batch_that_was_not_asked_for(chosen: list[str]) -> None:
    found = preview(*chosen)
    assert all(group.params["grad_accum"] == 1 for group in found.groups)
    assert found.groups


def test_what_no_case_has_is_not_offered() -> None:
    assert "global_batch" not in preview("ranks=16").on_request
    assert "global_batch" in preview("ranks=4").on_request  # which divides it


@pytest.mark.parametrize("batch", ["8", "8,64"])
def test_a_batch_that_was_asked_for_is_refused(batch: str) -> None:
    with pytest.raises(UsageError, match="is not a multiple of 16 data-parallel ranks"):
        preview("ranks=16", f"global_batch={batch}")


# Who is to blame.


def test_a_rank_that_somebody_kills_has_not_run_out_of_memory(suite: Path) -> None:
    records = by_variant(run(suite, suite.parent, "ranks=2", "variant=even,killed"))
    assert records["even"].status == "ok", records["even"].message
    assert records["killed"].status == "crash"
    assert str(records["killed"].message).startswith("rank 1: killed by SIGKILL during sampling")


def test_a_rank_that_waits_is_not_blamed_for_one_that_is_stopped(suite: Path) -> None:
    settings = replace(QUICK, silence_limit_s=8.0)
    report = run(suite, suite.parent, "ranks=2", "variant=even,stopped", settings=settings)
    stopped = by_variant(report)["stopped"]
    assert stopped.status == "timeout"
    assert stopped.message == (
        "rank 0 waits for another rank in all_reduce: no progress for 8 s during sampling; "
        "rank 1 does not answer, as if it were stopped; raise --timeout if it is only slow"
    )


def make_stack(path: str, function: str) -> str:
    return f'Current thread 0x7f (most recent call first):\n  File "{path}", line 7 in {function}\n'


IN_COLLECTIVE = make_stack("/x/torch/distributed/distributed_c10d.py", "all_reduce")
AT_WORK = make_stack("/home/me/mine.py", "work")


def test_stacks_tell_who_did_not_get_as_far() -> None:
    tell = explain_hang_of_ranks
    end = "; raise --timeout if it is only slow"
    waits = "rank 0 waits for another rank in all_reduce: no progress for 5 s during check"
    assert tell(5, "check", [IN_COLLECTIVE, AT_WORK, IN_COLLECTIVE]) == (
        f"{waits}; rank 1 is at mine.py:7 in work{end}"
    )
    assert tell(5, "check", [IN_COLLECTIVE, None]) == waits + end  # on another machine
    assert tell(5, "check", [AT_WORK, IN_COLLECTIVE]) == (
        f"rank 0: no progress for 5 s during check at mine.py:7 in work{end}"
    )


# The largest that fits.


def test_a_search_that_found_something_has_not_failed_and_is_not_repeated(suite: Path) -> None:
    chosen = ["ranks=2", "size=auto", "variant=even,hungry"]
    first = run(suite, suite.parent, *chosen)
    assert [(record.params["size"], record.status) for record in first.tried] == [
        (16, "oom"),
        (12, "oom"),
    ]
    assert {record.status for record in first.judged} == {"ok"}
    assert {record.params["size"] for record in first.judged} == {11}
    stored = read(first.out).records
    assert {record.variant for record in first.tried} == {"hungry"}  # of the other nothing is known
    again = run(suite, suite.parent, *chosen)
    assert read(first.out).records == stored
    assert {record.status for record in again.judged} == {"ok"}


def test_a_search_that_found_nothing_has_failed(suite: Path) -> None:
    suite.write_text(SUITE.replace("case.size > 11", "case.size > 0"))
    report = run(suite, suite.parent, "ranks=2", "size=auto", "variant=hungry", baseline="hungry")
    assert [record.status for record in report.judged] == ["oom"]


CHECKED = """
import flopwatch, torch
suite = flopwatch.Suite("mine", axes={"size": [64]}, variants=["plain", "same", "other"])

@suite.build
def build(case):
    return lambda: torch.ones(case.size) + (case.variant == "other")

@suite.reference
def reference(case):
    return build(case) if case.variant == "plain" else None
"""


def test_a_baseline_that_was_checked_itself_is_still_the_reference_of_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(CHECKED)
    records = by_variant(run(path, tmp_path))
    assert records["same"].notes == []
    assert records["same"].check is not None
    assert records["same"].check.reference == "plain"
    assert records["other"].status == "wrong"


def test_a_baseline_that_is_wrong_is_nobodys_reference(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(CHECKED.replace("return build(case) if", "return (lambda: torch.zeros(64)) if"))
    records = by_variant(run(path, tmp_path))
    assert records["plain"].status == "wrong"
    assert records["same"].status == "ok"
    assert records["same"].unchecked == "its reference, plain, is not measured here"


def test_too_little_memory_to_start_is_said(tmp_path: Path) -> None:
    chosen = ["model=decoder:hidden_size=64:layers=2:heads=2", "seq_len=16", "ranks=2"]
    report = run("training", tmp_path, *chosen, "variant=none", memory_limit_bytes=50 * 2**20)
    (record,) = report.measured
    assert record.status == "oom", record.message
    assert "emory" in str(record.message)


# What is said before.


def make_group(ranks: int, needed_bytes: float = 1.0) -> Group:
    return Group(
        suite="demo",
        baseline="a",
        params={"ranks": ranks},
        variants=("a", "b"),
        memory={"a": {"parameters": needed_bytes}, "b": {"parameters": needed_bytes}},
    )


def test_a_lack_of_cores_is_no_lack_of_memory() -> None:
    capacity = Capacity(process_bytes=100, ranks=2)
    groups = [make_group(1), make_group(4), make_group(1, 1000.0), make_group(4)]
    assert describe_misfits(split_by_fit(groups, capacity)[1]) == [
        "2 cases cannot fit into memory; --force tries all the same",
        "4 cases will be skipped: it needs 4 ranks, and there are 2 cores; choose fewer with "
        "--ranks",
    ]
    assert describe_misfits(split_by_fit([make_group(1)], capacity)[1]) == []


def test_ranks_that_stay_idle_are_told() -> None:
    assert describe_idle([make_group(2), make_group(4)], 4) is None
    assert describe_idle([], 4) is None
    said = "2 of this job's 4 ranks stay idle: at most 2 are asked for; --ranks 4 uses all"
    assert describe_idle([make_group(1), make_group(2)], 4) == said


PLACE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("started", "chosen", "filters", "ranks"),
    [
        (4, [], [], {4}),
        (4, ["ranks=2"], [], {2}),
        (4, [], ["ranks=1"], {1}),
        (8, [], [], {1, 2}),  # which the suite does not accept
    ],
)
def test_all_ranks_that_torchrun_has_started_are_used(
    suite: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: int,
    chosen: list[str],
    filters: list[str],
    ranks: set[int],
) -> None:
    for name, value in {**PLACE, "WORLD_SIZE": started, "LOCAL_WORLD_SIZE": started}.items():
        monkeypatch.setenv(name, str(value))
    found = session.preview(make_options(suite, suite.parent, *chosen, filters=filters))
    assert {group.ranks for group in found.groups} == ranks


# Words and manners.


def test_a_loss_that_is_not_finite_is_told_by_its_step() -> None:
    points = [{"step": 5, "loss": 1.0}, {"step": 6, "loss": float("nan")}]
    with pytest.raises(Diverged) as caught:
        list(take_points(lambda: points))
    assert str(caught.value) == (
        "its training diverged: loss is nan in step 6; the steps before it are stored"
    )


def test_ranks_meet_elsewhere_where_another_program_was_faster(
    suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_free_port = rank_processes.find_free_port
    with socket.create_server(("", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        monkeypatch.setattr(
            rank_processes, "find_free_port", lambda: next(ports, None) or find_free_port()
        )
        report = run(suite, suite.parent, "ranks=2", "variant=even")
    (record,) = report.measured
    assert record.status == "ok", record.message


def test_who_is_not_welcome_knocks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    knocks: list[Any] = []

    def connect(*_: Any, **__: Any) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.sendall(b'{"kind": "Other"}\n')
        knocks.append(theirs)
        return ours

    unset = SimpleNamespace(create_connection=connect)
    monkeypatch.setattr(torchrun_launcher, "socket", unset)
    monkeypatch.setattr(rank_connection, "KEEP_ALIVE", {})
    place = RankPlace(
        rank=1, ranks=2, local_rank=1, local_ranks=2, node_ranks=2, address="", port=1
    )
    with pytest.raises(WorkerError, match="not of this job"):
        torchrun_launcher.connect(place, join_s=0.5)
    assert 1 <= len(knocks) <= 3
    for end in knocks:
        end.close()
