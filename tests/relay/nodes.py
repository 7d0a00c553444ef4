"""A node without a listening socket, as far as the relay sees it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import trio

from p2p.base.endpoint import Endpoint
from p2p.secure.handshake import Handshake, Session
from p2p.secure.identity import Purpose
from relay.client.client import RelayClient
from relay.client.options import RelayClientOptions
from tests.relay.daemon_process import identity_of


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return once ``condition`` holds; the test's time limit bounds it."""
    while not condition():  # noqa: ASYNC110  what is waited for is the doing of another process
        await trio.sleep(0.01)


class Node:
    """A relay client with the acceptance seam of a peer network: arriving streams are kept in ``arrived``."""

    def __init__(self, name: str, *relays: Endpoint, options: RelayClientOptions | None = None) -> None:
        self.identity = identity_of(name)
        self.address = self.identity.address
        self.client = RelayClient(lambda: self.identity, relays, options)
        self.send, self.arrived = trio.open_memory_channel[trio.abc.Stream](math.inf)
        self.advertised: dict[str, tuple[Endpoint, ...]] = {}

    def accept(self, stream: trio.abc.Stream, remote: str) -> None:
        self.send.send_nowait(stream)

    def advertise(self, source: str, endpoints: tuple[Endpoint, ...]) -> None:
        self.advertised[source] = endpoints

    async def run(self) -> None:
        await self.client.run(self)


class Sealed:
    """A circuit after the two nodes' own handshake, with one record a message."""

    def __init__(self, stream: trio.abc.Stream, session: Session) -> None:
        self.stream = stream
        self.session = session
        self._buffer = bytearray(session.rest)

    async def send(self, message: bytes) -> None:
        sealed = self.session.send.encrypt(message)
        await self.stream.send_all(len(sealed).to_bytes(2, "big") + sealed)

    async def receive(self) -> bytes:
        while len(self._buffer) < 2 or len(self._buffer) < 2 + int.from_bytes(self._buffer[:2], "big"):
            data = await self.stream.receive_some()
            if not data:
                return b""
            self._buffer += data
        size = int.from_bytes(self._buffer[:2], "big")
        sealed = bytes(self._buffer[2 : 2 + size])
        del self._buffer[: 2 + size]
        return self.session.receive.decrypt(sealed)


async def run_handshake(node: Node, stream: trio.abc.Stream, expected: bytes | None) -> Sealed:
    """Do the peer handshake inside a circuit; ``expected`` None: as the side that was dialled."""
    handshake = Handshake(
        node.identity,
        Purpose.CIRCUIT,
        is_initiator=expected is not None,
        now_ms=time.time_ns() // 1_000_000,
        expected=expected,
    )
    await stream.send_all(handshake.start())
    while handshake.session is None:
        data = await stream.receive_some()
        assert data, "the circuit ended during the handshake"
        await stream.send_all(handshake.receive(bytes(data)))
    return Sealed(stream, handshake.session)
