"""The state of a GPU, from modules that answer as NVML and AMD SMI do on an H100 and an MI300X."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from flopwatch.devices.gpu_state import GpuState, count_others, list_states, open_reader, read_state

UUID = "5c4a9ef2-1ce8-2b4d-9f3e-0a1b2c3d4e5f"
OTHER_PID = 1  # init is nobody's worker


def make_torch(*, hip: str | None = None, count: int = 1) -> Any:
    """As much of it as is asked for."""
    properties = [
        SimpleNamespace(
            uuid=UUID if number == 0 else "unknown to the driver",
            **({"pci_domain_id": 0, "pci_bus_id": 0xC1, "pci_device_id": 0} if hip else {}),
        )
        for number in range(count)
    ]
    cuda = SimpleNamespace(
        current_device=lambda: 0,
        device_count=lambda: count,
        get_device_properties=lambda number: properties[number],
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))


class FakeNvml(SimpleNamespace):
    """The module pynvml; `broken` are functions that raise, `changes` answers in place of usual
    ones."""

    def __init__(self, *broken: str, **changes: Any) -> None:
        answers: dict[str, Any] = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": self.find,
            "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1755, 2: 2619}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: {1: 1980, 2: 2619}[kind],
            "nvmlDeviceGetApplicationsClock": lambda handle, kind: 1980,
            "nvmlDeviceGetDefaultApplicationsClock": lambda handle, kind: 1980,
            "nvmlDeviceGetPowerUsage": lambda handle: 689_432,
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": lambda handle: 700_000,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x4,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=os.getpid(), usedGpuMemory=2**30),
                SimpleNamespace(pid=OTHER_PID, usedGpuMemory=2**30),
            ],
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(
                total=85_520_809_984, free=83_000_000_000, used=2_520_809_984
            ),
            "nvmlDeviceGetEccMode": lambda handle: [1, 1],
            "nvmlDeviceGetPersistenceMode": lambda handle: 1,
            **changes,
        }
        super().__init__(**answers | dict.fromkeys(broken, self.fail))

    @staticmethod
    def find(uuid: str) -> str:
        if uuid != f"GPU-{UUID}":
            raise RuntimeError("NVMLError_NotFound: Not Found")
        return "handle"

    @staticmethod
    def fail(*given: Any) -> Any:
        raise RuntimeError("NVMLError_NotSupported: Not Supported")


class FakeAmdSmi(SimpleNamespace):
    """The module amdsmi."""

    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, *broken: str, **changes: Any) -> None:
        clocks = {
            "gfx": {"clk": 1910, "min_clk": 132, "max_clk": 2100, "clk_locked": False},
            "mem": {"clk": 1300, "min_clk": 900, "max_clk": 1300, "clk_locked": "N/A"},
        }
        self.metrics: dict[str, Any] = {
            "accumulation_counter": 1_284_115,
            "ppt_residency_acc": 5000,
            "socket_thm_residency_acc": 0,
            "vr_thm_residency_acc": 0,
            "hbm_thm_residency_acc": 0,
            "prochot_residency_acc": 0,
            "throttle_status": "N/A",
        }
        answers: dict[str, Any] = {
            "amdsmi_init": lambda: None,
            "amdsmi_get_processor_handle_from_bdf": {"0000:c1:00.0": "handle"}.__getitem__,
            "amdsmi_get_clock_info": lambda handle, kind: clocks[kind],
            "amdsmi_get_power_info": lambda handle: {
                "current_socket_power": 742,
                "average_socket_power": "N/A",
                "gfx_voltage": "N/A",
                "power_limit": 750_000_000,
            },
            "amdsmi_get_power_cap_info": lambda handle: {
                "power_cap": 750_000_000,
                "default_power_cap": 750_000_000,
                "dpm_cap": 0,
                "min_power_cap": 0,
                "max_power_cap": 750_000_000,
            },
            "amdsmi_get_temp_metric": lambda handle, sensor, metric: 72,
            "amdsmi_get_gpu_metrics_info": lambda handle: dict(self.metrics),
            "amdsmi_get_gpu_process_list": lambda handle: [
                {"name": "python3", "pid": os.getpid(), "mem": 2**30},
                {"name": "init", "pid": OTHER_PID, "mem": 2**30},
            ],
            "amdsmi_get_gpu_vram_usage": lambda handle: {"vram_total": 196_592, "vram_used": 592},
            "amdsmi_get_gpu_ecc_enabled": lambda handle: 0x1F,
            **changes,
        }
        super().__init__(**answers | dict.fromkeys(broken, FakeNvml.fail))


@contextmanager
def installed(monkeypatch: pytest.MonkeyPatch, name: str, module: Any) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, name, module)
        yield


def read_nvidia(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> GpuState | None:
    with installed(monkeypatch, "pynvml", nvml):
        reader = open_reader(make_torch())
        return reader and reader.read()


def read_amd(monkeypatch: pytest.MonkeyPatch, smi: FakeAmdSmi) -> GpuState | None:
    with installed(monkeypatch, "amdsmi", smi):
        reader = open_reader(make_torch(hip="7.0"))
        return reader and reader.read()


NVIDIA = GpuState(
    clock_hz=1755e6,
    max_clock_hz=1980e6,
    memory_clock_hz=2619e6,
    max_memory_clock_hz=2619e6,
    is_clock_set=False,
    power_w=689.432,
    power_limit_w=700,
    default_power_limit_w=700,
    temperature_c=61,
    throttle_reasons=["its power limit"],
    other_processes=1,
    free_bytes=83_000_000_000,
    total_bytes=85_520_809_984,
    ecc=True,
    persistence=True,
)
AMD = GpuState(
    clock_hz=1910e6,
    max_clock_hz=2100e6,
    memory_clock_hz=1300e6,
    max_memory_clock_hz=1300e6,
    is_clock_set=False,
    power_w=742,
    power_limit_w=750,
    default_power_limit_w=750,
    temperature_c=72,
    throttle_reasons=[],
    other_processes=1,
    free_bytes=196_000 * 2**20,
    total_bytes=196_592 * 2**20,
    ecc=True,
)


def test_what_nvml_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_nvidia(monkeypatch, FakeNvml()) == NVIDIA


def test_what_amd_smi_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_amd(monkeypatch, FakeAmdSmi()) == AMD


def test_the_fake_has_functions_of_the_real_one() -> None:
    nvml = pytest.importorskip("pynvml")
    assert all(callable(getattr(nvml, name)) for name in vars(FakeNvml()))


NVML_FIELDS = {
    "nvmlDeviceGetClockInfo": {"clock_hz", "memory_clock_hz"},
    "nvmlDeviceGetMaxClockInfo": {"max_clock_hz", "max_memory_clock_hz"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_w"},
    "nvmlDeviceGetPowerManagementDefaultLimit": {"default_power_limit_w"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetCurrentClocksEventReasons": {"throttle_reasons"},
    "nvmlDeviceGetApplicationsClock": set(),
    "nvmlDeviceGetDefaultApplicationsClock": set(),
    "nvmlDeviceGetComputeRunningProcesses": {"other_processes"},
    "nvmlDeviceGetMemoryInfo": {"free_bytes", "total_bytes"},
    "nvmlDeviceGetEccMode": {"ecc"},
    "nvmlDeviceGetPersistenceMode": {"persistence"},
}
AMD_FIELDS = {
    "amdsmi_get_clock_info": {
        *("clock_hz", "memory_clock_hz", "max_clock_hz", "max_memory_clock_hz", "is_clock_set"),
    },
    "amdsmi_get_power_info": {"power_w"},
    "amdsmi_get_power_cap_info": {"power_limit_w", "default_power_limit_w"},
    "amdsmi_get_temp_metric": {"temperature_c"},
    "amdsmi_get_gpu_metrics_info": {"throttle_reasons"},
    "amdsmi_get_gpu_process_list": {"other_processes"},
    "amdsmi_get_gpu_vram_usage": {"free_bytes", "total_bytes"},
    "amdsmi_get_gpu_ecc_enabled": {"ecc"},
}


def drop(state: GpuState, names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in state.describe().items() if name not in names}


@pytest.mark.parametrize(("function", "unknown"), NVML_FIELDS.items())
def test_a_question_that_nvml_refuses_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch, function: str, unknown: set[str]
) -> None:
    state = read_nvidia(monkeypatch, FakeNvml(function))
    assert state is not None
    assert state.describe() == drop(NVIDIA, unknown)


@pytest.mark.parametrize(("function", "unknown"), AMD_FIELDS.items())
def test_a_question_that_amd_smi_refuses_leaves_the_rest(
    monkeypatch: pytest.MonkeyPatch, function: str, unknown: set[str]
) -> None:
    state = read_amd(monkeypatch, FakeAmdSmi(function))
    assert state is not None
    assert state.describe() == drop(AMD, unknown)


@pytest.mark.parametrize(
    ("read", "fake"),
    [
        (read_nvidia, FakeNvml("nvmlInit")),
        (read_nvidia, FakeNvml("nvmlDeviceGetHandleByUUID")),
        (read_nvidia, None),  # as where the package is not installed
        (read_amd, FakeAmdSmi("amdsmi_init")),
        (read_amd, FakeAmdSmi("amdsmi_get_processor_handle_from_bdf")),
        (read_amd, None),
    ],
)
def test_where_nothing_can_be_asked_nothing_is_known(
    monkeypatch: pytest.MonkeyPatch, read: Callable[..., GpuState | None], fake: Any
) -> None:
    assert read(monkeypatch, fake) is None


def test_a_gpu_that_users_have_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = read_nvidia(
        monkeypatch, FakeNvml(nvmlDeviceGetApplicationsClock=lambda handle, kind: 1200)
    )
    locked = read_nvidia(
        monkeypatch, FakeNvml(nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x2)
    )
    unknown = read_nvidia(
        monkeypatch,
        FakeNvml(
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetApplicationsClock",
        ),
    )
    assert [state and state.is_clock_set for state in (chosen, locked, unknown)] == [
        *(True, True, None),
    ]


def test_an_older_nvml_has_another_name_for_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x40)
    del nvml.nvmlDeviceGetCurrentClocksEventReasons
    state = read_nvidia(monkeypatch, nvml)
    assert state is not None
    assert state.throttle_reasons == ["its temperature (hardware limit)"]


def test_part_of_a_gpu_is_found_by_its_own_kind_of_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(nvmlDeviceGetHandleByUUID={f"MIG-{UUID}": "part"}.__getitem__)
    assert read_nvidia(monkeypatch, nvml) == NVIDIA


def test_amd_counts_how_long_clocks_were_held_down(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = FakeAmdSmi()
    with installed(monkeypatch, "amdsmi", smi):
        reader = open_reader(make_torch(hip="7.0"))
    assert reader is not None
    assert reader.read_throttle_reasons() == []
    smi.metrics |= {"ppt_residency_acc": 5100, "hbm_thm_residency_acc": 1}
    assert reader.read_throttle_reasons() == ["its power limit", "the temperature of its memory"]
    assert reader.read_throttle_reasons() == [], "it has not gone on"


def test_an_older_amd_smi_has_other_names_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = FakeAmdSmi(
        amdsmi_get_clock_info=lambda handle, kind: {"cur_clk": 1700, "max_clk": 1700},
        amdsmi_get_power_info=lambda handle: {"average_socket_power": 480},
        amdsmi_get_power_cap_info=lambda handle: {"power_cap": 500, "power_cap_default": 560},
        amdsmi_get_gpu_metrics_info=lambda handle: {"throttle_status": 0},
    )
    state = read_amd(monkeypatch, smi)
    assert state is not None
    assert (state.clock_hz, state.power_w) == (1700e6, 480)
    assert (state.power_limit_w, state.default_power_limit_w) == (500, 560)
    assert (state.is_clock_set, state.throttle_reasons) == (None, None)


def test_without_its_address_torch_knows_which_amd_gpu_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = make_torch(hip="6.4")
    torch.cuda.get_device_properties = lambda number: SimpleNamespace(uuid=UUID)
    torch.cuda._get_amdsmi_device_index = lambda number: 3
    smi = FakeAmdSmi(
        amdsmi_get_processor_handles=lambda: ["a", "b", "c", "d"],
        amdsmi_get_temp_metric=lambda handle, sensor, metric: {"d": 55}[handle],
    )
    with installed(monkeypatch, "amdsmi", smi):
        reader = open_reader(torch)
    assert reader is not None
    assert reader.read().temperature_c == 55


def test_all_gpus_that_torch_sees_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    with installed(monkeypatch, "pynvml", FakeNvml()):
        assert list_states(make_torch(count=2)) == [NVIDIA.describe(), {}]
    with installed(monkeypatch, "pynvml", None):
        assert list_states(make_torch(count=2)) == []


def test_a_cpu_has_no_such_state() -> None:
    assert read_state("cpu") is None


def test_processes_of_the_same_run_are_not_others() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert count_others([os.getpid(), os.getpid(), child.pid]) == 0
        assert count_others([os.getpid(), OTHER_PID]) == 1
    finally:
        child.communicate(b"\n")
    never = 2**22 + 1  # beyond the largest number of a process
    assert count_others([never]) == 0, "in a container it is this process"
    assert count_others([never, never + 1]) == 1
