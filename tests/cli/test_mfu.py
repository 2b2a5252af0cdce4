"""The command `flopwatch mfu`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flopwatch import api
from flopwatch.cli.main import main
from flopwatch.jobs.conventions import CONVENTIONS
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.console import draw, fit
from flopwatch.output.job_tables import list_mfu_sheets as list_sheets
from tests.cli.test_main import assert_refused, flopwatch

SEVEN_OPTIONS = ("mfu", "--model", "7b", "--seq-len", "2048")
FULL = (*SEVEN_OPTIONS, "--tokens-per-s", "25651.12", "--hardware", "8xA100-80GB")


def test_the_command_prints_conventions_side_by_side(tmp_path: Path) -> None:
    shown = flopwatch(*FULL, "--recompute", "full", "--parts", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    rows = {line.split()[0]: line.split() for line in shown.stdout.splitlines() if line.split()}
    assert " ".join(rows["mosaic-2023"][1:]) == "41.0G 54.9G 42.16 % 56.40 % 41.06 % 54.74 %"
    assert " ".join(rows["exact"][1:]) == "43.1G 52.8G 44.30 % 54.24 %"
    assert set(CONVENTIONS) < set(rows)
    assert "peak of one device in bfloat16: 312 TFLOP/s (" in shown.stdout
    assert rows["feed-forward"][1:4] == ["17.6T", "35.2T", "8.80T"]


def test_the_command_gives_all_numbers_as_json(tmp_path: Path) -> None:
    arguments = (*FULL, "--json", "--convention", "palm")
    content = json.loads(flopwatch(*arguments, cwd=tmp_path).stdout)
    (palm,) = content["conventions"]
    assert palm["mfu"] == pytest.approx(0.4437, abs=1e-4)
    assert (content["peak_flops_per_s"], content["devices"]) == (312e12, 8)
    assert content["parameters"] == content["active_parameters"] == 6_658_404_352
    assert palm["source"] == CONVENTIONS["palm"].source
    assert palm["formulas"] == list(CONVENTIONS["palm"].formulas)
    assert content["parts"]["qkv"]["flops"]["forward"] == 6 * 2048 * 4096**2 * 32


def test_json_has_the_parameters_of_each_convention(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mfu", "--model", "7b", "--seq-len", "512", "--tokens-per-s", "1", "--json"]
    content = read_json(capsys, *arguments)
    whole = 6_658_404_352
    assert {one["convention"]: one["parameters"] for one in content["conventions"]} == {
        **dict.fromkeys(CONVENTIONS),
        **dict.fromkeys(["mosaic-2023", "mosaic"], whole - (2048 - 512) * 4096),
        "palm": whole,
        "nanogpt": whole - 2048 * 4096,
    }
    arguments[2] = "llama:hidden_size=64:layers=1:experts=8:active_experts=2"
    content = read_json(capsys, *arguments)
    assert content["parameters"] - content["active_parameters"] == 6 * 3 * 64 * 256


def read_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 0

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_the_largest_numbers_that_are_taken_stay_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    axes = ("hidden_size", "layers", "feed_forward_size", "vocabulary")
    model = ":".join(["gpt", "heads=1", *(f"{axis}=999999999" for axis in axes)])
    huge = ["mfu", "--model", model, "--seq-len", "1000000000", "--tokens-per-s", "1e12"]
    content = read_json(capsys, *huge, "--peak", "1e-6", "--json")
    assert len(content["conventions"]) == len(CONVENTIONS)
    assert all(one["mfu"] > 1e30 for one in content["conventions"])


@pytest.mark.parametrize("columns", [80, 200])
def test_no_number_is_cut_off(columns: int) -> None:
    """80 columns are the narrowest terminal that is usual."""
    job = TrainingJob("7b", 2048, recompute="full", hardware="8xA100-80GB")
    for found in (api.mfu(job, mfu=0.42), api.mfu(job, tokens_per_s=25651.0)):
        sheets = list_sheets(found, with_parts=True)
        assert len(sheets) > 1
        for sheet in sheets:
            (narrow,) = fit(sheet, columns)
            out = io.StringIO()
            Console(width=columns, file=out).print(draw(narrow))
            drawn = out.getvalue()
            assert "…" not in drawn
            for cells in narrow.groups[0]:
                assert all(cell in drawn for cell in cells)
            if narrow.title.startswith("mfu"):
                assert {"convention", "MFU", "HFU"} <= set(narrow.headings)


def test_the_command_turns_an_mfu_into_tokens(tmp_path: Path) -> None:
    arguments = (*SEVEN_OPTIONS, "--mfu", "42.16%", "--hardware", "8xA100-80GB", "--json")
    content = json.loads(flopwatch(*arguments, cwd=tmp_path).stdout)
    assert content["conventions"][0]["tokens_per_s"] == pytest.approx(25651, rel=1e-3)


def test_the_command_prints_formulas(tmp_path: Path) -> None:
    text = flopwatch("mfu", "--formula", cwd=tmp_path).stdout
    for convention in CONVENTIONS.values():
        assert f"{convention.name}: {convention.source}" in text
    only = flopwatch("mfu", "--formula", "--convention", "palm", "--json", cwd=tmp_path).stdout
    assert [one["name"] for one in json.loads(only)] == ["palm"]


def test_unknown_hardware_takes_a_peak(tmp_path: Path) -> None:
    arguments = (*SEVEN_OPTIONS, "--tokens-per-s", "5e6", "--hardware", "4xAbacus", "--peak", "312")
    shown = flopwatch(*arguments, cwd=tmp_path).stdout
    assert "4 x Abacus" in shown
    assert "312 TFLOP/s (given by --peak)" in shown
    assert "is impossible" in shown


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--hardware", "8xT4"),
            "T4 has no nominal peak in bfloat16; choose --precision fp32, fp16-mixed, fp16, "
            "int8, or give --peak",
        ),
        (
            ("--hardware", "A100", "--precision", "fp8"),
            "A100 has no nominal peak in float8; choose --precision fp32, bf16-mixed, "
            "fp16-mixed, bf16, fp16, tf32, int8, or give --peak",
        ),
        (
            (),
            "the peak is not known; give --hardware, as in 8xA100-80GB, or --peak, in TFLOP/s of "
            "one device",
        ),
    ],
)
def test_a_missing_peak_says_what_to_choose(
    options: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = read_json(capsys, *SEVEN_OPTIONS, "--tokens-per-s", "1", *options, "--json")
    assert {one["missing"] for one in content["conventions"]} == {sentence}
    with pytest.raises(SystemExit):
        main((*SEVEN_OPTIONS, "--tokens-per-s", "1", *options))
    assert sentence in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*SEVEN_OPTIONS,), "give one of tokens_per_s and mfu"),
        ((*FULL, "--mfu", "0.4"), "give one of tokens_per_s and mfu"),
        ((*FULL, "--peak", "fast"), "'fast' is not a number from 1e-6 to 1e6; give it in TFLOP/s"),
        ((*FULL, "--peak", "-1"), "'-1' is not a number from 1e-6 to 1e6"),
        ((*FULL, "--peak", "nan"), "'nan' is not a number from 1e-6 to 1e6"),
        ((*FULL, "--peak", "1e308"), "'1e308' is not a number from 1e-6 to 1e6"),
        ((*FULL, "--peak", "1e-300"), "'1e-300' is not a number from 1e-6 to 1e6"),
        ((*FULL, "--peak", 5000 * "9"), f"'{40 * '9'}' is not a number from 1e-6 to 1e6"),
        ((*SEVEN_OPTIONS, "--tokens-per-s", "many"), "give tokens in a second"),
        ((*SEVEN_OPTIONS, "--tokens-per-s", "1e308"), "'1e308' is not a number from 1e-6 to 1e12"),
        ((*SEVEN_OPTIONS, "--mfu", "42", "--peak", "1"), "'42' is not a share from 1e-6 to 1"),
        ((*SEVEN_OPTIONS, "--mfu", "101%", "--peak", "1"), "'101%' is not a share from 1e-6 to 1"),
        ((*SEVEN_OPTIONS, "--mfu", "0.4"), "tokens/s at an MFU need a peak: the peak is not known"),
        ((*SEVEN_OPTIONS, "--mfu", "0.4", "--hardware", "8xT4"), "T4 has no nominal peak in bfl"),
        (
            ("mfu", "--model", "7b", "--seq-len", 400 * "9", "--mfu", "1"),
            "is not a whole number from 1 to 1e9",
        ),
        ((*FULL, "--model", f"7b:layers=1{400 * '0'}"), "401 digits in its layers"),
        ((*FULL, "--hardware", f"{500 * '9'}xAbacus", "--peak", "1"), "has 500 digits"),
        ((*SEVEN_OPTIONS, "--tokens-per-s", "1", "--hardware", "8xAbacus"), "'Abacus'"),
        ((*FULL, "--hardware", "0xAbacus", "--peak", "1"), "has no device"),
        (("mfu", "--model", "7b"), "give --model and --seq-len, or --formula alone"),
        (("mfu", "--model", "huge", "--seq-len", "8", "--mfu", "1"), "there is no model 'huge'"),
    ],
)
def test_the_command_refuses_in_a_sentence(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    printed = capsys.readouterr()
    assert (left.value.code, printed.out) == (2, "")
    assert words in printed.err
    assert "Traceback" not in printed.err


def test_refusing_is_the_same_in_a_process(tmp_path: Path) -> None:
    assert_refused(flopwatch(*FULL, "--peak", "fast", cwd=tmp_path), "'fast' is not a number")
