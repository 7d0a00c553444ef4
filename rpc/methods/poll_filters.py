"""Filters that clients poll over HTTP (eth_newFilter): how far each has been polled. They hold no logs.

See rpc.md 7.2.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rpc.methods.log_filter import LogFilter
from rpc.protocol.errors import RpcError

__all__ = ["FILTERS_MAX", "FILTERS_PER_CALLER_MAX", "LIFETIME_S", "PollFilter", "PollFilters"]

FILTERS_MAX: Final = 10_000
FILTERS_PER_CALLER_MAX: Final = 100
LIFETIME_S: Final = 300.0
"""A filter that is not polled for this long is removed."""
IDENTIFIER_BITS: Final = 127


@dataclass(slots=True)
class PollFilter:
    """What a filter selects, and how far it has been polled.

    ``logs`` is None for a filter of block hashes, or of transactions that enter the mempool (``of_pool``).
    ``first`` and ``last`` bound the blocks. ``next`` is the next block to report, or the position in the mempool.
    ``is_polled`` is True while a poll is under way.
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
    """The filters of one caller, the least recently used first."""

    filters: OrderedDict[int, None] = field(default_factory=OrderedDict)
    weight: int = 0


class PollFilters:
    """The filters of a gateway. ``clock`` gives seconds, ``random_bits`` as many unpredictable bits as asked for.

    When there are ``FILTERS_MAX``, the caller with the most filters loses one to a caller with fewer. Its client
    is told ``filter_not_found`` and creates another, as clients do after a restart of the node.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        random_bits: Callable[[int], int],
        per_caller_max: int = FILTERS_PER_CALLER_MAX,
    ) -> None:
        self._clock = clock
        self._random_bits = random_bits
        self._per_caller_max = per_caller_max
        self._live: OrderedDict[int, PollFilter] = OrderedDict()
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
        """Store a filter that reports blocks from ``start`` on; return its identifier. Raises RpcError."""
        self._expire()
        weight = _weight_of(logs)
        held = self._of_caller.get(caller)
        own = weight + (held.weight if held is not None else 0)
        if own > self._per_caller_max or not self._make_room(weight, own):
            raise RpcError("limit_exceeded", "limit exceeded: too many filters, uninstall some")
        # Unpredictable, because a client that knows the identifier can poll and remove the filter.
        identifier = self._random_bits(IDENTIFIER_BITS) | 1 << IDENTIFIER_BITS
        self._live[identifier] = PollFilter(caller, logs, first, last, start, self._clock(), of_pool)
        held = self._of_caller.setdefault(caller, _Held())
        held.filters[identifier] = None
        held.weight += weight
        self._weight += weight
        return identifier

    def get(self, identifier: int) -> PollFilter:
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
        """Remove a filter; return whether there was one."""
        self._expire()
        if identifier not in self._live:
            return False
        self._forget(identifier)
        return True

    def clear(self) -> None:
        """Remove all filters: the blocks that they reported no longer exist, and their clients create others."""
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
        """Make room for a filter of a caller whose filters then weigh ``own``; return whether there is room."""
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
