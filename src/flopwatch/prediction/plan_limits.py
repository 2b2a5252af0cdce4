"""What cannot be planned, with what could be: divisions that a model or a number of devices does
not allow, and devices that are too few for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flopwatch.errors import UsageError
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.hardware import GIB
from flopwatch.prediction.plan_search import SPARE, Searched, search

if TYPE_CHECKING:
    from flopwatch.prediction.hardware import Machine

MOST_DEVICES = 32_768
"""That are considered where you do not say how many there are."""
STEPS = 8
"""Numbers of nodes from one power of two to the next."""
MOST_LISTED = 12
"""Numbers that a sentence lists."""


def list_device_counts(machine: Machine, most: int = MOST_DEVICES, multiple: int = 1) -> list[int]:
    """Sensible numbers of devices: powers of two within a node, and whole nodes, every number of
    them up to 16 and from there on eight to each power of two. All are multiples of what tensor,
    pipeline and context parallelism are told to be together.

    >>> from flopwatch.prediction.hardware import find_machine
    >>> list_device_counts(find_machine("H100-SXM")[1], 200)[:8]
    [1, 2, 4, 8, 16, 24, 32, 40]
    >>> list_device_counts(find_machine("H100-SXM")[1], 200)[-5:]
    [128, 144, 160, 176, 192]
    """
    powers = [1 << power for power in range(most.bit_length())]
    inside = [count for count in powers if count < machine.per_node]
    nodes = sorted({power * part // STEPS for power in powers for part in range(STEPS, 2 * STEPS)
                    if power * part % STEPS == 0})  # fmt: skip
    counts = [*inside, *(count * machine.per_node for count in nodes)]
    return [count for count in counts if count <= most and count % multiple == 0]


def divide_job(
    job: TrainingJob,
    devices: int,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    expert: int = 1,
) -> TrainingJob:
    """The job with a rank on each device, data parallel where nothing else divides it."""
    together = tensor * pipeline * context
    asked = {"tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
    require_division(job, asked)
    if devices % together:
        raise UsageError(
            f"tensor {tensor} x pipeline {pipeline} x context parallelism {context} divide the "
            f"model among {together} ranks, and {devices} devices are no multiple of that; take "
            f"{_list_multiples(together, devices)} devices, or leave one of --tp, --pp and --cp out"
        )
    data = devices // together
    if (data * context) % expert:
        raise UsageError(
            f"expert parallelism {expert} does not divide the {data * context} ranks that have all "
            f"other parameters in common; --ep can be "
            f"{_list_numbers(_list_common_divisors(data * context, job.shape.experts or 1))}"
        )
    split = replace(
        job.parallelism, data=data, tensor=tensor, pipeline=pipeline, context=context,
        expert=expert, sharding=job.sharding if devices > 1 else "none",
    )  # fmt: skip
    return replace(job, parallelism=split)


def require_division(job: TrainingJob, asked: dict[str, int]) -> None:
    shape, model = job.shape, job.name
    if shape.heads % asked["tensor"]:
        raise UsageError(
            f"tensor parallelism {asked['tensor']} does not divide the {shape.heads} heads of "
            f"{model}; --tp can be {_list_numbers(_list_divisors(shape.heads))}"
        )
    if asked["pipeline"] > shape.layers:
        raise UsageError(
            f"{asked['pipeline']} pipeline stages cannot share the {shape.layers} layers of "
            f"{model}; --pp can be {_list_numbers(_list_divisors(shape.layers))}"
        )
    if job.seq_len % asked["context"]:
        possible = _list_divisors(job.seq_len)
        raise UsageError(
            f"context parallelism {asked['context']} does not divide sequences of {job.seq_len:,} "
            f"tokens; --cp can be {_list_numbers(possible)}"
        )
    if asked["expert"] > 1 and not shape.experts:
        raise UsageError(f"{model} has no experts to divide; leave --ep out")
    if (shape.experts or 1) % asked["expert"]:
        raise UsageError(
            f"expert parallelism {asked['expert']} does not divide the {shape.experts} experts of "
            f"{model}; --ep can be {_list_numbers(_list_divisors(shape.experts or 1))}"
        )


def _list_divisors(number: int) -> list[int]:
    """
    >>> _list_divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [each for each in range(1, number + 1) if number % each == 0]


def _list_common_divisors(one: int, other: int) -> list[int]:
    return [each for each in _list_divisors(one) if other % each == 0]


def _list_numbers(numbers: Sequence[int]) -> str:
    """
    >>> _list_numbers([1, 2, 4]), _list_numbers(range(1, 99))
    ('1, 2 or 4', '1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, ... or 98')
    """
    shown = [f"{number:,}" for number in numbers]
    if len(shown) > MOST_LISTED + 1:
        shown = [*shown[:MOST_LISTED], "...", shown[-1]]
    return f"{', '.join(shown[:-1])} or {shown[-1]}" if len(shown) > 1 else shown[0]


def _list_multiples(factor: int, near: int) -> str:
    """
    >>> _list_multiples(32, 48), _list_multiples(7, 4)
    ('32 or 64', '7')
    """
    below = near // factor * factor
    return _list_numbers([count for count in (below, below + factor) if count])


def describe_misfit(searched: Searched, global_batch_tokens: float) -> str:
    """Why nothing fits, and the fewest devices that are enough."""
    job, machine = searched.job, searched.machine
    least = int(searched.memory_bytes.argmin())
    needed, available = (
        size / GIB for size in (searched.memory_bytes[least], machine.memory_bytes or 0.0)
    )
    devices = f"each of {job.ranks} devices" if job.ranks > 1 else "one device"
    enough = find_least_devices(searched, global_batch_tokens)
    advice = (
        f"take larger devices, or a smaller model: {MOST_DEVICES:,} of these are too few, too"
        if enough is None
        else f"{enough} x {machine.name} are enough, or take larger devices, or a smaller model"
    )
    return (
        f"nothing fits: the smallest configuration needs {needed:.1f} GiB on {devices} with "
        f"{available:.1f} GiB; {advice}"
    )


def find_least_devices(searched: Searched, global_batch_tokens: float) -> int | None:
    """The fewest of `list_device_counts` that the job fits on; None: more than are considered."""

    def fits(count: int) -> bool:
        tried = search(
            spread(searched.job, count), searched.machine, searched.stack, global_batch_tokens
        )
        limit = SPARE * (searched.machine.memory_bytes or 0.0)
        return bool(len(tried) and tried.memory_bytes.min() <= limit)

    split = searched.job.parallelism
    multiple = split.tensor * split.pipeline * split.context
    counts = [
        count
        for count in list_device_counts(searched.machine, multiple=multiple)
        if count > searched.job.ranks and count // multiple * split.context % split.expert == 0
    ]
    place = find_first(counts, fits)
    return None if place is None else counts[place]


def spread(job: TrainingJob, devices: int) -> TrainingJob:
    """The same over another number of devices, by data parallelism."""
    split = job.parallelism
    data = devices // (split.tensor * split.pipeline * split.context)
    return replace(job, parallelism=replace(split, data=data))


def find_first(
    counts: Sequence[int], is_enough: Callable[[int], bool], start: int = 0
) -> int | None:
    """The place of the first count that is enough: found from `start` on in growing steps, and then
    by halving; None: the last is not. Larger ones than one that is enough are taken to be, too.

    >>> [find_first([1, 2, 4, 8, 16], lambda count: count > 3, start) for start in (0, 2, 4)]
    [2, 2, 2]
    >>> find_first([1, 2, 4], lambda count: count > 9)
    """
    low, high, last = -1, len(counts), len(counts) - 1
    place, step = min(start, last), 1
    while low < place < high:
        if is_enough(counts[place]):
            high, place = place, max(place - step, 0)
        else:
            low, place = place, min(place + step, last)
        if low > -1 and high <= last:
            break
        step *= 2
    while high - low > 1 and high <= last:
        middle = (low + high) // 2
        if is_enough(counts[middle]):
            high = middle
        else:
            low = middle
    return high if high <= last else None
