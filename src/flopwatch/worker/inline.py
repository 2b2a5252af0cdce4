"""Timing functions where they stand: in a notebook, a script, a debugger.

    >>> import flopwatch
    >>> result = flopwatch.measure(lambda: sum(range(100)), budget_s=0.05)
    >>> result.samples > 0
    True

The same clock, warm-up, rounds and stopping as in a suite, but in this very process: with its
allocator, its threads, and whatever else it is doing. A suite run gives more control.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flopwatch.analysis.statistics import Estimate, Verdict, estimate_median, estimate_ratio, judge
from flopwatch.devices.base import Backend, Clock, find_device_in_use, open_backend
from flopwatch.devices.system_files import read_last_level_caches_bytes
from flopwatch.errors import UsageError
from flopwatch.lazy import require
from flopwatch.output.units import format_interval, format_speedup, format_time, plural
from flopwatch.settings import LARGEST_SEED, Cache, Device, Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.rank_roles import SingleProcess
from flopwatch.worker.sampling import Outcome, Sampler

Function = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One function's times. `time_ns` is the median of one call, with its interval."""

    name: str
    time_ns: Estimate
    samples_ns: list[float]
    """One call each, in order, warm-up first."""
    warmup_samples: int
    steady: bool
    stop_reason: str
    calls_per_sample: int
    """How many calls the last samples are the mean of."""

    @property
    def samples(self) -> int:
        """Samples after warm-up."""
        return len(self.samples_ns) - self.warmup_samples

    def __repr__(self) -> str:
        calls = "" if self.calls_per_sample == 1 else f" of {self.calls_per_sample} calls"
        warning = "" if self.steady else "; it never became steady"
        return (
            f"{self.name}: {format_time(self.time_ns.value)} {format_interval(self.time_ns)}, "
            f"{plural(self.samples, 'sample')}{calls} after {self.warmup_samples} of warm-up"
            f"{warning}"
        )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Functions measured side by side; the first is the baseline."""

    measurements: dict[str, Measurement]
    speedups: dict[str, Estimate]
    """Over the baseline, from ratios within rounds; more than 1 is faster."""
    baseline: str
    checked: bool
    """Whether the results were compared with the baseline's."""

    def verdict(self, name: str) -> Verdict:
        return judge(self.speedups[name])

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Name, time, its interval, speedup, verdict: as text."""
        rows: list[tuple[str, str, str, str, str]] = []
        for name, one in self.measurements.items():
            speedup = format_speedup(self.speedups[name]) if name in self.speedups else "1.00x"
            verdict = self.verdict(name) if name in self.speedups else "baseline"
            time = format_time(one.time_ns.value)
            rows.append((name, time, format_interval(one.time_ns), speedup, verdict))
        return rows

    def footer(self) -> str:
        rounds = min(one.samples for one in self.measurements.values())
        results = "results agree" if self.checked else "results not compared: pass tolerance="
        return f"{plural(rounds, 'round')}, 99 % intervals; {results}"

    def __repr__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
        ]
        return "\n".join(line.rstrip() for line in [*lines, self.footer()])

    def _repr_html_(self) -> str:
        cells = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        return f"<table>{cells}</table><p>{html.escape(self.footer())}</p>"


def measure(
    function: Function,
    *,
    target_interval: float = 0.02,
    budget_s: float | None = None,
    cache: Cache = "hot",
    device: Device | None = None,
) -> Measurement:
    """Time one function: its median, until its interval is as narrow as `target_interval`, or the
    budget is spent.

    Unless `budget_s` says otherwise that is 10 s, and long enough for 8 samples.
    """
    name = getattr(function, "__name__", "function")
    settings = _settings(target_interval, budget_s, cache, device)
    return next(iter(_sample({name: function}, settings)[0].values()))


def compare(
    functions: Mapping[str, Function],
    *,
    target_interval: float = 0.02,
    budget_s: float | None = None,
    cache: Cache = "hot",
    device: Device | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> Comparison:
    """Time functions side by side against the first one.

    Each has `budget_s`; unless given, 10 s, and long enough for 8 rounds. With a `tolerance` their
    results must agree with the first one's, or WrongResult is raised: largest deviation over the
    largest magnitude.
    """
    if len(functions) < 2:
        raise UsageError("compare needs at least two functions; measure times a single one")
    settings = _settings(target_interval, budget_s, cache, device, seed)
    baseline, *others = functions
    if tolerance is not None:
        require("torch")
        _require_agreement(functions, baseline, tolerance, open_backend(settings.device).clock)
    measurements, totals = _sample(dict(functions), settings)
    return Comparison(
        measurements=measurements,
        speedups={
            name: estimate_ratio(totals[name], totals[baseline]).inverse() for name in others
        },
        baseline=baseline,
        checked=tolerance is not None,
    )


def _sample(
    functions: dict[str, Function], settings: Settings
) -> tuple[dict[str, Measurement], dict[str, list[float]]]:
    target: Backend = open_backend(settings.device, read_last_level_caches_bytes())
    workloads = {name: Workload(phases={"call": call}) for name, call in functions.items()}
    sampler = Sampler(
        workloads,
        baseline=next(iter(functions)),
        settings=settings,
        target=SingleProcess(target.clock, target.evict),
    )
    outcome: Outcome = sampler.run()
    totals = {one.variant: one.totals_ns[outcome.warmup_rounds :] for one in sampler.series}
    measurements = {
        one.variant: Measurement(
            name=one.variant,
            time_ns=estimate_median(totals[one.variant]),
            samples_ns=one.totals_ns,
            warmup_samples=outcome.warmup_rounds,
            steady=outcome.steady,
            stop_reason=outcome.stop_reason,
            calls_per_sample=one.calls,
        )
        for one in sampler.series
    }
    return measurements, totals


def _settings(
    target_interval: float,
    budget_s: float | None,
    cache: Cache,
    device: Device | None,
    seed: int = 0,
) -> Settings:
    if not 0 < target_interval < 1:
        raise UsageError(
            f"target_interval {target_interval} is not between 0 and 1; 0.02 means 2 %"
        )
    chosen = device or find_device_in_use()
    if chosen == "cuda" or cache == "cold":
        require("torch")
    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"seed {seed} is not between 0 and {LARGEST_SEED}")
    settings = Settings(device=chosen, target_interval=target_interval, cache=cache, seed=seed)
    if budget_s is None:
        return settings
    if budget_s <= 0:
        raise UsageError(f"budget_s {budget_s} is not more than 0")
    return replace(settings, budget_s=budget_s, min_rounds=0)


def _require_agreement(
    functions: Mapping[str, Function], baseline: str, tolerance: float, clock: Clock
) -> None:
    from flopwatch.worker.agreement import compare as compare_values
    from flopwatch.worker.agreement import gather

    def values(name: str) -> dict[str, Any]:
        return gather(Workload(phases={"call": functions[name]}), clock).values

    expected = values(baseline)
    for name in functions:
        if name != baseline and not compare_values(
            values(name), expected, against=baseline, tolerance=tolerance
        ):
            raise UsageError(
                "there is nothing to compare: the functions return no tensors, arrays or numbers; "
                "leave tolerance out, or return the results"
            )
