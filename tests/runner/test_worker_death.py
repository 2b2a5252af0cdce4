"""Whether a worker that was killed was killed for lack of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flopwatch.runner.local_launcher import find_available_bytes
from flopwatch.runner.memory_fit import PROCESS_BYTES
from flopwatch.runner.worker_death import MemoryWatch, count_kills, explain_death
from flopwatch.settings import Settings
from flopwatch.worker import limits
from flopwatch.worker.failure import Failure, describe_error
from flopwatch.worker.messages import Call, RankPlace

GIB = 2**30


def serve(files: dict[str, str]) -> Callable[[str], str]:
    """A system with these files, by the last part of their paths."""
    return lambda path: files.get(path.rpartition("/")[2].replace(".", "_"), "")


GROUP_FILES = {"cgroup": "0::/job", "memory_events": "oom 7\noom_kill 2\n", "vmstat": "oom_kill 9"}
OLD_FILES = {"cgroup": "4:memory:/job\n0::/", "memory_oom_control": "under_oom 0\noom_kill 3\n"}


@pytest.mark.parametrize(
    ("files", "kills"),
    [(GROUP_FILES, 2), (OLD_FILES, 3), ({"vmstat": "pgfault 12\noom_kill 9\n"}, 9), ({}, None)],
)
def test_kills_are_those_of_the_own_group_or_else_of_the_machine(
    files: dict[str, str], kills: int | None
) -> None:
    assert count_kills(serve(files)) == kills


def test_a_kill_that_the_system_has_counted_is_evidence() -> None:
    files = dict(GROUP_FILES)
    watch = MemoryWatch(GIB, serve(files))
    assert watch.explain(peak_bytes=None) is None
    files["vmstat"] = "oom_kill 10"  # in somebody else's group
    assert watch.explain(peak_bytes=None) is None
    files["memory_events"] = "oom_kill 3\n"
    assert "has counted an out-of-memory kill" in str(watch.explain(peak_bytes=None))


def test_a_process_that_was_about_as_large_as_it_may_be_is_evidence() -> None:
    watch = MemoryWatch(10 * GIB, serve({}))
    assert watch.explain(PROCESS_BYTES + 7 * GIB) is None
    assert watch.explain(PROCESS_BYTES + 9 * GIB) == "it held 9.39 GiB of 10.0 GiB"
    # Libraries alone make no worker large, however little it may take.
    assert MemoryWatch(GIB // 4, serve({})).explain(PROCESS_BYTES) is None


def test_ranks_of_a_machine_share_its_memory() -> None:
    total = psutil.virtual_memory().total
    assert find_available_bytes(make_call(None)) == total
    assert find_available_bytes(make_call(1000)) == 1000
    place = RankPlace(
        rank=0, ranks=8, local_rank=0, local_ranks=4, node_ranks=4, address="", port=1
    )
    assert find_available_bytes(make_call(1000, place)) == 250
    assert find_available_bytes(make_call(2 * total)) == total


def make_call(limit_bytes: int | None, place: RankPlace | None = None) -> Call:
    settings = Settings(memory_limit_bytes=limit_bytes)
    return Call(settings=settings, place=place, function="measure_speed", arguments={})


def test_who_was_killed_without_evidence_has_not_run_out_of_memory() -> None:
    death = explain_death(-9, "sampling", "")
    assert death.status == "crash"
    assert death.message.startswith(
        "killed by SIGKILL during sampling, by a user or another program"
    )
    death = explain_death(-9, "sampling", "", "it held 9 GiB of 10 GiB")
    assert death.status == "oom"
    assert "most likely because memory ran out: it held 9 GiB of 10 GiB; lower" in death.message


def test_a_thread_that_finds_no_memory_names_the_limit(tmp_path: Path) -> None:
    error = RuntimeError("can't start new thread")
    assert describe_error(error, None) == Failure("crash", "RuntimeError: can't start new thread")
    assert describe_error(error, 2**60).status == "crash"  # not for lack of memory
    failure = describe_error(error, 2**20)
    assert failure.status == "oom"
    assert "MiB and may hold 1 MiB; raise --memory-limit" in failure.message
    assert describe_error(MemoryError(), 2**60) == Failure("oom", "MemoryError")
    assert "MemoryError: its process holds" in describe_error(MemoryError(), 2**20).message
    assert describe_error(ValueError("no"), 2**20).status == "crash"  # that has another reason
    assert limits.describe_shortage(2**20, tmp_path / "nothing") is None


def test_what_a_library_said_of_memory_is_told_beside_the_place() -> None:
    """faulthandler's stack comes after it."""
    log = (
        "terminate called after throwing an instance of 'std::system_error'\n"
        "  what():  Resource temporarily unavailable\n"
        "Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n"
        '  File "/x/torch/distributed/distributed_c10d.py", line 7 in _new_process_group_helper\n'
    )
    assert explain_death(-6, "joining", log).message == (
        "died with SIGABRT during joining at distributed_c10d.py:7 in _new_process_group_helper "
        "(what():  Resource temporarily unavailable)"
    )
