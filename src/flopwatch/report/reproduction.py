"""The commands that would measure the same again.

A record of a command line carries it (``environment.command``). For others a command is rebuilt
from suite, parameters and settings.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.summary import is_foreign
from flopwatch.case import format_value
from flopwatch.catalog import BUILT_IN
from flopwatch.records.record import Record
from flopwatch.settings import QUICK, Settings

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
        told = _read_command(record)
        # A filter leaves out cases that do not have its axis: grids have a command each.
        axes = frozenset() if told else frozenset(record.params)
        key = (record.run, record.suite, axes, "" if told else record.baseline, record.settings)
        together.setdefault(key, []).append(record)
    found: dict[tuple[str, bool], list[str]] = {}
    for alike in together.values():
        told = _read_command(alike[0])
        words = told or rebuild_command(alike)
        runs = found.setdefault((join_words(words), not told), [])
        runs += [] if alike[0].run in runs else [alike[0].run]
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
    is_quick = (settings.precision, settings.budget_s) == (QUICK.precision, QUICK.budget_s)
    usual = QUICK if is_quick else Settings()
    options = {
        "--precision": (f"{100 * settings.precision:g}%", settings.precision != usual.precision),
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
