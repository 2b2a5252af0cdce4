"""How many devices a model needs to be trained within a number of days: the fewest of sensible
numbers of devices whose best configuration is fast enough."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.training_job import Printed, TrainingJob
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.plan_comparison import describe_hardware
from flopwatch.prediction.plan_hardware import (
    PlannedHardware,
    Price,
    count_train_tokens,
    find_all_hardware,
    find_price,
    try_all,
)
from flopwatch.prediction.plan_limits import find_first, list_device_counts, spread
from flopwatch.prediction.plan_search import search
from flopwatch.prediction.plans import (
    DAY_S,
    Plan,
    describe_choice,
    format_days,
    make_plan,
    require_plannable,
)
from flopwatch.prediction.software_stacks import Stack

USUAL_MFU = 0.4
"""Where the search for a number of devices begins."""
FLOPS_PER_WEIGHT = 6
"""Of a token: 2 (multiply, add) x 3 (forward, gradients of input and weight)."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Deadline(Printed):
    """One model on one kind of device."""

    job: TrainingJob
    machine: Machine
    days: float
    train_tokens: float
    global_batch_tokens: float
    most: int | None
    """Devices that there are; None: nobody has said how many."""
    enough: Plan | None
    """On the fewest devices that meet the deadline; None: no number of them does."""
    smaller: Plan | None
    """On the next smaller number that it fits on; None: there is none."""
    closest: Plan
    """On as many devices as there are; where no number meets the deadline, on the number that is
    fastest."""
    tried: Mapping[int, float]
    """Tokens/s by the numbers of devices that were searched."""

    @property
    def is_met(self) -> bool:
        return self.enough is not None and self.enough is self.closest

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.job.name,
            "device": self.machine.name,
            "days": self.days,
            "tokens": self.train_tokens,
            "is_met": self.is_met,
            "devices": self.enough.job.ranks if self.enough else None,
            "most_devices": self.most,
            "enough": self.enough and self.enough.describe(self.enough.best[0]),
            "smaller": self.smaller and self.smaller.describe(self.smaller.best[0]),
            "closest": self.closest.describe(self.closest.best[0]),
            "reason": self.reason,
        }

    @property
    def reason(self) -> str | None:
        """Why it is not met, and what would be possible."""
        if self.is_met:
            return None
        own = describe_reach(self.closest)
        within = plural_days(self.days)
        if self.enough is not None:
            return (
                f"{own}, and {describe_reach(self.enough)}: {self.closest.job.ranks:,} are too few "
                f"for {within}; take more devices, or more time"
            )
        is_last = self.closest.job.ranks == max(list_device_counts(self.machine))
        end = "more were not tried" if is_last else "more are not faster"
        return (
            f"no number of {self.machine.name} trains {self.job.name} within {within}: {own}, and "
            f"{end}; a global batch of more than {self.global_batch_tokens:,.0f} tokens lets more "
            "of them work at once"
        )

    def __str__(self) -> str:
        if self.enough is None or not self.is_met:
            return str(self.reason)
        less = f"; {describe_reach(self.smaller)}" if self.smaller else ""
        return f"{describe_reach(self.enough)}: {describe_choice(self.enough.best[0].job)}{less}"


def plural_days(days: float) -> str:
    return "1 day" if days == 1 else f"{days:g} days"


def describe_reach(plan: Plan) -> str:
    days = format_days(plan.find_time_s(plan.best[0]))
    cost = plan.find_cost(plan.best[0])
    price = "" if cost is None else f" for {cost:,.0f}"
    return f"{describe_hardware(plan)} take {days} days{price}"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Deadlines(Printed):
    """Several models, or several kinds of devices."""

    found: tuple[Deadline, ...]
    """The cheapest of a model that meets the deadline first."""
    refusals: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "deadlines": [each.to_dict() for each in self.found],
            "refusals": list(self.refusals),
        }

    def __str__(self) -> str:
        return "\n".join(
            [*map(str, self.found), *(f"left out: {refusal}" for refusal in self.refusals)]
        )


def plan_deadlines(  # noqa: PLR0913  all but two are given by name
    jobs: Sequence[TrainingJob],
    hardware: Sequence[str],
    *,
    days: float,
    price: Price = None,
    stack: str | None = None,
    network_gbit: float | None = None,
    global_batch_tokens: float,
    train_tokens: float | None = None,
    tokens_per_parameter: float,
) -> Deadlines:
    machines = find_all_hardware(hardware, price, stack, network_gbit)

    def meet(job: TrainingJob, machine: PlannedHardware) -> Deadline:
        padded = machine.pad(job)
        tokens = count_train_tokens(padded, global_batch_tokens, train_tokens, tokens_per_parameter)
        return _meet_deadline(padded, machine, days, tokens, global_batch_tokens, price)

    found, refusals = try_all(jobs, machines, meet)
    met = [each for of_job in found for each in sorted(of_job, key=_rank)]
    return Deadlines(found=tuple(met), refusals=tuple(refusals))


def _rank(deadline: Deadline) -> tuple[bool, float]:
    plan = deadline.closest
    cost = plan.find_cost(plan.best[0])
    return not deadline.is_met, plan.find_time_s(plan.best[0]) if cost is None else cost


def _meet_deadline(
    job: TrainingJob,
    hardware: PlannedHardware,
    days: float,
    train_tokens: float,
    global_batch_tokens: float,
    price: Price,
) -> Deadline:
    machine, most = hardware.machine, hardware.devices
    require_plannable(job, machine)
    reach = Reach(job, machine, hardware.stack, global_batch_tokens)

    def plan_on(devices: int) -> Plan:
        return make_plan(
            reach.place(devices),
            machine,
            hardware.stack,
            global_batch_tokens=global_batch_tokens,
            train_tokens=train_tokens,
            price=find_price(price, machine),
            shown=1,
        )

    number = reach.find_enough(train_tokens / (days * DAY_S))
    enough = smaller = None
    if number is None:
        closest = plan_on(reach.find_fastest())
    else:
        enough = closest = plan_on(reach.counts[number])
        if most is not None and enough.job.ranks > most:
            closest = plan_on(most)
        elif number and reach.find_speed(reach.counts[number - 1]):
            smaller = plan_on(reach.counts[number - 1])
    return Deadline(
        job=job,
        machine=machine,
        days=days,
        train_tokens=train_tokens,
        global_batch_tokens=global_batch_tokens,
        most=most,
        enough=enough,
        smaller=smaller,
        closest=closest,
        tried={count: speed for count, speed in sorted(reach.speeds.items()) if speed},
    )


class Reach:
    """How fast a job can be on so many devices; each number is searched once."""

    def __init__(
        self, job: TrainingJob, machine: Machine, stack: Stack, global_batch_tokens: float
    ) -> None:
        self.job, self.machine, self.stack = job, machine, stack
        self.global_batch_tokens = global_batch_tokens
        split = job.parallelism
        multiple = split.tensor * split.pipeline * split.context
        self.counts = [
            count
            for count in list_device_counts(machine, multiple=multiple)
            if count // multiple * split.context % split.expert == 0
        ]
        self.speeds: dict[int, float] = {}
        """Of those searched."""

    def place(self, devices: int) -> TrainingJob:
        return replace(spread(self.job, devices), hardware=f"{devices}x{self.machine.name}")

    def find_speed(self, devices: int) -> float:
        """Tokens/s of the best configuration; 0 where none fits."""
        if devices not in self.speeds:
            found = search(self.place(devices), self.machine, self.stack, self.global_batch_tokens)
            order = found.sort_fitting()
            self.speeds[devices] = float(found.tokens_per_s[order[0]]) if len(order) else 0.0
        return self.speeds[devices]

    def find_enough(self, tokens_per_s: float) -> int | None:
        """The place among `counts` of the fewest devices that are as fast."""
        active = count_parameters(self.job.shape, active=True)
        rate = USUAL_MFU * self.machine.require_rate(self.job.arithmetic.matmul_dtype)
        start = self._find_place(tokens_per_s * FLOPS_PER_WEIGHT * active / rate)
        speed = self.find_speed(self.counts[start])
        if speed:
            start = self._find_place(self.counts[start] * tokens_per_s / speed)
        return find_first(self.counts, lambda count: self.find_speed(count) >= tokens_per_s, start)

    def _find_place(self, devices: float) -> int:
        return min(bisect_left(self.counts, devices), len(self.counts) - 1)

    def find_fastest(self) -> int:
        """The number from which on more are not faster: beginning with the fastest of those known,
        as far as its neighbours are faster."""
        place = self.counts.index(max(self.speeds, key=self.find_speed))
        while True:
            near = self.counts[max(place - 1, 0) : place + 2]
            best = self.counts.index(max(near, key=self.find_speed))
            if best == place:
                return self.counts[place]
            place = best
