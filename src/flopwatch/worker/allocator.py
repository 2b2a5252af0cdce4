"""The memory allocator of a worker: as the system has it, or keeping what is freed.

On a CPU a tensor of megabytes usually comes from memory that is mapped afresh and given back when
the tensor dies. Each fresh page costs a page fault, and the faults can cost more than the
arithmetic: here (glibc 2.36, one thread) a clone of 48 MB takes 32 ms, of which copying is 5 ms.
A comparison of layers should compare the arithmetic. So ``--allocator retain`` asks glibc by
`mallopt` never to map a block on its own and never to give memory back, and the tunable
``glibc.malloc.hugetlb=1`` (glibc 2.35 or later) asks for huge pages.

Measured here, medians of 4 fresh processes each, interleaved, after warm-up:

                                clone 48 MB   GELU 36 MB   training step   peak memory
    glibc, defaults                 32.6 ms      32.1 ms         70.8 ms        654 MB
    glibc, retain                    5.0 ms       8.6 ms         71.0 ms        867 MB
    jemalloc 5.3, kept for ever      4.6 ms       8.5 ms         69.4 ms        668 MB
    tcmalloc 2.10, kept for ever     4.7 ms       8.6 ms         68.7 ms        658 MB

Once warm, the three that keep memory are alike, so none is preloaded: flopwatch measures with the
C library that the user's own training would use. An allocator that the user preloads himself is
found out, asked to keep memory too, and named in the record.

What is left out, and why:

- torch's own ``THP_MEM_ALLOC_ENABLE=1`` is not set with glibc. It aligns blocks to 2 MB, and
  glibc does not find a freed block again for such a request until neighbours have grown together:
  the first 17 clones all took fresh memory (up to 150 ms each) against 7 to 9 without.
- Those 7 to 9 are the price of glibc: a few copies of the largest block are taken before the heap
  settles, so peak memory reads higher than with the defaults, and warm-up takes some calls more.
- ``M_TOP_PAD`` and a single arena (``M_ARENA_MAX``) changed nothing measurable.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flopwatch import env
from flopwatch.settings import Allocator

# glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4

RETAIN = {
    M_MMAP_MAX: 0,  # every block from the heap; M_MMAP_THRESHOLD would stop at 32 MB
    M_TRIM_THRESHOLD: -1,  # as an unsigned number the largest: the heap never shrinks
}

GLIBC_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Through these the user may have changed glibc's malloc himself."""

HUGE_PAGES_TUNABLE = "glibc.malloc.hugetlb"
HUGE_PAGES_SINCE = (2, 35)
HUGE_PAGES_MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preloaded:
    """An allocator that users preload, and the variables that make it keep memory."""

    name: str
    conf: str = ""
    """For MALLOC_CONF, in front of the user's own settings, which win."""
    variables: Mapping[str, str] = field(default_factory=dict)


PRELOADED = (
    Preloaded(
        name="jemalloc",
        # oversize_threshold:0 since jemalloc gives large blocks back at once otherwise.
        conf="background_thread:false,dirty_decay_ms:-1,muzzy_decay_ms:-1,oversize_threshold:0,"
        "thp:always,metadata_thp:auto",
    ),
    Preloaded(
        name="tcmalloc",
        variables={"TCMALLOC_RELEASE_RATE": "0", "THP_MEM_ALLOC_ENABLE": "1"},
    ),
)


def preload_environment(allocator: Allocator, environ: env.Environ = None) -> dict[str, str]:
    """The variables that the server must be started with; what the user has set himself wins."""
    if allocator == "default":
        return {}
    preloaded = find_preloaded(env.read("LD_PRELOAD", environ))
    if preloaded is None:
        return _tune_glibc(env.read("GLIBC_TUNABLES", environ))
    wanted = {name: env.read(name, environ) or value for name, value in preloaded.variables.items()}
    if preloaded.conf:
        # jemalloc takes the last of contradicting settings.
        settings = [preloaded.conf, env.read("MALLOC_CONF", environ)]
        wanted["MALLOC_CONF"] = ",".join(filter(None, settings))
    return wanted


def find_preloaded(libraries: str) -> Preloaded | None:
    """The known allocator among file names, such as the value of LD_PRELOAD."""
    return next((known for known in PRELOADED if known.name in libraries), None)


def apply(allocator: Allocator) -> str:
    """Put the choice in force in this process and say, for the record, what is in force."""
    library = ctypes.CDLL(None)
    provider = find_provider(library)
    preloaded = find_preloaded(provider)
    if preloaded is not None:
        return _describe_preloaded(library, preloaded)
    if not hasattr(library, "mallopt"):
        return "default: this libc has no mallopt"
    if not provider.startswith("libc"):
        return f"default: malloc is that of {provider or 'an unknown library'}"
    if allocator == "default":
        tuned = [name for name in GLIBC_VARIABLES if env.read(name)]
        return f"glibc, set by {', '.join(tuned)}" if tuned else "glibc defaults"
    if not all(library.mallopt(option, value) for option, value in RETAIN.items()):
        return "default: glibc refused to retain memory"
    return "glibc, memory retained" + (", huge pages" if _has_huge_pages() else "")


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file_name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def find_provider(library: ctypes.CDLL) -> str:
    """File name of the library whose malloc this process uses: the linker knows, and a preloaded
    one need not be in LD_PRELOAD (/etc/ld.so.preload). Empty where it is not known."""
    try:
        info = _DlInfo()
        found = library.dladdr(ctypes.cast(library.malloc, ctypes.c_void_p), ctypes.byref(info))
    except AttributeError:
        return ""
    return os.path.basename(os.fsdecode(info.file_name)) if found and info.file_name else ""


def _tune_glibc(tunables: str) -> dict[str, str]:
    if HUGE_PAGES_TUNABLE in tunables:
        return {}
    return {"GLIBC_TUNABLES": ":".join(filter(None, [tunables, f"{HUGE_PAGES_TUNABLE}=1"]))}


def _has_huge_pages() -> bool:
    """Whether this process's heap asks for huge pages and the kernel grants them."""
    try:
        mode = HUGE_PAGES_MODE.read_text()
        version = tuple(int(part) for part in platform.libc_ver()[1].split("."))
    except (OSError, ValueError):
        return False
    if "[always]" in mode:
        return True
    asked = f"{HUGE_PAGES_TUNABLE}=1" in env.read("GLIBC_TUNABLES")
    return asked and "[madvise]" in mode and version >= HUGE_PAGES_SINCE


def _describe_preloaded(library: ctypes.CDLL, preloaded: Preloaded) -> str:
    # These are configured when they are loaded, which has happened.
    if preloaded.name == "jemalloc":
        retained = _read_jemalloc(library, b"opt.dirty_decay_ms") == -1
    else:
        retained = all(env.read(n) == v for n, v in preloaded.variables.items())
    return f"{preloaded.name}, " + ("memory retained" if retained else "as preloaded")


def _read_jemalloc(library: ctypes.CDLL, option: bytes) -> int | None:
    value, size = ctypes.c_ssize_t(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_ssize_t))
    try:
        failed = library.mallctl(option, ctypes.byref(value), ctypes.byref(size), None, 0)
    except AttributeError:
        return None  # built with a prefix, je_mallctl
    return None if failed else value.value
