"""What sections are made of: HTML of lists, boxes, folds and plots. Every text is escaped, here or
by the caller; contents that are HTML already say so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.summary import Row
from flopwatch.analysis.warnings import ResultWarning
from flopwatch.output.plots import Plot
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import plural
from flopwatch.records.record import Record

MOST_LINES = 6
"""Of a list that are shown at once."""
MOST_REMARKS = 60
"""Of a table, in the page at all: nobody reads thousands."""
PLOT = '<figure class="plot'
ZOOM = "Drag to pan, turn the wheel with Shift to zoom, double-click to reset."
NOT_DRAWN = "This plot is drawn by a script, which did not run; the tables have its values."


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What sections are about."""

    records: Sequence[Record]
    rows: Sequence[Row]
    """The newest of every case."""
    warnings: Sequence[ResultWarning]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    id: str
    title: str
    html: str
    count: int = 0
    """Of what the navigation should say how many there are; 0: nothing."""


def make_section(name: str, title: str, html: str, *, count: int = 0, kind: str = "") -> Section:
    classes = f' class="{kind}"' if kind else ""
    whole = (
        f'<section id="{name}" aria-labelledby="{name}-title"{classes}>'
        f'<h2 id="{name}-title">{escape(title)}</h2>{html}</section>'
    )
    return Section(id=name, title=title, html=whole, count=count)


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


def fold(summary: str, html: str, *, kind: str = "") -> str:
    """Both are HTML. Nothing where there is nothing to fold."""
    classes = f' class="{kind}"' if kind else ""
    return f"<details{classes}><summary>{summary}</summary>{html}</details>" if html else ""


def render_box(label: str, columns: Sequence[str], lines: Sequence[str]) -> str:
    """A table of texts in a box of its own; the lines are HTML."""
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{label}"><table class="texts">'
        f"<caption>{label}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def render_plots(plots: Sequence[Plot]) -> str:
    drawn = "".join(map(render_plot, plots))
    return f'<div class="figures">{drawn}</div>' if drawn else ""


def render_plot(plot: Plot, kind: str = "") -> str:
    """Next to its table it need not say what that says above."""
    about = f' <span class="about">{escape(plot.subject)}</span>' if kind else ""
    zoom = f'<span class="hint"> {ZOOM}</span>' if plot.can_zoom else ""
    return (
        f'{PLOT}{kind}"><figcaption><b>{escape(plot.title)}</b>{about}<br>'
        f"{escape(plot.caption)}{zoom}</figcaption>"
        f'{embed_json("", plot.to_view())}<div class="drawing"><p class="quiet">{NOT_DRAWN}</p>'
        "</div></figure>"
    )


def embed_json(name: str, content: Any) -> str:
    """Data for the page's script. Nothing in it ends the element: there is no < left."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json" data-name="{name}">{text}</script>'
