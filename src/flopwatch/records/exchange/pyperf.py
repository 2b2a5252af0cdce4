"""The JSON files of pyperf, both ways.

A benchmark there is a list of runs, each a process with warm-ups, as pairs of loops and seconds,
and values, in seconds of one call. A record has all warm-ups in front; `rounds` keeps the order in
which everything was taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from flopwatch.analysis.summary import Row
from flopwatch.devices.environment import look_up
from flopwatch.records.exchange.github_action import name_case
from flopwatch.records.foreign import (
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
    mark_case,
    pick,
    scale,
)
from flopwatch.records.record import Record
from flopwatch.suites.case import Case

VERSION = "1.0"
SECOND = "second"
NS_DIGITS = 9

ENVIRONMENT = {
    "cpu_model_name": "machine.cpu_model",
    "cpu_count": "machine.logical_cores",
    "python_version": "software.python",
    "python_implementation": "software.implementation",
    "platform": "software.os",
    "torch_version": "torch.version",
    "commit_id": "project.commit",
    "flopwatch_version": "software.flopwatch",
}
"""From pyperf's metadata to a record's environment, and back."""

PRIVATE = ("hostname", "python_executable", "python_cflags", "python_config_args")
"""What a record does not repeat: names and paths of a machine."""


class Run(msgspec.Struct):
    values: list[float] = []
    warmups: list[tuple[int, float]] | None = None
    metadata: dict[str, Any] = {}


class Benchmark(msgspec.Struct):
    runs: list[Run]
    metadata: dict[str, Any] = {}


class File(msgspec.Struct):
    benchmarks: list[Benchmark]
    version: str
    metadata: dict[str, Any] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    ns: float
    loops: int
    number: int
    """In order of taking."""
    is_warmup: bool


def recognise(documents: Sequence[Any]) -> bool:
    content = documents[0]
    return (
        len(documents) == 1
        and isinstance(content, dict)
        and "version" in content
        and isinstance(content.get("benchmarks"), list)
        and all(isinstance(each, dict) and "runs" in each for each in content["benchmarks"])
    )


def read(documents: Sequence[Any]) -> Import:
    file = convert(documents[0], File, "a pyperf file")
    if file.version != VERSION:
        raise ForeignError(
            f"it has pyperf's format {file.version}, and flopwatch reads {VERSION}; let a newer "
            "pyperf rewrite it by `python -m pyperf convert`"
        )
    remarks: list[str] = []
    found = (_read_benchmark(each, file.metadata, remarks) for each in file.benchmarks)
    return Import(records=[record for record in found if record is not None], remarks=remarks)


def _read_benchmark(
    benchmark: Benchmark, shared: dict[str, Any], remarks: list[str]
) -> Record | None:
    if not benchmark.runs:
        raise ForeignError("it is not a pyperf file (a benchmark has no runs)")
    common = {**shared, **benchmark.metadata}
    metadata = {**common, **benchmark.runs[0].metadata}
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        raise ForeignError("it is not a pyperf file (a benchmark has no name)")
    if metadata.get("unit", SECOND) != SECOND:
        remarks.append(f"{name} is in the unit {metadata['unit']}, not a time, and was left out")
        return None
    taken = list(_list_samples(benchmark.runs, common))
    usable = [sample for sample in taken if is_time(sample.ns)]
    if any(not is_time(sample.ns) and not sample.is_warmup for sample in taken):
        raise ForeignError(f"{name} has a value that is no time")
    if len(usable) < len(taken):
        remarks.append(f"{name}: {len(taken) - len(usable)} warm-ups of 0 s were left out")
    samples = sorted(usable, key=lambda sample: not sample.is_warmup)
    num_warmups = sum(sample.is_warmup for sample in samples)
    if num_warmups == len(samples):
        remarks.append(f"{name} has no values and was left out")
        return None
    return make_record(
        find_case(metadata) or Case(suite="pyperf", variant=name, params={}),
        samples_ns={"call": [sample.ns for sample in samples]},
        rounds=[sample.number for sample in samples],
        calls_per_sample=[sample.loops for sample in samples],
        warmup_samples=num_warmups,
        facts=_collect_facts(benchmark.runs),
        environment=_read_environment(name, common, metadata),
        measured_at=(pick(metadata, "date", str) or "").replace(" ", "T"),
    )


def _list_samples(runs: Sequence[Run], common: dict[str, Any]) -> Iterator[Sample]:
    number = 0
    for run in runs:
        metadata = {**common, **run.metadata}
        inner = _count(metadata, "inner_loops")
        warmups = [(loops, seconds, True) for loops, seconds in run.warmups or []]
        values = [(_count(metadata, "loops"), seconds, False) for seconds in run.values]
        for loops, seconds, is_warmup in warmups + values:
            yield Sample(
                ns=scale(seconds, NS_DIGITS),
                loops=loops * inner,
                number=number,
                is_warmup=is_warmup,
            )
            number += 1


def _count(metadata: dict[str, Any], name: str) -> int:
    count = metadata.get(name, 1)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ForeignError(f"it is not a pyperf file ({name} is {count!r})")
    return count


def _collect_facts(runs: Sequence[Run]) -> dict[str, float]:
    sizes = [pick(run.metadata, "mem_max_rss", int) for run in runs]
    known = [size for size in sizes if size is not None]
    facts = {"processes": float(sum(bool(run.values) for run in runs))}
    return {**facts, "process_memory_bytes": float(max(known))} if known else facts


def _read_environment(
    name: str, common: dict[str, Any], metadata: dict[str, Any]
) -> dict[str, Any]:
    sections: dict[str, dict[str, Any]] = {"machine": {}, "software": {}}
    for theirs, ours in ENVIRONMENT.items():
        section, key = ours.split(".")
        kind: type[Any] = int if theirs == "cpu_count" else str
        sections.setdefault(section, {})[key] = pick(metadata, theirs, kind)
    sections["machine"]["machine_id"] = hide_host(metadata, "hostname")
    version = sections["software"]["python"]  # "3.11.2 (64-bit) revision ..."
    sections["software"]["python"] = version and version.partition(" ")[0]
    known = {*ENVIRONMENT, *PRIVATE, "name", "date"}
    rest = {key: value for key, value in common.items() if key not in known}
    imported = {"format": "pyperf", "name": name, "metadata": rest}
    return drop_unknown({**sections, "imported": imported})


IMPORTER = Importer(recognise=recognise, read=read)


def export(rows: Sequence[Row]) -> str:
    """Every measured case, and every phase of it where it has several, as a benchmark."""
    names: set[str] = set()
    benchmarks = []
    for row in rows:
        record = row.record
        several = list(record.samples_ns) if len(record.samples_ns) > 1 else []
        phases: list[str | None] = [None, *several]
        for phase in phases:
            benchmarks.append(_write_benchmark(record, phase, name_case(record, phase, names)))
    return json.dumps({"version": VERSION, "benchmarks": benchmarks}, ensure_ascii=False)


def _write_benchmark(record: Record, phase: str | None, name: str) -> dict[str, Any]:
    times_ns = (
        [sum(row) for row in zip(*record.samples_ns.values(), strict=True)]
        if phase is None
        else record.samples_ns[phase]
    )
    seconds = [scale(ns, -NS_DIGITS) for ns in times_ns]
    cut = record.warmup_samples
    warmups = list(zip(record.calls_per_sample[:cut], seconds[:cut], strict=True))
    measured = zip(record.calls_per_sample[cut:], seconds[cut:], strict=True)
    runs = [
        {"metadata": {"loops": loops}, "values": [value for _, value in group]}
        for loops, group in groupby(measured, key=lambda pair: pair[0])
    ]
    if warmups:
        runs[0]["warmups"] = warmups
    return {"runs": runs, "metadata": {**_write_metadata(record, phase), "name": name}}


def _write_metadata(record: Record, phase: str | None) -> dict[str, Any]:
    """pyperf refuses values that are empty or have line breaks."""
    known = {key: look_up(record.environment, ours) for key, ours in ENVIRONMENT.items()}
    metadata = {
        **{key: value for key, value in known.items() if isinstance(value, str | int)},
        **mark_case(record, phase),
        **{f"flopwatch_{key}": value for key, value in list_conditions(record).items()},
        "unit": SECOND,
        "date": record.measured_at,
    }
    for key, value in metadata.items():
        if isinstance(value, str):
            metadata[key] = re.sub(r"[\r\n]+", " ", value).strip()
    return {key: value for key, value in metadata.items() if value not in (None, "")}
