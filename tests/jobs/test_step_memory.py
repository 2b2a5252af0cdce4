"""What a training step is predicted to hold is what it holds: on tensors without memory, where
every size can be tried, and on real ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from flopwatch.jobs.step_flops import count_parameters
from flopwatch.jobs.variants import PRECISIONS, Attention

from flopwatch.devices.tensor_memory import measure_memory
from flopwatch.jobs.activation_memory import Sizes, estimate, footprint_of, list_weights, make_block
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.step_memory import Footprint, Plan
from flopwatch.layers.layer_workload import Setting
from flopwatch.models import survey
from flopwatch.models.builder import build, choose_attention, choose_recompute
from flopwatch.models.training_step import SharedModel, TrainingStep

MODELS = [
    "decoder:hidden_size=128:layers=4:vocabulary=500",
    "decoder:hidden_size=128:layers=4:vocabulary=3000:activation=gelu:tied=true",
    "gpt:hidden_size=128:layers=4:vocabulary=500:activation=swiglu:tied=false",
    "gpt:hidden_size=128:layers=4:vocabulary=3000",
]
PLANS = [
    Plan(batch=batch, context=context, precision=precision, attention=attention, checkpointed=again)
    for (batch, context), precision, attention, again in product(
        [(1, 16), (4, 128), (2, 512)],
        ["fp32", "bf16-mixed", "bf16"],
        ["sdpa", "plain"],
        [False, True],
    )
]
SAMPLED = [(MODELS[number // 4 % len(MODELS)], PLANS[number]) for number in range(0, 36, 5)]
"""Every choice at least twice, and in other company each time; all with all takes a minute."""


def name(value: Any) -> str:
    if isinstance(value, str):
        return value.partition(":")[0]
    again = "again" if value.checkpointed else "once"
    return f"{value.batch}x{value.context}-{value.precision}-{value.attention}-{again}"


@pytest.mark.parametrize(("model", "plan"), SAMPLED, ids=name)
def test_formulas_are_as_a_step_on_fake_tensors(model: str, plan: Plan) -> None:
    require_equal(estimate(find_shape(model), plan), survey.estimate(find_shape(model), plan))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_formulas_are_as_every_step_on_fake_tensors(model: str) -> None:
    for plan in PLANS:
        require_equal(estimate(find_shape(model), plan), survey.estimate(find_shape(model), plan))


def require_equal(predicted: Footprint, followed: Footprint) -> None:
    assert predicted.parameters == followed.parameters
    assert predicted.buffer_bytes == followed.buffer_bytes
    assert predicted.block_bytes == pytest.approx(followed.block_bytes, rel=0.002)
    assert predicted.activation_bytes == pytest.approx(followed.activation_bytes, rel=0.002)
    # Forward alone is coarser: inside a checkpointed block, what is freed early is not told apart.
    assert predicted.forward_peak_bytes == pytest.approx(followed.forward_peak_bytes, rel=0.06)
    assert predicted.backward_peak_bytes == pytest.approx(followed.backward_peak_bytes, rel=0.015)
    assert predicted.peak_bytes == pytest.approx(followed.peak_bytes, rel=0.01)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So small products only wait for further ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def measure(model: str, plan: Plan) -> dict[str, int]:
    """Bytes of all tensors at the peak of each phase."""
    shape = find_shape(model)
    built = build(shape, dtype=PRECISIONS[plan.precision].dtype)
    choose_attention(built, plan.attention)
    choose_recompute(built, plan.recompute)
    ids = torch.randint(shape.vocabulary, (plan.batch, plan.context))
    chosen = PRECISIONS[plan.precision]
    setting = Setting(device="cpu", dtype=chosen.dtype, autocast=chosen.autocast)
    step = TrainingStep(SharedModel(built, ids, optimizer=plan.optimizer), {}, setting.cast)
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
    plan = Plan(batch=4, context=64, attention=attention)
    once, again, selective = (
        max(measure(model, replace(plan, **change)).values())
        for change in ({}, {"checkpointed": True}, {"selective": True})
    )
    assert again < selective < once
    predicted = estimate(find_shape(model), replace(plan, selective=True))
    assert predicted.peak_bytes == pytest.approx(selective, rel=0.03)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("model", "plan"),
    [
        (DECODER, Plan(batch=4, context=64)),
        (DECODER, Plan(batch=2, context=256, attention="plain")),
        (DECODER, Plan(batch=8, context=64, checkpointed=True, optimizer="sgd")),
        (DECODER, Plan(batch=1, context=8, optimizer="adamw-unfused")),
        (DECODER, Plan(batch=2, context=16, precision="bf16")),
        (DECODER, Plan(batch=2, context=16, precision="bf16-mixed")),
        (GPT, Plan(batch=4, context=64)),
        (GPT, Plan(batch=1, context=8)),
    ],
    ids=name,
)
def test_real_steps_hold_what_is_predicted(model: str, plan: Plan) -> None:
    measured = measure(model, plan)
    predicted = estimate(find_shape(model), plan)
    # CPUs with instructions for bfloat16 copy weights into another order, which nobody predicts.
    tolerance = 0.05 if plan.precision == "bf16" else 0.015
    assert predicted.peak_bytes == pytest.approx(max(measured.values()), rel=tolerance)
    peaks = [predicted.forward, predicted.backward, predicted.optimizer]
    held = predicted.parameter_bytes + predicted.buffer_bytes + predicted.optimizer_bytes
    for peak, found in zip(peaks, measured.values(), strict=True):
        # A phase begins with what the one before it has left.
        assert held + peak.total_bytes <= 1.05 * found


def test_the_small_model_holds_what_was_measured_once() -> None:
    """With 12 layers and 128.6 million parameters, by the profiler's count of allocations."""
    predicted = estimate(find_shape("small"), Plan(batch=4, context=128))
    assert predicted.peak_bytes == pytest.approx(2_139_544_884, rel=1e-4)
    held = predicted.parameter_bytes + predicted.buffer_bytes
    assert predicted.forward_peak_bytes - held == pytest.approx(574_511_112, rel=1e-4)
    assert predicted.backward_peak_bytes - held == pytest.approx(594_987_016, rel=1e-4)


@pytest.mark.parametrize("model", ["small", "gpt-125m", *MODELS])
def test_gradients_of_all_stages_are_those_of_all_parameters(model: str) -> None:
    shape = find_shape(model)
    predicted = estimate(shape, Plan())
    block = sum(stage.gradient_bytes for stage in make_block(Sizes(shape, Plan())))
    other = count_parameters(replace(shape, layers=1)) * 4 - block
    assert predicted.gradient_bytes == shape.layers * block + other
    assert count_parameters(replace(shape, layers=2)) * 4 == 2 * block + other


@pytest.mark.parametrize("model", MODELS)
def test_matrices_are_those_of_the_model(model: str) -> None:
    shape = find_shape(model)
    built = build(shape, device="meta")
    real = sorted(tuple(p.shape) for p in built.parameters() if p.dim() == 2)
    listed = list_weights(Sizes(shape, Plan()))
    assert sorted(weight.shape for weight in listed for _ in range(weight.count)) == real


def test_parts_add_up_to_the_peak_and_are_of_one_moment() -> None:
    predicted = estimate(find_shape("medium"), Plan(context=512))
    assert predicted.peak.name == "backward, loss"
    assert sum(predicted.parts().values()) == predicted.peak_bytes
    assert predicted.parts()["gradients"] == 0  # none yet, where activations are most
    few = estimate(find_shape("medium"), Plan(batch=1, context=16))
    assert few.peak.name == "backward, embedding"
    assert few.parts()["activations"] == 0


def test_what_a_choice_saves() -> None:
    shape = find_shape("small")
    usual = estimate(shape, Plan(context=1024))
    plain = estimate(shape, Plan(context=1024, attention="plain"))
    again = estimate(shape, Plan(context=1024, checkpointed=True))
    short = estimate(shape, Plan(context=1024, precision="bf16"))
    sgd = estimate(shape, Plan(context=1024, optimizer="sgd"))
    scores_bytes = 4 * 12 * 1024 * 1024 * 4
    assert plain.block_bytes - usual.block_bytes == pytest.approx(scores_bytes, rel=0.15)
    assert again.block_bytes == 4 * 1024 * 768 * 4
    assert short.parameter_bytes == usual.parameter_bytes / 2
    assert short.optimizer_bytes == usual.optimizer_bytes / 2
    assert usual.optimizer_bytes == 2 * usual.parameter_bytes
    assert sgd.optimizer_bytes == 0
    assert usual.peak_bytes - sgd.peak_bytes == usual.optimizer_bytes


def test_on_a_gpu_norms_keep_less_and_softmax_is_lifted() -> None:
    shape = find_shape("small")
    cpu, gpu = (estimate(shape, Plan(device=device)) for device in ("cpu", "cuda"))
    assert cpu.block_bytes - gpu.block_bytes == 2 * 4 * 128 * 768 * 4
    autocast = Plan(precision="bf16-mixed", attention="plain")
    cpu, gpu = (estimate(shape, replace(autocast, device=device)) for device in ("cpu", "cuda"))
    lifted = 4 * 12 * 128 * 128 * 4
    assert gpu.block_bytes - cpu.block_bytes == lifted - 2 * 4 * 128 * 768 * 4


def test_the_largest_tensors_come_first_by_name() -> None:
    found = estimate(find_shape("small"), Plan(batch=4, context=2048, attention="plain")).tensors
    assert (found[0].name, found[0].count) == ("attention weights", 12)
    assert found[0].shape == (4, 12, 2048, 2048)
    sizes = [tensor.size_bytes for tensor in found]
    assert sizes == sorted(sizes, reverse=True)


def test_models_of_ours_need_no_torch_and_others_are_surveyed() -> None:
    ours, other = find_shape(MODELS[0]), find_shape("llama:hidden_size=64:layers=3:vocabulary=99")
    assert footprint_of(ours, Plan()) == estimate(ours, Plan())
    assert footprint_of(other, Plan(batch=1)) == survey.estimate(other, Plan(batch=1))
