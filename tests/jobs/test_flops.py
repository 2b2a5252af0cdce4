"""Accounts: FLOPs and bytes by part, conventions, and the published table by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from flopwatch.jobs.step_flops import count_flops, count_mode_flops, count_parameters
from flopwatch.jobs.variants import PRECISIONS, Recompute, parse_mode
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.devices.device_names import parse_hardware
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import (
    CONVENTIONS,
    Training,
    count_trained_parameters,
    find_conventions,
)
from flopwatch.jobs.flops import (
    ATTENTION,
    PARTS,
    Passes,
    count_bytes_by_part,
    count_flops_by_part,
    count_weights,
    spread_by_dtype,
)
from flopwatch.jobs.model_shapes import Shape, find_dimensions, find_shape
from flopwatch.jobs.utilisation import assess
from flopwatch.models.builder import build, choose_attention, choose_recompute
from tests.output.test_published_layouts import read_mosaic_cells

TITLES, *LINES = read_mosaic_cells()
PUBLISHED = [dict(zip(TITLES, line, strict=True)) for line in LINES]
TINY = "hidden_size=64:layers=2:heads=4:vocabulary=256"
RECOMPUTES: tuple[Recompute, ...] = ("none", "full", "selective")


# --- the published table


def read_training(row: Mapping[str, str]) -> Training:
    return Training(
        shape=find_shape(row["Model"].removeprefix("gpt")),
        tokens=int(row["SeqLen (T)"]),
        recompute="full" if row["ActCkpt"] == "True" else "none",
    )


def test_the_published_table_is_whole() -> None:
    assert len(PUBLISHED) == 87


@pytest.mark.parametrize("row", PUBLISHED)
def test_every_published_row_follows_from_its_own_inputs(row: dict[str, str]) -> None:
    """To the last printed digit: tokens/s are printed with enough of them."""
    training = read_training(row)
    assert count_trained_parameters(training, at_length=True) == int(row["ParamCount"])
    (found,) = assess(
        training,
        float(row["Throughput (T/s)"]),
        devices=int(row["NumGPUs"]),
        peak=parse_hardware(f"8x{row['GPUType']}").device.find_peak("bfloat16"),
        conventions=[CONVENTIONS["mosaic-2023"]],
    )
    shares = {"MFU*": found.mfu_star, "MFU": found.mfu, "HFU*": found.hfu_star, "HFU": found.hfu}
    assert {name: f"{share:.4f}" for name, share in shares.items()} == {
        name: row[name] for name in shares
    }


@pytest.mark.parametrize("row", PUBLISHED[::10])
def test_parameters_are_as_the_closed_formula_has_them(row: dict[str, str]) -> None:
    shape, tokens = read_training(row).shape, int(row["SeqLen (T)"])
    hidden = shape.hidden_size
    blocks = shape.layers * (12 * hidden**2 + 13 * hidden)
    assert int(row["ParamCount"]) == (50257 + tokens) * hidden + blocks + 2 * hidden


# --- parts


def draw_shapes() -> st.SearchStrategy[Shape]:
    def make(draw: st.DrawFn) -> Shape:
        heads = draw(st.sampled_from([2, 4, 8]))
        experts = draw(st.sampled_from([None, 2, 8]))
        vocabulary = draw(st.integers(2, 5000))
        return Shape(
            architecture=draw(st.sampled_from(["decoder", "gpt", "llama", "opt"])),
            hidden_size=heads * draw(st.integers(1, 64)),
            feed_forward_size=draw(st.integers(1, 4096)),
            layers=draw(st.integers(1, 8)),
            heads=heads,
            vocabulary=vocabulary,
            key_value_heads=draw(st.sampled_from([None, 1, 2, heads])),
            experts=experts,
            active_experts=None if experts is None else draw(st.integers(1, experts)),
            padded_vocabulary=draw(st.sampled_from([None, vocabulary + 64])),
        )

    return st.composite(make)()


def total(parts: Mapping[str, Passes]) -> int:
    return sum(passes.total for passes in parts.values())


@given(shape=draw_shapes(), sequences=st.integers(1, 8), tokens=st.integers(1, 512))
@settings(max_examples=100)
def test_parts_add_up(shape: Shape, sequences: int, tokens: int) -> None:
    none, full, selective = (
        count_flops_by_part(shape, sequences=sequences, tokens=tokens, recompute=recompute)
        for recompute in RECOMPUTES
    )
    counted = count_flops(shape, batch=sequences, tokens=tokens)
    assert sum(p.forward for part, p in none.items() if part != "padding") == counted.forward
    assert tuple(none) == PARTS
    assert total(none) <= total(selective) <= total(full)
    assert total(full) <= 4 * sum(passes.forward for passes in full.values())
    causal = count_flops_by_part(shape, sequences=sequences, tokens=tokens, causal=True)
    for part in PARTS:
        halved = part in ATTENTION
        ratio = (tokens + 1, 2 * tokens) if halved else (1, 1)
        assert causal[part].forward * ratio[1] == none[part].forward * ratio[0]
    spread = spread_by_dtype(full, "bfloat16")
    assert spread["forward"]["bfloat16"] + spread["backward"]["bfloat16"] == total(full)
    for phase in ("forward", "backward"):
        inside = {key.partition("/")[2]: count["bfloat16"] for key, count in spread.items()
                  if key.startswith(f"{phase}/")}  # fmt: skip
        attention = inside.pop("attention")
        assert sum(inside.values()) == spread[phase]["bfloat16"]
        assert attention == sum(inside[p] for p in ("qkv", "scores", "values", "output"))


@given(shape=draw_shapes(), tokens=st.integers(1, 512))
@settings(max_examples=50)
def test_sharing_keys_never_costs_more(shape: Shape, tokens: int) -> None:
    own = replace(shape, key_value_heads=None)
    shared, alone = (count_flops_by_part(one, sequences=1, tokens=tokens) for one in (shape, own))
    assert shared["qkv"].total <= alone["qkv"].total
    assert all(shared[part] == alone[part] for part in PARTS if part != "qkv")
    fp32 = PRECISIONS["fp32"]
    moved, more = (
        count_bytes_by_part(one, sequences=1, tokens=tokens, precision=fp32) for one in (shape, own)
    )
    assert all(moved[part].total <= more[part].total for part in PARTS)


@given(shape=draw_shapes(), tokens=st.integers(1, 512))
@settings(max_examples=50)
def test_every_convention_counts_the_same_work_alike(shape: Shape, tokens: int) -> None:
    """Recomputing never lowers hardware FLOPs, which are never below model FLOPs; padding is only
    in the former."""
    bare = replace(shape, padded_vocabulary=None)
    for convention in CONVENTIONS.values():
        plain = Training(shape=shape, tokens=tokens)
        model = convention.count_model_flops(plain)
        hardware = [
            convention.count_hardware_flops(replace(plain, recompute=recompute))
            for recompute in RECOMPUTES
        ]
        assert model * (1 - 1e-12) <= hardware[0] <= min(hardware[1:])
        assert convention.count_model_flops(Training(shape=bare, tokens=tokens)) == model
        padding = 6 * shape.padding * shape.hidden_size
        assert hardware[0] - model == pytest.approx(padding, abs=1e-6 * model)


@pytest.mark.parametrize("architecture", ["decoder", "gpt"])
@pytest.mark.parametrize("recompute", RECOMPUTES)
def test_exact_flops_are_those_that_torch_counts(architecture: str, recompute: Recompute) -> None:
    shape = find_shape(f"{architecture}:{TINY}")
    model = build(shape)
    choose_attention(model, "plain")  # a fused kernel is not counted on a CPU
    choose_recompute(model, recompute)
    ids = torch.randint(shape.vocabulary, (3, 20))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    training = Training(shape=shape, tokens=20, recompute=recompute)
    counted = 3 * 20 * CONVENTIONS["exact"].count_hardware_flops(training)
    assert counted == pytest.approx(counter.get_total_flops(), rel=1e-12)
    mode = parse_mode({"none": "eager", "full": "checkpointed"}.get(recompute, recompute))
    flops = count_mode_flops(shape, mode, (3, 20), PRECISIONS["fp32"])
    assert sum(flops[phase]["float32"] for phase in ("forward", "backward")) == round(counted)
    parts = count_flops_by_part(shape, sequences=3, tokens=20, recompute=recompute)
    scores = parts["scores"]
    assert flops["forward/scores"]["float32"] == scores.forward
    assert flops["backward/scores"]["float32"] == scores.backward + scores.recomputed


def test_a_norm_after_the_last_product_needs_its_result_again() -> None:
    parts = count_flops_by_part(find_shape("opt-350m"), sequences=1, tokens=8, recompute="full")
    assert parts["feed-forward"].recomputed == parts["feed-forward"].forward
    parts = count_flops_by_part(find_shape("opt-125m"), sequences=1, tokens=8, recompute="full")
    assert parts["feed-forward"].recomputed == parts["feed-forward"].forward // 2


def test_bytes_are_those_of_operands_and_results() -> None:
    shape = find_dimensions("llama:hidden_size=64:layers=1:heads=4:key_value_heads=1:vocabulary=10")
    fp32, autocast = PRECISIONS["fp32"], PRECISIONS["bf16-mixed"]
    parts = count_bytes_by_part(shape, sequences=2, tokens=3, precision=fp32)
    assert parts["qkv"].forward == 4 * (64 * 96 + 6 * (64 + 96))
    assert parts["qkv"].backward == 4 * (2 * 64 * 96 + 6 * (2 * 64 + 96))
    assert parts["scores"].forward == 4 * 6 * (64 + 16)
    assert parts["head"].forward == 4 * (10 * 64 + 6 * (64 + 10))
    mixed = count_bytes_by_part(shape, sequences=2, tokens=3, precision=autocast)
    assert mixed["qkv"].forward == 4 * 64 * 96 + 2 * 6 * (64 + 96)
    again = count_bytes_by_part(shape, sequences=2, tokens=3, recompute="full", precision=fp32)
    down = 4 * (64 * 256 + 6 * (2 * 256 + 64))
    assert again["feed-forward"].recomputed == again["feed-forward"].forward - down
    assert again["qkv"].recomputed == parts["qkv"].forward
    assert again["head"].recomputed == 0


def test_of_an_embedding_the_backward_pass_only_writes_gradients() -> None:
    """Of the rows of tokens and positions, from the gradients of what was looked up; projections
    are products, whose weights are read again."""
    bf16 = PRECISIONS["bf16"]
    parts = count_bytes_by_part(find_shape("gpt-125m"), sequences=1, tokens=1024, precision=bf16)
    rows = 2 * 1024 * 768
    assert (parts["embedding"].forward, parts["embedding"].backward) == (3 * rows, 3 * rows)
    assert parts["embedding"].total == 9 * 2**20
    shape = find_shape("opt-350m")
    parts = count_bytes_by_part(shape, sequences=1, tokens=8, precision=bf16)
    hidden, width, projections = 1024, 512, 2 * 1024 * 512
    looked_up = 8 * (width + hidden)
    through = 8 * (hidden + width)
    assert parts["embedding"].backward == 2 * (
        looked_up + 8 * width + 2 * projections + 3 * through
    )


# --- experts, padding, names


MIXTRAL = (
    "llama:hidden_size=4096:layers=32:heads=32:key_value_heads=8:feed_forward_size=14336"
    ":vocabulary=32000:experts=8:active_experts=2"
)


def test_experts_count_as_far_as_a_token_goes_through_them() -> None:
    """Mixtral 8x7B, whose parameters are published."""
    shape = find_dimensions(MIXTRAL)
    assert count_parameters(shape) == 46_702_792_704
    assert count_parameters(shape, active=True) == 12_879_925_248
    assert count_weights(shape)["feed-forward"] == 32 * (2 * 3 * 4096 * 14336 + 8 * 4096)
    one = count_bytes_by_part(shape, sequences=1, tokens=1, precision=PRECISIONS["bf16"])
    many = count_bytes_by_part(shape, sequences=1, tokens=64, precision=PRECISIONS["bf16"])
    assert many["feed-forward"].forward > 3.9 * one["feed-forward"].forward


def test_padding_is_computed_but_not_needed() -> None:
    bare = Training(shape=find_shape("gpt-125m"), tokens=512)
    padded = replace(bare, shape=find_dimensions("gpt-125m:padded_vocabulary=50304"))
    assert count_parameters(padded.shape) - count_parameters(bare.shape) == 47 * 768
    for convention in CONVENTIONS.values():
        model = convention.count_model_flops(padded)
        assert model == convention.count_model_flops(bare)
        assert convention.count_hardware_flops(padded) - model == 6 * 47 * 768


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("7b:experts=8:active_experts=2", "can be accounted for (flopwatch mfu), but not built"),
        ("gpt-125m:padded_vocabulary=50304", "padded_vocabulary can be accounted for"),
        ("7b:experts=8", "give both experts and active_experts"),
        (f"7b:layers=1{400 * '0'}", "a model with 401 digits in its layers has no use"),
        (f"7b:vocabulary={5000 * '7'}", "a model with 5000 digits in its vocabulary has no use"),
        ("7b:experts=2:active_experts=3", "no more active ones than there are"),
        ("7b:padded_vocabulary=100", "has no room for 50257 tokens"),
        ("llama-160m:key_value_heads=5", "12 heads cannot share 5 key_value_heads"),
    ],
)
def test_what_cannot_be_built_or_be_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_shape(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", ["125m", "350m", "760m", "1b", "3b", "7b", "13b", "30b", "70b"])
def test_mosaic_sizes_need_no_prefix(size: str) -> None:
    assert find_shape(size) == find_shape(f"gpt-{size}")
    assert find_shape(f"{size}:layers=2").layers == 2


def test_what_is_unknown_says_how_to_write_it() -> None:
    training = Training(shape=find_dimensions("qwen2:hidden_size=64:layers=2"), tokens=8)
    for convention in CONVENTIONS.values():
        with pytest.raises(UsageError, match="write it as one of decoder, gpt, opt"):
            convention.count_model_flops(training)


# --- conventions


def test_where_padding_counts_its_formula_says_so() -> None:
    assert all("+ 6 P h" in " ".join(one.formulas) for one in CONVENTIONS.values())


def test_conventions_are_these_formulas() -> None:
    shape, tokens = find_shape("gpt-1b"), 1024
    n, layers, hidden = count_parameters(shape), shape.layers, shape.hidden_size
    at_length = n - (2048 - tokens) * hidden
    attention = layers * hidden * tokens
    blocks = 72 * layers * hidden**2
    head, scores = shape.vocabulary / (12 * layers * hidden), tokens / (6 * hidden)
    expected = {
        "mosaic-2023": (6 * at_length + 4 * attention, 8 * at_length + 6 * attention),
        "mosaic": (6 * at_length + 12 * attention, 8 * at_length + 16 * attention),
        "megatron": (
            blocks * (1 + scores + head),
            96 / 72 * blocks * (1 + scores + shape.vocabulary / (16 * layers * hidden)),
        ),
        "megatron-causal": (
            blocks * (1 + scores / 2 + head),
            blocks * (4 / 3 * (1 + scores / 2) + head),
        ),
    }
    training = Training(shape=shape, tokens=tokens, recompute="full")
    for name, counts in expected.items():
        found = CONVENTIONS[name]
        assert found.count_model_flops(training) == pytest.approx(counts[0], rel=1e-12)
        assert found.count_hardware_flops(training) == pytest.approx(counts[1], rel=1e-12)
    selective = replace(training, recompute="selective")
    korthikanti = blocks * (1 + 2 * scores + head)
    assert CONVENTIONS["megatron"].count_hardware_flops(selective) == pytest.approx(korthikanti)
    palm = CONVENTIONS["palm"].count_model_flops(training)
    assert palm == 6 * n + 12 * attention
    nanogpt = CONVENTIONS["nanogpt"].count_model_flops(training)
    assert nanogpt == 6 * (n - 2048 * hidden) + 12 * attention
    exact = CONVENTIONS["exact"].count_model_flops(training)
    assert exact == pytest.approx(CONVENTIONS["megatron"].count_model_flops(training), rel=1e-12)


def test_parameters_as_built_are_taken_where_they_are_known() -> None:
    built = Training(shape=find_shape("7b"), tokens=2048, parameters=10**9)
    attention = 32 * 4096 * 2048
    assert CONVENTIONS["palm"].count_model_flops(built) == 6e9 + 12 * attention
    assert CONVENTIONS["mosaic-2023"].count_model_flops(built) == 6e9 + 4 * attention


@pytest.mark.parametrize("model", ["gpt-125m", "opt-125m", "small"])
@pytest.mark.parametrize("tokens", [512, 2048, 4096])
def test_a_job_has_one_mfu_whether_its_parameters_were_counted_or_built(
    model: str, tokens: int
) -> None:
    """A built model has room for 2048 tokens, or more where it must; mosaic's N has not."""
    asked = Training(shape=find_shape(model), tokens=tokens)
    built = replace(asked, parameters=count_parameters(asked.shape.stretch(tokens)))
    for convention in CONVENTIONS.values():
        assert convention.count_model_flops(built) == convention.count_model_flops(asked)
        assert convention.count_hardware_flops(built) == convention.count_hardware_flops(asked)


def test_a_convention_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="no convention 'mine'; choose one of mosaic-2023, "):
        find_conventions(["mine"])
