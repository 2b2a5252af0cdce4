from __future__ import annotations

from dataclasses import replace

import pytest

from flopwatch.errors import UsageError
from flopwatch.output.units import parse_bytes, parse_duration, parse_percentage
from flopwatch.runner.schedule import (
    fit_budget,
    list_unasked,
    make_groups,
    parse_filters,
    require_budget,
)
from flopwatch.settings import Settings
from flopwatch.worker.messages import DescribedCase, Description

DESCRIPTION = Description(
    name="demo",
    baseline="plain",
    axes={"shape": [[1, 2], [3, 4]], "causal": [True, False]},
    variants=["plain", "fast", "odd"],
    cases=[
        DescribedCase(variant=variant, params={"shape": shape, "causal": causal})
        for shape in ([1, 2], [3, 4])
        for causal in (True, False)
        for variant in ("plain", "fast", "odd")
    ],
)


def groups(*filters: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(g.label, g.variants) for g in make_groups(DESCRIPTION, parse_filters(filters))]


def test_cases_become_groups() -> None:
    assert groups() == [
        ("shape=1x2 causal=true", ("plain", "fast", "odd")),
        ("shape=1x2 causal=false", ("plain", "fast", "odd")),
        ("shape=3x4 causal=true", ("plain", "fast", "odd")),
        ("shape=3x4 causal=false", ("plain", "fast", "odd")),
    ]


def test_groups_know_their_flops() -> None:
    cases = [
        DescribedCase(variant="plain", params={"shape": [1, 2]}, flops={"float32": 4.0}),
        DescribedCase(variant="fast", params={"shape": [1, 2]}),
    ]
    (group,) = make_groups(replace(DESCRIPTION, cases=cases), {})
    assert group.flops == {"plain": {"float32": 4.0}, "fast": {}}


def test_filters_take_values_as_they_are_shown() -> None:
    assert groups("shape=3x4", "causal=true") == [
        ("shape=3x4 causal=true", ("plain", "fast", "odd"))
    ]
    assert len(groups("shape=1x2,3x4")) == 4


def test_a_filter_on_variants_keeps_the_baseline() -> None:
    assert {variants for _, variants in groups("variant=odd")} == {("plain", "odd")}


def test_a_group_that_a_filter_empties_is_gone() -> None:
    cases = [
        DescribedCase(variant="plain", params={"shape": [1, 2], "causal": True}),
        DescribedCase(variant="fast", params={"shape": [1, 2], "causal": True}),
        DescribedCase(variant="odd", params={"shape": [3, 4], "causal": True}),
    ]
    left = make_groups(replace(DESCRIPTION, cases=cases), {"variant": ["fast"]})
    assert [group.variants for group in left] == [("plain", "fast")]
    # A baseline with nothing beside it was not asked for, unless it was itself.
    alone = [*cases, DescribedCase(variant="plain", params={"shape": [3, 4], "causal": False})]
    left = make_groups(replace(DESCRIPTION, cases=alone), {"variant": ["fast"]})
    assert [group.variants for group in left] == [("plain", "fast")]
    left = make_groups(replace(DESCRIPTION, cases=alone), {"variant": ["plain"]})
    assert [group.variants for group in left] == [("plain",), ("plain",)]


def test_a_filter_on_an_axis_that_a_case_does_not_have_excludes_it() -> None:
    two_grids = replace(
        DESCRIPTION,
        axes={"shape": [[1, 2]], "causal": [True], "model": ["small"]},
        cases=[
            DescribedCase(variant="plain", params={"shape": [1, 2], "causal": True}),
            DescribedCase(variant="plain", params={"model": "small", "causal": True}),
        ],
    )

    def labels(**filters: list[str]) -> list[str]:
        return [group.label for group in make_groups(two_grids, filters)]

    assert (
        labels() == labels(causal=["true"]) == ["shape=1x2 causal=true", "model=small causal=true"]
    )
    assert labels(model=["small"]) == ["model=small causal=true"]
    with pytest.raises(UsageError, match="each value exists, but not together"):
        labels(model=["small"], shape=["1x2"])


def test_what_is_on_request_is_only_measured_when_its_axis_is_asked_for() -> None:
    described = replace(DESCRIPTION, on_request={"shape": [[3, 4]], "variant": ["odd"]})

    def groups(*filters: str) -> list[tuple[str, tuple[str, ...]]]:
        return [(g.label, g.variants) for g in make_groups(described, parse_filters(filters))]

    assert groups("causal=true") == [("shape=1x2 causal=true", ("plain", "fast"))]
    assert groups("causal=true", "shape=3x4") == [("shape=3x4 causal=true", ("plain", "fast"))]
    assert groups("causal=true", "variant=odd") == [("shape=1x2 causal=true", ("plain", "odd"))]
    assert len(groups("shape=1x2,3x4", "variant=odd,fast")) == 4
    assert list_unasked(described, {"variant": ["fast"]}) == {"shape": ["3x4"]}


def test_where_all_is_on_request_that_is_said() -> None:
    described = replace(DESCRIPTION, on_request={"causal": [True, False]})
    with pytest.raises(UsageError, match="only measured on request, --filter causal=true,false"):
        make_groups(described, {})


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("size=1", "no axis 'size'; it has shape, causal, variant"),
        ("shape=9x9", "axis 'shape' of suite 'demo' has no value '9x9'; it has 1x2, 3x4"),
        ("shape", "not of the form axis=value"),
        ("=3", "not of the form axis=value"),
        ("shape=", "not of the form axis=value"),
    ],
)
def test_a_wrong_filter_names_what_exists(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        groups(text)


def test_no_case_left_is_told() -> None:
    bare = Description(name="demo", baseline="a", axes={"x": [1]}, variants=["a"], cases=[])
    with pytest.raises(UsageError, match="no case of suite 'demo' is left"):
        make_groups(bare, {"x": ["1"]})


def test_a_budget_is_divided_over_the_cases() -> None:
    all_groups = make_groups(DESCRIPTION, {})  # 12 cases in 4 groups
    settings = fit_budget(24.8, all_groups, Settings(budget_s=10))
    assert settings.budget_s == pytest.approx(2.0)
    assert settings.min_rounds == 0  # the budget is kept
    assert fit_budget(None, all_groups, Settings(budget_s=10)) == Settings(budget_s=10)
    assert fit_budget(1e6, all_groups, Settings(budget_s=10)).budget_s == 10


def test_a_budget_that_cannot_be_met_is_refused() -> None:
    all_groups = make_groups(DESCRIPTION, {})
    with pytest.raises(
        UsageError, match="a budget of 2s cannot hold 12 cases, which take at least 6.8s"
    ):
        require_budget(2, all_groups)
    require_budget(60, all_groups)
    require_budget(None, all_groups)
    require_budget(1, [])


def test_durations_sizes_percentages() -> None:
    assert [parse_duration(t) for t in ("90", "90s", "1.5m", "500ms", "2h")] == [
        90,
        90,
        90,
        0.5,
        7200,
    ]
    assert [parse_bytes(t) for t in ("8G", "8GiB", "512m", "1024")] == [2**33, 2**33, 2**29, 1024]
    assert parse_percentage("5") == 0.05


@pytest.mark.parametrize("text", ["", "ten", "-3s", "0", "1.2.3s", "3 days", "1e999h", "nan"])
def test_wrong_durations(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "lots", "-1G", "0", "1.5.2G", "8X", "9" * 25])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "0", "100%", "-1", "two", "nan"])
def test_wrong_percentages(text: str) -> None:
    with pytest.raises(UsageError, match="percentage"):
        parse_percentage(text)
