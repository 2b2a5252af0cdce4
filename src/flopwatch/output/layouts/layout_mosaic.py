"""The suite training in the layout of the published MosaicGPT tables.

They have a Markdown row for every job: what was trained, how fast, what share of the peak that is,
and how the job was divided among GPUs. MFU and HFU are by the convention of those tables,
mosaic-2023, of the nominal peak, or where that is not known, of the measured one. Throughput is
from the median time of a step. Cells are empty where nothing is known. What a variant has besides
(compiled, other layers) stands behind the model's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flopwatch.analysis.record_device import count_ranks, find_device_name
from flopwatch.analysis.record_job import (
    assess_record,
    find_built_parameters,
    find_matmul_dtype,
)
from flopwatch.analysis.summary import Row
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import CONVENTIONS, count_trained_parameters
from flopwatch.jobs.model_shapes import ARCHITECTURES
from flopwatch.jobs.training_job import SHARDING_WORDS, STEP_WORDS, TrainingJob
from flopwatch.jobs.utilisation import JobUtilisation, Utilisation
from flopwatch.output.layouts import (
    Printout,
    find_missing,
    make_published_sheet,
    warn_of_imprecise,
)
from flopwatch.output.tables import IMPRECISE
from flopwatch.output.units import format_rate
from flopwatch.records.foreign import find_printed
from flopwatch.records.record import Record, identify
from flopwatch.suites.case import label
from flopwatch.suites.grids import AUTO

CONVENTION = CONVENTIONS["mosaic-2023"]
STRATEGIES = {
    "none": "NONE",
    "ddp": "NO_SHARD",
    "zero1": "ZERO1",
    "zero2": "SHARD_GRAD_OP",
    "full": "FULL_SHARD",
    "hybrid": "HYBRID_SHARD",
}
"""As FSDP calls them, and published tables do; it has no word for the first
and the third."""
CHECKPOINTING = {"none": "False", "full": "True", "selective": "selective"}
PRECISIONS = {"bf16-mixed": "amp_bf16"}
OTHERS = {"compiled", "cuda-graph", "reduce-overhead", "plain-attention"}
SHOWN = {*SHARDING_WORDS, *STEP_WORDS} - OTHERS
"""Words of a variant that have columns, or say nothing."""
REMARKS = (
    f"MFU and HFU are by the convention {CONVENTION.name}, which counts less attention than others "
    "do: compare only with tables of that convention (flopwatch mfu has all)",
    "throughput is the tokens of a step over the median time of a step; NumGPUs is the number of "
    "ranks, on a CPU too",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A row of the table; numbers are None where nothing is known."""

    row: Row
    assessment: JobUtilisation

    @property
    def job(self) -> TrainingJob:
        return self.assessment.job

    @property
    def record(self) -> Record:
        return self.row.record

    @property
    def utilisation(self) -> Utilisation | None:
        return next(iter(self.assessment.utilisations), None)

    @property
    def ranks(self) -> int:
        return count_ranks(self.record)

    @property
    def printed(self) -> dict[str, Any]:
        """Of a row that was published: its own words, by our keys."""
        return find_printed(self.record) or {}

    @property
    def device(self) -> str:
        """As published tables write it, in capitals."""
        if "device" in self.printed:
            return str(self.printed["device"]).upper()
        known = self.assessment.device
        if known is not None:
            return known.upper().replace("-", "_")
        return find_device_name(self.record) or "CPU"

    @property
    def parameters(self) -> int | None:
        """As published: with as many learned positions as a sequence has tokens."""
        job, built = self.job, find_built_parameters(self.record)
        if built is None and (not job.is_dense or job.shape.architecture not in ARCHITECTURES):
            return None
        return count_trained_parameters(job, built, at_length=True)

    @property
    def sequences(self) -> int | None:
        """Of a step, over all ranks."""
        found = self.find("sequences") or self.find("global_batch")
        one, times = self.find("micro_batch"), self.find("grad_accum")
        if found is not None or one is None or times is None:
            return found
        return one * times * self.ranks

    @property
    def grad_accum(self) -> int | None:
        found = self.find("grad_accum")
        one, of = self.find("micro_batch"), self.find("global_batch")
        if found is not None or one is None or of is None:
            return found
        return of // (one * self.ranks)

    def find(self, name: str) -> int | None:
        """From the facts, or where nothing was built, from the parameters, which may be words."""
        number = self.record.facts.get(name, self.record.params.get(name))
        return round(number) if isinstance(number, int | float) else None

    def share(self, name: str) -> float | None:
        return None if self.utilisation is None else getattr(self.utilisation, name)

    def divide_speed(self, by: float) -> float | None:
        speed = self.row.tokens_per_s
        return None if speed is None else speed / by


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    key: str
    """For ``--json``."""
    find: Callable[[Entry], Any]
    form: str = ""


def _count_batch_tokens(entry: Entry) -> int | None:
    sequences = entry.sequences
    return None if sequences is None else sequences * entry.job.seq_len


def _name_model(entry: Entry) -> str:
    words = [word for word in entry.record.variant.split("+") if word not in SHOWN]
    name = entry.printed.get("model", entry.record.params["model"])
    return "+".join([str(name), *words])


def _name_precision(entry: Entry) -> str | None:
    name = entry.record.params.get("precision")
    return None if name is None else PRECISIONS.get(str(name), str(name))


def _find_micro_batch(entry: Entry) -> int | str | None:
    """As was asked for, where nothing was built."""
    asked = entry.record.params.get("micro_batch")
    return entry.find("micro_batch") or (AUTO if asked == AUTO else None)


COLUMNS = (
    Column("Model", "model", _name_model),
    Column("SeqLen (T)", "seq_len", lambda entry: entry.job.seq_len),
    Column("GPUType", "hardware", lambda entry: f"{entry.ranks}x{entry.device}"),
    Column("MFU*", "mfu_star", lambda entry: entry.share("mfu_star"), ".4f"),
    Column("MFU", "mfu", lambda entry: entry.share("mfu"), ".4f"),
    Column("HFU*", "hfu_star", lambda entry: entry.share("hfu_star"), ".4f"),
    Column("HFU", "hfu", lambda entry: entry.share("hfu"), ".4f"),
    Column("Throughput (T/s)", "tokens_per_s", lambda entry: entry.divide_speed(1), ".2f"),
    Column("GPUThroughput (T/s/GPU)", "tokens_per_s_and_device",
           lambda entry: entry.divide_speed(entry.ranks), ".4f"),
    Column("Throughput (S/s)", "sequences_per_s",
           lambda entry: entry.divide_speed(entry.job.seq_len), ".4f"),
    Column("ParamCount", "parameters", lambda entry: entry.parameters),
    Column("GlobalBatchSize (T)", "global_batch_tokens", _count_batch_tokens),
    Column("GlobalBatchSize (S)", "global_batch_sequences", lambda entry: entry.sequences),
    Column("MicroBatchSize (S)", "micro_batch", _find_micro_batch),
    Column("GradAccum", "grad_accum", lambda entry: entry.grad_accum),
    Column("ShardStrategy", "shard_strategy", lambda entry: STRATEGIES[entry.job.sharding]),
    Column("ActCkpt", "recompute", lambda entry: CHECKPOINTING[entry.job.recompute]),
    Column("ActCPUoffload", "cpu_offload", lambda entry: entry.printed.get("cpu_offload", "False")),
    # No variant of ours has it.
    Column("Precision", "precision", _name_precision),
    Column("MP Mode", "mixed_precision_mode",
           lambda entry: entry.printed.get("mixed_precision_mode")),  # of another trainer
    Column("NumGPUs", "ranks", lambda entry: entry.ranks),
    Column("GPUType", "device", lambda entry: entry.device.lower()),
    Column("Cluster", "cluster", lambda entry: entry.printed.get("cluster")),
)  # fmt: skip
"""In the published order."""
SPEED = "tokens_per_s"


def lay_out(rows: Sequence[Row]) -> Printout:
    own = [row for row in rows if row.record.layout == "mosaic"]
    chosen = [row for row in own if "seq_len" in (row.record.job or {})]
    if not chosen:
        raise UsageError(
            "the layout 'mosaic' shows jobs of suites that declare it, and there are none here; "
            "measure some with: flopwatch run training"
        )
    entries, remarks = [], []
    for row in chosen:
        try:
            entries.append(_make_entry(row))
        except UsageError as error:  # made with layers or names that are not known here
            remarks.append(f"no row for {row.record.variant} {label(row.record.params)}: {error}")
    headings = [column.heading for column in COLUMNS]
    cells = [[_format(column, entry) for column in COLUMNS] for entry in entries]
    return Printout(
        lines=[*_draw_markdown([headings, *cells]), ""],
        content=[_as_dict(entry) for entry in entries],
        remarks=[
            *REMARKS,
            *_describe_peaks(entries),
            *remarks,
            *_describe_marks(cells),
            *warn_of_imprecise([entry.row for entry in entries]),
        ],
        tables=[make_published_sheet("", headings, cells)],
    )


def _describe_marks(cells: Sequence[Sequence[str]]) -> list[str]:
    is_marked = any(cell.endswith(IMPRECISE.sign) for row in cells for cell in row)
    return [f"{IMPRECISE.sign}: {IMPRECISE.meaning}"] if is_marked else []


def _draw_markdown(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table as published: headings begin where their column does, cells end where it ends.

    >>> print(*_draw_markdown([["Model", "MFU"], ["7b", "0.4216"]]), sep="\\n")
    | Model | MFU    |
    | ----- | ------ |
    |    7b | 0.4216 |
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *body = cells
    rows = [
        map(str.ljust, head, widths),
        ("-" * width for width in widths),
        *(map(str.rjust, row, widths) for row in body),
    ]
    return [f"| {' | '.join(row)} |" for row in rows]


def _make_entry(row: Row) -> Entry:
    return Entry(
        row=row,
        assessment=assess_record(row.record, row.tokens_per_s, conventions=[CONVENTION]),
    )


def _format(column: Column, entry: Entry) -> str:
    value = column.find(entry)
    if value is None:
        failed = column.key == SPEED and entry.record.status != "ok"
        return entry.record.status if failed else ""
    # What follows from a time that is not known well is marked; other numbers are exact.
    mark = IMPRECISE.sign if column.form and find_missing(entry.row) and not entry.printed else ""
    return f"{value:{column.form}}{mark}"


def _describe_peaks(entries: Sequence[Entry]) -> list[str]:
    """One sentence for each device and dtype."""
    sentences: dict[str, None] = {}
    for entry in entries:
        found = entry.utilisation
        if found is None:
            continue
        if found.peak_flops_per_s is None:
            sentences[f"MFU and HFU are empty: {found.missing}"] = None
            continue
        rate = format_rate(found.peak_flops_per_s, "FLOP/s")
        what = f"{entry.device} in {find_matmul_dtype(entry.record)}"
        sentences[f"the peak of {what} is {rate} a rank ({found.peak_source})"] = None
        if found.impossible:
            sentences[f"{_name_model(entry)}, {entry.record.variant}: {found.impossible}"] = None
    return list(sentences)


def _as_dict(entry: Entry) -> dict[str, Any]:
    record, found = entry.record, entry.utilisation
    shown: Mapping[str, Any] = {column.key: column.find(entry) for column in COLUMNS}
    return {
        **shown,
        "convention": CONVENTION.name,
        "peak_flops_per_s": None if found is None else found.peak_flops_per_s,
        "peak_source": None if found is None else found.peak_source,
        "impossible": None if found is None else found.impossible,
        **identify(record),
    }
