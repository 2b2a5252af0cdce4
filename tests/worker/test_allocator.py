"""The allocator's choice: exact for the variables, in real children for what is in force."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from flopwatch.worker import allocator

HAS_MALLOPT = hasattr(ctypes.CDLL(None), "mallopt")
JEMALLOC_CONF = allocator.PRELOADED[0].conf


@pytest.mark.parametrize(
    ("choice", "environ", "expected"),
    [
        ("default", {}, {}),
        ("default", {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}, {}),
        ("retain", {}, {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
        (
            "retain",
            {"GLIBC_TUNABLES": "glibc.malloc.check=1", "LD_PRELOAD": "libother.so"},
            {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.hugetlb=1"},
        ),
        ("retain", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, {}),
        (
            "retain",
            {"LD_PRELOAD": "libother.so:/usr/lib/libjemalloc.so.2"},
            {"MALLOC_CONF": JEMALLOC_CONF},
        ),
        (
            "retain",
            {"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "narenas:1"},
            {"MALLOC_CONF": f"{JEMALLOC_CONF},narenas:1"},
        ),
        (
            "retain",
            {"LD_PRELOAD": "libtcmalloc.so.4", "TCMALLOC_RELEASE_RATE": "2"},
            {"TCMALLOC_RELEASE_RATE": "2", "THP_MEM_ALLOC_ENABLE": "1"},
        ),
    ],
)
def test_variables_for_the_server(
    choice: allocator.Allocator, environ: dict[str, str], expected: dict[str, str]
) -> None:
    assert allocator.preload_environment(choice, environ) == expected


@pytest.mark.skipif(not HAS_MALLOPT, reason="needs glibc")
class TestGlibc:
    def test_defaults(self) -> None:
        assert run_child("default", "") == "glibc defaults"

    def test_defaults_that_the_user_changed(self) -> None:
        said = run_child("default", "", MALLOC_TOP_PAD_="4096", MALLOC_ARENA_MAX="1")

        assert said == "glibc, set by MALLOC_ARENA_MAX, MALLOC_TOP_PAD_"

    def test_retained_memory_is_used_again(self) -> None:
        """The second of two equal blocks must cost no page faults."""
        faults = {choice: run_child(choice, COUNT_FAULTS) for choice in ("default", "retain")}

        assert faults["default"].endswith(" faults: True")
        assert faults["retain"].startswith("glibc, memory retained")
        assert faults["retain"].endswith(" faults: False")

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("[always] madvise never", True),
            ("always [madvise] never", True),
            ("always madvise [never]", False),
            (None, False),
        ],
    )
    def test_huge_pages_are_claimed_where_the_kernel_grants_them(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path_factory: pytest.TempPathFactory,
        mode: str | None,
        expected: bool,
    ) -> None:
        file = tmp_path_factory.mktemp("thp") / "enabled"
        if mode is not None:
            file.write_text(mode)
        monkeypatch.setattr(allocator, "HUGE_PAGES_MODE", file)
        monkeypatch.setattr(allocator, "HUGE_PAGES_SINCE", (2, 0))
        monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")

        assert allocator._has_huge_pages() is expected

        monkeypatch.delenv("GLIBC_TUNABLES")
        assert allocator._has_huge_pages() is (mode is not None and "[always]" in mode)


class FakeLibrary:
    """A C library with only some functions."""

    def __init__(self, **functions: object) -> None:
        self.__dict__.update(functions)


@pytest.mark.parametrize(
    ("provider", "functions", "expected"),
    [
        ("ld-musl-x86_64.so.1", {}, "default: this libc has no mallopt"),
        ("libmimalloc.so.2", {"mallopt": None}, "default: malloc is that of libmimalloc.so.2"),
        ("", {"mallopt": None}, "default: malloc is that of an unknown library"),
        ("libc.so.6", {"mallopt": lambda *_: 0}, "default: glibc refused to retain memory"),
        ("libjemalloc.so.2", {}, "jemalloc, as preloaded"),
        ("libjemalloc.so.2", {"mallctl": lambda *_: 2}, "jemalloc, as preloaded"),
        ("libtcmalloc.so.4", {}, "tcmalloc, as preloaded"),
    ],
)
def test_what_cannot_be_done_is_said(
    monkeypatch: pytest.MonkeyPatch, provider: str, functions: dict[str, object], expected: str
) -> None:
    monkeypatch.setattr(allocator, "find_provider", lambda _: provider)
    monkeypatch.setattr("ctypes.CDLL", lambda _: FakeLibrary(**functions))

    assert allocator.apply("retain") == expected


def test_a_preloaded_jemalloc_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def mallctl(option: bytes, value: object, size: object, *_: object) -> int:
        assert option == b"opt.dirty_decay_ms"
        value._obj.value = -1  # type: ignore[attr-defined]
        return 0

    monkeypatch.setattr(allocator, "find_provider", lambda _: "libjemalloc.so.2")
    monkeypatch.setattr("ctypes.CDLL", lambda _: FakeLibrary(mallctl=mallctl))

    assert allocator.apply("retain") == "jemalloc, memory retained"


def test_a_preloaded_tcmalloc_goes_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "find_provider", lambda _: "libtcmalloc_minimal.so.4")
    for name, value in allocator.PRELOADED[1].variables.items():
        monkeypatch.setenv(name, value)

    assert allocator.apply("retain") == "tcmalloc, memory retained"


def test_the_provider_of_malloc_is_known() -> None:
    assert allocator.find_provider(ctypes.CDLL(None))
    assert allocator.find_provider(FakeLibrary()) == ""  # type: ignore[arg-type]


COUNT_FAULTS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
size = 64 * 2**20
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
    ctypes.memset(block, 1, size)
    libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(" faults:", faults() > 10)
"""


def run_child(choice: allocator.Allocator, program: str, **variables: str) -> str:
    """What `apply` says in a fresh process that was started with the right variables."""
    start = "from flopwatch.worker import allocator; import sys\n"
    start += "print(allocator.apply(sys.argv[1]), end='')\n"
    cleared = {n: v for n, v in os.environ.items() if n not in allocator.GLIBC_VARIABLES}
    child = subprocess.run(
        [sys.executable, "-c", start + program, choice],
        env={**cleared, **variables, **allocator.preload_environment(choice, variables)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return child.stdout.strip()
