"""An answer as one self-contained page: its sentences, the plot, the tables. Of explained traces,
and of plans."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.output.page.document import assemble_page
from flopwatch.output.page.markup import make_section, render_plots
from flopwatch.output.page.table_markup import render_sheet
from flopwatch.output.plots import Plot
from flopwatch.output.tables import Sheet
from flopwatch.output.units import escape_html as escape


def render_answer_page(
    title: str,
    answer: Sequence[str],
    sheets: Sequence[Sheet],
    plots: Sequence[Plot],
    footer: str,
) -> str:
    """The first sheet is what the plots are of."""
    told = f'<p class="answer">{escape(" ".join(answer))}</p>'
    summary = make_section("summary", "Summary", f"{told}{render_plots(plots)}")
    sections = [
        make_section(
            f"part-{number}",
            _name_section(sheet),
            f'<div class="block">{render_sheet(sheet, number)}</div>',
        )
        for number, sheet in enumerate(sheets, 1)
    ]
    return assemble_page(title, summary.html, sections, footer)


def _name_section(sheet: Sheet) -> str:
    """The first word that says what it is of."""
    title = sheet.title.partition(",")[0]
    known = {"breakdown": "Breakdown", "moved": "What moved", "operator": "Operators"}
    return next((name for word, name in known.items() if word in sheet.title), title.capitalize())
