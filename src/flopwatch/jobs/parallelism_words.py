"""Words of a variant that say how ranks divide a model, as engineers write them:

tp2                 tensor parallelism over 2 ranks
tp2+sp              with sequence parallelism
pp4                 a pipeline of 4 ranks, in the schedule 1f1b
pp4:gpipe           in another schedule
pp4:interleaved:3   with 3 virtual stages on each rank; without a number, as few as it needs
cp2, ep2            context and expert parallelism
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import SCHEDULES, find_schedule

FIELDS = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
"""The fields of `Parallelism` by their words, which are also options and axes."""
SEQUENCE = "sp"
PATTERN = re.compile(r"(tp|pp|cp|ep)([1-9][0-9]{0,8})((?::[^:]+)*)")


def read_parallelism_word(word: str) -> Mapping[str, Any] | None:
    """The fields of `Parallelism` that it stands for; None: it is another word.

    >>> read_parallelism_word("pp2:interleaved")
    {'pipeline': 2, 'schedule': 'interleaved', 'virtual_stages': 2}
    """
    if word == SEQUENCE:
        return {"sequence": True}
    found = PATTERN.fullmatch(word)
    if found is None:
        return None
    kind, ranks, more = found[1], int(found[2]), found[3].split(":")[1:]
    if kind != "pp":
        if more:
            raise UsageError(f"{word!r}: only a pipeline has a schedule; write {kind}{ranks}")
        return {FIELDS[kind]: ranks}
    schedule = find_schedule(more[0] if more else "1f1b")
    stages = SCHEDULES[schedule].virtual_stages[0]
    if len(more) > 1:
        if len(more) > 2 or not re.fullmatch("[1-9][0-9]{0,3}", more[1]):
            raise UsageError(f"{word!r}: write a pipeline as in pp4:interleaved:2")
        stages = int(more[1])
    return {"pipeline": ranks, "schedule": schedule, "virtual_stages": stages}


def name_parallelism(
    *,
    tensor: int = 1,
    sequence: bool = False,
    pipeline: int = 1,
    schedule: str | None = None,
    virtual_stages: int | None = None,
    context: int = 1,
    expert: int = 1,
) -> list[str]:
    """The reverse.

    >>> name_parallelism(tensor=2, sequence=True, pipeline=2, schedule="zbv")
    ['tp2', 'sp', 'pp2:zbv']
    """
    pipe = [f"pp{pipeline}"]
    if schedule is not None or virtual_stages is not None:
        usual = "1f1b" if virtual_stages in (None, 1) else "interleaved"
        pipe.append(find_schedule(schedule or usual))
        if virtual_stages not in (None, SCHEDULES[pipe[1]].virtual_stages[0]):
            pipe.append(str(virtual_stages))
    if pipe[1:] == ["1f1b"]:
        pipe = pipe[:1]
    return [
        *([f"tp{tensor}"] if tensor > 1 else []),
        *([SEQUENCE] if sequence and tensor > 1 else []),
        *([":".join(pipe)] if pipeline > 1 else []),
        *([f"cp{context}"] if context > 1 else []),
        *([f"ep{expert}"] if expert > 1 else []),
    ]
