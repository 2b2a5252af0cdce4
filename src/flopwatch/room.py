"""Whether a case fits into memory, told before it is tried.

A suite may foretell what a process with a case needs, by part. What is certain to fail would fill
the memory of the machine, for minutes, to learn what was known: it is skipped, with the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flopwatch.plan import Group
from flopwatch.records.record import Record
from flopwatch.report.units import format_bytes
from flopwatch.settings import Settings

NEEDS = "it needs "
"""How the reason of what was not tried begins."""
PROCESS_BYTES = 400 * 2**20
"""What a process with torch takes besides tensors, of its limit or of its GPU."""


def find_room_bytes(settings: Settings, environment: Mapping[str, Any]) -> int | None:
    """What a process may take for its tensors; None where that is not known."""
    if settings.device == "cpu":
        total_bytes = settings.memory_limit_bytes
    else:
        gpu = environment.get("torch", {}).get("gpu") or {}
        total_bytes = gpu.get("memory_bytes")
    return None if total_bytes is None else max(0, total_bytes - PROCESS_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    fitting: list[Group]
    """What is left of the groups to be tried."""
    misfits: list[tuple[Group, dict[str, str]]]
    """Groups of nothing but variants that cannot fit, each with the reasons by variant."""


def divide(groups: Iterable[Group], room_bytes: int | None) -> Division:
    fitting, misfits = [], []
    for group in groups:
        reasons = find_misfits(group, room_bytes)
        left = tuple(variant for variant in group.variants if variant not in reasons)
        if left:
            fitting.append(replace(group, variants=left))
        if reasons:
            misfits.append((replace(group, variants=tuple(reasons)), reasons))
    return Division(fitting=fitting, misfits=misfits)


def is_misfit(record: Record) -> bool:
    """Whether it was not tried because it was foretold not to fit."""
    return record.status == "skipped" and (record.reason or "").startswith(NEEDS)


def find_misfits(group: Group, room_bytes: int | None) -> dict[str, str]:
    """The variants that cannot fit, each with the reason."""
    if room_bytes is None:
        return {}
    return {
        variant: explain(parts, room_bytes)
        for variant, parts in group.memory.items()
        if parts and sum(parts.values()) > room_bytes
    }


def explain(parts: Mapping[str, float], room_bytes: int) -> str:
    """
    >>> explain({"parameters": 6 * 2**30}, 2**32).partition(";")[0]
    'it needs 6.00 GiB of memory (parameters 6.00 GiB), and there are 4.00 GiB'
    """
    listed = ", ".join(f"{part} {format_bytes(int(size))}" for part, size in parts.items() if size)
    return (
        f"{NEEDS}{format_bytes(int(sum(parts.values())))} of memory ({listed}), and there are "
        f"{format_bytes(room_bytes)}; --force tries it all the same"
    )
