"""Two monitored runs: which part of a step moved, and by how much.

Steps of two runs are not interleaved, as the rounds of `flopwatch run` are: whatever differed
between the two (the machine, its neighbours, the data) is part of the difference. Steps of one run
resemble their neighbours, so that intervals are by blocks of them: a block's mean is one sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwatch.analysis.monitored_run import PARTS, RunSummary
from flopwatch.analysis.monitored_steps import OTHER, Start
from flopwatch.analysis.ratio_tests import MOST_BLOCKS, student_quantile
from flopwatch.analysis.statistics import CONFIDENCE
from flopwatch.analysis.summary import Row, summarize
from flopwatch.records.record import Record

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

FEWEST_BLOCKS = 4
LEAST_MOVE = 0.005
"""Of the old step: a part that moved less is not named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartChange:
    """Of the mean of a part, or of the whole step."""

    name: str
    old_ns: float
    new_ns: float
    low_ns: float | None
    """Of the interval of the change; None where there are too few steps for one."""
    high_ns: float | None
    has_moved: bool
    """Whether the interval excludes 0, and the change is large enough to matter."""

    @property
    def change_ns(self) -> float:
        return self.new_ns - self.old_ns


@dataclass(frozen=True, kw_only=True, slots=True)
class RunChange:
    old: RunSummary
    new: RunSummary
    step: PartChange
    parts: list[PartChange]
    """They add up to the step; empty where a side has none."""

    def to_dict(self) -> dict[str, Any]:
        def write(change: PartChange) -> dict[str, Any]:
            return {**asdict(change), "change_ns": change.change_ns}

        return {
            "old": self.old.to_dict(),
            "new": self.new.to_dict(),
            "step": write(self.step),
            "parts": [write(part) for part in self.parts],
        }


def find_run_changes(old: Sequence[Record], new: Sequence[Record]) -> list[RunChange]:
    """Of monitored runs of the same name, or of the only one that each side has."""
    before, after = _list_runs(old), _list_runs(new)
    if len(before) == len(after) == 1:
        pairs = list(zip(before.values(), after.values(), strict=True))
    else:
        pairs = [(before[case], after[case]) for case in before if case in after]
    return [_compare(one, other) for one, other in pairs]


def _list_runs(records: Sequence[Record]) -> dict[str, RunSummary]:
    rows: list[Row] = summarize([record for record in records if record.monitored is not None])
    return {row.record.case_id: row.monitored for row in rows if row.monitored is not None}


def name_alike(
    old: Sequence[Record], new: Sequence[Record]
) -> tuple[Sequence[Record], Sequence[Record]]:
    """Where each side is one monitored run, they are compared whatever they are called."""
    cases = [{r.case_id for r in side if r.monitored is not None} for side in (old, new)]
    if any(len(found) != 1 for found in cases) or cases[0] == cases[1]:
        return old, new
    like = next(record for record in new if record.monitored is not None)
    names = {n: getattr(like, n) for n in ("case_id", "group_id", "suite", "variant", "baseline")}
    return [replace(r, params=like.params, **names) if r.monitored else r for r in old], new


def _compare(old: RunSummary, new: RunSummary) -> RunChange:
    names = [name for name in PARTS if old.find_part(name) or new.find_part(name)]
    return RunChange(
        old=old,
        new=new,
        step=_find_change("step", old, new, old.mean_step_ns),
        parts=[_find_change(name, old, new, old.mean_step_ns) for name in names]
        if old.parts and new.parts
        else [],
    )


def _find_change(name: str, old: RunSummary, new: RunSummary, step_ns: float) -> PartChange:
    before, after = _block_means(old.starts, name), _block_means(new.starts, name)
    old_ns, new_ns = _mean(old, name), _mean(new, name)
    low_ns = high_ns = None
    if min(len(before), len(after)) >= FEWEST_BLOCKS:
        error = math.hypot(_error(before), _error(after))
        freedom = min(len(before), len(after)) - 1
        reach = student_quantile((1 + CONFIDENCE) / 2, freedom) * error
        low_ns, high_ns = new_ns - old_ns - reach, new_ns - old_ns + reach
    is_sure = low_ns is not None and high_ns is not None and low_ns * high_ns > 0
    return PartChange(
        name=name,
        old_ns=old_ns,
        new_ns=new_ns,
        low_ns=low_ns,
        high_ns=high_ns,
        has_moved=is_sure and abs(new_ns - old_ns) >= LEAST_MOVE * step_ns,
    )


def _mean(run: RunSummary, name: str) -> float:
    if name == "step":
        return run.mean_step_ns
    part = run.find_part(name)
    return 0.0 if part is None else part.mean_ns


def _block_means(starts: Sequence[Start], name: str) -> list[float]:
    """Of the steady steps: as many blocks as are neither few nor correlated with each other."""
    import numpy as np

    values = np.concatenate([_read_values(start, name)[start.first_steps :] for start in starts])
    blocks = min(MOST_BLOCKS, len(values) // 2)
    return [float(block.mean()) for block in np.array_split(values, blocks)] if blocks else []


def _read_values(start: Start, name: str) -> Array:
    import numpy as np

    if name == "step":
        return start.step_ns
    known: dict[str, Array] = {n: np.nan_to_num(v) for n, v in start.parts_ns.items()}
    if name == OTHER:
        return start.step_ns - sum(known.values(), np.zeros(len(start.step_ns)))
    return known.get(name, np.zeros(len(start.step_ns)))


def _error(blocks: Sequence[float]) -> float:
    """The standard error of their mean."""
    mean = sum(blocks) / len(blocks)
    squares = sum((value - mean) ** 2 for value in blocks)
    return math.sqrt(squares / (len(blocks) - 1) / len(blocks))
