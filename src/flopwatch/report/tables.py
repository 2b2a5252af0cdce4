"""Results as a terminal table: one section a group, the baseline first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from flopwatch.analysis.summary import Row, conditions
from flopwatch.case import format_value, label
from flopwatch.engine.environment import look_up
from flopwatch.records.record import Record
from flopwatch.report.units import format_interval, format_rate, format_speedup, format_time, plural

VERDICT_STYLES = {"faster": "green", "slower": "red", "unclear": "yellow", "same": ""}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """One suite's rows as text, for whatever will draw them."""

    title: str
    conditions: str
    """How it was measured: what would have to be the same for a fair comparison."""
    columns: list[str]
    text_columns: int
    """How many leading columns are words; the others are numbers."""
    optional: list[list[str]]
    """Columns that a narrow terminal can do without, the least important first; those in one
    list go together."""
    groups: list[list[list[str]]]
    """Groups of rows of cells."""
    remarks: list[str]
    """Failures and doubts, one sentence each."""


def make_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One sheet for every suite and set of conditions."""
    sheets: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        sheets.setdefault((row.record.suite, conditions(row.record)), []).append(row)
    return [_make_sheet(suite, chosen) for (suite, _), chosen in sheets.items()]


def draw(sheet: Sheet, width: int) -> Table:
    """The sheet as a table that fits the width, if need be without its optional columns."""
    shown = _choose_columns(sheet, width)
    # Text objects, since a name from a record might look like rich's markup.
    table = Table(
        title=Text(sheet.title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.HORIZONTALS,
        caption=Text(sheet.conditions),
        caption_justify="left",
    )
    for position in shown:
        is_text = position < sheet.text_columns or sheet.columns[position] == "verdict"
        justify: Any = "left" if is_text else "right"
        table.add_column(Text(sheet.columns[position]), justify=justify, no_wrap=True)
    for group in sheet.groups:
        for cells in group:
            *others, verdict = (cells[position] for position in shown)
            table.add_row(*map(Text, others), Text(verdict, style=VERDICT_STYLES.get(verdict, "")))
        table.add_section()
    return table


def _choose_columns(sheet: Sheet, width: int) -> list[int]:
    """Positions of the columns to draw; the last, the verdict, is always among them."""
    shown = list(range(len(sheet.columns)))
    rows = [sheet.columns, *(cells for group in sheet.groups for cells in group)]
    widths = [max(len(row[position]) for row in rows) for position in shown]
    for names in sheet.optional:
        if 2 + sum(widths[position] + 3 for position in shown) <= width:
            break
        shown = [position for position in shown if sheet.columns[position] not in names]
    return shown


def _make_sheet(suite: str, rows: Sequence[Row]) -> Sheet:
    axes = list(dict.fromkeys(axis for row in rows for axis in row.record.params))
    # What is the same in every row is said once, in the title.
    values = {a: {format_value(row.record.params.get(a)) for row in rows} for a in axes}
    shown = [axis for axis in axes if len(values[axis]) > 1]
    fixed = [f"{axis}={values[axis].copy().pop()}" for axis in axes if len(values[axis]) == 1]
    phases = list(dict.fromkeys(phase for row in rows for phase in row.phases_ns))
    several = phases if len(phases) > 1 else []
    rates = [
        (name, unit, attribute)
        for name, unit, attribute in (
            ("FLOP/s", "FLOP/s", "flops_per_s"),
            ("bandwidth", "B/s", "bytes_per_s"),
        )
        if any(getattr(row, attribute) is not None for row in rows)
    ]

    groups = [list(group) for _, group in groupby(rows, lambda row: row.record.group)]

    def cells(row: Row) -> list[str]:
        record = row.record
        head = [format_value(record.params.get(axis, "")) for axis in shown] + [record.variant]
        if row.total_ns is None:
            # The status where its time would be; interval, rates, speedup and verdict are empty.
            return [*head, *[""] * len(several), record.status, *[""] * (len(rates) + 3)]
        times = [format_time(row.phases_ns[p].value) if p in row.phases_ns else "" for p in several]
        speedup = format_speedup(row.speedup) if row.speedup else ""
        is_baseline = record.variant == record.baseline
        return [
            *head,
            *times,
            format_time(row.total_ns.value),
            format_interval(row.total_ns),
            *(format_rate(getattr(row, attribute), unit) for _, unit, attribute in rates),
            speedup,
            "baseline" if is_baseline else (row.verdict or ""),
        ]

    return Sheet(
        title=" ".join([suite, *fixed]),
        conditions=describe_conditions(rows[0].record),
        columns=[
            *shown,
            "variant",
            *several,
            "total" if several else "time",
            "±",
            *(name for name, _, _ in rates),
            "speedup",
            "verdict",
        ],
        text_columns=len(shown) + 1,
        optional=[[name for name, _, _ in rates], several, ["±"]],
        groups=[[cells(row) for row in group] for group in groups],
        remarks=[remark for group in groups for remark in _remarks(group)],
    )


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


def _remarks(rows: Sequence[Row]) -> list[str]:
    """What a reader should know about one group: failures, imprecision, doubts."""
    params = label(rows[0].record.params)
    remarks = [
        f"{row.record.variant} {params}: {row.record.status}: {row.record.reason}"
        for row in rows
        if row.record.status != "ok"
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
    return remarks + [
        f"{r.record.variant} {params}: {note}" for r in rows for note in r.record.notes
    ]
