"""Messages that wait a few seconds for a connection, without I/O; bounded for each address and in sum."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from p2p.base.limits import NetworkLimits
from p2p.secure.frame import Class

__all__ = ["Outbox", "QueuedMessage"]

_MESSAGES_MAX: Final = 256


class QueuedMessage(NamedTuple):
    """A message, and until when it is worth sending."""

    until: float
    cls: Class
    kind: int
    body: bytes


class Outbox:
    """What is to be said to whom as soon as there is a connection."""

    def __init__(self, limits: NetworkLimits) -> None:
        self._limits = limits
        self._boxes: OrderedDict[bytes, deque[QueuedMessage]] = OrderedDict()

    def post(self, address: bytes, cls: Class, kind: int, body: bytes, now: float) -> bool:
        """Keep a message; whether there was room."""
        box = self._boxes.get(address)
        if box is None:
            if len(self._boxes) >= self._limits.outbox_peers_max:
                self._boxes.popitem(last=False)
            box = self._boxes[address] = deque()
        size = sum(len(item.body) for item in box)
        if size + len(body) > self._limits.outbox_bytes_max or len(box) >= _MESSAGES_MAX:
            return False
        box.append(QueuedMessage(now + self._limits.outbox_s, cls, kind, body))
        return True

    def take(self, address: bytes, now: float) -> list[QueuedMessage]:
        """Return what still waits for an address, and keep it no more."""
        return [item for item in self._boxes.pop(address, ()) if item.until > now]

    def expire(self, now: float) -> None:
        """Forget what nobody is there for."""
        for address in [address for address, box in self._boxes.items() if box[-1].until <= now]:
            del self._boxes[address]
