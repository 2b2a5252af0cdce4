"""What part of the peak cases reach, from records alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from flopwatch.analysis.summary import Row, as_dict, summarize
from flopwatch.analysis.warnings import find_warnings
from flopwatch.devices.measured_peaks import Curve, Matmul, Peaks, read_setup, shorten
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.case_tables import make_sheets
from flopwatch.output.tables import Sheet
from flopwatch.records.record import Record
from flopwatch.settings import Settings
from tests.conftest import make_record

SECOND = 1e9
CUDA = Settings(device="cuda")


def on_gpu(name: str, **changes: Any) -> Record:
    """A run of a second."""
    gpu = {"name": name, "count": 8, **changes.pop("gpu", {})}
    return make_record(
        settings=CUDA,
        environment={"torch": {"gpu": gpu}},
        samples_ns={"call": [SECOND] * 20},
        **changes,
    )


def with_peaks(record: Record, **flops_per_s: float) -> Record:
    """As if `flopwatch peaks` had measured these before it."""
    curves = [
        Curve(
            dtype=dtype,
            measured_at="2026-11-16T12:00:00+00:00",
            points=[Matmul(rows=8, inner=16, columns=32, flops_per_s=rate, blocks=3, repeats=2)],
        )
        for dtype, rate in flops_per_s.items()
    ]
    peaks = Peaks(
        setup=read_setup(record.environment, record.settings),
        measured_at="2026-11-16T12:00:00+00:00",
        quick=True,
        matmuls=curves,
        streams=[],
        cache_bytes=1,
        background_share=0.0,
    )
    return replace(record, environment={**record.environment, "peaks": shorten(peaks)})


def read_row(record: Record) -> Row:
    (row,) = summarize([record])
    return row


def read_sheet(*records: Record) -> Sheet:
    return make_sheets(summarize(records))[0]


def test_half_of_the_nominal_peak() -> None:
    row = read_row(on_gpu("NVIDIA A100-SXM4-80GB", flops={"call": {"bfloat16": 156e12}}))
    assert row.of_peak["nominal"].share == pytest.approx(0.5)
    assert "measured" not in row.of_peak


def test_a_job_has_the_peaks_of_all_its_ranks() -> None:
    record = on_gpu(
        "NVIDIA A100-SXM4-80GB", flops={"call": {"bfloat16": 4 * 156e12}}, params={"ranks": 4}
    )
    assert read_row(record).of_peak["nominal"].share == pytest.approx(0.5)
    sheet = read_sheet(record)
    assert sheet.remarks == [
        "of peak: bfloat16 312 TFLOP/s (NVIDIA A100 Tensor Core GPU data sheet, "
        "2021), for each rank"
    ]


def test_each_dtype_takes_its_time_at_its_own_peak() -> None:
    record = on_gpu(
        "NVIDIA A100-SXM4-80GB",
        flops={"call": {"bfloat16": 0.25 * 312e12, "float32": 0.5 * 19.5e12},
               "call/part": {"bfloat16": 1e15}},
    )  # fmt: skip
    assert read_row(record).of_peak["nominal"].share == pytest.approx(0.75)


def test_a_gpu_that_rounds_the_products_of_float32_has_the_peak_of_tf32() -> None:
    flops = {"call": {"float32": 78e12}}
    rounding = on_gpu("NVIDIA A100-SXM4-80GB", flops=flops, gpu={"tf32_matmul": True})
    assert read_row(rounding).of_peak["nominal"].share == pytest.approx(0.5)
    assert list(read_row(rounding).of_peak["nominal"].peaks) == ["tf32"]
    exact = on_gpu("NVIDIA A100-SXM4-80GB", flops=flops, gpu={"tf32_matmul": False})
    assert read_row(exact).of_peak["nominal"].share == pytest.approx(4)


@pytest.mark.parametrize(
    "record",
    [
        on_gpu("NVIDIA Z80", flops={"call": {"bfloat16": 1e12}}),
        on_gpu("Tesla T4", flops={"call": {"bfloat16": 1e12}}),  # which has no such arithmetic
        on_gpu("Tesla T4", flops={"call": {"bfloat16": 1e12, "float16": 1e12}}),
        on_gpu("Tesla T4"),
        # A CPU was measured, though the machine has a GPU.
        replace(on_gpu("Tesla T4", flops={"call": {"float16": 1e12}}), settings=Settings()),
    ],
)
def test_where_a_peak_is_missing_there_is_no_share(record: Record) -> None:
    assert read_row(record).of_peak == {}
    assert not any("peak" in column for column in read_sheet(record).headings)


def test_a_cpu_s_threads_have_one_peak_however_many_ranks_share_them() -> None:
    record = with_peaks(
        make_record(
            samples_ns={"call": [SECOND] * 20},
            flops={"call": {"float32": 30e9}},
            params={"ranks": 2},
        ),
        float32=100e9,
    )
    share = read_row(record).of_peak["measured"]
    assert (share.share, share.devices) == (pytest.approx(0.3), 1)


def test_a_moment_above_a_sustained_peak_is_no_mistake() -> None:
    """The measured peak is what lasts: utilisation goes by it, what is impossible by the burst."""
    flops = {"call": {"bfloat16": 440e12}}
    record = with_peaks(on_gpu("A GPU of nobody's", flops=flops), bfloat16=500e12)
    record.environment["peaks"]["matmuls"][0]["sustained_flops_per_s"] = 400e12
    share = read_row(record).of_peak["measured"]
    assert (share.share, share.burst_share) == pytest.approx((1.1, 0.88))
    assert share.peaks["bfloat16"].source.endswith("sustained for seconds")
    assert "over-peak" not in {warning.kind for warning in find_warnings([record])}
    assert not any("impossible" in remark for remark in read_sheet(record).remarks)
    too_much = replace(record, flops={"call": {"bfloat16": 600e12}})
    assert "over-peak" in {warning.kind for warning in find_warnings([too_much])}
    assert any("impossible" in remark for remark in read_sheet(too_much).remarks)


def test_both_peaks_have_a_column_and_a_source() -> None:
    record = on_gpu("NVIDIA H100 PCIe", flops={"call": {"bfloat16": 378e12}})
    sheet = read_sheet(with_peaks(record, bfloat16=504e12))
    ((cells,),) = sheet.groups
    shown = dict(zip(sheet.headings, cells, strict=True))
    assert (shown["of peak"], shown["of measured peak"]) == ("50.0 %", "75.0 %")
    nominal, measured = sheet.remarks
    assert nominal.startswith("of peak: bfloat16 756 TFLOP/s (NVIDIA H100 ")
    assert measured == (
        "of measured peak: bfloat16 504 TFLOP/s (measured here on 2026-11-16: a bfloat16 matmul "
        "of 8x16x32)"
    )


def test_more_than_the_peak_is_impossible() -> None:
    record = on_gpu("NVIDIA A100-SXM4-80GB", flops={"call": {"bfloat16": 320e12}})
    remarks = read_sheet(with_peaks(record, bfloat16=160e12)).remarks
    assert remarks[1] == (
        "a size=4: 102.6 % of peak, which is impossible: the peak is wrong, or the FLOPs are"
    )
    assert remarks[3].startswith("a size=4: 200.0 % of measured peak, which is impossible: the ")


def test_an_unknown_peak_is_one_remark_however_many_cases() -> None:
    records = [
        make_record(case_id=str(size), group_id=str(size), params={"size": size},
                    flops={"call": {"float32": 1e9}})
        for size in range(3)
    ]  # fmt: skip
    assert read_sheet(*records).remarks == [
        "the peak for float32 is not known here: measure it by `flopwatch peaks`, and later runs "
        "are compared with it"
    ]


def test_without_flops_or_without_their_dtype_there_is_nothing_to_say() -> None:
    assert read_sheet(make_record()).remarks == []
    assert read_sheet(make_record(flops={"call": {"unknown": 1e9}})).remarks == []


def test_what_has_failed_has_no_share() -> None:
    record = on_gpu("NVIDIA H100 PCIe", flops={"call": {"bfloat16": 378e12}}, status="oom")
    assert read_row(record).of_peak == {}


def test_json_has_the_share_and_the_peaks() -> None:
    record = on_gpu("NVIDIA H100 PCIe", flops={"call": {"bfloat16": 378e12}})
    content = json.loads(json.dumps(as_dict(read_row(record))))["of_peak"]["nominal"]
    assert content["share"] == pytest.approx(0.5)
    assert content["peaks"]["bfloat16"]["flops_per_s"] == 756e12


TOKENS = 4 * 8 * 1024
DESCRIBED = TrainingJob(
    "gpt-125m", 1024, micro_batch=8, parallelism=Parallelism(data=4, sharding="full")
)
JOB: dict[str, Any] = {
    "suite": "training",
    "variant": "full",
    "baseline": "full",
    "params": {"model": "gpt-125m", "seq_len": 1024, "precision": "bf16-mixed", "ranks": 4},
    "facts": {"tokens": TOKENS},
    "job": DESCRIBED.to_dict(),
}


def count_token_flops() -> float:
    return CONVENTIONS["exact"].count_model_flops(DESCRIBED, None)


def test_a_training_job_has_mfu_and_hfu() -> None:
    sheet = read_sheet(on_gpu("NVIDIA A100-SXM4-80GB", **JOB))
    ((cells,),) = sheet.groups
    shown = dict(zip(sheet.headings, cells, strict=True))
    expected = count_token_flops() * TOKENS / (4 * 312e12)
    assert shown["MFU"] == f"{100 * expected:.1f} %"
    assert not {"HFU", "of peak"} & set(shown)  # nothing is recomputed, and MFU says it all
    assert sheet.remarks == [
        "MFU and HFU: by the convention exact, of 312 TFLOP/s a rank (NVIDIA A100 Tensor Core GPU "
        "data sheet, 2021); `flopwatch mfu` has other conventions"
    ]


def test_what_is_recomputed_has_an_hfu() -> None:
    job = {**JOB, "job": replace(DESCRIBED, recompute="full").to_dict()}
    sheet = read_sheet(on_gpu("NVIDIA A100-SXM4-80GB", **job))
    ((cells,),) = sheet.groups
    shown = dict(zip(sheet.headings, cells, strict=True))
    mfu, hfu = (float(shown[name].removesuffix(" %")) for name in ("MFU", "HFU"))
    assert mfu < hfu < 4 / 3 * mfu


def test_on_a_cpu_they_are_those_of_the_measured_peak() -> None:
    """Which the ranks share, and which all products of a dtype have."""
    job = make_record(samples_ns={"call": [SECOND] * 20}, **JOB)
    utilisation = read_row(with_peaks(job, bfloat16=1e15)).utilisation
    assert utilisation is not None
    assert utilisation.mfu == pytest.approx(count_token_flops() * TOKENS / 1e15)
    unknown = read_row(with_peaks(job, float32=1e15))
    assert unknown.utilisation is not None
    assert unknown.utilisation.mfu is None
    assert "MFU" not in read_sheet(unknown.record).headings


def test_a_rank_s_share_of_a_measured_peak_is_called_one() -> None:
    job = make_record(samples_ns={"call": [SECOND] * 20}, **JOB)
    remarks = read_sheet(with_peaks(job, bfloat16=1e15)).remarks
    assert remarks[-1].startswith(
        "MFU and HFU: by the convention exact, of 250 TFLOP/s a rank (measured here on 2026-11-16: "
        "a bfloat16 matmul of 8x16x32, of which each of 4 ranks has 1/4); "
    )


def test_a_cpu_s_float32_is_not_tf32_though_its_gpu_rounds() -> None:
    job = make_record(
        samples_ns={"call": [SECOND] * 20},
        environment={"torch": {"gpu": {"name": "NVIDIA L4", "tf32_matmul": True}}},
        **{**JOB, "job": replace(DESCRIBED, precision="fp32").to_dict()},
    )
    utilisation = read_row(with_peaks(job, float32=1e15)).utilisation
    assert utilisation is not None
    assert utilisation.mfu == pytest.approx(count_token_flops() * TOKENS / 1e15)


def test_what_is_impossible_is_said_so() -> None:
    job = make_record(samples_ns={"call": [SECOND] * 20}, **JOB)
    remarks = read_sheet(with_peaks(job, bfloat16=1e12)).remarks
    assert "is impossible" in remarks[-1]


def test_json_has_mfu_and_hfu() -> None:
    content = json.loads(json.dumps(as_dict(read_row(on_gpu("NVIDIA H200", **JOB)))))
    assert content["utilisation"]["convention"] == "exact"
    assert 0 < content["utilisation"]["mfu"] < 1


@pytest.mark.parametrize(
    "changes",
    [{"facts": {}}, {"params": {}}, {"job": None}, {"job": {"model": "my own", "seq_len": 8}},
     {"job": {"model": "7b", "seq_len": "long"}}, {"job": {"model": 7, "seq_len": 8}}],
)  # fmt: skip
def test_anything_else_has_none(changes: dict[str, Any]) -> None:
    """Also what has no training job, or a damaged one."""
    assert read_row(on_gpu("NVIDIA H200", **{**JOB, **changes})).utilisation is None
