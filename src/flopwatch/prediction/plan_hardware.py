"""What a plan is made for: a model on a number of devices of a kind, how many tokens, and what
devices cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from flopwatch.devices.device_names import describe_unknown, find_devices
from flopwatch.errors import UsageError
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.hardware import Machine
from flopwatch.prediction.job_lists import find_hardware, place_on
from flopwatch.prediction.plan_limits import divide_job
from flopwatch.prediction.predictions import pad_as_published
from flopwatch.prediction.software_stacks import SHARDED, TYPICAL, Stack, find_stack

Found = TypeVar("Found")
Price = float | Mapping[str, float] | None
"""Of a device for an hour: of all, by names of devices, or not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedHardware:
    text: str
    """As asked for."""
    devices: int | None
    """None: nobody has said how many."""
    machine: Machine
    stack: Stack

    def place(self, job: TrainingJob) -> TrainingJob:
        """On all devices."""
        devices = self.devices or 1
        padded = self.pad(replace(job, hardware=self.text))
        split = job.parallelism
        if split.data > 1:
            return place_on(padded, devices)
        return divide_job(
            padded,
            devices,
            tensor=split.tensor,
            pipeline=split.pipeline,
            context=split.context,
            expert=split.expert,
        )

    def pad(self, job: TrainingJob) -> TrainingJob:
        return pad_as_published(job, self.stack)


def find_planned_hardware(
    text: str, stack: str | None = None, network_gbit: float | None = None
) -> PlannedHardware:
    devices, machine, chosen = find_hardware(text, stack, network_gbit)
    if stack is None and chosen.name in SHARDED:  # which know data parallelism alone
        chosen = find_stack(TYPICAL)
    is_counted = re.match(r"\s*\d+\s*[x×]", text, re.IGNORECASE) is not None
    return PlannedHardware(
        text=text, devices=devices if is_counted else None, machine=machine, stack=chosen
    )


def count_train_tokens(
    job: TrainingJob,
    global_batch_tokens: float,
    train_tokens: float | None,
    tokens_per_parameter: float,
) -> float:
    """To train on; without a number, so many for each parameter."""
    if train_tokens is None:
        return float(tokens_per_parameter * job.parameters)
    if train_tokens < global_batch_tokens:
        raise UsageError(
            f"a step of {global_batch_tokens:,.0f} tokens is more than the {train_tokens:,.0f} "
            "to train on; choose a smaller batch, or train on more"
        )
    return train_tokens


def find_price(price: Price, machine: Machine) -> float | None:
    """
    >>> from flopwatch.prediction.hardware import find_machine
    >>> find_price({"h100": 2.1, "b200": 3.9}, find_machine("512xH100-SXM")[1])
    2.1
    """
    if price is None or isinstance(price, int | float):
        return price
    fitting = [name for name in price if machine.name in _list_names(name)]
    # An exact name counts more than one that several devices share.
    return price[min(fitting, key=lambda name: len(_list_names(name)))] if fitting else None


def require_priced(price: Price, machines: Mapping[str, Machine]) -> None:
    """Refuse prices of nothing that is planned, and one price for several kinds of devices."""
    kinds = {machine.name for machine in machines.values()}
    if price is None:
        return
    if not isinstance(price, Mapping):
        if len(kinds) > 1:
            example = ",".join(f"{name.lower()}=2.5" for name in sorted(kinds))
            raise UsageError(f"one price for {len(kinds)} kinds of devices; write {example}")
        return
    for name in price:
        if not kinds & _list_names(name):
            raise UsageError(f"the price of {name} is that of no device planned with; leave it out")


def _list_names(name: str) -> set[str]:
    found = {device.name for device in find_devices(name)}
    if not found:
        raise UsageError(describe_unknown(name))
    return found


def find_all_hardware(
    hardware: Sequence[str], price: Price, stack: str | None, network_gbit: float | None
) -> list[PlannedHardware]:
    machines = [find_planned_hardware(text, stack, network_gbit) for text in hardware]
    require_priced(price, {each.text: each.machine for each in machines})
    return machines


def try_all(
    jobs: Sequence[TrainingJob],
    machines: Sequence[PlannedHardware],
    find: Callable[[TrainingJob, PlannedHardware], Found],
) -> tuple[list[list[Found]], list[str]]:
    """By job what is found on each hardware, and why there is nothing on others. Refused where
    there is nothing at all."""
    found: list[list[Found]] = []
    refusals = []
    for job in jobs:
        found.append([])
        for machine in machines:
            try:
                found[-1].append(find(job, machine))
            except UsageError as error:
                refusals.append(f"{job.name} on {machine.text}: {error}")
    if not any(found):
        raise UsageError(refusals[0])
    return found, refusals
