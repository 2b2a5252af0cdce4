"""Accounts: FLOPs and bytes by part, conventions, and the published table by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from flopwatch.devices.device_names import parse_hardware
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import (
    CONVENTIONS,
    count_trained_parameters,
    find_conventions,
)
from flopwatch.jobs.flops import (
    ATTENTION,
    Passes,
    count_bytes_by_part,
    count_flops_by_part,
    count_micro_batch_flops,
    spread_by_dtype,
)
from flopwatch.jobs.model_shapes import Shape, find_dimensions, find_shape
from flopwatch.jobs.parameters import PARTS, count_parameters, count_weights
from flopwatch.jobs.training_job import RECOMPUTES, Recompute, TrainingJob
from flopwatch.jobs.utilisation import compute_utilisations
from flopwatch.models.builder import build, choose_attention, choose_recompute
from tests.output.test_published_layouts import read_mosaic_cells

TITLES, *LINES = read_mosaic_cells()
PUBLISHED = [dict(zip(TITLES, line, strict=True)) for line in LINES]
TINY = "hidden_size=64:layers=2:heads=4:vocabulary=256"


# --- the published table


def read_training(row: Mapping[str, str]) -> TrainingJob:
    return TrainingJob(
        row["Model"].removeprefix("gpt"),
        int(row["SeqLen (T)"]),
        recompute="full" if row["ActCkpt"] == "True" else "none",
    )


def test_the_published_table_is_whole() -> None:
    assert len(PUBLISHED) == 87


@pytest.mark.parametrize("row", PUBLISHED)
def test_every_published_row_follows_from_its_own_inputs(row: dict[str, str]) -> None:
    """To the last printed digit: tokens/s are printed with enough of them."""
    training = read_training(row)
    assert count_trained_parameters(training, at_length=True) == int(row["ParamCount"])
    (found,) = compute_utilisations(
        training,
        float(row["Throughput (T/s)"]),
        devices=int(row["NumGPUs"]),
        peak=parse_hardware(f"8x{row['GPUType']}")[1].find_peak("bfloat16"),
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
    job = TrainingJob(shape, tokens, micro_batch=sequences)
    none, selective, full = (
        count_flops_by_part(replace(job, recompute=recompute)) for recompute in RECOMPUTES
    )
    assert tuple(none) == PARTS
    assert total(none) <= total(selective) <= total(full)
    assert total(full) <= 4 * sum(passes.forward for passes in full.values())
    causal = count_flops_by_part(job, causal=True)
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
    jobs = [
        TrainingJob(one, tokens, precision="fp32")
        for one in (shape, replace(shape, key_value_heads=None))
    ]
    shared, alone = map(count_flops_by_part, jobs)
    assert shared["qkv"].total <= alone["qkv"].total
    assert all(shared[part] == alone[part] for part in PARTS if part != "qkv")
    moved, more = map(count_bytes_by_part, jobs)
    assert all(moved[part].total <= more[part].total for part in PARTS)


@given(shape=draw_shapes(), tokens=st.integers(1, 512))
@settings(max_examples=50)
def test_every_convention_counts_the_same_work_alike(shape: Shape, tokens: int) -> None:
    """Recomputing never lowers hardware FLOPs, which are never below model FLOPs; padding is only
    in the former."""
    bare = replace(shape, padded_vocabulary=None)
    for convention in CONVENTIONS.values():
        plain = TrainingJob(shape, tokens)
        model = convention.count_model_flops(plain, None)
        hardware = [
            convention.count_hardware_flops(replace(plain, recompute=recompute), None)
            for recompute in RECOMPUTES
        ]
        assert model * (1 - 1e-12) <= hardware[0] <= min(hardware[1:])
        assert convention.count_model_flops(TrainingJob(bare, tokens), None) == model
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
    job = TrainingJob(shape, 20, micro_batch=3, precision="fp32", recompute=recompute)
    counted = 3 * 20 * CONVENTIONS["exact"].count_hardware_flops(job, None)
    assert counted == pytest.approx(counter.get_total_flops(), rel=1e-12)
    flops = count_micro_batch_flops(job)
    assert sum(flops[phase]["float32"] for phase in ("forward", "backward")) == round(counted)
    scores = count_flops_by_part(job)["scores"]
    assert flops["forward/scores"]["float32"] == scores.forward
    assert flops["backward/scores"]["float32"] == scores.backward + scores.recomputed


def test_a_norm_after_the_last_matmul_needs_its_result_again() -> None:
    parts = count_flops_by_part(TrainingJob("opt-350m", 8, recompute="full"))
    assert parts["feed-forward"].recomputed == parts["feed-forward"].forward
    parts = count_flops_by_part(TrainingJob("opt-125m", 8, recompute="full"))
    assert parts["feed-forward"].recomputed == parts["feed-forward"].forward // 2


def test_bytes_are_those_of_operands_and_results() -> None:
    model = "llama:hidden_size=64:layers=1:heads=4:key_value_heads=1:vocabulary=10"
    job = TrainingJob(model, 3, micro_batch=2, precision="fp32")
    parts = count_bytes_by_part(job)
    assert parts["qkv"].forward == 4 * (64 * 96 + 6 * (64 + 96))
    assert parts["qkv"].backward == 4 * (2 * 64 * 96 + 6 * (2 * 64 + 96))
    assert parts["scores"].forward == 4 * 6 * (64 + 16)
    assert parts["head"].forward == 4 * (10 * 64 + 6 * (64 + 10))
    mixed = count_bytes_by_part(replace(job, precision="bf16-mixed"))
    assert mixed["qkv"].forward == 4 * 64 * 96 + 2 * 6 * (64 + 96)
    again = count_bytes_by_part(replace(job, recompute="full"))
    down = 4 * (64 * 256 + 6 * (2 * 256 + 64))
    assert again["feed-forward"].recomputed == again["feed-forward"].forward - down
    assert again["qkv"].recomputed == parts["qkv"].forward
    assert again["head"].recomputed == 0


def test_of_an_embedding_the_backward_pass_only_writes_gradients() -> None:
    """Of the rows of tokens and positions, from the gradients of what was looked up; projections
    are matmuls, whose weights are read again."""
    parts = count_bytes_by_part(TrainingJob("gpt-125m", 1024, precision="bf16"))
    rows = 2 * 1024 * 768
    assert (parts["embedding"].forward, parts["embedding"].backward) == (3 * rows, 3 * rows)
    assert parts["embedding"].total == 9 * 2**20
    parts = count_bytes_by_part(TrainingJob("opt-350m", 8, precision="bf16"))
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
    one = count_bytes_by_part(TrainingJob(shape, 1, precision="bf16"))
    many = count_bytes_by_part(TrainingJob(shape, 64, precision="bf16"))
    assert many["feed-forward"].forward > 3.9 * one["feed-forward"].forward


def test_padding_is_computed_but_not_needed() -> None:
    bare = TrainingJob("gpt-125m", 512)
    padded = replace(bare, model="gpt-125m:padded_vocabulary=50304")
    assert count_parameters(padded.shape) - count_parameters(bare.shape) == 47 * 768
    for convention in CONVENTIONS.values():
        model = convention.count_model_flops(padded, None)
        assert model == convention.count_model_flops(bare, None)
        assert convention.count_hardware_flops(padded, None) - model == 6 * 47 * 768


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
    job = TrainingJob("stablelm:hidden_size=64:layers=2", 8)
    for convention in CONVENTIONS.values():
        with pytest.raises(UsageError, match="write it as one of decoder, gpt, opt"):
            convention.count_model_flops(job, None)


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
    job = TrainingJob("gpt-1b", tokens, recompute="full")
    for name, counts in expected.items():
        found = CONVENTIONS[name]
        assert found.count_model_flops(job, None) == pytest.approx(counts[0], rel=1e-12)
        assert found.count_hardware_flops(job, None) == pytest.approx(counts[1], rel=1e-12)
    selective = replace(job, recompute="selective")
    korthikanti = blocks * (1 + 2 * scores + head)
    assert CONVENTIONS["megatron"].count_hardware_flops(selective, None) == pytest.approx(
        korthikanti
    )
    palm = CONVENTIONS["palm"].count_model_flops(job, None)
    assert palm == 6 * n + 12 * attention
    nanogpt = CONVENTIONS["nanogpt"].count_model_flops(job, None)
    assert nanogpt == 6 * (n - 2048 * hidden) + 12 * attention
    exact = CONVENTIONS["exact"].count_model_flops(job, None)
    assert exact == pytest.approx(CONVENTIONS["megatron"].count_model_flops(job, None), rel=1e-12)


def test_parameters_as_built_are_taken_where_they_are_known() -> None:
    job = TrainingJob("7b", 2048)
    attention = 32 * 4096 * 2048
    assert CONVENTIONS["palm"].count_model_flops(job, 10**9) == 6e9 + 12 * attention
    assert CONVENTIONS["mosaic-2023"].count_model_flops(job, 10**9) == 6e9 + 4 * attention


@pytest.mark.parametrize("model", ["gpt-125m", "opt-125m", "small"])
@pytest.mark.parametrize("tokens", [512, 2048, 4096])
def test_a_job_has_one_mfu_whether_its_parameters_were_counted_or_built(
    model: str, tokens: int
) -> None:
    """A built model has room for 2048 tokens, or more where it must; mosaic's N has not."""
    job = TrainingJob(model, tokens)
    for convention in CONVENTIONS.values():
        for count in (convention.count_model_flops, convention.count_hardware_flops):
            assert count(job, job.parameters) == count(job, None)


def test_a_convention_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="no convention 'mine'; choose one of mosaic-2023, "):
        find_conventions(["mine"])
