"""Rate limits of callers, and how a caller is identified: by its address, or by the one that a proxy names.

See rpc.md R25.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from state.primitives.errors import ConfigError
from state.primitives.token_bucket import RateLimiter

__all__ = ["Proxies", "caller_key", "caller_limiter", "is_loopback"]

DEBT_BURSTS: Final = 4
CALLERS_MAX: Final = 100_000
"""Callers remembered at once; the one that was silent the longest is forgotten, and starts with a full budget."""
ENTRY_LIMIT_BYTES: Final = 64
"""Longest entry of ``X-Forwarded-For`` that can be an address and a port."""
CLIENTS_OF_PROXIES_KEPT: Final = 4096


def caller_limiter(rate_per_s: float, burst: float) -> RateLimiter:
    """Return the rate limiter of the callers of a gateway.

    A debt is at most ``DEBT_BURSTS`` bursts: others may use the same address.
    """
    return RateLimiter(per_s=rate_per_s, burst=burst, keys_max=CALLERS_MAX, debt_max=DEBT_BURSTS * burst)


def caller_key(host: str) -> str:
    """Return whose budget a caller at ``host`` uses: an IPv4 address, or the /64 that one site has of IPv6."""
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.IPv6Address(int(parsed) >> 64 << 64))
    return host


class Proxies:
    """The trusted proxies, by their ``networks``: their X-Forwarded-For names the client. Raises ConfigError.

    Of ``X-Forwarded-For`` only the last entry counts: the proxy itself has added it, what stands before came from
    its client. ``Forwarded`` is not read: a proxy that writes the one header passes the other one on as it came.
    """

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = []
        for text in networks:
            try:
                self._networks.append(ipaddress.ip_network(text))
            except ValueError as error:
                raise ConfigError(f"trusted_proxies: {text!r}: {error}") from None

    def include(self, host: str) -> bool:
        """Tell whether what connects from ``host`` is one of them."""
        if not self._networks:
            return False
        try:
            parsed = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        return any(parsed in network for network in self._networks)

    @staticmethod
    def client_of(forwarded: bytes) -> str | None:
        """Return the address of the last entry of a proxy's last header; None where it says none."""
        entry = forwarded.rpartition(b",")[2].strip()
        return None if len(entry) > ENTRY_LIMIT_BYTES else _address_of(entry)


@lru_cache(CLIENTS_OF_PROXIES_KEPT)
def _address_of(entry: bytes) -> str | None:
    """Return the address of "v4", "v4:port", "v6" or "[v6]:port"."""
    text = entry.decode("latin-1")
    colon = port = ""
    if text.startswith("["):
        text, bracket, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or ":" not in text or colon not in ("", ":"):
            return None
    elif text.count(":") == 1:
        text, colon, port = text.partition(":")
    if colon and not (port.isascii() and port.isdigit()):
        return None
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` is an address of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
