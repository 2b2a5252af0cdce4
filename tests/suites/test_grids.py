"""``--set``: values in place of a suite's own."""

from __future__ import annotations

from typing import Any

import pytest

from flopwatch.errors import UsageError
from flopwatch.suites.grids import choose, parse_value, require_counts
from flopwatch.suites.suite import Suite


def accept(axis: str, value: Any) -> object:
    """Odd sizes are refused in a sentence, other things in their own ways."""
    if axis == "size" and value % 2:
        raise ValueError(f"{value} is odd")
    if value == "dyad:it:0":
        raise UsageError("a DYAD has at least one block")
    return value != "no"


def make_suite(**changes: Any) -> Suite:
    content: dict[str, Any] = {
        "axes": [
            {"level": ["layer"], "size": [2, 4], "dtype": ["float32"]},
            {"level": ["model"], "model": ["small", "large"], "dtype": ["float32", "bfloat16"]},
        ],
        "variants": ["fast", "dense", "slow"],
        "baseline": "dense",
        "accepts": accept,
    }
    return Suite("demo", **{**content, **changes})


@pytest.mark.parametrize(
    ("text", "own", "value"),
    [
        ("1024", [1, 2], 1024),
        ("-3", [1, 2], -3),
        ("0.5", [1, 0.1], 0.5),
        ("1", [1, 0.1], 1),  # as the suite has it, so that the case has the same id
        ("2", [1, 0.1], 2),
        ("2", [0.5, 0.1], 2.0),
        ("true", [False], True),
        ("5120x20480", [[768, 3072]], [5120, 20480]),
        ("8", [[768, 3072]], [8]),
        ("0.5x2", [[1, 0.1]], [0.5, 2]),
        ("bfloat16", ["float32"], "bfloat16"),
        ("7", ["auto", 64], 7),
        ("never", ["auto", 64], "never"),
        ("None", [None, 64], None),
    ],
)
def test_a_text_is_read_by_the_kind_of_the_axis(text: str, own: list[Any], value: Any) -> None:
    read = parse_value(text, own)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("many", [1, 2]),
        ("0.5", [1, 2]),
        ("nan", [0.5]),
        ("inf", [0.5]),
        ("1", [True]),
        ("axb", [[1, 2]]),
        ("5x", [[1, 2]]),
        ("x", [None]),
    ],
)
def test_a_text_of_another_kind_is_refused(text: str, own: list[Any]) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is not of the kind of"):
        parse_value(text, own)


def cases(quick: bool = False, suite: Suite | None = None, **texts: str) -> list[str]:
    """What is measured, as ``variant axis value ...``."""
    suite = suite or make_suite()
    chosen = choose(suite, {axis: values.split(",") for axis, values in texts.items()})
    return [
        " ".join([case.variant, *map(str, case.params.values())])
        for case in suite.expand(quick=quick, chosen=chosen)
    ]


def test_chosen_values_select_the_grids_that_have_their_axis() -> None:
    assert cases(size="6,8", variant="dense") == ["dense layer 6 float32", "dense layer 8 float32"]
    assert cases(size="6,6,2", variant="dense") == [
        "dense layer 6 float32",
        "dense layer 2 float32",
    ]
    assert len(cases()) == 3 * (2 + 4)


def test_the_baseline_is_always_kept() -> None:
    assert cases(size="6", variant="dyad:it:16") == [
        "dense layer 6 float32",
        "dyad:it:16 layer 6 float32",
    ]
    assert cases(size="6", variant="new,dense") == ["dense layer 6 float32", "new layer 6 float32"]


def test_chosen_values_win_over_quick_ones() -> None:
    assert cases(quick=True, model="huge", variant="dense") == ["dense model huge float32"]
    without_models = make_suite(quick=[{"level": ["layer"], "size": [4], "dtype": ["float32"]}])
    assert cases(quick=True, suite=without_models, size="6", variant="dense") == [
        "dense layer 6 float32"
    ]
    assert cases(quick=True, suite=without_models, model="huge", variant="dense") == [
        "dense model huge float32"
    ]


def test_a_case_of_the_suite_has_the_same_id_when_it_is_set() -> None:
    suite = make_suite()
    own = {case.id for case in suite.expand()}
    chosen = choose(suite, {"size": ["4"], "variant": ["slow"]})
    assert {case.id for case in suite.expand(chosen=chosen)} < own


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (
            {"sise": "1"},
            "^suite 'demo' has no axis 'sise' to --set; it has level, size, .*variant$",
        ),
        ({"size": "x"}, "^--set size=x: 'x' is not of the kind of 2$"),
        ({"size": "7"}, "^--set size=7: 7 is odd$"),
        ({"variant": "dyad:it:0"}, "^--set variant=dyad:it:0: a DYAD has at least one block$"),
        ({"model": "no"}, "^--set model=no: the suite does not accept it$"),
        ({"size": "2", "model": "small"}, "^suite 'demo' has no case with all of model, size$"),
    ],
)
def test_what_cannot_be_set_is_one_sentence(texts: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        cases(**texts)


def test_chosen_values_go_into_the_grids_that_are_measured() -> None:
    suite = make_suite()
    assert choose(suite, {"size": ["6"]}, suite.grids[:1]) == {"size": [6]}
    with pytest.raises(UsageError, match="^suite 'demo' has no case with all of size$"):
        choose(suite, {"size": ["6"]}, suite.grids[1:])


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), ([3, 0], "3x0"), ([3], "3"), ([1, 2, 3], "1x2x3"), (-1, "-1")],
)
def test_counts_are_whole_numbers_from_1_on(value: Any, text: str) -> None:
    require_counts("shape", [1, 768], 2)
    require_counts("tokens", 1, 1)
    with pytest.raises(UsageError) as caught:
        require_counts("shape", value, 2)
    wanted = "takes 2 whole numbers from 1 on, such as 768x3072"
    assert str(caught.value) == f"shape is {text}, but {wanted}"
    with pytest.raises(UsageError, match="takes a whole number from 1 on$"):
        require_counts("tokens", 0, 1)


def test_a_suite_that_accepts_nothing_says_so() -> None:
    with pytest.raises(
        UsageError, match="accepts only its own values.*--filter chooses among them"
    ):
        cases(suite=make_suite(accepts=None), size="2")
    assert cases(suite=make_suite(accepts=None))
