"""The format of PyTorch's benchmark database, version 3, both ways.

A file is a list of objects, or one a line, each with one metric of one benchmark on one model. The
format has no units: a metric is a time where its name or its extra information ends in a unit of
time. All others are kept as facts, since a record's samples are times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from flopwatch.analysis.statistics import CONFIDENCE, median
from flopwatch.analysis.summary import Row
from flopwatch.devices.environment import look_up
from flopwatch.records.exchange.github_action import Metric, list_metrics
from flopwatch.records.foreign import (
    PHASE,
    ForeignError,
    Import,
    Importer,
    convert,
    drop_unknown,
    find_case,
    hide_host,
    is_time,
    list_conditions,
    make_record,
    make_samples,
    mark_case,
    name_some,
    pick,
    scale,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import Case, digest, label

FORM = "a list of results for PyTorch's benchmark database"

TUPLES = {
    "benchmark": ("name", "mode", "dtype", "extra_info"),
    "model": ("name", "type", "backend", "origins", "extra_info"),
    "metric": ("name", "benchmark_values", "target_value", "extra_info"),
}
"""Objects that may also be given as lists, as the database has them."""

UNITS = {
    "ns": 0, "nanoseconds": 0, "us": 3, "µs": 3, "microseconds": 3, "ms": 6, "msec": 6,
    "milliseconds": 6, "s": 9, "sec": 9, "secs": 9, "seconds": 9,
}  # fmt: skip
"""Of time, with the digits that nanoseconds have more."""

IN_NAME = re.compile(rf"(?<!per)[_ (\[]({'|'.join(UNITS)})[)\]]?$", re.IGNORECASE)
"""A unit at the end of a name, as in ``latency_ms`` and ``load_time(ms)``, but not in
``tokens_per_s``."""

GIB = 2**30


class Benchmark(msgspec.Struct):
    name: str
    mode: str | None = None
    dtype: str | None = None
    extra_info: dict[str, Any] | None = None


class Model(msgspec.Struct):
    name: str
    type: str | None = None
    backend: str | None = None
    origins: list[str] | None = None
    extra_info: dict[str, Any] | None = None


class Measurement(msgspec.Struct):
    name: str
    benchmark_values: list[float]
    target_value: float | None = None
    extra_info: dict[str, Any] | None = None


class Entry(msgspec.Struct):
    benchmark: Benchmark
    model: Model
    metric: Measurement
    runners: list[dict[str, Any]] | None = None
    dependencies: dict[str, dict[str, Any]] | None = None
    inputs: dict[str, Any] | None = None
    timestamp: int | None = None
    head_sha: str | None = None


def recognise(documents: Sequence[Any]) -> bool:
    entries = list(_list_entries(documents))
    return bool(entries) and all(
        isinstance(entry, dict) and TUPLES.keys() <= entry.keys() for entry in entries
    )


def _list_entries(documents: Sequence[Any]) -> Iterator[Any]:
    for document in documents:
        yield from document if isinstance(document, list) else [document]


def read(documents: Sequence[Any]) -> Import:
    cases: dict[str, list[Entry]] = {}
    for content in _list_entries(documents):
        entry = convert(_name_parts(content), Entry, FORM)
        shared = [
            msgspec.to_builtins(part)
            for part in (entry.benchmark, entry.model, entry.runners, entry.dependencies)
        ]
        cases.setdefault(digest([*shared, entry.inputs]), []).append(entry)
    if not cases:
        raise ForeignError("it has no results")
    records = [record for entries in cases.values() for record in _read_case(entries)]
    return Import(records=records, remarks=_tell_facts(cases.values(), records))


def _name_parts(content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    named = {
        key: {k: v for k, v in zip(names, content[key], strict=False) if v != ""}
        for key, names in TUPLES.items()
        if isinstance(content.get(key), list) and len(content[key]) <= len(names)
    }
    return {**content, **named}


def _tell_facts(cases: Any, records: Sequence[Record]) -> list[str]:
    others = [e.metric.name for entries in cases for e in entries if find_digits(e.metric) is None]
    if not others:
        return []
    timeless = sum(not record.samples_ns for record in records)
    tail = f"; cases without any time: {timeless}" if timeless else ""
    return [
        f"{name_some(others)} have no unit of time: they were kept as facts, which `flopwatch "
        f"query` reads, each as the median of its values{tail}"
    ]


def find_digits(metric: Measurement) -> int | None:
    """How many digits nanoseconds have more than the metric's unit; None: it is no time.

    >>> [find_digits(Measurement(name, [1.0])) for name in ("load_time(ms)", "tokens_per_s")]
    [6, None]
    """
    unit = (metric.extra_info or {}).get("unit")
    if isinstance(unit, str):
        return UNITS.get(unit.lower())
    found = IN_NAME.search(metric.name)
    return UNITS[found[1].lower()] if found else None


def _read_case(entries: Sequence[Entry]) -> Iterator[Record]:
    """A record for every time, each with all other metrics as facts; one without a time where there
    is none."""
    times = [entry for entry in entries if find_digits(entry.metric) is not None]
    facts = {
        entry.metric.name: median(entry.metric.benchmark_values)
        for entry in entries
        if find_digits(entry.metric) is None and entry.metric.benchmark_values
    }
    for entry in times:
        yield _read_time(entry, facts, is_only=len(times) == 1)
    if not times:
        case = _find_case(entries[0], None)
        yield make_record(case, facts=facts, **_read_circumstances(entries[0]))


def _read_time(entry: Entry, facts: dict[str, float], *, is_only: bool) -> Record:
    metric = entry.metric
    digits = find_digits(metric)
    assert digits is not None
    times_ns = [scale(value, digits) for value in metric.benchmark_values]
    if not times_ns or not all(map(is_time, times_ns)):
        raise ForeignError(
            f"{metric.name} of {entry.model.name} has no values, or one that is no time"
        )
    statistic = (metric.extra_info or {}).get("statistic")
    notes = [f"in the file it is a {statistic}"] if isinstance(statistic, str) else []
    return make_record(
        _find_case(entry, None if is_only else metric.name),
        **make_samples({"call": times_ns}),
        facts={} if PHASE in (metric.extra_info or {}) else facts,
        notes=notes,
        **_read_circumstances(entry),
    )


def _find_case(entry: Entry, metric: str | None) -> Case:
    """The variant is the backend where there is one: that is what is compared on a model."""
    benchmark, model = entry.benchmark, entry.model
    ours = find_case({**(benchmark.extra_info or {}), **(entry.metric.extra_info or {})})
    if ours is not None:
        return ours
    params = {
        "model": model.name,
        "type": model.type,
        "mode": benchmark.mode,
        "dtype": benchmark.dtype,
        **{key: _shorten(value) for key, value in (benchmark.extra_info or {}).items()},
        **{key: _shorten(value) for key, value in (model.extra_info or {}).items()},
        "metric": metric,
    }
    known = {key: value for key, value in params.items() if value not in (None, "")}
    return Case(suite=benchmark.name, variant=model.backend or model.name, params=known)


def _shorten(value: Any) -> Any:
    """What is nested (all arguments of a program, say) identifies cases by a digest of it; it is
    whole in the environment."""
    if not isinstance(value, Mapping | list):
        return value
    return digest(value)[:8] if value else None


def _read_circumstances(entry: Entry) -> dict[str, Any]:
    """Environment and date, as fields of a record."""
    runner: dict[str, Any] = next(iter(entry.runners or []), {})
    packages = {n: pick(of, "version", str) for n, of in (entry.dependencies or {}).items()}
    extra = entry.benchmark.extra_info or {}
    environment = {
        "machine": {
            "machine_id": hide_host(runner, "name"),
            "cpu_model": pick(runner, "cpu_info", str),
            "logical_cores": pick(runner, "cpu_count", int),
        },
        "torch": {
            "version": packages.pop("torch", None),
            "gpu": {
                "name": pick(runner, "gpu_info", str),
                "count": pick(runner, "gpu_count", int),
            },
        },
        "software": {"python": packages.pop("python", None), "packages": packages},
        "project": {"commit": entry.head_sha or pick(extra, "commit", str)},
        "imported": {
            "format": "pytorch",
            "name": f"{entry.benchmark.name} {entry.model.name} {entry.metric.name}",
            "runners": [{k: v for k, v in each.items() if k != "name"} for each in entry.runners]
            if entry.runners
            else None,
            "dependencies": entry.dependencies,
            "inputs": entry.inputs,
            "origins": entry.model.origins,
            "benchmark": extra,
            "model": entry.model.extra_info,
            "target_value": entry.metric.target_value,
        },
    }
    return {"environment": drop_unknown(environment), "measured_at": _read_date(entry.timestamp)}


def _read_date(timestamp: int | None) -> str:
    """Seconds, or thousandths of them, since 1970."""
    if timestamp is None:
        return ""
    try:
        seconds = timestamp / 1000 if timestamp > 10**11 else timestamp
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


IMPORTER = Importer(recognise=recognise, read=read)


def export(rows: Sequence[Row]) -> str:
    entries = [_write_entry(row, metric) for row in rows for metric in list_metrics(row)]
    return json.dumps(entries, indent=1, ensure_ascii=False)


def _write_entry(row: Row, metric: Metric) -> dict[str, Any]:
    """All extra information is text, as the database stores it."""
    record = row.record
    params = record.params
    benchmark = {
        "name": record.suite,
        "dtype": str(params["dtype"]) if "dtype" in params else None,
        "extra_info": {
            **mark_case(record),
            **list_conditions(record),
            "commit": look_up(record.environment, "project.commit"),
            "measured_at": record.measured_at or None,
        },
    }
    model = {
        "name": str(params.get("model") or label(params) or record.suite),
        "backend": record.variant,
    }
    return drop_unknown(
        {
            "benchmark": benchmark,
            "model": model,
            "metric": _write_metric(metric),
            "runners": _write_runners(record.environment),
            "dependencies": _write_dependencies(record.environment),
        }
    )


def _write_metric(metric: Metric) -> dict[str, Any]:
    interval = {"low": metric.low, "high": metric.high, "confidence": CONFIDENCE}
    known = interval if metric.low is not None and metric.high is not None else {}
    return {
        "name": metric.name,
        "benchmark_values": [metric.value],
        "extra_info": {
            "unit": metric.unit,
            "statistic": metric.statistic,
            **{name: repr(number) for name, number in known.items()},
            **({} if metric.phase is None else {PHASE: metric.phase}),
        },
    }


def _write_runners(environment: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    memory_bytes = look_up(environment, "machine.memory_total_bytes")
    gpu_bytes = look_up(environment, "torch.gpu.memory_bytes")
    runner = drop_unknown(
        {
            "cpu_info": look_up(environment, "machine.cpu_model"),
            "cpu_count": look_up(environment, "machine.logical_cores"),
            "avail_mem_in_gb": memory_bytes and round(memory_bytes / GIB),
            "gpu_info": look_up(environment, "torch.gpu.name"),
            "gpu_count": look_up(environment, "torch.gpu.count"),
            "avail_gpu_mem_in_gb": gpu_bytes and round(gpu_bytes / GIB),
        }
    )
    return [runner] if runner else None


def _write_dependencies(environment: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    packages = look_up(environment, "software.packages")
    others = packages if isinstance(packages, Mapping) else {}
    torch = {"version": look_up(environment, "torch.version") or others.get("torch"),
             "sha": look_up(environment, "torch.git")}  # fmt: skip
    return {
        **{name: {"version": version} for name, version in others.items()},
        "torch": torch,
        "python": {"version": look_up(environment, "software.python")},
        "flopwatch": {"version": look_up(environment, "software.flopwatch")},
    }
