"""Named sets of the cost model's parameters, fitted to published tables.

`benchmarks/stacks.py` fits them again and writes `data/stacks.json`. A set knows the devices that
its data are from. For a device that no set knows, the latest one is taken, and its interval is
wider.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.prediction.cost_parameters import Parameters, read_parameters
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.observations import LATE

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
    return {name: read_stack(name, content) for name, content in json.loads(text).items()}


def read_stack(name: str, content: Mapping[str, Any]) -> Stack:
    return Stack(
        name=name,
        family=content["family"],
        parameters=read_parameters(content["parameters"]),
        low=content["low"],
        high=content["high"],
        rows=content["rows"],
        devices=tuple(content["devices"]),
        source=content["source"],
    )


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
    stacks: Sequence[Stack] = list(load_stacks().values())
    covering = [stack for stack in stacks if stack.covers(machine)]
    return covering[-1] if covering else load_stacks()[LATE]
