"""Whom a relay that asks a price carries how far, without I/O (docs/decisions/0047-relay-pay.md) (network.md R27).

A signature is worth what its signer can pay. The chain says what that is: a deposit for carriage, or what a bonded
machine earns. For a payer with either a relay carries on until so much is uncollected, signed or not. Who has
neither is a *stranger*: identities cost nothing, so strangers are bounded by the networks that they come from.
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

__all__ = ["UNKNOWN_FUNDS", "Credit", "CreditOptions", "PayerFunds", "SettlementGateway", "Strangers"]

DAY_MS: Final = 24 * 3_600_000
FRESH_MS: Final = 60_000
"""What is known of a payer that is being carried is asked for anew after so long ..."""
VALID_MS: Final = 30 * 60_000
"""... and is good for so long at most, where no node answers."""
ASK_AGAIN_MS: Final = 15_000
"""Nobody is asked about oftener, whatever came of it."""
RETRY_MS: Final = 10 * 60_000
"""A payer whose receipts could not be settled, or not wholly, waits so long."""
CHANNELS_MAX: Final = 64
"""Channels of one payer that are kept apart until they are settled."""
NETWORKS_MAX: Final = 65_536
WANTED_NETWORKS_MAX: Final = 4_096
WANTED_PER_NETWORK_MAX: Final = 64
EVICTION_LOOK: Final = 16


@dataclass(frozen=True, slots=True)
class CreditOptions:
    """How far a relay that asks a price trusts whom; beside these, ``Tariff.unpaid_bytes_max`` holds for all."""

    stranger_bytes: int = 4 * 2**20
    """What one identity is carried beyond the free tiers of its circuits, signed for or not."""
    stranger_network_bytes_per_day: int = 2**30
    """What all strangers of one network (an IPv4 /24, an IPv6 /48) are carried in a day, free tiers included."""
    strangers_bytes_per_day: int = 64 * 2**30
    """What all strangers together are carried in a day: IPv6 networks are many."""
    promise_bytes_max: int = 4 * 2**30
    """What a bonded machine that earns may have signed for that the chain has not paid."""
    deposit_percent: int = 25
    """Part of a payer's free deposit that may be uncollected here: other relays look at the same deposit."""
    settle_s: int = 6 * 3_600
    """Receipts that are worth their fee wait no longer; those for half of what may be uncollected not at all."""
    allowed: tuple[str, ...] = ()
    """Addresses that are carried on their signature alone, like trusted networks."""

    @property
    def allowed_addresses(self) -> frozenset[bytes]:
        """Return ``allowed`` as bytes. Raises ConfigError where they are no addresses."""
        try:
            return frozenset(map(parse_address, self.allowed))
        except DecodeError as error:
            raise ConfigError(f"credit.allowed: {error}") from None


class PayerFunds(NamedTuple):
    """What the chain says of a payer, to one relay."""

    deposit: int
    """What it has put down and does not withdraw."""
    dues: int
    """What it owes to all relays beyond what was paid."""
    due_here: int
    is_earning: bool
    has_room: bool
    """Whether the chain would take this relay's receipts: a payer owes only so many relays."""
    channel: bytes
    """The newest channel that was settled here, when it was opened, and what it came to."""
    opened_ms: int
    amount: int
    withdrawing: int = 0
    """What it takes back of its deposit: nobody lends on that, yet until it is paid out it pays receipts."""

    @property
    def can_pay(self) -> bool:
        """Whether it is worth a fee to bring its receipts."""
        return self.has_room and (self.deposit + self.withdrawing > 0 or self.is_earning)

    def limit(self, options: CreditOptions, price_per_gib: int) -> int:
        """Return what may be uncollected here."""
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
        """Return what the chain says of ``payer``."""
        ...

    def fee(self) -> int:
        """Return what settling one receipt costs now."""
        ...

    def settle(self, receipt: Receipt, certificate: bytes) -> str | None:
        """Bring a receipt on chain, wait until that is final; returns why it was refused, None: it was not."""
        ...


class Strangers:
    """What strangers were carried today, by network. Bounded: a network beyond the bound gets nothing today."""

    def __init__(self, options: CreditOptions) -> None:
        self._options = options
        self._day = -1
        self._used: dict[str, int] = {}
        self.size_bytes = 0
        """Carried for all of them today."""

    def _turn(self, now_ms: int) -> None:
        if now_ms // DAY_MS != self._day:
            self._day = now_ms // DAY_MS
            self._used.clear()
            self.size_bytes = 0

    def has_room(self, network: str, now_ms: int) -> bool:
        """Tell whether strangers of ``network`` may be carried further today."""
        self._turn(now_ms)
        used = self._used.get(network)
        if used is None:
            used = 0 if len(self._used) < NETWORKS_MAX else self._options.stranger_network_bytes_per_day
        return (
            used < self._options.stranger_network_bytes_per_day
            and self.size_bytes < self._options.strangers_bytes_per_day
        )

    def carried(self, network: str, size_bytes: int, now_ms: int) -> None:
        """Note what was carried for a stranger."""
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
    """Signed receipts that are not settled, by channel: when it was opened, what it comes to."""
    signed: int = 0
    """What of them is to come."""
    since_ms: int = 0
    """Since when something is."""
    not_before_ms: int = 0
    """Before then its receipts are not brought (again)."""

    def reckon(self, now_ms: int) -> None:
        """Forget what was settled, or can no longer be, and add up the rest."""
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
    def is_stranger(self) -> bool:
        return not self.funds.can_pay


class Credit:
    """A relay's judgement of its payers. It holds for a price above 0 alone: without one everybody is served.

    Raises ConfigError for options that say nothing.
    """

    def __init__(self, options: CreditOptions, meter: RelayMeter) -> None:
        self.options = options
        self.strangers = Strangers(options)
        self._allowed = options.allowed_addresses
        if not 0 <= options.deposit_percent <= 100:
            raise ConfigError(f"credit.deposit_percent: {options.deposit_percent}: 0 to 100 expected")
        self._meter = meter
        self._price = meter.tariff.price_per_gib
        self._payers: OrderedDict[bytes, _Payer] = OrderedDict()
        self._wanted: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()

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
        """Forget a stranger of long ago, or else whoever was seen least of late."""
        oldest = [address for address, _ in zip(self._payers, range(EVICTION_LOOK), strict=False)]
        strangers = (address for address in oldest if self._payers[address].is_stranger)
        del self._payers[next(strangers, oldest[0])]

    # Whom to carry

    def met(self, payer: bytes, host: HostUse, now_ms: int) -> None:
        """Note that ``payer`` may want to be carried soon."""
        if self._price and not self._is_trusted(payer, host):
            self._look_up(payer, host, now_ms)

    def _look_up(self, address: bytes, host: HostUse, now_ms: int) -> _Payer:
        payer = self._payer(address)
        if now_ms - payer.learned_ms >= FRESH_MS and now_ms - payer.asked_ms >= ASK_AGAIN_MS:
            waiting = self._wanted.get(host.network)
            if waiting is None and len(self._wanted) < WANTED_NETWORKS_MAX:
                waiting = self._wanted[host.network] = OrderedDict()
            if waiting is not None and len(waiting) < WANTED_PER_NETWORK_MAX:
                waiting[address] = None
        return payer

    def _covers(self, address: bytes, payer: _Payer, now_ms: int) -> bool:
        """Tell whether what the chain says of a payer covers what is uncollected of it here."""
        if now_ms - payer.learned_ms >= VALID_MS:
            return False
        funds = payer.funds
        unpaid = self._meter.unpaid(address)  # below 0: some of what is signed was not carried yet
        price = carriage_price(abs(unpaid), self._price)
        uncollected = funds.due_here + payer.signed + (price if unpaid > 0 else -price)
        return uncollected < funds.limit(self.options, self._price)

    def is_served(self, payer: bytes, host: HostUse, now_ms: int) -> bool:
        """Tell whether ``payer``, who came from ``host``, is carried further."""
        if not self._price:
            return True
        if not self._meter.is_served(payer):
            return False
        if self._is_trusted(payer, host) or self._covers(payer, self._look_up(payer, host, now_ms), now_ms):
            return True
        return self._meter.charged(payer) < self.options.stranger_bytes and self.strangers.has_room(
            host.network, now_ms
        )

    def is_stranger(self, payer: bytes, host: HostUse, now_ms: int) -> bool:
        """Tell whether nothing covers what ``payer`` is carried for but its network's bounds."""
        if not self._price or self._is_trusted(payer, host):
            return False
        return not self._covers(payer, self._look_up(payer, host, now_ms), now_ms)

    def carried(self, payer: bytes, host: HostUse, size_bytes: int, now_ms: int) -> None:
        """Note what was carried, free or not: strangers use up what is left to their network."""
        if self.is_stranger(payer, host, now_ms):
            self.strangers.carried(host.network, size_bytes, now_ms)

    # What they have signed

    def signed(self, receipt: Receipt, now_ms: int) -> None:
        """Note a receipt that was taken, or found on disk."""
        payer = self._payer(receipt.payer)
        payer.pending[receipt.channel] = receipt.opened_ms, receipt.amount
        if len(payer.pending) > CHANNELS_MAX:
            # Two become one of the later's age: more is held against the payer than there is, never less.
            (_, (_, amount)) = payer.pending.popitem(last=False)
            channel, (opened_ms, more) = payer.pending.popitem(last=False)
            payer.pending[channel] = opened_ms, amount + more
            payer.pending.move_to_end(channel, last=False)
        payer.reckon(now_ms)

    def ripe(self, fee: int, now_ms: int, limit: int) -> list[bytes]:
        """Return up to ``limit`` payers whose receipts are to be brought on chain now."""
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
    def is_owed(self) -> bool:
        """Whether anybody has signed for what was not collected."""
        return any(payer.signed for payer in self._payers.values())

    def tried(self, payer: bytes, now_ms: int) -> None:
        """Note that receipts of ``payer`` are being brought on chain: what does not succeed waits."""
        self._payer(payer).not_before_ms = now_ms + RETRY_MS

    def collected(self, payer: bytes, now_ms: int) -> None:
        """Note that the chain took receipts of ``payer``; what it signs from now on is looked at anew."""
        known = self._payer(payer)
        known.not_before_ms = known.since_ms = now_ms

    # What the chain says

    def wanted(self, now_ms: int, limit: int) -> list[bytes]:
        """Return up to ``limit`` payers to ask about, of each network in turn: a flood waits for itself."""
        found: list[bytes] = []
        while self._wanted and len(found) < limit:
            network, waiting = self._wanted.popitem(last=False)
            address, _ = waiting.popitem(last=False)
            if waiting:
                self._wanted[network] = waiting
            payer = self._payer(address)
            payer.asked_ms = now_ms
            found.append(address)
        return found

    def learn(self, answers: Iterable[tuple[bytes, PayerFunds]], now_ms: int) -> None:
        """Take what the chain says."""
        for address, funds in answers:
            payer = self._payer(address)
            payer.funds, payer.learned_ms = funds, now_ms
            payer.reckon(now_ms)
