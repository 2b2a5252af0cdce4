"""The results file: nothing stored is ever lost, whoever is killed, and whatever is full."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from flopwatch.errors import DiskFull, StoreError
from flopwatch.records import store as store_module
from flopwatch.records.record import encode
from flopwatch.records.store import Contents, Store, read
from tests.conftest import make_record

SOURCE = Path(store_module.__file__).parents[2]
PROJECT = Path(__file__).parents[2]
LINE = encode(make_record()) + b"\n"

CHILD = """
import os, signal, sys
from pathlib import Path
from flopwatch.errors import StoreError
from flopwatch.records.store import Store
from tests.conftest import make_record
path = Path(sys.argv[1])
"""
"""What every child process begins with."""


def start(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{PROJECT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def say(child: subprocess.Popen[str], text: str = "") -> None:
    assert child.stdin is not None
    child.stdin.write(text + "\n")
    child.stdin.flush()


def hear(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def finish(child: subprocess.Popen[str]) -> str:
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return output.strip()


def ids(contents: Contents) -> list[str]:
    return [record.case_id for record in contents.records]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.jsonl"


# Writing


def test_records_come_back_in_order(path: Path) -> None:
    records = [make_record(case_id=str(i)) for i in range(3)]
    for record in records:  # opening again appends
        with Store.open(path) as store:
            store.append(record)
            assert store.repaired is None
    assert read(path) == Contents(records=records, warnings=[])
    assert path.read_bytes() == b"".join(encode(record) + b"\n" for record in records)


def test_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "results.jsonl"
    with Store.open(path) as store:
        store.append(make_record())
    assert len(read(path).records) == 1


def test_a_record_and_the_new_file_are_on_the_disk_when_append_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, int]] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append((stat.S_ISDIR(status.st_mode), status.st_size))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with Store.open(path) as store:
        assert [is_folder for is_folder, _ in synced] == [True]
        store.append(make_record())
        assert synced[1:] == [(False, len(LINE))]
    Store.open(path).close()
    assert len(synced) == 2  # the folder needs it only once


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path in [
        tmp_path / "file" / "results.jsonl",
        tmp_path / "folder",
        tmp_path / "pipe",
        tmp_path / ("x" * 300),
        Path("/proc/results.jsonl"),
        Path("/dev/null"),
    ]:
        with pytest.raises(StoreError, match=r"cannot be written \(.+\); choose another file"):
            Store.open(path)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_a_record_that_could_not_be_read_back_is_refused(path: Path, bad: float) -> None:
    with Store.open(path) as store:
        with pytest.raises(StoreError, match="record of demo/a was not stored"):
            store.append(make_record(samples_ns={"call": [bad] * 20}))
        store.append(make_record())
    assert len(read(path).records) == 1


def test_a_record_longer_than_the_limit_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_LINE_BYTES", len(LINE))
    with Store.open(path) as store:
        store.append(make_record())
        with pytest.raises(StoreError, match="longer than .* take fewer samples"):
            store.append(make_record(case_id="longer"))
    assert len(read(path).records) == 1


def test_a_deleted_file_is_noticed(path: Path) -> None:
    with Store.open(path) as store:
        path.unlink()
        with pytest.raises(StoreError, match="was deleted during the run"):
            store.append(make_record())


# Several runs, and runs that are killed


def test_lines_of_concurrent_runs_never_interleave(path: Path) -> None:
    code = """
many = [1.5] * 20000
with Store.open(path) as store:
    print("ready", flush=True)
    input()
    for i in range(15):
        store.append(make_record(
            run_id=sys.argv[2], case_id=str(i), samples_ns={"call": many}, rounds=[*range(20000)],
            calls_per_sample=[1] * 20000,
        ))
    print(store.repaired)
"""
    children = [start(code, path, run) for run in range(4)]
    for child in children:
        assert hear(child) == "ready"
    for child in children:
        say(child)
    assert [finish(child) for child in children] == ["None"] * 4
    contents = read(path)
    assert contents.warnings == []
    for run in range(4):
        mine = [record.case_id for record in contents.records if record.run_id == str(run)]
        assert mine == [str(i) for i in range(15)]


def test_a_line_that_another_run_is_writing_is_not_torn(path: Path) -> None:
    """The other one is stopped in the middle of a line until we are about to wait for it."""
    code = """
import fcntl
real_flock = fcntl.flock
def flock(descriptor, operation):
    if operation & fcntl.LOCK_EX:
        print("locking", flush=True)
    real_flock(descriptor, operation)
fcntl.flock = flock
with Store.open(path) as store:
    store.append(make_record(case_id="second"))
    print(store.repaired)
"""
    line = encode(make_record(case_id="first")) + b"\n"
    with path.open("ab", buffering=0) as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        writer.write(line[:100])
        child = start(code, path)
        assert hear(child) == "locking"
        writer.write(line[100:])
        fcntl.flock(writer, fcntl.LOCK_UN)
        assert finish(child).splitlines()[-1] == "None"
    assert ids(read(path)) == ["first", "second"]


@pytest.mark.parametrize("num_records", [1, 7, 30])
def test_a_killed_run_loses_nothing_that_append_returned_for(path: Path, num_records: int) -> None:
    child = start(
        """
with Store.open(path) as store:
    for i in range(1_000_000):
        store.append(make_record(case_id=str(i)))
        print(i, flush=True)
""",
        path,
    )
    for _ in range(num_records):
        hear(child)
    child.send_signal(signal.SIGKILL)
    # Not communicate, which would miss the lines that were read ahead.
    with child:
        assert child.stdout is not None
        rest = child.stdout.read().split()
    num_returned = num_records + len(rest)
    with Store.open(path) as store:
        store.append(make_record(case_id="after"))
    stored = ids(read(path))
    assert stored[-1] == "after"
    assert stored[:-1] == [str(i) for i in range(len(stored) - 1)]
    # One may be stored whose return the child did not live to tell; and the last thing it told
    # may be cut off in the middle.
    assert num_returned - 1 <= len(stored) - 1 <= num_returned + 1


def test_a_run_killed_in_the_middle_of_a_line_loses_only_that_line(path: Path) -> None:
    child = start(
        """
with Store.open(path) as store:
    store.append(make_record(case_id="whole"))
    real_write = os.write
    def write(descriptor, data):
        real_write(descriptor, data[:100])
        os.kill(os.getpid(), signal.SIGKILL)
    os.write = write
    store.append(make_record(case_id="torn"))
""",
        path,
    )
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert not path.read_bytes().endswith(b"\n")
    contents = read(path)
    assert ids(contents) == ["whole"]
    assert len(contents.warnings) == 1
    with Store.open(path) as store:  # a dead run's lock is nobody's
        assert "its 100 bytes were moved" in str(store.repaired)
    assert ids(read(path)) == ["whole"]


# No room


FILL = """
with Store.open(path) as store:
    stored = 0
    try:
        while stored < 10_000:
            store.append(make_record(case_id=str(stored)))
            stored += 1
    except StoreError as error:
        print(stored, type(error).__name__, error)
"""


def test_a_full_disk_tears_nothing(tmp_path: Path) -> None:
    run = 'exec "$0" "$@"'
    mounted = ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=64k none {tmp_path} && {run}"]
    if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this system lets us mount no file system of our own")
    check = 'print(path.read_bytes().endswith(b"}\\n"), path.read_bytes().count(b"\\n"))'
    child = subprocess.run(
        [*mounted, sys.executable, "-c", CHILD + FILL + check, str(tmp_path / "results.jsonl")],
        env={**os.environ, "PYTHONPATH": f"{SOURCE}:{PROJECT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    message, state = child.stdout.strip().splitlines()
    num_stored, kind, sentence = message.split(maxsplit=2)
    assert kind == "DiskFull"
    assert "disk is full" in sentence
    assert "stored before is safe" in sentence
    assert "free some space" in sentence
    assert int(num_stored) > 10
    assert state == f"True {num_stored}"


def test_the_file_size_limit_tears_nothing(path: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
    num_stored, kind, sentence = finish(start(limit + FILL, path)).split(maxsplit=2)
    assert kind == "StoreError"
    assert "ulimit -f" in sentence
    assert int(num_stored) > 10
    assert ids(read(path)) == [str(i) for i in range(int(num_stored))]
    assert path.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    ("number", "kind", "sentence"),
    [
        (errno.ENOSPC, DiskFull, "the disk is full"),
        (errno.EDQUOT, DiskFull, "quota"),
        (errno.EIO, DiskFull, "the disk reports an error"),
        (errno.EFBIG, StoreError, "ulimit"),
        (errno.EROFS, StoreError, "Read-only file system"),
    ],
)
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failed_write_is_undone(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[StoreError],
    sentence: str,
    call: str,
) -> None:
    real_write = os.write
    calls: list[int] = []

    def half_write(descriptor: int, data: bytes) -> int:
        calls.append(descriptor)
        if len(calls) > 1:
            raise OSError(number, os.strerror(number))
        return real_write(descriptor, data[: len(data) // 2])

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            raise OSError(number, os.strerror(number))

    with Store.open(path) as store:
        store.append(make_record(case_id="before"))
        size = path.stat().st_size
        with monkeypatch.context() as patch:
            patch.setattr(os, call, half_write if call == "write" else fsync)
            with pytest.raises(kind, match=sentence) as caught:
                store.append(make_record(case_id="lost"))
            assert len(calls) == 2
        assert type(caught.value) is kind
        assert "stored before is safe" in str(caught.value)
        assert path.stat().st_size == size
        store.append(make_record(case_id="after"))
        assert store.repaired is None
    assert ids(read(path)) == ["before", "after"]


def test_ctrl_c_in_the_middle_of_a_line_is_undone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.write

    def write(descriptor: int, data: bytes) -> int:
        real_write(descriptor, data[:50])
        raise KeyboardInterrupt

    with Store.open(path) as store:
        store.append(make_record(case_id="before"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            with pytest.raises(KeyboardInterrupt):
                store.append(make_record())
    assert path.read_bytes() == encode(make_record(case_id="before")) + b"\n"


def test_a_file_system_without_locks_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StoreError, match="cannot be locked.*write to a local disk"):
        Store.open(path)


def test_damage_is_told_once_and_in_the_right_number(path: Path) -> None:
    path.write_bytes(b'{"schema":1}\n')
    with pytest.raises(StoreError) as found:
        read(path)
    assert str(found.value).count("not a record") == 1
    twice = LINE.replace(b'"rounds":[0,1,', b'"rounds":[0,0,', 1)
    path.write_bytes(LINE + twice)
    with pytest.raises(StoreError) as found:
        read(path)
    assert str(found.value) == (
        f"{path}: line 2 is corrupt: it has two samples of one round; the other record is intact, "
        "and --skip-corrupt reads it"
    )


def test_waiting_for_a_lock_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SAY_LOCKED_S", 0.0)
    path, said = tmp_path / "out.jsonl", []
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def release(sentence: str) -> None:
            said.append(sentence)
            fcntl.flock(other, fcntl.LOCK_UN)

        Store.open(path, say=release).close()
    assert said == [f"waiting for the lock on {path}, which another run holds"]


def test_waiting_for_a_lock_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LOCKED_LIMIT_S", 0.0)
    path = tmp_path / "out.jsonl"
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="locked by another process for 0 s; .*end that"):
            Store.open(path)


def test_waiting_for_a_lock_can_be_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Store.open(path) as store, path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)

        def interrupt() -> AbstractContextManager[None]:
            raise KeyboardInterrupt

        store.waiting = interrupt
        with pytest.raises(KeyboardInterrupt):
            store.append(make_record())
