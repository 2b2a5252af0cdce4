"""`flopwatch memory`: what fits is found exactly, and told."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import msgspec
import pytest
from click.testing import CliRunner, Result
from flopwatch.jobs.memory_capacity import (
    UTMOST,
    Answer,
    answer,
    answer_others,
    ask,
    find_largest,
    find_room_bytes,
)
from flopwatch.output.memory_tables import list_largest, list_sentences, list_sheets

from flopwatch.cli.main import cli, main
from flopwatch.devices import environment
from flopwatch.errors import UsageError
from flopwatch.jobs import memory_capacity
from flopwatch.jobs.activation_memory import estimate
from flopwatch.jobs.model_shapes import find_shape
from flopwatch.jobs.step_memory import Plan
from flopwatch.runner import session
from flopwatch.runner.memory_fit import PROCESS_BYTES

LLAMA = "llama:hidden_size=64:layers=3:vocabulary=300"
LITTLE = 5 * 2**20
"""Bytes with room for a few texts of it, so that not many sizes are tried."""


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
@pytest.mark.parametrize("plan", [Plan(), Plan(attention="plain", checkpointed=True)])
def test_one_more_does_not_fit(model: str, plan: Plan) -> None:
    room_bytes = 8 * 2**30
    found, shape = answer(model, plan, room_bytes), find_shape(model)

    def need(batch: int, context: int) -> int:
        chosen = replace(plan, batch=batch, context=context)
        return estimate(shape.stretch(context), chosen).peak_bytes

    batch, context = found.largest_batch, found.largest_context
    assert need(batch, 128) <= room_bytes < need(batch + 1, 128)
    assert need(4, context) <= room_bytes < need(4, context + 1)
    assert found.fits


def test_where_not_even_one_fits_it_is_said() -> None:
    found = answer("2.7B", Plan(), 2**30)
    assert (found.largest_batch, found.largest_context, found.fits) == (0, 0, False)
    assert list_sentences([found]) == [
        "It does not fit into 1.00 GiB, which is what there is for tensors.",
        "Not even one text of 128 tokens fits.",
        "In a batch of 4, not even texts of 2 tokens fit.",
    ]
    assert list_largest([found], "batch") == ["0"]


def test_what_fits_is_said() -> None:
    found = replace(answer("small", Plan(), 2**32), largest_batch=1234, largest_context=5678)
    assert list_sentences([found])[1:] == [
        "Of texts of 128 tokens, the largest batch that fits is 1,234.",
        "In a batch of 4, the longest texts that fit have 5,678 tokens.",
    ]


def test_room_is_what_is_given_or_free_without_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = {"machine": {"memory_available_bytes": 10 * 2**30}}
    monkeypatch.setattr(environment, "machine", lambda path: facts)
    assert find_room_bytes(None, Plan()) == 9 * 2**30 - PROCESS_BYTES
    assert find_room_bytes(2**30, Plan(device="cuda")) == 2**30 - PROCESS_BYTES
    with pytest.raises(UsageError, match=r"must be said; add for example --fit 24G$"):
        find_room_bytes(None, Plan(device="cuda"))
    with pytest.raises(UsageError, match=r"^a process with torch takes 400 MiB .* for --fit$"):
        find_room_bytes(2**20, Plan())


def test_answers_survive_the_way_from_a_worker_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(function: str, arguments: dict[str, object], *, device: str) -> object:
        assert function == "flopwatch.jobs.memory_capacity:answer_others"
        return msgspec.to_builtins(answer_others(**arguments, device=device))  # type: ignore[arg-type]

    monkeypatch.setattr(session, "call", call)
    monkeypatch.setattr(memory_capacity, "find_largest", lambda *_: 3)  # else many sizes are tried
    plan = Plan(batch=1, context=8)
    found = ask(["small", LLAMA, "medium"], plan, LITTLE)
    assert [each.model for each in found] == ["small", LLAMA, "medium"]
    assert found[1] == answer(LLAMA, plan, LITTLE)
    assert found[1].footprint.layers == 3


def test_tables_of_one_model_add_up() -> None:
    found = answer("small", Plan(), 2**34)
    parts, phases, tensors = list_sheets([found])
    shown, total = parts.groups
    assert [row[0] for row in shown] == list(found.footprint.parts())
    assert total == [["all", "1.99 GiB", "100.0 %", "1.99 GiB", ""]]
    assert sum(float(row[2].removesuffix(" %")) for row in shown) == pytest.approx(100, abs=0.3)
    assert "12 blocks x 42.0 MiB" in shown[3][-1]
    assert [row[1] for row in phases.groups[0]] == ["1.02 GiB", "1.03 GiB", "1.99 GiB"]
    assert tensors.groups[0][0] == [
        "embedding.weight", "10000 x 768", "29.3 MiB", "1", "29.3 MiB",
    ]  # fmt: skip


def test_several_models_have_a_line_each() -> None:
    answers = [answer(model, Plan(), 2**32) for model in ("small", "xl")]
    (sheet,) = list_sheets(answers)
    assert [(row[0], row[-1]) for row in sheet.groups[0]] == [("small", "yes"), ("xl", "no")]
    assert list_sentences(answers) == []
    assert list_largest(answers, "context")[1] == "xl 0"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["memory", "--model", *arguments], catch_exceptions=False)


def test_the_command_tells_tables_and_sentences() -> None:
    result = invoke("small", "--fit", "24G")
    assert result.exit_code == 0
    assert "memory small, 4 x 128 tokens, fp32, adamw, sdpa attention, cpu" in result.stdout
    assert "It fits into 23.6 GiB, which is what there is for tensors." in result.stdout


def test_the_command_passes_every_option_on() -> None:
    options = [
        *("--micro-batch", "2", "--seq-len", "64", "--precision", "bf16", "--attention", "plain"),
        *("--optimizer", "sgd", "--recompute", "full", "--device", "cuda", "--fit", "2G", "--json"),
    ]
    (content,) = json.loads(invoke("medium", *options).stdout)
    plan = Plan(
        batch=2, context=64, precision="bf16", attention="plain", optimizer="sgd",
        checkpointed=True, device="cuda",
    )  # fmt: skip
    assert content["plan"] == asdict(plan)
    predicted = estimate(find_shape("medium"), plan)
    assert content["footprint"]["peak_bytes"] == predicted.peak_bytes
    assert content["footprint"]["parts"] == predicted.parts()
    assert content["room_bytes"] == 2 * 2**30 - PROCESS_BYTES
    assert content["fits"] is True


def test_the_largest_alone_is_for_scripts() -> None:
    found = answer("small", Plan(), 4 * 2**30 - PROCESS_BYTES)
    assert (
        invoke("small", "--fit", "4G", "--largest", "micro-batch").stdout
        == f"{found.largest_batch}\n"
    )
    both = invoke("small,xl", "--fit", "4G", "--largest", "seq-len").stdout
    assert both == f"small {found.largest_context}\nxl 0\n"


def test_an_unknown_model_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["memory", "--model", "small,huge", "--fit", "4G"])
    assert stopped.value.code == 2
    told = capfd.readouterr().err
    assert told.startswith("flopwatch: there is no model 'huge'; choose one of small, ")
    assert told.count("\n") == 1


@pytest.mark.slow
def test_models_of_transformers_are_asked_in_a_worker() -> None:
    fit_bytes = PROCESS_BYTES + LITTLE
    result = invoke(
        LLAMA, "--micro-batch", "1", "--seq-len", "16", "--fit", f"{fit_bytes}", "--json"
    )
    (content,) = json.loads(result.stdout)
    found = msgspec.convert(
        {key: content[key] for key in Answer.__dataclass_fields__}, Answer, strict=False
    )
    assert found == answer(LLAMA, Plan(batch=1, context=16), LITTLE)
