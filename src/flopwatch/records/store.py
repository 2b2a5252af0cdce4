"""The results file: one record a line, only ever appended to. Of a monitored run
(`flopwatch.Monitor`) there are many lines, which readers get as one record (`joined_runs`).

A run may die at any moment, and what it measured before must survive. So every record is written
with one append and one fsync, and the only damage that a kill can do is a last line that is cut
short ("torn"). Opening the file for writing moves such a fragment to FILE.torn and says so; reading
warns and leaves the file as it is.

Several runs may share one file. Every change is made under an exclusive lock (``flock``), so that
lines never interleave and a line that another run is just writing is never taken for a torn one.
Reading takes no lock: it would hold up a run that is measuring.

A file that is not ours (a letter, a model, somebody's configuration) is refused before anything is
measured, and left alone; `file_safety` says how it is told.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from flopwatch.errors import CorruptFile, DiskFull, NewerSchema, RefusedRecord, StoreError
from flopwatch.records.file_safety import Kind, find_wrong, is_torn, judge_lines, refuse
from flopwatch.records.joined_runs import RunJoiner
from flopwatch.records.monitored import Continuation, encode_continuation
from flopwatch.records.record import Record, decode_line, encode

PUBLISHED = "published:"
"""Before the name of a published benchmark, where a results file could stand."""

MAX_LINE_BYTES = 64 * 2**20
"""Some two million samples. Without a limit, one file of zeros would fill the memory."""

CHUNK_BYTES = 2**20

SAY_LOCKED_S = 1.0
"""Storing a record takes milliseconds: after so long, the user should know what is waited for."""

LOCKED_LIMIT_S = 600.0
"""No run holds a lock for longer than one record takes: what does so has stopped."""

Say = Callable[[str], object]

STORED_IS_SAFE = "nothing was added, and everything stored before is safe"

WRITE_ERRORS: dict[int, tuple[type[StoreError], str, str]] = {
    errno.ENOSPC: (DiskFull, "the disk is full", "free some space and run again"),
    errno.EDQUOT: (DiskFull, "your disk quota is used up", "free some space and run again"),
    errno.EIO: (DiskFull, "the disk reports an error", "check it, or write to another disk"),
    errno.EFBIG: (
        StoreError,
        "the file would grow beyond the size allowed here",
        "raise the limit (ulimit -f) or write to a new file",
    ),
    errno.ENOLCK: (StoreError, "the file cannot be locked", "write to a local disk"),
    errno.EOPNOTSUPP: (StoreError, "the file cannot be locked", "write to a local disk"),
}
"""What is wrong and what to do; any other error is named by the system's own words."""

RESULTS = Kind(
    name="a results file",
    keys=(b'{"case_id":', b'"group_id":', b'"run_id":'),
    decode=decode_line,
    advice="choose another file; where only that line is damaged, remove it or give --skip-corrupt",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """What a results file holds, and what the user should know about it."""

    records: list[Record]
    warnings: list[str]


class LineFile:
    """A file of ours that is open for appending lines, by one thread.

    Opening or appending may find a torn line that a killed process left; ``repaired`` then holds
    the sentence that says what became of it.
    """

    def __init__(self, path: Path, kind: Kind, descriptor: int, say: Say) -> None:
        self.path = path
        self.kind = kind
        self.repaired: str | None = None
        self.waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        """Entered while another run holds the lock, which is when an interrupt may be raised."""
        self._descriptor = descriptor
        self._say = say
        self._has_lines = False

    @classmethod
    def open(
        cls,
        path: Path,
        kind: Kind = RESULTS,
        *,
        skip_corrupt: bool = False,
        say: Say = lambda sentence: None,
    ) -> Self:
        """Open or create the file, and its folders; refuse what is not ours, repair a torn last
        line. `skip_corrupt` is content with one line that is ours. `say` is called where another
        run holds its lock for long."""
        if is_published(path):
            raise StoreError(f"{path} is a published benchmark, and only read; name a file")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = cls(path, kind, _open_for_append(path), say)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be written ({error.strerror}); {kind.advice.partition(';')[0]}"
            ) from None
        try:
            with file._locked():
                end = file._start_of_last_line()
                found = judge_lines(path, file._read_lines(end), kind, skip_corrupt=skip_corrupt)
                file._has_lines = found > 0
                file._repair_torn_line()
        except BaseException:
            file.close()
            raise
        return file

    def append_line(self, line: bytes) -> None:
        """With its newline; when this returns, it is on the disk."""
        with self._locked():
            if os.fstat(self._descriptor).st_nlink == 0:
                raise StoreError(
                    f"{self.path} was deleted during the run; this record was not stored; run again"
                )
            self._repair_torn_line()
            self._write(line)
            self._has_lines = True

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _lock(self) -> None:
        """Wait until no other run changes the file, but not for ever."""
        began_s = time.monotonic()
        said_at_s = began_s + SAY_LOCKED_S
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.monotonic() > said_at_s:
                said_at_s = math.inf
                self._say(f"waiting for the lock on {self.path}, which another run holds")
            if time.monotonic() > began_s + LOCKED_LIMIT_S:
                raise StoreError(
                    f"{self.path} has been locked by another process for {LOCKED_LIMIT_S:g} s; "
                    f"{STORED_IS_SAFE}; end that process, or write to another file"
                )
            with self.waiting():
                time.sleep(0.01)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other runs from changing the file; what the system refuses becomes a StoreError."""
        try:
            self._lock()
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except OSError as error:
            kind, wrong, advice = WRITE_ERRORS.get(
                error.errno or 0,
                (StoreError, f"it cannot be written ({error.strerror})", "write to another file"),
            )
            raise kind(f"{self.path}: {wrong}; {STORED_IS_SAFE}; {advice}") from error

    def _write(self, data: bytes) -> None:
        """Write all or nothing. The caller holds the lock, so nobody else moves the end."""
        size_bytes = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except BaseException:  # not only a full disk: Ctrl-C between two writes tears the line, too
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size_bytes)
                os.fsync(self._descriptor)
            raise

    def _repair_torn_line(self) -> None:
        """Make the file end with a whole line. The caller holds the lock."""
        start = self._start_of_last_line()
        num_bytes = os.fstat(self._descriptor).st_size - start
        if num_bytes == 0:
            return
        fragment = os.pread(self._descriptor, min(num_bytes, MAX_LINE_BYTES), start)
        why = find_wrong(fragment, self.kind) if fragment.strip() else None
        if why is None:
            self._write(b"\n")
            self.repaired = (
                f"{self.path}: the last line lacked its end, probably because a run was killed "
                "while writing it; the end was added, and nothing is lost"
            )
            return
        is_alone = not self._has_lines
        if num_bytes > MAX_LINE_BYTES or not is_torn(fragment, self.kind, is_alone=is_alone):
            raise refuse(self.path, self.kind, f"the last line: {why}")
        kept = self.path.with_name(f"{self.path.name}.torn")
        self._keep(fragment, kept)
        os.ftruncate(self._descriptor, start)
        os.fsync(self._descriptor)
        self.repaired = (
            f"{self.path}: the last line was cut short, probably because a run was killed while "
            f"writing it; its {num_bytes} bytes were moved to {kept}, and what stands before it "
            "was kept"
        )

    def _keep(self, fragment: bytes, path: Path) -> None:
        """Only ever appended to, since it may hold an earlier fragment."""
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(path, "ab", opener=lambda name, _: os.open(name, flags, 0o666)) as file:
            file.write(fragment + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _start_of_last_line(self) -> int:
        """Where whole lines end."""
        end = os.fstat(self._descriptor).st_size
        while end > 0:
            begin = max(0, end - CHUNK_BYTES)
            newline = os.pread(self._descriptor, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            end = begin
        return 0

    def _read_lines(self, end: int) -> Iterator[bytes]:
        """Whole lines; of one that is longer than the limit, the pieces."""
        with open(os.dup(self._descriptor), "rb", buffering=CHUNK_BYTES) as file:
            file.seek(0)
            while file.tell() < end:
                yield file.readline(MAX_LINE_BYTES)


class Store(LineFile):
    """A results file that is open for appending.

    with Store.open(Path("results/dyad.jsonl")) as store:
        store.append(record)
    """

    def append(self, record: Record) -> None:
        """Store one record; when this returns, it is on the disk."""
        line = encode(record) + b"\n"
        self._refuse_unreadable(record, line)
        self.append_line(line)

    def append_continuation(self, line: Continuation) -> None:
        """What a monitored run did since, after its first line."""
        self.append_line(encode_continuation(line) + b"\n")

    def _refuse_unreadable(self, record: Record, line: bytes) -> None:
        """One nonsensical record (a time of zero, not a number) would spoil the whole file."""
        name = f"{self.path}: the record of {record.suite}/{record.variant}"
        if len(line) > MAX_LINE_BYTES:
            raise RefusedRecord(
                name, f"it is longer than {MAX_LINE_BYTES} bytes; take fewer samples"
            )
        try:
            decode_line(line)
        except StoreError as error:
            raise RefusedRecord(name, str(error)) from None


def read(path: Path | str, *, skip_corrupt: bool = False) -> Contents:
    """Every record of a file, or of a published benchmark: ``published:dyad``.

    Raises CorruptFile at a line that is not a record, unless `skip_corrupt` makes it a warning.
    """
    warnings: list[str] = []
    records = list(scan(Path(path), warnings, skip_corrupt=skip_corrupt))
    return Contents(records=records, warnings=warnings)


def scan(path: Path, warnings: list[str], *, skip_corrupt: bool = False) -> Iterator[Record]:
    """The same, one record at a time; `warnings` grows on the way."""
    if is_published(path):
        from flopwatch.records.published import load

        yield from load(str(path).removeprefix(PUBLISHED))
        return
    num_intact = num_skipped = 0
    with reading(path) as file:
        joiner = RunJoiner()
        entries = _decode_lines(file, joiner)
        for number, entry, is_torn in entries:
            if isinstance(entry, Record):
                num_intact += 1
                if not joiner.begin(entry):
                    yield entry
            elif is_torn:
                warnings.append(
                    f"{path}: line {number}, the last, is cut short and was ignored; a run was "
                    "killed while writing it, or is writing it now"
                )
            elif isinstance(entry, NewerSchema):
                raise NewerSchema(f"{path}: line {number} cannot be read: {entry}")
            elif skip_corrupt:
                num_skipped += 1
                warnings.append(f"{path}: line {number} was skipped: {entry}")
            else:
                num_intact += sum(isinstance(other, Record) for _, other, _ in entries)
                raise _describe_corrupt(path, number, entry, num_intact)
        yield from joiner.finish()
    if num_skipped > 1:
        warnings.append(f"{path}: {num_skipped} lines were skipped, {num_intact} records were read")


def is_published(path: Path) -> bool:
    return str(path).startswith(PUBLISHED)


def _describe_corrupt(path: Path, number: int, why: StoreError, num_intact: int) -> CorruptFile:
    if num_intact == 0:
        return CorruptFile(f"{path} is not a results file: line {number}: {why}")
    others = (
        "the other record is intact, and --skip-corrupt reads it"
        if num_intact == 1
        else f"the {num_intact} other records are intact, and --skip-corrupt reads them"
    )
    return CorruptFile(f"{path}: line {number} is corrupt: {why}; {others}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[IO[bytes]]:
    """The file, open for reading; whatever the system has against it becomes a StoreError."""
    try:
        # A pipe would block for ever and a device would never end.
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise StoreError(f"{path} is {kind}; name a file")
        with path.open("rb", buffering=CHUNK_BYTES) as file:
            yield file
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist; check the name") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); check the file") from None


def _decode_lines(
    file: IO[bytes], joiner: RunJoiner
) -> Iterator[tuple[int, Record | StoreError, bool]]:
    """Number, record or what is wrong with it, and whether it is a torn last line. What continues a
    record goes to the joiner."""
    number = 0
    is_alone = True
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if not line.strip():
            continue
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            _skip_line(file)
            yield number, CorruptFile(f"it is longer than {MAX_LINE_BYTES} bytes"), False
            continue
        try:
            found = decode_line(line)
            is_alone = False
            if isinstance(found, Continuation):
                joiner.add(found)
            else:
                yield number, found, False
        except StoreError as error:
            is_cut = not line.endswith(b"\n")
            yield number, error, is_cut and is_torn(line, RESULTS, is_alone=is_alone)


def _skip_line(file: IO[bytes]) -> None:
    while (chunk := file.readline(CHUNK_BYTES)) and not chunk.endswith(b"\n"):
        pass


def _open_for_append(path: Path) -> int:
    flags = os.O_APPEND | os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_EXCL, 0o666)
    except FileExistsError:
        descriptor = os.open(path, flags, 0o666)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is not a regular file") from None
        return descriptor
    # A new file's name is only safe once its folder is on the disk. Some network file systems
    # cannot do that; the records are safe there as far as the server keeps its word.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return descriptor
