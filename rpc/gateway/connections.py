"""How many connections there may be, in all and from one address, and how much memory their bytes may take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from rpc.gateway.limits import Proxies
from rpc.gateway.memory_quota import MemoryQuota
from rpc.gateway.unsent_bytes import CHECK_S, UnsentBytes

__all__ = ["ConnectionLimiter", "ConnectionOptions", "host_of"]

CHECKS_OF_TURN: Final = 512


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Bounds of connections."""

    connections_max: int = 16_384
    connections_per_address_max: int = 512
    """0: no limit. Connections of a trusted proxy are not counted, but WebSockets of each client behind it are."""
    first_request_s: float = 10.0
    """Time for the headers of each request, and for a new connection to send its first request."""
    held_bytes_max: int = 512 * 1024 * 1024
    """Memory of incomplete bodies and unread answers of all callers (0: no limit)."""
    held_bytes_per_address_max: int = 64 * 1024 * 1024
    """The same for one address: two of the longest answers and some bodies. 0: no limit."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks of proxies whose X-Forwarded-For is trusted; see ``rpc.gateway.limits.Proxies``."""


class ConnectionLimiter:
    """Limits connections, in all and by address. Raises ConfigError for malformed proxy networks."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self.proxies = Proxies(options.trusted_proxies)
        self.memory_quota = MemoryQuota(options.held_bytes_max, options.held_bytes_per_address_max)
        self.open = 0
        self.refused = 0
        self._by_caller: dict[str, int] = {}
        self.unsent: set[UnsentBytes] = set()
        """The unsent bytes of every connection."""

    async def watch(self) -> None:
        """Disconnect clients that do not read, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(CHECK_S)
            for number, one in enumerate(tuple(self.unsent)):
                if number % CHECKS_OF_TURN == CHECKS_OF_TURN - 1:
                    await asyncio.sleep(0)
                one.check(loop.time())

    def acquire(self, caller: str, *, is_proxy: bool = False) -> bool:
        """Count a new connection; return False if there are too many."""
        mine = self._by_caller.get(caller, 0)
        limit = 0 if is_proxy else self.options.connections_per_address_max
        if self.open >= self.options.connections_max or (limit and mine >= limit):
            self.refused += 1
            return False
        self._by_caller[caller] = mine + 1
        self.open += 1
        return True

    def release(self, caller: str) -> None:
        """Count a connection as ended."""
        self.open -= 1
        left = self._by_caller[caller] - 1
        if left:
            self._by_caller[caller] = left
        else:
            del self._by_caller[caller]

    def transfer_connection(self, proxy: str, client: str) -> bool:
        """Count a proxy's connection for the client behind it from now on; return False if that has too many."""
        self.release(proxy)
        if self.acquire(client):
            return True
        self.acquire(proxy, is_proxy=True)
        return False


def host_of(transport: asyncio.BaseTransport) -> str:
    """Return the address of the other end of a connection, empty if it is unknown."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
