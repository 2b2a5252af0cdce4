"""flopwatch predict and plan, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flopwatch import api
from flopwatch.cli.main import cli
from flopwatch.errors import UsageError
from flopwatch.jobs.model_shapes import SHAPES
from flopwatch.jobs.parallelism import Parallelism
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.prediction.batch_shares import choose_share, list_shares
from flopwatch.prediction.job_lists import share_batch
from flopwatch.prediction.plans import Plan
from flopwatch.prediction.software_stacks import load_stacks

SEVEN = ["--model", "7b", "--seq-len", "2048", "--hardware", "8xA100-80GB", "--micro-batch", "4"]


def call(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stdout


def refuse(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code != 0
    return str(result.exception) if isinstance(result.exception, UsageError) else result.stderr


def test_a_job_has_a_speed_a_breakdown_and_a_memory() -> None:
    text = call("predict", *SEVEN, "--recompute", "full", "--precision", "bf16", "--parameters")
    assert (
        "8 x A100-SXM-80GB: 7b:padded_vocabulary=50368, seq_len 2,048, micro-batch 4, 8 ranks: "
        "data 8, sharding full" in text
    )
    for words in ("tokens/s", "90 %", "linear layers of blocks", "communication", "activations"):
        assert words in text
    assert "matmul_efficiency" in text
    assert "no multiple of 8" in text


def test_the_breakdown_adds_up_and_lists_are_combined() -> None:
    found = json.loads(call("predict", *SEVEN, "--micro-batch", "1,2", "--sharding", "ddp,full",
                            "--json"))  # fmt: skip
    assert [(each["micro_batch"], each["sharding"]) for each in found] == [
        (1, "ddp"), (1, "full"), (2, "ddp"), (2, "full"),
    ]  # fmt: skip
    for each in found:
        assert sum(part["time_s"] for part in each["parts"]) == pytest.approx(each["step_s"])
        assert each["low"] < each["predicted_tokens_per_s"] < each["high"]
        assert sum(each["memory_bytes"].values()) > 0
    assert [each["fits"] for each in found] == [False, True, False, True]


def test_a_table_of_several_says_once_what_they_share() -> None:
    text = call("predict", *SEVEN, "--hardware", "8xA100-80GB,8xH100-SXM")
    assert "micro_batch=4" in text
    assert "no data of llm-foundry-2023-late are from H100-SXM" in text
    assert "(1 of 2)" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--hardware", "8xFOO"], "no device is called 'FOO'"),
        (["--hardware", "0xA100-80GB"], "has no device"),
        (["--model", "nope"], "there is no model 'nope'"),
        (["--precision", "fp7"], "there is no precision 'fp7'"),
        (["--micro-batch", "0"], "not a whole number"),
        (["--micro-batch", "many"], "not a whole number"),
        (["--sharding", "halfway"], "choose from none, ddp"),
        (["--recompute", "some"], "choose from none, selective, full"),
        (["--tp", "3"], "8 devices are no multiple of that"),
        (["--pp", "64", "--hardware", "64xA100-80GB"], "64 pipeline stages cannot share 32 layers"),
        (["--ep", "8"], "8 expert-parallel ranks cannot share 0 experts"),
        (["--sequence-parallel", "yes"], "sequence parallelism divides what tensor parallelism"),
        (["--virtual-stages", "2"], "virtual stages are those of a pipeline"),
        (["--pp", "2", "--schedule", "backwards"], "choose from 1f1b"),
        (["--stack", "mine"], "there is no stack 'mine'"),
        (["--network", "fast"], "is not a number"),
        (["--hardware", "2xhere"], "one machine here"),
        (["--hardware", "2xA100-80GB", "--sharding", "hybrid"], "2 ranks are not such groups"),
        (["--hardware", "V100-SXM-32GB"], "no known peak in bfloat16"),
        (["--micro-batch", ",".join(map(str, range(1, 2500)))], "give shorter lists"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], complaint: str) -> None:
    assert complaint in refuse("predict", *SEVEN, *words)


@pytest.mark.parametrize("option", ["--precision", "--optimizer", "--sharding", "--recompute"])
def test_empty_lists_are_refused(option: str) -> None:
    assert f"{option} ',' names nothing" in refuse("predict", *SEVEN, option, ",")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([*SEVEN, "--grad-accum", "2", "--global-batch-tokens", "4M"], "give one of them"),
        ([*SEVEN, "--hardware", "here", "--network", "100"], "--hardware here is one; leave it"),
        (["--rows", "jobs.csv", "--parameters"], "leave --parameters out"),
        (["--rows", "jobs.csv", "--precision", "bf16"], "leave --precision out"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: list[str], complaint: str) -> None:
    assert complaint in refuse("predict", *words)


def test_combinations_that_cannot_be_are_left_out_with_their_reason() -> None:
    words = [*SEVEN, "--hardware", "8xA100-80GB,8xT4"]
    assert "left out: T4 has no known peak in bfloat16; choose one of" in call("predict", *words)
    (found,) = json.loads(call("predict", *words, "--json"))
    assert found["device"] == "A100-SXM-80GB"
    assert "T4 has no known peak" in refuse("predict", *SEVEN, "--hardware", "8xT4")


def test_the_global_batch_sets_the_gradient_accumulation() -> None:
    words = ("predict", *SEVEN, "--json")
    by_accumulation = call(*words, "--grad-accum", "2")
    assert call(*words, "--global-batch", "64") == by_accumulation
    assert call(*words, "--global-batch-tokens", str(64 * 2048)) == by_accumulation
    sequences = refuse("predict", *SEVEN, "--global-batch", "64", "--global-batch-tokens", "4M")
    assert "give one of them" in sequences


def test_what_is_missing_is_named() -> None:
    assert "--seq-len, --hardware, --micro-batch" in refuse("predict", "--model", "7b")
    assert "--precision takes one value here" in refuse(
        "plan", *SEVEN[:6], "--precision", "bf16,fp32"
    )


def test_this_machine_must_have_been_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOPWATCH_PEAKS", str(tmp_path / "none"))
    assert "measure them with `flopwatch peaks`" in refuse("predict", *SEVEN, "--hardware", "here")


def plan(model: str, hardware: str, seq_len: int = 4096, **given: Any) -> Plan:
    return api.plan(model, hardware, seq_len=seq_len, **given)


def test_the_best_fits_and_none_that_fits_is_faster() -> None:
    found = plan("13b", "64xA100-80GB")
    best = found.best[0]
    assert best.memory.fits
    speeds = [each.tokens_per_s for each in found.best]
    assert speeds == sorted(speeds, reverse=True)
    assert best.job.tokens_per_step == pytest.approx(4e6, rel=0.05)
    for loser in found.losers:
        assert loser.best is None or loser.best.tokens_per_s <= best.tokens_per_s
        assert loser.reason


def test_more_devices_train_faster_whatever_divides_the_batch() -> None:
    """4M tokens are 61 texts for each of 32 devices, and 61 is prime."""
    best = [plan("7b", f"{n}xA100-80GB", seq_len=2048).best[0] for n in (24, 32, 40, 48, 64)]
    speeds = [each.tokens_per_s / each.job.ranks for each in best]
    assert min(speeds) > 0.95 * max(speeds)
    assert all(each.job.tokens_per_step == pytest.approx(4e6, rel=0.05) for each in best)


def test_a_plan_leaves_some_memory_free() -> None:
    for model, hardware in (("7b", "24xA100-80GB"), ("1b", "8xA100-40GB")):
        memory = plan(model, hardware, seq_len=2048).best[0].memory
        assert memory.total_bytes < 0.95 * (memory.available_bytes or 0)


def test_absurd_batches_are_answered_or_refused_at_once() -> None:
    assert plan("7b", "8xA100-80GB", global_batch_tokens=9e14).best
    with pytest.raises(UsageError, match="more than the 1,000,000 to train on"):
        plan("7b", "8xA100-80GB", train_tokens=1e6)


def test_what_does_not_fit_says_what_is_too_large() -> None:
    found = plan("13b", "64xA100-80GB")
    assert any(loser.reason.startswith("does not fit: ") for loser in found.losers)
    with pytest.raises(UsageError, match="nothing fits: the smallest configuration needs"):
        plan("70b", "8xA100-40GB")


def test_a_plan_searches_all_kinds_of_parallelism_and_keeps_what_it_is_told() -> None:
    large = "llama:hidden_size=8192:layers=80:heads=64:feed_forward_size=28672:key_value_heads=8"
    found = plan(f"{large}:vocabulary=128256", "1024xH100-SXM", seq_len=8192)
    assert found.tried >= 10**5
    split = found.best[0].job.parallelism
    assert split.tensor > 1
    assert split.pipeline > 1
    assert {loser.axis for loser in found.losers} > {"tensor", "pipeline", "context", "sharding"}
    told = json.loads(call("plan", *SEVEN[:4], "--hardware", "16xA100-80GB", "--tp", "4", "--json"))
    assert {each["tensor"] for each in told["best"]} == {4}
    experts = "mixtral:hidden_size=1024:layers=8:experts=8:active_experts=2:vocabulary=32000"
    assert "expert" in {loser.axis for loser in plan(experts, "16xH100-SXM").losers}


def test_a_plan_says_how_long_and_how_much() -> None:
    found = plan("7b", "8xH100-SXM", train_tokens=140e9, price=2.0)
    best = found.best[0]
    assert found.find_time_s(best) == pytest.approx(140e9 / best.tokens_per_s)
    assert found.find_cost(best) == pytest.approx(16 * found.find_time_s(best) / 3600)
    assert plan("1b", "A100-80GB").best[0].job.sharding == "none"
    text = call("plan", *SEVEN[:6], "--tokens", "140B", "--price", "2")
    for words in ("GPU-hours", "cost", "what the others lose", "140G in all"):
        assert words in text
    answer = json.loads(call("plan", *SEVEN[:6], "--json"))
    assert answer["best"][0]["gpu_hours"] > 0
    assert {other["axis"] for other in answer["others"]} >= {"sharding", "recompute"}


@pytest.mark.parametrize(
    ("devices", "seq_len", "asked", "taken"),
    [
        (64, 4096, 4e6, 1024),  # 15.3 sequences on each become 16
        (8, 2048, 4e6, 2048),
        (32, 2048, 4e6, 2048),  # 61.04 become 64
        (8, 2048, 2**22, 2048),
        (8, 2000, 4e6, 2000),  # 250 on each are as asked
        (8, 2048, 800 * 2048, 800),  # 100 on each, and not 96
        (24, 2048, 4e6, 24 * 80),  # 81.4: 80 has four factors of two
        (64, 2048, 1000, 64),  # one sequence on each is the least
    ],
)
def test_a_global_batch_near_the_one_asked_for_divides_well(
    devices: int, seq_len: int, asked: float, taken: int
) -> None:
    share = asked / (devices * seq_len)
    assert choose_share(share) * devices == taken
    tried = dict(list_shares(share))
    chosen = choose_share(share)
    assert {n for n in (1, 2, 4, 8, 16) if chosen % n == 0} <= set(tried)
    assert all(n * tried[n] == chosen for n in tried if chosen % n == 0)
    if share > 1:
        assert all(abs(n * times - share) <= 0.05 * share for n, times in tried.items())


def test_a_plan_tries_powers_of_two_and_says_which_batch_it_takes() -> None:
    """4M tokens are 15.3 sequences for each of 64 devices: only 1, 3, 5 and 15 divided 15."""
    found = plan("13b", "64xA100-80GB", shown=100)
    assert {1, 2, 3, 4, 5, 8} <= {each.job.micro_batch for each in found.best}
    asked = [*SEVEN[:6], "--global-batch-tokens"]
    answer = json.loads(call("plan", *asked, "4M", "--json"))
    assert answer["asked_global_batch_tokens"] == 4e6
    taken = answer["best"][0]["global_batch_tokens"]
    assert taken != 4e6  # which no number of sequences has
    assert taken == pytest.approx(4e6, rel=0.05)
    text = " ".join(call("plan", *asked, "4M").split())
    assert f"global batch of {taken // 2048:,} sequences, {taken:,} tokens" in text
    more = "more" if taken > 4e6 else "less"
    assert f"{100 * abs(taken / 4e6 - 1):.1f} % {more} than the 4,000,000 asked for" in text
    assert f"global batch of {taken // 2048:,} sequences" in str(
        plan("7b", "8xA100-80GB", seq_len=2048)
    )


@pytest.mark.parametrize("model", list(SHAPES))
@pytest.mark.parametrize("stack", list(load_stacks()))
def test_a_named_model_is_not_warned_about(model: str, stack: str) -> None:
    job = TrainingJob(model, 128, parallelism=Parallelism(data=8, sharding="full"))
    found = api.predict(job, "8xA100-80GB", stack=stack)
    assert not [text for text in found.warnings if "vocabulary" in text]
    padded = {"llm-foundry-2023": 50_368, "llm-foundry-2023-late": 50_368, "typical": 50_304}
    rows = padded.get(stack) if SHAPES[model].vocabulary == 50_257 else None
    assert found.job.shape.rows == (rows or SHAPES[model].vocabulary)
    assert found.job.name == (f"{model}:padded_vocabulary={rows}" if rows else model)


def test_a_vocabulary_that_you_choose_is_warned_about() -> None:
    for model in ("7b:vocabulary=50257", "gpt:hidden_size=4096:layers=32:vocabulary=50257"):
        text = " ".join(call("predict", *SEVEN, "--model", model).split())
        assert "a vocabulary of 50,257 is no multiple of 8" in text
        assert "vocabulary of" not in call("predict", *SEVEN, "--model", f"{model[:-1]}6")
    assert "vocabulary of" not in call("plan", *SEVEN[:6])
    assert "padded to 50,368" in " ".join(call("predict", "--help").split())


def test_batches_are_shared_as_nearly_as_can_be() -> None:
    assert share_batch(4e6, 64 * 4096) == 15
    assert share_batch(1, 10**6) == 1


def test_memory_on_hardware_is_that_of_a_rank() -> None:
    words = ["memory", *SEVEN, "--precision", "bf16-mixed"]
    (full,) = json.loads(call(*words, "--json"))
    (whole,) = json.loads(call(*words, "--sharding", "none", "--json"))
    assert full["job"]["parallelism"]["data"] == 8
    assert whole["parts"]["parameters"] == 8 * full["parts"]["parameters"]
    assert (full["fits"], whole["fits"]) == (True, False)
    assert "gathered parameters" in call(*words)
    (staged,) = json.loads(call(*words, "--pp", "2", "--sharding", "zero1", "--json"))
    assert staged["parts"]["parameters"] < whole["parts"]["parameters"] / 2
    assert staged["largest_micro_batch"] >= 0
    assert "8 devices are no multiple of that" in refuse(*words, "--tp", "3")
    assert "leave --device out" in refuse(*words, "--device", "cuda")


@pytest.mark.parametrize("command", ["memory", "profile", "predict", "plan", "mfu"])
def test_a_model_is_an_option(command: str) -> None:
    assert "a model is --model small" in refuse(command, "small")
