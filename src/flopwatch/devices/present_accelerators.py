"""The accelerators of this machine, looked for by every process that asks, and never remembered.

A list from yesterday would be wrong in a container that shows other GPUs, under other
``*_VISIBLE_DEVICES``, and above all after a driver has failed once. To look is cheap where nothing
speaks for an accelerator: no node of one in ``/dev``, no package that brings one to torch, a torch
that is built for CPUs only. Where anything does, a child with torch (`accelerator_probe`) lists
them; that it fails or takes too long is said, and is not the same as that there are none.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import Any

import msgspec

from flopwatch.devices import accelerator_probe
from flopwatch.devices.kinds import HOST, Devices, find_kind
from flopwatch.errors import UsageError
from flopwatch.lazy import require
from flopwatch.plugins import say_left_out
from flopwatch.settings import Device

NODES = (
    *("nvidia[0-9]*", "nvidiactl", "nvhost-gpu"),  # NVIDIA; the last one Jetson
    "kfd",  # AMD
    "dxg",  # any of them, in Windows' Linux
)
"""In ``/dev``."""
INTEL_NODE, INTEL_LIBRARY = "dri/renderD*", "lib/*torch_xpu*"
"""Any graphics has such a node: it counts only where torch is built for Intel's."""
BACKENDS = "torch.backends"
"""The entry points by which packages bring devices of their own to torch."""

TIMEOUT_S = 300.0
"""Most of it for importing torch, which can be slow from a cold network disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerators:
    """Those that torch can use; of one kind, as torch has it."""

    device: Device | None = None
    """Their kind; None where there are none, or where that is not known."""
    names: tuple[str, ...] = ()
    problem: str | None = None
    """What went wrong while they were looked for."""


class Report(msgspec.Struct, kw_only=True):
    """What the child says."""

    device: str | None = None
    names: list[str] = []
    complaints: list[str] = []
    no_torch: str | None = None


Run = Callable[[], "Report | str"]
"""Run a child: its report, or why there is none."""


def find_accelerators(
    *,
    run: Run | None = None,
    dev: Path = Path("/dev"),
    torch_version: str | None = None,
    torch_folder: Path | None = None,
    backends: Sequence[str] | None = None,
    system: str | None = None,
) -> Accelerators:
    """Those of this machine. What is not given is read from it."""
    if torch_version is None:
        torch_version = read_torch_version()
    signs = find_signs(
        dev=dev,
        torch_version=torch_version,
        torch_folder=torch_folder or find_torch_folder(),
        backends=list_backends() if backends is None else backends,
        system=system or platform.system(),
    )
    return interpret((run or run_child)()) if signs else Accelerators()


def find_signs(
    *,
    dev: Path,
    torch_version: str | None,
    torch_folder: Path | None,
    backends: Sequence[str],
    system: str,
) -> list[str]:
    """What speaks for an accelerator that this torch can use, without importing it."""
    if torch_version is None:
        return []
    signs = [f"the backend {name}" for name in backends]
    if torch_version.endswith("+cpu"):
        return signs
    if system == "Darwin":
        return [*signs, "macOS"]
    patterns = list(NODES)
    if torch_folder is None or any(torch_folder.glob(INTEL_LIBRARY)):
        patterns.append(INTEL_NODE)
    return [*signs, *(str(node) for pattern in patterns for node in sorted(dev.glob(pattern)))]


def interpret(report: Report | str) -> Accelerators:
    if isinstance(report, str):
        return Accelerators(problem=report)
    if report.no_torch is not None:
        return Accelerators(problem=f"torch cannot be imported: {report.no_torch}")
    return Accelerators(
        device=report.device,
        names=tuple(report.names),
        # Where some are found, what torch warns of concerns those, and others will say it.
        problem=None if report.device else "; ".join(report.complaints) or None,
    )


def run_child(
    *, program: Path = Path(accelerator_probe.__file__), timeout_s: float = TIMEOUT_S
) -> Report | str:
    try:
        child = subprocess.run(
            # -P: a file called torch.py in the user's folder is not what is meant.
            [sys.executable, "-P", str(program)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"torch did not list them within {timeout_s:.0f} s"
    except OSError as error:
        return f"{sys.executable} cannot be started: {error.strerror}"
    for line in reversed(child.stdout.splitlines()):  # libraries may print lines of their own
        with contextlib.suppress(msgspec.MsgspecError):
            return msgspec.json.decode(line, type=Report)
    ending = f"signal {-child.returncode}" if child.returncode < 0 else f"code {child.returncode}"
    return f"a process that asked torch for them ended with {ending}"


def find_here() -> Accelerators:
    """Those of this machine. A process that asks again, in the same environment, is told the same:
    a child takes seconds. A failure is not kept."""
    found = _find(frozenset(os.environ.items()))
    if found.problem is not None:
        _find.cache_clear()
    return found


@cache
def _find(environment: frozenset[tuple[str, str]]) -> Accelerators:
    return find_accelerators()


def choose_devices(wanted: Device | None, find: Callable[[], Accelerators] = find_here) -> Devices:
    """Those to measure on: of the kind that the user wants, or one of them, as in cuda:1, or else
    the accelerators if there are any. The CPU is not looked for. Raises MissingPackage where torch
    is not installed."""
    require("torch")
    if wanted == HOST:
        return Devices()
    found = find()
    kind, _, number = (wanted or "").partition(":")
    if wanted is not None and (kind != found.device or number not in _list_numbers(wanted, found)):
        raise UsageError(f"--device {wanted}, but {describe_present(found)}")
    if found.problem is not None:
        say_left_out(
            f"looking for accelerators went wrong ({found.problem}), so the CPU is used; --device "
            f"{HOST} does not look for any"
        )
    if found.device is None:
        return Devices()
    if number:
        index = int(number)
        return Devices(kind=find_kind(kind), name=found.names[index], index=index)
    return Devices(kind=find_kind(found.device), count=len(found.names), name=found.names[0])


def _list_numbers(wanted: Device, found: Accelerators) -> list[str]:
    """What may stand behind the colon, if there is one."""
    return [str(index) for index in range(len(found.names))] if ":" in wanted else [""]


def describe_present(found: Accelerators) -> str:
    """Which devices there are, as the end of a sentence that refuses another."""
    if found.device is not None:
        last = len(found.names) - 1
        one = f", one of {found.device}:0 to {found.device}:{last}," if last > 0 else ""
        return f"torch finds {found.device} here; choose {found.device}{one} or {HOST}"
    if found.problem is not None:
        return f"looking for accelerators went wrong ({found.problem}); choose {HOST}"
    return f"torch finds no accelerator here; choose {HOST}"


def list_in_process(torch: Any) -> Accelerators:
    """Those that a process with torch can use."""
    found, complaints = accelerator_probe.list_accelerators(torch)
    device, names = found or (None, [])
    return Accelerators(device=device, names=tuple(names), problem="; ".join(complaints) or None)


def read_torch_version() -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("torch")
    return None


def find_torch_folder() -> Path | None:
    """Where it is installed; nothing is imported."""
    with contextlib.suppress(ImportError, ValueError):
        spec = util.find_spec("torch")
        return None if spec is None or spec.origin is None else Path(spec.origin).parent
    return None


def list_backends() -> list[str]:
    return [one.name for one in metadata.entry_points(group=BACKENDS)]
