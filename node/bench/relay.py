"""``dekube bench relay``: the cost of the relay daemon on loopback, and of a minimal uvloop splice in the same
run.

Processor time is that of the relay process (user and system), without sender and receiver. Both splices use the
same socket options. Loopback figures are optimistic: on a paced path each wake-up has a cost.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, cast

import structlog
import trio
import uvloop

from node.bench.reservations import reserving
from p2p.base.endpoint import Endpoint
from p2p.base.sockets import tune
from p2p.secure.identity import Identity, Role
from relay.client.circuit_stream import CircuitStream
from relay.client.client import RelayClient
from relay.protocol.limits import RelayLimits
from relay.server.daemon import RelayDaemon, RelayOptions, run_relay
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey

__all__ = ["run"]

GENESIS_HASH: Final = digest(b"bench", b"relay")
LIMITS: Final = RelayLimits(
    accepts_per_s=100_000, accepts_burst=100_000, half_open_max=4_096, trusted_networks=("127.0.0.1/32",)
)
"""Clients with thousands of reservations come from 127.1.0.1 and above, where the limits per host and network
apply."""
CHUNK_BYTES: Final = 256 * 1024
BUFFER_BYTES: Final = RelayLimits().circuit_buffer_bytes_max
DIALS: Final = 50


def run(*, megabytes: int = 2_000, circuits: int = 4, reservations: int = 10_000) -> dict[str, float]:
    """Measure and return the figures. Raises BenchFailed."""
    _quiet()
    figures: dict[str, float] = {}
    with _process(_relay) as (pid, port):
        relay = Endpoint("127.0.0.1", port, _account("relay").address)
        before_kib, cpu_s = _rss_kib(pid), _cpu_s(pid)
        with reserving(relay, reservations, _identity) as took_s:
            held_kib = _rss_kib(pid)
            figures["relay_reserve_cpu_ms"] = (_cpu_s(pid) - cpu_s) / reservations * 1e3
            figures["dial_ms_p50"] = trio.run(_dial, relay)
        figures["relay_idle_mib"] = before_kib / 1024
        figures["relay_reservations_mib"] = held_kib / 1024
        figures["relay_reservation_kib"] = (held_kib - before_kib) / reservations
        figures["reserve_ms"] = took_s / reservations * 1e3
        relayed = [trio.run(_circuit, relay, n) for n in range(circuits)]
        figures["circuit_mbit_per_s"], figures["relay_cpu_s_per_gb"] = _transfer(relayed[:1], megabytes, pid)
        rate, cost = _transfer(relayed, megabytes, pid)
        figures[f"circuits_{circuits}_mbit_per_s"], figures[f"relay_{circuits}_circuits_cpu_s_per_gb"] = rate, cost
        for pair in relayed:
            for end in pair:
                end.close()
    with _process(_bare) as (pid, port):
        bare = [(_connect(port), _connect(port)) for _ in range(circuits)]
        figures["splice_mbit_per_s"], figures["splice_cpu_s_per_gb"] = _transfer(bare[:1], megabytes, pid)
        _, figures[f"splice_{circuits}_circuits_cpu_s_per_gb"] = _transfer(bare, megabytes, pid)
        for pair in bare:
            for end in pair:
                end.close()
    figures["relay_to_splice_ratio"] = figures["relay_cpu_s_per_gb"] / figures["splice_cpu_s_per_gb"]
    return figures


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


def _account(name: str) -> SecretKey:
    return SecretKey(digest(b"bench", name.encode()))


def _identity(name: str, roles: Role = Role.WORKER) -> Identity:
    return Identity.create(
        _account(name), genesis_hash=GENESIS_HASH, now_ms=time.time_ns() // 1_000_000, roles=roles,
        node_secret=digest(b"bench node", name.encode()),
    )  # fmt: skip


class _StreamQueue:
    """Receives the streams that a relay client accepts, in place of a peer network."""

    def __init__(self) -> None:
        self.send, self.arrived = trio.open_memory_channel[trio.abc.Stream](math.inf)

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        self.send.send_nowait(stream)

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        pass


async def _dial(relay: Endpoint) -> float:
    """Return the median time in ms to dial through the relay while it holds its other reservations."""
    async with trio.open_nursery() as nursery:
        target, dialler, streams = (
            RelayClient(partial(_identity, "target"), (relay,)),
            RelayClient(_dialler),
            _StreamQueue(),
        )
        nursery.start_soon(target.run, streams)
        nursery.start_soon(dialler.run, _StreamQueue())
        await target.wait_reserved()
        took: list[float] = []
        for _ in range(DIALS):
            started = trio.current_time()
            stream = await dialler.dial(relay, _account("target").address)
            took.append(trio.current_time() - started)
            await trio.aclose_forcefully(stream)
            await trio.aclose_forcefully(await streams.arrived.receive())
        nursery.cancel_scope.cancel()
    return sorted(took)[DIALS // 2] * 1e3


def _dialler() -> Identity:
    return _identity("dialler")


async def _circuit(relay: Endpoint, number: int) -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a circuit as blocking sockets that outlive this event loop."""
    ends: tuple[socket.socket, socket.socket] | None = None
    async with trio.open_nursery() as nursery:
        streams = _StreamQueue()
        target, dialler = RelayClient(partial(_identity, f"target {number}"), (relay,)), RelayClient(_dialler)
        nursery.start_soon(target.run, streams)
        nursery.start_soon(dialler.run, _StreamQueue())
        await target.wait_reserved()
        out = await dialler.dial(relay, _account(f"target {number}").address)
        back = await streams.arrived.receive()
        ends = _blocking(out), _blocking(back)
        nursery.cancel_scope.cancel()
    assert ends is not None
    return ends


def _blocking(stream: trio.abc.Stream) -> socket.socket:
    assert isinstance(stream, CircuitStream)
    end = socket.socket(fileno=os.dup(stream.socket.fileno()))
    end.setblocking(True)
    return end


def _connect(port: int) -> socket.socket:
    end = socket.create_connection(("127.0.0.1", port))
    tune(cast(Any, end))
    return end


def _transfer(pairs: list[tuple[socket.socket, socket.socket]], megabytes: int, pid: int) -> tuple[float, float]:
    """Send ``megabytes`` in total over the circuits at once; return Mbit/s and the relay's CPU seconds per
    gigabyte.
    """
    size = megabytes * 1_000_000 // len(pairs)
    threads = [threading.Thread(target=_send, args=(out, size)) for out, _ in pairs]
    threads += [threading.Thread(target=_receive, args=(back, size)) for _, back in pairs]
    cpu_s, started = _cpu_s(pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s, cpu_s = time.perf_counter() - started, _cpu_s(pid) - cpu_s
    # The kernel counts in ticks of 10 ms: a transfer too short for one has cost up to one, never nothing.
    cpu_s = max(cpu_s, 1 / os.sysconf("SC_CLK_TCK"))
    return megabytes * 8 / elapsed_s, cpu_s / (megabytes / 1_000)


def _send(end: socket.socket, size: int) -> None:
    block = memoryview(bytes(CHUNK_BYTES))
    while size:
        size -= end.send(block[: min(size, CHUNK_BYTES)])


def _receive(end: socket.socket, size: int) -> None:
    buffer = bytearray(CHUNK_BYTES)
    while size:
        got = end.recv_into(buffer)
        assert got, "the circuit ended"
        size -= got


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


@contextmanager
def _process(main: Callable[[Connection], None]) -> Iterator[tuple[int, int]]:
    """Run ``main`` in a separate process; yield its process id and the port that it reports."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=main, args=(there,), daemon=True)
    child.start()
    try:
        assert child.pid is not None
        yield child.pid, here.recv()
    finally:
        child.terminate()
        child.join()


def _relay(ready: Connection) -> None:
    _quiet()

    def tell(daemon: RelayDaemon) -> None:
        ready.send(daemon.endpoint[1])

    run_relay(
        RelayOptions(listen="127.0.0.1:0", limits=LIMITS), lambda: _identity("relay", Role.RELAY), on_ready=tell
    )


class _MinimalSplice(asyncio.Protocol):
    """The simplest splice of two connections: the first waits for the second."""

    waiting: _MinimalSplice | None = None

    def __init__(self) -> None:
        self.other: _MinimalSplice | None = None
        self.early = b""
        """Bytes that arrived before the other connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        tune(self.transport.get_extra_info("socket"))
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)
        first = _MinimalSplice.waiting
        if first is None:
            _MinimalSplice.waiting = self
        else:
            _MinimalSplice.waiting = None
            self.other, first.other = first, self
            self.sink, first.sink = first.transport, self.transport
            self.transport.write(first.early)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self.early += data
        else:
            self.sink.write(data)

    def pause_writing(self) -> None:
        self.sink.pause_reading()

    def resume_writing(self) -> None:
        self.sink.resume_reading()


def _bare(ready: Connection) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(_MinimalSplice, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().create_future()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
