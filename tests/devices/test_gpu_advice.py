"""What the doctor says about GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flopwatch.devices.gpu_state import GpuState
from flopwatch.runner.doctor import diagnose, examine
from tests.devices.test_gpu_state import AMD, NVIDIA

IDLE = replace(NVIDIA, throttle_reasons=[], other_processes=0, clock_hz=345e6, power_w=68.0)


def make_environment(
    *states: GpuState, variables: dict[str, str] | None = None, **torch: Any
) -> dict[str, Any]:
    gpu: dict[str, Any] = {"name": "NVIDIA H100 80GB HBM3", "count": len(states) or 1}
    if states:
        gpu["states"] = [state.describe() for state in states]
    return {
        "torch": {"cuda": "12.8", "gpu": gpu, **torch},
        "software": {"compiler": "g++", "variables": variables or {}},
    }


def list_bad(environment: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (one.severity, one.topic, f"{one.finding} {one.action}")
        for one in examine(environment, None)
        if one.severity != "good"
    ]


def test_gpus_that_are_fit() -> None:
    environment = make_environment(IDLE, IDLE)
    assert list_bad(environment) == []
    good = {one.topic for one in examine(environment, None)}
    assert {"GPU power", "GPU sharing"} <= good


@pytest.mark.parametrize(
    ("changes", "severity", "topic", "words"),
    [
        (
            {"power_limit_w": 300.0},
            *("warn", "GPU power", ["GPU 1 is limited to 300 W, of 700 W", "nvidia-smi -pl 700"]),
        ),
        ({"is_clock_set": True}, "note", "GPU clocks", ["GPU 1 (now 345 MHz)", "-rgc"]),
        (
            {"throttle_reasons": ["its power limit", "a hardware slowdown"]},
            *("warn", "GPU throttling", ["GPU 1 runs", "its power limit, a hardware slowdown"]),
        ),
        ({"other_processes": 2}, "warn", "GPU sharing", ["2 other processes use GPU 1"]),
        ({"other_processes": 1}, "warn", "GPU sharing", ["1 other process uses GPU 1"]),
        (
            {"free_bytes": 10 * 2**30},
            *("warn", "GPU memory", ["Only 10.0 GiB of 79.6 GiB are free on GPU 1"]),
        ),
    ],
)
def test_what_is_wrong_with_one_of_two(
    changes: dict[str, Any], severity: str, topic: str, words: list[str]
) -> None:
    ((found, about, text),) = list_bad(make_environment(IDLE, replace(IDLE, **changes)))
    assert (found, about) == (severity, topic)
    assert all(word in text for word in words)


def test_what_is_not_known_of_a_gpu_is_not_judged() -> None:
    assert list_bad(make_environment(GpuState(temperature_c=30.0))) == []


def test_that_nobody_can_be_asked_is_said() -> None:
    ((severity, topic, text),) = list_bad(make_environment())
    assert (severity, topic) == ("note", "GPU state")
    assert "nvidia-ml-py is missing" in text
    assert "flopwatch[torch]" in text
    ((*_, text),) = list_bad(make_environment(rocm="7.0"))
    assert "amdsmi is missing" in text
    assert "flopwatch[amd]" in text
    assert list_bad({"torch": {"gpu": {"kind": "xpu", "name": "Max 1550"}}}) == []


@pytest.mark.parametrize(
    ("name", "value", "severity", "words"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1", "warn", "waited for before the next"),
        ("NVIDIA_TF32_OVERRIDE", "0", "note", "TF32 is off"),
        ("NCCL_P2P_DISABLE", "1", "warn", "not over NVLink"),
        ("NCCL_IB_DISABLE", "1", "warn", "over TCP"),
        ("NCCL_DEBUG", "INFO", "note", "log"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "note", "same results"),
        ("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "warn", "allocated by the driver"),
    ],
)
def test_a_variable_that_changes_speed(name: str, value: str, severity: str, words: str) -> None:
    ((found, topic, text),) = list_bad(make_environment(IDLE, variables={name: value}))
    assert (found, topic) == (severity, "variables")
    assert f"{name} is {value}: " in text
    assert words in text
    assert f"unset {name}" in text


@pytest.mark.parametrize("value", [("CUDA_LAUNCH_BLOCKING", "0"), ("NCCL_DEBUG", "WARN")])
def test_a_variable_that_does_nothing(value: tuple[str, str]) -> None:
    assert list_bad(make_environment(IDLE, variables=dict([value]))) == []


def test_other_variables_are_listed_where_there_is_a_gpu() -> None:
    variables = {
        "NCCL_ALGO": "Ring",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "OMP_PROC_BIND": "close",
    }
    ((severity, topic, text),) = list_bad(make_environment(IDLE, variables=variables))
    assert (severity, topic) == ("note", "variables")
    assert "NCCL_ALGO=Ring, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, CUDA_VIS" in text
    assert "OMP_PROC_BIND" not in text
    assert list_bad({"software": {"compiler": "g++", "variables": variables}}) == []


def test_the_details_have_the_state() -> None:
    facts = dict(diagnose(make_environment(NVIDIA, GpuState()), None).facts)
    rows = dict(facts["GPU"])
    assert rows["state"] == (
        "1.75 GHz of 1.98 GHz, 689 W of 700 W, 77.3 GiB of 79.6 GiB free, 61 °C, ECC on; unknown"
    )
    assert rows["CUDA"] == "12.8"
    amd = {"torch": {"rocm": "7.0.2", "gpu": {"name": "MI300X", "states": [AMD.describe()]}}}
    assert dict(dict(diagnose(amd, None).facts)["GPU"])["ROCm"] == "7.0.2"
