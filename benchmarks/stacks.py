"""Fit the cost model to the published tables, and write the named sets that it ships with.

python benchmarks/stacks.py            print what was found, and how far it is determined
python benchmarks/stacks.py --write    and write src/flopwatch/prediction/data/stacks.json
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import flopwatch.prediction
from flopwatch.prediction.fit import fit
from flopwatch.prediction.intervals import find_unseen_reach
from flopwatch.prediction.predictions import KINDS, has_kind
from flopwatch.prediction.published_steps import Observation, find_family, load_published
from flopwatch.prediction.software_stacks import (
    EARLY,
    LATE,
    LEAST_SPREAD,
    MEGATRON,
    OLD,
    SHARDED,
    TYPICAL,
    ZERO3,
    Parameters,
)
from flopwatch.prediction.validation import (
    SPLITS,
    Trial,
    find_own_reach,
    hold_out,
    list_deviations,
)

PATH = Path(flopwatch.prediction.__file__).parent / "data" / "stacks.json"
SOURCES = {
    OLD: "MosaicGPT throughput tables, 2023 (published:mosaic)",
    EARLY: "llm-foundry throughput tables, rows on A100 of 40 GB",
    LATE: "llm-foundry throughput tables, rows on A100 of 80 GB",
    "megatron-deepspeed-2021": "bigscience, experiments/tr3m-1B3.md and gpt2.md (Apache 2.0)",
    "megatron-deepspeed-2022": "bigscience, chronicles-prequel.md of tr11-176B-ml (Apache 2.0)",
    "megatron-deepspeed-2023": "VIA-Research/vTrain, data/ (MIT)",
    ZERO3: "bigscience, experiments/gpt2.md; Narayanan et al. 2021, table 2",
    MEGATRON: "Narayanan et al. 2021, tables 1 and 2; Korthikanti et al. 2022, table 5",
    "internevo-2024": "InternLM/InternEvo, doc/en/train_performance.md (Apache 2.0)",
    TYPICAL: "what all of these have in common",
}
DIGITS = 4


def describe_stack(
    name: str,
    parameters: Parameters,
    errors: Mapping[str, float],
    own: Sequence[Observation],
    reach: float,
) -> dict[str, object]:
    together = [each for each in load_published() if each.stack in SHARDED]
    near = together if name in SHARDED else own  # by one team, with one software
    return {
        "family": find_family(name),
        "source": SOURCES[name],
        "rows": len(own),
        "devices": sorted({observation.machine.name for observation in own}),
        "precisions": sorted({observation.job.precision for observation in own}),
        "most_ranks": max(observation.job.ranks for observation in near),
        "kinds": [kind for kind in KINDS if any(has_kind(each.job, kind) for each in own)],
        "low": round(math.exp(-reach * LEAST_SPREAD), DIGITS),
        "high": round(math.exp(reach * LEAST_SPREAD), DIGITS),
        "parameters": {
            key: float(f"{value:.{DIGITS}g}") for key, value in asdict(parameters).items()
        },
        "errors": {key: float(f"{value:.2g}") for key, value in errors.items()},
    }


def find_stack_reach(name: str, sizes: Sequence[Trial], sources: Sequence[Trial]) -> float:
    """One for a family's stacks: few rows make poor quantiles."""
    if name == TYPICAL:
        return find_unseen_reach(list_deviations(sources))
    family = find_family(name)
    return find_own_reach([t for t in sizes if find_family(t.observation.stack) == family], sizes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true")
    is_written = parser.parse_args().write
    observations = load_published()
    found = fit(observations)
    for one in found.found:
        whose = "all" if one.unknown.is_common else ", ".join(one.unknown.stacks)
        print(
            f"{one.unknown.name:22} {one.value:9.4g}  ±{100 * one.error:3.0f} %  "
            f"{100 * one.determined:3.0f} % determined  {whose}"
        )
    sizes, sources = (
        [t for t in hold_out(observations, SPLITS[name]) if not t.observation.is_doubtful]
        for name in ("a size left out", "a source left out")
    )
    content = {}
    for name in SOURCES:
        own = [each for each in observations if name in (each.stack, TYPICAL)]
        parameters = found.parameters.get(name, found.common)
        errors = found.errors.get(name, found.common_errors)
        reach = find_stack_reach(name, sizes, sources)
        content[name] = describe_stack(name, parameters, errors, own, reach)
        print(
            f"{name}: measured / predicted tokens/s of 9 in 10: {content[name]['low']} to "
            f"{content[name]['high']}"
        )
    if is_written:
        PATH.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {PATH}")


if __name__ == "__main__":
    main()
