"""Filters that clients poll over HTTP: where each stands, no logs; bounded in number and in time."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rpc.ethereum.logs import LogFilter
from rpc.protocol.errors import RpcError

__all__ = ["FILTERS_MAX", "FILTERS_PER_CALLER_MAX", "LIFETIME_S", "Filters", "LiveFilter"]

FILTERS_MAX: Final = 10_000
FILTERS_PER_CALLER_MAX: Final = 100
LIFETIME_S: Final = 300.0
"""A filter that nobody polled for so long is forgotten."""
_IDENTIFIER_BITS: Final = 127


@dataclass(slots=True)
class LiveFilter:
    """``logs`` None: hashes of new blocks, or of what comes into the mempool where ``of_pool``.

    ``first`` and ``last`` bound the blocks, ``next`` is told of next; of the mempool it is the place there.
    ``is_polled`` while a poll is under way.
    """

    caller: str
    logs: LogFilter | None
    first: int
    last: int | None
    next: int
    used_s: float
    of_pool: bool = False
    is_polled: bool = False


@dataclass(slots=True)
class _Held:
    """The filters of one caller, that first which was not used for longest."""

    filters: OrderedDict[int, None] = field(default_factory=OrderedDict)
    weight: int = 0


class Filters:
    """The filters of a gateway; ``clock`` gives seconds.

    Where there are as many as may be, that of who has most gives way to who has fewer: its client makes a new one
    when it is told that there is none, as clients do.
    """

    def __init__(self, clock: Callable[[], float], per_caller_max: int = FILTERS_PER_CALLER_MAX) -> None:
        self._clock = clock
        self._per_caller_max = per_caller_max
        self._live: OrderedDict[int, LiveFilter] = OrderedDict()
        self._of_caller: dict[str, _Held] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self._live)

    def add(
        self,
        caller: str,
        logs: LogFilter | None,
        *,
        first: int,
        last: int | None,
        start: int,
        of_pool: bool = False,
    ) -> int:
        """Keep a filter that tells of blocks from ``start`` on; return its identifier. Raises RpcError."""
        self._expire()
        weight = _weight_of(logs)
        held = self._of_caller.get(caller)
        own = weight + (held.weight if held is not None else 0)
        if own > self._per_caller_max or not self._make_room(weight, own):
            raise RpcError("limit_exceeded", "limit exceeded: too many filters, uninstall some")
        # Not to be guessed: who knows the identifier reads and ends the filter.
        identifier = secrets.randbits(_IDENTIFIER_BITS) | 1 << _IDENTIFIER_BITS
        self._live[identifier] = LiveFilter(caller, logs, first, last, start, self._clock(), of_pool)
        held = self._of_caller.setdefault(caller, _Held())
        held.filters[identifier] = None
        held.weight += weight
        self._weight += weight
        return identifier

    def get(self, identifier: int) -> LiveFilter:
        """Return a filter and count it as used. Raises RpcError (filter_not_found)."""
        self._expire()
        found = self._live.get(identifier)
        if found is None:
            raise RpcError("filter_not_found", "filter not found")
        found.used_s = self._clock()
        self._live.move_to_end(identifier)
        self._of_caller[found.caller].filters.move_to_end(identifier)
        return found

    def remove(self, identifier: int) -> bool:
        """Forget a filter; tell whether there was one."""
        self._expire()
        if identifier not in self._live:
            return False
        self._forget(identifier)
        return True

    def clear(self) -> None:
        """Forget all of them: the blocks that they told of are no more, and their clients make others."""
        self._live.clear()
        self._of_caller.clear()
        self._weight = 0

    def _expire(self) -> None:
        until = self._clock() - LIFETIME_S
        while self._live:
            identifier, oldest = next(iter(self._live.items()))
            if oldest.used_s > until:
                return
            self._forget(identifier)

    def _make_room(self, weight: int, own: int) -> bool:
        """Make room for a filter of one who would have ``own`` with it; tell whether there is."""
        while self._weight + weight > FILTERS_MAX:
            most = max(self._of_caller.values(), key=lambda held: held.weight)
            if most.weight <= own:
                return False
            self._forget(next(iter(most.filters)))
        return True

    def _forget(self, identifier: int) -> None:
        gone = self._live.pop(identifier)
        weight = _weight_of(gone.logs)
        held = self._of_caller[gone.caller]
        del held.filters[identifier]
        held.weight -= weight
        if not held.filters:
            del self._of_caller[gone.caller]
        self._weight -= weight


def _weight_of(logs: LogFilter | None) -> int:
    return 1 if logs is None else logs.weight
