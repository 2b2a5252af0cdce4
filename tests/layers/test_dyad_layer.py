"""The DYAD layer: every form against the equivalent dense weight."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from flopwatch.devices.cpu import measure_memory
from flopwatch.errors import LayerError
from flopwatch.layers import Dyad, convert_published, dyad_matmul
from flopwatch.layers.dyad_layer import FORMS

VARIANTS = ["it", "ot", "dt"]
SIZES = [(8, 12, 4), (12, 8, 4), (6, 10, 2), (9, 6, 3), (5, 7, 1), (4, 4, 4)]

each_form = pytest.mark.parametrize("form", FORMS)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def make_layer(
    inputs: int = 8, outputs: int = 12, blocks: int = 4, variant: str = "it", **options: object
) -> Dyad:
    torch.manual_seed(0)
    return Dyad(inputs, outputs, blocks, variant, **{"dtype": torch.float64, **options})  # type: ignore[arg-type]


def run(layer: nn.Module, x: torch.Tensor, grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output and all gradients."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(grad)
    found = {"y": y.detach(), "x": x.grad}
    return found | {name: value.grad for name, value in layer.named_parameters()}  # type: ignore[dict-item]


def run_dense(layer: Dyad, x: torch.Tensor, grad: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same by the plain reference: `nn.Linear`'s formula on the equivalent dense weight."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    y = functional.linear(x, layer.to_dense(), layer.bias)
    y.backward(grad)
    found = {"y": y.detach(), "x": x.grad}
    return found | {name: value.grad for name, value in layer.named_parameters()}  # type: ignore[dict-item]


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=1e-10, msg=name)


@each_form
@each_variant
@pytest.mark.parametrize(("inputs", "outputs", "blocks"), SIZES)
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_and_all_gradients_agree_with_the_dense_weight(
    form: str, variant: str, inputs: int, outputs: int, blocks: int, bias: bool
) -> None:
    layer = make_layer(inputs, outputs, blocks, variant, bias=bias, form=form)
    x, grad = torch.randn(3, 5, inputs).double(), torch.randn(3, 5, outputs).double()
    assert_same(run(layer, x, grad), run_dense(layer, x, grad))


def test_the_dense_weight_is_what_the_definition_says() -> None:
    """Element by element, in plain Python."""
    inputs, outputs, blocks = 6, 9, 3
    block_in, block_out = inputs // blocks, outputs // blocks
    for variant in VARIANTS:
        layer = make_layer(inputs, outputs, blocks, variant)
        first, second = layer.structure.split(layer.weight.detach())
        expected = torch.zeros(outputs, inputs, dtype=torch.float64)
        for block in range(blocks):
            for i in range(block_in):
                for o in range(block_out):
                    direct_in, direct_out = block * block_in + i, block * block_out + o
                    expected[direct_out, direct_in] += first[block, i, o]
                    row = o * blocks + block if variant in ("ot", "dt") else direct_out
                    column = i * blocks + block if variant in ("it", "dt") else direct_in
                    expected[row, column] += second[block, i, o]
        assert torch.equal(layer.to_dense(), expected)


@each_form
@each_variant
def test_gradcheck(form: str, variant: str) -> None:
    layer = make_layer(6, 9, 3, variant, form=form)
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return FORMS[form](x, weight, bias, layer.structure)

    assert torch.autograd.gradcheck(function, (x, layer.weight, layer.bias))


@each_variant
def test_the_fast_form_works_in_parts_as_in_one(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dyad_matmul, "HOST_PART_TOKENS", 3)
    layer = make_layer(8, 12, 4, variant)
    x, grad = torch.randn(10, 8).double(), torch.randn(10, 12).double()
    assert_same(run(layer, x, grad), run_dense(layer, x, grad))


@each_variant
def test_parts_do_not_lose_precision_in_short_types(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added up in bfloat16, a thousand ones would stop at 256."""
    monkeypatch.setattr(dyad_matmul, "HOST_PART_TOKENS", 1)
    layer = make_layer(8, 12, 4, variant, dtype=torch.bfloat16)
    found = run(layer, torch.ones(1000, 8).bfloat16(), torch.ones(1000, 12).bfloat16())
    assert torch.equal(found["weight"], torch.full_like(layer.weight, 1000))


@each_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_any_floating_dtype(form: str, dtype: torch.dtype) -> None:
    layer = make_layer(16, 32, 4, form=form, dtype=dtype)
    x, grad = torch.randn(7, 16).to(dtype), torch.randn(7, 32).to(dtype)
    found = run(layer, x, grad)
    expected = run_dense(copy.deepcopy(layer).double(), x.double(), grad.double())
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.dtype == dtype
        tolerance = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
        torch.testing.assert_close(value.double(), expected[name], rtol=tolerance, atol=tolerance)


@each_form
def test_autocast_computes_short_and_keeps_parameters_long(form: str) -> None:
    layer = make_layer(16, 32, 4, form=form, dtype=torch.float32)
    x = torch.randn(7, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    expected = functional.linear(x.bfloat16(), layer.to_dense().bfloat16(), layer.bias.bfloat16())  # type: ignore[union-attr]
    torch.testing.assert_close(y, expected, rtol=5e-2, atol=5e-2)


def test_autocast_leaves_float64_alone_as_it_does_for_dense() -> None:
    layer, x = make_layer(), torch.randn(2, 8).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == nn.Linear(8, 12).double()(x).dtype == torch.float64


@each_variant
@pytest.mark.parametrize("shape", [(8,), (1, 8), (0, 8), (2, 0, 8), (2, 3, 4, 8)])
def test_leading_dimensions_are_kept(variant: str, shape: tuple[int, ...]) -> None:
    layer = make_layer(variant=variant)
    x, grad = torch.randn(shape).double(), torch.randn(*shape[:-1], 12).double()
    found = run(layer, x, grad)
    assert found["y"].shape == (*shape[:-1], 12)
    assert_same(found, run_dense(layer, x, grad))


@each_variant
def test_inputs_and_gradients_need_not_be_contiguous(variant: str) -> None:
    layer = make_layer(variant=variant)
    x = torch.randn(8, 5).double().t()
    grad = torch.ones(1, 1).double().expand(5, 12)
    assert_same(run(layer, x, grad), run_dense(layer, x.contiguous(), grad.contiguous()))
    wide = torch.randn(5, 16).double()[:, ::2]
    assert_same(run(layer, wide, grad), run_dense(layer, wide.contiguous(), grad.contiguous()))


@each_variant
def test_only_the_gradients_that_are_wanted(variant: str) -> None:
    layer = make_layer(variant=variant)
    x = torch.randn(5, 8).double()
    layer(x).sum().backward()  # x needs none
    expected = layer.weight.grad
    layer.weight.requires_grad_(False)
    x.requires_grad_()
    layer(x).sum().backward()
    assert layer.weight.grad is expected
    torch.testing.assert_close(x.grad, layer.to_dense().detach().sum(0).expand(5, 8))


def test_writing_over_the_input_before_backward_is_noticed() -> None:
    layer = make_layer(12, 8, 4, "ot")
    x = torch.randn(5, 12).double()
    y = layer(x)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@each_variant
def test_the_graph_can_be_used_twice(variant: str) -> None:
    layer = make_layer(variant=variant)
    y = layer(torch.randn(5, 8).double())
    y.sum().backward(retain_graph=True)
    assert layer.weight.grad is not None
    once = layer.weight.grad.clone()
    y.sum().backward()
    torch.testing.assert_close(layer.weight.grad, 2 * once)


def test_auto_moves_the_smaller_side() -> None:
    assert make_layer(8, 12, variant="auto").variant == "it"
    assert make_layer(12, 8, variant="auto").variant == "ot"


def test_state_dict_round_trip_and_copies() -> None:
    layer, x = make_layer(), torch.randn(2, 8).double()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = make_layer(form="split")
    nn.init.zeros_(other.weight)
    other.load_state_dict(torch.load(file))
    torch.testing.assert_close(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_initialisation_is_the_published_one() -> None:
    torch.manual_seed(0)
    layer = Dyad(400, 800, 4)
    bound = 1 / math.sqrt(400)
    assert layer.state_dict().keys() == {"weight", "bias"}
    for values in layer.state_dict().values():
        assert 0.98 * bound < float(values.abs().max()) <= bound
        assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_parameters_are_two_in_blocks_of_dense() -> None:
    assert make_layer(64, 128, 8, bias=False).weight.numel() * 8 == 2 * 64 * 128


def test_repr_tells_what_it_is() -> None:
    assert repr(make_layer(form="cat")) == (
        "Dyad(in_features=8, out_features=12, blocks=4, variant=it, bias=True, form=cat)"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the compiler's own
@each_variant
def test_torch_compile(variant: str) -> None:
    layer = make_layer(16, 32, 4, variant)
    x, grad = torch.randn(6, 16).double(), torch.randn(6, 32).double()
    compiled = torch.compile(layer, fullgraph=True)
    found = {n.removeprefix("_orig_mod."): v for n, v in run(compiled, x, grad).items()}
    assert_same(found, run_dense(layer, x, grad))


@each_variant
def test_traces_into_one_graph(variant: str) -> None:
    """What torch.compile needs, without the time that its C++ compiler takes."""
    layer = make_layer(16, 32, 4, variant)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x, grad = torch.randn(6, 16).double(), torch.randn(6, 32).double()
    found = {n.removeprefix("_orig_mod."): v for n, v in run(compiled, x, grad).items()}
    assert_same(found, run_dense(layer, x, grad))


def test_meta_tensors_have_shapes() -> None:
    layer = Dyad(8, 12, 4, device="meta")
    assert layer(torch.empty(2, 8, device="meta")).shape == (2, 12)


class MatmulCounter(TorchDispatchMode):
    """Batched matmuls, each of which is at least one launch on an accelerator."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket is torch.ops.aten.bmm
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("variant", "matmuls"), [("it", 2), ("ot", 2), ("dt", 4)])
def test_accelerators_are_given_a_batch_in_one_part(variant: str, matmuls: int) -> None:
    """The backward pass: one matmul for each gradient, two where halves are apart. In parts of as
    many tokens as a CPU has memory for, it was eleven of them, and as many copies."""
    layer = Dyad(3072, 768, 4, variant, device="meta")  # not the host, and nothing is computed
    x = torch.empty(4096, 3072, device="meta", requires_grad=True)
    y = layer(x)
    with MatmulCounter() as counter:
        y.backward(torch.empty(4096, 768, device="meta"))
    assert x.grad is not None
    assert counter.count == matmuls


def test_parts_on_an_accelerator_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dyad_matmul, "PART_TOKENS", 100)
    rows = torch.empty(250, 8, device="meta")
    found = [rows[part].shape[0] for part in dyad_matmul.parts(rows)]
    assert found == [100, 100, 50]


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 256), (256, 64)])
@each_variant
def test_no_variant_takes_more_memory_than_dense_and_one_copy(
    variant: str, inputs: int, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the side that the variant moves, in both orders; for `dt` of the input's."""
    monkeypatch.setattr(dyad_matmul, "HOST_PART_TOKENS", 128)
    tokens = 2048

    def find_peak(layer: nn.Module) -> int:
        x, grad = torch.randn(tokens, inputs, requires_grad=True), torch.randn(tokens, outputs)

        def clear() -> None:
            layer.zero_grad()
            x.grad = None

        memory = measure_memory(clear, {"run": lambda: layer(x).backward(grad)})
        peak = None if memory is None else memory.peak_bytes
        assert peak is not None
        return peak

    dense = find_peak(nn.Linear(inputs, outputs))
    copy = 4 * tokens * 2 * (outputs if variant == "ot" else inputs)
    assert dense < find_peak(Dyad(inputs, outputs, 4, variant)) <= dense + copy
    assert find_peak(Dyad(inputs, outputs, 4, variant, form="split")) > dense + copy / 2


@pytest.mark.parametrize(
    ("inputs", "outputs", "blocks", "sentence"),
    [
        (768, 3070, 4, "4 blocks do not divide 768 input and 3070 output features; .*: 1, 2$"),
        (768, 3072, 0, "0 blocks do not divide"),
        (768, 3072, -4, "-4 blocks do not divide"),
    ],
)
def test_blocks_that_do_not_divide_name_those_that_do(
    inputs: int, outputs: int, blocks: int, sentence: str
) -> None:
    with pytest.raises(LayerError, match=sentence):
        Dyad(inputs, outputs, blocks)


@each_form
def test_bad_inputs_get_one_sentence(form: str) -> None:
    layer = make_layer(form=form, dtype=torch.float32)
    with pytest.raises(LayerError, match=r"last dimension .* must be 8.*\(2, 9\)"):
        layer(torch.randn(2, 9))
    with pytest.raises(LayerError, match=r"floating-point input, not torch.int64"):
        layer(torch.ones(2, 8, dtype=torch.int64))
    with pytest.raises(LayerError, match=r"input is torch.bfloat16 but the layer torch.float32"):
        layer(torch.randn(2, 8).bfloat16())
    with pytest.raises(ValueError, match="last dimension"):
        layer(torch.tensor(1.0))


def test_bad_names_get_one_sentence() -> None:
    with pytest.raises(
        LayerError, match="'ti' is no DYAD variant; take one of it, ot, dt, or auto"
    ):
        make_layer(variant="ti")
    with pytest.raises(LayerError, match="'slow' is no form of DYAD; take one of fast, split"):
        make_layer(form="slow")


def multiply_as_published(
    x: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor, bias: torch.Tensor, variant: str
) -> torch.Tensor:
    """What the published layers compute, from their own weights, feature by feature."""
    blocks, block_out, block_in = lower.shape
    y = bias.clone().expand(-1, len(x)).clone()
    for token, block in ((t, b) for t in range(len(x)) for b in range(blocks)):
        for i in range(block_in):
            direct = x[token, block * block_in + i]
            other = x[token, i * blocks + block] if variant in ("it", "dt") else direct
            for o in range(block_out):
                row = o * blocks + block if variant in ("ot", "dt") else block * block_out + o
                y[block * block_out + o, token] += lower[block, o, i] * direct
                y[row, token] += upper[block, o, i] * other
    return y.t()


@each_variant
def test_published_checkpoints_load(variant: str) -> None:
    torch.manual_seed(0)
    lower, upper = torch.randn(2, 3, 4, 2).double()
    state = {"fc.wl": lower, "fc.wu": upper, "fc.bias": torch.randn(12, 1).double()}
    model = nn.ModuleDict({"fc": make_layer(6, 12, 3, variant), "norm": nn.LayerNorm(6)})
    norm = {f"norm.{name}": value for name, value in model["norm"].state_dict().items()}
    model.load_state_dict(convert_published({**state, **norm}, variant))
    x = torch.randn(5, 6).double()
    expected = multiply_as_published(x, lower, upper, state["fc.bias"], variant)
    torch.testing.assert_close(model["fc"](x), expected, rtol=1e-10, atol=1e-10)
    alone = convert_published({"wl": lower, "wu": upper}, variant)
    assert list(alone) == ["weight"]


def test_broken_published_checkpoints_are_refused() -> None:
    with pytest.raises(LayerError, match=r"'a.wl' and 'a.wu'.*\(2, 3, 4\) and missing"):
        convert_published({"a.wl": torch.ones(2, 3, 4)})
    with pytest.raises(LayerError, match=r"\(2, 3, 4\) and \(2, 3, 5\)"):
        convert_published({"wl": torch.ones(2, 3, 4), "wu": torch.ones(2, 3, 5)})
