"""Whom a relay carries how far: never beyond what the chain says, and strangers never beyond their network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.relay import GIB, RECEIPT_LIFE_MS, Receipt, carriage_price
from p2p.secure.identity import Identity
from relay.payment.credit import (
    ASK_AGAIN_MS,
    CHANNELS_MAX,
    DAY_MS,
    FRESH_MS,
    RETRY_MS,
    UNKNOWN_FUNDS,
    VALID_MS,
    WANTED_NETWORKS_MAX,
    WANTED_PER_NETWORK_MAX,
    Credit,
    CreditOptions,
    PayerFunds,
)
from relay.payment.metering import RelayMeter, Tariff
from relay.payment.receipts import ReceiptStore, StoredReceipt, settle_receipts
from relay.protocol.limits import HostTable, HostUse, RelayLimits
from state.primitives.address import format_address
from state.primitives.errors import ConfigError
from state.primitives.hashing import digest
from tasks.ledger.carriage import FUND_CARRIAGE, WITHDRAW_CARRIAGE, carriage_standing
from tasks.ledger.transitions import RETIRE_NODE
from tests.relay.daemon_process import GENESIS_HASH, account_of
from tests.tasks.ledger.test_carriage import RELAY, WORKER, Market
from tests.tasks.ledger.test_carriage import receipt as market_receipt

MIB = 2**20
PRICE = 10**16
ALICE, BOB = account_of("alice").address, account_of("bob").address
TARIFF = Tariff(price_per_gib=PRICE, unpaid_bytes_max=64 * MIB)
OPTIONS = CreditOptions(
    unfunded_bytes_per_payer=MIB, unfunded_bytes_per_network_day=10 * MIB, unfunded_bytes_per_day=25 * MIB,
    promise_bytes_max=GIB, deposit_percent=50, settle_s=60,
)  # fmt: skip
HOSTS = HostTable(RelayLimits())
DEPOSITOR = UNKNOWN_FUNDS._replace(deposit=8 * PRICE)
MACHINE = UNKNOWN_FUNDS._replace(is_earning=True)


def host(ip: str = "192.0.2.1") -> HostUse:
    found = HOSTS.use(ip, 0)
    assert found is not None
    return found


class Relay:
    """The accounts of a relay, and who is carried by them."""

    def __init__(self, options: CreditOptions = OPTIONS, tariff: Tariff = TARIFF) -> None:
        self.meter = RelayMeter(tariff, genesis_hash=GENESIS_HASH, relay=RELAY)
        self.credit = Credit(options, self.meter)
        self.now_ms = DAY_MS
        self.sequences: dict[bytes, int] = {}

    def carry(
        self, payer: bytes, size_bytes: int, *, ip: str = "192.0.2.1", free: int = 0, step: int = 64 * 1024
    ) -> int:
        """Carry in small steps for as long as the payer is served; returns how much that was."""
        carried = 0
        while carried < size_bytes and self.credit.is_served(payer, host(ip), self.now_ms):
            moved = min(step, size_bytes - carried)
            self.credit.carried(payer, host(ip), moved, self.now_ms)
            self.meter.charge(payer, max(0, moved - free))
            free = max(0, free - moved)
            carried += moved
        return carried

    def sign(self, payer: bytes, size_bytes: int, *, channel: bytes = b"c", opened_ms: int = 1) -> Receipt:
        """Note a receipt; its signature was checked by the meter, which these tests go past."""
        self.sequences[payer] = self.sequences.get(payer, 0) + 1
        word = Receipt(
            GENESIS_HASH, RELAY, payer, channel * 32, opened_ms, self.sequences[payer], size_bytes, PRICE, 2**40
        )
        self.credit.signed(word, self.now_ms)
        account = self.meter._accounts.get(payer)
        if account is not None:
            account.paid = account.charged
        return word

    def learn(self, payer: bytes, funds: PayerFunds) -> None:
        self.credit.learn([(payer, funds)], self.now_ms)


def test_a_stranger_is_carried_a_little_whatever_it_signs() -> None:
    relay = Relay()
    assert relay.carry(ALICE, GIB) == MIB
    relay.sign(ALICE, GIB)
    assert relay.carry(ALICE, GIB) == 0
    relay.now_ms += 40 * DAY_MS
    assert relay.carry(ALICE, GIB) == 0, "nor tomorrow"


def test_a_flood_of_fresh_identities_is_carried_what_its_network_may_and_no_more() -> None:
    relay = Relay()
    for n in range(100):
        relay.carry(digest(b"test", b"%d" % n)[:20], GIB, ip=f"192.0.2.{n}", free=4 * MIB)
    assert relay.credit.unfunded.size_bytes == OPTIONS.unfunded_bytes_per_network_day, "free tiers count"
    assert relay.carry(ALICE, GIB, ip="198.51.100.1") == MIB, "another network is not to blame"
    for n in range(100):
        relay.carry(digest(b"test", b"six %d" % n)[:20], GIB, ip=f"2001:db8:{n:x}::1")
    assert relay.credit.unfunded.size_bytes == OPTIONS.unfunded_bytes_per_day, "nor are IPv6 networks endless"
    relay.learn(BOB, DEPOSITOR)
    assert relay.carry(BOB, GIB) > 10 * MIB, "who can pay is not touched by it"
    relay.now_ms += DAY_MS
    assert relay.carry(digest(b"test", b"new")[:20], GIB) == MIB


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 3 * MIB)), max_size=60))
def test_strangers_never_pass_their_bounds(moves: list[tuple[int, int, int]]) -> None:
    relay = Relay()
    by_network: dict[int, int] = {}
    for network, who, size in moves:
        done = relay.carry(digest(b"test", bytes((who,)))[:20], size, ip=f"198.18.{network}.{who + 1}")
        by_network[network] = by_network.get(network, 0) + done
    step = 64 * 1024
    assert all(used < OPTIONS.unfunded_bytes_per_network_day + step for used in by_network.values())
    assert sum(by_network.values()) < OPTIONS.unfunded_bytes_per_day + step


def test_a_depositor_is_carried_on_a_part_of_its_deposit_that_is_not_spoken_for() -> None:
    relay = Relay(tariff=replace(TARIFF, unpaid_bytes_max=2**40))
    relay.learn(ALICE, DEPOSITOR)  # half of 8 GiB' worth
    assert relay.carry(ALICE, 100 * GIB, step=MIB) == pytest.approx(4 * GIB, abs=MIB)
    word = relay.sign(ALICE, 4 * GIB)
    assert relay.carry(ALICE, GIB) == 0, "signed for is not collected"
    # It was settled, and the deposit is smaller now.
    relay.learn(
        ALICE, DEPOSITOR._replace(deposit=4 * PRICE, channel=word.channel, opened_ms=1, amount=word.amount)
    )
    assert relay.carry(ALICE, 100 * GIB, step=MIB) == pytest.approx(2 * GIB, abs=MIB)
    # What is due to others comes first, and what is due here is uncollected.
    relay.learn(BOB, DEPOSITOR._replace(dues=8 * PRICE))
    assert relay.carry(BOB, GIB) == MIB
    relay.learn(BOB, DEPOSITOR._replace(dues=8 * PRICE, due_here=4 * PRICE))
    assert relay.carry(BOB, GIB) == 0
    relay.learn(BOB, DEPOSITOR._replace(dues=4 * PRICE, due_here=3 * PRICE))
    assert relay.carry(BOB, GIB) == pytest.approx(GIB // 2 - MIB, abs=MIB)


def test_a_machine_that_earns_is_carried_on_its_word_until_it_does_not_keep_it() -> None:
    relay = Relay(tariff=replace(TARIFF, unpaid_bytes_max=2**40))
    relay.learn(ALICE, MACHINE)
    assert relay.carry(ALICE, 100 * GIB, step=MIB) == GIB
    relay.sign(ALICE, GIB)
    assert relay.carry(ALICE, GIB) == 0
    relay.learn(ALICE, MACHINE._replace(dues=PRICE, due_here=PRICE, channel=b"c" * 32, opened_ms=1, amount=PRICE))
    assert relay.carry(ALICE, GIB) == 0, "on chain it is still not paid"
    relay.learn(ALICE, MACHINE._replace(channel=b"c" * 32, opened_ms=1, amount=PRICE))
    assert relay.carry(ALICE, 100 * GIB, step=MIB) == GIB


def test_one_whose_receipts_the_chain_would_not_take_is_a_stranger() -> None:
    relay = Relay()
    relay.learn(ALICE, DEPOSITOR._replace(is_earning=True, has_room=False))
    assert relay.carry(ALICE, GIB) == MIB


def test_what_is_known_grows_old_and_who_is_carried_is_asked_about_again() -> None:
    relay = Relay()
    relay.credit.payer_connected(ALICE, host(), relay.now_ms)
    assert relay.credit.take_lookups(relay.now_ms, 9) == [ALICE]
    relay.credit.payer_connected(ALICE, host(), relay.now_ms)
    assert relay.credit.take_lookups(relay.now_ms, 9) == [], "asked just now"
    relay.learn(ALICE, DEPOSITOR)
    assert relay.carry(ALICE, 2 * MIB) == 2 * MIB
    assert relay.credit.take_lookups(relay.now_ms, 9) == []
    relay.now_ms += max(FRESH_MS, ASK_AGAIN_MS)
    assert relay.carry(ALICE, 2 * MIB) == 2 * MIB
    assert relay.credit.take_lookups(relay.now_ms, 9) == [ALICE]
    relay.now_ms += VALID_MS
    assert relay.carry(ALICE, 2 * MIB) == 0, "nobody answered for too long"


def test_a_flood_of_questions_waits_for_itself_and_is_bounded() -> None:
    relay = Relay()
    for n in range(300):
        relay.credit.payer_connected(digest(b"test", b"%d" % n)[:20], host(f"192.0.2.{n % 200}"), relay.now_ms)
    relay.credit.payer_connected(ALICE, host("198.51.100.1"), relay.now_ms)
    asked = relay.credit.take_lookups(relay.now_ms, 2)
    assert ALICE in asked and len(asked) == 2
    assert len(relay.credit.take_lookups(relay.now_ms, 1000)) == WANTED_PER_NETWORK_MAX - 1
    assert WANTED_NETWORKS_MAX * WANTED_PER_NETWORK_MAX <= 2**18


def test_trusted_hosts_and_allowed_addresses_are_carried_on_their_signature() -> None:
    relay = Relay(replace(OPTIONS, allowed=(format_address(ALICE),)))
    for payer, ip in ((ALICE, "192.0.2.1"), (BOB, "127.0.0.1")):
        assert relay.carry(payer, GIB, ip=ip) == TARIFF.unpaid_bytes_max
        relay.sign(payer, TARIFF.unpaid_bytes_max)
        assert relay.carry(payer, MIB, ip=ip) == MIB
    assert relay.credit.unfunded.size_bytes == 0 and relay.credit.take_lookups(0, 9) == []
    with pytest.raises(ConfigError, match=r"credit\.allowed"):
        Relay(replace(OPTIONS, allowed=("0x12",)))
    with pytest.raises(ConfigError, match=r"credit\.deposit_percent"):
        Relay(replace(OPTIONS, deposit_percent=101))


def test_a_relay_without_a_price_keeps_nothing() -> None:
    relay = Relay(tariff=Tariff())
    relay.credit.payer_connected(ALICE, host(), 0)
    assert relay.carry(ALICE, 100 * MIB) == 100 * MIB
    assert len(relay.credit) == 0 and relay.credit.unfunded.size_bytes == 0


def test_the_bound_on_what_is_unsigned_holds_for_depositors_too() -> None:
    relay = Relay()
    relay.learn(ALICE, DEPOSITOR._replace(deposit=10**6 * PRICE))
    assert relay.carry(ALICE, GIB) == TARIFF.unpaid_bytes_max


def test_who_opens_many_channels_is_not_owed_less() -> None:
    relay = Relay()
    for n in range(3 * CHANNELS_MAX):
        relay.sign(ALICE, GIB, channel=n.to_bytes(1, "big"), opened_ms=n + 1)
    payer = relay.credit._payers[ALICE]
    assert payer.signed == 3 * CHANNELS_MAX * PRICE and len(payer.pending) == CHANNELS_MAX
    newest = (3 * CHANNELS_MAX - 1).to_bytes(1, "big") * 32
    relay.learn(ALICE, DEPOSITOR._replace(channel=newest, opened_ms=3 * CHANNELS_MAX, amount=PRICE // 2))
    assert payer.signed == PRICE // 2, "older channels are over"


def test_what_is_known_of_payers_is_bounded_and_strangers_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.payment.credit.ACCOUNTS_MAX", accounts_max := 500)
    relay = Relay()
    relay.learn(ALICE, DEPOSITOR)
    for n in range(accounts_max + 100):
        relay.credit.payer_connected(digest(b"test", n.to_bytes(4, "big"))[:20], host(), relay.now_ms)
    assert len(relay.credit) == accounts_max
    assert ALICE in relay.credit._payers


def test_receipts_are_brought_when_they_are_worth_it_and_soon_enough() -> None:
    relay = Relay()
    relay.learn(ALICE, DEPOSITOR)
    relay.learn(BOB, DEPOSITOR)
    relay.sign(ALICE, GIB)
    fee = carriage_price(GIB, PRICE)
    assert relay.credit.has_unsettled and relay.credit.due_for_settlement(fee, relay.now_ms, 9) == []
    relay.now_ms += OPTIONS.settle_s * 1000
    assert relay.credit.due_for_settlement(fee + 1, relay.now_ms, 9) == [], "worth less than its fee"
    assert relay.credit.due_for_settlement(fee, relay.now_ms, 9) == [ALICE]
    relay.sign(BOB, 2 * GIB)
    assert relay.credit.due_for_settlement(fee, relay.now_ms, 9) == [ALICE, BOB], "half of the credit is used up"
    relay.credit.settlement_started(ALICE, relay.now_ms)
    assert relay.credit.due_for_settlement(fee, relay.now_ms, 9) == [BOB]
    relay.credit.collected(ALICE, relay.now_ms)
    assert relay.credit.due_for_settlement(fee, relay.now_ms, 9) == [BOB], "it was looked at just now"
    relay.now_ms += RETRY_MS
    assert sorted(relay.credit.due_for_settlement(fee, relay.now_ms, 9)) == sorted([ALICE, BOB])


def test_who_takes_its_deposit_back_is_lent_nothing_and_what_it_signed_is_brought_at_once() -> None:
    relay = Relay()
    relay.learn(ALICE, DEPOSITOR)
    assert relay.carry(ALICE, 32 * MIB) == 32 * MIB
    relay.sign(ALICE, 32 * MIB)
    fee = carriage_price(MIB, PRICE)
    assert relay.credit.due_for_settlement(fee, relay.now_ms, 9) == []
    relay.learn(ALICE, UNKNOWN_FUNDS._replace(withdrawing=8 * PRICE))
    assert relay.carry(ALICE, MIB) == 0
    assert relay.credit.due_for_settlement(fee, relay.now_ms, 9) == [ALICE]


class MarketLedger:
    """The chain's own rules, asked without a network."""

    def __init__(self, world: Market) -> None:
        self.world = world
        self.sent = 0

    def funds(self, payer: bytes) -> PayerFunds:
        world = self.world
        found = carriage_standing(world.state, payer, world.time_ms, world.parameters)
        here = next((item for item in found.relays if item.relay == RELAY), None)
        dues = sum(item.due for item in found.relays)
        known = (0, b"", -1, 0) if here is None else (here.due, here.channel, here.opened_ms, here.amount)
        free, leaving = found.deposit.free, found.deposit.withdrawing
        return PayerFunds(free, dues, known[0], found.is_earning, found.has_room, *known[1:], leaving)

    def fee(self) -> int:
        return 1

    def settle(self, receipt: Receipt, certificate: bytes) -> str | None:
        self.sent += 1
        return self.world.settle(receipt, who=self.who)

    who: Identity


def test_settling_brings_what_is_worth_its_fee_and_keeps_what_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Market()
    monkeypatch.setattr("time.time_ns", lambda: world.time_ms * 1_000_000)
    gateway, store = MarketLedger(world), ReceiptStore(tmp_path)
    gateway.who = who = Identity.create(
        WORKER, genesis_hash=b"g" * 32, now_ms=world.time_ms, node_secret=digest(b"test node", b"settles")
    )
    certificate = who.certificate.encode()
    price = market_receipt().amount
    first = market_receipt(2 * GIB, channel=b"a", opened_ms=world.time_ms - 2, who=who)
    second = market_receipt(3 * GIB, channel=b"b", opened_ms=world.time_ms - 1, who=who)
    dust = market_receipt(GIB // 100, channel=b"c", opened_ms=world.time_ms, who=who)
    foreign = replace(first, payer=b"?" * 20)
    store.save([StoredReceipt(word, certificate) for word in (first, second, dust, foreign)])
    assert world.send(WORKER.address, FUND_CARRIAGE, [4 * price]) is None
    assert world.send(WORKER.address, RETIRE_NODE, []) is None, "nothing else can pay"
    assert world.send(WORKER.address, WITHDRAW_CARRIAGE, [4 * price]) is None
    funds, settled = settle_receipts(gateway, store, WORKER.address, price)
    assert (settled, gateway.sent) == (2, 2)
    assert (funds.deposit, funds.due_here, funds.amount) == (0, price, 3 * price)
    assert [kept.receipt for kept in store.load(WORKER.address)] == [dust]
    assert len(store.load()) == 2
    # Replayed, it is worthless, and forgotten.
    store.save([StoredReceipt(second, certificate)])
    assert world.send(WORKER.address, FUND_CARRIAGE, [2 * price]) is None
    assert settle_receipts(gateway, store, WORKER.address, 0)[1] == 1, "the dust, at any price"
    assert store.load(WORKER.address) == []
    assert settle_receipts(gateway, store, b"?" * 20, 0) == (UNKNOWN_FUNDS, 0), "who cannot pay costs no fee"
    expired = market_receipt(9 * GIB, channel=b"d", opened_ms=world.time_ms, who=who)
    store.save([StoredReceipt(expired, certificate)])
    world.time_ms += RECEIPT_LIFE_MS + 1
    sent = gateway.sent
    settle_receipts(gateway, store, WORKER.address, 0)
    assert gateway.sent == sent and store.load(WORKER.address) == []


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6 * GIB)), min_size=1, max_size=30),
    st.integers(0, 5),
    st.integers(0, 6 * GIB),
)
def test_what_is_held_against_a_payer_is_what_it_signed_and_was_not_settled(
    words: list[tuple[int, int]], settled_channel: int, settled_bytes: int
) -> None:
    relay = Relay()
    newest: dict[int, int] = {}
    for channel, size in words:
        newest[channel] = max(size, newest.get(channel, 0))
        relay.sign(ALICE, newest[channel], channel=bytes((channel,)), opened_ms=channel)
    amount = carriage_price(settled_bytes, PRICE)
    if settled_channel:
        relay.learn(
            ALICE,
            DEPOSITOR._replace(channel=bytes((settled_channel,)) * 32, opened_ms=settled_channel, amount=amount),
        )
    expected = sum(
        max(0, carriage_price(size, PRICE) - (amount if channel == settled_channel else 0))
        for channel, size in newest.items()
        if channel >= settled_channel
    )
    assert relay.credit._payers[ALICE].signed == expected
