"""`flopwatch memory`: what fits is found exactly, and told."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from flopwatch.cli.main import cli, main
from flopwatch.devices import environment
from flopwatch.errors import UsageError
from flopwatch.jobs.activation_memory import estimate_step
from flopwatch.jobs.rank_memory import Memory
from flopwatch.jobs.training_job import TrainingJob
from flopwatch.output.job_answers import answer_memory
from flopwatch.output.job_tables import list_largest, list_memory_sheets
from flopwatch.output.units import format_bytes
from flopwatch.prediction import memory_capacity
from flopwatch.prediction.memory_capacity import (
    UTMOST,
    estimate_capacity,
    find_available_bytes,
    find_capacity,
    find_largest,
    survey,
)
from flopwatch.runner import session
from flopwatch.runner.memory_fit import PROCESS_BYTES

LLAMA = "llama:hidden_size=64:layers=3:vocabulary=300"
LITTLE = 5 * 2**20
"""Bytes with room for a few sequences of it, so that not many sizes are tried."""


def make(model: str = "small", seq_len: int = 128, **given: Any) -> TrainingJob:
    return TrainingJob(model, seq_len, **{"micro_batch": 4, "precision": "fp32", **given})


def find(job: TrainingJob, available_bytes: int) -> Memory:
    return estimate_capacity(job, "cpu", available_bytes)


@pytest.mark.parametrize(
    ("count_bytes", "room_bytes", "least"),
    [
        (lambda number: 10 + 3 * number, 1000, 1),
        (lambda number: number**2, 10**6, 2),
        (lambda number: max(500, 7 * number), 505, 1),
        (lambda number: max(500, 7 * number), 10**6, 1),
        (lambda number: 1 + number // 100, 5, 1),
        (lambda number: number**3, 27, 2),
    ],
)
def test_the_largest_number_is_found(count_bytes: object, room_bytes: int, least: int) -> None:
    assert callable(count_bytes)
    asked: list[int] = []

    def count(number: int) -> int:
        asked.append(number)
        result = count_bytes(number)
        assert isinstance(result, int)
        return result

    found = find_largest(count, room_bytes, least)
    assert count_bytes(found) <= room_bytes < count_bytes(found + 1)
    assert len(set(asked)) < 40


def test_nothing_and_everything_fits() -> None:
    assert find_largest(lambda number: 10 * number, 9) == 0
    assert find_largest(lambda number: 20, 30) <= UTMOST


def test_a_line_is_solved_in_few_trials() -> None:
    """A trial of a model of transformers takes half a second."""
    asked: set[int] = set()

    def count(number: int) -> int:
        asked.add(number)
        return 10**9 + 12_345_678 * number

    assert find_largest(count, 10**10) == (10**10 - 10**9) // 12_345_678
    assert len(asked) <= 10


@pytest.mark.parametrize("model", ["small", "gpt-125m"])
@pytest.mark.parametrize("choices", [{}, {"attention": "plain", "recompute": "full"}])
def test_one_more_does_not_fit(model: str, choices: dict[str, Any]) -> None:
    room_bytes, job = 8 * 2**30, make(model, **choices)
    found = find(job, room_bytes)

    def need(micro_batch: int, seq_len: int) -> int:
        return estimate_step(replace(job, micro_batch=micro_batch, seq_len=seq_len)).peak_bytes

    micro_batch, seq_len = found.largest_micro_batch, found.largest_seq_len
    assert micro_batch is not None
    assert seq_len is not None
    assert need(micro_batch, 128) <= room_bytes < need(micro_batch + 1, 128)
    assert need(4, seq_len) <= room_bytes < need(4, seq_len + 1)
    assert found.fits


def test_where_not_even_one_fits_it_is_said() -> None:
    found = find(make("2.7B"), 2**30)
    assert (found.largest_micro_batch, found.largest_seq_len, found.fits) == (0, 0, False)
    assert answer_memory([found]) == [
        f"2.7B needs {format_bytes(found.total_bytes)}, which does not fit into 1.00 GiB, the "
        "memory available for tensors.",
        "No micro-batch fits at seq_len 128.",
        "No sequence length fits at micro-batch 4.",
    ]
    assert list_largest([found], "micro-batch") == ["0"]


def test_what_fits_is_said() -> None:
    found = replace(find(make(), 2**32), largest_micro_batch=1234, largest_seq_len=5678)
    assert answer_memory([found])[1:] == [
        "At seq_len 128, the largest micro-batch that fits is 1,234.",
        "At micro-batch 4, the longest sequence that fits has 5,678 tokens.",
    ]


def test_room_is_what_is_given_or_free_without_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {"machine": {"memory_available_bytes": 10 * 2**30}}
    monkeypatch.setattr(environment, "machine", lambda path: facts)
    assert find_available_bytes(None, "cpu") == 9 * 2**30 - PROCESS_BYTES
    assert find_available_bytes(2**30, "cuda") == 2**30 - PROCESS_BYTES
    with pytest.raises(UsageError, match=r"must be said; add for example --fit 24G$"):
        find_available_bytes(None, "cuda")
    with pytest.raises(UsageError, match=r"^a process with torch takes 400 MiB .* for --fit$"):
        find_available_bytes(2**20, "cpu")


def test_an_answer_survives_the_way_from_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(function: str, arguments: dict[str, object], *, device: str) -> object:
        assert function == "find_capacity"
        return msgspec.to_builtins(survey(**arguments, device=device))  # type: ignore[arg-type]

    monkeypatch.setattr(session, "call", call)
    monkeypatch.setattr(memory_capacity, "find_largest", lambda *_: 3)  # else many sizes are tried
    job = make(LLAMA, 8, micro_batch=1)
    found = find_capacity(job, "cpu", LITTLE)
    assert found == find(job, LITTLE)
    assert found.step is not None
    assert found.step.layers == 3


def test_tables_of_one_model_add_up() -> None:
    found = find(make(), 2**34)
    parts, phases, tensors = list_memory_sheets([found])
    shown, total = parts.groups
    assert [row[0] for row in shown] == list(found.parts)
    assert total == [["all", "1.99 GiB", "100.0 %", "1.99 GiB", ""]]
    assert sum(float(row[2].removesuffix(" %")) for row in shown) == pytest.approx(100, abs=0.3)
    assert "12 blocks x 42.0 MiB" in shown[3][-1]
    assert [row[1] for row in phases.groups[0]] == ["1.02 GiB", "1.03 GiB", "1.99 GiB"]
    assert tensors.groups[0][0] == [
        "embedding.weight", "10000 x 768", "29.3 MiB", "1", "29.3 MiB",
    ]  # fmt: skip


def test_several_models_have_a_line_each() -> None:
    answers = [find(make(model), 2**32) for model in ("small", "xl")]
    (sheet,) = list_memory_sheets(answers)
    assert [(row[0], row[-1]) for row in sheet.groups[0]] == [("small", "yes"), ("xl", "no")]
    assert answer_memory(answers) == ["1 of 2 models fit: small."]
    assert list_largest(answers, "seq-len")[1] == "xl 0"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["memory", "--model", *arguments], catch_exceptions=False)


def test_the_command_tells_tables_and_sentences() -> None:
    result = invoke("small", "--fit", "24G")
    assert result.exit_code == 0
    assert "memory small, 4 x 128 tokens, fp32, adamw, sdpa attention" in result.stdout
    assert "which fits into 23.6 GiB, the memory available for tensors." in result.stdout


def test_the_command_passes_every_option_on() -> None:
    options = [
        *("--micro-batch", "2", "--seq-len", "64", "--precision", "bf16", "--attention", "plain"),
        *("--optimizer", "sgd", "--recompute", "full", "--device", "cuda", "--fit", "2G", "--json"),
    ]
    (content,) = json.loads(invoke("medium", *options).stdout)
    job = TrainingJob(
        "medium", 64, micro_batch=2, precision="bf16", attention="plain", optimizer="sgd",
        recompute="full",
    )  # fmt: skip
    assert content["job"] == job.to_dict()
    predicted = estimate_step(job, on_host=False)
    assert content["step"]["peak_bytes"] == predicted.peak_bytes
    assert content["parts"] == predicted.parts()
    assert content["available_bytes"] == 2 * 2**30 - PROCESS_BYTES
    assert content["fits"] is True


def test_the_largest_alone_is_for_scripts() -> None:
    found = find(make(), 4 * 2**30 - PROCESS_BYTES)
    assert (
        invoke("small", "--fit", "4G", "--largest", "micro-batch").stdout
        == f"{found.largest_micro_batch}\n"
    )
    both = invoke("small,xl", "--fit", "4G", "--largest", "seq-len").stdout
    assert both == f"small {found.largest_seq_len}\nxl 0\n"


def test_an_unknown_model_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["memory", "--model", "small,huge", "--fit", "4G"])
    assert stopped.value.code == 2
    told = capfd.readouterr().err
    assert told.startswith(
        "flopwatch: there is no model 'huge'; `flopwatch models` lists all names"
    )
    assert told.count("\n") == 1


@pytest.mark.slow
def test_models_of_transformers_are_asked_in_a_worker() -> None:
    fit_bytes = PROCESS_BYTES + LITTLE
    result = invoke(
        LLAMA, "--micro-batch", "1", "--seq-len", "16", "--fit", f"{fit_bytes}", "--json"
    )
    (content,) = json.loads(result.stdout)
    found = find(make(LLAMA, 16, micro_batch=1), LITTLE)
    assert content == json.loads(json.dumps(found.to_dict()))


def test_models_that_are_not_built_are_estimated_by_formulas() -> None:
    result = invoke(
        "gpt-oss-20b", "--micro-batch", "1", "--seq-len", "2048", "--fit", "80G", "--json"
    )
    (content,) = json.loads(result.stdout)
    parts = content["parts"]
    # AdamW has two moments of each parameter.
    assert parts["optimizer state"] == pytest.approx(2 * parts["parameters"], rel=0.01)
    assert parts["activations"] > 0
