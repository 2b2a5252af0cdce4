"""What a hostile week does to flopwatch: signals, suites, files, environments, disks, ranks.

    python benchmarks/hostile.py                      a few minutes
    python benchmarks/hostile.py --full               an hour: everything, 1,000 signals
    python benchmarks/hostile.py --part suites --only leaves_a_daemon

The table says how much was tried and what failed; below it, every failure by name. The exit code
is 1 if anything failed. Nothing leaves temporary folders, and nothing is sent beyond this machine.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from trials import (
    environments,
    foreign_files,
    fuzzed_files,
    hostile_suites,
    monitor_kills,
    poisoned_records,
    rank_faults,
    signals,
)
from trials.trial import Outcome

AT_ONCE = 2
"""Attempts: as many as the smallest machine has cores."""

Attempt = Callable[[], Outcome]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    what: str
    plan: Callable[[random.Random, bool], Iterator[tuple[str, Attempt]]]
    """Attempts by name; the flag asks for all of them."""
    at_once: int = AT_ONCE


def plan_suites(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    paths = hostile_suites.list_suites()
    for path in paths if is_full else sorted(generator.sample(paths, 40)):
        yield path.stem, partial(hostile_suites.try_suite, path)


def plan_signals(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    for seed in generator.sample(range(10**6), 1000 if is_full else 30):
        yield str(seed), partial(signals.try_signal, seed)


def plan_files(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    for seed in generator.sample(range(10**9), 10_000 if is_full else 100):
        yield str(seed), partial(fuzzed_files.try_file, seed)


def plan_foreign_files(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    for writer in foreign_files.WRITERS:
        contents = list(foreign_files.CONTENTS)
        some = contents if is_full else generator.sample(contents, 2)
        for content in (foreign_files.FRESH, *some):
            yield f"{writer}: {content}", partial(foreign_files.try_foreign_file, writer, content)


def plan_environments(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    names = list(environments.ODD)
    for name in names if is_full else generator.sample(names, 20):
        yield name, partial(environments.try_environment, name)


def plan_ranks(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    for fault in rank_faults.STATUSES:
        yield fault, partial(rank_faults.try_fault, fault)
    for kind in ("commands", "garbage", "is silent", "says hello"):
        yield kind, partial(rank_faults.try_stranger, kind)


def plan_monitor(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    for seed in generator.sample(range(10**6), 200 if is_full else 20):
        yield str(seed), partial(monitor_kills.try_kill, seed)


def plan_poisoned(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    if poisoned_records.BROWSER is None:
        print("poisoned: Chromium is not installed; nothing is tried")
        return
    names = list(poisoned_records.PAYLOADS)
    chosen = names if is_full else [names[0], *generator.sample(names[1:], 5)]
    for name in chosen:
        yield name, partial(poisoned_records.try_payload, name)


PARTS = {
    "signals": Part(
        what="signals to the runner, the server, its watcher and workers", plan=plan_signals
    ),
    "suites": Part(what="suites that crash, hang, lie and leave processes", plan=plan_suites),
    # In this process, whose output they capture: one at a time.
    "files": Part(what="damaged files through every reader", plan=plan_files, at_once=1),
    "foreign files": Part(what="other people's files as outputs", plan=plan_foreign_files),
    "poisoned": Part(
        what="records that attack a browser, in reports", plan=plan_poisoned, at_once=1
    ),
    "environments": Part(what="locales, limits, closed descriptors", plan=plan_environments),
    "monitor": Part(what="training loops with a monitor, killed", plan=plan_monitor),
    "torchrun": Part(what="ranks that fail, and strangers", plan=plan_ranks, at_once=1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--only", help="attempts by name, separated by commas")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # A shell has what it starts in the background ignore them, and so would all that is tried.
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    outcomes: list[Outcome] = []
    for name in arguments.part or PARTS:
        part = PARTS[name]
        only = arguments.only.split(",") if arguments.only else None
        plan = part.plan(random.Random(arguments.seed), arguments.full or only is not None)
        attempts = [attempt for title, attempt in plan if only is None or title in only]
        print(f"{name}: {len(attempts)} attempts: {part.what}", flush=True)
        for count, outcome in enumerate(try_all(attempts, part.at_once), start=1):
            outcomes.append(outcome)
            for failure in outcome.failures:
                print(f"  FAILED {outcome.name}: {failure}", flush=True)
            if count % 100 == 0:
                print(f"  {count} tried", flush=True)
    print_table(outcomes)
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def try_all(attempts: list[Attempt], at_once: int) -> Iterator[Outcome]:
    """Until the last one, or Ctrl-C."""
    with ThreadPoolExecutor(at_once) as pool:
        try:
            yield from pool.map(lambda attempt: attempt(), attempts)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)


def print_table(outcomes: list[Outcome]) -> None:
    print(f"\n{'part':14}{'tried':>7}{'failed':>8}  failures by kind   (reach: none)")
    for part in dict.fromkeys(outcome.part for outcome in outcomes):
        of_part = [outcome for outcome in outcomes if outcome.part == part]
        kinds = Counter(f.partition(":")[0] for outcome in of_part for f in outcome.failures)
        failed = sum(bool(outcome.failures) for outcome in of_part)
        listed = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common()) or "-"
        print(f"{part:14}{len(of_part):>7}{failed:>8}  {listed}")


if __name__ == "__main__":
    sys.exit(main())
