"""The MosaicGPT tables: a Markdown row for every training job.

A row prints one speed three times: tokens a second of all GPUs and of one, and sequences a second.
The step's time is made from a speed that all three are roundings of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flopwatch.errors import UsageError
from flopwatch.jobs.parallelism import Parallelism, find_sharding
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.records.foreign import make_published, name_run, parse_figure
from flopwatch.records.record import Record
from flopwatch.suites.case import Case

BASELINE = "none"
DRIVER_NAMES = {"a100_80gb": "NVIDIA A100-SXM4-80GB", "a100_40gb": "NVIDIA A100-SXM4-40GB"}
"""The tables do not say SXM or PCIe; the peaks of both are the same."""
NEEDED = (
    *("Model", "SeqLen (T)", "Throughput (T/s)", "GPUThroughput (T/s/GPU)", "Throughput (S/s)"),
    *("GlobalBatchSize (T)", "GlobalBatchSize (S)", "MicroBatchSize (S)", "GradAccum"),
    *("ShardStrategy", "ActCkpt", "Precision", "NumGPUs", "GPUType"),
)
PRINTED = {
    "model": "Model",
    "device": "GPUType",
    "cpu_offload": "ActCPUoffload",
    "mixed_precision_mode": "MP Mode",
    "cluster": "Cluster",
}
"""Words that a record has no field for, by the keys of our own table of that layout."""


def read_mosaic(text: str) -> list[Record]:
    """What is no table, and tables with other headings, are passed over."""
    run = name_run("mosaic", text)
    headings: list[str] = []
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|"):
            headings = []
        elif not headings:
            headings = cells
        elif set(NEEDED) <= set(headings) and set(line) - set("|-: "):
            records.append(_make_record(run, number, headings, cells))
    if not records:
        raise UsageError(
            "there is no table of the MosaicGPT benchmark in it; give its Markdown, with the "
            "headings Model, SeqLen (T), ..., Cluster"
        )
    return records


def _make_record(run: str, number: int, headings: list[str], cells: list[str]) -> Record:
    if len(cells) != len(headings):
        raise UsageError(
            f"line {number} has {len(cells)} cells below {len(headings)} headings; mend or delete "
            "it"
        )
    row = dict(zip(headings, cells, strict=True))  # of the two GPUType, the last: without a number
    try:
        return _convert(run, number, row)
    except (KeyError, ValueError, UsageError) as error:
        raise UsageError(
            f"line {number} has a cell that no table of MosaicGPT has ({error}); mend or delete it"
        ) from None


def _convert(run: str, number: int, row: Mapping[str, str]) -> Record:
    tokens = int(parse_figure(row["GlobalBatchSize (T)"]))
    recompute = {"True": "+recompute-full", "False": ""}[row["ActCkpt"]]
    parallelism = Parallelism(
        data=int(row["NumGPUs"]), sharding=find_sharding(row["ShardStrategy"])
    )
    variant = parallelism.sharding + recompute
    params: dict[str, Any] = {
        "model": row["Model"].replace("gpt", "gpt-"),
        "seq_len": int(row["SeqLen (T)"]),
        "ranks": parallelism.data,
        "micro_batch": int(row["MicroBatchSize (S)"]),
        "grad_accum": int(row["GradAccum"]),
        "precision": row["Precision"],
    }
    job = TrainingJob(
        **{name: value for name, value in params.items() if name != "ranks"},
        parallelism=parallelism,
    )
    printed = {key: row[heading] for key, heading in PRINTED.items() if heading in row}
    return make_published(
        run,
        Case(suite="training", variant=variant, params=params),
        printed={"line": number, **printed},
        gpu=DRIVER_NAMES.get(row["GPUType"].lower(), row["GPUType"]),
        times_ns={"step": tokens / _find_tokens_per_s(row) * 1e9},
        baseline=BASELINE,
        job=parse_variant(job, variant).to_dict(),
        facts={
            "tokens": float(tokens),
            "sequences": float(row["GlobalBatchSize (S)"]),
            "micro_batch": float(row["MicroBatchSize (S)"]),
            "grad_accum": float(row["GradAccum"]),
            # Not "parameters": these models have a learned position for each token of a sequence,
            # ours have 2048.
        },
    )


def _find_tokens_per_s(row: Mapping[str, str]) -> float:
    """In the middle of what all three printed speeds allow."""
    factors = {
        "Throughput (T/s)": 1,
        "GPUThroughput (T/s/GPU)": int(row["NumGPUs"]),
        "Throughput (S/s)": int(row["SeqLen (T)"]),
    }
    bounds = []
    for heading, factor in factors.items():
        half = 0.5 * 10.0 ** -len(row[heading].partition(".")[2])
        speed = parse_figure(row[heading])
        bounds.append(((speed - half) * factor, (speed + half) * factor))
    low, high = max(low for low, _ in bounds), min(high for _, high in bounds)
    if not 0 < low < high:
        raise ValueError("its three speeds contradict one another")
    return (low + high) / 2
