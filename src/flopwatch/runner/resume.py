"""Which cases need not be measured again.

A record answers for its case when it was taken under the same conditions, from the same source
files, and at least as carefully as is asked for now. Failures count as answers: what ran out of
memory will do so again, unless it is given more. What was interrupted or skipped does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flopwatch.devices.environment import measurement_conditions
from flopwatch.records.record import Record
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings
from flopwatch.worker.failure import is_unchanged


def resume(
    groups: Iterable[Group],
    records: Iterable[Record],
    *,
    settings: Settings,
    environment: dict[str, Any],
    suite_path: Path,
) -> tuple[list[Group], list[Record]]:
    """What is still to be measured, and the records that answer for the rest, the newest of each
    case. Where a variant is missing, the baseline is measured again with it.
    """
    wanted = measurement_conditions(environment, settings)
    answers = {
        record.case_id: record
        for record in records
        if is_answer(record, settings)
        and measurement_conditions(record.environment, record.settings) == wanted
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
        "precise": then.target_interval <= settings.target_interval,
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
