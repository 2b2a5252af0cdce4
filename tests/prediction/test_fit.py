"""Fitting the cost model: it finds what made the data, and predicts what it has not seen."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from flopwatch.prediction.fit import Fit, fit, fit_without, predict_all, predict_s
from flopwatch.prediction.published_steps import (
    Observation,
    find_family,
    load_parallel,
    load_published,
    load_sharded,
)
from flopwatch.prediction.software_stacks import EARLY, EXPECTED, LATE, OLD, PRIORS, load_stacks
from flopwatch.prediction.validation import (
    Score,
    Trial,
    _judge_order,
    find_coverage,
    group_by_size,
    group_by_source,
    is_slow,
    validate,
)

pytestmark = pytest.mark.xdist_group("fit")  # they share what takes long to make

TRUE = replace(
    EXPECTED, matmul_efficiency=0.9, traffic=2.2, attention_efficiency=0.35, recomputed_share=0.7
)


@pytest.fixture(scope="module")
def published() -> Fit:
    return fit(load_published())


@pytest.fixture(scope="module")
def scores() -> dict[tuple[str, str], Score]:
    return {(score.split, score.table): score for score in validate()}


def make_synthetic(stack: str, stride: int = 2) -> list[Observation]:
    """Some jobs of a published stack, as if they took just what the model says."""
    chosen = [replace(each, pressed_gb=0.0) for each in load_published() if each.stack == stack]
    return [replace(each, time_s=predict_s(each, TRUE)) for each in chosen[::stride]]


def test_a_fit_finds_what_made_the_data() -> None:
    found = fit(make_synthetic(LATE, stride=1))
    own = found.parameters[LATE]
    # What the data determine well; others may make up for one another.
    for name in ("matmul_efficiency", "attention_efficiency"):
        assert getattr(own, name) == pytest.approx(getattr(TRUE, name), rel=0.1), name
    worst = max(abs(math.log(predict_s(e, own) / e.time_s)) for e in make_synthetic(LATE))
    assert worst < 0.015


def test_a_few_slow_jobs_do_not_spoil_a_fit() -> None:
    data = make_synthetic(LATE)
    spoilt = [replace(each, time_s=2 * each.time_s) for each in data[:2]] + data[2:]
    own = fit(spoilt).parameters[LATE]
    errors = sorted(abs(math.log(predict_s(each, own) / each.time_s)) for each in data)
    assert errors[len(errors) // 2] < 0.01


def test_what_data_do_not_say_stays_as_expected() -> None:
    (one,) = make_synthetic(LATE)[:1]
    found = {each.unknown.name: each for each in fit([one]).found}
    expected = PRIORS["network_efficiency"].expected
    assert found["network_efficiency"].value == pytest.approx(expected, rel=0.05)
    assert found["network_efficiency"].determined < 0.1
    assert all(0 <= each.determined < 1 and each.value > 0 for each in found.values())


def test_stacks_share_what_belongs_to_the_hardware_and_families_what_is_theirs(
    published: Fit,
) -> None:
    old, early, late = (published.parameters[name] for name in (OLD, EARLY, LATE))
    assert old.link_efficiency == early.link_efficiency == late.link_efficiency
    assert early.traffic == late.traffic != old.traffic
    assert early.recomputed_share > late.recomputed_share + 0.2


def test_the_stacks_that_are_shipped_are_those_that_a_fit_finds(published: Fit) -> None:
    stacks, jobs = load_stacks(), load_published()
    assert (len(load_sharded()), len(load_parallel()), len(jobs)) == (184, 1199, 1383)
    shipped = predict_all(jobs, [stacks[each.stack].parameters for each in jobs])
    fitted = predict_all(jobs, [published.parameters[each.stack] for each in jobs])
    assert shipped == pytest.approx(fitted, rel=0.02)


def test_published_jobs_of_every_source_are_described(published: Fit) -> None:
    """In sample; what was held out, `flopwatch validate` has."""
    jobs = [each for each in load_published() if not each.is_doubtful]
    times = predict_all(jobs, [published.parameters[each.stack] for each in jobs])
    errors: dict[str, list[float]] = {}
    for each, time_s in zip(jobs, times, strict=True):
        errors.setdefault(each.source, []).append(abs(each.time_s / float(time_s) - 1))
    assert len(errors) == 9
    for source, own in errors.items():
        assert sum(own) / len(own) < 0.09, source


def test_memory_that_is_nearly_full_explains_the_four_slow_jobs_of_760m(published: Fit) -> None:
    slow = [each for each in load_published() if each.stack == OLD and each.pressed_gb]
    assert len(slow) == 4
    for each in slow:
        assert predict_s(each, published.parameters[OLD]) == pytest.approx(each.time_s, rel=0.1)
        without = predict_s(replace(each, pressed_gb=0.0), published.parameters[OLD])
        assert without < 0.7 * each.time_s


@pytest.mark.slow
def test_jobs_that_were_left_out_are_predicted(scores: dict[tuple[str, str], Score]) -> None:
    size, source = "a size left out", "a source left out"
    most = {
        "mosaicgpt": 0.08, "mosaicgpt, without 5 slow rows": 0.025, "llm-foundry": 0.045,
        "vtrain_single": 0.1, "vtrain_multi": 0.1, "bloom_a100": 0.08, "internevo": 0.06,
        "megatron_sc21": 0.08, "megatron_seqsel22": 0.06,
    }  # fmt: skip
    for table, error in most.items():
        assert scores[size, table].mean_error <= error, table
    unseen = [each for (split, _), each in scores.items() if split == source]
    assert sum(each.mean_error for each in unseen) / len(unseen) <= 0.16


def test_one_size_left_out_of_one_table_is_predicted() -> None:
    """The quick cousin of the slow test above."""
    family = [each for each in load_sharded() if find_family(each.stack) == "llm-foundry"]
    own = fit([each for each in family if each.size != "1b"]).parameters
    errors = [abs(each.time_s / predict_s(each, own[each.stack]) - 1) for each in family
              if each.size == "1b"]  # fmt: skip
    assert len(errors) == 14
    assert sum(errors) / len(errors) <= 0.05


def test_five_published_jobs_are_slow_for_their_neighbours() -> None:
    assert [each.size for each in load_sharded() if is_slow(each)].count("760m") == 4
    assert sum(map(is_slow, load_sharded())) == 5


def test_coverage_is_by_intervals_that_are_made_without_the_group_that_they_are_for() -> None:
    observations = [each for each in load_sharded() if each.source == "mosaicgpt"]
    trials = [Trial(observation=each, predicted_s=each.time_s) for each in observations]
    assert find_coverage(trials, trials, group_by_size) == 1.0
    # One size is off by far more than the others let one expect.
    off = [replace(t, predicted_s=2 * t.predicted_s) if t.observation.size == "7b" else t
           for t in trials]  # fmt: skip
    seven = sum(trial.observation.size == "7b" for trial in trials)
    assert find_coverage(off, off, group_by_size) == pytest.approx(1 - seven / len(trials))
    assert find_coverage(off[:1], off[:1], group_by_size) is None
    assert off[0].error == 0.0
    # Of a source, by those of other sources alone.
    assert find_coverage(trials, trials, group_by_source) is None
    others = [
        replace(t, observation=replace(t.observation, source=source), predicted_s=p * t.predicted_s)
        for t in trials
        for source, p in (("narrow", 1.01), ("wide", 1.2))
    ]
    narrow, wide = ([t for t in others if t.observation.source == n] for n in ("narrow", "wide"))
    assert find_coverage(narrow, others, group_by_source) == 1.0
    assert find_coverage(wide, others, group_by_source) == 0.0


def test_fits_that_leave_jobs_out_are_those_to_the_other_jobs() -> None:
    family = [each for each in load_sharded() if find_family(each.stack) == "llm-foundry"]
    rows = [n for n, each in enumerate(family) if each.size == "3b"]
    (without,) = fit_without(family, [rows])
    alone = fit([each for each in family if each.size != "3b"])
    for stack in (EARLY, LATE):
        found, wanted = (
            predict_all(family, [each.parameters[stack]] * len(family)) for each in (without, alone)
        )
        assert found == pytest.approx(wanted, rel=0.01)
        for name in ("matmul_efficiency", "scale_loss"):
            assert without.errors[stack][name] == pytest.approx(alone.errors[stack][name], rel=0.1)


def test_a_job_measured_twice_is_one_configuration() -> None:
    """Its median counts, and equal predictions of equal jobs say nothing about an order."""
    observations = [each for each in load_parallel() if each.source == "internevo"]
    first, second, third = observations[:3]
    trials = [
        Trial(observation=replace(each, time_s=time_s), predicted_s=predicted_s)
        for each, time_s, predicted_s in (
            (first, 1.0, 1.5), (first, 3.0, 1.5), (second, 4.0, 4.0), (third, 5.0, 5.0),
        )
    ]  # fmt: skip
    assert _judge_order(trials[:3]) is None
    correlation, share = _judge_order(trials) or (0.0, 0.0)
    assert correlation == pytest.approx(1.0)
    assert share == 1.0
