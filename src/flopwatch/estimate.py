"""How long a run will take, told before it starts.

A group is sampled until its variants are known well enough, and no longer than its budget; but an
interval needs a number of rounds, however long they are. How long a round takes is not known before
it is measured. It is taken to be that of the FLOPs which the suite declares, at the rate of a plain
product on this machine: few things compute faster, and what also moves memory, or has no good
kernel here, is slower. Where no FLOPs are declared, budgets are all there is to go by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flopwatch.plan import Group, count_cases, format_duration, longest_s, shortest_s
from flopwatch.report.units import format_rate, plural
from flopwatch.settings import Settings

FALLBACK = "float32"
"""Its rate is taken for a dtype that has none of its own: for int8, say."""
WARMUP_ROUNDS = 4
"""Of slow calls: the fewest that can be found steady."""
OTHER_RUNS = 4
"""Of every variant, besides those of the rounds: the check, its reference, and two for memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    cases: int
    groups: int
    shortest_s: float
    longest_s: float
    rates: Mapping[str, float]
    """FLOP/s by dtype that it counts with; empty where no FLOPs are declared."""

    def __str__(self) -> str:
        rates = ", ".join(f"{d} {format_rate(rate, 'FLOP/s')}" for d, rate in self.rates.items())
        basis = (
            f"counting FLOPs at the rate of a plain product here, {rates}"
            if rates
            else "longer where a few rounds do"
        )
        shortest, longest = format_duration(self.shortest_s), format_duration(self.longest_s)
        time = f"between {shortest} (if all are steady) and {longest} (if all spend their budget)"
        if shortest == longest:
            time = f"about {shortest}"
        return (
            f"{plural(self.cases, 'case')} in {plural(self.groups, 'group')}, {time}, {basis}; "
            "and the time to build, check and study them"
        )


def estimate_run(
    groups: Sequence[Group],
    settings: Settings,
    rates: Mapping[str, float],
    budget_s: float | None = None,
) -> Estimate:
    """Of groups with these settings, at these rates (FLOP/s by dtype); `budget_s` is the run's."""
    shortest = longest = 0.0
    for group in groups:
        run_s = sum(estimate_run_s(group.flops.get(v, {}), rates) for v in group.variants)
        # Where somebody has set the budget, warm-up ends with half of it.
        rounds = WARMUP_ROUNDS + settings.min_rounds if settings.min_rounds else 2
        rounds_s = rounds * run_s
        others_s = OTHER_RUNS * run_s
        shortest += max(shortest_s([group]), rounds_s) + others_s
        longest += max(longest_s([group], settings), rounds_s) + others_s
    longest = longest if budget_s is None else min(longest, budget_s)
    return Estimate(
        cases=count_cases(groups),
        groups=len(groups),
        shortest_s=min(shortest, longest),
        longest_s=longest,
        rates=rates,
    )


def estimate_run_s(flops: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """Of one run of all phases; 0 where nothing is known.

    >>> estimate_run_s({"float32": 6e9, "int8": 4e9}, {"float32": 1e9, "bfloat16": 5e8})
    10.0
    """
    if FALLBACK not in rates:
        return 0.0
    return sum(count / rates.get(dtype, rates[FALLBACK]) for dtype, count in flops.items())


def list_dtypes(groups: Sequence[Group]) -> list[str]:
    """The dtypes whose rates an estimate needs; none where no FLOPs are declared."""
    counted = {dtype for group in groups for by in group.flops.values() for dtype in by}
    floats = {dtype for dtype in counted if dtype.startswith(("float", "bfloat"))}
    return [FALLBACK, *sorted(floats - {FALLBACK})] if counted else []
