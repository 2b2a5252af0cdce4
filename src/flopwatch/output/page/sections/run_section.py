"""How each run was taken, and the commands that would measure the same again, folded away.

A record of a command line carries it (``environment.command``). For others a command is rebuilt
from suite, parameters and settings.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from flopwatch.analysis.summary import is_foreign
from flopwatch.devices.environment import look_up
from flopwatch.output.page.markup import Content, Section, fold, make_section, render_box
from flopwatch.output.remarks import describe_conditions
from flopwatch.output.units import escape_html as escape
from flopwatch.output.units import format_bytes, plural
from flopwatch.records.record import Record
from flopwatch.settings import QUICK, Settings
from flopwatch.suites.case import format_value
from flopwatch.suites.catalog import BUILT_IN

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


def render_environments(content: Content) -> list[Section]:
    """Key facts as a table, all facts folded; runs with the same facts share an entry."""
    by_run: dict[str, list[Record]] = {}
    for row in content.rows:
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
        f"{render_box('Runs', ['run', *columns], lines)}{_tell_more(len(by_run))}"
        f"{fold('All that is known of each', folded)}"
    )
    told = f"{plural(len(by_run), 'run')}: device, software, settings"
    return [make_section("runs", "Environments", fold(told, html, kind="folded"))]


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


def render_commands(content: Content) -> list[Section]:
    found = list_reproductions([row.record for row in content.rows])
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
    html = f"{rebuilt}{''.join(parts)}{_tell_more(len(found))}"
    told = f"{plural(len(found), 'command')} to measure this again"
    return [make_section("commands", "Commands", fold(told, html, kind="folded"))]
