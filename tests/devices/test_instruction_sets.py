"""Which instructions can be used. The children are real and die of real signals; most of them
import a torch of ours, which does as it is told."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flopwatch.devices import instruction_probe, instruction_sets
from flopwatch.devices.instruction_sets import InstructionSet, Outcome
from flopwatch.errors import WorkerError

FAKE_TORCH = """
import json, os, signal, time, types

wanted = json.loads(os.environ["FAKE_TORCH"])
cap = os.environ.get("ONEDNN_MAX_CPU_ISA")
for dtype in ("float32", "bfloat16", "float16", "int8"):
    globals()[dtype] = dtype


def misbehave(step):
    order = wanted.get(step, {})
    if cap is not None and cap in order.get("unless", []):
        return
    if "signal" in order:
        os.kill(os.getpid(), signal.Signals[order["signal"]])
    if "sleep_s" in order:
        time.sleep(order["sleep_s"])
    if "raise" in order:
        raise RuntimeError(order["raise"])


class Tensor:
    def __init__(self, dtype):
        self.dtype = dtype

    def sum(self):
        return self

    def backward(self):
        pass


def ones(*shape, dtype, requires_grad=False):
    return Tensor(dtype)


def linear(x, weight):
    misbehave(x.dtype)
    return x


def _int_mm(a, b):
    misbehave(a.dtype)


misbehave("import")
print("a line that is not ours", "{")
set_num_threads = lambda n: None
nn = types.SimpleNamespace(functional=types.SimpleNamespace(linear=linear))
backends = types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "AVX512"))
"""

SAPPHIRE_RAPIDS = ["avx2", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16"]
LOW = ["AVX2", "SSE41"]


class FakeTorch:
    """Runs the real probe program with a fake torch, and counts the children."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "torch.py").write_text(FAKE_TORCH)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
        self.orders: dict[str, object] = {}
        self.cache_path = folder / "cache" / "isa.json"
        self.children: list[str | None] = []
        self.first_limit_s = 60.0

    def run(self, left_out: Sequence[str], variables: Mapping[str, str]) -> Outcome:
        limit_s = 60.0 if self.children else self.first_limit_s
        self.children.append(variables.get(instruction_sets.VARIABLE))
        told = {**variables, "FAKE_TORCH": json.dumps(self.orders)}
        return instruction_sets.run_child(left_out, told, timeout_s=limit_s)

    def probe(self, orders: dict[str, object], **arguments: object) -> InstructionSet:
        self.orders = orders
        given = {"cpu_flags": SAPPHIRE_RAPIDS, "environ": {}, **arguments}
        return instruction_sets.probe(run=self.run, cache_path=self.cache_path, **given)  # type: ignore[arg-type]


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    return FakeTorch(tmp_path, monkeypatch)


def test_a_healthy_machine_is_not_capped(torch: FakeTorch) -> None:
    found = torch.probe({})

    assert found == InstructionSet(cpu_flags=SAPPHIRE_RAPIDS, cpu_capability="AVX512")
    assert torch.children == [None]
    assert instruction_sets.environment(found) == {}
    assert instruction_sets.describe(found) == {}


def test_a_crash_is_capped(torch: FakeTorch) -> None:
    order = {"signal": "SIGILL", "unless": ["AVX512_CORE_FP16", "AVX512_CORE", *LOW]}

    found = torch.probe({"bfloat16": order})

    assert found.onednn_max_cpu_isa == "AVX512_CORE_FP16"
    assert found.crashes == {"bfloat16": "SIGILL"}
    assert found.capped_because == (
        "bfloat16 matmul died with SIGILL under the full instruction set"
    )
    assert instruction_sets.environment(found) == {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    assert set(instruction_sets.describe(found)) == {
        "onednn_max_cpu_isa",
        "capped_because",
        "crashes",
    }


def test_caps_are_lowered_until_all_products_survive(torch: FakeTorch) -> None:
    found = torch.probe(
        {
            "bfloat16": {"signal": "SIGILL", "unless": ["AVX512_CORE", *LOW]},
            "int8": {"signal": "SIGSEGV", "unless": LOW},
        }
    )

    assert found.onednn_max_cpu_isa == "AVX2"
    assert found.crashes == {"bfloat16": "SIGILL", "int8": "SIGSEGV"}
    assert found.capped_because == (
        "bfloat16 matmul died with SIGILL and int8 matmul died with SIGSEGV "
        "under the full instruction set"
    )
    caps = ["AVX512_CORE_FP16", "AVX512_CORE_BF16", "AVX512_CORE_VNNI", "AVX512_CORE", "AVX2"]
    assert torch.children == [None, None, None, *caps]


def test_caps_that_the_cpu_does_not_reach_are_not_tried(torch: FakeTorch) -> None:
    found = torch.probe({"int8": {"signal": "SIGILL", "unless": LOW}}, cpu_flags=["avx2"])

    assert found.onednn_max_cpu_isa == "AVX2"
    assert torch.children == [None, None, "AVX2"]


def test_where_no_cap_helps_none_is_set(torch: FakeTorch) -> None:
    found = torch.probe({"float16": {"signal": "SIGFPE"}}, cpu_flags=["avx2", "sse4_1"])

    assert found.onednn_max_cpu_isa is None
    assert found.capped_because is None
    assert found.crashes == {"float16": "SIGFPE"}


def test_a_hang_counts_as_a_crash(torch: FakeTorch) -> None:
    torch.first_limit_s = 5.0  # of the child that hangs

    found = torch.probe({"bfloat16": {"sleep_s": 300, "unless": ["AVX2"]}}, cpu_flags=["avx2"])

    assert found.onednn_max_cpu_isa == "AVX2"
    assert found.crashes == {"bfloat16": "hang"}
    assert found.capped_because == "bfloat16 matmul hung under the full instruction set"


def test_the_program_ends_its_own_hangs(torch: FakeTorch) -> None:
    # What the kernel does when the alarm of `matmuls` goes off.
    found = torch.probe({"bfloat16": {"signal": "SIGALRM"}}, cpu_flags=[])

    assert found.crashes == {"bfloat16": "hang"}
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_an_error_is_not_a_crash(torch: FakeTorch) -> None:
    found = torch.probe({"float16": {"raise": "not implemented for 'Half'"}})

    assert found.onednn_max_cpu_isa is None
    assert found.crashes == {}
    assert found.unsupported == {"float16": "RuntimeError: not implemented for 'Half'"}


def test_a_cap_of_the_user_stays(torch: FakeTorch) -> None:
    found = torch.probe({"bfloat16": {"signal": "SIGILL"}}, environ={"DNNL_MAX_CPU_ISA": "AVX2"})

    assert found.onednn_max_cpu_isa == "AVX2"
    assert found.capped_because == "DNNL_MAX_CPU_ISA is set to AVX2 in the environment"
    assert found.crashes == {"bfloat16": "SIGILL"}
    assert torch.children == [None, None]


def test_a_child_killed_by_others_proves_nothing(torch: FakeTorch) -> None:
    found = torch.probe({"float32": {"signal": "SIGKILL"}})

    assert found.onednn_max_cpu_isa is None
    assert found.crashes == {"float32": "SIGKILL"}
    assert not torch.cache_path.exists()


@pytest.mark.parametrize(
    ("order", "reason"),
    [({"raise": "no\nlibrary"}, "RuntimeError: no library"), ({"signal": "SIGILL"}, "SIGILL")],
)
def test_no_torch_is_an_error(torch: FakeTorch, order: dict[str, str], reason: str) -> None:
    with pytest.raises(WorkerError, match="^torch cannot be imported by ") as raised:
        torch.probe({"import": order})

    assert f"({reason})" in str(raised.value)


def test_an_interpreter_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/python")

    with pytest.raises(WorkerError, match="/no/python cannot be started"):
        instruction_sets.probe(cpu_flags=[])


class TestCache:
    def test_the_answer_is_kept(self, torch: FakeTorch) -> None:
        order = {"signal": "SIGILL", "unless": LOW}
        first = torch.probe({"bfloat16": order})
        torch.children.clear()

        assert torch.probe({}) == first
        assert torch.children == []
        assert os.listdir(torch.cache_path.parent) == ["isa.json"]

    @pytest.mark.parametrize(
        "change",
        [{"cpu_flags": ["avx2"]}, {"environ": {"ONEDNN_MAX_CPU_ISA": "AVX2"}}],
    )
    def test_it_holds_only_for_the_same_machine(
        self, torch: FakeTorch, change: dict[str, object]
    ) -> None:
        torch.probe({})
        torch.probe({}, **change)
        torch.probe({})

        assert len(torch.children) == 2

    @pytest.mark.parametrize("content", ["", "{", "[]", "\x00", '{"KEY": 3}', '{"KEY": {"a": 1}}'])
    def test_a_damaged_one_is_ignored(self, torch: FakeTorch, content: str) -> None:
        key = instruction_sets.make_cache_key({}, SAPPHIRE_RAPIDS)
        assert key is not None
        torch.cache_path.parent.mkdir()
        torch.cache_path.write_text(content.replace("KEY", key))

        assert torch.probe({"int8": {"raise": "no"}}).unsupported
        assert torch.probe({}).unsupported  # it is now kept

    def test_an_entry_of_wrong_types_is_ignored(self, torch: FakeTorch) -> None:
        torch.probe({})
        entries = json.loads(torch.cache_path.read_text())
        next(iter(entries.values()))["cpu_capability"] = 512
        torch.cache_path.write_text(json.dumps(entries))

        assert torch.probe({}).cpu_capability == "AVX512"
        assert len(torch.children) == 2

    def test_one_that_cannot_be_written_is_ignored(self, torch: FakeTorch, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        torch.cache_path = tmp_path / "file" / "isa.json"

        assert torch.probe({}).cpu_capability == "AVX512"

    def test_it_does_not_grow_for_ever(self, torch: FakeTorch) -> None:
        torch.cache_path.parent.mkdir()
        torch.cache_path.write_text(json.dumps({str(i): {"cpu_flags": []} for i in range(100)}))

        torch.probe({})

        kept = json.loads(torch.cache_path.read_text())
        assert list(kept)[:-1] == [str(i) for i in range(85, 100)]

    def test_without_a_boot_id_nothing_is_kept(
        self, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("flopwatch.devices.system_files.read_text", lambda *_: None)

        torch.probe({})

        assert not torch.cache_path.exists()


def test_with_the_real_torch() -> None:
    """This machine may be a broken one; then at least the answer must be complete."""
    found = instruction_sets.probe()

    assert found.cpu_capability
    assert instruction_sets.probe() == found
    assert set(found.crashes) <= set(instruction_probe.MATMULS)
    if not found.crashes:
        assert found.capped_because is None
