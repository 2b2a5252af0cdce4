"""Layers in float8: against the plain version, beside nn.Linear, and in all that training does."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, _meta_registrations, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from flopwatch import layers
from flopwatch.errors import LayerError
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.layers import Fp8Linear, fp8_plain, layer_workload, registry
from flopwatch.layers.kernels import fp8_scaled
from flopwatch.models.job_estimates import count_flops

SCALES = ["rowwise", "tensorwise"]
each_scales = pytest.mark.parametrize("scales", SCALES)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def run(layer: nn.Module, x: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The output and all gradients."""
    x = x.detach().clone().requires_grad_()
    layer.zero_grad()
    y = layer(x)
    y.backward(grad)
    assert x.grad is not None
    gradients = {name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None}
    return {"output": y.detach(), "x": x.grad, **gradients}


def round_to(x: Tensor, dtype: torch.dtype, dim: int | None) -> Tensor:
    """The numbers that float8 with a scale for each of the other dimension, or with one, stands
    for, in float64; written out once more, number by number of the dtype, ties to even."""
    x = x.double()
    largest = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    scale = (largest.float() / torch.finfo(dtype).max).double()
    codes = torch.arange(256, dtype=torch.uint8)
    numbers = codes.view(dtype).double()
    is_finite = numbers.isfinite()
    codes, numbers = codes[is_finite], numbers[is_finite]
    exact = (x.float() / scale.float()).double()[..., None]
    distance = (exact - numbers).abs() + 1e-12 * (codes % 2) * (1 + exact.abs())
    return numbers[distance.argmin(-1)] * scale


def compute_plainly(layer: Fp8Linear, x: Tensor, grad: Tensor, scales: str) -> dict[str, Tensor]:
    """What the layer must agree with: every matmul in float64, of rounded numbers."""
    rows, columns = (1, 0) if scales == "rowwise" else (None, None)
    weight = layer.weight.detach()
    output = round_to(x, E4M3, rows) @ round_to(weight, E4M3, rows).t()
    bias = 0.0 if layer.bias is None else layer.bias.detach().double()
    found = {
        "output": output + bias,
        "x": round_to(grad, E5M2, rows) @ round_to(weight, E4M3, columns),
        "weight": round_to(grad, E5M2, columns).t() @ round_to(x, E4M3, columns),
    }
    return found if layer.bias is None else {**found, "bias": grad.double().sum(0)}


@each_scales
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [16, 7, 1])
def test_outputs_and_all_gradients_agree_with_the_plain_version(
    scales: str, dtype: torch.dtype, bias: bool, tokens: int
) -> None:
    torch.manual_seed(0)
    layer = Fp8Linear(32, 48, bias, scales, dtype=dtype)
    x, grad = torch.randn(tokens, 32).to(dtype), torch.randn(tokens, 48).to(dtype)
    found, expected = run(layer, x, grad), compute_plainly(layer, x, grad, scales)
    assert found.keys() == expected.keys()
    eps = torch.finfo(dtype).eps
    for name, value in expected.items():
        assert found[name].dtype == dtype
        torch.testing.assert_close(
            found[name].double(), value, rtol=4 * eps, atol=32 * eps, msg=name
        )


@each_scales
def test_is_close_to_a_dense_layer_and_not_it(scales: str) -> None:
    torch.manual_seed(0)
    dense = nn.Linear(256, 512)
    layer = Fp8Linear.from_linear(dense, scales)
    assert layer.weight is dense.weight
    x, grad = torch.randn(128, 256), torch.randn(128, 512)
    expected, found = run(dense, x, grad), run(layer, x, grad)
    errors = {name: float((found[name] - v).norm() / v.norm()) for name, v in expected.items()}
    assert errors["bias"] < 1e-6
    for name, highest in (("output", 0.05), ("x", 0.08), ("weight", 0.08)):
        assert 0.01 < errors[name] < highest, errors
        off = float((found[name] - expected[name]).abs().max() / expected[name].abs().max())
        assert off < registry.find_tolerance("fp8:rowwise", "layer", "float32") / 2


@pytest.mark.parametrize("quantize", fp8_plain.QUANTIZE.values())
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_what_is_odd(quantize: Callable[..., fp8_plain.Quantized], dtype: torch.dtype) -> None:
    q, scale = quantize(torch.tensor([[0.0, -0.0], [0.0, 0.0]]), dtype)
    assert not (q.float() * scale).any()
    for odd in (torch.nan, torch.inf, -torch.inf):
        q, scale = quantize(torch.tensor([[1.0, odd]]), dtype)
        assert (q.float() * scale).isnan().any()
    for size in (1e-30, 1e38, 3e-5):
        x = size * torch.tensor([[1.0, -0.5], [-0.25, 1.0]])
        q, scale = quantize(x, dtype)
        torch.testing.assert_close(q.float() * scale, x, rtol=1e-6, atol=0)
    for shape in ((0, 4), (4, 0)):
        assert quantize(torch.empty(shape), dtype)[0].shape == shape


@each_scales
def test_a_nan_is_not_hidden(scales: str) -> None:
    layer = Fp8Linear(16, 32, scales=scales)
    x, grad = torch.randn(5, 16), torch.randn(5, 32)
    x[1, 3], x[2] = torch.nan, 0.0
    found = run(layer, x, grad)
    lost = found["output"].isnan().all(1).tolist()
    assert lost == ([False, True, False, False, False] if scales == "rowwise" else [True] * 5)
    assert found["weight"].isnan().any()  # so that a scaler of gradients sees it


@each_scales
@pytest.mark.parametrize("shape", [(16,), (2, 3, 16), (0, 16), (2, 0, 16)])
def test_any_leading_dimensions(scales: str, shape: tuple[int, ...]) -> None:
    layer = Fp8Linear(16, 32, scales=scales)
    found = run(layer, torch.randn(shape), torch.randn(*shape[:-1], 32))
    assert found["output"].shape == (*shape[:-1], 32)
    assert found["weight"].shape == (32, 16)


@each_scales
def test_inputs_and_gradients_need_not_be_contiguous(scales: str) -> None:
    layer = Fp8Linear(16, 32, scales=scales)
    x, grad = torch.randn(16, 5).t(), torch.ones(1, 1).expand(5, 32)
    found = run(layer, x, grad)
    expected = run(layer, x.contiguous(), grad.contiguous())
    for name, value in expected.items():
        assert torch.equal(found[name], value)


@each_scales
@pytest.mark.parametrize("frozen", ["x", "weight", "bias"])
def test_what_needs_no_gradient_gets_none(scales: str, frozen: str) -> None:
    layer = Fp8Linear(16, 32, scales=scales)
    x = torch.randn(6, 16, requires_grad=frozen != "x")
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name != frozen)
    layer(x).sum().backward()
    tensors = {"x": x, **dict(layer.named_parameters())}
    assert {name for name, tensor in tensors.items() if tensor.grad is None} == {frozen}


def test_one_scale_keeps_activations_in_a_byte() -> None:
    setting = layer_workload.Setting(device="cpu", dtype="float32")
    kept = {
        scales: layer_workload.count_kept_bytes(f"fp8:{scales}", 128, (64, 128), setting)
        for scales in SCALES
    }
    assert kept == {"rowwise": 4 * 128 * 64, "tensorwise": 128 * 64 + 4}


@each_scales
def test_autocast(scales: str) -> None:
    layer = Fp8Linear(16, 32, scales=scales)
    x = torch.randn(7, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32
    expected = copy.deepcopy(layer).bfloat16()(x.bfloat16())
    assert torch.equal(y, expected)  # sums are made in float32 all the same


@each_scales
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_traces_into_one_graph(scales: str) -> None:
    torch._dynamo.reset()
    layer = Fp8Linear(16, 32, scales=scales)
    x, grad = torch.randn(7, 16), torch.randn(7, 32)
    expected = run(layer, x, grad)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found = {n.removeprefix("_orig_mod."): v for n, v in run(compiled, x, grad).items()}
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


@each_scales
def test_activation_checkpointing(scales: str) -> None:
    layer = Fp8Linear(16, 32, scales=scales)
    x, grad = torch.randn(7, 16), torch.randn(7, 32)
    expected = run(layer, x, grad)
    x = x.requires_grad_()
    layer.zero_grad()
    checkpoint(layer, x, use_reentrant=False).backward(grad)
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, expected["weight"])


def test_state_dicts_are_those_of_nn_linear() -> None:
    layer, dense = Fp8Linear(16, 32), nn.Linear(16, 32)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    dense.load_state_dict(torch.load(file))
    assert torch.equal(dense.weight, layer.weight)


def test_swap_can_keep_the_weights() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32, bias=False))
    weight, x = model[0].weight, torch.randn(4, 32)
    expected = model(x)
    done = layers.swap(model, "fp8:tensorwise", keep_weights=True)
    assert done.layers == ("0", "2")
    assert model[0].weight is weight
    assert isinstance(model[2], Fp8Linear)
    assert repr(model[2]) == (
        "Fp8Linear(in_features=64, out_features=32, bias=False, scales=tensorwise)"
    )
    torch.testing.assert_close(model(x), expected, rtol=0.2, atol=0.05)


@pytest.mark.usefixtures("one_thread")
@each_scales
def test_a_model_learns_with_it(scales: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    layers.swap(model, f"fp8:{scales}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(256, 16)
    y = x.roll(1, 1) * 0.5
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Fp8Linear(16, 32, scales="columns"), "'columns', which fp8 does not know; take r"),
        (lambda: layers.make("fp8:global", 16, 32), "'global', which fp8 does not know"),
        (lambda: layers.make("fp8", 16, 32), "'fp8' is not of the form fp8:SCALES"),
        (lambda: Fp8Linear(20, 32), "20 input features are no multiple of 16, as matmuls in float"),
        (lambda: Fp8Linear(16, 33), "33 output features are no multiple of 16"),
        (
            lambda: Fp8Linear(16, 16, dtype=torch.float64)(torch.ones(2, 16).double()),
            "float32, bfloat16 or float16, not in torch.float64",
        ),
    ],
)
def test_errors_teach(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(LayerError, match=sentence):
        make()


def test_emulation_is_said_and_counted_as_what_it_is() -> None:
    (note,) = layer_workload.list_notes("fp8:rowwise", "cpu")
    assert note == (
        "float8 is emulated here: numbers are rounded to float8 and multiplied in float32, so that "
        "times say nothing about float8"
    )
    flops = 2.0 * 4 * 16 * 32
    counted = registry.count_flops_by_dtype("fp8:rowwise", 4, 16, 32, "bfloat16", "cpu")
    assert counted == {"forward": {"float32": flops}, "backward": {"float32": 2 * flops}}
    native = registry.count_flops_by_dtype("fp8:rowwise", 4, 16, 32, "bfloat16")
    assert native == {"forward": {"float8": flops}, "backward": {"float8": 2 * flops}}
    int8 = registry.count_flops_by_dtype("llm-int8", 4, 16, 32, "bfloat16", "cpu")
    assert set(int8["forward"]) == {"int8"}


def test_what_is_emulated_is_what_torch_counts() -> None:
    layer, x = Fp8Linear(16, 32), torch.randn(4, 16, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    flops = registry.count_flops_by_dtype("fp8:rowwise", 4, 16, 32, "float32", "cpu")
    assert counter.get_total_flops() == sum(sum(by.values()) for by in flops.values())


def test_jobs_with_it_are_counted_by_device() -> None:
    job = TrainingJob("small", 128, precision="bf16-mixed", linear="fp8:rowwise")
    on_cpu, elsewhere = count_flops(job, "cpu"), count_flops(job)
    assert set(elsewhere["forward"]) == {"bfloat16", "float8"}
    assert set(on_cpu["forward"]) == {"bfloat16", "float32"}
    assert on_cpu["forward"]["float32"] == elsewhere["forward"]["float8"]


def test_other_devices_do_not_pass_for_native() -> None:
    """An operator that falls back to the CPU is no hardware."""
    assert not fp8_scaled.is_native("cpu")
    assert not fp8_scaled.is_native("flop")
    assert not fp8_scaled.is_native("meta")


class Gpu:
    """In the place of `torch._scaled_mm`: torch's own checks for CUDA of sizes, strides, dtypes and
    scales, and those that its kernels make besides; then the same in float32."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.called: list[tuple[torch.dtype, torch.dtype, bool]] = []
        monkeypatch.setattr(_meta_registrations, "device_hint", lambda tensor: "cuda")
        monkeypatch.setattr(fp8_scaled, "is_native", lambda device: True)
        monkeypatch.setattr(torch, "_scaled_mm", self.multiply)

    def multiply(
        self, a: Tensor, b: Tensor, *, bias: Tensor | None, out_dtype: torch.dtype, **named: Any
    ) -> Tensor:
        _meta_registrations._check_scaled_mm_sizes(a, b, bias=bias, out_dtype=out_dtype, **named)
        scale_a, scale_b = named["scale_a"], named["scale_b"]
        assert b.dtype == E4M3  # of two in e5m2 there is no matmul
        assert scale_a.numel() == 1 or out_dtype == torch.bfloat16
        assert bias is None or bias.dtype == out_dtype != torch.float32
        self.called.append((a.dtype, b.dtype, named["use_fast_accum"]))
        product = (a.float() @ b.float()) * scale_a * scale_b
        return (product if bias is None else product + bias.float()).to(out_dtype)


@each_scales
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 32])
def test_what_a_gpu_is_asked_for_is_what_it_can(
    scales: str, dtype: torch.dtype, bias: bool, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Fp8Linear(32, 48, bias, scales, dtype=dtype)
    x, grad = torch.randn(tokens, 32).to(dtype), torch.randn(tokens, 48).to(dtype)
    expected = run(layer, x, grad)
    gpu = Gpu(monkeypatch)
    found = run(layer, x, grad)
    assert gpu.called == [(E4M3, E4M3, True), (E5M2, E4M3, False), (E5M2, E4M3, False)]
    for name, value in expected.items():
        assert found[name].dtype == dtype
        torch.testing.assert_close(found[name], value, rtol=2e-2, atol=2e-2, msg=name)


def test_the_gpu_of_the_tests_refuses_what_a_gpu_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, one = Gpu(monkeypatch), torch.ones(())
    scales = {"scale_a": one, "scale_b": one, "bias": None, "out_dtype": torch.bfloat16}
    a, b = torch.ones(16, 16).to(E4M3), torch.ones(16, 16).to(E4M3)
    for left, right in ((a, b), (a[:, :7], b[:7].t().contiguous().t())):
        with pytest.raises(RuntimeError, match="col_major|divisible by 16"):
            gpu.multiply(left, right, use_fast_accum=False, **scales)  # type: ignore[arg-type]


def test_mi300_has_float8_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_scaled, "_is_gfx942", lambda device: True)
    assert fp8_scaled.choose_dtype(E4M3, "cuda") == torch.float8_e4m3fnuz
    layer = Fp8Linear(32, 48)
    x, grad = torch.randn(16, 32), torch.randn(16, 48)
    dense = nn.Linear(32, 48)
    dense.load_state_dict(layer.state_dict())
    found, expected = run(layer, x, grad), run(dense, x, grad)
    for name, value in expected.items():
        assert float((found[name] - value).norm() / value.norm()) < 0.1


@pytest.mark.parametrize("tokens", [16, 7])
def test_torch_s_own_matmul_agrees_with_the_plain_one(tokens: int) -> None:
    """On the CPU, which has it for one scale."""
    torch.manual_seed(0)
    a = fp8_plain.quantize_tensorwise(torch.randn(32, tokens), E4M3)
    b = fp8_plain.quantize_tensorwise(torch.randn(48, tokens), E4M3)
    bias = torch.randn(48)
    try:
        found = fp8_scaled.multiply(a, b, bias, torch.float32)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"torch does not multiply float8 on this CPU: {error}")
    torch.testing.assert_close(found, fp8_plain.multiply(a, b, bias, torch.float32))
