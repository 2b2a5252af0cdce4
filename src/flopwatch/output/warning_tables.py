"""Warnings as people read them: the most serious first, each with what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from flopwatch.analysis.warnings import KINDS, SEVERITIES, ResultWarning
from flopwatch.output.units import plural

INDENT = 4


def write_warnings(warnings: Sequence[ResultWarning], width: int) -> list[str]:
    """Lines; none where there is no warning."""
    lines: list[str] = []
    for severity, meaning in SEVERITIES.items():
        chosen = [warning for warning in warnings if warning.severity == severity]
        if chosen:
            lines += ["", meaning.capitalize()] if lines else [meaning.capitalize()]
        for warning in chosen:
            lines += _write_warning(warning, width)
    return lines


def _write_warning(warning: ResultWarning, width: int) -> list[str]:
    return [
        f"  {warning.kind}",
        *_wrap(warning.sentence, width, INDENT),
        *_wrap(f"→ {warning.advice}", width, INDENT, hang=2),
    ]


def count_warnings(warnings: Sequence[ResultWarning], num_records: int) -> str:
    """One sentence for the end.

    >>> count_warnings([], 12)
    'no warnings about 12 records'
    """
    if not warnings:
        return f"no warnings about {plural(num_records, 'record')}"
    counts = [
        f"{number} {one if number == 1 else several}"
        for severity, one, several in (
            ("spoils", "that spoils a number", "that spoil a number"),
            ("widens", "that makes one less certain", "that make one less certain"),
            ("note", "worth knowing", "worth knowing"),
        )
        if (number := sum(warning.severity == severity for warning in warnings))
    ]
    total, records = plural(len(warnings), "warning"), plural(num_records, "record")
    return f"{total} about {records}: {', '.join(counts)}"


def write_kinds(width: int) -> list[str]:
    """What is looked for, how, and what to do."""
    lines: list[str] = []
    for severity, meaning in SEVERITIES.items():
        lines += ["", meaning.capitalize()] if lines else [meaning.capitalize()]
        for name, kind in KINDS.items():
            if kind.severity == severity:
                lines.append(f"  {name}: {kind.meaning}")
                lines += _wrap(f"found by: {kind.method}", width, INDENT, hang=2)
                lines += _wrap(f"→ {kind.advice}", width, INDENT, hang=2)
    return lines


def _wrap(text: str, width: int, indent: int, hang: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        width=max(width, 40),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )
