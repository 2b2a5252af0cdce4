"""Predictions, plans, memory, MFU and breakdowns of training jobs in a sentence each: what a
terminal says before their tables."""

from __future__ import annotations

from collections.abc import Sequence

from flopwatch.analysis.step_breakdown import StepBreakdown
from flopwatch.analysis.summary import Row
from flopwatch.jobs.rank_memory import Memory
from flopwatch.jobs.utilisation import JobUtilisation
from flopwatch.output.prediction_tables import list_asked
from flopwatch.output.units import format_bytes, format_ratio, format_share, format_time, plural
from flopwatch.prediction.plans import DAY_S, Plan, describe_choice
from flopwatch.prediction.predictions import Prediction

MOST_GAINS = 2
EXACT = "exact"


def answer_predictions(predictions: Sequence[Prediction]) -> list[str]:
    """The fastest that fits, and by how much; of one, how fast it is."""
    fitting = [each for each in predictions if each.memory.fits is not False]
    if not fitting:
        least = min(predictions, key=lambda each: each.memory.total_bytes)
        who = "It" if len(predictions) == 1 else f"None of {len(predictions)} fits: the smallest"
        return [f"{who} needs {_describe_memory(least)}."]
    best = max(fitting, key=lambda each: each.tokens_per_s)
    speed = f"{_describe_speed(best)}; {_describe_memory(best)}"
    if len(predictions) == 1:
        return [f"{_name(best, predictions)}: {speed}."]
    slowest = min(fitting, key=lambda each: each.tokens_per_s)
    lead = ""
    if slowest is not best:
        ratio = format_ratio(best.tokens_per_s / slowest.tokens_per_s)
        lead = f", {ratio} as fast as {_name(slowest, predictions)}"
    left = len(predictions) - len(fitting)
    misfits = f" {left} of {len(predictions)} do not fit." if left else ""
    return [f"{_name(best, predictions)} is the fastest{lead}: {speed}.{misfits}"]


def _describe_speed(prediction: Prediction) -> str:
    mfu = prediction.utilisation.mfu
    share = "" if mfu is None else f", {format_share(mfu)} MFU"
    ends = f"{prediction.low:,.0f} to {prediction.high:,.0f}"
    return f"{prediction.tokens_per_s:,.0f} tokens/s (90 % interval {ends}){share}"


def _describe_memory(prediction: Prediction) -> str:
    fits = {True: "which fits", False: "which does not fit", None: "capacity unknown"}
    return f"{format_bytes(prediction.memory.total_bytes)} a rank, {fits[prediction.memory.fits]}"


def _name(prediction: Prediction, among: Sequence[Prediction]) -> str:
    """By what the jobs differ in; one alone by its model and hardware."""
    asked = [list_asked(each) for each in among]
    differing = [axis for axis in asked[0] if len({str(each[axis]) for each in asked}) > 1]
    own = list_asked(prediction)
    return " ".join(str(own[axis]) for axis in differing or ("model", "hardware"))


def answer_plan(plan: Plan) -> list[str]:
    best = plan.best[0]
    job, cost = best.job, plan.find_cost(best)
    price = "" if cost is None else f" for {cost:,.0f}"
    return [
        f"Fastest: {describe_choice(job)}: {_describe_speed(best)}; "
        f"{plan.find_time_s(best) / DAY_S:,.1f} days, "
        f"{plan.find_device_hours(best):,.0f} GPU-hours{price}."
    ]


def answer_memory(answers: Sequence[Memory]) -> list[str]:
    """What one model needs and how far it could go; of several, which fit."""
    if len(answers) > 1:
        fitting = [each.job.name for each in answers if each.fits]
        return [f"{len(fitting)} of {len(answers)} models fit: {', '.join(fitting) or 'none'}."]
    (answer,) = answers
    job, available = answer.job, format_bytes(answer.available_bytes or 0)
    verdict, each = "fits" if answer.fits else "does not fit", " a rank" if job.ranks > 1 else ""
    return [
        f"{job.name} needs {format_bytes(answer.total_bytes)}{each}, which {verdict} into "
        f"{available}, the memory available for tensors.",
        f"No micro-batch fits at seq_len {job.seq_len:,}."
        if answer.largest_micro_batch == 0
        else f"At seq_len {job.seq_len:,}, the largest micro-batch that fits is "
        f"{answer.largest_micro_batch:,}.",
        f"No sequence length fits at micro-batch {job.micro_batch:,}."
        if answer.largest_seq_len == 0
        else f"At micro-batch {job.micro_batch:,}, the longest sequence that fits has "
        f"{plural(answer.largest_seq_len or 0, 'token')}.",
    ]


def answer_utilisation(answer: JobUtilisation) -> list[str]:
    """By the convention that counts exactly, if it is there; and how far the others lie apart."""
    found = answer.utilisations
    one = next((each for each in found if each.convention == EXACT), found[0])
    if one.mfu is None or one.hfu is None or one.impossible:
        return []  # the table says why
    shares = [each.mfu for each in found if each.mfu is not None]
    rate = f"{one.tokens_per_s:,.0f} tokens/s"
    ends = f"; {format_share(min(shares))} to {format_share(max(shares))} by others"
    several = ends if len(shares) > 1 and answer.asked_mfu is None else ""
    return [
        f"{rate}: {format_share(one.mfu)} MFU and {format_share(one.hfu)} HFU by the convention "
        f"{one.convention}{several}."
    ]


def answer_breakdowns(explained: Sequence[tuple[Row, StepBreakdown]]) -> list[str]:
    """What takes most of the first of them, and where most could be gained."""
    if not explained:
        return []
    row, breakdown = explained[0]
    whole_ns = breakdown.total_ns
    parts = [part for part in breakdown.rows if part.time_ns > 0]
    if not parts:
        return []
    largest = max(parts, key=lambda part: part.time_ns)
    gains = sorted(
        (part for part in parts if part.gain_ns), key=lambda part: part.gain_ns or 0.0, reverse=True
    )
    found = [
        f"{part.name} ({format_share((part.gain_ns or 0.0) / whole_ns)})"
        for part in gains[:MOST_GAINS]
    ]
    gain = f"; most could be gained in {' and '.join(found)}" if found else ""
    others = f", the first of {plural(len(explained), 'case')}," if len(explained) > 1 else ""
    return [
        f"{row.record.variant}{others} takes {format_time(whole_ns)}: the largest part is "
        f"{largest.name}, {format_share(largest.time_ns / whole_ns)}{gain}."
    ]
