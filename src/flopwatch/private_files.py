"""Files that no other user can have written.

Compiled code is run and a key is believed. So both are taken only from a folder and a file that
belong to this user and that nobody else may change. Links are not followed, and what is checked is
an open descriptor, so that nothing can be put in its place between the check and the use.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class NotPrivate(Exception):
    """Why a folder or a file is not to be trusted, in a clause without its subject."""


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Its descriptor; the folder is made if it is not there. Raises NotPrivate."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        reason = "is a link" if path.is_symlink() else f"cannot be used ({error.strerror})"
        raise NotPrivate(reason) from None
    try:
        # Others may look: what they must not read is in files of mode 0600.
        _check(os.fstat(folder), forbidden=0o022)
        yield folder
    finally:
        os.close(folder)


def open_file(folder: int, name: str) -> int:
    """A descriptor to read it from. Raises NotPrivate, and FileNotFoundError."""
    try:
        # Opening a pipe that somebody has put there would wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise NotPrivate(f"cannot be opened ({error.strerror})") from None
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise NotPrivate("is not a file")
        _check(facts, forbidden=0o077)
    except NotPrivate:
        os.close(file)
        raise
    return file


def read_file(folder: int, name: str) -> bytes:
    with os.fdopen(open_file(folder, name), "rb") as file:
        return file.read()


def write_file(folder: int, name: str, content: bytes, *, is_first: bool = False) -> None:
    """Whole or not at all: two processes may do so at once, and one may be killed. With `is_first`
    a file that is there already stays."""
    made = f".{secrets.token_hex(8)}"
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        if is_first:
            with suppress(FileExistsError):
                os.link(made, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.replace(made, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):  # it was renamed
            os.unlink(made, dir_fd=folder)


def _check(facts: os.stat_result, forbidden: int) -> None:
    if facts.st_uid != os.getuid():
        raise NotPrivate("belongs to another user")
    if facts.st_mode & forbidden:
        raise NotPrivate(f"is open to other users (mode {stat.S_IMODE(facts.st_mode):o})")
