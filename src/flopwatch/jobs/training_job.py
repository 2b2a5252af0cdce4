"""A training job: the one description that suites, FLOPs, memory, predictions and records share.

A variant of a suite is the same job computed in another way, written as words joined by ``+``:

    eager                                  as it is: the baseline
    compiled                               through torch.compile
    cuda-graph                             launched as CUDA graphs, which are recorded once
    reduce-overhead                        both: torch.compile(mode="reduce-overhead")
    plain-attention                        two matmuls and a softmax instead of the fused kernel
    recompute-full                         full activation checkpointing: blocks keep their inputs
    recompute-selective                    blocks keep the results of linear layers, too
    dyad:auto:4, switchback:global@linear  other linear layers in the feed-forward parts, in all
                                           of the blocks (@linear), or where a pattern matches their
                                           names (@blocks.0.*)
    none, ddp, zero1, zero2, full, hybrid  the sharding, in a job of several ranks
    tp2, tp2+sp, pp2:interleaved, ...      how ranks divide the model (`jobs.parallelism_words`)
    full+tp2+recompute-full                all of these
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from functools import cache, lru_cache
from html import escape
from typing import Any, Literal, get_args

from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import Shape, find_dimensions, is_config_path
from flopwatch.jobs.parallelism import (
    SHARDING_SPELLINGS,
    Parallelism,
    Sharding,
    require_count,
)
from flopwatch.jobs.parallelism_words import FIELDS, name_parallelism, read_parallelism_word
from flopwatch.jobs.parameters import count_parameters
from flopwatch.jobs.precision import DTYPE_BYTES, PRECISIONS, Precision, find_precision

Attention = Literal["sdpa", "plain"]
"""sdpa: torch's fused attention; plain: two matmuls and a softmax that can be seen."""
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
Recompute = Literal["none", "selective", "full"]
"""Activation checkpointing, that is what the backward pass computes again: nothing, all of a block
but its linear layers, or all of it."""
RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
OPTIMIZERS = ("adamw", "adamw-unfused", "sgd")
"""adamw: one kernel for all of a step; adamw-unfused: an operation at a time, as torch does it by
default; sgd: without momentum."""
OFFLOADS = ("none", "activations", "optimizer", "both")
"""What is kept in the memory of the host: activations until the backward pass, the optimizer's
state with the update."""
DENSE, FEED_FORWARD = "dense", "feed-forward"
LARGEST = 2**40
"""No axis of a job is larger."""
MOST_IMBALANCE = 1e4
WIDEST_BYTES = 8
"""Of a number: float64."""


class Printed:
    """A result that shows its `__str__` at a prompt and in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """
    >>> job = TrainingJob("7b", 2048, micro_batch=4, parallelism=Parallelism(data=8))
    >>> job.global_batch, job.tokens_per_step, job.parameters
    (32, 65536, 6658404352)
    """

    model: str | Shape
    """A name, the path of a config.json, an architecture with its dimensions
    (`jobs.model_shapes`), or a shape."""
    seq_len: int
    """Tokens of a sequence."""
    _: KW_ONLY
    micro_batch: int = 1
    """Sequences that a rank computes at once."""
    grad_accum: int = 1
    """Micro-batches of a rank in a step."""
    precision: str = "bf16-mixed"
    """A key of `jobs.precision.PRECISIONS`, or another spelling of one."""
    optimizer: str = "adamw"
    recompute: Recompute = "none"
    attention: Attention = "sdpa"
    compiled: bool = False
    """Whether torch.compile has compiled it."""
    graphs: bool = False
    """Whether its kernels are recorded once as graphs, each launched by a single call."""
    linear: str = DENSE
    """What the linear layers are that `swapped` names: a spec of `layers.registry`."""
    swapped: str = FEED_FORWARD
    """feed-forward, linear (all in the blocks), or a pattern of layers' names."""
    parallelism: Parallelism = Parallelism()
    hardware: str | None = None
    """As in 8xA100-80GB; None: not known."""
    reduced_bytes: int | None = None
    """Of a gradient that ranks sum up; None: as is usual for the precision."""
    recompute_layers: int | None = None
    """Of each pipeline stage, those that are recomputed in full, as Megatron's
    --recompute-num-layers; None: all."""
    offload: str = "none"
    """One of OFFLOADS."""
    expert_imbalance: float | None = None
    """Tokens of the rank whose experts have most, over the mean; None: as is usual."""
    shape: Shape = field(init=False, repr=False, compare=False)
    """The model's dimensions, with positions for `seq_len` tokens."""

    def __post_init__(self) -> None:
        for name in ("seq_len", "micro_batch", "grad_accum"):
            require_count(name, getattr(self, name), LARGEST)
        if self.reduced_bytes is not None:
            require_count("reduced_bytes", self.reduced_bytes, WIDEST_BYTES)
        if self.recompute_layers is not None:
            require_count("recompute_layers", self.recompute_layers, LARGEST, 0)
            if self.recompute != "full":
                raise UsageError(
                    "recompute_layers says how many layers are recomputed in full; choose "
                    "recompute full, too"
                )
        imbalance = self.expert_imbalance
        if imbalance is not None and not 1 <= imbalance <= MOST_IMBALANCE:
            raise UsageError(
                f"expert_imbalance is {str(imbalance)[:40]!r}; write a number from 1, where all "
                f"experts have as many tokens, to {MOST_IMBALANCE:.0e}"
            )
        _require("offload", self.offload, OFFLOADS)
        _require_layer_name(self.linear)
        _require("recompute", self.recompute, RECOMPUTES)
        _require("attention", self.attention, get_args(Attention))
        _require("optimizer", self.optimizer, OPTIMIZERS)
        object.__setattr__(self, "precision", find_precision(str(self.precision)))
        if not isinstance(self.model, str | Shape):
            raise UsageError(f"model is {str(self.model)[:40]!r}; give a name, or a Shape")
        is_path = isinstance(self.model, str) and is_config_path(self.model)
        # A file may change.
        find: Callable[[str | Shape, int], Shape] = _read_shape if is_path else _find_shape
        object.__setattr__(self, "shape", find(self.model, self.seq_len))

    @property
    def arithmetic(self) -> Precision:
        return PRECISIONS[self.precision]

    @property
    def sharding(self) -> Sharding:
        return self.parallelism.sharding

    @property
    def ranks(self) -> int:
        return self.parallelism.ranks

    @property
    def micro_batches(self) -> int:
        """Of a step, over all ranks."""
        return self.grad_accum * self.parallelism.data

    @property
    def local_batch(self) -> int:
        """Sequences of a data-parallel rank in a step."""
        return self.micro_batch * self.grad_accum

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.local_batch * self.parallelism.data

    @property
    def micro_batch_tokens(self) -> int:
        return self.micro_batch * self.seq_len

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.seq_len

    @property
    def recomputed_share(self) -> float:
        """Of the layers, those that are recomputed in full."""
        if self.recompute != "full":
            return 0.0
        if self.recompute_layers is None:
            return 1.0
        return min(1.0, self.recompute_layers * self.parallelism.pipeline / self.shape.layers)

    @property
    def parameters(self) -> int:
        return _count_parameters(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether all layers are the model's own."""
        return self.linear == DENSE

    @property
    def name(self) -> str:
        """Of its model."""
        if isinstance(self.model, str):
            return self.model
        shape = self.model
        return f"{shape.architecture}:hidden_size={shape.hidden_size}:layers={shape.layers}"

    def divide(self, **fields: Any) -> TrainingJob:
        """The same step on the same ranks, with other fields of `Parallelism`: fewer data-parallel
        ranks compute more micro-batches each.

        >>> job = TrainingJob("small", 128, parallelism=Parallelism(data=4))
        >>> divided = job.divide(tensor=2)
        >>> divided.parallelism.data, divided.grad_accum
        (2, 2)
        """
        alone = replace(self.parallelism, **{**fields, "data": 1, "expert": 1})
        data, rest = divmod(self.ranks, alone.model_ranks)
        if rest:
            raise UsageError(
                f"{_name_sizes(alone)} takes a multiple of {alone.model_ranks} ranks, and there "
                f"are {self.ranks}; change one of them"
            )
        grad_accum, rest = divmod(self.micro_batches, data)
        if rest:
            raise UsageError(
                f"a step has {self.micro_batches} micro-batches, which {data} data-parallel ranks "
                "cannot share evenly; change --grad-accum or --global-batch"
            )
        parallelism = replace(self.parallelism, **{**fields, "data": data})
        return replace(self, grad_accum=grad_accum, parallelism=parallelism)

    def on_ranks(self, ranks: int) -> TrainingJob:
        """The same with so many data-parallel ranks; alone, nothing is sharded."""
        sharding = self.sharding if ranks > 1 else "none"
        return replace(self, parallelism=replace(self.parallelism, data=ranks, sharding=sharding))

    def to_dict(self) -> dict[str, Any]:
        content = asdict(self)
        del content["shape"]
        return content

    def __str__(self) -> str:
        """
        >>> print(TrainingJob("7b", 2048, micro_batch=4, recompute="full"))
        7b, seq_len 2,048, micro-batch 4, 1 rank, bf16-mixed, recompute full
        """
        parts = [
            self.name,
            f"seq_len {self.seq_len:,}",
            f"micro-batch {self.micro_batch}",
            *([f"grad-accum {self.grad_accum}"] if self.grad_accum > 1 else []),
            str(self.parallelism),
            self.precision,
            *([f"recompute {self.recompute}"] if self.recompute != "none" else []),
            *([f"{self.recompute_layers} layers of a stage"] if self.recompute_layers else []),
            *([f"offload {self.offload}"] if self.offload != "none" else []),
            *(["compiled"] if self.compiled else []),
            *(["as CUDA graphs"] if self.graphs else []),
            *([f"{self.attention} attention"] if self.attention != "sdpa" else []),
            *([f"{self.linear} in {self.swapped}"] if not self.is_dense else []),
            *([f"on {self.hardware}"] if self.hardware else []),
        ]
        return ", ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearLayer:
    """One linear layer by itself, forward and backward: what the smallest cases measure."""

    tokens: int
    inputs: int
    outputs: int
    dtype: str
    linear: str = DENSE
    """What kind of layer: a spec of `layers.registry`."""

    def __post_init__(self) -> None:
        for name in ("tokens", "inputs", "outputs"):
            require_count(name, getattr(self, name), LARGEST)
        _require_layer_name(self.linear)
        _require("dtype", self.dtype, list(DTYPE_BYTES))

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_layer(content: Mapping[str, Any]) -> LinearLayer | None:
    """The reverse of `LinearLayer.to_dict`; None where it is another thing."""
    if set(content) != {field.name for field in fields(LinearLayer)}:
        return None
    return LinearLayer(**content)


def _require_layer_name(linear: object) -> None:
    if not isinstance(linear, str):
        raise UsageError(f"linear is {str(linear)[:40]!r}; give the name of a layer, such as dense")


def _require(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"{name} is {str(value)[:40]!r}; choose one of {', '.join(known)}")


def _read_shape(model: str | Shape, seq_len: int) -> Shape:
    shape = find_dimensions(model) if isinstance(model, str) else model
    return shape.stretch(seq_len)


@lru_cache(maxsize=256)  # fits make thousands of jobs of a few models
def _find_shape(model: str | Shape, seq_len: int) -> Shape:
    return _read_shape(model, seq_len)


_count_parameters = cache(count_parameters)  # fits ask for it thousands of times


def read_job(content: Mapping[str, Any]) -> TrainingJob:
    """The reverse of `TrainingJob.to_dict`; UsageError where it is no such thing."""
    given = _refuse_unknown("a training job", TrainingJob, content)
    try:
        if isinstance(given.get("model"), Mapping):
            given["model"] = Shape(**given["model"])
        if "parallelism" in given:
            parallelism = _refuse_unknown("parallelism", Parallelism, given["parallelism"])
            given["parallelism"] = Parallelism(**parallelism)
        return TrainingJob(**given)
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"this is no training job ({error}); give what to_dict() gives") from None


def _refuse_unknown(what: str, kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    known = {each.name for each in fields(kind) if each.init}
    for name in content:
        if name not in known:
            raise UsageError(f"{what} has no {name!r}; it has {', '.join(sorted(known))}")
    return dict(content)


def _name_sizes(parallelism: Parallelism) -> str:
    sizes = {short: getattr(parallelism, field) for short, field in FIELDS.items()}
    return " x ".join(f"{short}={size}" for short, size in sizes.items() if size > 1)


def require_kept(job: TrainingJob, who: str) -> None:
    """Refuse offloading and recomputation of some layers, which `who` does not honour.

    >>> require_kept(TrainingJob("small", 128, offload="both"), "training")
    Traceback (most recent call last):
    flopwatch.errors.UsageError: training does not know offloading yet; leave offload=both out
    """
    if job.offload != "none":
        raise UsageError(f"{who} does not know offloading yet; leave offload={job.offload} out")
    if job.recompute_layers is not None:
        raise UsageError(
            f"{who} does not know recomputation of some layers yet; leave "
            f"recompute_layers={job.recompute_layers} out"
        )


def drop_variant(job: TrainingJob) -> TrainingJob:
    """What all variants of a group have in common."""
    return replace(
        job,
        recompute="none",
        attention="sdpa",
        compiled=False,
        graphs=False,
        linear=DENSE,
        swapped=FEED_FORWARD,
        parallelism=replace(job.parallelism, sharding="none"),
    )


STEP_WORDS: Mapping[str, Mapping[str, Any]] = {
    "eager": {},
    "compiled": {"compiled": True},
    "cuda-graph": {"graphs": True},
    "reduce-overhead": {"compiled": True, "graphs": True},
    "plain-attention": {"attention": "plain"},
    "recompute-full": {"recompute": "full"},
    "recompute-selective": {"recompute": "selective"},
}
SHARDING_WORDS: tuple[Sharding, ...] = ("none", "ddp", "zero1", "zero2", "full", "hybrid")
OLD_WORDS = {
    "checkpointed": "recompute-full",
    "selective": "recompute-selective",
    **SHARDING_SPELLINGS,
}


def parse_variant(job: TrainingJob, text: str) -> TrainingJob:
    """The job as a variant of a suite computes it. A word that is none of the above is taken for a
    kind of linear layers, which `layers.registry` knows.

    >>> job = TrainingJob("small", 128)
    >>> parse_variant(job, "compiled+plain-attention").attention
    'plain'
    >>> parse_variant(job, "full+recompute-selective").sharding
    'full'
    >>> parsed = parse_variant(job, "dyad:auto:4@*.up")
    >>> parsed.linear, parsed.swapped
    ('dyad:auto:4', '*.up')
    """
    chosen = read_variant(text)
    names = {each.name for each in fields(Parallelism)}
    split = {name: chosen.pop(name) for name in list(chosen) if name in names}
    changed = replace(job, **chosen)
    return changed.divide(**split) if split else changed


def read_variant(text: str) -> dict[str, Any]:
    """The fields of `TrainingJob` and of its `Parallelism` that a variant chooses."""
    chosen: dict[str, Any] = {}
    for word in text.split("+"):
        for name, value in _read_word(text, word).items():
            if chosen.get(name, value) != value:
                raise UsageError(
                    f"variant {text!r} has two words for {name}, {word!r} and one before it; keep "
                    "one"
                )
            chosen[name] = value
    return chosen


def _read_word(text: str, word: str) -> Mapping[str, Any]:
    if word in STEP_WORDS:
        return STEP_WORDS[word]
    if word in SHARDING_WORDS:
        return {"sharding": word}
    if word.lower() in OLD_WORDS:
        raise UsageError(f"variant {text!r}: {word!r} is called {OLD_WORDS[word.lower()]!r} here")
    split = read_parallelism_word(word)
    if split is not None:
        return split
    linear, _, swapped = word.partition("@")
    return {"linear": linear, **({"swapped": swapped} if swapped else {})}


def name_variant(
    *,
    sharding: str | None = None,
    recompute: str | None = None,
    attention: str | None = None,
    compiled: bool = False,
    **split: Any,
) -> str:
    """The variant that computes a job so; None: as is usual. `split` has other fields of
    `Parallelism`.

    >>> name_variant(sharding="full", recompute="selective"), name_variant()
    ('full+recompute-selective', 'eager')
    >>> name_variant(sharding="full", tensor=2, pipeline=2)
    'full+tp2+pp2'
    """
    _require("recompute", recompute or "none", RECOMPUTES)
    _require("attention", attention or "sdpa", ATTENTIONS)
    words = [
        sharding or "",
        *name_parallelism(**split),
        "compiled" if compiled else "",
        "plain-attention" if attention == "plain" else "",
        "" if recompute in (None, "none") else f"recompute-{recompute}",
    ]
    return "+".join(filter(None, words)) or "eager"


def name_sharding(text: str) -> str | None:
    """The word of a variant that says how ranks share the model; None: there is none."""
    words = text.split("+")
    return next(
        (word for word in words if word in SHARDING_WORDS or read_parallelism_word(word)), None
    )
