"""A monitor on a device whose work is queued: times are the device's, and nobody waits for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.accelerator.conftest import OnDevice

pytestmark = pytest.mark.xdist_group("accelerator")

STEPS = 3


def watch(folder: str) -> dict[str, Any]:
    import torch

    from flopwatch import Monitor
    from tests.monitor.loops import draw, find_loss, find_monitored, find_rank, make_model, read_run

    model = make_model().to("flop")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [ids.to("flop") for ids in draw(STEPS)]
    torch.accelerator.synchronize()
    path = Path(folder) / "run.jsonl"
    monitor = Monitor(model, out=path, live=False)
    monitor._recorder.wants_memory = True
    began_s = time.perf_counter()
    for ids in monitor.data(batches):
        with monitor.step():
            find_loss(model, ids).backward()
            optimizer.step()
            optimizer.zero_grad()
    looped_s = time.perf_counter() - began_s
    torch.accelerator.synchronize()
    ran_s = time.perf_counter() - began_s
    monitor.close()
    record = read_run(path)
    steps = find_rank(record)
    return {
        "clock": find_monitored(record).clock,
        "device": record.settings.device,
        "rounds": record.rounds,
        "looped_s": looped_s,
        "ran_s": ran_s,
        "steps_s": sum(steps.time_ns) / 1e9,
        "parts_s": {
            part: sum(ns or 0.0 for ns in times_ns) / 1e9
            for part, times_ns in steps.parts_ns.items()
        },
        "memory": steps.readings[-1].phase_memory_bytes or steps.readings[0].phase_memory_bytes,
    }


def test_steps_are_timed_where_they_run(on_device: OnDevice, tmp_path: Path) -> None:
    """Operators take 20 ms each on the device, and next to nothing for the loop."""
    found = on_device(watch, str(tmp_path), FLOP_OPERATOR_NS=20e6)
    assert (found["clock"], found["device"]) == ("flop events", "flop")
    assert found["rounds"] == list(range(STEPS))
    assert found["steps_s"] == pytest.approx(found["ran_s"], rel=0.1)
    assert found["looped_s"] < 0.5 * found["steps_s"]
    parts_s = found["parts_s"]
    assert set(parts_s) == {"data", "forward", "loss", "backward", "optimizer"}
    assert parts_s["forward"] > STEPS * 3 * 20e-3
    assert parts_s["backward"] > STEPS * 3 * 20e-3
    assert parts_s["data"] < 0.1 * found["steps_s"]
    assert found["memory"]


def test_without_timed_events_the_host_measures(on_device: OnDevice, tmp_path: Path) -> None:
    found = on_device(watch, str(tmp_path), FLOP_OPERATOR_NS=1e6, FLOP_TIMED_EVENTS=0)
    assert found["clock"] == "perf_counter"
    assert found["rounds"] == list(range(STEPS))
