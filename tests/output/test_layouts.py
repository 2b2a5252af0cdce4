"""Published layouts: hand-made records in, exact text out."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.errors import UsageError
from flopwatch.output.layouts import make_printout
from flopwatch.records.record import Record, Region, encode
from flopwatch.settings import Settings
from flopwatch.suites.case import case_id, group_id
from tests.analysis.test_parts import ALL as PARTS
from tests.analysis.test_record_job import make_job
from tests.analysis.test_warmup import step_record
from tests.cli.test_main import assert_refused, flopwatch
from tests.conftest import make_record

OPT = {
    "level": "model",
    "model": "opt-125m",
    "micro_batch": 4,
    "seq_len": 128,
    "dtype": "float32",
    "autocast": "off",
}
FAILED = {
    "samples_ns": {},
    "rounds": [],
    "calls_per_sample": [],
    "steady": None,
    "stop_reason": None,
}
LARGER = {"model": "opt-350m", "facts": {"hidden_size": 1024, "layers": 24}}


def model_record(variant: str, forward_ms: float, backward_ms: float, **changes: object) -> Record:
    """Twenty runs of a model with two layers; every fourth takes five times as long inside."""
    params = {**OPT, **{axis: changes.pop(axis) for axis in OPT if axis in changes}}
    slow = [5.0 if i % 4 == 0 else 1.0 for i in range(20)]  # on average 2
    content: dict[str, object] = {
        "case_id": case_id("dyad", variant, params),
        "group_id": group_id("dyad", params),
        "suite": "dyad",
        "layout": "dyad",
        "variant": variant,
        "baseline": "dense",
        "params": params,
        "facts": {"hidden_size": 768, "layers": 12},
        "instrumented_ns": [1e9] * 20,
        "regions": {
            "forward/feed-forward": Region(
                calls=2, samples_ns=[forward_ms * 1e6 * s for s in slow]
            ),
            "backward/feed-forward": Region(
                calls=2, samples_ns=[backward_ms * 1e6 * s for s in slow]
            ),
        },
    }
    return make_record(**{**content, **changes})


def lines(records: list[Record]) -> str:
    return "\n".join(make_printout(summarize(records), "dyad").lines)


def test_the_dyad_layout_is_exactly_this() -> None:
    records = [
        model_record("dense", 1.5, 3.0),
        model_record("dyad:it:4", 1.0, 2.0),
        model_record("dyad:ot:4:cat", 0.9, 2.1, conditions={"autocast": "float16"}),
        model_record("dyad:auto:8", 1.0, 1.0, **FAILED, status="oom", message="needs 3 TiB"),
        model_record("dense", 3.0, 6.0, **LARGER),
        model_record("dyad:it:4", 1.5, 4.0, **LARGER),
        model_record("dense", 12.0, 24.0, micro_batch=32, dtype="bfloat16"),
        make_record(case_id="other", suite="other", params=OPT),
        make_record(case_id="layer", suite="dyad", params={"level": "layer", "tokens": 512}),
    ]
    expected = """\
        cpu, 1 thread, hot cache, allocator retain

        Batch Size - 4, seq_len - 128 (time in ms), float32, autocast off

        --------opt-125m (hidden_size 768, 12 num_hidden_layers)-----------

        Dense (dense)
        total avg: 4.5000, fwd_avg: 1.5000, bwd_avg: 3.0000

        Sparse (dyad:it:4)
        total avg: 3.0000, fwd_avg: 1.0000, bwd_avg: 2.0000

        CONCAT Sparse_out_T (dyad:ot:4:cat)
        total avg: 3.0000, fwd_avg: 0.9000, bwd_avg: 2.1000, not comparable: autocast unknown in the baseline, float16 here

        dyad:auto:8
        oom: needs 3 TiB

        --------opt-350m (hidden_size 1024, 24 num_hidden_layers)-----------

        Dense (dense)
        total avg: 9.0000, fwd_avg: 3.0000, bwd_avg: 6.0000

        Sparse (dyad:it:4)
        total avg: 5.5000, fwd_avg: 1.5000, bwd_avg: 4.0000

        speedup, Sparse (dyad:it:4)
        768 - 1.50
        1024 - 1.64

        speedup, CONCAT Sparse_out_T (dyad:ot:4:cat)
        768 - 1.50, not comparable

        Batch Size - 32, seq_len - 128 (time in ms), bfloat16, autocast off

        --------opt-125m (hidden_size 768, 12 num_hidden_layers)-----------

        Dense (dense)
        total avg: 36.0000, fwd_avg: 12.0000, bwd_avg: 24.0000
    """  # noqa: E501
    assert lines(records) == textwrap.dedent(expected)


def test_what_is_measured_otherwise_is_told_apart() -> None:
    """Other settings have a part of their own, other axes stand in the heading."""
    cold = model_record("dense", 2.0, 2.0, settings=Settings(cache="cold"))
    text = lines([model_record("dense", 1.5, 3.0), cold])
    assert text.index("hot cache") < text.index("4.5000") < text.index("cold cache")
    odd = {**OPT, "depth": 6}
    assert "float32, autocast off, depth 6" in lines([model_record("dense", 1, 1, params=odd)])


def test_models_of_one_width_are_named() -> None:
    cut = {"model": "opt-6l-768"}
    text = lines(
        [
            model_record("dense", 1.5, 3.0),
            model_record("dyad:it:4", 1.0, 2.0),
            model_record("dense", 1.5, 3.0, **cut),
            model_record("dyad:it:4", 1.0, 1.25, **cut),
        ]
    )
    assert "768 - 1.50 (opt-125m)\n768 - 2.00 (opt-6l-768)\n" in text


def test_speedups_do_not_cross_runs() -> None:
    later = {"run_id": "later", "measured_at": "2026-02-01T00:00:00+00:00"}
    records = [
        model_record("dense", 1.5, 3.0),
        model_record("dyad:it:4", 1.0, 2.0),
        model_record("dense", 7.0, 8.0, **later),
    ]
    text = lines(records)
    assert "total avg: 15.0000" in text
    assert "768 - 1.50" in text
    assert "speedup" not in lines([records[2], records[1]])


def test_a_model_that_was_not_instrumented_has_no_averages() -> None:
    text = lines([model_record("dense", 1.5, 3.0, instrumented_ns=[], regions={})])
    assert "Dense (dense)\nno run with instruments was made\n" in text


@pytest.mark.parametrize(
    "record",
    [
        make_record(suite="dyad", params={"level": "layer", "tokens": 512}),
        make_record(suite="other", params=OPT),
        make_record(suite="dyad", params={"level": "model"}),
    ],
)
def test_without_models_it_says_how_to_make_them(record: Record) -> None:
    with pytest.raises(UsageError, match="flopwatch run dyad --filter level=model"):
        make_printout(summarize([record]), "dyad")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "dyad.jsonl"
    records = [model_record("dense", 1.5, 3.0), model_record("dyad:it:8", 1.0, 2.0)]
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path


def test_the_command_prints_the_layout_and_then_the_usual_tables(results: Path) -> None:
    shown = flopwatch("show", results, "-v", cwd=results.parent).stdout
    laid_out = flopwatch("show", results, "--layout", "dyad", cwd=results.parent)
    assert laid_out.returncode == 0
    assert "Sparse_8 (dyad:it:8)\ntotal avg: 3.0000, fwd_avg: 1.0000" in laid_out.stdout
    assert laid_out.stdout.endswith(shown)


def test_the_command_gives_the_same_numbers_as_json(results: Path) -> None:
    arguments = ["show", results, "--layout", "dyad", "--json"]
    dense, sparse = json.loads(flopwatch(*arguments, cwd=results.parent).stdout)
    assert (dense["total_ms"], dense["speedup"]) == (pytest.approx(4.5), None)
    assert sparse["published_name"] == "Sparse_8"
    assert sparse["forward_ms"] == pytest.approx(1.0)
    assert sparse["backward_ms"] == pytest.approx(2.0)
    assert sparse["speedup"] == pytest.approx(1.5)
    assert sparse["params"]["micro_batch"] == 4
    plain = json.loads(flopwatch("show", results, "--json", cwd=results.parent).stdout)
    assert plain == json.loads(flopwatch("show", results, "--json", cwd=results.parent).stdout)


def test_the_command_refuses_what_it_cannot_lay_out(results: Path, tmp_path: Path) -> None:
    unknown = flopwatch("show", results, "--layout", "nature", cwd=tmp_path)
    assert_refused(unknown, "'nature' is not one of", "plain", "dyad")
    results.write_bytes(encode(make_record()) + b"\n")
    refused = flopwatch("show", results, "--layout", "dyad", cwd=tmp_path)
    assert_refused(refused, "flopwatch run dyad --filter level=model")
    assert flopwatch("show", results, cwd=tmp_path).returncode == 0


def shorten(record: Record) -> Record:
    """Its first three measured samples, which are too few for an interval."""
    chosen = slice(record.warmup_samples, record.warmup_samples + 3)
    return replace(
        record,
        samples_ns={phase: ns[chosen] for phase, ns in record.samples_ns.items()},
        rounds=[0, 1, 2],
        calls_per_sample=[1, 1, 1],
        warmup_samples=0,
        instrumented_ns=record.instrumented_ns[:3],
        regions={
            name: Region(calls=region.calls, samples_ns=region.samples_ns[:3])
            for name, region in record.regions.items()
        },
    )


MODELS = [model_record("dense", 1.5, 3.0), model_record("dyad:it:4", 1.0, 2.0)]
JOBS = [make_job("full")]


@pytest.mark.parametrize(
    ("layout", "records", "first"),
    [
        ("dyad", MODELS, "dense"),
        ("mosaic", JOBS, "full"),
        ("switchback", PARTS, "parts:standard"),  # whole layers are not in it
        ("cs336", [step_record()], "eager"),
    ],
)
def test_what_is_not_known_well_is_named_next_to_every_layout(
    layout: str, records: list[Record], first: str
) -> None:
    """None of them has intervals, and people copy from them."""
    warning = "not to be published, too noisy or too few samples: "
    known = make_printout(summarize(records), layout)
    assert not any(remark.startswith(warning) for remark in known.remarks)
    poor = make_printout(summarize([*map(shorten, records)]), layout)
    assert poor.remarks[-1].startswith(f"{warning}{first} ")


def test_words_and_cells_of_layouts_are_marked() -> None:
    text = lines([*map(shorten, MODELS)])
    assert text.count(", few samples\n") == 2
    assert "768 - 1.50, unclear\n" in text
    assert "768 - 1.50\n" in lines(MODELS)
    row = make_printout(summarize([*map(shorten, JOBS)]), "mosaic")
    assert "262144.00?" in row.lines[2]
    assert "125226240 " in row.lines[2]  # what is counted is exact
    assert "?: too noisy, or too few samples for an interval" in row.remarks
    assert "?" not in make_printout(summarize(JOBS), "mosaic").lines[2]
