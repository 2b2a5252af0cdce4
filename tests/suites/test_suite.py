from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from flopwatch.devices.kinds import Devices, find_kind
from flopwatch.errors import SuiteError, UsageError
from flopwatch.suites.case import Case
from flopwatch.suites.catalog import find_suite, list_built_in, load_suite, write_template
from flopwatch.suites.suite import Suite
from flopwatch.suites.workload import Workload

GPUS = Devices(kind=find_kind("xpu"), count=8)


def make_suite(**changes: object) -> Suite:
    content: dict[str, object] = {
        "axes": {"size": [1, 2], "dtype": ["float32", "float64"]},
        "variants": ["plain", "fast"],
    }
    return Suite("demo", **{**content, **changes})  # type: ignore[arg-type]


def test_cases_are_all_combinations_with_groups_together() -> None:
    cases = make_suite().expand()
    assert [(c.size, c.dtype, c.variant) for c in cases] == [
        (1, "float32", "plain"),
        (1, "float32", "fast"),
        (1, "float64", "plain"),
        (1, "float64", "fast"),
        (2, "float32", "plain"),
        (2, "float32", "fast"),
        (2, "float64", "plain"),
        (2, "float64", "fast"),
    ]
    assert cases[0].group == cases[1].group != cases[2].group
    assert len({case.id for case in cases}) == len(cases)


def test_where_drops_combinations() -> None:
    cases = make_suite(where=lambda case: case.size == 1 or case.variant == "plain").expand()
    assert ("fast", 2) not in {(case.variant, case.size) for case in cases}
    assert len(cases) == 6


def test_quick_takes_what_is_declared_or_the_first_values() -> None:
    assert len(make_suite().expand(quick=True)) == 2
    cases = make_suite(quick={"size": [2]}).expand(quick=True)
    assert {case.size for case in cases} == {2}
    assert {case.dtype for case in cases} == {"float32", "float64"}


GRIDS = [{"level": ["layer"], "size": [1, 2]}, {"level": ["model", "layer"], "width": [8, 9]}]


def points(suite: Suite, quick: bool = False) -> list[dict[str, Any]]:
    return [dict(c.params) for c in suite.expand(quick=quick) if c.variant == suite.baseline]


def test_several_grids_are_each_crossed_on_their_own() -> None:
    suite = make_suite(axes=GRIDS)
    assert points(suite) == [
        {"level": "layer", "size": 1},
        {"level": "layer", "size": 2},
        {"level": "model", "width": 8},
        {"level": "model", "width": 9},
        {"level": "layer", "width": 8},
        {"level": "layer", "width": 9},
    ]
    assert suite.axes == {"level": ["layer", "model"], "size": [1, 2], "width": [8, 9]}


def test_a_grid_may_have_fewer_variants() -> None:
    def cases(in_a_hurry: bool = False, **changes: Any) -> list[tuple[int, str]]:
        suite = make_suite(variants=["a", "b", "c"], **changes)
        return [(case.size, case.variant) for case in suite.expand(quick=in_a_hurry)]

    grids = [{"size": [1, 2], "variant": ["a", "b"]}, {"size": [2, 3], "variant": ["a", "c"]}]
    assert cases(axes=grids) == [
        *((1, "a"), (1, "b")),
        *((2, "a"), (2, "b"), (2, "c")),  # a group, although of two grids
        *((3, "a"), (3, "c")),
    ]
    assert cases(True, axes=grids) == [(1, "a"), (1, "b"), (2, "a"), (2, "c")]
    axes = {"size": [1, 2]}
    assert cases(True, axes=axes, quick={"variant": ["a"]}) == [(1, "a"), (2, "a")]
    assert make_suite(axes=[{"size": [1], "variant": ["plain"]}]).axes == {"size": [1]}


def test_a_point_of_two_grids_is_one_case() -> None:
    overlapping = [{"size": [1, 2], "dtype": ["a"]}, {"dtype": ["a", "b"], "size": [2]}]
    assert [(p["size"], p["dtype"]) for p in points(make_suite(axes=overlapping))] == [
        (1, "a"),
        (2, "a"),
        (2, "b"),
    ]


def test_quick_of_several_grids_is_other_grids_or_the_first_values() -> None:
    assert points(make_suite(axes=GRIDS), quick=True) == [
        {"level": "layer", "size": 1},
        {"level": "model", "width": 8},
    ]
    quick = [{"width": [9], "level": ["model"]}]
    assert points(make_suite(axes=GRIDS, quick=quick), quick=True) == [
        {"width": 9, "level": "model"}
    ]


def test_quick_leaves_what_is_on_request_to_be_asked_for() -> None:
    suite = make_suite(
        axes={"level": ["quality", "layer", "model"], "size": [1, 2]},
        on_request={"level": ["quality"], "size": [2], "variant": ["fast"]},
    )
    assert [(p["level"], p["size"]) for p in points(suite, quick=True)] == [
        ("layer", 1),
        ("layer", 2),
        ("quality", 1),
        ("quality", 2),
    ]
    assert {case.variant for case in suite.expand(quick=True)} == {"plain", "fast"}


def test_what_is_on_request_may_depend_on_the_device() -> None:
    suite = make_suite(
        on_request=lambda devices: {"dtype": ["float64" if devices.are_host else "float32"]}
    )
    on_gpu = suite.on(GPUS)
    assert (suite.on_request, on_gpu.on_request) == ({"dtype": ["float64"]}, {"dtype": ["float32"]})

    def list_quick(suite: Suite) -> list[str]:
        return [case.dtype for case in suite.expand(quick=True) if case.variant == "plain"]

    assert list_quick(suite) == ["float32", "float64"]  # the usual one first, the other to ask for
    assert list_quick(on_gpu) == ["float64", "float32"]
    with pytest.raises(SuiteError, match="size=3 on request, which is not one of its values"):
        make_suite(on_request=lambda devices: {} if devices.are_host else {"size": [3]})


def test_grids_may_depend_on_the_devices_and_on_how_many_there_are() -> None:
    suite = make_suite(
        axes=lambda devices: {"size": [1] if devices.are_host else [7, 8], "ranks": [1, 2]},
        quick=lambda devices: {"ranks": [devices.count]},
    )
    assert suite.axes == {"size": [1], "ranks": [1, 2]}
    on_gpus = suite.on(GPUS)
    assert on_gpus.axes == {"size": [7, 8], "ranks": [1, 2]}
    cases = on_gpus.expand(quick=True)
    assert {(case.size, case.ranks, case.device) for case in cases} == {
        (7, 8, "xpu"),
        (8, 8, "xpu"),
    }
    assert {case.device for case in suite.expand()} == {"cpu"}  # which is left as it was
    with pytest.raises(SuiteError, match="axis 'size' of suite 'demo' has no values"):
        make_suite(axes=lambda devices: {"size": [1] if devices.are_host else []})


def test_functions_that_are_declared_later_are_those_of_the_suite_on_any_device() -> None:
    suite = make_suite()
    on_gpu = suite.on(GPUS)
    suite.build(lambda case: lambda: None)
    assert on_gpu.can_build


def test_presets_are_other_grids_of_the_same_axes() -> None:
    suite = make_suite(
        presets={
            "published": {"size": [7, 8], "dtype": ["float32"], "variant": ["plain"]},
            "both": [{"size": [1], "dtype": ["float32"]}, {"dtype": ["int8"], "size": [2]}],
        }
    )
    published = suite.expand(preset="published")
    assert [(case.size, case.variant) for case in published] == [(7, "plain"), (8, "plain")]
    assert [(c.size, c.dtype) for c in suite.expand(preset="both") if c.variant == "fast"] == [
        (1, "float32"),
        (2, "int8"),
    ]
    chosen = suite.expand(preset="published", chosen={"size": [9]})
    assert [(case.size, case.variant) for case in chosen] == [(9, "plain")]
    assert suite.axes["size"] == [1, 2]  # the suite's own
    with pytest.raises(
        UsageError, match="^suite 'demo' has no grid 'large'; it has published, both$"
    ):
        suite.expand(preset="large")
    with pytest.raises(UsageError, match="has no grid 'large'; it has only its own$"):
        make_suite().expand(preset="large")


def test_an_id_does_not_depend_on_tuple_or_list_or_order_of_axes() -> None:
    one = Case(suite="s", variant="v", params={"shape": (1, 2), "dtype": "x"})
    other = Case(suite="s", variant="v", params={"dtype": "x", "shape": [1, 2]})
    assert one.id == other.id
    assert one.id == "470b0ba25e235238"  # stored in records: must never change


def test_a_case_tells_which_axes_it_has() -> None:
    case = make_suite().expand()[0]
    with pytest.raises(AttributeError, match="no axis 'sise'; it has size, dtype"):
        _ = case.sise
    assert pickle.loads(pickle.dumps(case)) == case


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"variants": []}, "no variants"),
        ({"variants": ["a", "a"]}, "twice"),
        ({"baseline": "dense"}, "'dense', which is not one of its variants plain, fast"),
        ({"axes": {"dtype": [float]}}, "JSON cannot hold"),
        ({"axes": {"x": [float("nan")]}}, "JSON cannot hold"),
        ({"axes": {"x": [[1, 2**64]]}}, "JSON cannot hold"),
        ({"axes": {"x": []}}, "no values"),
        ({"axes": {"x": [1, 2, 1]}}, "a value twice"),
        ({"axes": {"x": [(1, 2), [1, 2]]}}, "a value twice"),
        ({"axes": {"device": [1]}}, "a name that cases use themselves"),
        ({"axes": {"variant": ["plain", "odd"]}}, "a grid with the variant 'odd', which is not"),
        ({"axes": [{}, {"variant": ["fast"]}]}, "a grid without its baseline, 'plain'; add it"),
        ({"quick": {"variant": ["fast"]}}, "a grid without its baseline, 'plain'; add it"),
        ({"quick": {"sise": [1]}}, "'sise', which is not one of its axes size, dtype"),
        ({"on_request": {"sise": [1]}}, "'sise' on request, which is not one of its axes size, dt"),
        ({"on_request": {"size": [3]}}, "size=3 on request, which is not one of its values 1, 2"),
        ({"on_request": {"variant": ["odd"]}}, "variant=odd on request, which is not one of its"),
        ({"on_request": {"variant": ["plain"]}}, "its baseline, 'plain', on request"),
        ({"axes": []}, "an empty list of grids"),
        (
            {"axes": [{"x": [1]}, {"id": [1]}]},
            "an axis 'id', a name that cases use themselves",
        ),
        ({"axes": [{"x": [1]}, {"y": []}]}, "'y' of suite 'demo' has no values"),
        ({"axes": [{"x": [1]}, {"y": [1]}], "quick": {"x": [1]}}, "2 grids; make `quick` a list"),
        ({"axes": [{"x": [1], "y": [1]}], "quick": [{"x": [1]}]}, "a quick grid of x, and no grid"),
        ({"presets": {"big": {"size": [1]}}}, "a 'big' grid of size, and no grid of just these"),
        ({"presets": {"big": [{"size": [], "dtype": [1]}]}}, "'size' of suite 'demo' has no val"),
        (
            {"presets": {"big": {"size": [1], "dtype": [1], "variant": ["fast"]}}},
            "a grid without its baseline",
        ),
    ],
)
def test_a_wrong_declaration_is_told(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        make_suite(**changes)


def test_tolerances_by_dtype_by_number_and_by_default() -> None:
    case = make_suite().expand()[0]
    assert make_suite().tolerance(case) == 1e-4
    assert make_suite(tolerance=0.5).tolerance(case) == 0.5
    assert make_suite(tolerance={"float32": 0.1}).tolerance(case) == 0.1
    with pytest.raises(SuiteError, match="no tolerance for dtype 'float32'; it has them for int8"):
        make_suite(tolerance={"int8": 0.1}).tolerance(case)


def test_flops_are_by_dtype_even_when_declared_as_one_number() -> None:
    suite = make_suite()

    @suite.flops
    def flops(case: Case) -> dict[str, object]:
        return {"forward": 2 * case.size, "backward": {"float32": 3, "int8": 5}}

    assert suite.count_flops(suite.expand()[0]) == {
        "forward": {"float32": 2.0},
        "backward": {"float32": 3, "int8": 5},
    }
    assert suite.count_bytes(suite.expand()[0]) == {}


def test_what_a_build_function_may_return() -> None:
    assert list(Workload.of(lambda: 1).phases) == ["call"]
    assert list(Workload.of({"forward": lambda: 1}).phases) == ["forward"]
    with pytest.raises(SuiteError, match="returned NoneType; return a Workload"):
        Workload.of(None)
    with pytest.raises(SuiteError, match="no phase"):
        Workload.of({})


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"conditions": {"autocast": False}}, "condition 'autocast' is False; conditions are text"),
        ({"facts": {"loss": float("nan")}}, "fact 'loss' is nan; facts are finite numbers"),
        ({"facts": {"size": "large"}}, "fact 'size' is 'large'; facts are finite numbers"),
        ({"compare": "last"}, "compares 'last'; write one of 'first', 'all'"),
        ({"notes": "slow"}, "the notes are 'slow'; make them a list of sentences"),
        ({"notes": [1]}, r"the notes are \[1\]; make them a list"),
    ],
)
def test_what_a_workload_may_not_say_of_itself(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        Workload.of(Workload(phases={"call": lambda: 1}, **said))


def test_two_build_functions_are_one_too_many() -> None:
    suite = make_suite()
    suite.build(lambda case: None)
    with pytest.raises(SuiteError, match="two build functions"):
        suite.build(lambda case: None)


def test_built_in_suites_are_listed_with_a_line_each() -> None:
    suites = {file.name: file.summary for file in list_built_in()}
    assert "activations" in suites
    assert all(summary.endswith(".") and len(summary) < 90 for summary in suites.values())


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(SuiteError, match="did you mean 'activations'"):
        find_suite("activation")
    with pytest.raises(SuiteError, match="there are .*activations"):
        find_suite("zzz")
    with pytest.raises(SuiteError, match="`flopwatch run --new nowhere/x.py` writes a template"):
        find_suite("nowhere/x.py")


def test_a_syntax_error_shows_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import flopwatch\nsuite = flopwatch.Suite(\n'x' axes)\n")
    with pytest.raises(SuiteError, match=r"broken.py, line 3 is not valid Python .*'x' axes\)"):
        find_suite(str(path))


def test_nothing_is_imported_to_find_a_suite(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text('"""Hello."""\nraise SystemExit("imported")\n')
    assert find_suite(str(path)).summary == "Hello."


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "from flopwatch import Suite\n"
        "a = Suite('a', axes={}, variants=['x'])\nb = Suite('b', axes={}, variants=['x'])\n",
    ],
)
def test_a_suite_file_declares_exactly_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "many.py"
    path.write_text(text)
    with pytest.raises(
        SuiteError, match=r"many.py holds \d suites; a suite file declares exactly one"
    ):
        load_suite(path)


def test_a_suite_without_a_build_function_is_told(tmp_path: Path) -> None:
    path = tmp_path / "idle.py"
    path.write_text("import flopwatch\nsuite = flopwatch.Suite('a', axes={}, variants=['x'])\n")
    with pytest.raises(SuiteError, match="no build function; decorate one with @suite.build"):
        load_suite(path)


def test_a_template_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    write_template(path)
    assert find_suite(str(path)).summary.startswith("Two ways to normalise")
    with pytest.raises(SuiteError, match="exists already"):
        write_template(path)
    with pytest.raises(SuiteError, match="end it in .py"):
        write_template(tmp_path / "mine.txt")
    with pytest.raises(SuiteError, match="cannot be written"):
        write_template(tmp_path / "nowhere" / "mine.py")


def declare_column(suite: Suite, name: str, doc: str = "A number") -> None:
    def find(row: object) -> float:
        return 1.0

    find.__name__, find.__doc__ = name, doc
    suite.column(unit="count")(find)


@pytest.mark.parametrize(
    ("name", "doc", "complaint"),
    [
        ("total_ns", "A number", "has a column 'total_ns', a name that an axis or another column"),
        ("SIZE", "A number", "has a column 'SIZE', a name that an axis or another column has"),
        ("mine", "A number", "has a column 'mine', a name that an axis or another column has"),
        ("<lambda>", "A number", "has a column '<lambda>', which is no name for one"),
        ("other", "", "has a column 'other' without a meaning; say it in the docstring"),
    ],
)
def test_a_column_needs_a_free_name_and_a_meaning(name: str, doc: str, complaint: str) -> None:
    suite = make_suite()
    declare_column(suite, "mine")
    with pytest.raises(SuiteError, match=complaint):
        declare_column(suite, name, doc)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0], object()])
def test_a_column_has_what_a_record_can_hold(value: object) -> None:
    suite = make_suite()

    @suite.column()
    def mine(row: object) -> object:
        """Something"""
        return value

    with pytest.raises(SuiteError, match="a column has finite numbers, text"):
        suite.columns["mine"].compute(None)  # type: ignore[arg-type]
