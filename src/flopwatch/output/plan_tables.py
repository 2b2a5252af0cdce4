"""A plan of a training job: the best few configurations, and what the others lose."""

from __future__ import annotations

from typing import Any

from flopwatch.output.prediction_tables import NS, prediction_as_dict
from flopwatch.output.tables import Column, Sheet, bytes_column, lay_out, share_column
from flopwatch.output.units import format_count, format_time
from flopwatch.prediction.memory_need import NEARLY_FULL
from flopwatch.prediction.plans import DAY_S, Loser, Plan
from flopwatch.prediction.predictions import Prediction

AXES = {"shard": "shard", "checkpoint": "checkpoint", "micro_batch": "micro-batch"}


def list_sheets(plan: Plan, model: str) -> list[Sheet]:
    return [_make_best(plan, model), *([_make_losers(plan)] if plan.losers else [])]


def _make_best(plan: Plan, model: str) -> Sheet:
    wish = plan.wish
    columns: list[Column[Prediction]] = [
        Column("shard", lambda p: p.job.sharding, "word"),
        Column("checkpoint", lambda p: p.job.recompute, "word"),
        Column("micro-batch", lambda p: str(p.job.micro_batch)),
        Column("accumulation", lambda p: str(p.job.accumulation), "detail"),
        Column("tokens a step", lambda p: f"{p.job.step_tokens:,}", "detail"),
        Column("tokens/s", lambda p: f"{p.tokens_per_s:,.0f}", value=lambda p: p.tokens_per_s),
        Column("9 of 10", lambda p: f"{p.low:,.0f} to {p.high:,.0f}", "interval"),
        Column(
            "step", lambda p: format_time(p.cost.step_s * NS), value=lambda p: p.cost.step_s * NS
        ),
        share_column("MFU", lambda p: p.utilisation.mfu, "share"),
        bytes_column("memory", lambda p: p.memory.total_bytes, "memory"),
        Column("days", lambda p: _format_days(plan, p), value=plan.find_time_s),
        Column(
            "GPU-hours", lambda p: f"{plan.find_device_hours(p):,.0f}", value=plan.find_device_hours
        ),
    ]
    if wish.price is not None:
        columns.append(
            Column("cost", lambda p: f"{plan.find_cost(p) or 0:,.0f}", value=plan.find_cost)
        )
    return Sheet(
        title=f"plan {model} on {wish.ranks} x {wish.machine.name}: texts of {wish.tokens:,} "
        f"tokens, about {format_count(wish.batch_tokens)} a step, "
        f"{format_count(plan.budget_tokens)} in all",
        conditions=f"stack {wish.stack.name}; {plan.fitting} of {plan.tried} configurations that "
        f"were tried fit, with {100 * (1 - NEARLY_FULL):.0f} % of the memory to spare",
        remarks=list(plan.best[0].warnings),
        **lay_out(columns, [plan.best]),
    )


def _format_days(plan: Plan, prediction: Prediction) -> str:
    return f"{plan.find_time_s(prediction) / DAY_S:,.1f}"


def _make_losers(plan: Plan) -> Sheet:
    winner = plan.best[0]
    columns: list[Column[Loser]] = [
        Column("instead", lambda loser: AXES[loser.axis], "word"),
        Column("of", lambda loser: loser.value, "word"),
        Column(
            "tokens/s",
            lambda loser: f"{loser.best.tokens_per_s:,.0f}" if loser.best else "",
            value=lambda loser: loser.best.tokens_per_s if loser.best else None,
        ),
        share_column(
            "of the best",
            lambda loser: loser.best.tokens_per_s / winner.tokens_per_s if loser.best else None,
        ),
        Column("why", lambda loser: loser.reason, "word"),
    ]
    return Sheet(
        title="what the others lose",
        conditions="the best of each, against the first above",
        remarks=[],
        **lay_out(columns, [plan.losers]),
    )


def as_dict(plan: Plan, model: str) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "model": model,
        "tokens": plan.budget_tokens,
        "tried": plan.tried,
        "fitting": plan.fitting,
        "best": [_describe(plan, each) for each in plan.best],
        "others": [
            {
                "axis": loser.axis,
                "value": loser.value,
                "tokens_per_s": loser.best.tokens_per_s if loser.best else None,
                "why": loser.reason,
            }
            for loser in plan.losers
        ],
    }


def _describe(plan: Plan, prediction: Prediction) -> dict[str, Any]:
    job = prediction.job
    return {
        "shard": job.sharding,
        "checkpoint": job.recompute,
        "micro_batch": job.micro_batch,
        "accumulation": job.accumulation,
        "global_batch_seqs": job.micro_batch * job.accumulation * job.ranks,
        "training_time_s": plan.find_time_s(prediction),
        "gpu_hours": plan.find_device_hours(prediction),
        "cost": plan.find_cost(prediction),
        **prediction_as_dict(prediction),
    }
