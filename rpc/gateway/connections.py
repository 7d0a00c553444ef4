"""How many connections there may be, in all and from one address, and how much memory their bytes may take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from rpc.gateway.limits import Proxies
from rpc.gateway.memory_quota import MemoryQuota
from rpc.gateway.unsent_bytes import LOOK_S, UnsentBytes

__all__ = ["ConnectionLimiter", "ConnectionOptions", "host_of"]

LOOKS_OF_TURN: Final = 512


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Bounds of connections."""

    connections_max: int = 16_384
    connections_per_address_max: int = 512
    """0: no limit. Those of a trusted proxy are not counted, but the WebSockets of each client behind it are."""
    first_request_s: float = 10.0
    """Time for the headers of a request, and for a new connection to send its first."""
    held_bytes_max: int = 512 * 1024 * 1024
    """Bodies that are not whole and answers that are not read, of all together (0: no limit)."""
    held_bytes_per_address_max: int = 64 * 1024 * 1024
    """Of these, one address's: two of the longest answers and some bodies. 0: no limit."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies that are believed about who asks through them; see ``rpc.gateway.limits.Proxies``."""


class ConnectionLimiter:
    """Counts connections by address. Raises ConfigError."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self.proxies = Proxies(options.trusted_proxies)
        self.memory_quota = MemoryQuota(options.held_bytes_max, options.held_bytes_per_address_max)
        self.open = 0
        self.refused = 0
        self._by_caller: dict[str, int] = {}
        self.unread: set[UnsentBytes] = set()
        """Of every connection."""

    async def watch(self) -> None:
        """Throw out those who do not read, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            for number, one in enumerate(tuple(self.unread)):
                if number % LOOKS_OF_TURN == LOOKS_OF_TURN - 1:
                    await asyncio.sleep(0)
                one.look(loop.time())

    def enter(self, caller: str, *, is_proxy: bool = False) -> bool:
        """Count a connection in, or return False."""
        mine = self._by_caller.get(caller, 0)
        limit = 0 if is_proxy else self.options.connections_per_address_max
        if self.open >= self.options.connections_max or (limit and mine >= limit):
            self.refused += 1
            return False
        self._by_caller[caller] = mine + 1
        self.open += 1
        return True

    def leave(self, caller: str) -> None:
        """Count a connection out."""
        self.open -= 1
        left = self._by_caller[caller] - 1
        if left:
            self._by_caller[caller] = left
        else:
            del self._by_caller[caller]

    def pass_on(self, proxy: str, client: str) -> bool:
        """Count a connection of a proxy as one of the client behind it from now on, or return False."""
        self.leave(proxy)
        if self.enter(client):
            return True
        self.enter(proxy, is_proxy=True)
        return False


def host_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other end of a connection, empty if it is unknown."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
