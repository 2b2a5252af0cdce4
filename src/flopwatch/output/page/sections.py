"""The sections of the page: a suite with its tables and plots, how each run was taken, and the
commands that would measure the same again.

A record of a command line carries it (``environment.command``). For others a command is rebuilt
from suite, parameters and settings. Controls of tables are added by the page's script, where there
is one.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from flopwatch.analysis.summary import Row, is_foreign
from flopwatch.devices.environment import look_up
from flopwatch.output.breakdown_tables import make_page_sheets
from flopwatch.output.case_tables import SHEET_MAKERS
from flopwatch.output.plots import Plot, choose_plots
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.tables import VERDICT_STYLES, Sheet, Value, divide, verdict_word
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import format_bytes, plural
from flopwatch.records.record import Record
from flopwatch.settings import QUICK, Settings
from flopwatch.suites.case import format_value
from flopwatch.suites.catalog import BUILT_IN

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
    words = sheet.words
    # The column that names the row: the variant in most tables, after what a group shares.
    named = max(sheet.text_columns - 1, 0)
    title, size = escape(sheet.title), sum(map(len, sheet.groups))
    tall = " tall" if size > 30 else ""
    conditions = f'<p class="quiet">{escape(sheet.conditions)}</p>' if sheet.conditions else ""
    return (
        f'<h3 id="table-{number}">{title}</h3><div class="box{tall}" tabindex="0" role="region" '
        f'aria-labelledby="table-{number}"><table class="sheet"><caption>{title}</caption>'
        f"<thead><tr>{_render_head(sheet.headings, words)}</tr></thead>"
        f"{_render_groups(sheet, words, named)}</table></div>{conditions}"
        f"{render_list(sheet.notes)}"
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
        is_number = isinstance(value, int | float) and abs(value) <= sys.float_info.max
        key = f" data-v={value:.9g}" if is_number else ""
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


PLOT = '<figure class="plot">'
ZOOM = "Drag to pan, turn the wheel with Shift to zoom, double-click to reset."


def _render_plot(plot: Plot) -> str:
    zoom = f'<span class="hint"> {ZOOM}</span>' if plot.can_zoom else ""
    return (
        f"{PLOT}<figcaption><b>{escape(plot.title)}</b><br>{escape(plot.caption)}{zoom}"
        f'</figcaption>{embed_json("", plot.to_view())}<div class="drawing"><p class="quiet">'
        "This plot is drawn by a script, which did not run; the tables have its values."
        "</p></div></figure>"
    )


def embed_json(name: str, content: Any) -> str:
    """Data for the page's script. Nothing in it ends the element: there is no < left."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")
    return f'<script type="application/json" data-name="{name}">{text}</script>'


REBUILT = (
    "Records that do not carry their command have one that was rebuilt from what they say. A value "
    "that the suite does not list itself then needs --set in place of --filter."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    command: str
    """As a shell takes it."""
    is_rebuilt: bool
    runs: list[str]
    """The runs that it made, or would make again."""


def list_reproductions(records: Sequence[Record]) -> list[Reproduction]:
    """In order of appearance, each command once; none for what others have measured."""
    together: dict[tuple[str, str, frozenset[str], str, Settings], list[Record]] = {}
    for record in (record for record in records if not is_foreign(record)):
        stored = _read_command(record)
        # A filter leaves out cases that do not have its axis: grids have a command each.
        axes = frozenset() if stored else frozenset(record.params)
        key = (
            record.run_id,
            record.suite,
            axes,
            "" if stored else record.baseline,
            record.settings,
        )
        together.setdefault(key, []).append(record)
    found: dict[tuple[str, bool], list[str]] = {}
    for alike in together.values():
        stored = _read_command(alike[0])
        words = stored or rebuild_command(alike)
        runs = found.setdefault((join_words(words), not stored), [])
        runs += [] if alike[0].run_id in runs else [alike[0].run_id]
    return [
        Reproduction(command=command, is_rebuilt=is_rebuilt, runs=runs)
        for (command, is_rebuilt), runs in found.items()
    ]


def _read_command(record: Record) -> list[str]:
    """Empty where there is none, or what is there is no command."""
    words = record.environment.get("command")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return []
    return words


def rebuild_command(records: Sequence[Record]) -> list[str]:
    """For records of one run, suite, set of axes, baseline and settings."""
    first = records[0]
    is_built_in = (BUILT_IN / f"{first.suite}.py").is_file()
    values = {axis: _list_values(records, axis) for axis in first.params}
    others = dict.fromkeys(r.variant for r in records if r.variant != first.baseline)
    values |= {"variant": list(others)} if others else {}
    filters = [f"{axis}={','.join(found)}" for axis, found in values.items()]
    return [
        *("flopwatch", "run", first.suite if is_built_in else f"{first.suite}.py"),
        *_list_options(first.settings),
        *("--baseline", first.baseline),
        *(word for one in filters for word in ("--filter", one)),
    ]


def _list_values(records: Sequence[Record], axis: str) -> list[str]:
    return list(dict.fromkeys(format_value(record.params.get(axis)) for record in records))


def _list_options(settings: Settings) -> list[str]:
    """What differs from the defaults, and what depends on the machine."""
    is_quick = settings.budget_s == QUICK.budget_s
    usual = QUICK if is_quick else Settings()
    options = {
        "--target-interval": (
            f"{100 * (settings.target_interval or 0):g}%",
            settings.target_interval is not None,
        ),
        "--case-budget": (f"{settings.budget_s:g}s", settings.budget_s != usual.budget_s),
        "--device": (settings.device, True),
        "--threads": (str(settings.threads), True),
        "--cache": (settings.cache, settings.cache != usual.cache),
        "--allocator": (settings.allocator, settings.allocator != usual.allocator),
        "--seed": (str(settings.seed), settings.seed != usual.seed),
    }
    words = [
        word for name, (value, is_told) in options.items() if is_told for word in (name, value)
    ]
    return ["--quick", *words] if is_quick else words


def join_words(words: Sequence[str]) -> str:
    """As `shlex.join` does, but for the home folder, which a shell only knows outside of quotes.

    >>> join_words(["flopwatch", "run", "~/my suite.py"])
    "flopwatch run ~/'my suite.py'"
    """
    return " ".join(
        f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)
        for word in words
    )


MOST_RUNS = 50
"""Environments and commands that a page has at most: results of years would be nothing else."""

VOLATILE = ("load", "command")
"""Parts of an environment that do not make it another one."""


def render_environments(rows: Sequence[Row]) -> list[Section]:
    """Key facts as a table, all facts folded; runs with the same facts share an entry."""
    by_run: dict[str, list[Record]] = {}
    for row in rows:
        by_run.setdefault(row.record.run_id, []).append(row.record)
    alike: dict[str, list[str]] = {}
    for run, records in by_run.items():
        alike.setdefault(_write_facts(records[0]), []).append(run)
    if not by_run:
        return []
    shown = [*by_run.items()][:MOST_RUNS]
    described = [_describe_run(records) for _, records in shown]
    columns = [name for name in described[0] if any(facts[name] for facts in described)]
    lines = [
        _render_run(run, {name: facts[name] for name in columns})
        for (run, _), facts in zip(shown, described, strict=True)
    ]
    folded = "".join(_render_facts(runs, text) for text, runs in [*alike.items()][:MOST_RUNS])
    html = (
        '<section id="runs"><h2>Environments</h2>'
        f"{render_box('Runs', ['run', *columns], lines)}{_tell_more(len(by_run))}"
        f"<details><summary>All that is known of each</summary>{folded}</details></section>"
    )
    return [Section(id="runs", title="Environments", html=html)]


def _tell_more(number: int) -> str:
    left = number - MOST_RUNS
    return f"<p>{plural(left, 'more run')} in the records.</p>" if left > 0 else ""


def _describe_device(record: Record) -> str:
    if is_foreign(record):
        return describe_conditions(record)
    gpu = look_up(record.environment, "torch.gpu.name")
    return str(gpu or look_up(record.environment, "machine.cpu_model") or record.settings.device)


def _describe_memory(record: Record) -> str:
    size = look_up(record.environment, "torch.gpu.memory_bytes") or look_up(
        record.environment, "machine.memory_total_bytes"
    )
    return format_bytes(size) if isinstance(size, int | float) else ""


def _describe_commit(record: Record) -> str:
    commit = look_up(record.environment, "project.commit")
    changed = ", changed since" if look_up(record.environment, "project.dirty") is True else ""
    return f"{commit}{changed}" if commit else ""


def _look(path: str) -> Any:
    def read(record: Record) -> str:
        value = look_up(record.environment, path)
        return "" if value is None else str(value)

    return read


FACTS: dict[str, Any] = {
    "began": lambda record: record.measured_at[:16].replace("T", " "),
    "device": _describe_device,
    "threads": lambda record: "" if is_foreign(record) else str(record.settings.threads),
    "cache": lambda record: "" if is_foreign(record) else record.settings.cache,
    "memory": _describe_memory,
    "torch": _look("torch.version"),
    "Python": _look("software.python"),
    "system": _look("software.os"),
    "flopwatch": _look("software.flopwatch"),
    "project": _describe_commit,
}
"""What people ask first, of a run's first record."""


def _describe_run(records: Sequence[Record]) -> dict[str, str]:
    first = min(records, key=lambda record: record.measured_at)
    facts = {name: describe(first) for name, describe in FACTS.items()}
    return {"cases": f"{len(records):,}", **facts}


def _render_run(run: str, facts: Mapping[str, str]) -> str:
    """Each fact with its name, which a narrow screen shows next to it."""
    cells = "".join(f'<td data-name="{name}">{escape(fact)}</td>' for name, fact in facts.items())
    return f'<tr><th scope="row">{escape(run)}</th>{cells}</tr>'


def _write_facts(record: Record) -> str:
    environment = {k: v for k, v in record.environment.items() if k not in VOLATILE}
    content = {"settings": msgspec.to_builtins(record.settings), "environment": environment}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode()


def _render_facts(runs: Sequence[str], text: str) -> str:
    name = runs[0] if len(runs) == 1 else f"{plural(len(runs), 'run')}: {', '.join(runs)}"
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"


def render_commands(rows: Sequence[Row]) -> list[Section]:
    found = list_reproductions([row.record for row in rows])
    if not found:
        return []
    parts = []
    for one in found[:MOST_RUNS]:
        runs = ", ".join(one.runs[:3]) + (f" and {len(one.runs) - 3} more" if one.runs[3:] else "")
        note = "rebuilt from the records of" if one.is_rebuilt else "run"
        parts.append(
            f'<p class="quiet">{note} {escape(runs)}</p><pre class="command">'
            f"<code>{escape(one.command)}</code></pre>"
        )
    rebuilt = f"<p>{REBUILT}</p>" if any(one.is_rebuilt for one in found) else ""
    html = (
        f'<section id="commands"><h2>Commands</h2>{rebuilt}{"".join(parts)}'
        f"{_tell_more(len(found))}</section>"
    )
    return [Section(id="commands", title="Commands", html=html)]
