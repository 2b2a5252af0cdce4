"""Predictions next to measurements: what records carry that were predicted before they were
measured."""

from __future__ import annotations

from flopwatch.output.accuracy_tables import list_scorecard_sheets
from flopwatch.output.page.markup import Content, Section, make_section, render_plots
from flopwatch.output.page.table_markup import render_sheet
from flopwatch.output.plots.plot_catalog import KINDS
from flopwatch.output.tables import divide
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import plural
from flopwatch.prediction.scorecard import judge, tally

FIRST_NUMBER = 900_000
"""Of tables here: those of suites count from 1."""


def render_predictions(content: Content) -> list[Section]:
    judged = [each for each in (judge(row.record) for row in content.rows) if each is not None]
    if not judged:
        return []
    tallies = tally(judged)
    step = tallies[0]
    inside = sum(each.is_inside for each in judged)
    answer = (
        f"Predicted step times are off by {100 * step.mean_error:.0f} % on average; {inside} of "
        f"{plural(len(judged), 'measurement')} {'lies' if inside == 1 else 'lie'} inside their "
        "90 % interval."
    )
    plots = [plot for rows in divide(content.rows) for plot in KINDS["predictions"].make(rows)]
    blocks = [
        f'<div class="block">{render_sheet(sheet, FIRST_NUMBER + place)}</div>'
        for place, sheet in enumerate(list_scorecard_sheets(judged, tallies))
    ]
    html = f'<p class="answer">{escape(answer)}</p>{render_plots(plots)}{"".join(blocks)}'
    return [make_section("predictions", "Predictions", html)]
