"""Timing functions where they stand: in a notebook, a script, a debugger.

    >>> import flopwatch
    >>> result = flopwatch.measure(lambda: sum(range(100)), budget_s=0.05)
    >>> result.samples > 0
    True

The same clock, warm-up, rounds and stopping as in a suite, but in this very process: with its
allocator, its threads, and whatever else it is doing. A suite run gives more control.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwatch.analysis.statistics import THRESHOLD, Estimate, estimate_median, estimate_ratio
from flopwatch.devices.base import Backend, open_backend
from flopwatch.devices.environment import ROUGHLY_S, LoadWatch
from flopwatch.devices.kinds import is_host
from flopwatch.devices.system_files import read_last_level_caches_bytes
from flopwatch.errors import UsageError
from flopwatch.lazy import require
from flopwatch.output.live_line import LiveLine, open_live_line
from flopwatch.output.units import format_duration, format_half_width
from flopwatch.settings import Cache, Device, Settings
from flopwatch.suites.workload import Workload
from flopwatch.worker.comparison import Comparison, Measurement, RawSamples
from flopwatch.worker.inline_arguments import (
    Timed,
    check_cache,
    check_device,
    check_function,
    check_functions,
    check_number,
    check_seed,
    choose_gradients,
    name_function,
)
from flopwatch.worker.sampling import Observer, Outcome, Progress, Sampler, Series

if TYPE_CHECKING:
    from flopwatch.worker.function_agreement import Agreement, Results


def measure(
    function: Timed,
    *,
    backward: bool = False,
    target_interval: float = 0.02,
    budget_s: float | None = None,
    cache: Cache = "hot",
    device: Device | None = None,
    progress: bool = True,
) -> Measurement:
    """Time one function: its median, until its interval is as narrow as `target_interval`, or the
    budget is spent.

    Unless `budget_s` says otherwise that is 10 s, and long enough for 8 samples. With `backward`,
    the gradients of what the function returns are computed too, as a second phase; it may also be a
    mapping of phases, each called with what the one before it returned. `progress` is a line on the
    terminal or in the notebook, which is gone at the end.
    """
    check_function("the function", function)
    name = name_function(function)
    settings = _settings(target_interval, budget_s, cache, device)
    with open_live_line(progress) as line:
        line.show(f"measuring {name}", force=True)
        watch = LoadWatch()
        candidate = make_candidate(name, function, settings, backward=backward)
        (measurement,) = _sample({name: candidate.prepare()}, settings, line)[0].values()
        return replace(measurement, background_share=watch.read_share(shortest_s=ROUGHLY_S))


def compare(  # noqa: PLR0913  all but the functions are given by name
    functions: Mapping[str, Timed],
    *,
    tolerance: float | None = None,
    backward: bool = False,
    gradients_of: Any = None,
    threshold: float = THRESHOLD,
    target_interval: float | None = None,
    budget_s: float | None = None,
    cache: Cache = "hot",
    device: Device | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Comparison:
    """Time functions side by side against the first one, until every verdict is settled; or with
    `target_interval`, until every time and every ratio is known as well as that.

    Each has `budget_s`; unless given, 10 s, and long enough for 8 rounds. A difference of
    `threshold` or more is called faster or slower. With a `tolerance` their results must agree with
    the first one's, or WrongResult is raised: largest deviation over the largest magnitude.

    With `backward`, gradients are computed, timed and compared, too: those of all tensors that the
    results depend on, or only `gradients_of` a module, some tensors (in a list or by name), or a
    mapping from each function to its own. Functions may also be mappings of phases, each called
    with what the one before it returned. Of these, and of functions that run a backward pass
    themselves, `gradients_of` alone has gradients compared. `progress` is a line on the terminal or
    in the notebook, which is gone at the end.
    """
    timed = check_functions(functions)
    settings = _settings(target_interval, budget_s, cache, device, seed)
    check_number("threshold", threshold, high=1.0, example="0.03 means 3 %")
    if tolerance is not None:
        require("torch")
        check_number("tolerance", tolerance, example="1e-3 means a thousandth of the largest value")
    elif gradients_of is not None:
        raise UsageError(
            "gradients_of names what is compared with a tolerance; pass tolerance=1e-3"
        )
    baseline, *others = timed
    with open_live_line(progress) as line:
        line.show(f"comparing {', '.join(timed)}", force=True)
        watch = LoadWatch()
        chosen = choose_gradients(gradients_of, list(timed))
        candidates = {
            name: make_candidate(name, one, settings, backward=backward, chosen=chosen[name])
            for name, one in timed.items()
        }
        agreement = None if tolerance is None else _check(candidates, tolerance, settings, line)
        workloads = {name: one.prepare() for name, one in candidates.items()}
        measurements, totals = _sample(workloads, settings, line, threshold)
        background_share = watch.read_share(shortest_s=ROUGHLY_S)
    return Comparison(
        measurements=measurements,
        speedups={
            name: estimate_ratio(totals[name], totals[baseline]).inverse() for name in others
        },
        baseline=baseline,
        agreement=agreement,
        background_share=background_share,
        threshold=threshold,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A function, ready to be checked and then timed."""

    run: Callable[[], Results]
    """Once, for what it gives."""
    prepare: Callable[[], Workload]
    """For timing."""


def make_candidate(
    name: str,
    function: Timed,
    settings: Settings,
    *,
    backward: bool,
    chosen: Mapping[str, Any] | None = None,
) -> Candidate:
    if not backward:
        return _make_plain(name, function, settings, chosen or {})
    if isinstance(function, Workload | Mapping):
        raise UsageError(f"{name!r} has phases of its own; backward=True is for a plain function")
    require("torch")
    from flopwatch.worker.backward_pass import BackwardPass
    from flopwatch.worker.function_agreement import GRADIENT, Results

    differentiated = BackwardPass(name, function, settings.seed, chosen)

    def run() -> Results:
        outputs, found = differentiated.run_first(), differentiated.found
        if chosen is None:
            return Results(values=outputs, gradients=found)
        # Named by the user: nothing is to be matched.
        gradients = {f"{GRADIENT}{leaf.name}": gradient for leaf, gradient in found}
        return Results(values={**outputs, **gradients})

    return Candidate(run=run, prepare=differentiated.make_workload)


def _make_plain(
    name: str, function: Timed, settings: Settings, chosen: Mapping[str, Any]
) -> Candidate:
    """A function, or phases; the gradients are those that it computes itself."""

    def clear() -> None:
        for tensor in chosen.values():
            tensor.grad = None

    workload = Workload.of(function)
    if chosen:
        workload = replace(workload, reset=workload.reset or clear)

    def run() -> Results:
        from flopwatch.worker.agreement import gather
        from flopwatch.worker.backward_pass import copy_gradients, list_written
        from flopwatch.worker.function_agreement import GRADIENT, Results

        before = list_written(function)
        found = gather(workload, open_backend(settings.device).clock)
        has_own = list_written(function) != before
        gradients = copy_gradients(name, chosen)
        return Results(
            values={**found.values, **{f"{GRADIENT}{n}": g for n, g in gradients.items()}},
            has_graph=found.has_graph or has_own,
            gradients_by="gradients_of="
            if has_own or isinstance(function, Workload | Mapping)
            else "backward=True",
        )

    return Candidate(run=run, prepare=lambda: workload)


def _check(
    candidates: Mapping[str, Candidate], tolerance: float, settings: Settings, line: LiveLine
) -> Agreement:
    from flopwatch.worker.function_agreement import check_agreement

    return check_agreement(
        {name: one.run for name, one in candidates.items()},
        tolerance,
        settings.seed,
        announce=lambda name: line.show(f"checking the results of {name}", force=True),
    )


class LineObserver(Observer):
    """Follows a sampler on a line."""

    def __init__(self, line: LiveLine, names: str) -> None:
        self._line = line
        self._names = names

    def observe(self, progress: Progress) -> None:
        spent = f"{progress.elapsed_s:.0f} of at most {format_duration(progress.budget_s)}"
        state = "warming up"
        if progress.warmup_rounds is not None:
            width = progress.half_width
            rounds = f"round {progress.rounds - progress.warmup_rounds}"
            state = rounds if width is None else f"{rounds}, {format_half_width(width)}"
        self._line.show(f"{self._names}: {state}, {spent}")

    def fail(self, variant: str, error: Exception) -> None:
        error.add_note(f"raised by {variant!r}")
        raise error


class OwnTiming:
    """What a sampler needs of the device; there are no ranks."""

    def __init__(self, backend: Backend, device: Device) -> None:
        self.clock = backend.clock
        self.evict = backend.evict
        self.drain = None if is_host(device) else backend.synchronize

    def take_shares(self, calls: int) -> tuple[()]:
        return ()


def _sample(
    workloads: dict[str, Workload],
    settings: Settings,
    line: LiveLine,
    threshold: float = THRESHOLD,
) -> tuple[dict[str, Measurement], dict[str, list[float]]]:
    target: Backend = open_backend(settings.device, read_last_level_caches_bytes())
    sampler = Sampler(
        workloads,
        baseline=next(iter(workloads)),
        settings=settings,
        target=OwnTiming(target, settings.device),
        observer=LineObserver(line, ", ".join(workloads)),
    )
    outcome: Outcome = sampler.run(threshold=threshold)
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
            phases_ns=_estimate_phases(one, outcome.warmup_rounds),
            raw=_keep_raw(one, settings),
        )
        for one in sampler.series
    }
    return measurements, totals


def _keep_raw(series: Series, settings: Settings) -> RawSamples:
    times = zip(*series.phase_ns, strict=True)
    return RawSamples(
        samples_ns=dict(zip(series.workload.phases, map(list, times), strict=True)),
        rounds=series.rounds,
        calls_per_sample=series.calls_per_sample,
        queue=series.describe_queue(0, len(series.queue)),
        settings=settings,
    )


def _estimate_phases(series: Series, warmup_rounds: int) -> dict[str, Estimate]:
    """Nothing where there is only one."""
    phases = list(series.workload.phases)
    times = zip(*series.phase_ns[warmup_rounds:], strict=True)
    if len(phases) == 1:
        return {}
    return {phase: estimate_median(ns) for phase, ns in zip(phases, times, strict=True)}


def _settings(
    target_interval: float | None,
    budget_s: float | None,
    cache: Cache,
    device: Device | None,
    seed: int = 0,
) -> Settings:
    if target_interval is not None:
        check_number("target_interval", target_interval, high=1.0, example="0.02 means 2 %")
    settings = Settings(
        device=check_device(device),
        target_interval=target_interval,
        cache=check_cache(cache),
        seed=check_seed(seed),
    )
    if budget_s is None:
        return settings
    check_number("budget_s", budget_s, example="10 means 10 seconds for each function")
    return replace(settings, budget_s=float(budget_s), min_rounds=0)
