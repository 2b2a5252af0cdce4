"""Texts from records, as a terminal may see them.

A record may come from anybody. What would move a terminal's cursor, change its colours or turn the
order of what stands around it is no part of a name.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from textwrap import wrap

TURNS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Controls of the direction of writing: a name with one of them shows as another."""

CONTROLS = re.compile(rf"[\x00-\x1f\x7f-\x9f\u2028\u2029{TURNS}]")
CONTROLS_OF_LINES = re.compile(rf"(?!\n|\t){CONTROLS.pattern}")
INDENT = "  "


def printable(text: str) -> str:
    """Without what would move a terminal's cursor, turn its text, or end a line of a table.

    >>> printable("a\\x1b[2Jb\\nc\\u202ed")
    'a [2Jb c d'
    """
    return CONTROLS.sub(" ", text)


def printable_lines(text: str) -> str:
    """The same of a text that has lines, and perhaps tabs.

    >>> printable_lines("a\\x1b[2J\\nb\\r")
    'a [2J\\nb '
    """
    return CONTROLS_OF_LINES.sub(" ", text)


def escape_html(text: str) -> str:
    """For a page: no markup, and nothing that turns the words around it.

    >>> escape_html("<b>\\u202e")
    '&lt;b&gt; '
    """
    return html.escape(printable_lines(text))


def wrap_remarks(remarks: Sequence[str], width: int | None) -> list[str]:
    """Sentences below a table, indented; None: each on one line, however long.

    >>> wrap_remarks(["a remark of some words"], 20)
    ['  a remark of some', '  words']
    """
    if width is None:
        return [f"{INDENT}{printable(remark)}" for remark in remarks]
    return [line for remark in remarks for line in _wrap(printable(remark), width)]


def _wrap(text: str, width: int) -> list[str]:
    # A name or a command that is broken in two is of no use to anybody.
    return wrap(
        text,
        max(width, 20),
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
