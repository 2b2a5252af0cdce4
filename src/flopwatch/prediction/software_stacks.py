"""Software stacks: what the cost model does not know from dimensions and data sheets.

A few parameters describe a software stack (a framework with its kernels and habits) on hardware:
how near to the limits it comes. Each has a meaning, a value to be expected, and how far from it the
truth may lie. Those of HARDWARE belong to the machines and the libraries below all stacks, and are
fitted together for all of them; the others are those of a family of stacks, and what is in OWN may
differ within a family.

Stacks are named, and fitted to published tables: `benchmarks/stacks.py` fits them again and
writes `data/stacks.json`. A stack knows the devices that its data are from. For a device that none
knows, the latest is taken, and its interval is wider.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import is_data_only
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.job_arrays import NO_HABITS, Habits


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    expected: float
    spread: float
    """One standard deviation of the logarithm; of a share, of the logarithm of its odds."""
    unit: str
    meaning: str
    is_share: bool = False
    """Whether it lies between 0 and 1."""

    def to_scale(self, value: float) -> float:
        """On the scale that it is fitted on."""
        return math.log(value / (1 - value)) if self.is_share else math.log(value)

    def from_scale(self, place: float) -> float:
        return 1 / (1 + math.exp(-place)) if self.is_share else math.exp(place)


def _prior(
    expected: float, spread: float, unit: str, meaning: str, *, is_share: bool = False
) -> Any:
    prior = Prior(
        expected=expected, spread=spread, unit=unit, meaning=meaning, is_share=is_share
    )  # fmt: skip
    return field(metadata={"prior": prior}, default=expected)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    matmul_efficiency: float = _prior(
        0.97,
        0.06,
        "of the rate of large matmuls",
        "what matmuls reach in a training step, without their traffic",
    )
    matmul_traffic: float = _prior(
        0.8,
        0.25,
        "of a matmul's traffic",
        "what is not hidden behind its arithmetic: why narrow matmuls are slower",
    )
    wave_tail: float = _prior(
        0.4,
        0.25,
        "waves",
        "of tiles that a matmul loses where its last wave leaves processors idle",
    )
    odd_matmul: float = _prior(
        3.0, 0.4, "times as long", "a head takes whose vocabulary is no multiple of 8"
    )
    odd_head: float = _prior(
        6.0, 0.4, "times as long", "matmuls of plain attention take whose head size is no multiple "
        "of 8",
    )  # fmt: skip
    grouped_efficiency: float = _prior(
        0.8, 0.2, "of other matmuls", "what grouped matmuls of experts reach"
    )
    expert_imbalance: float = _prior(
        1.15, 0.1, "times the mean", "tokens of the ranks whose experts have most"
    )
    cast_bytes: float = _prior(
        2.5, 0.4, "bytes", "moved for each number of a matmul with operands of 8 bits or fewer, to "
        "make them",
    )  # fmt: skip
    bandwidth_efficiency: float = _prior(
        0.8, 0.06, "of the memory's bandwidth", "what operations without matmuls reach"
    )
    loss_bytes: float = _prior(
        20.0, 0.4, "bytes", "moved for each logit, from the head to its gradient"
    )
    block_s: float = _prior(
        1.2e-3,
        0.35,
        "s",
        "that launches and hooks of a layer take, both passes; hidden where kernels take longer",
    )
    divided_block_s: float = _prior(
        1e-9, 0.1, "s", "that they take in addition where tensors of a layer are divided and each "
        "operation finds out how",
    )  # fmt: skip
    micro_batch_s: float = _prior(1e-3, 0.8, "s", "that a micro-batch takes in addition")
    step_s: float = _prior(
        8e-3, 0.8, "s", "that a step takes in addition: the loader, the optimizer's launches"
    )
    compiled_traffic: float = _prior(
        0.6, 0.2, "times as much", "operations between matmuls move where compiled: fused"
    )
    compiled_launches: float = _prior(0.5, 0.3, "times as long", "launches take where compiled")
    link_efficiency: float = _prior(
        0.78, 0.1, "of a link's bandwidth", "what collectives reach within a node"
    )
    network_efficiency: float = _prior(
        0.7, 0.3, "of the network's bandwidth", "what collectives reach between nodes"
    )
    collective_s: float = _prior(25e-6, 0.6, "s", "that a collective takes however small it is")
    hop_s: float = _prior(
        20e-6, 0.8, "s", "that a collective takes in addition for each node that it passes"
    )
    exposed_share: float = _prior(
        0.45,
        0.7,
        "of the time of data-parallel collectives",
        "in which nothing is computed, although there would be something to compute",
        is_share=True,
    )
    tensor_exposed: float = _prior(
        0.6, 0.5, "of the time of tensor-parallel collectives", "that is waited for", is_share=True
    )
    context_exposed: float = _prior(
        0.2, 0.7, "of what context-parallel ranks exchange", "that attention does not hide",
        is_share=True,
    )  # fmt: skip
    expert_exposed: float = _prior(
        1.0,
        0.4,
        "of the time of all-to-alls to experts at full bandwidth",
        "that is waited for",
    )
    p2p_exposed: float = _prior(
        0.4, 0.5, "of what stages send each other", "that is waited for", is_share=True
    )
    scale_loss: float = _prior(
        3e-3, 0.5, "of a step", "that each doubling of the nodes costs: slow ranks"
    )
    traffic: float = _prior(
        1.7,
        0.4,
        "times the least",
        "that operations between matmuls move: norms, activations, residuals, copies",
    )
    autocast_traffic: float = _prior(
        1.2, 0.2, "times as much", "under autocast, whose casts and wide norms move more"
    )
    attention_efficiency: float = _prior(
        0.42,
        0.3,
        "of the peak",
        "what the forward pass of attention reaches with heads of 64, masked half not counted",
    )
    attention_backward: float = _prior(
        1.3, 0.2, "times as long", "its backward pass takes for each matmul"
    )
    attention_growth: float = _prior(
        1.1,
        0.2,
        "power of the head size",
        "that attention's time grows with: 1 where it is all matmuls",
    )
    score_bytes: float = _prior(
        10.0, 0.4, "bytes", "moved for each score of plain attention, forward, beside its matmuls"
    )
    plain_backward: float = _prior(
        1.0, 0.15, "times as long", "plain attention takes backward for each matmul"
    )
    scan_efficiency: float = _prior(
        0.15, 0.3, "of the peak", "what scans of state spaces and linear attention reach"
    )
    recomputed_share: float = _prior(
        1.0,
        0.15,
        "of the forward pass of layers",
        "that is recomputed where they keep their inputs only: less where the framework stops "
        "early",
    )
    pressure_s_per_gb: float = _prior(
        3e-4,
        1.0,
        "s",
        "that each GB costs in a micro-batch where memory is nearly full: given back and asked for "
        "again",
    )


PRIORS: Mapping[str, Prior] = {each.name: each.metadata["prior"] for each in fields(Parameters)}
HARDWARE = frozenset(
    {
        *("matmul_traffic", "wave_tail", "odd_matmul", "odd_head", "bandwidth_efficiency"),
        *("grouped_efficiency", "expert_imbalance", "cast_bytes", "scan_efficiency"),
        *("link_efficiency", "collective_s", "hop_s", "compiled_traffic"),
        *("compiled_launches", "tensor_exposed", "context_exposed", "expert_exposed"),
    }
)
"""Common to all stacks."""
OWN = frozenset({"recomputed_share"})
"""Different in every stack of a family."""
EXPECTED = Parameters()

OLD, EARLY, LATE = "mosaicgpt-2022", "llm-foundry-2023", "llm-foundry-2023-late"
MEGATRON, ZERO3, TYPICAL = "megatron-lm-2021", "deepspeed-zero3-2021", "typical"
FAMILIES = {EARLY: "llm-foundry", LATE: "llm-foundry"}
ORIGINS = {
    "vtrain_single": "megatron-deepspeed-2023",
    "vtrain_multi": "megatron-deepspeed-2023",
    "bloom_a100": "megatron-deepspeed-2022",
    "bigscience_v100": "megatron-deepspeed-2021",
    "bigscience_v100/hf-deepspeed": ZERO3,
    "megatron_sc21": MEGATRON,
    "megatron_sc21/deepspeed": ZERO3,
    "megatron_seqsel22": MEGATRON,
    "internevo": "internevo-2024",
}
"""The stacks of published tables, by their name, or name and framework."""
DEEPSPEED_TENSORS = 12
"""Of a GPT's layer: weights and biases of four linear layers and two norms, each gathered alone."""
_PLAIN = Habits(casts=False, has_plain_attention=True, reduced_bytes=2)
HABITS: Mapping[str, Habits] = {
    "megatron-deepspeed-2023": replace(_PLAIN, network_gbit=100.0),
    "megatron-deepspeed-2022": replace(_PLAIN, network_gbit=50.0),
    "megatron-deepspeed-2021": replace(_PLAIN, network_gbit=100.0),
    MEGATRON: replace(_PLAIN, network_gbit=200.0, scatters=True),
    ZERO3: replace(_PLAIN, network_gbit=200.0, gathered_tensors=DEEPSPEED_TENSORS),
    "internevo-2024": Habits(casts=False, reduced_bytes=2, network_gbit=50.0),
    TYPICAL: Habits(casts=False, has_new_attention=True),
}
"""Of stacks that have any: what their documentation and their sources say."""


def find_origin(cells: Mapping[str, str]) -> str | None:
    """The stack of a row's table; None where it is not one that stacks were fitted to."""
    source, framework = cells.get("source", ""), cells.get("stack", "")
    return ORIGINS.get(f"{source}/{framework}", ORIGINS.get(source))


LEAST_SPREAD = 0.08
"""One standard deviation of the logarithm of a prediction's time where all parameters are known:
how wrong the form of the cost model is, chosen by hand. `intervals` has the rest."""
PUBLISHED_PRECISIONS = ("bf16", "bf16-mixed")
QUANTILE = 1.645
"""Standard deviations of a normal distribution on either side that hold nine of ten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    name: str
    family: str
    parameters: Parameters
    low: float
    """Measured tokens/s over predicted ones: one of twenty is less,"""
    high: float
    """and one of twenty more, of jobs that were left out of the fit and whose spread is the least
    there is (`intervals`)."""
    rows: int
    """Jobs that it was fitted to."""
    devices: tuple[str, ...]
    source: str
    precisions: tuple[str, ...] = PUBLISHED_PRECISIONS
    """That its data are in."""
    most_ranks: int = 128
    """Of its jobs."""
    kinds: tuple[str, ...] = ()
    """Of `predictions.KINDS`, those that its jobs have."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Of parameters, how well they are known: one standard deviation of the logarithm."""
    is_here: bool = False
    """Whether it is this machine's own, whatever that is called."""

    own_habits: Habits | None = None
    """None: those that HABITS has."""

    @property
    def habits(self) -> Habits:
        return self.own_habits or HABITS.get(self.name, NO_HABITS)

    def covers(self, machine: Machine) -> bool:
        return self.is_here or machine.name in self.devices

    def find_interval(
        self, spread: float = LEAST_SPREAD, at_least: Stack | None = None
    ) -> tuple[float, float]:
        """Of measured over predicted tokens/s, where a prediction has that spread; no narrower than
        that of the other stack.

        >>> stack = find_stack("llm-foundry-2023")
        >>> near, far = stack.find_interval(), stack.find_interval(0.2)
        >>> far[0] < near[0] < near[1] < far[1]
        True
        """
        lows, highs = zip(
            *((each.low, each.high) for each in (self, at_least or self)), strict=True
        )
        ratio = spread / LEAST_SPREAD
        return min(lows) ** ratio, max(highs) ** ratio


@cache
def load_stacks() -> Mapping[str, Stack]:
    """The latest one last."""
    text = (resources.files(__package__) / "data" / "stacks.json").read_text(encoding="utf-8")
    return {
        name: msgspec.convert({"name": name, **content}, Stack)
        for name, content in json.loads(text).items()
    }


def find_stack(name: str) -> Stack:
    stacks = load_stacks()
    if name not in stacks:
        raise UsageError(f"there is no stack {name!r}; choose one of {', '.join(stacks)}")
    return stacks[name]


SHARDED = (OLD, EARLY, LATE)
"""Stacks of data parallelism alone."""
FRAMEWORKS = {"foundry": LATE, "mosaic": LATE, "composer": LATE}
"""What a framework's name has in it, and the stack that stands for it."""
PLAIN_FRAMEWORKS = ("megatron", "deepspeed")
"""Whose attention was plain on the devices of PLAIN_DEVICES, up to PLAIN_TOKENS of a sequence."""
PLAIN_DEVICES = ("V100", "A100")
PLAIN_TOKENS = 2048


def choose_stack(machine: Machine, job: TrainingJob | None = None) -> Stack:
    """Of a job in data parallelism, or any, the latest whose data are from this device, or the
    latest of all; where other kinds of parallelism or experts divide it, what is typical.

    >>> from flopwatch.prediction.hardware import find_machine
    >>> [choose_stack(find_machine(name)[1]).name for name in ("A100-40GB", "H100-SXM")]
    ['llm-foundry-2023', 'llm-foundry-2023-late']
    """
    stacks = load_stacks()
    if job is not None and (job.shape.experts or not is_data_only(job.parallelism)):
        return stacks[TYPICAL]
    sharded = [stacks[name] for name in SHARDED]
    covering = [stack for stack in sharded if stack.covers(machine)]
    return (covering or sharded)[-1]


def choose_row_stack(cells: Mapping[str, str], machine: Machine, job: TrainingJob) -> Stack:
    """Of a table's row: as it names it, that of its source, of its framework, or what is typical;
    of a table with the columns of data parallelism alone, as `choose_stack` says."""
    stacks, framework = load_stacks(), cells.get("stack", "").lower()
    named = framework if framework in stacks else find_origin(cells)
    named = named or next((s for word, s in FRAMEWORKS.items() if word in framework), None)
    if named:
        return stacks[named]
    if "tensor_parallel" not in cells and "sharding" not in cells:
        return choose_stack(machine, job)
    typical = stacks[TYPICAL]
    is_old = machine.name.startswith(PLAIN_DEVICES) and job.seq_len <= PLAIN_TOKENS
    if is_old and any(word in framework for word in PLAIN_FRAMEWORKS):
        habits = Habits(casts=False, has_plain_attention=True, reduced_bytes=2)
        return replace(typical, own_habits=habits)
    return typical
