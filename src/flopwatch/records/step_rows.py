"""The steps of monitored runs as rows, for SQL: one a step and rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import msgspec

from flopwatch.records.monitored import Part, RankSteps
from flopwatch.records.record import Record

PARTS: tuple[Part, ...] = get_args(Part)
COLUMNS = {
    "case_id": "VARCHAR",
    "group_id": "VARCHAR",
    "run_id": "VARCHAR",
    "suite": "VARCHAR",
    "variant": "VARCHAR",
    "params": "JSON",
    "rank": "BIGINT",
    "step": "BIGINT",
    "unix_s": "DOUBLE",
    "first": "BOOLEAN",
    "ns": "DOUBLE",
    **{f"{part}_ns": "DOUBLE" for part in PARTS},
    "tokens": "BIGINT",
    "padded_tokens": "BIGINT",
}
"""With their types in SQL. unix_s: when it began; first: whether it is set apart, as compilation is
in it."""


def list_step_rows(record: Record) -> Iterator[bytes]:
    """As lines of JSON; none where it is no monitored run."""
    if record.monitored is None:
        return
    names = ("case_id", "group_id", "run_id", "suite", "variant", "params")
    shared = {name: getattr(record, name) for name in names}
    for rank in record.monitored.ranks:
        for place in range(len(rank.steps)):
            is_first = place < record.monitored.first_steps
            row = {**shared, "first": is_first, **_read_step(rank, place)}
            yield msgspec.json.encode(row) + b"\n"


def _read_step(rank: RankSteps, place: int) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "step": rank.steps[place],
        "unix_s": rank.zero_unix_s + rank.begin_ns[place] / 1e9,
        "ns": rank.time_ns[place],
        **{f"{part}_ns": values[place] for part, values in rank.parts_ns.items()},
        "tokens": rank.tokens[place],
        "padded_tokens": rank.padded_tokens[place],
    }


def drop_steps(record: Record) -> Record:
    """Without what has rows of its own: of a long run it would be too long for one."""
    if record.monitored is None:
        return record
    return replace(record, monitored=replace(record.monitored, ranks=[]))
