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
from flopwatch.records.exchange.foreign import (
    ForeignCase,
    ForeignError,
    Import,
    Importer,
    convert,
    drop_unknown,
    hide_host,
    is_time,
    name_some,
    pick,
    scale,
)
from flopwatch.records.record import Record, Status

DIGITS = {"ns": 0, "us": 3, "ms": 6, "s": 9}
CLOCKS = ("real_time", "process_time", "manual_time")
FITS = ("BigO", "RMS")
"""Of a function to the times at several sizes."""

AGGREGATES = ("mean", "median", "stddev", "cv", "min", "max", *FITS)
STAND_INS = ("mean", "median")
"""Aggregates that a record can have as a sample, the best first."""

PRIVATE = ("host_name", "executable", "date", "load_avg", "num_cpus", "library_version")
"""Parts of the context that are names and paths, or stand elsewhere in the environment."""


class Line(msgspec.Struct):
    """One entry of a file; its counters are what has no name here."""

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

    @property
    def aggregate(self) -> str | None:
        """Which aggregate it is; old files only tell by the name's ending."""
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
    def real_ns(self) -> float | None:
        return self._scale(self.real_time)

    @property
    def cpu_ns(self) -> float | None:
        return self._scale(self.cpu_time)

    def _scale(self, time: float | None) -> float | None:
        return None if time is None else scale(time, DIGITS[self.time_unit])


NOT_COUNTERS = {
    *Line.__struct_fields__, "family_index", "per_family_instance_index", "repetitions",
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
    what = "a file of google-benchmark"
    content = convert(documents[0], dict[str, Any], what)
    context = convert(content.get("context"), dict[str, Any], what)
    entries = convert(content.get("benchmarks"), list[dict[str, Any]], what)
    lines = [(convert(entry, Line, what), entry) for entry in entries]
    cases: dict[str, list[tuple[Line, dict[str, Any]]]] = {}
    for line, entry in lines:
        if line.aggregate not in FITS:
            cases.setdefault(line.case_name, []).append((line, entry))
    fits = [line.name for line, _ in lines if line.aggregate in FITS]
    remarks = [f"fits over sizes ({name_some(fits)}) were left out"] if fits else []
    found = [_read_case(name, lines, context, remarks) for name, lines in cases.items()]
    _tell_aggregates(cases, remarks)
    return Import(records=[record for record in found if record is not None], remarks=remarks)


def _tell_aggregates(
    cases: Mapping[str, Sequence[tuple[Line, dict[str, Any]]]], remarks: list[str]
) -> None:
    sampled = [
        [line.aggregate for line, _ in entries]
        for entries in cases.values()
        if any(line.aggregate is None for line, _ in entries)
    ]
    aggregates = [kind for kinds in sampled for kind in kinds if kind is not None]
    if aggregates:
        remarks.append(
            f"{len(aggregates)} aggregates of samples ({name_some(aggregates)}) were left out: "
            "they are computed on reading"
        )


def _read_case(
    name: str,
    lines: Sequence[tuple[Line, dict[str, Any]]],
    context: Mapping[str, Any],
    remarks: list[str],
) -> Record | None:
    runs = [(line, entry) for line, entry in lines if line.aggregate is None]
    failed = [line for line, _ in runs if line.has_failed]
    timed = [(line, entry) for line, entry in runs if not line.has_failed]
    fields = {**_fields(name, runs or lines, context), "notes": _collect_notes(context)}
    if failed and not timed:
        return _read_failure(failed[0], fields)
    if failed:
        reason = failed[0].error_message or failed[0].skip_message or "for an unknown reason"
        fields["notes"].append(f"{len(failed)} of {len(runs)} repetitions failed: {reason}")
    if not runs:
        return _read_aggregate(name, [line for line, _ in lines], fields, remarks)
    usable = [(line, entry) for line, entry in timed if line.real_ns and is_time(line.real_ns)]
    if len(usable) < len(timed):
        remarks.append(f"{name}: {len(timed) - len(usable)} times of 0 or less were left out")
    if not usable:
        return None
    return Record(
        **fields,
        status="ok",
        samples_ns={"call": [line.real_ns for line, _ in usable if line.real_ns]},
        rounds=list(range(len(usable))),
        calls_per_sample=[_count_iterations(line) for line, _ in usable],
        facts=_collect_facts(usable),
    )


def _count_iterations(line: Line) -> int:
    if line.iterations is None or line.iterations < 1 or not line.iterations.is_integer():
        raise ForeignError(f"{line.name} has {line.iterations} iterations")
    return int(line.iterations)


def _read_failure(line: Line, fields: Mapping[str, Any]) -> Record:
    status: Status = "crash" if line.error_occurred else "skipped"
    reason = line.error_message or line.skip_message or "the file does not say why"
    return Record(**fields, status=status, message=reason)


def _read_aggregate(
    name: str, lines: Sequence[Line], fields: Mapping[str, Any], remarks: list[str]
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
    return Record(
        **{**fields, "notes": [*fields["notes"], note]},
        status="ok",
        samples_ns={"call": [line.real_ns]},
        rounds=[0],
        calls_per_sample=[1],
        facts={} if line.cpu_ns is None else {"cpu_time_ns": line.cpu_ns},
    )


def _collect_facts(timed: Sequence[tuple[Line, dict[str, Any]]]) -> dict[str, float]:
    """Medians over the repetitions: of the processor's time, and of counters, which vary too."""
    values: dict[str, list[float]] = {}
    for line, entry in timed:
        if line.cpu_ns is not None:
            values.setdefault("cpu_time_ns", []).append(line.cpu_ns)
        for name, number in entry.items():
            if name not in NOT_COUNTERS and _is_number(number):
                values.setdefault(name, []).append(float(number))
    return {name: median(numbers) for name, numbers in values.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e308


def _fields(
    name: str, lines: Sequence[tuple[Line, dict[str, Any]]], context: Mapping[str, Any]
) -> dict[str, Any]:
    """What a record has whether the case failed or not."""
    variant, params = parse_name(name)
    case = ForeignCase(suite="google-benchmark", variant=variant, params=params)
    return {
        **case.as_fields(),
        "environment": _read_environment(name, lines[0][0].label, context),
        "measured_at": _read_date(context.get("date")),
    }


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


def _collect_notes(context: Mapping[str, Any]) -> list[str]:
    warnings = {
        "google-benchmark was built for debugging, which makes times longer": context.get(
            "library_build_type"
        )
        == "debug",
        "the CPU's frequency was scaled while measuring": context.get("cpu_scaling_enabled")
        is True,
    }
    return [warning for warning, applies in warnings.items() if applies]


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


IMPORTER = Importer(
    about="the JSON files of google-benchmark (C++ and Python)", recognise=recognise, read=read
)
