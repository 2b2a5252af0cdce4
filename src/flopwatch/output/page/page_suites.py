"""One section a suite: its tables, and what of them can be drawn.

A sheet as HTML. Controls are added by the page's script, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from flopwatch.analysis.summary import Row
from flopwatch.output.breakdown_tables import make_page_sheets
from flopwatch.output.case_tables import SHEET_MAKERS
from flopwatch.output.plots import Plot, choose_plots
from flopwatch.output.plots.svg import draw_svg
from flopwatch.output.tables import VERDICT_STYLES, Sheet, Value, divide, find_words, verdict_word
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import plural

MOST_ROWS = 100
"""That are shown at once, unless all are asked for: a browser lays out a few hundred rows at once
and ten thousand in seconds."""

LONG_NAME = 24
"""Characters; a longer one may be broken on a phone, where it stays in sight."""

MOST_LINES = 6
"""Of a list that are shown at once."""

MOST_REMARKS = 60
"""Of a table, in the page at all: nobody reads thousands."""


def render_sheet(sheet: Sheet, number: int) -> str:
    """Heading, table, conditions and remarks; the number makes its ids unique."""
    words = find_words(sheet)
    # The column that names the row: the variant in most tables, after what a group shares.
    named = max(sheet.text_columns - 1, 0)
    title, size = escape(sheet.title), sum(map(len, sheet.groups))
    tall = " tall" if size > 30 else ""
    conditions = f'<p class="quiet">{escape(sheet.conditions)}</p>' if sheet.conditions else ""
    return (
        f'<h3 id="table-{number}">{title}</h3><div class="box{tall}" tabindex="0" role="region" '
        f'aria-labelledby="table-{number}"><table class="sheet"><caption>{title}</caption>'
        f"<thead><tr>{_render_head(sheet.columns, words)}</tr></thead>"
        f"{_render_groups(sheet, words, named)}</table></div>{conditions}"
        f"{render_list(sheet.remarks)}"
    )


def _render_head(columns: Sequence[str], words: Sequence[bool]) -> str:
    return "".join(
        f'<th scope="col"{" class=w" if is_word else ""}>{escape(column)}</th>'
        for column, is_word in zip(columns, words, strict=True)
    )


def _render_groups(sheet: Sheet, words: Sequence[bool], named: int) -> str:
    parts, shown = [], 0
    for group, values in zip(sheet.groups, sheet.values, strict=True):
        parts.append("<tbody>")
        for cells, numbers in zip(group, values, strict=True):
            shown += 1
            parts.append(_render_row(cells, numbers, words, named, shown > MOST_ROWS))
        parts.append("</tbody>")
    return "".join(parts)


def _render_row(
    cells: Sequence[str],
    values: Sequence[Value],
    words: Sequence[bool],
    named: int,
    is_late: bool,
) -> str:
    verdict = verdict_word(cells[-1]) if words[-1] else ""
    classes = [verdict] if verdict in VERDICT_STYLES or verdict == "baseline" else []
    classes += ["rest"] if is_late else []
    parts = [f'<tr class="{" ".join(classes)}">' if classes else "<tr>"]
    for place, (text, value, is_word) in enumerate(zip(cells, values, words, strict=True)):
        # What the column is sorted by, where the text would not do.
        key = f" data-v={value:.9g}" if isinstance(value, int | float) else ""
        word = " class=w" if is_word else ""
        tag = "td"
        if place == named and is_word:
            tag, word = "th scope=row", ' class="w long"' if len(text) > LONG_NAME else word
        parts.append(f"<{tag}{word}{key}>{escape(text)}</{tag[:2]}>")
    return "".join([*parts, "</tr>"])


def render_box(label: str, columns: Sequence[str], lines: Sequence[str]) -> str:
    """A table of texts in a box of its own; the lines are HTML."""
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{label}"><table class="texts">'
        f"<caption>{label}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def render_list(sentences: Sequence[str]) -> str:
    return list_items([escape(sentence) for sentence in sentences])


def list_items(contents: Sequence[str]) -> str:
    """HTML as a list; of many only the first are shown unless all are asked for."""
    items = [f"<li>{content}</li>" for content in contents[:MOST_LINES]]
    items += [f"<li class=rest>{content}</li>" for content in contents[MOST_LINES:MOST_REMARKS]]
    left = len(contents) - MOST_REMARKS
    if left > 0:
        items.append(f"<li class=rest>{plural(left, 'more remark')} in the records</li>")
    return f"<ul>{''.join(items)}</ul>" if items else ""


SHEETS = (*SHEET_MAKERS, make_page_sheets)
"""What makes the tables of rows that share one, in order. Plots stand below the first table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    id: str
    title: str
    html: str


def render_suites(rows: Sequence[Row]) -> list[Section]:
    suites: dict[str, list[Row]] = {}
    for row in rows:
        suites.setdefault(row.record.suite, []).append(row)
    numbers = count(1)
    return [
        _render_suite(f"suite-{number}", suite, found, numbers)
        for number, (suite, found) in enumerate(suites.items(), 1)
    ]


def _render_suite(name: str, suite: str, rows: Sequence[Row], numbers: Iterator[int]) -> Section:
    parts = [part for alike in divide(rows) for part in _render_table(alike, numbers)]
    html = f'<section id="{name}" class="suite"><h2>{escape(suite)}</h2>{"".join(parts)}</section>'
    return Section(id=name, title=suite, html=html)


def _render_table(rows: Sequence[Row], numbers: Iterator[int]) -> list[str]:
    """Rows that share a table, each table in a block of its own."""
    first, *others = [sheet for make in SHEETS for sheet in make(rows)]
    drawn = "".join(map(_render_plot, choose_plots(rows)))
    plots = f'<div class="figures">{drawn}</div>' if drawn else ""
    return [
        f'<div class="block">{render_sheet(first, next(numbers))}{plots}</div>',
        *(f'<div class="block">{render_sheet(sheet, next(numbers))}</div>' for sheet in others),
    ]


def _render_plot(plot: Plot) -> str:
    return (
        f"<figure><figcaption><b>{escape(plot.title)}</b><br>{escape(plot.caption)}"
        f'</figcaption><div class="box">{draw_svg(plot)}</div></figure>'
    )
