"""Which tool says soonest, and rightly, whether B is faster than A?

flopwatch, PyTorch's Timer, the rule of Triton's do_bench, pyperf and hyperfine are asked about the
same pairs of functions, whose times differ by a known factor (`verdict_tools/operations.py`), on a
quiet machine and with a neighbour that takes a core at random times. What each tool is taken to
say: `verdict_tools/tools.py`, `verdict_tools/process_tools.py`; what is right:
`verdict_tools/outcomes.py`.

Every comparison is made in a fresh process, with tensors of its own; the same numbers of all tools
have the same tensors, and the same side is the slower one. All are made in random order, so that
slow drift hits all tools alike. Seconds are from the call to the answer; importing torch and the
tool, and building the tensors, is left out, except for pyperf and hyperfine, whose processes do
that while they measure.

    python benchmarks/verdicts.py --count 2                       in each cell; see the first line
    python benchmarks/verdicts.py --tools flopwatch,torch-blocked --differences 0,3 --pairs matmul
    python benchmarks/verdicts.py --identical 1000                false alarms of flopwatch alone
    python benchmarks/verdicts.py --truth                         measures the truth of each pair
    python benchmarks/verdicts.py --count 20 --json outcomes.jsonl        goes on where it was ended
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from verdict_tools.figures import print_figures, print_table, print_wrong
from verdict_tools.fresh_process import Failed, call_in_fresh_process
from verdict_tools.neighbour import CONDITIONS, keep_condition
from verdict_tools.operations import COUNTS, OPERATIONS, Pair, build_pair, find_rows
from verdict_tools.outcomes import Cell, Outcome, append, read_outcomes
from verdict_tools.process_tools import find_process_tools
from verdict_tools.tools import IN_PROCESS_TOOLS, Finding, Tool, judge_pair

from flopwatch.analysis.statistics import Estimate, estimate_median


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    tool: Tool
    condition: str
    operation: str
    percent: int
    number: int

    @property
    def seed(self) -> int:
        """The same for all tools."""
        words = f"{self.condition} {self.operation} {self.percent} {self.number}"
        return zlib.crc32(words.encode())

    @property
    def cell(self) -> Cell:
        tool = self.tool
        return tool.name, tool.setting, self.condition, self.operation, self.percent


def main() -> int:
    given = parse_arguments()
    tools, absent = find_tools(given.tools)
    for name in absent:
        print(f"{name}: not installed")
    rows = calibrate(given.pairs, [0] if given.identical else given.differences)
    if given.truth:
        print_truth(rows, given.seconds)
        return 0
    known = read_outcomes(given.json) if given.json else []
    tasks = plan_tasks(given, tools, {(o.cell, o.number) for o in known})
    print(f"{len(tasks)} comparisons, {len(known)} known", flush=True)
    outcomes = known + run_tasks(tasks, rows, given.json)
    if not outcomes:
        return 0
    print_table(outcomes, every_rule=given.every_rule)
    missed = print_figures(outcomes)
    print_wrong(outcomes)
    return int(missed > 0)


def parse_arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=2, help="comparisons in each cell")
    parser.add_argument(
        "--process-count", type=int, help="of tools that start processes, which take minutes; 1"
    )
    parser.add_argument("--identical", type=int, help="identical pairs, flopwatch alone")
    parser.add_argument("--tools", type=words, help="names, or names with settings")
    parser.add_argument("--conditions", type=words, default=list(CONDITIONS))
    parser.add_argument("--pairs", type=words, default=list(OPERATIONS))
    parser.add_argument("--differences", type=numbers, default=list(COUNTS), help="in percent")
    parser.add_argument("--json", type=Path, help="file that outcomes are appended to")
    parser.add_argument("--every-rule", action="store_true", help="not only each tool's best")
    parser.add_argument("--truth", action="store_true", help="measure the ratio of each pair")
    parser.add_argument("--seconds", type=float, default=20.0, help="of --truth for each pair")
    given = parser.parse_args()
    for option, known in (
        ("conditions", CONDITIONS),
        ("pairs", OPERATIONS),
        ("differences", COUNTS),
    ):
        for value in getattr(given, option):
            if value not in known:
                parser.error(
                    f"--{option}: {value} unknown; choose from {', '.join(map(str, known))}"
                )
    return given


def find_tools(names: Sequence[str] | None) -> tuple[list[Tool], list[str]]:
    """Those asked for, and the names of those among them that are not installed."""
    in_processes, absent = find_process_tools()
    tools = [*IN_PROCESS_TOOLS, *in_processes]
    if names is None:
        return tools, absent
    known = {tool.name for tool in tools} | {tool.title for tool in tools} | set(absent)
    for name in names:
        if name not in known:
            sys.exit(f"--tools: {name} unknown; choose from {', '.join(sorted(known))}")
    chosen = [tool for tool in tools if tool.name in names or tool.title in names]
    return chosen, [name for name in absent if name in names]


def calibrate(operations: Iterable[str], percents: Sequence[int]) -> dict[tuple[str, int], int]:
    """Rows by operation and difference."""
    rows: dict[tuple[str, int], int] = {}
    for operation in operations:
        for percent in percents:
            rows[operation, percent] = call_in_fresh_process(find_rows, operation, percent)
        sizes = ", ".join(f"{rows[operation, p]} ({p} %)" for p in percents)
        print(f"rows of {operation}: {sizes}", flush=True)
    return rows


def plan_tasks(
    given: argparse.Namespace, tools: Sequence[Tool], done: set[tuple[Cell, int]]
) -> list[Task]:
    """Those that are not done yet: first all with number 0, in random order, then with number 1."""
    if given.identical:
        percents, count = [0], -(-given.identical // len(given.pairs))
        tools = [tool for tool in tools if tool.name == "flopwatch"]
    else:
        percents, count = given.differences, given.count
    tasks = [
        Task(tool=tool, condition=condition, operation=operation, percent=percent, number=number)
        for tool in tools
        for condition in given.conditions
        for operation in given.pairs
        for percent in percents
        for number in range(count_of(tool, count, given.process_count))
    ]
    missing = [task for task in tasks if (task.cell, task.number) not in done]
    draw = random.Random(len(done))
    return sorted(missing, key=lambda task: (task.number, draw.random()))


def count_of(tool: Tool, count: int, process_count: int | None) -> int:
    if tool.command is None:
        return count
    return min(count, 1) if process_count is None else process_count


def run_tasks(
    tasks: Sequence[Task], rows: dict[tuple[str, int], int], path: Path | None
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    begin_s = time.perf_counter()
    for done, task in enumerate(tasks):
        outcome = run_task(task, rows[task.operation, task.percent])
        outcomes.append(outcome)
        if path:
            append(path, outcome)
        spent_s = time.perf_counter() - begin_s
        left_s = spent_s / (done + 1) * (len(tasks) - done - 1)
        print_progress(f"{done + 1} of {len(tasks)}, about {left_s / 60:.0f} min left: ", task)
        if outcome.error:
            print(f"\n{task.tool.title}: {outcome.error}", file=sys.stderr)
    return outcomes


def print_progress(begin: str, task: Task) -> None:
    if sys.stderr.isatty():
        text = f"{begin}{task.tool.title}, {task.condition}, {task.operation}, {task.percent} %"
        print(f"\r{text:100.100}", end="", file=sys.stderr, flush=True)


def run_task(task: Task, rows: int) -> Outcome:
    pair = Pair(operation=task.operation, percent=task.percent, rows=rows, seed=task.seed)
    found, error = Finding(verdicts={}, ratio=float("nan")), None
    begin_s = time.perf_counter()
    with keep_condition(task.condition, task.seed):
        try:
            if task.tool.command is not None:
                found = task.tool.command(pair)
            else:
                found = call_in_fresh_process(judge_pair, task.tool, pair)
        except (Failed, RuntimeError, ValueError, OSError) as caught:
            error = str(caught)
    return Outcome(
        tool=task.tool.name,
        setting=task.tool.setting,
        condition=task.condition,
        operation=task.operation,
        percent=task.percent,
        number=task.number,
        slower=pair.slower,
        rows=rows,
        seconds=time.perf_counter() - begin_s if error else found.seconds,
        verdicts=dict(found.verdicts),
        ratio=None if error else found.ratio,
        error=error,
    )


def print_truth(rows: dict[tuple[str, int], int], seconds: float) -> None:
    """b is the slower side here, or either."""
    print(f"{'pair':10}{'call':>10}{'true ratio':>12}{'measured':>10}   99 % interval")
    for (operation, percent), count in rows.items():
        pair = next(
            pair
            for seed in range(1000)
            if (pair := Pair(operation=operation, percent=percent, rows=count, seed=seed)).truth
            >= 1
        )
        call_s, found = call_in_fresh_process(measure_truth, pair, seconds)
        interval = "unknown" if found.low is None else f"[{found.low:.4f}, {found.high:.4f}]"
        print(
            f"{operation:10}{1e3 * call_s:7.2f} ms{pair.truth:12.4f}{found.value:10.4f}   "
            f"{interval}, {found.samples} rounds",
            flush=True,
        )


def measure_truth(pair: Pair, seconds: float) -> tuple[float, Estimate]:
    """Time of a call of a, and the ratio of b to it: one call of each a round, in random order."""
    functions = build_pair(pair)
    draw = random.Random(pair.seed)
    times_s: dict[str, list[float]] = {"a": [], "b": []}
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        for side in draw.sample("ab", 2):
            begin_s = time.perf_counter()
            functions[side]()
            times_s[side].append(time.perf_counter() - begin_s)
    a_s, b_s = (values[len(values) // 10 :] for values in times_s.values())
    return median(a_s), estimate_median([b / a for a, b in zip(a_s, b_s, strict=True)])


if __name__ == "__main__":
    sys.exit(main())
