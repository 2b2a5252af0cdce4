"""Results as a terminal table: one section a group, the baseline first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from flopwatch.analysis.summary import Row, conditions
from flopwatch.case import format_value
from flopwatch.report.columns import (
    DISPENSABLE,
    Column,
    Item,
    Part,
    Place,
    case_columns,
    choose_phases,
    part_columns,
    region_columns,
    verdict_word,
)
from flopwatch.report.remarks import (
    describe_conditions,
    group_remarks,
    instrument_remarks,
    note_remarks,
)

VERDICT_STYLES = {"faster": "green", "slower": "red", "unclear": "yellow", "same": ""}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """One suite's rows as text, for whatever will draw them."""

    title: str
    conditions: str
    """How it was measured: what would have to be the same for a fair comparison."""
    columns: list[str]
    text_columns: int
    """How many leading columns are words; the others are numbers, but for a verdict at the end."""
    has_verdict: bool = True
    """Whether the last column is words too."""
    optional: list[list[int]]
    """Positions of the columns that a narrow terminal can do without, the least important first;
    those in one list go together."""
    groups: list[list[list[str]]]
    """Groups of rows of cells. All words but the last, the variant, are the same in a group."""
    remarks: list[str]
    """Failures and doubts, one sentence each."""


def make_sheets(rows: Sequence[Row]) -> list[Sheet]:
    """One sheet for every suite, set of axes and set of conditions, and one each of their parts and
    of their regions, if any."""
    return [sheet for alike in divide(rows) for sheet in _make_sheets(alike)]


def divide(rows: Sequence[Row]) -> list[list[Row]]:
    """What stands in one table: rows of the same suite, axes and conditions."""
    chosen: dict[tuple[str, frozenset[str], str], list[Row]] = {}
    for row in rows:
        record = row.record
        like = (record.suite, frozenset(record.params), conditions(record))
        chosen.setdefault(like, []).append(row)
    return list(chosen.values())


def choose_axes(rows: Sequence[Row]) -> tuple[str, list[str]]:
    """The title of a table of these rows, which says once what is the same in all of them, and the
    axes that have a column."""
    axes = list(dict.fromkeys(axis for row in rows for axis in row.record.params))
    values = {a: {format_value(row.record.params.get(a)) for row in rows} for a in axes}
    shown = [axis for axis in axes if len(values[axis]) > 1]
    fixed = [f"{axis}={values[axis].copy().pop()}" for axis in axes if len(values[axis]) == 1]
    return " ".join([rows[0].record.suite, *fixed]), shown


def _make_sheets(rows: Sequence[Row]) -> list[Sheet]:
    title, shown = choose_axes(rows)
    groups = [list(group) for _, group in groupby(rows, lambda row: row.record.group)]
    cases = Sheet(
        title=title,
        conditions=describe_conditions(rows[0].record),
        remarks=[
            *(remark for group in groups for remark in group_remarks(group)),
            *note_remarks(rows),
        ],
        **lay_out(case_columns(rows, shown), groups),
    )
    return [cases, *_make_part_sheet(rows, title, shown), *_make_region_sheet(groups, title, shown)]


def _make_part_sheet(rows: Sequence[Row], title: str, shown: Sequence[str]) -> list[Sheet]:
    """Phases that have no column of their own, variant by variant; none or one."""
    columned = choose_phases(rows)
    # What has one phase only is told by its total.
    several = [row for row in rows if len(row.phases_ns) > 1]
    found = [[Part(row, ph) for ph in row.phases_ns if ph not in columned] for row in several]
    sections = [section for section in found if section]
    if not sections:
        return []
    parts = [part for section in sections for part in section]
    return [
        Sheet(
            title=f"{title}, parts",
            conditions="",  # those of the sheet above
            remarks=[],
            **lay_out(part_columns(parts, shown), sections),
        )
    ]


def _make_region_sheet(
    groups: Sequence[Sequence[Row]], title: str, shown: Sequence[str]
) -> list[Sheet]:
    """What instruments saw; none or one."""
    sections = [section for group in groups for section in _by_region(group)]
    if not sections:
        return []
    places = [place for section in sections for place in section]
    return [
        Sheet(
            title=f"{title}, inside",
            conditions="",  # those of the sheet above
            remarks=[remark for group in groups for remark in instrument_remarks(group)],
            **lay_out(region_columns(places, shown), sections),
        )
    ]


def _by_region(group: Sequence[Row]) -> list[list[Place]]:
    """The variants of a group, region by region."""
    regions = dict.fromkeys(region for row in group for region in row.regions)
    return [
        [Place(row, region, row.regions[region]) for row in group if region in row.regions]
        for region in regions
    ]


def lay_out(columns: Sequence[Column[Item]], groups: Sequence[Sequence[Item]]) -> dict[str, Any]:
    """The fields of a Sheet that follow from its columns."""
    return {
        "columns": [column.name for column in columns],
        "text_columns": sum(column.kind == "word" for column in columns[:-1]),
        "has_verdict": columns[-1].kind == "word",
        "optional": [
            [position for position, column in enumerate(columns) if column.kind == kind]
            for kind in DISPENSABLE
        ],
        "groups": [[[column.cell(item) for column in columns] for item in g] for g in groups],
    }


def fit(sheet: Sheet, width: int) -> list[Sheet]:
    """The sheet with as many of its optional columns as the width has room for; where that is not
    enough, a sheet for every group, with what its rows share in the title."""
    shown = _choose_columns(sheet, 0, width)
    if _width(sheet, shown) <= width or sheet.text_columns == 1:
        return [_narrow(sheet, shown)]
    return _divide(sheet, width)


def _choose_columns(sheet: Sheet, first: int, width: int) -> list[int]:
    """Positions, from `first` on: the optional ones by their importance, as long as they fit."""
    optional = {position for positions in sheet.optional for position in positions}
    shown = [p for p in range(first, len(sheet.columns)) if p not in optional]
    for positions in reversed(sheet.optional):
        more = sorted([*shown, *positions])
        shown = more if _width(sheet, more) <= width else shown
    return shown


def _divide(sheet: Sheet, width: int) -> list[Sheet]:
    shared = sheet.text_columns - 1
    narrow = _narrow(sheet, _choose_columns(sheet, shared, width))
    titles = [
        " ".join([sheet.title, *map("=".join, zip(sheet.columns[:shared], group[0], strict=False))])
        for group in sheet.groups
    ]
    parts = [
        replace(narrow, title=title, groups=[group], conditions="", remarks=[])
        for title, group in zip(titles, narrow.groups, strict=True)
    ]
    parts[-1] = replace(parts[-1], conditions=sheet.conditions, remarks=sheet.remarks)
    return parts


def _narrow(sheet: Sheet, shown: Sequence[int]) -> Sheet:
    """The sheet with these columns only."""
    return replace(
        sheet,
        columns=[sheet.columns[position] for position in shown],
        text_columns=sum(position < sheet.text_columns for position in shown),
        optional=[],
        groups=[[[cells[p] for p in shown] for cells in group] for group in sheet.groups],
    )


def _width(sheet: Sheet, shown: Sequence[int]) -> int:
    rows = [sheet.columns, *(cells for group in sheet.groups for cells in group)]
    return 1 + sum(3 + max(len(row[position]) for row in rows) for position in shown)


def find_words(sheet: Sheet) -> list[bool]:
    """For each column, whether it is one of words."""
    last = len(sheet.columns) - 1
    return [
        position < sheet.text_columns or (position == last and sheet.has_verdict)
        for position in range(len(sheet.columns))
    ]


def draw(sheet: Sheet) -> Table:
    # Text objects, since a name from a record might look like rich's markup.
    table = Table(
        title=Text(sheet.title),
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.HORIZONTALS,
        caption=Text(sheet.conditions) if sheet.conditions else None,
        caption_justify="left",
    )
    words = find_words(sheet)
    for position, column in enumerate(sheet.columns):
        # The verdict may take a second line before anything is cut off.
        is_verdict = words[position] and position >= sheet.text_columns
        justify: Any = "left" if words[position] else "right"
        table.add_column(Text(column), justify=justify, no_wrap=not is_verdict)
    for group in sheet.groups:
        for *others, verdict in group:
            style = VERDICT_STYLES.get(verdict_word(verdict), "")
            table.add_row(*map(Text, others), Text(verdict, style=style))
        table.add_section()
    return table
