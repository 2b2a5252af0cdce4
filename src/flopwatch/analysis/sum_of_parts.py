"""A layer as a whole against the sum of its parts, where both were measured in the same rounds.

A speed may be published as a sum of parts that were timed one by one. Such a sum lacks what happens
between the parts (calls, bookkeeping, memory), and it may count twice what a whole layer does once.
Whole and sum are compared within rounds, like everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from flopwatch.analysis.samples import pair_ratio, totals_by_round
from flopwatch.analysis.statistics import Estimate, as_interval
from flopwatch.analysis.summary import Row, estimate_speedup


@dataclass(frozen=True, kw_only=True, slots=True)
class Whole:
    """A layer and its parts."""

    row: Row
    """Of the layer. Its speedup is that of one whole over another."""
    parts: Row
    ratio: Estimate
    """The layer's time over the sum of its parts; less than 1 where the whole takes less."""
    parts_speedup: Estimate | None
    """Of the sum over the sum of the baseline's parts, as published speedups are. None for the
    baseline, and where its parts were not measured in the same run."""


def compare_wholes(rows: Sequence[Row]) -> list[list[Whole]]:
    """Group by group: the layers whose parts were measured in the same run."""
    groups = groupby(rows, lambda row: (row.record.group_id, row.conditions_digest))
    found = [_compare_group([row for row in group if row.total_ns]) for _, group in groups]
    return [group for group in found if group]


def _compare_group(rows: Sequence[Row]) -> list[Whole]:
    parts_by_whole = {(row.record.run_id, row.record.parts_of): row for row in rows}
    compared = []
    for row in rows:
        record = row.record
        parts = parts_by_whole.get((record.run_id, record.variant))
        if parts is None:
            continue
        ratio = pair_ratio(totals_by_round(record), totals_by_round(parts.record))
        if ratio is None:
            continue
        rival = parts_by_whole.get((record.run_id, record.baseline))
        speedup = (
            None
            if rival is None or rival is parts
            else estimate_speedup(parts.record, rival.record)
        )
        compared.append(Whole(row=row, parts=parts, ratio=ratio, parts_speedup=speedup))
    return compared


def as_dict(whole: Whole) -> dict[str, Any]:
    """For ``--json``: plain numbers with units in their names."""
    return {
        "variant": whole.parts.record.variant,
        "total_ns": as_interval(whole.parts.total_ns),
        "whole_over_sum": as_interval(whole.ratio),
        "speedup_of_sums": as_interval(whole.parts_speedup),
    }
