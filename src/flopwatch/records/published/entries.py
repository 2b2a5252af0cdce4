"""What the records of all published figures have in common.

A published mean is one sample. Where the source says of how many calls it is the mean, that is the
sample's calls. There are no warm-up, no rounds and no interval, and nothing is known of a machine
but what the source says. ``environment["published"]`` marks such a record; what it says:

    source, year, unknown    of a publication that the package has, see `published.PUBLICATIONS`
    printed                  words, places and figures of the source that a record has no other
                             field for, so that the published layout can be printed again: a figure
                             of 17 digits, say, which nanoseconds would round
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from flopwatch.records.record import Record
from flopwatch.settings import Settings
from flopwatch.suites.case import case_id, digest, group_id

GPU = Settings(device="cuda")
"""All that were published so far ran on one."""


def make_record(
    run: str,
    suite: str,
    variant: str,
    params: Mapping[str, Any],
    **fields: Any,
) -> Record:
    """A record without samples; `fields` are more of the record's own."""
    kept = dict(params)
    return Record(
        **{
            "case_id": case_id(suite, variant, kept),
            "group_id": group_id(suite, kept),
            "run_id": run,
            "suite": suite,
            "variant": variant,
            "params": kept,
            "status": "ok",
            "settings": GPU,
            **fields,
        }
    )


def make_sample(times_ns: Mapping[str, float], calls: int = 1) -> dict[str, Any]:
    """The fields of a record with one sample: the mean of so many calls."""
    return {
        "samples_ns": {phase: [time_ns] for phase, time_ns in times_ns.items()},
        "rounds": [0],
        "calls_per_sample": [calls],
    }


def describe_source(printed: Mapping[str, Any], gpu: str | None = None) -> dict[str, Any]:
    """The environment of a record, as far as a text without a known source tells it."""
    known = {} if gpu is None else {"torch": {"gpu": {"name": gpu}}}
    return {**known, "published": {"printed": dict(printed)}}


def find_printed(record: Record) -> dict[str, Any] | None:
    """None where it is a measurement of your own."""
    found = record.environment.get("published")
    return None if found is None else dict(found.get("printed", {}))


def parse_figure(text: str, smallest: float = sys.float_info.min) -> float:
    """A ValueError where it is no number, not finite, or less than can be: a time is above 0."""
    figure = float(text)
    if not smallest <= figure < math.inf:
        raise ValueError(f"{text} is not {'above' if smallest else 'at least'} 0")
    return figure


def name_run(form: str, text: str) -> str:
    """Another text is another run: what it says pairs with nothing in this one."""
    return f"{form}:{digest(text)[:8]}"
