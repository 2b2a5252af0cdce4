"""What the kernel knows about the machine, read from the files under /proc and /sys.

Every function takes the root of the file tree, so that tests can give it another machine's, and
returns None where it is not known. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from flopwatch import env

ROOT = Path("/")
CPUS = "sys/devices/system/cpu"
CLOCKS = "sys/devices/system/clocksource/clocksource0"

FLAGS = (
    # x86
    *("sse4_1", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_ne_convert"),
    *("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    # Arm
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "sme"),
)
"""Instruction sets on which the speed of a matmul depends, by the kernel's names."""

HYPERVISORS = (
    ("firecracker", "Firecracker"),
    ("amazon ec2", "Amazon EC2"),
    ("google compute engine", "Google Compute Engine"),
    ("google", "Google Compute Engine"),
    ("vmware", "VMware"),
    ("virtualbox", "VirtualBox"),
    ("innotek", "VirtualBox"),
    ("microsoft corporation", "Hyper-V"),
    ("parallels", "Parallels"),
    ("xen", "Xen"),
    ("qemu", "QEMU/KVM"),
    ("kvm", "KVM"),
    ("hyperv", "Hyper-V"),
)
"""Text that shows a hypervisor, in the maker's name or among the clock sources; first wins."""

MEMORY_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""A control group's limit and use, in version 2 and in version 1."""

CONTAINER_FILES = (
    (".dockerenv", "docker"),
    ("run/.containerenv", "podman"),
    ("run/systemd/container", "systemd"),
    (".singularity.d", "apptainer"),
)
CONTAINER_GROUPS = ("kubepods", "docker", "podman", "lxc")


def read_machine(root: Path = ROOT) -> dict[str, Any]:
    """The machine; the keys are documented in `environment`."""
    quota_cores = read_cpu_quota_cores(root)
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    limit_bytes, left_bytes = read_memory_limit(root)
    available_bytes = memory.available if left_bytes is None else min(memory.available, left_bytes)
    facts = {
        "machine_id": make_machine_id(root),
        "cpu_model": read_cpu_model(root),
        "architecture": platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": count_usable_cores(quota_cores),
        "affinity": read_affinity(),
        "cpu_quota_cores": quota_cores,
        "instruction_sets": read_cpu_flags(root),
        "governor": read_governor(root),
        "boost": read_boost(root),
        "smt": read_smt(root),
        "numa_nodes": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        "last_level_cache_bytes": read_last_level_cache_bytes(root),
        "memory_total_bytes": memory.total,
        "memory_available_bytes": available_bytes,
        "memory_limit_bytes": limit_bytes,
        "swap_total_bytes": swap.total,
        "swap_used_bytes": swap.used,
        "huge_pages": read_choice("sys/kernel/mm/transparent_hugepage/enabled", root),
        "hypervisor": read_hypervisor(root),
        "container": read_container(root),
        "clocksource": read_text(f"{CLOCKS}/current_clocksource", root),
    }
    return {key: value for key, value in facts.items() if value is not None}


def read_text(path: str, root: Path = ROOT) -> str | None:
    """A small file's content without the space around it; None where it cannot be read."""
    try:
        return (root / path).read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: str, root: Path = ROOT) -> int | None:
    """A file that holds one whole number, in bytes where it ends in K, M or G."""
    text = read_text(path, root) or ""
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    try:
        return int(text.rstrip("KMG")) * scale
    except ValueError:
        return None


def read_choice(path: str, root: Path = ROOT) -> str | None:
    """The chosen word of a file like ``always [madvise] never``."""
    words = (read_text(path, root) or "").split()
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def read_cpu_fields(root: Path = ROOT) -> dict[str, str]:
    """The first processor in /proc/cpuinfo."""
    first = (read_text("proc/cpuinfo", root) or "").split("\n\n", 1)[0]
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def read_cpu_model(root: Path = ROOT) -> str | None:
    """The CPU's name; on Arm the kernel only gives the numbers of maker and part."""
    fields = read_cpu_fields(root)
    if "model name" in fields:
        return fields["model name"]
    if "CPU part" in fields:
        return f"{fields.get('CPU implementer', 'unknown')} part {fields['CPU part']}"
    return platform.processor() or None if root == ROOT else None


def read_cpu_flags(root: Path = ROOT) -> list[str]:
    """Those of FLAGS that the CPU announces."""
    fields = read_cpu_fields(root)
    announced = (fields.get("flags") or fields.get("Features") or "").split()
    return [flag for flag in FLAGS if flag in announced]


def make_machine_id(root: Path = ROOT) -> str:
    """Distinguishes machines without naming them: a hash of the id that the system gave itself, or
    where it has none, of what the machine consists of."""
    own = read_text("etc/machine-id", root)
    parts = own or f"{read_cpu_model(root)} {psutil.cpu_count()} {psutil.virtual_memory().total}"
    return hashlib.sha256(f"flopwatch {parts}".encode()).hexdigest()[:12]


def count_usable_cores(quota_cores: float | None) -> int:
    """Cores that this process may keep busy: its affinity, within the control group's quota."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if has_affinity else psutil.cpu_count() or 1
    return cores if quota_cores is None else max(1, min(cores, math.floor(quota_cores)))


def read_affinity() -> str | None:
    """The cores that this process may run on, as ``taskset -c`` takes them; None: not known."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return format_cores(sorted(os.sched_getaffinity(0)))


def format_cores(cores: Sequence[int]) -> str:
    """
    >>> format_cores([0, 1, 2, 3, 8, 10, 11])
    '0-3,8,10-11'
    """
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def read_cpu_quota_cores(root: Path = ROOT) -> float | None:
    """The smallest quota among this process's control group and those above it."""
    quotas = []
    for group in find_control_groups("cpu", root):
        unified = (read_text("cpu.max", group) or "").split()
        quota, period = (
            unified
            if len(unified) == 2
            else [read_text(f"cpu.cfs_{part}_us", group) for part in ("quota", "period")]
        )
        # Without a quota version 2 says "max", version 1 says -1.
        if quota and period and quota.isdigit() and period.isdigit() and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def read_memory_limit(root: Path = ROOT) -> tuple[int | None, int | None]:
    """The tightest memory limit of the control groups in bytes, and what is left of it."""
    found = []
    total_bytes = psutil.virtual_memory().total
    for group in find_control_groups("memory", root):
        for limit_file, used_file in MEMORY_FILES:
            limit, used = read_number(limit_file, group), read_number(used_file, group)
            # Without a limit version 2 says "max", version 1 a number beyond any machine.
            if limit is not None and used is not None and limit < total_bytes:
                left = limit - used + _read_reclaimable_bytes(group)
                found.append((max(0, min(left, limit)), limit))
    left_bytes, limit_bytes = min(found, default=(None, None))
    return limit_bytes, left_bytes


def _read_reclaimable_bytes(group: Path) -> int:
    """File pages that count as used, but are given up as soon as memory is wanted."""
    lines = (line.split() for line in (read_text("memory.stat", group) or "").splitlines())
    counts = {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}
    return counts.get("total_inactive_file", counts.get("inactive_file", 0))


def find_control_groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of this process's control group, versions 1 and 2, and of all above it."""
    for line in (read_text("proc/self/cgroup", root) or "").splitlines():
        number, names, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0":
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif controller in names.split(","):
            mounts = [f"sys/fs/cgroup/{controller}", f"sys/fs/cgroup/{names}"]
        else:
            continue
        inner = Path(path.lstrip("/"))
        for mount in dict.fromkeys(mounts):
            # Inside a container the path is often that of the host, and only the top is seen.
            yield from (root / mount / part for part in (inner, *inner.parents))


def read_governor(root: Path = ROOT) -> str | None:
    """The frequency governors in use, joined by commas where the cores differ."""
    cores = (root / CPUS).glob("cpu[0-9]*/cpufreq")
    found = {read_text("scaling_governor", core) for core in cores}
    return ",".join(sorted(name for name in found if name)) or None


def read_boost(root: Path = ROOT) -> bool | None:
    """Whether cores may exceed their nominal frequency."""
    no_turbo = read_number(f"{CPUS}/intel_pstate/no_turbo", root)
    if no_turbo is not None:
        return no_turbo == 0
    boost = read_number(f"{CPUS}/cpufreq/boost", root)
    return None if boost is None else boost == 1


def read_smt(root: Path = ROOT) -> bool | None:
    """Whether logical cores share physical ones."""
    active = read_number(f"{CPUS}/smt/active", root)
    if active is not None:
        return active == 1
    siblings = read_text(f"{CPUS}/cpu0/topology/thread_siblings_list", root)
    return None if siblings is None else any(mark in siblings for mark in ",-")


def read_last_level_cache_bytes(root: Path = ROOT) -> int | None:
    """Size of one instance of the largest cache level that the first core sees."""
    found = []
    for folder in (root / CPUS / "cpu0/cache").glob("index[0-9]*"):
        level, size = read_number("level", folder), read_number("size", folder)
        if level is not None and size is not None and read_text("type", folder) != "Instruction":
            found.append((level, size))
    return max(found)[1] if found else None


def read_last_level_caches_bytes(root: Path = ROOT) -> int | None:
    """Size of all instances of that level together: large processors have several."""
    one_bytes = read_last_level_cache_bytes(root)
    if one_bytes is None:
        return None
    shared = set()
    for core in (root / CPUS).glob("cpu[0-9]*"):
        folders = list((core / "cache").glob("index[0-9]*"))
        if folders:
            last = max(folders, key=lambda folder: read_number("level", folder) or 0)
            shared.add(read_text("shared_cpu_list", last))
    return one_bytes * max(1, len(shared))


def read_hypervisor(root: Path = ROOT) -> str | None:
    """The kind of virtual machine; "unnamed" where only its existence is known; None: none."""
    flags = read_cpu_fields(root).get("flags")
    if flags is not None and "hypervisor" not in flags.split():
        return None  # an x86 would say so; the names below are also those of bare-metal clouds
    sources = (
        "sys/hypervisor/type",
        "sys/class/dmi/id/sys_vendor",
        "sys/class/dmi/id/product_name",
        f"{CLOCKS}/available_clocksource",
    )
    text = " ".join(read_text(source, root) or "" for source in sources).lower()
    named = next((name for mark, name in HYPERVISORS if mark in text), None)
    return named or (None if flags is None else "unnamed")


def read_container(root: Path = ROOT, environ: env.Environ = None) -> str | None:
    """The kind of container around this process; None: none that shows."""
    if env.read("KUBERNETES_SERVICE_HOST", environ):
        return "kubernetes"
    for file, name in CONTAINER_FILES:
        if (root / file).exists():
            return name
    groups = read_text("proc/self/cgroup", root) or ""
    return next((name for name in CONTAINER_GROUPS if name in groups), None)
