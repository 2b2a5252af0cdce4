"""How well steps on this machine are predicted: from its peaks alone, and calibrated by others.

    python benchmarks/predict_here.py                         measures for about ten minutes
    python benchmarks/predict_here.py --results steps.jsonl   judges what was measured before

Wanted are the peaks of this machine (`flopwatch peaks`). Calibrated means by the records of all
other models: the one that is predicted is left out.
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


def measure(path: Path) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", "flopwatch", "run", "steps", "--set"),
            *(f"model={','.join(MODELS)}", "--filter", "variant=eager", "--filter", "seq_len=128"),
            *("--case-budget", "60s", "--out", str(path)),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def find_error(record: Record, parameters: Parameters) -> float:
    """Of forward and backward together: predicted over measured time, less 1."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--results", type=Path, help="of the suite steps; else they are measured")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = given.results or Path(folder) / "steps.jsonl"
        if given.results is None:
            measure(path)
        found = [record for record in read(path).records if observe(record)]
    return 0 if judge(found) else 1


if __name__ == "__main__":
    sys.exit(main())
