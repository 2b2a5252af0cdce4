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
from flopwatch.analysis.warnings import SEVERITIES, ResultWarning, find_warnings
from flopwatch.output.headlines import Failure, describe_suite, describe_whole, group_failures
from flopwatch.output.page.sections import (
    PLOT,
    Section,
    embed_json,
    list_items,
    render_box,
    render_commands,
    render_environments,
    render_list,
    render_suites,
)
from flopwatch.output.plots.theme import DARK, DARK_INKS, make_config
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import plural
from flopwatch.records.record import Record

GENERATOR = '<meta name="generator" content="flopwatch'
"""By which a file is known to be one of ours."""

TITLE = "flopwatch report"
FOLDER = Path(__file__).parent
VENDOR = ("vendor/vega.min.js", "vendor/vega-lite.min.js", "vendor/vega-interpreter.min.js")
THEME = {"light": make_config(), "dark": make_config(DARK_INKS), "colours": DARK}
"""For the page's script: configurations of plots, and the dark colour for every light one."""
MOST_FAILURES = 100
MOST_CASES = 5
"""Cases that are named next to the reason that they share."""

FOOTER = (
    "Medians; intervals at 99 %. A speedup is the median of ratios within rounds; more than 1 is "
    "faster than the baseline."
)


def render_page(records: Sequence[Record], title: str = TITLE) -> str:
    rows = summarize(records)
    suites = render_suites(rows)
    sections = [  # comparisons of runs would come first
        *_render_warnings(find_warnings(records)),
        *suites,
        *_render_failures(group_failures(rows)),
        *render_environments(rows),
        *render_commands(rows),
    ]
    body = "".join(
        [
            f"<header><h1>{escape(title)}</h1>{_render_contents(sections)}</header><main>",
            _render_summary(rows, suites),
            *(section.html for section in sections),
            f"</main><footer><p>flopwatch {__version__}. {FOOTER}</p></footer>",
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


def _render_summary(rows: Sequence[Row], suites: Sequence[Section]) -> str:
    by_suite: dict[str, list[Row]] = {}
    for row in rows:
        by_suite.setdefault(row.record.suite, []).append(row)
    html = "".join(f"<p>{escape(sentence)}</p>" for sentence in describe_whole(rows))
    for section, found in zip(suites, by_suite.values(), strict=True):
        html += f'<h3><a href="#{section.id}">{escape(section.title)}</a></h3>'
        html += render_list(describe_suite(found))
    return f'<section id="summary"><h2>Summary</h2>{html}</section>'


def _render_contents(sections: Sequence[Section]) -> str:
    items = "".join(
        f'<li><a href="#{section.id}">{escape(section.title)}</a></li>' for section in sections
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>' if items else ""


def _render_warnings(warnings: Sequence[ResultWarning]) -> list[Section]:
    if not warnings:
        return []
    parts = []
    for severity, meaning in SEVERITIES.items():
        found = [warning for warning in warnings if warning.severity == severity]
        items = [f"{escape(d.sentence)} <i>{escape(d.advice)}</i>" for d in found]
        parts += [f"<h3>{meaning.capitalize()}</h3>{list_items(items)}"] if items else []
    html = f'<section id="warnings"><h2>Warnings</h2>{"".join(parts)}</section>'
    return [Section(id="warnings", title="Warnings", html=html)]


def _render_failures(failures: Sequence[Failure]) -> list[Section]:
    if not failures:
        return []
    lines = [_render_failure(failure) for failure in failures[:MOST_FAILURES]]
    left = len(failures) - MOST_FAILURES
    more = f"<p>{plural(left, 'more reason')} in the records.</p>" if left > 0 else ""
    box = render_box("Failures", ["suite", "status", "message", "cases"], lines)
    html = f'<section id="failures"><h2>Failures</h2>{box}{more}</section>'
    return [Section(id="failures", title="Failures", html=html)]


def _render_failure(failure: Failure) -> str:
    named = "; ".join(failure.cases[:MOST_CASES])
    left = len(failure.cases) - MOST_CASES
    more = f"; and {left:,} more" if left > 0 else ""
    cells = (failure.suite, failure.status, failure.reason or "unknown", named + more)
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
