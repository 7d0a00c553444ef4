"""Receipts for carried bytes: a payer signs the total so far, a relay redeems the newest one (market.md 8.5).

A receipt says "this relay has carried so many bytes for me, at so much a GiB" and replaces every earlier one of
its channel. It is signed with the key that the payer's node certificate names, for the account's key may be
offline. Such a key may promise a part of what the account earns, never touch what it owns: see
``tasks.ledger.carriage``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from billing.errors import ReceiptInvalid
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import SIGNATURE_BYTES, SecretKey, recover_address

__all__ = [
    "CHANNEL_LIFE_MS",
    "CLOCK_SKEW_MS_MAX",
    "GIB",
    "PRICE_LIMIT",
    "RECEIPT_BYTES_MAX",
    "RECEIPT_LIFE_MS",
    "Receipt",
    "carriage_price",
]

GIB: Final = 2**30
RECEIPT_BYTES_MAX: Final = 320
RECEIPT_LIFE_MS: Final = 7 * 24 * 3_600_000
CHANNEL_LIFE_MS: Final = 30 * 24 * 3_600_000
"""Receipts of a channel count no longer than so long after it was opened."""
CLOCK_SKEW_MS_MAX: Final = 10 * 60_000
"""How far the clocks of payer, relay and chain may differ."""
PRICE_LIMIT: Final = 2**96
BYTES_LIMIT: Final = 2**63
TIME_LIMIT_MS: Final = 2**53
SEQUENCE_LIMIT: Final = 2**53

_KIND: Final = b"relay receipt"


def carriage_price(size_bytes: int, price_per_gib: int) -> int:
    """Return the price of carrying ``size_bytes``, rounded down."""
    return size_bytes * price_per_gib // GIB


@dataclass(frozen=True, slots=True)
class Receipt:
    """``payer`` owes ``relay`` for ``size_bytes`` carried on a channel since it was opened.

    ``channel`` is the handshake hash of the control connection on which the two agreed; ``opened_ms`` is when, by
    the payer's clock, and orders the channels of the two. ``sequence`` counts the receipts of the channel.
    """

    genesis_hash: bytes
    relay: bytes
    payer: bytes
    channel: bytes
    opened_ms: int
    sequence: int
    size_bytes: int
    price_per_gib: int
    not_after_ms: int
    signature: bytes = bytes(SIGNATURE_BYTES)

    @property
    def amount(self) -> int:
        """What the whole channel has cost so far."""
        return carriage_price(self.size_bytes, self.price_per_gib)

    def signed_by(self, signer: SecretKey) -> Receipt:
        """Return this receipt with ``signer``'s signature."""
        return replace(self, signature=signer.sign(self.signing_digest()))

    def _signed(self) -> list[Value]:
        return [
            self.genesis_hash, self.relay, self.payer, self.channel, self.opened_ms, self.sequence,
            self.size_bytes, self.price_per_gib, self.not_after_ms,
        ]  # fmt: skip

    def signing_digest(self) -> bytes:
        """Return what the payer signs: everything but the signature."""
        return digest(_KIND, encode(self._signed()))

    def encode(self) -> bytes:
        """Return the canonical bytes."""
        return encode([*self._signed(), self.signature])

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Return the receipt of its canonical bytes. Raises DecodeError; the signature is not checked here."""
        match decode(data, limit_bytes=RECEIPT_BYTES_MAX):
            case [
                bytes(genesis_hash), bytes(relay), bytes(payer), bytes(channel), int(opened_ms), int(sequence),
                int(size_bytes), int(price_per_gib), int(not_after_ms), bytes(signature),
            ] if (
                len(genesis_hash) == len(channel) == HASH_BYTES
                and len(relay) == len(payer) == ADDRESS_BYTES
                and 0 <= opened_ms < TIME_LIMIT_MS
                and 0 < sequence < SEQUENCE_LIMIT
                and 0 <= size_bytes < BYTES_LIMIT
                and 0 <= price_per_gib < PRICE_LIMIT
                and 0 <= not_after_ms < TIME_LIMIT_MS
                and len(signature) == SIGNATURE_BYTES
            ):  # fmt: skip
                return cls(
                    genesis_hash, relay, payer, channel, opened_ms, sequence, size_bytes, price_per_gib,
                    not_after_ms, signature,
                )  # fmt: skip
            case _:
                raise DecodeError("not a relay receipt")

    def check(self, *, genesis_hash: bytes, relay: bytes, payer: bytes, signer: bytes, now_ms: int) -> None:
        """Check that ``payer``, whose certificate names ``signer``, owes this to ``relay``.

        Raises ReceiptInvalid.
        """
        if (self.genesis_hash, self.relay, self.payer) != (genesis_hash, relay, payer):
            raise ReceiptInvalid("for another chain, relay or payer")
        if not now_ms < self.not_after_ms <= now_ms + RECEIPT_LIFE_MS + CLOCK_SKEW_MS_MAX:
            raise ReceiptInvalid("expired, or good for too long")
        # A channel from the future would be the newest of its pair for ever, and no later one could be settled.
        if not now_ms - CHANNEL_LIFE_MS < self.opened_ms <= now_ms + CLOCK_SKEW_MS_MAX:
            raise ReceiptInvalid("of a channel too old, or opened in the future")
        if self.payer == self.relay:
            raise ReceiptInvalid("a relay owes itself nothing")
        try:
            found = recover_address(self.signing_digest(), self.signature)
        except SignatureInvalid:
            raise ReceiptInvalid("bad signature") from None
        if found != signer:
            raise ReceiptInvalid("signed by another than the payer")
