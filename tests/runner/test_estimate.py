"""How long a run will take, from FLOPs and budgets."""

from __future__ import annotations

import pytest

from flopwatch.devices.cpu import CpuClock
from flopwatch.devices.matmul_rates import measure_rate
from flopwatch.runner.schedule import Estimate, Group, estimate_run, list_dtypes
from flopwatch.settings import Settings

SETTINGS = Settings(budget_s=10.0, min_rounds=8)


def make_group(**flops: float) -> Group:
    """Variants with that many FLOPs in float32."""
    return Group(
        suite="demo",
        baseline="a",
        params={},
        variants=tuple(flops),
        flops={variant: {"float32": count} for variant, count in flops.items()},
    )


def estimate(*groups: Group, budget_s: float | None = None, **changes: float) -> tuple[float, ...]:
    settings = Settings(**{"budget_s": 10.0, "min_rounds": 8, **changes})  # type: ignore[arg-type]
    found = estimate_run(groups, settings, {"float32": 1e9}, budget_s)
    return found.shortest_s, found.longest_s


def test_short_cases_take_between_their_least_time_and_their_budget() -> None:
    assert estimate(make_group(a=0.0, b=0.0)) == pytest.approx((2 * 0.5 + 0.2, 2 * 10 + 0.2))


def test_long_cases_take_as_long_as_their_rounds() -> None:
    # 2 + 3 s a round; 4 of warm-up, 8 measured, and 4 runs for checks and memory: 16.
    assert estimate(make_group(a=2e9, b=3e9)) == pytest.approx((80.0, 80.0))
    assert estimate(make_group(a=1e9), make_group(a=2e9)) == pytest.approx((48.0, 16.0 + 32.0))
    # Who sets a budget gets one measured round at the least.
    assert estimate(make_group(a=9e9), min_rounds=0) == pytest.approx((54.0, 54.0))


def test_the_runs_own_budget_is_the_most() -> None:
    assert estimate(make_group(a=2e9, b=3e9), budget_s=30.0) == (30.0, 30.0)
    assert estimate(make_group(a=0.0), budget_s=30.0) == pytest.approx((0.7, 10.2))
    # A budget below what a case usually takes at the least is still the most.
    assert estimate(make_group(a=0.0), budget_s=0.5) == (0.5, 0.5)


def test_without_flops_or_a_rate_budgets_decide() -> None:
    bare = Group(suite="demo", baseline="a", params={}, variants=("a", "b"))
    for groups, rates in (([bare], {"float32": 1e9}), ([make_group(a=9e9, b=9e9)], {})):
        found = estimate_run(groups, SETTINGS, rates)
        assert (found.shortest_s, found.longest_s) == pytest.approx((1.2, 20.2))


def test_each_dtype_counts_at_its_own_rate_and_others_at_float32s() -> None:
    group = Group(
        suite="demo",
        baseline="a",
        params={},
        variants=("a",),
        flops={"a": {"bfloat16": 1e9, "int8": 3e9}},
    )
    assert list_dtypes([group]) == ["float32", "bfloat16"]
    found = estimate_run([group], SETTINGS, {"float32": 1e9, "bfloat16": 5e8})
    assert found.longest_s == pytest.approx(16 * 5.0)
    assert list_dtypes([Group(suite="demo", baseline="a", params={}, variants=("a",))]) == []


def test_it_says_what_it_assumes() -> None:
    told = Estimate(cases=36, groups=4, shortest_s=4800, longest_s=10800, rates={"float32": 85.2e9})
    assert str(told) == (
        "36 cases in 4 groups, about 1h20m to 3h (a plain matmul here: float32 85.2 GFLOP/s), plus "
        "building and checking"
    )
    bare = Estimate(cases=1, groups=1, shortest_s=0.7, longest_s=10.2, rates={})
    assert str(bare) == "1 case in 1 group, about 1 to 10 s, plus building and checking"


def test_a_rate_is_that_of_a_product() -> None:
    rate = measure_rate("float32", "cpu", CpuClock())
    assert rate is not None
    assert 1e7 < rate < 1e16
    assert measure_rate("float12", "cpu", CpuClock()) is None
