"""Reads what torch.profiler writes, piece by piece: memory is bounded, however long a trace is.

The list `traceEvents` is cut into pieces between two events, and msgspec decodes each of them into
the few fields that are needed. Where a cut lies inside of an event or a string, the piece is no
JSON, and the cut before it is tried: a piece that can be decoded was cut right. What comes before
and after the list is decoded with the last piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from flopwatch.errors import StoreError
from flopwatch.traces.flop_counts import has_flops
from flopwatch.traces.trace_events import (
    ANNOTATION,
    COPY,
    KERNEL,
    MODULE,
    NONE,
    OPERATOR,
    Trace,
    TraceBuilder,
)
from flopwatch.traces.trace_files import PackedText, Report, TraceError

PIECE_BYTES = 4 * 2**20
LONGEST_PIECE_BYTES = 2**28
"""Without a place to cut it."""
HEAD_BYTES = 2**24
"""In which the list of events must begin."""
CUT = re.compile(rb"\}\s*,\s*\{")
END = re.compile(rb'(?:\}|^)\s*(\])\s*(?:,\s*"|\}\s*$|$)')
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
TRIES = 32
"""Cuts that are tried before more is read."""
LARGEST_NS = 2**62


class _Arguments(msgspec.Struct, gc=False):
    external: int | None = msgspec.field(default=None, name="External id")
    correlation: int | None = None
    sequence: int | None = msgspec.field(default=None, name="Sequence number")
    device: int | None = None
    stream: int | None = None
    group: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Ranks")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: int | float = 0
    dur: int | float = 0
    args: _Arguments | None = None


class _Device(msgspec.Struct):
    id: int
    name: str


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class _About(msgspec.Struct):
    """What stands around the list of events."""

    schema_version: Any = msgspec.field(default=None, name="schemaVersion")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    record_shapes: Any = None


_DECODER = msgspec.json.Decoder(list[_Event])
_ONE = msgspec.json.Decoder(_Event, strict=False)
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
NO_ARGUMENTS = _Arguments()


def read_trace(path: Path, report: Report = lambda _: None) -> Trace:
    try:
        if path.exists() and not path.is_file():
            raise TraceError(f"{path} is not a regular file; name a trace")
        with path.open("rb") as file:
            return _Reader(path, file, report).read()
    except FileNotFoundError:
        raise StoreError(f"{path} does not exist; check the name") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}); check the file") from None


class _Reader:
    def __init__(self, path: Path, file: IO[bytes], report: Report) -> None:
        self.path = path
        self.text = PackedText(path, file, report)
        self.builder = TraceBuilder()
        self.is_cut = False
        self.unreadable = 0
        self.foreign = 0
        """Events that are none of torch.profiler's."""

    def read(self) -> Trace:
        head, begun = self._find_events()
        about = self._read_events(head, begun)
        return self._finish(about)

    def _find_events(self) -> tuple[bytes, bytes]:
        """The text up to the list's first event, and what was read beyond."""
        text = b""
        for chunk in self.text:
            text += chunk
            if text.lstrip()[:1] == b"[":
                place = text.index(b"[") + 1
                return text[:place], text[place:]
            found = EVENTS.search(text)
            if found:
                return text[: found.end()], text[found.end() :]
            if len(text) > HEAD_BYTES:
                break
        raise self._refuse(text)

    def _refuse(self, text: bytes) -> TraceError:
        if not text.strip():
            return TraceError(f"{self.path} is empty; record a trace again")
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            why = (
                "it is not JSON" if not self.text.is_damaged else "it is cut off before its events"
            )
        else:
            why = "it is JSON without a list traceEvents"
        return TraceError(
            f"{self.path} is not a trace of torch.profiler: {why}; name a file that "
            "profiler.export_chrome_trace wrote"
        )

    def _read_events(self, head: bytes, begun: bytes) -> _About:
        buffer, wanted = begun, PIECE_BYTES
        for chunk in self.text:
            buffer += chunk
            if len(buffer) < wanted:
                continue
            left = self._take_events(buffer)
            # Otherwise there was no place to cut: a long event, or what follows the list.
            wanted = PIECE_BYTES if left is not None else 2 * len(buffer)
            buffer = buffer if left is None else left
            if len(buffer) > LONGEST_PIECE_BYTES:
                raise TraceError(
                    f"{self.path} has an event of more than {LONGEST_PIECE_BYTES // 2**20} MiB, or "
                    "is no trace; record it again"
                )
        return self._read_last(head, buffer)

    def _take_events(self, buffer: bytes) -> bytes | None:
        """Add the whole events of a piece, and return the rest; None where it cannot be cut."""
        near = max(0, len(buffer) - 2**18)
        cuts = [found.start() + 1 for found in CUT.finditer(buffer, near)]
        for cut in cuts[: -TRIES - 1 : -1]:
            if self._add(b"[" + buffer[:cut] + b"]"):
                return buffer[buffer.index(b",", cut) + 1 :]
        return None

    def _read_last(self, head: bytes, rest: bytes) -> _About:
        """The end of the list, and what is around it."""
        end = self._find_end(rest)
        if end is not None:
            text = head + b"]" + rest[end + 1 :]
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                return _decode_about(text)
            self.is_cut = True
        else:
            self.is_cut = bool(rest.strip())
            if rest.strip():
                self._take_whole(rest)
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return _decode_about(head + b"]}")
        return _About()

    def _find_end(self, rest: bytes) -> int | None:
        """Where the list ends, with what it has been added; None where it does not."""
        for place in _list_ends(rest):
            if self._add(b"[" + rest[:place] + b"]"):
                return place
        return None

    def _take_whole(self, rest: bytes) -> None:
        """Of a list without an end, the events that are whole."""
        for found in [*CUT.finditer(rest)][: -TRIES - 1 : -1]:
            if self._add(b"[" + rest[: found.start() + 1] + b"]"):
                return
        self._add(b"[" + rest.rstrip().rstrip(b",") + b"]")

    def _add(self, text: bytes) -> bool:
        """Whether the text is a list of events; then they are added."""
        try:
            events = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = self._decode_one_by_one(text)
            if found is None:
                return False
            events = found
        self._add_events(events)
        return True

    def _decode_one_by_one(self, text: bytes) -> list[_Event] | None:
        """Without what is no event; None where it is no list."""
        for candidate in (text, _repair(text)):
            try:
                raw = _RAW.decode(candidate)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            events = []
            for one in raw:
                try:
                    events.append(_ONE.decode(one))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    self.unreadable += 1
            return events
        return None

    def _add_events(self, events: list[_Event]) -> None:
        builder = self.builder
        find_name, find_thread = builder.names.find, builder.threads.find
        add_host, add_launch = builder.host.values.extend, builder.launches.values.extend
        add_work = builder.work.values.extend
        for event in events:
            if event.ph != "X":
                continue
            place = PLACES.get(event.cat)
            if place is None:
                self.foreign += event.cat not in KNOWN
                continue
            start = _read_ns(event.ts)
            end = start + max(0, _read_ns(event.dur))
            if not -LARGEST_NS < start <= end < LARGEST_NS:
                self.unreadable += 1
                continue
            args = event.args or NO_ARGUMENTS
            correlation, external = _read_small(args.correlation), _read_small(args.external)
            if place == LAUNCH:
                add_launch((start, end, find_thread((event.pid, event.tid)), correlation))
            elif place in (KERNELS, COPIES):
                add_work((
                    start, end, find_name(event.name), KERNEL if place == KERNELS else COPY,
                    _read_small(args.device), _read_small(args.stream), correlation, external,
                    find_name(bytes(args.group).decode()) if args.group else NONE,
                ))  # fmt: skip
            elif place != MODULE or event.name.startswith(MODULES):
                shape = self._find_shape(event.name, args) if args.dims else NONE
                add_host((
                    start, end, find_name(event.name), find_thread((event.pid, event.tid)), place,
                    external, _read_small(args.sequence), shape,
                ))  # fmt: skip

    def _find_shape(self, name: str, args: _Arguments) -> int:
        """Only of operators whose FLOPs follow from their shapes."""
        if not has_flops(name):
            return NONE
        return self.builder.shapes.find((bytes(args.dims), bytes(args.types), bytes(args.values)))

    def _finish(self, about: _About) -> Trace:
        host, launches, work = self.builder.finish()
        if not len(host) and not len(work):
            raise TraceError(f"{self.path} {self._describe_nothing(about)}")
        return Trace(
            file=str(self.path),
            names=self.builder.names.list(),
            host=host,
            launches=launches,
            work=work,
            shapes=list(self.builder.list_shapes()),
            device_names=_read_devices(about.devices),
            **_read_rank(about.distributed),
            is_recorded_with_shapes=len(self.builder.shapes) > 0,
            remarks=list(self._list_remarks()),
        )

    def _describe_nothing(self, about: _About) -> str:
        if self.foreign or (about.schema_version is None and not self.is_cut):
            return (
                "is a Chrome trace of another program: it has no operators and no kernels of "
                "torch.profiler; name a file that profiler.export_chrome_trace wrote"
            )
        if self.is_cut or self.text.is_damaged:
            return "is cut off before its first operator or kernel; record it again"
        return (
            "has no operators and no kernels; let the profiler run over at least one step, with "
            "activities CPU and CUDA"
        )

    def _list_remarks(self) -> Iterator[str]:
        if self.is_cut or self.text.is_damaged:
            yield (
                f"{self.path} is cut off or damaged: what is whole of it was read, the end is "
                "missing"
            )
        if self.unreadable:
            yield f"{self.path} has {self.unreadable} events that cannot be read; they are left out"


LAUNCH, KERNELS, COPIES = 3, 4, 5
PLACES: dict[str, int] = {
    "cpu_op": OPERATOR,
    "Operator": OPERATOR,
    "user_annotation": ANNOTATION,
    "python_function": MODULE,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "Runtime": LAUNCH,
    "xpu_runtime": LAUNCH,
    "xpu_driver": LAUNCH,
    "mtia_runtime": LAUNCH,
    "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH,
    "kernel": KERNELS,
    "Kernel": KERNELS,
    "gpu_memcpy": COPIES,
    "gpu_memset": COPIES,
    "Memcpy": COPIES,
    "Memset": COPIES,
}
"""By category of an event; those with capitals are of torch before 1.13."""
KNOWN = ("Trace", "gpu_user_annotation", "overhead", "cuda_sync", "collective_comm")
"""Categories of torch.profiler that are not needed."""
MODULES = ("nn.Module: ",)


def _read_ns(time_us: float) -> int:
    """
    >>> _read_ns(1661203462598738), _read_ns(4458676522690.655)
    (1661203462598738000, 4458676522690655)
    """
    if isinstance(time_us, int):
        return time_us * 1000
    whole = int(time_us)  # apart, since the product has no room for the last digit
    return whole * 1000 + round((time_us - whole) * 1000)


def _read_small(number: int | None) -> int:
    return number if number is not None and 0 <= number < LARGEST_NS else NONE


def _list_ends(rest: bytes) -> Iterator[int]:
    """Places at which a list can end, the likeliest first: before the keys that follow it."""
    places = [found.start(1) for found in END.finditer(rest)][:TRIES]
    last = rest.rfind(b"]")
    yield from dict.fromkeys([*places, *([last] if last >= 0 else [])])


def _repair(text: bytes) -> bytes:
    """What profilers have written though it is no JSON: numbers without a value, paths of Windows
    without escapes, bytes that are no UTF-8."""
    text = re.sub(rb":\s*-?(nan|inf|NaN|Infinity)\b", b": null", text)
    text = re.sub(rb'\\(?!["\\/bfnrtu])', rb"\\\\", text)
    return text.decode(errors="replace").encode()


def _decode_about(text: bytes) -> _About:
    if text.lstrip()[:1] == b"[":
        return _About()
    return msgspec.json.decode(text, type=_About)


def _read_devices(found: Any) -> dict[int, str]:
    try:
        return {one.id: one.name for one in msgspec.convert(found, list[_Device])}
    except msgspec.ValidationError:
        return {}


def _read_rank(found: Any) -> dict[str, int | None]:
    try:
        told = msgspec.convert(found, _Distributed)
    except msgspec.ValidationError:
        told = _Distributed()
    return {"rank": told.rank, "world_size": told.world_size}
