"""The tools that are compared, and what each is taken to say of b against a.

In the process that holds the functions:

| tool | settings | says |
| --- | --- | --- |
| flopwatch | default | its verdict |
| torch-blocked | `Timer.blocked_autorange(min_run_time=)`: 0.2 s (default), 1 s, 5 s; a, then b | by the rules below |
| torch-adaptive | `Timer.adaptive_autorange(threshold=)`: 0.1 (default), 0.03, 0.01 | by the rules below |
| do-bench | `triton.testing.do_bench(warmup=25, rep=)`: 100 ms (default), 500, 2000; a, then b | by the rules below |

PyTorch and Triton give times, and leave it to you to compare them. The rules: b is slower or faster
if the medians differ by more than 1 %, which is where `torch.utils.benchmark.Compare` stops to show
both as best; by more than 2 %; by more than 2 % and the ranges from the 25th to the 75th percentile
do not overlap ("unclear" if they do). "same" if the medians differ by less. All of them are applied
to the same times, and tables show the one that is wrong least often: the choice is in the tool's
favour.

`do_bench` itself needs a GPU. What is here follows its rule for the number of calls (warm-up and
repetition are times, divided by an estimate from 5 calls) with the CPU's clock; a GPU's cache is
cleared before every call, here it is not.

In processes of their own (`process_tools.py`): pyperf and hyperfine.
"""  # noqa: E501

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Literal

from verdict_tools.operations import THREADS, Function, Pair, build_pair

Rule = Callable[["Quartiles", "Quartiles"], str]
OWN = "own verdict"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    verdicts: Mapping[str, str]
    """Of b against a, by rule."""
    ratio: float
    """Time of b over time of a."""
    seconds: float = 0.0
    """From the call to the answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    name: str
    setting: str
    judge: Callable[[Mapping[str, Function]], Finding] | None = None
    """In the process that holds both functions."""
    command: Callable[[Pair], Finding] | None = None
    """Starts processes of its own, which build them."""

    @property
    def title(self) -> str:
        return f"{self.name} {self.setting}".strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Quartiles:
    low: float
    median: float
    high: float


def judge_pair(tool: Tool, pair: Pair) -> Finding:
    """In this process, which should be a fresh one."""
    assert tool.judge is not None
    functions = build_pair(pair)
    begin_s = time.perf_counter()
    found = tool.judge(functions)
    seconds = time.perf_counter() - begin_s
    return Finding(verdicts=found.verdicts, ratio=found.ratio, seconds=seconds)


def ask_flopwatch(functions: Mapping[str, Function]) -> Finding:
    import flopwatch

    result = flopwatch.compare(functions)
    return Finding(verdicts={OWN: result.verdict("b")}, ratio=1 / result.speedups["b"].value)


def ask_torch(
    kind: Literal["blocked", "adaptive"], value: float, functions: Mapping[str, Function]
) -> Finding:
    from torch.utils.benchmark import Timer

    def take(function: Function) -> Quartiles:
        timer = Timer("function()", globals={"function": function}, num_threads=THREADS)
        if kind == "blocked":
            found = timer.blocked_autorange(min_run_time=value)
        else:
            found = timer.adaptive_autorange(threshold=value)
        return find_quartiles(found.times)

    return apply_rules(take(functions["a"]), take(functions["b"]))


def ask_do_bench(repeat_s: float, functions: Mapping[str, Function]) -> Finding:
    def take(function: Function) -> Quartiles:
        return find_quartiles(time_calls(function, warmup_s=0.025, repeat_s=repeat_s))

    return apply_rules(take(functions["a"]), take(functions["b"]))


def time_calls(function: Function, *, warmup_s: float, repeat_s: float) -> list[float]:
    """A warm-up and repetitions that are to last so long, by an estimate from five calls."""
    function()
    begin_s = time.perf_counter()
    for _ in range(5):
        function()
    estimate_s = (time.perf_counter() - begin_s) / 5
    for _ in range(max(1, int(warmup_s / estimate_s))):
        function()
    times_s: list[float] = []
    for _ in range(max(1, int(repeat_s / estimate_s))):
        begin_s = time.perf_counter()
        function()
        times_s.append(time.perf_counter() - begin_s)
    return times_s


def find_quartiles(times_s: Sequence[float]) -> Quartiles:
    if len(times_s) == 1:
        return Quartiles(low=times_s[0], median=times_s[0], high=times_s[0])
    low, median, high = quantiles(times_s, n=4, method="inclusive")
    return Quartiles(low=low, median=median, high=high)


def by_medians(threshold: float, a: Quartiles, b: Quartiles) -> str:
    if b.median > a.median * (1 + threshold):
        return "slower"
    if a.median > b.median * (1 + threshold):
        return "faster"
    return "same"


def by_quartiles(threshold: float, a: Quartiles, b: Quartiles) -> str:
    verdict = by_medians(threshold, a, b)
    overlap = a.low <= b.high and b.low <= a.high
    return "unclear" if verdict != "same" and overlap else verdict


RULES: dict[str, Rule] = {
    "medians 1 %": partial(by_medians, 0.01),
    "medians 2 %": partial(by_medians, 0.02),
    "medians 2 %, quartiles apart": partial(by_quartiles, 0.02),
}


def apply_rules(a: Quartiles, b: Quartiles) -> Finding:
    verdicts = {name: rule(a, b) for name, rule in RULES.items()}
    return Finding(verdicts=verdicts, ratio=b.median / a.median)


IN_PROCESS_TOOLS = [
    Tool(name="flopwatch", setting="", judge=ask_flopwatch),
    *(
        Tool(name="torch-blocked", setting=f"{s:g} s", judge=partial(ask_torch, "blocked", s))
        for s in (0.2, 1.0, 5.0)
    ),
    *(
        Tool(name="torch-adaptive", setting=f"{part:g}", judge=partial(ask_torch, "adaptive", part))
        for part in (0.1, 0.03, 0.01)
    ),
    *(
        Tool(name="do-bench", setting=f"{s:g} s", judge=partial(ask_do_bench, s))
        for s in (0.1, 0.5, 2.0)
    ),
]
