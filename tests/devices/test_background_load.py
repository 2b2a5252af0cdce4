"""How much of the machine others use: our own processes do not count, wherever they are."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from flopwatch.devices import background_load

BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
NESTED = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}], check=True)"


class FakeMachine:
    """Two cores, whose time passes as it is told."""

    def __init__(self) -> None:
        self.now_s = self.busy_s = self.own_s = 0.0

    def spend(self, elapsed_s: float, background_s: float, own_s: float) -> None:
        self.now_s += elapsed_s
        self.busy_s += background_s + own_s
        self.own_s += own_s


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    fake = FakeMachine()

    def read_times() -> SimpleNamespace:
        return SimpleNamespace(_asdict=lambda: {"user": fake.busy_s})

    monkeypatch.setattr(background_load.time, "monotonic", lambda: fake.now_s)
    monkeypatch.setattr(background_load.psutil, "cpu_times", read_times)
    monkeypatch.setattr(background_load.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(background_load, "_list_own", lambda: [None])
    monkeypatch.setattr(background_load, "_read_own_s", lambda _: fake.own_s)
    return fake


def test_the_share_is_that_of_all_cores_since_the_last_one(machine: FakeMachine) -> None:
    watch = background_load.LoadWatch()
    machine.spend(10.0, background_s=4.0, own_s=16.0)
    assert watch.read_share({}) == pytest.approx(0.2)
    machine.spend(10.0, background_s=0.0, own_s=20.0)
    assert watch.read_share({}) == 0.0


def test_a_moment_is_too_short_and_counts_later(machine: FakeMachine) -> None:
    watch = background_load.LoadWatch()
    machine.spend(0.1, background_s=0.1, own_s=0.1)
    assert watch.read_share({}) is None
    machine.spend(0.9, background_s=0.9, own_s=0.9)
    assert watch.read_share({}) == pytest.approx(0.5)


def test_ranks_that_torchrun_has_started_are_nobodys_children(machine: FakeMachine) -> None:
    watch = background_load.LoadWatch()
    machine.spend(10.0, background_s=4.0, own_s=16.0)
    assert watch.read_share({"TORCHELASTIC_RUN_ID": "1"}) is None


OWN = """
import subprocess, sys
from flopwatch.devices import background_load as others

def read_own_s():
    return sum(map(others._read_own_s, others._list_own()))

before_s = read_own_s()
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
print(read_own_s() - before_s)
"""


def test_stolen_time_counts_where_it_is_asked_for(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = SimpleNamespace(_asdict=lambda: {"user": 9.0, "steal": 2.0, "idle": 100.0})
    monkeypatch.setattr(background_load.psutil, "cpu_times", lambda: times)
    machine.own_s = 3.0
    assert background_load.read_background_s() == 6.0
    assert background_load.read_background_s((*background_load.BUSY, background_load.STOLEN)) == 8.0


@pytest.mark.parametrize("program", [BURN, NESTED], ids=["child", "grandchild"])
def test_what_our_descendants_used_is_our_own_once_they_have_ended(program: str) -> None:
    """In a process of its own: one that runs tests has descendants of other tests, whose ends take
    what they used away."""
    ended = subprocess.run(
        [sys.executable, "-c", OWN, program], check=True, stdout=subprocess.PIPE, text=True
    )
    assert float(ended.stdout) > 0.25  # the system counts in steps of 10 ms, each process's
