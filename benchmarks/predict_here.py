"""How well steps on this machine are predicted: from its peaks alone, and calibrated by others.

    python benchmarks/predict_here.py                         measures for about ten minutes
    python benchmarks/predict_here.py --results steps.jsonl   judges what was measured before
    python benchmarks/predict_here.py --ranks                 jobs of 2 and 4 ranks, about an hour
    python benchmarks/predict_here.py --ranks --quick         of 2 ranks, in about ten minutes

Wanted are the peaks of this machine (`flopwatch peaks`, the full ones: two quick ones in a row
differ by more than what is judged here). Calibrated means by the records of all other models: the
one that is predicted is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flopwatch.prediction.calibration import calibrate, make_stack, observe
from flopwatch.prediction.fit import predict_s
from flopwatch.prediction.software_stacks import Parameters
from flopwatch.records.record import Record
from flopwatch.records.store import read

MODELS = ("small", "medium", "opt-125m", "gpt-125m")
JUDGED = ("small", "medium", "opt-125m")
FROM_PEAKS, CALIBRATED = 0.15, 0.05
"""Of a step on one rank, for each model."""
JOBS_FROM_PEAKS, JOBS_CALIBRATED = 0.20, 0.08
"""Of jobs of several ranks, the mean over all."""

SIZES = (
    "decoder:hidden_size=256:layers=4",
    "decoder:hidden_size=512:layers=4",
    "decoder:hidden_size=384:layers=8",
)
MIXTURE = "decoder:hidden_size=256:layers=4:experts=4:active_experts=2"
VARIANTS = {
    2: "none,ddp,full,zero2,tp2,tp2+sp,pp2,pp2:gpipe,pp2:interleaved,pp2:zbv",
    4: "none,ddp,full,none+tp2,none+pp2,tp2+pp2,full+tp2,full+pp2,pp4",
}
QUICK = "none,ddp,full,tp2,tp2+sp,pp2"
OF_EXPERTS = "none,none+ep2,full+ep2"


def run(suite: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "flopwatch", "run", suite, *arguments],
        check=False,  # a variant that failed is a row; the others are judged
        stdout=subprocess.DEVNULL,
    )


def measure_steps(path: Path) -> None:
    run(
        *("steps", "--set", f"model={','.join(MODELS)}", "--filter", "variant=eager"),
        *("--filter", "seq_len=128", "--case-budget", "60s", "--out", str(path)),
    )


def measure_jobs(path: Path, *, quick: bool) -> None:
    """Each variant with the others of its model, in turns, so that a slow minute is all of
    theirs. Ranks that share a core are asked for, too."""
    plans: list[tuple[int, str, Sequence[str]]]
    plans = (
        [(2, QUICK, SIZES[:2])] if quick else [(n, words, SIZES) for n, words in VARIANTS.items()]
    )
    if not quick:
        plans.append((2, OF_EXPERTS, (MIXTURE,)))
    for ranks, variants, models in plans:
        for model in models:
            run(
                *("training", "--model", model, "--seq-len", "128", "--micro-batch", "4"),
                *("--ranks", str(ranks), "--grad-accum", "4", "--variant", variants, "--force"),
                *("--case-budget", "20s" if quick else "40s", "--out", str(path)),
            )


def find_error(record: Record, parameters: Parameters) -> float:
    """Of forward and backward together: predicted over measured time, less 1; of a job, of all."""
    passes = [each for each in observe(record) if each.phases != ("optimizer",)]
    predicted_s = sum(predict_s(each, parameters) for each in passes)
    return predicted_s / sum(each.time_s for each in passes) - 1


def judge(records: Sequence[Record]) -> bool:
    expected = make_stack(None, "cpu").parameters
    is_reached = True
    for record in records:
        others = [each for each in records if each.params["model"] != record.params["model"]]
        alone = find_error(record, expected)
        own, _ = calibrate(others)
        fitted = find_error(record, own.parameters)
        together, _ = calibrate(records)
        inside = find_error(record, together.parameters)
        print(
            f"{record.params['model']:10} from peaks alone {100 * alone:+5.1f} %   calibrated by "
            f"the others {100 * fitted:+5.1f} %   by all {100 * inside:+5.1f} %"
        )
        if record.params["model"] in JUDGED:
            is_reached &= abs(alone) <= FROM_PEAKS and abs(inside) <= CALIBRATED
    print(f"reach: within {FROM_PEAKS:.0%} from peaks alone, {CALIBRATED:.0%} calibrated")
    return is_reached


def judge_jobs(records: Sequence[Record]) -> bool:
    """By jobs of the other sizes."""
    expected = make_stack(None, "cpu").parameters
    alone, fitted = [], []
    models = list(dict.fromkeys(record.params["model"] for record in records))
    for model in models:
        own = [record for record in records if record.params["model"] == model]
        parameters, _ = calibrate([record for record in records if record not in own])
        for record in own:
            alone.append(find_error(record, expected))
            fitted.append(find_error(record, parameters.parameters))
            print(
                f"{record.params['ranks']} ranks {record.variant:16} {model:62} from peaks alone "
                f"{100 * alone[-1]:+6.1f} %   calibrated by other sizes {100 * fitted[-1]:+6.1f} %"
            )
    means = [sum(map(abs, errors)) / len(errors) for errors in (alone, fitted)]
    print(
        f"mean of {len(records)}: {means[0]:.1%} from peaks alone, {means[1]:.1%} calibrated; "
        f"reach: {JOBS_FROM_PEAKS:.0%}, {JOBS_CALIBRATED:.0%}"
    )
    return means[0] <= JOBS_FROM_PEAKS and means[1] <= JOBS_CALIBRATED


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", action="store_true", help="jobs of several ranks")
    parser.add_argument("--quick", action="store_true", help="fewer of them")
    parser.add_argument("--results", type=Path, help="of the suite; else they are measured")
    parser.add_argument("--out", type=Path, help="where to keep what is measured")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.results or given.out or Path(folder) / "steps.jsonl"
        if given.results is None and given.ranks:
            measure_jobs(path, quick=given.quick)
        elif given.results is None:
            measure_steps(path)
        found = [record for record in read(path).records if observe(record)]
    if not found:
        sys.exit("nothing was measured whose peaks are known; run `flopwatch peaks` first")
    return 0 if (judge_jobs if given.ranks else judge)(found) else 1


if __name__ == "__main__":
    sys.exit(main())
