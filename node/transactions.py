"""Transactions between nodes: gossiped in batches, checked before they are passed on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio

from node.ledger import NodeLedger
from node.stages import Stages
from node.verifier import SignatureVerifier
from p2p.gossip import Verdict
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, InvalidTransaction
from state.primitives.transactions import TRANSACTION_LIMIT_BYTES, Transaction, decode_transaction
from state.transition.errors import IntrinsicGasTooLow, InvalidPayload, SenderUnknown, UnknownKind, WrongChain

__all__ = ["BATCH_BYTES_MAX", "BATCH_MAX", "TransactionGossip", "decode_batch", "encode_batch"]

BATCH_MAX: Final = 256
BATCH_BYTES_MAX: Final = 64 * 1024
"""A batch is closed when it would pass this; a single larger transaction travels alone."""
BATCH_LIMIT_BYTES: Final = BATCH_BYTES_MAX + TRANSACTION_LIMIT_BYTES
OUTGOING_MAX: Final = 50_000
"""Transactions that wait to be passed on; beyond it the oldest is left to its other holders."""
FLUSH_S: Final = 0.02
"""How long a transaction waits for company."""
SENDER_FAULTS: Final = (WrongChain, UnknownKind, InvalidPayload, IntrinsicGasTooLow, SenderUnknown)
"""What a peer that checked could have seen without our state: these count against it."""


def encode_batch(raws: Sequence[bytes]) -> bytes:
    """Return the payload that carries ``raws``."""
    return encode(list(raws))


def decode_batch(payload: bytes) -> list[bytes]:
    """Return the transactions of a payload. Raises DecodeError."""
    match decode(payload, limit_bytes=BATCH_LIMIT_BYTES):
        case list(raws) if 0 < len(raws) <= BATCH_MAX and all(type(raw) is bytes for raw in raws):
            return raws
        case _:
            raise DecodeError("not a batch of transactions")


class TransactionGossip:
    """Passes on what the ledger admits and admits what peers bring."""

    def __init__(
        self, ledger: NodeLedger, verifier: SignatureVerifier, publish: Callable[[bytes], None], stages: Stages
    ) -> None:
        self._stages = stages
        self._ledger = ledger
        self._verifier = verifier
        self._publish = publish
        self._outgoing: deque[bytes] = deque(maxlen=OUTGOING_MAX)
        self._wake = trio.Event()

    def enqueue(self, raw: bytes) -> None:
        """Pass a transaction on with the next batch."""
        self._outgoing.append(raw)
        self._wake.set()

    async def run(self) -> None:
        """Publish batches until cancelled."""
        while True:
            await self._wake.wait()
            await trio.sleep(FLUSH_S)
            self._wake = trio.Event()
            while self._outgoing:
                self._publish(encode_batch(self._next_batch()))
                await trio.lowlevel.checkpoint()

    def _next_batch(self) -> list[bytes]:
        batch = [self._outgoing.popleft()]
        size = len(batch[0])
        while self._outgoing and len(batch) < BATCH_MAX and size + len(self._outgoing[0]) <= BATCH_BYTES_MAX:
            size += len(self._outgoing[0])
            batch.append(self._outgoing.popleft())
        return batch

    async def validate(self, _peer: bytes, payload: bytes) -> Verdict:
        """Check a batch of a peer: forward it as it is when all of it is good and something is new.

        Of a batch that is partly of use the good part goes on in a batch of our own.
        """
        try:
            with self._stages.measure("admit"):
                raws = decode_batch(payload)
                unknown = [decode_transaction(raw) for raw in raws if self._ledger.mempool.find(raw) is None]
        except DecodeError:
            return Verdict.REJECT
        if not unknown:
            return Verdict.IGNORE
        addresses = await self._verifier.recover(b"".join([t.digest + t.signature for t in unknown]))
        with self._stages.measure("admit"):
            return self._admit(unknown, addresses)

    def _admit(self, unknown: list[Transaction], addresses: bytes) -> Verdict:
        admitted: list[Transaction] = []
        is_rejected = False
        for i, transaction in enumerate(unknown):
            transaction.sender = addresses[20 * i : 20 * i + 20]
            try:
                if self._ledger.admit_gossip(transaction):
                    admitted.append(transaction)
            except SENDER_FAULTS:
                is_rejected = True
            except InvalidTransaction:
                pass  # our state or pool, not the peer's fault
        if admitted:
            self._ledger.on_pool_changed()
        if is_rejected or len(admitted) < len(unknown):
            for transaction in admitted:
                self.enqueue(transaction.raw)
            return Verdict.REJECT if is_rejected else Verdict.IGNORE
        return Verdict.ACCEPT
