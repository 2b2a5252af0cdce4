"""The suite switchback: its parts and totals, and runs as a user runs it, at small sizes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from flopwatch.devices.cpu import CpuClock
from flopwatch.devices.kinds import Devices, find_kind
from flopwatch.layers import int8_ops, int8_parts, int8_plain
from flopwatch.output.layouts import layout_switchback
from flopwatch.records.record import Record
from flopwatch.records.store import read
from flopwatch.suites.case import Case
from flopwatch.suites.catalog import find_suite, load_suite
from flopwatch.suites.suite import Suite
from flopwatch.worker import agreement
from tests.command_line import run_command_line

LAYERS = ["dense", "switchback:rowwise", "switchback:global", "switchback:global:int8", "llm-int8"]
FLOAT8 = ["fp8:rowwise", "fp8:tensorwise"]
TOTALS = {
    "parts:standard": ["standard_fwd", "standard_gx", "standard_gw"],
    "parts:rowwise": [
        "x_quantize_rowwise", "w_quantize_rowwise", "rowwise_fwd", "g_quantize_rowwise",
        "w_quantize_colwise_transpose", "rowwise_bwd", "standard_gw",
    ],
    "parts:global": [
        "x_quantize_rowwise", "w_quantize_global", "global_fwd", "g_quantize_rowwise",
        "w_quantize_global_transpose", "global_bwd", "standard_gw",
    ],
    "parts:casts": ["cast_x", "cast_w", "cast_g"],
}  # fmt: skip
"""The published totals, by what they are sums of."""


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(find_suite("switchback").path)


def make_case(variant: str, **params: Any) -> Case:
    layer = {"level": "layer", "tokens": 24, "shape": [40, 56], "dtype": "float32"}
    return Case(suite="switchback", variant=variant, params={**layer, **params})


def run_once(suite: Suite, case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the case gives, and its reference."""
    torch.manual_seed(0)
    made = suite.build_case(case)
    torch.manual_seed(0)
    reference = suite.build_reference(case)
    assert reference is not None
    found, expected = (agreement.gather(one, CpuClock()).values for one in (made, reference))
    return found, expected


@pytest.mark.parametrize("variant", TOTALS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_part_of_a_total_is_compared(suite: Suite, variant: str, dtype: str) -> None:
    case = make_case(variant, dtype=dtype)
    assert list(suite.build_case(case).phases) == TOTALS[variant]
    found, expected = run_once(suite, case)
    assert {name.partition("[")[0] for name in found} == set(TOTALS[variant])
    check = agreement.compare(found, expected, against="it", tolerance=suite.tolerance(case))
    assert check is not None
    assert all(expected[name].abs().max() > 0 for name in expected)


def test_every_part_that_there_is_has_a_total_and_a_place_in_the_layout() -> None:
    summed = {part for total in TOTALS.values() for part in total}
    assert set(int8_parts.PARTS) == set(layout_switchback.PARTS) == summed
    for part, sources in layout_switchback.PARTS.items():
        assert all(part in TOTALS[variant] for variant in sources)


def test_the_parts_are_the_operations_of_a_layer(suite: Suite) -> None:
    """By the plain formulas, from the inputs alone."""
    torch.manual_seed(0)
    found, _ = run_once(suite, make_case("parts:rowwise"))
    x, w, g = (shared := int8_parts._share_tensors(24, 40, 56, setting(), 0)).x, shared.w, shared.g
    assert (x.shape, w.shape, g.shape) == ((24, 40), (56, 40), (24, 56))
    torch.testing.assert_close(found["standard_gw"], g.t() @ x)
    assert found["w_quantize_colwise_transpose[0]"].shape == (40, 56)
    bound = 0.02 * float((x @ w.t()).abs().max())
    assert (found["rowwise_fwd"] - x @ w.t()).abs().max() < bound
    assert (found["rowwise_bwd"] - g @ w).abs().max() < bound
    found, _ = run_once(suite, make_case("parts:global"))
    assert (found["global_fwd"] - x @ w.t()).abs().max() < bound
    assert (found["global_bwd"] - g @ w).abs().max() < bound
    assert found["w_quantize_global[1]"].shape == ()


def setting() -> Any:
    from flopwatch.layers.layer_workload import Setting

    return Setting(device="cpu", dtype="float32")


@pytest.mark.parametrize("broken", ["quantize_global_transpose", "multiply"])
def test_a_wrong_part_is_noticed(
    suite: Suite, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only a wrong first one."""
    right = getattr(int8_plain, broken)

    def wrong(*arguments: Any) -> Any:
        result = right(*arguments)
        return 1.01 * result if broken == "multiply" else (result[0], 1.01 * result[1])

    monkeypatch.setattr(int8_ops, broken, wrong)
    int8_parts._share_tensors.cache_clear()
    found, expected = run_once(suite, make_case("parts:global"))
    with pytest.raises(agreement.WrongResult, match="global_"):
        agreement.compare(found, expected, against="it", tolerance=1e-4)


@pytest.mark.parametrize("broken", ["x_quantize_rowwise[0]", "w_quantize_global[0]", "cast_g"])
def test_whole_numbers_are_compared_exactly(suite: Suite, broken: str) -> None:
    """One step of 127 is less than bfloat16's tolerance."""
    variant = "parts:casts" if broken == "cast_g" else "parts:global"
    case = make_case(variant, dtype="bfloat16")
    found, expected = run_once(suite, case)
    assert expected[broken].dtype == torch.int8
    found[broken][0, 0] += 1
    with pytest.raises(agreement.WrongResult, match=r"off by .* \(allowed 0\)"):
        agreement.compare(found, expected, against="it", tolerance=suite.tolerance(case))


def test_parts_share_their_tensors() -> None:
    one, other = (int8_parts._share_tensors(8, 16, 24, setting(), 0) for _ in range(2))
    assert one is other
    assert one.x_rows is other.x_rows


def test_totals_count_what_layers_count(suite: Suite) -> None:
    """The sum of the parts has the FLOPs of the layer, in the same dtypes."""

    def total(variant: str) -> dict[str, float]:
        sums: dict[str, float] = {}
        for by_dtype in suite.count_flops(make_case(variant, dtype="bfloat16")).values():
            for dtype, count in by_dtype.items():
                sums[dtype] = sums.get(dtype, 0.0) + count
        return sums

    product = 2.0 * 24 * 40 * 56
    assert total("parts:standard") == total("dense") == {"bfloat16": 3 * product}
    mixed = {"int8": 2 * product, "bfloat16": product}
    assert total("parts:rowwise") == total("switchback:rowwise") == mixed
    assert total("parts:global") == total("switchback:global:int8") == mixed
    assert total("llm-int8") == {"int8": 3 * product}
    assert total("parts:casts") == {}
    model = {
        "level": "model",
        "model": "opt-125m",
        "micro_batch": 1,
        "seq_len": 128,
        "dtype": "float32",
    }
    case = Case(suite="switchback", variant="llm-int8", params={**model, "swapped": "linear"})
    assert set(suite.count_flops(case)["backward/linear"]) == {"int8"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("variant", LAYERS)
def test_layers_agree_with_the_plain_formula(suite: Suite, variant: str, dtype: str) -> None:
    case = make_case(variant, dtype=dtype)
    found, expected = run_once(suite, case)
    assert set(found) == {"output", "grad x", "grad weight", "grad bias"}
    agreement.compare(found, expected, against="it", tolerance=suite.tolerance(case))
    assert suite.tolerance(make_case("dense")) == 1e-4


def test_the_grids(suite: Suite) -> None:
    cases = suite.expand()
    layers = [case for case in cases if case.level == "layer"]
    models = [case for case in cases if case.level == "model"]
    assert {case.variant for case in layers} == {*LAYERS, *FLOAT8, *TOTALS}
    assert not {case.variant for case in models} & set(TOTALS)
    assert {case.swapped for case in models} == {"feed-forward", "linear"}
    quick = [case for case in suite.expand(quick=True) if case.dtype == "float32"]
    assert len(quick) == 3 * 11 + 6
    chosen = suite.expand(chosen={"variant": ["dense", "parts:casts"], "dtype": ["float32"]})
    assert {case.variant for case in chosen if case.level == "model"} == {"dense"}


def test_the_published_grid(suite: Suite) -> None:
    cases = suite.expand(preset="published")
    points = {(tuple(case.shape), case.tokens) for case in cases}
    assert len(points) == 18 * 8
    assert {tokens for _, tokens in points} == {1024 * 2**n for n in range(8)}
    assert {shape[::-1] for shape, _ in points} == {shape for shape, _ in points}
    assert {((1408, 6144), 1024), ((32384, 8096), 131072)} <= points
    assert len(cases) == 18 * 8 * 9 * 3


def test_what_int8_is_compared_with_depends_on_the_device(suite: Suite) -> None:
    assert suite.on_request == {"dtype": ["bfloat16", "float16"], "variant": FLOAT8}
    on_gpu = {"dtype": ["float32", "float16"]}
    for name, more in (("NVIDIA A100-SXM4-80GB", FLOAT8), (None, FLOAT8), ("NVIDIA L40S", None)):
        found = suite.on(Devices(kind=find_kind("cuda"), name=name))
        assert found.on_request == (on_gpu if more is None else {**on_gpu, "variant": more})
        for level in ("layer", "model"):
            variants = {case.variant for case in found.expand() if case.level == level}
            assert set(FLOAT8) < variants


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["run", "switchback", "--out", "out.jsonl", "--case-budget", "500ms"]
    return run_command_line(*command, *options, cwd=folder)


def read_records(folder: Path) -> dict[str, Record]:
    return {record.variant: record for record in read(folder / "out.jsonl").records}


def test_a_small_layer_through_the_command_line(tmp_path: Path) -> None:
    done = run(tmp_path, "--set", "tokens=24", "--set", "shape=64x128", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 cases in 1 group, " in done.stderr
    records = read_records(tmp_path)
    assert list(records) == [*LAYERS, *TOTALS]
    for variant, record in records.items():
        assert record.check is not None
        assert record.conditions == {"dtype": "float32", "autocast": "off"}
        phases = TOTALS.get(variant, ["forward", "backward"])
        assert list(record.samples_ns) == phases
        rounds = [sum(times) for times in zip(*record.samples_ns.values(), strict=True)]
        told = next(row for row in json.loads(done.stdout) if row["variant"] == variant)
        assert min(rounds) <= told["total_ns"]["median"] <= max(rounds)
    assert records["dense"].notes == records["parts:standard"].notes == []
    assert records["parts:casts"].notes == []
    int8 = [record.notes for name, record in records.items() if record.flops and (
        any("int8" in by_dtype for by_dtype in record.flops.values()))]  # fmt: skip
    assert len(int8) == 6
    assert all(notes == int8[0] for notes in int8)


@pytest.mark.slow
@pytest.mark.parametrize("swapped", ["feed-forward", "linear"])
def test_a_model_through_the_command_line(tmp_path: Path, swapped: str) -> None:
    options = ["--set", "model=opt-6l-768", "--set", "batch=1x16", "--filter", f"swapped={swapped}"]
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    records = read_records(tmp_path)
    assert list(records) == ["dense", "switchback:rowwise", "switchback:global", "llm-int8"]
    for record in records.values():
        calls = 6 * (2 if swapped == "feed-forward" else 6)
        assert {name: region.calls for name, region in record.regions.items()} == {
            f"forward/{swapped}": calls,
            f"backward/{swapped}": calls,
        }


def test_what_does_not_fit_is_a_row(tmp_path: Path) -> None:
    """A gibibyte of gradient, where less is allowed."""
    options = ["--grid", "published", "--set", "tokens=65536", "--set", "shape=16x4096"]
    done = run(tmp_path, *options, "--memory-limit", "700M", "--filter", "variant=parts:rowwise")
    assert done.returncode == 1
    records = read_records(tmp_path)
    assert {record.status for record in records.values()} == {"oom"}
    assert list(records) == ["dense", "parts:rowwise"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--set", "variant=parts:all"], "; lists of parts are parts:standard, parts:rowwise, "),
        pytest.param(
            ["--set", "variant=switchback:diagonal"], "'diagonal'", marks=pytest.mark.slow
        ),
        pytest.param(
            ["--set", "dtype=float8"],
            "accepts only its own values of 'dtype'; use --filter",
            marks=pytest.mark.slow,
        ),
        (["--set", "shape=768"], "shape is 768, but takes 2 whole numbers from 1 on"),
        pytest.param(["--set", "model=opt-9"], "there is no model 'opt-9'", marks=pytest.mark.slow),
        (["--grid", "large"], "suite 'switchback' has no grid 'large'; it has published"),
        pytest.param(
            ["--grid", "published", "--set", "batch=1x1"],
            "has no case with all of batch",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bad_values_get_one_sentence(tmp_path: Path, options: list[str], sentence: str) -> None:
    done = run(tmp_path, *options)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not (tmp_path / "out.jsonl").exists()
