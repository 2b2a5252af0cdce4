"""Questions that a worker answers with one message: what a suite declares, what torch is, how fast
matmuls are, what a function returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from flopwatch.errors import SuiteError, UsageError
from flopwatch.records.record import Record, SuiteColumn, encode
from flopwatch.runner.local_launcher import Hung, Launcher, Worker
from flopwatch.runner.rank_processes import RankLost, RankWorkers
from flopwatch.runner.record_builder import explain_death, explain_hang
from flopwatch.runner.schedule import Description
from flopwatch.settings import Settings
from flopwatch.suites.catalog import SuiteFile

Start = Callable[[dict[str, Any]], Worker | RankWorkers]


def describe(
    launcher: Launcher, suite_file: SuiteFile, choices: Mapping[str, Any], settings: Settings
) -> Description:
    """What the suite file declares. `choices` are those of the user: ``quick``, ``preset``,
    ``chosen`` values by axis, ``baseline``, and ``ranks``, how many torchrun has started, where the
    user has not chosen."""
    request = {
        "kind": "describe",
        "suite_path": str(suite_file.path),
        "device": settings.device,
        **choices,
    }
    complaint = f"{suite_file.path.name} cannot be loaded"
    reply = _ask(launcher.start, request, settings, complaint)
    if reply.pop("event") == "refused":
        raise UsageError(reply["reason"])
    return Description(**reply)


def read_torch_environment(launcher: Launcher, settings: Settings) -> dict[str, Any]:
    """What only a process with torch knows: its build, and the allocator in force."""
    request = {"kind": "environment", "settings": asdict(settings)}
    reply = _ask(launcher.start, request, settings, "the measuring process cannot describe itself")
    return {"torch": reply["torch"], "allocator": reply["allocator"]}


def measure_rates(
    launcher: Launcher, dtypes: Sequence[str], settings: Settings
) -> dict[str, float]:
    """FLOP/s of a matmul in each of the dtypes; none where they are not known: an estimate is no
    reason for a run to fail."""
    request = {"kind": "rates", "dtypes": dtypes, "settings": asdict(settings)}
    try:
        reply = _ask(launcher.start, request, settings, "the rate of matmuls cannot be measured")
    except SuiteError:
        return {}
    rates: dict[str, float] = reply["rates"]
    return rates


def call(start: Start, function: str, arguments: Mapping[str, Any], settings: Settings) -> Any:
    """What ``package.module:function`` returns in a worker, as plain data."""
    request = {
        "kind": "call",
        "function": function,
        "arguments": arguments,
        "settings": asdict(settings),
    }
    reply = _ask(start, request, settings, f"{function.partition(':')[2]} failed")
    if reply["event"] == "refused":
        raise UsageError(reply["reason"])
    return reply["value"]


def add_columns(
    launcher: Launcher, suite_file: SuiteFile, records: Sequence[Record], settings: Settings
) -> list[Record]:
    """The records of a group with the columns that the suite declares. A worker computes them: only
    there is the suite loaded."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "group.jsonl"  # too large for a request, which is one packet
        path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
        arguments = {"suite_path": str(suite_file.path), "records_path": str(path)}
        try:
            function = "flopwatch.worker.group:compute_columns"
            found = call(launcher.start, function, arguments, settings)
        except (SuiteError, UsageError) as error:
            note = f"the suite's columns are missing: {error}"
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
    start: Start, request: dict[str, Any], settings: Settings, complaint: str
) -> dict[str, Any]:
    """The single reply of a worker; anything else is a SuiteError."""
    with closing(start(request)) as worker:
        try:
            replies = list(worker.events(settings.silence_limit_s))
        except RankLost as lost:
            worker.kill()
            raise SuiteError(f"{complaint}: {lost}") from None
        except Hung:
            worker.request_stack()
            reason = explain_hang(settings.silence_limit_s, "loading", worker.log_tail())
            worker.kill()
            raise SuiteError(f"{complaint}: {reason}") from None
        except KeyboardInterrupt:
            worker.kill()
            raise
        if not replies:
            assert worker.exit_code is not None
            shortage = worker.find_shortage()
            _, reason = explain_death(worker.exit_code, "loading", worker.log_tail(), shortage)
            raise SuiteError(f"{complaint}: {reason}")
        if replies[0]["event"] == "broken":
            raise SuiteError(f"{complaint}: {replies[0]['reason']}")
        return replies[0]
