"""The environment that made a record: the machine, the software, and what was going on.

    {
      "machine":   the hardware and its state, without its name; `system_files.read_machine`
                   machine_id, cpu_model, architecture, physical_cores, logical_cores,
                   usable_cores (affinity and quota), cpu_quota_cores, instruction_sets, governor,
                   boost, smt, numa_nodes, last_level_cache_bytes, memory_total_bytes,
                   memory_available_bytes, memory_limit_bytes, swap_total_bytes, swap_used_bytes,
                   huge_pages, hypervisor, container, clocksource
      "software":  os, kernel, python, implementation, flopwatch, compiler,
                   compiler_version, packages: {name: version}, variables: {name: value}
      "project":   commit and dirty of the user's folder, where git knows them
      "torch":     `torch_build`, from the worker
      "isa":       `isa.describe`: what is out of the ordinary about the instruction set
      "allocator": `allocator.apply`, from the worker
      "peaks":     `measured_peaks.shorten`: what `flopwatch peaks` has found here, if it was run
      "slurm":     `slurm_facts.read_slurm`, in a job of Slurm: its id, nodes and GPUs
      "command":   `read_command`: the words that started the run, if a command line did
      "load":      `load`, anew for every record
      "gpus":      `gpu_state`, by rank: the state of its GPU when sampling had ended
      "imported":  of another program's file: its format and what else it says of itself
    }

The parent gathers "machine", "software", "project" and "slurm" by `machine`, without torch. What
is not known is left out, so that a key that is there has a value. What a user would not
want to publish is left out too: host and user names (but for those of Slurm's nodes), paths under
the home folder, secrets.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from flopwatch import __version__, env
from flopwatch.devices import system_files
from flopwatch.devices.gpu_state import list_states
from flopwatch.devices.slurm_facts import describe_as_one_machine, read_slurm
from flopwatch.settings import COMPARED_SETTINGS, Settings

PACKAGES = ("torch", "triton", "transformers", "numpy", "torchao")

VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "CUBLAS_*", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING"),
    *("CUDA_VISIBLE_DEVICES", "DNNL_*", "FLOPWATCH_NATIVE", "GLIBC_TUNABLES", "GOMP_*"),
    *("HIP_VISIBLE_DEVICES", "HIPBLASLT_*", "KMP_*", "LD_PRELOAD", "MALLOC_*", "MKL_*", "NCCL_*"),
    *("NVIDIA_TF32_OVERRIDE", "OMP_*", "RCCL_*", "ROCR_VISIBLE_DEVICES"),
    *("ONEDNN_*", "OPENBLAS_*", "PYTORCH_*", "TCMALLOC_*", "THP_MEM_ALLOC_ENABLE", "TORCH_*"),
    *("TORCHINDUCTOR_*", "TRITON_*"),
)
"""Variables that change how fast something runs; a star stands for any ending."""

SECRET_NAME = re.compile("TOKEN|SECRET|PASSW|KEY|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
SECRET_VALUE = re.compile(
    r"\b(hf_|gh[pousr]_|github_pat_|sk-|xox[abp]-|AKIA|eyJ)"  # makers mark their tokens
    r"|://[^/\s]*:[^/\s]*@"  # a password in an address
    r"|[A-Za-z0-9+]{32,}"  # too long and too plain for a setting
)
WITHHELD = "(withheld)"
VALUE_LENGTH = 120

COMPILERS = ("g++", "clang++", "c++")
"""What torch.compile looks for on a CPU, where CXX names none."""

ANSWER_S = 5.0
"""For git, or a compiler, to say what it is."""
TEMPERATURES = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "acpitz")
"""Sensors that are the CPU's, best first."""


COMPARED = (
    "machine.machine_id",
    "machine.cpu_model",
    "isa.onednn_max_cpu_isa",
    "torch.cpu_capability",
    "torch.version",
    "torch.gpu.name",
    "machine.affinity",
    "software.packages",
    "software.variables",
    "software.python",
    "software.flopwatch",
    "allocator",
)
"""Places in the environment that must be equal, like `settings.COMPARED_SETTINGS`, for two records
to be comparable."""
COMPARED_TO_MINOR = ("software.python", "software.flopwatch")
"""Of these versions the last number does not count: 3.11.7 is 3.11."""

BUSY = ("user", "nice", "system", "irq", "softirq")
STOLEN = "steal"
"""By other virtual machines: records have it apart."""
SHORTEST_S = 0.5
"""The system counts in steps of 10 ms: over less time the share would be one of those."""
ROUGHLY_S = 0.25
"""Enough to tell a busy machine from a calm one."""


def measurement_conditions(environment: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """What must be equal for two records to be comparable, by its place."""
    # The settings of what another program has measured are not known.
    known = None if "imported" in environment else settings
    of_settings = {f"settings.{name}": getattr(known, name, None) for name in COMPARED_SETTINGS}
    of_environment = {path: look_up(environment, path) for path in COMPARED}
    for path in COMPARED_TO_MINOR:
        if version := of_environment[path]:
            of_environment[path] = ".".join(str(version).split(".")[:2])
    return {**of_environment, **of_settings}


def look_up(environment: Mapping[str, Any], path: str) -> Any:
    """The value at a path like ``torch.gpu.name``; None where there is none."""
    value: Any = environment
    for key in path.split("."):
        # dict first: asking for the abstract class takes ten times as long, and tables ask often.
        if not isinstance(value, dict | Mapping):
            return None
        value = value.get(key)
    return value


def machine(project: Path, root: Path = system_files.ROOT) -> dict[str, Any]:
    """The sections that need no torch: machine, software, project, and in a job of Slurm, that."""
    found, slurm = system_files.read_machine(root), read_slurm()
    sections = {
        "machine": found if slurm is None else describe_as_one_machine(found, slurm),
        "software": read_software(root),
        "project": read_project(project),
        "slurm": slurm,
    }
    return {title: content for title, content in sections.items() if content is not None}


def read_software(root: Path = system_files.ROOT, environ: env.Environ = None) -> dict[str, Any]:
    release = system_files.read_text("etc/os-release", root) or ""
    packages = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    facts = {
        "os": _search(r'(?m)^PRETTY_NAME="?([^"\n]*)', release) or platform.system(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "flopwatch": __version__,
        "compiler": find_compiler(environ),
        "compiler_version": read_compiler_version(environ),
        "packages": packages,
        "variables": read_variables(environ),
    }
    return {key: value for key, value in facts.items() if value is not None}


def read_variables(environ: env.Environ = None) -> dict[str, str]:
    """The variables that matter, without secrets and without the home folder's name."""
    home = env.read("HOME", environ)
    environ = os.environ if environ is None else environ
    found = {}
    for name in sorted(environ):
        if not any(fnmatchcase(name, pattern) for pattern in VARIABLES):
            continue
        value = _withhold(environ[name], home)
        found[name] = WITHHELD if SECRET_NAME.search(name) else value[:VALUE_LENGTH]
    return found


def read_command(words: Sequence[str], environ: env.Environ = None) -> list[str]:
    """A command line, without secrets and without the home folder's name."""
    return [_withhold(word, env.read("HOME", environ)) for word in words]


def _withhold(value: str, home: str) -> str:
    if home not in ("", "/"):
        value = value.replace(home, "~")
    return WITHHELD if SECRET_VALUE.search(value) else value


def find_compiler(environ: env.Environ = None) -> str | None:
    """The C++ compiler that torch.compile would find; None: there is none."""
    asked = env.read("CXX", environ)
    candidates = [asked] if asked else COMPILERS
    return next((Path(name).name for name in candidates if shutil.which(name)), None)


def read_compiler_version(environ: env.Environ = None) -> str | None:
    """What it says of itself: one of the same name may be another, or be broken and say nothing."""
    name = env.read("CXX", environ) or find_compiler(environ)
    program = name and shutil.which(name)
    if not program:
        return None
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    first = done.stdout.decode(errors="replace").strip().partition("\n")[0]
    return first[:VALUE_LENGTH] or None


def read_project(folder: Path) -> dict[str, Any] | None:
    """The commit that the user's folder is at, and whether tracked files differ from it."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit[:12], "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        finished = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # only look
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.decode(errors="replace").strip()


class LoadWatch:
    """Reads background load: the share of all cores' time that other programs have used since the
    reading before, or since this was made.

    The load average is a minute late, and counts the run's own threads. Here the time of all cores
    is read twice, and what the run's own processes took of it meanwhile is taken off.
    """

    def __init__(self) -> None:
        self._read_at_s, self._background_s = time.monotonic(), read_background_s()

    def read_share(
        self, environ: env.Environ = None, shortest_s: float = SHORTEST_S
    ) -> float | None:
        """None where too little time has passed, or torchrun or srun has started ranks, which are
        not descendants of this process."""
        elapsed_s = time.monotonic() - self._read_at_s
        if elapsed_s < shortest_s or env.has_peer_ranks(environ):
            return None
        background_s = read_background_s()
        share = (background_s - self._background_s) / (elapsed_s * (psutil.cpu_count() or 1))
        self._read_at_s, self._background_s = time.monotonic(), background_s
        return min(1.0, max(0.0, share))


def sample_background_share() -> float | None:
    """What other programs use of all cores right now, roughly: it takes a quarter of a second."""
    watch = LoadWatch()
    time.sleep(ROUGHLY_S)
    return watch.read_share(shortest_s=ROUGHLY_S)


def read_background_s(kinds: Sequence[str] = BUSY) -> float:
    """Time of cores since the machine was started, of these kinds, without what this process and
    its descendants have used, those that have ended included."""
    times = psutil.cpu_times()._asdict()
    busy_s: float = sum(times.get(name, 0.0) for name in kinds)
    return busy_s - sum(map(_read_own_s, _list_own()))


def _list_own() -> list[psutil.Process]:
    own = psutil.Process()
    return [own, *own.children(recursive=True)]


def _read_own_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it has just ended, and its parent counts it
        return 0.0
    return float(sum(times[:4]))  # its own and that of children it has waited for


_background = LoadWatch()


def load(root: Path = system_files.ROOT) -> dict[str, Any]:
    """What else the machine is doing now. Cheap enough for every record.

    Shares are those since the previous call (or since the start): of stolen time, in which the
    hypervisor ran other virtual machines on these cores, and of background load, the time that
    other programs have used.
    """
    times, share = psutil.cpu_times_percent(interval=None), _background.read_share()
    facts = {
        "average": [round(average, 2) for average in os.getloadavg()],
        "steal_share": round(times.steal / 100, 4) if hasattr(times, "steal") else None,
        "background_share": None if share is None else round(share, 4),
        "cpu_frequency_hz": read_cpu_frequency_hz(root),
        "cpu_temperature_c": read_cpu_temperature_c(),
    }
    return {key: value for key, value in facts.items() if value is not None}


def read_cpu_frequency_hz(root: Path = system_files.ROOT) -> float | None:
    """Of the first core only: on large machines asking all takes milliseconds."""
    khz = system_files.read_number(f"{system_files.CPUS}/cpu0/cpufreq/scaling_cur_freq", root)
    if khz is not None:
        return khz * 1e3
    mhz = system_files.read_cpu_fields(root).get("cpu MHz")
    return round(float(mhz) * 1e6) if mhz else None


def read_cpu_temperature_c() -> float | None:
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    sensors = psutil.sensors_temperatures()
    readings = next((sensors[name] for name in TEMPERATURES if sensors.get(name)), [])
    return max((reading.current for reading in readings), default=None)


def torch_build() -> dict[str, Any]:
    """What only a process with torch knows, as it is set up at this moment."""
    import torch

    configuration = torch.__config__.show()
    backends = torch.backends
    libraries = {"mkl": backends.mkl, "openmp": backends.openmp, "mkldnn": backends.mkldnn}
    facts = {
        "version": str(torch.__version__),
        "git": (torch.version.git_version or "")[:12] or None,
        "cpu_capability": backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "libraries": [name for name, backend in libraries.items() if backend.is_available()],
        "blas": _search(r"BLAS_INFO=(\w+)", configuration),
        "onednn": _search(r"MKL-DNN v([\d.]+)", configuration),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.version.cuda,
        "rocm": torch.version.hip,
        "gpu": _read_gpu(),
    }
    return {key: value for key, value in facts.items() if value is not None}


def _read_gpu() -> dict[str, Any] | None:
    import torch

    if not torch.cuda.is_available():
        return _read_accelerator(torch)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    driver = system_files.read_text("proc/driver/nvidia/version") or ""
    count = torch.cuda.device_count()
    states = list_states(torch) or _list_memory(torch.cuda, count)
    return {
        "name": properties.name,
        "count": count,
        "memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": _search(r"Kernel Module\D*([\d.]+)", driver),
        "tf32_matmul": _read_tf32(torch.backends.cuda.matmul),
        "tf32_convolution": _read_tf32(torch.backends.cudnn),
        **({"states": states} if states else {}),
    }


def _read_accelerator(torch: Any) -> dict[str, Any] | None:
    """Of another kind than CUDA's; what torch does not know of it is left out."""
    accelerator = getattr(torch, "accelerator", None)  # since 2.6
    if accelerator is None or not accelerator.is_available():
        return None
    kind = str(accelerator.current_accelerator().type)
    module = torch.get_device_module(kind)
    name, properties, number = None, None, 0
    with suppress(Exception):
        number = accelerator.current_device_index()
    with suppress(Exception):
        name = module.get_device_name(number)
    with suppress(Exception):
        properties = module.get_device_properties(number)
    memory_bytes = getattr(properties, "total_memory", None)
    count = accelerator.device_count()
    states = _list_memory(accelerator, count) or _list_memory(module, count)
    return {
        "kind": kind,
        "name": str(name or getattr(properties, "name", None) or kind),
        "count": count,
        **({} if memory_bytes is None else {"memory_bytes": int(memory_bytes)}),
        **({"states": states} if states else {}),
    }


def _list_memory(module: Any, count: int) -> list[dict[str, Any]]:
    """What is free on each device, as torch says: all that is known of its state where no driver
    is asked. Empty where torch does not know either."""
    ask: Any = getattr(module, "get_memory_info", None) or getattr(module, "mem_get_info", None)
    states: list[dict[str, Any]] = []
    for number in range(count):
        with suppress(Exception):  # that there is nobody to ask is one of them
            free_bytes, total_bytes = ask(number)
            states.append({"free_bytes": int(free_bytes), "total_bytes": int(total_bytes)})
    return states if len(states) == count else []


def _read_tf32(backend: Any) -> bool | None:
    """torch has an older and a newer switch, and raises where a program mixed them."""
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:
        return None


def _search(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found[1] if found else None
