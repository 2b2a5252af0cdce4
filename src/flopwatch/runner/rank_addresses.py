"""Where ranks that torchrun has started meet: their flopwatch processes, and the workers of a job.

The workers of a job meet at a port of their own. On one node it is any that is free; on several, a
free one of the JOB_PORTS after that of flopwatch, so that these can be opened between nodes. They
use the address of rank 0 at which other nodes have reached it: its name may mean a loopback address
on its own node, as on systems that have it as 127.0.1.1 in /etc/hosts.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address

from flopwatch import env
from flopwatch.errors import UsageError
from flopwatch.runner.rank_processes import LOCALHOST, find_free_port
from flopwatch.worker.messages import RankPlace

LAST_PORT = 65535
JOB_PORTS = 16
"""Jobs use them in turn: the last one's may not be free yet."""
MOST_STRANGERS = 100
"""Connections that may wait for their proof; beyond, the oldest is closed."""


def choose_address(place: RankPlace, used: Sequence[str | None]) -> str:
    """Of rank 0, for all ranks of a job. `used` are those at which others have reached it; None
    where that is not known."""
    for address in used:
        if address is not None and not _is_of_one_node(address):
            return address
    return place.address


def _is_of_one_node(address: str) -> bool:
    """Whether it means something else on another node."""
    found = ip_address(address)
    return found.is_loopback or found.is_link_local


def find_job_port(place: RankPlace, job: int) -> int:
    """For the workers of a job, on the node of rank 0."""
    if not place.is_one_node:
        for step in range(JOB_PORTS):
            port = place.port + 1 + (job - 1 + step) % JOB_PORTS
            if port <= LAST_PORT and _is_free(port):
                return port
    return find_free_port()


def _is_free(port: int) -> bool:
    """Whether nobody listens there, on any interface."""
    for family, host in ((socket.AF_INET, ""), (socket.AF_INET6, "::")):
        if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
            continue
        try:
            socket.create_server((host, port), family=family).close()
        except OSError:
            return False
    return True


def listen(place: RankPlace) -> socket.socket:
    """On the loopback interface where all ranks are on this node; else at the address of rank 0,
    or where that is a name, on all interfaces: elsewhere it may resolve to another of them."""
    host = LOCALHOST if place.is_one_node else _find_own_address(place.address)
    dual = host == "" and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(
            (host, place.port),
            family=socket.AF_INET6 if dual or ":" in host else socket.AF_INET,
            dualstack_ipv6=dual,
            backlog=place.ranks + MOST_STRANGERS,
        )
    except OSError as error:
        raise UsageError(
            f"port {place.port} cannot be listened on ({error.strerror or error}); set {env.PORT} "
            "to a free one, the same for all ranks"
        ) from None
    listener.setblocking(False)  # who connects may be gone before it is accepted
    return listener


def _find_own_address(address: str) -> str:
    """Where it is an address, and one of this node's; else empty."""
    with suppress(ValueError, OSError):
        family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((address, 0))
            return address
    return ""
