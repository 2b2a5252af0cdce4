"""The steps of a monitor as trackers and people read them: named figures, and averages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flopwatch.monitor.base import RunFacts, StepFacts

Read = Callable[[StepFacts], float | None]
PREFIX = "flopwatch/"
STEP = f"{PREFIX}step"

METRICS: Mapping[str, Read] = {
    "step_time_s": lambda step: step.time_s,
    "tokens_per_s": lambda step: step.tokens_per_s,
    "mfu": lambda step: step.mfu,
    "hfu": lambda step: step.hfu,
    "tokens": lambda step: step.tokens,
    "padded_tokens": lambda step: step.padded_tokens,
    "other_s": lambda step: step.other_s,
    "paused_s": lambda step: step.paused_s,
    "memory_bytes": lambda step: step.memory_bytes,
    "peak_memory_bytes": lambda step: step.peak_memory_bytes,
    "energy_j": lambda step: step.energy_j,
}
"""What a tracker gets of a step, besides the parts of its time (``data_s``, ``forward_s``, ...)."""


def list_metrics(step: StepFacts) -> dict[str, float]:
    """What is known of a step, by the names that trackers show."""
    values = {name: read(step) for name, read in METRICS.items()}
    values |= {f"{part}_s": time_s for part, time_s in step.parts_s.items()}
    return {f"{PREFIX}{name}": value for name, value in values.items() if value is not None}


def describe_run(run: RunFacts) -> dict[str, str | int | float]:
    """What is known of a run, as plain values: what its MFU was computed from, above all."""
    flops = run.flops
    facts: dict[str, Any] = {
        "run_id": run.run_id,
        "name": run.name,
        "results": None if run.out is None else str(run.out),
        "device": run.device_name or run.device,
        "devices": run.devices,
        "world_size": run.world_size,
        "data_parallel": run.data_parallel,
        "parameters": run.parameters,
        "trainable_parameters": run.trainable_parameters,
        "tokens_per_step": run.tokens_per_step,
        "peak_flops_per_s": run.peak_flops_per_s,
        "peak_source": run.peak_source,
        "no_mfu": run.missing,
    }
    if flops is not None:
        facts |= {
            f"flops_per_{flops.unit.replace('-', '_')}": flops.model,
            "flops_source": flops.source,
            "convention": flops.convention,
            "dtype": flops.dtype,
        }
    facts |= {f"params.{name}": value for name, value in run.params.items()}
    return {
        name: value if isinstance(value, str | int | float) else str(value)
        for name, value in facts.items()
        if value is not None
    }


def list_parts(step: StepFacts) -> dict[str, float | None]:
    """With what is in none of them."""
    return {**dict(step.parts_s.items()), "other": step.other_s}


class Means:
    """Of steps, weighted by their time."""

    RATES: Mapping[str, Read] = {
        "tokens_per_s": METRICS["tokens_per_s"],
        "mfu": METRICS["mfu"],
        "hfu": METRICS["hfu"],
    }

    def __init__(self, steps: Iterable[StepFacts] = ()) -> None:
        self.steps = 0
        self.time_s = 0.0
        self.part_s: defaultdict[str, float] = defaultdict(float)
        self._amounts: defaultdict[str, float] = defaultdict(float)
        self._known_s: defaultdict[str, float] = defaultdict(float)
        """The time of the steps that have such a rate."""
        for step in steps:
            self.add(step)

    def add(self, step: StepFacts) -> None:
        self.steps += 1
        self.time_s += step.time_s
        for part, time_s in list_parts(step).items():
            self.part_s[part] += time_s or 0.0
        for name, read in self.RATES.items():
            rate = read(step)
            if rate is not None:
                self._amounts[name] += rate * step.time_s
                self._known_s[name] += step.time_s

    def find(self, rate: str) -> float | None:
        """None where no step has such a rate."""
        known_s = self._known_s[rate]
        return self._amounts[rate] / known_s if known_s > 0 else None
