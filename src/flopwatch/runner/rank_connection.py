"""Connections between the flopwatch processes of a job, on which only that job is heard.

A rank starts the processes that it is told to start. Whoever connects to the port of rank 0, or
listens there before rank 0 does, must not be able to tell it anything. So both sides sign every
message with a key that only processes of this user have:

    FLOPWATCH_SECRET   a text, the same for all ranks; or else
    rank.key           random bytes in the cache folder, readable by this user only, which the first
                       rank that needs it makes. Ranks of one node share it without any setup, and
                       so do nodes that share a home.

torchrun's own store cannot pass a key on: whoever reaches its port can read it.

    both      a nonce
    rank      Hello, signed
    runner    Welcome, signed; from then on messages of both, signed

The key of a connection is made of that key, the job (its run id, ranks and port) and both nonces.
A signature is the HMAC-SHA256 of the sender (runner or rank), the number of its message, and the
message. So a message counts once, at its place, in one connection, and not for its own sender. It
is decoded only if its signature is right. Messages are signed but not encrypted.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from pathlib import Path
from typing import Literal

from flopwatch import env
from flopwatch.errors import UsageError
from flopwatch.private_files import NotPrivate, open_folder, read_file, write_file
from flopwatch.runner.worker_processes import poll_readable
from flopwatch.worker.messages import BrokenMessage, LineReader, RankMessage, RankPlace, encode

KEY_FILE = "rank.key"
KEY_BYTES = 32
SHORTEST_SECRET = 16
NONCE_LENGTH = 32
SIGNATURE_LENGTH = 64
STRANGER_BYTES = 4096
"""The longest message of a sender who has not signed one yet."""
LONGEST_BYTES = 64 << 20
SEND_S = 10.0
"""The other side is taken for lost when it does not take a message for so long."""
KEEP_ALIVE = {(socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1}
"""The loss of a node is noticed after half a minute."""
if hasattr(socket, "TCP_KEEPIDLE"):
    KEEP_ALIVE |= {
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 10,
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 5,
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 3,
    }

Side = Literal["runner", "rank"]


def find_key(place: RankPlace, environ: env.Environ = None) -> bytes:
    """Of one job, on any of its ranks."""
    secret = env.read(env.SECRET, environ).encode()
    if secret and len(secret) < SHORTEST_SECRET:
        raise UsageError(
            f"{env.SECRET} is shorter than {SHORTEST_SECRET} characters and can be guessed; set it "
            "to a longer text, the same for all ranks"
        )
    run_id = env.read("TORCHELASTIC_RUN_ID", environ)
    job = f"{run_id} {place.ranks} {place.port}".encode()
    return hmac.digest(secret or _share_key(place, environ), job, "sha256")


def _share_key(place: RankPlace, environ: env.Environ) -> bytes:
    candidates = [env.find_cache_folder(environ)]
    if place.is_one_node and (error_file := env.read("TORCHELASTIC_ERROR_FILE", environ)):
        # Where there is no home, a folder of torchrun's that its ranks on this node share.
        candidates.append(Path(error_file).parent.parent)
    reasons = []
    for path in candidates:
        try:
            with open_folder(path) as folder:
                return _read_or_make_key(folder)
        except NotPrivate as error:
            reasons.append(f"{path} {error}")
        except OSError as error:
            reasons.append(f"{path / KEY_FILE} cannot be made ({error.strerror})")
    raise UsageError(
        f"ranks have no key to recognise each other by, since {' and '.join(reasons)}; set "
        f"{env.SECRET} to a text that only you know, the same for all ranks"
    )


def _read_or_make_key(folder: int) -> bytes:
    if KEY_FILE not in os.listdir(folder):
        # Of ranks that start at once, the first one makes it for all.
        write_file(folder, KEY_FILE, secrets.token_bytes(KEY_BYTES), is_first=True)
    try:
        key = read_file(folder, KEY_FILE)
    except NotPrivate as error:
        raise NotPrivate(f"has a {KEY_FILE} that {error}") from None
    if len(key) != KEY_BYTES:
        raise NotPrivate(f"has a {KEY_FILE} that is not a key of {KEY_BYTES} bytes")
    return key


class Line:
    """A connection that carries signed messages. Anything else ends it."""

    def __init__(self, connection: socket.socket, job_key: bytes, side: Side) -> None:
        self._connection = connection
        connection.settimeout(SEND_S)
        for option, value in KEEP_ALIVE.items():
            connection.setsockopt(*option, value)
        self._job_key = job_key
        self._side: Side = side
        self._other_side: Side = "rank" if side == "runner" else "runner"
        self._nonce = secrets.token_hex(NONCE_LENGTH // 2).encode()
        self._key: bytes | None = None
        """Of this connection, once the nonce of the other side is known."""
        self._sent = 0
        self._received = 0
        self._pending = b""
        self._reader: LineReader[RankMessage] = LineReader(RankMessage)
        self.is_open = True
        self.was_forged = False
        """Whether it ended by a wrong signature."""
        self._transmit(self._nonce)

    @property
    def can_sign(self) -> bool:
        return self._key is not None

    def fileno(self) -> int:
        return self._connection.fileno()

    def find_own_address(self) -> str | None:
        """Of this end; None where the connection is lost."""
        try:
            own = str(self._connection.getsockname()[0])
        except OSError:
            return None
        return own.removeprefix("::ffff:").partition("%")[0]  # IPv4, on a socket for both

    def send(self, message: RankMessage) -> None:
        body = encode(message).rstrip(b"\n")
        self._transmit(self._sign(self._side, self._sent, body) + body)
        self._sent += 1

    def receive(self) -> list[RankMessage]:
        """What has come, without waiting; once the other end is gone, `is_open` is False."""
        messages: list[RankMessage] = []
        while self.is_open and poll_readable([self.fileno()], 0):
            try:
                chunk = self._connection.recv(1 << 16)
                *lines, self._pending = (self._pending + chunk).split(b"\n")
                for line in lines:
                    messages += self._read(line)
                longest = LONGEST_BYTES if self._received else STRANGER_BYTES
                self.is_open = bool(chunk) and len(self._pending) <= longest
            except (OSError, BrokenMessage):
                self.is_open = False
        return messages

    def close(self) -> None:
        self.is_open = False
        self._connection.close()

    def _read(self, line: bytes) -> list[RankMessage]:
        """None for the nonce, one for any other line."""
        if self._key is None:
            nonces = [self._nonce, line] if self._side == "runner" else [line, self._nonce]
            self._key = hmac.digest(self._job_key, b"\n".join(nonces), "sha256")
            return []
        signature, body = line[:SIGNATURE_LENGTH], line[SIGNATURE_LENGTH:]
        expected = self._sign(self._other_side, self._received, body)
        if not hmac.compare_digest(signature, expected):
            self.was_forged = True
            raise BrokenMessage("a message without the signature of this job")
        self._received += 1
        return [self._reader.decode(body)]

    def _sign(self, sender: Side, number: int, body: bytes) -> bytes:
        assert self._key is not None
        signed = f"{sender} {number} ".encode() + body
        return hmac.new(self._key, signed, "sha256").hexdigest().encode()

    def _transmit(self, line: bytes) -> None:
        try:
            self._connection.sendall(line + b"\n")
        except OSError:
            self.is_open = False
