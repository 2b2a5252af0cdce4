"""One's own results beside published ones: known samples in, known ratios out."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwatch.analysis.summary import summarize
from flopwatch.analysis.vs_published import PublishedComparison, as_dict, compare_with_published
from flopwatch.output.vs_published_tables import (
    describe_published_comparison,
    make_published_comparison_sheets,
    suggest_case,
)
from flopwatch.records.published import load
from flopwatch.records.published.published_switchback import SUMS, WHOLES
from flopwatch.records.record import Record, Region
from flopwatch.settings import Settings
from flopwatch.suites.case import case_id, group_id
from tests.analysis.test_record_job import make_job
from tests.conftest import make_record

ROUNDS = 20
LAYOUTS = {"dyad": "dyad", "switchback": "switchback", "steps": "cs336"}
LAYER = {"level": "layer", "tokens": 1024, "shape": [1024, 4096], "dtype": "float16"}
STEP = {"micro_batch": 4, "seq_len": 128, "precision": "fp32", "optimizer": "adamw"}
MODEL = {
    "level": "model",
    "model": "opt-125m",
    "micro_batch": 32,
    "seq_len": 128,
    "dtype": "float32",
}


def measure(
    suite: str, variant: str, params: dict[str, Any], times_ns: dict[str, float], **fields: Any
) -> Record:
    return make_record(
        case_id=case_id(suite, variant, params),
        group_id=group_id(suite, params),
        suite=suite,
        layout=LAYOUTS.get(suite),
        variant=variant,
        baseline={"steps": "eager"}.get(suite, "dense"),
        params=params,
        samples_ns={phase: [time_ns] * ROUNDS for phase, time_ns in times_ns.items()},
        environment={"machine": {"cpu_model": "Z80"}},
        **fields,
    )


def measure_layers(**params: Any) -> list[Record]:
    """Twice as fast as dense as wholes, 1.25 times as sums of their parts."""
    case = {**LAYER, **params}
    times = {"dense": 400.0, "switchback:rowwise": 200.0, "switchback:global": 200.0}
    wholes = [measure("switchback", v, case, {"forward": t}) for v, t in times.items()]
    each = {"parts:standard": 210.0, "parts:rowwise": 72.0, "parts:global": 72.0}
    parts = [
        measure(
            "switchback",
            v,
            case,
            dict.fromkeys(SUMS[v], part_ns),
            kind="parts",
            parts_of=WHOLES[v],
        )
        for v, part_ns in each.items()
    ]
    return [*wholes, *parts]


def measure_model(variant: str, autocast: str = "off", layer_ns: float = 100.0) -> Record:
    cast = "float16" if (autocast, variant != "dense") == ("published", True) else "off"
    regions = {
        f"{phase}/feed-forward": Region(calls=24, samples_ns=[share * layer_ns] * ROUNDS)
        for phase, share in {"forward": 0.25, "backward": 0.75}.items()
    }
    return measure(
        "dyad",
        variant,
        {**MODEL, "autocast": autocast},
        {"forward": 500.0, "backward": 500.0},
        conditions={"dtype": "float32", "autocast": cast},
        regions=regions,
        instrumented_ns=[1000.0] * ROUNDS,
    )


def measure_step(model: str, time_ns: float, variant: str = "compiled") -> Record:
    times_ns = {"forward": time_ns, "backward": 3 * time_ns, "optimizer": 1e9}
    return measure("steps", variant, {"model": model, **STEP}, times_ns)


def put(own: list[Record], name: str) -> list[PublishedComparison]:
    return compare_with_published(summarize(own), summarize(load(name)))


def compared(found: list[PublishedComparison]) -> list[PublishedComparison]:
    return [one for one in found if one.missing is None]


def values(one: PublishedComparison) -> tuple[float, float]:
    assert one.own_value
    assert one.published_value
    return round(one.own_value.value, 3), round(one.published_value.value, 3)


def test_speedups_of_wholes_and_of_sums_stand_beside_the_published_sums() -> None:
    found = compared(put(measure_layers(), "switchback"))
    assert [(one.row.record.variant, one.quantity, values(one)) for one in found] == [
        ("switchback:rowwise", "speedup of sums of parts", (1.25, 0.467)),
        ("switchback:rowwise", "speedup", (2.0, 0.467)),
        ("switchback:global", "speedup of sums of parts", (1.25, 0.405)),
        ("switchback:global", "speedup", (2.0, 0.405)),
    ]
    sums, whole = found[:2]
    assert sums.differences == {}
    assert whole.differences == {"measured": ("a whole layer", "a sum of parts")}
    assert sums.own_value
    assert (sums.own_value.low, sums.own_value.high) == (1.25, 1.25)


def test_axes_that_differ_are_told_by_field() -> None:
    found = put(measure_layers(dtype="float32"), "switchback")
    assert all(one.differences["dtype"] == ("float32", "float16") for one in compared(found))
    assert (
        "not comparable: dtype: float32 here, float16 there (4 ratios)"
        in describe_published_comparison(found)
    )


def test_of_own_results_the_closest_are_taken() -> None:
    found = put([*measure_layers(dtype="float32"), *measure_layers()], "switchback")
    assert {one.row.record.params["dtype"] for one in compared(found)} == {"float16"}
    assert any(
        sentence.startswith("2 own cases without a partner, such as switchback:rowwise")
        and sentence.endswith("another of these results is closer to its published partner")
        for sentence in describe_published_comparison(found)
    )


def test_what_has_no_partner_is_counted_with_a_reason() -> None:
    int8 = measure("switchback", "llm-int8", LAYER, {"forward": 100.0})
    failed = replace(
        measure("switchback", "switchback:global", LAYER, {}),
        status="oom",
        rounds=[],
        calls_per_sample=[],
    )
    small = measure_layers(tokens=16)
    other = make_record(variant="b")
    found = put([int8, failed, *small, other], "switchback")
    assert not compared(found)
    assert make_published_comparison_sheets(found) == []
    told = describe_published_comparison(found)
    reasons = [sentence.rpartition(": ")[2] for sentence in told]
    assert reasons == [
        "no such variant of it was published",
        "it was not measured here (oom)",
        "no case with the same tokens and shape was published",
        "nothing of the suite demo was published there",
        "these results do not have it",
    ]
    assert told[-1].startswith("284 published cases without a partner")
    assert suggest_case(found, "switchback") == (
        "measure what was published, as by: flopwatch run switchback --set tokens=1024 "
        "--set shape=1024x4096"
    )


def test_layers_inside_a_model_stand_beside_the_published_ones() -> None:
    own = [measure_model("dense"), measure_model("dyad:it:4", layer_ns=80.0)]
    (one,) = compared(put(own, "dyad"))
    assert one.quantity == "speedup of feed-forward layers"
    assert values(one) == (1.25, 1.103)
    assert one.differences == {}


def test_the_published_mixture_is_told_on_both_sides() -> None:
    own = [measure_model("dense", "published"), measure_model("dyad:it:4", "published", 80.0)]
    found = put(own, "dyad")
    (one,) = compared(found)
    assert values(one) == (1.25, 3.216)
    (sheet,) = make_published_comparison_sheets(found)
    assert sheet.groups[0][0][-1] == "not comparable: autocast here, autocast there"
    told = describe_published_comparison(found)[:2]
    assert told == [
        f"not comparable: autocast {where}: off in the baseline, float16 in the variant (1 ratio)"
        for where in ("here", "there")
    ]


def test_other_forms_of_a_layer_have_the_same_partner() -> None:
    own = [measure_model("dense"), measure_model("dyad:auto:4", layer_ns=50.0)]
    (one,) = compared(put(own, "dyad"))
    assert values(one) == (2.0, 1.103)
    assert one.differences == {"variant": ("dyad:auto:4", "dyad:it:4")}


def test_a_model_without_instruments_says_what_to_do() -> None:
    own = [replace(measure_model(v), regions={}) for v in ("dense", "dyad:it:4")]
    found = put(own, "dyad")
    assert not compared(found)
    assert any(
        "measure it with instruments on" in sentence
        for sentence in describe_published_comparison(found)
    )


def test_steps_are_compared_by_passes_and_over_the_first_shared_model() -> None:
    found = put([measure_step("small", 1e6), measure_step("medium", 4e6)], "cs336")
    told = [(one.row.record.params["model"], one.quantity, values(one)) for one in compared(found)]
    assert told == [
        ("small", "backward / forward", (3.0, 1.966)),
        ("medium", "backward / forward", (3.0, 2.008)),
        ("medium", "time over that of small", (4.0, 3.474)),
    ]
    partner = compared(found)[0].published
    assert partner
    assert partner.record.params["warmup_steps"] == 5


def test_each_variant_has_its_own_reference() -> None:
    own = [
        measure_step(model, time_ns, variant)
        for variant, factor in (("eager", 2), ("compiled", 1))
        for model, time_ns in (("small", 1e6 * factor), ("medium", 4e6))
    ]
    found = [one for one in compared(put(own, "cs336")) if one.quantity.startswith("time")]
    assert {one.row.record.variant: values(one)[0] for one in found} == {
        "eager": 2.0,
        "compiled": 4.0,
    }
    eager = next(one for one in found if one.row.record.variant == "eager")
    assert eager.differences == {"variant": ("eager", "compiled")}


def test_a_model_that_failed_there_is_no_partner() -> None:
    told = describe_published_comparison(put([measure_step("2.7B", 1e6)], "cs336"))
    assert any(sentence.endswith(": its published partner failed") for sentence in told)
    assert any(sentence.endswith(": it failed there (oom)") for sentence in told)


def test_jobs_are_compared_by_mfu_and_the_time_of_a_token() -> None:
    own = [make_job("full"), make_job("full", seq_len=512)]
    found = compared(put(own, "mosaic"))
    assert [(one.quantity, values(one)) for one in found] == [
        ("MFU, mosaic-2023", (0.087, 0.243)),
        ("MFU, mosaic-2023", (0.080, 0.249)),
        ("time of a token over that of gpt-125m 2048", (1.0, 0.903)),
    ]
    assert all("precision" not in one.differences for one in found)
    devices = [one.published.record.environment["torch"] for one in found if one.published]
    assert {device["gpu"]["name"] for device in devices} == {"NVIDIA A100-SXM4-80GB"}


def test_mfu_without_a_peak_says_why() -> None:
    own = make_job("full", settings=Settings(), environment={})
    told = describe_published_comparison(put([own], "mosaic"))
    assert any("the nominal peak of a CPU is not known" in sentence for sentence in told)


def test_sheets_have_raw_values_and_json_has_all() -> None:
    found = put(measure_layers(), "switchback")
    (sheet,) = make_published_comparison_sheets(found)
    assert sheet.headings == [
        "variant",
        "ratio",
        "here",
        "published",
        "here over published",
        "fair",
    ]
    assert sheet.values[0][0][2] == 1.25
    assert sheet.values[0][0][4] == pytest.approx(1.25 / 0.46664593)
    assert "Z80; published: SwitchBack" in sheet.conditions
    first, *_, last = json.loads(json.dumps([as_dict(one) for one in found]))
    assert first["own"] == {"median": 1.25, "low": 1.25, "high": 1.25}
    assert last["missing"] == "these results do not have it"


@pytest.mark.slow
def test_a_layer_measured_here_finds_its_published_partner(tmp_path: Path) -> None:
    """One of the published shapes, in the smallest published batch."""

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "flopwatch", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    variants = "variant=switchback:global,parts:standard,parts:global"
    chosen = ["--set", "tokens=1024", "--set", "shape=1024x4096", "--set", variants]
    chosen += ["--filter", "level=layer"]
    run("run", "switchback", *chosen, "--case-budget", "500ms", "--out", "own.jsonl")
    found = json.loads(run("compare", "own.jsonl", "--with", "published:switchback", "--json"))
    told = {(one["variant"], one["quantity"]) for one in found if one["missing"] is None}
    ratios = ("speedup", "speedup of sums of parts")
    assert told == {("switchback:global", ratio) for ratio in ratios}
