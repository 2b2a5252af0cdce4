"""The whole page: its head, its parts, and what a browser may do with it.

A record is untrusted input: every text from it is escaped, and the page's policy lets a browser run
no script and fetch nothing but what is written here. Plots are Vega-Lite specifications, drawn by
the Vega in `vendor/` with its interpreter of expressions, so that nothing is evaluated as a script.
Without scripts everything is there but plots and controls.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from flopwatch import __version__
from flopwatch.analysis.summary import Row, summarize
from flopwatch.analysis.warnings import find_warnings
from flopwatch.output.answers import answer_suite
from flopwatch.output.headlines import describe_whole
from flopwatch.output.page.headline import choose_own
from flopwatch.output.page.markup import PLOT, Content, Section, embed_json, fold
from flopwatch.output.page.sections import SECTIONS
from flopwatch.output.plots.theme import DARK, DARK_INKS, make_config
from flopwatch.output.tables import group_by
from flopwatch.output.units import escape_html as escape
from flopwatch.records.record import Record

GENERATOR = '<meta name="generator" content="flopwatch'
"""By which a file is known to be one of ours."""

TITLE = "flopwatch report"
FOLDER = Path(__file__).parent
VENDOR = ("vendor/vega.min.js", "vendor/vega-lite.min.js", "vendor/vega-interpreter.min.js")
THEME = {"light": make_config(), "dark": make_config(DARK_INKS), "colours": DARK}
"""For the page's script: configurations of plots, and the dark colour for every light one."""
FOOTER = (
    "Medians; intervals at 99 %. A speedup is the median of ratios within rounds; more than 1 is "
    "faster than the baseline."
)


def render_page(records: Sequence[Record], title: str = TITLE) -> str:
    rows = summarize(records)
    content = Content(records=records, rows=rows, warnings=find_warnings(records, rows))
    sections = [section for render in SECTIONS for section in render(content)]
    return assemble_page(title, _render_summary(rows, sections), sections, FOOTER)


def assemble_page(title: str, summary: str, sections: Sequence[Section], footer: str) -> str:
    """The summary is HTML, a section with the id `summary`."""
    body = "".join(
        [
            '<a class="skip" href="#main">Skip to the results</a><div class="side">',
            f'{_render_contents(sections)}</div><main id="main">',
            f"<header><h1>{escape(title)}</h1></header>{summary}",
            *(section.html for section in sections),
            f"<footer><p>flopwatch {__version__}. {footer}</p></footer></main>",
        ]
    )
    scripts = [*(VENDOR if PLOT in body else ()), "page.js"]
    theme = embed_json("theme", THEME) if PLOT in body else ""
    run = "".join(f"<script>{_read(name)}</script>" for name in scripts)
    return f"{_render_head(title, scripts)}<body>{body}{theme}{run}</body></html>\n"


def is_report(content: bytes) -> bool:
    """Whether a file begins as our pages do, and as they did before they named their maker."""
    start = content[:1000].decode(errors="replace")
    return GENERATOR in start or f"<title>{TITLE}</title>" in start


def _render_head(title: str, scripts: Sequence[str]) -> str:
    style = _read("page.css")
    digests = " ".join(_digest(_read(name)) for name in scripts)
    policy = (
        f"default-src 'none'; script-src {digests}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{GENERATOR} {__version__}">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
    )


@cache
def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a policy names the one text that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _render_summary(rows: Sequence[Row], sections: Sequence[Section]) -> str:
    """The answers of all suites, where there are several; what was measured, when and on what."""
    runs = [[row] for row in rows if row.monitored is not None]
    measured = [row for row in rows if row.monitored is None]
    subjects = [*runs, *group_by(measured, lambda row: row.record.suite)]
    linked = [section for section in sections if section.id.startswith(("monitor-", "suite-"))]
    answers = "".join(
        f'<li><a href="#{section.id}">{escape(section.title)}</a> '
        f"{escape(answer_suite(choose_own(found))[0])}</li>"
        for section, found in zip(linked, subjects, strict=True)
        if len(subjects) > 1
    )
    listed = f'<ul class="answers">{answers}</ul>' if answers else ""
    first, *others = (f"<p>{escape(sentence)}</p>" for sentence in describe_whole(rows))
    about = f"{first}{fold('How it was measured', ''.join(others))}"
    return (
        '<section id="summary" aria-labelledby="summary-title"><h2 id="summary-title">Summary</h2>'
        f'{listed}<div class="quiet">{about}</div></section>'
    )


def _render_contents(sections: Sequence[Section]) -> str:
    items = "".join(
        f'<li><a href="#{section.id}">{escape(section.title)}{_render_count(section)}</a></li>'
        for section in sections
    )
    first = '<li><a href="#summary">Summary</a></li>'
    return f'<nav aria-label="Contents"><p class="brand">flopwatch</p><ul>{first}{items}</ul></nav>'


def _render_count(section: Section) -> str:
    return f' <span class="count">{section.count:,}</span>' if section.count else ""
