"""Results for every kind of plot, with numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flopwatch.analysis.summary import summarize
from flopwatch.devices.measured_peaks import Curve, Matmul, Peaks, Stream, read_setup, shorten
from flopwatch.jobs.flops import count_micro_batch_flops
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob, parse_variant
from flopwatch.output.plots import KINDS, Plot
from flopwatch.records.record import (
    PhaseMemory,
    Rank,
    RankMemory,
    RankTimeline,
    Record,
    Region,
)
from tests.analysis.test_quality import DENSE, trained

from .conftest import make_record
from .monitor_tools import make_stalled_run

MS = 1e6


def compare(speeds: dict[str, float], group: str = "g", **changes: object) -> list[Record]:
    """Variants of one case, each so many times as fast as a baseline of 10 ms."""
    return [
        make_record(
            case_id=f"{group} {variant}",
            group_id=group,
            variant=variant,
            baseline="dense",
            **{"samples_ns": {"call": [10 * MS / speed] * 20}, **changes},
        )
        for variant, speed in speeds.items()
    ]


SPEEDUPS = [
    *compare({"dense": 1, "fast": 2, "slow": 0.5}, "one", params={"size": 4}),
    *compare({"dense": 1, "fast": 2.5}, "two", params={"size": 8}),
]
COUNTS = {16: 0.5, 64: 0.8, 256: 1.25, 1024: 1.6}
BREAK_EVEN = [
    record
    for tokens, speed in COUNTS.items()
    for record in compare({"dense": 1, "fast": speed}, str(tokens), params={"tokens": tokens})
]
WARMING = [40 * MS, 20 * MS] + [10 * MS, 12 * MS] * 9
SAMPLES = [make_record(samples_ns={"call": WARMING}, warmup_samples=2)]
TWO_MODES = [make_record(samples_ns={"call": ([10 * MS] * 5 + [20 * MS] * 5) * 2})]
PARTS = [
    make_record(
        samples_ns={"forward": [2 * MS] * 20, "backward": [6 * MS] * 20},
        instrumented_ns=[10 * MS] * 20,
        regions={
            "forward/attention": Region(calls=2, samples_ns=[1 * MS] * 20),
            "backward/attention": Region(calls=2, samples_ns=[2.5 * MS] * 20),
        },
    )
]
JOBS = [
    make_record(
        case_id=f"{variant} {ranks}",
        group_id=str(ranks),
        variant=variant,
        baseline="ddp",
        params={"model": "tiny", "ranks": ranks},
        samples_ns={"call": [time_ms * MS] * 20},
        facts={"tokens": 100.0 * ranks},
        ranks=[
            Rank(
                samples_ns={"call": [time_ms * MS] * 20},
                waiting_ns=[0.0] * 20,
                transfer_ns=[0.0] * 20,
            )
        ]
        * ranks,
    )
    for ranks in (1, 2, 4)
    for variant, time_ms in {"ddp": 10.0 * (1 + (ranks - 1) / 4), "shard": 20.0}.items()
]
SIZES = [
    make_record(
        case_id=f"{model} {context}",
        group_id=f"{model} {context}",
        params={"model": model, "context": context},
        samples_ns={"call": [context * MS] * 20},
        facts={"tokens": float(context), "parameters": parameters},
        flops={"call": {"float32": 5e8 * context}},
    )
    for model, parameters in {"small": 1e6, "large": 1e8}.items()
    for context in (32, 64)
]
MEMORY = [
    make_record(
        memory={"forward": PhaseMemory(peak_bytes=2**20, end_bytes=2**19)},
        resident_bytes=2**20,
        predicted_memory_bytes={"parameters": 2.0**20, "nothing": 0.0, "activations": 2.0**20},
    ),
    make_record(
        case_id="j", group_id="h", params={"size": 8}, status="skipped", samples_ns={}, rounds=[],
        calls_per_sample=[], predicted_memory_bytes={"parameters": 2.0**21},
    ),
]  # fmt: skip
PREDICTED = [
    make_record(
        case_id=str(step_s), group_id=str(step_s), params={"size": step_s},
        samples_ns={"call": [10 * MS] * 20},
        prediction={"step_s": step_s, "low_s": 0.8 * step_s / 0.9, "high_s": 1.25 * step_s / 0.9},
    )
    for step_s in (0.009, 0.02)
]  # fmt: skip
LOSSES = [DENSE, trained("fast", 5e6, [5.0, 4.0, 3.0, 2.5])]


def add_peaks(record: Record, flops_per_s: float, bytes_per_s: float) -> Record:
    """As if `flopwatch peaks` had measured these before it."""
    matmul = Matmul(rows=8, inner=8, columns=8, flops_per_s=flops_per_s, blocks=3, repeats=2)
    peaks = Peaks(
        setup=read_setup(record.environment, record.settings),
        measured_at="2026-11-16T12:00:00+00:00",
        quick=True,
        matmuls=[Curve(dtype="float32", measured_at="2026-11-16T12:00:00+00:00", points=[matmul])],
        streams=[Stream(kernel="triad", size_bytes=2**30, bytes_per_s=bytes_per_s)],
        cache_bytes=2**20,
    )
    return replace(record, environment={**record.environment, "peaks": shorten(peaks)})


INTENSE = make_record(
    samples_ns={"call": [1e9] * 20}, flops={"call": {"float32": 5e9}}, bytes={"call": 1e9}
)
ROOFLINE = [add_peaks(INTENSE, flops_per_s=1e11, bytes_per_s=1e10)]

MODEL = "decoder:hidden_size=64:layers=2:vocabulary=256"


def make_step(variant: str = "eager", factor: float = 1.0, **changes: object) -> Record:
    """A training step of a small model: 10 ms, with regions and its true FLOPs."""
    job = TrainingJob(MODEL, 32, micro_batch=8, precision="fp32")
    job = parse_variant(job, variant)
    flops = count_micro_batch_flops(job)
    times_ns = {"forward": 3e6, "backward": 6e6, "optimizer": 1e6}
    regions = {"forward/attention": 1e6, "forward/head": 0.5e6, "backward/attention": 2e6}
    content: dict[str, object] = {
        "case_id": variant,
        "suite": "steps",
        "variant": variant,
        "baseline": "eager",
        "params": {
            "model": MODEL, "micro_batch": 8, "seq_len": 32, "precision": "fp32",
            "optimizer": "adamw",
        },
        "job": job.to_dict(),
        "samples_ns": {phase: [factor * ns] * 20 for phase, ns in times_ns.items()},
        "instrumented_ns": [factor * 10e6] * 20,
        "regions": {
            name: Region(calls=2, samples_ns=[factor * ns] * 20) for name, ns in regions.items()
        },
        "flops": flops,
        "conditions": {"dtype": "float32", "autocast": "off"},
    }  # fmt: skip
    return make_record(**{**content, **changes})


BREAKDOWN = [
    add_peaks(make_step(), 1e11, 1e10),
    add_peaks(make_step("compiled", 0.1, regions={}, instrumented_ns=[]), 1e11, 1e10),
]

PIPELINE = TrainingJob(
    MODEL, 32, grad_accum=2, precision="fp32", parallelism=Parallelism(pipeline=2)
)


def make_lane(stage: int, *spans: tuple[str, float, float, int | None, str]) -> RankTimeline:
    kinds, begins, ends, micro_batches, exchanges = zip(*spans, strict=True)
    return RankTimeline(
        kind=list(kinds),
        begin_ns=[MS * begin for begin in begins],
        end_ns=[MS * end for end in ends],
        stage=[None if number is None else stage for number in micro_batches],
        micro_batch=list(micro_batches),
        exchange=list(exchanges),
    )


def make_pipeline() -> Record:
    """Two stages and two micro-batches: the second stage waits first, the first one last."""
    first = make_lane(
        0,
        ("forward", 0, 3, 0, ""),
        ("forward", 3, 6, 1, ""),
        ("bubble", 6, 8, None, "receive from rank 1"),
        ("transfer", 8, 9, None, "receive from rank 1"),
        ("backward", 9, 10, 0, ""),
    )
    second = make_lane(1, ("bubble", 0, 3, None, "receive from rank 0"), ("forward", 3, 8, 0, ""))
    return make_record(
        case_id="pp2",
        variant="pp2",
        suite="training",
        params={"model": MODEL, "ranks": 2},
        job=PIPELINE.to_dict(),
        samples_ns={"forward-backward": [10 * MS] * 20},
        ranks=[
            Rank(
                samples_ns={"forward-backward": [10 * MS] * 20},
                waiting_ns=[0.0] * 20,
                transfer_ns=[MS] * 20,
                bubble_ns=[bubble * MS] * 20,
            )
            for bubble in (2.0, 5.0)
        ],
        rank_memory=[
            RankMemory(resident_bytes=2**20, peak_memory_bytes=peak) for peak in (2**20, 2**21)
        ],
        timeline=[first, second],
    )


MONITORED = make_stalled_run()

GALLERY: dict[str, list[Record]] = {
    "timeline": MONITORED,
    "mean-step": MONITORED,
    "goodput": MONITORED,
    "stragglers": MONITORED,
    "speedups": SPEEDUPS,
    "break-even": BREAK_EVEN,
    "losses": LOSSES,
    "scaling": JOBS,
    "throughput": SIZES,
    "parts": PARTS,
    "roofline": ROOFLINE,
    "breakdown": BREAKDOWN,
    "memory": MEMORY,
    "predictions": PREDICTED,
    "mfu": [add_peaks(record, flops_per_s=1e12, bytes_per_s=1e10) for record in SIZES],
    "ranks": [make_pipeline()],
    "samples": SAMPLES,
    "distribution": TWO_MODES,
}
"""By kind of plot: records that give one."""


def draw(name: str, records: list[Record] | None = None) -> list[Plot]:
    """All plots of that kind."""
    return list(KINDS[name].make(summarize(GALLERY[name] if records is None else records)))


def series(plot: Plot, name: str) -> list[dict[str, Any]]:
    """The points of one series."""
    return [point for point in plot.data["points"] if point["series"] == name]


def texts(plot: Plot, data: str, field: str = "text") -> list[str]:
    return [row[field] for row in plot.data[data]]


def encodings(plot: Plot, channel: str) -> list[dict[str, Any]]:
    """What every layer says of a channel, where it says something."""
    found = [layer["encoding"].get(channel) for layer in plot.layers]
    return [encoding for encoding in found if encoding is not None]


def axis(plot: Plot, channel: str) -> dict[str, Any]:
    """The first encoding that has an axis."""
    return next(one for one in encodings(plot, channel) if one.get("axis"))


def legend(plot: Plot, channel: str) -> list[str]:
    """The names of a legend, in order."""
    shown = next(one for one in encodings(plot, channel) if one.get("legend"))
    names: list[str] = shown["scale"]["domain"]
    return names
