"""What moved between two sets of results, row by row of the breakdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flopwatch.analysis.breakdown_moves import Moved, MovedRow, Movement
from flopwatch.output.breakdown_tables import (
    WHOLE,
    format_signed_share,
    format_signed_time,
    row_as_dict,
)
from flopwatch.output.columns import NOT_COMPARABLE
from flopwatch.output.compare_tables import format_time_change, list_differences, name_case
from flopwatch.output.tables import Column, Sheet, lay_out
from flopwatch.output.units import plural
from flopwatch.records.record import Record
from flopwatch.suites.case import format_value

CONDITIONS = "what moved most comes first; of the change: negative where a row moved against it"
NOISE = "`flopwatch compare` says which changes are more than noise"
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Line:
    movement: Movement
    row: MovedRow


def make_moved_sheets(moved: Moved, most: int) -> list[Sheet]:
    """One for every suite and set of axes; the cases that moved most come first."""
    divided: dict[tuple[str, frozenset[str]], list[Movement]] = {}
    for one in sorted(moved.movements, key=lambda one: -abs(one.change_ns)):
        record = one.new.record
        divided.setdefault((record.suite, frozenset(record.params)), []).append(one)
    return [_make_sheet(some[:most], len(some) - most) for some in divided.values()]


def _make_sheet(movements: Sequence[Movement], left: int) -> Sheet:
    records = [one.new.record for one in movements]
    axes = list(dict.fromkeys(axis for record in records for axis in record.params))
    values = {axis: {format_value(r.params.get(axis, "")) for r in records} for axis in axes}
    fixed = [f"{axis}={values[axis].copy().pop()}" for axis in axes if len(values[axis]) == 1]
    columns: list[Column[Line]] = [
        *(_axis_column(axis) for axis in axes if len(values[axis]) > 1),
        Column("variant", lambda line: line.movement.new.record.variant, "word"),
        Column("part of the time", lambda line: line.row.name, "word"),
        _time_column("old", "old_ns"),
        _time_column("new", "new_ns"),
        Column(
            "change",
            lambda line: _format_change(line.row.change_ns),
            value=lambda line: line.row.change_ns,
        ),
        Column(
            "of the change",
            lambda line: format_signed_share(_find_share(line)),
            "share",
            _find_share,
        ),
    ]
    sheet = Sheet(
        title=f"{' '.join([records[0].suite, *fixed])}, what moved",
        conditions=CONDITIONS,
        remarks=[f"{plural(left, 'more case')}: --most shows them"] if left > 0 else [],
        **lay_out(columns, [_list_lines(movement) for movement in movements]),
    )
    words = [column.kind == "word" for column in columns]
    return replace(sheet, words=words, text_columns=sum(words))


def _axis_column(axis: str) -> Column[Line]:
    return Column(
        axis, lambda line: format_value(line.movement.new.record.params.get(axis, "")), "word"
    )


def _time_column(name: str, field: str) -> Column[Line]:
    def find(line: Line) -> float | None:
        time_ns: float | None = getattr(line.row, field)
        return time_ns

    return Column(name, lambda line: format_signed_time(find(line)), value=find)


def _format_change(change_ns: float) -> str:
    return format_time_change(change_ns) if change_ns else "0"


def _list_lines(movement: Movement) -> list[Line]:
    whole = MovedRow(key="", name=WHOLE, old_ns=movement.old.total_ns, new_ns=movement.new.total_ns)
    moved = [row for row in movement.rows if row.change_ns]
    return [Line(movement, row) for row in (whole, *moved)]


def _find_share(line: Line) -> float | None:
    whole_ns = line.movement.change_ns
    return line.row.change_ns / whole_ns if whole_ns else None


def describe_moved(moved: Moved) -> list[str]:
    """What a reader should know beside the tables."""
    found: dict[str, int] = {}
    for one in moved.movements:
        for difference in list_differences(one.unlike):
            found[difference] = found.get(difference, 0) + 1
    total, matched = len(moved.movements), moved.matched
    unlike = [
        f"{NOT_COMPARABLE}{'' if count == total else f' in {count} of {total}'}: {difference}"
        for difference, count in found.items()
    ]
    remarks = dict.fromkeys(
        r for one in moved.movements for r in (*one.old.remarks, *one.new.remarks)
    )
    left = [
        f"{plural(len(records), 'case')} {what}: {_name_some(records)}"
        for what, records in (
            ("no longer measured", matched.broken),
            ("only in the old results", matched.only_old),
            ("only in the new results", matched.only_new),
        )
        if records
    ]
    return [*unlike, *remarks, *left, *([NOISE] if total else [])]


def _name_some(records: Sequence[Record]) -> str:
    named = ", ".join(name_case(record) for record in records[:MOST_NAMED])
    return f"{named} …" if len(records) > MOST_NAMED else named


def moved_as_dict(moved: Moved) -> dict[str, Any]:
    """For ``--json``."""
    matched = moved.matched
    return {
        "movements": [_movement_as_dict(one) for one in moved.movements],
        "broken": [_case_as_dict(record) for record in matched.broken],
        "only_old": [_case_as_dict(record) for record in matched.only_old],
        "only_new": [_case_as_dict(record) for record in matched.only_new],
    }


def _movement_as_dict(one: Movement) -> dict[str, Any]:
    return {
        **_case_as_dict(one.new.record),
        "old_variant": one.old.record.variant,
        "old_ns": one.old.total_ns,
        "new_ns": one.new.total_ns,
        "change_ns": one.change_ns,
        "rows": [
            {
                "key": row.key,
                "name": row.name,
                "old_ns": row.old_ns,
                "new_ns": row.new_ns,
                "change_ns": row.change_ns,
            }
            for row in one.rows
        ],
        "old_rows": [row_as_dict(row, one.old.total_ns) for row in one.old.rows],
        "new_rows": [row_as_dict(row, one.new.total_ns) for row in one.new.rows],
        "unlike": {name: {"old": old, "new": new} for name, (old, new) in one.unlike.items()},
    }


def _case_as_dict(record: Record) -> dict[str, Any]:
    return {"suite": record.suite, "params": record.params, "variant": record.variant}
