"""The list of model names, and commands with names, configurations and dimensions by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flopwatch.cli.job_options import list_models
from flopwatch.cli.main import cli
from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import SHAPES
from flopwatch.jobs.model_zoo import load_zoo


def ask(*words: str) -> Any:
    result = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_all_names_are_listed_with_what_they_are() -> None:
    listed = ask("models")
    assert [each["name"] for each in listed] == [*SHAPES, *load_zoo()]
    by_name = {each["name"]: each for each in listed}
    assert by_name["deepseek-v3"] | {"source": "", "also": []} == {
        "name": "deepseek-v3",
        "also": [],
        "family": "DeepSeek V3",
        "source": "",
        "architecture": "deepseek_v3",
        "parameters": 671_026_404_352,
        "active_parameters": 37_552_282_624,
        "published_parameters": 671e9,
        "layers": 61,
        "hidden_size": 7168,
        "attention": "MLA 128 x 192/128",
        "other_layers": "",
        "feed_forward": "8 of 256 x 2,048, shared 2,048; 3 layers 18,432",
        "vocabulary": 129_280,
        "positions": 163_840,
    }
    assert by_name["nemotron-h-8b"]["other_layers"] == "24 Mamba 2, 24 feed-forward"
    assert by_name["llama-4-scout"]["other_layers"] == "36 chunks of 8,192"
    assert by_name["gpt-7b"]["also"] == ["7b"]
    assert all(each["source"] for each in listed)


def test_words_choose_among_them() -> None:
    assert {each["family"] for each in ask("models", "llama", "3")} == {"Llama 3"}
    assert [each["name"] for each in ask("models", "405b")] == ["llama-3.1-405b"]
    with pytest.raises(UsageError, match="no model has 'llama bert' in its name; "):
        CliRunner().invoke(cli, ["models", "llama", "bert"], catch_exceptions=False)


def test_a_table_has_the_source_of_a_family() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["models", "gpt-oss"])
    assert "gpt-oss-20b" in result.stdout
    assert "20.9B" in result.stdout
    assert "arXiv:2508.10925" in result.stdout
    assert "deepseek" not in result.stdout


def test_shells_complete_names() -> None:
    known = list(list_models())
    assert {"small", "llama-3-8b", "deepseek-v3", "llama:"} <= set(known)


@pytest.mark.parametrize("name", [*load_zoo(), "deepseek-v3:mtp_layers=1"])
def test_every_name_has_an_mfu(name: str) -> None:
    """With parts that add up, and no part of a share below 0."""
    words = ("--model", name, "--seq-len", "4096", "--hardware", "8xH100-SXM", "--mfu", "0.4")
    found = ask("mfu", *words)
    assert found["active_parameters"] <= found["parameters"]
    conventions = {each["convention"]: each for each in found["conventions"]}
    needed = sum(part["flops"]["forward"] for part in found["parts"].values())
    padding = found["parts"]["padding"]["flops"]["forward"]
    exact = conventions["exact"]["model_flops_per_token"]
    assert exact == pytest.approx(3 * (needed - padding) / 4096)
    palm = conventions["palm"]["model_flops_per_token"]
    assert palm >= 6 * found["active_parameters"]
    assert conventions["exact-causal"]["model_flops_per_token"] <= exact


def test_a_configuration_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(load_zoo()["qwen-3-30b-a3b"].config)))
    words = ("--seq-len", "2048", "--tokens-per-s", "1000")
    by_name = ask("mfu", "--model", "Qwen/Qwen3-30B-A3B", *words)
    for model in (str(path), str(tmp_path)):
        by_path = ask("mfu", "--model", model, *words)
        assert by_path["conventions"] == by_name["conventions"]
        assert by_path["model"] == model
    result = CliRunner().invoke(cli, ["mfu", "--model", f"{tmp_path}/none.json", *words])
    assert isinstance(result.exception, UsageError)
    assert "none.json cannot be read (No such file or directory)" in str(result.exception)
