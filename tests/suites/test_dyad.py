"""The suite dyad, run as a user runs it, at sizes that a test can afford."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flopwatch.errors import FlopwatchError
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.suites.case import Case
from flopwatch.suites.catalog import find_suite, load_suite
from flopwatch.suites.suite import Suite

SMALL_LAYER = ["--set", "tokens=24", "--set", "shape=64x128", "--filter", "dtype=float32"]
SMALL_MODEL = [
    "--filter",
    "level=quality",
    "--set",
    "hidden_size=64",
    "--set",
    "train_tokens=24000",
]


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(find_suite("dyad").path)


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flopwatch", "run", "dyad", "--out", "out.jsonl"]
    return subprocess.run(
        [*command, "--case-budget", "500ms", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def measure(folder: Path, *options: str) -> dict[str, Record]:
    """Records by variant; all of them must be fine."""
    done = run(folder, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return {record.variant: record for record in read(folder / "out.jsonl").records}


def flopwatch(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "flopwatch", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_every_variant_of_a_layer_agrees_and_says_what_it_is(tmp_path: Path) -> None:
    records = measure(tmp_path, *SMALL_LAYER, "--filter", "autocast=off")
    assert len(records) == 12
    dense = records["dense"]
    for variant, record in records.items():
        assert record.check is not None
        assert set(record.check.errors) == {"output", "grad x", "grad weight", "grad bias"}
        assert record.conditions == {"dtype": "float32", "autocast": "off"}
        share = 1.0 if variant == "dense" else 2 / int(variant.split(":")[2])
        assert record.flops["forward"]["float32"] == share * dense.flops["forward"]["float32"]
        assert record.facts["parameters"] == share * 64 * 128 + 128
        assert record.peak_memory_bytes is not None
    told = json.loads(flopwatch(tmp_path, "show", "out.jsonl", "--json"))
    limits = {row["variant"]: row["limit"] for row in told}
    assert limits["dense"] is None
    assert limits["dyad:it:4"] == pytest.approx(2)
    assert limits["dyad:it:8:cat"] == pytest.approx(4)


def test_the_published_mixture_is_marked(tmp_path: Path) -> None:
    options = [*SMALL_LAYER, "--filter", "autocast=published", "--set", "variant=dyad:it:4"]
    records = measure(tmp_path, *options)
    assert records["dense"].conditions == {"dtype": "float32", "autocast": "off"}
    assert records["dyad:it:4"].conditions == {"dtype": "float32", "autocast": "float16"}
    shown = flopwatch(tmp_path, "show", "out.jsonl", "-v")
    assert "not comparable: autocast off in the baseline, float16 here" in shown


@pytest.mark.slow
def test_autocast_and_short_types_are_alike_for_all(tmp_path: Path) -> None:
    options = ["--set", "tokens=24", "--set", "shape=64x128", "--set", "variant=dyad:auto:4"]
    options += ["--filter", "dtype=float32,bfloat16", "--filter", "autocast=off,bfloat16"]
    measure(tmp_path, *options)
    records = read(tmp_path / "out.jsonl").records
    found = {(r.variant, r.conditions["dtype"], r.conditions["autocast"]) for r in records}
    assert {name for r in records for name in r.flops["forward"]} == {"float32", "bfloat16"}
    settings = [("float32", "off"), ("float32", "bfloat16"), ("bfloat16", "off")]
    assert found == {(v, *s) for v in ("dense", "dyad:auto:4") for s in settings}


@pytest.mark.slow
def test_learning_is_measured_inside_and_out(tmp_path: Path) -> None:
    """A small model: phases, hooks, loss curves, and what the tables make of them."""
    records = measure(tmp_path, *SMALL_MODEL, "--set", "variant=dyad:auto:4")
    for record in records.values():
        assert list(record.samples_ns) == ["forward", "backward", "optimizer"]
        assert {name: region.calls for name, region in record.regions.items()} == {
            "forward/feed-forward": 8,
            "backward/feed-forward": 8,
        }
        assert record.curves["step"] == [10, 12]
        assert record.curves["tokens"][-1] == 12 * 2048
        assert record.curves["validation_loss"][-1] < record.curves["validation_loss"][0]
        assert "text" in record.conditions
    assert records["dyad:auto:4"].facts["parameters"] < records["dense"].facts["parameters"]
    shown = flopwatch(tmp_path, "show", "out.jsonl")
    assert "instruments cost" in shown
    assert "gain at" in shown  # equal loss, in the next line of its heading
    page = tmp_path / "page.html"
    flopwatch(tmp_path, "report", "out.jsonl", "-o", str(page))
    assert "<svg" in page.read_text()


@pytest.mark.slow
def test_a_whole_model_in_the_published_layout(tmp_path: Path) -> None:
    options = ["--filter", "model=opt-6l-768", "--filter", "batch=1x128", "--filter"]
    options += ["dtype=float32", "--filter", "autocast=off", "--set", "variant=dyad:it:4"]
    records = measure(tmp_path, *options)
    assert records["dyad:it:4"].check is not None
    printed = flopwatch(tmp_path, "show", "out.jsonl", "--layout", "dyad")
    assert "Batch Size - 1, seq_len - 128 (time in ms)" in printed
    assert "Sparse (dyad:it:4)\ntotal avg: " in printed


def expand(suite: Suite, *, quick: bool = False) -> list[Case]:
    return suite.expand(quick=quick)


def test_nothing_pointless_is_measured(suite: Suite) -> None:
    cases = expand(suite)
    assert all(case.autocast == "off" for case in cases if case.dtype == "bfloat16")
    levels = {case.level for case in cases}
    assert levels == {"layer", "model", "quality"}
    models = {case.model for case in cases if case.level == "model"}
    assert {"opt-125m", "opt-350m", "pythia-160m", "opt-6l-2048"} <= models
    assert len(expand(suite, quick=True)) < 30


def test_int8_layers_take_part_in_what_costs_loss_only(suite: Suite) -> None:
    int8 = {"switchback:rowwise", "switchback:global", "llm-int8"}
    levels = {case.level for case in expand(suite) if case.variant in int8}
    assert levels == {"quality"}
    by_variant = {case.variant: case for case in expand(suite) if case.level == "quality"}
    assert int8 < set(by_variant)
    assert suite.tolerance(by_variant["llm-int8"]) == 0.5
    assert suite.tolerance(by_variant["dyad:auto:4"]) == 3e-3
    counts = suite.count_flops(by_variant["switchback:global"])
    assert set(counts["backward/feed-forward"]) == {"int8", "float32"}
    assert set(counts["forward/feed-forward"]) == {"int8"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "variant=dyad:it"], "is not of the form dyad:VARIANT:BLOCKS"),
        (["--set", "variant=sparse"], "no layer is called 'sparse'"),
        (["--set", "model=opt-9"], "there is no model 'opt-9'; did you mean opt-"),
        (["--set", "dtype=float8"], "accepts only its own values of 'dtype'; use --filter"),
        (["--set", "shape=768"], "shape is 768, but takes 2 whole numbers from 1 on"),
        (["--set", "tokens=0"], "tokens is 0, but takes a whole number from 1 on"),
        (["--set", "hidden_size=100"], "its heads are 64 wide"),
    ],
)
def test_bad_values_get_one_sentence(tmp_path: Path, options: list[str], sentence: str) -> None:
    done = run(tmp_path, *options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_blocks_that_do_not_divide_are_a_row(tmp_path: Path) -> None:
    options = ["--set", "tokens=8", "--set", "shape=64x96", "--set", "variant=dyad:it:64"]
    done = run(tmp_path, *options, "--filter", "dtype=float32", "--filter", "autocast=off", "-v")
    assert done.returncode == 0  # a combination that does not exist is no failure
    assert "64 blocks do not divide 64 input and 96 output features" in done.stdout
    dense: Any = next(r for r in read(tmp_path / "out.jsonl").records if r.variant == "dense")
    assert dense.status == "ok"


def test_accepts_is_shared_with_the_library(suite: Suite) -> None:
    assert suite.accepts is not None
    suite.accepts("variant", "dyad:it:16")
    with pytest.raises(FlopwatchError):
        suite.accepts("variant", "dyad:it:none")
