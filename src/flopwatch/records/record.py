"""The record: one measured case, or one failure, as one JSON object on one line.

Raw samples are the result. Everything else (medians, intervals, speedups, FLOP/s) is computed on
reading, so that a better formula improves old results too. A record stands alone: it carries the
environment and the settings that made it, so that a single line can be mailed, grepped or merged.

The schema's number rises with every change once a version is released, and a released version stays
readable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from flopwatch.errors import CorruptFile, NewerSchema
from flopwatch.records.monitored import Continuation, Monitored, find_uneven
from flopwatch.records.quantities import (
    LARGEST_UNSIGNED,
    Amount,
    Calls,
    Count,
    Number,
    PartTime,
    Time,
)
from flopwatch.settings import Settings

SCHEMA = 1

LONG_NUMBER = b"0" * len(str(LARGEST_UNSIGNED))
ALL_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"0" * 9)

MOST_NESTED = 100
"""Levels of values within values: what writes them recurses, and Python limits that."""

SECTIONS = ("machine", "software", "project", "torch", "load", "slurm", "published", "imported")
"""Of an environment: what readers look into."""

Status = Literal["ok", "oom", "crash", "timeout", "wrong", "unsupported", "skipped"]
Stop = Literal["settled", "precise", "stalled", "budget", "interrupted"]
Cause = Literal[
    "does-not-fit",
    "too-few-ranks",
    "budget",
    "interrupted",
    "rank-lost",
    "time-limit",
    "preempted",
    "cancelled",
    "never-started",
    "job-ended",
]
"""Why a case was skipped, as a code; `message` says it in a sentence."""
Kind = Literal["whole", "parts"]
"""A variant is a whole that is compared with the baseline, or a list of parts that are timed one by
one: their sum is no speed of a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """How a variant agreed with its reference before it was timed."""

    reference: str
    errors: dict[str, float | None]
    """By value ("output", "grad weight"): largest deviation over the reference's largest
    magnitude; None where it is not a number."""
    tolerance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """A part of a case, timed by instruments inside it."""

    calls: Calls
    """How often it ran in one run of the case."""
    samples_ns: list[PartTime]
    """All its calls together, one value for each instrumented run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseMemory:
    """What a phase of a run held, beyond what was there before the run."""

    peak_bytes: Count
    end_bytes: Count
    """At its end: after a forward pass, what it keeps for the backward pass, and its result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Queue:
    """How the process kept its device busy; lists are parallel to `rounds`, and None stands where
    it was not looked at: the very first call."""

    enqueue_ns: list[PartTime | None]
    """How long it took to queue one call of all phases, by the clock of the process."""
    drain_ns: list[PartTime | None]
    """How long the device went on once the last call of the sample was queued. Next to nothing:
    the device had no work left, and waited for more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """What one of a job's processes did in the samples; all lists are parallel to `rounds`. None
    stands where it is not known: in the first call, which checks results, and where a workload does
    not see its collectives."""

    samples_ns: dict[str, list[PartTime]]
    """By phase, on its own clock. A job's phase ends when the last rank has ended it."""
    waiting_ns: list[PartTime | None]
    """In collectives, until the last rank of the group arrived."""
    transfer_ns: list[PartTime | None]
    """In exchanges, from then on."""
    overlapped_ns: list[PartTime | None] = field(default_factory=list)
    """In which an exchange ran beside other work of the rank; empty in imported records."""
    bubble_ns: list[PartTime | None] = field(default_factory=list)
    """Of a pipeline's rank: for other stages, to send or to receive, and from its own end of the
    step until the last rank's. Empty where there is no pipeline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """What a run held on one of a job's ranks, as the record has it for rank 0."""

    resident_bytes: Count
    peak_memory_bytes: Count


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimeline:
    """What a rank did in one step, which is a typical one; lists are parallel."""

    kind: list[str]
    """forward, backward or weight: a pass of a pipeline's stage; a phase, where there is none;
    waiting, transfer or bubble, on top of these."""
    begin_ns: list[PartTime]
    """From the beginning of the step on its first rank."""
    end_ns: list[PartTime]
    stage: list[Count | None]
    micro_batch: list[Count | None]
    exchange: list[str]
    """What was waited for or moved: a collective and the dimension of the device mesh that it is
    along, or a rank that was sent to or received from. Empty of passes and phases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteColumn:
    """A column that the suite itself declares, with the value that it has for the case."""

    value: bool | Number | str | None
    unit: str = ""
    meaning: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    case_id: str
    """Hash of suite, variant and parameters: the same case has the same id in every run."""
    group_id: str
    """Hash of suite and parameters: what the variants of one comparison share."""
    run_id: str
    """One `flopwatch run`. Samples pair by round where both run and group are equal."""
    suite: str
    variant: str
    baseline: str
    params: dict[str, Any]
    status: Status
    message: str | None = None
    cause: Cause | None = None
    """Why it was skipped; None for every other status."""
    kind: Kind = "whole"
    parts_of: str | None = None
    """For a list of parts: the variant that they make up, where there is one."""
    layout: str | None = None
    """The published layout that the case can be shown in, as its suite declares it."""
    job: dict[str, Any] | None = None
    """The training job that it is, or the linear layer, as the suite declares it (`jobs`)."""
    samples_ns: dict[str, list[Time]] = field(default_factory=dict)
    """By phase, time of one call, in order of taking, warm-up first."""
    rounds: list[Count] = field(default_factory=list)
    """The round that each sample belongs to, parallel to every list in samples_ns."""
    calls_per_sample: list[Calls] = field(default_factory=list)
    """How many calls each sample is the mean of: more than 1 where one call is too short."""
    queue: Queue | None = None
    """None where work is done when its call returns, as on a CPU."""
    warmup_samples: Count = 0
    """How many of the leading samples were taken before the steady state was detected."""
    steady: bool | None = None
    """Whether a steady state was detected; None where nothing was sampled."""
    stop_reason: Stop | None = None
    """Why sampling ended."""
    rebuilt_rounds: list[Count] = field(default_factory=list)
    """Before which all variants were built again, at other addresses in memory."""
    flops: dict[str, dict[str, Amount]] = field(default_factory=dict)
    """By phase and dtype, as the suite declares them; a key ``phase/region`` is a part of its
    phase, already counted there."""
    bytes: dict[str, Amount] = field(default_factory=dict)
    """By phase: bytes that must be moved, as the suite declares them."""
    conditions: dict[str, str] = field(default_factory=dict)
    """What the case itself fixed and a fair comparison must have in common: dtype, autocast."""
    facts: dict[str, Number] = field(default_factory=dict)
    """Numbers about the case as it was built: how many parameters it has."""
    columns: dict[str, SuiteColumn] = field(default_factory=dict)
    """Columns of the suite's own, by name. They are computed when the case has been measured, since
    a reader of the record need not have the suite's file."""
    instrumented_ns: list[PartTime] = field(default_factory=list)
    """Whole runs with instruments on, one after each measured sample, in the same round: over
    that sample it is what the instruments cost."""
    regions: dict[str, Region] = field(default_factory=dict)
    """By ``phase/region``: what the instruments saw, parallel to instrumented_ns."""
    ranks: list[Rank] = field(default_factory=list)
    """By rank; empty where the case is no job of several processes."""
    rank_memory: list[RankMemory | None] = field(default_factory=list)
    """By rank; empty where the case is no job, or where it is not known."""
    timeline: list[RankTimeline] = field(default_factory=list)
    """By rank, of one measured step, whose time is close to the median; empty where it is not
    known."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    """What the case produced as it ran, by name: a training loss, step by step. Curves of one
    record are parallel."""
    peak_memory_bytes: Count | None = None
    """Most memory of the device (on a CPU: of tensors) that one run held beyond what was there
    before it; of a job, on rank 0."""
    memory: dict[str, PhaseMemory] = field(default_factory=dict)
    """The same by phase; empty where it is not known."""
    resident_bytes: Count | None = None
    """Tensors that were there before a run, and not counted above: parameters, the optimizer's
    state, inputs, also those of the other variants."""
    predicted_memory_bytes: dict[str, Amount] = field(default_factory=dict)
    """By part, what the suite predicted that a process with this case needs at its peak, what is
    held before a run included."""
    first_call_page_faults: Count | None = None
    """Pages of memory that the system had to provide during the very first call."""
    monitored: Monitored | None = None
    """Of a user's own training loop: what `flopwatch.Monitor` saw of it."""
    check: Check | None = None
    unchecked: str | None = None
    """Why nothing was compared, where that was wanted."""
    prediction: dict[str, Any] | None = None
    throttled: list[str] = field(default_factory=list)
    """Why the device lowered its clocks while it was measured: "its power limit"."""
    notes: list[str] = field(default_factory=list)
    """Remarks about how the case was built and measured, as sentences."""
    settings: Settings = field(default_factory=Settings)
    environment: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """The project files that the case was built from, with their digests."""
    measured_at: str = ""
    """ISO 8601, UTC."""
    schema: int = SCHEMA

    @property
    def is_misfit(self) -> bool:
        """Whether it was not tried because memory, or the number of ranks, was too small for it."""
        return self.cause in ("does-not-fit", "too-few-ranks")


def identify(record: Record) -> dict[str, Any]:
    """For JSON: which case it is of, in which run, and what became of it."""
    names = ("suite", "variant", "params", "status", "message", "case_id", "run_id", "measured_at")
    return {name: getattr(record, name) for name in names}


class Header(msgspec.Struct):
    """What has to be known of a line before the rest of it can be judged."""

    schema: Annotated[int, Meta(ge=1)]
    continued: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Of a line that is no record, but continues one."""


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(Header)
_record_decoder = msgspec.json.Decoder(Record)
_continuation_decoder = msgspec.json.Decoder(Continuation)


def encode(record: Record) -> bytes:
    """One line, without its newline."""
    return _encoder.encode(record)


def decode(line: bytes) -> Record:
    """The record on one line.

    Raises CorruptFile or NewerSchema with a sentence that does not name file or line: the caller
    knows those.
    """
    found = decode_line(line)
    if isinstance(found, Continuation):
        raise CorruptFile("it is not a record, but continues one")
    return found


def decode_line(line: bytes) -> Record | Continuation:
    """What is on one line of a results file: the same errors."""
    try:
        header = _header_decoder.decode(line)
        if header.schema > SCHEMA:
            raise NewerSchema(
                f"it has schema {header.schema}, and this flopwatch reads schema {SCHEMA}: it is "
                "from a newer version, or from before the first release; upgrade flopwatch or "
                "measure again"
            )
        if header.continued is not msgspec.UNSET:
            continuation = _continuation_decoder.decode(line)
            for wrong in find_uneven(continuation.continued):
                raise CorruptFile(wrong)
            return continuation
        record = _record_decoder.decode(line)
    except msgspec.ValidationError as error:
        raise CorruptFile(f"it is not a record ({error})") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"it is not JSON ({error})") from None
    for wrong in _find_contradictions(record):
        raise CorruptFile(wrong)
    # Walking through all values takes longer than decoding them, and few lines need it.
    free = [record.params, record.job, record.prediction, record.environment]
    if line.count(b"{") + line.count(b"[") > MOST_NESTED:
        _refuse_deep_nesting(free)
    if LONG_NUMBER in line.translate(ALL_DIGITS_ALIKE):
        refuse_large_integers([*free, msgspec.to_builtins(record.settings)])
    return record


def _find_contradictions(record: Record) -> Iterator[str]:
    """What the types of single fields cannot say."""
    num_samples, num_runs = len(record.rounds), len(record.instrumented_ns)
    num_measured = num_samples - record.warmup_samples
    if record.rounds and not record.samples_ns:
        yield f"it has {num_samples} rounds but no samples"
    if len(set(record.rounds)) != num_samples:
        yield "it has two samples of one round"
    if num_measured < 0:
        yield f"it has {record.warmup_samples} warm-up samples of {num_samples}"
    if num_runs > num_measured:  # fewer where a run was cut off
        yield f"it has {num_runs} instrumented runs but {num_measured} samples"
    for name, length in _list_lengths(record):
        if length != num_samples:
            yield f"it has {num_samples} rounds but {length} of {name}"
    for name, region in record.regions.items():
        if len(region.samples_ns) != num_runs:
            yield f"it has {num_runs} instrumented runs but {len(region.samples_ns)} of {name}"
    yield from _find_uneven_lanes(record.timeline)
    if len({len(values) for values in record.curves.values()}) > 1:
        yield "its curves differ in length"
    yield from _find_uneven_ranks(record.monitored)
    yield from _find_wrong_sections(record.environment)


def _find_uneven_lanes(timeline: list[RankTimeline]) -> Iterator[str]:
    for number, lane in enumerate(timeline):
        lengths = {len(getattr(lane, each.name)) for each in fields(lane)}
        if len(lengths) > 1:
            yield f"the lists of rank {number}'s timeline differ in length"


def _find_uneven_ranks(monitored: Monitored | None) -> Iterator[str]:
    for steps in () if monitored is None else monitored.ranks:
        yield from find_uneven(steps)


def _list_lengths(record: Record) -> Iterator[tuple[str, int]]:
    """Of all lists that are parallel to `rounds`."""
    yield "calls_per_sample", len(record.calls_per_sample)
    if record.queue is not None:
        yield "enqueue_ns", len(record.queue.enqueue_ns)
        yield "drain_ns", len(record.queue.drain_ns)
    for phase, times_ns in record.samples_ns.items():
        yield phase, len(times_ns)
    for number, rank in enumerate(record.ranks):
        for times_ns in rank.samples_ns.values():
            yield f"rank {number}", len(times_ns)
        usual = rank.waiting_ns
        for parts_ns in (rank.transfer_ns, rank.overlapped_ns or usual, rank.bubble_ns or usual):
            yield f"rank {number}", len(parts_ns)
        yield f"rank {number}", len(usual)


def _find_wrong_sections(environment: dict[str, Any]) -> Iterator[str]:
    for title in SECTIONS:
        if not isinstance(environment.get(title, {}), dict):
            yield f"the section {title!r} of its environment is not an object"
    for name, load in environment.get("load", {}).items():
        numbers = load if isinstance(load, list) and load else [load]
        if not all(isinstance(number, int | float) for number in numbers):
            yield f"{name!r} of its load is not a number"


def refuse_large_integers(content: Any) -> None:
    """In whatever can be JSON. Raises CorruptFile."""
    if isinstance(content, int) and abs(content) > LARGEST_UNSIGNED:
        raise CorruptFile("it has a whole number of more than 64 bits")
    if isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            refuse_large_integers(value)


def _refuse_deep_nesting(level: list[Any]) -> None:
    for _ in range(MOST_NESTED + 1):
        inside = [each for each in level if isinstance(each, dict | list)]
        level = [v for e in inside for v in (e.values() if isinstance(e, dict) else e)]
    if level:
        raise CorruptFile("its values are nested too deeply")
