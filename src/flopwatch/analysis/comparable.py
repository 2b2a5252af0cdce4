"""What may be compared: fields in which two records differ and should not, and the same cases in
an old and a new set of records.

Three things make two records incomparable: what the case itself fixed (`Record.conditions`: dtype,
autocast, compile), what it was measured with (`environment.measurement_conditions`: the machine,
threads, the instruction set, versions, variables, hot or cold cache), and axes in which the two
sets differ as a whole. A field that is known on one side only counts as different.

A case is the same in two sets where suite, variant and parameters are. An axis that has one value
in all of the old records of a suite and another one in all of its new ones (batch 32 there, 64
here) does not keep cases apart: that is what you want to compare, though it is not comparable. The
variant counts as such an axis, too.

Records of one case that were measured under different conditions (threads, cache, versions) are
compared under the same conditions where there are any, and otherwise newest with newest. Of each
run, the newest record counts; several runs of a case are kept together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

import msgspec

from flopwatch.analysis.statistics import is_timed
from flopwatch.devices.environment import measurement_conditions
from flopwatch.errors import UsageError
from flopwatch.records.record import Record
from flopwatch.suites.case import digest, format_value

Differences = dict[str, tuple[str | None, str | None]]
"""By field: the old value, or the baseline's, and the new one; None: it is not known."""

ECHOES = {
    "machine.machine_id": "machine.cpu_model",
    "software.packages.torch": "torch.version",
}
"""Fields that say again, in other words, what another field says."""

VARIANT = "variant"


def find_condition_differences(old: Record, new: Record) -> Differences:
    """Of what the cases themselves fixed: all that can differ inside one group of a run."""
    return _differ(old.conditions, new.conditions)


def find_differences(old: Record, new: Record) -> Differences:
    """Of records of different runs."""
    measured = _differ(flatten(_measured_with(old)), flatten(_measured_with(new)))
    kept = {k: v for k, v in measured.items() if ECHOES.get(k) not in measured}
    return {**find_condition_differences(old, new), **kept}


def _differ(old: Mapping[str, Any], new: Mapping[str, Any]) -> Differences:
    def write(value: Any) -> str | None:
        return None if value is None else format_value(value)

    return {
        name: (write(old.get(name)), write(new.get(name)))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    }


def conditions(record: Record) -> str:
    """What it was measured with, as a digest: equal for records that are comparable."""
    # Tables ask for it many times a record, and few records differ in it.
    return _digest(msgspec.json.encode(_measured_with(record)))


@lru_cache(maxsize=1024)
def _digest(content: bytes) -> str:
    return digest(msgspec.json.decode(content))


def _measured_with(record: Record) -> dict[str, Any]:
    return measurement_conditions(record.environment, record.settings)


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Mappings within mappings by their paths.

    >>> flatten({"a": {"b": 1, "c": {}}, "d": None})
    {'a.b': 1, 'd': None}
    """
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def is_named(field: str, names: Iterable[str]) -> bool:
    """Whether any name means the field: by itself, or as what it begins or ends with.

    >>> [is_named("torch.version", [name]) for name in ("torch", "version", "torch.v", "all")]
    [True, True, False, True]
    """
    return any(
        name in ("all", field) or field.startswith(f"{name}.") or field.endswith(f".{name}")
        for name in names
    )


def require_fields(names: Iterable[str], records: Iterable[Record]) -> None:
    """A mistyped name would excuse nothing, and the gate would fail without saying why."""
    known = {VARIANT: None}
    for record in records:
        measured = _measured_with(record)
        known |= dict.fromkeys([*record.conditions, *record.params, *measured, *flatten(measured)])
    for name in names:
        if not any(is_named(each, [name]) for each in known):
            near = _find_near(name, list(known))
            meant = (
                f"did you mean {' or '.join(near)}?" if near else "such as torch.version, or all"
            )
            raise UsageError(f"--despite {name!r} is no field in which results can differ; {meant}")


def _find_near(name: str, fields: Sequence[str]) -> list[str]:
    """Those that may have been meant, by their whole names or the ends of them.

    >>> _find_near("thread", ["torch.version", "settings.threads"])
    ['settings.threads']
    """
    ends = {field.rpartition(".")[2]: field for field in reversed(fields)}
    near = get_close_matches(name, [*fields, *ends], n=3)
    return list(dict.fromkeys(ends.get(found, found) for found in near))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    old: list[Record]
    """One a run, the newest last, all measured under the same conditions."""
    new: list[Record]
    moved: Differences = field(default_factory=dict)
    """Axes in which the sides differ as a whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    pairs: list[Pair]
    broken: list[Record]
    """New records of cases that were measured before and failed now."""
    fixed: list[Record]
    """New records of cases that had failed before."""
    only_old: list[Record]
    only_new: list[Record]


def match_cases(old: Sequence[Record], new: Sequence[Record]) -> Matched:
    moved = _find_moved_axes(old, new)
    before, after = _group_by_case(old, moved), _group_by_case(new, moved)
    pairs: list[Pair] = []
    broken: list[Record] = []
    fixed: list[Record] = []
    for case in [case for case in before if case in after]:
        timed_before = [record for record in before[case] if is_timed(record)]
        timed_after = [record for record in after[case] if is_timed(record)]
        # A record that was only skipped says nothing about whether the case still works.
        tried = [record for record in after[case] if record.status != "skipped"]
        has_failed = bool(tried) and not is_timed(tried[-1])
        if timed_before and timed_after and not has_failed:
            pairs += _pair(timed_before, timed_after, moved.get(before[case][0].suite, {}))
        elif timed_before:
            broken.append(after[case][-1])
        elif timed_after:
            fixed.append(after[case][-1])
    return Matched(
        pairs=pairs,
        broken=broken,
        fixed=fixed,
        only_old=[records[-1] for case, records in before.items() if case not in after],
        only_new=[records[-1] for case, records in after.items() if case not in before],
    )


def _find_moved_axes(old: Sequence[Record], new: Sequence[Record]) -> dict[str, Differences]:
    """By suite: axes with one value on each side, and not the same. An axis that a side does not
    have counts as one with the single value None."""
    before, after = _list_values(old), _list_values(new)
    moved: dict[str, Differences] = {}
    for suite in before.keys() & after.keys():
        moved[suite] = {}
        for axis in {**before[suite], **after[suite]}:
            olds, news = (list(side[suite].get(axis, {None: None})) for side in (before, after))
            if len(olds) == len(news) == 1 and olds != news:
                moved[suite][axis] = (olds[0], news[0])
    return moved


def _list_values(records: Sequence[Record]) -> dict[str, dict[str, dict[str | None, None]]]:
    """By suite and axis, the values that there are."""
    values: dict[str, dict[str, dict[str | None, None]]] = {}
    for record in records:
        axes = values.setdefault(record.suite, {})
        for axis, value in {**record.params, VARIANT: record.variant}.items():
            axes.setdefault(axis, {})[format_value(value)] = None
    return values


def _group_by_case(
    records: Sequence[Record], moved: Mapping[str, Differences]
) -> dict[str, list[Record]]:
    cases: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.measured_at):
        ignored = moved.get(record.suite, {})
        axes: dict[str, Any] = {**record.params, VARIANT: record.variant}
        kept = {axis: value for axis, value in axes.items() if axis not in ignored}
        cases.setdefault(digest([record.suite, kept]), []).append(record)
    return cases


def _pair(old: Sequence[Record], new: Sequence[Record], moved: Differences) -> list[Pair]:
    """One for every set of conditions that both have, or else one of the newest."""
    before, after = _group_by_conditions(old), _group_by_conditions(new)
    shared = [same for same in before if same in after]
    if shared:
        return [Pair(old=before[same], new=after[same], moved=moved) for same in shared]
    return [Pair(old=before[conditions(old[-1])], new=after[conditions(new[-1])], moved=moved)]


def _group_by_conditions(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The newest record of each run."""
    alike: dict[str, dict[str, Record]] = {}
    for record in records:
        alike.setdefault(conditions(record), {})[record.run_id] = record
    return {like: list(runs.values()) for like, runs in alike.items()}
