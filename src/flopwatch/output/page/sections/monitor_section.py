"""A monitored training loop: the answer, its steps over time, the breakdown of the mean step, what
the wall clock went to, and ranks that wait for each other."""

from __future__ import annotations

from flopwatch.analysis.monitored_run import RunSummary
from flopwatch.analysis.summary import Row
from flopwatch.output.monitor_tables import answer_run, describe_peak, list_run_sheets
from flopwatch.output.page.headline import Tile, render_tiles
from flopwatch.output.page.markup import (
    Content,
    Section,
    make_section,
    render_plot,
    render_plots,
)
from flopwatch.output.page.table_markup import render_sheet
from flopwatch.output.plots import choose_plots
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import (
    format_count,
    format_duration,
    format_interval,
    format_measured_time,
    format_share,
    plural,
)

FIRST_TABLE = 10_001
"""Its tables are numbered apart from those of suites."""


def render_runs(content: Content) -> list[Section]:
    sections = []
    number = FIRST_TABLE
    runs = [(row, row.monitored) for row in content.rows if row.monitored is not None]
    for place, (row, run) in enumerate(runs, 1):
        html, number = _render_run(row, run, number)
        sections.append(make_section(f"monitor-{place}", run.name, html, kind="suite"))
    return sections


def _render_run(row: Row, run: RunSummary, number: int) -> tuple[str, int]:
    """And the number of the next table."""
    hero, *plots = choose_plots([row])
    sheets = list_run_sheets(run, is_brief=False)
    tables = [
        f'<div class="block">{render_sheet(sheet, number + place, heading=_name(sheet.title, run))}'
        "</div>"
        for place, sheet in enumerate(sheets)
    ]
    answer = f'<p class="answer">{escape(" ".join(answer_run(run)))}</p>'
    return (
        f'<div class="headline">{answer}{render_tiles(list_run_tiles(run))}'
        f"{render_plot(hero, ' hero')}</div>{render_plots(plots)}{''.join(tables)}",
        number + len(sheets),
    )


def _name(title: str, run: RunSummary) -> str:
    """Below the name of the run, which it need not repeat."""
    return title.removeprefix(f"{run.name}, ").capitalize()


def list_run_tiles(run: RunSummary) -> list[Tile]:
    used, tokens, goodput = run.utilisation, run.tokens, run.goodput
    tiles = []
    if used is not None and used.mfu is not None:
        about = f"{used.convention}, {describe_peak(used)}"
        tiles.append(Tile(label="MFU", value=format_share(used.mfu), detail=about))
    if tokens is not None:
        rate = f"{format_count(tokens.per_s)} tokens/s"
        padding = f"{format_share(tokens.padding_share)} padding besides"
        tiles.append(Tile(label="useful tokens", value=rate, detail=padding))
    steps = f"median of {run.steady_steps:,}, {format_interval(run.step_ns)}"
    tiles.append(Tile(label="step", value=format_measured_time(run.step_ns), detail=steps))
    if goodput is not None:
        starts = plural(len(goodput.starts), "start")
        over = f"of {format_duration(goodput.wall_s)}, {starts}"
        tiles.append(Tile(label="goodput", value=format_share(goodput.share), detail=over))
    return tiles
