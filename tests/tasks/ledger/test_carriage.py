"""What relays are paid: nothing that was not signed for, nothing twice, and only out of the signer's own pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Purpose, bill_lines, earnings_of
from billing.prices import ROLE_WEIGHTS, Role
from billing.relay import CHANNEL_LIFE_MS, CLOCK_SKEW_MS_MAX, GIB, RECEIPT_LIFE_MS, Receipt
from p2p.secure.identity import Identity, NodeCertificate
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from state.view.accounts import balance_of
from tasks.ledger.carriage import (
    CARRIAGE_EVENTS,
    DUE_LIFE_MS,
    FUND_CARRIAGE,
    NO_DEPOSIT,
    RELAYS_PER_PAYER_MAX,
    SETTLE_CARRIAGE,
    WITHDRAW_CARRIAGE,
    WITHDRAWAL_MS,
    Deposit,
    carriage_rules,
    carriage_standing,
    deposit_of,
    dues_of,
    share_pay,
)
from tasks.ledger.lifecycle import Phase
from tasks.ledger.registry import NodeProfile, NodeRole
from tasks.ledger.transitions import REGISTER_NODE, RETIRE_NODE, node_payload
from tests.tasks.world import DKB, HONEST, START_MS, WORTH, World

GENESIS_HASH = b"g" * 32
PRICE = DKB // 100
WORKER = SecretKey(digest(b"test", b"worker"))
RELAY, OTHER_RELAY = b"r" * 20, b"q" * 20


def identity(
    account: SecretKey = WORKER, *, genesis_hash: bytes = GENESIS_HASH, name: bytes = b"node"
) -> Identity:
    return Identity.create(
        account,
        genesis_hash=genesis_hash,
        now_ms=START_MS,
        node_secret=digest(b"test node", name + account.address),
    )


NODE = identity()


def check(data: bytes, genesis_hash: bytes, now_ms: int) -> tuple[bytes, bytes]:
    certificate = NodeCertificate.decode(data)
    return certificate.verify(genesis_hash=genesis_hash, now_ms=now_ms), certificate.signer


class Market(World):
    """A market with a worker whose key is known and two relays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rules |= {rule.kind: rule for rule in carriage_rules(check)}
        for address, roles in (
            (WORKER.address, NodeRole.COMPUTE), (RELAY, NodeRole.RELAY), (OTHER_RELAY, NodeRole.RELAY),
            (b"v" * 20, NodeRole.VERIFY),
        ):  # fmt: skip
            self.enter(address, roles)

    def enter(self, address: bytes, roles: NodeRole) -> None:
        self.fund(address, 1_000 * DKB)
        profile = NodeProfile(address, roles, (), 64, 64_000, 64, WORTH // 2000, 10**10, 1, 0, (), "test")
        assert self.send(address, REGISTER_NODE, node_payload(profile, self.parameters.node_bond_min)) is None
        if roles & (NodeRole.COMPUTE | NodeRole.VERIFY):
            self.machines[address] = HONEST

    def settle(self, receipt: Receipt, *, sender: bytes | None = None, who: Identity = NODE) -> str | None:
        return self.send(
            sender or receipt.relay, SETTLE_CARRIAGE, [receipt.encode(), who.certificate.encode()]
        )  # fmt: skip


def receipt(
    size_bytes: int = GIB,
    *,
    sequence: int = 1,
    relay: bytes = RELAY,
    channel: bytes = b"c",
    opened_ms: int = START_MS,
    not_after_ms: int = START_MS + RECEIPT_LIFE_MS,
    who: Identity = NODE,
) -> Receipt:
    unsigned = Receipt(
        GENESIS_HASH, relay, WORKER.address, channel * 32, opened_ms, sequence, size_bytes, PRICE,
        not_after_ms,
    )  # fmt: skip
    return unsigned.signed_by(who.signer)


def due(world: World, relay: bytes = RELAY) -> int:
    return dues_of(world.state, WORKER.address, world.time_ms).get(relay, 0)


def test_a_receipt_counts_once_and_a_later_one_for_what_it_adds() -> None:
    world = Market()
    assert world.settle(receipt()) is None
    assert due(world) == PRICE
    assert world.settle(receipt()) == "nothing_due"
    assert world.settle(receipt(GIB // 2, sequence=2)) == "nothing_due"
    assert world.settle(receipt(2 * GIB, sequence=1)) == "nothing_due"
    assert world.settle(receipt(3 * GIB, sequence=9)) is None
    assert due(world) == 3 * PRICE


def test_a_new_channel_adds_and_an_older_one_is_over() -> None:
    world = Market()
    assert world.settle(receipt()) is None
    assert world.settle(receipt(channel=b"d", opened_ms=START_MS + 1)) is None
    assert due(world) == 2 * PRICE
    assert world.settle(receipt(5 * GIB, sequence=5)) == "nothing_due"
    assert world.settle(receipt(channel=b"e", opened_ms=START_MS + 1)) == "nothing_due"
    assert world.settle(receipt(5 * GIB, sequence=5, channel=b"d", opened_ms=START_MS + 2)) == "receipt_invalid"
    assert due(world) == 2 * PRICE


@pytest.mark.parametrize(
    ("wrong", "who", "code"),
    [
        (replace(receipt(), size_bytes=2 * GIB), NODE, "receipt_invalid"),
        (receipt().signed_by(identity(name=b"other").signer), NODE, "receipt_invalid"),
        (receipt().signed_by(WORKER), NODE, "receipt_invalid"),
        (replace(receipt(), genesis_hash=b"h" * 32).signed_by(NODE.signer), NODE, "receipt_invalid"),
        (replace(receipt(), not_after_ms=START_MS).signed_by(NODE.signer), NODE, "receipt_invalid"),
        (replace(receipt(), payer=b"x" * 20).signed_by(NODE.signer), NODE, "receipt_invalid"),
        (receipt(not_after_ms=2**53 - 1), NODE, "receipt_invalid"),
        (receipt(opened_ms=2**53 - 1), NODE, "receipt_invalid"),
        (receipt(opened_ms=START_MS + CLOCK_SKEW_MS_MAX + 1), NODE, "receipt_invalid"),
        (receipt(opened_ms=START_MS - CHANNEL_LIFE_MS), NODE, "receipt_invalid"),
        (receipt(), identity(genesis_hash=b"h" * 32), "certificate_invalid"),
        (receipt(), replace(NODE, certificate=replace(NODE.certificate, sequence=9)), "receipt_invalid"),
    ],
)
def test_what_its_payer_did_not_sign_for_this_chain_and_time_is_refused(
    wrong: Receipt, who: Identity, code: str
) -> None:
    world = Market()
    assert world.settle(wrong, who=who) == code
    assert due(world) == 0


def test_a_certificate_that_is_none_is_refused() -> None:
    world = Market()
    for data in (b"", b"certificate", NODE.certificate.encode() + b"\0"):
        assert world.send(RELAY, SETTLE_CARRIAGE, [receipt().encode(), data]) == "decode_error"
    assert due(world) == 0


def test_only_the_relay_itself_and_only_while_it_is_registered() -> None:
    world = Market()
    assert world.settle(receipt(), sender=OTHER_RELAY) == "not_yours"
    assert world.settle(receipt(relay=b"s" * 20)) == "node_unknown"
    assert world.settle(receipt(relay=b"v" * 20)) == "not_yours"
    assert world.send(RELAY, RETIRE_NODE, []) is None
    assert world.settle(receipt()) == "not_yours"


def test_one_payer_owes_so_many_relays_and_no_more() -> None:
    world = Market()
    for n in range(RELAYS_PER_PAYER_MAX + 1):
        world.enter(relay := b"t" * 19 + bytes((n,)), NodeRole.RELAY)
        full = n == RELAYS_PER_PAYER_MAX
        assert world.settle(receipt(relay=relay)) == ("receipt_invalid" if full else None)
    assert world.settle(receipt(2 * GIB, sequence=2, relay=b"t" * 19 + b"\x00")) is None


def test_relays_are_paid_out_of_their_payers_windows_by_weight_and_never_more_than_is_due() -> None:
    plain, world = Market(), Market()
    assert world.settle(receipt(1000 * GIB)) is None
    assert world.settle(receipt(GIB // 1000, relay=OTHER_RELAY)) is None
    promised = {relay: due(world, relay) for relay in (RELAY, OTHER_RELAY)}
    for each in (plain, world):
        each.run_to(each.create(), Phase.SETTLED)
    paid = {relay: earnings_of(world.state, relay).get(Role.RELAY, 0) for relay in promised}
    for relay, amount in paid.items():
        assert 0 < amount <= promised[relay]
        assert due(world, relay) == promised[relay] - amount
    worker = earnings_of(world.state, WORKER.address)[Role.COMPUTE]
    alone = earnings_of(plain.state, WORKER.address)[Role.COMPUTE]
    assert worker + sum(paid.values()) == alone, "nobody else pays"
    weights = ROLE_WEIGHTS[Role.RELAY], ROLE_WEIGHTS[Role.RELAY] + ROLE_WEIGHTS[Role.COMPUTE]
    assert sum(paid.values()) <= alone * weights[0] // weights[1] + 1


def test_the_bill_shows_what_carrying_cost() -> None:
    world = Market()
    assert world.settle(receipt(GIB // 100_000)) is None
    promised = due(world)
    task = world.create()
    world.run_to(task, Phase.SETTLED)
    lines = [line for line in bill_lines(world.state, task) if line.purpose == Purpose.CARRIAGE]
    assert sum(line.amount for line in lines) == promised
    assert {line.party for line in lines} == {RELAY}
    assert due(world) == 0 and dues_of(world.state, WORKER.address, world.time_ms) == {}


@given(
    st.integers(0, 10**24),
    st.dictionaries(st.binary(min_size=20, max_size=20), st.integers(1, 10**22), max_size=RELAYS_PER_PAYER_MAX),
)
def test_shares_are_whole_bounded_by_weight_and_by_what_is_due(pay: int, dues: dict[bytes, int]) -> None:
    parts = share_pay(pay, dues)
    assert len({relay for relay, _ in parts}) == len(parts)
    assert all(0 < part <= dues[relay] for relay, part in parts)
    weight = ROLE_WEIGHTS[Role.RELAY]
    whole = weight + ROLE_WEIGHTS[Role.COMPUTE]
    total = sum(part for _, part in parts)
    assert total <= pay * weight // whole + 1
    assert total >= min(sum(dues.values()), pay * weight // whole)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.integers(1, 6), st.integers(0, 5 * GIB), st.sampled_from([RELAY, OTHER_RELAY])
        ),
        max_size=30,
    )
)
def test_whatever_is_sent_the_due_is_what_the_newest_receipts_of_settled_channels_say(
    sent: list[tuple[int, int, int, bytes]],
) -> None:
    world = Market()
    newest: dict[bytes, tuple[int, int, int]] = {}
    owed = dict.fromkeys((RELAY, OTHER_RELAY), 0)
    for channel, sequence, size, relay in sent:
        word = receipt(
            size, sequence=sequence, relay=relay, channel=bytes((channel,)), opened_ms=START_MS + channel
        )  # fmt: skip
        last = newest.get(relay, (-1, 0, 0))
        base = last if last[0] == channel else (channel, 0, 0)
        new = word.amount - size_amount(base[2])
        accepted = channel >= last[0] and sequence > base[1] and size > base[2] and new > 0
        assert (world.settle(word) is None) == accepted
        if accepted:
            newest[relay] = (channel, sequence, size)
            owed[relay] += new
    assert {relay: due(world, relay) for relay in owed} == owed


def size_amount(size: int) -> int:
    return size * PRICE // GIB


def later(world: World, relay: bytes, *, channel: bytes = b"l") -> tuple[Receipt, Identity]:
    """Return a receipt of a channel opened now, and who signed it, certified now."""
    who = Identity.create(
        WORKER, genesis_hash=GENESIS_HASH, now_ms=world.time_ms, node_secret=digest(b"test node", b"later")
    )
    now_ms = world.time_ms
    word = receipt(
        relay=relay, channel=channel, opened_ms=now_ms, not_after_ms=now_ms + RECEIPT_LIFE_MS, who=who
    )  # fmt: skip
    return word, who


def test_a_payer_that_has_known_many_relays_can_owe_new_ones_once_the_old_are_over() -> None:
    world = Market()
    for n in range(RELAYS_PER_PAYER_MAX + 1):
        world.enter(b"t" * 19 + bytes((n,)), NodeRole.RELAY)
    for n in range(RELAYS_PER_PAYER_MAX):
        assert world.settle(receipt(relay=b"t" * 19 + bytes((n,)))) is None
    new = b"t" * 19 + bytes((RELAYS_PER_PAYER_MAX,))
    world.time_ms += DUE_LIFE_MS - 1
    word, who = later(world, new)
    assert world.settle(word, who=who) == "receipt_invalid"
    world.time_ms += 1
    word, who = later(world, new)
    assert world.settle(word, who=who) is None
    assert due(world, new) == PRICE
    first = receipt(2 * GIB, sequence=2, relay=b"t" * 20, not_after_ms=world.time_ms + 1, who=who)
    forgotten = replace(first, relay=b"t" * 19 + b"\x00").signed_by(who.signer)
    assert world.settle(forgotten, who=who) == "receipt_invalid", "what was forgotten cannot come again"


def test_what_is_due_lapses_and_a_later_word_begins_anew() -> None:
    world = Market()
    assert world.settle(receipt(1000 * GIB)) is None
    world.time_ms += DUE_LIFE_MS - 1
    assert due(world) == 1000 * PRICE
    world.time_ms += 1
    assert due(world) == 0
    word, who = later(world, RELAY)
    assert world.settle(word, who=who) is None
    assert due(world) == PRICE


def test_a_huge_promise_to_a_relay_of_ones_own_takes_an_equal_part_and_no_more() -> None:
    pay = 85 * DKB
    assert share_pay(pay, {RELAY: DKB, OTHER_RELAY: 2**125}) == [(OTHER_RELAY, 4 * DKB), (RELAY, DKB)]
    assert share_pay(pay, {RELAY: 3 * DKB, OTHER_RELAY: 2**125}) == [
        (OTHER_RELAY, 5 * DKB // 2),
        (RELAY, 5 * DKB // 2),
    ]
    assert share_pay(17, {RELAY: 1, OTHER_RELAY: 2**125}) == [(OTHER_RELAY, 1)]


# Deposits


def fund(world: Market, amount: int) -> str | None:
    return world.send(WORKER.address, FUND_CARRIAGE, [amount])


def withdraw(world: Market, amount: int) -> str | None:
    return world.send(WORKER.address, WITHDRAW_CARRIAGE, [amount])


def deposit(world: Market) -> Deposit:
    return deposit_of(world.state, WORKER.address)


def owned(world: Market, who: bytes = WORKER.address) -> int:
    return balance_of(world.state, who)


def said(world: Market, name: str) -> list[int]:
    """The last number of each event of this name."""
    topic = {event.name: event for event in CARRIAGE_EVENTS}[name].topic
    return [int.from_bytes(event.data[-32:], "big") for event in world.events if event.topics[0] == topic]


def test_a_deposit_pays_relays_at_once_and_what_it_lacks_stays_due() -> None:
    world = Market()
    before = owned(world), owned(world, RELAY)
    assert fund(world, 3 * PRICE) is None
    assert (owned(world), deposit(world)) == (before[0] - 3 * PRICE, Deposit(3 * PRICE, 0, 0))
    assert world.settle(receipt(2 * GIB)) is None
    assert (owned(world, RELAY), deposit(world).amount, due(world)) == (before[1] + 2 * PRICE, PRICE, 0)
    assert world.settle(receipt(5 * GIB, sequence=2)) is None
    assert (owned(world, RELAY), deposit(world), due(world)) == (before[1] + 3 * PRICE, NO_DEPOSIT, 2 * PRICE)
    assert earnings_of(world.state, RELAY) == {Role.RELAY: 3 * PRICE}
    # What is due is paid out of a later deposit too, with the next receipt.
    assert fund(world, 10 * PRICE) is None
    assert world.settle(receipt(6 * GIB, sequence=3)) is None
    assert (owned(world, RELAY), deposit(world).amount, due(world)) == (before[1] + 6 * PRICE, 7 * PRICE, 0)
    assert said(world, "CarriagePaid") == [PRICE, 0, 7 * PRICE]
    assert said(world, "CarriageFunded") == [3 * PRICE, 10 * PRICE]
    world.block()


def test_two_relays_share_a_deposit_as_they_come_and_nothing_is_paid_twice() -> None:
    world = Market()
    assert fund(world, 3 * PRICE) is None
    before = owned(world, RELAY), owned(world, OTHER_RELAY)
    assert world.settle(receipt(2 * GIB)) is None
    assert world.settle(receipt(2 * GIB, relay=OTHER_RELAY)) is None
    assert (owned(world, RELAY), owned(world, OTHER_RELAY)) == (before[0] + 2 * PRICE, before[1] + PRICE)
    assert (due(world), due(world, OTHER_RELAY)) == (0, PRICE)
    for relay in (RELAY, OTHER_RELAY):
        assert world.settle(receipt(2 * GIB, relay=relay)) == "nothing_due"
    assert (owned(world, RELAY), owned(world, OTHER_RELAY)) == (before[0] + 2 * PRICE, before[1] + PRICE)
    world.block()


def test_only_what_a_payer_has_can_be_put_down_or_taken_back() -> None:
    world = Market()
    everything = owned(world)
    assert fund(world, everything + 1) == "insufficient_funds"
    assert withdraw(world, 1) == "insufficient_funds"
    assert withdraw(world, 0) == "nothing_due"
    assert fund(world, everything) is None
    assert withdraw(world, everything + 1) == "insufficient_funds"
    assert deposit(world) == Deposit(everything, 0, 0) and owned(world) == 0


def test_a_withdrawal_waits_until_every_receipt_of_before_has_ended() -> None:
    world = Market()
    before = owned(world)
    assert fund(world, 5 * PRICE) is None
    assert withdraw(world, 4 * PRICE) is None
    release_ms = world.time_ms + WITHDRAWAL_MS
    assert deposit(world) == Deposit(5 * PRICE, 4 * PRICE, release_ms)
    latest = receipt(not_after_ms=world.time_ms + RECEIPT_LIFE_MS + CLOCK_SKEW_MS_MAX)
    assert latest.not_after_ms < release_ms
    world.block(WITHDRAWAL_MS - 1)
    world.block()
    assert deposit(world).amount == 5 * PRICE and owned(world) == before - 5 * PRICE, "too early"
    world.block()
    assert (deposit(world), owned(world)) == (Deposit(PRICE, 0, 0), before - PRICE)
    assert said(world, "CarriageReturned") == [PRICE] and said(world, "CarriageWithdrawal") == [release_ms]
    world.block(10 * WITHDRAWAL_MS)
    world.block()
    assert (deposit(world), owned(world)) == (Deposit(PRICE, 0, 0), before - PRICE), "once"


def test_what_is_settled_meanwhile_comes_out_of_what_is_withdrawn_first() -> None:
    world = Market()
    before = owned(world)
    assert fund(world, 5 * PRICE) is None
    assert withdraw(world, 3 * PRICE) is None
    assert world.settle(receipt(GIB)) is None
    assert deposit(world)[:2] == (4 * PRICE, 2 * PRICE) and deposit(world).free == 2 * PRICE
    assert world.settle(receipt(4 * GIB, sequence=2, channel=b"d", opened_ms=START_MS + 1)) is None
    assert deposit(world) == NO_DEPOSIT
    world.block(WITHDRAWAL_MS)
    world.block()
    assert owned(world) == before - 5 * PRICE and said(world, "CarriageReturned") == []


def test_a_later_announcement_takes_the_place_of_an_earlier_one_and_waits_anew() -> None:
    world = Market()
    before = owned(world)
    assert fund(world, 5 * PRICE) is None
    assert withdraw(world, 1) is None
    world.block(WITHDRAWAL_MS - 1)
    assert withdraw(world, 5 * PRICE) is None
    world.block(WITHDRAWAL_MS - 1)
    world.block()
    assert deposit(world).amount == 5 * PRICE, "a small word of before does not let it all go at once"
    assert withdraw(world, 0) is None
    assert deposit(world) == Deposit(5 * PRICE, 0, 0)
    world.block(2 * WITHDRAWAL_MS)
    world.block()
    assert (deposit(world).amount, owned(world)) == (5 * PRICE, before - 5 * PRICE)


def test_a_stolen_node_key_spends_the_deposit_and_nothing_else() -> None:
    world = Market()
    assert fund(world, 2 * PRICE) is None
    left = owned(world)
    assert world.settle(receipt(10**6 * GIB)) is None
    assert (owned(world), deposit(world)) == (left, NO_DEPOSIT)


def test_the_standing_of_a_payer_says_what_relays_need_to_know() -> None:
    world = Market()
    assert fund(world, 5 * PRICE) is None
    assert withdraw(world, PRICE) is None
    assert world.settle(receipt(8 * GIB)) is None
    found = carriage_standing(world.state, WORKER.address, world.time_ms, world.parameters)
    assert (found.deposit, found.is_earning, found.has_room) == (NO_DEPOSIT, True, True)
    assert [(item.relay, item.size_bytes, item.amount, item.due) for item in found.relays] == [
        (RELAY, 8 * GIB, 8 * PRICE, 3 * PRICE)
    ]
    for stranger in (b"v" * 20, RELAY, b"?" * 20):
        found = carriage_standing(world.state, stranger, world.time_ms, world.parameters)
        assert (found.is_earning, found.relays, found.deposit) == (False, (), NO_DEPOSIT)
    for n in range(RELAYS_PER_PAYER_MAX - 1):
        world.enter(relay := b"t" * 19 + bytes((n,)), NodeRole.RELAY)
        assert carriage_standing(world.state, WORKER.address, world.time_ms, world.parameters).has_room
        assert world.settle(receipt(relay=relay)) is None
    assert not carriage_standing(world.state, WORKER.address, world.time_ms, world.parameters).has_room


_STEP = st.one_of(
    st.tuples(st.just("fund"), st.integers(1, 5)),
    st.tuples(st.just("withdraw"), st.integers(0, 8)),
    st.tuples(st.just("carry"), st.integers(1, 6)),
    st.tuples(st.just("carry for the other"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.sampled_from([1, WITHDRAWAL_MS // 3, WITHDRAWAL_MS])),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(_STEP, max_size=16))
def test_whatever_happens_no_unit_is_made_lost_or_paid_before_its_time(steps: list[tuple[str, int]]) -> None:
    """Plays deposits against a plain model; at each block the world checks that all money is still there."""
    world = Market()
    start = {who: owned(world, who) for who in (WORKER.address, RELAY, OTHER_RELAY)}
    held = withdrawn = release_ms = 0
    owed = dict.fromkeys((RELAY, OTHER_RELAY), 0)
    paid = dict.fromkeys((RELAY, OTHER_RELAY), 0)
    spoken = dict.fromkeys((RELAY, OTHER_RELAY), 0)
    returned = funded = sequence = 0
    for what, number in steps:
        if what == "fund":
            assert fund(world, number * PRICE) is None
            held, funded = held + number * PRICE, funded + number * PRICE
        elif what == "withdraw":
            refusal = withdraw(world, number * PRICE)
            if number * PRICE > held:
                assert refusal == "insufficient_funds"
            elif not number and not withdrawn:
                assert refusal == "nothing_due"
            else:
                assert refusal is None
                withdrawn, release_ms = number * PRICE, world.time_ms + WITHDRAWAL_MS
        elif what == "wait":
            world.block(number)
            world.block(0)
            if withdrawn and release_ms <= world.time_ms:
                held, returned, withdrawn = held - withdrawn, returned + withdrawn, 0
        else:
            relay = RELAY if what == "carry" else OTHER_RELAY
            sequence += 1
            opened_ms = world.time_ms
            who = Identity.create(
                WORKER, genesis_hash=GENESIS_HASH, now_ms=opened_ms, node_secret=digest(b"test node", b"later")
            )
            world.time_ms += 1  # each receipt opens a channel of its own
            word = receipt(
                number * GIB, relay=relay, channel=bytes((sequence,)), opened_ms=opened_ms + 1,
                not_after_ms=opened_ms + RECEIPT_LIFE_MS, who=who,
            )  # fmt: skip
            assert world.settle(word, who=who) is None
            if world.time_ms >= spoken[relay] + DUE_LIFE_MS:
                owed[relay] = 0
            spoken[relay] = world.time_ms
            part = min(held, owed[relay] + number * PRICE)
            owed[relay] += number * PRICE - part
            paid[relay] += part
            held, withdrawn = held - part, max(0, withdrawn - part)
        assert deposit(world)[:2] == (held, withdrawn)
        assert bool(deposit(world).release_ms) == bool(withdrawn)
        assert {relay: owned(world, relay) - start[relay] for relay in paid} == paid
        assert owned(world) == start[WORKER.address] - funded + returned
    world.block()
