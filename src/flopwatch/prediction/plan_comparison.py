"""Plans of several models, or on several kinds of hardware: which is fastest, which is cheapest,
and which are neither faster nor cheaper than another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.training_job import Printed, TrainingJob
from flopwatch.prediction.plan_hardware import (
    PlannedHardware,
    Price,
    count_train_tokens,
    find_all_hardware,
    find_price,
    try_all,
)
from flopwatch.prediction.plans import Plan, describe_choice, format_days, make_plan


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanComparison(Printed):
    plans: tuple[Plan, ...]
    """Of each model on each hardware; the fastest of a model first."""
    refusals: tuple[str, ...]
    """Of those for which there is no plan, why."""

    @cached_property
    def has_costs(self) -> bool:
        return all(plan.price is not None for plan in self.plans)

    @cached_property
    def has_one_kind(self) -> bool:
        return len({plan.machine.name for plan in self.plans}) == 1

    def find_expense(self, plan: Plan) -> float | None:
        """What plans are compared by, besides their time: their costs, or hours of the same
        device; None: neither is known of all."""
        if self.has_costs:
            return plan.find_cost(plan.best[0])
        return plan.find_device_hours(plan.best[0]) if self.has_one_kind else None

    def list_rivals(self, plan: Plan) -> list[Plan]:
        """All of the same model, itself included."""
        return [each for each in self.plans if each.job.name == plan.job.name]

    def is_fastest(self, plan: Plan) -> bool:
        return plan is self.list_rivals(plan)[0]

    def is_cheapest(self, plan: Plan) -> bool:
        expenses = [self.find_expense(each) for each in self.list_rivals(plan)]
        known = [each for each in expenses if each is not None]
        return len(known) == len(expenses) and self.find_expense(plan) == min(known)

    def find_dominating(self, plan: Plan) -> Plan | None:
        """One that is as fast and as cheap, and better in one of both; the fastest of them."""
        own = self.find_expense(plan)
        for other in self.list_rivals(plan):
            expense = self.find_expense(other)
            if other is plan or own is None or expense is None:
                continue
            times = [each.find_time_s(each.best[0]) for each in (other, plan)]
            if times[0] <= times[1] and expense <= own and (times[0], expense) != (times[1], own):
                return other
        return None

    def to_dict(self) -> dict[str, Any]:
        return {
            "plans": [self._describe(plan) for plan in self.plans],
            "refusals": list(self.refusals),
        }

    def _describe(self, plan: Plan) -> dict[str, Any]:
        dominating = self.find_dominating(plan)
        return {
            "model": plan.job.name,
            "hardware": describe_hardware(plan),
            "tokens": plan.train_tokens,
            "tried": plan.tried,
            "fitting": plan.fitting,
            "best": plan.describe(plan.best[0]),
            "is_fastest": self.is_fastest(plan),
            "is_cheapest": self.is_cheapest(plan),
            "dominated_by": describe_hardware(dominating) if dominating else None,
        }

    def __str__(self) -> str:
        lines = []
        for plan in self.plans:
            best = plan.best[0]
            cost = plan.find_cost(best)
            price = "" if cost is None else f", cost {cost:,.0f}"
            lines.append(
                f"{plan.job.name} on {describe_hardware(plan)}: {best.tokens_per_s:,.0f} tokens/s, "
                f"{format_days(plan.find_time_s(best))} days{price}: {describe_choice(best.job)}"
            )
        return "\n".join([*lines, *(f"left out: {refusal}" for refusal in self.refusals)])


def describe_hardware(plan: Plan) -> str:
    return f"{plan.job.ranks}x{plan.machine.name}"


def plan_one(
    job: TrainingJob,
    hardware: str | None = None,
    *,
    price: Price = None,
    stack: str | None = None,
    network_gbit: float | None = None,
    **asked: Any,
) -> Plan:
    """`asked` is as for `flopwatch.plan`."""
    hardware = hardware or job.hardware
    if hardware is None:
        raise UsageError("a plan is for some hardware; give it, as in 64xA100-80GB")
    (found,) = find_all_hardware([hardware], price, stack, network_gbit)
    return _plan_on(job, found, price, **asked)


def _plan_on(
    job: TrainingJob,
    hardware: PlannedHardware,
    price: Price,
    *,
    global_batch_tokens: float,
    train_tokens: float | None,
    tokens_per_parameter: float,
    shown: int,
) -> Plan:
    placed = hardware.place(job)
    return make_plan(
        placed,
        hardware.machine,
        hardware.stack,
        global_batch_tokens=global_batch_tokens,
        train_tokens=count_train_tokens(
            placed, global_batch_tokens, train_tokens, tokens_per_parameter
        ),
        price=find_price(price, hardware.machine),
        shown=shown,
    )


def plan_several(
    jobs: Sequence[TrainingJob],
    hardware: Sequence[str],
    *,
    price: Price = None,
    stack: str | None = None,
    network_gbit: float | None = None,
    **asked: Any,
) -> PlanComparison:
    """Every job on all hardware. Refused where there is no plan at all."""
    machines = find_all_hardware(hardware, price, stack, network_gbit)
    found, refusals = try_all(
        jobs, machines, lambda job, machine: _plan_on(job, machine, price, shown=1, **asked)
    )
    plans = [
        plan
        for of_job in found
        for plan in sorted(of_job, key=lambda plan: plan.find_time_s(plan.best[0]))
    ]
    return PlanComparison(plans=tuple(plans), refusals=tuple(refusals))
