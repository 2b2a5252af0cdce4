"""Results as one self-contained HTML page that opens from disk.

A record is untrusted input: every text from it is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from flopwatch import __version__
from flopwatch.analysis.quality import assess
from flopwatch.analysis.summary import Row, summarize
from flopwatch.case import label
from flopwatch.records.record import Record
from flopwatch.report import charts
from flopwatch.report.columns import verdict_word
from flopwatch.report.crossover import make_crossover_sheets
from flopwatch.report.figures import Figure, draw_crossovers, draw_losses, draw_speedups
from flopwatch.report.footprints import make_memory_sheets
from flopwatch.report.parts import make_whole_sheets
from flopwatch.report.quality import make_quality_sheet
from flopwatch.report.tables import Sheet, divide, find_words, make_sheets
from flopwatch.report.units import format_speedup, plural

STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #666; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 92rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid var(--line); } .word { text-align: left; }
tbody { border-bottom: 1px solid var(--line); }
.faster { color: #0a7d33; } .slower { color: #c62828; } .unclear { color: #a66a00; }
@media (prefers-color-scheme: dark) {
  :root { --quiet: #999; }
  .faster { color: #5fd38a; } .slower { color: #ff8a80; } .unclear { color: #ffca6b; }
}
.figures { display: flex; flex-wrap: wrap; gap: 1rem 2rem; }
figure { flex: 1 1 30rem; max-width: 44rem; margin: 1rem 0; }
figcaption { color: var(--quiet); font-size: .85rem; }
details { margin-top: 1rem; } pre { overflow-x: auto; font-size: .8rem; }
.quiet, footer { color: var(--quiet); font-size: .85rem; }
footer { margin-top: 3rem; font-size: .85rem; }
@media print { details { display: none; } body { margin: 0; } }
"""


def render_page(records: Sequence[Record]) -> str:
    rows = summarize(records)
    body = "".join(
        [
            "<h1>flopwatch report</h1>",
            *(f"<p>{escape(sentence)}</p>" for sentence in summary_sentences(rows)),
            *(_render_section(alike) for alike in divide(rows)),
            _render_environments(rows),
            f"<footer>flopwatch {__version__}. Medians; intervals at 99 %. A speedup is the median "
            "of ratios within rounds; more than 1 is faster than the baseline.</footer>",
        ]
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>flopwatch report</title><style>{STYLE}{charts.STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def summary_sentences(rows: Sequence[Row]) -> list[str]:
    """What was measured and what was found, in plain words."""
    if not rows:
        return ["There are no records."]
    suites = dict.fromkeys(row.record.suite for row in rows)
    failed = [row for row in rows if row.record.status not in ("ok", "unsupported")]
    measured = [row for row in rows if row.record.status == "ok"]
    days = sorted(row.record.taken_at[:10] for row in rows)
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    sentences = [
        f"{plural(len(measured), 'case')} of {', '.join(suites)} measured, {when}; "
        f"{len(failed) or 'none'} failed."
    ]
    decided = [
        row
        for row in rows
        if row.verdict in ("faster", "slower") and row.speedup and not row.unlike
    ]
    if decided:
        best = max(decided, key=lambda row: row.speedup.value if row.speedup else 0)
        worst = min(decided, key=lambda row: row.speedup.value if row.speedup else 0)
        sentences += [_extreme("Largest", best)] if best.verdict == "faster" else []
        sentences += [_extreme("Smallest", worst)] if worst.verdict == "slower" else []
    return sentences


def _extreme(which: str, row: Row) -> str:
    assert row.speedup is not None
    record = row.record
    return (
        f"{which} speedup: {record.variant} over {record.baseline} in {record.suite}, "
        f"{format_speedup(row.speedup)} at {label(record.params)}."
    )


def _render_section(rows: Sequence[Row]) -> str:
    """Tables, and what of them can be drawn."""
    first, *others = make_sheets(rows)
    return "".join(
        [
            _render_sheet(first),
            _render_figures([draw_speedups(rows)]),
            *map(_render_sheet, others),
            *map(_render_sheet, make_memory_sheets(rows)),
            *map(_render_sheet, make_whole_sheets(rows)),
            *map(_render_sheet, make_crossover_sheets(rows)),
            _render_figures(draw_crossovers(rows)),
            *(
                _render_sheet(make_quality_sheet(group)) + _render_figures(draw_losses(group))
                for group in assess(rows)
            ),
        ]
    )


def _render_figures(figures: Sequence[Figure | None]) -> str:
    """Side by side where there is room."""
    drawn = "".join(
        f'<figure class="scroll">{figure.svg}<figcaption>{escape(figure.caption)}</figcaption>'
        "</figure>"
        for figure in figures
        if figure is not None
    )
    return f'<div class="figures">{drawn}</div>' if drawn else ""


def _render_sheet(sheet: Sheet) -> str:
    kinds = ["word" if is_word else "number" for is_word in find_words(sheet)]
    head = "".join(
        f'<th class="{kind}">{escape(column)}</th>'
        for kind, column in zip(kinds, sheet.columns, strict=True)
    )
    bodies = "".join(
        "<tbody>" + "".join(_render_row(cells, kinds) for cells in group) + "</tbody>"
        for group in sheet.groups
    )
    remarks = "".join(f"<li>{escape(remark)}</li>" for remark in sheet.remarks)
    conditions = f"<p class=quiet>{escape(sheet.conditions)}</p>" if sheet.conditions else ""
    return (
        f'<h2>{escape(sheet.title)}</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"{bodies}</table></div>{conditions}" + (f"<ul>{remarks}</ul>" if remarks else "")
    )


def _render_row(cells: Sequence[str], kinds: Sequence[str]) -> str:
    verdict = verdict_word(cells[-1])
    verdict = verdict if verdict in ("faster", "slower", "unclear") else ""
    classes = [*kinds[:-1], f"{kinds[-1]} {verdict}"]
    return (
        "<tr>"
        + "".join(f'<td class="{c}">{escape(t)}</td>' for c, t in zip(classes, cells, strict=True))
        + "</tr>"
    )


def _render_environments(rows: Sequence[Row]) -> str:
    """How each run was taken, told once a run."""
    runs: dict[str, Any] = {}
    for row in rows:
        runs.setdefault(row.record.run, row.record)
    parts = []
    for run, record in runs.items():
        import msgspec

        content = {
            "settings": msgspec.to_builtins(record.settings),
            "environment": {k: v for k, v in record.environment.items() if k != "load"},
        }
        text = msgspec.json.format(msgspec.json.encode(content), indent=2).decode()
        parts.append(
            f"<details><summary>Environment of run {escape(run)}</summary>"
            f"<pre>{escape(text)}</pre></details>"
        )
    return "".join(["<h2>How it was measured</h2>", *parts]) if parts else ""
