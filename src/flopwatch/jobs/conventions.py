"""Ways to count the FLOPs of a trained token: utilisations compare only within one of them.

Model FLOPs (for MFU) are what the forward and backward pass need, however they are computed.
Hardware FLOPs (for HFU) are what is really computed: also what is recomputed and rows that pad the
vocabulary. Conventions agree on neither. Symbols in their formulas:

    N  parameters           L  layers        h  hidden size        S  sequence length
    V  vocabulary           a  heads         k  key and value heads
    f  feed-forward size    e  experts that a token goes through   P  rows of padding

N has the experts that a token goes through, and no padding. Where heads are not as wide as the
hidden size together, L h S of attention is that of the heads: (width of keys + width of values) / 2
in each layer that has attention. Only exact-causal knows windows and chunks; all others take S
positions in every layer with attention, as their sources do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flopwatch.errors import UsageError
from flopwatch.jobs.architectures import ARCHITECTURES
from flopwatch.jobs.flops import count_flops_by_part
from flopwatch.jobs.layer_parts import Part
from flopwatch.jobs.parameters import (
    count_attention_width,
    count_parameters,
    count_positions,
    count_weights,
    list_all_layers,
    require_known,
)
from flopwatch.jobs.training_job import TrainingJob

NEEDED = 3
"""Passes that training needs: forward, gradients of inputs, gradients of weights."""
MULTIPLIED: tuple[Part, ...] = ("qkv", "output", "state-space", "feed-forward", "mtp")
"""Parts of the blocks that have weights."""
SCAN_FLOPS = 7
"""Of a token, for each number of a state: Megatron-LM's count."""


Built = int | None
"""Parameters of a model as it was built, with positions for its shape's or for a sequence's tokens,
if those are more; None: counted from the shape."""
Count = Callable[[TrainingJob, Built], float]
"""FLOPs of one token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Convention:
    name: str
    source: str
    formulas: tuple[str, ...]
    """FLOPs of one token, as text."""
    count_model_flops: Count
    count_hardware_flops: Count
    count_model_star_flops: Count | None = None
    """From parameters only, where the convention has such numbers: for MFU*."""
    count_hardware_star_flops: Count | None = None
    count_parameters: Callable[[TrainingJob, Built], int] | None = None
    """N, where its formulas have it."""
    needs_parts: bool = True
    """Whether it counts matmuls: False where the number of parameters is enough, and so holds for
    any layers."""


def count_trained_parameters(
    job: TrainingJob, built: Built = None, *, at_length: bool = False
) -> int:
    """N. With `at_length` learned positions are as many as a sequence has tokens, not as many as
    the model has room for."""
    shape = replace(job.shape, padded_vocabulary=None)
    if built is None:
        require_known(shape)
        built = count_parameters(shape, active=True)
    if not at_length:
        return built
    used = replace(shape, positions=job.seq_len)
    return built - (count_positions(shape) - count_positions(used))


def _count_padding(job: TrainingJob) -> int:
    shape = job.shape
    # 6 P h: 2 (multiply, add) x 3 (passes) for each weight of the head's padding.
    return 2 * NEEDED * shape.padding * (shape.embedding_size or shape.hidden_size)


def _count_pair_width(job: TrainingJob) -> int:
    """2 L h: multiplications of a pair of positions, of scores and of values. Of an architecture
    whose layers are not known, as if all had attention as wide as the hidden size."""
    shape = job.shape
    if shape.architecture not in ARCHITECTURES:
        return 2 * shape.layers * shape.hidden_size
    return count_attention_width(shape)


def _sum_parts(
    job: TrainingJob, *, causal: bool, wanted: Callable[[Part], bool] = lambda part: True
) -> tuple[float, float]:
    """What the step needs of the wanted parts, and what it recomputes, for one token."""
    counted = count_flops_by_part(job, causal=causal)
    passes = [passes for part, passes in counted.items() if wanted(part)]
    needed, tokens = sum(one.forward + one.backward for one in passes), job.micro_batch_tokens
    return needed / tokens, sum(one.recomputed for one in passes) / tokens


def _make_exact(name: str, *, causal: bool) -> Convention:
    def count_model(job: TrainingJob, built: Built) -> float:
        needed, _ = _sum_parts(job, causal=causal, wanted=lambda part: part != "padding")
        return needed

    def count_hardware(job: TrainingJob, built: Built) -> float:
        return sum(_sum_parts(job, causal=causal))

    pairs = "(S + 1) / 2" if causal else "S"
    return Convention(
        name=name,
        source="flopwatch: the matmuls of every part, "
        + ("scores and values where the causal mask leaves something" if causal else "in full"),
        formulas=(
            "F = 2 (weights of all matmuls) + 4 L h " + pairs,
            "model = 3 F",
            "hardware = 3 F + what is recomputed + 6 P h",
            "recomputed, full: the blocks' share of F but for their last matmuls; "
            f"selective: 4 L h {pairs}",
        ),
        count_model_flops=count_model,
        count_hardware_flops=count_hardware,
    )


def _make_mosaic(
    name: str, source: str, *, attention_flops: int, attention_passes: int
) -> Convention:
    """`attention_flops` are those of one pass, in units of L h S."""

    def count_n(job: TrainingJob, built: Built) -> int:
        return count_trained_parameters(job, built, at_length=True)

    def count_parameter_flops(job: TrainingJob, built: Built, passes: int) -> int:
        return 2 * passes * count_n(job, built)  # 2: multiply and add, once for each parameter

    def count_attention_flops(job: TrainingJob, passes: int) -> int:
        return passes * attention_flops * _count_pair_width(job) * job.seq_len // 2

    def count_model_star(job: TrainingJob, built: Built) -> float:
        return count_parameter_flops(job, built, NEEDED)

    def count_hardware_star(job: TrainingJob, built: Built) -> float:
        passes = NEEDED + (job.recompute == "full")
        return count_parameter_flops(job, built, passes) + _count_padding(job)

    def count_model(job: TrainingJob, built: Built) -> float:
        return count_model_star(job, built) + count_attention_flops(job, attention_passes)

    def count_hardware(job: TrainingJob, built: Built) -> float:
        passes = attention_passes + (job.recompute != "none")
        return count_hardware_star(job, built) + count_attention_flops(job, passes)

    return Convention(
        name=name,
        source=source,
        formulas=(
            f"A = {attention_flops} L h S, with S learned positions in N",
            f"model = 3 (2 N) + {attention_passes} A",
            "hardware = model without recomputation, "
            f"4 (2 N) + {attention_passes + 1} A with full, "
            f"3 (2 N) + {attention_passes + 1} A with selective (which the source does not have); "
            "+ 6 P h",
            "MFU* and HFU*: the same without A",
        ),
        count_model_flops=count_model,
        count_hardware_flops=count_hardware,
        count_model_star_flops=count_model_star,
        count_hardware_star_flops=count_hardware_star,
        count_parameters=count_n,
        needs_parts=False,
    )


def _make_palm(name: str, source: str, *, what: str, with_positions: bool) -> Convention:
    def count_n(job: TrainingJob, built: Built) -> int:
        left_out = 0 if with_positions else count_positions(job.shape)
        return count_trained_parameters(job, built) - left_out

    def count_model(job: TrainingJob, built: Built) -> float:
        # 6 = 2 (multiply, add) x 3 (forward, grad input, grad weight); 12 L h S = 6 (2 L h) S:
        # queries with keys and scores with values are a matmul each.
        return 2 * NEEDED * (count_n(job, built) + _count_pair_width(job) * job.seq_len)

    def count_hardware(job: TrainingJob, built: Built) -> float:
        _, again = _sum_parts(job, causal=False)
        return count_model(job, built) + again + _count_padding(job)

    return Convention(
        name=name,
        source=source,
        formulas=(
            f"model = 6 N + 12 L h S, with N {what}",
            "hardware = model + what is recomputed, as in exact, + 6 P h",
        ),
        count_model_flops=count_model,
        count_hardware_flops=count_hardware,
        count_parameters=count_n,
    )


def _make_megatron(name: str, source: str, *, halved: bool) -> Convention:
    def count_pass(job: TrainingJob) -> tuple[float, float, float]:
        """Of a forward pass: weights of the blocks, attention's matmuls, the head."""
        layers, weights = list_all_layers(job.shape), count_weights(job.shape)
        blocks = sum(weights[part] for part in MULTIPLIED)
        blocks -= sum(
            layer.count * each.weights
            for layer in layers
            for each in layer.linears
            if each.is_router
        )
        scans = sum(layer.count * layer.scan.inner_state for layer in layers if layer.scan)
        # 2 (multiply, add); _count_pair_width has both, queries with keys and scores with values.
        matmuls = 2 * _count_pair_width(job) * job.seq_len
        return (
            2 * blocks + SCAN_FLOPS * scans,
            matmuls / (2 if halved else 1),
            2 * weights["head"],
        )

    def count_model(job: TrainingJob, built: Built) -> float:
        return NEEDED * sum(count_pass(job))

    def count_hardware(job: TrainingJob, built: Built) -> float:
        blocks, attention, _ = count_pass(job)
        again = {"none": 0.0, "full": blocks + attention, "selective": NEEDED * attention}
        return count_model(job, built) + again[job.recompute] + _count_padding(job)

    half = " / 2" if halved else ""
    return Convention(
        name=name,
        source=source,
        formulas=(
            f"B = 12 L h^2 (1 + k/a + e f g / h), A = 12 L h S{half}, H = 6 h V; "
            "g = 3/2 with a gate, else 1",
            "model = B + A + H"
            + ("" if halved else ", for GPT 72 L h^2 (1 + S / (6 h) + V / (12 L h))"),
            "hardware = model without recomputation, 4/3 (B + A) + H with full, "
            "B + 2 A + H with selective (as published: only A / 3 is recomputed); + 6 P h",
            f"layers with a state space, in B: 6 (weights) + {NEEDED * SCAN_FLOPS} (its inner "
            "size) (its state size), as Megatron-LM counts them",
        ),
        count_model_flops=count_model,
        count_hardware_flops=count_hardware,
    )


KORTHIKANTI = "Korthikanti et al. 2022 (arXiv:2205.05198), Narayanan et al. 2021 (arXiv:2104.04473)"
CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        _make_mosaic(
            "mosaic-2023",
            "the MosaicGPT throughput tables of early 2023 (mosaicml/examples, llm/throughput): A "
            "is half of attention's matmuls, in 2 passes",
            attention_flops=2,
            attention_passes=2,
        ),
        _make_mosaic(
            "mosaic",
            "mosaicml/llm-foundry, scripts/train/benchmarking",
            attention_flops=4,
            attention_passes=NEEDED,
        ),
        _make_palm(
            "palm",
            "Chowdhery et al. 2022 (arXiv:2204.02311), appendix B",
            what="all parameters, embeddings included",
            with_positions=True,
        ),
        _make_palm(
            "nanogpt",
            "karpathy/nanoGPT, model.py, estimate_mfu",
            what="all parameters but learned positions",
            with_positions=False,
        ),
        _make_megatron("megatron", KORTHIKANTI, halved=False),
        _make_megatron(
            "megatron-causal",
            "NVIDIA/Megatron-LM, num_floating_point_operations, since it halves attention for the "
            "causal mask (with V before padding); hardware after " + KORTHIKANTI,
            halved=True,
        ),
        _make_exact("exact", causal=False),
        _make_exact("exact-causal", causal=True),
    )
}


def find_conventions(names: Sequence[str] = ()) -> list[Convention]:
    """By name; all where none is named."""
    unknown = [name for name in names if name not in CONVENTIONS]
    if unknown:
        raise UsageError(
            f"there is no convention {unknown[0]!r}; choose one of {', '.join(CONVENTIONS)}"
        )
    return [CONVENTIONS[name] for name in names or CONVENTIONS]
