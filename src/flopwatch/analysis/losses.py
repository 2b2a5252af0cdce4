"""Whether jobs that compute the same really did: their losses, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flopwatch.analysis.summary import Row

LOSS = "loss"


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """Of the variants of a group with its baseline."""

    steps: int
    """That all of them ran."""
    first: float
    last: float
    """Losses of the baseline."""
    variant: str
    """The one that is furthest off,"""
    deviation: float
    """and how far: the largest difference over the baseline's loss."""


def compare_losses(rows: Sequence[Row]) -> Agreement | None:
    """Of one group; None where there is nothing to compare. Only records of one run have trained on
    the same texts for certain."""
    run = next((r.record.run for r in rows if r.record.variant == r.record.baseline), None)
    curves = {
        row.record.variant: row.record.curves[LOSS]
        for row in rows
        if row.total_ns is not None
        and row.record.run == run
        and row.record.ranks
        and row.record.curves.get(LOSS)
    }
    baseline = curves.pop(rows[0].record.baseline, None)
    if baseline is None or not curves:
        return None
    steps = min(len(baseline), *map(len, curves.values()))
    deviations = {
        variant: max(abs(a - b) / abs(b) for a, b in zip(losses, baseline[:steps], strict=False))
        for variant, losses in curves.items()
    }
    furthest = max(deviations, key=lambda variant: deviations[variant])
    return Agreement(
        steps=steps,
        first=baseline[0],
        last=baseline[steps - 1],
        variant=furthest,
        deviation=deviations[furthest],
    )
