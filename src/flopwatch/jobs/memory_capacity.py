"""What training a model needs in memory, and how much of it a given memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.devices import environment
from flopwatch.errors import UsageError
from flopwatch.jobs.activation_memory import footprint_of
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.step_memory import Footprint, Plan
from flopwatch.runner import session
from flopwatch.runner.memory_fit import PROCESS_BYTES

SHORTEST = 2
"""Tokens of a text: one alone has no next one to be learnt."""
UTMOST = 2**24
"""Nobody asks for larger batches or longer texts."""
GROWTH = 4
"""From one trial to the next, until something does not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    model: str
    plan: Plan
    room_bytes: int
    """What there is for tensors."""
    footprint: Footprint
    largest_batch: int
    """At the plan's context; 0: not even one text fits."""
    largest_context: int
    """At the plan's batch; 0: not even the shortest texts fit."""

    @property
    def fits(self) -> bool:
        return self.footprint.peak_bytes <= self.room_bytes


def find_room_bytes(fit_bytes: int | None, plan: Plan) -> int:
    """For tensors: of the size given, or of as much of this machine's free memory as a run takes,
    without what a process needs besides."""
    if fit_bytes is None:
        if plan.device == "cuda":
            raise UsageError("how much memory a GPU has must be said; add for example --fit 24G")
        free_bytes = environment.machine(Path.cwd())["machine"]["memory_available_bytes"]
        fit_bytes = int(session.MEMORY_SHARE * free_bytes)
    if fit_bytes <= PROCESS_BYTES:
        raise UsageError(
            f"a process with torch takes {PROCESS_BYTES >> 20} MiB before it has a tensor; choose "
            "more for --fit"
        )
    return fit_bytes - PROCESS_BYTES


def ask(models: Sequence[str], plan: Plan, room_bytes: int) -> list[Answer]:
    """For each model, in the same order. Those of the library transformers need torch, and are
    asked in a process that has it."""
    others = [model for model in models if not find_shape(model).is_ours]
    arguments = {"models": others, "plan": asdict(plan), "room_bytes": room_bytes}
    content = (
        session.call("flopwatch.jobs.memory_capacity:answer_others", arguments, device="cpu")
        if others
        else []
    )
    surveyed = iter(msgspec.convert(content, list[Answer]))
    return [
        answer(model, plan, room_bytes) if find_shape(model).is_ours else next(surveyed)
        for model in models
    ]


def answer_others(
    models: Sequence[str], plan: dict[str, Any], room_bytes: int, device: str
) -> list[Answer]:
    """In a worker, whose device does not matter."""
    return [answer(model, Plan(**plan), room_bytes) for model in models]


def answer(model: str, plan: Plan, room_bytes: int) -> Answer:
    shape = find_shape(model)

    @lru_cache
    def predict(batch: int, context: int) -> Footprint:
        chosen = replace(plan, batch=batch, context=context)
        return footprint_of(shape.stretch(context), chosen)

    return Answer(
        model=model,
        plan=plan,
        room_bytes=room_bytes,
        footprint=predict(plan.batch, plan.context),
        largest_batch=find_largest(
            lambda batch: predict(batch, plan.context).peak_bytes, room_bytes
        ),
        largest_context=find_largest(
            lambda context: predict(plan.batch, context).peak_bytes, room_bytes, SHORTEST
        ),
    )


def find_largest(count_bytes: Callable[[int], int], room_bytes: int, least: int = 1) -> int:
    """The largest number, from `least` on, whose bytes do not exceed the room; 0 where none is so
    small. The bytes must not shrink as the number grows.

    >>> find_largest(lambda number: 10 + 3 * number, 100)
    30
    """
    if count_bytes(least) > room_bytes:
        return 0
    fits, exceeds = least, GROWTH * least
    while count_bytes(exceeds) <= room_bytes:
        fits, exceeds = exceeds, GROWTH * exceeds
        if exceeds > UTMOST:
            return fits
    is_halved = True
    while exceeds - fits > 1:
        width = exceeds - fits
        tried = fits + width // 2
        if is_halved:
            # Where the bytes were in proportion: at once the answer, if the rest is a line.
            low, high = count_bytes(fits), count_bytes(exceeds)
            tried = fits + (room_bytes - low) * width // (high - low)
            tried = min(max(tried, fits + 1), exceeds - 1)
        if count_bytes(tried) <= room_bytes:
            fits = tried
        else:
            exceeds = tried
        is_halved = not is_halved or exceeds - fits <= width // 2
    return fits
