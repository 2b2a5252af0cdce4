"""The doctor: each rule on an environment made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest

from flopwatch.runner.doctor import Jitter, diagnose, examine, measure_jitter

QUIET = Jitter(
    duration_ns=500_000_000,
    stolen_ns=100_000,
    gaps=1,
    largest_gap_ns=100_000,
    resolution_ns=50,
    reading_ns=55.0,
)

FIT: dict[str, Any] = {
    "machine": {
        "cpu_model": "Xeon",
        "physical_cores": 8,
        "logical_cores": 8,
        "usable_cores": 8,
        "governor": "performance",
        "boost": False,
        "smt": False,
        "numa_nodes": 1,
        "memory_total_bytes": 64 * 2**30,
        "memory_available_bytes": 60 * 2**30,
        "swap_used_bytes": 0,
        "huge_pages": "madvise",
        "clocksource": "tsc",
    },
    "software": {"compiler": "g++", "packages": {"torch": "2.13.0"}, "variables": {}},
    "project": {"commit": "0123456789ab", "dirty": True},
    "allocator": "glibc, memory retained, huge pages",
    "load": {"average": [0.1, 0.2, 0.3], "cpu_frequency_hz": 2.5e9},
}


def change(changes: dict[str, Any]) -> dict[str, Any]:
    """A fit machine but for some facts, by their paths."""
    changed = {title: dict(c) if isinstance(c, dict) else c for title, c in FIT.items()}
    for path, value in changes.items():
        section, _, name = path.partition(".")
        if name:
            changed.setdefault(section, {})[name] = value
        else:
            changed[section] = value
    return changed


def test_a_fit_machine() -> None:
    advice = examine(FIT, QUIET)

    assert {a.severity for a in advice} == {"good"}
    assert all(a.action is None for a in advice)


def test_of_an_unknown_machine_nothing_is_said() -> None:
    assert examine({}, None) == []
    assert diagnose({}, None).facts == []


@pytest.mark.parametrize(
    ("changes", "severity", "topic", "finding", "action"),
    [
        ({"machine.governor": "powersave"}, "warn", "frequency", "is powersave", "cpupower"),
        ({"machine.boost": True}, "note", "boost", "boost above", "no_turbo"),
        (
            {"machine.smt": True, "machine.physical_cores": 4},
            *("note", "cores", "8 logical cores share 4 physical", "--threads 4"),
        ),
        (
            {"machine.cpu_quota_cores": 1.5, "machine.usable_cores": 1},
            *("warn", "cores", "allows 1.5 of 8 cores", "--threads 1 or"),
        ),
        ({"machine.usable_cores": 4}, "note", "cores", "may use 4 of 8", "taskset"),
        ({"machine.numa_nodes": 2}, "note", "memory", "2 NUMA nodes", "numactl"),
        ({"load.average": [1.2, 0, 0]}, "warn", "load", "1.2 of 8 cores were busy", "top"),
        (
            {"machine.hypervisor": "KVM", "load.steal_share": 0.034},
            *("warn", "steal", "3.4% of the processor time", "dedicated"),
        ),
        ({"machine.hypervisor": "KVM"}, "note", "virtual", "machine (KVM)", "within one run"),
        (
            {"machine.memory_available_bytes": 2 * 2**30},
            *("warn", "memory", "Only 2.00 GiB of 64.0 GiB", "out of memory"),
        ),
        (
            {"machine.memory_limit_bytes": 10 * 2**30, "machine.memory_available_bytes": 2**30},
            *("warn", "memory", "Only 1.00 GiB of 10.0 GiB", "out of memory"),
        ),
        ({"machine.swap_used_bytes": 2**30}, "warn", "swap", "1.00 GiB of swap", "swapoff"),
        ({"machine.huge_pages": "never"}, "note", "huge pages", "are off", "madvise"),
        ({"machine.clocksource": "hpet"}, "warn", "clock", "clock is hpet", "clocksource=tsc"),
        (
            {"isa.onednn_max_cpu_isa": "AVX2", "isa.capped_because": "int8 matmul hung"},
            *("warn", "instructions", "capped at AVX2: int8 matmul hung.", "same cap"),
        ),
        (
            {"isa.crashes": {"int8": "SIGILL"}},
            *("warn", "instructions", "int8 (SIGILL)", "recorded as crashes"),
        ),
        (
            {"isa.unsupported": {"float16": "RuntimeError"}},
            *("note", "instructions", "cannot multiply float16", "unsupported"),
        ),
        ({"software.compiler": None}, "note", "compiler", "no C++ compiler", "CXX"),
        (
            {"software.variables": {"OMP_NUM_THREADS": "16"}},
            *("warn", "threads", "16 threads on 8 usable", "unset OMP_NUM_THREADS"),
        ),
        ({"allocator": "glibc defaults"}, "note", "allocator", "glibc defaults", "retain"),
        ({"load.cpu_temperature_c": 96.0}, "warn", "heat", "96 °C", "cool"),
    ],
)
def test_a_rule(
    changes: dict[str, Any], severity: str, topic: str, finding: str, action: str
) -> None:
    bad = [a for a in examine(change(changes), QUIET) if a.severity != "good"]
    first = next(a for a in bad if a.topic == topic)

    assert first.severity == severity
    assert finding in first.finding
    assert action in (first.action or "")
    assert [a.severity for a in bad] == sorted((a.severity for a in bad), reverse=True)


@pytest.mark.parametrize("value", ["8", "4", "", "4,2"])
def test_a_sensible_number_of_threads_is_not_mentioned(value: str) -> None:
    advice = examine(change({"software.variables": {"OMP_NUM_THREADS": value}}), None)

    assert "threads" not in {a.topic for a in advice}


def test_a_little_steal_is_good() -> None:
    advice = examine(change({"machine.hypervisor": "KVM", "load.steal_share": 0.0}), None)

    assert "steal" in {a.topic for a in advice if a.severity == "good"}


@pytest.mark.parametrize(("share", "severity"), [(0.0001, "good"), (0.005, "note"), (0.02, "warn")])
def test_jitter_is_judged(share: float, severity: str) -> None:
    jitter = replace(QUIET, stolen_ns=int(share * QUIET.duration_ns))
    advice = next(a for a in examine({}, jitter) if a.topic == "jitter")

    assert advice.severity == severity
    assert f"{share:.2%}" in advice.finding
    assert "longest took 100 µs" in advice.finding


def test_a_coarse_clock_is_warned_of() -> None:
    advice = examine({}, replace(QUIET, resolution_ns=15_600_000))

    assert [a.finding for a in advice if a.topic == "clock"] == [
        "The clock moves in steps of 15.6 ms."
    ]


def test_a_diagnosis_is_ready_to_print() -> None:
    diagnosis = diagnose(FIT, QUIET)
    sections = dict(diagnosis.facts)

    assert list(sections) == ["Processor", "Memory", "System", "Software", "Clock"]
    assert ("frequency", "2.50 GHz") in sections["Processor"]
    assert ("boost", "off") in sections["Processor"]
    assert ("total", "64.0 GiB") in sections["Memory"]
    assert ("load average", "0.1 0.2 0.3") in sections["System"]
    assert ("packages", "torch 2.13.0") in sections["Software"]
    assert ("project", "0123456789ab with changes") in sections["Software"]
    assert ("lost in gaps over 50 µs", "0.02%") in sections["Clock"]
    assert diagnosis.advice == examine(FIT, QUIET)
    assert asdict(diagnosis)["advice"][0]["severity"] == "good"


def ticking(steps_ns: Iterable[int]) -> Callable[[], int]:
    times = iter([0, *steps_ns])
    now = 0

    def clock_ns() -> int:
        nonlocal now
        now += next(times)
        return now

    return clock_ns


def test_jitter_is_what_the_clock_shows() -> None:
    steps = [100] * 4000 + [60_000, 0, 50_000, 40, 340_000] + [100] * 1000

    jitter = measure_jitter(seconds=0.0009, clock_ns=ticking(steps))

    assert jitter == Jitter(
        duration_ns=900_040,
        stolen_ns=400_000,
        gaps=2,
        largest_gap_ns=340_000,
        resolution_ns=40,
        reading_ns=(900_040 - 400_000) / 4505,
    )
    assert jitter.stolen_share == pytest.approx(400_000 / 900_040)


def test_jitter_here() -> None:
    jitter = measure_jitter(seconds=0.05)

    assert jitter.duration_ns >= 50_000_000
    assert 0 <= jitter.stolen_share <= 1
    assert 0 < jitter.reading_ns < 1e6
    assert all(a <= b for a, b in pairwise([jitter.resolution_ns, jitter.largest_gap_ns]))
