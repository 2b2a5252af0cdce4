"""Warnings above the tables of two runs: what else than a case's own code may have moved it."""

from __future__ import annotations

from flopwatch.analysis.record_device import find_background_share
from flopwatch.analysis.verdicts import Judgement
from flopwatch.output.background_load import WORTH_TELLING


def warn_of_runs(judgement: Judgement) -> list[str]:
    return [
        *_warn_of_machine(judgement),
        *_warn_of_baseline(judgement),
        *_warn_of_loads(judgement),
    ]


def _warn_of_machine(judgement: Judgement) -> list[str]:
    ratio = judgement.shifts.machine
    if ratio is None:
        return []
    consequence = "ratios to the baseline cannot show that"
    if any(one.is_shifted for one in judgement.comparisons):
        relative = judgement.basis == "relative"
        consequence = (
            "times say nothing about the code then, and what is compared by them is unclear"
            + ("" if relative else "; leave --absolute out to compare ratios")
        )
    return [
        f"warning: all cases, the baseline {_name_baselines(judgement)} included, "
        f"{describe_size(ratio)}: the machine was in another state, or something changed that all "
        f"of them share; {consequence}"
    ]


def _warn_of_baseline(judgement: Judgement) -> list[str]:
    ratio = judgement.shifts.lone_baseline
    if ratio is None:
        return []
    consequence = (
        "ratios to it move the other way; leave --relative out to compare times"
        if judgement.basis == "relative"
        else "times are compared, since ratios to it would move the other way"
    )
    return [
        f"warning: the baseline {_name_baselines(judgement)} {describe_size(ratio)}, and the "
        f"other cases did not: it seems to have changed itself; {consequence}"
    ]


def _warn_of_loads(judgement: Judgement) -> list[str]:
    """Where other processes took much of the cores on one of two sides."""
    old, new = (
        find_background_share(getattr(one, side) for one in judgement.comparisons)
        for side in ("old", "new")
    )
    if max(old or 0.0, new or 0.0) < WORTH_TELLING:
        return []
    before, after = (
        "an unknown part" if share is None else f"{100 * share:.0f} %" for share in (old, new)
    )
    return [
        f"warning: other processes took {before} of the cores in the old run, and {after} in the "
        "new one: times differ by that, ratios to a baseline by less; end them and measure again"
    ]


def _name_baselines(judgement: Judgement) -> str:
    return " and ".join(dict.fromkeys(one.new.variant for one in judgement.shifts.baselines))


def describe_size(ratio: float) -> str:
    word = "less" if ratio < 1 else "more"
    return f"took {100 * abs(ratio - 1):.0f} % {word} time"
