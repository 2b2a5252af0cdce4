"""Compiled code: kept, verified before it is loaded, and compiled again where it is not ours."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flopwatch.layers.kernels import int8_cpu, native


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache of compiled code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load = native.load  # a test may put another in its place
    load.cache_clear()
    yield tmp_path / "flopwatch"
    load.cache_clear()


SOURCE = 'extern "C" int answer() { return 42; }'


def test_compiled_once_and_kept(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HERE", fresh.parent)
    (fresh.parent / "small.cpp").write_text(SOURCE)
    library = native.load("small")
    if isinstance(library, str):
        pytest.skip(library)
    assert library.answer() == 42
    (kept,) = fresh.iterdir()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    native.load.cache_clear()
    monkeypatch.setattr(native, "_compile", None)  # which would fail
    assert not isinstance(native.load("small"), str)
    assert list(fresh.iterdir()) == [kept]


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("CXX", "no-such-compiler", "CXX is 'no-such-compiler', which is not there"),
        ("CXX", "false", "failed"),
        ("CXX", "true", "made nothing"),
        ("CXX", "/tmp", "which is not there"),
        ("CXX", "g++ 'x", "is not a command (No closing quotation)"),
        ("CXX", "''", "which is not there"),
        ("CXX", "env -i no-such-compiler", "failed"),
        ("FLOPWATCH_NATIVE", "off", "FLOPWATCH_NATIVE is off"),
    ],
)
def test_without_a_library_there_is_a_reason(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    said = native.load("int8")
    assert isinstance(said, str)
    assert reason in said
    assert not list(fresh.glob("*"))  # nothing half made is left


def test_code_that_does_not_compile_is_a_reason(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "HERE", fresh.parent)
    (fresh.parent / "broken.cpp").write_text("this is no C++")
    assert "failed" in str(native.load("broken"))


def test_no_compiler_at_all(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert native.load("int8") == "there is no C++ compiler"


def test_another_compiler_makes_another_library(fresh: Path) -> None:
    source, compiler = fresh.parent / "small.cpp", fresh.parent / "compiler"
    source.write_text(SOURCE)
    compiler.write_text("old")
    before = native._digest(source, [str(compiler)])
    assert native._digest(source, [str(compiler)]) == before
    (fresh.parent / "small_part.h").write_text("// its header")
    with_header = native._digest(source, [str(compiler)])
    assert with_header != before
    compiler.write_text("newer")
    assert native._digest(source, [str(compiler)]) != with_header


def test_a_compiler_without_openmp_will_do(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "HERE", fresh.parent)
    monkeypatch.setattr(native, "THREADS", "-fno-such-option")
    (fresh.parent / "small.cpp").write_text(SOURCE)
    library = native.load("small")
    if isinstance(library, str):
        pytest.skip(library)
    assert library.answer() == 42
    monkeypatch.setattr(native, "load", lambda name: library)
    assert "one thread" in str(int8_cpu.describe())


@pytest.fixture
def small(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library in the cache, which is forgotten by this process."""
    monkeypatch.setattr(native, "HERE", fresh.parent)
    (fresh.parent / "small.cpp").write_text(SOURCE)
    assert_loads()
    (kept,) = fresh.iterdir()
    return kept


def assert_loads() -> native.Library:
    native.load.cache_clear()
    library = native.load("small")
    if library == "there is no C++ compiler":
        pytest.skip(library)
    assert not isinstance(library, str), library
    assert library.answer() == 42
    return library


def assert_loads_from_elsewhere(reason: str) -> None:
    assert reason in assert_loads().note


def exchange(library: Path, content: bytes) -> None:
    """Another file in its place: this process runs what it has loaded, to its very end."""
    library.unlink()
    library.write_bytes(content)
    library.chmod(0o600)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_library_that_is_cut_short_is_compiled_again(small: Path, share: float) -> None:
    content = small.read_bytes()
    exchange(small, content[: int(share * len(content))])
    assert assert_loads().note == ""
    assert small.read_bytes() == content


def test_a_changed_library_is_compiled_again(small: Path) -> None:
    content = small.read_bytes()
    exchange(small, content[:-1] + bytes([content[-1] ^ 1]))
    assert_loads()
    assert small.read_bytes() == content
    named_wrongly = small.with_name(small.name[:-8] + "dbeef.so")
    small.rename(named_wrongly)
    assert_loads()
    assert [path.name for path in small.parent.iterdir()] == [small.name]


def test_a_foreign_library_is_not_loaded(small: Path) -> None:
    """A library that marks that its code ran when it is loaded."""
    content, mark = small.read_bytes(), small.parent / "mark"
    source = small.parent / "evil.cpp"
    source.write_text(
        "#include <stdio.h>\n"
        f'__attribute__((constructor)) void run() {{ fclose(fopen("{mark}", "w")); }}\n'
        'extern "C" int answer() { return 13; }'
    )
    command = [*native.find_compiler(), "-shared", "-fPIC", str(source), "-o", str(small)]
    subprocess.run(command, check=True)
    small.chmod(0o600)
    assert_loads()
    assert not mark.exists()
    assert small.read_bytes() == content


def test_a_link_to_a_library_is_not_followed(small: Path) -> None:
    elsewhere = small.parent.parent / "elsewhere.so"
    small.rename(elsewhere)
    small.symlink_to(elsewhere)
    assert_loads()
    assert not small.is_symlink()
    assert elsewhere.exists()


def test_a_library_that_others_may_write_is_compiled_again(small: Path) -> None:
    small.chmod(0o666)
    assert_loads()
    assert stat.S_IMODE(small.stat().st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_loaded(small: Path) -> None:
    os.chown(small, 12345, -1)
    assert_loads()
    assert small.stat().st_uid == 0
    os.chown(small.parent, 12345, -1)
    assert_loads_from_elsewhere("belongs to another user")


def test_a_folder_that_others_may_write_is_not_used(small: Path) -> None:
    small.parent.chmod(0o777)
    before = list(small.parent.iterdir())
    assert_loads_from_elsewhere("is open to other users (mode 777)")
    assert list(small.parent.iterdir()) == before


def test_a_link_to_a_folder_is_not_followed(small: Path) -> None:
    elsewhere = small.parent.with_name("elsewhere")
    small.parent.rename(elsewhere)
    small.parent.symlink_to(elsewhere)
    assert_loads_from_elsewhere("is a link")


def test_without_a_cache_nothing_is_left(
    small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.rmtree(small.parent)
    small.parent.write_text("a file where the folder would be")
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    library = assert_loads()
    assert "compiled code is not kept" in library.note
    assert not list(temporary.iterdir())
    monkeypatch.setattr(native, "load", lambda name: library)
    assert int8_cpu.describe() == library.note
    monkeypatch.undo()


def test_without_any_folder_there_is_a_reason(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(small.parent)
    small.parent.write_text("a file where the folder would be")
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    native.load.cache_clear()
    assert "cannot be kept or loaded" in str(native.load("small"))


def test_a_missing_compiler_is_not_remembered(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.unlink()
    with monkeypatch.context() as without:
        without.setenv("CXX", "no-such-compiler")
        native.load.cache_clear()
        assert isinstance(native.load("small"), str)
    assert_loads()
