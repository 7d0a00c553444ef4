"""What relays are paid: nothing that was not signed for, nothing twice, and only out of the signer's own pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.escrow import Purpose, bill_lines, earnings_of
from billing.prices import ROLE_WEIGHTS, Role
from billing.relay import CHANNEL_LIFE_MS, CLOCK_SKEW_MS_MAX, GIB, RECEIPT_LIFE_MS, Receipt
from p2p.identity import Identity, NodeCertificate
from state.primitives.hashing import digest
from state.primitives.keys import SecretKey
from tasks.carriage import DUE_LIFE_MS, RELAYS_PER_PAYER_MAX, SETTLE_CARRIAGE, carriage_rules, dues_of, share_pay
from tasks.lifecycle import Phase
from tasks.registry import NodeProfile, NodeRole
from tasks.transitions import REGISTER_NODE, RETIRE_NODE, node_payload
from tests.tasks.world import DKB, HONEST, START_MS, World

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
        self._rules |= {rule.kind: rule for rule in carriage_rules(check)}
        for address, roles in (
            (WORKER.address, NodeRole.COMPUTE), (RELAY, NodeRole.RELAY), (OTHER_RELAY, NodeRole.RELAY),
            (b"v" * 20, NodeRole.VERIFY),
        ):  # fmt: skip
            self.enter(address, roles)

    def enter(self, address: bytes, roles: NodeRole) -> None:
        self.fund(address, 1_000 * DKB)
        profile = NodeProfile(address, roles, (), 64, 64_000, 64, DKB // 2000, 100, 1, 0, (), "test")
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
