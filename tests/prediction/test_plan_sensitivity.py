"""How sensitive a plan is, against a search of everything anew."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from flopwatch import api
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.plan_search import search
from flopwatch.prediction.plan_sensitivity import BATCHES, MACHINES, find_best
from flopwatch.prediction.plans import Plan
from flopwatch.prediction.predictions import predict

SMALL = "llama:hidden_size=4096:layers=32:heads=32:key_value_heads=8:vocabulary=128256"


@cache
def plan() -> Plan:
    return api.plan(SMALL, "32xA100-80GB", seq_len=4096, global_batch_tokens=2**19)


@pytest.mark.parametrize("what", list(MACHINES))
def test_with_other_hardware_the_best_is_that_of_a_whole_search(what: str) -> None:
    (found,) = (each for each in plan().changes if each.what == what)
    own = plan()
    change, _ = MACHINES[found.what]
    anew = search(own.job, change(own.machine), own.stack, own.global_batch_tokens)
    best = find_best(anew, anew.sort_fitting())
    assert best is not None
    assert found.best is not None
    assert found.best.tokens_per_s == pytest.approx(best.tokens_per_s)
    if found.chosen is not None:
        chosen = predict(own.best[0].job, change(own.machine), own.stack)
        assert found.chosen.tokens_per_s == pytest.approx(chosen.tokens_per_s)
        assert (found.gain or 0.0) >= -1e-9


@pytest.mark.parametrize("what", list(BATCHES))
def test_with_another_batch_the_best_is_that_of_a_whole_search(what: str) -> None:
    (found,) = (each for each in plan().changes if each.what == what)
    tokens = BATCHES[found.what] * plan().global_batch_tokens
    anew = api.plan(SMALL, "32xA100-80GB", seq_len=4096, global_batch_tokens=tokens, shown=1)
    assert found.best is not None
    assert found.best.tokens_per_s == pytest.approx(anew.best[0].tokens_per_s)
    assert found.chosen is not None
    assert found.chosen.job.parallelism == plan().best[0].job.parallelism
    assert found.chosen.job.tokens_per_step == pytest.approx(tokens, rel=0.05)


def test_slower_hardware_is_slower_and_one_node_has_no_network() -> None:
    speeds = {each.what: each.chosen.tokens_per_s for each in plan().changes if each.chosen}
    usual = plan().best[0].tokens_per_s
    assert speeds["network-halved"] < usual < speeds["network-doubled"]
    assert speeds["matmuls-slower"] < usual < speeds["matmuls-faster"]
    one = api.plan("1b", "8xA100-80GB", global_batch_tokens=2**18)
    assert not [each for each in one.changes if each.what.startswith("network")]


def test_what_is_full_does_not_fit_into_less_memory() -> None:
    best = plan().best[0]
    tight = replace(plan().machine, memory_bytes=best.memory.total_bytes / 0.94)
    job = TrainingJob(SMALL, 4096)
    from flopwatch.prediction.plan_limits import spread
    from flopwatch.prediction.plans import make_plan

    found = make_plan(
        spread(job, 32), tight, plan().stack, global_batch_tokens=2**19, train_tokens=1e9
    )
    (less,) = (each for each in found.changes if each.what == "memory-smaller")
    assert not less.is_same
    assert less.chosen is None or less.chosen.memory.total_bytes < 0.9 * 0.95 * (
        tight.memory_bytes or 0
    )


def test_those_alike_are_within_the_interval() -> None:
    speeds = sorted(plan().searched.tokens_per_s[plan().order])
    assert plan().alike == sum(speed >= plan().best[0].low for speed in speeds)
    assert 1 < plan().alike < len(speeds)
