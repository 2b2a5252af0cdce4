"""Surveys of models of the library transformers: exact, without memory, and nothing left behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from flopwatch.jobs.step_flops import count_flops, count_parameters
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.devices.tensor_memory import measure_memory
from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.step_memory import Plan
from flopwatch.models import builder
from flopwatch.models.survey import estimate, run_step, survey
from flopwatch.models.training_step import SharedModel, TrainingStep

TINY = "hidden_size=64:layers=4:heads=4:vocabulary=300:positions=128"
KNOWN = [f"opt:{TINY}", f"gpt_neox:{TINY}", f"llama:{TINY}:key_value_heads=2"]
OTHERS = [f"gpt2:{TINY}", f"qwen2:{TINY}", f"gemma2:{TINY}"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """So small products only wait for further ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("model", KNOWN)
def test_counts_are_those_from_formulas_where_there_are_any(model: str) -> None:
    shape = find_shape(model)
    found = survey(shape, batch=2, tokens=20)
    counted = count_flops(shape, batch=2, tokens=20)
    assert found.parameters == count_parameters(shape)
    assert found.forward_flops == counted.forward
    assert found.attention_flops == counted.attention_products
    assert 2 * 2 * 20 * found.block_weights == counted.linear


@pytest.mark.parametrize("model", OTHERS)
def test_counts_of_other_architectures(model: str) -> None:
    shape = find_shape(model)
    found = survey(shape, batch=2, tokens=20)
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


FEW, MANY = Plan(batch=1, context=4), Plan(batch=2, context=64)


@pytest.mark.parametrize(
    ("model", "plan"), [(KNOWN[2], FEW), *((model, MANY) for model in [*KNOWN, *OTHERS])]
)
def test_two_blocks_tell_of_all(model: str, plan: Plan) -> None:
    found, whole = estimate(find_shape(model), plan), run_step(find_shape(model), plan)
    assert found.parameters == whole.parameters
    assert found.activation_bytes == pytest.approx(whole.kept_bytes, rel=0.001)
    assert found.forward.total_bytes == pytest.approx(whole.peaks["forward"].total_bytes, rel=0.001)
    backward = max(whole.peaks["early"].total_bytes, whole.peaks["late"].total_bytes)
    assert found.backward.total_bytes == pytest.approx(backward, rel=0.001)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("model", [KNOWN[0], KNOWN[2], OTHERS[0]])
@pytest.mark.parametrize(
    "plan", [Plan(batch=2, context=64), Plan(batch=2, context=64, checkpointed=True)]
)
def test_real_steps_hold_what_was_surveyed(model: str, plan: Plan) -> None:
    shape = find_shape(model)
    built = builder.build(shape)
    if plan.checkpointed:
        built.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(shape.vocabulary, (plan.batch, plan.context))
    step = TrainingStep(SharedModel(built, ids), {})
    memory = measure_memory(step.prepare, step.phases)
    assert memory is not None
    found = estimate(shape, plan)
    # Every checkpoint keeps the state of the random numbers too, which is no fake tensor.
    states_bytes = 4 * 5056 if plan.checkpointed else 0
    assert found.forward.total_bytes + states_bytes == pytest.approx(
        memory.phases["forward"].peak_bytes, rel=0.01
    )
    assert found.backward.total_bytes == pytest.approx(
        memory.phases["backward"].peak_bytes, rel=0.01
    )


def test_the_largest_tensors_have_names_and_counts() -> None:
    tensors = estimate(find_shape(KNOWN[2]), Plan(batch=4, context=128)).tensors
    by_name = {tensor.name: tensor for tensor in tensors}
    assert by_name["model: _log_softmax"].shape == (4 * 128, 300)
    assert by_name["model.layers.*.mlp.act_fn: silu"].count == 4


def test_nothing_is_left_behind() -> None:
    before = list_fakes()  # other tests may have left some
    estimate(find_shape(KNOWN[2]), Plan(batch=1, context=8))
    assert list_fakes() <= before


def list_fakes() -> set[int]:
    gc.collect()
    return {id(thing) for thing in gc.get_objects() if issubclass(type(thing), FakeTensor)}


def test_a_single_block_and_two_need_no_further_steps() -> None:
    shape = find_shape(KNOWN[1])
    one, two, three = (estimate(replace(shape, layers=n), Plan()) for n in (1, 2, 3))
    assert two.parameters - one.parameters == three.parameters - two.parameters
    assert one.activation_bytes < two.activation_bytes
    assert three.block_bytes == two.block_bytes == two.activation_bytes - one.activation_bytes


def test_what_cannot_be_surveyed_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"^a step of 'mixtral' cannot be surveyed .*still tell$"):
        estimate(find_shape(f"mixtral:{TINY}"), Plan(batch=1, context=8))
