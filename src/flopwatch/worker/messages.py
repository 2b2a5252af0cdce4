"""The messages between the runner and its workers, each one line of JSON.

A worker gets one request and sends reports. Both sides encode and decode them here, so that a line
that is no message (not JSON, an unknown kind, a missing field, a value of another type) raises
BrokenMessage, which the runner treats like the death of the process that sent it.

    request         reports
    Describe        Returned with a Description, or Refused
    Call            Returned, or Refused
    MeasureGroup    Sources, early: a crash while building is known by its sources too
                    for each variant Built or Failed
                    Samples in batches, then Finished
                    for each variant with curves Points in batches, then CurvesTaken
                    for each variant Memory
                    Sources
                    or at any time Restart: what is left needs new processes
    any             Broken: the request as a whole has failed
                    Served, last: the process waits for another request

A process that was forked serves one request. One that was spawned may serve several, each with
descriptors of its own (`worker.spawned_worker`).

Under torchrun every rank has a flopwatch process of its own; that of rank 0 is the runner, and
passes requests on to the others.

    to the runner         Hello (a rank and its place), RankFailed, RankEnded, RankStack
    to the other ranks    Welcome, Start (a worker, with this request), ReadStack, Stop, End
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from flopwatch.errors import WorkerError
from flopwatch.records.record import (
    Check,
    PhaseMemory,
    Queue,
    Rank,
    RankMemory,
    RankTimeline,
    Region,
)
from flopwatch.records.record import Stop as StopReason
from flopwatch.settings import Settings
from flopwatch.worker.failure import Failure
from flopwatch.worker.sampling import Progress

RANKS = "ranks"
"""The axis whose values are numbers of processes, with torch.distributed between them."""


class BrokenMessage(WorkerError):
    """A line that is none of the messages expected there."""


class Message(msgspec.Struct, tag_field="kind", tag=True, frozen=True, forbid_unknown_fields=True):
    """Its kind is the name of its class."""


# From the runner to a worker.


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlace:
    """One rank in a job, as the runner or torchrun assigns it."""

    rank: int
    ranks: int
    local_rank: int
    """Among the ranks of its node; on GPUs the number of its device."""
    local_ranks: int
    """How many there are on its node."""
    node_ranks: int
    """The same on every node; where nodes differ, all ranks, as if there were one node."""
    address: str
    port: int
    """Where rank 0 listens."""

    @property
    def is_one_node(self) -> bool:
        return self.local_ranks == self.ranks


class Request(Message, frozen=True, kw_only=True):
    settings: Settings
    paths: list[str] = []
    """Folders that modules are imported from before all others: those of a revision."""
    place: RankPlace | None = None
    """This process among ranks; None where there are none."""
    fresh: bool = False
    """Whether it must be a process that has served no other request."""


class Describe(Request, frozen=True, kw_only=True):
    """Load a suite file and list its cases."""

    suite_path: str
    devices: int = 1
    """How many accelerators this node has, where it is one that is measured on."""
    device_name: str | None = None
    """What their driver calls them."""
    quick: bool = False
    preset: str | None = None
    chosen: dict[str, list[str]] = {}
    """Values by axis in place of the suite's own, as text."""
    baseline: str | None = None
    ranks: int | None = None
    """How many torchrun has started, where the user has not chosen."""


class Call(Request, frozen=True, kw_only=True):
    """Call a function of `worker.called_functions`; of several ranks, rank 0 returns its value."""

    function: str
    arguments: dict[str, Any]


class MeasureGroup(Request, frozen=True, kw_only=True):
    suite_path: str
    params: dict[str, Any]
    variants: list[str]
    baseline: str
    cache_bytes: int | None
    is_probe: bool
    """Only try whether the group can run."""
    side: Literal[0, 1] | None = None
    """Which of two workers that take turns this one is; None: it takes none."""


RankRequest = Call | MeasureGroup
"""Those that several ranks can serve."""


# From a worker to the runner.


class Returned(Message, frozen=True):
    """What was asked for, as plain data."""

    value: Any


class Refused(Message, frozen=True):
    """The user asked for something that is not possible."""

    message: str


class Broken(Message, frozen=True):
    """The suite could not be loaded, ranks could not meet, or a function raised."""

    failure: Failure
    is_peer_lost: bool
    """Whether it only means that another rank is gone, which has a reason of its own."""
    is_port_taken: bool
    """Whether nothing has begun, since ranks could not meet at their port; another may do."""


class Served(Message, frozen=True):
    """All is done without a failure, and the process is as it was before: it can serve another
    request."""


class Sources(Message, frozen=True):
    """Project files that the group was built from, with their digests."""

    sources: dict[str, str]


class Built(Message, frozen=True):
    """A variant was built and agreed with its reference. Fields are those of the record."""

    variant: str
    check: Check | None
    unchecked: str | None
    flops: dict[str, dict[str, float]]
    bytes: dict[str, float]
    job: dict[str, Any] | None
    conditions: dict[str, str]
    facts: dict[str, float]
    first_call_page_faults: int
    notes: list[str]


class Failed(Message, frozen=True):
    """A variant has raised."""

    variant: str
    failure: Failure
    check: Check | None
    is_peer_lost: bool


class Restart(Message, frozen=True):
    """Memory ran out while building, the device has failed, or ranks lost each other; what is left
    needs new processes."""


class NewSamples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one variant since the last message. Fields are those of the record."""

    samples_ns: dict[str, list[float]]
    rounds: list[int]
    calls_per_sample: list[int]
    queue: Queue | None
    ranks: list[Rank]
    instrumented_ns: list[float]
    regions: dict[str, Region]


class Samples(Message, frozen=True):
    samples: dict[str, NewSamples]
    progress: Progress | None


class Finished(Message, frozen=True):
    """Sampling has ended."""

    stop_reason: StopReason | None
    throttled: list[str] = []
    gpus: list[dict[str, Any]] = []
    """By rank, the state of its GPU; empty where nothing is known."""
    rebuilt_rounds: list[int] = []
    curves: list[str] = []
    """Variants whose curves follow."""
    timelines: dict[str, list[RankTimeline]] = {}
    """By variant, of a typical step."""


class Points(Message, frozen=True):
    """Of a variant's curves, since the last message."""

    variant: str
    points: list[dict[str, float]]


class CurvesTaken(Message, frozen=True):
    variant: str
    note: str | None = None
    """Why they end early."""


class Memory(Message, frozen=True):
    """What a run of a variant holds. Fields are those of the record."""

    variant: str
    resident_bytes: int
    peak_memory_bytes: int
    memory: dict[str, PhaseMemory]
    rank_memory: list[RankMemory | None] = []
    """By rank, of a job."""


Report = (
    Returned
    | Refused
    | Broken
    | Served
    | Sources
    | Built
    | Failed
    | Restart
    | Samples
    | Finished
    | Points
    | CurvesTaken
    | Memory
)


# Between flopwatch processes that torchrun has started.


class Hello(Message, frozen=True):
    place: RankPlace


class Welcome(Message, frozen=True):
    pass


class JobMessage(Message, frozen=True):
    job: int
    """Jobs are counted: what is late is about one that is over."""


class Start(JobMessage, frozen=True):
    request: RankRequest


class ReadStack(JobMessage, frozen=True):
    """Of a worker that does not go on."""


class Stop(JobMessage, frozen=True):
    pass


class End(Message, frozen=True):
    pass


class RankFailed(JobMessage, frozen=True):
    failure: Failure


class RankEnded(JobMessage, frozen=True):
    early: Failure | None = None
    """What it was doing, for the case that the job is not done."""


class RankStack(JobMessage, frozen=True):
    stack: str
    """Empty where the worker does not answer."""


RankMessage = Hello | Welcome | Start | ReadStack | Stop | End | RankFailed | RankEnded | RankStack


# What a suite declares.


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedCase:
    variant: str
    params: dict[str, Any]
    flops: dict[str, float] = field(default_factory=dict)
    """Of one run, by dtype; empty where they are not declared."""
    memory: dict[str, float] = field(default_factory=dict)
    """Bytes that a process needs, by part; empty where they are not predicted."""
    job: dict[str, Any] | None = None
    """The training job that it is; of candidates, with the smallest."""
    candidates: dict[str, list[int]] = field(default_factory=dict)
    """By axis whose value is to be the largest that fits: those to choose from, ascending."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """What a suite file declares."""

    name: str
    baseline: str
    axes: dict[str, list[Any]]
    """Of all grids; a case has those of its own grid."""
    variants: list[str]
    cases: list[DescribedCase]
    """Those of a group next to each other."""
    on_request: dict[str, list[Any]] = field(default_factory=dict)
    """Values, by axis or of "variant", that a run must ask for."""
    presets: list[str] = field(default_factory=list)
    """Names of other grids that can be measured instead."""
    apart: bool = False
    """Whether what variants of a group need in memory adds up."""
    parts: dict[str, str | None] = field(default_factory=dict)
    """Variants that are lists of parts, each with the variant that they make up."""
    layout: str | None = None
    """The published layout that records can be shown in."""
    columns: list[str] = field(default_factory=list)
    """Names of the columns that the suite declares itself."""
    fresh: bool = False
    """Whether each group needs a process that has served no other."""


# Encoding.

Decoded = TypeVar("Decoded")

LONGEST_BYTES = 64 * 2**20
"""Of a message; without a limit, a process that writes without end would fill the memory."""

_encoder = msgspec.json.Encoder()


def encode(message: Message) -> bytes:
    """One line, with its newline."""
    return _encoder.encode(message) + b"\n"


class LineReader(Generic[Decoded]):
    """Messages from what arrives in pieces. `expected` is a union of kinds."""

    def __init__(self, expected: Any) -> None:
        self._decoder = msgspec.json.Decoder(expected)
        self._pending = bytearray()
        """The beginning of a message whose end has not arrived."""

    def feed(self, chunk: bytes) -> list[Decoded]:
        return list(self.read(chunk))

    def read(self, chunk: bytes) -> Iterator[Decoded]:
        """One by one, so that those before a broken one arrive."""
        head, newline, tail = chunk.partition(b"\n")
        self._pending += head
        if len(self._pending) > LONGEST_BYTES:
            raise BrokenMessage(f"more than {LONGEST_BYTES} bytes are not a message")
        if not newline:
            return
        first = bytes(self._pending)
        *lines, rest = tail.split(b"\n")
        self._pending = bytearray(rest)
        for line in (first, *lines):
            yield self.decode(line)

    def decode(self, line: bytes) -> Decoded:
        try:
            message: Decoded = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokenMessage(f"{line[:80]!r} is not a message ({error})") from None
        return message


def decode_request(data: bytes) -> Describe | Call | MeasureGroup:
    return LineReader[Describe | Call | MeasureGroup](Describe | Call | MeasureGroup).decode(data)
