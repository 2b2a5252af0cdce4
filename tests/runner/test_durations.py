"""How long a run will take, before it and while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.devices import matmul_rates
from flopwatch.devices.cpu import CpuClock
from flopwatch.devices.matmul_rates import measure_rate
from flopwatch.records.record import encode
from flopwatch.runner.durations import (
    CASE_S,
    COMPILE_S,
    EFFICIENCY,
    OTHER_RUNS,
    RANKS_S,
    SAMPLING_S,
    SPREAD,
    START_S,
    Estimate,
    Observation,
    estimate_group_s,
    estimate_run,
    find_correction,
    list_dtypes,
    read_history,
    update,
)
from flopwatch.runner.schedule import Group, fit_budget
from flopwatch.settings import Settings
from tests.conftest import make_record

SETTINGS = Settings(budget_s=10.0, min_rounds=8)
RATES = {"float32": 1e9}


def make_group(size: int = 0, ranks: int | None = None, **flops: float) -> Group:
    """Variants with that many FLOPs in float32."""
    return Group(
        suite="demo",
        baseline="a",
        params={"size": size, **({} if ranks is None else {"ranks": ranks})},
        variants=tuple(flops),
        flops={variant: {"float32": count} for variant, count in flops.items()},
    )


def expect_s(group: Group, slowdown: float = 1.0, settings: Settings = SETTINGS) -> float:
    return estimate_group_s(group, settings, RATES, slowdown)


def follow(
    groups: Sequence[Group], taken_s: Sequence[float], budget_s: float | None = None
) -> list[float]:
    """What the whole is expected to take, after 0, 1, ... groups, over what it really takes."""
    estimate = estimate_run(groups, SETTINGS, RATES, budget_s=budget_s)
    ratios = [estimate.expected_s / sum(taken_s)]
    for done, group in enumerate(groups, 1):
        estimate = update(estimate, group, taken_s[done - 1], was_measured=True)
        ratios.append((sum(taken_s[:done]) + estimate.expected_s) / sum(taken_s))
    return ratios


def test_small_cases_take_their_overhead_and_the_usual_sampling() -> None:
    fixed_s = START_S + 2 * CASE_S
    assert expect_s(make_group(a=0.0, b=0.0)) == pytest.approx(fixed_s + 2 * SAMPLING_S)
    # On a busy machine samples vary, up to the budget.
    busy_s = expect_s(make_group(a=0.0, b=0.0), slowdown=2.0)
    assert busy_s == pytest.approx(2 * fixed_s + 4 * 2 * SAMPLING_S)
    busy_s = expect_s(make_group(a=0.0, b=0.0), slowdown=8.0)
    assert busy_s == pytest.approx(8 * fixed_s + 2 * 10.0)


def test_large_cases_take_as_long_as_their_rounds() -> None:
    run_s = 5e9 / RATES["float32"] / EFFICIENCY
    overhead_s = START_S + 2 * CASE_S + OTHER_RUNS * run_s
    # 7 rounds of warm-up and 8 measured, which even a slow case gets.
    assert expect_s(make_group(a=2e9, b=3e9)) == pytest.approx(overhead_s + 15 * run_s)
    # Where the user has set the budget, the rounds must do with it.
    given = replace(SETTINGS, min_rounds=0)
    found_s = expect_s(make_group(a=2e9, b=3e9), settings=given)
    assert found_s == pytest.approx(overhead_s + 20.0)


def test_what_has_costs_of_its_own_takes_longer() -> None:
    plain_s = expect_s(make_group(a=0.0, b=0.0))
    assert expect_s(make_group(a=0.0, compiled=0.0)) == pytest.approx(plain_s + COMPILE_S)
    assert expect_s(make_group(a=0.0, b=0.0, ranks=4)) == pytest.approx(plain_s + 4 * RANKS_S)
    model = replace(make_group(a=1e9, b=1e9), jobs=dict.fromkeys("ab", {"model": "small"}))
    run_s = 2e9 / RATES["float32"] / EFFICIENCY
    extra_s = expect_s(model) - expect_s(make_group(a=1e9, b=1e9))
    assert extra_s == pytest.approx(8 * run_s)  # each measured sample twice, with instruments


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_a_constant_load_is_known_after_two_groups(factor: float) -> None:
    groups = [make_group(size=size, a=1e8, b=1e8) for size in range(12)]
    taken_s = [factor * expect_s(group) for group in groups]
    for ratio in follow(groups, taken_s)[2:]:
        assert 1 / 1.5 < ratio < 1.5


@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_a_constant_load_is_known_where_groups_grow(factor: float) -> None:
    groups = [make_group(size=size, a=2.0**size * 1e8) for size in range(9)]
    taken_s = [factor * expect_s(group) for group in groups]
    for ratio in follow(groups, taken_s)[5:]:  # when most of the time is still to come
        assert 1 / 1.5 < ratio < 1.5


def test_one_odd_group_does_not_decide() -> None:
    groups = [make_group(size=size, a=1e8) for size in range(12)]
    taken_s = [2 * expect_s(group) for group in groups]
    taken_s[3] *= 20
    known_s = sum(taken_s)
    estimate = estimate_run(groups, SETTINGS, RATES)
    for group, each_s in zip(groups[:5], taken_s[:5], strict=True):
        estimate = update(estimate, group, each_s, was_measured=True)
    assert 1 / 1.2 < (sum(taken_s[:5]) + estimate.expected_s) / known_s < 1.2


def test_a_load_that_begins_during_a_run_is_followed() -> None:
    groups = [make_group(size=size, a=1e8) for size in range(20)]
    taken_s = [(1 if size < 8 else 4) * expect_s(group) for size, group in enumerate(groups)]
    for ratio in follow(groups, taken_s)[13:]:
        assert 1 / 1.5 < ratio < 1.5


def test_what_was_not_measured_teaches_nothing() -> None:
    groups = [make_group(size=size, a=1e8) for size in range(3)]
    estimate = estimate_run(groups, SETTINGS, RATES, budget_s=100.0)
    after = update(estimate, groups[0], 0.1, was_measured=False)
    assert after.expected_s == pytest.approx(estimate.expected_s * 2 / 3)
    assert (after.cases, after.budget_s) == (2, pytest.approx(99.9))


def test_groups_of_its_own_size_count_most() -> None:
    short, long = (Observation(expected_s=s, taken_s=f * s) for s, f in ((1.0, 1.0), (64.0, 4.0)))
    assert find_correction(64.0, [short, long, short]) > 2
    assert find_correction(1.0, [short, long, short]) == 1.0


def test_the_runs_own_budget_ends_it_after_what_was_begun() -> None:
    """Sampling keeps to it. Building and checking what was begun are not cut short."""

    def estimate_within(budget_s: float, groups: Sequence[Group]) -> Estimate:
        fitted = fit_budget(budget_s, groups, SETTINGS)
        return estimate_run(groups, fitted, RATES, budget_s=budget_s)

    small = [make_group(size=size, a=1e6, b=1e6) for size in range(40)]
    assert estimate_within(30.0, small).range_s[1] <= 33.0
    large = [make_group(size=size, a=2e9, b=3e9) for size in range(4)]
    estimate = estimate_within(30.0, large)
    first_s = estimate.expect_group_s(large[0].id)
    assert first_s > 30.0
    assert estimate.expected_s == estimate.range_s[1] == first_s
    assert update(estimate, large[0], 40.0, was_measured=True).expected_s == 0.0


def test_earlier_records_say_how_long_sampling_takes() -> None:
    samples = {"samples_ns": {"call": [0.5e9] * 101}, "rounds": list(range(101))}
    record = replace(
        make_record(), **samples, calls_per_sample=[1] * 101, warmup_samples=5, settings=SETTINGS
    )
    group = make_group(a=0.0)
    plain, known = (
        estimate_run([group], SETTINGS, {}, history=history) for history in ([], [record])
    )
    # 50 s of samples: far longer than is usual.
    assert len(known.observations) == 1
    assert known.observations[0].taken_s == pytest.approx(50.0, abs=1.0)
    assert known.expected_s > 10 * plain.expected_s
    # Under another load, or with other settings, it says nothing.
    assert not estimate_run(
        [group], SETTINGS, {}, background_share=0.6, history=[record]
    ).observations
    for changed in (replace(SETTINGS, threads=8), replace(SETTINGS, target_interval=0.001)):
        others = replace(record, settings=changed)
        assert not estimate_run([group], SETTINGS, {}, history=[others]).observations
    failed = replace(record, status="oom")
    assert not estimate_run([group], SETTINGS, {}, history=[failed]).observations


def test_history_is_that_of_this_machine_and_never_stops_a_run(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    assert read_history(path, {}) == []
    here, there = ({"machine": {"machine_id": name}} for name in ("here", "there"))
    lines = [encode(replace(make_record(), environment=where)) for where in (here, there)]
    path.write_bytes(b"\n".join([*lines, b"broken", b""]))
    assert [r.environment for r in read_history(path, here)] == [here]
    path.write_bytes(b"\x00" * 100)
    assert read_history(path, here) == []


def test_each_dtype_counts_at_its_own_rate_and_others_at_float32s() -> None:
    group = replace(make_group(a=0.0), flops={"a": {"bfloat16": 1e9, "int8": 3e9}})
    assert list_dtypes([group]) == ["float32", "bfloat16"]
    rates = {"float32": 1e9, "bfloat16": 5e8}
    found_s = estimate_group_s(group, SETTINGS, rates, 1.0)
    assert found_s == pytest.approx(expect_s(make_group(a=5e9)))
    assert list_dtypes([Group(suite="demo", baseline="a", params={}, variants=("a",))]) == []


def test_it_says_what_it_assumes() -> None:
    estimate = Estimate(
        cases=36,
        prior_s={"g": 4500.0, "h": 2700.0},
        rates={"float32": 85.2e9},
    )
    assert estimate.range_s == pytest.approx((7200 / SPREAD, 7200 * SPREAD))
    assert str(estimate) == (
        "36 cases in 2 groups, about 1h20m to 3h (a plain matmul here: float32 85.2 GFLOP/s)"
    )
    bare = Estimate(cases=1, prior_s={"g": 6.0}, rates={})
    assert str(bare) == "1 case in 1 group, about 4 to 9 s"
    seen = [Observation(expected_s=6.0, taken_s=6.0)] * 3
    assert replace(bare, observations=seen).describe() == "about 6 s"
    assert replace(bare, observations=seen).describe(2.0) == "about 4 s"


def test_a_rate_is_that_of_a_product() -> None:
    rate = measure_rate("float32", "cpu", CpuClock())
    assert rate is not None
    assert 1e7 < rate < 1e16
    assert measure_rate("float12", "cpu", CpuClock()) is None


def test_a_probe_of_an_accelerator_grows_until_the_device_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow one is not kept for seconds, and a fast one not asked for less than it can."""
    for flops_per_s, largest in ((1e12, 1024), (1e15, 4096)):
        sizes: list[int] = []

        def time_one(
            dtype: str, device: str, clock: object, size: int = 512, speed: float = flops_per_s
        ) -> list[float]:
            sizes.append(size)  # noqa: B023  used at once
            return [2 * size**3 / speed * 1e9]

        monkeypatch.setattr(matmul_rates, "time_matmuls", time_one)
        assert measure_rate("bfloat16", "cuda", CpuClock()) == pytest.approx(flops_per_s)
        assert sizes[-1] == largest
        sizes.clear()
        assert measure_rate("float32", "cpu", CpuClock()) == pytest.approx(flops_per_s)
        assert sizes == [512]
