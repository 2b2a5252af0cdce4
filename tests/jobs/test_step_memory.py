"""What a training step is predicted to hold is what it holds: on tensors without memory, where
every size can be tried, and on real ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from flopwatch.devices.cpu import measure_memory
from flopwatch.jobs.activation_memory import Sizes, estimate_step, list_weights, make_block
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.step_memory import StepMemory
from flopwatch.jobs.training_job import Attention, TrainingJob
from flopwatch.models import job_estimates, survey
from flopwatch.models.builder import build
from flopwatch.models.step_workload import SharedModel, TrainingStep

MODELS = [
    "decoder:hidden_size=128:layers=4:vocabulary=500",
    "decoder:hidden_size=128:layers=4:vocabulary=3000:activation=gelu:tied=true",
    "gpt:hidden_size=128:layers=4:vocabulary=500:activation=swiglu:tied=false",
    "gpt:hidden_size=128:layers=4:vocabulary=3000",
]
MIXTURES = [
    "decoder:hidden_size=128:layers=4:vocabulary=500:experts=8:active_experts=2:expert_size=256",
    "decoder:hidden_size=128:layers=4:vocabulary=900:experts=4:active_experts=1:activation=gelu"
    ":tied=true:dense_layers=1",
    "decoder:hidden_size=128:layers=4:vocabulary=500:experts=8:active_experts=3:expert_size=128"
    ":shared_expert_size=256:expert_every=2",
]


def make(model: str = "small", seq_len: int = 128, **given: Any) -> TrainingJob:
    return TrainingJob(model, seq_len, **{"micro_batch": 4, "precision": "fp32", **given})


CHOICES = [
    {
        "micro_batch": micro_batch,
        "seq_len": seq_len,
        "precision": precision,
        "attention": attention,
        "recompute": recompute,
    }
    for (micro_batch, seq_len), precision, attention, recompute in product(
        [(1, 16), (4, 128), (2, 512)],
        ["fp32", "bf16-mixed", "bf16"],
        ["sdpa", "plain"],
        ["none", "full"],
    )
]
SAMPLED = [make(MODELS[n // 4 % len(MODELS)], **CHOICES[n]) for n in range(0, 36, 5)]
"""Every choice at least twice, and in other company each time; all with all takes a minute."""


def name(job: TrainingJob) -> str:
    choices = f"{job.precision}-{job.attention}-{job.recompute}"
    return f"{job.shape.architecture}-{job.micro_batch}x{job.seq_len}-{choices}"


@pytest.mark.parametrize("job", SAMPLED, ids=name)
def test_formulas_are_as_a_step_on_fake_tensors(job: TrainingJob) -> None:
    require_equal(estimate_step(job), survey.estimate(job))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_formulas_are_as_every_step_on_fake_tensors(model: str) -> None:
    for choices in CHOICES:
        job = make(model, **choices)
        require_equal(estimate_step(job), survey.estimate(job))


def list_mixtures(step: int) -> list[TrainingJob]:
    """With all blocks alike, as a survey takes them to be."""
    alike = [re.sub(":(dense_layers|expert_every)=.", "", model) for model in MIXTURES]
    return [make(alike[n // step % 3], **CHOICES[n]) for n in range(0, len(CHOICES), step)]


@pytest.mark.parametrize("job", list_mixtures(11), ids=name)
def test_mixtures_keep_what_a_step_on_fake_tensors_keeps(job: TrainingJob) -> None:
    require_kept(estimate_step(job), survey.estimate(job))


@pytest.mark.slow
def test_mixtures_keep_what_every_step_on_fake_tensors_keeps() -> None:
    for job in list_mixtures(1):
        require_kept(estimate_step(job), survey.estimate(job))


def require_kept(predicted: StepMemory, followed: StepMemory) -> None:
    """Fake gradients of experts are copied before they are a parameter's, real ones are not: peaks
    are compared with real steps."""
    assert predicted.parameters == followed.parameters
    assert predicted.block_bytes == pytest.approx(followed.block_bytes, rel=0.002)
    assert predicted.activation_bytes == pytest.approx(followed.activation_bytes, rel=0.002)


def require_equal(predicted: StepMemory, followed: StepMemory) -> None:
    assert predicted.parameters == followed.parameters
    assert predicted.buffer_bytes == followed.buffer_bytes
    assert predicted.block_bytes == pytest.approx(followed.block_bytes, rel=0.002)
    assert predicted.activation_bytes == pytest.approx(followed.activation_bytes, rel=0.002)
    # Forward alone is coarser: inside a recomputed block, what is freed early is not separate.
    assert predicted.forward_peak_bytes == pytest.approx(followed.forward_peak_bytes, rel=0.06)
    assert predicted.backward_peak_bytes == pytest.approx(followed.backward_peak_bytes, rel=0.015)
    assert predicted.peak_bytes == pytest.approx(followed.peak_bytes, rel=0.01)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So small matmuls only wait for further ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def measure(job: TrainingJob) -> dict[str, int]:
    """Bytes of all tensors at the peak of each phase."""
    built = build(job.shape, dtype=job.arithmetic.dtype)
    ids = torch.randint(job.shape.vocabulary, (job.micro_batch, job.seq_len))
    step = TrainingStep(SharedModel(built, ids, job.optimizer), job)
    memory = measure_memory(step.prepare, step.phases)
    assert memory is not None
    state = step.shared.optimizer.state.values()
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in [*built.parameters(), *built.buffers(), ids]
        + [value for values in state for value in values.values() if torch.is_tensor(value)]
    }
    return {phase: sum(held.values()) + found.peak_bytes for phase, found in memory.phases.items()}


DECODER = "decoder:hidden_size=64:layers=2:heads=2:vocabulary=300:positions=256"
GPT = "gpt:hidden_size=64:layers=2:heads=2:vocabulary=300:positions=256"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("model", [DECODER, GPT])
@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_selective_blocks_hold_what_is_predicted(model: str, attention: Attention) -> None:
    jobs = [
        make(model, 64, attention=attention, recompute=recompute)
        for recompute in ("none", "full", "selective")
    ]
    once, again, selective = (max(measure(job).values()) for job in jobs)
    assert again < selective < once
    predicted = estimate_step(jobs[-1])
    assert predicted.peak_bytes == pytest.approx(selective, rel=0.03)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    "job",
    [
        make(DECODER, 64),
        make(DECODER, 256, micro_batch=2, attention="plain"),
        make(DECODER, 64, micro_batch=8, recompute="full", optimizer="sgd"),
        make(DECODER, 8, micro_batch=1, optimizer="adamw-unfused"),
        make(DECODER, 16, micro_batch=2, precision="bf16"),
        make(DECODER, 16, micro_batch=2, precision="bf16-mixed"),
        make(GPT, 64),
        make(GPT, 8, micro_batch=1),
        *(make(model, 64) for model in MIXTURES),
        make(MIXTURES[0], 16, micro_batch=1),
        make(MIXTURES[0], 16, micro_batch=1, precision="bf16-mixed"),
        make(MIXTURES[1], 64, micro_batch=1, precision="bf16-mixed", attention="plain"),
    ],
    ids=name,
)
def test_real_steps_hold_what_is_predicted(job: TrainingJob) -> None:
    measured = measure(job)
    predicted = estimate_step(job)
    # CPUs with instructions for bfloat16 copy weights into another order, which nobody predicts.
    tolerance = 0.05 if job.precision == "bf16" else 0.015
    assert predicted.peak_bytes == pytest.approx(max(measured.values()), rel=tolerance)
    peaks = [predicted.forward, predicted.backward, predicted.optimizer]
    held = predicted.parameter_bytes + predicted.buffer_bytes + predicted.optimizer_bytes
    for peak, found in zip(peaks, measured.values(), strict=True):
        # A phase begins with what the one before it has left.
        assert held + peak.total_bytes <= 1.05 * found


def test_the_small_model_holds_what_was_measured_once() -> None:
    """With 12 layers and 128.6 million parameters, by the profiler's count of allocations."""
    predicted = estimate_step(make())
    assert predicted.peak_bytes == pytest.approx(2_139_544_884, rel=1e-4)
    held = predicted.parameter_bytes + predicted.buffer_bytes
    assert predicted.forward_peak_bytes - held == pytest.approx(574_511_112, rel=1e-4)
    assert predicted.backward_peak_bytes - held == pytest.approx(594_987_016, rel=1e-4)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("model", MIXTURES)
def test_mixtures_that_are_recomputed_hold_a_little_less(model: str, recompute: Any) -> None:
    job = make(model, 64, recompute=recompute)
    measured = max(measure(job).values())
    assert 0.995 * measured <= estimate_step(job).peak_bytes <= 1.05 * measured


@pytest.mark.parametrize("model", ["small", "gpt-125m", *MODELS, MIXTURES[0]])
def test_gradients_of_all_stages_are_those_of_all_parameters(model: str) -> None:
    shape, job = find_shape(model), make(model)
    predicted = estimate_step(job)
    blocks = make_block(Sizes(job, on_host=True), has_experts=shape.experts is not None)
    block = sum(stage.gradient_bytes for stage in blocks)
    other = count_parameters(replace(shape, layers=1)) * 4 - block
    assert predicted.gradient_bytes == shape.layers * block + other
    assert count_parameters(replace(shape, layers=2)) * 4 == 2 * block + other


@pytest.mark.parametrize("model", [*MODELS, *MIXTURES])
def test_matrices_are_those_of_the_model(model: str) -> None:
    shape = find_shape(model)
    built = build(shape, device="meta")
    real = sorted(tuple(p.shape) for p in built.parameters() if p.dim() > 1)
    listed = list_weights(Sizes(make(model), on_host=True))
    assert sorted(weight.shape for weight in listed for _ in range(weight.count)) == real


def test_parts_add_up_to_the_peak_and_are_of_one_moment() -> None:
    predicted = estimate_step(make("medium", 512))
    assert predicted.peak.name == "backward, loss"
    assert sum(predicted.parts().values()) == predicted.peak_bytes
    assert predicted.parts()["gradients"] == 0  # none yet, where activations are most
    few = estimate_step(make("medium", 16, micro_batch=1))
    assert few.peak.name == "backward, embedding"
    assert few.parts()["activations"] == 0


def test_what_a_choice_saves() -> None:
    usual, plain, again, short, sgd = (
        estimate_step(make(seq_len=1024, **choice))
        for choice in (
            {},
            {"attention": "plain"},
            {"recompute": "full"},
            {"precision": "bf16"},
            {"optimizer": "sgd"},
        )
    )
    scores_bytes = 4 * 12 * 1024 * 1024 * 4
    assert plain.block_bytes - usual.block_bytes == pytest.approx(scores_bytes, rel=0.15)
    assert again.block_bytes == 4 * 1024 * 768 * 4
    assert short.parameter_bytes == usual.parameter_bytes / 2
    assert short.optimizer_bytes == usual.optimizer_bytes / 2
    assert usual.optimizer_bytes == 2 * usual.parameter_bytes
    assert sgd.optimizer_bytes == 0
    assert usual.peak_bytes - sgd.peak_bytes == usual.optimizer_bytes


def test_on_a_gpu_norms_keep_less_and_softmax_is_lifted() -> None:
    cpu, gpu = (estimate_step(make(), on_host=on_host) for on_host in (True, False))
    assert cpu.block_bytes - gpu.block_bytes == 2 * 4 * 128 * 768 * 4
    autocast = make(precision="bf16-mixed", attention="plain")
    cpu, gpu = (estimate_step(autocast, on_host=on_host) for on_host in (True, False))
    lifted = 4 * 12 * 128 * 128 * 4
    assert gpu.block_bytes - cpu.block_bytes == lifted - 2 * 4 * 128 * 768 * 4


def test_the_largest_tensors_come_first_by_name() -> None:
    found = estimate_step(make(seq_len=2048, attention="plain")).tensors
    assert (found[0].name, found[0].count) == ("attention weights", 12)
    assert found[0].shape == (4, 12, 2048, 2048)
    sizes = [tensor.size_bytes for tensor in found]
    assert sizes == sorted(sizes, reverse=True)


def test_models_of_ours_need_no_torch_and_others_are_surveyed() -> None:
    ours, other = make(MODELS[0]), make("llama:hidden_size=64:layers=3:vocabulary=99")
    assert job_estimates.estimate_step(ours, on_host=True) == estimate_step(ours)
    assert job_estimates.estimate_step(other, on_host=True) == survey.estimate(other)
