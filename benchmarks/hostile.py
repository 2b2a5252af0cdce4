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
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trials import hostile_suites, signals
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
    chosen = paths if is_full else sorted(generator.sample(paths, 40))
    for path in chosen:
        yield path.stem, lambda path=path: hostile_suites.try_suite(path)  # type: ignore[misc]


def plan_signals(generator: random.Random, is_full: bool) -> Iterator[tuple[str, Attempt]]:
    for number in range(1000 if is_full else 30):
        seed = 1000 * generator.randrange(1000) + number
        yield str(seed), lambda seed=seed: signals.try_signal(seed)  # type: ignore[misc]


PARTS = {
    "signals": Part(what="signals to the runner, the server and workers", plan=plan_signals),
    "suites": Part(what="suites that crash, hang, lie and leave processes", plan=plan_suites),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--only", help="attempts by name, separated by commas")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    for name in arguments.part or PARTS:
        part = PARTS[name]
        only = arguments.only.split(",") if arguments.only else None
        plan = part.plan(random.Random(arguments.seed), arguments.full or only is not None)
        attempts = [attempt for title, attempt in plan if only is None or title in only]
        print(f"{name}: {len(attempts)} attempts: {part.what}", flush=True)
        with ThreadPoolExecutor(part.at_once) as pool:
            for outcome in pool.map(lambda attempt: attempt(), attempts):
                outcomes.append(outcome)
                for failure in outcome.failures:
                    print(f"  FAILED {outcome.name}: {failure}", flush=True)
    print_table(outcomes)
    return 1 if any(outcome.failures for outcome in outcomes) else 0


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
