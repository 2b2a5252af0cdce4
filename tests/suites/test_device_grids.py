"""What the built-in suites measure on accelerators: sizes and types that keep them busy, on as many
as there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flopwatch.devices.kinds import Devices, find_kind
from flopwatch.errors import UsageError
from flopwatch.runner import host
from flopwatch.runner.local_launcher import Launcher
from flopwatch.runner.memory_fit import find_capacity, split_by_fit
from flopwatch.runner.schedule import Group, make_groups
from flopwatch.settings import Settings
from flopwatch.suites.case import Case
from flopwatch.suites.catalog import find_suite, list_built_in, load_suite
from flopwatch.worker.messages import Describe, Description

SUITES = [suite.name for suite in list_built_in()]
GIB = 2**30


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher(environment={}, fork=True) as made:
        yield made


def describe(
    launcher: Launcher, suite: str, device: str, devices: int = 1, **asked: Any
) -> Description:
    """As a worker on such a machine would: describing a suite touches no device."""
    request = Describe(
        settings=Settings(device=device),
        devices=devices,
        suite_path=str(find_suite(suite).path),
        **asked,
    )
    return host.describe(launcher, request)


def list_groups(launcher: Launcher, suite: str, device: str, **asked: Any) -> list[Group]:
    return make_groups(describe(launcher, suite, device, **asked), {})


def read_dtypes(groups: list[Group]) -> set[str]:
    axes = ("dtype", "precision")
    return {str(group.params[axis]) for group in groups for axis in axes if axis in group.params}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("suite", SUITES)
def test_accelerators_compute_in_bf16_unless_they_are_asked_for_more(
    launcher: Launcher, suite: str, quick: bool
) -> None:
    found = read_dtypes(list_groups(launcher, suite, "cuda", quick=quick))
    more = {"float32"} if suite == "activations" and not quick else set()
    assert found - more in ({"bfloat16"}, {"bf16-mixed"})


@pytest.mark.parametrize("suite", SUITES)
def test_a_cpu_computes_in_float32(launcher: Launcher, suite: str) -> None:
    more = {"bfloat16"} if suite == "activations" else set()
    assert read_dtypes(list_groups(launcher, suite, "cpu", quick=True)) - more <= {
        "float32",
        "fp32",
    }


def test_activations_are_larger_than_any_cache(launcher: Launcher) -> None:
    for group in list_groups(launcher, "activations", "cuda"):
        tokens, features = group.params["shape"]
        assert tokens * features * 2 >= 256 * 2**20


@pytest.mark.parametrize("devices", [1, 2, 8])
@pytest.mark.parametrize("suite", SUITES)
def test_the_quick_grid_fits_however_many_devices_there_are(
    launcher: Launcher, suite: str, devices: int
) -> None:
    """Quick jobs once wanted two ranks, and a machine with one GPU skipped them all."""
    groups = list_groups(launcher, suite, "cuda", devices=devices, quick=True)
    gpu = {"count": devices, "memory_bytes": 24 * GIB}
    capacity = find_capacity(Settings(device="cuda"), {"torch": {"gpu": gpu}})
    fitting, misfits = split_by_fit(groups, capacity)
    assert fitting
    assert misfits == []
    assert {group.ranks for group in fitting} == {devices if suite == "training" else None}


def test_float8_stands_beside_int8_where_a_device_computes_in_it(launcher: Launcher) -> None:
    for name, is_there in (("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-80GB", False)):
        groups = list_groups(launcher, "switchback", "cuda", quick=True, device_name=name)
        for group in groups:
            assert {"dense", "switchback:rowwise", "llm-int8"} < set(group.variants)
            found = {"fp8:rowwise", "fp8:tensorwise"} & set(group.variants)
            assert len(found) == 2 * is_there


def test_jobs_of_ranks_are_measured_on_one_device_and_on_all(launcher: Launcher) -> None:
    groups = list_groups(launcher, "training", "cuda", devices=8)
    assert {group.ranks for group in groups} == {1, 8}
    asked = list_groups(
        launcher, "training", "cuda", devices=8, chosen={"global_batch": ["32"], "ranks": ["8"]}
    )
    assert {group.params["global_batch"] for group in asked} == {32}


PUBLISHED = [
    *(("steps", preset) for preset in ("cs336", "cs336-2026", "gpt")),
    ("training", "mosaic"),
    ("switchback", "published"),
]


@pytest.mark.parametrize(("suite", "preset"), PUBLISHED)
def test_published_grids_are_there_on_accelerators(
    launcher: Launcher, suite: str, preset: str
) -> None:
    """What they have is not on request there, where it would be left out."""
    for device in ("cuda", "mps"):
        assert list_groups(launcher, suite, device, devices=8, preset=preset)


@pytest.mark.parametrize("suite", ["steps", "training"])
def test_tf32_is_measured_where_a_device_has_it(launcher: Launcher, suite: str) -> None:
    chosen = {"precision": ["tf32"]}
    described = describe(launcher, suite, "cuda", quick=True, chosen=chosen)
    assert read_dtypes(make_groups(described, {})) == {"tf32"}
    assert {dtype for case in described.cases for dtype in case.flops} == {"tf32", "float32"}
    for device in ("cpu", "mps"):
        with pytest.raises(UsageError, match="^precision tf32 is arithmetic of accelerators that "):
            describe(launcher, suite, device, quick=True, chosen=chosen)


def test_tf32_may_be_as_far_off_as_float16() -> None:
    suite = load_suite(find_suite("steps").path).on(Devices(kind=find_kind("cuda")))
    params = {
        **{"model": "small", "micro_batch": 1, "seq_len": 128, "optimizer": "adamw"},
    }

    def find_tolerance(precision: str) -> float:
        case = Case(suite="steps", variant="eager", params={**params, "precision": precision})
        return suite.tolerance(case)

    assert find_tolerance("tf32") == find_tolerance("fp16-mixed") > find_tolerance("fp32")


def test_shapes_of_activations_can_be_chosen(launcher: Launcher) -> None:
    groups = list_groups(launcher, "activations", "cuda", quick=True, chosen={"shape": ["8x16"]})
    assert [group.params["shape"] for group in groups] == [[8, 16]]
    with pytest.raises(UsageError, match="shape is 8, but takes 2 whole numbers"):
        describe(launcher, "activations", "cpu", chosen={"shape": ["8"]})
