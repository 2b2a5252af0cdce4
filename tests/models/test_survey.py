"""Surveys of models of the library transformers: exact, without memory, and nothing left behind."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.devices.cpu import measure_memory
from flopwatch.errors import UsageError
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.training_job import Recompute, TrainingJob
from flopwatch.models import builder
from flopwatch.models import survey as survey_module
from flopwatch.models.step_workload import SharedModel, TrainingStep
from flopwatch.models.survey import Trace, estimate, run_step, survey, trace_step

TINY = "hidden_size=64:layers=4:heads=4:vocabulary=300:positions=128"
KNOWN = [f"opt:{TINY}", f"gpt_neox:{TINY}", f"llama:{TINY}:key_value_heads=2"]
OTHERS = [f"gpt2:{TINY}", f"qwen2:{TINY}", f"gemma2:{TINY}"]


def make(model: str, seq_len: int, micro_batch: int, **given: Any) -> TrainingJob:
    return TrainingJob(model, seq_len, micro_batch=micro_batch, precision="fp32", **given)


@pytest.mark.parametrize("model", KNOWN)
def test_counts_are_those_from_formulas_where_there_are_any(model: str) -> None:
    job = make(model, 20, 2)
    found = survey(job)
    counted = {part: passes.forward for part, passes in count_flops_by_part(job).items()}
    linear = counted["qkv"] + counted["output"] + counted["feed-forward"]
    assert found.parameters == job.parameters
    assert found.forward_flops == sum(counted.values())
    assert found.attention_flops == counted["scores"] + counted["values"]
    assert 2 * 2 * 20 * found.block_weights == linear


@pytest.mark.parametrize("model", OTHERS)
def test_counts_of_other_architectures(model: str) -> None:
    shape = find_shape(model)
    found = survey(make(model, 20, 2))
    built = builder.build(shape, device="meta")
    assert found.parameters == sum(p.numel() for p in built.parameters())
    # Queries with keys, and scores with values, of every head.
    assert found.attention_flops == 4 * 2 * 2 * 2 * 20 * 20 * 64
    assert found.other_weights == 300 * 64
    model_of_its_own, ids = (
        builder.build_from_transformers(shape, attention="eager"),
        torch.ones(2, 20).long(),
    )
    with FlopCounterMode(display=False) as counter:
        model_of_its_own(input_ids=ids)
    assert found.forward_flops == counter.get_total_flops()


@pytest.mark.parametrize(
    "job", [make(KNOWN[2], 4, 1), *(make(model, 64, 2) for model in [*KNOWN, *OTHERS])], ids=str
)
def test_two_blocks_are_enough_for_all(job: TrainingJob) -> None:
    found, whole = estimate(job), run_step(job)
    assert found.parameters == whole.parameters
    assert found.activation_bytes == pytest.approx(whole.kept_bytes, rel=0.001)
    assert found.forward.total_bytes == pytest.approx(whole.peaks["forward"].total_bytes, rel=0.001)
    backward = max(whole.peaks["early"].total_bytes, whole.peaks["late"].total_bytes)
    assert found.backward.total_bytes == pytest.approx(backward, rel=0.001)


@pytest.mark.parametrize("model", [KNOWN[0], KNOWN[2], OTHERS[2]])
@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_other_micro_batches_follow_from_two(
    model: str, recompute: Recompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is run for a third, and all that is known of it is the same as if it were."""
    jobs = {n: replace(make(model, 24, n, recompute=recompute), precision="bf16-mixed")
            for n in (1, 2, 3, 7)}  # fmt: skip
    whole = {n: run_step(job) for n, job in jobs.items()}
    ran: list[int] = []

    def run(job: TrainingJob) -> Trace:
        ran.append(job.micro_batch)
        return whole[job.micro_batch]

    monkeypatch.setattr(survey_module, "run_step", run)
    monkeypatch.setattr(survey_module, "_KEPT", {})
    for number in (2, 3, 7, 1, 7, 2):
        found, expected = trace_step(jobs[number]), whole[number]
        assert found.peaks == expected.peaks
        assert found.tensors == expected.tensors
        assert (found.kept_bytes, found.buffer_bytes) == (
            expected.kept_bytes,
            expected.buffer_bytes,
        )
    assert ran == [2, 3, 1]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("model", [KNOWN[0], KNOWN[2], OTHERS[0]])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_real_steps_hold_what_was_surveyed(model: str, recompute: Recompute) -> None:
    job = make(model, 64, 2, recompute=recompute)
    built = builder.build(job.shape)
    ids = torch.randint(job.shape.vocabulary, (2, 64))
    step = TrainingStep(SharedModel(built, ids), job)
    memory = measure_memory(step.prepare, step.phases)
    assert memory is not None
    found = estimate(job)
    # Every checkpoint keeps the state of the random numbers too, which is no fake tensor.
    states_bytes = 4 * 5056 if recompute == "full" else 0
    assert found.forward.total_bytes + states_bytes == pytest.approx(
        memory.phases["forward"].peak_bytes, rel=0.01
    )
    assert found.backward.total_bytes == pytest.approx(
        memory.phases["backward"].peak_bytes, rel=0.01
    )


def test_the_largest_tensors_have_names_and_counts() -> None:
    tensors = estimate(make(KNOWN[2], 128, 4)).tensors
    by_name = {tensor.name: tensor for tensor in tensors}
    assert by_name["model: _log_softmax"].shape == (4 * 128, 300)
    assert by_name["model.layers.*.mlp.act_fn: silu"].count == 4


def test_nothing_is_left_behind() -> None:
    before = list_fakes()  # other tests may have left some
    estimate(make(KNOWN[2], 8, 1))
    assert list_fakes() <= before


def list_fakes() -> set[int]:
    gc.collect()
    return {id(thing) for thing in gc.get_objects() if issubclass(type(thing), FakeTensor)}


def test_a_single_block_and_two_need_no_further_steps() -> None:
    shape, job = find_shape(KNOWN[1]), make(KNOWN[1], 128, 4)
    one, two, three = (estimate(replace(job, model=replace(shape, layers=n))) for n in (1, 2, 3))
    assert two.parameters - one.parameters == three.parameters - two.parameters
    assert one.activation_bytes < two.activation_bytes
    assert three.block_bytes == two.block_bytes == two.activation_bytes - one.activation_bytes


def test_what_cannot_be_surveyed_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"^a step of 'mixtral' cannot be surveyed .*still work$"):
        estimate(make(f"mixtral:{TINY}", 8, 1))
