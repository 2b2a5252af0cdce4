"""What cannot fit is not tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.errors import UsageError
from flopwatch.records.store import read
from flopwatch.runner import session
from flopwatch.runner.memory_fit import (
    PROCESS_BYTES,
    Capacity,
    find_capacity,
    find_misfits,
    split_by_fit,
)
from flopwatch.runner.schedule import Group
from flopwatch.settings import Settings
from flopwatch.worker.messages import RankPlace
from tests.runner.test_session import QUICK, SilentWatcher

GIB = 2**30


def test_groups_are_split_by_what_fits() -> None:
    mixed = make_group(small={"parameters": 1.0}, large={"parameters": 9.0})
    groups = [mixed, make_group(large={"parameters": 9.0})]
    fitting, misfits = split_by_fit(groups, Capacity(process_bytes=5))
    assert [group.variants for group in fitting] == [("small",)]
    assert [(group.variants, list(why)) for group, why in misfits] == [
        (("large",), ["large"]),
        (("large",), ["large"]),
    ]


def make_group(**memory: dict[str, float]) -> Group:
    return Group(
        suite="demo", baseline="small", params={}, variants=tuple(memory), memory=dict(memory)
    )


def test_who_cannot_fit_is_told_with_its_parts() -> None:
    group = make_group(
        small={"parameters": GIB}, large={"parameters": 3 * GIB, "gradients": 2 * GIB}, unknown={}
    )
    misfits = find_misfits(group, Capacity(process_bytes=4 * GIB))
    assert list(misfits) == ["large"]
    needs = "it needs 5.00 GiB of memory (parameters 3.00 GiB, gradients 2.00 GiB)"
    assert misfits["large"].message.startswith(needs)
    assert misfits["large"].cause == "does-not-fit"
    assert "--force" in misfits["large"].message


def test_what_is_not_predicted_is_tried_even_where_there_is_next_to_no_room() -> None:
    tight = find_capacity(Settings(memory_limit_bytes=1000), {})
    assert find_misfits(make_group(unknown={}), tight) == {}


def test_where_nobody_knows_the_room_all_are_tried() -> None:
    assert find_misfits(make_group(huge={"parameters": 1e18}), Capacity()) == {}


def test_the_room_is_the_limit_or_the_gpus() -> None:
    limited = Settings(memory_limit_bytes=4 * GIB)
    assert find_capacity(limited, {}).process_bytes == 4 * GIB - PROCESS_BYTES
    environment = {"torch": {"gpu": {"memory_bytes": 80 * GIB}}}
    on_gpu = find_capacity(Settings(device="cuda"), environment)
    assert on_gpu.process_bytes == 80 * GIB - PROCESS_BYTES
    assert find_capacity(Settings(device="cuda"), {"torch": {}}).process_bytes is None
    assert find_capacity(Settings(), {}).process_bytes is None


def test_what_others_hold_of_a_gpus_memory_is_not_there() -> None:
    gpu = {"memory_bytes": 80 * GIB, "count": 2}
    states = [{"free_bytes": 79 * GIB}, {"free_bytes": 9 * GIB, "clock_hz": 1e9}]
    capacity = find_capacity(Settings(device="cuda"), {"torch": {"gpu": {**gpu, "states": states}}})
    large = {"parameters": 20.0 * GIB}
    assert find_misfits(make_group(small=large), capacity) == {}  # the first one has room for it
    reason = find_misfits(make_job(2, small=large), capacity)["small"].message
    assert "there are 8.61 GiB free of 79.6 GiB, since other processes use it" in reason
    second = find_capacity(
        Settings(device="cuda", device_index=1), {"torch": {"gpu": {**gpu, "states": states}}}
    )
    assert (
        "there are 8.61 GiB free" in find_misfits(make_group(small=large), second)["small"].message
    )
    assert (
        "and there is 1 GPU; choose" in find_misfits(make_job(2, small={}), second)["small"].message
    )
    # A device that does not say is taken for empty; and where none says, all are.
    for unknown in ([{}, {"free_bytes": 79 * GIB}], [{}, {"clock_hz": 1e9}], []):
        found = find_capacity(
            Settings(device="cuda"), {"torch": {"gpu": {**gpu, "states": unknown}}}
        )
        assert find_misfits(make_job(2, small=large), found) == {}


def make_job(ranks: int, **memory: dict[str, float]) -> Group:
    return replace(make_group(**memory), params={"ranks": ranks})


def test_ranks_share_the_memory_of_a_machine_but_not_that_of_gpus() -> None:
    group = make_job(2, small={"parameters": 3 * GIB})
    whole_bytes = 8 * GIB - PROCESS_BYTES
    assert not find_misfits(group, Capacity(process_bytes=whole_bytes, is_shared=True))
    assert find_misfits(make_job(4, small={"parameters": 3 * GIB}),
                        Capacity(process_bytes=whole_bytes, is_shared=True))  # fmt: skip
    assert not find_misfits(make_job(4, small={"parameters": 3 * GIB}),
                            Capacity(process_bytes=whole_bytes))  # fmt: skip


def test_more_ranks_than_cores_or_gpus_are_not_tried() -> None:
    environment = {"torch": {"gpu": {"memory_bytes": GIB, "count": 4}}}
    capacity = find_capacity(Settings(device="cuda"), environment)
    assert find_misfits(make_job(4, small={}), capacity) == {}
    reason = find_misfits(make_job(8, small={}), capacity)["small"].message
    assert reason.startswith("it needs 8 ranks, and there are 4 GPUs")
    place = RankPlace(
        rank=0, ranks=16, local_rank=0, local_ranks=4, node_ranks=4, address="node0", port=1
    )
    spread = find_capacity(Settings(device="cuda"), environment, place)
    assert find_misfits(make_job(8, small={}), spread) == {}
    assert "ranks in this job" in find_misfits(make_job(32, small={}), spread)["small"].message
    with pytest.raises(UsageError, match="4 ranks on a node, and there are 2 GPUs; start it"):
        find_capacity(Settings(device="cuda"), {"torch": {"gpu": {"count": 2}}}, place)
    # A scheduler may show each process its own GPU alone.
    find_capacity(Settings(device="cuda"), {"torch": {"gpu": {"count": 1}}}, place)


def test_what_variants_hold_apart_adds_up() -> None:
    group = make_group(small={"parameters": 3.0}, large={"parameters": 4.0})
    capacity = Capacity(process_bytes=5)
    assert find_misfits(group, capacity) == {}
    reasons = find_misfits(replace(group, apart=True), capacity)
    assert list(reasons) == ["large"]
    assert "--variant large --baseline large" in reasons["large"].message


SUITE = """
import torch, flopwatch
suite = flopwatch.Suite("mine", axes={"size": [64]}, variants=["small", "large"])

@suite.build
def build(case):
    made = torch.ones(case.size)
    return flopwatch.Workload(phases={"call": lambda: made + made}, facts=lambda: {"runs": 1})

@suite.memory
def estimate(case):
    return {"parameters": 2.0**50 if case.variant == "large" else 256.0}
"""


def run(path: Path, **options: bool) -> session.Report:
    asked = session.Options(suite=str(path), settings=QUICK, out=path.parent / "out.jsonl")
    return session.run(session.replace(asked, **options), SilentWatcher())


def test_a_case_that_cannot_fit_is_skipped_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SUITE)
    small, large = run(path).measured
    assert (small.status, large.status) == ("ok", "skipped")
    assert large.predicted_memory_bytes == {"parameters": 2.0**50}
    assert large.samples_ns == {}
    assert "it needs 1024 TiB" in str(large.message)
    assert small.facts == {"runs": 1.0}
    assert small.memory["call"].peak_bytes == small.peak_memory_bytes == 256
    assert small.resident_bytes is not None
    assert small.resident_bytes >= 256
    assert small.first_call_page_faults is not None

    preview = session.preview(session.Options(suite=str(path), settings=QUICK))
    assert list(preview.misfits[preview.groups[0].id]) == ["large"]

    again = run(path)
    assert [record.variant for record in again.answered] == ["small"]  # not measured once more
    assert len(read(again.out).records) == 2  # and nothing is written twice

    forced = {record.variant: record for record in run(path, force=True).measured}
    assert forced["large"].status == "ok"
