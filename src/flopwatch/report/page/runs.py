"""How each run was taken, and how to take it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flopwatch.analysis.summary import Row, is_foreign
from flopwatch.engine.environment import look_up
from flopwatch.records.record import Record
from flopwatch.report.page.suites import Section
from flopwatch.report.page.table import render_box
from flopwatch.report.remarks import describe_conditions
from flopwatch.report.reproduction import REBUILT, list_reproductions
from flopwatch.report.text import escape_html as escape
from flopwatch.report.units import format_bytes, plural

MOST_RUNS = 50
"""Environments and commands that a page has at most: results of years would be nothing else."""

VOLATILE = ("load", "command")
"""Parts of an environment that do not make it another one."""


def render_environments(rows: Sequence[Row]) -> list[Section]:
    """Key facts as a table, all facts folded; runs whose facts are all the same are told once."""
    by_run: dict[str, list[Record]] = {}
    for row in rows:
        by_run.setdefault(row.record.run, []).append(row.record)
    alike: dict[str, list[str]] = {}
    for run, records in by_run.items():
        alike.setdefault(_write_facts(records[0]), []).append(run)
    if not by_run:
        return []
    shown = [*by_run.items()][:MOST_RUNS]
    told = [_describe_run(records) for _, records in shown]
    columns = [name for name in told[0] if any(facts[name] for facts in told)]
    lines = [
        _render_run(run, {name: facts[name] for name in columns})
        for (run, _), facts in zip(shown, told, strict=True)
    ]
    folded = "".join(_render_facts(runs, text) for text, runs in [*alike.items()][:MOST_RUNS])
    html = (
        '<section id="runs"><h2>How it was measured</h2>'
        f"{render_box('Runs', ['run', *columns], lines)}{_tell_more(len(by_run))}"
        f"<details><summary>All that is known of each</summary>{folded}</details></section>"
    )
    return [Section(id="runs", title="How it was measured", html=html)]


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
    "began": lambda record: record.taken_at[:16].replace("T", " "),
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
    first = min(records, key=lambda record: record.taken_at)
    facts = {name: tell(first) for name, tell in FACTS.items()}
    return {"cases": f"{len(records):,}", **facts}


def _render_run(run: str, facts: Mapping[str, str]) -> str:
    """Each fact with its name, which a narrow screen shows beside it."""
    told = "".join(f'<td data-name="{name}">{escape(fact)}</td>' for name, fact in facts.items())
    return f'<tr><th scope="row">{escape(run)}</th>{told}</tr>'


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
        f'<section id="commands"><h2>How to measure it again</h2>{rebuilt}{"".join(parts)}'
        f"{_tell_more(len(found))}</section>"
    )
    return [Section(id="commands", title="How to measure it again", html=html)]
