"""Gossip of transactions in batches; each is checked before it is forwarded (network.md R14)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import trio

from node.chain.ledger import NodeLedger
from node.process.signature_pool import SignatureVerifier
from node.telemetry.cpu_accounting import CpuAccounting
from p2p.gossip.core import Verdict
from p2p.service import GossipItem
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, InvalidTransaction
from state.primitives.transactions import TRANSACTION_LIMIT_BYTES, Transaction, decode_transaction
from state.transition.errors import (
    CallRefused,
    IntrinsicGasTooLow,
    InvalidPayload,
    SenderUnknown,
    UnknownKind,
    WrongChain,
)

__all__ = ["BATCH_BYTES_MAX", "BATCH_MAX", "TransactionGossip", "decode_batch", "encode_batch"]

BATCH_MAX: Final = 256
BATCH_BYTES_MAX: Final = 64 * 1024
"""A batch is closed before it exceeds this size. A single larger transaction is sent alone."""
BATCH_LIMIT_BYTES: Final = BATCH_BYTES_MAX + TRANSACTION_LIMIT_BYTES
TURN_BYTES_MAX: Final = 128 * 1024
"""Bytes of waiting batches that are checked before other tasks of the node run."""
OUTGOING_MAX: Final = 50_000
"""Transactions that wait to be sent. Beyond this limit the oldest is dropped; other nodes have it."""
FLUSH_S: Final = 0.02
"""Time that a transaction waits for others to share its batch."""
FAULTS_BY_VERSION: Final = (CallRefused, UnknownKind, InvalidPayload, IntrinsicGasTooLow)
SENDER_FAULTS: Final = (WrongChain, SenderUnknown, *FAULTS_BY_VERSION)
"""Faults that a peer can see without this node's state; they count against the peer. Those by version count only
if both use the same protocol version."""


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
    """Gossips transactions that the ledger admits, and admits transactions of peers."""

    def __init__(
        self, ledger: NodeLedger, verifier: SignatureVerifier, publish: Callable[[bytes], None],
        stages: CpuAccounting, *, is_outdated: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """``is_outdated``: whether the network is about to activate a protocol version that this release does not
        know.
        """
        self._stages = stages
        self._is_outdated = is_outdated
        self._ledger = ledger
        self._verifier = verifier
        self._publish = publish
        self._outgoing: deque[bytes] = deque(maxlen=OUTGOING_MAX)
        self._wake = trio.Event()

    def enqueue(self, raw: bytes) -> None:
        """Send a transaction with the next batch."""
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

    async def validate(self, items: Sequence[GossipItem]) -> list[Verdict]:
        """Check peers' batches, several signatures at once.

        A batch is forwarded unchanged if all of it is valid and something is new. Of a partly valid batch, the
        valid part is forwarded in a new batch.
        """
        verdicts: list[Verdict] = []
        while len(verdicts) < len(items):
            size, end = 0, len(verdicts)
            while end < len(items) and (not size or size + len(items[end].payload) <= TURN_BYTES_MAX):
                size += len(items[end].payload)
                end += 1
            verdicts += await self._validate(items[len(verdicts) : end])
            await trio.lowlevel.checkpoint()
        return verdicts

    async def _validate(self, items: Sequence[GossipItem]) -> list[Verdict]:
        with self._stages.measure("admit"):
            batches = [self._read(item.payload) for item in items]
            fresh = {
                transaction.raw: transaction
                for batch in batches if isinstance(batch, list) for transaction in batch if not transaction.sender
            }  # fmt: skip
            unknown = list(fresh.values())
        if unknown:
            addresses = await self._verifier.recover(b"".join([t.digest + t.signature for t in unknown]))
            for i, transaction in enumerate(unknown):
                transaction.sender = addresses[20 * i : 20 * i + 20]
        with self._stages.measure("admit"):
            verdicts = [self._admit(batch, fresh) if isinstance(batch, list) else batch for batch in batches]
        self._ledger.on_pool_changed()
        return verdicts

    def _read(self, payload: bytes) -> list[Transaction] | Verdict:
        """Return the transactions of a batch that are not in the mempool, or the verdict on an invalid batch."""
        try:
            raws = decode_batch(payload)
        except DecodeError:
            return Verdict.REJECT
        try:
            transactions = []
            for raw in raws:
                if self._ledger.mempool.find(raw) is None:
                    known = self._ledger.find(raw)
                    transactions.append(known.transaction if known is not None else decode_transaction(raw))
            return transactions
        except DecodeError:
            return Verdict.IGNORE if self._is_outdated() else Verdict.REJECT

    def _admit(self, transactions: Sequence[Transaction], fresh: Mapping[bytes, Transaction]) -> Verdict:
        admitted: list[Transaction] = []
        is_rejected = False
        for transaction in transactions:
            # Of what two batches brought at once one was recovered.
            transaction = fresh.get(transaction.raw, transaction)
            known = self._ledger.find(transaction.raw)
            try:
                if known is not None:
                    is_new = self._ledger.admit_checked(known)
                else:
                    is_new = self._ledger.admit_gossip(transaction)
                if is_new:
                    admitted.append(transaction)
            except SENDER_FAULTS as error:
                is_rejected |= not (isinstance(error, FAULTS_BY_VERSION) and self._is_outdated())
            except InvalidTransaction:
                pass  # our state or pool, not the peer's fault
        if not admitted or is_rejected or len(admitted) < len(transactions):
            for transaction in admitted:
                self.enqueue(transaction.raw)
            return Verdict.REJECT if is_rejected else Verdict.IGNORE
        return Verdict.ACCEPT
