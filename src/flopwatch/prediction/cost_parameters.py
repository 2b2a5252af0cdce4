"""What the cost model does not know from dimensions and data sheets: a few numbers, each with a
meaning, a value that one would expect, and how far from it the truth may lie.

A set of them describes a software stack (a framework with its kernels and habits) on hardware: how
near to the limits it comes. Those of HARDWARE belong to the machines and the libraries below all
stacks, and are fitted together for all of them; the others are those of a family of stacks, and
what is in OWN may differ within a family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from flopwatch.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    matmul_efficiency: float
    matmul_traffic: float
    odd_matmul: float
    bandwidth_efficiency: float
    loss_bytes: float
    block_s: float
    step_s: float
    link_efficiency: float
    network_efficiency: float
    exposed_share: float
    traffic: float
    autocast_traffic: float
    attention_efficiency: float
    attention_backward: float
    attention_growth: float
    recomputed_share: float
    pressure_s_per_gb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prior:
    expected: float
    spread: float
    """One standard deviation of the logarithm."""
    unit: str
    meaning: str


PRIORS: Mapping[str, Prior] = {
    "matmul_efficiency": Prior(
        expected=0.97,
        spread=0.08,
        unit="of the rate of large matmuls",
        meaning="what matmuls reach in a training step, without their traffic",
    ),
    "matmul_traffic": Prior(
        expected=0.6,
        spread=0.5,
        unit="of a matmul's traffic",
        meaning="what is not hidden behind its arithmetic: why narrow matmuls are slower",
    ),
    "odd_matmul": Prior(
        expected=2.5,
        spread=0.4,
        unit="times as long",
        meaning="a head takes whose vocabulary is no multiple of 8",
    ),
    "bandwidth_efficiency": Prior(
        expected=0.8,
        spread=0.1,
        unit="of the memory's bandwidth",
        meaning="what operations without matmuls reach",
    ),
    "loss_bytes": Prior(
        expected=16.0,
        spread=0.4,
        unit="bytes",
        meaning="moved for each logit, from the head to its gradient",
    ),
    "block_s": Prior(
        expected=150e-6,
        spread=0.7,
        unit="s",
        meaning="that a block takes however small it is, both passes: launches and hooks",
    ),
    "step_s": Prior(
        expected=5e-3,
        spread=0.7,
        unit="s",
        meaning="that a step takes besides: the loader, the optimizer's launches",
    ),
    "link_efficiency": Prior(
        expected=0.7,
        spread=0.3,
        unit="of a link's bandwidth",
        meaning="what collectives reach within a machine",
    ),
    "network_efficiency": Prior(
        expected=0.6,
        spread=0.5,
        unit="of the network's bandwidth",
        meaning="what collectives reach between machines",
    ),
    "exposed_share": Prior(
        expected=0.2,
        spread=0.7,
        unit="of the time of collectives",
        meaning="in which nothing is computed, although there would be something to compute",
    ),
    "traffic": Prior(
        expected=1.5,
        spread=0.5,
        unit="times the least",
        meaning="that operations between matmuls move: norms, activations, residuals, copies",
    ),
    "autocast_traffic": Prior(
        expected=1.2,
        spread=0.2,
        unit="times as much",
        meaning="under autocast, whose casts and wide norms move more",
    ),
    "attention_efficiency": Prior(
        expected=0.45,
        spread=0.3,
        unit="of the peak",
        meaning="what the forward pass of attention reaches with heads of 64, masked half not "
        "counted",
    ),
    "attention_backward": Prior(
        expected=1.3,
        spread=0.2,
        unit="times as long",
        meaning="its backward pass takes for each matmul",
    ),
    "attention_growth": Prior(
        expected=1.0,
        spread=0.3,
        unit="power of the head size",
        meaning="that attention's time grows with: 1 where it is all matmuls",
    ),
    "recomputed_share": Prior(
        expected=1.0,
        spread=0.2,
        unit="of the forward pass of blocks",
        meaning="that is recomputed where blocks keep their inputs only: less where the framework "
        "stops early",
    ),
    "pressure_s_per_gb": Prior(
        expected=1e-3,
        spread=1.5,
        unit="s",
        meaning="that each GB costs in a micro-batch where memory is nearly full: given back and "
        "asked for again",
    ),
}
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


def read_parameters(values: Mapping[str, object]) -> Parameters:
    """From a file; refused where one is missing, or is no positive number."""
    found: dict[str, float] = {}
    for field in fields(Parameters):
        value = values.get(field.name)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UsageError(
                f"the cost model's parameter {field.name!r} is {value!r}, not a positive number; "
                "calibrate again"
            )
        found[field.name] = float(value)
    return Parameters(**found)


def write_parameters(parameters: Parameters) -> dict[str, float]:
    return asdict(parameters)
