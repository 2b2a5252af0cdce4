"""flopwatch plan, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flopwatch.cli.main import cli
from flopwatch.errors import UsageError

ONE = ["--model", "1b", "--seq-len", "2048", "--global-batch-tokens", "512K", "--tokens", "100B"]
KINDS = ["--hardware", "8xH100-SXM,16xA100-80GB"]


def run(*words: str) -> Result:
    result = CliRunner().invoke(cli, ["plan", *words])
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result


def call(*words: str) -> str:
    return " ".join(run(*words).stdout.split())


def refuse(*words: str) -> str:
    result = CliRunner().invoke(cli, ["plan", *words])
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, UsageError) else result.stderr


def test_one_plan_says_what_is_alike_and_how_sensitive_it_is() -> None:
    text = call(*ONE, "--hardware", "16xA100-80GB")
    assert "which cannot be told apart" in text
    for words in ("how sensitive the best is", "half the bandwidth", "what the others lose"):
        assert words in text


def test_several_kinds_are_a_table_by_time_and_by_cost(tmp_path: Path) -> None:
    prices = ["--price", "h100=2.1,a100=0.6"]
    plot = tmp_path / "pareto.vl.json"
    text = call(*ONE, *KINDS, *prices, "-o", str(plot))
    assert text.startswith("Fastest: 8xH100-SXM")
    assert "cheapest: 16xA100-SXM-80GB" in text
    assert "Days of training over its cost" in plot.read_text()
    page = tmp_path / "plans.html"
    call(*ONE, *KINDS, "-o", str(page), "-q")
    assert "GPU-hours" in page.read_text()
    found = json.loads(run(*ONE, *KINDS, *prices, "--json").stdout)
    assert [each["is_cheapest"] for each in found["plans"]] == [False, True]


def test_several_models_train_on_as_many_tokens_or_on_as_many_for_each_parameter() -> None:
    words = ["--model", "1b,3b", "--seq-len", "2048", "--hardware", "8xH100-SXM"]
    for tokens, expected in (("100B", [1e11, 1e11]), ("10x", None)):
        found = json.loads(run(*words, "--tokens", tokens, "--json").stdout)["plans"]
        sizes = [10.0 * each["best"]["parameters"] for each in found]
        assert [each["tokens"] for each in found] == (expected or sizes)


def test_a_deadline_says_how_many_devices_and_what_fewer_would_take() -> None:
    text = call(*ONE, "--hardware", "H100-SXM,8xA100-80GB", "--days", "4")
    assert "train 1b" in text
    assert "would take" in text
    assert "8 are too few for 4 days" in text
    assert call(*ONE, "--hardware", "8xA100-80GB", "--days", "0.01", "-q").startswith(
        "No number of"
    )


def test_an_emitted_configuration_is_alone_on_stdout() -> None:
    result = run(*ONE, "--hardware", "16xA100-80GB", "--emit", "megatron")
    lines = result.stdout.splitlines()
    assert all(line.startswith(("#", "--")) for line in lines)
    assert "--tensor-model-parallel-size 1" in lines
    assert "flopwatch: the arguments of the tokenizer" in result.stderr
    found = json.loads(run(*ONE, "--hardware", "16xA100-80GB", "--emit", "nanotron",
                           "--json").stdout)  # fmt: skip
    assert found["emitted"]["text"].count("parallelism:") == 1
    within = run(*ONE, "--hardware", "A100-80GB", "--days", "4", "--emit", "torchtitan")
    assert "--parallelism.data_parallel_shard_degree" in within.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--hardware", "8xH100-SXM", "--tp", "3"], "--tp can be 1, 2, 4, 8 or 16"),
        (["--hardware", "8xH100-SXM", "--tp", "16"], "take 16 devices"),
        (["--hardware", "8xH100-SXM", "--ep", "2"], "has no experts to divide"),
        (["--hardware", "8xH100-SXM", "--price", "2,3"], "one number, or has a device for each"),
        (["--hardware", "8xH100-SXM", "--price", "h100=free"], "is not a number above 0"),
        ([*KINDS, "--price", "2"], "one price for 2 kinds"),
        ([*KINDS, "--emit", "megatron"], "--emit is for one model"),
        ([*KINDS, "--show", "3"], "--show is for one model"),
        (["--hardware", "8xH100-SXM", "--emit", "megatron", "-q"], "leave -q and -o out"),
        (["--hardware", "8xH100-SXM", "-o", "x.png"], "give several --hardware, or --days"),
        (["--hardware", "here", "--days", "4"], "--hardware here is one machine"),
        (["--hardware", "8xH100-SXM,8xT4", "-o", "x.png"], "nothing to draw for x.png"),
        ([*KINDS, "-o", "x.txt"], "does not end in .html"),
        (["--hardware", "8xH100-SXM", "--emit", "deepspeed"], "choose one of megatron"),
        (["--hardware", "8xH100-SXM", "--tokens", "x"], "is not a number above 0"),
        (["--hardware", "8xA100-80GB", "--days", "4", "--emit", "megatron"], "8 are too few"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], complaint: str) -> None:
    assert complaint in refuse(*ONE, *words)
