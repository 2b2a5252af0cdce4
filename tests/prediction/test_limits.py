"""Predictions of what no data cover stay within what is possible, and move the right way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flopwatch.errors import UsageError
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.rank_memory import estimate_rank_memory
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.prediction_tables import BREAKDOWN
from flopwatch.prediction.cost import estimate_cost
from flopwatch.prediction.hardware import Machine, find_machine
from flopwatch.prediction.job_rows import parse_rows
from flopwatch.prediction.memory_capacity import find_capacity
from flopwatch.prediction.predictions import estimate_memory, predict
from flopwatch.prediction.software_stacks import TYPICAL, find_stack

STACK = find_stack(TYPICAL)
DEVICES = (
    "V100-SXM-32GB", "A100-40GB", "A100-80GB", "H100-SXM", "H100-PCIe", "H800-SXM", "H200-SXM",
    "B200", "GB200", "MI250X", "MI300X", "MI355X", "Gaudi3", "L40S",
)  # fmt: skip
DENSE = TrainingJob(
    "llama-2-70b",
    4096,
    grad_accum=16,
    precision="bf16-mixed",
    parallelism=Parallelism(data=4, tensor=8, sequence=True, pipeline=4, sharding="zero1"),
)
EXPERTS = TrainingJob(
    "mixtral-8x7b",
    4096,
    grad_accum=8,
    parallelism=Parallelism(data=16, tensor=2, sequence=True, expert=8, sharding="zero1"),
)
LONG = TrainingJob(
    "llama-3-8b",
    131_072,
    recompute="full",
    parallelism=Parallelism(context=8, sharding="full"),
)
H100 = find_machine("H100-SXM")[1]


def measure(job: TrainingJob, machine: Machine = H100) -> float:
    """Seconds of a step."""
    return estimate_cost(job, machine, STACK.parameters, habits=STACK.habits).step_s


@pytest.mark.parametrize("device", DEVICES)
def test_no_device_has_an_absurd_utilisation(device: str) -> None:
    machine = find_machine(device)[1]
    for job in (DENSE, EXPERTS, LONG):
        precision = "fp16-mixed" if device.startswith("V100") else "bf16-mixed"
        found = predict(replace(job, precision=precision), machine, STACK)
        assert found.utilisation.mfu is not None
        assert 0.01 < found.utilisation.mfu < 0.75, (device, job.model)
        assert 0.2 < found.low / found.tokens_per_s < 0.95
        assert 1.05 < found.high / found.tokens_per_s < 5


@pytest.mark.parametrize(
    "better",
    [
        {"link_bytes_per_s": 2 * (H100.link_bytes_per_s or 0)},
        {"network_bytes_per_s": 2 * (H100.network_bytes_per_s or 0)},
        {"bandwidth_bytes_per_s": 2 * H100.bandwidth_bytes_per_s},
        {"sustained": dict.fromkeys(H100.peak_flops_per_s, 0.9)},
        {"per_node": 2 * H100.per_node},
    ],
)
def test_better_hardware_is_never_slower(better: dict[str, Any]) -> None:
    for job in (DENSE, EXPERTS, LONG):
        assert measure(job, replace(H100, **better)) <= measure(job)


def test_narrow_matmuls_are_faster_and_half_the_time_at_most_is_saved() -> None:
    for job in (DENSE, EXPERTS):
        assert 0.5 < measure(replace(job, precision="fp8")) / measure(job) < 1


def test_a_pipeline_with_few_micro_batches_waits() -> None:
    alone = replace(DENSE, parallelism=replace(DENSE.parallelism, data=1, sharding="none"))
    many, few = (measure(replace(alone, grad_accum=count)) / count for count in (256, 4))
    # Of 4 stages, 4 micro-batches take as long as 7 without a bubble.
    assert 1.5 < few / many < 1.8  # with an update that is shared by fewer


def test_a_limit_of_power_slows_what_computes() -> None:
    limited = find_machine("8xH100-SXM-500W")[1]
    assert find_machine("8xH100-SXM-700W")[1] == H100
    assert 1.05 < measure(DENSE, limited) / measure(DENSE) < 1.4
    assert limited.name == H100.name


def test_layers_that_are_recomputed_cost_what_they_save_in_memory() -> None:
    def recompute(layers: int | None) -> TrainingJob:
        return replace(DENSE, recompute="full", recompute_layers=layers)

    # Of 20 layers of each of four stages.
    times = [measure(recompute(layers)) for layers in (0, 5, 20)]
    held = [
        estimate_memory(recompute(layers), H100, None).parts["activations"] for layers in (0, 5, 20)
    ]
    assert times[0] == pytest.approx(measure(DENSE))
    assert times[2] == pytest.approx(measure(recompute(None)))
    assert times[1] - times[0] == pytest.approx((times[2] - times[0]) / 4, rel=0.1)
    assert held[1] == pytest.approx(0.75 * held[0] + 0.25 * held[2])
    again, whole = (
        count_flops_by_part(recompute(layers))["feed-forward"].recomputed for layers in (5, None)
    )
    assert again == pytest.approx(whole / 4)
    with pytest.raises(UsageError, match="choose recompute full"):
        replace(DENSE, recompute_layers=4)


def test_offloading_trades_memory_for_time() -> None:
    job = TrainingJob("llama-3-8b", 8192, parallelism=Parallelism(data=8, sharding="zero1"))
    bare = estimate_memory(job, H100, None).parts
    for offload, part in (("activations", "activations"), ("optimizer", "optimizer state")):
        changed = replace(job, offload=offload)
        held = estimate_memory(changed, H100, None).parts
        assert held.get(part, 0.0) < 0.1 * bare[part], offload
        assert measure(changed) > measure(job), offload
        # A host that is as near as if it was the device's own memory.
        near = replace(H100, host_bytes_per_s=1e15)
        assert measure(changed, near) < measure(changed), offload
    with pytest.raises(UsageError, match="offload"):
        replace(job, offload="everything")


def test_tokens_swapped_for_heads_cost_what_they_move() -> None:
    swapped = replace(
        LONG, parallelism=replace(LONG.parallelism, context_exchange="all-to-all")
    )  # fmt: skip
    assert measure(swapped) == pytest.approx(measure(LONG), rel=0.1)
    slow = replace(H100, link_bytes_per_s=1e9)
    parts = estimate_cost(swapped, slow, STACK.parameters).by_name
    moved = parts["context-parallel communication"].time_s
    # 32 layers, once forward, once for the recomputation, once backward; queries and results of
    # 4,096 numbers, keys and values of 1,024, of 16,384 tokens in 16 bits; seven eighths go away.
    wanted = 32 * 3 * (2 * 4096 + 2 * 1024) * 16_384 * 2 * 7 / 8 / 1e9
    assert moved == pytest.approx(wanted, rel=0.02)
    few = replace(swapped, parallelism=replace(swapped.parallelism, context=64))
    with pytest.raises(UsageError, match="cannot share 32 heads"):
        predict(few, H100, STACK)


def test_experts_that_fewer_tensor_parallel_ranks_divide_are_as_much_work() -> None:
    divided = replace(EXPERTS, parallelism=replace(EXPERTS.parallelism, expert_tensor=1))
    whole, parts = (
        estimate_cost(job, H100, STACK.parameters).by_name["matmuls"].time_s
        for job in (EXPERTS, divided)
    )
    assert parts == pytest.approx(whole, rel=0.1)
    # Twice as many experts, each whole: a rank holds as much either way once twice as many share.
    twice = replace(divided, parallelism=replace(divided.parallelism, expert=8))
    held = [estimate_memory(job, H100, None).parts["parameters"] for job in (EXPERTS, twice)]
    assert held[1] > 1.5 * held[0]
    with pytest.raises(UsageError, match="expert_tensor=3"):
        replace(EXPERTS.parallelism, expert_tensor=3)


def test_experts_with_uneven_work_are_slower() -> None:
    times = [measure(replace(EXPERTS, expert_imbalance=each)) for each in (1.0, 1.15, 2.0)]
    assert times[0] < times[1] < times[2]
    assert measure(EXPERTS) == pytest.approx(times[1], rel=0.02)
    with pytest.raises(UsageError, match="expert_imbalance"):
        replace(EXPERTS, expert_imbalance=0.5)


def test_a_table_may_name_what_is_offloaded_and_how_ranks_exchange() -> None:
    heading = (
        "model,seq_len,n_gpus,gpu_type,tensor_parallel,context_parallel,expert_parallel,sharding,"
        "recompute,recompute_layers,offload,context_exchange,expert_tensor_parallel,expert_imbalance"
    )
    rows = parse_rows(
        f"{heading}\n"
        "mixtral-8x7b,4096,32,h100_500w,2,2,8,zero1,full,3,optimizer,Ulysses,1,1.3\n"
        "mixtral-8x7b,4096,32,h100,2,2,8,zero1,none,3,,,,\n"
        "mixtral-8x7b,4096,32,h100,2,2,8,zero1,none,,the moon,,,\n",
        "jobs.csv",
    )
    first, second, third = rows
    assert first.job is not None
    assert (first.job.recompute_layers, first.job.offload) == (3, "optimizer")
    assert first.job.expert_imbalance == 1.3
    assert first.job.parallelism.context_exchange == "all-to-all"
    assert (first.job.parallelism.expert, first.job.parallelism.expert_tensor) == (8, 1)
    assert second.job is not None
    assert second.job.recompute_layers is None  # nothing is recomputed
    assert third.job is None
    assert "the moon" in (third.reason or "")


def test_every_part_of_a_step_has_a_name_in_tables() -> None:
    jobs = (
        replace(DENSE, offload="both"), EXPERTS, LONG,
        replace(LONG, parallelism=replace(LONG.parallelism, context_exchange="all-to-all")),
    )  # fmt: skip
    parts = {
        name
        for job in jobs
        for name in estimate_cost(job, H100, STACK.parameters, pressed_gb=1.0).by_name
    }
    assert {"gradient sums", "offloading", "memory pressure"} < parts <= set(BREAKDOWN)


def test_memory_honours_what_is_offloaded_and_recomputed_or_refuses_it() -> None:
    job = TrainingJob("small", 512, micro_batch=4, precision="bf16-mixed", recompute="full")
    whole, some, away = (
        find_capacity(each, "cuda", 2 * 10**9).parts
        for each in (
            job, replace(job, recompute_layers=1), replace(job, offload="optimizer"),
        )
    )  # fmt: skip
    assert some["activations"] > whole["activations"]
    assert "optimizer state" not in away
    with pytest.raises(UsageError, match="does not know offloading yet"):
        estimate_rank_memory(replace(job, offload="both"))
