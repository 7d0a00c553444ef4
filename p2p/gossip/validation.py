"""Runs one validator for each topic, on batches of the payloads that are queued."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import trio

from p2p.base.limits import NetworkLimits
from p2p.gossip.core import Deliver, Verdict

__all__ = ["BatchValidator", "GossipItem", "TopicValidation", "Validator", "one_by_one"]


@dataclass(frozen=True, slots=True)
class GossipItem:
    """One payload to validate, and the peer that sent it first."""

    peer: bytes
    payload: bytes


Validator = Callable[[bytes, bytes], Awaitable[Verdict]]
BatchValidator = Callable[[Sequence[GossipItem]], Awaitable[Sequence[Verdict]]]


def one_by_one(validator: Validator) -> BatchValidator:
    """Return a batch validator that calls ``validator(peer address, payload)`` for each payload."""

    async def validate(items: Sequence[GossipItem]) -> Sequence[Verdict]:
        return [await validator(item.peer, item.payload) for item in items]

    return validate


class TopicValidation:
    """The queue of one topic, bounded by the gossip core's pending limits.

    ``judged`` receives the verdicts, ``credit`` the peers that sent valid payloads.
    """

    def __init__(
        self,
        validator: BatchValidator,
        limits: NetworkLimits,
        judged: Callable[[Iterable[tuple[bytes, Verdict]]], None],
        credit: Callable[[bytes], None] = lambda _address: None,
    ) -> None:
        self._validator = validator
        self._limits = limits
        self._judged = judged
        self._credit = credit
        self._waiting: OrderedDict[bytes, Deliver] = OrderedDict()
        self._wake = trio.Event()

    def put(self, item: Deliver) -> None:
        """Queue a payload."""
        self._waiting[item.message_id] = item
        self._wake.set()

    def withdraw(self, message_id: bytes) -> None:
        """Remove a payload from the queue; if its validation has begun, its verdict is ignored."""
        self._waiting.pop(message_id, None)

    async def run(self) -> None:
        """Validate until cancelled."""
        while True:
            if not self._waiting:
                self._wake = trio.Event()
                await self._wake.wait()
            batch: list[Deliver] = []
            size = 0
            while self._waiting and len(batch) < self._limits.gossip_batch_max:
                item = next(iter(self._waiting.values()))
                size += len(item.payload)
                if batch and size > self._limits.gossip_batch_bytes_max:
                    break
                batch.append(self._waiting.pop(item.message_id))
            verdicts = await self._validator([GossipItem(item.peer, item.payload) for item in batch])
            assert len(verdicts) == len(batch)
            self._judged([(item.message_id, verdict) for item, verdict in zip(batch, verdicts, strict=True)])
            for address in {item.peer for item, v in zip(batch, verdicts, strict=True) if v is Verdict.ACCEPT}:
                self._credit(address)
            await trio.lowlevel.checkpoint()
