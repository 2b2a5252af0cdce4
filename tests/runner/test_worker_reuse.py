"""Spawned workers that serve several requests in turn, and those that must not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flopwatch.records.record import Record
from flopwatch.runner import host, worker_processes
from flopwatch.runner.local_launcher import Launcher
from flopwatch.settings import Settings
from flopwatch.worker.messages import BrokenMessage, Describe, Returned
from tests.runner.test_session import SilentWatcher, run, wait_until

SUITE = """
import os, signal, subprocess, sys, threading, time
import torch
from torch import distributed
import flopwatch

suite = flopwatch.Suite(
    "several",
    axes={axes},
    variants=["plain", "odd"],
    accepts=lambda axis, value: True,
    {options}
)

@suite.build
def build(case):
    x = torch.arange(8.0)
    if case.variant == "odd":
        {odd}
    note = f"{{os.path.dirname(__file__)}}/pid of {{os.environ.get('RANK', '0')}}"
    open(note, "a").write(f"{{os.getpid()}} ")
    return flopwatch.Workload(phases={{"call": lambda: x + x}}, facts={{"pid": os.getpid()}})

{more}
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A suite of three groups; its workers are spawned, as on an accelerator."""

    def spawn(**given: Any) -> Launcher:
        return Launcher(**{**given, "fork": False})

    monkeypatch.setattr(host, "Launcher", spawn)

    def write(
        odd: str = "pass", more: str = "", options: str = "", axes: str = "{'n': [1, 2, 3]}"
    ) -> Path:
        path = tmp_path / "several.py"
        path.write_text(SUITE.format(odd=odd, more=more, options=options, axes=axes))
        return path

    return write


def list_pids(records: Any, variant: str = "plain") -> list[float]:
    return [record.facts["pid"] for record in records if record.variant == variant]


def measure(path: Path, **options: Any) -> dict[tuple[str, Any], Record]:
    options.setdefault("watcher", SilentWatcher())
    report = run(path, **options)
    return {(record.variant, record.params.get("n")): record for record in report.measured}


def test_a_process_measures_several_groups(write: Write) -> None:
    records = measure(write())
    assert {record.status for record in records.values()} == {"ok"}
    assert len(set(list_pids(records.values()))) == 1
    assert all(len(record.rounds) > 7 and record.sources for record in records.values())


def test_columns_of_a_suite_do_not_end_the_process(write: Write) -> None:
    column = "@suite.column(unit='count')\ndef twice(row):\n    'n'\n    return 2 * row.params['n']"
    records = measure(write(more=column.replace("row.params", "row.record.params")))
    assert [records["plain", n].columns["twice"].value for n in (1, 2, 3)] == [2, 4, 6]
    assert len(set(list_pids(records.values()))) == 1


def test_what_is_not_supported_is_no_reason_for_a_new_process(write: Write) -> None:
    records = measure(write("raise flopwatch.Unsupported('not here')"))
    assert records["odd", 2].status == "unsupported"
    assert len(set(list_pids(records.values()))) == 1


@pytest.mark.parametrize(
    ("odd", "options"),
    [
        ("pass", "fresh=True,"),
        ("torch.set_float32_matmul_precision('medium')", ""),
        ("torch.backends.cudnn.conv.fp32_precision = 'tf32'", ""),
        ("os.environ['MINE'] = str(case.n)", ""),
        ("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", ""),
        ("subprocess.Popen(['sleep', '1000'])", ""),
        ("open(__file__, 'a').write('# changed')", ""),
        ("torch.compile(lambda y: y + 1, backend='eager')(x)", ""),
    ],
)
def test_what_is_left_of_a_group_does_not_reach_the_next(
    write: Write, odd: str, options: str
) -> None:
    records = measure(write(odd, options=options))
    assert {record.status for record in records.values()} == {"ok"}
    assert len(set(list_pids(records.values()))) == 3


@pytest.mark.parametrize(
    ("odd", "status"),
    [
        ("raise ValueError('odd') if case.n == 2 else None", "crash"),
        ("case.n == 2 and os.kill(os.getpid(), signal.SIGKILL)", "crash"),
        ("case.n == 2 and os._exit(0)", "crash"),
        ("x = torch.ones(9) if case.n == 2 else x", "wrong"),
    ],
)
def test_a_failure_is_a_row_of_the_guilty_and_the_rest_goes_on(
    write: Write, odd: str, status: str
) -> None:
    if status == "wrong":
        odd = odd.replace("ones(9)", "ones(8)")
    watcher = SilentWatcher()
    records = measure(write(odd), watcher=watcher)
    assert records["odd", 2].status == status
    assert [key for key, record in records.items() if record.status != "ok"] == [("odd", 2)]
    first, second, third = list_pids(records.values())
    assert len({first, second, third}) == 3
    assert [said for said in watcher.said if "in a new process" in said]


def test_what_only_fails_after_other_groups_is_measured_all_the_same(write: Write) -> None:
    """As where the first group has left something that nobody thought of."""
    odd = "sys.modules['left'] = 1 if 'left' not in sys.modules else int('broken')"
    records = measure(write(odd))
    assert {record.status for record in records.values()} == {"ok"}
    assert len(set(list_pids(records.values()))) == 3


def test_a_limit_of_memory_holds_for_its_own_request_only(write: Write) -> None:
    more = "import resource"
    odd = "assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 3 * 2**30"
    records = measure(write(odd, more))
    assert {record.status for record in records.values()} == {"ok"}


def test_all_ranks_of_a_job_keep_their_processes(write: Write, tmp_path: Path) -> None:
    path = write("x = x + distributed.get_rank() * 0", axes="{'ranks': [2], 'n': [1, 2]}")
    records = measure(path)
    assert {record.status for record in records.values()} == {"ok"}
    for rank in range(2):
        pids = (tmp_path / f"pid of {rank}").read_text().split()
        assert len(pids) == 4
        assert len(set(pids)) == 1


def test_a_rank_that_dies_costs_its_variant_in_a_kept_process(write: Write) -> None:
    odd = "case.n == 2 and distributed.get_rank() == 1 and os.kill(os.getpid(), signal.SIGKILL)"
    records = measure(write(odd, axes="{'ranks': [2], 'n': [1, 2, 3]}"))
    assert [key for key, record in records.items() if record.status != "ok"] == [("odd", 2)]
    assert (records["odd", 2].message or "").startswith("rank 1: killed by SIGKILL")


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher(environment={}, fork=False) as made:
        yield made


def describe(launcher: Launcher, path: Path, *, fresh: bool = False) -> tuple[int, bool]:
    """The pid of the worker that has described a suite, and whether it had served before."""
    request = Describe(settings=Settings(), suite_path=str(path), fresh=fresh)
    with closing(launcher.start(request)) as worker:
        assert [type(report) for report in worker.reports(60.0)] == [Returned]
        return worker.process.pid, worker.is_reused


def test_a_process_that_ends_while_it_waits_is_replaced(
    launcher: Launcher, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_processes, "TAKING_S", 0.5)
    path = write()
    first, _ = describe(launcher, path)
    assert describe(launcher, path) == (first, True)
    os.kill(first, signal.SIGKILL)
    second, is_reused = describe(launcher, path)
    assert not is_reused
    os.kill(second, signal.SIGSTOP)
    third, is_reused = describe(launcher, path)
    assert not is_reused
    assert len({first, second, third}) == 3
    fourth, is_reused = describe(launcher, path, fresh=True)
    assert not is_reused
    launcher.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (second, third, fourth)))


def test_another_suite_needs_another_process(launcher: Launcher, write: Write) -> None:
    path = write()
    first, _ = describe(launcher, path)
    other = path.with_name("other.py")
    other.write_text(path.read_text())
    assert describe(launcher, other)[0] != first


def test_a_launcher_may_keep_none(write: Write) -> None:
    path = write()
    with Launcher(environment={}, fork=False, keep=False) as launcher:
        assert describe(launcher, path)[0] != describe(launcher, path)[0]


def test_a_forked_process_serves_one_request(tmp_path: Path) -> None:
    path = tmp_path / "hostile.py"
    path.write_text(
        "import os\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    place = f'/proc/self/fd/{name}'\n"
        "    if os.path.islink(place) and os.readlink(place).startswith('pipe:'):\n"
        '        os.write(int(name), b\'{"kind": "Served"}\\n\')\n'
    )
    request = Describe(settings=Settings(), suite_path=str(path))
    with (
        Launcher(environment={}, preload=()) as launcher,
        closing(launcher.start(request)) as worker,
        pytest.raises(BrokenMessage),
    ):
        list(worker.reports(60.0))
