"""The environment: exact on file trees of our own, complete on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flopwatch.devices import environment, system_files
from flopwatch.settings import Settings
from tests.devices.test_gpu_state import NVIDIA, FakeNvml, make_torch

CPU = "sys/devices/system/cpu"
XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8480+
cpu MHz\t\t: 2000.125
flags\t\t: fpu sse4_1 avx avx2 avx512f amx_bf16 hypervisor

processor\t: 1
model name\t: another
flags\t\t: sme
"""


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Write a file tree."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


class TestCpu:
    def test_x86(self, tmp_path: Path) -> None:
        plant(tmp_path, {"proc/cpuinfo": XEON})

        assert system_files.read_cpu_model(tmp_path) == "Intel(R) Xeon(R) Platinum 8480+"
        assert system_files.read_cpu_flags(tmp_path) == [
            "sse4_1",
            "avx",
            "avx2",
            "avx512f",
            "amx_bf16",
        ]
        assert environment.read_cpu_frequency_hz(tmp_path) == 2000125000

    def test_arm(self, tmp_path: Path) -> None:
        lines = "processor : 0\nFeatures : fp asimd bf16\nCPU implementer : 0x41\nCPU part : 0xd40"
        plant(tmp_path, {"proc/cpuinfo": lines})

        assert system_files.read_cpu_model(tmp_path) == "0x41 part 0xd40"
        assert system_files.read_cpu_flags(tmp_path) == ["asimd", "bf16"]

    def test_frequency(self, tmp_path: Path) -> None:
        plant(
            tmp_path,
            {
                f"{CPU}/cpu0/cpufreq/scaling_cur_freq": "3100000\n",
                f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave\n",
                f"{CPU}/cpu1/cpufreq/scaling_governor": "performance\n",
                f"{CPU}/cpu2/cpufreq/scaling_governor": "powersave\n",
            },
        )

        assert environment.read_cpu_frequency_hz(tmp_path) == 3.1e9
        assert system_files.read_governor(tmp_path) == "performance,powersave"

    @pytest.mark.parametrize(
        ("file", "content", "expected"),
        [
            ("intel_pstate/no_turbo", "0", True),
            ("intel_pstate/no_turbo", "1", False),
            ("cpufreq/boost", "1", True),
            ("cpufreq/boost", "0", False),
            ("other", "0", None),
        ],
    )
    def test_boost(self, tmp_path: Path, file: str, content: str, expected: bool | None) -> None:
        assert system_files.read_boost(plant(tmp_path, {f"{CPU}/{file}": content})) is expected

    @pytest.mark.parametrize(
        ("file", "content", "expected"),
        [
            ("smt/active", "1", True),
            ("smt/active", "0", False),
            ("cpu0/topology/thread_siblings_list", "0,32", True),
            ("cpu0/topology/thread_siblings_list", "0-1", True),
            ("cpu0/topology/thread_siblings_list", "0", False),
            ("other", "0", None),
        ],
    )
    def test_smt(self, tmp_path: Path, file: str, content: str, expected: bool | None) -> None:
        assert system_files.read_smt(plant(tmp_path, {f"{CPU}/{file}": content})) is expected

    def test_last_level_cache(self, tmp_path: Path) -> None:
        caches = [("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2048K")]
        caches += [("3", "Unified", "105M")]
        for i, (level, kind, size) in enumerate(caches):
            folder = f"{CPU}/cpu0/cache/index{i}"
            plant(tmp_path, {f"{folder}/level": level, f"{folder}/type": kind})
            plant(tmp_path, {f"{folder}/size": size})

        assert system_files.read_last_level_cache_bytes(tmp_path) == 105 * 2**20


class TestControlGroups:
    @pytest.mark.parametrize(
        ("files", "expected"),
        [
            ({}, None),
            ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
            ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
            (
                {
                    "proc/self/cgroup": "0::/a/b",
                    "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                    "sys/fs/cgroup/a/cpu.max": "200000 100000",
                },
                2.0,
            ),
            # Inside a container: the path is the host's, the files are at the top.
            ({"proc/self/cgroup": "0::/x/y", "sys/fs/cgroup/cpu.max": "50000 100000"}, 0.5),
            (
                {
                    "proc/self/cgroup": "4:memory:/m\n3:cpu,cpuacct:/docker/f00\n0::/",
                    "sys/fs/cgroup/cpu,cpuacct/docker/f00/cpu.cfs_quota_us": "300000",
                    "sys/fs/cgroup/cpu,cpuacct/docker/f00/cpu.cfs_period_us": "100000",
                },
                3.0,
            ),
            (
                {
                    "proc/self/cgroup": "1:cpu:/",
                    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                },
                None,
            ),
            ({"proc/self/cgroup": "nonsense"}, None),
        ],
    )
    def test_cpu_quota(self, tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
        assert system_files.read_cpu_quota_cores(plant(tmp_path, files)) == expected

    def test_usable_cores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)

        assert system_files.count_usable_cores(None) == 4
        assert system_files.count_usable_cores(2.5) == 2
        assert system_files.count_usable_cores(0.5) == 1
        assert system_files.count_usable_cores(64.0) == 4

    def test_memory_limit(self, tmp_path: Path) -> None:
        plant(
            tmp_path,
            {
                "proc/self/cgroup": "0::/a",
                "sys/fs/cgroup/a/memory.max": "10000",
                "sys/fs/cgroup/a/memory.current": "8000",
                "sys/fs/cgroup/a/memory.stat": "anon 7000\ninactive_file 500\n",
                "sys/fs/cgroup/memory.max": "max",
            },
        )

        assert system_files.read_memory_limit(tmp_path) == (10000, 2500)
        assert system_files.read_machine(tmp_path)["memory_available_bytes"] == 2500

    def test_no_memory_limit(self, tmp_path: Path) -> None:
        plant(
            tmp_path,
            {
                "proc/self/cgroup": "4:memory:/",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "8000",
            },
        )

        assert system_files.read_memory_limit(tmp_path) == (None, None)


class TestSystem:
    def test_huge_pages(self, tmp_path: Path) -> None:
        path = "sys/kernel/mm/transparent_hugepage/enabled"
        plant(tmp_path, {path: "always madvise [never]\n"})

        assert system_files.read_choice(path, tmp_path) == "never"

    @pytest.mark.parametrize(
        ("flags", "files", "expected"),
        [
            ("avx2 hypervisor", {}, "unnamed"),
            ("avx2 hypervisor", {"sys/class/dmi/id/sys_vendor": "QEMU"}, "QEMU/KVM"),
            ("avx2 hypervisor", {"sys/class/dmi/id/sys_vendor": "Amazon EC2"}, "Amazon EC2"),
            (
                "hypervisor",
                {f"{system_files.CLOCKS}/available_clocksource": "tsc kvm-clock"},
                "KVM",
            ),
            # Bare metal of the same maker: the CPU does not announce a hypervisor.
            ("avx2", {"sys/class/dmi/id/sys_vendor": "Amazon EC2"}, None),
        ],
    )
    def test_hypervisor(
        self, tmp_path: Path, flags: str, files: dict[str, str], expected: str | None
    ) -> None:
        plant(tmp_path, {"proc/cpuinfo": f"flags : {flags}", **files})

        assert system_files.read_hypervisor(tmp_path) == expected

    @pytest.mark.parametrize(
        ("files", "environ", "expected"),
        [
            ({}, {}, None),
            ({".dockerenv": ""}, {}, "docker"),
            ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
            ({"run/.containerenv": ""}, {}, "podman"),
            ({"proc/self/cgroup": "0::/lxc/a"}, {}, "lxc"),
        ],
    )
    def test_container(
        self,
        tmp_path: Path,
        files: dict[str, str],
        environ: dict[str, str],
        expected: str | None,
    ) -> None:
        assert system_files.read_container(plant(tmp_path, files), environ) == expected

    def test_the_machine_id_is_a_hash(self, tmp_path: Path) -> None:
        without = system_files.make_machine_id(tmp_path)
        plant(tmp_path, {"etc/machine-id": "3d1219c7c4c5404aaa1f6d2a48adfda4\n"})
        with_id = system_files.make_machine_id(tmp_path)

        assert without != with_id
        assert len(with_id) == 12
        assert with_id not in "3d1219c7c4c5404aaa1f6d2a48adfda4"

    def test_a_system_that_tells_nothing(self, tmp_path: Path) -> None:
        facts = system_files.read_machine(tmp_path)

        assert None not in facts.values()
        assert {"governor", "boost", "smt", "numa_nodes", "clocksource"}.isdisjoint(facts)
        assert facts["usable_cores"] >= 1
        assert environment.load(tmp_path)["average"]


class TestVariables:
    def test_only_those_that_matter(self) -> None:
        environ = {"OMP_NUM_THREADS": "2", "PATH": "/bin", "LD_PRELOAD": "x.so", "LD_PRELOADED": ""}

        assert environment.read_variables(environ) == {"LD_PRELOAD": "x.so", "OMP_NUM_THREADS": "2"}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("TORCH_API_TOKEN", "harmless"),
            ("TORCH_URL", "https://me:word@example.org"),
            ("TORCH_HUB", "hf_abcdef"),
            ("TRITON_X", "0123456789abcdef0123456789abcdef"),
        ],
    )
    def test_secrets_are_withheld(self, name: str, value: str) -> None:
        assert environment.read_variables({name: value}) == {name: "(withheld)"}

    def test_settings_are_not_taken_for_secrets(self) -> None:
        environ = {
            "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
            "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
        }

        assert environment.read_variables(environ) == environ

    def test_the_home_folder_is_not_named(self) -> None:
        environ = {"HOME": "/home/ada", "TRITON_CACHE_DIR": "/home/ada/triton"}

        assert environment.read_variables(environ) == {"TRITON_CACHE_DIR": "~/triton"}

    def test_those_that_change_how_fast_a_gpu_is(self) -> None:
        environ = {
            "CUDA_LAUNCH_BLOCKING": "1",
            "CUDA_VISIBLE_DEVICES": "0",
            "NCCL_P2P_DISABLE": "1",
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            "TORCH_NCCL_BLOCKING_WAIT": "1",
        }
        assert environment.read_variables(environ) == environ

    def test_nor_does_a_command_tell_secrets(self) -> None:
        words = ["flopwatch", "run", "/home/ada/mine.py", "--filter", "tokens=1024", "hf_abcdef"]

        assert environment.read_command(words, {"HOME": "/home/ada"}) == [
            *("flopwatch", "run", "~/mine.py", "--filter", "tokens=1024", "(withheld)")
        ]

    def test_a_command_leaves_records_comparable(self) -> None:
        told = {"command": ["flopwatch", "run", "mine.py"]}

        assert environment.measurement_conditions(
            told, Settings()
        ) == environment.measurement_conditions({}, Settings())


def test_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name == "/opt/clang++" else None)

    assert environment.find_compiler({}) is None
    assert environment.find_compiler({"CXX": "/opt/clang++"}) == "clang++"
    assert environment.find_compiler({"CXX": "icpx"}) is None


class TestProject:
    def git(self, folder: Path, *arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", folder, *identity, *arguments], check=True)

    def test_commit_and_changes(self, tmp_path: Path) -> None:
        self.git(tmp_path, "init", "-q")
        assert environment.read_project(tmp_path) is None

        plant(tmp_path, {"file": "one"})
        self.git(tmp_path, "add", "file")
        self.git(tmp_path, "commit", "-qm", "one")
        plant(tmp_path, {"untracked": ""})
        clean = environment.read_project(tmp_path)
        plant(tmp_path, {"file": "two"})
        dirty = environment.read_project(tmp_path)

        assert clean is not None
        assert clean["dirty"] is False
        assert len(clean["commit"]) == 12
        assert dirty == {**clean, "dirty": True}

    def test_no_repository(self, tmp_path: Path) -> None:
        assert environment.read_project(tmp_path / "missing") is None
        assert "project" not in environment.machine(tmp_path)

    def test_no_git(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")

        assert environment.read_project(tmp_path) is None


ENVIRONMENT: dict[str, Any] = {
    "machine": {"machine_id": "m", "cpu_model": "c", "memory_available_bytes": 5},
    "software": {"python": "3.11.7", "flopwatch": "0.1.0"},
    "torch": {"version": "2.13.0", "cpu_capability": "AVX2", "gpu": {"name": "A100"}},
    "isa": {"onednn_max_cpu_isa": "AVX2"},
    "allocator": "glibc defaults",
    "load": {"average": [1, 2, 3]},
}


class TestLikeness:
    def test_the_table(self) -> None:
        assert environment.measurement_conditions(ENVIRONMENT, Settings(threads=2)) == {
            "machine.machine_id": "m",
            "machine.cpu_model": "c",
            "isa.onednn_max_cpu_isa": "AVX2",
            "torch.cpu_capability": "AVX2",
            "torch.version": "2.13.0",
            "torch.gpu.name": "A100",
            "machine.affinity": None,
            "software.packages": None,
            "software.variables": None,
            "software.python": "3.11",
            "software.flopwatch": "0.1",
            "allocator": "glibc defaults",
            "settings.device": "cpu",
            "settings.threads": 2,
            "settings.cache": "hot",
            "settings.allocator": "retain",
        }

    def test_unknowns(self) -> None:
        empty = environment.measurement_conditions({"machine": None}, Settings())

        assert empty["machine.cpu_model"] is None
        assert empty["software.python"] is None

    def test_what_makes_a_difference(self) -> None:
        settings = Settings()
        conditions = environment.measurement_conditions(ENVIRONMENT, settings)
        newer = {**ENVIRONMENT, "software": {"python": "3.11.9", "flopwatch": "0.1.4"}, "load": {}}
        other = {**ENVIRONMENT, "software": {"python": "3.12.0", "flopwatch": "0.1.0"}}

        assert environment.measurement_conditions(newer, replace(settings, seed=3)) == conditions
        assert environment.measurement_conditions(other, settings) != conditions
        assert (
            environment.measurement_conditions(ENVIRONMENT, replace(settings, cache="cold"))
            != conditions
        )


class TestHere:
    def test_what_others_rely_on(self) -> None:
        facts = environment.machine(Path(__file__).parent)

        assert facts["machine"]["usable_cores"] >= 1
        assert facts["machine"]["memory_available_bytes"] > 0
        assert facts["software"]["packages"]["torch"]

    def test_it_is_small_and_json(self) -> None:
        everything = {
            **environment.machine(Path(__file__).parent),
            "torch": environment.torch_build(),
            "load": environment.load(),
        }

        text = json.dumps(everything, separators=(",", ":"))

        assert json.loads(text) == everything
        assert len(text) < 2000

    def test_torch_build(self) -> None:
        import torch

        build = environment.torch_build()

        assert build["version"] == torch.__version__
        assert build["threads"] == torch.get_num_threads()
        assert build["float32_matmul_precision"] == torch.get_float32_matmul_precision()
        assert build["deterministic"] is False
        assert ("gpu" in build) is torch.cuda.is_available()

    def test_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        class Properties:
            name, total_memory, major, minor = "H100", 80 * 2**30, 9, 0

        driver = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5"
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(system_files, "read_text", lambda _: driver)

        gpu = environment.torch_build()["gpu"]

        assert gpu["name"] == "H100"
        assert gpu["count"] == 8
        assert gpu["memory_bytes"] == 80 * 2**30
        assert gpu["compute_capability"] == "9.0"
        assert gpu["driver"] == "550.54.15"
        assert isinstance(gpu["tf32_matmul"], bool)
        assert "states" not in gpu, "there is nobody to ask"

    def test_the_state_of_all_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        fake = make_torch(count=2)
        fake.cuda.get_device_properties(0).__dict__.update(
            name="H100", total_memory=80 * 2**30, major=9, minor=0
        )
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        for name in ("device_count", "get_device_properties", "current_device"):
            monkeypatch.setattr(torch.cuda, name, getattr(fake.cuda, name))

        build = environment.torch_build()

        assert build["gpu"]["states"] == [NVIDIA.describe(), {}]
        assert json.loads(json.dumps(build)) == build
        assert ("rocm" in build) is (torch.version.hip is not None)

    def test_an_accelerator_of_another_kind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        kind = SimpleNamespace(
            is_available=lambda: True,
            current_accelerator=lambda: SimpleNamespace(type="npu"),
            device_count=lambda: 4,
        )
        module = SimpleNamespace(
            get_device_name=lambda number: "Abacus",
            get_device_properties=lambda number: SimpleNamespace(total_memory=2**36),
        )
        monkeypatch.setattr(torch, "accelerator", kind)
        monkeypatch.setattr(torch, "get_device_module", lambda name: {"npu": module}[name])

        assert environment.torch_build()["gpu"] == {
            "kind": "npu",
            "name": "Abacus",
            "count": 4,
            "memory_bytes": 2**36,
        }
        monkeypatch.setattr(torch, "get_device_module", lambda name: object())
        assert environment.torch_build()["gpu"] == {"kind": "npu", "name": "npu", "count": 4}

    def test_torch_is_not_imported(self) -> None:
        program = (
            "import sys; from pathlib import Path\n"
            "from flopwatch.runner import doctor\n"
            "from flopwatch.devices import environment\n"
            "from flopwatch.devices import instruction_sets as isa\n"
            "from flopwatch.worker import allocator\n"
            "environment.machine(Path('.')); environment.load()\n"
            "allocator.preload_environment('retain'); isa.make_cache_key({}, [])\n"
            "assert 'torch' not in sys.modules\n"
        )

        subprocess.run([sys.executable, "-c", program], check=True)


# Background load: our own processes do not count, wherever they are.

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

    monkeypatch.setattr(environment.time, "monotonic", lambda: fake.now_s)
    monkeypatch.setattr(environment.psutil, "cpu_times", read_times)
    monkeypatch.setattr(environment.psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment, "_list_own", lambda: [None])
    monkeypatch.setattr(environment, "_read_own_s", lambda _: fake.own_s)
    return fake


def test_the_share_is_that_of_all_cores_since_the_last_one(machine: FakeMachine) -> None:
    watch = environment.LoadWatch()
    machine.spend(10.0, background_s=4.0, own_s=16.0)
    assert watch.read_share({}) == pytest.approx(0.2)
    machine.spend(10.0, background_s=0.0, own_s=20.0)
    assert watch.read_share({}) == 0.0


def test_a_moment_is_too_short_and_counts_later(machine: FakeMachine) -> None:
    watch = environment.LoadWatch()
    machine.spend(0.1, background_s=0.1, own_s=0.1)
    assert watch.read_share({}) is None
    machine.spend(0.9, background_s=0.9, own_s=0.9)
    assert watch.read_share({}) == pytest.approx(0.5)


def test_a_quarter_of_a_second_shows_a_busy_machine(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(seconds: float) -> None:
        machine.spend(seconds, background_s=seconds, own_s=0.0)

    monkeypatch.setattr(environment.time, "sleep", sleep)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert environment.sample_background_share() == pytest.approx(0.5)


def test_ranks_that_torchrun_has_started_are_nobodys_children(machine: FakeMachine) -> None:
    watch = environment.LoadWatch()
    machine.spend(10.0, background_s=4.0, own_s=16.0)
    assert watch.read_share({"TORCHELASTIC_RUN_ID": "1"}) is None


OWN = """
import subprocess, sys
from flopwatch.devices import environment as others

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
    monkeypatch.setattr(environment.psutil, "cpu_times", lambda: times)
    machine.own_s = 3.0
    assert environment.read_background_s() == 6.0
    assert environment.read_background_s((*environment.BUSY, environment.STOLEN)) == 8.0


@pytest.mark.parametrize("program", [BURN, NESTED], ids=["child", "grandchild"])
def test_what_our_descendants_used_is_our_own_once_they_have_ended(program: str) -> None:
    """In a process of its own: one that runs tests has descendants of other tests, whose ends take
    what they used away."""
    ended = subprocess.run(
        [sys.executable, "-c", OWN, program], check=True, stdout=subprocess.PIPE, text=True
    )
    assert float(ended.stdout) > 0.25  # the system counts in steps of 10 ms, each process's
