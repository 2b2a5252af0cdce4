"""The JSON files that google-benchmark writes (``--benchmark_out_format=json``).

Repetitions of one name are the samples of one record. Aggregates of them (mean, median, ...) are
computed on reading, as everything is; only where a file has nothing else does the mean stand in.
A name like ``BM_copy/8/columns:512/threads:2`` is the variant ``BM_copy`` with parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from flopwatch.analysis.statistics import median
from flopwatch.records.foreign import (
    ForeignError,
    Import,
    Importer,
    convert,
    drop_unknown,
    hide_host,
    is_time,
    make_record,
    make_samples,
    name_some,
    pick,
    scale,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import Case

FORM = "a file of google-benchmark"
DIGITS = {"ns": 0, "us": 3, "ms": 6, "s": 9}
CLOCKS = ("real_time", "process_time", "manual_time")
FITS = ("BigO", "RMS")
"""Of a function to the times at several sizes."""

AGGREGATES = ("mean", "median", "stddev", "cv", "min", "max", *FITS)
STAND_INS = ("mean", "median")
"""Aggregates that a record can have as a sample, the best first."""

PRIVATE = ("host_name", "executable", "date", "load_avg", "num_cpus", "library_version")
"""Parts of the context that are names and paths, or stand elsewhere in the environment."""


WARNINGS = (
    (
        "google-benchmark was built for debugging, which makes times longer",
        "library_build_type",
        "debug",
    ),
    ("the CPU's frequency was scaled while measuring", "cpu_scaling_enabled", True),
)
"""With the entry of the context that they are due to, and its value then."""


class File(msgspec.Struct):
    context: dict[str, Any]
    benchmarks: list[dict[str, Any]]


class Line(msgspec.Struct):
    """One entry of a file."""

    name: str
    run_name: str | None = None
    run_type: Literal["iteration", "aggregate"] | None = None
    aggregate_name: str | None = None
    iterations: float | None = None
    real_time: float | None = None
    cpu_time: float | None = None
    time_unit: Literal["ns", "us", "ms", "s"] = "ns"
    error_occurred: bool = False
    error_message: str | None = None
    skipped: bool = False
    skip_message: str | None = None
    label: str | None = None
    counters: dict[str, float] = msgspec.field(name="(counters)", default_factory=dict)
    """The user's own, under any names: what the entry has besides."""

    @property
    def aggregate(self) -> str | None:
        """Which aggregate it is; in old files only the end of the name says so."""
        if self.run_type is not None:
            return self.aggregate_name if self.run_type == "aggregate" else None
        ending = self.name.rpartition("_")[2]
        return ending if ending in AGGREGATES else None

    @property
    def case_name(self) -> str:
        if self.run_name is not None:
            return self.run_name
        return self.name if self.aggregate is None else self.name.rpartition("_")[0]

    @property
    def has_failed(self) -> bool:
        return self.error_occurred or self.skipped

    @property
    def reason(self) -> str | None:
        return self.error_message or self.skip_message

    @property
    def real_ns(self) -> float | None:
        return self._scale(self.real_time)

    @property
    def cpu_ns(self) -> float | None:
        return self._scale(self.cpu_time)

    def _scale(self, time: float | None) -> float | None:
        return None if time is None else scale(time, DIGITS[self.time_unit])


NOT_COUNTERS = {
    *Line.__struct_encode_fields__, "family_index", "per_family_instance_index", "repetitions",
    "repetition_index", "threads", "aggregate_unit", "cpu_coefficient", "real_coefficient",
    "big_o", "rms",
}  # fmt: skip


def recognise(documents: Sequence[Any]) -> bool:
    content = documents[0]
    return (
        len(documents) == 1
        and isinstance(content, dict)
        and isinstance(content.get("context"), dict)
        and isinstance(content.get("benchmarks"), list)
    )


def read(documents: Sequence[Any]) -> Import:
    file = convert(documents[0], File, FORM)
    fits: list[str] = []
    cases: dict[str, list[Line]] = {}
    for entry in file.benchmarks:
        counters = {k: v for k, v in entry.items() if k not in NOT_COUNTERS and _is_number(v)}
        line = convert({**entry, "(counters)": counters}, Line, FORM)
        if line.aggregate in FITS:
            fits.append(line.name)
        else:
            cases.setdefault(line.case_name, []).append(line)
    remarks = [f"fits over sizes ({name_some(fits)}) were left out"] if fits else []
    found = [_read_case(name, lines, file.context, remarks) for name, lines in cases.items()]
    aggregates = [
        line.aggregate
        for lines in cases.values()
        if any(line.aggregate is None for line in lines)
        for line in lines
        if line.aggregate is not None
    ]
    if aggregates:
        remarks.append(
            f"{len(aggregates)} aggregates of samples ({name_some(aggregates)}) were left out: "
            "they are computed on reading"
        )
    return Import(records=[record for record in found if record is not None], remarks=remarks)


def _read_case(
    name: str, lines: Sequence[Line], context: Mapping[str, Any], remarks: list[str]
) -> Record | None:
    variant, params = parse_name(name)
    case = Case(suite="google-benchmark", variant=variant, params=params)
    runs = [line for line in lines if line.aggregate is None]
    failed = [line for line in runs if line.has_failed]
    timed = [line for line in runs if not line.has_failed]
    notes = [text for text, key, value in WARNINGS if context.get(key) == value]
    fields = {
        "environment": _read_environment(name, (runs or lines)[0].label, context),
        "measured_at": _read_date(context.get("date")),
        "notes": notes,
    }
    if not runs:
        return _read_aggregate(name, case, lines, fields, remarks)
    if not timed:
        status = "crash" if failed[0].error_occurred else "skipped"
        reason = failed[0].reason or "the file does not say why"
        return make_record(case, **fields, status=status, message=reason)
    if failed:
        reason = failed[0].reason or "for an unknown reason"
        notes.append(f"{len(failed)} of {len(runs)} repetitions failed: {reason}")
    usable = [(line, line.real_ns) for line in timed if line.real_ns and is_time(line.real_ns)]
    if len(usable) < len(timed):
        remarks.append(f"{name}: {len(timed) - len(usable)} times of 0 or less were left out")
    if not usable:
        return None
    calls = [_count_iterations(line) for line, _ in usable]
    return make_record(
        case,
        **fields,
        **make_samples({"call": [real_ns for _, real_ns in usable]}, calls),
        facts=_collect_facts([line for line, _ in usable]),
    )


def _count_iterations(line: Line) -> int:
    if line.iterations is None or line.iterations < 1 or not line.iterations.is_integer():
        raise ForeignError(f"{line.name} has {line.iterations} iterations")
    return int(line.iterations)


def _read_aggregate(
    name: str, case: Case, lines: Sequence[Line], fields: dict[str, Any], remarks: list[str]
) -> Record | None:
    """Where a file has only aggregates, the mean of the repetitions is the one sample."""
    by_kind = {line.aggregate: line for line in lines}
    kind = next((kind for kind in STAND_INS if kind in by_kind), None)
    line = by_kind.get(kind)
    if line is None or line.real_ns is None or not is_time(line.real_ns):
        remarks.append(f"{name} has neither times nor a mean of them, and was left out")
        return None
    count = _count_iterations(line)
    spread = by_kind["stddev"].real_ns if "stddev" in by_kind else None
    tail = "" if spread is None else f", whose standard deviation is {spread:.6g} ns"
    note = f"its one sample is the {kind} of {count} repetitions{tail}; the file has no others"
    return make_record(
        case,
        **{**fields, "notes": [*fields["notes"], note]},
        **make_samples({"call": [line.real_ns]}),
        facts={} if line.cpu_ns is None else {"cpu_time_ns": line.cpu_ns},
    )


def _collect_facts(lines: Sequence[Line]) -> dict[str, float]:
    """Medians over the repetitions: of the processor's time, and of counters, which vary too."""
    values: dict[str, list[float]] = {}
    for line in lines:
        cpu = {} if line.cpu_ns is None else {"cpu_time_ns": line.cpu_ns}
        for name, number in {**cpu, **line.counters}.items():
            values.setdefault(name, []).append(number)
    return {name: median(numbers) for name, numbers in values.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e308


def parse_name(name: str) -> tuple[str, dict[str, Any]]:
    """The variant and its parameters. They stand at the end; what is before may have slashes.

    >>> parse_name("BM_copy<a/b>/8/columns:512/real_time/threads:2")
    ('BM_copy<a/b>', {'arg0': 8, 'columns': 512, 'clock': 'real_time', 'threads': 2})
    """
    family, *rest = name.split("/")
    parts: list[str] = []
    while rest and _is_parameter(rest[-1]):
        parts.insert(0, rest.pop())
    params: dict[str, Any] = {}
    for part in parts:
        key, colon, value = part.rpartition(":")
        if colon:
            params[key] = _read_value(value)
        elif part in CLOCKS:
            params["clock"] = "/".join(filter(None, [params.get("clock"), part]))
        else:
            params[f"arg{sum(k.startswith('arg') for k in params)}"] = _read_value(part)
    return "/".join([family, *rest]), params


def _is_parameter(part: str) -> bool:
    key, colon, value = part.rpartition(":")
    is_named = bool(key) and not key.endswith(":")  # not a C++ name
    return part in CLOCKS or ((not colon or is_named) and not isinstance(_read_value(value), str))


def _read_value(text: str) -> int | float | str:
    """A whole number where every reader of records can hold it."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 19:
        return int(text)
    whole, dot, rest = digits.partition(".")
    is_decimal = dot and (whole + rest).isascii() and whole.isdigit() and rest.isdigit()
    return float(text) if is_decimal and len(text) < 40 else text


def _read_environment(name: str, label: str | None, context: Mapping[str, Any]) -> dict[str, Any]:
    averages = pick(context, "load_avg", list) or []
    rest = {key: value for key, value in context.items() if key not in PRIVATE}
    return drop_unknown(
        {
            "machine": {
                "machine_id": hide_host(context, "host_name"),
                "logical_cores": pick(context, "num_cpus", int),
            },
            "load": {"average": averages if averages and all(map(_is_number, averages)) else None},
            "imported": {
                "format": "google-benchmark",
                "version": pick(context, "library_version", str),
                "name": name,
                "label": label,
                "context": rest,
            },
        }
    )


def _read_date(date: Any) -> str:
    """In UTC where it has a zone; empty where it is no date."""
    try:
        moment = datetime.fromisoformat(date)
    except (TypeError, ValueError):
        return ""
    return (moment if moment.tzinfo is None else moment.astimezone(UTC)).isoformat()


IMPORTER = Importer(recognise=recognise, read=read)
