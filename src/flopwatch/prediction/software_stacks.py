"""Software stacks: what the cost model does not know from dimensions and data sheets.

A few parameters describe a software stack (a framework with its kernels and habits) on hardware:
how near to the limits it comes. Each has a meaning, a value to be expected, and how far from it the
truth may lie. Those of HARDWARE belong to the machines and the libraries below all stacks, and are
fitted together for all of them; the others are those of a family of stacks, and what is in OWN may
differ within a family.

Three stacks are named, and fitted to published tables: `benchmarks/stacks.py` fits them again and
writes `data/stacks.json`. A stack knows the devices that its data are from. For a device that none
knows, the latest is taken, and its interval is wider.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from flopwatch.errors import UsageError
from flopwatch.prediction.hardware import Machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    expected: float
    spread: float
    """One standard deviation of the logarithm."""
    unit: str
    meaning: str


def _prior(expected: float, spread: float, unit: str, meaning: str) -> Any:
    prior = Prior(expected=expected, spread=spread, unit=unit, meaning=meaning)
    return field(metadata={"prior": prior})


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    matmul_efficiency: float = _prior(
        0.97,
        0.08,
        "of the rate of large matmuls",
        "what matmuls reach in a training step, without their traffic",
    )
    matmul_traffic: float = _prior(
        0.6,
        0.5,
        "of a matmul's traffic",
        "what is not hidden behind its arithmetic: why narrow matmuls are slower",
    )
    odd_matmul: float = _prior(
        2.5, 0.4, "times as long", "a head takes whose vocabulary is no multiple of 8"
    )
    bandwidth_efficiency: float = _prior(
        0.8, 0.1, "of the memory's bandwidth", "what operations without matmuls reach"
    )
    loss_bytes: float = _prior(
        16.0, 0.4, "bytes", "moved for each logit, from the head to its gradient"
    )
    block_s: float = _prior(
        150e-6, 0.7, "s", "that a block takes however small it is, both passes: launches and hooks"
    )
    step_s: float = _prior(
        5e-3, 0.7, "s", "that a step takes in addition: the loader, the optimizer's launches"
    )
    link_efficiency: float = _prior(
        0.7, 0.3, "of a link's bandwidth", "what collectives reach within a machine"
    )
    network_efficiency: float = _prior(
        0.6, 0.5, "of the network's bandwidth", "what collectives reach between machines"
    )
    exposed_share: float = _prior(
        0.2,
        0.7,
        "of the time of collectives",
        "in which nothing is computed, although there would be something to compute",
    )
    traffic: float = _prior(
        1.5,
        0.5,
        "times the least",
        "that operations between matmuls move: norms, activations, residuals, copies",
    )
    autocast_traffic: float = _prior(
        1.2, 0.2, "times as much", "under autocast, whose casts and wide norms move more"
    )
    attention_efficiency: float = _prior(
        0.45,
        0.3,
        "of the peak",
        "what the forward pass of attention reaches with heads of 64, masked half not counted",
    )
    attention_backward: float = _prior(
        1.3, 0.2, "times as long", "its backward pass takes for each matmul"
    )
    attention_growth: float = _prior(
        1.0,
        0.3,
        "power of the head size",
        "that attention's time grows with: 1 where it is all matmuls",
    )
    recomputed_share: float = _prior(
        1.0,
        0.2,
        "of the forward pass of blocks",
        "that is recomputed where blocks keep their inputs only: less where the framework stops "
        "early",
    )
    pressure_s_per_gb: float = _prior(
        1e-3,
        1.5,
        "s",
        "that each GB costs in a micro-batch where memory is nearly full: given back and asked for "
        "again",
    )


PRIORS: Mapping[str, Prior] = {each.name: each.metadata["prior"] for each in fields(Parameters)}
HARDWARE = frozenset(
    {
        *("matmul_efficiency", "matmul_traffic", "odd_matmul", "bandwidth_efficiency"),
        *("loss_bytes", "block_s", "step_s"),
        *("link_efficiency", "network_efficiency", "exposed_share"),
    }
)
"""Common to all stacks."""
OWN = frozenset({"recomputed_share"})
"""Different in every stack."""
EXPECTED = Parameters(**{name: prior.expected for name, prior in PRIORS.items()})

UNSEEN_SPREAD = 0.10
"""One standard deviation of the logarithm that a device adds which no data are from (what its
matmuls sustain, how its memory and links are used); and as much each, a precision, a way to share
a model, or far more devices than data have."""
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
    """and one of twenty more, of jobs that were left out of the fit."""
    rows: int
    """Jobs that it was fitted to."""
    devices: tuple[str, ...]
    source: str
    precisions: tuple[str, ...] = PUBLISHED_PRECISIONS
    """That its data are in."""
    is_here: bool = False
    """Whether it is this machine's own, whatever that is called."""

    def covers(self, machine: Machine) -> bool:
        return self.is_here or machine.name in self.devices

    def find_interval(self, unseen: int) -> tuple[float, float]:
        """Of measured over predicted tokens/s; `unseen` is in how many respects no data are from
        such a job.

        >>> stack = find_stack("llm-foundry-2023")
        >>> [round(bound, 2) for bound in (*stack.find_interval(0), *stack.find_interval(1))]
        [0.81, 1.06, 0.77, 1.19]
        """
        return _widen(self.low, unseen), _widen(self.high, unseen)


def _widen(bound: float, times: int) -> float:
    logarithm = math.log(bound)
    wide = math.hypot(logarithm, QUANTILE * UNSEEN_SPREAD * math.sqrt(times))
    return math.exp(math.copysign(wide, logarithm))


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


def choose_stack(machine: Machine) -> Stack:
    """The latest whose data are from this device, or the latest of all.

    >>> from flopwatch.prediction.hardware import find_machine
    >>> [choose_stack(find_machine(name)[1]).name for name in ("A100-40GB", "H100-SXM")]
    ['llm-foundry-2023', 'llm-foundry-2023-late']
    """
    stacks = list(load_stacks().values())
    covering = [stack for stack in stacks if stack.covers(machine)]
    return (covering or stacks)[-1]
