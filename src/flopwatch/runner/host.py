"""This machine, set up for measuring: its facts, settings that suit it, and workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flopwatch.devices import environment, instruction_sets
from flopwatch.devices.measured_peaks import find_peaks, shorten
from flopwatch.errors import UsageError
from flopwatch.runner import worker_calls
from flopwatch.runner.local_launcher import Launcher
from flopwatch.settings import Device, Settings
from flopwatch.worker import allocator, limits

MEMORY_SHARE = 0.9
"""Share of the free memory that a worker may take, unless the user says otherwise: the rest keeps
the machine from swapping."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    facts: dict[str, Any]
    """The environment as far as it is known without torch."""
    instruction_set: instruction_sets.InstructionSet
    settings: Settings

    def launch(self, preload: Sequence[str] = ("torch",)) -> Launcher:
        return launch(self.instruction_set, self.settings, preload)

    def read_environment(self, launcher: Launcher) -> dict[str, Any]:
        """The facts with what only a worker knows, and measured peaks."""
        found = {
            **self.facts,
            "isa": instruction_sets.describe(self.instruction_set),
            **worker_calls.read_torch_environment(launcher, self.settings),
        }
        peaks = find_peaks(found, self.settings)
        return found if peaks is None else {**found, "peaks": shorten(peaks)}


def prepare_host(
    settings: Settings,
    *,
    project: Path | None = None,
    device: Device | None = None,
    threads: int | None = None,
    memory_limit_bytes: int | None = None,
) -> Host:
    """With the machine's own values where the user left the choice. `project` is the folder whose
    commit is recorded, by default the current one."""
    instruction_set = instruction_sets.probe()
    if device == "cuda" and not instruction_set.cuda_devices:
        raise UsageError("--device cuda, but torch finds no CUDA device here; try --device cpu")
    facts = environment.machine(project or Path.cwd())
    usable_cores: int = facts["machine"]["usable_cores"]
    available_bytes: int = facts["machine"]["memory_available_bytes"]
    settled = replace(
        settings,
        device=device or ("cuda" if instruction_set.cuda_devices else "cpu"),
        threads=threads or usable_cores,
        memory_limit_bytes=memory_limit_bytes or int(MEMORY_SHARE * available_bytes),
    )
    return Host(facts=facts, instruction_set=instruction_set, settings=settled)


def launch(
    instruction_set: instruction_sets.InstructionSet,
    settings: Settings,
    preload: Sequence[str] = ("torch",),
) -> Launcher:
    return Launcher(
        preload=preload,
        environment={
            **instruction_sets.environment(instruction_set),
            **allocator.preload_environment(settings.allocator),
            **limits.thread_environment(settings.threads),
        },
        fork=settings.device == "cpu",  # a process that has used CUDA must not fork
    )
