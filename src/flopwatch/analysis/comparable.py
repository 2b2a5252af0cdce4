"""Whether two records are comparable: the fields in which they differ and should not.

Three things are looked at: what the case itself fixed (`Record.conditions`: dtype, autocast,
compile), what it was measured with (`environment.measurement_conditions`: the machine, threads, the
instruction set, versions, variables, hot or cold cache), and axes in which the two sides differ as
a whole (a run at batch 32 against one at batch 64: see `verdicts`). A field that is known on one
side only counts as different.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from flopwatch.devices.environment import measurement_conditions
from flopwatch.errors import UsageError
from flopwatch.records.record import Record
from flopwatch.suites.case import format_value

Differences = dict[str, tuple[str | None, str | None]]
"""By field: the old value, or the baseline's, and the new one; None: it is not known."""

ECHOES = {
    "machine.machine_id": "machine.cpu_model",
    "software.packages.torch": "torch.version",
}
"""Fields that say again, in other words, what another field says."""


def find_condition_differences(old: Record, new: Record) -> Differences:
    """Of what the cases themselves fixed: all that can differ inside one group of a run."""
    return _differ(old.conditions, new.conditions)


def find_differences(old: Record, new: Record) -> Differences:
    """Of records of different runs."""
    measured = _differ(_flatten(_find_measured(old)), _flatten(_find_measured(new)))
    kept = {k: v for k, v in measured.items() if ECHOES.get(k) not in measured}
    return {**find_condition_differences(old, new), **kept}


def is_named(field: str, names: Iterable[str]) -> bool:
    """Whether any name means the field: by itself, or as what it begins or ends with.

    >>> [is_named("torch.version", [name]) for name in ("torch", "version", "torch.v", "all")]
    [True, True, False, True]
    """
    return any(
        name in ("all", field) or field.startswith(f"{name}.") or field.endswith(f".{name}")
        for name in names
    )


def list_fields(records: Iterable[Record]) -> list[str]:
    """All in which these records, or others like them, can differ."""
    names: dict[str, None] = {"variant": None}
    for record in records:
        names |= dict.fromkeys([*record.conditions, *record.params, *_find_measured(record)])
        names |= dict.fromkeys(_flatten(_find_measured(record)))
    return list(names)


def find_near_fields(name: str, fields: Sequence[str]) -> list[str]:
    """Those that somebody may have meant, by their whole names or the ends of them.

    >>> find_near_fields("thread", ["torch.version", "settings.threads"])
    ['settings.threads']
    """
    ends = {field.rpartition(".")[2]: field for field in reversed(fields)}
    near = get_close_matches(name, [*fields, *ends], n=3)
    return list(dict.fromkeys(ends.get(found, found) for found in near))


def require_fields(names: Iterable[str], records: Iterable[Record]) -> None:
    """A slip of the keyboard would excuse nothing, and nobody would know why a gate fails."""
    fields = list_fields(records)
    for name in names:
        if not any(is_named(each, [name]) for each in fields):
            near = find_near_fields(name, fields)
            meant = (
                f"did you mean {' or '.join(near)}?" if near else "such as torch.version, or all"
            )
            raise UsageError(f"--despite {name!r} is no field in which results can differ; {meant}")


def _find_measured(record: Record) -> dict[str, Any]:
    return measurement_conditions(record.environment, record.settings)


def _flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Mappings within mappings by their paths.

    >>> _flatten({"a": {"b": 1, "c": {}}, "d": None})
    {'a.b': 1, 'd': None}
    """
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= (
            _flatten(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
    return flat


def _differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> Differences:
    return {
        name: (_write(old.get(name)), _write(new.get(name)))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    }


def _write(value: Any) -> str | None:
    return None if value is None else format_value(value)
