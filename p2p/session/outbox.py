"""Messages that wait a few seconds for a connection; bounded for each address and in total; without I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, NamedTuple

from p2p.base.limits import NetworkLimits
from p2p.secure.frame import TrafficClass

__all__ = ["Outbox", "QueuedMessage"]

_MESSAGES_MAX: Final = 256


class QueuedMessage(NamedTuple):
    """A message, and the time until which it is worth sending."""

    until: float
    cls: TrafficClass
    kind: int
    body: bytes


class Outbox:
    """The messages to send to each address once it is connected."""

    def __init__(self, limits: NetworkLimits) -> None:
        self._limits = limits
        self._boxes: OrderedDict[bytes, deque[QueuedMessage]] = OrderedDict()

    def post(self, address: bytes, cls: TrafficClass, kind: int, body: bytes, now: float) -> bool:
        """Queue a message; return whether there was room."""
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
        """Return and remove the messages for an address that are not expired."""
        return [item for item in self._boxes.pop(address, ()) if item.until > now]

    def expire(self, now: float) -> None:
        """Remove the messages of addresses that did not connect in time."""
        for address in [address for address, box in self._boxes.items() if box[-1].until <= now]:
            del self._boxes[address]
