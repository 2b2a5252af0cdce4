"""Advice on a machine: what was found, as a plain sentence, and what to do about it.

`examine` goes through tables of rules: those here, and those about GPUs (`gpu_advice`). Each rule
gets a few facts of the environment; where one of them is not known, there is no advice. Nothing is
printed or changed here, and only `measure_jitter` measures: it reads the clock without a pause and
looks for gaps. A loop that does nothing else sees readings tens of nanoseconds apart. A gap of more
than 50 µs is time in which the core did something else: an interrupt, another process, or another
virtual machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from flopwatch.devices.advice_rules import Finding, Rule, Severity, add_rule
from flopwatch.devices.environment import look_up
from flopwatch.devices.gpu_advice import GPU_RULES
from flopwatch.output.units import format_bytes, format_time

SEVERITIES: tuple[Severity, ...] = ("warn", "note", "good")
"""The gravest first."""

BUSY_SHARE = 0.10
STEAL_SHARE = 0.01
STOLEN_SHARES: tuple[tuple[float, Severity], ...] = ((0.01, "warn"), (0.002, "note"))
FREE_SHARE = 0.20
SWAP_USED_BYTES = 64 * 2**20
"""Less than this is what the system put away long ago."""
RESOLUTION_NS = 1000
HOT_C = 90.0
STEADY_CLOCKS = ("tsc", "arch_sys_counter")
GAP_NS = 50_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    severity: Severity
    topic: str
    finding: str
    action: str | None = None


RULES: list[Rule] = []
rule = partial(add_rule, RULES)


def examine(environment: Mapping[str, Any], jitter: Jitter | None) -> list[Advice]:
    """Advice on an environment (see `devices.environment`), the gravest first."""
    found = []
    for each in (*RULES, *GPU_RULES):
        facts = [look_up(environment, path.removesuffix("?")) for path in each.paths]
        is_known = all(
            fact is not None or path.endswith("?")
            for path, fact in zip(each.paths, facts, strict=True)
        )
        found.append((each.topic, each.judge(*facts) if is_known else None))
    if jitter is not None:
        found += [("jitter", judge_jitter(jitter)), ("clock", judge_resolution(jitter))]
    advice = [
        Advice(severity=finding[0], topic=topic, finding=finding[1], action=finding[2])
        for topic, finding in found
        if finding is not None
    ]
    return sorted(advice, key=lambda each: SEVERITIES.index(each.severity))


@rule("load", "load.average", "machine.usable_cores")
def judge_load(average: list[float], cores: int) -> Finding:
    share = average[0] / cores
    if share <= BUSY_SHARE:
        return "good", f"The machine is idle: {share:.0%} of its cores were busy.", None
    finding = f"{average[0]:.2g} of {cores} cores were busy in the last minute."
    return "warn", finding, "See who it is (top), and end it or wait."


@rule("steal", "load.steal_share", "machine.hypervisor")
def judge_steal(share: float, hypervisor: str) -> Finding:
    if share <= STEAL_SHARE:
        return "good", f"The hypervisor took {share:.1%} of the processor time.", None
    return (
        "warn",
        f"The hypervisor gave {share:.1%} of the processor time to other virtual machines.",
        "Use dedicated cores or another host; trust comparisons more than times.",
    )


@rule("virtual", "machine.hypervisor")
def judge_hypervisor(hypervisor: str) -> Finding:
    return (
        "note",
        f"This is a virtual machine ({hypervisor}): its neighbours are felt, but not seen.",
        "Compare variants within one run; repeat a run before believing a time.",
    )


@rule("frequency", "machine.governor")
def judge_governor(governor: str) -> Finding:
    if governor == "performance":
        return "good", "All cores run under the performance governor.", None
    return (
        "warn",
        f"The frequency governor is {governor}: short cases run before the cores have sped up.",
        "sudo cpupower frequency-set -g performance",
    )


@rule("boost", "machine.boost")
def judge_boost(is_on: bool) -> Finding:
    if not is_on:
        return "good", "Cores keep to their nominal frequency.", None
    return (
        "note",
        "Cores boost above their nominal frequency, by how much depends on heat and on neighbours.",
        "For the steadiest figures switch it off: write 1 to /sys/devices/system/cpu/intel_pstate/"
        "no_turbo, or 0 to /sys/devices/system/cpu/cpufreq/boost.",
    )


@rule("heat", "load.cpu_temperature_c")
def judge_temperature(temperature_c: float) -> Finding:
    if temperature_c < HOT_C:
        return None
    finding = f"The CPU is at {temperature_c:.0f} °C and will lower its frequency."
    return "warn", finding, "Let it cool, or improve the cooling."


@rule("cores", "machine.logical_cores", "machine.usable_cores?", "machine.cpu_quota_cores?")
def judge_quota(logical: int, usable: int | None, quota: float | None) -> Finding:
    if quota is not None and quota < logical:
        return (
            "warn",
            f"The control group allows {quota:g} of {logical} cores: a process that has used its "
            "share is stopped until the next period.",
            f"Measure with --threads {usable} or fewer, or raise the quota.",
        )
    if usable is None or usable >= logical:
        return None
    return (
        "note",
        f"This process may use {usable} of {logical} cores.",
        "If that is not meant, look at taskset, numactl or the job scheduler.",
    )


@rule("cores", "machine.smt", "machine.physical_cores", "machine.usable_cores")
def judge_smt(is_on: bool, physical: int, usable: int) -> Finding:
    if not is_on or usable <= physical:
        return None
    return (
        "note",
        f"{usable} logical cores share {physical} physical ones.",
        f"Measure with --threads {physical} or fewer: siblings slow each other down.",
    )


@rule("threads", "software.variables.OMP_NUM_THREADS", "machine.usable_cores")
def judge_openmp(asked: str, cores: int) -> Finding:
    if not asked.isdigit() or int(asked) <= cores:
        return None
    return (
        "warn",
        f"OMP_NUM_THREADS asks for {asked} threads on {cores} usable cores.",
        f"unset OMP_NUM_THREADS; flopwatch goes by --threads, at most {cores}.",
    )


@rule("memory", "machine.numa_nodes")
def judge_numa(nodes: int) -> Finding:
    if nodes < 2:
        return None
    return (
        "note",
        f"The memory has {nodes} NUMA nodes, and a core's own is faster.",
        "Stay on one: numactl --cpunodebind=0 --membind=0 flopwatch run ...",
    )


@rule(
    "memory",
    "machine.memory_available_bytes",
    "machine.memory_total_bytes",
    "machine.memory_limit_bytes?",
)
def judge_memory(available: int, total: int, limit: int | None) -> Finding:
    whole = min(total, limit or total)
    if available >= FREE_SHARE * whole:
        return "good", f"{format_bytes(available)} of {format_bytes(whole)} are free.", None
    return (
        "warn",
        f"Only {format_bytes(available)} of {format_bytes(whole)} are free.",
        "End what holds the memory, or large cases will be recorded as out of memory.",
    )


@rule("swap", "machine.swap_used_bytes")
def judge_swap(used_bytes: int) -> Finding:
    if used_bytes < SWAP_USED_BYTES:
        return "good", "No swap is in use.", None
    return (
        "warn",
        f"{format_bytes(used_bytes)} of swap are in use: timings may contain disk accesses.",
        "Free memory, then: sudo swapoff -a && sudo swapon -a",
    )


@rule("huge pages", "machine.huge_pages")
def judge_huge_pages(mode: str) -> Finding:
    if mode != "never":
        return "good", f"Transparent huge pages are on ({mode}).", None
    return (
        "note",
        "Transparent huge pages are off, which makes large tensors slower.",
        "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
    )


@rule("allocator", "allocator")
def judge_allocator(allocator: str) -> Finding:
    if "retained" in allocator:
        return "good", f"Freed memory is kept ({allocator}).", None
    return (
        "note",
        f"Freed memory goes back to the system ({allocator}), and page faults are timed with it.",
        "Measure with --allocator retain, on a glibc system.",
    )


@rule("instructions", "isa.onednn_max_cpu_isa?", "isa.capped_because?", "isa.crashes?")
def judge_instructions(
    cap: str | None, because: str | None, crashes: Mapping[str, str] | None
) -> Finding:
    if cap is not None:
        return (
            "warn",
            f"oneDNN is capped at {cap}: {because}.",
            "Compare only with results under the same cap; the full instruction set needs another "
            "(virtual) machine.",
        )
    if not crashes:
        return None
    deaths = ", ".join(f"{matmul} ({death})" for matmul, death in crashes.items())
    return (
        "warn",
        f"Some matmuls crash here, whatever the instruction set: {deaths}.",
        "Their cases will be recorded as crashes; try another build of torch.",
    )


@rule("instructions", "isa.unsupported")
def judge_unsupported(unsupported: Mapping[str, str]) -> Finding:
    finding = f"This torch cannot multiply {', '.join(unsupported)} on this CPU."
    return "note", finding, "Such cases will be recorded as unsupported."


@rule("compiler", "software", "software.compiler?")
def judge_compiler(software: Mapping[str, Any], compiler: str | None) -> Finding:
    if compiler is not None:
        return "good", f"torch.compile can use {compiler}.", None
    finding = "There is no C++ compiler, so torch.compile fails on the CPU."
    return "note", finding, "Install one (g++ or clang++), or set CXX."


@rule("clock", "machine.clocksource")
def judge_clock(clock: str) -> Finding:
    if clock in STEADY_CLOCKS:
        return "good", f"The clock is {clock}: read in nanoseconds, without the kernel.", None
    return (
        "warn",
        f"The clock is {clock}, which is slower and coarser to read than tsc.",
        "If available_clocksource lists tsc, boot with clocksource=tsc tsc=reliable.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Jitter:
    """How undisturbed one core is."""

    duration_ns: int
    stolen_ns: int
    """The sum of all gaps over 50 µs."""
    gaps: int
    largest_gap_ns: int
    resolution_ns: int
    """The smallest step that was seen; the clock may be finer than a reading takes."""
    reading_ns: float
    """What one reading costs, with the loop around it."""

    @property
    def stolen_share(self) -> float:
        return self.stolen_ns / self.duration_ns


def measure_jitter(
    seconds: float = 0.5, clock_ns: Callable[[], int] = time.perf_counter_ns
) -> Jitter:
    """Watch the clock for gaps."""
    start = last = clock_ns()
    end = start + int(seconds * 1e9)
    stolen = gaps = largest = readings = 0
    resolution = end - start
    while last < end:
        now = clock_ns()
        step = now - last
        last = now
        readings += 1
        if step > GAP_NS:
            gaps += 1
            stolen += step
        largest = max(largest, step)
        if 0 < step < resolution:
            resolution = step
    return Jitter(
        duration_ns=last - start,
        stolen_ns=stolen,
        gaps=gaps,
        largest_gap_ns=largest,
        resolution_ns=resolution,
        reading_ns=(last - start - stolen) / readings,
    )


def judge_jitter(jitter: Jitter) -> Finding:
    share = jitter.stolen_share
    finding = (
        f"A busy core lost {share:.2%} of its time in {jitter.gaps} gaps; the longest took "
        f"{format_time(jitter.largest_gap_ns)}."
    )
    severity = next((s for limit, s in STOLEN_SHARES if share > limit), None)
    if severity is None:
        return "good", finding, None
    action = "Look for other processes and interrupts on these cores; taskset picks quieter ones."
    return severity, finding, action


def judge_resolution(jitter: Jitter) -> Finding:
    if jitter.resolution_ns <= RESOLUTION_NS:
        return None
    finding = f"The clock moves in steps of {format_time(jitter.resolution_ns)}."
    return "warn", finding, "Short calls are timed in long loops; see the clock source."
