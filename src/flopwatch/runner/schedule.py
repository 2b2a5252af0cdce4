"""What a run will measure: a suite's cases, filtered, grouped, fitted to a budget, without those
that are measured already. How long that takes is in `runner.durations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flopwatch.devices.environment import look_up, measurement_conditions
from flopwatch.errors import UsageError
from flopwatch.output.units import format_duration
from flopwatch.records.record import Record
from flopwatch.settings import SETTLED_INTERVAL, TARGET_INTERVAL, Settings
from flopwatch.suites.case import case_id, digest, format_value, group_id, label
from flopwatch.worker.failure import is_unchanged
from flopwatch.worker.messages import RANKS, DescribedCase, Description

MIN_CASE_S = 0.5
"""Less than this cannot give a case its warm-up and enough rounds to speak of."""
WORKER_S = 0.2
"""What starting a worker and building a small case take at the least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Cases that differ only by variant; measured together in one worker."""

    suite: str
    baseline: str
    params: Mapping[str, Any]
    variants: tuple[str, ...]
    flops: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of one run, by variant and dtype, where the suite declares them: for estimates."""
    memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Bytes that a process needs, by variant and part, where the suite predicts them."""
    apart: bool = False
    """Whether these add up."""
    parts: Mapping[str, str | None] = field(default_factory=dict)
    """Variants that are lists of parts, each with the variant that they make up."""
    layout: str | None = None
    """The published layout that records can be shown in."""
    columns: Sequence[str] = ()
    """Names of the columns that the suite declares itself."""
    predictions: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """By variant, how long it is expected to take, where this machine was calibrated."""
    jobs: Mapping[str, dict[str, Any] | None] = field(default_factory=dict)
    """By variant, the training job that it is, as the suite declares it; of candidates, with the
    smallest."""
    candidates: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By axis whose value is to be the largest that fits: those to choose from, ascending."""
    fresh: bool = False
    """Whether it needs a process that has served no other group."""

    @property
    def id(self) -> str:
        return group_id(self.suite, self.params)

    @property
    def ranks(self) -> int | None:
        """How many processes it runs in; None where it is no job of ranks."""
        ranks = self.params.get(RANKS)
        return ranks if isinstance(ranks, int) else None

    @property
    def label(self) -> str:
        return label(self.params) or self.suite

    def case_id(self, variant: str) -> str:
        return case_id(self.suite, variant, self.params)

    def keep(self, variants: Iterable[str]) -> Group:
        """The group with only these variants, and its baseline, which their ratio needs."""
        wanted = {*variants, self.baseline}
        return replace(self, variants=tuple(v for v in self.variants if v in wanted))


def parse_filters(texts: Iterable[str], option: str = "--filter") -> dict[str, list[str]]:
    """``["dtype=float32,bfloat16", "size=1024"]`` as allowed values by axis."""
    filters: dict[str, list[str]] = {}
    for text in texts:
        axis, equals, values = text.partition("=")
        if not axis or not equals or not values:
            raise UsageError(f"{option} {text!r} is not of the form axis=value[,value]")
        filters.setdefault(axis, []).extend(values.split(","))
    return filters


def list_unasked(
    description: Description, filters: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """What is on request and not asked for, as ``--filter`` takes it."""
    return {
        axis: [format_value(value) for value in values]
        for axis, values in description.on_request.items()
        if axis not in filters
    }


def make_groups(description: Description, filters: Mapping[str, Sequence[str]]) -> list[Group]:
    """The groups that pass the filters. A filter on `variant` keeps the baseline too."""
    _validate_filters(description, filters)
    chosen: dict[str, Group] = {}
    on_axes = {axis: values for axis, values in filters.items() if axis != "variant"}
    unasked = list_unasked(description, filters)
    for case in description.cases:
        params = case.params
        if not _has_values(params, on_axes) or _has_any(case, unasked):
            continue
        group = chosen.get(digest(params)) or Group(
            suite=description.name,
            baseline=description.baseline,
            params=params,
            variants=(),
            apart=description.apart,
            parts=description.parts,
            layout=description.layout,
            columns=description.columns,
            fresh=description.fresh,
            candidates=case.candidates,
        )
        chosen[digest(params)] = replace(
            group,
            variants=(*group.variants, case.variant),
            flops={**group.flops, case.variant: case.flops},
            memory={**group.memory, case.variant: case.memory},
            jobs={**group.jobs, case.variant: case.job},
        )
    groups = list(chosen.values())
    if "variant" in filters:
        asked = set(filters["variant"])
        groups = [group.keep(asked) for group in groups if asked & set(group.variants)]
    if not groups:
        raise UsageError(_explain_nothing(description, filters, unasked))
    return groups


def _explain_nothing(
    description: Description,
    filters: Mapping[str, Sequence[str]],
    unasked: Mapping[str, Sequence[str]],
) -> str:
    asked, advice = format_filters(filters), "loosen one"
    if unasked:
        advice += f", or ask for what is only measured on request, {format_filters(unasked)}"
    return (
        f"no case of suite {description.name!r} is left after {asked or 'its own conditions'}; "
        f"each value exists, but not together, or not with --quick or --grid: {advice}"
    )


def format_filters(filters: Mapping[str, Sequence[str]]) -> str:
    return " ".join(f"--filter {axis}={','.join(values)}" for axis, values in filters.items())


def _has_any(case: DescribedCase, refused: Mapping[str, Sequence[str]]) -> bool:
    facets = {**case.params, "variant": case.variant}
    return any(
        axis in facets and format_value(facets[axis]) in values for axis, values in refused.items()
    )


def _has_values(params: Mapping[str, Any], allowed: Mapping[str, Sequence[str]]) -> bool:
    """Whether a case has each of these axes, and there one of the values."""
    return all(
        axis in params and format_value(params[axis]) in values for axis, values in allowed.items()
    )


def _validate_filters(description: Description, filters: Mapping[str, Sequence[str]]) -> None:
    known = {
        **{axis: [format_value(v) for v in values] for axis, values in description.axes.items()},
        "variant": list(description.variants),
    }
    for axis, values in filters.items():
        if axis not in known:
            raise UsageError(
                f"suite {description.name!r} has no axis {axis!r}; it has {', '.join(known)}"
            )
        unknown = [value for value in values if value not in known[axis]]
        if unknown:
            raise UsageError(
                f"axis {axis!r} of suite {description.name!r} has no value {unknown[0]!r}; "
                f"it has {', '.join(known[axis])}"
            )


def fit_budget(budget_s: float | None, groups: Sequence[Group], settings: Settings) -> Settings:
    """Settings whose time for one case keeps what is left to measure inside the budget.

    Where it does not suffice for all, the first ones get enough to be of use.
    """
    if budget_s is None or not groups:
        return settings
    per_case_s = (budget_s - WORKER_S * len(groups)) / count_cases(groups)
    per_case_s = min(settings.budget_s, max(per_case_s, MIN_CASE_S))
    return replace(settings, budget_s=per_case_s, min_rounds=0)


def require_budget(budget_s: float | None, groups: Sequence[Group]) -> None:
    """Refuse a budget that cannot hold the cases."""
    least_s = shortest_s(groups)
    if budget_s is not None and groups and budget_s < least_s:
        raise UsageError(
            f"a budget of {format_duration(budget_s)} cannot hold {count_cases(groups)} cases, "
            f"which take at least {format_duration(least_s)}; raise it, or take fewer cases "
            "with --filter or --quick"
        )


def shortest_s(groups: Sequence[Group]) -> float:
    return MIN_CASE_S * count_cases(groups) + WORKER_S * len(groups)


def longest_s(groups: Sequence[Group], settings: Settings) -> float:
    return settings.budget_s * count_cases(groups) + WORKER_S * len(groups)


def count_cases(groups: Sequence[Group]) -> int:
    return sum(len(group.variants) for group in groups)


def resume(
    groups: Iterable[Group],
    records: Iterable[Record],
    *,
    settings: Settings,
    is_alike: Callable[[Record], bool],
    suite_path: Path,
) -> tuple[list[Group], list[Record]]:
    """What is still to be measured, and the records that answer for the rest, the newest of each
    case.

    A record answers for its case when it was taken under the same conditions (`is_alike`), from the
    same source files, and at least as carefully as the settings ask for. Failures count as answers:
    what ran out of memory will do so again, unless it gets more. What was interrupted or skipped
    does not. Where a variant is missing, the baseline is measured again with it.
    """
    answers = {
        record.case_id: record
        for record in records
        if is_answer(record, settings)
        and is_alike(record)
        and is_unchanged(record.sources, suite_path)
    }
    left: list[Group] = []
    answered: list[Record] = []
    for group in groups:
        done = {v: answers[group.case_id(v)] for v in group.variants if group.case_id(v) in answers}
        missing = [variant for variant in group.variants if variant not in done]
        answered += done.values()
        if missing:
            left.append(group.keep(missing))
    return left, answered


def compare_conditions(environment: dict[str, Any], settings: Settings) -> Callable[[Record], bool]:
    """Whether a record was taken under these conditions, with the same C++ compiler: without one,
    layers take a slower way."""
    wanted = measurement_conditions(environment, settings)
    compiler = _identify_compiler(environment)
    return lambda record: (
        measurement_conditions(record.environment, record.settings) == wanted
        and _identify_compiler(record.environment) == compiler
    )


def _identify_compiler(environment: dict[str, Any]) -> tuple[Any, Any]:
    names = ("software.compiler", "software.compiler_version")
    return look_up(environment, names[0]), look_up(environment, names[1])


def is_answer(record: Record, settings: Settings) -> bool:
    """Whether the record is complete and as good as these settings ask for."""
    if record.status == "skipped" or record.stop_reason == "interrupted":
        return False
    then = record.settings
    if record.status != "ok":
        limits = {
            "oom": not _is_larger(settings.memory_limit_bytes, then.memory_limit_bytes),
            "timeout": then.silence_limit_s >= settings.silence_limit_s,
        }
        return limits.get(record.status, True)
    reasons = {
        "settled": settings.target_interval is None,
        "precise": (then.target_interval or TARGET_INTERVAL)
        <= (settings.target_interval or SETTLED_INTERVAL),
        "stalled": True,  # more time would not have helped
        # A run's budget is divided anew after every group, so that shares vary.
        "budget": then.budget_s >= 0.75 * settings.budget_s
        and len(record.rounds) - record.warmup_samples >= settings.min_rounds,
    }
    # Times do not depend on the seed; curves do.
    is_same_curve = not record.curves or then.seed == settings.seed
    return is_same_curve and reasons.get(record.stop_reason or "", False)


def _is_larger(limit_bytes: int | None, than_bytes: int | None) -> bool:
    """By more than the free memory, of which the default is a share, varies between runs."""
    if limit_bytes is None or than_bytes is None:
        return False
    return limit_bytes > 1.1 * than_bytes
