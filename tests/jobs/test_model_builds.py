"""Models are built as published, offline and silently, and counts from shapes are exact.

Full-sized models are built of fake tensors, which have shapes but no memory.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.errors import FlopwatchError, UsageError
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.model_shapes import ARCHITECTURES, SHAPES, Shape, find_shape
from flopwatch.jobs.parameters import Part, count_parameters
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.models.builder import build_from_transformers

SMALL = {
    name: replace(
        SHAPES[name],
        hidden_size=48,
        feed_forward_size=80,
        layers=2,
        heads=3,
        vocabulary=101,
        positions=32,
        embedding_size=None if SHAPES[name].embedding_size is None else 16,
    )
    for name in ("opt-125m", "opt-350m", "pythia-160m", "llama-160m")
}
"""One of each kind, with no two dimensions alike."""

THEIRS = [name for name, shape in SHAPES.items() if not shape.is_ours]
"""Names of the models that the library transformers builds."""

small_shapes = pytest.mark.parametrize("shape", SMALL.values(), ids=SMALL)


@pytest.mark.parametrize("name", THEIRS)
def test_parameters_are_counted_exactly(name: str) -> None:
    with FakeTensorMode():
        model = build_from_transformers(name)
    assert count_parameters(SHAPES[name]) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("opt-125m", 125_239_296),
        ("opt-350m", 331_196_416),
        ("pythia-160m", 162_322_944),
        ("llama-160m", 162_417_408),
    ],
)
def test_parameters_are_as_published(name: str, published: int) -> None:
    assert count_parameters(find_shape(name)) == published


@small_shapes
def test_parameters_of_any_shape_are_counted_exactly(shape: Shape) -> None:
    assert count_parameters(shape) == sum(
        p.numel() for p in build_from_transformers(shape).parameters()
    )


def run(shape: Shape, batch: int, tokens: int) -> torch.Tensor:
    """The loss. Not in training mode and with a mask, since else transformers looks at values,
    which fake tensors do not have."""
    model = build_from_transformers(shape, attention="eager").eval()
    ids = torch.zeros(batch, tokens, dtype=torch.long)
    loss: torch.Tensor = model(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids)).loss
    return loss


def list_flops(counter: FlopCounterMode) -> dict[str, int]:
    """By module; "" is the whole model. Without what makes rotary positions, which in old versions
    of transformers is a small product too."""
    by_module = {
        name.partition(".")[2]: sum(operations.values())
        for name, operations in counter.get_flop_counts().items()
        if name != "Global"
    }
    rotary = sum(count for name, count in by_module.items() if name.endswith("rotary_emb"))
    return {**by_module, "": counter.get_total_flops() - rotary}


@pytest.mark.parametrize("name", THEIRS)
def test_forward_flops_are_those_that_torch_counts(name: str) -> None:
    with FakeTensorMode(), FlopCounterMode(display=False) as counter:
        run(SHAPES[name], batch=2, tokens=96)
    assert sum(count_forward(SHAPES[name], 2, 96).values()) == list_flops(counter)[""]


def count_forward(shape: Shape, micro_batch: int, tokens: int) -> dict[Part, int]:
    parts = count_flops_by_part(TrainingJob(shape, tokens, micro_batch=micro_batch))
    return {part: passes.forward for part, passes in parts.items()}


@small_shapes
def test_flops_of_each_part_are_those_that_torch_counts(shape: Shape) -> None:
    with FlopCounterMode(display=False) as counter:
        run(shape, batch=3, tokens=20)
    counted = list_flops(counter)
    linear = {
        name: counted[name]
        for name, module in build_from_transformers(shape).named_modules()
        if isinstance(module, nn.Linear)
    }
    patterns = ARCHITECTURES[shape.architecture]
    in_blocks = sum(n for name, n in linear.items() if fnmatchcase(name, patterns.blocks))
    feed_forward = sum(n for name, n in linear.items() if fnmatchcase(name, patterns.feed_forward))
    head = sum(n for name, n in linear.items() if name in ("lm_head", "embed_out"))

    flops = count_forward(shape, 3, 20)
    assert flops["feed-forward"] == feed_forward > 0
    assert flops["qkv"] + flops["output"] == in_blocks - feed_forward > 0
    assert flops["scores"] + flops["values"] == counted[""] - sum(linear.values()) > 0
    assert flops["head"] == head > 0
    assert flops["embedding"] == sum(linear.values()) - in_blocks - head
    assert (flops["embedding"] > 0) == (shape.embedding_size is not None)


@small_shapes
def test_backward_flops_are_those_that_torch_counts(shape: Shape) -> None:
    loss = run(shape, batch=3, tokens=20)
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert 2 * sum(count_forward(shape, 3, 20).values()) == counter.get_total_flops()


@small_shapes
def test_patterns_find_the_linear_layers(shape: Shape) -> None:
    model = build_from_transformers(shape)
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    patterns = ARCHITECTURES[shape.architecture]
    sizes = {shape.hidden_size, shape.feed_forward_size}
    found = [name for name in names if fnmatchcase(name, patterns.feed_forward)]
    assert len(found) == shape.layers * patterns.feed_forward_matrices
    for name in found:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        assert {layer.in_features, layer.out_features} == sizes
    outside = {name for name in names if not fnmatchcase(name, patterns.blocks)}
    assert {name.rpartition(".")[2] for name in outside} <= {
        "lm_head", "embed_out", "project_in", "project_out",
    }  # fmt: skip


@small_shapes
def test_every_weight_is_initialised_once(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own turn is skipped, and transformers' must then miss nothing."""

    def spoil(self: nn.Module) -> None:
        raise AssertionError("initialised twice")

    monkeypatch.setattr(nn.Linear, "reset_parameters", spoil)
    monkeypatch.setattr(nn.Embedding, "reset_parameters", spoil)
    model = build_from_transformers(shape)
    assert nn.Linear.reset_parameters is spoil  # put back
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.2), name
        else:
            is_norm = "norm" in name and name.endswith("weight")
            assert torch.all(parameter == float(is_norm)), name


@small_shapes
def test_the_seed_decides_the_weights_in_every_dtype(shape: Shape) -> None:
    def draw(dtype: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        return dict(build_from_transformers(shape, dtype=dtype).named_parameters())

    first, again, half = draw("float32"), draw("float32"), draw("bfloat16")
    assert first.keys() == again.keys() == half.keys() > set()
    for name, parameter in first.items():
        assert torch.equal(parameter, again[name])
        assert torch.equal(parameter.bfloat16(), half[name])


def test_rotary_positions_keep_their_precision() -> None:
    for name in ("pythia-160m", "llama-160m"):
        buffers = dict(build_from_transformers(SMALL[name], dtype="bfloat16").named_buffers())
        assert buffers
        assert {buffer.dtype for buffer in buffers.values()} == {torch.float32}


@small_shapes
def test_training_is_deterministic_and_keeps_nothing(shape: Shape) -> None:
    model = build_from_transformers(shape)
    assert model.training
    ids = torch.randint(shape.vocabulary, (2, 20))
    first, second = model(input_ids=ids, labels=ids), model(input_ids=ids, labels=ids)
    assert torch.equal(first.loss, second.loss)
    assert first.past_key_values is None
    first.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@small_shapes
def test_both_attentions_agree(shape: Shape) -> None:
    def logits(attention: str) -> torch.Tensor:
        torch.manual_seed(0)
        model = build_from_transformers(shape, attention=attention)  # type: ignore[arg-type]
        assert model.config._attn_implementation == attention
        return model(input_ids=torch.arange(20)[None]).logits

    torch.testing.assert_close(logits("sdpa"), logits("eager"))


def test_published_peculiarities() -> None:
    opt_350m = build_from_transformers("opt-350m", device="meta")
    decoder = opt_350m.get_submodule("model.decoder")
    assert decoder.final_layer_norm is None
    assert not opt_350m.get_submodule("model.decoder.layers.0").do_layer_norm_before
    assert opt_350m.get_submodule("model.decoder.embed_tokens").embedding_dim == 512

    pythia = build_from_transformers("pythia-160m", device="meta")
    assert pythia.get_submodule("gpt_neox.layers.0").use_parallel_residual
    assert pythia.get_submodule("gpt_neox.layers.0.attention").rotary_ndims == 16

    for hidden_size in (768, 1024, 1536, 2048):
        model = build_from_transformers(f"opt-6l-{hidden_size}", device="meta")
        assert model.get_submodule("model.decoder.layers.5.self_attn").head_dim == 64
        assert len(model.get_submodule("model.decoder.layers")) == 6  # type: ignore[arg-type]


def test_building_is_silent_and_needs_no_network() -> None:
    """In a process of its own, as everything is imported only once."""
    program = (
        "import socket, sys, warnings\n"
        "warnings.simplefilter('error')\n"
        "def refuse(*args, **kwargs): raise SystemExit('asked the network')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "import torch\n"
        "from dataclasses import replace\n"
        "from flopwatch.models.builder import build_from_transformers as build\n"
        "from flopwatch.jobs.model_shapes import SHAPES\n"
        "for name in ('opt-350m', 'pythia-160m', 'llama-160m'):\n"
        "    model = build(replace(SHAPES[name], layers=1, vocabulary=64))\n"
        "    ids = torch.arange(32)[None]\n"
        "    model(input_ids=ids, labels=ids).loss.backward()\n"
        "assert all(x.abs().sum() > 0 for x in (p.grad for p in model.parameters()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_unknown_name_gets_names_like_it() -> None:
    words = r"^there is no model 'gpt-5'; did you mean gpt-.*`flopwatch models` lists all names"
    with pytest.raises(UsageError, match=words):
        build_from_transformers("gpt-5")


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(FlopwatchError, match="run: pip install transformers$"):
        build_from_transformers("opt-125m")
