"""Transactions between nodes: gossiped in batches, checked before they are passed on (network.md R14)."""

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
"""A batch is closed when it would pass this; a single larger transaction travels alone."""
BATCH_LIMIT_BYTES: Final = BATCH_BYTES_MAX + TRANSACTION_LIMIT_BYTES
TURN_BYTES_MAX: Final = 128 * 1024
"""Of the batches that wait, what is checked before the rest of the node has its turn."""
OUTGOING_MAX: Final = 50_000
"""Transactions that wait to be passed on; beyond it the oldest is left to its other holders."""
FLUSH_S: Final = 0.02
"""How long a transaction waits for company."""
FAULTS_BY_VERSION: Final = (CallRefused, UnknownKind, InvalidPayload, IntrinsicGasTooLow)
SENDER_FAULTS: Final = (WrongChain, SenderUnknown, *FAULTS_BY_VERSION)
"""What a peer that checked could have seen without our state: these count against it, but those by version only
where the version of the protocol is ours."""


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
        self, ledger: NodeLedger, verifier: SignatureVerifier, publish: Callable[[bytes], None],
        stages: CpuAccounting, *, is_outdated: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """``is_outdated``: whether the network is about to go on in a version that this software does not know."""
        self._stages = stages
        self._is_outdated = is_outdated
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

    async def validate(self, items: Sequence[GossipItem]) -> list[Verdict]:
        """Check the batches of peers, the signatures of several at once.

        A batch goes on as it is when all of it is good and something is new. Of one that is partly of use the good
        part goes on in a batch of our own.
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
        """Return what of a batch is not in the mempool, or the verdict on what is no batch of transactions."""
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
