"""Comparisons: the newest run next to an older one that measured the same cases, and your results
next to published ones."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.summary import is_foreign
from flopwatch.analysis.verdicts import Judgement, compare_runs
from flopwatch.analysis.vs_published import compare_with_published
from flopwatch.output.compare_tables import (
    count_verdicts,
    describe_basis,
    describe_judgement,
    make_compare_sheets,
)
from flopwatch.output.page.markup import Content, Section, fold, make_section, render_list
from flopwatch.output.page.table_markup import render_sheet
from flopwatch.output.run_warnings import warn_of_runs
from flopwatch.output.tables import Sheet
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import plural
from flopwatch.output.vs_published_tables import (
    describe_published_comparison,
    make_published_comparison_sheets,
)
from flopwatch.records.record import Record

FIRST_NUMBER = 1_000_000
"""Of tables here: those of suites count from 1."""


def render_run_comparisons(content: Content) -> list[Section]:
    """Every suite's newest run and the last one before it that has cases of it."""
    sections: list[Section] = []
    for old, new in _list_pairs(content.records):
        judgement = compare_runs(old, new)
        if judgement.comparisons:
            name = f"runs-compared-{len(sections) + 1}"
            title = f"{new[0].suite}: now and before"
            html = _render_judgement(judgement, old[0].run_id, new[0].run_id, len(sections))
            sections.append(make_section(name, title, html))
    return sections


def _list_pairs(records: Sequence[Record]) -> list[tuple[list[Record], list[Record]]]:
    """Old and new records of each suite that was run again."""
    pairs = []
    # Starts of one monitored run are no two measurements of it.
    own = [r for r in records if not is_foreign(r) and r.monitored is None]
    suites: dict[str, dict[str, list[Record]]] = {}
    for record in own:
        suites.setdefault(record.suite, {}).setdefault(record.run_id, []).append(record)
    for runs in suites.values():
        ordered = sorted(runs.values(), key=lambda run: max(r.measured_at for r in run))
        new = ordered.pop()
        cases = {record.case_id for record in new}
        old = next((run for run in reversed(ordered) if cases & {r.case_id for r in run}), None)
        if old:
            pairs.append((old, new))
    return pairs


def _render_judgement(judgement: Judgement, old: str, new: str, place: int) -> str:
    sentences = [
        *warn_of_runs(judgement),
        *describe_basis(judgement),
        *describe_judgement(judgement, is_between_runs=True),
    ]
    sheets = make_compare_sheets(judgement, is_between_runs=True)
    return (
        f'<p class="answer">{escape(count_verdicts(judgement.comparisons))}.</p>'
        f'<p class="quiet">{escape(new)} next to {escape(old)}</p>'
        f"{_render_sheets(sheets, FIRST_NUMBER * (place + 1))}"
        f"{fold(plural(len(sentences), 'finding'), render_list(sentences), kind='findings')}"
    )


def _render_sheets(sheets: Sequence[Sheet], first: int) -> str:
    return "".join(
        f'<div class="block">{render_sheet(sheet, first + place)}</div>'
        for place, sheet in enumerate(sheets)
    )


def render_published_comparisons(content: Content) -> list[Section]:
    own = [row for row in content.rows if not is_foreign(row.record)]
    others = [row for row in content.rows if "published" in row.record.environment]
    if not own or not others:
        return []
    found = compare_with_published(own, others)
    sheets = make_published_comparison_sheets(found)
    if not sheets:
        return []
    sentences = describe_published_comparison(found)
    html = (
        f"{_render_sheets(sheets, FIRST_NUMBER // 2)}"
        f"{fold(plural(len(sentences), 'remark'), render_list(sentences), kind='findings')}"
    )
    return [make_section("published", "Here and published", html)]
