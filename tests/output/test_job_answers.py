"""Predictions, plans and breakdowns in a sentence, as the command line prints them first."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from flopwatch.analysis.summary import summarize
from flopwatch.cli.main import cli
from flopwatch.output.breakdown_tables import explain_rows
from flopwatch.output.job_answers import answer_breakdowns
from flopwatch.records.record import encode
from tests.plot_tools import BREAKDOWN

JOB = ["--model", "7b", "--seq-len", "2048"]


def run(*words: str) -> list[str]:
    result = CliRunner().invoke(cli, [*words], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def predict(hardware: str, *more: str) -> list[str]:
    return run("predict", *JOB, "--micro-batch", "4", "--hardware", hardware, *more)


def test_of_several_jobs_the_fastest_is_named_with_its_interval() -> None:
    text = " ".join(predict("8xA100-80GB,8xH100-SXM", "-q"))
    assert text.startswith("8xH100-SXM is the fastest, 2.")
    assert "x as fast as 8xA100-80GB: " in text
    assert "tokens/s (90 % interval " in text
    assert text.endswith("a rank, which fits.")


def test_of_one_job_the_speed_is_named() -> None:
    assert predict("8xA100-80GB", "-q")[0].startswith("7b:padded_vocabulary=50368 8xA100-80GB: 35,")


def test_what_does_not_fit_is_no_answer() -> None:
    (line,) = run("predict", "--model", "70b", "--seq-len", "2048", "--micro-batch", "4",
                  "--hardware", "8xA100-80GB", "-q")  # fmt: skip
    assert line.startswith("It needs ")
    assert line.endswith("which does not fit.")
    mixed = " ".join(run("predict", "--model", "7b,70b", "--seq-len", "2048", "--micro-batch", "4",
                         "--hardware", "8xA100-80GB", "-q"))  # fmt: skip
    assert mixed.startswith("7b:padded_vocabulary=50368 is the fastest: ")
    assert mixed.endswith("1 of 2 do not fit.")


def test_the_answer_stands_above_the_table() -> None:
    lines = predict("8xA100-80GB,8xH100-SXM")
    assert lines[0].startswith("8xH100-SXM is the fastest")
    assert "" in lines[1:3]
    assert any(line.startswith("hardware") for line in lines)


def test_a_plan_names_the_best() -> None:
    text = " ".join(run("plan", *JOB, "--hardware", "8xH100-SXM", "--price", "2", "-q"))
    assert text.startswith("Fastest: ")
    assert " GPU-hours for " in text


def test_a_breakdown_names_what_takes_and_what_could_be_gained(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b"".join(encode(record) + b"\n" for record in BREAKDOWN))
    lines = run("explain", str(path), "-q")
    assert " ".join(lines) == (
        "eager, the first of 2 cases, takes 10.0 ms: the largest part is launches and framework, "
        "30.0 %; most could be gained in launches and framework (30.0 %) and attention (21.3 %)."
    )
    assert answer_breakdowns(explain_rows(summarize([]))) == []


@pytest.mark.parametrize("words", [["-q", "--json"], ["-q", "-v"], ["-v", "--columns", "variant"]])
def test_two_lengths_are_refused(words: list[str]) -> None:
    result = CliRunner().invoke(cli, ["show", "published:dyad", *words])
    assert result.exit_code == 2
    assert "ask for different things; take one" in result.stderr
