"""Warnings about the machine and the software, while it was measured or between runs."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from flopwatch.analysis.warning_findings import Case, Finding, find_trend
from flopwatch.devices.environment import look_up
from flopwatch.records.record import Record

STEAL_SHARE = 0.02
"""Of the cores' time, taken by others of the same host."""
BUSY_SHARE = 0.05
"""Of the cores' time, used by other processes; the system itself takes a percent or two."""
OTHERS_LOAD = 1.0
OTHERS_SHARE = 0.1
"""Load beyond the run's own threads: a process that computes, or a tenth of them if that is more;
a run of t threads makes a load of t, and the system itself some tenths."""
HOT_C = 90.0
"""From here on CPUs lower their clocks."""
FALLING_CLOCK = -0.1
FALLING_CHANCE = 0.01

SECTIONS = ("machine", "software", "project", "torch", "isa", "allocator")
"""Of the environment. Others tell what happened meanwhile, or where a record was taken from."""
VOLATILE = (
    "machine.memory_available_bytes", "machine.swap_used_bytes",
    "project.dirty",  # a warning of its own
)  # fmt: skip
"""What changes without changing any time, or has a warning of its own."""
MOST_FIELDS = 4
"""So many are named; a new system differs in dozens."""
MOST_VALUES = 3


def find_throttled(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        for reason in case.record.throttled:
            fact = f"the GPU lowered its clocks because of {reason}"
            yield Finding(record=case.record, fact=fact, cause=reason)
        temperature_c = _read(case.record, "load.cpu_temperature_c")
        if temperature_c is not None and temperature_c >= HOT_C:
            yield Finding(
                record=case.record,
                fact=f"the CPU was at {temperature_c:.0f} °C, where it lowers its clocks",
                size=temperature_c,
                cause="hot",
            )
    yield from _find_falling_clocks(cases)


def _find_falling_clocks(cases: Sequence[Case]) -> Iterator[Finding]:
    """Over a run, not from one reading to the next: a core that has just become idle is slow."""
    for run in _group(cases, lambda record: record.run_id):
        groups = _group(run, lambda record: record.group_id)
        in_order = sorted(groups, key=lambda group: min(case.record.measured_at for case in group))
        read = [_read(group[0].record, "load.cpu_frequency_hz") for group in in_order]
        known_hz = [frequency_hz for frequency_hz in read if frequency_hz]
        trend = find_trend(known_hz)
        if trend is None or trend.change > FALLING_CLOCK or trend.chance > FALLING_CHANCE:
            continue
        third = len(in_order) // 3
        for case in (case for group in in_order[-third:] for case in group):
            yield Finding(
                record=case.record,
                fact=f"the CPU's clock fell by {-100 * trend.change:.0f} % over the run's "
                f"{len(in_order)} groups, to {min(known_hz) / 1e9:.2f} GHz",
                size=-trend.change,
                cause="falling",
            )


def find_loaded(cases: Sequence[Case]) -> Iterator[Finding]:
    for group in _group(cases, lambda record: (record.run_id, record.group_id)):
        # Shares are of the time since the record before, so that only a group's first has them.
        steal = max((_read(case.record, "load.steal_share") or 0.0) for case in group)
        others = [_read(case.record, "load.background_share") for case in group]
        told = max((share for share in others if share is not None), default=None)
        for case in (case for case in group if case.totals_ns):
            if steal >= STEAL_SHARE:
                fact = f"{100 * steal:.1f} % of the cores' time went to others on the same host"
                yield Finding(record=case.record, fact=fact, size=steal, cause="steal")
            if told is not None and told >= BUSY_SHARE:
                fact = f"other processes used {100 * told:.0f} % of the cores' time"
                yield Finding(record=case.record, fact=fact, size=told, cause="others")
            elif told is None and not case.is_foreign:
                yield from _find_high_load(case.record)


def _find_high_load(record: Record) -> Iterator[Finding]:
    """Where the run's own processes were not told apart from others."""
    average, threads = look_up(record.environment, "load.average"), record.settings.threads
    load = float(average[0]) if average else 0.0
    if load - threads >= max(OTHERS_LOAD, OTHERS_SHARE * threads):
        yield Finding(
            record=record,
            fact=f"the load of the machine was {load:.1f}, and the run's own {threads} threads "
            f"make {threads}",
            size=load - threads,
            cause="load",
        )


def find_changes(cases: Sequence[Case]) -> Iterator[Finding]:
    """In what stands in one table, and in what one run has measured."""
    fields: dict[int, dict[str, str]] = {}
    tables: dict[Hashable, list[Case]] = {}
    last: tuple[Any, dict[str, str]] = (None, {})
    for case in cases:
        told = {name: case.record.environment.get(name) for name in SECTIONS}
        told["sources"] = case.record.sources  # the project's files, by their digests
        # Most records say what the one before them says, and comparing is quicker than writing.
        last = last if told == last[0] else (told, _flatten(told))
        fields[id(case)] = last[1]
        tables.setdefault(case.table, []).append(case)
        tables.setdefault(case.record.run_id, []).append(case)
    for table in tables.values():
        in_order = sorted(table, key=lambda case: case.record.measured_at)
        yield from _find_changes(in_order, [fields[id(case)] for case in in_order])


def _find_changes(
    cases: Sequence[Case], environments: Sequence[Mapping[str, str]]
) -> Iterator[Finding]:
    """Fields that have changed in the same records are one finding."""
    if all(each is environments[0] for each in environments):
        return
    changes: dict[tuple[int, ...], list[str]] = {}
    for name in dict.fromkeys(name for each in environments for name in each):
        values = [each.get(name) for each in environments]
        known = list(dict.fromkeys(value for value in values if value is not None))
        if len(known) > 1:
            changed = tuple(
                place for place, value in enumerate(values) if value not in (None, known[0])
            )
            changes.setdefault(changed, []).append(f"{name} {_write_values(known)}")
    for places, texts in changes.items():
        more = f", and {len(texts) - MOST_FIELDS} more fields" if len(texts) > MOST_FIELDS else ""
        fact = f"{', '.join(texts[:MOST_FIELDS])}{more}"
        for place in places:
            yield Finding(record=cases[place].record, fact=fact, cause=fact)


def _write_values(values: Sequence[str]) -> str:
    """
    >>> _write_values("abcde")
    'a → b → ... → e'
    """
    shown = (
        values if len(values) <= MOST_VALUES else [*values[: MOST_VALUES - 1], "...", values[-1]]
    )
    return " → ".join(shown)


def _flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """By path, as text; what is volatile or unknown is left out."""
    found: dict[str, str] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flatten(value, f"{path}.")
        elif value is not None and path not in VOLATILE:
            found[path] = str(value)
    return found


def find_dirty(cases: Sequence[Case]) -> Iterator[Finding]:
    for case in cases:
        if look_up(case.record.environment, "project.dirty") is True and case.totals_ns:
            commit = look_up(case.record.environment, "project.commit")
            yield Finding(
                record=case.record,
                fact=f"tracked files differed from commit {commit}",
                cause=str(commit),
            )


def _read(record: Record, path: str) -> float | None:
    value = look_up(record.environment, path)
    return float(value) if isinstance(value, int | float) else None


def _group(cases: Sequence[Case], key: Any) -> list[list[Case]]:
    groups: dict[Hashable, list[Case]] = {}
    for case in cases:
        groups.setdefault(key(case.record), []).append(case)
    return list(groups.values())
