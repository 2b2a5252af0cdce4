"""The device of each rank: its state, and whether it has lowered its clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.devices import gpu_state
from flopwatch.devices.base import Backend
from flopwatch.devices.gpu_state import GpuState
from flopwatch.settings import Device

LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class RankDevice:
    throttled: list[str]
    """Why it has lowered its clocks while something was measured."""
    state: GpuState | None
    """When sampling had ended; None: unknown."""


class DeviceWatch:
    """Of one rank's device. Looking at it takes time, so it is done between runs only."""

    def __init__(
        self, target: Backend, device: Device, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._device = device
        self._now_s = now_s
        self._looked_s = now_s()

    def look_if_due(self) -> None:
        if self._now_s() - self._looked_s >= LOOK_EVERY_S:
            self._target.look()
            self._looked_s = self._now_s()

    def read(self) -> RankDevice:
        self._target.look()
        return RankDevice(self._target.throttle_reasons(), gpu_state.read_state(self._device))


def describe_states(devices: Sequence[RankDevice]) -> list[dict[str, Any]]:
    """By rank, as plain data; empty where nothing is known of any."""
    states = [device.state.describe() if device.state else {} for device in devices]
    return states if any(states) else []


def unite_reasons(devices: Sequence[RankDevice]) -> list[str]:
    """Why devices have lowered their clocks, and on which ranks.

    >>> slow, fine = RankDevice(["its power limit"], None), RankDevice([], None)
    >>> unite_reasons([slow]), unite_reasons([slow, slow]), unite_reasons([fine, slow, slow])
    (['its power limit'], ['its power limit on all ranks'], ['its power limit on ranks 1, 2'])
    """
    found: dict[str, list[int]] = {}
    for rank, device in enumerate(devices):
        for reason in device.throttled:
            found.setdefault(reason, []).append(rank)
    if len(devices) == 1:
        return list(found)
    return [f"{reason} on {_name(ranks, len(devices))}" for reason, ranks in found.items()]


def _name(ranks: Sequence[int], count: int) -> str:
    if len(ranks) == count:
        return "all ranks"
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
