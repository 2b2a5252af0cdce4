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
from flopwatch.prediction.plan_comparison import PlanComparison, describe_hardware
from flopwatch.prediction.plan_deadline import Deadlines
from flopwatch.prediction.plans import Plan, describe_choice, format_days
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
    return [
        f"Fastest: {describe_choice(best.job)}: {_describe_speed(best)}; {_show_days(plan)}, "
        f"{plan.find_device_hours(best):,.0f} GPU-hours{_show_cost(plan)}.",
        *_compare_next(plan),
    ]


def _compare_next(plan: Plan) -> list[str]:
    """Whether the prediction tells the best from the second best."""
    if len(plan.best) < 2:
        return []
    first, second = (each.tokens_per_s for each in plan.best[:2])
    slower = f"The second best is predicted {format_share(1 - second / first)} slower"
    if second < plan.best[0].low:
        return [f"{slower}, which is outside of the 90 % interval of the best."]
    return [
        f"{slower}; {plan.alike:,} of {plan.fitting:,} that fit lie within the 90 % interval of "
        "the best, which cannot be told apart: measure the first few."
    ]


def _show_days(plan: Plan) -> str:
    return f"{format_days(plan.find_time_s(plan.best[0]))} days"


def answer_plan_comparison(comparison: PlanComparison) -> list[str]:
    """Of each model, which hardware is fastest and which is cheapest."""
    answers = []
    for first in comparison.plans:
        if not comparison.is_fastest(first):
            continue
        rivals = comparison.list_rivals(first)
        cheapest = next((each for each in rivals if comparison.is_cheapest(each)), None)
        dominated = sum(comparison.find_dominating(each) is not None for each in rivals)
        name = f"{first.job.name}: " if len(rivals) < len(comparison.plans) else ""
        sentence = f"{name}{_describe_plan(first)}"
        if len(rivals) > 1:
            also = " and cheapest" if cheapest is first else ""
            sentence = f"{name}Fastest{also}: {_describe_plan(first)}"
            if cheapest is not None and cheapest is not first:
                sentence += f"; cheapest: {_describe_plan(cheapest)}"
            if dominated:
                verb = "is" if dominated == 1 else "are"
                sentence += f"; {dominated} of {len(rivals)} {verb} dominated"
        answers.append(f"{sentence}.")
    return answers


def _describe_plan(plan: Plan) -> str:
    return f"{describe_hardware(plan)}, {_show_days(plan)}{_show_cost(plan)}"


def _show_cost(plan: Plan) -> str:
    cost = plan.find_cost(plan.best[0])
    return "" if cost is None else f" for {cost:,.0f}"


def answer_deadlines(deadlines: Deadlines) -> list[str]:
    """Of each model, the best that meets the deadline, or why none does."""
    answers = []
    for name in dict.fromkeys(each.job.name for each in deadlines.found):
        own = [each for each in deadlines.found if each.job.name == name]
        first = own[0]
        if not first.is_met:
            answers += [
                f"{each.reason[0].upper()}{each.reason[1:]}." for each in own if each.reason
            ]
            continue
        smaller = first.smaller
        less = f"; {smaller.job.ranks:,} would take {_show_days(smaller)}" if smaller else ""
        met = sum(each.is_met for each in own)
        rank = ""
        if met > 1:
            rank = ", the cheapest" if first.closest.price is not None else ", the fastest"
            rank += f" of {met} kinds of devices that are in time"
        answers.append(
            f"{describe_hardware(first.closest)} train {name} in {_show_days(first.closest)}"
            f"{_show_cost(first.closest)}{rank}: "
            f"{describe_choice(first.closest.best[0].job)}{less}."
        )
    return answers


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
