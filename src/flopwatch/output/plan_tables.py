"""Plans: the best few configurations, what the others lose, and how sensitive that is; plans of
several models or on several kinds of hardware; and how many devices a deadline takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.prediction_tables import INTERVAL, MEMORY, MFU, SPEED, STEP_TIME
from flopwatch.output.tables import Column, Sheet, group_by, number
from flopwatch.output.units import format_count
from flopwatch.prediction.plan_comparison import PlanComparison, describe_hardware
from flopwatch.prediction.plan_deadline import Deadline, Deadlines, plural_days
from flopwatch.prediction.plan_sensitivity import BATCHES, Change, What
from flopwatch.prediction.plans import Loser, Plan, format_days
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
NEGLIGIBLE = 0.005
"""Of the speed: less is no reason to choose anew."""
LEGEND = (
    "tp2+sp: tensor parallelism with sequence parallelism, pp8x5: 8 pipeline stages of 5 virtual "
    "ones each, mb: micro-batch"
)


WHATS: Mapping[What, str] = {
    "network-halved": "the network between nodes has half the bandwidth",
    "network-doubled": "the network between nodes has twice the bandwidth",
    "memory-smaller": "devices have 10 % less memory",
    "matmuls-slower": "matmuls are 10 % slower",
    "matmuls-faster": "matmuls are 10 % faster",
    "batch-halved": "the global batch is half as large",
    "batch-doubled": "the global batch is twice as large",
}


def list_plan_sheets(plan: Plan) -> list[Sheet]:
    losers = [_make_losers(plan)] if plan.losers else []
    return [_make_best(plan), _make_changes(plan), *losers]


def _make_best(plan: Plan) -> Sheet:
    columns: list[Column[Prediction]] = [
        Column("configuration", lambda p: describe_briefly(p.job), "word"),
        Column("grad-accum", lambda p: str(p.job.grad_accum), "detail"),
        number("tokens a step", "integer", lambda p: p.job.tokens_per_step, "detail"),
        SPEED,
        INTERVAL,
        STEP_TIME,
        MFU,
        MEMORY,
        Column("days", lambda p: format_days(plan.find_time_s(p)), value=plan.find_time_s),
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
        f"{100 * (1 - NEARLY_FULL):.0f} % of the memory to spare; {LEGEND}",
        remarks=[*([plan.remark] if plan.remark else []), *plan.best[0].warnings],
    )


def _make_changes(plan: Plan) -> Sheet:
    best = plan.best[0].tokens_per_s

    def find_change(change: Change) -> float | None:
        return change.chosen.tokens_per_s / best if change.chosen else None

    columns: list[Column[Change]] = [
        Column("if", lambda change: WHATS[change.what], "word"),
        number("tokens/s", "integer", lambda c: c.chosen.tokens_per_s if c.chosen else None),
        number("of now", "share", find_change),
        Column("the best then", describe_change, "word"),
    ]
    return Sheet(title="how sensitive the best is", columns=columns, items=[plan.changes])


def describe_change(change: Change) -> str:
    """Whether the choice changes."""
    if change.best is None:
        return "nothing fits"
    if change.chosen is None:
        why = "it cannot have such a batch" if change.what in BATCHES else "it does not fit"
        return f"{why}: {describe_briefly(change.best.job)}"
    gain = change.gain or 0.0
    if change.is_same or gain < NEGLIGIBLE:
        return "the same"
    return f"{100 * gain:.1f} % faster: {describe_briefly(change.best.job)}"


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
        Column(
            "with", lambda loser: describe_briefly(loser.best.job) if loser.best else "", "word"
        ),
    ]
    return Sheet(
        title="what the others lose",
        columns=columns,
        items=[plan.losers],
        conditions="the best of each, against the first above",
    )


def list_comparison_sheets(comparison: PlanComparison) -> list[Sheet]:
    """A line for each plan, the fastest of a model first."""
    plans = comparison.plans
    several = len({plan.job.name for plan in plans}) > 1
    columns: list[Column[Plan]] = [
        Column("model", lambda p: p.job.name, "word"),
        Column("hardware", describe_hardware, "word"),
        *([number("tokens", "count", lambda p: p.train_tokens)] if several else []),
        number("tokens/s", "integer", lambda p: p.best[0].tokens_per_s),
        Column("90 % interval", lambda p: INTERVAL.cell(p.best[0]), "interval"),
        number("MFU", "share", lambda p: p.best[0].utilisation.mfu, "share"),
        Column("days", _show_days, value=lambda p: p.find_time_s(p.best[0])),
        number("GPU-hours", "integer", lambda p: p.find_device_hours(p.best[0]), "detail"),
        *(
            [number("cost", "integer", lambda p: p.find_cost(p.best[0]))]
            if any(plan.price is not None for plan in plans)
            else []
        ),
        Column("which is", partial(_judge_plan, comparison), "word"),
        Column("configuration", lambda p: describe_briefly(p.best[0].job), "word"),
    ]
    title = "plans" if several else f"plans {plans[0].job.name}"
    return [
        Sheet(
            title=f"{title}: seq_len {plans[0].job.seq_len:,}, about "
            f"{format_count(plans[0].global_batch_tokens)} tokens a step"
            + ("" if several else f", {format_count(plans[0].train_tokens)} in all"),
            columns=columns if several else columns[1:],
            items=group_by(plans, lambda plan: plan.job.name),
            conditions=f"{sum(plan.tried for plan in plans):,} configurations tried; {LEGEND}",
            remarks=[*(f"left out: {refusal}" for refusal in comparison.refusals)],
            labels=2 if several else 1,
        )
    ]


def _show_days(plan: Plan) -> str:
    return format_days(plan.find_time_s(plan.best[0]))


def _judge_plan(comparison: PlanComparison, plan: Plan) -> str:
    dominating = comparison.find_dominating(plan)
    if dominating:
        return f"dominated by {describe_hardware(dominating)}"
    if len(comparison.list_rivals(plan)) == 1:
        return ""
    words = {"fastest": comparison.is_fastest(plan), "cheapest": comparison.is_cheapest(plan)}
    return " and ".join(word for word, is_so in words.items() if is_so)


def describe_briefly(job: TrainingJob) -> str:
    """
    >>> from flopwatch.jobs.parallelism import Parallelism
    >>> split = Parallelism(data=8, tensor=2, sequence=True, pipeline=4, sharding="zero1")
    >>> describe_briefly(TrainingJob("7b", 2048, parallelism=split))
    'tp2+sp pp4 dp8 zero1 mb1'
    """
    split = job.parallelism
    schedule = {"1f1b": "", "interleaved": f"x{split.virtual_stages}"}.get(
        split.schedule, f" {split.schedule}"
    )
    words = {
        f"tp{split.tensor}{'+sp' if split.sequence else ''}": split.tensor > 1,
        f"pp{split.pipeline}{schedule}": split.pipeline > 1,
        f"cp{split.context}": split.context > 1,
        f"ep{split.expert}": split.expert > 1,
        f"dp{split.data}": split.data > 1,
        job.sharding: job.sharding != "none",
        f"recompute-{job.recompute}": job.recompute != "none",
        f"mb{job.micro_batch}": True,
    }
    return " ".join(word for word, is_so in words.items() if is_so)


def list_deadline_sheets(deadlines: Deadlines) -> list[Sheet]:
    """A line for each model on each kind of device."""
    found = deadlines.found
    several = len({each.job.name for each in found}) > 1
    has_price = any(each.closest.price is not None for each in found)

    def of_plan(read: Callable[[Plan], float | None]) -> Callable[[Deadline], float | None]:
        return lambda deadline: read(deadline.closest)

    columns: list[Column[Deadline]] = [
        Column("model", lambda d: d.job.name, "word"),
        Column("hardware", lambda d: describe_hardware(d.closest), "word"),
        Column("in time", lambda d: "yes" if d.is_met else "no", "word"),
        Column(
            "days",
            lambda d: _show_days(d.closest),
            value=of_plan(lambda p: p.find_time_s(p.best[0])),
        ),
        Column("90 % interval", lambda d: _show_interval(d.closest), "interval"),
        number("GPU-hours", "integer", of_plan(lambda p: p.find_device_hours(p.best[0])), "detail"),
        *(
            [number("cost", "integer", of_plan(lambda p: p.find_cost(p.best[0])))]
            if has_price
            else []
        ),
        Column("fewer", _show_fewer, "word"),
        Column("configuration", lambda d: describe_briefly(d.closest.best[0].job), "word"),
    ]
    first = found[0]
    return [
        Sheet(
            title=f"plan {'' if several else f'{first.job.name} '}within "
            f"{plural_days(first.days)}: seq_len {first.job.seq_len:,}, about "
            f"{format_count(first.global_batch_tokens)} tokens a step"
            + ("" if several else f", {format_count(first.train_tokens)} in all"),
            columns=columns if several else columns[1:],
            items=group_by(found, lambda deadline: deadline.job.name),
            conditions="whole nodes are tried, and powers of two within one; fewer: what the next "
            f"smaller number would take; {LEGEND}",
            remarks=[
                *(f"{each.reason}" for each in found if each.reason),
                *(f"left out: {refusal}" for refusal in deadlines.refusals),
            ],
            labels=2 if several else 1,
        )
    ]


def _show_interval(plan: Plan) -> str:
    low, high = (plan.train_tokens / speed for speed in (plan.best[0].high, plan.best[0].low))
    return f"{format_days(low)} to {format_days(high)}"


def _show_fewer(deadline: Deadline) -> str:
    smaller = deadline.smaller
    return f"{smaller.job.ranks:,}: {_show_days(smaller)} days" if smaller else ""
