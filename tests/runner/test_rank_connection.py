"""Ranks under torchrun obey their own job and nobody else."""

from __future__ import annotations

import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from flopwatch.errors import UsageError, WorkerError
from flopwatch.runner import torchrun_launcher
from flopwatch.runner.rank_connection import KEY_FILE, LONGEST_BYTES, STRANGER_BYTES, Line, find_key
from flopwatch.runner.rank_processes import find_free_port
from flopwatch.runner.torchrun_launcher import RankServer, RemoteRank, TorchrunRanks, connect
from flopwatch.runner.worker_processes import poll_readable
from flopwatch.settings import Settings
from flopwatch.worker.messages import (
    Call,
    End,
    Hello,
    RankEnded,
    RankMessage,
    RankPlace,
    Start,
    Stop,
    Welcome,
    encode,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
EVIL = Start(job=1, request=Call(settings=Settings(), function="measure_speed", arguments={}))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "flopwatch"


def make_place(port: int, rank: int = 0) -> RankPlace:
    return RankPlace(
        rank=rank,
        ranks=2,
        local_rank=rank,
        local_ranks=2,
        node_ranks=2,
        address="127.0.0.1",
        port=port,
    )


@pytest.fixture
def place() -> RankPlace:
    return make_place(find_free_port())


def make_connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


def receive(line: Line) -> list[RankMessage]:
    poll_readable([line.fileno()], 5.0)
    return line.receive()


class Tap:
    """Between a runner and a rank: sees every line, and passes on what a test wants."""

    def __init__(self, key: bytes = KEY, rank_key: bytes = KEY) -> None:
        runner_end, self.to_runner = make_connection()
        rank_end, self.to_rank = make_connection()
        self.runner, self.rank = Line(runner_end, key, "runner"), Line(rank_end, rank_key, "rank")
        runner_nonce, rank_nonce = self.to_runner.recv(99), self.to_rank.recv(99)
        self.to_runner.sendall(rank_nonce)
        self.to_rank.sendall(runner_nonce)
        assert receive(self.runner) == receive(self.rank) == []

    def take(self, sender: Line, message: RankMessage) -> bytes:
        """The signed line."""
        sender.send(message)
        return (self.to_runner if sender is self.runner else self.to_rank).recv(1 << 16)

    def close(self) -> None:
        self.runner.close()
        self.rank.close()
        self.to_runner.close()
        self.to_rank.close()


@pytest.fixture
def tap() -> Iterator[Tap]:
    with closing(Tap()) as made:
        yield made


def test_signed_messages_arrive_in_both_directions(tap: Tap) -> None:
    line = tap.take(tap.runner, EVIL) + tap.take(tap.runner, End())
    for at in range(0, len(line), 7):  # in pieces
        tap.to_rank.sendall(line[at : at + 7])
    received = receive(tap.rank)
    assert received == [EVIL, End()]
    tap.to_runner.sendall(tap.take(tap.rank, RankEnded(job=1)))
    assert receive(tap.runner) == [RankEnded(job=1)]
    assert tap.runner.is_open
    assert tap.rank.is_open


def test_what_is_not_signed_for_this_place_ends_a_connection(tap: Tap) -> None:
    first, second = tap.take(tap.runner, Stop(job=1)), tap.take(tap.runner, Stop(job=2))
    of_rank = tap.take(tap.rank, Stop(job=1))
    with closing(Tap()) as other, closing(Tap(OTHER_KEY)) as foreign:
        wrong = {
            "unsigned": encode(EVIL),
            "changed": first.replace(b'"job":1', b'"job":7'),
            "out of order": second,
            "reflected": of_rank,
            "of another connection": other.take(other.runner, Stop(job=1)),
            "of another key": foreign.take(foreign.runner, Stop(job=1)),
            "only a signature": first[:64] + b"\n",
            "cut": first[:40] + b"\n",
            "empty": b"\n",
            "not ASCII": b"\xff" * 80 + b"\n",
        }
    for what, line in wrong.items():
        with closing(Tap()) as fresh:
            # The same connection as far as the receiver can see.
            fresh.rank._key, fresh.rank._sent = tap.rank._key, 0
            fresh.to_rank.sendall(line)
            assert receive(fresh.rank) == [], what
            assert not fresh.rank.is_open, what
            assert fresh.rank.was_forged, what
    tap.to_rank.sendall(first)
    assert receive(tap.rank) == [Stop(job=1)]
    tap.to_rank.sendall(first)  # replayed
    assert receive(tap.rank) == []
    assert not tap.rank.is_open


def test_a_cut_message_is_never_taken_for_one(tap: Tap) -> None:
    line = tap.take(tap.runner, Stop(job=1))
    tap.to_rank.sendall(line[:-1])
    assert receive(tap.rank) == []
    assert tap.rank.is_open
    tap.to_rank.shutdown(socket.SHUT_WR)
    assert receive(tap.rank) == []
    assert not tap.rank.is_open


def test_an_endless_message_is_not_kept(tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    tap.to_rank.sendall(b"x" * (STRANGER_BYTES + 1))
    receive(tap.rank)
    assert not tap.rank.is_open
    # From a sender who has signed something, more is taken, but not without end.
    module = "flopwatch.runner.rank_connection.LONGEST_BYTES"
    assert LONGEST_BYTES > 1 << 20
    monkeypatch.setattr(module, 100_000)
    with closing(Tap()) as known:
        known.to_rank.sendall(known.take(known.runner, Stop(job=1)))
        assert receive(known.rank) == [Stop(job=1)]
        known.to_rank.sendall(b"x" * 90_000)
        receive(known.rank)
        assert known.rank.is_open
        known.to_rank.sendall(b"x" * 20_000)
        receive(known.rank)
        assert not known.rank.is_open


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"n" * 32 + b"\n" + b"s" * 64 + encode(Hello(place=make_place(1, rank=1))),
        encode(EVIL) * 2,
        b"\0" * 100_000,
    ],
    ids=["silent", "empty line", "hello", "command", "flood"],
)
def test_strangers_do_not_keep_a_job_from_starting(place: RankPlace, text: bytes) -> None:
    strangers: list[socket.socket] = []
    with ThreadPoolExecutor() as pool:
        hosting = pool.submit(TorchrunRanks, place, 30.0)
        while len(strangers) < 5:
            with suppress(OSError):
                stranger = socket.create_connection(("127.0.0.1", place.port), timeout=5.0)
                strangers.append(stranger)
                stranger.sendall(text)
        began_s = time.monotonic()
        line = connect(replace(place, rank=1, local_rank=1), join_s=30.0)
        ranks = hosting.result()
    assert time.monotonic() - began_s < torchrun_launcher.HANDSHAKE_S  # nobody was waited for
    ranks.close()
    poll_readable([line.fileno()], 5.0)
    assert line.receive() == [End()]
    line.close()
    for stranger in strangers:
        stranger.close()


def test_who_listens_before_rank_0_cannot_command_a_rank(
    place: RankPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchrun_launcher, "HANDSHAKE_S", 0.3)
    orders = [b"n" * 32 + b"\n", encode(Welcome()), encode(EVIL)]
    with socket.create_server(("127.0.0.1", place.port)) as listener:
        listener.settimeout(0.1)
        kept: list[socket.socket] = []
        over = threading.Event()

        def command() -> None:
            while not over.is_set():
                with suppress(OSError):
                    kept.append(listener.accept()[0])
                    kept[-1].sendall(b"".join(orders))
                    kept[-1].sendall(kept[-1].recv(1 << 16))  # and what it says itself

        thread = threading.Thread(target=command)
        thread.start()
        with pytest.raises(
            WorkerError, match=r"not of this job, or has another key\); where nodes"
        ):
            connect(replace(place, rank=1, local_rank=1), join_s=1.0)
        with pytest.raises(UsageError, match="cannot be listened on"):
            TorchrunRanks(place)
        over.set()
        thread.join()
    for connection in kept:
        connection.close()


def test_ranks_with_other_keys_do_not_meet_and_say_why(
    place: RankPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOPWATCH_SECRET", "the secret of rank 0")
    with ThreadPoolExecutor() as pool:
        hosting = pool.submit(TorchrunRanks, place, 2.0)
        while not is_listening(place.port):
            time.sleep(0.02)
        monkeypatch.setenv("FLOPWATCH_SECRET", "another one, of rank 1")
        advice = "set FLOPWATCH_SECRET on all of them to the same text"
        with pytest.raises(WorkerError, match=f"has another key.*{advice}"):
            connect(replace(place, rank=1, local_rank=1), join_s=1.0)
        with pytest.raises(WorkerError, match=f"rank 1 of 2 .* has another key; .*{advice}"):
            hosting.result()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_key_is_made_once_and_is_private(cache: Path, place: RankPlace) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: find_key(place), range(32)))
    assert len(keys) == 1
    (file,) = cache.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert find_key(place) in keys
    assert find_key(replace(place, ranks=3)) not in keys  # another job
    named = {"FLOPWATCH_SECRET": "sixteen or more characters"}
    assert find_key(place, named) != find_key(place, {**named, "TORCHELASTIC_RUN_ID": "other"})
    with pytest.raises(UsageError, match="shorter than 16 characters"):
        find_key(place, {"FLOPWATCH_SECRET": "short"})


def test_a_key_that_others_may_know_is_not_used(cache: Path, place: RankPlace) -> None:
    find_key(place)
    file = cache / KEY_FILE
    file.chmod(0o644)
    with pytest.raises(
        UsageError, match=f"{KEY_FILE} that is open to other users .mode 644.*SECRET"
    ):
        find_key(place)
    file.rename(cache / "elsewhere")
    file.symlink_to(cache / "elsewhere")
    with pytest.raises(UsageError, match="cannot be opened"):
        find_key(place)
    file.unlink()
    file.write_bytes(b"")
    file.chmod(0o600)
    with pytest.raises(UsageError, match="is not a key"):
        find_key(place)


def test_without_a_home_torchrun_s_folder_will_do_on_one_node(
    cache: Path, place: RankPlace
) -> None:
    cache.write_text("a file where the folder would be")
    own = cache.parent / "torchelastic" / "attempt_0"
    (own / "1").mkdir(parents=True)
    own.chmod(0o755)
    variables = {
        "XDG_CACHE_HOME": str(cache.parent),
        "TORCHELASTIC_ERROR_FILE": str(own / "1" / "error.json"),
    }
    assert find_key(place, variables) == find_key(place, variables)
    assert (own / KEY_FILE).exists()
    with pytest.raises(UsageError, match="set FLOPWATCH_SECRET to a text that only you know"):
        find_key(replace(place, ranks=4), variables)  # of two nodes


class FrozenServer:
    """A launcher whose workers do not answer."""

    def __init__(self) -> None:
        self.stack = ""

    def request_stack(self) -> None: ...

    def read_stack(self) -> str:
        return self.stack


def test_the_stack_of_a_rank_elsewhere_is_read(tap: Tap) -> None:
    """Rank 1 of job 1 does not go on: is its worker stopped, or somewhere?"""
    server = RankServer(tap.rank, 1, lambda request: pytest.fail("nothing to start"))
    server._worker, server._job = FrozenServer(), 1  # type: ignore[assignment]
    remote = RemoteRank(1, tap.runner, 1)
    for stack in ("", 'File "job.py", line 3 in work'):
        server._worker.stack = stack  # type: ignore[union-attr]
        remote.request_stack()
        tap.to_rank.sendall(tap.to_runner.recv(1 << 16))
        assert [server._send_stack() for _ in receive(tap.rank)] == [None]
        tap.to_runner.sendall(tap.to_rank.recv(1 << 16))
        assert remote.read_stack() == stack


def test_a_rank_elsewhere_that_is_stopped_itself_does_not_answer(
    tap: Tap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchrun_launcher, "STACK_S", 0.1)
    remote = RemoteRank(1, tap.runner, 1)
    remote.request_stack()
    assert remote.read_stack() == ""
    remote.request_stack()
    tap.to_runner.close()
    assert remote.read_stack() is None  # it is gone
    assert remote.has_ended()
