"""Tables of the page: raw values to sort by, columns on demand, and warnings as badges beside the
number that they concern, each a link to its sentence. The page's script adds the controls."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flopwatch.analysis.summary import Row
from flopwatch.analysis.warnings import ResultWarning
from flopwatch.output.page.markup import fold, render_list
from flopwatch.output.tables import VERDICT_STYLES, Column, Kind, Sheet
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import plural

MOST_ROWS = 100
"""That are shown at once, unless all are asked for: a browser lays out a few hundred rows at once
and ten thousand in seconds."""
MOST_COLUMNS = 48
"""That can be hidden: page.css has a line for each."""
LONG_NAME = 24
"""Characters; a longer one may be broken on a phone, where it stays in sight."""
ON_DEMAND: tuple[Kind, ...] = ("detail", "fact", "rate", "phase", "memory")
"""What a table of cases shows when it is asked for: the answer has room without them."""
TIME = "total_ns"
CONCERNS = {
    "over-peak": "flops_per_s",
    "speedup-drift": "speedup",
    "baseline-failed": "speedup",
    "not-comparable": "speedup",
    "unchecked": "variant",
    "tolerance-used": "variant",
    "flops-uncounted": "flops_per_s",
    "memory-estimate": "peak_memory_bytes",
    "noted": "variant",
}
"""By kind of warning, the column of the number that it is about; of all others the time."""
OF_RUNS = ("dirty-tree", "environment-changed")
"""Kinds that are about a run, and no number of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Badge:
    kind: str
    severity: str
    anchor: str
    """The id of the warning's sentence."""

    @property
    def html(self) -> str:
        word = self.kind.replace("-", " ")
        return f'<a class="badge {self.severity}" href="#{self.anchor}">{word}</a>'


@dataclass(frozen=True, slots=True)
class Badges:
    """Of all cases."""

    by_record: Mapping[int, Sequence[Badge]] = field(default_factory=dict)
    """By the record's identity: warnings are about the very records that tables show."""

    def find(self, item: object) -> Sequence[Badge]:
        return self.by_record.get(id(item.record), ()) if isinstance(item, Row) else ()

    def find_common(self, sheet: Sheet) -> list[Badge]:
        """What is to be said of every measured row of a table with several is said once."""
        items = [item for group in sheet.items for item in group if isinstance(item, Row)]
        measured = [item for item in items if item.total_ns is not None]
        if len(measured) < 2:
            return []
        first, *others = (self.find(item) for item in measured)
        return [badge for badge in first if all(badge in each for each in others)]


def name_warning(number: int) -> str:
    """The id of a warning's sentence, by its place in the list of all."""
    return f"warning-{number}"


def collect_badges(warnings: Sequence[ResultWarning]) -> Badges:
    found: dict[int, list[Badge]] = {}
    for number, warning in enumerate(warnings, 1):
        if warning.kind in OF_RUNS:
            continue
        badge = Badge(kind=warning.kind, severity=warning.severity, anchor=name_warning(number))
        for record in warning.cases:
            found.setdefault(id(record), []).append(badge)
    return Badges(found)


def render_sheet(sheet: Sheet, number: int, badges: Badges | None = None, heading: str = "") -> str:
    """Heading, what concerns all rows, table, conditions and remarks; the number makes its ids
    unique. With badges it is a table of cases, which has columns on demand."""
    title, size = escape(sheet.title), sum(map(len, sheet.groups))
    common = badges.find_common(sheet) if badges else []
    told = " ".join(badge.html for badge in common)
    conditions = f'<p class="quiet">{escape(sheet.conditions)}</p>' if sheet.conditions else ""
    hidden = _choose_hidden(sheet) if badges else []
    classes = " ".join(["sheet", *(f"h{place + 1}" for place in hidden)])
    all_rows = f'<p class="common">All rows: {told}</p>' if told else ""
    return (
        f'<h3 id="table-{number}">{escape(heading) or title}</h3>{all_rows}'
        f'<div class="box{" tall" if size > 30 else ""}" tabindex="0" role="region" '
        f'aria-label="{title} (table {number})"><table class="{classes}"><caption>{title}</caption>'
        f"<thead><tr>{_render_head(sheet)}</tr></thead>"
        f"{_render_groups(sheet, badges or Badges(), common)}</table></div>{conditions}"
        f"{fold(plural(len(sheet.notes), 'note'), render_list(sheet.notes), kind='notes')}"
    )


def _choose_hidden(sheet: Sheet) -> list[int]:
    """Places of columns; all but those that a reader needs for the answer."""
    return [
        place
        for place, column in enumerate(sheet.columns[:MOST_COLUMNS])
        if column.kind in ON_DEMAND or column.name in EXTRA
    ]


EXTRA = (
    "message", "samples", "steady", "stop_reason", "total_low_ns", "total_high_ns", "speedup_low",
    "speedup_high", "device_model", "torch", "run_id", "measured_at",
)  # fmt: skip
"""Columns of the registry that no usual table has, on demand where there are not many rows."""


def _render_head(sheet: Sheet) -> str:
    parts = []
    for column in sheet.columns:
        kind = " class=w" if column.is_word else ""
        meaning = f' title="{escape(column.meaning)}"' if column.meaning else ""
        parts.append(f'<th scope="col"{kind}{meaning}>{escape(column.title)}</th>')
    return "".join(parts)


def _render_groups(sheet: Sheet, badges: Badges, common: Sequence[Badge]) -> str:
    # The column that names the row: the variant in most tables, after what a group shares.
    named = max(sheet.text_columns - 1, 0)
    places = {column.name: place for place, column in enumerate(sheet.columns)}
    parts, shown = [], 0
    for group, texts, values in zip(sheet.items, sheet.groups, sheet.values, strict=True):
        parts.append("<tbody>")
        for item, cells, numbers in zip(group, texts, values, strict=True):
            shown += 1
            marks: dict[int, str] = {}
            for badge in badges.find(item):
                if badge not in common:
                    wanted = CONCERNS.get(badge.kind, TIME)
                    place = places.get(wanted, places.get(TIME, named))
                    marks[place] = f"{marks.get(place, '')} {badge.html}"
            tones = [column.tone(item) for column in sheet.columns]
            cells = [  # noqa: PLW2901
                _render_cell(column, place == named, text, value, tone, marks.get(place, ""))
                for place, (column, text, value, tone) in enumerate(
                    zip(sheet.columns, cells, numbers, tones, strict=True)
                )
            ]
            classes = ["baseline"] if "baseline" in tones else []
            classes += ["rest"] if shown > MOST_ROWS else []
            start = f'<tr class="{" ".join(classes)}">' if classes else "<tr>"
            parts += [start, *cells, "</tr>"]
        parts.append("</tbody>")
    return "".join(parts)


def _render_cell(
    column: Column[object], is_name: bool, text: str, value: object, tone: str | None, marks: str
) -> str:
    # What the column is sorted by, where the text would not do.
    is_number = isinstance(value, int | float) and abs(value) <= sys.float_info.max
    key = f" data-v={value:.9g}" if is_number else ""
    content = escape(text)
    if tone in VERDICT_STYLES and text:
        content = f'<span class="verdict {tone.replace(" ", "-")}">{content}</span>'
    tag, kind = "td", " class=w" if column.is_word else ""
    if is_name and column.is_word:
        tag, kind = "th scope=row", ' class="w long"' if len(text) > LONG_NAME else kind
    return f"<{tag}{kind}{key}>{content}{marks}</{tag[:2]}>"
