"""Filters that clients poll over HTTP: where each stands, no logs; bounded in number and in time."""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rpc.errors import RpcError
from rpc.ethereum.logs import LogFilter

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
    """

    caller: str
    logs: LogFilter | None
    first: int
    last: int | None
    next: int
    used_s: float
    of_pool: bool = False


class Filters:
    """The filters of a gateway; ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float], per_caller_max: int = FILTERS_PER_CALLER_MAX) -> None:
        self._clock = clock
        self._per_caller_max = per_caller_max
        self._live: OrderedDict[int, LiveFilter] = OrderedDict()
        self._of_caller: Counter[str] = Counter()
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
        if self._weight + weight > FILTERS_MAX or self._of_caller[caller] + weight > self._per_caller_max:
            raise RpcError("limit_exceeded", "limit exceeded: too many filters, uninstall some")
        # Not to be guessed: who knows the identifier reads and ends the filter.
        identifier = secrets.randbits(_IDENTIFIER_BITS) | 1 << _IDENTIFIER_BITS
        self._live[identifier] = LiveFilter(caller, logs, first, last, start, self._clock(), of_pool)
        self._of_caller[caller] += weight
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
        return found

    def remove(self, identifier: int) -> bool:
        """Forget a filter; tell whether there was one."""
        self._expire()
        found = self._live.pop(identifier, None)
        if found is None:
            return False
        self._forget(found)
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
            del self._live[identifier]
            self._forget(oldest)

    def _forget(self, gone: LiveFilter) -> None:
        weight = _weight_of(gone.logs)
        self._weight -= weight
        self._of_caller[gone.caller] -= weight
        if not self._of_caller[gone.caller]:
            del self._of_caller[gone.caller]


def _weight_of(logs: LogFilter | None) -> int:
    return 1 if logs is None else logs.weight
