"""What a reader should know beside the numbers, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.regions import estimate_instruments
from flopwatch.analysis.summary import Row
from flopwatch.case import label
from flopwatch.engine.environment import look_up
from flopwatch.records.record import Record
from flopwatch.report.columns import UNLIKE
from flopwatch.report.units import format_change, plural


def describe_conditions(record: Record) -> str:
    """
    >>> from flopwatch.settings import Settings
    >>> record = Record(id="", group="", run="", suite="", variant="", baseline="", params={},
    ...     status="ok", settings=Settings(threads=2, cache="cold"),
    ...     environment={"machine": {"cpu_model": "Z80"}, "torch": {"version": "2.13.0"}})
    >>> describe_conditions(record)
    'cpu, 2 threads, cold cache, allocator retain, Z80, torch 2.13.0'
    """
    settings = record.settings
    version = look_up(record.environment, "torch.version")
    cap = look_up(record.environment, "isa.onednn_max_cpu_isa")
    parts = [
        settings.device,
        plural(settings.threads, "thread"),
        f"{settings.cache} cache",
        f"allocator {settings.allocator}",
        look_up(record.environment, "torch.gpu.name")
        or look_up(record.environment, "machine.cpu_model"),
        f"torch {version}" if version else None,
        f"oneDNN capped at {cap}" if cap else None,
    ]
    return ", ".join(str(part) for part in parts if part)


STOP_REASONS = {
    "budget": "the time budget was spent (--case-budget)",
    "stalled": "more rounds no longer helped: the machine is unsteady",
    "interrupted": "it was interrupted",
}


def describe_unlike(row: Row) -> str:
    """In what a case and its baseline differ that a fair comparison has in common."""
    differences = "; ".join(
        f"{name} {theirs or 'unknown'} in the baseline, {mine or 'unknown'} here"
        for name, (theirs, mine) in row.unlike.items()
    )
    return f"{UNLIKE}: {differences}"


def group_remarks(rows: Sequence[Row]) -> list[str]:
    """What a reader should know about one group: failures and imprecision."""
    params = label(rows[0].record.params)
    remarks = [
        f"{row.record.variant} {params}: {row.record.status}: {row.record.reason}"
        for row in rows
        if row.record.status != "ok"
    ]
    remarks += [
        f"{row.record.variant} {params}: {describe_unlike(row)}" for row in rows if row.unlike
    ]
    measured = [row for row in rows if row.total_ns is not None]
    unsteady = [row.record.variant for row in measured if row.record.steady is False]
    if unsteady:
        remarks.append(f"{params}: no steady state was detected; times may still be changing")
    imprecise = [row for row in measured if row.record.stop in STOP_REASONS]
    if imprecise:
        record, rounds = imprecise[0].record, imprecise[0].total_ns
        assert record.stop is not None
        assert rounds is not None
        remarks.append(
            f"{params}: ±{100 * record.settings.precision:g} % was not reached in "
            f"{plural(rounds.samples, 'round')}: {STOP_REASONS[record.stop]}"
        )
    return remarks


def note_remarks(rows: Sequence[Row]) -> list[str]:
    """Doubts that arose while measuring, each told once for all the cases of a table."""
    noted: dict[str, list[Record]] = {}
    for row in rows:
        for note in row.record.notes:
            noted.setdefault(note, []).append(row.record)
    return [f"{_name_cases(records)}: {note}" for note, records in noted.items()]


def _name_cases(records: Sequence[Record]) -> str:
    variants = ", ".join(dict.fromkeys(record.variant for record in records))
    groups = {record.group for record in records}
    if len(groups) > 1:
        return f"{variants} in {plural(len(groups), 'group')}"
    return f"{variants} {label(records[0].params)}"


def instrument_remarks(rows: Sequence[Row]) -> list[str]:
    """What instruments cost in one group."""
    cost = estimate_instruments(row.record for row in rows if row.regions)
    if cost is None:
        return []
    return [f"{label(rows[0].record.params)}: instruments cost {format_change(cost)}"]
