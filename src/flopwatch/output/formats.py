"""Tables in every format. Markdown and LaTeX are for people and have the texts of a sheet; CSV and
JSON are for machines and have raw values.

A text may come from somebody else's record: what a format would take for an order is escaped.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from flopwatch.output.tables import Column, Sheet, Value
from flopwatch.output.units import printable, printable_lines

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def write_csv(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> str:
    """By RFC 4180, with its line ends.

    >>> write_csv(["variant", "total_ns"], [['a "b", c', 1500.0], ["=1+1", None]])
    'variant,total_ns\\r\\n"a ""b"", c",1500.0\\r\\n\\'=1+1,\\r\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([_guard(cell) for cell in row] for row in (columns, *rows))
    return text.getvalue()


def _guard(cell: Value) -> str:
    """
    >>> [_guard(cell) for cell in ("=cmd()", "-0.5", -0.5, True, None, "a\\x1b[2J\\nb")]
    ["'=cmd()", '-0.5', '-0.5', 'true', '', 'a [2J\\nb']
    """
    if cell is None or isinstance(cell, bool):
        return "" if cell is None else str(cell).lower()
    if not isinstance(cell, str):
        return repr(cell)
    text = printable_lines(cell)
    # Judged by what it was: a spreadsheet may drop what we have made a space.
    return f"'{text}" if cell.startswith(FORMULA) and not _is_number(cell) else text


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def write_json(content: Any) -> str:
    return json.dumps(content) + "\n"


def list_objects(columns: Sequence[str], rows: Sequence[Sequence[Value]]) -> list[dict[str, Value]]:
    """For JSON."""
    return [dict(zip(columns, row, strict=True)) for row in rows]


def write_result(columns: Sequence[str], rows: Sequence[Sequence[Any]], form: str) -> str:
    """What a query gave, in any format but that of a terminal."""
    if form == "json":
        return json.dumps(list_objects(columns, rows), default=str) + "\n"
    if form == "csv":
        return write_csv(columns, [[_simplify(cell) for cell in row] for row in rows])
    return {"markdown": write_markdown, "latex": write_latex}[form](
        [make_value_sheet(columns, rows)]
    )


def make_value_sheet(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    title: str = "",
    remarks: Sequence[str] = (),
) -> Sheet:
    """A table of values of which nothing is known: what is no number is words."""
    plain = [[_simplify(cell) for cell in row] for row in rows]

    def column(place: int, name: str) -> Column[Sequence[Value]]:
        is_number = all(_is_plain_number(row[place]) for row in plain)
        return Column(
            name,
            lambda row: format_cell(row[place]),
            "number" if is_number else "word",
            lambda row: row[place],
        )

    listed = [column(place, name) for place, name in enumerate(columns)]
    return Sheet(title=title, columns=listed, items=[plain], remarks=remarks, labels=1)


def _simplify(cell: Any) -> Value:
    """Lists and dates as text."""
    return cell if cell is None or isinstance(cell, int | float | str) else str(cell)


def _is_plain_number(cell: Value) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def format_cell(value: Value) -> str:
    """A value of which nothing is known, for people.

    >>> [format_cell(value) for value in (None, 0.1234567, "word", 12)]
    ['', '0.123457', 'word', '12']
    """
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def write_markdown(sheets: Sequence[Sheet]) -> str:
    """Tables as GitHub reads them, each with its title, its conditions and its remarks."""
    return "\n".join("\n".join([*_markdown_lines(sheet), ""]) for sheet in sheets)


def _markdown_lines(sheet: Sheet) -> list[str]:
    rows = [cells for group in sheet.groups for cells in group]
    title = [f"**{escape_markdown(sheet.title)}**", ""] if sheet.title else []
    conditions = ["", escape_markdown(sheet.conditions)] if sheet.conditions else []
    remarks = [f"- {escape_markdown(remark)}" for remark in sheet.notes]
    return [
        *title,
        *draw_markdown([sheet.headings, *rows], sheet.words),
        *conditions,
        *(["", *remarks] if remarks else []),
    ]


def draw_markdown(cells: Sequence[Sequence[str]], words: Sequence[bool]) -> list[str]:
    r"""
    >>> print(*draw_markdown([["model", "MFU"], ["7b|x", "0.4216"]], [True, False]), sep="\n")
    | model |    MFU |
    | :---- | -----: |
    | 7b\|x | 0.4216 |
    """
    texts = [[escape_markdown(text) for text in row] for row in cells]
    # A rule has three characters at least.
    widths = [max(3, *map(len, column)) for column in zip(*texts, strict=True)]
    rules = [
        f":{'-' * (width - 1)}" if is_word else f"{'-' * (width - 1)}:"
        for width, is_word in zip(widths, words, strict=True)
    ]
    head, *body = ([_pad(*cell) for cell in zip(row, widths, words, strict=True)] for row in texts)
    return [f"| {' | '.join(row)} |" for row in (head, rules, *body)]


def _pad(text: str, width: int, is_word: bool) -> str:
    return text.ljust(width) if is_word else text.rjust(width)


# What may open something: underscores inside a word do not, nor brackets without an address.
MARKDOWN = re.compile(r"[\\`|<~#]|\*(?=\S)|(?<![^\W_])_|(?<=\])[(\[:]")


def escape_markdown(text: str) -> str:
    r"""
    >>> print(escape_markdown("1.72x [1.69, 1.75] of head_size, MFU* *a*|[b](c)<i>_d_"))
    1.72x [1.69, 1.75] of head_size, MFU* \*a\*\|[b]\(c)\<i>\_d_
    """
    return MARKDOWN.sub(r"\\\g<0>", printable(text))


def write_latex(sheets: Sequence[Sheet]) -> str:
    """Tables for a document that has ``\\usepackage{booktabs}``; remarks are comments in it, and
    what marks mean stands below the table."""
    return "\n".join("\n".join([*_latex_lines(sheet), ""]) for sheet in sheets)


def _latex_lines(sheet: Sheet) -> list[str]:
    words = sheet.words
    body: list[str] = []
    for group in sheet.groups:
        body += ["\\midrule", *(_latex_row(cells, words) for cells in group)]
    caption = ". ".join(escape_latex(text) for text in (sheet.title, sheet.conditions) if text)
    heads = _latex_row(sheet.headings, [True] * len(words))
    return [
        "% needs \\usepackage{booktabs}",
        *(f"% {printable(remark)}" for remark in sheet.remarks),
        "\\begin{table}",
        "  \\centering",
        *([f"  \\caption{{{caption}}}"] if caption else []),
        f"  \\begin{{tabular}}{{{''.join('l' if is_word else 'r' for is_word in words)}}}",
        *(f"    {line}" for line in ("\\toprule", heads, *body, "\\bottomrule")),
        "  \\end{tabular}",
        *(f"  \\par\\footnotesize {escape_latex(sentence)}" for sentence in sheet.legend),
        "\\end{table}",
    ]


def _latex_row(cells: Sequence[str], words: Sequence[bool]) -> str:
    texts = [
        escape_latex(text) if is_word else _typeset(text)
        for text, is_word in zip(cells, words, strict=True)
    ]
    # A bracket after the end of a row would be an argument of that.
    guard = "{}" if texts[0].lstrip().startswith(("[", "*")) else ""
    return guard + " & ".join(texts) + r" \\"


def _typeset(number: str) -> str:
    r"""
    >>> print(*map(_typeset, ["1.72x [1.69, 1.75]", "82 ms", "±2.0 %", "1.5 µs"]), sep="\n")
    1.72$\times$ [1.69, 1.75]
    82\,ms
    $\pm$2.0\,\%
    1.5\,$\mu$s
    """
    with_units = re.sub(r"(?<=\d) (?=[^\s\d\[(])", r"\\,", escape_latex(number))
    return re.sub(r"(?<=\d)x(?!\w)", r"$\\times$", with_units)


LATEX = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "µ": r"$\mu$",
    "×": r"$\times$",
}


def escape_latex(text: str) -> str:
    r"""Any other character that is not in ASCII is named, since few fonts have it.

    >>> print(escape_latex("50 % of a_b & \\x {µ} 中"))
    50 \% of a\_b \& \textbackslash{}x \{$\mu$\} U+4E2D
    """
    return "".join(
        LATEX.get(char, char if char.isascii() else f"U+{ord(char):04X}")
        for char in printable(text)
    )
