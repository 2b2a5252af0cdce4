"""The same cases in two sets of records: an old one and a new one.

A case is the same where suite, variant and parameters are. An axis that has one value in all of the
old records of a suite and another one in all of its new ones (batch 32 there, 64 here) does not
keep cases apart: that is the very thing somebody wants to compare, though not like for like. The
variant counts as such an axis, too.

Records of one case that were measured under different conditions (threads, cache, versions) are
compared with their likes where there are any, and otherwise newest with newest. Of each run, the
newest record counts; several runs of a case are kept together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flopwatch.analysis.summary import conditions, is_timed
from flopwatch.analysis.unlike import Differences
from flopwatch.case import digest, format_value
from flopwatch.records.record import Record

VARIANT = "variant"


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
    mended: list[Record]
    """New records of cases that had failed before."""
    only_old: list[Record]
    only_new: list[Record]


def match(old: Sequence[Record], new: Sequence[Record]) -> Matched:
    moved = _find_moved(old, new)
    before, after = _by_case(old, moved), _by_case(new, moved)
    pairs: list[Pair] = []
    broken: list[Record] = []
    mended: list[Record] = []
    for case in [case for case in before if case in after]:
        timed_before = [record for record in before[case] if is_timed(record)]
        timed_after = [record for record in after[case] if is_timed(record)]
        if timed_before and timed_after and not _has_broken(after[case]):
            changes = moved.get(before[case][0].suite, {})
            pairs += _pair(timed_before, timed_after, changes)
        elif timed_before:
            broken.append(after[case][-1])
        elif timed_after:
            mended.append(after[case][-1])
    return Matched(
        pairs=pairs,
        broken=broken,
        mended=mended,
        only_old=[records[-1] for case, records in before.items() if case not in after],
        only_new=[records[-1] for case, records in after.items() if case not in before],
    )


def _has_broken(records: Sequence[Record]) -> bool:
    """Whether the newest one tells of a failure; one that was only skipped tells of nothing."""
    told = [record for record in records if record.status != "skipped"]
    return bool(told) and not is_timed(told[-1])


def _find_moved(old: Sequence[Record], new: Sequence[Record]) -> dict[str, Differences]:
    """By suite."""
    before, after = _list_values(old), _list_values(new)
    return {
        suite: {
            axis: (before[suite].get(axis, _NOTHING)[0], after[suite].get(axis, _NOTHING)[0])
            for axis in {**before[suite], **after[suite]}
            if _is_moved(before[suite].get(axis, _NOTHING), after[suite].get(axis, _NOTHING))
        }
        for suite in before
        if suite in after
    }


_NOTHING: list[str | None] = [None]


def _list_values(records: Sequence[Record]) -> dict[str, dict[str, list[str | None]]]:
    """By suite and axis, the values that there are."""
    values: dict[str, dict[str, dict[str | None, None]]] = {}
    for record in records:
        axes = values.setdefault(record.suite, {})
        for axis, value in {**record.params, VARIANT: record.variant}.items():
            axes.setdefault(axis, {})[format_value(value)] = None
    return {s: {a: list(found) for a, found in axes.items()} for s, axes in values.items()}


def _is_moved(old: Sequence[str | None], new: Sequence[str | None]) -> bool:
    return len(old) == len(new) == 1 and old[0] != new[0]


def _by_case(
    records: Sequence[Record], moved: Mapping[str, Differences]
) -> dict[str, list[Record]]:
    cases: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.taken_at):
        ignored = moved.get(record.suite, {})
        axes: dict[str, Any] = {**record.params, VARIANT: record.variant}
        kept = {axis: value for axis, value in axes.items() if axis not in ignored}
        cases.setdefault(digest([record.suite, kept]), []).append(record)
    return cases


def _pair(old: Sequence[Record], new: Sequence[Record], moved: Differences) -> list[Pair]:
    """One for every set of conditions that both have, or else one of the newest."""
    before, after = _by_conditions(old), _by_conditions(new)
    shared = [like for like in before if like in after]
    if shared:
        return [Pair(old=before[like], new=after[like], moved=moved) for like in shared]
    return [Pair(old=before[conditions(old[-1])], new=after[conditions(new[-1])], moved=moved)]


def _by_conditions(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The newest record of each run."""
    alike: dict[str, dict[str, Record]] = {}
    for record in records:
        alike.setdefault(conditions(record), {})[record.run] = record
    return {like: list(runs.values()) for like, runs in alike.items()}
