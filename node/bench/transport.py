"""``dekube bench transport``: throughput of the encrypted channel between two node processes over loopback.

Handshake, records, frames, queues and handlers are the node's own, on both sides.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from time import perf_counter, time_ns
from typing import Final

import trio

from p2p.secure.frame import TrafficClass
from p2p.secure.identity import Identity
from p2p.service import Network, NetworkConfig
from state.primitives.keys import SecretKey

__all__ = ["run"]

_GENESIS_HASH: Final = bytes(32)
_KIND: Final = 1
_DONE: Final = b"done"
_SMALL_BYTES: Final = 250
_BULK_BYTES: Final = 64 * 1024
_PATIENCE_S: Final = 60
_VOTES: Final = 300


def run(*, bulk_mib: int = 512, small_messages: int = 400_000) -> dict[str, float]:
    """Measure and return ``bulk_mbit_per_s`` (64 KiB messages), ``small_messages_per_s`` (250 bytes) and more.

    ``vote_under_bulk_ms_p50`` and ``_p99`` are round trips of a consensus message while a bulk queue is full.
    """
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_receive, args=(there,), daemon=True)
    child.start()
    try:
        if not here.poll(_PATIENCE_S):
            raise TimeoutError("the receiving process did not start")
        host, port = here.recv()
        return trio.run(_send, host, port, bulk_mib, small_messages)
    finally:
        here.close()
        child.terminate()
        child.join()


def _identity(number: int) -> Identity:
    account = SecretKey(bytes((number,)) * 32)
    return Identity.create(
        account, genesis_hash=_GENESIS_HASH, now_ms=time_ns() // 1_000_000, node_secret=account.secret
    )


def _receive(pipe: Connection) -> None:
    trio.run(_serve, pipe)


async def _serve(pipe: Connection) -> None:
    network = Network(NetworkConfig(listen=(("127.0.0.1", 0),)), _identity(2))

    seen = owed = 0

    async def answer(peer: bytes, body: bytes) -> None:
        nonlocal seen, owed
        if body.startswith(_DONE):
            owed = int.from_bytes(body[len(_DONE) :], "big")
        elif len(body) < _SMALL_BYTES:
            network.send(peer, TrafficClass.CONSENSUS, _KIND, body)
        else:
            seen += 1
        if owed and seen >= owed:  # bulk keeps no order, so the word that it is all may come before the rest
            owed = 0
            network.send(peer, TrafficClass.CONSENSUS, _KIND, _DONE)

    network.on_message(_KIND, answer)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        pipe.send(network.bound[0])


async def _send(host: str, port: int, bulk_mib: int, small_messages: int) -> dict[str, float]:
    peer = _identity(2).address
    network = Network(NetworkConfig(bootstrap=(f"0x{peer.hex()}@{host}:{port}",)), _identity(1))
    pushed = 0
    answers, answered = trio.open_memory_channel[bytes](16)

    async def note(_peer: bytes, body: bytes) -> None:
        await answers.send(body)

    async def push(cls: TrafficClass, body: bytes, count: int) -> float:
        """Send, and wait until the receiver has processed the last message; return the seconds."""
        nonlocal pushed
        pushed += count
        began = perf_counter()
        for _ in range(count):
            if not network.send(peer, cls, _KIND, body):
                await network.send_when_room(peer, cls, _KIND, body)
        await network.send_when_room(peer, cls, _KIND, _DONE + pushed.to_bytes(8, "big"))
        while await answered.receive() != _DONE:
            pass
        return perf_counter() - began

    network.on_message(_KIND, note)
    figures: dict[str, float] = {}
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        with trio.fail_after(_PATIENCE_S):
            await network.wait_peers(1)
        await push(TrafficClass.BULK, bytes(_BULK_BYTES), 256)
        bulk_messages = bulk_mib * 2**20 // _BULK_BYTES
        seconds = await push(TrafficClass.BULK, bytes(_BULK_BYTES), bulk_messages)
        figures["bulk_mbit_per_s"] = round(bulk_messages * _BULK_BYTES * 8 / seconds / 1e6, 1)
        seconds = await push(TrafficClass.BLOCK, bytes(_SMALL_BYTES), small_messages)
        figures["small_messages_per_s"] = round(small_messages / seconds)
        trips = await _vote_under_bulk(network, peer, answered)
        figures["vote_under_bulk_ms_p50"] = round(trips[len(trips) // 2] * 1_000, 2)
        figures["vote_under_bulk_ms_p99"] = round(trips[len(trips) * 99 // 100] * 1_000, 2)
        nursery.cancel_scope.cancel()
    return figures


async def _vote_under_bulk(
    network: Network, peer: bytes, answered: trio.MemoryReceiveChannel[bytes]
) -> list[float]:
    """Return the sorted round trips of votes while bulk is queued continuously."""
    trips = []

    async def flood() -> None:
        while True:
            await network.send_when_room(peer, TrafficClass.BULK, _KIND, bytes(_BULK_BYTES))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(flood)
        for _ in range(_VOTES):
            await trio.sleep(0.005)
            began = perf_counter()
            network.send(peer, TrafficClass.CONSENSUS, _KIND, b"vote")
            await answered.receive()
            trips.append(perf_counter() - began)
        nursery.cancel_scope.cancel()
    return sorted(trips)
