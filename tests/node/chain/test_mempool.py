"""The mempool: order, replacement, limits, and that it agrees with a plain model of itself."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from node.chain.mempool import LANE_KEPT_MAX, NEWS_KEPT, Mempool, MempoolFull, MempoolOptions
from state.primitives.errors import InvalidTransaction
from state.primitives.transactions import NATIVE_FORM, Transaction
from state.transition.runtime import Checked
from state.transition.transfer import TRANSFER
from state.view.accounts import Account

ANN, BEN, CYD = (bytes([i]) * 20 for i in (1, 2, 3))
GAS = 21_000
RICH = 10**24
_serial = count()


def wish(sender: bytes, nonce: int, fee: int = 100, tip: int = 10, value: int = 0, size: int = 120) -> Checked:
    """A checked transaction; the pool never looks at signatures or payloads."""
    raw = sender + next(_serial).to_bytes(8, "big") + bytes(size - 28)
    transaction = Transaction(raw, NATIVE_FORM, 7, nonce, tip, fee, GAS, 1, [], (b"", 0, 0, b""), b"")
    transaction.sender = sender
    return Checked(transaction, TRANSFER, None, value + GAS * fee)


class World:
    """Accounts and a pool over them."""

    def __init__(self, **options: Any) -> None:
        self.accounts: dict[bytes, Account] = {}
        self.pool = Mempool(MempoolOptions(**options), self.account)
        self.height = 0

    def account(self, address: bytes) -> Account:
        return self.accounts.get(address, Account(0, RICH))

    def include(self, *included: Checked) -> list[Checked]:
        """Make a block of transactions final."""
        for checked in included:
            transaction = checked.transaction
            account = self.account(transaction.sender)
            assert transaction.nonce == account.nonce
            self.accounts[transaction.sender] = Account(account.nonce + 1, account.balance - checked.cost_max)
        self.height += 1
        return self.pool.on_block(self.height, [checked.transaction.sender for checked in included])


def refusal(world: World, checked: Checked, **options: Any) -> InvalidTransaction:
    pool = world.pool
    before = (len(pool), pool.size_bytes, pool.queued_count, pool.take(1000), pool.pending_nonce(ANN))
    with pytest.raises(InvalidTransaction) as error:
        pool.add(checked, **options)
    assert (len(pool), pool.size_bytes, pool.queued_count, pool.take(1000), pool.pending_nonce(ANN)) == before
    return error.value


def test_the_best_tip_goes_first_and_then_the_earliest() -> None:
    world = World()
    low, first, second, high = wish(ANN, 0, tip=1), wish(BEN, 0, tip=5), wish(CYD, 0, tip=5), wish(ANN, 1, tip=9)
    for checked in (first, low, second, high):
        assert world.pool.add(checked) == (True, None, None)
    assert world.pool.take(10) == [first, second, low, high]  # the high one cannot go before its predecessor
    assert world.pool.take(2) == [first, second]
    assert len(world.pool) == 4


def test_a_transaction_is_screened_by_all_that_its_payload_does_not_say() -> None:
    world = World(sender_transactions_max=2, nonce_gap_max=3)
    world.accounts[ANN] = Account(2, 3 * GAS * 100)
    first = wish(ANN, 2)
    world.pool.screen(first.transaction)
    world.pool.add(first)
    for checked, code in (
        (first, "already_known"),
        (wish(ANN, 1), "nonce_too_low"),
        (wish(ANN, 7), "nonce_too_high"),
        (wish(ANN, 2, fee=101), "replacement_underpriced"),
        (wish(ANN, 3, fee=201), "insufficient_funds"),
        (wish(BEN, 0, fee=79), "fee_cap_too_low"),
    ):
        with pytest.raises(InvalidTransaction) as error:
            world.pool.screen(checked.transaction, fee_floor=80)
        assert error.value.code == code
    world.pool.add(wish(ANN, 3))
    with pytest.raises(InvalidTransaction) as error:
        world.pool.screen(wish(ANN, 4, fee=1).transaction)
    assert error.value.code == "sender_limit"


def test_the_tip_is_what_the_cap_leaves_above_the_base_fee() -> None:
    world = World()
    capped, honest, poor = (
        wish(ANN, 0, fee=100, tip=100),
        wish(BEN, 0, fee=200, tip=30),
        wish(CYD, 0, fee=79, tip=79),
    )
    for checked in (capped, honest, poor, wish(CYD, 1, fee=500)):
        world.pool.add(checked)
    assert world.pool.take(10, base_fee=80) == [honest, capped]
    assert world.pool.take(10, base_fee=10) == [capped, poor, honest, *world.pool.of_sender(CYD)[1:]]


def test_a_gap_waits_until_it_is_filled() -> None:
    world = World()
    third, second, first = (wish(ANN, nonce) for nonce in (2, 1, 0))
    assert not world.pool.add(third).pending
    assert not world.pool.add(second).pending
    assert (world.pool.take(10), world.pool.queued_count, world.pool.pending_nonce(ANN)) == ([], 2, 0)
    assert world.pool.add(first).pending
    assert world.pool.take(10) == [first, second, third]
    assert (world.pool.queued_count, world.pool.pending_count, world.pool.pending_nonce(ANN)) == (0, 3, 3)


def test_what_unfinalised_blocks_hold_is_not_taken_again() -> None:
    world = World()
    mine = [wish(ANN, nonce) for nonce in range(3)]
    other = wish(BEN, 0)
    for checked in (*mine, other):
        world.pool.add(checked)
    assert world.pool.take(10, next_nonces={ANN: 2, BEN: 1}) == mine[2:]
    assert world.pool.take(10, next_nonces={ANN: 9}) == [other]


def test_what_came_before_the_first_block_of_a_long_chain_is_not_old() -> None:
    world = World(expiry_heights=10)
    world.pool = Mempool(MempoolOptions(expiry_heights=10), world.account, height=5_000)
    mine, since, late = wish(ANN, 0), wish(BEN, 0), wish(CYD, 0)
    world.pool.add(mine)
    world.pool.add(since, local_since=4_995)
    world.height = 5_000
    assert world.include() == []
    world.pool.add(late, local_since=5_001)
    assert [world.include() for _ in range(4)] == [[], [], [], [since]]
    assert world.pool.local(transactions_max=10, bytes_max=1_000) == [(5_001, late.transaction.raw)]


def test_what_is_kept_of_local_transactions_is_bounded() -> None:
    world = World()
    mine = [wish(ANN, nonce, size=100) for nonce in range(5)]
    for number, checked in enumerate(mine):
        world.pool.add(checked, local_since=number if number != 2 else None)
    raws = [(number, checked.transaction.raw) for number, checked in enumerate(mine) if number != 2]
    assert world.pool.local(transactions_max=10, bytes_max=400) == raws
    assert world.pool.local(transactions_max=3, bytes_max=400) == raws[:3]
    assert world.pool.local(transactions_max=10, bytes_max=399) == raws[:3]


def test_finding_what_is_there() -> None:
    world = World()
    checked = wish(ANN, 0)
    transaction = checked.transaction
    world.pool.add(checked)
    assert world.pool.get(transaction.hash) is world.pool.find(transaction.raw) is checked
    assert transaction.hash in world.pool
    assert world.pool.remove(transaction.hash) is checked
    assert world.pool.remove(transaction.hash) is None
    assert world.pool.get(transaction.hash) is None
    assert world.pool.find(transaction.raw) is None
    assert (len(world.pool), world.pool.size_bytes) == (0, 0)


def test_refusals_have_the_texts_that_wallets_know() -> None:
    world = World(sender_transactions_max=3, nonce_gap_max=2)
    world.accounts[ANN] = Account(5, 3 * GAS * 100 + 50)
    known = wish(ANN, 5, value=50)
    world.pool.add(known)
    for checked, code, text in (
        (known, "already_known", "already known"),
        (wish(ANN, 4), "nonce_too_low", "nonce too low: next nonce 5, tx nonce 4"),
        (wish(ANN, 9), "nonce_too_high", "nonce too high: next nonce 6, tx nonce 9"),
        (wish(ANN, 6, value=2 * GAS * 100), "insufficient_funds", "insufficient funds for gas * price + value"),
        (wish(ANN, 5, fee=109, tip=11), "replacement_underpriced", "replacement transaction underpriced"),
        (wish(ANN, 5, fee=110, tip=10), "replacement_underpriced", "replacement transaction underpriced"),
    ):
        error = refusal(world, checked)
        assert (error.code, text in str(error)) == (code, True)
    assert "max fee per gas less than block base fee" in str(refusal(world, wish(ANN, 6), fee_floor=101))
    assert world.pool.add(wish(ANN, 6), fee_floor=100).pending
    assert world.pool.add(wish(ANN, 7)).pending
    world.accounts[ANN] = Account(5, RICH)
    assert refusal(world, wish(ANN, 8)).code == "sender_limit"


def test_a_tenth_more_replaces() -> None:
    world = World()
    old, after = wish(ANN, 0, fee=95, tip=5), wish(ANN, 1)
    world.pool.add(old)
    world.pool.add(after)
    assert refusal(world, wish(ANN, 0, fee=103, tip=6)).code == "replacement_underpriced"
    assert refusal(world, wish(ANN, 0, fee=104, tip=5)).code == "replacement_underpriced"  # 5.5, but more than 5
    new = wish(ANN, 0, fee=104, tip=6)  # 104.5 is rounded down, as wallets do
    assert world.pool.add(new) == (True, old, None)
    assert world.pool.take(10) == [new, after]
    assert old.transaction.hash not in world.pool


def test_a_wallet_that_adds_a_tenth_replaces_at_any_price() -> None:
    for price in (1, 9, 10, 11, 126_562_501, 10**18 + 7):
        world = World()
        world.pool.add(wish(ANN, 0, fee=price, tip=price))
        assert refusal(world, wish(ANN, 0, fee=price, tip=price, value=2)).code == "replacement_underpriced"
        raised = max(price * 110 // 100, price + 1)
        assert world.pool.add(wish(ANN, 0, fee=raised, tip=raised)).replaced is not None


def test_what_came_in_is_told_also_when_a_block_has_it_already() -> None:
    world = World()
    first, second = wish(ANN, 0), wish(ANN, 1)
    world.pool.add(first)
    place, _ = world.pool.arrivals(0, 0)
    world.pool.add(second)
    world.include(first, second)
    assert len(world.pool) == 0
    assert world.pool.arrivals(place, 9) == (2, [second.transaction.hash])
    assert world.pool.arrivals(0, 9) == (2, [first.transaction.hash, second.transaction.hash])


def test_hashes_of_what_came_in_are_bounded_in_number() -> None:
    world = World()
    for nonce in range(NEWS_KEPT + 5):
        world.pool.add(wish(ANN, nonce))
        world.include(wish(ANN, nonce))
    arrivals, hashes = world.pool.arrivals(0, 2 * NEWS_KEPT)
    assert (arrivals, len(hashes)) == (NEWS_KEPT + 5, NEWS_KEPT)


def test_a_larger_replacement_must_find_room() -> None:
    world = World(bytes_max=1_000)
    world.pool.add(wish(ANN, 0, size=600))
    world.pool.add(wish(BEN, 0, size=300))
    assert refusal(world, wish(BEN, 0, size=401, fee=200, tip=20)).code == "mempool_full"
    assert world.pool.add(wish(BEN, 0, size=400, fee=200, tip=20)).replaced is not None
    assert world.pool.size_bytes == 1_000


def test_a_full_pool_gives_room_to_who_pays_more() -> None:
    world = World(transactions_max=4)
    first, last = wish(ANN, 0, fee=300), wish(ANN, 1, fee=50)
    ben, cyd = wish(BEN, 0, fee=60), wish(CYD, 0, fee=70)
    for checked in (first, last, ben, cyd):
        world.pool.add(checked)
    stranger = bytes(20)
    assert refusal(world, wish(stranger, 0, fee=50)).code == "mempool_full"
    # Only the end of a queue leaves, though another one of the same sender pays more.
    assert world.pool.add(wish(stranger, 0, fee=51)) == (True, None, last)
    assert world.pool.pending_nonce(ANN) == 1
    assert refusal(world, wish(stranger, 1, fee=1000)).code == "mempool_full"  # that would only push out its own
    assert world.pool.add(wish(ANN, 1, fee=61)).evicted is not None
    assert world.pool.add(wish(ANN, 2, fee=61)).evicted is ben


def test_high_prices_behind_one_that_no_block_takes_hold_no_room() -> None:
    world = World(transactions_max=6)
    cheap = wish(ANN, 0, fee=60)
    hoard = [cheap, *(wish(ANN, nonce, fee=10_000) for nonce in range(1, 6))]
    for checked in hoard:
        world.pool.add(checked)
    assert refusal(world, wish(BEN, 0, fee=60)).code == "mempool_full"
    for nonce in range(6):  # from the end, so that no gap appears
        assert world.pool.add(wish(BEN, nonce, fee=61)).evicted is hoard[5 - nonce]
    # Nor does a high price buy anything behind a low one of its own.
    assert refusal(world, wish(BEN, 6, fee=10_000)).code == "mempool_full"
    # What was cheap has been replaced, or is in a block: what follows is worth its own price again.
    world = World(transactions_max=3)
    ben = wish(BEN, 0, fee=200)
    for checked in (cheap, wish(ANN, 1, fee=300), ben):
        world.pool.add(checked)
    world.pool.add(wish(ANN, 0, fee=400, tip=11))
    assert world.pool.add(wish(CYD, 0, fee=250)).evicted is ben
    world = World(transactions_max=2)
    for checked in (cheap, wish(ANN, 1, fee=300)):
        world.pool.add(checked)
    world.include(cheap)
    ben = wish(BEN, 0, fee=200)
    world.pool.add(ben)
    assert world.pool.add(wish(CYD, 0, fee=250)).evicted is ben


def test_what_waits_behind_a_gap_pushes_nothing_out_and_goes_first() -> None:
    world = World(transactions_max=4)
    ann, early, late = wish(ANN, 0, fee=50), wish(BEN, 0, fee=60), wish(BEN, 2, fee=10_000)
    for checked in (ann, early, late, wish(CYD, 0, fee=70)):
        world.pool.add(checked)
    assert refusal(world, wish(ANN, 2, fee=10_000)).code == "mempool_full"
    assert world.pool.add(wish(ANN, 1, fee=40)).evicted is late  # that pays less, but can be taken
    assert refusal(world, wish(BEN, 2, fee=10_000)).code == "mempool_full"
    # Who fills its own gap in a full pool loses at most what waits behind it.
    world = World(transactions_max=3)
    for checked in (late, ann, early):
        world.pool.add(checked)
    world.accounts[BEN] = Account(0, late.cost_max + early.cost_max + GAS * 90)
    assert world.pool.add(wish(BEN, 1, fee=90)) == (True, None, late)
    assert world.pool.of_sender(BEN)[0] is early
    world.accounts[BEN] = Account(0, early.cost_max + GAS * 190)
    assert world.pool.add(wish(CYD, 0, fee=70)).evicted is ann
    world.pool.remove(world.pool.of_sender(CYD)[0].transaction.hash)
    assert world.pool.add(wish(BEN, 2, fee=100)).pending, "what left is no cost any more"


def test_bytes_and_gaps_are_bounded_in_sum() -> None:
    world = World(bytes_max=1_000, queued_max=2)
    world.pool.add(wish(ANN, 0, size=600))
    assert refusal(world, wish(BEN, 0, size=401)).code == "mempool_full"
    assert refusal(world, wish(BEN, 0, size=1_001, fee=10**6)).code == "mempool_full"
    large = wish(BEN, 0, size=900, fee=101)
    assert world.pool.add(large).evicted is not None
    assert world.pool.size_bytes == 900
    world = World(queued_max=2)
    world.pool.add(wish(ANN, 2))
    world.pool.add(wish(BEN, 1))
    assert refusal(world, wish(CYD, 1)).code == "mempool_full"
    assert world.pool.add(wish(CYD, 0)).pending


def test_a_block_removes_what_it_holds_and_what_it_made_impossible() -> None:
    world = World()
    ann = [wish(ANN, nonce) for nonce in range(3)]
    ben = [wish(BEN, nonce, value=RICH // 2 - 10**7) for nonce in range(2)]
    for checked in (*ann, *ben):
        world.pool.add(checked)
    assert world.include(ann[0]) == []
    assert world.pool.of_sender(ANN) == ann[1:]
    # Another transaction with the nonce of one that waits, and one that leaves too little for the next.
    foreign = wish(ANN, 1)
    assert world.include(foreign) == []
    assert world.pool.of_sender(ANN) == [ann[2]]
    assert world.include(wish(BEN, 0, value=RICH - 10**8)) == [ben[1]]
    assert world.pool.of_sender(BEN) == []
    assert (len(world.pool), world.pool.pending_nonce(BEN)) == (1, 1)


def test_an_account_that_moved_before_its_block_was_told_is_followed() -> None:
    world = World()
    mine = [wish(ANN, nonce) for nonce in range(3)]
    for checked in mine:
        world.pool.add(checked)
    world.accounts[ANN] = Account(2, RICH)
    assert refusal_code(world, wish(ANN, 1)) == "nonce_too_low"
    assert world.pool.add(wish(ANN, 3)).pending
    assert [checked.transaction.nonce for checked in world.pool.of_sender(ANN)] == [2, 3]
    assert world.pool.on_block(1, [ANN]) == []
    assert (len(world.pool), world.pool.queued_count, world.pool.pending_nonce(ANN)) == (2, 0, 4)


def refusal_code(world: World, checked: Checked) -> str:
    with pytest.raises(InvalidTransaction) as error:
        world.pool.add(checked)
    return error.value.code


def test_what_waits_too_long_leaves() -> None:
    world = World(expiry_heights=3)
    old, young = wish(ANN, 0), wish(ANN, 1)
    world.pool.add(old)
    world.include()
    world.pool.add(young)
    world.include()
    assert world.include() == [old]
    assert (world.pool.queued_count, world.pool.take(9)) == (1, [])
    assert world.include() == [young]
    assert len(world.pool) == 0


def test_heaps_stay_in_proportion_to_the_pool() -> None:
    world = World(expiry_heights=10_000)
    fee = 100
    world.pool.add(wish(ANN, 0, fee=fee))
    for _ in range(60):
        fee = fee * 11 // 10 + 1
        world.pool.add(wish(ANN, 0, fee=fee, tip=fee))
    for _ in range(4_000):
        checked = wish(BEN, world.account(BEN).nonce)
        world.pool.add(checked)
        world.include(checked)
    assert len(world.pool) == 1
    assert len(world.pool._tails) < 2_000
    assert len(world.pool._expiry) < 2_000


def test_an_emptied_pool_is_as_a_new_one_but_for_its_count() -> None:
    world = World()
    for checked in (wish(ANN, 0), wish(ANN, 1), wish(BEN, 3), wish(CYD, 0)):
        world.pool.add(checked)
    assert world.pool.clear() == 4
    assert (len(world.pool), world.pool.size_bytes, world.pool.queued_count, world.pool.take(9)) == (0, 0, 0, [])
    assert world.pool.arrivals(0, 9) == (4, [])
    assert world.pool.arrivals(99, 9) == (4, []), "a place of another pool is none"
    again = wish(ANN, 0)
    world.pool.add(again)
    assert world.pool.arrivals(4, 9) == (5, [again.transaction.hash])
    assert world.pool.take(9) == [again]


class Model(RuleBasedStateMachine):
    """The pool against lists; its limits are so small that all of them are met."""

    @initialize()
    def start(self) -> None:
        self.options = MempoolOptions(
            transactions_max=9, bytes_max=1_500, sender_transactions_max=4, nonce_gap_max=2, queued_max=4,
            expiry_heights=4,
        )  # fmt: skip
        self.world = World()
        self.world.pool = Mempool(self.options, self.world.account)
        self.inside: dict[tuple[bytes, int], Checked] = {}
        self.arrived: list[Checked] = []

    def forget(self, checked: Checked) -> None:
        transaction = checked.transaction
        assert self.inside.pop((transaction.sender, transaction.nonce)) is checked

    @rule(
        sender=st.sampled_from([ANN, BEN, CYD, b"d" * 20]), ahead=st.integers(-1, 4),
        fee=st.sampled_from([90, 100, 111, 130]), tip=st.integers(0, 50), size=st.sampled_from([100, 300]),
        value=st.sampled_from([0, 0, 0, RICH // 3]),
    )  # fmt: skip
    def add(self, sender: bytes, ahead: int, fee: int, tip: int, size: int, value: int) -> None:
        nonce = max(0, self.world.account(sender).nonce + ahead)
        checked = wish(sender, nonce, fee, tip, value, size)
        last, worth = self.ends()
        screened = self.screened(checked)
        try:
            added = self.world.pool.add(checked)
        except InvalidTransaction:
            return
        assert screened is None, "what is admitted passed before its payload was read"
        for gone in (added.replaced, added.evicted):
            if gone is not None:
                self.forget(gone)
        if added.evicted is not None:
            pushed = added.evicted.transaction
            assert worth[pushed.sender] == min(worth.values()) and pushed.nonce == last[pushed.sender]
            mine = [
                c.transaction.max_fee_per_gas
                for key, c in self.inside.items()
                if key < (sender, nonce) and key[0] == sender
            ]
            assert worth[pushed.sender] < min([fee, *mine])
        assert (sender, nonce) not in self.inside
        self.inside[sender, nonce] = checked
        self.arrived.append(checked)

    def screened(self, checked: Checked) -> str | None:
        """The reason for which a transaction is refused before its payload is read."""
        try:
            self.world.pool.screen(checked.transaction)
        except InvalidTransaction as error:
            return error.code
        return None

    def ends(self) -> tuple[dict[bytes, int], dict[bytes, int]]:
        """The last nonce of each sender, and the lowest price up to there; -1 behind a gap."""
        last: dict[bytes, int] = {}
        worth: dict[bytes, int] = {}
        for sender in {sender for sender, _ in self.inside}:
            mine = {nonce: c for (owner, nonce), c in self.inside.items() if owner == sender}
            last[sender] = max(mine)
            has_gap = last[sender] - self.world.account(sender).nonce >= len(mine)
            worth[sender] = -1 if has_gap else min(c.transaction.max_fee_per_gas for c in mine.values())
        return last, worth

    @rule(how_many=st.integers(0, 4), foreign=st.booleans())
    def block(self, how_many: int, foreign: bool) -> None:
        included = self.world.pool.take(how_many)
        if foreign:
            transactions = [checked.transaction for checked in included]
            included = [
                wish(transaction.sender, transaction.nonce, value=RICH // 4)
                if self.world.account(transaction.sender).balance > RICH // 2 and transaction.nonce % 2
                else checked
                for checked, transaction in zip(included, transactions, strict=True)
            ]
        dropped = self.world.include(*included)
        for key in [key for key in self.inside if key[1] < self.world.account(key[0]).nonce]:
            del self.inside[key]
        for checked in dropped:
            self.forget(checked)

    @rule(sender=st.sampled_from([ANN, BEN]), how_many=st.integers(1, 3), data=st.data())
    def block_from_elsewhere(self, sender: bytes, how_many: int, data: st.DataObject) -> None:
        """Include transactions that the pool never saw, past gaps of its own queue."""
        nonce = self.world.account(sender).nonce
        value = data.draw(st.sampled_from([0, RICH // 5]))
        if self.world.account(sender).balance > RICH * 3 // 4:
            dropped = self.world.include(*(wish(sender, nonce + i, value=value) for i in range(how_many)))
            for key in [key for key in self.inside if key[1] < self.world.account(key[0]).nonce]:
                del self.inside[key]
            for checked in dropped:
                self.forget(checked)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if self.inside:
            key = data.draw(st.sampled_from(sorted(self.inside)))
            checked = self.inside.pop(key)
            assert self.world.pool.remove(checked.transaction.hash) is checked

    @invariant()
    def agrees(self) -> None:
        pool, world = self.world.pool, self.world
        assert len(pool) == len(self.inside) <= self.options.transactions_max
        assert (
            pool.size_bytes == sum(len(c.transaction.raw) for c in self.inside.values()) <= self.options.bytes_max
        )
        pending = []
        for sender in {sender for sender, _ in self.inside} | {ANN}:
            mine = {nonce: c for (owner, nonce), c in self.inside.items() if owner == sender}
            assert len(mine) <= self.options.sender_transactions_max
            assert sum(c.cost_max for c in mine.values()) <= world.account(sender).balance
            assert pool.of_sender(sender) == [mine[nonce] for nonce in sorted(mine)]
            nonce = world.account(sender).nonce
            while nonce in mine:
                pending.append(mine[nonce])
                nonce += 1
            assert pool.pending_nonce(sender) == nonce
        assert {sender: queue.weigh() for sender, queue in pool._senders.items()} == self.ends()[1]
        assert pool.queued_count == len(self.inside) - len(pending)
        queued = pool.queued(100)
        assert sorted(map(id, queued)) == sorted({*map(id, self.inside.values())} - {*map(id, pending)})
        assert pool.queued(2) == queued[:2]
        waiting = {id(checked) for checked in self.inside.values()}
        there = [(at, checked) for at, checked in enumerate(self.arrived) if id(checked) in waiting]
        assert pool.page(None, 100) == there[::-1]
        middle = len(self.arrived) // 2
        assert pool.page(middle, 2) == [item for item in there[::-1] if item[0] < middle][:2]
        hashes = [checked.transaction.hash for checked in self.arrived[middle:]]
        assert pool.arrivals(middle, 100) == (len(self.arrived), hashes)
        assert pool.arrivals(middle, 1) == (len(self.arrived), hashes[-1:])
        taken = pool.take(100)
        assert sorted(map(id, taken)) == sorted(map(id, pending))
        for position, checked in enumerate(taken):  # whatever was possible then paid no more
            later = taken[position + 1 :]
            heads = {c.transaction.sender: c for c in reversed(later)}
            heads.pop(checked.transaction.sender, None)
            tip = checked.transaction.max_priority_fee_per_gas
            assert all(head.transaction.max_priority_fee_per_gas <= tip for head in heads.values())


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


# The lane: transactions whose tickets say that they are due in a game


def test_a_full_pool_takes_a_transaction_for_the_lane_and_offers_it_first() -> None:
    world = World(transactions_max=4)
    rich = [wish(bytes([90 + at]) * 20, 0, fee=10_000, tip=9_000) for at in range(4)]
    for checked in rich:
        world.pool.add(checked)
    due = wish(ANN, 0, fee=10, tip=0)
    assert isinstance(refusal(world, due), MempoolFull)
    assert world.pool.add(due, lane=b"game 1") == (True, None, None)
    assert isinstance(refusal(world, wish(BEN, 0, fee=10, tip=0), lane=b"game 1"), MempoolFull), "one a subject"
    assert world.pool.take(10) == [due, *rich] and world.pool.take(10, base_fee=11) == rich
    for at in range(4):  # nobody pushes it out, whatever is offered
        world.pool.add(wish(bytes([50 + at]) * 20, 0, fee=20_000 + at))
    assert due.transaction.hash in world.pool
    assert world.include(due) == []
    assert world.pool.add(wish(ANN, 1, fee=10, tip=0), lane=b"game 1").pending


def test_what_a_sender_sent_before_comes_with_a_transaction_for_the_lane() -> None:
    world = World()
    first, second, due = wish(ANN, 0, fee=30), wish(ANN, 1, fee=20), wish(ANN, 2, fee=40)
    better = [wish(BEN, at, fee=1_000, tip=900) for at in range(2)]
    for checked in (*better, first, second):
        world.pool.add(checked)
    world.pool.add(due, lane=b"game")
    after = wish(ANN, 3, fee=5_000, tip=1)
    world.pool.add(after)
    assert world.pool.take(10) == [first, second, due, *better, after]
    # One that cannot pay keeps what follows it: the wallet has to raise its fee.
    assert world.pool.take(10, base_fee=25)[:3] == [*better, first]
    assert world.pool.take(10, next_nonces={ANN: 2}) == [due, *better, after]
    assert world.pool.take(2) == better, "no half of a queue"


def test_transactions_for_the_lane_are_bounded_and_leave_nothing_behind() -> None:
    world = World(transactions_max=1)
    world.pool.add(wish(b"z" * 20, 0, fee=10**6))
    senders = [at.to_bytes(20, "big") for at in range(1, LANE_KEPT_MAX + 1)]
    kept = [wish(sender, 0, fee=10, tip=0) for sender in senders]
    for at, checked in enumerate(kept):
        world.pool.add(checked, lane=b"game %d" % at)
    assert isinstance(refusal(world, wish(b"y" * 20, 0, fee=10), lane=b"one more"), MempoolFull)
    replaced = wish(senders[0], 0, fee=20, tip=2)
    assert world.pool.add(replaced).replaced is kept[0], "the same place without a ticket"
    world.pool.remove(kept[1].transaction.hash)
    for at in range(2):
        world.pool.add(wish(bytes([200 + at]) * 20, 0, fee=10, tip=0), lane=b"again %d" % at)
    assert len(world.pool._lanes) == LANE_KEPT_MAX
    world.pool.clear()
    assert not world.pool._lanes and len(world.pool) == 0


def test_a_transaction_behind_a_gap_has_no_place_in_the_lane() -> None:
    world = World()
    assert not world.pool.add(wish(ANN, 1), lane=b"game").pending
    assert not world.pool._lanes
