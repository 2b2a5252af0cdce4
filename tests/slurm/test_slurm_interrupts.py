"""Ctrl-C while jobs are followed."""

from __future__ import annotations

import os
import pty
import signal
import sys
from contextlib import suppress

from tests.slurm.conftest import Sweeps

ASKED = ("gates.py", "--filter", "gate=a")


def test_without_a_terminal_jobs_are_left(sweeps: Sweeps) -> None:
    run = sweeps.start(*ASKED)
    sweeps.wait_for("a")
    job = sweeps.find_job("a")
    run.send_signal(signal.SIGINT)
    code, printed = sweeps.finish(run)
    assert code == 130
    assert f"1 job left to Slurm ({job})" in printed
    sweeps.open("a")
    code, printed = sweeps.run(*ASKED)
    assert code == 0, printed
    assert [r.environment["slurm"]["job_id"] for r in sweeps.read()] == [job]


def test_in_a_terminal_it_asks(sweeps: Sweeps) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(sweeps.folder)
        os.execve(sys.executable, [*sweeps.write_command(*ASKED), "--launcher", "slurm"],
                  {**sweeps.environ, "TERM": "xterm"})  # fmt: skip
    sweeps.wait_for("a")
    os.write(terminal, b"\x03")
    printed = read_until(terminal, b"[cancel/LEAVE]")
    os.write(terminal, b"cancel\n")
    printed += read_until(terminal, None)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130, printed
    os.close(terminal)
    assert b"1 running, 0 done; 1 group" in printed
    assert sweeps.read_statuses() == {"a": ["skipped/cancelled"]}


def read_until(terminal: int, text: bytes | None) -> bytes:
    printed = b""
    with suppress(OSError):  # its end
        while text is None or text not in printed:
            printed += os.read(terminal, 4096)
    return printed
