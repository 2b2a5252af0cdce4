"""This machine, set up for measuring: its facts, settings that suit it, workers, and what these
answer to a question: what a suite declares, what torch is, what a function returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from flopwatch.devices import environment, instruction_sets
from flopwatch.devices.kinds import Devices, find_kind
from flopwatch.devices.measured_peaks import find_peaks, shorten
from flopwatch.devices.present_accelerators import choose_devices
from flopwatch.errors import SuiteError, UsageError
from flopwatch.records.record import Record, SuiteColumn, encode
from flopwatch.runner.durations import FALLBACK, MOST_SLOWDOWN, Speed
from flopwatch.runner.local_launcher import Launcher, Worker
from flopwatch.runner.rank_processes import RankLost, RankWorkers
from flopwatch.runner.worker_processes import Hung
from flopwatch.settings import Device, Settings
from flopwatch.worker import allocator, limits
from flopwatch.worker.messages import (
    Broken,
    BrokenMessage,
    Call,
    Describe,
    Description,
    Refused,
    Report,
    Returned,
)

MEMORY_SHARE = 0.9
"""Share of the free memory that a worker may take, unless the user says otherwise: the rest keeps
the machine from swapping."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    facts: dict[str, Any]
    """The environment as far as it is known without torch."""
    instruction_set: instruction_sets.InstructionSet
    settings: Settings
    devices: Devices = Devices()
    """What there is to measure on."""

    def launch(
        self, preload: Sequence[str] = ("torch",), variables: Mapping[str, str] | None = None
    ) -> Launcher:
        """`variables` are set for its workers besides the usual ones."""
        return launch(self.instruction_set, self.settings, preload, variables)

    def read_environment(self, launcher: Launcher) -> dict[str, Any]:
        """The facts with what only a worker knows, and measured peaks."""
        arguments = {"allocator": self.settings.allocator}
        # The limit is for what is measured: one that is too low for torch itself is a row of each
        # case, and must not end the run before the first one.
        unlimited = replace(self.settings, memory_limit_bytes=None)
        found = {
            **self.facts,
            "isa": instruction_sets.describe(self.instruction_set),
            **call_function(launcher.start, "read_torch_environment", arguments, unlimited),
        }
        peaks = find_peaks(found, self.settings)
        return found if peaks is None else {**found, "peaks": shorten(peaks)}


def prepare_host(
    settings: Settings,
    *,
    project: Path | None = None,
    device: Device | None = None,
    threads: int | None = None,
    memory_limit_bytes: int | None = None,
    devices: Devices | None = None,
) -> Host:
    """With the machine's own values where the user left the choice. `project` is the folder whose
    commit is recorded, by default the current one; `devices` are those of another machine, for
    which this one only plans."""
    instruction_set = instruction_sets.probe()
    devices = devices or choose_devices(device)
    facts = environment.machine(project or Path.cwd())
    usable_cores: int = facts["machine"]["usable_cores"]
    available_bytes: int = facts["machine"]["memory_available_bytes"]
    settled = replace(
        settings,
        device=devices.kind.name,
        device_index=devices.index,
        threads=threads or usable_cores,
        memory_limit_bytes=memory_limit_bytes or int(MEMORY_SHARE * available_bytes),
    )
    return Host(facts=facts, instruction_set=instruction_set, settings=settled, devices=devices)


def launch(
    instruction_set: instruction_sets.InstructionSet,
    settings: Settings,
    preload: Sequence[str] = ("torch",),
    variables: Mapping[str, str] | None = None,
) -> Launcher:
    return Launcher(
        preload=preload,
        environment={
            **instruction_sets.environment(instruction_set),
            **allocator.preload_environment(settings.allocator),
            **limits.thread_environment(settings.threads),
            **(variables or {}),
        },
        fork=find_kind(settings.device).can_fork,
    )


Wanted = TypeVar("Wanted", Call, Describe)
Start = Callable[[Wanted], Worker | RankWorkers]
Waiting = Callable[[], AbstractContextManager[None]]
"""Entered while a worker is waited for, which is when an interrupt may be raised."""


def describe(launcher: Launcher, request: Describe) -> Description:
    """What a suite file declares."""
    name = Path(request.suite_path).name
    value = _ask(launcher.start, request, f"{name} cannot be loaded")
    return msgspec.convert(value, Description)


def call_function(
    start: Start[Call],
    function: str,
    arguments: Mapping[str, Any],
    settings: Settings,
    waiting: Waiting = nullcontext,
) -> Any:
    """What a function of `worker.called_functions` returns in a worker, as plain data."""
    request = Call(settings=settings, function=function, arguments=dict(arguments))
    return _ask(start, request, f"{function} failed", waiting)


def measure_speed(launcher: Launcher, dtypes: Sequence[str], settings: Settings) -> Speed:
    """That of the machine as busy as it is, with matmuls in each of the dtypes; without rates and
    slowdown where they are not known: an estimate is no reason for a run to fail."""
    # Without rates that are asked for, the slowdown is still to be known.
    arguments = {"dtypes": list(dtypes) or [FALLBACK], "device": settings.device}
    try:
        found = call_function(launcher.start, "measure_speed", arguments, settings)
    except SuiteError:
        return Speed(rates={})
    rates = {dtype: rate for dtype, rate in found["rates"].items() if dtype in dtypes}
    return Speed(rates=rates, slowdown=min(found["slowdown"], MOST_SLOWDOWN))


def add_columns(
    launcher: Launcher,
    suite_path: Path,
    records: Sequence[Record],
    settings: Settings,
    waiting: Waiting = nullcontext,
) -> list[Record]:
    """The records of a group with the columns that the suite declares. A worker computes them: only
    there is the suite loaded."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "group.jsonl"
        path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
        arguments = {"suite_path": str(suite_path), "records_path": str(path)}
        try:
            found = call_function(launcher.start, "compute_columns", arguments, settings, waiting)
        except (SuiteError, UsageError, KeyboardInterrupt) as error:
            note = f"the suite's columns are missing: {str(error) or 'interrupted'}"
            return [replace(record, notes=[*record.notes, note]) for record in records]
    return [
        replace(
            record,
            columns=msgspec.convert(computed["columns"], dict[str, SuiteColumn]),
            notes=[*record.notes, *computed["notes"]],
        )
        for record, computed in zip(records, found, strict=True)
    ]


def _ask(
    start: Start[Wanted],
    request: Wanted,
    complaint: str,
    waiting: Waiting = nullcontext,
    *,
    is_last: bool = False,
) -> Any:
    """The value that a worker returns. What it refuses is a UsageError, and any other end of it a
    SuiteError that begins with the complaint. Another worker is asked once where the server is
    lost, where ranks could not meet at their port, and where what went wrong may be due to an
    earlier request to the same process."""
    reply: Report | None = None
    with closing(start(request)) as worker:
        try:
            reply = _await_reply(worker, request.settings.silence_limit_s, waiting)
            message = "" if reply is not None else worker.explain_death().message
        except (RankLost, BrokenMessage) as lost:
            message = str(lost)
        except Hung:
            message = worker.explain_hang().message
        finally:
            worker.kill()
        is_unlucky = worker.has_lost_server or worker.is_reused
    match reply:
        case Returned(value=value):
            return value
        case Refused(message=refusal):
            raise UsageError(refusal)
        case Broken(failure=failure, is_port_taken=is_port_taken):
            message, is_unlucky = failure.message, is_unlucky or is_port_taken
    if is_last or not is_unlucky:
        raise SuiteError(f"{complaint}: {message}")
    return _ask(start, structs.replace(request, fresh=True), complaint, waiting, is_last=True)


def _await_reply(
    worker: Worker | RankWorkers, silence_limit_s: float, waiting: Waiting
) -> Report | None:
    """Its first report; whatever becomes of the process afterwards, that is the answer."""
    reply: Report | None = None
    try:
        for report in worker.reports(silence_limit_s, waiting):
            reply = reply or report
            worker.expect_end()
    except (RankLost, BrokenMessage, Hung):
        if reply is None:
            raise
    return reply
