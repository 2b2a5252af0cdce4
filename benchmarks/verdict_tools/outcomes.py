"""What comes of comparisons: whether a verdict is right, and a file of them that grows.

| truth | right | wrong |
| --- | --- | --- |
| identical | same | faster, slower |
| 1 % slower | slower, same | faster |
| 3 % slower or more | slower | same, faster |

"slightly slower" counts as slower, also of identical functions, where it is wrong. "unclear" is no
verdict: neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

DIRECTIONS = {"faster": -1, "slightly faster": -1, "same": 0, "slightly slower": 1, "slower": 1}
SMALLEST_FOUND_PERCENT = 3
"""A difference from which on "same" is wrong."""

Score = Literal["right", "wrong", "undecided"]
Cell = tuple[str, str, str, str, int]
"""Tool, setting, condition, operation, difference in percent."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Of one comparison by one tool: a line of the file."""

    tool: str
    setting: str
    condition: str
    operation: str
    percent: int
    number: int
    """Of the comparison among those of its kind."""
    slower: str
    """The side that does more: a or b."""
    rows: int
    seconds: float
    verdicts: dict[str, str]
    """Of b against a, by rule; empty where the tool has failed."""
    ratio: float | None = None
    error: str | None = None

    @property
    def cell(self) -> Cell:
        return self.tool, self.setting, self.condition, self.operation, self.percent


def score(verdict: str, percent: int, slower: str) -> Score:
    """Of a verdict on b against a."""
    direction = DIRECTIONS.get(verdict)
    if direction is None:
        return "undecided"
    truth = 0 if percent == 0 else 1 if slower == "b" else -1
    if direction == truth or (direction == 0 and percent < SMALLEST_FOUND_PERCENT):
        return "right"
    return "wrong"


def append(path: Path, outcome: Outcome) -> None:
    with path.open("ab") as file:
        file.write(msgspec.json.encode(outcome) + b"\n")


def read_outcomes(path: Path) -> list[Outcome]:
    """All whole lines; a run that was killed may have left half of one, which is cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return [msgspec.json.decode(line, type=Outcome) for line in whole.splitlines()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Of comparisons by one tool and one rule."""

    title: str
    tool: str
    count: int
    right: float
    """Shares."""
    wrong: float
    undecided: float
    median_s: float
    p90_s: float

    @property
    def wrong_at_most(self) -> float:
        """The upper end of the 95 % interval of the wrong share (Wilson's)."""
        return bound_share(self.wrong, self.count)


def bound_share(share: float, count: int, z: float = 1.96) -> float:
    middle = share + z * z / (2 * count)
    reach = z * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return float((middle + reach) / (1 + z * z / count))


def summarize(outcomes: Iterable[Outcome], rule: str) -> Summary | None:
    """None where there are none."""
    chosen = list(outcomes)
    if not chosen:
        return None
    first = chosen[0]
    scores = [score(o.verdicts.get(rule, "unclear"), o.percent, o.slower) for o in chosen]
    seconds = sorted(o.seconds for o in chosen)
    rule_title = f", {rule}" if len(first.verdicts) > 1 else ""
    return Summary(
        title=f"{first.tool} {first.setting}".strip() + rule_title,
        tool=first.tool,
        count=len(chosen),
        right=scores.count("right") / len(chosen),
        wrong=scores.count("wrong") / len(chosen),
        undecided=scores.count("undecided") / len(chosen),
        median_s=median(seconds),
        p90_s=find_p90(seconds),
    )


def find_p90(ordered: Sequence[float]) -> float:
    return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]


def find_rules(outcomes: Iterable[Outcome]) -> list[str]:
    return list(dict.fromkeys(rule for outcome in outcomes for rule in outcome.verdicts))
