"""SwitchBack: against its plain version, beside nn.Linear, and in all that training does to it."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from flopwatch import layers
from flopwatch.errors import LayerError
from flopwatch.layers import SwitchBack, registry, switchback_layer
from flopwatch.layers.layer_workload import Setting, count_kept_bytes
from flopwatch.layers.switchback_layer import Recipe
from tests.rank_tools import run_on_ranks

RECIPES = [
    {"scales": scales, "save": save, "weight_gradient": weight_gradient}
    for scales, save, weight_gradient in itertools.product(
        ("rowwise", "global"), ("inputs", "int8"), ("standard", "int8")
    )
]
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: "-".join(r.values()))
compiler_warns = pytest.mark.filterwarnings(  # about what it does itself
    "ignore:`torch.jit:DeprecationWarning", "ignore:.*should not be instantiated:DeprecationWarning"
)


@pytest.fixture
def fresh_compiler() -> None:
    """It compiles one function only so many times."""
    torch._dynamo.reset()


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def run(layer: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The output and all gradients."""
    x = x.detach().clone().requires_grad_()
    parameters = dict(layer.named_parameters()) if isinstance(layer, nn.Module) else {}
    for parameter in parameters.values():
        parameter.grad = None
    y = layer(x)
    y.backward(grad)
    assert x.grad is not None
    gradients = {
        name.removeprefix("_orig_mod."): parameter.grad.clone()
        for name, parameter in parameters.items()
        if parameter.grad is not None
    }
    return {"output": y.detach(), "x": x.grad, **gradients}


@every_recipe
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "inputs", "outputs"), [(16, 32, 48), (7, 33, 17), (1, 1, 1), (0, 8, 4), (70, 5, 130)]
)
def test_agrees_with_the_plain_version(
    recipe: dict[str, str], dtype: torch.dtype, tokens: int, inputs: int, outputs: int
) -> None:
    layer = SwitchBack(inputs, outputs, dtype=dtype, **recipe)
    x, grad = torch.randn(tokens, inputs).to(dtype), torch.randn(tokens, outputs).to(dtype)
    found = run(layer, x, grad)
    assert layer.bias is not None
    plain = switchback_layer.compute_plainly(
        x, layer.weight.detach(), layer.bias.detach(), grad, Recipe(**recipe)
    )
    expected = {
        "output": plain.output,
        "x": plain.grad_x,
        "weight": plain.grad_weight,
        "bias": plain.grad_bias,
    }
    eps = torch.finfo(dtype).eps
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=4 * eps, atol=(32 + tokens) * eps, msg=name
        )


@every_recipe
def test_is_close_to_a_dense_layer(recipe: dict[str, str]) -> None:
    torch.manual_seed(0)
    dense = nn.Linear(768, 1024)
    layer = SwitchBack.from_linear(dense, **recipe)
    assert layer.weight is dense.weight
    x, grad = torch.randn(256, 768), torch.randn(256, 1024)
    expected, found = run(dense, x, grad), run(layer, x, grad)
    errors = {name: float((found[name] - v).norm() / v.norm()) for name, v in expected.items()}
    assert errors["output"] < 0.01
    assert errors["x"] < 0.01
    assert errors["bias"] < 1e-6
    is_exact = recipe["weight_gradient"] == "standard" and recipe["save"] == "inputs"
    assert errors["weight"] < (1e-6 if is_exact else 0.02)
    assert is_exact or errors["weight"] > 1e-3  # or the option did nothing


def test_int8_activations_are_widened_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = SwitchBack(8, 12, save="int8")
    x, grad = torch.randn(50, 8), torch.randn(50, 12)
    expected = run(layer, x, grad)
    monkeypatch.setattr(switchback_layer, "PART_TOKENS", 16)
    torch.testing.assert_close(run(layer, x, grad)["weight"], expected["weight"])


def test_any_leading_dimensions() -> None:
    layer = SwitchBack(8, 12)
    flat = torch.randn(30, 8)
    expected = layer(flat)
    assert torch.equal(layer(flat.reshape(5, 6, 8)), expected.reshape(5, 6, 12))
    assert torch.equal(layer(flat[0]), expected[0])
    assert layer(torch.randn(0, 3, 8)).shape == (0, 3, 12)


@pytest.mark.parametrize("scales", ["rowwise", "global"])
def test_a_nan_reaches_its_own_token_only(scales: str) -> None:
    layer = SwitchBack(16, 8, scales=scales)
    x, grad = torch.randn(5, 16), torch.randn(5, 8)
    x[1, 3], x[2] = torch.nan, 0.0
    grad[4, 0] = torch.inf
    found = run(layer, x, grad)
    assert found["output"].isnan().all(1).tolist() == [False, True, False, False, False]
    assert layer.bias is not None
    assert torch.equal(found["output"][2], layer.bias)  # a row of zeros
    assert found["x"].isnan().all(1).tolist() == [False, False, False, False, True]
    assert found["weight"].isnan().any()  # so that a scaler of gradients sees it


def test_a_nan_in_the_weight_is_not_hidden() -> None:
    for scales, lost in (("rowwise", 1), ("global", 8)):
        layer = SwitchBack(16, 8, scales=scales)
        with torch.no_grad():
            layer.weight[5, 2] = torch.nan
        assert layer(torch.randn(3, 16)).isnan().any(0).sum() == lost


@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_what_needs_no_gradient_gets_none(frozen: str) -> None:
    layer = SwitchBack(8, 4)
    x = torch.randn(6, 8, requires_grad=frozen != "x")
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name != frozen)
    layer(x).sum().backward()
    grads = {"x": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}
    assert [name for name, grad in grads.items() if grad is None] == [frozen]


@pytest.mark.parametrize("save", ["inputs", "int8"])
def test_what_the_backward_pass_does_not_need_is_not_kept(save: str) -> None:
    layer = SwitchBack(8, 4, save=save)
    layer.weight.requires_grad_(False)
    kept: list[torch.Size] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(torch.randn(5, 8, requires_grad=True))
        assert kept == [(4, 8)]  # the weight, and no activations
        kept.clear()
        layer.weight.requires_grad_()
        layer(torch.randn(5, 8))
        assert kept == ([(5, 8), (5,)] if save == "int8" else [(5, 8)])


def test_layers_without_features() -> None:
    for inputs, outputs in ((0, 4), (4, 0)):
        found = run(SwitchBack(inputs, outputs), torch.randn(3, inputs), torch.randn(3, outputs))
        assert found["output"].shape == (3, outputs)
        assert found["x"].shape == (3, inputs)


def test_without_a_bias() -> None:
    layer = SwitchBack(8, 4, bias=False)
    assert layer.bias is None
    assert set(run(layer, torch.randn(3, 8), torch.randn(3, 4))) == {"output", "x", "weight"}


def test_gradients_that_are_not_contiguous() -> None:
    layer = SwitchBack(8, 4)
    x = torch.randn(6, 8, requires_grad=True)
    layer(x).t().contiguous().sum().backward()
    assert x.grad is not None
    expected, x.grad = x.grad, None
    layer(x).sum().backward()  # an expanded one
    assert torch.equal(x.grad, expected)


@every_recipe
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(recipe: dict[str, str], dtype: torch.dtype) -> None:
    layer = SwitchBack(32, 16, **recipe)
    x = torch.randn(9, 32, requires_grad=True)
    with torch.autocast("cpu", dtype):
        y = layer(x)
    assert y.dtype == dtype
    assert layer.bias is not None
    plain = switchback_layer.compute_plainly(
        *(t.detach().to(dtype) for t in (x, layer.weight, layer.bias, torch.ones(9, 16))),
        Recipe(**recipe),
    )
    torch.testing.assert_close(y.detach(), plain.output)
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert {x.grad.dtype, layer.weight.grad.dtype} == {torch.float32}  # type: ignore[union-attr]


@every_recipe
@compiler_warns
@pytest.mark.usefixtures("fresh_compiler")
def test_torch_compile_captures_it_whole(recipe: dict[str, str]) -> None:
    """What torch.compile needs, without the time that its C++ compiler takes."""
    layer = SwitchBack(16, 24, **recipe)
    x, grad = torch.randn(10, 16), torch.randn(10, 24)
    expected = run(layer, x, grad)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = run(compiled, x, grad)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)


@pytest.mark.slow
@compiler_warns
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dynamic", [True, False])
def test_torch_compile(dynamic: bool) -> None:
    layer = SwitchBack(16, 24, scales="global")
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)
    for tokens in (10, 33):
        x, grad = torch.randn(tokens, 16), torch.randn(tokens, 24)
        expected, found = run(layer, x, grad), run(compiled, x, grad)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=name)


@every_recipe
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(recipe: dict[str, str], use_reentrant: bool) -> None:
    layer = SwitchBack(16, 24, **recipe)
    x, grad = torch.randn(10, 16), torch.randn(10, 24)
    expected = run(layer, x, grad)
    for parameter in layer.parameters():
        parameter.grad = None
    again = run(lambda x: checkpoint(layer, x, use_reentrant=use_reentrant), x, grad)  # type: ignore[no-any-return]
    assert torch.equal(again["x"], expected["x"])
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, expected["weight"])


def test_state_dicts_are_those_of_nn_linear() -> None:
    dense, layer = nn.Linear(8, 4), SwitchBack(8, 4)
    layer.load_state_dict(dense.state_dict())
    dense.load_state_dict(layer.state_dict())
    assert list(layer.state_dict()) == ["weight", "bias"]
    twin = copy.deepcopy(layer)
    x = torch.randn(3, 8)
    assert torch.equal(twin(x), layer(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saving_int8_saves_memory(dtype: str) -> None:
    setting = Setting(device="cpu", dtype=dtype)
    bytes_each = setting.torch_dtype.itemsize
    kept = {
        spec: count_kept_bytes(spec, 1000, (64, 32), setting)
        for spec in ("dense", "switchback:rowwise", "switchback:global", "switchback:global:int8")
    }
    weight, scale, scales = 64 * 32, 4, 4 * 1000  # the weight as int8, and scales
    assert kept == {
        "dense": 1000 * 64 * bytes_each,
        "switchback:rowwise": 1000 * 64 * bytes_each,
        "switchback:global": 1000 * 64 * bytes_each + weight + scale,
        "switchback:global:int8": 1000 * 64 + scales + weight + scale,
    }


@pytest.mark.parametrize("scales", ["rowwise", "global"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prepared_for_inference(scales: str, dtype: torch.dtype) -> None:
    layer = SwitchBack(32, 16, scales=scales, dtype=dtype)
    x = torch.randn(5, 3, 32).to(dtype)
    expected = layer(x).detach()
    assert layer.prepare_for_inference() is layer
    assert layer.prepare_for_inference() is layer  # once is enough
    assert torch.equal(layer(x), expected)
    assert "prepared for inference" in repr(layer)
    assert {name for name, _ in layer.named_parameters()} == {"bias"}
    assert layer.weight_int8.dtype == torch.int8

    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = SwitchBack(32, 16, scales=scales, dtype=dtype).prepare_for_inference()
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(x), expected)


def test_prepared_layers_keep_their_scales_when_converted() -> None:
    layer = SwitchBack(32, 16)
    with torch.no_grad():
        layer.weight *= 1e-9  # scales that float16 cannot hold
    layer.prepare_for_inference().half()
    y = layer(torch.ones(1, 32, dtype=torch.float16) * 1000)
    assert layer.bias is not None
    assert y.isfinite().all()
    assert layer.weight_scales.view(torch.float32).gt(0).all()  # type: ignore[operator]


def test_prepared_layers_refuse_to_be_trained() -> None:
    layer = SwitchBack(8, 4).prepare_for_inference()
    x = torch.randn(2, 8, requires_grad=True)
    with pytest.raises(LayerError, match="prepared for inference and has no gradients"):
        layer(x)
    with torch.no_grad():
        assert layer(x).shape == (2, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.detach()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: SwitchBack(8, 4, scales="columnwise"),
            "scales is 'columnwise'.*rowwise or global",
        ),
        (lambda: SwitchBack(8, 4, save="nothing"), "save is 'nothing'.*inputs or int8"),
        (lambda: SwitchBack(8, 4, weight_gradient="fp8"), "weight_gradient is 'fp8'"),
        (lambda: SwitchBack(8, 4)(torch.randn(2, 9)), "last dimension of the input must be 8"),
        (lambda: SwitchBack(8, 4)(torch.ones(2, 8).int()), "takes floating-point input"),
        (lambda: SwitchBack(8, 4)(torch.randn(2, 8).bfloat16()), "input is torch.bfloat16 but"),
        (
            lambda: SwitchBack(8, 4, dtype=torch.float64)(torch.randn(2, 8).double()),
            "float32, bfloat16 or float16, not in torch.float64",
        ),
        (lambda: SwitchBack(133_145, 4, device="meta"), "133145 features may not fit into int32"),
        (
            lambda: SwitchBack(1, 1, weight_gradient="int8")(torch.ones(133_145, 1)),
            "133145 tokens may not fit into int32",
        ),
        (lambda: layers.make("switchback:columnwise", 8, 4), "scales is 'columnwise'"),
        (lambda: layers.make("switchback", 8, 4), r"not of the form switchback:SCALES\[:SAVE\]"),
        (lambda: layers.make("llm-int8:4", 8, 4), "not of the form llm-int8"),
    ],
)
def test_errors_teach(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        make()


def test_specs() -> None:
    made = {
        spec: layers.make(spec, 8, 4).recipe  # type: ignore[union-attr]
        for spec in (
            "switchback:rowwise",
            "switchback:global",
            "switchback:global:int8",
            "llm-int8",
        )
    }
    assert made == {
        "switchback:rowwise": Recipe(scales="rowwise", save="inputs", weight_gradient="standard"),
        "switchback:global": Recipe(scales="global", save="inputs", weight_gradient="standard"),
        "switchback:global:int8": Recipe(scales="global", save="int8", weight_gradient="standard"),
        "llm-int8": Recipe(scales="rowwise", save="inputs", weight_gradient="int8"),
    }


def test_flops_by_dtype() -> None:
    flops = 2.0 * 4 * 8 * 16
    assert registry.count_flops_by_dtype("dense", 4, 8, 16, "bfloat16") == {
        "forward": {"bfloat16": flops},
        "backward": {"bfloat16": 2 * flops},
    }
    assert registry.count_flops_by_dtype("llm-int8", 4, 8, 16, "float32") == {
        "forward": {"int8": flops},
        "backward": {"int8": 2 * flops},
    }
    assert registry.count_flops_by_dtype("dyad:it:4", 4, 8, 16, "float32")["backward"] == {
        "float32": flops
    }


def test_swap_can_keep_the_weights() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8, bias=False))
    x = torch.randn(20, 8)
    kept, expected = list(model.parameters()), model(x).detach()
    layers.swap(model, "switchback:rowwise", keep_weights=True)
    assert all(new is old for new, old in zip(model.parameters(), kept, strict=True))
    assert float((model(x).detach() - expected).norm() / expected.norm()) < 0.03
    with pytest.raises(LayerError, match="'0' cannot keep its weights as Dyad"):
        layers.swap(model, "dyad:it:2", keep_weights=True)
    assert isinstance(model[0], SwitchBack)  # all or nothing
    model[0].prepare_for_inference()
    with pytest.raises(LayerError, match="'0' was prepared for inference.*swap before preparing"):
        layers.swap(model, "dense")


@pytest.mark.slow
def test_a_model_learns_with_it() -> None:
    """Without a gradient in the wrong place: a regression that a dense model solves as well."""
    losses = {}
    for spec in ("dense", "switchback:rowwise", "switchback:global:int8", "llm-int8"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
        layers.swap(model, spec, keep_weights=True)
        x = torch.randn(256, 16)
        wanted = torch.sin(x[:, :4] * 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(150):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), wanted)
            loss.backward()
            optimizer.step()
        losses[spec] = loss.item()
    assert losses["dense"] < 0.02
    for spec, loss_value in losses.items():
        assert loss_value < 1.5 * losses["dense"] + 0.002, spec


def train_sharded() -> dict[str, Tensor]:
    """On each of two ranks: gradients of a step of a model that FSDP2 divides between them."""
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    model, x = make_sharded_model()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    model(x[distributed.get_rank() :: 2]).square().mean().backward()
    return {name: p.grad.full_tensor() for name, p in model.named_parameters()}  # type: ignore[union-attr]


def make_sharded_model() -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        SwitchBack(8, 16), layers.Fp8Linear(16, 16), SwitchBack(16, 6, scales="global", save="int8")
    )
    return model, torch.randn(10, 8)


def test_fsdp2_on_two_ranks() -> None:
    model, x = make_sharded_model()
    (model(x[0::2]).square().mean() / 2 + model(x[1::2]).square().mean() / 2).backward()
    ranks = run_on_ranks(2, train_sharded)
    assert len(ranks) == 2
    for found in ranks:
        assert found.keys() == dict(model.named_parameters()).keys()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, msg=name)
