"""Can verdicts on two separate runs be trusted? False alarms, and what is missed.

Two parts. `simulated`: runs of 25 cases with noise of known size (scatter of 2 % inside a run, with
a long tail, in which neighbours resemble each other, and 0.3 to 1 % from run to run). `real`:
benchmarks/suites/separate.py run again and again by the command line, as in CI, each run compared
with the one before it: once as it is, and once with 5 % more work.

    python benchmarks/compare.py --part simulated     half a minute
    python benchmarks/compare.py --part real          about 15 minutes, on an idle machine
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from flopwatch.analysis.verdicts import Basis, Comparison, Judgement, compare_runs
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.settings import Settings
from flopwatch.suites.case import case_id, group_id

SUITE = Path(__file__).parent / "suites" / "separate.py"
MAX_FALSE_ALARMS = 0.02
MIN_DETECTED = 0.90
CASES = 25
SAMPLES = 50
FIFTH = CASES // 5
FARTHEST = 3
"""Runs that lie farther apart are not compared."""
SCATTER, ALIKE, TAIL = 0.02, 0.4, 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=["simulated", "real"], default="simulated")
    parser.add_argument("--alarms", type=int, default=500, help="comparisons without a change")
    parser.add_argument("--slowdowns", type=int, default=100, help="comparisons with 5 %% more")
    given = parser.parse_args()
    part: Callable[[int, int], int] = {"simulated": simulate, "real": measure}[given.part]
    return part(given.alarms, given.slowdowns)


def simulate(alarms: int, slowdowns: int) -> int:
    missed = 0
    for run_to_run, runs in ((0.003, 1), (0.007, 1), (0.007, 3), (0.01, 3)):
        same = compare_simulated(alarms // CASES, run_to_run, runs, slowed=0)
        # What is slower stands out among others that are not; or all are slower together.
        some = compare_simulated(slowdowns // FIFTH, run_to_run, runs, slowed=FIFTH)
        every = compare_simulated(slowdowns // CASES, run_to_run, runs, slowed=CASES)
        title = f"simulated, {run_to_run:.1%} from run to run, {runs} on each side"
        slowed = {
            "a fifth of the cases": [one for one in some if one.new.params["case"] < FIFTH],
            "all cases": every,
        }
        missed += report(title, same, slowed)
    return missed


def compare_simulated(times: int, run_to_run: float, runs: int, slowed: int) -> list[Comparison]:
    seeds = np.random.SeedSequence([round(1e4 * run_to_run), runs, slowed]).spawn(times)
    found: list[Comparison] = []
    for seed in seeds:
        generator = np.random.default_rng(seed)
        old = [r for n in range(runs) for r in make_run(generator, f"old {n}", run_to_run)]
        new = [r for n in range(runs) for r in make_run(generator, f"new {n}", run_to_run, slowed)]
        found += compare_runs(old, new).comparisons
    return found


def make_run(
    generator: np.random.Generator, name: str, run_to_run: float, slowed: int = 0
) -> list[Record]:
    factors = [1.05 if case < slowed else 1.0 for case in range(CASES)]
    shifts = np.exp(generator.normal(scale=run_to_run, size=CASES))
    return [
        make_record(name, case, make_samples(generator, float(factors[case] * shifts[case])))
        for case in range(CASES)
    ]


def make_samples(generator: np.random.Generator, factor: float) -> list[float]:
    shocks = generator.normal(size=SAMPLES)
    noise = np.zeros(SAMPLES)
    for place in range(SAMPLES):
        before = noise[place - 1] if place else 0.0
        noise[place] = ALIKE * before + (1 - ALIKE**2) ** 0.5 * shocks[place]
    outliers = np.where(generator.random(SAMPLES) < TAIL, generator.exponential(0.2, SAMPLES), 0)
    return [float(ns) for ns in 1e6 * factor * np.exp(SCATTER * noise + outliers)]


def make_record(run: str, case: int, samples_ns: list[float]) -> Record:
    params = {"case": case}
    return Record(
        case_id=case_id("simulated", "only", params),
        group_id=group_id("simulated", params),
        run_id=run,
        suite="simulated",
        variant="only",
        baseline="only",
        params=params,
        status="ok",
        samples_ns={"step": samples_ns},
        rounds=list(range(SAMPLES)),
        calls_per_sample=[1] * SAMPLES,
        steady=True,
        stop_reason="precise",
        settings=Settings(),
    )


def measure(alarms: int, slowdowns: int) -> int:
    """Runs follow one another, the ones with more work among the others. Each is compared with up
    to three before it, and those with more work with the one before."""
    plain: list[list[Record]] = []
    more: list[tuple[list[Record], list[Record]]] = []
    with tempfile.TemporaryDirectory() as folder:
        while count_pairs(len(plain)) * CASES < alarms or len(more) * CASES < slowdowns:
            plain.append(run_suite(Path(folder), "plain", len(plain)))
            if len(more) * CASES < slowdowns:
                more.append((plain[-1], run_suite(Path(folder), "more", len(more))))
            print(f"{len(plain)} plain runs, {len(more)} with more work", flush=True)
    missed = 0
    bases: tuple[Basis, ...] = ("absolute", "relative")
    for chosen in bases:
        same = [
            compare_runs(plain[first], plain[second], basis=chosen)
            for second in range(len(plain))
            for first in range(max(0, second - FARTHEST), second)
        ]
        later = [compare_runs(old, new, basis=chosen) for old, new in more]
        title = f"real, by {chosen}, {describe_spread(same)} from run to run"
        missed += report(title, choose(same), {"all cases": choose(later)})
    return missed


def count_pairs(runs: int) -> int:
    return sum(min(number, FARTHEST) for number in range(runs))


def describe_spread(judgements: Sequence[Judgement]) -> str:
    known = sorted(found.spread.deviation for found in judgements if found.spread)
    return f"{known[0]:.1%} to {known[-1]:.1%}" if known else "unknown"


def choose(judgements: Sequence[Judgement]) -> list[Comparison]:
    """Without the yardstick, which is the same in all runs."""
    return [o for found in judgements for o in found.comparisons if o.new.variant != "yardstick"]


def run_suite(folder: Path, work: str, number: int) -> list[Record]:
    out = folder / f"{work}-{number}.jsonl"
    command = [sys.executable, "-m", "flopwatch", "run", str(SUITE), "--out", str(out), "--json"]
    subprocess.run(
        [*command, "--case-budget", "1s"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "SEPARATE_WORK": work},
    )
    return read(out).records


def report(
    title: str, same: Sequence[Comparison], slowed: Mapping[str, Sequence[Comparison]]
) -> int:
    """How many of the figures miss their reach."""
    alarms = sum(one.verdict in ("faster", "slower") for one in same) / len(same)
    print(f"{title}: false alarms {alarms:.1%} of {len(same)} (reach: at most 2 %)")
    missed = int(alarms > MAX_FALSE_ALARMS)
    for which, found in slowed.items():
        detected = sum(one.verdict == "slower" for one in found) / len(found)
        print(
            f"{title}: 5 % slower, {which}: detected {detected:.1%} of {len(found)} "
            "(reach: at least 90 %)"
        )
        missed += detected < MIN_DETECTED
    return missed


if __name__ == "__main__":
    sys.exit(main())
