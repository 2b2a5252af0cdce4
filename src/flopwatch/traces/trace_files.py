"""Files of traces: which are, where they are, and their text, however it is packed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.records.store import RESULTS

SUFFIXES = (".json", ".gz")
GZIP, SQLITE = b"\x1f\x8b", b"SQLite format 3\0"
READ_BYTES = 2**20
UNPACKED_BYTES = 4 * 2**20
"""At once: a packed file may be a thousand times as long."""

Report = Callable[[int], object]
"""Takes how many bytes of the file have been read."""


class TraceError(FlopwatchError):
    """A file that is no trace of torch.profiler."""


def is_trace(path: Path) -> bool:
    """Whether it looks like one, or like something that people take for one: a folder, a packed
    file, a database of another profiler. A results file does not."""
    if path.is_dir():
        return True
    try:
        with path.open("rb") as file:
            head = file.read(2**16)
    except OSError:
        head = b""
    if head.startswith(RESULTS.keys[0]):
        return False
    is_packed = head.startswith((GZIP, SQLITE))
    return is_packed or b'"traceEvents"' in head or path.suffix in SUFFIXES


def list_traces(path: Path) -> list[Path]:
    """The file, or those of a folder, each in the order of its name."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if not found:
        raise UsageError(
            f"{path} has no traces, no file that ends in .json or .json.gz; name the folder that "
            "torch.profiler.tensorboard_trace_handler wrote to"
        )
    return found


class PackedText:
    """The text of a file in chunks. What follows damage is left out."""

    def __init__(self, path: Path, file: IO[bytes], report: Report) -> None:
        self.path, self.file, self.report = path, file, report
        self.is_damaged = False
        """Whether its packed form is, or has no end."""
        self.chunks = self._unpack()

    def __iter__(self) -> Iterator[bytes]:
        """Those that have not been taken yet."""
        return self.chunks

    def _unpack(self) -> Iterator[bytes]:
        chunk = self.file.read(READ_BYTES)
        if chunk.startswith(SQLITE):
            raise TraceError(
                f"{self.path} is an SQLite database, as Nsight Systems writes them, and not a "
                "trace of torch.profiler; export one with profiler.export_chrome_trace"
            )
        unpacker = zlib.decompressobj(wbits=31) if chunk.startswith(GZIP) else None
        while chunk:
            self.report(self.file.tell())
            if unpacker is None:
                yield chunk
            else:
                try:
                    yield unpacker.decompress(chunk, UNPACKED_BYTES)
                except zlib.error:
                    self.is_damaged = True
                    return
                chunk = unpacker.unconsumed_tail
                if unpacker.eof and unpacker.unused_data:
                    chunk, unpacker = unpacker.unused_data, zlib.decompressobj(wbits=31)
                if chunk:
                    continue
            chunk = self.file.read(READ_BYTES)
        self.is_damaged = unpacker is not None and not unpacker.eof
