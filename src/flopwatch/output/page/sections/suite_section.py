"""A suite: its headline with the plot that says most, then its tables and plots, the tables of
parts folded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flopwatch.analysis.summary import Row
from flopwatch.output.breakdown_tables import make_page_sheets
from flopwatch.output.case_tables import SHEET_MAKERS
from flopwatch.output.columns import list_columns
from flopwatch.output.headlines import describe_suite
from flopwatch.output.page.headline import render_headline
from flopwatch.output.page.markup import (
    Content,
    Section,
    fold,
    make_section,
    render_list,
    render_plot,
    render_plots,
)
from flopwatch.output.page.table_markup import EXTRA, Badges, collect_badges, render_sheet
from flopwatch.output.plots import Plot, choose_plots
from flopwatch.output.tables import Sheet, divide, group_by
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import plural

SHEETS = (*SHEET_MAKERS, make_page_sheets)
"""What makes the tables of rows that share one, in order. Plots stand below the first table."""
MOST_WITH_EXTRA = 1000
"""Rows of a page whose tables have more columns on demand than the usual ones."""


def render_suites(content: Content) -> list[Section]:
    badges = collect_badges(content.warnings)
    has_extra = len(content.rows) <= MOST_WITH_EXTRA
    measured = [row for row in content.rows if row.monitored is None]
    suites = group_by(measured, lambda row: row.record.suite)
    sections: list[Section] = []
    number = 1
    for place, rows in enumerate(suites, 1):
        html, number = _render_suite(rows, badges, has_extra, number)
        title = rows[0].record.suite
        sections.append(make_section(f"suite-{place}", title, html, kind="suite"))
    return sections


def _render_suite(
    rows: Sequence[Row], badges: Badges, has_extra: bool, number: int
) -> tuple[str, int]:
    """And the number of the next table."""
    tables = divide(rows)
    plots = [choose_plots(alike) for alike in tables]
    # The plot that a reader wants first, of the first table that has one.
    hero = next((found.pop(0) for found in plots if found), None)
    drawn = render_plot(hero, " hero") if hero else ""
    findings = describe_suite(rows)
    more = fold(plural(len(findings), "finding"), render_list(findings), kind="findings")
    blocks = []
    for alike, left in zip(tables, plots, strict=True):
        first, *others = [sheet for make in SHEETS for sheet in make(alike)]
        blocks.append(_render_cases(_add_columns(first, alike, has_extra), number, badges, left))
        for sheet in others:
            number += 1
            blocks.append(_render_parts(sheet, number, first.title))
        number += 1
    return (
        f'<div class="headline">{render_headline(rows)}{drawn}{more}</div>{"".join(blocks)}',
        number,
    )


def _add_columns(sheet: Sheet, rows: Sequence[Row], has_extra: bool) -> Sheet:
    if not has_extra:
        return sheet
    known = list_columns(rows)
    extra = [known[name] for name in EXTRA if any(known[name].cell(row) for row in rows)]
    return replace(sheet, columns=[*sheet.columns, *extra])


def _render_cases(sheet: Sheet, number: int, badges: Badges, plots: Sequence[Plot]) -> str:
    """Below the name of its suite, which it need not repeat."""
    shared = sheet.title.partition(" ")[2].replace(" ", ", ")
    table = render_sheet(sheet, number, badges, shared or "All cases")
    return f'<div class="block">{table}{render_plots(plots)}</div>'


def _render_parts(sheet: Sheet, number: int, title: str) -> str:
    """Below a table of that title, which it need not repeat."""
    heading = sheet.title.removeprefix(title).lstrip(" ,") or sheet.title
    rows = plural(sum(map(len, sheet.items)), "row")
    summary = f'{escape(heading.capitalize())} <span class="quiet">{rows}</span>'
    return fold(summary, render_sheet(sheet, number, heading=heading), kind="block")
