"""How often do intervals hold the truth, and are verdicts right, on the noise of this machine?

Noise is recorded first: what two identical variants of three operations take, round by round, on
the machine as it is and with a neighbour that takes a core at random times
(`verdict_tools/recorded_noise.py`). Then comparisons are made on it, from random rounds on, with
the times of one variant multiplied by a known factor: the truth. Warm-up, stopping rule, intervals
and verdicts are flopwatch's own (`verdict_tools/replay.py`). A comparison may take as long as a
recording.

Kinds of noise:

    quiet, loaded             as recorded, without and with the neighbour; shared: one set of
                              tensors; rebuilt: tensors of their own, built anew every few rounds
    drifting, stepping        recorded without the neighbour, on a machine whose speed goes up and
                              down by a fifth, or falls to two thirds for moments
    clinging                  recorded likewise, but one variant is 1 % slower for about 20 rounds,
                              then 1 % faster: what random order cannot undo. It has no reach

    python benchmarks/coverage.py                        about 3 minutes, on a busy machine longer
    python benchmarks/coverage.py --record noise.json    keeps the recording
    python benchmarks/coverage.py --noise noise.json     takes it from there
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from verdict_tools.outcomes import bound_share, score
from verdict_tools.recorded_noise import (
    Array,
    Noise,
    Window,
    draw_window,
    read_noises,
    record_all,
    write_noises,
)
from verdict_tools.replay import compare_again, holds

from flopwatch.analysis.statistics import estimate_median, judge
from flopwatch.settings import Settings

SHARES = {0: 0.4, 1: 0.12, 2: 0.12, 3: 0.12, 5: 0.12, 20: 0.12}
"""Of the comparisons, by what one variant takes more, in percent."""
FIXED_ROUNDS = (12, 30, 100, 300)
NOMINAL = 0.95
INTERVALS = ("at the end", *(f"after {rounds}" for rounds in FIXED_ROUNDS))
"""At 95 %: when the sampler has stopped, and after so many rounds."""
UNJUDGED = "after 12"
"""Printed, but held against no reach: 12 rounds are too few to see that those between two renewals
resemble each other."""
REACH = (0.93, 0.97)
MAX_FALSE = 0.01
CHUNK = 20
FEWEST = 10

DRIFT, SHORTEST_DRIFT_S, LONGEST_DRIFT_S = 0.2, 0.3, 10.0
STEP, STEP_S = 1.5, 0.05
CLINGING, CLINGING_ROUNDS = 0.01, 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    condition: str
    placement: str
    slow_down: Callable[[Array, np.random.Generator], Array] | None = None
    """By what the machine is slower, at these seconds."""
    is_clinging: bool = False

    @property
    def is_recorded(self) -> bool:
        """And nothing else."""
        return self.slow_down is None and not self.is_clinging


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """One comparison."""

    kind: str
    percent: int
    verdict: str
    rounds: int
    seconds: float
    is_held: dict[str, bool | None]
    """Whether the interval holds the truth, by name of the interval; None: there is none."""


def drift(times_s: Array, rng: np.random.Generator) -> Array:
    period_s = math.exp(rng.uniform(math.log(SHORTEST_DRIFT_S), math.log(LONGEST_DRIFT_S)))
    slowdown: Array = np.exp(DRIFT * np.sin(2 * np.pi * (times_s / period_s + rng.random())))
    return slowdown


def step(times_s: Array, rng: np.random.Generator) -> Array:
    lengths_s = rng.exponential(STEP_S, size=math.ceil(3 * times_s[-1, -1] / STEP_S) + 10)
    is_slow = np.searchsorted(lengths_s.cumsum(), times_s) % 2 == 1
    return np.where(is_slow, STEP, 1.0)


KINDS = {
    "quiet, shared": Kind(condition="quiet", placement="shared"),
    "loaded, shared": Kind(condition="loaded", placement="shared"),
    "quiet, rebuilt": Kind(condition="quiet", placement="rebuilt"),
    "loaded, rebuilt": Kind(condition="loaded", placement="rebuilt"),
    "drifting": Kind(condition="quiet", placement="shared", slow_down=drift),
    "stepping": Kind(condition="quiet", placement="shared", slow_down=step),
    "clinging": Kind(condition="quiet", placement="shared", is_clinging=True),
}


def main() -> int:
    given = parse_arguments()
    noises = read_noises(given.noise) if given.noise else record_all(given.seconds)
    if given.record:
        write_noises(given.record, noises)
    for name, kind in KINDS.items():
        if not choose(noises, kind):
            sys.exit(f"{given.noise} has no noise for {name!r}; record it anew with --record")
    found = simulate_all(noises, given.count)
    for name, kind in KINDS.items():
        titles = ", ".join(noise.title for noise in choose(noises, kind))
        print_kind(f"{name} ({titles})", [one for one in found if one.kind == name])
    print()
    return int(print_figures(found) > 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000, help="comparisons for each kind")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each of 12 recordings")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--noise", type=Path, help="file of a recording to take")
    source.add_argument("--record", type=Path, help="file to keep the recording in")
    given = parser.parse_args()
    if given.count < FEWEST:
        parser.error(f"--count: at least {FEWEST}, so that there are some of each difference")
    return given


def choose(noises: Sequence[Noise], kind: Kind) -> list[Noise]:
    return [n for n in noises if (n.condition, n.placement) == (kind.condition, kind.placement)]


def simulate_all(noises: Sequence[Noise], count: int) -> list[Simulated]:
    """On all cores, in processes without torch."""
    chunks = list(plan(count))
    context = multiprocessing.get_context("spawn")
    with context.Pool(initializer=hold_noises, initargs=(noises,)) as pool:
        return [one for found in pool.imap_unordered(simulate_chunk, chunks) for one in found]


_noises: list[Noise] = []
"""In a process that simulates."""


def hold_noises(noises: Sequence[Noise]) -> None:
    _noises.extend(noises)


def plan(count: int) -> Iterator[list[tuple[str, int, int]]]:
    """Chunks of comparisons: kind, percent, number."""
    for name in KINDS:
        for percent, share in SHARES.items():
            tasks = [(name, percent, number) for number in range(round(share * count))]
            yield from (tasks[start : start + CHUNK] for start in range(0, len(tasks), CHUNK))


def simulate_chunk(tasks: Sequence[tuple[str, int, int]]) -> list[Simulated]:
    return [simulate(_noises, *task) for task in tasks]


def simulate(noises: Sequence[Noise], name: str, percent: int, number: int) -> Simulated:
    kind, truth = KINDS[name], 1 + percent / 100
    rng = np.random.default_rng([list(KINDS).index(name), percent, number])
    chosen = choose(noises, kind)
    noise = chosen[number % len(chosen)]
    window = make_window(noise, kind, rng)
    # Both variants have a budget, which they share.
    settings = Settings(seed=number, budget_s=noise.seconds / 2)
    compared = compare_again(window, truth, settings)
    reported = estimate_median(compared.ratios)
    is_held = {
        "reported": holds(reported, truth),
        "at the end": holds(estimate_median(compared.ratios, NOMINAL), truth),
    }
    if kind.is_recorded:
        whole_ns = median([*noise.first_ns, *noise.second_ns])
        is_held["time"] = holds(estimate_median(compared.times_ns, NOMINAL), whole_ns)
    ratios = (truth * window.b_ns / window.a_ns).tolist()
    for rounds in FIXED_ROUNDS:
        fixed = estimate_median(ratios[:rounds], NOMINAL)
        is_held[f"after {rounds}"] = holds(fixed, truth) if rounds <= len(ratios) else None
    return Simulated(
        kind=name,
        percent=percent,
        verdict=judge(reported.inverse()),
        rounds=len(compared.ratios),
        seconds=compared.seconds,
        is_held=is_held,
    )


def make_window(noise: Noise, kind: Kind, rng: np.random.Generator) -> Window:
    slowdown = None
    if kind.slow_down is not None:
        starts_s = np.cumsum([0.0, *noise.rounds_ns[:-1]]) / 1e9
        halves_s = np.array(noise.rounds_ns) / 2e9
        slowdown = kind.slow_down(np.array([starts_s, starts_s + halves_s]), rng)
    window = draw_window(noise, rng, slowdown)
    if kind.is_clinging:
        lengths = rng.exponential(CLINGING_ROUNDS, size=len(window.b_ns)).cumsum()
        turn = np.searchsorted(lengths, np.arange(len(window.b_ns))) + rng.integers(2)
        window = replace(window, b_ns=window.b_ns * np.exp(CLINGING * (-1.0) ** turn))
    return window


def print_kind(title: str, found: Sequence[Simulated]) -> None:
    print(f"\n{title}")
    print("  truth       of   99 %   95 %  right  wrong  undecided  rounds  seconds")
    for percent in SHARES:
        chosen = [one for one in found if one.percent == percent]
        scores = [score(one.verdict, percent, "b") for one in chosen]
        right, wrong, undecided = (
            scores.count(which) / len(chosen) for which in ("right", "wrong", "undecided")
        )
        print(
            f"  {f'+{percent} %' if percent else 'identical':9}{len(chosen):5}"
            f"{count_held(chosen, 'reported')[0]:7.1%}{count_held(chosen, 'at the end')[0]:7.1%}"
            f"{right:7.1%}{wrong:7.1%}{undecided:11.1%}"
            f"{median(one.rounds for one in chosen):8.0f}"
            f"{median(one.seconds for one in chosen):9.2f}"
        )
    if "time" in found[0].is_held:
        share, _ = count_held(found, "time")
        print(f"  95 % intervals of one variant's time hold the whole recording's: {share:.1%}")


def count_held(found: Sequence[Simulated], interval: str) -> tuple[float, int]:
    """Share of the intervals that hold the truth, and how many there are."""
    held = [is_held for one in found if (is_held := one.is_held[interval]) is not None]
    return sum(held) / max(1, len(held)), len(held)


def print_figures(found: Sequence[Simulated]) -> int:
    """How many miss their reach."""
    recorded = [one for one in found if KINDS[one.kind].is_recorded]
    distorted = [one for one in found if KINDS[one.kind].slow_down is not None]
    share, count = count_held(recorded, "reported")
    print(f"recorded noise: reported intervals, at 99 %, hold the truth in {share:.1%} of {count}")
    missed = print_intervals("recorded noise", recorded, errors=0)
    missed += print_false("recorded noise", recorded)
    missed += print_false("drifting and stepping", distorted)
    for name, kind in KINDS.items():
        errors = math.inf if kind.is_clinging else 2
        missed += print_intervals(name, [o for o in found if o.kind == name], errors=errors)
    return missed


def print_intervals(name: str, found: Sequence[Simulated], *, errors: float) -> int:
    """So many standard errors beyond the reach are put down to chance; without end: no reach."""
    low, high = REACH
    shares: list[str] = []
    is_reached = True
    for interval in INTERVALS:
        share, count = count_held(found, interval)
        if count == 0:  # no recording has so many rounds
            continue
        allowed = errors * math.sqrt(NOMINAL * (1 - NOMINAL) / count)
        is_within = low - allowed <= share <= high + allowed
        is_reached &= is_within or interval == UNJUDGED
        shares.append(f"{share:.1%} {interval}")
    text = f"{name}: 95 % intervals hold the truth in {', '.join(shares)} rounds, of {len(found)}"
    if errors == math.inf:
        print(text)
        return 0
    by_chance = f", give or take {errors:g} standard errors" if errors else ""
    return print_figure(text, f"{low:.0%} to {high:.0%}{by_chance}", is_reached)


def print_false(name: str, found: Sequence[Simulated]) -> int:
    scores = [score(one.verdict, 0, "b") for one in found if one.percent == 0]
    false = scores.count("wrong") / len(scores)
    at_most = bound_share(false, len(scores))
    text = f"{name}: identical called different {false:.2%} of {len(scores)}"
    return print_figure(
        f"{text} (at most {at_most:.1%} at 95 %)", f"at most {MAX_FALSE:.0%}", false <= MAX_FALSE
    )


def print_figure(text: str, reach: str, is_reached: bool) -> int:
    print(f"{text} (reach: {reach}): {'reached' if is_reached else 'MISSED'}")
    return int(not is_reached)


if __name__ == "__main__":
    sys.exit(main())
