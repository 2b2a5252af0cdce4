"""Sheets in a terminal, by rich: as much of each as the width has room for.

Labels stay; the least important columns go first, then what a group shares moves into its title,
and then columns go below.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from textwrap import shorten as shorten_text
from textwrap import wrap
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from flopwatch import env
from flopwatch.analysis.summary import Row
from flopwatch.output.answers import (
    MOST_ROWS as MOST_ROWS_OF_ANSWER,
)
from flopwatch.output.answers import (
    SuiteAnswer,
    answer_suites,
    list_conditions,
    list_warnings,
)
from flopwatch.output.formats import make_value_sheet
from flopwatch.output.tables import DISPENSABLE, VERDICT_STYLES, Sheet
from flopwatch.output.units import INDENT, printable, wrap_remarks

WIDE = 200
"""Columns where stdout is not a terminal: nobody's tables should be cut in a pipe."""
MOST_LINES = 2
"""Of a heading."""
MOST_ROWS = 1000
"""Of a table in a terminal."""
NARROW = 100
"""Columns of an answer, however wide the terminal is."""
GAP = 2
"""Between columns: a table has no lines, as that of `flopwatch.compare` has none."""
LEAST_WORDS = 24
"""Characters that a column of words has at least, if it has so many: a name in pieces of three is
no name."""


def print_answers(
    rows: Sequence[Row], *, more: str = "-v", is_quiet: bool = False, is_sorted: bool = False
) -> None:
    """Results, the answer first. `more` is what shows the rest; quiet: nothing but the answer."""
    console, width = open_stdout(), find_width()
    if not rows:
        open_stderr().print("no records")
    answers = answer_suites(rows, is_sorted=is_sorted)
    for position, one in enumerate(answers):
        if position:
            console.print()
        _print_answer(console, one, width, more, is_quiet=is_quiet)
    if rows and not is_quiet:
        console.print()
        conditions = list_conditions(rows)
        print_shortened(conditions if len(conditions) == 1 else [], "dim")
        print_warnings(list_warnings(rows))


def _print_answer(
    console: Console, answer: SuiteAnswer, width: int, more: str, *, is_quiet: bool
) -> None:
    print_sentences([answer.title], "bold")
    print_sentences(answer.sentences)
    if is_quiet:
        return
    short = [shorten(sheet, MOST_ROWS_OF_ANSWER, more) for sheet in answer.sheets]
    for sheet in (part for one in short for part in fit(one, width)):
        console.print()
        print_sentences([sheet.title] if sheet.title else [], "bold")
        _print_drawn(console, draw(replace(sheet, title="", conditions=""), width))
        conditions = [sheet.conditions] if sheet.conditions else []
        for line in wrap_remarks([*conditions, *sheet.remarks], width):
            _print_line(console, line, "dim")
    if answer.hidden:
        print_shortened([f"more with {more}: {', '.join(answer.hidden)}"], "dim", INDENT)


def print_sentences(sentences: Sequence[str], style: str = "") -> None:
    """An answer, in lines that are no wider than people like to read."""
    console, width = open_stdout(), find_width()
    for sentence in sentences:
        # A name or a command that is broken in two is of no use to anybody.
        text = printable(sentence)
        for line in wrap(text, width, break_on_hyphens=False, break_long_words=False) or [""]:
            _print_line(console, line, style)


def print_warnings(warnings: Sequence[str]) -> None:
    """A line each."""
    print_shortened([f"! {warning}" for warning in warnings], "yellow")


def print_shortened(sentences: Sequence[str], style: str = "", indent: str = "") -> None:
    """A line each, cut between words where it is too long."""
    console, width = open_stdout(), find_width() - len(indent)
    for sentence in sentences:
        text = shorten_text(printable(sentence), width, placeholder=" …")
        _print_line(console, f"{indent}{text}", style)


def _print_drawn(console: Console, drawn: Group) -> None:
    """Without the spaces at the ends of lines."""
    with console.capture() as captured:
        console.print(drawn)
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _print_line(console: Console, line: str, style: str = "") -> None:
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_sheets(whole: Sequence[Sheet]) -> None:
    console = open_stdout()
    is_bound = _is_bound(console)
    short = [shorten(sheet) for sheet in whole]
    sheets = [p for sheet in short for p in fit(sheet, console.width, may_split=is_bound)]
    if not is_bound:
        console.width = max([console.width, *(_add_widths(_measure(sheet)) for sheet in sheets)])
    for position, sheet in enumerate(sheets):
        if position:
            console.print()
        _print_drawn(console, draw(sheet, console.width))
        print_remarks(sheet.remarks)


def shorten(sheet: Sheet, most: int = MOST_ROWS, rest_in: str = "--format csv and --json") -> Sheet:
    """The first rows of a sheet that nobody reads to its end, and that takes long to draw."""
    rows = sum(map(len, sheet.items))
    if rows <= most:
        return sheet
    items: list[Sequence[Any]] = []
    left = most
    for group in sheet.items:
        if items and len(group) > left:  # of what is compared, all or nothing
            break
        items.append(group[:left])
        left -= len(items[-1])
    shown = most - left
    have = "have" if " and " in rest_in else "has"
    cut = f"the first {shown:,} of {rows:,} rows; {rest_in} {have} all"
    return replace(sheet, items=items, remarks=[*sheet.remarks, cut])


def print_remarks(remarks: Sequence[str]) -> None:
    """Sentences below a table; in a pipe each on one line, for what searches them."""
    console = open_stdout()
    for line in wrap_remarks(remarks, console.width if _is_bound(console) else None):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table of values of which nothing is known."""
    print_sheets([make_value_sheet(columns, rows)])


def find_width() -> int:
    """Of an answer."""
    return min(open_stdout().width, NARROW)


def open_stdout() -> Console:
    asked = read_columns()
    return Console(width=asked if asked or sys.stdout.isatty() else WIDE)


def open_stderr() -> Console:
    return Console(stderr=True)


def read_columns() -> int | None:
    """The width that the variable COLUMNS asks for."""
    asked = env.read("COLUMNS")
    return int(asked) if asked.isascii() and asked.isdigit() and int(asked) > 0 else None


def _is_bound(console: Console) -> bool:
    """Whether nothing may be wider than the console."""
    return console.is_terminal or read_columns() is not None


def fit(sheet: Sheet, width: int, *, may_split: bool = True) -> list[Sheet]:
    """The sheet with as many of its optional columns as the width has room for; where that is not
    enough, a sheet for every group, with what its rows share in the title; where that is not
    enough either, one below the other, each with some of the numbers."""
    widths = _measure(sheet)
    shared, first = _count_shared(sheet), 0
    shown = _choose_columns(sheet, widths, first, width)
    if shared and _add_widths(widths[p] for p in shown) > width:
        first, shown = shared, _choose_columns(sheet, widths, shared, width)
    narrow = _narrow(sheet, shown)
    left = [c.title for p, c in enumerate(sheet.columns) if p >= first and p not in shown]
    narrow = replace(narrow, remarks=[*narrow.notes, *_announce(left, sheet.rest_in)])
    parts = _divide(narrow, sheet, shared) if first else [narrow]
    return [piece for part in parts for piece in _split(part, width)] if may_split else parts


def _announce(left: Sequence[str], rest_in: str) -> list[str]:
    """
    >>> _announce(["peak memory", "±"], "--json")
    ['left out for width: peak memory, ±; --json or a wider terminal shows them']
    """
    them = "it" if len(left) == 1 else "them"
    names = ", ".join(left)
    return [f"left out for width: {names}; {rest_in} or a wider terminal shows {them}"][: len(left)]


def _choose_columns(sheet: Sheet, widths: Sequence[int], first: int, width: int) -> list[int]:
    """Positions, from `first` on: the dispensable ones by their importance, as long as they fit."""
    kinds = [column.kind for column in sheet.columns]
    places = range(first, len(kinds))
    shown = [p for p in places if kinds[p] not in DISPENSABLE]
    for kind in reversed(DISPENSABLE):
        more = sorted([*shown, *(p for p in places if kinds[p] == kind)])
        shown = more if _add_widths(widths[p] for p in more) <= width else shown
    return shown


def _count_shared(sheet: Sheet) -> int:
    """How many leading columns of words have one value in each group; never the last of them, which
    identifies its rows."""
    for position in range(sheet.text_columns - 1):
        if any(len({cells[position] for cells in group}) > 1 for group in sheet.groups):
            return position
    return max(sheet.text_columns - 1, 0)


def _divide(narrow: Sheet, whole: Sheet, shared: int) -> list[Sheet]:
    """A sheet for every group, with what its rows share in the title."""
    shared_labels = [
        map("=".join, zip(whole.headings[:shared], g[0], strict=False)) for g in whole.groups
    ]
    parts = [
        replace(narrow, title=" ".join(filter(None, [whole.title, *words])), items=[group])
        for words, group in zip(shared_labels, whole.items, strict=True)
    ]
    return _keep_last(parts)


def _split(sheet: Sheet, width: int) -> list[Sheet]:
    """Sheets that have the labels of the rows and a part of the other columns each."""
    widths, least = _measure(sheet), _measure_least(sheet)
    labels = range(sheet.text_columns)
    others = range(len(labels), len(sheet.columns))
    if _add_widths(least) <= width or len(others) < 2:
        return [sheet]
    is_roomy = _add_widths([*widths[: len(labels)], max(least[p] for p in others)]) <= width
    of_labels = [(widths if is_roomy else least)[p] for p in labels]
    blocks: list[list[int]] = [[]]
    for p in others:
        more = [*of_labels, *(least[q] for q in blocks[-1]), least[p]]
        if blocks[-1] and _add_widths(more) > width:
            blocks.append([])
        blocks[-1].append(p)
    parts = [_narrow(sheet, [*labels, *block]) for block in blocks]
    titles = [sheet.title, *[f"{sheet.title}, continued"] * (len(parts) - 1)]
    return _keep_last(
        [replace(part, title=title) for part, title in zip(parts, titles, strict=True)]
    )


def _keep_last(parts: Sequence[Sheet]) -> list[Sheet]:
    """Only the last part says what is said about all."""
    return [*(replace(part, conditions="", remarks=[]) for part in parts[:-1]), parts[-1]]


def _narrow(sheet: Sheet, shown: Sequence[int]) -> Sheet:
    """The sheet with these columns only."""
    labels = sum(position < sheet.text_columns for position in shown)
    return replace(sheet, columns=[sheet.columns[position] for position in shown], labels=labels)


def _add_widths(widths: Iterable[int]) -> int:
    """Of a table with columns of these widths."""
    return max(0, sum(GAP + width for width in widths) - GAP)


def _measure(sheet: Sheet) -> list[int]:
    """How wide each column is, with nothing broken but headings."""
    return [
        max(map(len, [*heading, *texts]))
        for heading, texts in zip(_break_headings(sheet), _list_texts(sheet), strict=True)
    ]


def _measure_least(sheet: Sheet) -> list[int]:
    """How narrow each may get: words may be broken between them, and long ones inside."""
    least = _measure(sheet)
    for position, (column, texts) in enumerate(zip(sheet.columns, _list_texts(sheet), strict=True)):
        if column.is_word:
            words = " ".join([column.title, *texts]).split()
            longest = max(map(len, words), default=1)
            least[position] = min(least[position], longest, LEAST_WORDS)
    return least


def _list_texts(sheet: Sheet) -> list[list[str]]:
    """The cells of each column."""
    rows = [cells for group in sheet.groups for cells in group]
    return [[cells[position] for cells in rows] for position in range(len(sheet.columns))]


def _share_out(sheet: Sheet, width: int) -> list[int]:
    """Widths of the columns in a table that is no wider, if that can be: the widest words give
    first, and those that are no labels before those that are."""
    widths, least = _measure(sheet), _measure_least(sheet)
    labels = range(sheet.text_columns)
    for some in (range(len(labels), len(widths)), labels):
        while _add_widths(widths) > width:
            wide = [p for p in some if widths[p] > least[p]]
            if not wide:
                break
            widths[max(wide, key=lambda p: widths[p])] -= 1
    return widths


def _break_headings(sheet: Sheet) -> list[list[str]]:
    """For each column, its heading in lines: two where it is longer than all that stands below."""
    return [
        _break(heading, max(map(len, texts), default=0))
        for heading, texts in zip(sheet.headings, _list_texts(sheet), strict=True)
    ]


def _break(heading: str, width: int) -> list[str]:
    """
    >>> _break("kept for backward", 8), _break("peak memory", 20)
    (['kept for', 'backward'], ['peak memory'])
    """
    narrowest = max(width, *(len(word) for word in heading.split()), 1)
    broken = (wrap(heading, w) or [""] for w in range(narrowest, max(len(heading), narrowest) + 1))
    return next(lines for lines in broken if len(lines) <= MOST_LINES)


def draw(sheet: Sheet, width: int | None = None) -> Group:
    """Title and conditions may be wider than the table; without a width, it is as wide as it is."""
    conditions = [_text(sheet.conditions, "dim italic")] if sheet.conditions else []
    widths = _measure(sheet) if width is None else _share_out(sheet, width)
    title = [_text(sheet.title, "bold")] if sheet.title else []
    return Group(*title, _draw_table(sheet, widths), *conditions)


def _draw_table(sheet: Sheet, widths: Sequence[int]) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, GAP // 2))
    whole = _measure(sheet)
    for position, lines in enumerate(_break_headings(sheet)):
        is_word = sheet.columns[position].is_word
        is_folded = widths[position] < whole[position]
        # Words that are no labels may take a second line before anything is cut off.
        may_fold = is_word and position >= sheet.text_columns
        table.add_column(
            Text("\n".join(map(printable, lines))),
            justify="left" if is_word else "right",
            no_wrap=not (is_folded or may_fold),
            width=widths[position] if is_folded else None,
            overflow="fold" if is_folded else "ellipsis",
        )
    has_groups = any(len(group) > 1 for group in sheet.groups)  # else a gap after every row
    for position, (items, group) in enumerate(zip(sheet.items, sheet.groups, strict=True)):
        if position and has_groups:
            table.add_row()
        for item, cells in zip(items, group, strict=True):
            styles = (VERDICT_STYLES.get(column.tone(item) or "", "") for column in sheet.columns)
            table.add_row(*map(_text, cells, styles))
    return table


def _text(text: str, style: str = "") -> Text:
    """A Text object, since a name from a record might look like rich's markup."""
    return Text(printable(text), style=style)
