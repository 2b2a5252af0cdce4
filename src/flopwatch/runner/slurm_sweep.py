"""A sweep that was sent to Slurm, in files: what its jobs shall measure, and what became of them.

Next to the results file lies RESULTS.jobs/, with a folder for each sweep whose jobs have not all
been collected. Every file has one writer, since locks of network file systems cannot be trusted:

    sweep.json    what is to be measured, part by part; a job measures one part. Written first
    ids.json      the jobs' ids, once Slurm has them
    3.0.begin     of part 3, started for the first time: by which job, on which node
    3.0.now       the group that it is measuring
    3.0.jsonl     its records, a results file like any other
    3.0.end       that it has ended by itself, and why
    3.closed      that the runner has collected it
    log/          what submitit and the jobs print

A job that Slurm requeues writes 3.1.begin and so on, and leaves alone what it finds: the process
that it replaces may still run, on a node that was only thought to be lost.

The runner alone writes the results file. It takes records over while jobs run, so whatever ends,
they are there or in the sweep's folder; the next run on the same results file takes them over.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.errors import StoreError
from flopwatch.records.record import Record, decode
from flopwatch.records.store import Store, read
from flopwatch.runner.memory_fit import TOO_MUCH
from flopwatch.runner.record_builder import RecordBuilder
from flopwatch.runner.schedule import Group
from flopwatch.runner.session import Options, find_request
from flopwatch.runner.slurm_queue import End, JobState, Shape, find_log
from flopwatch.settings import Settings
from flopwatch.worker.failure import Failure

SWEEP, IDS, CLOSED = "sweep.json", "ids.json", "closed"
DONE, STOPPED_EARLY, INTERRUPTED, FAILED = "done", "time-limit", "interrupted", "failed"
"""Why a job has ended by itself."""
REQUEUED = End(
    status="skipped",
    cause="preempted",
    sentence="was requeued by Slurm and measures it again",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one job measures."""

    groups: list[Group]
    shape: Shape
    request: str
    """Digest of what was asked of Slurm: records of another request do not answer for these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    name: str
    """Of its jobs, too."""
    options: Options
    settings: Settings
    parts: list[Part]

    def name_array(self, shape: Shape) -> str:
        """The name of the jobs of that shape."""
        return f"{self.name}-{shape.nodes}x{shape.tasks_per_node}"

    def list_numbers(self, shape: Shape) -> list[int]:
        """The parts that they measure, in the order of the array."""
        return [number for number, part in enumerate(self.parts) if part.shape == shape]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What a job says when it ends by itself."""

    why: str
    error: str | None = None


def write_sweep(folder: Path, sweep: Sweep) -> None:
    folder.mkdir(parents=True)
    write_whole(folder / SWEEP, msgspec.json.encode(sweep, enc_hook=str))


def read_sweep(folder: Path) -> Sweep:
    return msgspec.json.decode(
        (folder / SWEEP).read_bytes(), type=Sweep, dec_hook=lambda kind, text: kind(text)
    )


def write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing: readers may look at any time."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}); what is measured is kept, and running "
            "again collects it"
        ) from None


class Attempt:
    """One start of a part's job, at the job's side."""

    def __init__(self, folder: Path, number: int, restarts: int) -> None:
        self._folder, self._stem = folder, f"{number}.{restarts}"
        self._earlier = [folder / f"{number}.{n}.jsonl" for n in range(restarts)]
        self.records_path = folder / f"{self._stem}.jsonl"

    def begin(self, slurm: dict[str, Any]) -> None:
        write_whole(self._folder / f"{self._stem}.begin", msgspec.json.encode(slurm))

    def begin_group(self, group: Group) -> None:
        write_whole(self._folder / f"{self._stem}.now", group.id.encode())

    def end(self, ending: Ending) -> None:
        write_whole(self._folder / f"{self._stem}.end", msgspec.json.encode(ending))

    def read_earlier(self) -> list[Record]:
        """What the job has stored before Slurm requeued it."""
        files = [path for path in self._earlier if path.exists()]
        return [record for path in files for record in read(path, skip_corrupt=True).records]


class Collector:
    """Adds records to the results file, each of them once."""

    def __init__(self, store: Store, known: Sequence[Record]) -> None:
        self._store = store
        self._keys = {(record.run_id, record.case_id) for record in known}
        self.added: list[Record] = []

    def add(self, record: Record) -> None:
        key = (record.run_id, record.case_id)
        if key not in self._keys:
            self._store.append(record)
            self._keys.add(key)
            self.added.append(record)


class SentPart:
    """A part that was sent to Slurm and is not closed yet, at the runner's side."""

    def __init__(self, folder: Path, sweep: Sweep, number: int, job_id: str | None) -> None:
        self.folder, self.sweep, self.number, self.job_id = folder, sweep, number, job_id
        self.part = sweep.parts[number]
        self.records: list[Record] = []
        """Those of its jobs so far, without those that were interrupted."""
        self._interrupted: dict[int, list[Record]] = {}
        """By attempt: they wait for the reason."""
        self._read_bytes: dict[int, int] = {}
        self._settled: set[int] = set()

    @property
    def name(self) -> str:
        return f"job {self.job_id}" if self.job_id else "a job"

    def list_attempts(self) -> list[int]:
        begun = self.folder.glob(f"{self.number}.*.begin")
        return sorted(int(path.name.split(".")[1]) for path in begun)

    def read_ending(self) -> Ending | None:
        """Of its latest start, where that has ended by itself."""
        attempts = self.list_attempts()
        content = self._read(attempts[-1], "end") if attempts else None
        return None if content is None else msgspec.json.decode(content, type=Ending)

    def has_log(self) -> bool:
        return self.job_id is not None and find_log(self.folder, self.job_id).exists()

    def collect(self, collector: Collector) -> int:
        """Take over what its jobs have stored since; the number of new records."""
        before = len(self.records)
        attempts = self.list_attempts()
        for attempt in attempts:
            for record in self._read_new(attempt):
                if record.status == "skipped" and record.cause == "interrupted":
                    self._interrupted.setdefault(attempt, []).append(record)
                else:
                    collector.add(record)
                    self.records.append(record)
            if attempt != attempts[-1]:  # before what the next one has measured is known
                self._settle(attempt, REQUEUED, collector)
        return len(self.records) - before

    def close(self, end: End | None, collector: Collector, state: JobState) -> None:
        """Add rows of what it has not measured, for that reason; None: it has done its work."""
        if end is not None:
            attempts = self.list_attempts()
            if attempts:
                self._settle(attempts[-1], end, collector, state)
            rest = Failure("skipped", f"not measured: {self._describe(state, end)}", end.cause)
            self._add_rows(self.list_unfinished(), None, rest, collector, state)
        write_whole(self.folder / f"{self.number}.{CLOSED}", b"")

    def list_unfinished(self) -> list[Group]:
        """Groups that lack a record, each with the variants that do."""
        left = []
        stored: dict[str, set[str]] = {}
        for record in self.records:
            stored.setdefault(record.group_id, set()).add(record.variant)
        for group in self.part.groups:
            done = stored.get(group.id, set())
            if group.candidates:
                own = [record for record in self.records if is_of(record, group)]
                done = {record.variant for record in own if record.status not in TOO_MUCH}
            if missing := tuple(v for v in group.variants if v not in done):
                left.append(replace(group, variants=missing))
        return left

    def list_tries(self) -> list[Record]:
        """Records of what was only too large, where something smaller fits."""
        tries: list[Record] = []
        for group in self.part.groups if self.part.groups[0].candidates else ():
            own = [record for record in self.records if is_of(record, group)]
            fits = {record.variant for record in own if record.status == "ok"}
            tries += [r for r in own if r.status in TOO_MUCH and r.variant in fits]
        return tries

    def _settle(
        self, attempt: int, end: End, collector: Collector, state: JobState | None = None
    ) -> None:
        """Add rows of the group that was being measured when an attempt ended."""
        if attempt in self._settled:
            return
        self._settled.add(attempt)
        current = (self._read(attempt, "now") or b"").decode()
        stopped = {record.group_id for record in self._interrupted.get(attempt, ())}
        groups = [g for g in self.list_unfinished() if g.id == current or g.id in stopped]
        cause = end.cause if end.status == "skipped" else None
        failure = Failure(end.status, self._describe(state, end), cause)
        self._add_rows(groups, attempt, failure, collector, state)

    def _add_rows(
        self,
        groups: Sequence[Group],
        attempt: int | None,
        failure: Failure,
        collector: Collector,
        state: JobState | None,
    ) -> None:
        """No state: of a job that goes on, which will measure them again."""
        rows: list[Record] = []
        for group in groups:
            alike = self._find_alike(collector)
            builder = RecordBuilder(
                group,
                run=f"{self.sweep.name}-{self.number}" + ("" if attempt is None else f".{attempt}"),
                settings=self.sweep.settings if alike is None else alike.settings,
            )
            environment = self._describe_environment(alike, attempt, state)
            for variant in group.variants:
                builder.fail(variant, failure)
                rows.append(builder.finish(variant, environment))
        for row in rows:
            collector.add(row)
        self.records += rows if state is not None else []

    def _find_alike(self, collector: Collector) -> Record | None:
        """A record of the same request: its conditions are those that this would have had."""
        for record in (*self.records, *collector.added):
            if find_request(record) == self.part.request and "machine" in record.environment:
                return record
        return None

    def _describe_environment(
        self, alike: Record | None, attempt: int | None, state: JobState | None
    ) -> dict[str, Any]:
        begun = self.read_begin(attempt)
        slurm = {"job_id": self.job_id, **begun, "request": self.part.request}
        if state is not None and state.name:
            slurm["state"] = state.name
        known = {} if alike is None else alike.environment
        return {**{k: v for k, v in known.items() if k not in ("load", "gpus")}, "slurm": slurm}

    def _describe(self, state: JobState | None, end: End) -> str:
        node = (state.nodes if state is not None else "") or self.read_begin().get("node")
        return f"{self.name} on {node} {end.sentence}" if node else f"{self.name} {end.sentence}"

    def read_begin(self, attempt: int | None = None) -> dict[str, Any]:
        """What the job said at its latest start, or at that one."""
        attempts = self.list_attempts() if attempt is None else [attempt]
        content = self._read(attempts[-1], "begin") if attempts else None
        return {} if content is None else msgspec.json.decode(content, type=dict[str, Any])

    def _read(self, attempt: int, kind: str) -> bytes | None:
        try:
            return (self.folder / f"{self.number}.{attempt}.{kind}").read_bytes()
        except OSError:
            return None

    def _read_new(self, attempt: int) -> Iterator[Record]:
        """Whole lines that have come since; a line that is cut short may still be written."""
        path = self.folder / f"{self.number}.{attempt}.jsonl"
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(self._read_bytes.get(attempt, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    break
                with suppress(StoreError):
                    yield decode(line)
                self._read_bytes[attempt] = self._read_bytes.get(attempt, 0) + len(line)


def is_of(record: Record, group: Group) -> bool:
    """Whatever value the job has chosen for an axis that is to be as large as fits."""
    if not group.candidates:
        return record.group_id == group.id
    fixed = group.params.keys() - group.candidates.keys()
    return all(record.params.get(axis) == group.params[axis] for axis in fixed)


def find_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.jobs")


def read_sent_parts(folder: Path) -> list[SentPart]:
    """Of all earlier commands, those that are not closed."""
    parts = []
    for path in sorted(folder.glob(f"*/{SWEEP}")):
        sweep, ids = read_sweep(path.parent), read_ids(path.parent)
        parts += [
            SentPart(path.parent, sweep, number, ids.get(number))
            for number in range(len(sweep.parts))
            if not (path.parent / f"{number}.{CLOSED}").exists()
        ]
    return parts


def write_ids(folder: Path, ids: dict[int, str]) -> None:
    write_whole(folder / IDS, msgspec.json.encode(ids))


def read_ids(folder: Path) -> dict[int, str]:
    try:
        return msgspec.json.decode((folder / IDS).read_bytes(), type=dict[int, str])
    except OSError:
        return {}


def remove_closed(folder: Path) -> None:
    """Sweeps of which nothing is left to be collected."""
    for path in folder.glob(f"*/{SWEEP}"):
        parts = len(read_sweep(path.parent).parts)
        if len(list(path.parent.glob(f"*.{CLOSED}"))) == parts:
            shutil.rmtree(path.parent, ignore_errors=True)
