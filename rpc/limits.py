"""Bounds that belong to no one request: budgets of callers, and caches with a size."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

__all__ = ["Budgets", "Cache", "caller_key", "is_loopback"]

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

CALLERS_MAX: Final = 100_000
"""Callers remembered at once; the one that was silent the longest is forgotten, and starts with a full budget."""


class Cache(Generic[_K, _V]):
    """The values used last, up to a total weight."""

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._items: OrderedDict[_K, tuple[_V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: _K) -> _V | None:
        """Return the value of ``key`` and count it as used, or None."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: _K, value: _V, weight: int = 1) -> None:
        """Keep ``value``; what weighs more than half of everything is not kept."""
        if weight * 2 > self._weight_max:
            return
        old = self._items.pop(key, None)
        if old is not None:
            self._weight -= old[1]
        self._items[key] = (value, weight)
        self._weight += weight
        while self._weight > self._weight_max:
            _, (_, gone) = self._items.popitem(last=False)
            self._weight -= gone

    def clear(self) -> None:
        """Forget everything."""
        self._items.clear()
        self._weight = 0


class Budgets:
    """A token bucket for each caller: ``rate_per_s`` units flow in, up to ``burst``; 0 means no limit.

    A request may be served while anything is left, so that a costly one is possible at all; what it takes beyond
    zero the caller waits for.
    """

    def __init__(self, rate_per_s: float, burst: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, cost: float, now: float) -> float:
        """Take ``cost`` units and return 0, or take nothing and return the seconds until a try can succeed."""
        if not self._rate_per_s:
            return 0.0
        level, since = self._buckets.get(caller, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate_per_s)
        if level <= 0:
            return (1 - level) / self._rate_per_s
        self._buckets[caller] = (level - cost, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > CALLERS_MAX:
            self._buckets.popitem(last=False)
        return 0.0

    def owe(self, caller: str, cost: float, now: float) -> None:
        """Take ``cost`` units more for a request that is served, whatever is left: the caller's next ones wait."""
        if self._rate_per_s and cost:
            level, since = self._buckets.get(caller, (self._burst, now))
            level = min(self._burst, level + (now - since) * self._rate_per_s)
            self._buckets[caller] = (level - cost, now)


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


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` is an address of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
