"""Whether a case fits into memory, told before it is tried.

A suite may predict what a process with a case needs, by part. What is certain to fail would fill
the memory of the machine, for minutes, to learn what was known: it is skipped, with the numbers.

The largest value of an axis that fits into memory, found by trying.

Each try is a run of the whole group in processes of its own: what it needs is known for certain
only then. Values are doubled until one fails, and then halved between the last that fitted and the
first that did not. What failed is a record like any other failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flopwatch.errors import UsageError
from flopwatch.output.units import format_bytes, plural
from flopwatch.records.record import Record, Status
from flopwatch.runner.record_builder import Skip
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings
from flopwatch.worker.rank_team import Seat

PROCESS_BYTES = 400 * 2**20
"""What a process with torch takes besides tensors, of its limit or of its GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What there is for a group."""

    process_bytes: int | None = None
    """For the tensors of a process that is alone; None where that is not known, or does not
    matter."""
    is_shared: bool = False
    """Whether ranks of one machine share it: all but those with a GPU each do."""
    local_ranks: int | None = None
    """How many ranks there can be on one machine; None: any number."""
    ranks: int | None = None
    """How many there can be at all."""
    seats: str = "cores"
    """What every rank needs one of."""

    def count_bytes(self, group: Group) -> int | None:
        """For the tensors of one of the group's processes."""
        if self.process_bytes is None or not self.is_shared or group.ranks is None:
            return self.process_bytes
        sharers = min(group.ranks, self.local_ranks or group.ranks)
        return max(0, (self.process_bytes + PROCESS_BYTES) // sharers - PROCESS_BYTES)


def find_room(
    settings: Settings, environment: Mapping[str, Any], place: Seat | None = None
) -> Room:
    """`place` is this process's in a job that somebody else has started."""
    gpu = environment.get("torch", {}).get("gpu") or {}
    on_cpu = settings.device == "cpu"
    total_bytes = settings.memory_limit_bytes if on_cpu else gpu.get("memory_bytes")
    cores = environment.get("machine", {}).get("usable_cores")
    devices = cores if on_cpu else gpu.get("count")
    room = Room(
        process_bytes=None if total_bytes is None else max(0, total_bytes - PROCESS_BYTES),
        is_shared=on_cpu,
        local_ranks=devices,
        ranks=devices,
        seats="cores" if on_cpu else "GPUs",
    )
    if place is None:
        return room
    # A scheduler may show each process one GPU, its own.
    if not on_cpu and devices is not None and 1 < devices < place.local_ranks:
        raise UsageError(
            f"this job has {place.local_ranks} ranks on a machine, and there are {devices} GPUs; "
            f"start it with --nproc-per-node {devices}"
        )
    ranks = place.ranks
    return replace(room, local_ranks=place.local_ranks, ranks=ranks, seats="ranks in this job")


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    fitting: list[Group]
    """What is left of the groups to be tried."""
    misfits: list[tuple[Group, dict[str, Skip]]]
    """Groups of nothing but variants that cannot fit, each with the reasons by variant."""


def divide(groups: Iterable[Group], room: Room) -> Division:
    fitting, misfits = [], []
    for group in groups:
        reasons = find_misfits(group, room)
        left = tuple(variant for variant in group.variants if variant not in reasons)
        if left:
            fitting.append(replace(group, variants=left))
        if reasons:
            misfits.append((replace(group, variants=tuple(reasons)), reasons))
    return Division(fitting=fitting, misfits=misfits)


def describe_misfits(divided: Division) -> list[str]:
    """A sentence for each reason, however many cases have it."""
    skips = [skip for _, by_variant in divided.misfits for skip in by_variant.values()]
    too_large = [skip for skip in skips if skip.cause == "does-not-fit"]
    counts = Counter(skip.reason for skip in skips if skip.cause != "does-not-fit")
    sentences = [f"{plural(n, 'case')} will be skipped: {reason}" for reason, n in counts.items()]
    if too_large:
        number = plural(len(too_large), "case")
        sentences.insert(0, f"{number} cannot fit into memory; --force tries all the same")
    return sentences


def describe_idle(groups: Sequence[Group], ranks: int) -> str | None:
    """That of so many ranks which somebody has started some have nothing to do, if so."""
    used = sorted({group.ranks for group in groups if group.ranks is not None})
    if not used or used[-1] >= ranks:
        return None
    return (
        f"{ranks - used[-1]} of this job's {ranks} ranks stay idle: at most {used[-1]} are asked "
        f"for; --ranks {ranks} uses all"
    )


def find_misfits(group: Group, room: Room) -> dict[str, Skip]:
    """The variants that cannot fit, each with the reason."""
    if group.ranks is not None and room.ranks is not None and group.ranks > room.ranks:
        reason = (
            f"it needs {group.ranks} ranks, and there are {room.ranks} {room.seats}; choose fewer "
            "with --ranks"
        )
        return dict.fromkeys(group.variants, Skip("too-few-ranks", reason))
    room_bytes = room.count_bytes(group)
    if room_bytes is None:
        return {}
    reasons: dict[str, Skip] = {}
    taken_bytes = 0.0
    for variant in sorted(group.variants, key=lambda variant: variant != group.baseline):
        parts = group.memory.get(variant, {})
        needed_bytes = sum(parts.values())
        if needed_bytes > room_bytes:
            reasons[variant] = Skip("does-not-fit", explain(parts, room_bytes))
        elif group.apart and taken_bytes + needed_bytes > room_bytes:
            reasons[variant] = Skip(
                "does-not-fit",
                f"it needs {format_bytes(int(needed_bytes))} of memory beside the other variants, "
                f"which take {format_bytes(int(taken_bytes))}, and there are "
                f"{format_bytes(room_bytes)}; measure it alone: --variant {variant} --baseline "
                f"{variant}",
            )
        else:
            taken_bytes += needed_bytes
    return reasons


def explain(parts: Mapping[str, float], room_bytes: int) -> str:
    """
    >>> explain({"parameters": 6 * 2**30}, 2**32).partition(";")[0]
    'it needs 6.00 GiB of memory (parameters 6.00 GiB), and there are 4.00 GiB'
    """
    listed = ", ".join(f"{part} {format_bytes(int(size))}" for part, size in parts.items() if size)
    return (
        f"it needs {format_bytes(int(sum(parts.values())))} of memory ({listed}), and there are "
        f"{format_bytes(room_bytes)}; --force tries it all the same"
    )


TOO_MUCH: tuple[Status, ...] = ("oom", "timeout")
"""What a smaller value may mend."""


class Found(NamedTuple):
    group: Group | None
    """With the largest values that fit; None where none does."""
    failures: list[Record]


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


def fill_in(group: Group, attempt: Callable[[Group], list[Record]]) -> Found:
    """The group with a value for each axis that is to be as large as fits. `attempt` tries a group
    and gives the records of what failed. Variants that fail for another reason than memory are
    left out: no smaller value would help them."""
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
            return Found(None, failures)
        group = put(group, axis, largest)
    return Found(replace(group, variants=left), failures)


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
