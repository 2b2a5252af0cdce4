"""What the kinds of parallelism cost, and what each rank of them holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwatch.jobs.model_shapes import Shape
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.cost import Cost, estimate_cost, estimate_steps
from flopwatch.prediction.hardware import Machine, find_machine, limit_power
from flopwatch.prediction.job_arrays import Habits, Placed, make_arrays
from flopwatch.prediction.published_steps import load_parallel
from flopwatch.prediction.software_stacks import EXPECTED
from flopwatch.prediction.stage_memory import estimate_stage_memory

H100 = find_machine("H100-SXM")[1]
RACK = find_machine("GB200")[1]
DENSE = Shape(
    architecture="llama", hidden_size=8192, feed_forward_size=28672, layers=80, heads=64,
    key_value_heads=8, vocabulary=128256,
)  # fmt: skip
EXPERTS = replace(DENSE, hidden_size=4096, layers=32, heads=32, experts=64, active_experts=4,
                  feed_forward_size=8192, expert_size=2048)  # fmt: skip


def make(
    shape: Shape = DENSE, *, seq_len: int = 4096, grad_accum: int = 32, recompute: Any = "none",
    precision: str = "bf16-mixed", micro_batch: int = 1, **split: Any,
) -> TrainingJob:  # fmt: skip
    return TrainingJob(
        shape, seq_len, micro_batch=micro_batch, grad_accum=grad_accum, recompute=recompute,
        precision=precision, parallelism=Parallelism(**split),
    )  # fmt: skip


def cost_of(job: TrainingJob, machine: Machine = H100, **habits: Any) -> Cost:
    return estimate_cost(job, machine, EXPECTED, habits=Habits(**habits))


def time_of(job: TrainingJob, part: str, machine: Machine = H100) -> float:
    found = cost_of(job, machine).by_name.get(part)
    return 0.0 if found is None else found.time_s


def memory_of(job: TrainingJob) -> dict[str, float]:
    found = estimate_stage_memory(make_arrays([Placed(job, H100)]))
    return {name: float(size[0]) for name, size in found.items()}


def test_many_jobs_at_once_take_what_each_takes_alone() -> None:
    jobs = [
        make(tensor=8, sequence=True, pipeline=4, virtual_stages=5),
        make(EXPERTS, data=16, expert=8, tensor=2, sharding="zero1"),
        make(context=4, data=2, sharding="full", recompute="full"),
        make(),
    ]
    together = estimate_steps(make_arrays([Placed(job, H100) for job in jobs]), EXPECTED)
    alone = [cost_of(job).step_s for job in jobs]
    assert together == pytest.approx(np.array(alone))


def test_tensor_parallel_ranks_compute_less_and_wait_for_each_other() -> None:
    one, eight = make(), make(tensor=8)
    assert time_of(eight, "matmuls") < time_of(one, "matmuls") / 6
    assert time_of(one, "tensor-parallel communication") == 0
    inside = time_of(eight, "tensor-parallel communication")
    across = time_of(make(tensor=16), "tensor-parallel communication")
    assert across > 1.3 * inside > 0
    # A rack of NVLink is one node.
    assert time_of(make(tensor=16), "tensor-parallel communication", RACK) < inside
    divided = time_of(make(tensor=8, sequence=True), "element-wise")
    assert divided < 0.6 * time_of(eight, "element-wise")
    again = time_of(make(tensor=8, recompute="full"), "tensor-parallel communication")
    assert again == pytest.approx(1.5 * inside, rel=0.02)


def test_a_pipeline_fills_and_drains() -> None:
    def bubble(**split: Any) -> float:
        job = make(pipeline=8, **split)
        return time_of(job, "pipeline bubble") / cost_of(job).step_s

    assert bubble(grad_accum=128) < bubble(grad_accum=32) < bubble(grad_accum=8)
    assert bubble(virtual_stages=5) < bubble(virtual_stages=2) < bubble()
    assert bubble(schedule="zero-bubble") < bubble() == pytest.approx(bubble(schedule="gpipe"))
    assert time_of(make(), "pipeline bubble") == 0
    # 72 layers are 8 stages of 9; 73 are 7 of 10 and one of 3, as slow as the slowest.
    even, uneven = (
        cost_of(make(replace(DENSE, vocabulary=1024, layers=layers), pipeline=8)).step_s
        for layers in (72, 73)
    )
    assert uneven > 1.08 * even


def test_context_parallel_ranks_share_attention_and_pass_keys_and_values() -> None:
    whole = make(seq_len=131072, grad_accum=1)
    shared = make(seq_len=131072, grad_accum=1, context=8)
    assert time_of(shared, "attention") == pytest.approx(time_of(whole, "attention") / 8)
    assert time_of(shared, "context-parallel communication") > 0
    assert cost_of(shared).step_s < cost_of(whole).step_s / 6


def test_experts_are_sent_their_tokens() -> None:
    near = make(EXPERTS, data=8, expert=8, sharding="zero1")
    far = make(EXPERTS, data=64, expert=64, sharding="zero1")
    sent = [time_of(job, "expert-parallel communication") for job in (near, far)]
    assert 0 < sent[0] < sent[1] / 2
    alone = make(EXPERTS, data=64, sharding="zero1")
    assert time_of(alone, "expert-parallel communication") == 0
    assert time_of(alone, "optimizer") > time_of(far, "optimizer") / 2
    dense = replace(EXPERTS, experts=None, active_experts=None, expert_size=None)
    ideal = [cost_of(make(shape)).by_name["matmuls"].ideal_s for shape in (EXPERTS, dense)]
    # Four experts of 2,048 are as much as 8,192, but for the router and imbalance.
    assert ideal[0] / ideal[1] == pytest.approx(1.1, abs=0.1)


def test_what_is_recomputed_takes_time_and_gives_memory_back() -> None:
    jobs = [make(tensor=8, recompute=recompute) for recompute in ("none", "selective", "full")]
    steps = [cost_of(job).step_s for job in jobs]
    kept = [memory_of(job)["activations"] for job in jobs]
    assert steps[0] < steps[1] < steps[2] < 1.4 * steps[0]
    assert kept[0] > kept[1] > kept[2]


def test_narrow_precisions_speed_up_matmuls_alone() -> None:
    wide, narrow = make(tensor=8), make(tensor=8, precision="fp8")
    assert 1.2 < time_of(wide, "matmuls") / time_of(narrow, "matmuls") < 2
    for part in ("attention", "head", "element-wise", "tensor-parallel communication"):
        assert time_of(wide, part) == pytest.approx(time_of(narrow, part))
    steps = [cost_of(make(precision=name), RACK).step_s for name in ("bf16-mixed", "fp8", "nvfp4")]
    assert steps[0] > steps[1] > steps[2]


def test_a_limit_of_power_slows_matmuls_and_not_memory() -> None:
    limited = limit_power(H100, 500)
    assert limited.bandwidth_bytes_per_s == H100.bandwidth_bytes_per_s
    job = make(tensor=8)
    ratio = time_of(job, "matmuls", limited) / time_of(job, "matmuls")
    assert 1.1 < ratio < 700 / 500
    assert limit_power(H100, 900) == H100


def test_plain_attention_writes_scores_and_minds_odd_heads() -> None:
    job = make(replace(DENSE, key_value_heads=None), tensor=8)
    odd = make(replace(DENSE, key_value_heads=None, heads=64, head_dim=124), tensor=8)
    fused, plain, slow = (
        cost_of(each, has_plain_attention=is_plain).by_name["attention"].time_s
        for each, is_plain in ((job, False), (job, True), (odd, True))
    )
    assert fused < plain < slow / 1.5


@settings(max_examples=40, deadline=None)
@given(
    tensor=st.sampled_from([1, 2, 8, 16]),
    pipeline=st.sampled_from([1, 2, 8, 12]),
    context=st.sampled_from([1, 2]),
    data=st.sampled_from([1, 3, 16]),
    sharding=st.sampled_from(["none", "ddp", "zero1", "zero2", "full", "hybrid"]),
    shape=st.sampled_from([DENSE, EXPERTS]),
    micro_batch=st.integers(1, 8),
)
def test_slower_networks_and_more_work_never_help(
    tensor: int, pipeline: int, context: int, data: int, sharding: Any, shape: Shape,
    micro_batch: int,
) -> None:  # fmt: skip
    job = make(
        shape, tensor=tensor, pipeline=pipeline, context=context, data=data, sharding=sharding,
        micro_batch=micro_batch,
    )  # fmt: skip
    cost = cost_of(job)
    assert all(part.time_s >= 0 for part in cost.parts)
    slow = replace(H100, network_bytes_per_s=5e9, link_bytes_per_s=50e9)
    assert cost_of(job, slow).step_s >= cost.step_s * (1 - 1e-9)
    for more in (replace(job, micro_batch=micro_batch + 1), replace(job, grad_accum=33)):
        assert cost_of(more).step_s >= cost.step_s * (1 - 1e-9)
    assert all(size >= 0 for size in memory_of(job).values())


def test_every_division_gives_memory_back() -> None:
    whole = memory_of(make())
    by_tensor = memory_of(make(tensor=8))
    assert by_tensor["parameters"] == pytest.approx(whole["parameters"] / 8)
    by_stage = memory_of(make(pipeline=8))
    assert by_stage["parameters"] < whole["parameters"] / 6
    # The first stage holds as many micro-batches as there are stages.
    assert by_stage["activations"] == pytest.approx(whole["activations"])
    chunks = memory_of(make(pipeline=8, virtual_stages=5))
    assert chunks["activations"] > by_stage["activations"]
    assert memory_of(make(pipeline=8, schedule="gpipe"))["activations"] == pytest.approx(
        4 * by_stage["activations"]
    )
    shards = [memory_of(make(data=8, sharding=name)) for name in ("ddp", "zero1", "zero2", "full")]
    for part in ("optimizer state", "gradients", "parameters"):
        sizes = [shard[part] for shard in shards]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] == pytest.approx(sizes[0] / 8)
    experts = [memory_of(make(EXPERTS, data=8, expert=ep)) for ep in (1, 8)]
    assert experts[1]["parameters"] < experts[0]["parameters"] / 4


def test_published_jobs_fit_where_they_ran() -> None:
    clean = [each for each in load_parallel() if not each.is_doubtful]
    sizes = estimate_stage_memory(make_arrays([each.placed for each in clean]))
    available = np.array([each.machine.memory_bytes for each in clean])
    assert np.mean(sum(sizes.values()) <= available) > 0.95
