"""Texts that may hold something from a record, on their way to a terminal: without escapes."""

from __future__ import annotations

import click

from flopwatch.report.text import printable, printable_lines


def say(text: str) -> None:
    """An answer, in lines, to stdout. JSON and CSV have ways of their own to be safe."""
    click.echo(printable_lines(text))


def tell(sentence: str) -> None:
    """What else there is to know, to stderr."""
    click.echo(printable(sentence), err=True)
