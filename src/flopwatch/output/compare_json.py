"""Verdicts for ``flopwatch compare --json``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from flopwatch.analysis.comparable import Differences
from flopwatch.analysis.run_shifts import BaselineShift
from flopwatch.analysis.statistics import as_interval
from flopwatch.analysis.verdicts import Comparison, Judgement
from flopwatch.records.record import Record


def as_dict(judgement: Judgement) -> dict[str, Any]:
    return {
        "comparisons": [_comparison_as_dict(one) for one in judgement.comparisons],
        "confidence": judgement.confidence,
        "false_share": judgement.false_share,
        "threshold": judgement.threshold,
        "basis": judgement.basis,
        "machine_shift": judgement.shifts.machine,
        "lone_baseline_shift": judgement.shifts.lone_baseline,
        "baseline_shifts": [_shift_as_dict(one) for one in judgement.shifts.baselines],
        "spread": None if judgement.spread is None else asdict(judgement.spread),
        "common_speedup": judgement.common,
        "broken": _cases_as_dicts(judgement.broken),
        "fixed": _cases_as_dicts(judgement.fixed),
        "only_old": _cases_as_dicts(judgement.only_old),
        "only_new": _cases_as_dicts(judgement.only_new),
        "too_few_samples": _cases_as_dicts(judgement.too_few),
        "no_baseline": _cases_as_dicts(judgement.no_baseline),
    }


def _shift_as_dict(one: BaselineShift) -> dict[str, Any]:
    return {
        "suite": one.new.suite,
        "params": one.new.params,
        "variant": one.new.variant,
        "old_ns": one.old_ns,
        "new_ns": one.new_ns,
    }


def _cases_as_dicts(records: Iterable[Record]) -> list[dict[str, Any]]:
    names = ("suite", "variant", "params", "status", "message")
    return [{name: getattr(record, name) for name in names} for record in records]


def _comparison_as_dict(one: Comparison) -> dict[str, Any]:
    return {
        "suite": one.new.suite,
        "params": one.new.params,
        "variant": one.new.variant,
        "old_variant": one.old.variant,
        "old": one.middles[0],
        "new": one.middles[1],
        "speedup": as_interval(one.speedup),
        "verdict": one.verdict,
        "basis": one.basis,
        "machine_shift": one.is_shifted,
        "comparable": not one.differences,
        "differences": differences_as_dict(one.differences),
        "missing": None if one.missing is None else asdict(one.missing),
        "parts": [{**asdict(part), "change_ns": part.change_ns} for part in one.parts],
        "old_runs": one.old_runs,
        "new_runs": one.new_runs,
        "old_id": one.old.case_id,
        "new_id": one.new.case_id,
    }


def differences_as_dict(differences: Differences) -> dict[str, Any]:
    return {name: {"old": old, "new": new} for name, (old, new) in differences.items()}
