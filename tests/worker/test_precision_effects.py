"""What short numbers do: the four published sums bit for bit, and dtypes under autocast."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from click.testing import CliRunner

from flopwatch.cli.main import cli
from flopwatch.output.profile_tables import make_precision_sheets
from flopwatch.worker.precision_effects import CASTS, RECIPES, Observed, Recipe, add_up, observe

pytestmark = pytest.mark.xdist_group("precision")  # they share what takes long to make

PUBLISHED = [
    ("tensor(10.0001)", "10.000133514404296875", "0x4120008c"),
    ("tensor(9.9531, dtype=torch.float16)", "9.953125", "0x48fa"),
    ("tensor(10.0021)", "10.00213623046875", "0x412008c0"),
    ("tensor(10.0021)", "10.00213623046875", "0x412008c0"),
]


@pytest.fixture(scope="module")
def observed() -> Observed:
    return observe("cpu")


@pytest.mark.parametrize(("recipe", "published"), [*zip(RECIPES, PUBLISHED, strict=True)])
def test_the_published_sums(recipe: Recipe, published: tuple[str, str, str]) -> None:
    made = add_up(recipe)
    assert (made.shown, made.exact, made.bits) == published
    assert made.error == float(made.exact) - 10


def test_autocast_leaves_parameters_and_gradients_alone(observed: Observed) -> None:
    assert [cast.autocast for cast in observed.casts] == list(CASTS)
    for cast in observed.casts:
        short = "float32" if cast.autocast == "off" else cast.autocast
        assert cast.dtypes["first layer's output"] == cast.dtypes["logits"] == short
        assert cast.dtypes["norm's output"] in (short, "float32")
        for part in ("parameters", "loss", "gradients"):
            assert cast.dtypes[part] == "float32"


def test_the_tables_have_all_that_was_seen(observed: Observed) -> None:
    sums, casts = make_precision_sheets(observed)
    for row, made in zip(sums.groups[0], observed.sums, strict=True):
        assert len(row) == len(sums.headings)
        assert {made.shown, made.exact, made.bits} <= set(row)
    assert len(sums.remarks) == 4
    assert [row[0] for row in casts.groups[0]] == list(observed.casts[0].dtypes)
    assert casts.remarks[0] == "The same with and without autocast: parameters, loss, gradients."


@pytest.mark.parametrize(
    ("norm", "sentence"),
    [
        ("float32", "On cuda, autocast computes the layer norm in float32."),
        (None, "On cuda, autocast leaves the layer norm in the dtype that it is given."),
    ],
)
def test_of_the_norm_only_what_was_seen_is_told(
    observed: Observed, norm: str | None, sentence: str
) -> None:
    casts = [
        replace(cast, dtypes={**cast.dtypes, "norm's output": norm or cast.autocast})
        for cast in observed.casts
        if cast.autocast != "off"
    ]
    _, table = make_precision_sheets(replace(observed, device="cuda", casts=casts))
    assert table.remarks[-1].startswith(sentence)


def test_the_command() -> None:
    """In a worker, as JSON; and the same as a table."""
    told = CliRunner().invoke(cli, ["doctor", "--low-precision", "--device", "cpu", "--json"])
    assert told.exit_code == 0, told.output
    content = json.loads(told.stdout)
    assert [made["shown"] for made in content["sums"]] == [shown for shown, _, _ in PUBLISHED]
    assert content == msgspec.to_builtins(observe("cpu"))


def test_the_command_prints_tables(monkeypatch: pytest.MonkeyPatch, observed: Observed) -> None:
    monkeypatch.setattr(
        "flopwatch.runner.session.call", lambda *_, **__: msgspec.to_builtins(observed)
    )
    told = CliRunner().invoke(cli, ["doctor", "--low-precision"])
    assert told.exit_code == 0, told.output
    for shown, exact, bits in PUBLISHED:
        line = next(line for line in told.stdout.splitlines() if exact in line)
        assert shown in line
        assert bits in line
    assert "The same with and without autocast" in told.stdout
