"""Devices by the names that drivers report, and by those that people write."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from flopwatch.devices.device_table import DEVICES, Device
from flopwatch.errors import FlopwatchError, PluginError, UsageError
from flopwatch.plugins import describe, find_plugins, load_plugin, say_left_out

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

COUNTED = re.compile(r"\s*(?:(?P<count>\d+)\s*[x×]\s*)?(?P<name>.*?)\s*", re.IGNORECASE | re.DOTALL)
MISWRITTEN = re.compile(r"^$|^[^a-z]*$|^[-+.\d]+\s*[x×*]|[*×]|[x×]\d+$", re.IGNORECASE)
"""No device is called so: a number without a name, a sign, a count behind the name."""
LONGEST = 40
"""Characters of a text that an error repeats."""
MOST_DIGITS = 6
"""Of a number of devices."""
MAKER = "nvidia "
HINTS = 4
"""How many near names an error lists."""


@cache
def list_devices() -> tuple[Device, ...]:
    """Those of the table, and those of plug-ins, of which what is wrong is left out."""
    found = {device.name: device for device in DEVICES}
    for plugin in find_plugins("flopwatch.devices").values():
        try:
            found |= {
                device.name: device for device in _load_devices(plugin, tuple(found.values()))
            }
        except FlopwatchError as error:
            say_left_out(str(error))
    return tuple(found.values())


def _load_devices(plugin: EntryPoint, known: tuple[Device, ...]) -> list[Device]:
    loaded = load_plugin(plugin)
    devices = [loaded] if isinstance(loaded, Device) else loaded
    try:
        # What is written by hand may have any types.
        checked = [msgspec.convert(msgspec.to_builtins(device), Device) for device in devices]
    except (TypeError, msgspec.ValidationError) as error:
        raise PluginError(describe(plugin, f"it is no Device, nor several ({error})")) from None
    taken = {_strip_short(device.name) for device in known}
    drivers = {_strip_driver(name) for device in known for name in device.drivers}
    for device in checked:
        if _strip_short(device.name) in taken:
            raise PluginError(describe(plugin, f"there is a device {device.name!r} already"))
        if drivers & set(map(_strip_driver, device.drivers)):
            why = f"the driver's name of {device.name!r} is that of another device"
            raise PluginError(describe(plugin, why))
        if not all(peak.flops_per_s > 0 for peak in device.rates.dense.values()):
            raise PluginError(describe(plugin, f"a peak of {device.name!r} is not above 0"))
    return checked


def find_device(name: str) -> Device | None:
    """The device whose driver reports exactly this name, as `torch.cuda.get_device_name` does.

    >>> [device and device.name for device in map(find_device, ("NVIDIA L40S", "NVIDIA L400"))]
    ['L40S', None]
    """
    return _index_drivers().get(_strip_driver(name))


def find_devices(name: str) -> tuple[Device, ...]:
    """Those that a name may mean: a driver's, one of the table, or a short one, which several
    devices may share, also where a driver gives it to one of them. Empty where it is unknown.

    >>> [device.name for device in find_devices("h100")]
    ['H100-SXM', 'H100-PCIe', 'H100-NVL']
    """
    device, candidates = find_device(name), _index_shorts().get(_strip_short(name), ())
    return candidates if device is None or len(candidates) > 1 else (device,)


def parse_hardware(text: str) -> tuple[int, Device]:
    """How many devices, and which. Where a name is that of several devices with the same peaks,
    what they do not share is None.

    >>> count, device = parse_hardware("8xA100_80GB")
    >>> count, device.find_peak("bfloat16").flops_per_s / 1e12
    (8, 312.0)
    """
    count, name = split_hardware(text)
    candidates = find_devices(name)
    if not candidates:
        raise UsageError(f"{describe_unknown(name)}, or give its peak by --peak TFLOPS")
    first = candidates[0]
    if len(candidates) == 1:
        return count, first
    peaks = [
        {dtype: peak.flops_per_s for dtype, peak in device.rates.dense.items()}
        for device in candidates
    ]
    if any(own != peaks[0] for own in peaks):
        raise UsageError(
            f"{name!r} is the name of devices with different peaks; write "
            f"{' or '.join(device.name for device in candidates)}"
        )
    different: dict[str, Any] = {
        field: None
        for field in ("memory_gb", "bandwidth_gb_per_s", "link")
        if any(getattr(device, field) != getattr(first, field) for device in candidates)
    }
    short = next(short for short in first.shorts if _strip_short(short) == _strip_short(name))
    return count, replace(first, name=short, **different)


def split_hardware(text: str) -> tuple[int, str]:
    """How many devices, and what one of them is called.

    >>> split_hardware("4x Abacus"), split_hardware("Abacus")
    ((4, 'Abacus'), (1, 'Abacus'))
    """
    found = COUNTED.fullmatch(text)
    assert found is not None  # it matches anything
    digits = found["count"] or "1"
    if len(digits) > MOST_DIGITS:
        raise UsageError(
            f"the number of devices in --hardware has {len(digits)} digits; write at most "
            f"{MOST_DIGITS}, as in 8xH100-SXM"
        )
    if int(digits) < 1:
        raise UsageError(
            f"hardware {text!r} has no device; write a number from 1, as in 8xH100-SXM"
        )
    if MISWRITTEN.search(found["name"]) and not find_devices(found["name"]):
        raise UsageError(
            f"hardware {text[:LONGEST]!r} is not understood; write how many, an x and a device, as "
            "in 8xH100-SXM"
        )
    return int(digits), found["name"]


def describe_unknown(name: str) -> str:
    """A sentence for an error, without its full stop."""
    known = {
        _strip_short(name): name
        for device in list_devices()
        for name in (device.name, *device.shorts)
    }
    near = difflib.get_close_matches(_strip_short(name), known, n=HINTS, cutoff=0.5)
    listed = " or ".join(known[short] for short in near)
    advice = f"write {listed}" if near else "choose one that `flopwatch peaks --list` has"
    return f"no device is called {name!r}; {advice}"


def _strip_driver(name: str) -> str:
    return name.strip().casefold().removeprefix(MAKER)


def _strip_short(name: str) -> str:
    """
    >>> _strip_short("A100_80GB") == _strip_short("a100-80gb") == _strip_short("A100 80GB")
    True
    """
    return re.sub(r"[\s_-]", "", name).casefold()


@cache
def _index_drivers() -> Mapping[str, Device]:
    return {_strip_driver(name): device for device in list_devices() for name in device.drivers}


@cache
def _index_shorts() -> Mapping[str, tuple[Device, ...]]:
    found: dict[str, tuple[Device, ...]] = {}
    for device in list_devices():
        for short in {_strip_short(name) for name in (device.name, *device.shorts)}:
            found[short] = (*found.get(short, ()), device)
    return found
