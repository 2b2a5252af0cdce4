"""Which files may be written: nobody else's are changed, and no output is ever half a file.

Files that are appended to (results, peaks, calibrations) have one JSON object a line, and a kill
can leave a last line that is cut short ("torn"). Before anything is appended or repaired, the whole
file is judged: every line must be one of ours.

Outputs that replace a file (a page, a plot, an export, a trace) are written next to it first, so
that a full disk or Ctrl-C leaves the old one as it was.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flopwatch.errors import NewerSchema, StoreError, UsageError

MOST_BYTES = 64 * 2**20
"""That are read of a file that is to be replaced: none of our outputs is longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Of files that are appended to."""

    name: str
    """As in "this is not NAME"."""
    keys: tuple[bytes, ...]
    """How our encoder begins a line: the first key with the opening brace, and some that follow."""
    decode: Callable[[bytes], object]
    """Raises StoreError, with a reason, for a line that is not one of ours."""
    advice: str = "choose another file"


def find_wrong(line: bytes, kind: Kind) -> str | None:
    """Why a line is not one of ours; None where it is, also where a newer flopwatch wrote it."""
    try:
        kind.decode(line)
    except StoreError as error:
        is_newer = isinstance(error, NewerSchema) and line.startswith(kind.keys[0])
        return None if is_newer else str(error)
    return None


def is_torn(fragment: bytes, kind: Kind, *, is_alone: bool) -> bool:
    """Whether a line without an end is the beginning of one of ours.

    Zeros count, too: a power cut leaves them where a file grew before its content was written.
    Without a line of ours before it, the file might be anybody's, so that all of our first keys
    must be there.
    """
    if is_alone:
        is_begun = fragment.startswith(kind.keys[0]) and all(key in fragment for key in kind.keys)
    else:
        is_begun = fragment.startswith(kind.keys[0][: len(fragment)])
        if not fragment.strip(b"\0"):
            return True
    try:
        msgspec.json.decode(fragment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return is_begun
    return False


def judge_lines(
    path: Path, lines: Iterable[bytes], kind: Kind, *, skip_corrupt: bool = False
) -> int:
    """How many of the lines are ours; refuses the file if one is not, with `skip_corrupt` only if
    none is.

    100,000 records are judged in a fraction of a second: once one was decoded, every line that
    begins like one is taken for one. If it is damaged further on, it is ours all the same, and
    reading says so.
    """
    found = 0
    first_wrong = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        is_alike = found > 0 and line.startswith(kind.keys[0])
        why = None if is_alike else find_wrong(line, kind)
        if why is None:
            found += 1
            continue
        first_wrong = first_wrong or refuse(path, kind, f"line {number}: {why}")
        if not skip_corrupt:
            break
    if first_wrong is not None and not (skip_corrupt and found):
        raise first_wrong
    return found


def refuse(path: Path, kind: Kind, why: str) -> StoreError:
    return StoreError(
        f"{path} is not {kind.name}, or is damaged: {why}; nothing was changed; {kind.advice}"
    )


def replace_file(path: Path, content: bytes) -> None:
    """Write all of it or nothing: readers never see half a file, and a failure leaves the old."""
    try:
        if path.exists() and not path.is_file():  # a pipe or a device, which must not be replaced
            path.write_bytes(content)
            return
        target = Path(os.path.realpath(path))  # a link still leads where it led
        unfinished = target.with_name(f".flopwatch-{secrets.token_hex(8)}")
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, unfinished)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise _explain(path, error) from None


def require_replaceable(path: Path, is_ours: Callable[[bytes], bool], what: str) -> None:
    """Before the work: refuse what `replace_file` could not write, and a file whose content is not
    ours."""
    content = b""
    try:
        if path.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_file():
            with path.open("rb") as file:
                content = file.read(MOST_BYTES)
        if path.is_file() or not path.exists():
            tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))).close()
    except OSError as error:
        raise _explain(path, error) from None
    if content and not is_ours(content):
        raise UsageError(f"{path} exists and is not {what}; choose another, or remove it")


def _explain(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written ({error.strerror}); choose another")
