"""What cannot fit is not tried."""

from __future__ import annotations

from pathlib import Path

from flopwatch import session
from flopwatch.plan import Group
from flopwatch.records.store import read
from flopwatch.room import PROCESS_BYTES, divide, find_misfits, find_room_bytes
from flopwatch.settings import Settings

from .test_run import QUICK, SilentWatcher

GIB = 2**30


def test_groups_are_divided_by_what_fits() -> None:
    mixed = make_group(small={"parameters": 1.0}, large={"parameters": 9.0})
    divided = divide([mixed, make_group(large={"parameters": 9.0})], 5)
    assert [group.variants for group in divided.fitting] == [("small",)]
    assert [(group.variants, list(why)) for group, why in divided.misfits] == [
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
    misfits = find_misfits(group, 4 * GIB)
    assert list(misfits) == ["large"]
    needs = "it needs 5.00 GiB of memory (parameters 3.00 GiB, gradients 2.00 GiB)"
    assert misfits["large"].startswith(needs)
    assert "--force" in misfits["large"]


def test_what_is_not_foretold_is_tried_even_where_there_is_next_to_no_room() -> None:
    tight = find_room_bytes(Settings(memory_limit_bytes=1000), {})
    assert find_misfits(make_group(unknown={}), tight) == {}


def test_where_nobody_knows_the_room_all_are_tried() -> None:
    assert find_misfits(make_group(huge={"parameters": 1e18}), None) == {}


def test_the_room_is_the_limit_or_the_gpus() -> None:
    limited = Settings(memory_limit_bytes=4 * GIB)
    assert find_room_bytes(limited, {}) == 4 * GIB - PROCESS_BYTES
    environment = {"torch": {"gpu": {"memory_bytes": 80 * GIB}}}
    assert find_room_bytes(Settings(device="cuda"), environment) == 80 * GIB - PROCESS_BYTES
    assert find_room_bytes(Settings(device="cuda"), {"torch": {}}) is None
    assert find_room_bytes(Settings(), {}) is None


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
    assert large.memory_estimate_bytes == {"parameters": 2.0**50}
    assert large.samples_ns == {}
    assert "it needs 1024 TiB" in str(large.reason)
    assert small.facts == {"runs": 1.0}
    assert small.memory["call"].peak_bytes == small.peak_memory_bytes == 256
    assert small.held_bytes is not None
    assert small.held_bytes >= 256
    assert small.first_page_faults is not None

    preview = session.preview(session.Options(suite=str(path), settings=QUICK))
    assert list(preview.misfits[preview.groups[0].id]) == ["large"]

    again = run(path)
    assert [record.variant for record in again.answered] == ["small"]  # not measured once more
    assert len(read(again.out).records) == 2  # and nothing is written twice

    forced = {record.variant: record for record in run(path, force=True).measured}
    assert forced["large"].status == "ok"
