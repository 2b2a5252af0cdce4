"""Servers that stop or die, and what their workers leave behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flopwatch.runner.local_launcher import Launcher, Worker
from flopwatch.runner.worker_processes import Hung
from flopwatch.settings import Settings
from flopwatch.worker import server
from flopwatch.worker.messages import Broken, Describe, Report
from tests.runner.test_session import wait_until

pytestmark = pytest.mark.own_server

PATIENCE_S = 30.0


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher(environment={}, preload=()) as made:
        yield made


def ask(
    launcher: Launcher, suite: Path, *, size: int = 1, patience_s: float = PATIENCE_S
) -> Worker:
    """Have a worker load a suite file; `size` is that of the request."""
    settings = Settings(silence_limit_s=patience_s)
    chosen = {"axis": ["x" * size]}
    return launcher.start(Describe(settings=settings, suite_path=str(suite), chosen=chosen))


def load(launcher: Launcher, suite: Path, *, size: int = 1) -> list[Report]:
    with closing(ask(launcher, suite, size=size)) as worker:
        return list(worker.reports(PATIENCE_S))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('no such luck')\n")
    return path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_is_lost_is_started_again(
    launcher: Launcher, broken: Path, number: signal.Signals
) -> None:
    first = launcher.server_pid
    assert first is not None
    os.kill(first, number)
    with closing(ask(launcher, broken, patience_s=1.0)) as worker:
        assert [type(report) for report in worker.reports(PATIENCE_S)] == [Broken]
    assert launcher.server_pid != first
    assert not Path(f"/proc/{first}").exists()


@pytest.mark.parametrize(
    ("code", "loss"),
    [
        ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)", "died with SIGKILL"),
        # The worker ends, and nobody says so.
        ("os.kill(os.getppid(), signal.SIGSTOP); os._exit(0)", "did not answer for 1 s"),
    ],
)
def test_a_worker_without_its_server_is_lost_and_the_next_one_works(
    launcher: Launcher, broken: Path, tmp_path: Path, code: str, loss: str
) -> None:
    hostile = tmp_path / "hostile.py"
    hostile.write_text(f"import os, signal, time\n{code}\n")
    with closing(ask(launcher, hostile)) as worker:
        try:
            assert list(worker.reports(1.0)) == []
        except Hung:
            worker.kill(1.0)
        assert worker.has_lost_server
        assert worker.explain_death().status == "crash"
        assert worker.explain_death().message == (
            f"the server that starts worker processes {loss} during loading"
        )
    assert [type(report) for report in load(launcher, broken)] == [Broken]


def test_a_worker_that_closes_its_pipe_is_still_limited_in_time(
    launcher: Launcher, tmp_path: Path
) -> None:
    hostile = tmp_path / "hostile.py"
    hostile.write_text("import os, time\nos.closerange(3, 256)\ntime.sleep(1000)\n")
    with closing(ask(launcher, hostile)) as worker:
        with pytest.raises(Hung):
            list(worker.reports(1.0))
        worker.kill()
        assert not worker.has_lost_server
        assert worker.exit_code == -signal.SIGKILL


def test_a_request_may_be_larger_than_a_packet(launcher: Launcher, broken: Path) -> None:
    assert [type(report) for report in load(launcher, broken, size=1 << 20)] == [Broken]


def test_an_answer_to_a_runner_that_has_ended_is_dropped() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with theirs:
        server._send(theirs, pid=1)


LEAVING = """
import os, signal, subprocess, time
script = 'sleep 1000 & echo $! $$; wait'
shell = subprocess.Popen(
    ["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True
)
open("{pids}.new", "w").write(shell.stdout.readline())
os.rename("{pids}.new", "{pids}")
{rest}
"""


def leave(tmp_path: Path, rest: str) -> tuple[Path, Path]:
    """A suite that starts processes in a session of their own, and the file that has their pids."""
    suite, pids = tmp_path / "hostile.py", tmp_path / "pids"
    suite.write_text(LEAVING.format(pids=pids, rest=rest))
    return suite, pids


def read_running(pids: Path) -> list[str]:
    left = pids.read_text().split()
    assert len(left) == 2
    return [pid for pid in left if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("rest", ["", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)"])
def test_what_a_worker_leaves_in_other_sessions_ends_with_it_or_its_server(
    launcher: Launcher, tmp_path: Path, rest: str
) -> None:
    suite, pids = leave(tmp_path, rest)
    load(launcher, suite)
    assert read_running(pids) == []


def test_what_a_worker_leaves_in_other_sessions_ends_with_a_stopped_server(
    launcher: Launcher, tmp_path: Path
) -> None:
    suite, pids = leave(tmp_path, "os.kill(os.getppid(), signal.SIGSTOP); os._exit(0)")
    with closing(ask(launcher, suite)) as worker:
        with pytest.raises(Hung):
            list(worker.reports(1.0))
        worker.kill(1.0)
    assert read_running(pids) == []


def test_what_a_worker_leaves_in_other_sessions_ends_with_a_killed_runner(tmp_path: Path) -> None:
    suite, pids = leave(tmp_path, "time.sleep(1000)")
    with subprocess.Popen(
        [sys.executable, "-m", "flopwatch", "run", str(suite)],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    ) as runner:
        wait_until(pids.exists)
        runner.kill()
    wait_until(lambda: read_running(pids) == [])


def test_closed_standard_descriptors_are_held() -> None:
    program = (
        "import os\n"
        "from flopwatch.runner.local_launcher import hold_standard_descriptors\n"
        "os.close(0); os.close(1)\n"
        "hold_standard_descriptors()\n"
        "assert os.get_inheritable(0) and os.get_inheritable(1)\n"
        "assert min(os.pipe()) > 2\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
