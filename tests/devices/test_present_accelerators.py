"""Which accelerators there are. The children are real and die of real signals; they import a torch
of ours, which does as it is told."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from flopwatch import plugins
from flopwatch.devices import present_accelerators
from flopwatch.devices.kinds import Devices, find_kind
from flopwatch.devices.present_accelerators import (
    Accelerators,
    Report,
    choose_devices,
    find_accelerators,
    list_in_process,
    run_child,
)
from flopwatch.errors import UsageError

FAKE_TORCH = """
import json, os, signal, time, types, warnings

wanted = json.loads(os.environ["FAKE_TORCH"])
print("a line that is not ours", "{")
warnings.warn("of the import, which is no concern of ours")
if "raise at import" in wanted:
    raise RuntimeError(wanted["raise at import"])


def misbehave():
    if "signal" in wanted:
        os.kill(os.getpid(), signal.Signals[wanted["signal"]])
    if "sleep_s" in wanted:
        time.sleep(wanted["sleep_s"])
    if "raise" in wanted:
        raise RuntimeError(wanted["raise"])
    if "warn" in wanted:
        warnings.warn(wanted["warn"])


def is_available():
    misbehave()
    return bool(wanted.get("names"))


module = types.SimpleNamespace(
    is_available=is_available,
    device_count=lambda: len(wanted["names"]),
    get_device_name=lambda number: wanted["names"][number],
)
if wanted.get("is old"):
    cuda = module
else:
    accelerator = types.SimpleNamespace(
        current_accelerator=lambda: (
            types.SimpleNamespace(type=wanted["device"]) if "device" in wanted else None
        ),
        is_available=is_available,
    )
get_device_module = lambda device: module
"""

H100 = "NVIDIA H100 80GB HBM3"


class FakeTorch:
    """Runs the real program with a fake torch."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "torch.py").write_text(FAKE_TORCH)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        self.monkeypatch = monkeypatch

    def run(self, timeout_s: float = 60.0, **wanted: Any) -> Report | str:
        self.monkeypatch.setenv("FAKE_TORCH", json.dumps(wanted))
        return run_child(timeout_s=timeout_s)

    def find(self, timeout_s: float = 60.0, **wanted: Any) -> Accelerators:
        return present_accelerators.interpret(self.run(timeout_s, **wanted))


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    return FakeTorch(tmp_path, monkeypatch)


def test_all_of_one_kind_are_listed(torch: FakeTorch) -> None:
    assert torch.find(device="cuda", names=[H100, H100]) == Accelerators(
        device="cuda", names=(H100, H100)
    )
    assert torch.find(device="abacus", names=["a"]).device == "abacus"


def test_where_there_are_none_nothing_is_wrong(torch: FakeTorch) -> None:
    assert torch.find() == Accelerators()
    assert torch.find(device="cuda", names=[]) == Accelerators()  # built for it, on another machine


def test_a_torch_without_a_word_for_accelerators_has_cuda(torch: FakeTorch) -> None:
    assert torch.find(**{"is old": True}, names=[H100]).device == "cuda"
    assert torch.find(**{"is old": True}) == Accelerators()


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"raise": "driver\nlost"}, "RuntimeError: driver lost"),
        ({"warn": "CUDA initialization: driver too old"}, "CUDA initialization: driver too old"),
        ({"signal": "SIGSEGV"}, "a process that asked torch for them ended with signal 11"),
        ({"raise at import": "no lib"}, "torch cannot be imported: RuntimeError: no lib"),
    ],
)
def test_what_goes_wrong_is_not_the_same_as_none(
    torch: FakeTorch, wanted: dict[str, str], problem: str
) -> None:
    assert torch.find(device="cuda", **wanted) == Accelerators(problem=problem)


def test_a_driver_that_hangs_is_given_up(torch: FakeTorch) -> None:
    found = torch.find(timeout_s=2.0, device="cuda", sleep_s=600)
    assert found.problem == "torch did not list them within 2 s"


def test_an_interpreter_that_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/python")
    assert "/no/python cannot be started" in str(run_child())


class TestSigns:
    """What speaks for an accelerator, before torch is imported."""

    def find(self, tmp_path: Path, nodes: tuple[str, ...] = (), **given: Any) -> list[str]:
        asked: list[str] = []

        def run() -> Report:
            asked.append("child")
            return Report()

        for node in nodes:
            (tmp_path / "dev" / node).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "dev" / node).touch()
        usual = {"torch_version": "2.13.0", "torch_folder": tmp_path, "system": "Linux"}
        find_accelerators(run=run, dev=tmp_path / "dev", **{"backends": [], **usual, **given})
        return asked

    @pytest.mark.parametrize("node", ["nvidia0", "nvidiactl", "dxg", "kfd"])
    def test_a_node_of_one(self, tmp_path: Path, node: str) -> None:
        assert self.find(tmp_path, (node,)) == ["child"]
        assert self.find(tmp_path, (node,), torch_version="2.13.0+cpu") == []

    def test_a_cpu_alone_costs_no_child(self, tmp_path: Path) -> None:
        assert self.find(tmp_path, ("null", "tty0", "nvram", "nvme0")) == []

    def test_graphics_count_where_torch_is_built_for_them(self, tmp_path: Path) -> None:
        assert self.find(tmp_path, ("dri/renderD128",)) == []
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libtorch_xpu.so").touch()
        assert self.find(tmp_path, ("dri/renderD128",)) == ["child"]

    def test_a_package_that_brings_a_device(self, tmp_path: Path) -> None:
        given = {"backends": ["abacus"], "torch_version": "2.13.0+cpu"}
        assert self.find(tmp_path, **given) == ["child"]

    def test_a_mac(self, tmp_path: Path) -> None:
        assert self.find(tmp_path, system="Darwin") == ["child"]

    def test_without_torch_there_is_nobody_to_ask(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(present_accelerators, "read_torch_version", lambda: None)
        assert self.find(tmp_path, ("nvidia0",), torch_version=None) == []


class TestChoice:
    def test_accelerators_come_first(self) -> None:
        found = Accelerators(device="cuda", names=(H100, H100))
        expected = Devices(kind=find_kind("cuda"), count=2, name=H100)
        assert choose_devices(None, lambda: found) == expected
        assert choose_devices("cuda", lambda: found) == expected
        assert choose_devices(None, Accelerators) == Devices()

    def test_one_of_several(self) -> None:
        found = Accelerators(device="cuda", names=(H100, "NVIDIA L40S"))
        second = Devices(kind=find_kind("cuda"), count=1, name="NVIDIA L40S", index=1)
        assert choose_devices("cuda:1", lambda: found) == second
        assert choose_devices("cuda:0", lambda: found).index == 0
        for wrong in ("cuda:2", "cuda:", "cuda:-1", "cuda:01", "cuda:one", "xpu:0", "cpu:0"):
            with pytest.raises(UsageError, match=f"^--device {wrong}, but torch finds cuda here; "
                               "choose cuda, one of cuda:0 to cuda:1, or cpu$"):  # fmt: skip
                choose_devices(wrong, lambda: found)

    def test_nothing_is_looked_for_where_the_cpu_is_wanted(self) -> None:
        def fail() -> Accelerators:
            raise AssertionError

        assert choose_devices("cpu", fail) == Devices()

    @pytest.mark.parametrize(
        ("found", "sentence"),
        [
            (Accelerators(), "--device xpu, but torch finds no accelerator here; choose cpu"),
            (
                Accelerators(device="cuda", names=(H100,)),
                "--device xpu, but torch finds cuda here; choose cuda or cpu",
            ),
            (
                Accelerators(problem="driver lost"),
                "--device xpu, but looking for accelerators went wrong (driver lost); choose cpu",
            ),
        ],
    )
    def test_one_that_is_not_there_is_one_sentence(
        self, found: Accelerators, sentence: str
    ) -> None:
        with pytest.raises(UsageError) as raised:
            choose_devices("xpu", lambda: found)
        assert str(raised.value) == sentence

    def test_a_failure_is_said_and_the_cpu_is_used(self, caplog: pytest.LogCaptureFixture) -> None:
        plugins.say_left_out.cache_clear()
        with caplog.at_level(logging.WARNING, "flopwatch"):
            assert choose_devices(None, lambda: Accelerators(problem="driver lost")) == Devices()
        assert "went wrong (driver lost), so the CPU is used" in caplog.text


def test_a_failure_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of GPUs was once kept until the next boot, empty after an error."""
    answers = [Accelerators(problem="busy"), Accelerators(device="cuda", names=(H100,))]
    monkeypatch.setattr(present_accelerators, "find_accelerators", lambda: answers.pop(0))
    present_accelerators._find.cache_clear()
    try:
        assert present_accelerators.find_here().problem == "busy"
        assert present_accelerators.find_here().device == "cuda"
        assert present_accelerators.find_here().device == "cuda"  # without asking again
        answers.append(Accelerators())
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert present_accelerators.find_here().device is None
    finally:
        present_accelerators._find.cache_clear()


def test_no_file_remembers_accelerators(tmp_path: Path, torch: FakeTorch) -> None:
    before = sorted(tmp_path.rglob("*"))
    torch.find(device="cuda", names=[H100])
    left = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
    assert left == set(before)


def test_with_the_real_torch() -> None:
    import torch

    found = list_in_process(torch)
    assert found == present_accelerators.interpret(run_child())
    assert (found.device is None) == (not torch.accelerator.is_available())
    assert "torch" in sys.modules
