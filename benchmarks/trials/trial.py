"""What all parts of the hostile trial share: running flopwatch as a user does, and judging the end.

Every process that a command starts inherits a mark in its environment, so that whatever outlives
the command is found, in whatever session or process group it is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "FLOPWATCH_TRIAL"
FLOPWATCH = (sys.executable, "-m", "flopwatch")
PATIENCE_S = 240.0
"""Far more than any of the commands needs, even on a busy machine: what takes longer hangs."""
ENDING_S = 3.0
"""How long processes may take to end after the command has."""
CODES = (0, 1, 2, 3, 4, 130, 141)
"""Exit codes that flopwatch documents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Of one attempt. Without failures, all was as promised."""

    part: str
    name: str
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A command that has ended, or had to be."""

    code: int | None
    """None where it hung."""
    out: str
    err: str
    survivors: tuple[str, ...]
    """What outlived it."""

    def list_failures(self, codes: Sequence[int] = CODES) -> Iterator[str]:
        """What no command may do, whatever it is given."""
        if self.code is None:
            yield "hang"
        elif self.code not in codes:
            yield f"exit code {self.code}"
        if "Traceback (most recent call last)" in self.err:
            yield "traceback"
        if self.survivors:
            yield f"outlived by: {', '.join(self.survivors)}"


def run(
    command: Sequence[str],
    folder: Path,
    *,
    changes: Mapping[str, str | None] | None = None,
    patience_s: float = PATIENCE_S,
    meddle: Callable[[subprocess.Popen[bytes]], object] = lambda process: None,
) -> Done:
    """In `folder`, with `changes` of the environment (None removes a variable); `meddle` is called
    with the process while it runs."""
    mark = uuid.uuid4().hex
    environ = {**os.environ, MARK: mark}
    for name, text in (changes or {}).items():
        environ.pop(name, None)
        if text is not None:
            environ[name] = text
    with (folder / "stdout").open("w+b") as out, (folder / "stderr").open("w+b") as err:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        code: int | None
        try:
            meddle(process)
            code = process.wait(patience_s)
        except subprocess.TimeoutExpired:
            code = None
        survivors = tuple(name for _, name in end_survivors(mark))
        process.wait()
        out.seek(0)
        err.seek(0)
        # A file may have been written to at an offset beyond its end: the beginning says enough.
        texts = [file.read(1 << 22).decode(errors="replace") for file in (out, err)]
    return Done(code=code, out=texts[0], err=texts[1], survivors=survivors)


def end_survivors(mark: str) -> list[tuple[int, str]]:
    """Kill and list the processes with a mark that do not end by themselves."""
    deadline_s = time.monotonic() + ENDING_S
    while (found := find_marked(mark)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    for pid, _ in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def find_marked(mark: str) -> list[tuple[int, str]]:
    """Running processes that have inherited a mark, with their names."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            if entry not in (folder / "environ").read_bytes().split(b"\0"):
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            if command:  # empty for one that has ended and was not waited for
                found.append((int(folder.name), command[-60:]))
    return found
