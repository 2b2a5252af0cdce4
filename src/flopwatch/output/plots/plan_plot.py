"""Days of a training over what it costs, of plans on several kinds or numbers of devices: those
that nothing is both faster and cheaper than are the Pareto front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.output.plots.channels import (
    PICKED,
    draw_points,
    lay_above,
    layer,
    make_log_axis,
    pick_by_legend,
    rule,
    series_channels,
    text,
)
from flopwatch.output.plots.plot import Layer, Plot, Values, is_ratio
from flopwatch.output.units import format_count, printable
from flopwatch.prediction.plan_comparison import PlanComparison
from flopwatch.prediction.plan_deadline import Deadlines, plural_days
from flopwatch.prediction.plans import DAY_S, HOUR_S, Plan

HEIGHT = 340
COST, HOURS = "cost", "GPU-hours"
PLAIN_LABEL = "format(datum.value, '~g')"
MOST_INTERVALS = 8
"""Marks that can have their intervals drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A number of devices of a kind."""

    device: str
    devices: int
    days: float
    low: float
    high: float
    expense: float


def make_comparison_plots(comparison: PlanComparison) -> list[Plot]:
    """One for each model that there are several plans of."""
    plots = []
    for first in filter(comparison.is_fastest, comparison.plans):
        rivals = comparison.list_rivals(first)
        unit = COST if comparison.has_costs else HOURS
        points = [_place(plan, plan.job.ranks, plan.best[0].tokens_per_s, unit) for plan in rivals]
        plots += _draw(first, points, unit, None)
    return plots


def make_deadline_plots(deadlines: Deadlines) -> list[Plot]:
    """One for each model: all numbers of devices that were searched."""
    plots = []
    for name in dict.fromkeys(each.job.name for each in deadlines.found):
        own = [each for each in deadlines.found if each.job.name == name]
        has_costs = all(each.closest.price is not None for each in own)
        unit = COST if has_costs else HOURS
        points = [
            _place(each.closest, devices, speed, unit)
            for each in own
            for devices, speed in each.tried.items()
        ]
        plots += _draw(own[0].closest, points, unit, own[0].days)
    return plots


def _place(plan: Plan, devices: int, tokens_per_s: float, unit: str) -> Point:
    """With so many devices, of a plan's kind and interval."""
    best, time_s = plan.best[0], plan.train_tokens / tokens_per_s
    hours = time_s * devices / HOUR_S
    return Point(
        device=plan.machine.name,
        devices=devices,
        days=time_s / DAY_S,
        low=time_s / DAY_S * best.tokens_per_s / best.high,
        high=time_s / DAY_S * best.tokens_per_s / best.low,
        expense=hours * (plan.price or 1.0) if unit == COST else hours,
    )


def list_front(points: Iterable[Point]) -> list[Point]:
    """Those that no other is both faster and cheaper than, the fastest first."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point.days, point.expense)):
        if not front or point.expense < front[-1].expense:
            front.append(point)
    return front


def _draw(plan: Plan, points: Sequence[Point], unit: str, deadline: float | None) -> list[Plot]:
    known = [point for point in points if is_ratio(point.days, point.expense)]
    if len(known) < 2:
        return []
    front, has_intervals = list_front(known), len(known) <= MOST_INTERVALS
    numbers = {
        name: number
        for number, name in enumerate(dict.fromkeys(point.device for point in known), 1)
    }
    ends = [(point.low / point.days, point.high / point.days) for point in known]
    scales = [scale for pair in ends for scale in (*pair, 1.0)] if has_intervals else [1.0]
    expenses = [scale * point.expense for point in known for scale in scales]
    days = [scale * point.days for point in known for scale in scales]
    x = make_log_axis(f"{unit} of the training", expenses, "format(datum.value, '.3~s')")
    y = make_log_axis("days", [*days, *([deadline] if deadline else [])], PLAIN_LABEL)
    values: Values = [
        _describe(point, unit, point in front)
        for point in sorted(known, key=lambda p: (p.device, p.devices))
    ]
    data: dict[str, Values] = {
        "points": values,
        "front": [{"x": point.expense, "y": point.days} for point in front],
    }
    if deadline:
        data["deadline"] = [{"y": deadline, "text": plural_days(deadline)}]
    return [
        Plot(
            name="plans",
            title=f"Days of training over its {unit}",
            subject=f"{printable(plan.job.name)}, {format_count(plan.train_tokens)} tokens, "
            f"about {format_count(plan.global_batch_tokens)} a step, seq_len {plan.job.seq_len:,}",
            caption="Each mark is the fastest configuration on so many devices"
            + (", with the 90 % interval of both. " if has_intervals else ". ")
            + "Filled: nothing is both faster and cheaper; the grey line joins these.",
            conditions=f"software stack {plan.stack.name}",
            data=data,
            layers=_list_layers(
                x.channel(),
                y.channel("y"),
                numbers,
                has_deadline=deadline is not None,
                has_intervals=has_intervals,
            ),
            height=HEIGHT,
        )
    ]


def _describe(point: Point, unit: str, is_front: bool) -> dict[str, Any]:
    name = f"{point.devices:,} x {point.device}"
    return {
        "x": point.expense,
        "y": point.days,
        "low": point.low,
        "high": point.high,
        "series": point.device,
        "text": f"{point.devices:,}",
        "devices": point.devices,
        "least": point.expense * point.low / point.days,
        "most": point.expense * point.high / point.days,
        "front": is_front,
        "tip": f"{name}\n{point.days:,.1f} days [{point.low:,.1f}, {point.high:,.1f}]\n{unit} "
        f"{point.expense:,.0f}",
    }


def _list_layers(
    x: Layer, y: Layer, numbers: dict[str, int], *, has_deadline: bool, has_intervals: bool
) -> list[Layer]:
    xy = {"x": x, "y": y}
    looks = series_channels(numbers, **lay_above(numbers))
    colour = {"color": looks["color"], "opacity": PICKED}
    # What takes longer costs more in proportion.
    interval = {
        "x": {**x, "field": "least"},
        "x2": {"field": "most"},
        "y": {**y, "field": "low"},
        "y2": {"field": "high"},
        **colour,
    }
    front = {"type": "line", "strokeWidth": 5, "opacity": 0.35, "color": "#5c6470"}
    deadline = [
        rule("deadline", y=y),
        text("deadline", {"y": y, "x": {"value": "width"}}, style="note", align="right", dy=-8),
    ]
    return [
        layer("front", front, {**xy, "order": {"field": "y"}}),
        *(deadline if has_deadline else []),
        *(
            [layer("points", {"type": "rule", "strokeWidth": 1.4}, interval)]
            if has_intervals
            else []
        ),
        layer(
            "points",
            {"type": "line", "strokeWidth": 1.2, "strokeDash": [3, 3]},
            {**xy, **colour, "order": {"field": "devices"}},
            params=[pick_by_legend()],
        ),
        draw_points({**xy, "opacity": PICKED}, looks, where_certain="datum.front"),
        text("points", {**xy, "opacity": PICKED}, style="inside", align="left", dx=9, dy=12),
    ]
