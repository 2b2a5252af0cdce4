"""FLOPs of every kind of layer are those that torch counts in the library transformers' models.

Plain attention computes all pairs of positions, so that scores and values are compared in full; how
many of them masks leave is compared with the masks. Two of their models compute more than they
need, which is part of what is expected: experts of Llama 4 see all tokens, and the states of
chunks are combined as a matmul of all chunks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.flops import count_bytes_by_part, count_flops_by_part
from flopwatch.jobs.layer_parts import Part, list_layers
from flopwatch.jobs.model_configs import READERS, read_config
from flopwatch.jobs.model_shapes import Shape, find_dimensions
from flopwatch.jobs.parameters import count_parameters, count_weights
from flopwatch.jobs.training_job import RECOMPUTES, TrainingJob

BATCH, TOKENS = 2, 128
COMMON = {"vocab_size": 101, "num_hidden_layers": 4, "pad_token_id": 0, "bos_token_id": 0,
          "eos_token_id": 0}  # fmt: skip
WIDE = {**COMMON, "hidden_size": 48, "num_attention_heads": 6, "intermediate_size": 80,
        "max_position_embeddings": 256}  # fmt: skip
GQA = {**WIDE, "num_key_value_heads": 2}
GPT = {"vocab_size": 101, "bos_token_id": 0, "eos_token_id": 0}
EXPERTS = {"num_local_experts": 5, "num_experts_per_tok": 2}
LATENT = {**WIDE, "num_key_value_heads": 6, "kv_lora_rank": 20, "q_lora_rank": 28,
          "qk_nope_head_dim": 12,
          "qk_rope_head_dim": 4, "v_head_dim": 10, "n_routed_experts": 8, "n_shared_experts": 2,
          "num_experts_per_tok": 3, "moe_intermediate_size": 36, "first_k_dense_replace": 1,
          "n_group": 1, "topk_group": 1}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "opt": {**COMMON, "hidden_size": 48, "num_attention_heads": 6, "ffn_dim": 80,
            "word_embed_proj_dim": 20},
    "gpt_neox": WIDE,
    "llama": GQA,
    "mistral": {**GQA, "sliding_window": 24},
    "qwen2": GQA,
    "qwen3": {**GQA, "head_dim": 16},
    "olmo2": GQA,
    "olmo3": {**GQA, "sliding_window": 24},
    "gemma": {**GQA, "head_dim": 16},
    "gemma2": {**GQA, "head_dim": 16, "sliding_window": 24},
    "gemma3_text": {**GQA, "head_dim": 16, "sliding_window": 24, "num_hidden_layers": 7},
    "granite": GQA,
    "smollm3": GQA,
    "phi3": {**GQA, "sliding_window": 24},
    "phi": WIDE,
    "nemotron": {**GQA, "head_dim": 16},
    "gpt2": {**GPT, "n_embd": 48, "n_head": 6, "n_layer": 3, "n_inner": 80, "n_positions": 256},
    "bloom": {**GPT, "hidden_size": 48, "n_head": 6, "n_layer": 3, "pad_token_id": 0},
    "mpt": {**GPT, "d_model": 48, "n_heads": 6, "n_layers": 3, "max_seq_len": 256},
    "falcon": {**COMMON, "hidden_size": 48, "num_attention_heads": 6, "num_kv_heads": 2,
               "new_decoder_architecture": True},
    "mixtral": {**GQA, **EXPERTS},
    "qwen2_moe": {**GQA, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36,
                  "shared_expert_intermediate_size": 44, "decoder_sparse_step": 2},
    "qwen3_moe": {**GQA, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36,
                  "head_dim": 16},
    "olmoe": {**GQA, "num_experts": 5, "num_experts_per_tok": 2},
    "granitemoe": {**GQA, **EXPERTS},
    "gpt_oss": {**GQA, **EXPERTS, "head_dim": 16, "sliding_window": 24},
    "llama4_text": {**GQA, "num_local_experts": 4, "num_experts_per_tok": 4, "head_dim": 16,
                    "intermediate_size_mlp": 100, "interleave_moe_layer_step": 2,
                    "attention_chunk_size": 24},
    "deepseek_v2": {**LATENT, "q_lora_rank": None},
    "deepseek_v3": LATENT,
    "deepseek_v32": {**LATENT, "index_topk": 24, "index_n_heads": 3, "index_head_dim": 8},
    "qwen3_next": {**GQA, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 36,
                   "shared_expert_intermediate_size": 44, "head_dim": 16,
                   "linear_key_head_dim": 10, "linear_value_head_dim": 14,
                   "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "mamba2": {**COMMON, "hidden_size": 48, "expand": 2, "num_heads": 6, "head_dim": 16,
               "state_size": 20, "n_groups": 6, "chunk_size": 32},
    "nemotron_h": {**{k: v for k, v in GQA.items() if k != "num_hidden_layers"}, "head_dim": 16,
                   "hybrid_override_pattern": "M-M*ME", "mamba_num_heads": 6, "mamba_head_dim": 10,
                   "ssm_state_size": 20, "n_groups": 6, "chunk_size": 32, "n_routed_experts": 8,
                   "num_experts_per_tok": 2, "moe_intermediate_size": 36,
                   "moe_shared_expert_intermediate_size": 44},
    "granitemoehybrid": {**GQA, **EXPERTS, "shared_intermediate_size": 44, "mamba_n_heads": 6,
                         "mamba_d_state": 20, "mamba_n_groups": 6, "mamba_chunk_size": 32,
                         "layer_types": ["mamba", "attention", "mamba", "attention"]},
}  # fmt: skip
"""One of each, with hardly two dimensions alike."""
SCANS = ("mamba2", "nemotron_h", "granitemoehybrid")


def describe(kind: str) -> tuple[Any, Shape]:
    content = {"model_type": kind, **TINY[kind]}
    return AutoConfig.for_model(**content), read_config(content)


def build(config: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager"
    )
    return model.eval()


def count_torch(model: nn.Module) -> tuple[int, dict[str, int]]:
    """Of the matmuls of a forward pass: in all, and by module."""
    ids = torch.randint(1, 101, (BATCH, TOKENS))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(input_ids=ids, use_cache=False)
    by_module = {
        name.partition(".")[2]: sum(
            count for operator, count in operators.items() if "convolution" not in str(operator)
        )
        for name, operators in counter.get_flop_counts().items()
    }
    whole = sum(
        count
        for operator, count in counter.get_flop_counts()["Global"].items()
        if "convolution" not in str(operator)
    )
    rotary = sum(count for name, count in by_module.items() if name.endswith("rotary_emb"))
    return whole - rotary, by_module


def count_ours(shape: Shape) -> dict[Part, int]:
    parts = count_flops_by_part(TrainingJob(shape, TOKENS, micro_batch=BATCH))
    return {part: passes.forward for part, passes in parts.items()}


def count_chunk_states(shape: Shape) -> int:
    """Their matmul of all chunks' states with all chunks."""
    layers = sum(layer.count for layer in list_layers(shape) if layer.scan is not None)
    chunks = TOKENS // (shape.scan_chunk or 1) + 1
    state = (shape.state_heads or 0) * (shape.state_head_dim or 0) * (shape.state_size or 0)
    return 2 * BATCH * layers * chunks**2 * state


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """So small matmuls only wait for further ones."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_architecture_is_here() -> None:
    assert set(TINY) == set(READERS)


@pytest.mark.parametrize("kind", TINY)
def test_flops_are_those_that_torch_counts(kind: str) -> None:
    config, shape = describe(kind)
    model = build(config)
    assert count_parameters(shape) == sum(p.numel() for p in model.parameters())
    whole, by_module = count_torch(model)
    ours = count_ours(shape)
    extra = count_chunk_states(shape) if kind in SCANS else 0
    assert sum(ours.values()) == whole - extra
    linear = {
        name: by_module[name]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name in by_module
    }
    heads = [name for name in linear if name in ("lm_head", "embed_out")]
    assert ours["head"] == sum(linear[name] for name in heads) > 0
    mixers = [
        name
        for name, module in model.named_modules()
        if name.count(".") <= 4 and type(module).__name__.endswith(MIXERS)
    ]
    mixed = sum(by_module.get(name, 0) for name in mixers)
    parts: tuple[Part, ...] = ("qkv", "scores", "values", "output", "state-space", "scan")
    assert sum(ours[part] for part in parts) == mixed - extra > 0
    rest = whole - mixed - ours["head"] - ours["embedding"]
    assert ours["feed-forward"] == rest


MIXERS = ("Attention", "GatedDeltaNet", "Mamba2Mixer", "MambaLayer", "MptAttention")


UNSEEN = ("mamba2", "bloom", "mpt", "falcon", "gpt2", "deepseek_v32")
"""Whose masks are not given to their attention by that name, or not there at all."""


@pytest.mark.parametrize("kind", [kind for kind in TINY if kind not in UNSEEN])
def test_masks_leave_as_many_pairs_as_are_counted(kind: str) -> None:
    """Full, sliding and chunked."""
    config, shape = describe(kind)
    left: Counter[int] = Counter()

    def look(module: nn.Module, arguments: tuple[Any, ...], given: dict[str, Any]) -> None:
        mask = given["attention_mask"]
        left[int((mask[0, 0] == (True if mask.dtype == torch.bool else 0)).sum())] += 1

    model = build(config)
    for module in model.modules():
        if type(module).__name__.endswith("Attention"):
            module.register_forward_pre_hook(look, with_kwargs=True)
    ids = torch.randint(1, 101, (1, 100))  # no multiple of a window
    with torch.no_grad():
        model(input_ids=ids, use_cache=False)
    counted: Counter[int] = Counter()
    for layer in list_layers(shape):
        if layer.attention is not None:
            counted[layer.attention.count_pairs(100, masked=True)] += layer.count
    assert counted == left


def test_sparse_attention_sees_as_many_positions_as_it_chooses() -> None:
    _, shape = describe("deepseek_v32")
    job = TrainingJob(shape, 100)
    scores = count_flops_by_part(job, causal=True)["scores"].forward
    seen = sum(min(place + 1, 24) for place in range(100))
    # 6 heads of 16 on what is seen; 3 of 8 and their sum on everything before.
    assert scores == 2 * 4 * (seen * 6 * 16 + 5050 * 3 * (8 + 1))


def test_chunks_are_half_needed_and_matrices_shared_by_groups() -> None:
    """The scan of a chunk is causal; input and output matrices are multiplied once for a group of
    heads, where the library copies them for every head."""
    shape = read_config({"model_type": "mamba2", **TINY["mamba2"], "n_groups": 1})
    (layer,) = list_layers(shape)
    assert layer.scan is not None
    # 6 heads of 16, states of 20: G = C B once, G X for each head; B X and C S for each head.
    assert layer.scan.pair_width == 20 + 6 * 16
    assert layer.scan.state_width == 2 * 6 * 16 * 20
    whole, half = (
        count_flops_by_part(TrainingJob(shape, 64), causal=causal)["scan"].forward
        for causal in (False, True)
    )
    assert whole == 2 * 4 * (2 * 32**2 * 116 + 64 * 3840)
    assert half == 2 * 4 * (2 * 32 * 33 // 2 * 116 + 64 * 3840)


def test_multi_token_prediction_is_a_projection_a_layer_and_the_head_again() -> None:
    """As DeepSeek V3 describes it: built from their layer, since the library's model has none."""
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
        DeepseekV3DecoderLayer,
        DeepseekV3RMSNorm,
        DeepseekV3RotaryEmbedding,
    )

    config, shape = describe("deepseek_v3")
    config._attn_implementation = config._experts_implementation = "eager"
    hidden = config.hidden_size
    layer = DeepseekV3DecoderLayer(config, config.num_hidden_layers - 1).eval()
    joint = nn.Linear(2 * hidden, hidden, bias=False)
    norms = nn.ModuleList(DeepseekV3RMSNorm(hidden) for _ in range(3))
    module = nn.ModuleList([layer, joint, norms])
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    more = replace(shape, mtp_layers=1)
    added = count_parameters(more) - count_parameters(shape)
    assert added == sum(parameter.numel() for parameter in module.parameters())

    head = nn.Linear(hidden, config.vocab_size, bias=False)
    states = torch.randn(BATCH, TOKENS, hidden)
    positions = torch.arange(TOKENS)[None]
    angles = DeepseekV3RotaryEmbedding(config)(states, positions)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        joined = joint(torch.cat([norms[0](states), norms[1](states)], dim=-1))
        head(norms[2](layer(joined, position_embeddings=angles, position_ids=positions)))
    assert sum(count_ours(more).values()) - sum(count_ours(shape).values()) == (
        counter.get_total_flops()
    )
    assert count_ours(more)["mtp"] == 2 * BATCH * TOKENS * 2 * hidden * hidden


def test_backward_is_twice_forward() -> None:
    """Also through experts, latent attention and scans."""
    for kind in ("deepseek_v3", "gpt_oss", "gemma2"):
        config, shape = describe(kind)
        model = build(config)
        ids = torch.randint(1, 101, (BATCH, TOKENS))
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        with FlopCounterMode(display=False) as counter:
            loss.backward()
        assert counter.get_total_flops() == 2 * sum(count_ours(shape).values())


@pytest.mark.parametrize(
    "kind",
    [
        "llama",
        "deepseek_v3",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("gemma2", "olmo2", "mixtral")),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("qwen2_moe", "granitemoehybrid")),
    ],
)
def test_full_recomputation_is_what_torch_repeats(kind: str) -> None:
    """All but the last matmul of a block, unless something needs its result."""
    config, shape = describe(kind)
    model: Any = build(config).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.randint(1, 101, (BATCH, TOKENS))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    job = TrainingJob(shape, TOKENS, micro_batch=BATCH, recompute="full")
    counted = sum(passes.total for passes in count_flops_by_part(job).values())
    assert counted == counter.get_total_flops()


# --- conventions


@pytest.mark.parametrize("kind", TINY)
def test_conventions_count_the_active_parameters(kind: str) -> None:
    """6 N of what a token goes through, and attention as wide as its heads are."""
    _, shape = describe(kind)
    job = TrainingJob(shape, TOKENS)
    palm = CONVENTIONS["palm"].count_model_flops(job, None)
    pairs = sum(
        layer.count * (layer.attention.key_width + layer.attention.value_width)
        for layer in list_layers(shape)
        if layer.attention is not None
    )
    active = count_parameters(shape, active=True)
    assert palm == 6 * active + 6 * pairs * TOKENS
    assert active < count_parameters(shape) or shape.experts in (None, shape.active_experts)
    exact = CONVENTIONS["exact"].count_model_flops(job, None)
    weights = sum(count_weights(shape).values())
    scans = count_flops_by_part(job)["scan"].forward / TOKENS
    pairs += sum(
        layer.count * layer.attention.index_width
        for layer in list_layers(shape)
        if layer.attention is not None
    )
    assert exact == pytest.approx(6 * weights + 6 * pairs * TOKENS + 3 * scans, rel=1e-12)
    for convention in CONVENTIONS.values():
        model = convention.count_model_flops(job, None)
        hardware = [
            convention.count_hardware_flops(replace(job, recompute=recompute), None)
            for recompute in RECOMPUTES
        ]
        assert 0 < model * (1 - 1e-12) <= hardware[0] <= min(hardware[1:])
    assert CONVENTIONS["exact-causal"].count_model_flops(job, None) < exact


def test_only_exact_causal_knows_windows() -> None:
    wide, narrow = (
        TrainingJob(f"mistral:hidden_size=64:layers=2:heads=4{window}", 1024)
        for window in ("", ":window=64")
    )
    for name, convention in CONVENTIONS.items():
        counts = [convention.count_model_flops(job, None) for job in (wide, narrow)]
        assert (counts[1] < counts[0]) == (name == "exact-causal")


def test_megatron_counts_state_spaces_as_it_does() -> None:
    """Projections, 7 FLOPs for each number of the state and token, and the head."""
    shape = find_dimensions("mamba2-130m")
    inner, heads, state, hidden = 1536, 24, 128, 768
    layer = 2 * hidden * (2 * inner + 2 * state + heads) + 2 * inner * hidden + 7 * inner * state
    counted = CONVENTIONS["megatron"].count_model_flops(TrainingJob(shape, 2048), None)
    assert counted == 3 * (24 * layer + 2 * hidden * 50288)


@pytest.mark.parametrize("kind", TINY)
def test_bytes_cover_all_weights_once(kind: str) -> None:
    """Of many tokens, all experts are read, and every matrix of the model is."""
    _, shape = describe(kind)
    job = TrainingJob(shape, 4096, micro_batch=8, precision="fp32")
    moved = count_bytes_by_part(job)
    weights = count_weights(shape, active=False)
    parts: tuple[Part, ...] = ("qkv", "output", "state-space", "feed-forward", "head")
    for part in parts:
        assert moved[part].forward >= 4 * weights[part]
        assert (moved[part].forward > 0) == (weights[part] > 0)
