"""Tables of outcomes, and the figures with their reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from verdict_tools.outcomes import Outcome, Summary, find_rules, score, summarize

US = "flopwatch"
FEWEST = 20
"""Comparisons with which a figure is held against its reach."""
MAX_FALSE = 0.01
MIN_FOUND = 0.95
REACH_S = {3: 5.0, 5: 2.0, 20: 1.0}
"""By difference in percent: the median time in which it should be found."""
REACH_PEERS = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A tool with one of its settings and one rule: what a user would choose."""

    rule: str
    outcomes: list[Outcome]
    summary: Summary


def print_table(outcomes: Sequence[Outcome], *, every_rule: bool) -> None:
    """By tool, condition and difference."""
    head = f"{'wrong':>7}{'right':>7}{'undecided':>11}{'median s':>10}{'p90 s':>8}{'of':>6}"
    for condition in dict.fromkeys(o.condition for o in outcomes):
        here = [o for o in outcomes if o.condition == condition]
        for percent in sorted({o.percent for o in here}):
            name = f"{condition}, {f'{percent} % slower' if percent else 'identical'}"
            print(f"\n{name:50}{head}")
            settings = find_settings(here)
            if not every_rule:
                settings = choose_rules(settings)
            for setting in settings:
                chosen = [o for o in setting.outcomes if o.percent == percent]
                found = summarize(chosen, setting.rule)
                if found is not None:
                    print(format_row(found))


def format_row(found: Summary) -> str:
    return (
        f"  {found.title:48}{found.wrong:7.1%}{found.right:7.1%}{found.undecided:11.1%}"
        f"{found.median_s:10.2f}{found.p90_s:8.2f}{found.count:6}"
    )


def find_settings(outcomes: Sequence[Outcome]) -> list[Setting]:
    """All tools with all their settings and rules."""
    settings: list[Setting] = []
    for tool, setting in sorted({(o.tool, o.setting) for o in outcomes}):
        chosen = [o for o in outcomes if (o.tool, o.setting) == (tool, setting)]
        for rule in find_rules(chosen):
            found = summarize(chosen, rule)
            assert found is not None
            settings.append(Setting(rule=rule, outcomes=chosen, summary=found))
    return sorted(settings, key=lambda one: (one.summary.tool != US, one.summary.tool))


def choose_rules(settings: Sequence[Setting]) -> list[Setting]:
    """The rule of each tool and setting that is wrong or without a verdict least often."""
    chosen: dict[tuple[str, str], Setting] = {}
    for one in settings:
        key = one.outcomes[0].tool, one.outcomes[0].setting
        if key not in chosen or one.summary.right > chosen[key].summary.right:
            chosen[key] = one
    return list(chosen.values())


def print_figures(outcomes: Sequence[Outcome]) -> int:
    """How many figures miss their reach."""
    print()
    missed = 0
    for condition in dict.fromkeys(o.condition for o in outcomes):
        here = [o for o in outcomes if o.condition == condition]
        ours = [o for o in here if o.tool == US]
        missed += print_false_alarms(condition, [o for o in ours if o.percent == 0])
        if condition == "quiet":
            missed += sum(print_found(percent, ours) for percent in REACH_S)
        if ours and len(ours) < len(here):
            missed += print_peers(condition, here)
    return missed


def print_figure(text: str, reach: str, count: int, is_reached: bool) -> int:
    state = "reached" if is_reached else "MISSED"
    if count < FEWEST:
        state = f"too few to judge: {count} of {FEWEST}"
    print(f"{text} (reach: {reach}): {state}")
    return int(state == "MISSED")


def print_false_alarms(condition: str, identical: Sequence[Outcome]) -> int:
    found = summarize(identical, "own verdict")
    if found is None:
        return 0
    slight = sum(
        verdict.startswith("slightly") for o in identical for verdict in o.verdicts.values()
    )
    text = (
        f"{condition}: identical called different {found.wrong:.2%} of {found.count} "
        f"(at most {found.wrong_at_most:.1%} at 95 %), {slight} of them slightly"
    )
    return print_figure(text, f"at most {MAX_FALSE:.0%}", found.count, found.wrong <= MAX_FALSE)


def print_found(percent: int, ours: Sequence[Outcome]) -> int:
    found = summarize([o for o in ours if o.percent == percent], "own verdict")
    if found is None:
        return 0
    text = (
        f"quiet: {percent} % slower found {found.right:.1%} of {found.count}, "
        f"median {found.median_s:.2f} s"
    )
    is_reached = found.right >= MIN_FOUND and found.median_s <= REACH_S[percent]
    reach = f"at least {MIN_FOUND:.0%}, {REACH_S[percent]:g} s"
    return print_figure(text, reach, found.count, is_reached)


def print_peers(condition: str, outcomes: Sequence[Outcome]) -> int:
    """Others at our error rates: the cheapest setting and rule of each tool that is wrong at most
    as often as we are, and right at least as often; or else the one that is right most often. The
    setting is one for all differences, since nobody knows a difference beforehand."""
    settings = find_settings(outcomes)
    us = next(one for one in settings if one.summary.tool == US)
    ours, missed = us.summary, 0
    print(f"{condition}: flopwatch wrong {ours.wrong:.1%}, right {ours.right:.1%} of {ours.count}")
    ratios: dict[str, float] = {}
    for tool in dict.fromkeys(one.summary.tool for one in settings if one is not us):
        found, is_equal = choose_setting([o for o in settings if o.summary.tool == tool], ours)
        ratios[tool] = ratio = compare_seconds(found, us)
        peer = found.summary
        print(
            f"  {peer.title}: wrong {peer.wrong:.1%}, right {peer.right:.1%} of {peer.count}; "
            f"{ratio:.1f} times our seconds, "
            + ("at our error rates or better" if is_equal else "its best, not as often right")
        )
        if is_equal:
            text = f"{condition}: {tool}'s seconds over ours at the same error rates: {ratio:.1f}"
            count = min(peer.count, ours.count)
            missed += print_figure(text, f"at least {REACH_PEERS:g}", count, ratio >= REACH_PEERS)
    fewer = [s.summary for s in settings if s is not us and s.summary.wrong < ours.wrong]
    names = "; ".join(f"{s.title} ({s.wrong:.1%}, right {s.right:.1%})" for s in fewer) or "none"
    text = f"{condition}: peers with fewer wrong verdicts than {ours.wrong:.1%}: {names}"
    return missed + print_figure(text, "none", ours.count, not fewer)


def choose_setting(settings: Sequence[Setting], ours: Summary) -> tuple[Setting, bool]:
    """And whether it is wrong at most as often as we are, and right at least as often."""
    equal = [
        one
        for one in settings
        if one.summary.wrong <= ours.wrong and one.summary.right >= ours.right
    ]
    if equal:
        return min(equal, key=lambda one: one.summary.median_s), True
    return max(settings, key=lambda one: (one.summary.right, -one.summary.median_s)), False


def compare_seconds(peer: Setting, us: Setting) -> float:
    """The sum over differences of the median seconds, over ours; over those that both have."""

    def medians(setting: Setting) -> dict[int, float]:
        percents = sorted({o.percent for o in setting.outcomes})
        return {p: median(o.seconds for o in setting.outcomes if o.percent == p) for p in percents}

    theirs, ours = medians(peer), medians(us)
    shared = theirs.keys() & ours.keys()
    return sum(theirs[p] for p in shared) / sum(ours[p] for p in shared)


def print_wrong(outcomes: Sequence[Outcome]) -> None:
    """Our wrong verdicts, one by one."""
    for o in outcomes:
        for verdict in o.verdicts.values():
            if o.tool == US and score(verdict, o.percent, o.slower) == "wrong":
                truth = "identical" if not o.percent else f"{o.percent} % more in {o.slower}"
                ratio = "" if o.ratio is None else f", ratio {o.ratio:.4f}"
                print(f"  wrong: {o.condition}, {o.operation}, {truth}: b is {verdict}{ratio}")
