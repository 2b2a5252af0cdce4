"""The cost model: what it adds up, what grows with what, and how it does on published jobs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwatch.errors import UsageError
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.model_shapes import find_dimensions, find_shape
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.precision import find_precision
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.cost import Cost, estimate_cost
from flopwatch.prediction.hardware import Machine, describe_device, find_machine, share_among
from flopwatch.prediction.model_work import list_weights
from flopwatch.prediction.plan_search import SHARDINGS
from flopwatch.prediction.predictions import estimate_memory, find_pressure, predict
from flopwatch.prediction.published_steps import find_family, load_sharded
from flopwatch.prediction.software_stacks import (
    EARLY,
    EXPECTED,
    LATE,
    OLD,
    TYPICAL,
    choose_stack,
    find_stack,
    load_stacks,
)

A100 = find_machine("A100-80GB")[1]
H100 = find_machine("h100_80gb")[1]


def make(model: str = "1b", *, ranks: int = 8, sharding: Any = "full", **given: Any) -> TrainingJob:
    usual: dict[str, Any] = {"seq_len": 2048, "micro_batch": 4}
    parallelism = Parallelism(data=ranks, sharding=sharding)
    return TrainingJob(model, **{**usual, **given}, parallelism=parallelism)


def cost_of(job: TrainingJob, machine: Machine = A100) -> Cost:
    return estimate_cost(job, machine, EXPECTED)


def test_a_step_is_the_sum_of_its_parts_and_of_its_phases() -> None:
    cost = cost_of(make(grad_accum=3, recompute="full"))
    assert cost.step_s == pytest.approx(sum(part.time_s for part in cost.by_name.values()))
    assert cost.step_s == pytest.approx(cost.sum_phase("forward", "backward", "optimizer"))
    assert all(part.time_s >= part.ideal_s >= 0 for part in cost.parts)


@pytest.mark.parametrize("model", ["1b", "llama:hidden_size=512:layers=4:key_value_heads=2"])
def test_matmuls_at_the_peak_are_the_flops_that_accounts_count(model: str) -> None:
    job = make(model, ranks=1, sharding="none")
    counted = count_flops_by_part(job)
    flops = sum(counted[part].total for part in ("qkv", "output", "feed-forward"))
    ideal_s = sum(part.ideal_s for part in cost_of(job).parts if part.name == "matmuls")
    assert ideal_s * A100.peak_flops_per_s["bfloat16"] == pytest.approx(flops)


def test_experts_that_a_token_goes_through_are_matmuls() -> None:
    dense = find_dimensions("llama:hidden_size=256:layers=2")
    experts = replace(dense, experts=8, active_experts=2)
    own = [each for each in list_weights(experts) if each.copies == 8]
    assert [(each.inputs, each.outputs, each.active) for each in own] == [
        (256, 2048, 2),
        (1024, 256, 2),
    ]
    assert len(list_weights(experts)) == len(list_weights(dense)) + 1  # the router


@settings(max_examples=60)
@given(
    seq_len=st.sampled_from([128, 2048, 16384]),
    micro_batch=st.integers(1, 16),
    ranks=st.sampled_from([1, 2, 8, 16, 64]),
    grad_accum=st.integers(1, 8),
    recompute=st.sampled_from(["none", "selective", "full"]),
    sharding=st.sampled_from(["none", "ddp", "full", "zero2"]),
    precision=st.sampled_from(["fp32", "tf32", "bf16", "bf16-mixed"]),
)
def test_more_work_takes_no_less_time(
    seq_len: int, micro_batch: int, ranks: int, grad_accum: int, recompute: str, sharding: str,
    precision: str,
) -> None:  # fmt: skip
    job = make(
        seq_len=seq_len, micro_batch=micro_batch, ranks=ranks, grad_accum=grad_accum,
        recompute=recompute, sharding=sharding, precision=precision,
    )  # fmt: skip
    step_s = cost_of(job).step_s
    assert 0 < step_s < math.inf
    for more in (
        replace(job, micro_batch=micro_batch + 1),
        replace(job, grad_accum=grad_accum + 1),
        make("3b", seq_len=seq_len, micro_batch=micro_batch, ranks=ranks, grad_accum=grad_accum,
             recompute=recompute, sharding=sharding, precision=precision),
    ):  # fmt: skip
        # Not always: what is computed may be hidden behind what is waited for.
        assert cost_of(more).step_s >= step_s * (1 - 1e-9)
    assert cost_of(replace(job, recompute="full")).step_s >= step_s * (1 - 1e-9)


def test_a_vocabulary_that_tensor_cores_do_not_like_costs() -> None:
    odd, even = make("1b"), make("1b:padded_vocabulary=50304")
    heads = [cost_of(job).by_name["head"].time_s for job in (odd, even)]
    assert heads[0] / heads[1] == pytest.approx(EXPECTED.odd_matmul, rel=0.01)


def test_narrow_matmuls_lose_more_where_there_is_more_arithmetic_for_the_bandwidth() -> None:
    def find_share(model: str, machine: Machine) -> float:
        parts = [p for p in cost_of(make(model), machine).parts if p.name == "matmuls"]
        return sum(p.ideal_s for p in parts) / sum(p.time_s for p in parts)

    assert find_share("125m", A100) < find_share("7b", A100)
    assert find_share("7b", H100) < find_share("7b", A100)


def test_ranks_that_share_nothing_exchange_nothing_and_those_that_shard_pay_for_it() -> None:
    assert "communication" not in cost_of(make(ranks=1, sharding="none")).by_name
    waited = {
        sharding: cost_of(make("7b", sharding=sharding, grad_accum=4))
        .by_name["communication"]
        .time_s
        for sharding in ("none", "ddp", "zero2", "full")
    }
    assert waited["ddp"] < waited["none"]
    assert waited["zero2"] < waited["full"]
    apart = cost_of(make("7b", ranks=64))
    assert apart.by_name["communication"].time_s > waited["full"] / 4
    hybrid = cost_of(make("7b", ranks=64, sharding="hybrid", grad_accum=4))
    full = cost_of(make("7b", ranks=64, grad_accum=4))
    assert hybrid.step_s < full.step_s
    updates = [each.by_name["optimizer"].time_s for each in (full, hybrid)]
    assert updates[1] == pytest.approx(8 * updates[0])  # each node has all of the parameters


def test_what_stays_within_a_node_does_not_pass_its_network() -> None:
    slow = replace(A100, network_bytes_per_s=1.0)
    for sharding in SHARDINGS:
        job = make("7b", sharding=sharding)
        assert cost_of(job, slow).step_s == cost_of(job).step_s


def test_bridges_join_two_cards_and_no_more() -> None:
    bridged = find_machine("A100-PCIe-80GB")[1]
    assert bridged.find_link(2) == find_machine("A100-80GB")[1].find_link(2)
    assert bridged.find_link(8) == 32e9


def test_what_a_device_lacks_is_refused_in_a_sentence() -> None:
    v100 = find_machine("V100-SXM-32GB")[1]
    with pytest.raises(UsageError, match="V100-SXM-32GB has no known peak in bfloat16"):
        cost_of(make(), v100)
    with pytest.raises(UsageError, match="8 ranks need a link"):
        cost_of(make(), replace(A100, link_bytes_per_s=None))
    with pytest.raises(UsageError, match="no precision 'fp7'"):
        find_precision("fp7")
    with pytest.raises(UsageError, match="does not follow from its dimensions"):
        predict(make("stablelm:hidden_size=512:layers=8"), A100, choose_stack(A100))
    deep = replace(make(), parallelism=Parallelism(pipeline=48))
    with pytest.raises(UsageError, match="48 pipeline stages cannot share 24 layers"):
        predict(deep, A100, choose_stack(A100))
    without = replace(make(), parallelism=Parallelism(data=8, expert=8))
    with pytest.raises(UsageError, match="8 expert-parallel ranks cannot share 0 experts"):
        predict(without, A100, choose_stack(A100))
    with pytest.raises(UsageError, match="no device is called 'abacus'"):
        find_machine("8xabacus")


def test_machines_are_made_of_data_sheets_with_their_sources() -> None:
    assert A100.find_rate("bfloat16") == pytest.approx(257e12)
    assert A100.link_bytes_per_s == 300e9
    assert H100.attention_share == 0.5
    assert find_machine("8xH100-SXM", network_gbit=100)[1].network_bytes_per_s == 12.5e9
    assert any("thonking" in source for source in A100.sources)
    half = share_among(A100, 2)
    assert half.bandwidth_bytes_per_s == A100.bandwidth_bytes_per_s / 2
    for device in ("T4", "L40S", "RTX-4090", "MI300X", "B200"):
        machine = find_machine(device)[1]
        job = make(ranks=1, sharding="none", precision="fp16-mixed")
        assert cost_of(job, machine).step_s > 0


def test_a_device_without_a_bandwidth_is_refused() -> None:
    from flopwatch.devices.device_table import DEVICES

    with pytest.raises(UsageError, match="memory bandwidth of T4 is not known"):
        describe_device(
            replace(next(d for d in DEVICES if d.name == "T4"), bandwidth_gb_per_s=None)
        )


def test_stacks_have_names() -> None:
    stacks = load_stacks()
    assert {OLD, EARLY, LATE, TYPICAL} < set(stacks)
    assert all(stack.low < 1 < stack.high for stack in stacks.values())
    with pytest.raises(UsageError, match="no stack 'nope'"):
        find_stack("nope")


def test_stacks_are_chosen_by_the_device_and_unseen_ones_have_wider_intervals() -> None:
    late = choose_stack(A100)
    assert (late.name, choose_stack(H100).name) == (LATE, LATE)
    assert choose_stack(find_machine("a100_40gb")[1]).name == EARLY
    divided = replace(make(), parallelism=Parallelism(data=4, tensor=2))
    assert choose_stack(A100, divided).name == TYPICAL
    near, far = late.find_interval(), late.find_interval(0.2)
    assert near == pytest.approx((late.low, late.high))
    assert far[0] < near[0] < 1 < near[1] < far[1]
    typical = load_stacks()[TYPICAL]
    assert late.find_interval(at_least=typical) == pytest.approx((typical.low, typical.high))


def test_whatever_no_data_are_from_widens_the_interval_and_is_said() -> None:
    def width(job: TrainingJob, machine: Machine = A100) -> float:
        found = predict(job, machine, choose_stack(machine))
        assert len([warning for warning in found.warnings if "wider interval" in warning]) == (
            (machine is H100) + (job.precision == "fp32") + (job.ranks > 512)
        )
        return found.high / found.low

    usual = width(make())
    assert usual < width(make(precision="fp32")) < width(make(precision="fp32"), H100)
    assert usual < width(make(), H100)
    assert width(make(ranks=512)) < width(make(ranks=4096))


def test_all_published_jobs_are_said_to_fit_since_they_ran() -> None:
    observations = load_sharded()
    assert len(observations) == 184
    for each in observations:
        memory = estimate_memory(each.job, each.machine, find_family(each.stack))
        assert memory.fits, each


def test_jobs_that_are_twice_as_large_are_not() -> None:
    """Those that were as large as fits, of the later tables, on 40 GB."""
    early = [each for each in load_sharded() if each.stack == EARLY]
    full = [
        each
        for each in early
        if not estimate_memory(
            replace(each.job, micro_batch=2 * each.job.micro_batch), each.machine, "llm-foundry"
        ).fits
    ]
    assert len(full) > 0.6 * len(early)


def test_only_what_nearly_fills_the_memory_is_pressed() -> None:
    pressed = [each for each in load_sharded() if each.pressed_gb]
    assert {(e.stack, e.size, e.machine.name) for e in pressed} == {
        (OLD, "760m", "A100-SXM-40GB"),
        (EARLY, "350m", "A100-SXM-40GB"),
    }
    memory = estimate_memory(make(), A100, None)
    assert find_pressure(memory) == 0
    assert find_pressure(replace(memory, available_bytes=memory.total_bytes)) > 0
    assert replace(memory, available_bytes=None).fits is None


def test_shapes_of_the_published_jobs_have_the_published_parameters() -> None:
    seven = [each for each in load_sharded() if each.size == "7b" and each.job.seq_len == 2048]
    assert {each.job.parameters for each in seven if each.stack == OLD} == {6658404352}
    assert find_shape("7b").hidden_size == 4096
