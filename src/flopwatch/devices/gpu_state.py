"""The state of a GPU as its driver knows it: clocks, power, temperature, throttling, free memory,
and whether others use it.

NVIDIA's is asked for by NVML (the package nvidia-ml-py), AMD's by AMD SMI (amdsmi); which of them
a torch is built for, ``torch.version.hip`` says. Any question may fail on its own: without the
package, in a container, on a part of a GPU. What is not known is None, and nothing here raises.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any, Protocol

import psutil

from flopwatch.settings import Device

MEGA, MEBI = 1e6, 2**20
WORKER = "flopwatch.worker"
"""In the command line of other workers of the same run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuState:
    """At one moment."""

    clock_hz: float | None = None
    max_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    is_clock_set: bool | None = None
    """Whether a user has set its clock, in place of the driver's own choice."""
    power_w: float | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: list[str] | None = None
    """Why its clock is lower than it could be: now, or on AMD's, since the state was last read."""
    other_processes: int | None = None
    """That use it and are not of this run."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    """Whether the driver stays loaded while nobody uses the GPU."""

    def describe(self) -> dict[str, Any]:
        """What is known, as plain data."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Reader(Protocol):
    """Of one GPU."""

    def read(self) -> GpuState: ...

    def read_throttle_reasons(self) -> list[str] | None:
        """Of all the state, what is cheap enough to be read while something is measured."""

    def read_energy_j(self) -> float | None:
        """That it has used since some moment in the past; cheap, too."""

    def read_power_w(self) -> float | None: ...


def open_reader(torch: Any, number: int | None = None) -> Reader | None:
    """Of this one of the GPUs that torch sees, or of the current one. None where there is no
    interface to ask, or where it does not know that GPU."""
    with suppress(Exception):
        number = torch.cuda.current_device() if number is None else number
        properties = torch.cuda.get_device_properties(number)
        if getattr(torch.version, "hip", None):
            return _open_amd(torch, number, properties)
        return _open_nvidia(properties)
    return None


def read_state(device: Device) -> GpuState | None:
    """Of the device that this process uses; None where nothing is known of it."""
    if device != "cuda":
        return None
    import torch

    reader = open_reader(torch)
    return None if reader is None else reader.read()


def list_states(torch: Any) -> list[dict[str, Any]]:
    """Of all GPUs that torch sees, in its order, as plain data; empty where none is known."""
    readers = [open_reader(torch, number) for number in range(torch.cuda.device_count())]
    states = [reader.read().describe() if reader else {} for reader in readers]
    return states if any(states) else []


# NVIDIA

THROTTLE_REASONS = {
    0x04: "its power limit",
    0x08: "a hardware slowdown",
    0x20: "its temperature (software limit)",
    0x40: "its temperature (hardware limit)",
    0x80: "an external power brake",
    0x200: "a limit of its board",
    0x400: "a limit for its reliability",
}
"""NVML's clock event bits that mean "slower than it could be"; idle and user-set clocks do not."""
SET_BY_USER = 0x02


def _open_nvidia(properties: Any) -> NvmlReader:
    import pynvml

    pynvml.nvmlInit()
    # By its UUID: NVML counts all GPUs, torch only the visible ones.
    find = pynvml.nvmlDeviceGetHandleByUUID
    handle = _ask(find, f"GPU-{properties.uuid}")
    return NvmlReader(pynvml, find(f"MIG-{properties.uuid}") if handle is None else handle)


class NvmlReader:
    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def read(self) -> GpuState:
        clock, memory_clock = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
        bits = self._read_bits()
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        ecc = self._ask("nvmlDeviceGetEccMode")
        return GpuState(
            clock_hz=_scale(self._ask("nvmlDeviceGetClockInfo", clock), MEGA),
            max_clock_hz=_scale(self._ask("nvmlDeviceGetMaxClockInfo", clock), MEGA),
            memory_clock_hz=_scale(self._ask("nvmlDeviceGetClockInfo", memory_clock), MEGA),
            max_memory_clock_hz=_scale(self._ask("nvmlDeviceGetMaxClockInfo", memory_clock), MEGA),
            is_clock_set=self._is_clock_set(bits),
            power_w=self.read_power_w(),
            power_limit_w=_scale(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            default_power_limit_w=_scale(
                self._ask("nvmlDeviceGetPowerManagementDefaultLimit"), 1e-3
            ),
            temperature_c=_scale(self._ask("nvmlDeviceGetTemperature", 0), 1.0),
            throttle_reasons=_name_reasons(bits),
            other_processes=self._count_others(),
            free_bytes=None if memory is None else int(memory.free),
            total_bytes=None if memory is None else int(memory.total),
            ecc=None if ecc is None else bool(ecc[0]),
            persistence=_as_bool(self._ask("nvmlDeviceGetPersistenceMode")),
        )

    def read_throttle_reasons(self) -> list[str] | None:
        return _name_reasons(self._read_bits())

    def read_energy_j(self) -> float | None:
        return _scale(self._ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3)

    def read_power_w(self) -> float | None:
        return _scale(self._ask("nvmlDeviceGetPowerUsage"), 1e-3)

    def _read_bits(self) -> int | None:
        names = ("ClocksEventReasons", "ClocksThrottleReasons")  # the second is the older name
        found = (self._ask(f"nvmlDeviceGetCurrent{name}") for name in names)
        return next((int(bits) for bits in found if bits is not None), None)

    def _is_clock_set(self, bits: int | None) -> bool | None:
        """An idle GPU does not say so in its bits."""
        chosen, usual = (
            self._ask(f"nvmlDeviceGet{name}ApplicationsClock", 1) for name in ("", "Default")
        )
        differs = None if chosen is None or usual is None else chosen != usual
        said = None if bits is None else bool(bits & SET_BY_USER)
        return None if differs is None and said is None else bool(differs or said)

    def _count_others(self) -> int | None:
        found = self._ask("nvmlDeviceGetComputeRunningProcesses")
        return None if found is None else count_others(process.pid for process in found)

    def _ask(self, name: str, *given: Any) -> Any:
        return _ask(lambda: getattr(self._nvml, name)(self._handle, *given))


def _name_reasons(bits: int | None) -> list[str] | None:
    if bits is None:
        return None
    return [text for bit, text in THROTTLE_REASONS.items() if bits & bit]


# AMD

RESIDENCIES = {
    "ppt_residency_acc": "its power limit",
    "socket_thm_residency_acc": "its temperature",
    "vr_thm_residency_acc": "the temperature of its voltage regulators",
    "hbm_thm_residency_acc": "the temperature of its memory",
    "prochot_residency_acc": "an external signal (PROCHOT)",
}
"""Counters of the time for which something has held the clock down, and what it was."""
MOST_W = 1e5
"""A larger limit of power is in millionths of a watt: of both there are versions."""


def _open_amd(torch: Any, number: int, properties: Any) -> AmdReader:
    with redirect_stdout(StringIO()):  # where it finds no library, it prints that
        import amdsmi

    amdsmi.amdsmi_init()
    bus = getattr(properties, "pci_bus_id", None)
    if bus is not None:
        address = f"{properties.pci_domain_id:04x}:{bus:02x}:{properties.pci_device_id:02x}.0"
        return AmdReader(amdsmi, amdsmi.amdsmi_get_processor_handle_from_bdf(address))
    # torch knows which of all GPUs are visible to it.
    number = torch.cuda._get_amdsmi_device_index(number)
    return AmdReader(amdsmi, amdsmi.amdsmi_get_processor_handles()[number])


class AmdReader:
    def __init__(self, smi: Any, handle: Any) -> None:
        self._smi = smi
        self._handle = handle
        self._counted = self._read_counters()

    def read(self) -> GpuState:
        clock, memory_clock = self._read_clock("GFX"), self._read_clock("MEM")
        cap = self._ask("amdsmi_get_power_cap_info")
        used = self._ask("amdsmi_get_gpu_vram_usage")
        total, taken = (_find_number(used, name) for name in ("vram_total", "vram_used"))
        return GpuState(
            clock_hz=_scale(_find_number(clock, "clk", "cur_clk"), MEGA),
            max_clock_hz=_scale(_find_number(clock, "max_clk"), MEGA),
            memory_clock_hz=_scale(_find_number(memory_clock, "clk", "cur_clk"), MEGA),
            max_memory_clock_hz=_scale(_find_number(memory_clock, "max_clk"), MEGA),
            is_clock_set=_as_bool(_find(clock, "clk_locked")),
            power_w=self.read_power_w(),
            power_limit_w=_as_watts(_find_number(cap, "power_cap")),
            default_power_limit_w=_as_watts(
                _find_number(cap, "default_power_cap", "power_cap_default")
            ),
            temperature_c=self._read_temperature(),
            throttle_reasons=self.read_throttle_reasons(),
            other_processes=self._count_others(),
            free_bytes=None if total is None or taken is None else int((total - taken) * MEBI),
            total_bytes=None if total is None else int(total * MEBI),
            ecc=_as_bool(self._ask("amdsmi_get_gpu_ecc_enabled")),
        )

    def read_throttle_reasons(self) -> list[str] | None:
        before, self._counted = self._counted, self._read_counters()
        if before is None or self._counted is None:
            return None
        return [RESIDENCIES[n] for n, now in self._counted.items() if now > before.get(n, now)]

    def read_energy_j(self) -> float | None:
        counted = self._ask("amdsmi_get_energy_count")
        units = _find_number(counted, "energy_accumulator", "power")
        unit_uj = _find_number(counted, "counter_resolution")
        return None if units is None or unit_uj is None else units * unit_uj / MEGA

    def read_power_w(self) -> float | None:
        names = ("current_socket_power", "average_socket_power", "socket_power")
        return _find_number(self._ask("amdsmi_get_power_info"), *names)

    def _read_counters(self) -> dict[str, float] | None:
        metrics = self._ask("amdsmi_get_gpu_metrics_info")
        found = {name: _find_number(metrics, name) for name in RESIDENCIES}
        return {name: value for name, value in found.items() if value is not None} or None

    def _read_clock(self, kind: str) -> Any:
        return _ask(
            lambda: self._smi.amdsmi_get_clock_info(
                self._handle, getattr(self._smi.AmdSmiClkType, kind)
            )
        )

    def _read_temperature(self) -> float | None:
        return _as_number(
            _ask(
                lambda: self._smi.amdsmi_get_temp_metric(
                    self._handle,
                    self._smi.AmdSmiTemperatureType.HOTSPOT,
                    self._smi.AmdSmiTemperatureMetric.CURRENT,
                )
            )
        )

    def _count_others(self) -> int | None:
        found = self._ask("amdsmi_get_gpu_process_list")
        return None if found is None else _ask(lambda: count_others(one["pid"] for one in found))

    def _ask(self, name: str) -> Any:
        return _ask(lambda: getattr(self._smi, name)(self._handle))


# What both have in common


def count_others(pids: Iterable[int]) -> int:
    """Of these processes those that are not of this run.

    A container may not know the numbers that the driver has. One of those that it does not know is
    then this process.
    """
    strange, others = 0, 0
    for pid in set(pids):
        try:
            others += not _is_ours(psutil.Process(pid))
        except psutil.NoSuchProcess:
            strange += 1
        except psutil.Error:
            others += 1
    return others + max(0, strange - 1)


def _is_ours(process: psutil.Process) -> bool:
    """This process, one that it has started, or another worker of the same run."""
    own = os.getpid()
    if process.pid == own or own in (parent.pid for parent in process.parents()):
        return True
    is_sibling = process.ppid() == os.getppid()
    return is_sibling and any(WORKER in word for word in process.cmdline())


def _ask(question: Callable[..., Any], *given: Any) -> Any:
    with suppress(Exception):
        return question(*given)
    return None


def _find(answer: Any, *names: str) -> Any:
    """The first of these that a mapping has; None where there is none, or no mapping."""
    if not isinstance(answer, Mapping):
        return None
    return next((answer[name] for name in names if answer.get(name) not in (None, "N/A")), None)


def _find_number(answer: Any, *names: str) -> float | None:
    return _as_number(_find(answer, *names))


def _as_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _as_bool(value: Any) -> bool | None:
    return bool(value) if isinstance(value, int) else None


def _as_watts(limit: float | None) -> float | None:
    return limit / MEGA if limit is not None and limit > MOST_W else limit


def _scale(value: Any, unit: float) -> float | None:
    number = _as_number(value)
    return None if number is None else round(number * unit, 3)
