"""How sure a prediction is: wider where a job depends on what no data have said."""

from __future__ import annotations

import math
import random

import pytest

from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.intervals import (
    find_errors,
    find_reach,
    find_spread,
    find_unseen_reach,
)
from flopwatch.prediction.job_arrays import Placed
from flopwatch.prediction.predictions import predict
from flopwatch.prediction.software_stacks import (
    EXPECTED,
    LEAST_SPREAD,
    PRIORS,
    TYPICAL,
    find_stack,
    load_stacks,
)

A100, H100 = find_machine("A100-80GB")[1], find_machine("H100-SXM")[1]


def test_a_reach_holds_nine_of_ten_of_what_comes_next() -> None:
    chance = random.Random(0)
    inside = 0
    for _ in range(400):
        *known, new = (chance.gauss(0, 1) for _ in range(51))
        inside += abs(new) <= find_reach([(each, 1.0) for each in known])
    assert 0.86 * 400 <= inside <= 0.95 * 400


def test_rows_count_what_they_weigh() -> None:
    assert find_reach([(1.0, 1.0), (2.0, 100.0), (3.0, 1.0)]) == 2.0
    assert find_reach([(-3.0, 1.0)]) == 3.0


def test_sources_that_are_off_in_their_own_way_widen_what_is_expected_of_the_next() -> None:
    alike = {f"source {n}": [0.1 * n for n in range(11)] for n in range(9)}
    apart = {f"source {n}": [0.1 * n for _ in range(11)] for n in range(9)}
    assert find_unseen_reach(alike) == pytest.approx(0.9, abs=0.11)
    # Eight of nine within 0.7: each of those that are left out is held by the others but the last.
    assert find_unseen_reach(apart) == pytest.approx(0.8)
    assert find_unseen_reach({"one": [0.5]}) == 0.5


def test_a_spread_is_how_much_depends_on_what_is_not_known() -> None:
    def find(job: TrainingJob, errors: dict[str, float]) -> float:
        return find_spread(Placed(job, A100), EXPECTED, errors)

    job = TrainingJob("7b", 2048, micro_batch=4, recompute="full")
    assert find(job, {}) == LEAST_SPREAD
    assert find(job, {"expert_exposed": 10.0}) == LEAST_SPREAD  # it has no experts
    # Matmuls are most of the step, and the head is little.
    wide = find(job, {"matmul_efficiency": 0.2})
    assert math.hypot(LEAST_SPREAD, 0.1) < wide < math.hypot(LEAST_SPREAD, 0.2)
    assert LEAST_SPREAD < find(job, {"loss_bytes": 0.2}) < wide


def test_parameters_of_something_unseen_are_as_uncertain_as_before_any_data() -> None:
    known = find_stack(TYPICAL).errors
    assert set(known) == set(PRIORS)
    errors = find_errors(known, ["ranks"], 0.1)
    assert errors["scale_loss"] == PRIORS["scale_loss"].spread
    assert errors["loss_bytes"] == known["loss_bytes"]
    assert errors["matmul_efficiency"] == pytest.approx(math.hypot(known["matmul_efficiency"], 0.1))


def measure_width(job: TrainingJob, machine: Machine = A100) -> float:
    found = predict(job, machine, find_stack(TYPICAL))
    assert found.low < found.tokens_per_s < found.high
    return math.log(found.high / found.low)


def test_what_no_data_cover_has_a_wider_interval() -> None:
    split = Parallelism(data=8, tensor=4, pipeline=2, sharding="zero1")
    usual = measure_width(TrainingJob("llama-2-7b", 2048, grad_accum=8, parallelism=split))
    assert usual < measure_width(
        TrainingJob("llama-2-7b", 2048, grad_accum=8, parallelism=split), H100
    )
    moe = Parallelism(data=64, expert=8, sharding="zero1")
    assert usual < measure_width(TrainingJob("mixtral-8x7b", 2048, parallelism=moe))
    ring = Parallelism(context=8, sharding="full")
    long = TrainingJob("llama-2-7b", 131072, recompute="full", parallelism=ring)
    assert 1.2 * usual < measure_width(long)


def test_unknown_software_is_less_sure_than_any_that_is_known() -> None:
    stacks = load_stacks()
    assert all(stack.high <= stacks[TYPICAL].high for stack in stacks.values())
    assert all(stack.low >= stacks[TYPICAL].low for stack in stacks.values())
