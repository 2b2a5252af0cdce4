"""The record: one measured case, or one failure, as one JSON object on one line.

Raw samples are the result. Everything else (medians, intervals, speedups, FLOP/s) is computed on
reading, so that a better formula improves old results too. A record stands alone: it carries the
environment and the settings that made it, so that a single line can be mailed, grepped or merged.

History of the schema, newest first. A version that was ever released stays readable: give
``UPGRADES`` the function that turns the previous version's object into the next one's.

    3   memory, held_bytes, memory_estimate_bytes and first_page_faults: what a run held in each of
        its phases, beside what was foretold, and what its first call had to fetch
    2   conditions, facts, regions, instrumented_ns and curves: what a case says of itself, what
        instruments saw inside it, and what it produced as it ran
    1   the first one
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from flopwatch.errors import CorruptFile, NewerSchema
from flopwatch.settings import Settings

SCHEMA = 3


def _upgrade_1(content: dict[str, Any]) -> dict[str, Any]:
    """Version 2 adds fields, whose defaults mean that nothing was there; but no budget waited for a
    number of rounds."""
    settings = content.get("settings")
    if isinstance(settings, dict):
        content = {**content, "settings": {**settings, "min_rounds": 0}}
    return content


def _upgrade_2(content: dict[str, Any]) -> dict[str, Any]:
    """Version 3 adds fields, whose defaults mean that nothing was told."""
    return content


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _upgrade_1, 2: _upgrade_2}
"""From a version to the next: ``UPGRADES[1]`` makes an object of version 2 of one of version 1."""

Status = Literal["ok", "oom", "crash", "timeout", "wrong", "unsupported", "skipped"]
Stop = Literal["precise", "stalled", "budget", "interrupted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """How a variant agreed with its reference before it was timed."""

    against: str
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
class Record:
    id: str
    """Hash of suite, variant and parameters: the same case has the same id in every run."""
    group: str
    """Hash of suite and parameters: what the variants of one comparison share."""
    run: str
    """One `flopwatch run`. Samples pair by round where both run and group are equal."""
    suite: str
    variant: str
    baseline: str
    params: dict[str, Any]
    status: Status
    reason: str | None = None
    samples_ns: dict[str, list[float]] = field(default_factory=dict)
    """By phase, time of one call, in order of taking, warm-up first."""
    rounds: list[int] = field(default_factory=list)
    """The round that each sample belongs to, parallel to every list in samples_ns."""
    loops: list[int] = field(default_factory=list)
    """How many calls each sample is the mean of: more than 1 where one call is too short."""
    warmup_samples: int = 0
    """How many of the leading samples were taken before the steady state was detected."""
    steady: bool | None = None
    """Whether a steady state was detected; None where nothing was sampled."""
    stop: Stop | None = None
    """Why sampling ended."""
    flops: dict[str, dict[str, float]] = field(default_factory=dict)
    """By phase and dtype, as the suite declares them; a key ``phase/region`` is a part of its
    phase, already counted there."""
    bytes: dict[str, float] = field(default_factory=dict)
    """By phase: bytes that must be moved, as the suite declares them."""
    conditions: dict[str, str] = field(default_factory=dict)
    """What the case itself fixed and a fair comparison must have in common: dtype, autocast."""
    facts: dict[str, float] = field(default_factory=dict)
    """Numbers about the case as it was built: how many parameters it has."""
    instrumented_ns: list[float] = field(default_factory=list)
    """Whole runs with instruments on, one after each measured sample, in the same round: beside
    that sample it says what the instruments cost."""
    regions: dict[str, Region] = field(default_factory=dict)
    """By ``phase/region``: what the instruments saw, parallel to instrumented_ns."""
    curves: dict[str, list[float]] = field(default_factory=dict)
    """What the case produced as it ran, by name: a training loss, step by step. Curves of one
    record are parallel."""
    peak_memory_bytes: int | None = None
    """Most memory of the device (on a CPU: of tensors) that one run held beyond what was there
    before it."""
    memory: dict[str, PhaseMemory] = field(default_factory=dict)
    """The same by phase; empty where it is not known."""
    held_bytes: int | None = None
    """Tensors that were there before a run, and not counted above: parameters, the optimizer's
    state, inputs, also those of the other variants."""
    memory_estimate_bytes: dict[str, float] = field(default_factory=dict)
    """By part, what the suite foretold that a process with this case needs at its peak, what is
    held before a run included."""
    first_page_faults: int | None = None
    """Pages of memory that the system had to provide during the very first call."""
    check: Check | None = None
    prediction: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    """Doubts that arose while measuring, as sentences."""
    settings: Settings = field(default_factory=Settings)
    environment: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    """The project files that the case was built from, with their digests."""
    taken_at: str = ""
    """ISO 8601, UTC."""
    schema: int = SCHEMA


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def encode(record: Record) -> bytes:
    """One line, without its newline."""
    return _encoder.encode(record)


def decode(line: bytes) -> Record:
    """The record on one line, whatever version wrote it.

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
            f"it has schema {schema}, and this flopwatch reads up to {SCHEMA}; upgrade flopwatch"
        )
    for version in range(schema, SCHEMA):
        content = UPGRADES[version](content)
    try:
        record = msgspec.convert({**content, "schema": SCHEMA}, Record)
    except msgspec.ValidationError as error:
        raise CorruptFile(f"it is not a record ({error})") from None
    _validate(record)
    return record


def _validate(record: Record) -> None:
    """Refuse what no measurement can give, so that nobody computes nonsense from it later."""
    num_samples = len(record.rounds)
    if record.rounds and not record.samples_ns:
        raise CorruptFile(f"it has {num_samples} rounds but no samples")
    if len(record.loops) != num_samples:
        raise CorruptFile(f"it has {num_samples} rounds but {len(record.loops)} loops")
    if not 0 <= record.warmup_samples <= num_samples:
        raise CorruptFile(f"it has {record.warmup_samples} warm-up samples of {num_samples}")
    for phase, times_ns in record.samples_ns.items():
        if len(times_ns) != num_samples:
            raise CorruptFile(f"it has {num_samples} rounds but {len(times_ns)} of {phase}")
        if times_ns and min(times_ns) <= 0:
            raise CorruptFile(f"{phase} has a sample of {min(times_ns)} ns")
    _validate_regions(record)
    _validate_range("round", record.rounds, 0)
    _validate_range("number of loops", record.loops, 1)
    _validate_memory(record)


def _validate_memory(record: Record) -> None:
    known = {
        "peak memory": record.peak_memory_bytes,
        "number of bytes held": record.held_bytes,
        "number of page faults": record.first_page_faults,
    }
    for name, number in known.items():
        _validate_range(name, [] if number is None else [number], 0)
    for held in record.memory.values():
        _validate_range("phase's memory", [held.peak_bytes, held.end_bytes], 0)
    if any(size < 0 for size in record.memory_estimate_bytes.values()):
        raise CorruptFile("a part of its memory estimate is less than 0")


def _validate_regions(record: Record) -> None:
    num_runs, num_measured = len(record.instrumented_ns), len(record.rounds) - record.warmup_samples
    if num_runs > num_measured:  # fewer where a run was cut off
        raise CorruptFile(f"it has {num_runs} instrumented runs but {num_measured} samples")
    for name, region in record.regions.items():
        if len(region.samples_ns) != num_runs:
            raise CorruptFile(
                f"it has {num_runs} instrumented runs but {len(region.samples_ns)} of {name}"
            )
        if region.calls < 1:
            raise CorruptFile(f"region {name} has {region.calls} calls")
    if len({len(values) for values in record.curves.values()}) > 1:
        raise CorruptFile("its curves differ in length")


def _validate_range(name: str, values: list[int], smallest: int) -> None:
    """JSON has whole numbers of any size; what reads records (DuckDB, numpy) has 64 bits."""
    if values and not (smallest <= min(values) and max(values) < 2**63):
        raise CorruptFile(f"a {name} is less than {smallest} or beyond 64 bits")
