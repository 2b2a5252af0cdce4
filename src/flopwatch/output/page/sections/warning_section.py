"""Reasons to distrust results, and what failed. Badges beside numbers lead here."""

from __future__ import annotations

from flopwatch.analysis.warnings import SEVERITIES
from flopwatch.output.headlines import Failure, group_failures
from flopwatch.output.page.markup import Content, Section, make_section, render_box
from flopwatch.output.page.table_markup import name_warning
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import plural

MOST_FAILURES = 100
MOST_CASES = 5
"""Cases that are named next to the reason that they share."""


def render_warnings(content: Content) -> list[Section]:
    if not content.warnings:
        return []
    parts = []
    for severity, meaning in SEVERITIES.items():
        items = [
            f'<li id="{name_warning(number)}"><span class="badge {severity}">'
            f"{warning.kind.replace('-', ' ')}</span> {escape(warning.sentence)} "
            f"<i>{escape(warning.advice)}</i></li>"
            for number, warning in enumerate(content.warnings, 1)
            if warning.severity == severity
        ]
        parts += [f"<h3>{meaning.capitalize()}</h3><ul>{''.join(items)}</ul>"] if items else []
    html = "".join(parts)
    return [make_section("warnings", "Warnings", html, count=len(content.warnings))]


def render_failures(content: Content) -> list[Section]:
    failures = group_failures(content.rows)
    if not failures:
        return []
    lines = [_render_failure(failure) for failure in failures[:MOST_FAILURES]]
    left = len(failures) - MOST_FAILURES
    more = f"<p>{plural(left, 'more reason')} in the records.</p>" if left > 0 else ""
    box = render_box("Failures", ["suite", "status", "message", "cases"], lines)
    count = sum(len(failure.cases) for failure in failures)
    return [make_section("failures", "Failures", f"{box}{more}", count=count)]


def _render_failure(failure: Failure) -> str:
    named = "; ".join(failure.cases[:MOST_CASES])
    left = len(failure.cases) - MOST_CASES
    more = f"; and {left:,} more" if left > 0 else ""
    cells = (failure.suite, failure.status, failure.reason or "unknown", named + more)
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
