"""Banned addresses and when their bans end; without I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

__all__ = ["Bans"]


class Bans:
    """Addresses with the end of their ban, by the clock ``now``. Beyond the limit the oldest is dropped."""

    def __init__(self, bans_max: int, now: Callable[[], float]) -> None:
        self._bans_max = bans_max
        self._now = now
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __contains__(self, address: object) -> bool:
        return isinstance(address, bytes) and self._until.get(address, 0.0) > self._now()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.left_s())

    def add(self, address: bytes, ban_s: float) -> None:
        """Ban an address for ``ban_s`` from now on."""
        self._until.pop(address, None)
        self._until[address] = self._now() + ban_s
        while len(self._until) > self._bans_max:
            self._until.popitem(last=False)

    def lift(self, address: bytes) -> bool:
        """Lift a ban; return whether there was one."""
        until = self._until.pop(address, None)
        return until is not None and until > self._now()

    def left_s(self) -> dict[bytes, float]:
        """Return the banned addresses with the remaining seconds."""
        now = self._now()
        return {address: until - now for address, until in self._until.items() if until > now}

    def expire(self) -> None:
        """Remove bans that are over."""
        now = self._now()
        for address in [address for address, until in self._until.items() if until <= now]:
            del self._until[address]
