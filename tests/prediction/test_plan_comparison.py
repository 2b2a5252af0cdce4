"""Plans of several models and kinds of hardware, and numbers of devices for a deadline."""

from __future__ import annotations

from functools import cache

import pytest

import flopwatch
from flopwatch.errors import UsageError
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.plots.plan_plot import (
    Point,
    list_front,
    make_comparison_plots,
    make_deadline_plots,
)
from flopwatch.prediction.hardware import find_machine
from flopwatch.prediction.plan_comparison import PlanComparison
from flopwatch.prediction.plan_deadline import Deadline, Deadlines
from flopwatch.prediction.plan_hardware import find_price

PRICES = {"h100": 2.0, "a100": 0.5, "b200": 4.0}
KINDS = ["8xH100-SXM", "16xA100-80GB", "8xB200", "8xA100-40GB"]


@cache
def comparison() -> PlanComparison:
    return flopwatch.compare_plans(
        ["1b", "3b"], [*KINDS, "8xT4"], global_batch_tokens=2**19, train_tokens=1e11, price=PRICES
    )


def test_the_fastest_the_cheapest_and_the_dominated_are_those_of_all_pairs() -> None:
    for plan in comparison().plans:
        rivals = comparison().list_rivals(plan)
        assert len(rivals) == 4
        sizes = {
            id(each): (each.find_time_s(each.best[0]), each.find_cost(each.best[0]) or 0.0)
            for each in rivals
        }
        time_s, cost = sizes[id(plan)]
        assert comparison().is_fastest(plan) == (time_s == min(each[0] for each in sizes.values()))
        assert comparison().is_cheapest(plan) == (cost == min(each[1] for each in sizes.values()))
        is_dominated = any(
            other[0] <= time_s and other[1] <= cost and other != (time_s, cost)
            for other in sizes.values()
        )
        assert (comparison().find_dominating(plan) is not None) == is_dominated
    assert [plan.job.name.partition(":")[0] for plan in comparison().plans] == ["1b"] * 4 + [
        "3b"
    ] * 4


def test_each_plan_is_the_one_made_alone_and_refusals_say_why() -> None:
    plan = comparison().plans[0]
    alone = flopwatch.plan("1b", f"8x{plan.machine.name}", global_batch_tokens=2**19)
    assert plan.best[0].tokens_per_s == alone.best[0].tokens_per_s
    assert any("T4 has no known peak in bfloat16" in each for each in comparison().refusals)
    with pytest.raises(UsageError, match="T4 has no known peak"):
        flopwatch.compare_plans(["1b"], ["8xT4", "16xT4"])


def test_without_prices_only_the_same_device_is_compared_by_its_hours() -> None:
    one = flopwatch.compare_plans(["1b"], ["8xH100-SXM", "16xH100-SXM"])
    assert [one.find_expense(plan) for plan in one.plans] == [
        plan.find_device_hours(plan.best[0]) for plan in one.plans
    ]
    two = flopwatch.compare_plans(["1b"], ["8xH100-SXM", "8xB200"])
    assert [two.find_expense(plan) for plan in two.plans] == [None, None]
    assert not any(map(two.is_cheapest, two.plans))


def test_a_price_is_that_of_the_nearest_name() -> None:
    machine = find_machine("H100-SXM")[1]
    assert find_price({"h100": 2, "h100-sxm": 3}, machine) == 3
    assert find_price({"a100": 2}, machine) is None
    assert find_price(2.5, machine) == 2.5
    for price, complaint in (
        ({"foo": 2.0}, "no device is called 'foo'"),
        ({"mi300x": 2.0}, "the price of mi300x is that of no device"),
        (2.0, "one price for 2 kinds of devices; write b200=2.5,h100-sxm=2.5"),
    ):
        with pytest.raises(UsageError, match=complaint):
            flopwatch.compare_plans(["1b"], ["8xH100-SXM", "8xB200"], price=price)


@cache
def meet(days: float, *hardware: str) -> Deadlines:
    prices = {name: price for name, price in PRICES.items() if name in str(hardware).lower()}
    return flopwatch.plan_deadlines(
        ["1b"], list(hardware), days=days, global_batch_tokens=2**19, train_tokens=1e11,
        price=prices,
    )  # fmt: skip


def only(found: Deadlines) -> Deadline:
    (deadline,) = found.found
    return deadline


@pytest.mark.parametrize("days", [40, 4, 0.5])
def test_the_fewest_devices_that_are_in_time_are_found(days: float) -> None:
    found = only(meet(days, "A100-80GB"))
    assert found.enough is not None
    assert found.is_met
    assert found.enough.find_time_s(found.enough.best[0]) <= days * 86400
    if found.smaller is None:
        assert found.enough.job.ranks == 1
    else:
        assert found.smaller.find_time_s(found.smaller.best[0]) > days * 86400
        assert found.smaller.job.ranks < found.enough.job.ranks
    ranks = found.enough.job.ranks
    alone = flopwatch.plan("1b", f"{ranks}xA100-80GB", global_batch_tokens=2**19)
    assert alone.best[0].tokens_per_s == found.enough.best[0].tokens_per_s


def test_too_few_devices_say_how_many_are_enough() -> None:
    found = only(meet(4, "8xA100-80GB"))
    assert not found.is_met
    assert found.closest.job.ranks == 8
    enough = only(meet(4, "A100-80GB")).enough
    assert enough is not None
    assert found.reason is not None
    assert f"{enough.job.ranks}xA100-SXM-80GB take" in found.reason
    assert "8 are too few for 4 days" in found.reason


def test_what_no_number_of_devices_can_do_says_the_fastest() -> None:
    found = only(meet(0.01, "A100-80GB"))
    assert found.enough is None
    assert found.reason is not None
    assert "no number of A100-SXM-80GB trains 1b" in found.reason
    assert "a global batch of more than 524,288 tokens lets more" in found.reason
    fastest = found.tried[found.closest.job.ranks]
    assert fastest == max(found.tried.values())


def test_the_cheapest_in_time_comes_first() -> None:
    found = meet(4, "8xA100-80GB", "H100-SXM", "B200").found
    assert [each.is_met for each in found] == [True, True, False]
    costs = [each.closest.find_cost(each.closest.best[0]) or 0.0 for each in found[:2]]
    assert costs == sorted(costs)


def test_tokens_can_be_counted_for_each_parameter() -> None:
    job = TrainingJob("1b", 2048)
    plan = flopwatch.plan(job, "8xA100-80GB", global_batch_tokens=2**19, tokens_per_parameter=100)
    assert plan.train_tokens == 100 * plan.job.parameters


def test_the_front_is_what_nothing_is_both_faster_and_cheaper_than() -> None:
    def place(days: float, expense: float) -> Point:
        return Point(device="x", devices=1, days=days, low=days, high=days, expense=expense)

    points = [place(*each) for each in ((3, 1), (1, 3), (2, 2), (2, 4), (3, 2), (1, 4))]
    assert list_front(points) == [place(1, 3), place(2, 2), place(3, 1)]


def test_plots_have_a_mark_for_each_number_of_devices() -> None:
    first, second = make_comparison_plots(comparison())
    assert [len(plot.data["points"]) for plot in (first, second)] == [4, 4]
    assert {point["series"] for point in first.data["points"]} == {
        "H100-SXM", "A100-SXM-80GB", "A100-SXM-40GB", "B200",
    }  # fmt: skip
    found = meet(4, "8xA100-80GB", "H100-SXM", "B200")
    (plot,) = make_deadline_plots(found)
    assert len(plot.data["points"]) == sum(len(each.tried) for each in found.found)
    assert plot.data["deadline"][0]["text"] == "4 days"
    front = {(point["x"], point["y"]) for point in plot.data["front"]}
    assert {(p["x"], p["y"]) for p in plot.data["points"] if p["front"]} == front
