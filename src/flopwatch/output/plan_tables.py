"""A plan of a training job: the best few configurations, and what the others lose."""

from __future__ import annotations

from flopwatch.output.prediction_tables import NS
from flopwatch.output.tables import Column, Sheet, bytes_column, lay_out, share_column
from flopwatch.output.units import format_count, format_time
from flopwatch.prediction.memory_need import NEARLY_FULL
from flopwatch.prediction.plans import DAY_S, Loser, Plan
from flopwatch.prediction.predictions import Prediction

AXES = {"sharding": "sharding", "recompute": "recompute", "micro_batch": "micro-batch"}


def list_sheets(plan: Plan) -> list[Sheet]:
    return [_make_best(plan), *([_make_losers(plan)] if plan.losers else [])]


def _make_best(plan: Plan) -> Sheet:
    columns: list[Column[Prediction]] = [
        Column("sharding", lambda p: p.job.sharding, "word"),
        Column("recompute", lambda p: p.job.recompute, "word"),
        Column("micro-batch", lambda p: str(p.job.micro_batch)),
        Column("grad-accum", lambda p: str(p.job.grad_accum), "detail"),
        Column("tokens a step", lambda p: f"{p.job.tokens_per_step:,}", "detail"),
        Column("tokens/s", lambda p: f"{p.tokens_per_s:,.0f}", value=lambda p: p.tokens_per_s),
        Column("90 % interval", lambda p: f"{p.low:,.0f} to {p.high:,.0f}", "interval"),
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
    if plan.price is not None:
        columns.append(
            Column("cost", lambda p: f"{plan.find_cost(p) or 0:,.0f}", value=plan.find_cost)
        )
    return Sheet(
        title=f"plan {plan.job.name} on {plan.job.ranks} x {plan.machine.name}: seq_len "
        f"{plan.job.seq_len:,}, about {format_count(plan.global_batch_tokens)} tokens a step, "
        f"{format_count(plan.train_tokens)} in all",
        conditions=f"software stack {plan.stack.name}; {plan.fitting} of {plan.tried} "
        "configurations that were tried fit, with "
        f"{100 * (1 - NEARLY_FULL):.0f} % of the memory to spare",
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
