"""One section a suite: its tables, and what of them can be drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from flopwatch.analysis.summary import Row
from flopwatch.report.crossover import make_crossover_sheets
from flopwatch.report.explain import make_page_sheets
from flopwatch.report.footprints import make_memory_sheets
from flopwatch.report.page.table import render_sheet
from flopwatch.report.parts import make_whole_sheets
from flopwatch.report.pictures import Picture, choose_pictures
from flopwatch.report.quality import make_quality_sheets
from flopwatch.report.ranks import make_rank_sheets
from flopwatch.report.svg import draw_svg
from flopwatch.report.tables import Sheet, divide, make_sheets
from flopwatch.report.text import escape_html as escape

SHEETS: tuple[Callable[[Sequence[Row]], list[Sheet]], ...] = (
    make_sheets,
    make_rank_sheets,
    make_memory_sheets,
    make_whole_sheets,
    make_crossover_sheets,
    make_quality_sheets,
    make_page_sheets,
)
"""What makes the tables of rows that share one, in order. Pictures stand below the first table."""


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
    drawn = "".join(map(_render_picture, choose_pictures(rows)))
    pictures = f'<div class="figures">{drawn}</div>' if drawn else ""
    return [
        f'<div class="block">{render_sheet(first, next(numbers))}{pictures}</div>',
        *(f'<div class="block">{render_sheet(sheet, next(numbers))}</div>' for sheet in others),
    ]


def _render_picture(picture: Picture) -> str:
    return (
        f"<figure><figcaption><b>{escape(picture.title)}</b><br>{escape(picture.caption)}"
        f'</figcaption><div class="box">{draw_svg(picture)}</div></figure>'
    )
