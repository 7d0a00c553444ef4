"""Metering of carried bytes, without I/O: both ends count, the payer signs receipts, the relay stops without them.

The payer is the dialler (network.md 11). It signs its own count; the relay's count is a claim, which the payer
accepts within limits. A relay with price 0 meters nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from billing.errors import ReceiptInvalid
from billing.relay import CLOCK_SKEW_MS_MAX, RECEIPT_LIFE_MS, Receipt
from p2p.secure.identity import Identity, NodeCertificate
from relay.protocol.errors import RelayProtocolError
from state.primitives.errors import DecodeError

__all__ = [
    "ACCOUNTS_MAX",
    "CHANNEL_AGE_MS_MAX",
    "CLAIM_PERCENT",
    "PAY_BYTES",
    "PAY_MS",
    "FreeTier",
    "PayerMeter",
    "RelayMeter",
    "Tariff",
]

PAY_BYTES: Final = 16 * 2**20
"""A payer signs a new receipt after this many bytes, ..."""
PAY_MS: Final = 10_000
"""... or after this time, whichever comes first."""
CLAIM_PERCENT: Final = 2
CLAIM_BYTES: Final = 16 * 2**20
"""How much more than its own count a payer accepts, for example bytes under way when circuits broke."""
AHEAD_BYTES_MAX: Final = 64 * 2**20
"""Limit of bytes signed before they were carried: a payer also signs for bytes in buffers, so some are usual."""
ACCOUNTS_MAX: Final = 65_536
CHANNEL_AGE_MS_MAX: Final = 7 * 24 * 3_600_000
"""Maximum age of a payment channel: later its payer's certificate expires and the chain takes no receipt of it."""
SETTLE_MS: Final = 24 * 3_600_000
"""Minimum remaining validity of a payer's certificate, to leave time to settle."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """The price of a relay per GiB of both directions, its free tier, and its limits of unpaid bytes."""

    price_per_gib: int = 0
    free_bytes: int = 4 * 2**20
    """Free in each circuit, ..."""
    free_ms: int = 120_000
    """... within this time from its start: enough to punch a hole or to fetch headers."""
    unpaid_bytes_max: int = 64 * 2**20
    """Unpaid bytes of one payer at which the relay stops carrying for it."""
    unpaid_ms_max: int = 30_000
    """How long a circuit stopped for want of payment is kept."""


class FreeTier:
    """The free bytes of one circuit; the relay and the payer calculate them the same way."""

    __slots__ = ("_left", "_until_ms")

    def __init__(self, tariff: Tariff, started_ms: int) -> None:
        self._left = tariff.free_bytes
        self._until_ms = started_ms + tariff.free_ms

    def charge(self, size_bytes: int, now_ms: int) -> int:
        """Return how many of ``size_bytes`` that were carried just now are to be paid."""
        if now_ms >= self._until_ms:
            return size_bytes
        free = min(size_bytes, self._left)
        self._left -= free
        return size_bytes - free


@dataclass(slots=True, eq=False)
class _PayerUsage:
    charged: int = 0
    paid: int = 0
    last: Receipt | None = None
    """The newest receipt of the newest channel: none of an older one can be settled after it."""
    told: int | None = None
    """Of what ``charged`` the payer was last told on its present channel."""

    @property
    def unpaid(self) -> int:
        return self.charged - self.paid


class RelayMeter:
    """A relay's count of what each payer was carried and has paid."""

    def __init__(self, tariff: Tariff, *, genesis_hash: bytes, relay: bytes) -> None:
        self.tariff = tariff
        self._genesis_hash = genesis_hash
        self._relay = relay
        self._accounts: OrderedDict[bytes, _PayerUsage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    def charge(self, payer: bytes, size_bytes: int) -> None:
        """Count bytes carried for ``payer`` beyond the free tier."""
        if not size_bytes or not self.tariff.price_per_gib:
            return
        account = self._accounts.get(payer)
        if account is None:
            account = self._accounts[payer] = _PayerUsage()
            while len(self._accounts) > ACCOUNTS_MAX:
                self._accounts.popitem(last=False)
        else:
            self._accounts.move_to_end(payer)
        account.charged += size_bytes

    def unpaid(self, payer: bytes) -> int:
        """Return the bytes that ``payer`` owes; a negative number was paid in advance."""
        account = self._accounts.get(payer)
        return 0 if account is None else account.unpaid

    def charged(self, payer: bytes) -> int:
        """Return the bytes carried for ``payer`` beyond the free tier, paid or not."""
        account = self._accounts.get(payer)
        return 0 if account is None else account.charged

    def has_carried(self, payer: bytes) -> bool:
        """Tell whether anything was carried for ``payer`` beyond the free tier."""
        return self.charged(payer) > 0

    @property
    def unpaid_bytes(self) -> int:
        """The bytes that all payers together owe, without those paid in advance."""
        return sum(max(0, account.unpaid) for account in self._accounts.values())

    def is_served(self, payer: bytes) -> bool:
        """Tell whether ``payer`` owes less than this relay carries without payment."""
        return self.unpaid(payer) < self.tariff.unpaid_bytes_max

    def opened(self, payer: bytes) -> None:
        """Note that ``payer`` opened a new channel."""
        account = self._accounts.get(payer)
        if account is not None:
            account.told = None

    def claim(self, payer: bytes, channel: bytes) -> int | None:
        """Return the bytes that ``payer`` should sign for on ``channel``; None: no claim is due yet."""
        account = self._accounts.get(payer)
        if account is None or account.unpaid < min(2 * PAY_BYTES, self.tariff.unpaid_bytes_max // 2):
            return None
        step = min(PAY_BYTES, self.tariff.unpaid_bytes_max // 4)  # or a stopped payer would get no further claim
        if account.told is not None and account.charged - account.told < step:
            return None
        account.told = account.charged
        last = account.last
        return account.unpaid + (last.size_bytes if last is not None and last.channel == channel else 0)

    def take(
        self,
        payer: bytes,
        certificate: NodeCertificate,
        channel: bytes,
        data: bytes,
        *,
        opened_ms: int,
        now_ms: int,
    ) -> Receipt | None:
        """Take a receipt received over ``channel``, opened at ``opened_ms``; None: it adds nothing.

        Raises RelayProtocolError for a receipt that is not valid for this payer, channel and price, or that could
        not be settled: it expires too soon, or is not of the payer's newest channel.
        """
        try:
            receipt = Receipt.decode(data)
            if receipt.channel != channel or receipt.price_per_gib != self.tariff.price_per_gib:
                raise ReceiptInvalid("the receipt is for another channel or price")
            if abs(receipt.opened_ms - opened_ms) > CLOCK_SKEW_MS_MAX:
                raise ReceiptInvalid("the receipt gives another opening time of its channel")
            if (
                receipt.not_after_ms < now_ms + RECEIPT_LIFE_MS - 2 * CLOCK_SKEW_MS_MAX
                or certificate.not_after_ms < now_ms + SETTLE_MS
            ):
                raise ReceiptInvalid("the receipt or its certificate expires too soon")
            receipt.check(
                genesis_hash=self._genesis_hash, relay=self._relay, payer=payer, signer=certificate.signer,
                now_ms=now_ms,
            )  # fmt: skip
        except (DecodeError, ReceiptInvalid) as error:
            raise RelayProtocolError(str(error)) from None
        account = self._accounts.get(payer)
        if not receipt.amount or (account is None and len(self._accounts) >= ACCOUNTS_MAX):
            return None  # worth nothing, or of an unknown payer who would displace a debtor
        if account is None:
            account = self._accounts[payer] = _PayerUsage()
        last = account.last
        known_bytes = 0
        if last is not None and last.channel == channel:
            if receipt.opened_ms != last.opened_ms:
                raise RelayProtocolError("two receipts of one channel give different opening times")
            if receipt.sequence <= last.sequence or receipt.size_bytes <= last.size_bytes:
                return None
            known_bytes = last.size_bytes
        elif last is not None and receipt.opened_ms <= last.opened_ms:
            raise RelayProtocolError("the receipt is of an older channel than the last one paid on")
        # Advance payment is limited: if this payer was forgotten, its old bytes would count twice.
        paid = account.paid + receipt.size_bytes - known_bytes
        account.paid = min(paid, account.charged + AHEAD_BYTES_MAX)
        account.last = receipt
        return receipt


class PayerMeter:
    """A payer's own count of what one relay carried for it, over all connections to that relay."""

    def __init__(self, relay: bytes) -> None:
        self.relay = relay
        self.tariff: Tariff | None = None
        """The relay's terms; None until they arrive."""
        self.size_bytes = 0
        """Bytes counted here beyond the free tier."""
        self._published = 0
        self._granted = 0
        self._settled = 0
        self._channel = b""
        self._opened_ms = 0
        self._sequence = 0
        self._signed = 0
        self._signed_at_ms = 0
        self._is_pressed = False

    @property
    def channel(self) -> bytes:
        """The channel for which receipts are signed now."""
        return self._channel

    def opened(self, channel: bytes, opened_ms: int, now_ms: int) -> None:
        """Begin a channel; what was not signed on the previous one is signed on this one."""
        self._settled += self._signed
        self._channel = channel
        self._opened_ms = max(opened_ms, self._opened_ms + 1)
        self._sequence = self._signed = 0
        self._signed_at_ms = now_ms

    def published(self, size_bytes: int) -> None:
        """Note the bytes of a published piece with all its copies: the relay may claim as much more.

        Only the relay knows how many members were connected, so nothing of this is signed without a claim.
        """
        self._published += size_bytes

    def claimed(self, size_bytes: int) -> bool:
        """Take the relay's claim for the channel, accept it within limits; return whether it was within them."""
        bound = CLAIM_BYTES + self.size_bytes * CLAIM_PERCENT // 100 + self._published
        missing = size_bytes - (self.size_bytes - self._settled)
        self._granted = max(self._granted, min(missing, bound))
        self._is_pressed = True
        return missing <= bound

    def due(self, payer: Identity, now_ms: int, wall_ms: int) -> Receipt | None:
        """Return the receipt to send now; None: none is due."""
        if self.tariff is None or not self.tariff.price_per_gib or not self._channel:
            return None
        total = self.size_bytes - self._settled + self._granted
        unsigned = total - self._signed
        step = min(PAY_BYTES, self.tariff.unpaid_bytes_max // 4)
        is_time = self._is_pressed or unsigned >= step or now_ms - self._signed_at_ms >= PAY_MS
        if unsigned <= 0 or not is_time:
            return None
        self._is_pressed = False
        self._sequence += 1
        self._signed, self._signed_at_ms = total, now_ms
        return Receipt(
            payer.genesis_hash, self.relay, payer.address, self._channel, self._opened_ms, self._sequence, total,
            self.tariff.price_per_gib, wall_ms + RECEIPT_LIFE_MS,
        ).signed_by(payer.signer)  # fmt: skip
