"""Verdicts on variants and on runs: what is said, what is not, and what stands beside it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from flopwatch.analysis.ratio_tests import (
    Paired,
    Separate,
    Sides,
    Take,
    bootstrap_error,
    choose_confidence,
    find_spread,
    student_quantile,
    weigh,
    weigh_visits,
)
from flopwatch.analysis.statistics import estimate_median
from flopwatch.analysis.summary import summarize
from flopwatch.analysis.verdicts import Judgement, compare_runs, compare_variants, excuse
from flopwatch.records.record import Record, Region
from flopwatch.settings import Settings
from flopwatch.suites.case import case_id, group_id
from tests.conftest import make_record

SAMPLES = 40


def sample(
    step_ns: float, variant: str = "dense", seed: int = 0, scatter: float = 0.005, **changes: Any
) -> Record:
    """A case with 40 samples about a time, forward a third of it."""
    noise = random.Random(f"{seed} {variant} {step_ns}")
    totals = [step_ns * noise.lognormvariate(0, scatter) for _ in range(SAMPLES)]
    params = changes.pop("params", {"size": 4})
    content: dict[str, Any] = {
        "suite": "demo",
        "variant": variant,
        "baseline": "dense",
        "params": params,
        "case_id": case_id("demo", variant, params),
        "group_id": group_id("demo", params),
        "run_id": f"run {seed}",
        "samples_ns": {"forward": [t / 3 for t in totals], "backward": [2 * t / 3 for t in totals]},
        "rounds": list(range(SAMPLES)),
        "calls_per_sample": [1] * SAMPLES,
        "warmup_samples": 0,
        "measured_at": f"2026-01-01T00:00:{seed:02}Z",
    }
    return make_record(**{**content, **changes})


def test_half_of_the_cases_may_be_slower_and_all_are_found() -> None:
    """Two tight groups are no scatter."""
    for slowed in (5, 6, 7):
        judged = compare_runs(many(seed=1), many(1.3, seed=2, slowed=slowed))
        verdicts = [one.verdict for one in judged.comparisons]
        assert verdicts == ["slower"] * slowed + ["same"] * (12 - slowed)


def test_repeated_runs_do_not_count_the_scatter_inside_them_twice() -> None:
    noise = random.Random(0)
    inside = 0.01
    sides = [
        Sides(
            old=[Take(log_time=noise.gauss(0, inside), error=inside, samples=40) for _ in range(4)],
            new=[Take(log_time=noise.gauss(0, inside), error=inside, samples=40) for _ in range(4)],
        )
        for _ in range(200)
    ]
    spread = find_spread(sides)
    assert spread is not None
    assert spread.deviation < 0.3 * inside


def many(factor: float = 1.0, seed: int = 0, cases: int = 12, slowed: int = 12) -> list[Record]:
    """A run of so many cases, the first ones slower by a factor."""
    return [
        sample(1e6 * (case + 1) * (factor if case < slowed else 1.0), seed=seed,
               params={"size": case})
        for case in range(cases)
    ]  # fmt: skip


def test_variants_are_paired_by_round_with_their_baseline() -> None:
    judged = compare_variants(
        summarize([sample(2e6), sample(1e6, "fast"), sample(2e6, "as good"), sample(3e6, "slow")])
    )
    verdicts = {one.new.variant: one.verdict for one in judged.comparisons}
    assert verdicts == {"fast": "faster", "as good": "same", "slow": "slower"}
    fast = judged.comparisons[0]
    assert fast.old.variant == "dense"
    assert fast.speedup.value == pytest.approx(2, rel=0.01)
    assert fast.middles == pytest.approx((2e6, 1e6), rel=0.01)
    # All three were decided, two of them as different: as in the tables, 1 % of those may be wrong.
    assert judged.confidence == pytest.approx(1 - 0.01 * 2 / 3)


def test_a_slowdown_between_runs_is_found_and_its_parts_are_in_order() -> None:
    judged = compare_runs(many(seed=1), many(1.2, seed=2, slowed=3))
    assert [one.verdict for one in judged.comparisons[:3]] == ["slower"] * 3
    assert {one.verdict for one in judged.comparisons[3:]} == {"same"}
    first = judged.comparisons[0]
    assert [part.name for part in first.parts] == ["backward", "forward"]
    assert [part.share for part in first.parts] == pytest.approx([2 / 3, 1 / 3], abs=0.01)
    assert first.parts[0].change_ns == pytest.approx(0.2e6 * 2 / 3, rel=0.1)


def test_a_region_that_moved_is_named() -> None:
    def instrumented(record: Record, attention_ns: float) -> Record:
        totals = [sum(pair) for pair in zip(*record.samples_ns.values(), strict=True)]
        region = Region(calls=2, samples_ns=[attention_ns] * SAMPLES)
        return replace(record, instrumented_ns=totals, regions={"forward/attention": region})

    old = [instrumented(sample(3e6, seed=1, scatter=0.001), 0.2e6)]
    new = [instrumented(sample(3.9e6, seed=2, scatter=0.001), 1.1e6)]
    (only,) = compare_runs(old, new).comparisons
    assert only.verdict == "slower"
    assert [part.name for part in only.parts][:2] == ["forward/attention", "backward"]


def test_what_nobody_changed_is_not_called_so() -> None:
    judged = [compare_runs(many(seed=2 * n), many(seed=2 * n + 1)) for n in range(10)]
    assert {one.verdict for found in judged for one in found.comparisons} == {"same"}


def test_run_to_run_differences_widen_the_intervals() -> None:
    """Cases that scatter by 10 % from run to run, and by 0.5 % inside a run."""
    shifts = random.Random(0)
    old, new = (
        [
            sample(1e6 * shifts.lognormvariate(0, 0.1), seed=seed, params={"size": case})
            for case in range(20)
        ]
        for seed in (1, 2)
    )
    judged = compare_runs(old, new)
    assert judged.spread is not None
    assert judged.spread.source == "cases"
    assert judged.spread.deviation == pytest.approx(0.1, rel=0.5)
    assert {one.verdict for one in judged.comparisons} == {"unclear"}
    assert {one.missing.unit for one in judged.comparisons if one.missing} == {"run"}


def test_repeated_runs_tell_how_much_they_differ() -> None:
    old = [record for seed in (1, 2, 3) for record in many(seed=seed, cases=3)]
    new = [record for seed in (4, 5, 6) for record in many(1.05, seed=seed, cases=3)]
    judged = compare_runs(old, new)
    assert judged.spread is not None
    assert judged.spread.source == "repeats"
    assert [one.verdict for one in judged.comparisons] == ["slower"] * 3
    assert {(one.old_runs, one.new_runs) for one in judged.comparisons} == {(3, 3)}
    # With one run and few cases, nobody knows.
    assert compare_runs(many(seed=1, cases=3), many(seed=2, cases=3)).spread is None


def test_relative_verdicts_do_not_see_the_speed_of_the_machine() -> None:
    def take(seed: int, machine: float, own: float) -> list[Record]:
        return [
            record
            for case in range(10)
            for record in (
                sample(1e6 * machine, seed=seed, params={"size": case}),
                sample(5e5 * machine * own, "fast", seed=seed, params={"size": case}),
            )
        ]

    old = take(1, 1.0, 1.0)
    by_time = compare_runs(old, take(2, 1.3, 1.0), basis="absolute")
    assert {(one.verdict, one.is_shifted) for one in by_time.comparisons} == {("unclear", True)}
    assert by_time.shifts.machine == pytest.approx(1.3, rel=0.01)
    assert by_time.common == pytest.approx(1 / 1.3, rel=0.01)
    relative = compare_runs(old, take(2, 1.3, 1.0))
    assert relative.basis == "relative"
    assert len(relative.shifts.baselines) == 10
    assert relative.shifts.baselines[0].ratio == pytest.approx(1.3, rel=0.02)
    assert [(one.new.variant, one.verdict) for one in relative.comparisons] == [
        ("fast", "same")
    ] * 10
    assert relative.comparisons[0].middles == pytest.approx((0.5, 0.5), rel=0.01)
    slower = compare_runs(old, take(2, 1.3, 1.1))
    assert {one.verdict for one in slower.comparisons} == {"slower"}


def test_a_baseline_that_moves_alone_is_no_shift_of_the_machine() -> None:
    """Its tensors lie elsewhere: times of the others still count, where times are asked for."""
    others = {"fast": 5e5, "slow": 2e6, "other": 1e6}

    def take(seed: int, baseline: float, own: float) -> list[Record]:
        return [
            sample(1e6 * baseline, seed=seed),
            *(sample(ns * own, name, seed=seed) for name, ns in others.items()),
        ]

    old = take(1, 1.0, 1.0)
    for baseline, own, verdict in (
        (1.06, 1.0, "same"),
        (1.06, 1.4, "slower"),
        (1.0, 1.2, "slower"),
    ):
        judged = compare_runs(old, take(2, baseline, own), basis="absolute")
        assert judged.shifts.machine is None
        assert {o.verdict for o in judged.comparisons if o.new.variant in others} == {verdict}


@pytest.mark.parametrize(("change", "verdict"), [(1.1, "slower"), (0.9, "faster")])
def test_a_baseline_that_has_changed_is_judged_and_blames_no_other(
    change: float, verdict: str
) -> None:
    """Ratios to it move the other way: a slower baseline would look like faster variants."""

    def take(seed: int, baseline: float, own: float = 1.0, others: int = 2) -> list[Record]:
        names = ("fast", "slow")[:others]
        return [
            sample(1e6 * baseline, seed=seed),
            *(sample(5e5 * own, name, seed=seed) for name in names),
        ]

    old, new = take(1, 1.0), take(2, change)
    judged = compare_runs(old, new)
    assert judged.shifts.lone_baseline == pytest.approx(change, rel=0.01)
    assert judged.basis == "absolute"
    found = {one.new.variant: one.verdict for one in judged.comparisons}
    assert found == {"dense": verdict, "fast": "same", "slow": "same"}
    assert compare_runs(old, new, basis="relative").basis == "relative"
    # A case alone may have stayed where it was by chance; and cases that moved, too, are compared
    # with the baseline as ever.
    for before, after in (
        (take(1, 1.0, others=1), take(2, change, others=1)),
        (old, take(2, change, own=1.5)),
        (old, take(2, 1.0, own=change)),
    ):
        judged = compare_runs(before, after)
        assert (judged.shifts.lone_baseline, judged.basis) == (None, "relative")


def test_cases_without_a_baseline_are_compared_by_time() -> None:
    old = [sample(1e6, seed=1), sample(5e5, "fast", seed=1), *many(seed=1, cases=2)]
    new = [sample(1e6, seed=2), sample(5e5, "fast", seed=2), *many(1.3, seed=2, cases=2)]
    judged = compare_runs(old, new)
    found = [(one.new.variant, one.basis, one.verdict) for one in judged.comparisons]
    assert found == [("fast", "relative", "same"), *[("dense", "absolute", "slower")] * 2]
    asked = compare_runs(old, new, basis="relative")
    assert [one.new.variant for one in asked.comparisons] == ["fast"]
    assert [record.variant for record in asked.no_baseline] == ["dense"] * 2
    # And are unclear where the baselines show that the machine was another.
    fast = [sample(1.3e6, seed=2), sample(6.5e5, "fast", seed=2), *many(1.3, seed=2, cases=2)]
    judged = compare_runs(old, fast)
    assert [one.verdict for one in judged.comparisons] == ["same", "unclear", "unclear"]


def test_another_baseline_is_no_common_one() -> None:
    old = [sample(1e6, seed=1), sample(1e6, "other", seed=1), sample(5e5, "fast", seed=1)]
    new = [replace(one, run_id="run 2", baseline="other") for one in old]
    assert [one.basis for one in compare_runs(old, new).comparisons][-1] == "absolute"


def test_parts_follow_the_basis_of_the_verdict() -> None:
    """A machine ten times as fast, and a forward pass that takes a third more: by the clock every
    part got shorter."""

    def take(seed: int, machine: float, forward_ns: float) -> list[Record]:
        variant = sample(1e6, "fast", seed=seed)
        times = {"forward": forward_ns * machine, "backward": 2e6 * machine}
        samples_ns = {phase: [ns] * SAMPLES for phase, ns in times.items()}
        return [sample(3e6 * machine, seed=seed), replace(variant, samples_ns=samples_ns)]

    (only,) = compare_runs(take(1, 1.0, 1e6), take(2, 0.1, 1.33e6)).comparisons
    assert (only.verdict, only.basis) == ("slower", "relative")
    assert [part.name for part in only.parts] == ["forward"]
    assert only.parts[0].change_ns == pytest.approx(0.33e5, rel=0.1)
    assert only.parts[0].share == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"settings": Settings(threads=4)}, {"settings.threads": ("1", "4")}),
        ({"settings": Settings(cache="cold")}, {"settings.cache": ("hot", "cold")}),
        ({"conditions": {"autocast": "float16"}}, {"autocast": (None, "float16")}),
        (
            {"environment": {"torch": {"version": "3.0"}}},
            {"torch.version": (None, "3.0")},
        ),
        (
            {"environment": {"software": {"packages": {"triton": "9"}}}},
            {"software.packages.triton": (None, "9")},
        ),
        (
            {"environment": {"software": {"variables": {"OMP_X": "1"}}}},
            {"software.variables.OMP_X": (None, "1")},
        ),
        (
            {"environment": {"isa": {"onednn_max_cpu_isa": "AVX2"}}},
            {"isa.onednn_max_cpu_isa": (None, "AVX2")},
        ),
        ({"params": {"size": 4, "batch": 64}}, {"batch": (None, "64")}),
    ],
)  # fmt: skip
def test_what_is_not_comparable_is_named_by_field(
    change: dict[str, Any], fields: dict[str, tuple[str | None, str | None]]
) -> None:
    judged = compare_runs([sample(1e6, seed=1)], [sample(2e6, seed=2, **change)])
    (only,) = judged.comparisons
    assert only.verdict == "slower"
    assert {name: only.differences[name] for name in fields} == fields
    assert excuse(judged, []) == []
    assert excuse(judged, ["all"]) == [only]
    assert excuse(judged, list(only.differences)) == [only]


def test_an_axis_that_moved_as_a_whole_does_not_keep_cases_apart() -> None:
    old = [sample(1e6, seed=1, params={"size": size, "batch": 32}) for size in (4, 8)]
    new = [sample(1e6, seed=2, params={"size": size, "batch": 64}) for size in (4, 8)]
    judged = compare_runs(old, new)
    assert [one.differences for one in judged.comparisons] == [{"batch": ("32", "64")}] * 2
    compiled = [sample(1e6, "compiled", seed=2, params={"size": 4})]
    (only,) = compare_runs([sample(1e6, "eager", seed=1)], compiled).comparisons
    assert only.differences == {"variant": ("eager", "compiled")}
    # Where one side has both, the axis tells cases apart.
    assert len(compare_runs(old, [*old, *new]).comparisons) == 2


def test_the_same_conditions_are_compared_where_there_are_any() -> None:
    two = Settings(threads=2)
    old = [sample(1e6, seed=1), sample(6e5, seed=2, settings=two)]
    judged = compare_runs(old, [sample(6e5, seed=3, settings=two)])
    (only,) = judged.comparisons
    assert (only.verdict, only.differences) == ("same", {})


def test_what_broke_and_what_has_no_partner_is_told() -> None:
    failed = {
        "samples_ns": {},
        "rounds": [],
        "calls_per_sample": [],
        "status": "oom",
        "message": "too big",
    }
    old = [sample(1e6, seed=1), sample(1e6, "gone", seed=1), sample(1e6, "fails", seed=1)]
    new = [
        sample(1e6, seed=2),
        sample(1e6, "here", seed=2),
        sample(1e6, "fails", seed=2, **failed),
    ]
    judged = compare_runs(old, new)
    assert [one.new.variant for one in judged.comparisons] == ["dense"]
    assert [record.variant for record in judged.broken] == ["fails"]
    assert [record.variant for record in judged.only_old] == ["gone"]
    assert [record.variant for record in judged.only_new] == ["here"]
    assert [record.variant for record in compare_runs(new, old).fixed] == ["fails"]


def test_many_comparisons_are_read_at_a_higher_confidence() -> None:
    noise = random.Random(1)
    nothing = [Paired(ratios=[noise.lognormvariate(0, 0.1) for _ in range(30)]) for _ in range(50)]
    assert choose_confidence(nothing, 0.01) == pytest.approx(1 - 0.01 / 50)
    clear = [Paired(ratios=[1.5 * r for r in one.ratios]) for one in nothing]
    assert choose_confidence(clear, 0.01) == pytest.approx(0.99)
    mixed = choose_confidence([*nothing, *clear], 0.01)
    assert 1 - 0.01 * 52 / 100 <= mixed <= 1 - 0.01 * 50 / 100
    assert choose_confidence([], 0.01) == pytest.approx(0.99)


def test_what_is_missing_would_settle_it() -> None:
    noise = random.Random(2)
    ratios = [1.01 * noise.lognormvariate(0, 0.1) for _ in range(30)]
    missing = Paired(ratios=ratios).find_missing(0.02, 0.99)
    assert missing is not None
    assert missing.unit == "sample"
    more = [1.01 * noise.lognormvariate(0, 0.1) for _ in range(30 + missing.count)]
    assert estimate_median(more).half_width == pytest.approx(0.02, rel=0.6)
    few = Paired(ratios=ratios[:3]).find_missing(0.02, 0.99)
    assert few is not None
    assert (few.count, few.at_least) == (5, True)
    far = Separate(log_ratio=0.0, within=0.001, between=0.02, freedom=20, samples=50)
    runs = far.find_missing(0.03, 0.99)
    assert runs is not None
    assert runs.unit == "run"
    enough = replace(far, between=far.between / (1 + runs.count) ** 0.5, within=0.0)
    assert (enough.at(0.99).half_width or 1) <= 0.031


def test_bootstrap_errors_are_of_the_right_size() -> None:
    """The median of 60 normal samples scatters by 1.25 times the deviation over the root."""
    noise = random.Random(3)
    errors = [
        bootstrap_error([noise.gauss(0, 0.02) for _ in range(60)], seed) or 0 for seed in range(40)
    ]
    assert sum(errors) / 40 == pytest.approx(1.25 * 0.02 / 60**0.5, rel=0.15)
    # Neighbours that resemble each other are worth less.
    walk = [0.02 * (n // 15 % 2) + noise.gauss(0, 0.001) for n in range(60)]
    assert (bootstrap_error(walk) or 0) > 2 * 0.02 / 60**0.5
    assert bootstrap_error([1.0, 2.0, 3.0]) is None


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [(0.975, 10, 2.228), (0.995, 5, 4.032), (0.9995, 20, 3.850), (0.99995, 12, 5.694)],
)
def test_student_quantiles(probability: float, freedom: float, expected: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("freedom", [1.0, 1.3, 2.5, 7.7, 30.0, 1e3, 1e5, math.inf])
@pytest.mark.parametrize("probability", [0.55, 0.95, 0.995, 1 - 1e-7])
def test_student_quantiles_are_those_of_scipy(probability: float, freedom: float) -> None:
    from scipy.stats import t

    assert student_quantile(probability, freedom) == pytest.approx(t.ppf(probability, freedom))


def test_a_case_that_differs_more_from_run_to_run_has_a_wider_interval() -> None:
    def sides(*shifts: float) -> Sides:
        takes = [Take(log_time=shift, error=0.001, samples=40) for shift in shifts]
        return Sides(old=takes[:4], new=takes[4:])

    calm = [sides(*[0.001 * ((-1) ** n) for n in range(8)]) for _ in range(9)]
    wild = sides(*[0.05 * ((-1) ** n) for n in range(8)])
    spread = find_spread([*calm, wild])
    first, last = weigh(calm[0], spread), weigh(wild, spread)
    assert first is not None
    assert last is not None
    assert last.between > 2 * first.between


# Two revisions that took turns.


def visit(number: int, ratio: float, drift: float = 0.0) -> tuple[Record, Record]:
    """A pair of records of one run; the machine's speed changes from round to round."""
    noise = random.Random(number)
    speeds = [math.exp(noise.gauss(0, 0.5)) for _ in range(SAMPLES)]
    sides = []
    for factor in (1.0, ratio * math.exp(noise.gauss(0, drift))):
        totals = [1e6 * factor * speed * noise.lognormvariate(0, 0.01) for speed in speeds]
        record = sample(1.0, run_id=f"turns-{number}")
        sides.append(replace(record, samples_ns={"forward": totals}))
    return sides[0], sides[1]


def compare_visits(count: int, ratio: float, drift: float = 0.0, **more: Any) -> Judgement:
    pairs = [visit(number, ratio, drift) for number in range(count)]
    return compare_runs([old for old, _ in pairs], [new for _, new in pairs], **more)


def test_rounds_that_were_taken_in_turns_find_what_the_machines_speed_hides() -> None:
    judgement = compare_visits(6, 1.03, drift=0.002)
    (one,) = judgement.comparisons
    assert judgement.basis == one.basis == "turns"
    assert one.verdict == "slower"
    assert one.speedup.low is not None
    assert 1 / 1.04 < one.speedup.low < 1 / 1.03 < (one.speedup.high or 0) < 1 / 1.02
    assert one.old_runs == one.new_runs == 6


def test_what_differs_from_process_to_process_widens_the_interval() -> None:
    (tight,) = compare_visits(5, 1.0, drift=0.001).comparisons
    (wide,) = compare_visits(5, 1.0, drift=0.03).comparisons
    assert tight.verdict == "same"
    assert wide.verdict == "unclear"
    assert (wide.speedup.half_width or 0) > 0.03
    assert wide.missing is not None
    assert wide.missing.unit == "run"


def test_other_cases_say_how_much_a_case_of_few_visits_scatters() -> None:
    calm = [Take(log_time=0.0, error=0.001, samples=40)] * 3
    restless = [Take(log_time=log, error=0.001, samples=40) for log in (-0.1, 0.0, 0.1)]
    alone, among = weigh_visits([calm])[0], weigh_visits([calm, restless, restless])[0]
    assert alone is not None
    assert among is not None
    assert among.error > 10 * alone.error


def test_a_stricter_confidence_is_for_every_look_of_many() -> None:
    (one,) = compare_visits(5, 1.0, drift=0.003).comparisons
    (strict,) = compare_visits(5, 1.0, drift=0.003, confidence=0.9999).comparisons
    assert (strict.speedup.half_width or 0) > (one.speedup.half_width or 0)


def test_records_that_both_files_hold_are_not_taken_for_turns() -> None:
    """A file to which more runs were appended, compared with an older copy of it."""
    old = sample(1e6, seed=1)
    judgement = compare_runs([old], [old, sample(1.2e6, seed=2)])
    assert judgement.basis == "absolute"
