"""Plans: the best few configurations, and what the others lose."""

from __future__ import annotations

from flopwatch.output.prediction_tables import INTERVAL, MEMORY, MFU, SPEED, STEP_TIME
from flopwatch.output.tables import Column, Sheet, number
from flopwatch.output.units import format_count
from flopwatch.prediction.plans import DAY_S, Loser, Plan
from flopwatch.prediction.predictions import NEARLY_FULL, Prediction

CHOICES = {
    "tensor": "tensor",
    "sequence": "sequence parallel",
    "pipeline": "pipeline",
    "virtual_stages": "virtual stages",
    "schedule": "schedule",
    "context": "context",
    "expert": "expert",
    "sharding": "sharding",
    "recompute": "recompute",
    "micro_batch": "micro-batch",
}
SPLITS = ("tensor", "pipeline", "context", "expert", "data")
"""Columns of a plan, where any of its configurations has them."""


def list_plan_sheets(plan: Plan) -> list[Sheet]:
    return [_make_best(plan), *([_make_losers(plan)] if plan.losers else [])]


def _make_best(plan: Plan) -> Sheet:
    columns: list[Column[Prediction]] = [
        *(
            _split_column(name)
            for name in SPLITS
            if any(getattr(each.job.parallelism, name) > 1 for each in plan.best)
        ),
        Column("sharding", lambda p: p.job.sharding, "word"),
        Column("recompute", lambda p: p.job.recompute, "word"),
        Column("micro-batch", lambda p: str(p.job.micro_batch)),
        Column("grad-accum", lambda p: str(p.job.grad_accum), "detail"),
        number("tokens a step", "integer", lambda p: p.job.tokens_per_step, "detail"),
        SPEED,
        INTERVAL,
        STEP_TIME,
        MFU,
        MEMORY,
        Column("days", lambda p: f"{plan.find_time_s(p) / DAY_S:,.1f}", value=plan.find_time_s),
        number("GPU-hours", "integer", plan.find_device_hours),
        *([number("cost", "integer", plan.find_cost)] if plan.price is not None else []),
    ]
    return Sheet(
        title=f"plan {plan.job.name} on {plan.job.ranks} x {plan.machine.name}: seq_len "
        f"{plan.job.seq_len:,}, about {format_count(plan.global_batch_tokens)} tokens a step, "
        f"{format_count(plan.train_tokens)} in all",
        columns=columns,
        items=[plan.best],
        conditions=f"software stack {plan.stack.name}; {plan.fitting:,} of {plan.tried:,} "
        "configurations that were tried fit, with "
        f"{100 * (1 - NEARLY_FULL):.0f} % of the memory to spare; tensor +sp: with sequence "
        "parallelism, pipeline 8x5: of 5 virtual stages each",
        remarks=[*([plan.remark] if plan.remark else []), *plan.best[0].warnings],
    )


def _split_column(name: str) -> Column[Prediction]:
    def show(prediction: Prediction) -> str:
        split = prediction.job.parallelism
        chunks = f"x{split.virtual_stages}" if split.virtual_stages > 1 else ""
        more = {"tensor": "+sp" if split.sequence else "", "pipeline": chunks}
        return f"{getattr(split, name)}{more.get(name, '')}"

    return Column(name, show, value=lambda p: getattr(p.job.parallelism, name))


def _make_losers(plan: Plan) -> Sheet:
    best = plan.best[0].tokens_per_s

    def find_speed(loser: Loser) -> float | None:
        return loser.best.tokens_per_s if loser.best else None

    def find_share(loser: Loser) -> float | None:
        return loser.best.tokens_per_s / best if loser.best else None

    columns: list[Column[Loser]] = [
        Column("instead", lambda loser: CHOICES[loser.axis], "word"),
        Column("of", lambda loser: loser.value, "word"),
        number("tokens/s", "integer", find_speed),
        number("of the best", "share", find_share),
        Column("why", lambda loser: loser.reason, "word"),
    ]
    return Sheet(
        title="what the others lose",
        columns=columns,
        items=[plan.losers],
        conditions="the best of each, against the first above",
    )
