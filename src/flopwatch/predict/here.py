"""Predictions for this machine: from its peaks, and from what was measured on it before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flopwatch.account import measured
from flopwatch.account.devices import find_device
from flopwatch.account.measured import Peaks, read_setup
from flopwatch.engine import hardware
from flopwatch.errors import UsageError
from flopwatch.plan import Group
from flopwatch.predict.calibration import find_calibration, find_file, make_stack, read
from flopwatch.predict.cases import foretell
from flopwatch.predict.machine import Machine, describe_measured
from flopwatch.predict.stacks import Stack
from flopwatch.settings import Settings

HERE = "here"
"""What the command line calls this machine."""


def find_peaks_here() -> Peaks:
    """The last that were measured on this machine."""
    machine_id = hardware.read_machine().get("machine_id")
    known = [
        each for each in measured.read(measured.find_file()) if each.setup.machine_id == machine_id
    ]
    if not known:
        raise UsageError(
            "the peaks of this machine are not known; measure them with `flopwatch peaks`, or give "
            "another --hardware"
        )
    return measured.unite([each for each in known if each.setup == known[-1].setup])


def describe_here() -> tuple[Machine, Stack]:
    """This machine as its peaks describe it, and the stack that it is calibrated for."""
    peaks = find_peaks_here()
    machine = describe_measured(peaks, hardware.read_machine().get("memory_available_bytes"))
    if machine is None:
        raise UsageError(
            "the peaks of this machine lack products or the memory's bandwidth; measure them again "
            "with `flopwatch peaks`"
        )
    return machine, make_stack(find_calibration(peaks.setup), peaks.setup.device)


def find_device_stack(machine: Machine) -> Stack | None:
    """What records of the same device were calibrated to, wherever it stands; None where there are
    none."""
    alike = [
        calibration
        for calibration in read(find_file())
        if (device := find_device(calibration.setup.gpu_name or "")) and device.name == machine.name
    ]
    return make_stack(alike[-1], "cuda") if alike else None


def foretell_group(
    group: Group, environment: Mapping[str, Any], settings: Settings
) -> dict[str, dict[str, Any]]:
    """What is to be expected of a group's variants; nothing where this machine was not calibrated,
    or where they are no steps of whole models."""
    calibration = find_calibration(read_setup(environment, settings))
    peaks = measured.from_environment(environment)
    if calibration is None or peaks is None:
        return {}
    machine = describe_measured(peaks, settings.memory_limit_bytes)
    if machine is None:
        return {}
    stack = make_stack(calibration, settings.device)
    found = {
        variant: foretell(group.suite, variant, group.params, machine, stack, settings.device)
        for variant in group.variants
    }
    return {variant: each for variant, each in found.items() if each is not None}
