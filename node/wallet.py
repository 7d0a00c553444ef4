"""The node's own transactions: signed with its account, resent until they are final."""

from __future__ import annotations

from typing import Final, Protocol

import structlog
import trio

from state.primitives.codec import Value
from state.primitives.errors import DekubeError, InvalidTransaction
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.receipts import Receipt
from state.primitives.transactions import sign_transaction
from state.transition.errors import NonceTooLow

__all__ = ["Ledger", "TransactionFailed", "TransactionLost", "Wallet"]

_log = structlog.get_logger("wallet")

FEE_HEADROOM: Final = 4
"""The fee cap in base fees: a block raises the base fee by an eighth at most: enough for eleven full ones."""
RESEND_S: Final = 10.0
"""How long a transaction may take to become final before it is offered again."""
RESENDS_MAX: Final = 30


class TransactionFailed(DekubeError):
    """A final transaction whose rule refused it; ``code`` is the rule's reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the transaction failed: {reason}")
        self.code = reason  # type: ignore[misc]  # the reason is the code


class TransactionLost(DekubeError):
    """A transaction that did not become final in all its tries."""

    code = "transaction_lost"


class Ledger(Protocol):
    """What a wallet needs of the node."""

    chain_id: int

    def base_fee(self) -> int:
        """Return the base fee of the next block."""
        ...

    def gas_of(self, kind: int) -> int:
        """Return the weight of a kind."""
        ...

    def pending_nonce(self, address: bytes) -> int:
        """Return the nonce of the next transaction of ``address``."""
        ...

    async def submit_own(self, raw: bytes, sender: bytes) -> bytes:
        """Admit a transaction to the mempool, or find it there, and pass it on; return its hash.

        Raises InvalidTransaction.
        """
        ...

    async def wait_receipt(self, transaction_hash: bytes) -> Receipt:
        """Return the receipt as soon as the transaction is final."""
        ...


class Wallet:
    """Sends transactions of one account, one nonce after the other."""

    def __init__(self, key: SecretKey, ledger: Ledger) -> None:
        self.address = key.address
        self._key = key
        self._ledger = ledger
        self._lock = trio.Lock()

    async def send(self, kind: int, payload: list[Value]) -> Receipt:
        """Sign, submit and wait until final.

        Raises InvalidTransaction when the pool refuses it, TransactionFailed when its rule does, TransactionLost.
        """
        raw, nonce = b"", -1
        for attempt in range(RESENDS_MAX):
            refusal: InvalidTransaction | None = None
            async with self._lock:  # a nonce belongs to one transaction: signing and admission are one step
                pending = self._ledger.pending_nonce(self.address)
                if pending <= nonce or not raw:  # never sent, or lost by the pool
                    nonce = pending
                    raw = self._sign(nonce, kind, payload)
                try:
                    await self._ledger.submit_own(raw, self.address)
                except InvalidTransaction as error:
                    if not attempt:
                        raise
                    refusal = error  # it may have become final while this waited for the lock
            with trio.move_on_after(RESEND_S if refusal is None else 0):
                receipt = await self._ledger.wait_receipt(keccak(raw))
                if receipt.status != 1:
                    raise TransactionFailed(receipt.reason or "unknown")
                return receipt
            if isinstance(refusal, NonceTooLow):  # lost, and another took its nonce: it can never become final
                raw = b""
            elif refusal is not None:
                raise refusal
            _log.warning("transaction not final yet", hash=keccak(raw), kind=kind, attempt=attempt)
        raise TransactionLost(f"kind {kind:#x} did not become final in {RESENDS_MAX} tries")

    def _sign(self, nonce: int, kind: int, payload: list[Value]) -> bytes:
        return sign_transaction(
            self._key,
            chain_id=self._ledger.chain_id,
            nonce=nonce,
            kind=kind,
            payload=payload,
            gas_limit=self._ledger.gas_of(kind),
            max_fee_per_gas=self._ledger.base_fee() * FEE_HEADROOM,
        )
