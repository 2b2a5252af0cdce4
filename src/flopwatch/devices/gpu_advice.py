"""Rules of the doctor about GPUs, and about variables that change how fast they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from flopwatch.devices.advice_rules import Finding, Rule, Severity, add_rule
from flopwatch.output.units import format_bytes, format_rate

States = Sequence[Mapping[str, Any]]
"""By GPU: `gpu_state.GpuState.describe`."""

FREE_SHARE = 0.9
"""A process of ours takes about half a gigabyte itself."""

MEMORY = {"free_bytes", "total_bytes"}
"""What torch knows of a state, even where no driver is asked."""

GPU_RULES: list[Rule] = []
rule = partial(add_rule, GPU_RULES)


@rule("GPU state", "torch.gpu.name", "torch.gpu.kind?", "torch.rocm?", "torch.gpu.states?")
def judge_knowledge(
    name: str, kind: str | None, rocm: str | None, states: States | None
) -> Finding:
    is_asked = any(set(state) - MEMORY for state in states or ())
    if is_asked or kind is not None:  # of kinds other than CUDA's there is nobody to ask
        return None
    package, extra = ("amdsmi", "amd") if rocm else ("nvidia-ml-py", "torch")
    return (
        "note",
        f"The state of the GPU is not known, so throttling goes unseen: {package} is missing, or "
        "the driver does not answer.",
        f"pip install 'flopwatch[{extra}]'",
    )


@rule("GPU power", "torch.gpu.states")
def judge_power(states: States) -> Finding:
    limits = {
        number: (state["power_limit_w"], state["default_power_limit_w"])
        for number, state in enumerate(states)
        if {"power_limit_w", "default_power_limit_w"} <= set(state)
    }
    lowered = {number: pair for number, pair in limits.items() if pair[0] < pair[1]}
    if not limits:
        return None
    if not lowered:
        return "good", "Power limits are those of the maker.", None
    limit_w, usual_w = min(lowered.values())
    return (
        "warn",
        f"The power of {_name(lowered, states)} is limited to {limit_w:.0f} W, of {usual_w:.0f} W "
        "by default: under load its clocks stay lower than elsewhere.",
        f"If that is not meant: sudo nvidia-smi -pl {usual_w:.0f} (AMD: amd-smi set -o "
        f"{usual_w:.0f}).",
    )


@rule("GPU clocks", "torch.gpu.states")
def judge_clocks(states: States) -> Finding:
    chosen = {n: state for n, state in enumerate(states) if state.get("is_clock_set")}
    if not chosen:
        return None
    now_hz = next(iter(chosen.values())).get("clock_hz")
    now = "" if now_hz is None else f" (now {format_rate(now_hz, 'Hz')})"
    return (
        "note",
        f"Somebody has set the clocks of {_name(chosen, states)}{now}: figures are steadier, and "
        "lower than without.",
        "To let it choose again: sudo nvidia-smi -rgc -rac (AMD: amd-smi reset -c).",
    )


@rule("GPU throttling", "torch.gpu.states")
def judge_throttling(states: States) -> Finding:
    slowed = {n: state for n, state in enumerate(states) if state.get("throttle_reasons")}
    if not slowed:
        return None
    reasons = dict.fromkeys(why for state in slowed.values() for why in state["throttle_reasons"])
    return (
        "warn",
        f"Right now {_name(slowed, states)} runs at lower clocks because of {', '.join(reasons)}.",
        "See what it computes (nvidia-smi, amd-smi), and wait until it is cool and idle.",
    )


@rule("GPU sharing", "torch.gpu.states")
def judge_sharing(states: States) -> Finding:
    known = [state["other_processes"] for state in states if "other_processes" in state]
    shared = {n: state for n, state in enumerate(states) if state.get("other_processes")}
    if not known:
        return None
    if not shared:
        return "good", "No other process uses a GPU.", None
    count = sum(state["other_processes"] for state in shared.values())
    processes = "process uses" if count == 1 else "processes use"
    return (
        "warn",
        f"{count} other {processes} {_name(shared, states)}: times would be theirs, too.",
        "End them, or choose another GPU by CUDA_VISIBLE_DEVICES.",
    )


@rule("GPU memory", "torch.gpu.states")
def judge_memory(states: States) -> Finding:
    known = {
        number: (state["free_bytes"], state["total_bytes"])
        for number, state in enumerate(states)
        if set(state) >= MEMORY
    }
    full = {n: pair for n, pair in known.items() if pair[0] < FREE_SHARE * pair[1]}
    if not full:
        return None
    free_bytes, total_bytes = min(full.values())
    return (
        "warn",
        f"Only {format_bytes(free_bytes)} of {format_bytes(total_bytes)} are free on "
        f"{_name(full, states)}.",
        "End what holds the memory, or large cases will be recorded as out of memory.",
    )


def _name(some: Mapping[int, Any], states: States) -> str:
    """
    >>> _name({0: 0}, [{}]), _name({1: 0, 2: 0}, [{}] * 4), _name({0: 0, 1: 0}, [{}, {}])
    ('the GPU', 'GPUs 1, 2', 'each of 2 GPUs')
    """
    if len(states) == 1:
        return "the GPU"
    if len(some) == len(states):
        return f"each of {len(states)} GPUs"
    return f"{'GPU' if len(some) == 1 else 'GPUs'} {', '.join(map(str, some))}"


@dataclass(frozen=True, slots=True)
class Variable:
    values: tuple[str, ...]
    """With which it matters; empty: with any."""
    severity: Severity
    effect: str


VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": Variable(
        ("1",), "warn", "every kernel is waited for before the next one is launched"
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Variable(
        (), "warn", "every tensor is allocated by the driver, which waits for the device"
    ),
    "NVIDIA_TF32_OVERRIDE": Variable(("0",), "note", "TF32 is off, whatever a program asks for"),
    "NCCL_P2P_DISABLE": Variable(
        ("1",), "warn", "GPUs exchange through the host's memory, not over NVLink or PCIe"
    ),
    "NCCL_SHM_DISABLE": Variable(
        ("1",), "note", "GPUs without a link of their own exchange over the network"
    ),
    "NCCL_IB_DISABLE": Variable(
        ("1",), "warn", "nodes exchange over TCP, not over InfiniBand or RoCE"
    ),
    "NCCL_DEBUG": Variable(("INFO", "TRACE"), "note", "NCCL writes a log as it works"),
    "CUBLAS_WORKSPACE_CONFIG": Variable(
        (), "note", "cuBLAS is kept to workspaces that give the same results every time"
    ),
}
"""What these do to the speed of what is measured."""
OTHERS = (
    *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NCCL_*"),
    *("PYTORCH_ALLOC_CONF", "PYTORCH_*_ALLOC_CONF", "RCCL_*", "ROCR_VISIBLE_DEVICES", "TORCH_*"),
)
"""Those that may change it, one way or the other."""


def _judge_variable(name: str, variable: Variable, value: str) -> Finding:
    if variable.values and value not in variable.values:
        return None
    return variable.severity, f"{name} is {value}: {variable.effect}.", f"unset {name}"


for _name_of, _variable in VARIABLES.items():
    rule("variables", f"software.variables.{_name_of}")(
        partial(_judge_variable, _name_of, _variable)
    )


@rule("variables", "torch.gpu.name", "software.variables")
def judge_variables(name: str, variables: Mapping[str, str]) -> Finding:
    found = [
        f"{name}={value}"
        for name, value in variables.items()
        if name not in VARIABLES and any(fnmatchcase(name, pattern) for pattern in OTHERS)
    ]
    if not found:
        return None
    return (
        "note",
        f"Variables are set that can change how fast a GPU is: {', '.join(found)}.",
        "Records store them, and are compared only with records under the same ones.",
    )
