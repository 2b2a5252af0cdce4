"""Whether a case fits into memory, before it is tried; and the largest value that fits.

A suite may predict what a process with a case needs, by part. What cannot fit is skipped, with the
numbers: to try it would fill the memory of the machine for minutes.

The largest value of an axis that fits is found by trying. Each try is a run of the whole group in
processes of its own. Values are doubled until one fails, and then halved between the last that
fitted and the first that did not. What failed is a record like any other failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flopwatch.devices.kinds import find_kind
from flopwatch.errors import UsageError
from flopwatch.output.units import format_bytes, plural
from flopwatch.records.record import Record, Status
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings
from flopwatch.worker.failure import Failure
from flopwatch.worker.messages import RankPlace

PROCESS_BYTES = 400 * 2**20
"""What a process with torch takes besides tensors, of its limit or of its GPU."""

WORTH_SAYING = 0.1
"""Of a device's memory: what others hold of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capacity:
    """The memory and the ranks that a group can have."""

    process_bytes: int | None = None
    """For the tensors of a single process; None where it is not known, or not limited."""
    device_bytes: Sequence[int] = ()
    """Likewise, where each device has its own memory: what is free on each of the node's, in the
    order of the ranks that use them; empty where that is not known."""
    is_shared: bool = False
    """Whether ranks of one node share it: all but those with a GPU each do."""
    local_ranks: int | None = None
    """How many ranks there can be on one node; None: any number."""
    ranks: int | None = None
    """How many there can be at all."""
    rank_units: str = "cores"
    """What every rank needs one of."""

    def count_bytes(self, group: Group) -> int | None:
        """For the tensors of one of the group's processes: where that is least."""
        if self.process_bytes is None:
            return None
        if self.device_bytes:
            return min(self.device_bytes[: group.ranks or 1])
        if not self.is_shared or group.ranks is None:
            return self.process_bytes
        sharers = min(group.ranks, self.local_ranks or group.ranks)
        return max(0, (self.process_bytes + PROCESS_BYTES) // sharers - PROCESS_BYTES)

    def describe_held(self, available_bytes: int) -> str:
        """That others hold much of a device's memory, if so."""
        whole_bytes = self.process_bytes or 0
        if not self.device_bytes or available_bytes > (1 - WORTH_SAYING) * whole_bytes:
            return ""
        return f" free of {format_bytes(whole_bytes)}, since other processes use it"


def find_capacity(
    settings: Settings, environment: Mapping[str, Any], place: RankPlace | None = None
) -> Capacity:
    """`place` is that of this process in a job that torchrun has started."""
    gpu = environment.get("torch", {}).get("gpu") or {}
    kind = find_kind(settings.device)
    on_cpu = kind.is_host
    cores = environment.get("machine", {}).get("usable_cores")
    is_one = settings.device_index is not None
    devices = cores if on_cpu else 1 if is_one else gpu.get("count")
    free_bytes = [] if on_cpu else list_free_bytes(gpu)[settings.device_index or 0 :]
    whole_bytes = gpu.get("memory_bytes", max(free_bytes, default=None))
    total_bytes = settings.memory_limit_bytes if on_cpu else whole_bytes
    capacity = Capacity(
        process_bytes=None if total_bytes is None else max(0, total_bytes - PROCESS_BYTES),
        device_bytes=[max(0, each - PROCESS_BYTES) for each in free_bytes],
        is_shared=on_cpu,
        local_ranks=devices,
        ranks=devices,
        rank_units=kind.unit if devices == 1 else f"{kind.unit}s",
    )
    if place is None:
        return capacity
    # A scheduler may show each process one GPU, its own.
    if not on_cpu and devices is not None and 1 < devices < place.local_ranks:
        raise UsageError(
            f"this job has {place.local_ranks} ranks on a node, and there are {devices} "
            f"{kind.unit}s; start it with --nproc-per-node {devices}"
        )
    ranks = place.ranks
    return replace(
        capacity, local_ranks=place.local_ranks, ranks=ranks, rank_units="ranks in this job"
    )


def list_free_bytes(gpu: Mapping[str, Any]) -> list[int]:
    """Of each device, as the environment has it: others may hold some of its memory. Of one that
    does not say, all; nothing where no device says."""
    states = gpu.get("states") or []
    if not any("free_bytes" in state for state in states):
        return []
    found: list[int] = [state.get("free_bytes", gpu.get("memory_bytes")) for state in states]
    return [] if None in found else found


Misfits = list[tuple[Group, dict[str, Failure]]]
"""Groups of nothing but variants that cannot fit, each with the reasons by variant."""


def split_by_fit(groups: Iterable[Group], capacity: Capacity) -> tuple[list[Group], Misfits]:
    """What can be tried of the groups, and what cannot fit."""
    fitting, misfits = [], []
    for group in groups:
        reasons = find_misfits(group, capacity)
        left = tuple(variant for variant in group.variants if variant not in reasons)
        if left:
            fitting.append(replace(group, variants=left))
        if reasons:
            misfits.append((replace(group, variants=tuple(reasons)), reasons))
    return fitting, misfits


def describe_misfits(misfits: Misfits) -> list[str]:
    """A sentence for each reason, however many cases have it."""
    skips = [skip for _, by_variant in misfits for skip in by_variant.values()]
    too_large = [skip for skip in skips if skip.cause == "does-not-fit"]
    counts = Counter(skip.message for skip in skips if skip.cause != "does-not-fit")
    sentences = [f"{plural(n, 'case')} will be skipped: {why}" for why, n in counts.items()]
    if too_large:
        number = plural(len(too_large), "case")
        sentences.insert(0, f"{number} cannot fit into memory; --force tries all the same")
    return sentences


def describe_idle(groups: Sequence[Group], ranks: int) -> str | None:
    """That some of the ranks which torchrun has started have nothing to do, if so."""
    used = sorted({group.ranks for group in groups if group.ranks is not None})
    if not used or used[-1] >= ranks:
        return None
    return (
        f"{ranks - used[-1]} of this job's {ranks} ranks stay idle: at most {used[-1]} are asked "
        f"for; --ranks {ranks} uses all"
    )


def find_misfits(group: Group, capacity: Capacity) -> dict[str, Failure]:
    """The variants that cannot fit, each with the reason."""
    if group.ranks is not None and capacity.ranks is not None and group.ranks > capacity.ranks:
        there = "is" if capacity.ranks == 1 else "are"
        reason = (
            f"it needs {group.ranks} ranks, and there {there} {capacity.ranks} "
            f"{capacity.rank_units}; choose fewer with --ranks"
        )
        return dict.fromkeys(group.variants, Failure("skipped", reason, "too-few-ranks"))
    available_bytes = capacity.count_bytes(group)
    if available_bytes is None:
        return {}
    available = format_bytes(available_bytes) + capacity.describe_held(available_bytes)
    reasons: dict[str, Failure] = {}
    taken_bytes = 0.0
    for variant in sorted(group.variants, key=lambda variant: variant != group.baseline):
        parts = group.memory.get(variant, {})
        needed_bytes = sum(parts.values())
        if needed_bytes > available_bytes:
            message = explain(parts, available)
            reasons[variant] = Failure("skipped", message, "does-not-fit")
        elif group.apart and taken_bytes + needed_bytes > available_bytes:
            message = (
                f"it needs {format_bytes(int(needed_bytes))} of memory besides the other variants, "
                f"which take {format_bytes(int(taken_bytes))}, and there are {available}; measure "
                f"it alone: --variant {variant} --baseline {variant}"
            )
            reasons[variant] = Failure("skipped", message, "does-not-fit")
        else:
            taken_bytes += needed_bytes
    return reasons


def explain(parts: Mapping[str, float], available: str) -> str:
    """
    >>> explain({"parameters": 6 * 2**30}, "4.00 GiB").partition(";")[0]
    'it needs 6.00 GiB of memory (parameters 6.00 GiB), and there are 4.00 GiB'
    """
    listed = ", ".join(f"{part} {format_bytes(int(size))}" for part, size in parts.items() if size)
    return (
        f"it needs {format_bytes(int(sum(parts.values())))} of memory ({listed}), and there are "
        f"{available}; --force tries it all the same"
    )


TOO_MUCH: tuple[Status, ...] = ("oom", "timeout")
"""Failures that a smaller value may avoid."""


def find_largest(values: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The largest of the ascending values that fits, if what is smaller fits too.

    >>> tried = []
    >>> find_largest(range(1, 4097), lambda value: tried.append(value) or value <= 11), tried
    (11, [1, 2, 4, 8, 16, 12, 10, 11])
    """
    good, bad = -1, len(values)
    place = 0
    while good < place < bad:
        if fits(values[place]):
            good, place = place, min(2 * place + 1, len(values) - 1)
        else:
            bad = place
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(values[middle]):
            good = middle
        else:
            bad = middle
    return values[good] if good >= 0 else None


def find_largest_values(
    group: Group, attempt: Callable[[Group], list[Record]]
) -> tuple[Group | None, list[Record]]:
    """The group with a value for each axis that is to be as large as fits, None where none does;
    and what failed. `attempt` tries a group and gives the records of what failed. Variants that
    fail for another reason than memory are left out: no smaller value would help them."""
    failures: list[Record] = []
    left = group.variants

    def fits(value: int) -> bool:
        nonlocal left
        while left:
            failed = attempt(replace(put(group, axis, value), variants=left))
            failures.extend(failed)
            hopeless = {record.variant for record in failed if record.status not in TOO_MUCH}
            left = tuple(variant for variant in left if variant not in hopeless)
            if not hopeless:
                return not failed
        return False

    for axis, values in group.candidates.items():
        largest = find_largest(values, fits)
        if largest is None or not left:
            return None, failures
        group = put(group, axis, largest)
    return replace(group, variants=left), failures


def put(group: Group, axis: str, value: int) -> Group:
    """The group with this value there."""
    others = {name: values for name, values in group.candidates.items() if name != axis}
    jobs = {v: job and _resize(job, axis, value, group.params) for v, job in group.jobs.items()}
    return replace(group, params={**group.params, axis: value}, candidates=others, jobs=jobs)


def _resize(
    job: Mapping[str, Any], axis: str, value: int, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Where the global batch is given, a larger micro-batch makes fewer of them."""
    resized = {**job, axis: value}
    if axis == "micro_batch" and "global_batch" in params:
        resized["grad_accum"] = job["micro_batch"] * job["grad_accum"] // value
    return resized
