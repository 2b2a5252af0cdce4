"""Advice on a machine: what was found, as a plain sentence, and what to do about it.

`examine` goes through a table of rules. Each looks at a few facts of the environment; a fact that
is not known gives no advice. Nothing is measured, printed or changed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from flopwatch.devices.background_load import Jitter
from flopwatch.devices.environment import look_up
from flopwatch.output.units import format_bytes, format_time

Severity = Literal["good", "note", "warn"]
Get = Callable[[str], Any]
"""The fact at a path of the environment, or None."""

BUSY_SHARE = 0.10
STEAL_SHARE = 0.01
STOLEN_SHARES: tuple[tuple[float, Severity], ...] = ((0.01, "warn"), (0.002, "note"))
FREE_SHARE = 0.20
SWAP_USED_BYTES = 64 * 2**20
"""Less than this is what the system put away long ago."""
RESOLUTION_NS = 1000
HOT_C = 90.0

STEADY_CLOCKS = ("tsc", "arch_sys_counter")


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    severity: Severity
    topic: str
    finding: str
    action: str | None = None


def examine(environment: Mapping[str, Any], jitter: Jitter | None) -> list[Advice]:
    """Advice on an environment (see `devices.environment`), the gravest first."""
    get = partial(look_up, environment)
    found = [rule(get) for rule in RULES]
    if jitter is not None:
        found += [_judge_jitter(jitter), _judge_resolution(jitter)]
    order: tuple[Severity, ...] = ("warn", "note", "good")
    return sorted((a for a in found if a), key=lambda advice: order.index(advice.severity))


def _good(topic: str, finding: str) -> Advice:
    return Advice(severity="good", topic=topic, finding=finding)


def _note(topic: str, finding: str, action: str) -> Advice:
    return Advice(severity="note", topic=topic, finding=finding, action=action)


def _warn(topic: str, finding: str, action: str) -> Advice:
    return Advice(severity="warn", topic=topic, finding=finding, action=action)


def _judge_governor(get: Get) -> Advice | None:
    governor = get("machine.governor")
    if governor is None:
        return None
    if governor == "performance":
        return _good("frequency", "All cores run under the performance governor.")
    return _warn(
        "frequency",
        f"The frequency governor is {governor}: short cases run before the cores have sped up.",
        "sudo cpupower frequency-set -g performance",
    )


def _judge_boost(get: Get) -> Advice | None:
    boost = get("machine.boost")
    if boost is None:
        return None
    if not boost:
        return _good("boost", "Cores keep to their nominal frequency.")
    return _note(
        "boost",
        "Cores boost above their nominal frequency, by how much depends on heat and on neighbours.",
        "For the steadiest figures switch it off: write 1 to /sys/devices/system/cpu/intel_pstate/"
        "no_turbo, or 0 to /sys/devices/system/cpu/cpufreq/boost.",
    )


def _judge_smt(get: Get) -> Advice | None:
    physical, usable = get("machine.physical_cores"), get("machine.usable_cores")
    if not get("machine.smt") or physical is None or usable is None or usable <= physical:
        return None
    return _note(
        "cores",
        f"{usable} logical cores share {physical} physical ones.",
        f"Measure with --threads {physical} or fewer: siblings slow each other down.",
    )


def _judge_quota(get: Get) -> Advice | None:
    quota, logical = get("machine.cpu_quota_cores"), get("machine.logical_cores")
    usable = get("machine.usable_cores")
    if quota is not None and logical is not None and quota < logical:
        return _warn(
            "cores",
            f"The control group allows {quota:g} of {logical} cores: a process that has used its "
            "share is stopped until the next period.",
            f"Measure with --threads {usable} or fewer, or raise the quota.",
        )
    if usable is not None and logical is not None and usable < logical:
        return _note(
            "cores",
            f"This process may use {usable} of {logical} cores.",
            "If that is not meant, look at taskset, numactl or the job scheduler.",
        )
    return None


def _judge_numa(get: Get) -> Advice | None:
    nodes = get("machine.numa_nodes")
    if nodes is None or nodes < 2:
        return None
    return _note(
        "memory",
        f"The memory has {nodes} NUMA nodes, and a core's own is faster.",
        "Stay on one: numactl --cpunodebind=0 --membind=0 flopwatch run ...",
    )


def _judge_load(get: Get) -> Advice | None:
    average, cores = get("load.average"), get("machine.usable_cores")
    if not average or not cores:
        return None
    share = average[0] / cores
    if share <= BUSY_SHARE:
        return _good("load", f"The machine is idle: {share:.0%} of its cores were busy.")
    return _warn(
        "load",
        f"{average[0]:.2g} of {cores} cores were busy in the last minute.",
        "See who it is (top), and end it or wait.",
    )


def _judge_steal(get: Get) -> Advice | None:
    share = get("load.steal_share")
    if share is None or get("machine.hypervisor") is None:
        return None
    if share <= STEAL_SHARE:
        return _good("steal", f"The hypervisor took {share:.1%} of the processor time.")
    return _warn(
        "steal",
        f"The hypervisor gave {share:.1%} of the processor time to other virtual machines.",
        "Use dedicated cores or another host; trust comparisons more than times.",
    )


def _judge_hypervisor(get: Get) -> Advice | None:
    hypervisor = get("machine.hypervisor")
    if hypervisor is None:
        return None
    return _note(
        "virtual",
        f"This is a virtual machine ({hypervisor}): its neighbours are felt, but not seen.",
        "Compare variants within one run; repeat a run before believing a time.",
    )


def _judge_memory(get: Get) -> Advice | None:
    available, total = get("machine.memory_available_bytes"), get("machine.memory_total_bytes")
    limit = get("machine.memory_limit_bytes")
    if available is None or total is None:
        return None
    whole = min(total, limit or total)
    if available >= FREE_SHARE * whole:
        return _good("memory", f"{format_bytes(available)} of {format_bytes(whole)} are free.")
    return _warn(
        "memory",
        f"Only {format_bytes(available)} of {format_bytes(whole)} are free.",
        "End what holds the memory, or large cases will be recorded as out of memory.",
    )


def _judge_swap(get: Get) -> Advice | None:
    used = get("machine.swap_used_bytes")
    if used is None:
        return None
    if used < SWAP_USED_BYTES:
        return _good("swap", "No swap is in use.")
    return _warn(
        "swap",
        f"{format_bytes(used)} of swap are in use: timings may contain disk accesses.",
        "Free memory, then: sudo swapoff -a && sudo swapon -a",
    )


def _judge_huge_pages(get: Get) -> Advice | None:
    mode = get("machine.huge_pages")
    if mode is None:
        return None
    if mode != "never":
        return _good("huge pages", f"Transparent huge pages are on ({mode}).")
    return _note(
        "huge pages",
        "Transparent huge pages are off, which makes large tensors slower.",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _judge_clock(get: Get) -> Advice | None:
    clock = get("machine.clocksource")
    if clock is None:
        return None
    if clock in STEADY_CLOCKS:
        return _good("clock", f"The clock is {clock}: read in nanoseconds, without the kernel.")
    return _warn(
        "clock",
        f"The clock is {clock}, which is slower and coarser to read than tsc.",
        "If available_clocksource lists tsc, boot with clocksource=tsc tsc=reliable.",
    )


def _judge_instructions(get: Get) -> Advice | None:
    cap, crashes = get("isa.onednn_max_cpu_isa"), get("isa.crashes")
    if cap is not None:
        return _warn(
            "instructions",
            f"oneDNN is capped at {cap}: {get('isa.capped_because')}.",
            "Compare only with results under the same cap; the full instruction set needs another "
            "(virtual) machine.",
        )
    if crashes:
        deaths = ", ".join(f"{matmul} ({death})" for matmul, death in crashes.items())
        return _warn(
            "instructions",
            f"Some matmuls crash here, whatever the instruction set: {deaths}.",
            "Their cases will be recorded as crashes; try another build of torch.",
        )
    return None


def _judge_unsupported(get: Get) -> Advice | None:
    unsupported = get("isa.unsupported")
    if not unsupported:
        return None
    return _note(
        "instructions",
        f"This torch cannot multiply {', '.join(unsupported)} on this CPU.",
        "Such cases will be recorded as unsupported.",
    )


def _judge_compiler(get: Get) -> Advice | None:
    if get("software") is None:
        return None
    compiler = get("software.compiler")
    if compiler is not None:
        return _good("compiler", f"torch.compile can use {compiler}.")
    return _note(
        "compiler",
        "There is no C++ compiler, so torch.compile fails on the CPU.",
        "Install one (g++ or clang++), or set CXX.",
    )


def _judge_openmp(get: Get) -> Advice | None:
    asked, cores = get("software.variables.OMP_NUM_THREADS"), get("machine.usable_cores")
    if cores is None or not str(asked).isdigit() or int(asked) <= cores:
        return None
    return _warn(
        "threads",
        f"OMP_NUM_THREADS asks for {asked} threads on {cores} usable cores.",
        f"unset OMP_NUM_THREADS; flopwatch goes by --threads, at most {cores}.",
    )


def _judge_allocator(get: Get) -> Advice | None:
    allocator = get("allocator")
    if allocator is None:
        return None
    if "retained" in allocator:
        return _good("allocator", f"Freed memory is kept ({allocator}).")
    return _note(
        "allocator",
        f"Freed memory goes back to the system ({allocator}), and page faults are timed with it.",
        "Measure with --allocator retain, on a glibc system.",
    )


def _judge_temperature(get: Get) -> Advice | None:
    temperature = get("load.cpu_temperature_c")
    if temperature is None or temperature < HOT_C:
        return None
    return _warn(
        "heat",
        f"The CPU is at {temperature:.0f} °C and will lower its frequency.",
        "Let it cool, or improve the cooling.",
    )


def _judge_jitter(jitter: Jitter) -> Advice:
    share = jitter.stolen_share
    finding = (
        f"A busy core lost {share:.2%} of its time in {jitter.gaps} gaps; the longest took "
        f"{format_time(jitter.largest_gap_ns)}."
    )
    severity = next((s for limit, s in STOLEN_SHARES if share > limit), None)
    if severity is None:
        return _good("jitter", finding)
    action = "Look for other processes and interrupts on these cores; taskset picks quieter ones."
    return Advice(severity=severity, topic="jitter", finding=finding, action=action)


def _judge_resolution(jitter: Jitter) -> Advice | None:
    if jitter.resolution_ns <= RESOLUTION_NS:
        return None
    return _warn(
        "clock",
        f"The clock moves in steps of {format_time(jitter.resolution_ns)}.",
        "Short calls are timed in long loops; see the clock source.",
    )


RULES: tuple[Callable[[Get], Advice | None], ...] = (
    _judge_load,
    _judge_steal,
    _judge_hypervisor,
    _judge_governor,
    _judge_boost,
    _judge_temperature,
    _judge_quota,
    _judge_smt,
    _judge_openmp,
    _judge_numa,
    _judge_memory,
    _judge_swap,
    _judge_huge_pages,
    _judge_allocator,
    _judge_instructions,
    _judge_unsupported,
    _judge_compiler,
    _judge_clock,
)
