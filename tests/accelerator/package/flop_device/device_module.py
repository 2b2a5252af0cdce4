"""`torch.flop`: what torch and its users expect of the module of a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import flop_native
import torch
from torch.accelerator import current_device_index as current_device
from torch.accelerator import (
    current_stream,
    device_index,
    empty_cache,
    max_memory_allocated,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    set_stream,
    synchronize,
)
from torch.accelerator import get_memory_info as mem_get_info
from torch.accelerator import set_device_index as set_device

__all__ = [
    "current_device",
    "current_stream",
    "empty_cache",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "synchronize",
]


class Stream(torch.Stream):
    def __new__(cls, device: Any = None, priority: int = 0) -> Stream:
        return super().__new__(cls, device=_name(device), priority=priority)


class Event(torch.Event):
    def __new__(cls, enable_timing: bool = False) -> Event:
        return super().__new__(cls, device="flop", enable_timing=enable_timing)


class device(device_index):  # noqa: N801  # as torch.cuda.device
    def __init__(self, device: Any) -> None:
        super().__init__(torch.device(_name(device)).index)


def stream(stream: Any) -> Any:
    return stream  # a torch.Stream is a context of its own


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return bool(flop_native.is_used())


def device_count() -> int:
    return int(flop_native.count_devices())


def get_device_name(device: Any = None) -> str:
    return "Flop 1"


def get_device_properties(device: Any = None) -> SimpleNamespace:
    total_bytes = mem_get_info()[1]
    return SimpleNamespace(name="Flop 1", total_memory=total_bytes, L2_cache_size=2**20)


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


# Random numbers are the host's, so that they equal those of a run on the CPU.
def manual_seed_all(seed: int) -> None:
    """torch.manual_seed has seeded the host's generator."""


def manual_seed(seed: int) -> None:
    """Likewise."""


def get_rng_state(device: Any = "flop") -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "flop") -> None:
    torch.set_rng_state(new_state.cpu())


def _name(device: Any) -> str:
    if device is None or isinstance(device, int):
        return "flop" if device is None else f"flop:{device}"
    return str(device)
