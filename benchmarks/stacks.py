"""Fit the cost model to the published tables, and write the named sets that it ships with.

python benchmarks/stacks.py            print what was found, and how far it is determined
python benchmarks/stacks.py --write    and write src/flopwatch/prediction/data/stacks.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import flopwatch.prediction
from flopwatch.prediction.fit import EARLY, LATE, OLD, Fit, find_family, fit, load_published
from flopwatch.prediction.validation import Trial, find_interval, group_by_size, hold_out

PATH = Path(flopwatch.prediction.__file__).parent / "data" / "stacks.json"
SOURCES = {
    OLD: "MosaicGPT throughput tables, 2023 (published:mosaic)",
    EARLY: "llm-foundry throughput tables, rows on A100 of 40 GB",
    LATE: "llm-foundry throughput tables, rows on A100 of 80 GB",
}
DIGITS = 4


def describe_stack(name: str, found: Fit, trials: list[Trial]) -> dict[str, object]:
    """Of the intervals of a family's stacks, one: few rows make poor quantiles."""
    relatives = [t for t in trials if find_family(t.observation.stack) == find_family(name)]
    own = [trial.observation for trial in trials if trial.observation.stack == name]
    low, high = find_interval(trial.surprise for trial in relatives)
    parameters = asdict(found.parameters[name])
    return {
        "family": find_family(name),
        "source": SOURCES[name],
        "rows": len(own),
        "devices": sorted({observation.machine.name for observation in own}),
        "low": round(low, DIGITS),
        "high": round(high, DIGITS),
        "parameters": {key: float(f"{value:.{DIGITS}g}") for key, value in parameters.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true")
    is_written = parser.parse_args().write
    observations = load_published()
    found = fit(observations)
    for one in found.found:
        whose = "all" if len(one.unknown.stacks) == len(SOURCES) else ", ".join(one.unknown.stacks)
        print(
            f"{one.unknown.name:22} {one.value:9.4g}  ±{100 * one.error:3.0f} %  "
            f"{100 * one.determined:3.0f} % determined  {whose}"
        )
    trials = hold_out(observations, group_by_size)
    content = {name: describe_stack(name, found, trials) for name in SOURCES}
    for name, stack in content.items():
        print(
            f"{name}: measured / predicted tokens/s of 9 in 10: {stack['low']} to {stack['high']}"
        )
    if is_written:
        PATH.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
