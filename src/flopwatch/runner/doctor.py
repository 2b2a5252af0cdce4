"""``flopwatch doctor``: is this machine fit for measuring, and what would make it fitter?

The environment (`devices.environment`) and half a second of watching the clock
(`devices.advice`) go in; sections of facts and a list of advice come out, ready to be
printed. Facts that are not known are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flopwatch.devices.advice import Advice, Jitter, examine, measure_jitter
from flopwatch.devices.environment import look_up
from flopwatch.output.units import format_bytes, format_rate, format_time, plural

__all__ = [
    "Advice", "Diagnosis", "Jitter", "describe_machine", "diagnose", "examine", "measure_jitter",
]  # fmt: skip


Show = Callable[[Any], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    facts: list[tuple[str, list[tuple[str, str]]]]
    """Sections: a title and its rows of name and value."""
    advice: list[Advice]
    """What to change first."""


def diagnose(environment: Mapping[str, Any], jitter: Jitter | None) -> Diagnosis:
    """Everything that `flopwatch doctor` prints, in the order of printing."""
    get = partial(look_up, environment)
    facts = []
    for title, rows in FACTS:
        known = [(name, show(get(path))) for name, path, show in rows if _is_known(get(path))]
        if known:
            facts.append((title, known))
    if jitter is not None:
        facts.append(("Clock", _show_jitter(jitter)))
    return Diagnosis(facts=facts, advice=examine(environment, jitter))


def describe_machine(environment: Mapping[str, Any]) -> str:
    """In a line: what it is, and what it runs."""
    get = partial(look_up, environment)
    gpus, cores = get("torch.gpu.count"), get("machine.usable_cores")
    facts = [
        f"{gpus} x {get('torch.gpu.name')}" if gpus else None,
        get("machine.cpu_model"),
        plural(cores, "usable core") if cores else None,
        _show_memory(get("machine.memory_available_bytes"), get("machine.memory_total_bytes")),
        get("software.os"),
        f"torch {get('torch.version')}" if get("torch.version") else None,
    ]
    return ", ".join(str(fact) for fact in facts if fact)


def _show_memory(free: float | None, total: float | None) -> str | None:
    if free is None or total is None:
        return None
    return f"{format_bytes(free)} of {format_bytes(total)} free"


def _is_known(value: Any) -> bool:
    return value is not None and value not in ([], {}, "")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_show(part)}" for name, part in value.items())
    if isinstance(value, list):
        return " ".join(_show(part) for part in value)
    return str(value)


def _show_share(value: float) -> str:
    return f"{value:.1%}"


def _show_frequency(value: float) -> str:
    return format_rate(value, "Hz")


def _show_states(states: Sequence[Mapping[str, Any]]) -> str:
    """Of the GPUs, one after the other."""
    return "; ".join(_show_state(state) or "unknown" for state in states)


def _show_state(state: Mapping[str, Any]) -> str:
    parts = [
        _show_pair(state, "clock_hz", "max_clock_hz", _show_frequency),
        _show_pair(state, "power_w", "power_limit_w", lambda watts: f"{watts:.0f} W"),
        _show_pair(state, "free_bytes", "total_bytes", format_bytes, " free"),
        f"{state['temperature_c']:.0f} °C" if "temperature_c" in state else "",
        f"ECC {_show(state['ecc'])}" if "ecc" in state else "",
    ]
    return ", ".join(part for part in parts if part)


def _show_pair(state: Mapping[str, Any], name: str, most: str, show: Show, end: str = "") -> str:
    if name not in state:
        return ""
    return show(state[name]) + (f" of {show(state[most])}" if most in state else "") + end


def _show_project(project: Mapping[str, Any]) -> str:
    return f"{project['commit']}{' with changes' if project['dirty'] else ''}"


def _show_jitter(jitter: Jitter) -> list[tuple[str, str]]:
    return [
        ("smallest step", format_time(jitter.resolution_ns)),
        ("one reading", format_time(jitter.reading_ns)),
        ("lost in gaps over 50 µs", f"{jitter.stolen_share:.2%}"),
        ("largest gap", format_time(jitter.largest_gap_ns)),
    ]


FACTS: tuple[tuple[str, tuple[tuple[str, str, Show], ...]], ...] = (
    (
        "Processor",
        (
            ("model", "machine.cpu_model", _show),
            ("physical cores", "machine.physical_cores", _show),
            ("logical cores", "machine.logical_cores", _show),
            ("usable cores", "machine.usable_cores", _show),
            ("quota in cores", "machine.cpu_quota_cores", _show),
            ("instruction sets", "machine.instruction_sets", _show),
            ("oneDNN capped at", "isa.onednn_max_cpu_isa", _show),
            ("capped because", "isa.capped_because", _show),
            ("last-level cache", "machine.last_level_cache_bytes", format_bytes),
            ("governor", "machine.governor", _show),
            ("boost", "machine.boost", _show),
            ("SMT", "machine.smt", _show),
            ("NUMA nodes", "machine.numa_nodes", _show),
            ("frequency", "load.cpu_frequency_hz", _show_frequency),
            ("temperature in °C", "load.cpu_temperature_c", _show),
        ),
    ),
    (
        "Memory",
        (
            ("total", "machine.memory_total_bytes", format_bytes),
            ("available", "machine.memory_available_bytes", format_bytes),
            ("limit", "machine.memory_limit_bytes", format_bytes),
            ("swap", "machine.swap_total_bytes", format_bytes),
            ("swap in use", "machine.swap_used_bytes", format_bytes),
            ("transparent huge pages", "machine.huge_pages", _show),
            ("allocator", "allocator", _show),
        ),
    ),
    (
        "GPU",
        (
            ("name", "torch.gpu.name", _show),
            ("count", "torch.gpu.count", _show),
            ("memory", "torch.gpu.memory_bytes", format_bytes),
            ("compute capability", "torch.gpu.compute_capability", _show),
            ("driver", "torch.gpu.driver", _show),
            ("CUDA", "torch.cuda", _show),
            ("ROCm", "torch.rocm", _show),
            ("state", "torch.gpu.states", _show_states),
        ),
    ),
    (
        "System",
        (
            ("system", "software.os", _show),
            ("kernel", "software.kernel", _show),
            ("hypervisor", "machine.hypervisor", _show),
            ("container", "machine.container", _show),
            ("clock source", "machine.clocksource", _show),
            ("load average", "load.average", _show),
            ("stolen by the hypervisor", "load.steal_share", _show_share),
            ("machine id", "machine.machine_id", _show),
        ),
    ),
    (
        "Software",
        (
            ("flopwatch", "software.flopwatch", _show),
            ("Python", "software.python", _show),
            ("C++ compiler", "software.compiler", _show),
            ("packages", "software.packages", _show),
            ("torch's kernels", "torch.cpu_capability", _show),
            ("BLAS", "torch.blas", _show),
            ("oneDNN", "torch.onednn", _show),
            ("threads", "torch.threads", _show),
            ("variables", "software.variables", _show),
            ("project", "project", _show_project),
        ),
    ),
)
"""By section: a row's name, its place in the environment, and how it is shown."""
