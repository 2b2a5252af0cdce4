"""What a speed costs in loss: variants that were trained, against the baseline of their own run.

A record has something to say here if its curves have ``step`` and ``validation_loss``. Training
time is steps times the median time of a step, as sampled: what was done between steps to take the
curve does not count.

A faster step that learns less can still lose. Variants are therefore compared at equal loss: the
worse of the two final losses, which both reach. The gain is the baseline's time to get there over
the variant's; more than 1, and the variant is worth it. Where a curve goes up and down, a loss is
reached when it is first reached; between two points the curve is taken to be straight.

Intervals are those of step times alone. Losses come from one training each, with one seed.

Whether jobs that compute the same really did: their losses, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from flopwatch.analysis.statistics import Estimate, as_interval, with_intervals
from flopwatch.analysis.summary import Row
from flopwatch.records.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """What one variant learned, and how long it took."""

    row: Row
    steps: float
    """How long it was trained."""
    final_loss: float
    """Validation loss after the last step."""
    loss_difference: float | None
    """From the baseline's final loss; more than 0 is worse. None for the baseline and where there
    is none."""
    reaches_baseline: bool | None
    """Whether it ever came down to the baseline's final loss. None where there is no baseline."""
    time_to_baseline_ns: Estimate | None
    """Training time to the baseline's final loss; None where it never came down to it."""
    gain: Estimate | None
    """At equal loss: the baseline's time over this one's. None for the baseline and without one."""


def assess(rows: Sequence[Row]) -> list[list[Quality]]:
    """The rows that have loss curves, group by group."""
    trained = [row for row in rows if read_losses(row.record)]
    groups = groupby(trained, lambda row: (row.record.group_id, row.conditions_digest))
    return [[assess_row(row) for row in group] for _, group in groups]


def assess_row(row: Row) -> Quality:
    """The row must have a loss curve."""
    losses = read_losses(row.record)
    steps, final_loss = losses[-1]
    is_baseline = row.record.variant == row.record.baseline
    rival = row.record if is_baseline else row.against
    theirs = [] if rival is None else read_losses(rival)
    target = theirs[-1][1] if theirs else None
    reached = None if target is None else find_step(losses, target)
    return Quality(
        row=row,
        steps=steps,
        final_loss=final_loss,
        loss_difference=None if target is None or is_baseline else final_loss - target,
        reaches_baseline=None if target is None else reached is not None,
        time_to_baseline_ns=None
        if reached is None or row.total_ns is None
        else row.total_ns.scale(reached),
        gain=None if is_baseline else _estimate_gain(row.speedup, losses, theirs),
    )


def read_losses(record: Record) -> list[tuple[float, float]]:
    """Steps and validation losses, in order; empty where the record has none."""
    return read_curve(record, "step", "validation_loss")


def read_curve(record: Record, x: str, y: str) -> list[tuple[float, float]]:
    """The points of one curve over another, in order of x, without those that are not finite."""
    points = zip(record.curves.get(x, []), record.curves.get(y, []), strict=False)
    return sorted(point for point in points if all(map(math.isfinite, point)))


def find_step(losses: Sequence[tuple[float, float]], target: float) -> float | None:
    """Where the loss is first at the target or below, or None.

    >>> find_step([(0, 4.0), (10, 3.0), (20, 3.5), (30, 1.0)], 2.0)
    26.0
    """
    reached = next((place for place, (_, loss) in enumerate(losses) if loss <= target), None)
    if not reached:
        return None if reached is None else losses[0][0]
    (last_step, last_loss), (step, loss) = losses[reached - 1], losses[reached]
    return last_step + (step - last_step) * (last_loss - target) / (last_loss - loss)


def _estimate_gain(
    speedup: Estimate | None,
    losses: Sequence[tuple[float, float]],
    baseline_losses: Sequence[tuple[float, float]],
) -> Estimate | None:
    """At equal loss. A step's speedup is measured within rounds, which is better than the ratio of
    two times; how many steps it took is exact."""
    if speedup is None or not baseline_losses:
        return None
    target = max(losses[-1][1], baseline_losses[-1][1])
    step, baseline_step = find_step(losses, target), find_step(baseline_losses, target)
    if not step or baseline_step is None:  # a loss that is there before the first step
        return None
    return speedup.scale(baseline_step / step)


def as_dict(quality: Quality) -> dict[str, Any]:
    """For ``--json``: plain numbers with units in their names."""
    values = with_intervals(quality)
    row = values.pop("row")
    return {
        "variant": row.record.variant,
        "parameters": row.record.facts.get("parameters"),
        "step_ns": as_interval(row.total_ns),
        **values,
    }


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
    """Of one group; None where there is nothing to compare. Only records of one run have certainly
    trained on the same sequences."""
    run = next((r.record.run_id for r in rows if r.record.variant == r.record.baseline), None)
    curves = {
        row.record.variant: row.record.curves[LOSS]
        for row in rows
        if row.total_ns is not None
        and row.record.run_id == run
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
