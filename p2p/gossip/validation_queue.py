"""The queue of gossip payloads that wait for validation, shared fairly between their senders."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

__all__ = ["PendingPayload", "QueueResult", "ValidationQueue"]


@dataclass(slots=True)
class PendingPayload:
    """A payload, its first sender, and other senders of it, to which it is not forwarded."""

    topic: str
    payload: bytes
    first: bytes
    others: set[bytes] = field(default_factory=set)


@dataclass(slots=True)
class QueueResult:
    """The result of queueing a payload."""

    is_queued: bool
    is_own_fault: bool = False
    """It was not queued because its sender has reached its limit."""
    evicted: list[tuple[str, bytes]] = field(default_factory=list)
    """Topic and id of the payloads that were evicted for it."""


@dataclass(slots=True)
class _Held:
    """One sender's queued payloads over all its connections; oldest first."""

    ids: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    size_bytes: int = 0


class ValidationQueue:
    """Room for ``limit_bytes`` of payloads, and for ``payloads_each_max`` of one sender.

    n senders that fill it hold 1/n each. A payload of a further sender replaces the newest payload of the sender
    that holds most.
    """

    def __init__(self, *, limit_bytes: int, payloads_each_max: int) -> None:
        self._limit_bytes = limit_bytes
        self._payloads_each_max = payloads_each_max
        self._waiting: dict[bytes, PendingPayload] = {}
        self._held: dict[bytes, _Held] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, identifier: bytes) -> PendingPayload | None:
        """Return the payload that waits under this id."""
        return self._waiting.get(identifier)

    def admit(self, identifier: bytes, new: PendingPayload) -> QueueResult:
        """Queue a payload that is not queued yet, if there is room for its sender."""
        held = self._held.get(new.first)
        if held is not None and len(held.ids) >= self._payloads_each_max:
            return QueueResult(is_queued=False, is_own_fault=True)
        size_bytes = len(new.payload)
        share_bytes = size_bytes + (held.size_bytes if held is not None else 0)
        evicted: list[tuple[str, bytes]] = []
        while self.size_bytes + size_bytes > self._limit_bytes:
            most = max(self._held.values(), key=lambda one: one.size_bytes, default=None)
            if most is None or most.size_bytes <= share_bytes:
                return QueueResult(is_queued=False, evicted=evicted)
            last = next(reversed(most.ids))
            evicted.append((self._waiting[last].topic, last))
            self.pop(last)
        if held is None:
            held = self._held[new.first] = _Held()
        held.ids[identifier] = None
        held.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self._waiting[identifier] = new
        return QueueResult(is_queued=True, evicted=evicted)

    def pop(self, identifier: bytes) -> PendingPayload | None:
        """Remove the payload that waits under this id, if any."""
        waiting = self._waiting.pop(identifier, None)
        if waiting is not None:
            held = self._held[waiting.first]
            del held.ids[identifier]
            held.size_bytes -= len(waiting.payload)
            self.size_bytes -= len(waiting.payload)
            if not held.ids:
                del self._held[waiting.first]
        return waiting
