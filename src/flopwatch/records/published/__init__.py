"""Published benchmarks as records, to compare your own results with.

The files in `data` have the figures that were published, in the formats that they were published
in, and not a sentence. A format's reader also reads the original, prose included, and whatever
somebody else has measured and written in that format. From records the layouts of `report` print
every figure again, to its last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any, Literal

from flopwatch.errors import UsageError
from flopwatch.records.published.published_cs336 import read_cs336
from flopwatch.records.published.published_dyad import read_dyad
from flopwatch.records.published.published_mosaic import read_mosaic
from flopwatch.records.published.published_switchback import read_switchback
from flopwatch.records.record import Record
from flopwatch.records.store import PUBLISHED

Quantity = Literal[
    "speedup", "speedup-of-parts", "speedup-of-feed-forward", "backward-over-forward", "mfu"
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Matching:
    """How results of your own are compared with a publication: by ratios, because times of
    different hardware say nothing."""

    axes: tuple[str, ...]
    """That two cases must share to be compared."""
    quantities: tuple[Quantity, ...]
    times_along: tuple[str, ...] = ()
    """Where there are no rival variants: axes along which one case's time is divided by
    another's."""
    of_jobs: bool = False
    """Times are of a token, and a variant is a way to run a training job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    name: str
    """Of its format too, and of the layout that prints it as published."""
    what: str
    source: str
    year: int
    hardware: str
    file: str
    """In `data`."""
    read: Callable[[str], list[Record]]
    """From a text to records; see `parse`."""
    matching: Matching
    unknown: tuple[str, ...]
    """What you would have to know to measure the same again, and the source does not say."""
    advice: tuple[str, ...]
    """What to know when reading it, as sentences."""

    def parse(self, text: str) -> list[Record]:
        """The records of a text in this format; a text that is not is a UsageError."""
        return [replace(record, layout=self.name) for record in self.read(text)]

    def list_remarks(self) -> list[str]:
        """What a reader must know about the figures."""
        return [
            f"source: {self.source}, {self.year}; {self.hardware}",
            f"not stated: {'; '.join(self.unknown)}",
            *(f"note: {advice}" for advice in self.advice),
        ]

    def describe(self) -> dict[str, Any]:
        """What it says of itself, for JSON."""
        return {k: v for k, v in asdict(self).items() if k not in ("read", "matching")}


PUBLICATIONS = {
    publication.name: publication
    for publication in (
        Publication(
            name="dyad",
            what="structured-sparse feed-forward layers against dense ones, inside OPT and Pythia",
            source="DYAD, arXiv 2312.06881",
            year=2023,
            hardware="a GPU, not stated which",
            file="dyad.txt",
            read=read_dyad,
            matching=Matching(axes=("model",), quantities=("speedup-of-feed-forward",)),
            unknown=(
                "the GPU",
                "versions of software",
                "how many runs a mean is over, and how they spread",
                "warm-up",
                "whether float32 matmuls were rounded to TF32",
            ),
            advice=(
                "its largest speedups are not comparable: the sparse layers ran under float16 "
                "autocast and the dense ones in float32 (autocast=published)",
                "with autocast=off, a layer of OPT-125m with 4 blocks is 1.10 times as "
                "fast as dense, not 3.22 times, and with 8 blocks 1.65 times, not 3.56 times",
                "a time is that of one feed-forward layer inside a model, not of a training step",
            ),
        ),
        Publication(
            name="switchback",
            what="parts of int8 linear layers for training, 18 shapes at 8 batch sizes, less two",
            source="SwitchBack, arXiv 2304.13013, info.jsonl of its Triton tests",
            year=2023,
            hardware="a GPU, not stated which",
            file="switchback.jsonl",
            read=read_switchback,
            matching=Matching(axes=("tokens", "shape"), quantities=("speedup-of-parts", "speedup")),
            unknown=(
                "the GPU",
                "versions of software",
                "how the 64 calls of a mean spread",
            ),
            advice=(
                "whole layers are sums of parts that were timed one by one: what happens between "
                "the parts is missing",
                "int8 loses at small batches and wins at large ones: read a speedup with its batch",
            ),
        ),
        Publication(
            name="cs336",
            what="forward and backward passes of transformers in four sizes, by warm-up steps and "
            "under a profiler; sums in float16",
            source="a student's write-ups of assignment 2 of the Stanford course CS336",
            year=2025,
            hardware="a GPU, not stated which",
            file="cs336.txt",
            read=read_cs336,
            matching=Matching(
                axes=("model",), quantities=("backward-over-forward",), times_along=("model",)
            ),
            unknown=(
                "the GPU",
                "versions of software",
                "batch and sequence length (the assignment asks for a batch of 4)",
                "precision",
                "how many steps a mean is over",
                "the warm-up of the profiled runs",
                "the year (the sizes are those of the course of 2025)",
            ),
            advice=(
                "torch.compile was on, which only the later of two versions of the write-up says; "
                "both have the same figures, and the later one has those under a profiler and "
                "the sums besides",
                "without warm-up a forward mean has the first call in it, and its standard "
                "deviation is about three times as large",
            ),
        ),
        Publication(
            name="mosaic",
            what="throughput, MFU and HFU of MosaicGPT training jobs, 125m to 13b",
            source="MosaicGPT throughput tables, mosaicml/examples, llm/throughput",
            year=2023,
            hardware="8 A100 of 80 GB; 8, 16 and 32 A100 of 40 GB",
            file="mosaic.md",
            read=read_mosaic,
            matching=Matching(
                axes=("model", "seq_len"),
                quantities=("backward-over-forward", "mfu"),
                times_along=("model", "seq_len", "micro_batch", "grad_accum", "global_batch"),
                of_jobs=True,
            ),
            unknown=(
                "whether the A100 were SXM or PCIe (their peaks are the same)",
                "versions of software",
                "how many steps a speed is over, and how they spread",
                "optimizer",
            ),
            advice=(
                "its MFU counts less attention than other conventions do: compare it only with "
                "MFU by mosaic-2023 (flopwatch mfu has all)",
                "without activation checkpointing, its HFU is its MFU",
            ),
        ),
    )
}


def find_publication(name: str) -> Publication:
    if name not in PUBLICATIONS:
        raise UsageError(
            f"no published benchmark is called {name!r}; there are {', '.join(PUBLICATIONS)}, and "
            "`flopwatch show published` describes them"
        )
    return PUBLICATIONS[name]


def read_text(name: str) -> str:
    """The figures as they were published."""
    file = resources.files(__package__) / "data" / find_publication(name).file
    return file.read_text(encoding="utf-8")


def load(name: str) -> list[Record]:
    """The records of a publication that the package has."""
    publication = find_publication(name)
    return [_sign(record, publication) for record in publication.parse(read_text(name))]


def find_sources(records: Iterable[Record]) -> list[Publication]:
    """The publications that records are from, as `load` has marked them."""
    runs = {record.run_id for record in records}
    return [each for each in PUBLICATIONS.values() if f"{PUBLISHED}{each.name}" in runs]


def _sign(record: Record, publication: Publication) -> Record:
    """With the source, and under a run of its own name."""
    signed = {
        "source": publication.source,
        "year": publication.year,
        "unknown": list(publication.unknown),
        **record.environment["published"],
    }
    return replace(
        record,
        run_id=f"{PUBLISHED}{publication.name}",
        environment={**record.environment, "published": signed},
    )
