"""The published MosaicGPT layout: hand-made records in, exact tables out."""
# ruff: noqa: E501  (golden tables)

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.errors import UsageError
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.layouts import Printout, make_printout
from flopwatch.records.record import Record, encode
from flopwatch.settings import Settings
from tests.analysis.test_record_device import with_peaks
from tests.analysis.test_record_job import make_job
from tests.cli.test_main import assert_refused, flopwatch
from tests.conftest import make_record
from tests.output.test_published_layouts import read_mosaic_cells

FAILED = {
    "samples_ns": {}, "rounds": [], "calls_per_sample": [], "steady": None, "stop_reason": None, "facts": {},
    "status": "oom", "message": "memory ran out",
}  # fmt: skip
TITLES, *LINES = read_mosaic_cells()


def lay_out(*records: Record) -> Printout:
    return make_printout(summarize(records), "mosaic")


def test_a_table_is_exactly_this() -> None:
    printed = lay_out(
        make_job("full+recompute-full"),
        make_job("ddp+compiled", ranks=2, precision="fp32"),
        make_job("hybrid+recompute-selective", **FAILED, seq_len=512),
        make_record(case_id="other"),
    )
    assert printed.lines == [
        "| Model             | SeqLen (T) | GPUType         | MFU*   | MFU    | HFU*   | HFU    | Throughput (T/s) | GPUThroughput (T/s/GPU) | Throughput (S/s) | ParamCount | GlobalBatchSize (T) | GlobalBatchSize (S) | MicroBatchSize (S) | GradAccum | ShardStrategy | ActCkpt   | ActCPUoffload | Precision | MP Mode | NumGPUs | GPUType       | Cluster |",
        "| ----------------- | ---------- | --------------- | ------ | ------ | ------ | ------ | ---------------- | ----------------------- | ---------------- | ---------- | ------------------- | ------------------- | ------------------ | --------- | ------------- | --------- | ------------- | --------- | ------- | ------- | ------------- | ------- |",
        "|          gpt-125m |       2048 | 8xA100_SXM_80GB | 0.0789 | 0.0868 | 0.1052 | 0.1171 |        262144.00 |              32768.0000 |         128.0000 |  125226240 |              131072 |                  64 |                  4 |         2 |    FULL_SHARD |      True |         False |  amp_bf16 |         |       8 | a100_sxm_80gb |         |",
        "| gpt-125m+compiled |       2048 | 2xA100_SXM_80GB | 5.0504 | 5.5578 | 5.0504 | 5.5578 |        262144.00 |             131072.0000 |         128.0000 |  125226240 |              131072 |                  64 |                  4 |         2 |      NO_SHARD |     False |         False |      fp32 |         |       2 | a100_sxm_80gb |         |",
        "|          gpt-125m |        512 | 8xA100_SXM_80GB |        |        |        |        |              oom |                         |                  |  124046592 |               32768 |                  64 |                  4 |         2 |  HYBRID_SHARD | selective |         False |  amp_bf16 |         |       8 | a100_sxm_80gb |         |",
        "",
    ]


def test_the_table_has_the_mfu_that_the_command_has() -> None:
    """gpt-125m is built with 2048 positions, and the published N has as many as a sequence has tokens:
    `flopwatch mfu` says 0.0802 and 0.0782 of this job."""
    facts = {"tokens": 131072.0, "parameters": 125_226_240.0}
    (row,) = lay_out(make_job(seq_len=512, facts=facts)).content
    assert f"{row['mfu']:.4f} {row['mfu_star']:.4f}" == "0.0802 0.0782"
    assert row["parameters"] == 124_046_592


def test_headings_are_the_published_ones() -> None:
    assert lay_out(make_job()).tables[0].headings == TITLES


def test_a_published_row_is_laid_out_as_published() -> None:
    """From its tokens/s and its inputs; but for the names of model and device, and what we do not
    know."""
    published = next(cells for cells in LINES if "734298.52" in cells)
    row = dict(zip(TITLES, published, strict=True))
    tokens = float(row["GlobalBatchSize (T)"])
    step_ns = 1e9 * tokens / (8 * float(row["GPUThroughput (T/s/GPU)"]))  # has more digits
    facts = {
        "tokens": tokens, "sequences": float(row["GlobalBatchSize (S)"]),
        "parameters": float(row["ParamCount"]), "micro_batch": 32.0, "grad_accum": 8.0,
    }  # fmt: skip
    others = {
        "gpt125m": "gpt-125m", "8xA100_80GB": "8xA100_SXM_80GB", "a100_80gb": "a100_sxm_80gb",
        "DEFAULT": "", "r1z1": "",
    }  # fmt: skip
    (ours,) = (
        lay_out(make_job(samples_ns={"step": [step_ns] * 20}, facts=facts)).tables[0].groups[0]
    )
    assert ours == [others.get(cell, cell) for cell in published]


def test_every_way_to_share_a_model_has_its_word() -> None:
    names = ("none", "ddp", "full", "zero2", "hybrid")
    found = [row["shard_strategy"] for row in lay_out(*map(make_job, names)).content]
    assert found == ["NONE", "NO_SHARD", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"]


def test_on_a_cpu_there_is_throughput_but_no_share() -> None:
    printed = lay_out(make_job("ddp", ranks=2, precision="fp32", settings=Settings()))
    (row,) = printed.content
    assert (row["hardware"], row["device"], row["ranks"]) == ("2xCPU", "cpu", 2)
    assert (row["mfu"], row["hfu"], row["mfu_star"], row["hfu_star"]) == (None,) * 4
    assert row["tokens_per_s"] == pytest.approx(64 * 2048 / 0.5)
    assert (
        "MFU and HFU are empty: the nominal peak of a CPU is not known; `flopwatch peaks` measures "
        "one, and later records carry it"
    ) in printed.remarks


def test_a_measured_peak_serves_where_no_nominal_one_is_known() -> None:
    """As in the usual tables; the convention differs."""
    record = make_job("ddp", ranks=2, precision="fp32", settings=Settings(), environment={})
    printed = lay_out(with_peaks(record, float32=2e14))
    (row,) = printed.content
    flops_per_token = CONVENTIONS["mosaic-2023"].count_model_flops(
        TrainingJob("gpt-125m", 2048), None
    )
    assert row["mfu"] == pytest.approx(flops_per_token * row["tokens_per_s"] / 2e14)
    assert (
        "the peak of CPU in float32 is 100 TFLOP/s a rank (measured here on 2026-11-16: a float32 "
        "matmul of 8x16x32, of which each of 2 ranks has 1/2)"
    ) in printed.remarks


def test_what_failed_shows_its_status_where_its_speed_would_be() -> None:
    printed = lay_out(make_job(), make_job("ddp", **FAILED))
    _, failed = (dict(zip(TITLES, cells, strict=True)) for cells in printed.tables[0].groups[0])
    assert (failed["Throughput (T/s)"], failed["MFU"], failed["Throughput (S/s)"]) == (
        "oom",
        "",
        "",
    )
    assert (failed["ParamCount"], failed["GlobalBatchSize (S)"]) == ("125226240", "64")
    assert printed.content[1]["message"] == "memory ran out"
    (exchanged,) = lay_out(make_job("ddp+dyad:auto:4", **FAILED)).content
    assert (exchanged["parameters"], exchanged["model"]) == (None, "gpt-125m+dyad:auto:4")


def make_failed(**params: object) -> Record:
    job = make_job(**FAILED)
    kept = {axis: value for axis, value in job.params.items() if axis != "grad_accum"}
    return replace(job, params={**kept, **params})


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"micro_batch": 4, "grad_accum": 2}, (64 * 2048, 64, 4, 2)),
        ({"micro_batch": 4, "global_batch": 64}, (64 * 2048, 64, 4, 2)),
        ({"micro_batch": "auto", "global_batch": 64}, (64 * 2048, 64, "auto", None)),
        ({"micro_batch": "auto", "grad_accum": 2}, (None, None, "auto", 2)),
    ],
)
def test_the_batch_of_what_failed_is_told_as_far_as_it_follows(
    params: dict[str, object], expected: tuple[object, ...]
) -> None:
    printed = lay_out(make_failed(**params))
    keys = ("global_batch_tokens", "global_batch_sequences", "micro_batch", "grad_accum")
    assert tuple(printed.content[0][key] for key in keys) == expected
    columns = ["GlobalBatchSize (T)", "GlobalBatchSize (S)", "MicroBatchSize (S)", "GradAccum"]
    shown = dict(zip(TITLES, *printed.tables[0].groups[0], strict=True))
    assert [shown[c] for c in columns] == ["" if e is None else str(e) for e in expected]


def test_a_micro_batch_that_was_found_is_shown() -> None:
    job = make_job()
    (row,) = lay_out(replace(job, params={**job.params, "micro_batch": "auto"})).content
    assert row["micro_batch"] == 4


def test_remarks_name_the_convention_and_the_peak() -> None:
    remarks = " ".join(lay_out(make_job()).remarks)
    assert "the convention mosaic-2023" in remarks
    assert "the peak of A100_SXM_80GB in bfloat16 is 312 TFLOP/s a rank (NVIDIA A100" in remarks
    assert "impossible" not in remarks
    fast = make_job(samples_ns={"step": [5e5] * 20})
    assert "is impossible" in " ".join(lay_out(fast).remarks)


def test_a_job_that_cannot_be_read_is_left_out_with_a_remark() -> None:
    damaged = {**(make_job().job or {}), "optimizer": "magic"}
    printed = lay_out(make_job(), make_job("ddp", job=damaged))
    assert len(printed.content) == 1
    assert any("no row for ddp" in remark for remark in printed.remarks)


def test_without_jobs_it_says_how_to_make_them() -> None:
    with pytest.raises(UsageError, match="flopwatch run training"):
        lay_out(make_record())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "training.jsonl"
    path.write_bytes(b"".join(encode(r) + b"\n" for r in [make_job(), make_job("ddp")]))
    return path


def test_the_command_writes_each_format(results: Path) -> None:
    def table(*options: str) -> str:
        arguments = ["show", results, "--layout", "mosaic", *options]
        printed = flopwatch(*arguments, cwd=results.parent)
        assert printed.returncode == 0
        assert "mosaic-2023" in printed.stderr
        return printed.stdout

    markdown = table("--format", "markdown")
    lines = list(csv.reader(table("--format", "csv").splitlines()))
    assert lines[0] == TITLES
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in markdown.splitlines()]
    assert cells[0] == TITLES
    assert cells[2:] == lines[1:]
    published, usual = table().split("\n\n", 1)
    assert [row.split("|")[1].strip() for row in published.splitlines()] == [
        "Model", "-" * len("gpt-125m"), "gpt-125m", "gpt-125m",
    ]  # fmt: skip
    assert "speedup" in usual
    assert json.loads(table("--json")) == json.loads(table("--format", "json"))


def test_formats_that_make_no_sense_are_refused(results: Path) -> None:
    both = flopwatch(
        "show", results, "--layout", "mosaic", "--json", "--format", "csv", cwd=results.parent
    )
    assert_refused(both, "--json and --format csv are two formats; take one")
