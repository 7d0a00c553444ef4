"""Thousands of real reservations at one relay, made by processes of minimal clients.

A ``RelayClient`` costs its process far more than a reservation costs the relay. These clients send the same
messages on one blocking socket each. They use addresses 127.a.b.c with a few clients each, so that the limits per
host and network apply. The relay's vouchers are checked as in the product.
"""

from __future__ import annotations

import multiprocessing
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

from p2p.base.endpoint import Endpoint
from p2p.secure.handshake import Handshake
from p2p.secure.identity import Identity, Purpose
from relay.protocol.limits import RelayLimits
from relay.protocol.wire import CONTROL_PREAMBLE, ControlChannel, Ping, Reserve, Reserved, Voucher
from state.primitives.errors import DekubeError

__all__ = ["CLIENTS_MAX", "BenchFailed", "reserving", "source_of"]

CLIENTS_MAX: Final = 100_000
SPARE_DESCRIPTORS: Final = 256
_PER_HOST: Final = RelayLimits().reservations_per_host_max
_HOSTS_PER_NETWORK: Final = RelayLimits().reservations_per_network_max // _PER_HOST
_BLOCKS: Final = 254
"""Networks in 127.0.0.0/8 without 127.0, which is this machine's, and 127.255."""
_READ_BYTES: Final = 4_096
_ANSWER_S: Final = 60.0
_PING_S: Final = 15.0
"""A relay drops clients that are silent for a minute."""
_LOOK_S: Final = 0.5
_LIFE_S: Final = 3_600


class BenchFailed(DekubeError):
    """The benchmark failed; its measurements are invalid."""

    code = "bench_failed"


def source_of(number: int) -> str:
    """Return the source address of a client, with the maximum number per host and per network.

    Consecutive networks are in different blocks, because a relay limits the rate of each block.
    """
    host = number // _PER_HOST
    network = host // _HOSTS_PER_NETWORK
    return f"127.{1 + network % _BLOCKS}.{network // _BLOCKS}.{1 + host % _HOSTS_PER_NETWORK}"


@contextmanager
def reserving(
    relay: Endpoint, count: int, make_identity: Callable[[str], Identity], *, processes: int = 3
) -> Iterator[float]:
    """Hold ``count`` reservations; yield the seconds that it took to make them. Raises BenchFailed.

    ``make_identity`` is sent to the processes, so it must be a function of a module.
    """
    if count > CLIENTS_MAX:
        raise BenchFailed(f"{count} reservations: at most {CLIENTS_MAX}")
    context = multiprocessing.get_context("spawn")
    started = time.perf_counter()
    children: list[tuple[BaseProcess, Connection]] = []
    try:
        for n in range(processes):
            here, there = context.Pipe()
            numbers = range(n * count // processes, (n + 1) * count // processes)
            child: BaseProcess = context.Process(
                target=_hold, args=(there, relay, numbers, make_identity), daemon=True
            )
            child.start()
            there.close()
            children.append((child, here))
        for _, pipe in children:
            said = _said(pipe)
            if said is not None:
                raise BenchFailed(said)
        yield time.perf_counter() - started
        for _, pipe in children:
            pipe.send(None)
        for _, pipe in children:
            said = _said(pipe)
            if said is not None:
                raise BenchFailed(said)
    finally:
        for child, _ in children:
            child.terminate()
            child.join()


def _said(pipe: Connection) -> str | None:
    try:
        said: str | None = pipe.recv()
    except EOFError:
        return "a process of clients has ended"
    return said


def _hold(pipe: Connection, relay: Endpoint, numbers: range, make_identity: Callable[[str], Identity]) -> None:
    """Reserve, report None or an error, stay until told to end, and report whether all reservations were kept."""
    held: list[tuple[socket.socket, ControlChannel]] = []
    try:
        _raise_limit(len(numbers) + SPARE_DESCRIPTORS)
        pinged_at = time.monotonic()
        for number in numbers:
            held.append(_reserve(relay, make_identity(f"client {number}"), source_of(number)))
            pinged_at = _ping(held, pinged_at)
        pipe.send(None)
        while not pipe.poll(_LOOK_S):
            pinged_at = _ping(held, pinged_at)
        pipe.recv()
        pipe.send(_lost(held))
    except (OSError, DekubeError, EOFError) as error:
        pipe.send(f"reservation {len(held)} of {len(numbers)}: {type(error).__name__}: {error}")


def _reserve(relay: Endpoint, identity: Identity, source: str) -> tuple[socket.socket, ControlChannel]:
    sock = socket.create_connection((relay.host, relay.port), timeout=_ANSWER_S, source_address=(source, 0))
    now_ms = time.time_ns() // 1_000_000
    handshake = Handshake(identity, Purpose.RELAY_CONTROL, is_initiator=True, now_ms=now_ms, expected=relay.relay)
    sock.sendall(CONTROL_PREAMBLE + handshake.start())
    while handshake.session is None:
        sock.sendall(handshake.receive(_received(sock)))
    channel = ControlChannel(handshake.session)
    sock.sendall(channel.seal(Reserve(1, _LIFE_S)))
    data = b""
    while True:
        for message in channel.receive(data):
            match message:
                case Reserved(1, _, voucher, _):
                    Voucher.decode(voucher).check(channel.address, channel.certificate, client=identity.address)
                    return sock, channel
                case _:
                    pass  # its terms
        data = _received(sock)


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(_READ_BYTES)
    if not data:
        raise BenchFailed("the relay closed the connection")
    return data


def _ping(held: list[tuple[socket.socket, ControlChannel]], pinged_at: float) -> float:
    """Send pings on all connections when they are due; return the time of the last ones."""
    now = time.monotonic()
    if now - pinged_at < _PING_S:
        return pinged_at
    for sock, channel in held:
        sock.sendall(channel.seal(Ping(1)))
    return now


def _lost(held: list[tuple[socket.socket, ControlChannel]]) -> str | None:
    """Return the number of connections that the relay has closed; None: none."""
    lost = 0
    for sock, _ in held:
        sock.setblocking(False)
        try:
            while data := sock.recv(_READ_BYTES):
                del data
            lost += 1
        except BlockingIOError:
            pass
        except OSError:
            lost += 1
    return f"{lost} of {len(held)} reservations were lost meanwhile" if lost else None


def _raise_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
