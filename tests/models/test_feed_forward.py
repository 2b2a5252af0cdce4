"""Mixtures of experts: sorted and multiplied in groups they compute what a loop over experts does,
and what Mixtral does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flopwatch.errors import Unsupported, UsageError
from flopwatch.jobs.model_shapes import Shape, find_shape
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models import builder
from flopwatch.models.builder import build, choose_mixing, choose_recompute
from flopwatch.models.feed_forward import BALANCE_COEFFICIENT, Mixture
from flopwatch.models.module_flops import count_module_flops, describe_call
from flopwatch.models.step_workload import make_workload

SIZES = "hidden_size=48:feed_forward_size=80:layers=2:heads=3:vocabulary=101:positions=32"
SHAPES = {
    "usual": "experts=4:active_experts=2",
    "one of them": "experts=4:active_experts=1:activation=gelu",
    "all of them": "experts=3:active_experts=3:expert_size=20",
    "shared": "experts=4:active_experts=2:expert_size=24:shared_expert_size=40:dense_layers=1",
}


def find(name: str) -> Shape:
    return find_shape(f"decoder:{SIZES}:{SHAPES[name]}")


def make_mixture(name: str) -> Mixture:
    torch.manual_seed(0)
    mixture = Mixture(find(name))
    for parameter in mixture.parameters():
        nn.init.normal_(parameter, std=0.2)
    return mixture


def compute(mixture: Mixture, x: Tensor, mixing: Any) -> dict[str, Tensor]:
    mixture.zero_grad()
    mixture.mixing = mixing
    x = x.clone().requires_grad_()
    mixed, balance = mixture(x)
    ((mixed * torch.linspace(-1, 1, mixed.numel()).view_as(mixed)).sum() + balance.loss).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in mixture.named_parameters()}
    assert x.grad is not None
    return {"mixed": mixed, "balance": balance.loss, "rows": balance.rows, "x": x.grad, **gradients}


def send_everything_to_one(mixture: Mixture) -> None:
    with torch.no_grad():
        mixture.router.weight.zero_()
        mixture.router.weight[1] = 1.0


def leave_one_out(mixture: Mixture) -> None:
    with torch.no_grad():
        mixture.router.weight[2] = -10.0


def tie(mixture: Mixture) -> None:
    with torch.no_grad():
        mixture.router.weight.zero_()


ROUTERS = [None, send_everything_to_one, leave_one_out, tie]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("change", ROUTERS)
def test_outputs_and_all_gradients_are_those_of_the_loop(name: str, change: Any) -> None:
    mixture = make_mixture(name)
    if change is not None:
        change(mixture)
    x = torch.rand(2, 20, 48)  # positive: the router's sums follow its weights
    grouped, plain = (compute(mixture, x, mixing) for mixing in ("grouped", "plain"))
    assert int(grouped["rows"].sum()) == 2 * 20 * mixture.active
    for key, expected in plain.items():
        torch.testing.assert_close(grouped[key], expected, rtol=1e-4, atol=1e-4, msg=key)


def test_everything_goes_to_one_expert_and_others_have_gradients_of_zeros() -> None:
    mixture = make_mixture("one of them")
    send_everything_to_one(mixture)
    for mixing in ("grouped", "plain"):
        found = compute(mixture, torch.rand(2, 20, 48), mixing)
        assert found["rows"].tolist() == [0, 40, 0, 0]
        assert not found["experts.up"][[0, 2, 3]].any()
        assert found["experts.up"][1].any()


def test_the_balance_is_one_where_all_is_even_and_their_number_where_one_has_all() -> None:
    mixture = make_mixture("one of them")
    tie(mixture)
    x = torch.rand(2, 20, 48)
    assert mixture(x)[1].loss.item() == pytest.approx(1.0)  # all probabilities are equal
    send_everything_to_one(mixture)
    assert mixture(100 * x)[1].loss.item() == pytest.approx(4.0)


def test_the_balance_is_in_the_loss_of_the_model() -> None:
    torch.manual_seed(0)
    model, ids = build(find("usual")), torch.randint(101, (2, 20))
    found = []
    handles = [
        module.register_forward_hook(lambda _, __, out: found.append(out[1].loss.item()))
        for module in model.modules()
        if isinstance(module, Mixture)
    ]
    output = model(input_ids=ids, labels=ids)
    bare = nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert len(found) == len(handles) == 2
    assert output.loss.item() == pytest.approx(bare.item() + BALANCE_COEFFICIENT * sum(found))
    assert output.expert_rows.shape == (2, 4)


def test_it_is_mixtral() -> None:
    """But for the balance loss, which is no part of what transformers computes by default."""
    torch.manual_seed(0)
    mine = Mixture(find_shape(f"decoder:{SIZES}:experts=8:active_experts=2"))
    mixture = builder.build(find_shape(f"mixtral:{SIZES}")).model.layers[0].mlp
    for own, other in (
        (mine.router.weight, mixture.gate.weight),
        (mine.experts.up, mixture.experts.gate_up_proj),
        (mine.experts.down, mixture.experts.down_proj),
    ):
        nn.init.normal_(own, std=0.2)
        other.data.copy_(own.data)
    x = torch.randn(2, 20, 48)
    expected = mixture(x)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(mine(x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_what_is_recomputed_is_the_same(name: str, recompute: Any) -> None:
    torch.manual_seed(0)
    model, ids = build(find(name)), torch.randint(101, (2, 20))
    expected = step(model, ids)
    choose_recompute(model, recompute)
    for key, value in step(model, ids).items():
        torch.testing.assert_close(value, expected[key], msg=key)
    choose_mixing(model, "plain")
    for key, value in step(model, ids).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5, msg=key)


def step(model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in model.named_parameters()}}


def test_it_compiles_whole() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, ids = build(find("shared")), torch.randint(101, (2, 20))
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(ids, ids).loss, model(ids, ids).loss)


def test_a_monitor_counts_its_flops() -> None:
    shape = find("usual")
    model, ids = build(shape), torch.zeros(2, 20, dtype=torch.long)
    counted = count_module_flops(model, describe_call((), {"input_ids": ids, "labels": ids}, "cpu"))
    assert counted.uncounted == {}
    weights = 2 * (4 * 48 * 48 + 2 * 3 * 48 * 80 + 4 * 48) + 101 * 48
    scores = 2 * 2 * 20 * 48  # in full
    assert counted.forward == 2 * 40 * (weights + scores)


def test_layers_of_a_mixture_are_swapped_by_name_only() -> None:
    job = TrainingJob(find("usual"), 20, precision="fp32")
    with pytest.raises(Unsupported, match="which layers of decoder with experts are feed-forward"):
        make_workload(parse_variant(job, "dyad:auto:4"), "cpu")


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("small:experts=4:active_experts=5", "no more active ones than there are"),
        ("small:experts=4", "give both experts and active_experts"),
        ("small:shared_expert_size=64", "is of a model with experts"),
        ("gpt-125m:experts=4:active_experts=1", "experts can be accounted for"),
        ("small:experts=4:active_experts=1:window=8", "window can be accounted for"),
    ],
)
def test_what_makes_no_mixture_is_refused(model: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_shape(model)
