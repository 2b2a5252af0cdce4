"""The record: one measured case, or one failure, as one JSON object on one line.

Raw samples are the result. Everything else (medians, intervals, speedups, FLOP/s) is computed on
reading, so that a better formula improves old results too. A record stands alone: it carries the
environment and the settings that made it, so that a single line can be mailed, grepped or merged.

The schema's number rises with every change once a version is released, and a released version stays
readable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from flopwatch.errors import CorruptFile, NewerSchema
from flopwatch.settings import Settings

SCHEMA = 1

SHORTEST_NS, LONGEST_NS = 1e-12, 2.0**63
"""No sample is shorter or longer: the mean of very many calls, and three centuries.
Within, sums, ratios and rates of samples are numbers."""

LARGEST = 1e100
"""No count is larger: its rate over the shortest sample is still a number."""

MOST_NESTED = 100
"""Values within values."""

SECTIONS = ("machine", "software", "project", "torch", "load", "published", "imported")
"""Of an environment: what readers look into."""

Status = Literal["ok", "oom", "crash", "timeout", "wrong", "unsupported", "skipped"]
Stop = Literal["precise", "stalled", "budget", "interrupted"]
Cause = Literal["does-not-fit", "too-few-ranks", "budget", "interrupted", "rank-lost"]
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

    calls: int
    """How often it ran in one run of the case."""
    samples_ns: list[float]
    """All its calls together, one value for each instrumented run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseMemory:
    """What a phase of a run held, beyond what was there before the run."""

    peak_bytes: int
    end_bytes: int
    """At its end: after a forward pass, what it keeps for the backward pass, and its result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """What one of a job's processes did in the samples; all lists are parallel to `rounds`."""

    samples_ns: dict[str, list[float]]
    """By phase, on its own clock. A job's phase ends when the last rank has ended it."""
    waiting_ns: list[float]
    """In collectives, until the last rank arrived."""
    transfer_ns: list[float]
    """In collectives, from then on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteColumn:
    """A column that the suite itself declares, with the value that it has for the case."""

    value: bool | float | str | None
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
    samples_ns: dict[str, list[float]] = field(default_factory=dict)
    """By phase, time of one call, in order of taking, warm-up first."""
    rounds: list[int] = field(default_factory=list)
    """The round that each sample belongs to, parallel to every list in samples_ns."""
    calls_per_sample: list[int] = field(default_factory=list)
    """How many calls each sample is the mean of: more than 1 where one call is too short."""
    warmup_samples: int = 0
    """How many of the leading samples were taken before the steady state was detected."""
    steady: bool | None = None
    """Whether a steady state was detected; None where nothing was sampled."""
    stop_reason: Stop | None = None
    """Why sampling ended."""
    rebuilt_rounds: list[int] = field(default_factory=list)
    """Before which all variants were built again, at other addresses in memory."""
    flops: dict[str, dict[str, float]] = field(default_factory=dict)
    """By phase and dtype, as the suite declares them; a key ``phase/region`` is a part of its
    phase, already counted there."""
    bytes: dict[str, float] = field(default_factory=dict)
    """By phase: bytes that must be moved, as the suite declares them."""
    conditions: dict[str, str] = field(default_factory=dict)
    """What the case itself fixed and a fair comparison must have in common: dtype, autocast."""
    facts: dict[str, float] = field(default_factory=dict)
    """Numbers about the case as it was built: how many parameters it has."""
    columns: dict[str, SuiteColumn] = field(default_factory=dict)
    """Columns of the suite's own, by name. They are computed when the case has been measured, since
    a reader of the record need not have the suite's file."""
    instrumented_ns: list[float] = field(default_factory=list)
    """Whole runs with instruments on, one after each measured sample, in the same round: over
    that sample it is what the instruments cost."""
    regions: dict[str, Region] = field(default_factory=dict)
    """By ``phase/region``: what the instruments saw, parallel to instrumented_ns."""
    ranks: list[Rank] = field(default_factory=list)
    """By rank; empty where the case is no job of several processes."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    """What the case produced as it ran, by name: a training loss, step by step. Curves of one
    record are parallel."""
    peak_memory_bytes: int | None = None
    """Most memory of the device (on a CPU: of tensors) that one run held beyond what was there
    before it; of a job, on rank 0."""
    memory: dict[str, PhaseMemory] = field(default_factory=dict)
    """The same by phase; empty where it is not known."""
    resident_bytes: int | None = None
    """Tensors that were there before a run, and not counted above: parameters, the optimizer's
    state, inputs, also those of the other variants."""
    predicted_memory_bytes: dict[str, float] = field(default_factory=dict)
    """By part, what the suite predicted that a process with this case needs at its peak, what is
    held before a run included."""
    first_call_page_faults: int | None = None
    """Pages of memory that the system had to provide during the very first call."""
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


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(record: Record) -> bytes:
    """One line, without its newline."""
    return _encoder.encode(record)


def decode(line: bytes) -> Record:
    """The record on one line.

    Raises CorruptFile or NewerSchema with a sentence that does not name file or line: the caller
    knows those.
    """
    try:
        content = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"it is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise CorruptFile("it is JSON, but not an object")
    schema = content.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise CorruptFile("it has no valid schema number")
    if schema > SCHEMA:
        raise NewerSchema(
            f"it has schema {schema}, and this flopwatch reads schema {SCHEMA}: it is from a newer "
            "version, or from before the first release; upgrade flopwatch or measure again"
        )
    try:
        record = msgspec.convert(content, Record)
    except msgspec.ValidationError as error:
        raise CorruptFile(f"it is not a record ({error})") from None
    _validate(record)
    return record


def _validate(record: Record) -> None:
    """Refuse what no measurement can give, so that nothing is computed from nonsense later."""
    num_samples = len(record.rounds)
    if record.rounds and not record.samples_ns:
        raise CorruptFile(f"it has {num_samples} rounds but no samples")
    if len(record.calls_per_sample) != num_samples:
        num_counts = len(record.calls_per_sample)
        raise CorruptFile(f"it has {num_samples} rounds but {num_counts} numbers of calls")
    if len(set(record.rounds)) != num_samples:
        raise CorruptFile("it has two samples of one round")
    if not 0 <= record.warmup_samples <= num_samples:
        raise CorruptFile(f"it has {record.warmup_samples} warm-up samples of {num_samples}")
    for phase, times_ns in record.samples_ns.items():
        if len(times_ns) != num_samples:
            raise CorruptFile(f"it has {num_samples} rounds but {len(times_ns)} of {phase}")
        _validate_times(f"{phase} has a sample", times_ns, SHORTEST_NS)
    _validate_ranks(record)
    _validate_regions(record)
    _validate_range("round", record.rounds, 0)
    _validate_range("number of calls", record.calls_per_sample, 1)
    _validate_memory(record)
    _validate_counts(record)
    _validate_environment(record.environment)
    _validate_nesting("its parameters are", record.params)
    _validate_nesting("its environment is", record.environment)


def _validate_nesting(what: str, content: Any) -> None:
    """What writes a value writes the values inside it, and Python ends that at some depth."""
    level = [content]
    for _ in range(MOST_NESTED):
        inside = [each for each in level if isinstance(each, dict | list)]
        level = [v for e in inside for v in (e.values() if isinstance(e, dict) else e)]
    if level:
        raise CorruptFile(f"{what} nested too deeply")


def _validate_environment(environment: dict[str, Any]) -> None:
    for title in SECTIONS:
        if not isinstance(environment.get(title, {}), dict):
            raise CorruptFile(f"the section {title!r} of its environment is not an object")
    for name, load in environment.get("load", {}).items():
        numbers = load if isinstance(load, list) and load else [load]
        if not all(isinstance(number, int | float) for number in numbers):
            raise CorruptFile(f"{name!r} of its load is not a number")


def _validate_times(what: str, times_ns: list[float], shortest_ns: float) -> None:
    if times_ns and not (shortest_ns <= min(times_ns) and max(times_ns) < LONGEST_NS):
        worst_ns = max(times_ns) if min(times_ns) >= shortest_ns else min(times_ns)
        raise CorruptFile(f"{what} of {worst_ns} ns")


def _validate_counts(record: Record) -> None:
    flops = (count for by_dtype in record.flops.values() for count in by_dtype.values())
    _validate_sizes("number of FLOPs", flops)
    _validate_sizes("number of bytes", record.bytes.values())
    _validate_sizes("part of its memory estimate", record.predicted_memory_bytes.values())
    for name, number in record.facts.items():
        if abs(number) > LARGEST:
            raise CorruptFile(f"the fact {name!r} is {number:g}")
    for name, column in record.columns.items():
        if isinstance(column.value, float) and abs(column.value) > LARGEST:
            raise CorruptFile(f"the column {name!r} is {column.value:g}")


def _validate_sizes(name: str, sizes: Iterable[float]) -> None:
    if not all(0 <= size <= LARGEST for size in sizes):
        raise CorruptFile(f"a {name} is less than 0 or beyond {LARGEST:g}")


def _validate_memory(record: Record) -> None:
    known = {
        "peak memory": record.peak_memory_bytes,
        "number of bytes held": record.resident_bytes,
        "number of page faults": record.first_call_page_faults,
    }
    for name, number in known.items():
        _validate_range(name, [] if number is None else [number], 0)
    for held in record.memory.values():
        _validate_range("phase's memory", [held.peak_bytes, held.end_bytes], 0)


def _validate_ranks(record: Record) -> None:
    for number, rank in enumerate(record.ranks):
        for times_ns in (*rank.samples_ns.values(), rank.waiting_ns, rank.transfer_ns):
            if len(times_ns) != len(record.rounds):
                raise CorruptFile(
                    f"it has {len(record.rounds)} rounds but {len(times_ns)} of rank {number}"
                )
            _validate_times(f"rank {number} has a time", times_ns, 0.0)


def _validate_regions(record: Record) -> None:
    num_runs, num_measured = len(record.instrumented_ns), len(record.rounds) - record.warmup_samples
    if num_runs > num_measured:  # fewer where a run was cut off
        raise CorruptFile(f"it has {num_runs} instrumented runs but {num_measured} samples")
    _validate_times("an instrumented run has a time", record.instrumented_ns, 0.0)
    for name, region in record.regions.items():
        if len(region.samples_ns) != num_runs:
            raise CorruptFile(
                f"it has {num_runs} instrumented runs but {len(region.samples_ns)} of {name}"
            )
        if region.calls < 1:
            raise CorruptFile(f"region {name} has {region.calls} calls")
        _validate_times(f"region {name} has a time", region.samples_ns, 0.0)
    if len({len(values) for values in record.curves.values()}) > 1:
        raise CorruptFile("its curves differ in length")


def _validate_range(name: str, values: list[int], smallest: int) -> None:
    """JSON has whole numbers of any size; what reads records (DuckDB, numpy) has 64 bits."""
    if values and not (smallest <= min(values) and max(values) < 2**63):
        raise CorruptFile(f"a {name} is less than {smallest} or beyond 64 bits")
