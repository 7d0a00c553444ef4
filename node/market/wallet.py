"""The node's own transactions: signed with its account, resent until they are final."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import structlog
import trio

from state.primitives.codec import Value
from state.primitives.errors import DekubeError, InvalidTransaction
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.receipts import Receipt
from state.primitives.transactions import sign_transaction
from state.transition.errors import FeeCapTooLow, NonceTooLow

__all__ = ["TransactionFailed", "TransactionLost", "Wallet", "WalletChain"]

_log = structlog.get_logger("wallet")

FEE_HEADROOM: Final = 4
"""The fee cap in base fees: a block raises the base fee by an eighth at most: enough for eleven full ones."""
TIP_SHARE: Final = 8
"""The tip is this part of the base fee: among those that pay nothing beyond it, a deadline could be missed."""
FEE_RAISE: Final = 8
"""A replacement offers this part more, in cap and tip: pools take none for less than a tenth."""
RAISE_TRIES: Final = 3
"""Offers of one transaction before it is replaced by one that pays more; the base fee above its cap is enough."""
RAISES_MAX: Final = 8
"""Replacements for impatience: together at most 2.6 times the first offer."""
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


class WalletChain(Protocol):
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


class Offer(NamedTuple):
    """A signed transaction as it was offered to the pool."""

    nonce: int
    fee: int
    tip: int
    raw: bytes

    @property
    def hash(self) -> bytes:
        """The transaction's hash."""
        return keccak(self.raw)


def raised_fees(base_fee: int, before: Offer | None) -> tuple[int, int]:
    """Return fee cap and tip of an offer at this base fee; pools take it in the place of ``before``."""
    tip = max(1, base_fee // TIP_SHARE)
    fee = base_fee * FEE_HEADROOM + tip
    if before is not None:
        tip = max(tip, before.tip + -(-before.tip // FEE_RAISE))
        fee = max(fee, before.fee + -(-before.fee // FEE_RAISE))
    return fee, tip


class Wallet:
    """Sends transactions of one account, one nonce after the other."""

    def __init__(self, key: SecretKey, ledger: WalletChain) -> None:
        self.address = key.address
        self._key = key
        self._ledger = ledger
        self._lock = trio.Lock()

    def cost_of(self, *kinds: int) -> int:
        """Return what an account must have for transactions of these kinds, at their fee caps of this moment."""
        return raised_fees(self._ledger.base_fee(), None)[0] * sum(self._ledger.gas_of(kind) for kind in kinds)

    def sign_digest(self, digest: bytes) -> bytes:
        """Sign what is no transaction: ``digest`` must be of a domain of its own."""
        return self._key.sign(digest)

    async def send(self, kind: int, payload: list[Value]) -> Receipt:
        """Sign, submit and wait until final.

        Raises InvalidTransaction when the pool refuses it, TransactionFailed when its rule does, TransactionLost.
        """
        offers: list[Offer] = []  # every one of them may become final, whatever replaced it here
        is_lost = True
        tries = raises = 0
        for attempt in range(RESENDS_MAX):
            refusal: InvalidTransaction | None = None
            async with self._lock:  # a nonce belongs to one transaction: signing and admission are one step
                pending = self._ledger.pending_nonce(self.address)
                if is_lost or pending < offers[-1].nonce:  # never sent, or lost with one before it
                    offers.append(self._sign(pending, kind, payload, None))
                    is_lost, tries = False, 0
                elif self._ledger.base_fee() > offers[-1].fee or (tries >= RAISE_TRIES and raises < RAISES_MAX):
                    tries, raises = 0, raises + 1
                    await self._replace(offers, kind, payload)
                tries += 1
                try:
                    await self._ledger.submit_own(offers[-1].raw, self.address)
                except InvalidTransaction as error:
                    if not attempt:
                        raise
                    refusal = error  # it may have become final while this waited for the lock
            receipt = await self._wait_any(offers, RESEND_S if refusal is None else 0)
            if receipt is not None:
                if receipt.status != 1:
                    raise TransactionFailed(receipt.reason or "unknown")
                return receipt
            if isinstance(refusal, NonceTooLow):  # lost, and another took its nonce: it can never become final
                is_lost = True
            elif refusal is not None and not isinstance(refusal, FeeCapTooLow):
                raise refusal
            _log.warning("transaction not final yet", hash=offers[-1].hash, kind=kind, attempt=attempt)
        raise TransactionLost(f"kind {kind:#x} did not become final in {RESENDS_MAX} tries")

    async def _replace(self, offers: list[Offer], kind: int, payload: list[Value]) -> None:
        """Offer more for the last transaction; where account or pool do not bear it, it stays as it is."""
        offer = self._sign(offers[-1].nonce, kind, payload, offers[-1])
        try:
            await self._ledger.submit_own(offer.raw, self.address)
        except InvalidTransaction as error:
            _log.warning("a higher fee was refused", hash=offers[-1].hash, code=error.code)
        else:
            offers.append(offer)

    async def _wait_any(self, offers: Sequence[Offer], timeout_s: float) -> Receipt | None:
        """Return the receipt of the first of ``offers`` that is final, or None where none becomes so in time."""
        found: list[Receipt] = []

        async def wait(offer: Offer) -> None:
            found.append(await self._ledger.wait_receipt(offer.hash))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + timeout_s
            for offer in offers:
                nursery.start_soon(wait, offer)
        return found[0] if found else None

    def _sign(self, nonce: int, kind: int, payload: list[Value], before: Offer | None) -> Offer:
        fee, tip = raised_fees(self._ledger.base_fee(), before)
        raw = sign_transaction(
            self._key,
            chain_id=self._ledger.chain_id,
            nonce=nonce,
            kind=kind,
            payload=payload,
            gas_limit=self._ledger.gas_of(kind),
            max_fee_per_gas=fee,
            max_priority_fee_per_gas=tip,
        )
        return Offer(nonce, fee, tip, raw)
