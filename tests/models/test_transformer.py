"""Our own transformer computes what others call by its name, and counts from shapes are exact."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.jobs.model_shapes import SHAPES, Shape, find_shape
from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.models import builder
from flopwatch.models.builder import build, choose_attention, choose_recompute, find_attention
from flopwatch.models.job_estimates import count_flops
from flopwatch.models.step_workload import make_workload
from flopwatch.models.transformer import Transformer
from flopwatch.worker.instruments import listening
from flopwatch.worker.sampling import run_phases

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS = [name for name, shape in SHAPES.items() if shape.is_ours]
SIZES = "hidden_size=48:feed_forward_size=80:layers=2:heads=3:vocabulary=101:positions=32"
TINY = {name: find_shape(f"{name}:{SIZES}") for name in ("decoder", "gpt")}
"""No two dimensions alike."""
TINY |= {
    "decoder, gelu, tied": replace(TINY["decoder"], activation="gelu", tied=True),
    "gpt, swiglu, untied": replace(TINY["gpt"], activation="swiglu", tied=False),
}
tiny_shapes = pytest.mark.parametrize("shape", TINY.values(), ids=TINY)


def make(shape: Shape, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    model = build(shape)
    for parameter in model.parameters():  # biases and norms too, which start as 0 and 1
        nn.init.normal_(parameter, std=0.2)
    return model, torch.randint(shape.vocabulary, (2, 20))


@pytest.mark.parametrize("name", OURS)
def test_parameters_are_counted_exactly(name: str) -> None:
    model = build(SHAPES[name], device="meta")
    assert count_parameters(SHAPES[name]) == sum(p.numel() for p in model.parameters())


@tiny_shapes
def test_parameters_of_any_shape_are_counted_exactly(shape: Shape) -> None:
    assert count_parameters(shape) == sum(p.numel() for p in build(shape).parameters())


@pytest.mark.parametrize("tokens", [512, 2048])
@pytest.mark.parametrize(
    ("name", "hidden", "layers"),
    [("gpt-125m", 768, 12), ("gpt-3b", 2560, 32), ("gpt-13b", 5120, 40)],
)
def test_gpt_has_the_published_number_of_parameters(
    name: str, hidden: int, layers: int, tokens: int
) -> None:
    expected = 50257 * hidden + tokens * hidden + layers * (12 * hidden**2 + 13 * hidden)
    counted = count_parameters(replace(SHAPES[name], positions=tokens))
    assert counted == expected + 2 * hidden


def test_decoder_is_llama() -> None:
    ours, ids = make(TINY["decoder"])
    theirs = builder.build(replace(TINY["decoder"], architecture="llama"))
    theirs.config.rms_norm_eps = 1e-5
    for norm in theirs.modules():
        if hasattr(norm, "variance_epsilon"):
            norm.variance_epsilon = 1e-5
    weights = dict(ours.named_parameters())
    taken = {
        "model.embed_tokens.weight": weights["embedding.weight"],
        "model.norm.weight": weights["norm.weight"],
        "lm_head.weight": weights["head.weight"],
    }
    for i in range(2):
        mine = {
            name.removeprefix(f"blocks.{i}.").removesuffix(".weight"): weight
            for name, weight in weights.items()
            if name.startswith(f"blocks.{i}.")
        }
        parts = {
            "input_layernorm": mine["attention_norm"],
            "self_attn.o_proj": mine["attention.output"],
            "post_attention_layernorm": mine["feed_forward_norm"],
            "mlp.down_proj": mine["feed_forward.down"],
        }
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        parts |= dict(zip(names, mine["attention.qkv"].chunk(3), strict=True))
        names = ("mlp.gate_proj", "mlp.up_proj")
        parts |= dict(zip(names, mine["feed_forward.up"].chunk(2), strict=True))
        taken |= {f"model.layers.{i}.{name}.weight": weight for name, weight in parts.items()}
    theirs.load_state_dict(taken)
    same = {
        "embedding.weight": "model.embed_tokens.weight",
        "blocks.0.feed_forward.down.weight": "model.layers.0.mlp.down_proj.weight",
    }
    compare(ours, theirs, ids, same)


def test_gpt_is_gpt2() -> None:
    ours, ids = make(TINY["gpt"])
    theirs = builder.build(replace(TINY["gpt"], architecture="gpt2"))
    for block in theirs.transformer.h:
        block.mlp.act = nn.GELU()
    names = {
        "embedding": "wte",
        "positions": "wpe",
        "norm": "ln_f",
        "attention_norm": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.up": "mlp.c_fc",
        "feed_forward.down": "mlp.c_proj",
    }
    taken = {"lm_head.weight": ours.embedding.weight}
    for name, weight in ours.named_parameters():
        block, kind = re.match(r"(?:blocks\.(\d+)\.)?", name)[1], name.rpartition(".")[2]
        part = names[name.removeprefix(f"blocks.{block}.").removesuffix(f".{kind}")]
        place = f"h.{block}.{part}" if block else part
        # Theirs multiplies by the transposed weight.
        is_product = block is not None and weight.dim() == 2
        taken[f"transformer.{place}.{kind}"] = weight.T if is_product else weight
    theirs.load_state_dict(taken)
    same = {
        "embedding.weight": "transformer.wte.weight",
        "blocks.0.feed_forward.down.bias": "transformer.h.0.mlp.c_proj.bias",
    }
    compare(ours, theirs, ids, same)


def compare(ours: nn.Module, theirs: nn.Module, ids: torch.Tensor, names: dict[str, str]) -> None:
    mine, yours = ours(input_ids=ids, labels=ids), theirs(input_ids=ids, labels=ids)
    torch.testing.assert_close(mine.logits, yours.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(mine.loss, yours.loss, rtol=1e-4, atol=1e-5)
    mine.loss.backward()
    yours.loss.backward()
    mine_of, yours_of = dict(ours.named_parameters()), dict(theirs.named_parameters())
    for my_name, your_name in names.items():
        torch.testing.assert_close(
            mine_of[my_name].grad, yours_of[your_name].grad, rtol=1e-3, atol=1e-5
        )


@pytest.mark.parametrize("change", ["plain", "full", "selective"])
@tiny_shapes
def test_every_way_to_compute_it_gives_the_same(shape: Shape, change: str) -> None:
    model, ids = make(shape)
    expected = step(model, ids)
    choose_attention(model, "plain" if change == "plain" else "sdpa")
    choose_recompute(model, "none" if change == "plain" else change)
    found = step(model, ids)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-4, msg=name)


def step(model: nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Loss and all gradients."""
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    return {"loss": loss.detach(), **gradients}


def test_models_of_transformers_are_told_in_the_same_way() -> None:
    shape = find_shape("qwen2:hidden_size=48:layers=2:heads=3:vocabulary=101:key_value_heads=1")
    torch.manual_seed(0)
    model, ids = build(shape), torch.randint(101, (2, 20))
    expected = step(model, ids)
    assert find_attention(model) == "sdpa"
    choose_attention(model, "plain")
    assert find_attention(model) == "plain"
    choose_recompute(model, "full")
    found = step(model, ids)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-5, msg=name)
    choose_recompute(model, "none")
    assert not model.is_gradient_checkpointing


@pytest.mark.parametrize("context", [20, 32])
@tiny_shapes
def test_a_token_sees_none_after_it(shape: Shape, context: int) -> None:
    model, _ = make(shape)
    ids = torch.randint(shape.vocabulary, (1, context))
    changed = ids.clone()
    changed[0, -1] = (changed[0, -1] + 1) % shape.vocabulary
    before, after = model(ids).logits, model(changed).logits
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.equal(before[:, -1], after[:, -1])


def test_the_same_seed_gives_the_same_weights_in_every_dtype() -> None:
    full, half = ({}, {})
    for dtype, kept in (("float32", full), ("bfloat16", half)):
        torch.manual_seed(3)
        model = build(TINY["decoder"], dtype=dtype)
        kept.update({name: p.detach() for name, p in model.named_parameters()})
        assert model.rotation.cosines.dtype == torch.float32  # its angles need the precision
    assert {p.dtype for p in half.values()} == {torch.bfloat16}
    # Not bit for bit: random numbers are drawn in the dtype itself.
    assert full.keys() == half.keys()


@tiny_shapes
def test_flops_are_those_that_torch_counts(shape: Shape) -> None:
    """Forward and backward, and each part. With plain attention: torch counts none in the fused
    one on a CPU."""
    model, _ = make(shape)
    choose_attention(model, "plain")
    ids = torch.randint(shape.vocabulary, (3, 20))
    with FlopCounterMode(display=False) as counter:
        loss = model(input_ids=ids, labels=ids).loss
        forward = counter.get_total_flops()
        loss.backward()
    by_module = {
        name.partition(".")[2]: sum(counts.values())
        for name, counts in counter.get_flop_counts().items()
    }
    flops = count_flops(TrainingJob(shape, 20, micro_batch=3, precision="fp32"))
    assert flops["forward"] == {"float32": forward}
    assert flops["backward"] == {"float32": counter.get_total_flops() - forward}
    for part, pattern in {"attention": ".attention", "feed-forward": ".feed_forward"}.items():
        counted = sum(n for name, n in by_module.items() if name.endswith(pattern))
        assert flops[f"forward/{part}"]["float32"] + flops[f"backward/{part}"]["float32"] == counted
    head = flops["forward/head"]["float32"] + flops["backward/head"]["float32"]
    assert head == by_module["head"]


@tiny_shapes
def test_flops_of_what_is_recomputed_are_those_that_torch_counts(shape: Shape) -> None:
    model, _ = make(shape)
    choose_attention(model, "plain")
    choose_recompute(model, "full")
    ids = torch.randint(shape.vocabulary, (3, 20))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    flops = count_flops(TrainingJob(shape, 20, micro_batch=3, precision="fp32", recompute="full"))
    total = flops["forward"]["float32"] + flops["backward"]["float32"]
    assert total == counter.get_total_flops()
    inside = sum(
        flops[f"backward/{part}"]["float32"] for part in ("attention", "feed-forward", "head")
    )
    assert inside == flops["backward"]["float32"]


def test_flops_of_swapped_layers_are_those_of_the_layers() -> None:
    job = TrainingJob("small", 128, micro_batch=4, precision="fp32")
    dense, dyad = count_flops(job), count_flops(parse_variant(job, "dyad:auto:4"))
    saved = dense["forward"]["float32"] - dyad["forward"]["float32"]
    assert saved == dense["forward/feed-forward"]["float32"] / 2
    assert count_flops(parse_variant(job, "dyad:auto:4@blocks.0.*")) == {}


@pytest.mark.parametrize("match", ["feed-forward", "linear"])
@pytest.mark.parametrize("word", ["recompute-full", "recompute-selective"])
def test_swapped_layers_that_are_recomputed_are_counted_as_torch_counts(
    word: str, match: str
) -> None:
    model = "decoder:hidden_size=64:layers=2:heads=4:vocabulary=256"
    plain = TrainingJob(model, 16, micro_batch=2, precision="fp32", optimizer="sgd")
    job = parse_variant(plain, f"{word}+plain-attention+dyad:auto:4@{match}")
    workload = make_workload(job, "cpu")
    with FlopCounterMode(display=False) as counter:
        run_phases(workload)
    flops = count_flops(job)
    assert flops["forward"]["float32"] + flops["backward"]["float32"] == counter.get_total_flops()


def test_sgd_and_precision_are_told_apart() -> None:
    shape = find_shape("small")
    flops = count_flops(TrainingJob(shape, 8, precision="bf16-mixed", optimizer="sgd"))
    assert list(flops["forward"]) == ["bfloat16"]
    assert flops["optimizer"] == {"float32": 2.0 * count_parameters(shape)}


def test_regions_are_told_to_who_listens() -> None:
    heard: list[str] = []

    @contextmanager
    def listen(name: str) -> Iterator[None]:
        heard.append(name)
        yield

    model, ids = make(replace(TINY["decoder"], layers=1))
    choose_attention(model, "plain")
    with listening(listen):
        model(input_ids=ids, labels=ids)
    assert heard == [
        "embedding", "norm", "attention", "attention/qkv", "attention/rotation", "attention/scores",
        "attention/softmax", "attention/values", "attention/output", "norm", "feed-forward",
        "feed-forward/up", "feed-forward/activation", "feed-forward/down", "norm", "head", "loss",
    ]  # fmt: skip
    heard.clear()
    model(input_ids=ids)
    assert heard == []


def test_it_compiles_whole() -> None:
    torch._dynamo.reset()
    model, ids = make(TINY["decoder"])
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=False)
    expected, found = model(ids, ids).loss, compiled(ids, ids).loss
    torch.testing.assert_close(found, expected)
    assert isinstance(model, Transformer)
