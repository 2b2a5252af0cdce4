"""Tables whose columns somebody has chosen, from the frame."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.summary import Row
from flopwatch.errors import UsageError
from flopwatch.report.columns import UNLIKE, Column, Value
from flopwatch.report.frame import Field, Frame, find_field
from flopwatch.report.remarks import describe_conditions
from flopwatch.report.tables import Sheet, lay_out
from flopwatch.report.units import plural

COMPARISONS = ("speedup", "speedup_low", "speedup_high", "limit")


def choose_fields(frame: Frame, columns: str) -> list[Field]:
    """Those that ``a,b,c`` names, in that order."""
    names = [name.strip() for name in columns.split(",") if name.strip()]
    if not names:
        raise UsageError(
            "--columns names none; write it as in --columns variant,total_ns,speedup, and "
            "--columns help lists all"
        )
    return [find_field(frame, name) for name in names]


def make_chosen_sheet(rows: Sequence[Row], frame: Frame, fields: Sequence[Field]) -> Sheet:
    """One table, whatever the suites and conditions; it says what they are."""
    columns = [
        Column(field.heading, field.form, "word" if field.is_word else "number", field.find)
        for field in fields
    ]
    hidden = list_hidden(rows, frame, fields)
    return Sheet(
        **{
            **lay_out(columns, [rows]),
            "title": describe_shared(rows, frame, fields),
            "conditions": describe_all_conditions(rows),
            "text_columns": count_labels(fields),
            "words": [field.is_word for field in fields],
            "remarks": [
                *([f"the cases differ also in {', '.join(hidden)}"] if hidden else []),
                *([] if frame["verdict"] in fields else list_unlike(rows, fields)),
            ],
        }
    )


def count_labels(fields: Sequence[Field]) -> int:
    """The words in front, which tell the rows apart, however narrow a terminal is."""
    words = [field.is_word and field.name != "verdict" for field in fields]
    return max(1, words.index(False) if False in words else len(words))


def list_unlike(rows: Sequence[Row], fields: Sequence[Field]) -> list[str]:
    """Of comparisons that a table shows without saying that they are not fair ones."""
    unlike = [row for row in rows if row.unlike]
    if not unlike or not any(field.name in COMPARISONS for field in fields):
        return []
    variants = ", ".join(dict.fromkeys(row.record.variant for row in unlike))
    return [f"{variants}: {UNLIKE} in {plural(len(unlike), 'case')}; the usual tables say how"]


def list_identity(frame: Frame) -> list[Field]:
    """What tells cases apart: no two of them have all of it in common."""
    names = ("variant", "baseline", "conditions")
    return [
        frame["suite"],
        *(field for field in frame.values() if field.is_axis),
        *(frame[name] for name in names),
    ]


def list_hidden(rows: Sequence[Row], frame: Frame, shown: Sequence[Field]) -> list[str]:
    """In what the rows differ that is not shown."""
    fields = [field for field in list_identity(frame) if field not in shown]
    return [field.name for field in fields if len({field.find(row) for row in rows}) > 1]


def describe_shared(rows: Sequence[Row], frame: Frame, shown: Sequence[Field]) -> str:
    """The title of a table: the suites, and what else is the same in all rows and not shown."""
    suites = ", ".join(dict.fromkeys(row.record.suite for row in rows))
    told = [f for f in list_identity(frame) if f.is_axis or f.name == "variant"]
    texts = {f.heading: {f.form(row) for row in rows} for f in told if f not in shown}
    shared = [f"{name}={text}" for name, (text, *more) in texts.items() if text and not more]
    return " ".join([suites, *shared])


def describe_all_conditions(rows: Sequence[Row]) -> str:
    return "; or ".join(dict.fromkeys(describe_conditions(row.record) for row in rows))


def list_values(rows: Sequence[Row], fields: Sequence[Field]) -> list[list[Value]]:
    """For formats that machines read."""
    return [[field.find(row) for field in fields] for row in rows]
