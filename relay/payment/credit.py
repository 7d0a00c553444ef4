"""Credit: how much a relay with a price carries for each payer before it is paid, without I/O (network.md R27).

A signed receipt is worth what its signer can pay (docs/decisions/0047-relay-pay.md). The chain tells what that is:
a deposit for carriage, or the earnings of a bonded machine. For a payer with either, the relay carries until a
limit of uncollected payment, signed or not. A payer with neither is *unfunded*. Identities cost nothing, so
unfunded payers are limited by the network that they come from.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from billing.relay import Receipt, carriage_price
from relay.payment.metering import ACCOUNTS_MAX, RelayMeter
from relay.protocol.limits import HostUse
from state.primitives.address import parse_address
from state.primitives.errors import ConfigError, DecodeError

__all__ = ["UNKNOWN_FUNDS", "Credit", "CreditOptions", "PayerFunds", "SettlementGateway", "UnfundedUsage"]

DAY_MS: Final = 24 * 3_600_000
FRESH_MS: Final = 60_000
"""The funds of an active payer are requested again after this time ..."""
VALID_MS: Final = 30 * 60_000
"""... and are valid for this long at most, if no node answers."""
ASK_AGAIN_MS: Final = 15_000
"""Minimum interval between two requests about one payer, whatever the result."""
RETRY_MS: Final = 10 * 60_000
"""Wait before receipts of a payer are tried again that could not all be settled."""
CHANNELS_MAX: Final = 64
"""Unsettled channels of one payer that are counted separately."""
NETWORKS_MAX: Final = 65_536
WANTED_NETWORKS_MAX: Final = 4_096
WANTED_PER_NETWORK_MAX: Final = 64
EVICTION_LOOK: Final = 16


@dataclass(frozen=True, slots=True)
class CreditOptions:
    """Limits of credit at a relay with a price; ``Tariff.unpaid_bytes_max`` holds for all payers as well."""

    unfunded_bytes_per_payer: int = 4 * 2**20
    """Bytes carried for one unfunded payer beyond the free tiers of its circuits, signed or not."""
    unfunded_bytes_per_network_day: int = 2**30
    """Bytes per day for all unfunded payers of one network (an IPv4 /24, an IPv6 /48), free tiers included."""
    unfunded_bytes_per_day: int = 64 * 2**30
    """Bytes per day for all unfunded payers together: there are many IPv6 networks."""
    promise_bytes_max: int = 4 * 2**30
    """Bytes that an earning bonded machine may have signed for and the chain has not paid."""
    deposit_percent: int = 25
    """Part of a payer's free deposit that may be uncollected here: other relays rely on the same deposit."""
    settle_s: int = 6 * 3_600
    """Longest wait before receipts worth their fee are settled; at half of the payer's limit there is no wait."""
    allowed: tuple[str, ...] = ()
    """Addresses carried without funds on the chain, like trusted networks."""

    @property
    def allowed_addresses(self) -> frozenset[bytes]:
        """Return ``allowed`` as bytes. Raises ConfigError if one is not an address."""
        try:
            return frozenset(map(parse_address, self.allowed))
        except DecodeError as error:
            raise ConfigError(f"credit.allowed: {error}") from None


class PayerFunds(NamedTuple):
    """What a payer can pay to one relay, as the chain says."""

    deposit: int
    """Its deposit, without what it is withdrawing."""
    dues: int
    """Settled but unpaid amounts that it owes to all relays."""
    due_here: int
    is_earning: bool
    has_room: bool
    """Whether the chain takes this relay's receipts: a payer may owe a limited number of relays."""
    channel: bytes
    """The newest channel settled with this relay; then its opening time and its amount."""
    opened_ms: int
    amount: int
    withdrawing: int = 0
    """The part of its deposit being withdrawn: it gives no credit, but pays receipts until it is paid out."""

    @property
    def can_pay(self) -> bool:
        """Whether settling its receipts is worth a fee."""
        return self.has_room and (self.deposit + self.withdrawing > 0 or self.is_earning)

    def limit(self, options: CreditOptions, price_per_gib: int) -> int:
        """Return the amount that may be uncollected at this relay."""
        if not self.has_room:
            return 0
        backed = max(0, self.deposit - (self.dues - self.due_here)) * options.deposit_percent // 100
        return backed + (carriage_price(options.promise_bytes_max, price_per_gib) if self.is_earning else 0)


UNKNOWN_FUNDS: Final = PayerFunds(0, 0, 0, False, True, b"", -1, 0)


class SettlementGateway(Protocol):
    """A relay's access to the chain: what payers can pay, and the settlement of their receipts.

    Threads call it. Each call may block, and raises SettlementUnavailable where no node answers.
    """

    def funds(self, payer: bytes) -> PayerFunds:
        """Return what ``payer`` can pay."""
        ...

    def fee(self) -> int:
        """Return what settling one receipt costs now."""
        ...

    def settle(self, receipt: Receipt, certificate: bytes) -> str | None:
        """Settle a receipt on the chain and wait until that is final; return why it was refused, or None."""
        ...


class UnfundedUsage:
    """Bytes carried for unfunded payers today, by network.

    Networks beyond the limit of the table get nothing today.
    """

    def __init__(self, options: CreditOptions) -> None:
        self._options = options
        self._day = -1
        self._used: dict[str, int] = {}
        self.size_bytes = 0
        """Bytes carried for all unfunded payers today."""

    def _turn(self, now_ms: int) -> None:
        if now_ms // DAY_MS != self._day:
            self._day = now_ms // DAY_MS
            self._used.clear()
            self.size_bytes = 0

    def has_room(self, network: str, now_ms: int) -> bool:
        """Tell whether the relay still carries for unfunded payers of ``network`` today."""
        self._turn(now_ms)
        used = self._used.get(network)
        if used is None:
            used = 0 if len(self._used) < NETWORKS_MAX else self._options.unfunded_bytes_per_network_day
        return (
            used < self._options.unfunded_bytes_per_network_day
            and self.size_bytes < self._options.unfunded_bytes_per_day
        )

    def carried(self, network: str, size_bytes: int, now_ms: int) -> None:
        """Count bytes carried for an unfunded payer."""
        self._turn(now_ms)
        self.size_bytes += size_bytes
        if network in self._used or len(self._used) < NETWORKS_MAX:
            self._used[network] = self._used.get(network, 0) + size_bytes


@dataclass(slots=True, eq=False)
class _Payer:
    funds: PayerFunds = UNKNOWN_FUNDS
    learned_ms: int = -VALID_MS
    asked_ms: int = -ASK_AGAIN_MS
    pending: OrderedDict[bytes, tuple[int, int]] = field(default_factory=OrderedDict)
    """Unsettled receipts by channel: its opening time and amount."""
    signed: int = 0
    """The sum of them that is not settled yet."""
    since_ms: int = 0
    """Since when that sum is above 0."""
    not_before_ms: int = 0
    """Its receipts are not settled (again) before this time."""

    def reckon(self, now_ms: int) -> None:
        """Forget channels that are settled or can no longer be, and add up the rest."""
        known = self.funds
        for channel, (opened_ms, _) in list(self.pending.items()):
            if channel != known.channel and opened_ms <= known.opened_ms:
                del self.pending[channel]
        before = self.signed
        self.signed = sum(
            max(0, amount - (known.amount if channel == known.channel else 0))
            for channel, (_, amount) in self.pending.items()
        )
        if not before and self.signed:
            self.since_ms = now_ms

    @property
    def is_unfunded(self) -> bool:
        return not self.funds.can_pay


class Credit:
    """Decides for which payers a relay carries. With price 0 it carries for everybody.

    Raises ConfigError for options out of range.
    """

    def __init__(self, options: CreditOptions, meter: RelayMeter) -> None:
        self.options = options
        self.unfunded = UnfundedUsage(options)
        self._allowed = options.allowed_addresses
        if not 0 <= options.deposit_percent <= 100:
            raise ConfigError(f"credit.deposit_percent: {options.deposit_percent}: 0 to 100 expected")
        self._meter = meter
        self._price = meter.tariff.price_per_gib
        self._payers: OrderedDict[bytes, _Payer] = OrderedDict()
        self._lookups: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._payers)

    def _is_trusted(self, payer: bytes, host: HostUse) -> bool:
        return host.is_trusted or payer in self._allowed

    def _payer(self, address: bytes) -> _Payer:
        found = self._payers.get(address)
        if found is None:
            found = self._payers[address] = _Payer()
            if len(self._payers) > ACCOUNTS_MAX:
                self._forget_one()
        else:
            self._payers.move_to_end(address)
        return found

    def _forget_one(self) -> None:
        """Forget an old unfunded payer, or else the payer unused for the longest time."""
        oldest = [address for address, _ in zip(self._payers, range(EVICTION_LOOK), strict=False)]
        unfunded = (address for address in oldest if self._payers[address].is_unfunded)
        del self._payers[next(unfunded, oldest[0])]

    # Whether to carry

    def payer_connected(self, payer: bytes, host: HostUse, now_ms: int) -> None:
        """Note that ``payer`` connected and may dial soon."""
        if self._price and not self._is_trusted(payer, host):
            self._look_up(payer, host, now_ms)

    def _look_up(self, address: bytes, host: HostUse, now_ms: int) -> _Payer:
        payer = self._payer(address)
        if now_ms - payer.learned_ms >= FRESH_MS and now_ms - payer.asked_ms >= ASK_AGAIN_MS:
            waiting = self._lookups.get(host.network)
            if waiting is None and len(self._lookups) < WANTED_NETWORKS_MAX:
                waiting = self._lookups[host.network] = OrderedDict()
            if waiting is not None and len(waiting) < WANTED_PER_NETWORK_MAX:
                waiting[address] = None
        return payer

    def _covers(self, address: bytes, payer: _Payer, now_ms: int) -> bool:
        """Tell whether a payer's funds cover what is uncollected from it at this relay."""
        if now_ms - payer.learned_ms >= VALID_MS:
            return False
        funds = payer.funds
        unpaid = self._meter.unpaid(address)  # below 0: paid in advance
        price = carriage_price(abs(unpaid), self._price)
        uncollected = funds.due_here + payer.signed + (price if unpaid > 0 else -price)
        return uncollected < funds.limit(self.options, self._price)

    def is_served(self, payer: bytes, host: HostUse, now_ms: int) -> bool:
        """Tell whether the relay still carries for ``payer``, connected from ``host``."""
        if not self._price:
            return True
        if not self._meter.is_served(payer):
            return False
        if self._is_trusted(payer, host) or self._covers(payer, self._look_up(payer, host, now_ms), now_ms):
            return True
        return self._meter.charged(payer) < self.options.unfunded_bytes_per_payer and self.unfunded.has_room(
            host.network, now_ms
        )

    def is_unfunded(self, payer: bytes, host: HostUse, now_ms: int) -> bool:
        """Tell whether ``payer`` has no funds for what is carried, so that the limits of unfunded payers apply."""
        if not self._price or self._is_trusted(payer, host):
            return False
        return not self._covers(payer, self._look_up(payer, host, now_ms), now_ms)

    def carried(self, payer: bytes, host: HostUse, size_bytes: int, now_ms: int) -> None:
        """Count bytes carried, free or not: unfunded payers use up the limit of their network."""
        if self.is_unfunded(payer, host, now_ms):
            self.unfunded.carried(host.network, size_bytes, now_ms)

    # Receipts

    def signed(self, receipt: Receipt, now_ms: int) -> None:
        """Record a receipt that was received, or loaded from disk."""
        payer = self._payer(receipt.payer)
        payer.pending[receipt.channel] = receipt.opened_ms, receipt.amount
        if len(payer.pending) > CHANNELS_MAX:
            # Merge the two oldest with the later opening time: the payer owes too much that way, never too little.
            (_, (_, amount)) = payer.pending.popitem(last=False)
            channel, (opened_ms, more) = payer.pending.popitem(last=False)
            payer.pending[channel] = opened_ms, amount + more
            payer.pending.move_to_end(channel, last=False)
        payer.reckon(now_ms)

    def due_for_settlement(self, fee: int, now_ms: int, limit: int) -> list[bytes]:
        """Return up to ``limit`` payers whose receipts should be settled now."""
        found: list[bytes] = []
        for address, payer in self._payers.items():
            if len(found) >= limit:
                break
            if not payer.signed or payer.signed < fee or now_ms < payer.not_before_ms:
                continue
            allowed = payer.funds.limit(self.options, self._price)
            is_leaving = payer.funds.withdrawing > 0
            is_old = now_ms - payer.since_ms >= self.options.settle_s * 1000
            if is_leaving or is_old or 0 < allowed <= 2 * payer.signed:
                found.append(address)
        return found

    @property
    def has_unsettled(self) -> bool:
        """Whether any payer has unsettled receipts."""
        return any(payer.signed for payer in self._payers.values())

    def settlement_started(self, payer: bytes, now_ms: int) -> None:
        """Note that receipts of ``payer`` are being settled. If that fails, they wait before the next attempt."""
        self._payer(payer).not_before_ms = now_ms + RETRY_MS

    def collected(self, payer: bytes, now_ms: int) -> None:
        """Note that the chain took receipts of ``payer``; later receipts need not wait."""
        known = self._payer(payer)
        known.not_before_ms = known.since_ms = now_ms

    # Funds on the chain

    def take_lookups(self, now_ms: int, limit: int) -> list[bytes]:
        """Remove and return up to ``limit`` payers whose funds should be requested, from each network in turn.

        So a flood from one network delays only itself.
        """
        found: list[bytes] = []
        while self._lookups and len(found) < limit:
            network, waiting = self._lookups.popitem(last=False)
            address, _ = waiting.popitem(last=False)
            if waiting:
                self._lookups[network] = waiting
            payer = self._payer(address)
            payer.asked_ms = now_ms
            found.append(address)
        return found

    def learn(self, answers: Iterable[tuple[bytes, PayerFunds]], now_ms: int) -> None:
        """Take the funds that the chain reported."""
        for address, funds in answers:
            payer = self._payer(address)
            payer.funds, payer.learned_ms = funds, now_ms
            payer.reckon(now_ms)
