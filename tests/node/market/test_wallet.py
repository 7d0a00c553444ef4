"""The node's own transactions: one nonce each, offered again until final, refused in the open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from node.chain.mempool import Mempool, MempoolOptions
from node.market.wallet import (
    FEE_HEADROOM,
    RAISE_TRIES,
    RESEND_S,
    RESENDS_MAX,
    Offer,
    TransactionFailed,
    TransactionLost,
    Wallet,
    raised_fees,
)
from state.primitives.errors import InvalidTransaction
from state.primitives.keys import SecretKey
from state.primitives.receipts import Receipt
from state.transition.transfer import TRANSFER_KIND, transfer_payload
from state.view.accounts import balance_of, nonce_of
from tasks.ledger.transitions import ACCEPT_TASK
from tests.node.world import COIN, World
from tests.p2p.helpers import account

TO = b"t" * 20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def lose_everything(world: World) -> None:
    """Forget the mempool, as a restarted node does."""
    world.ledger.mempool = Mempool(MempoolOptions(), world.ledger._account_of)


async def test_a_transaction_is_final_when_send_returns(world: World, autojump_clock: object) -> None:
    passed_on: list[bytes] = []
    world.ledger.on_admitted = passed_on.append
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keep_minting)
        receipt = await world.wallet(0).send(TRANSFER_KIND, transfer_payload(TO, COIN))
        nursery.cancel_scope.cancel()
    assert (receipt.status, balance_of(world.store, TO), len(passed_on)) == (1, COIN, 1)


def test_the_cost_of_what_is_to_be_said_is_known_before(world: World) -> None:
    fee, tip = raised_fees(world.ledger.base_fee(), None)
    gas = world.ledger.gas_of(ACCEPT_TASK) + 2 * world.ledger.gas_of(TRANSFER_KIND)
    assert world.wallet(0).cost_of(ACCEPT_TASK, TRANSFER_KIND, TRANSFER_KIND) == fee * gas > tip * gas > 0
    assert world.wallet(0).cost_of() == 0


async def test_sends_at_once_take_different_nonces_in_order(world: World, autojump_clock: object) -> None:
    wallet = world.wallet(0)
    receipts: list[Receipt] = []

    async def send() -> None:
        receipts.append(await wallet.send(TRANSFER_KIND, transfer_payload(TO, COIN)))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        world.mint()
    assert [receipt.status for receipt in receipts] == [1] * 5
    assert (nonce_of(world.store, wallet.address), balance_of(world.store, TO)) == (5, 5 * COIN)


async def test_what_the_pool_lost_is_sent_again_with_the_same_nonce(world: World, autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.wallet(0).send, TRANSFER_KIND, transfer_payload(TO, COIN))
        await trio.testing.wait_all_tasks_blocked()
        lose_everything(world)
        world.mint()
        assert balance_of(world.store, TO) == 0
        await trio.sleep(RESEND_S + 1)
        assert len(world.ledger.mempool) == 1
        world.mint()
    assert (nonce_of(world.store, account(0).address), balance_of(world.store, TO)) == (1, COIN)


@pytest.mark.slow
async def test_a_nonce_that_was_lost_with_its_transaction_is_used_once(
    world: World, autojump_clock: object
) -> None:
    """A first transaction is lost and a second takes its nonce: both become final, once each."""
    wallet = world.wallet(0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wallet.send, TRANSFER_KIND, transfer_payload(TO, COIN))
        await trio.testing.wait_all_tasks_blocked()
        lose_everything(world)
        nursery.start_soon(wallet.send, TRANSFER_KIND, transfer_payload(TO, 2 * COIN))
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(RESEND_S / 2)
        world.mint()
        nursery.start_soon(world.keep_minting)
        await trio.sleep(RESEND_S * 3)
        nursery.cancel_scope.cancel()
    assert (nonce_of(world.store, wallet.address), balance_of(world.store, TO)) == (2, 3 * COIN)


async def test_a_pool_that_never_gets_into_a_block_is_told(world: World, autojump_clock: object) -> None:
    started = trio.current_time()
    with pytest.raises(TransactionLost):
        await world.wallet(0).send(TRANSFER_KIND, transfer_payload(TO, COIN))
    assert trio.current_time() - started >= RESEND_S * RESENDS_MAX
    assert len(world.ledger.mempool) == 1, "offered again and again, kept once"


async def test_a_refusal_of_the_pool_and_one_of_the_rule(world: World, autojump_clock: object) -> None:
    with pytest.raises(InvalidTransaction) as refused:
        await Wallet(SecretKey(b"p" * 32), world.ledger).send(TRANSFER_KIND, transfer_payload(TO, COIN))
    assert refused.value.code == "insufficient_funds"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keep_minting)
        with pytest.raises(TransactionFailed) as failed:
            await world.wallet(0).send(ACCEPT_TASK, [b"?" * 32, 5])
        nursery.cancel_scope.cancel()
    assert failed.value.code == "task_unknown"
    assert nonce_of(world.store, account(0).address) == 1, "its fee was paid"


async def test_what_the_base_fee_left_behind_is_replaced_by_what_pays_it(
    world: World, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.wallet(0).send, TRANSFER_KIND, transfer_payload(TO, COIN))
        await trio.testing.wait_all_tasks_blocked()
        (first,) = world.ledger.mempool.of_sender(account(0).address)
        cap = first.transaction.max_fee_per_gas
        assert first.transaction.max_priority_fee_per_gas > 0
        monkeypatch.setattr(world.ledger, "base_fee", lambda: cap + 1)
        await trio.sleep(RESEND_S + 1)
        (second,) = world.ledger.mempool.of_sender(account(0).address)
        assert second.transaction.nonce == first.transaction.nonce
        assert second.transaction.max_fee_per_gas >= FEE_HEADROOM * cap
        world.mint()
    assert (nonce_of(world.store, account(0).address), balance_of(world.store, TO)) == (1, COIN)


async def test_a_replaced_transaction_that_becomes_final_all_the_same_is_the_answer(
    world: World, autojump_clock: object
) -> None:
    receipts: list[Receipt] = []

    async def send() -> None:
        receipts.append(await world.wallet(0).send(TRANSFER_KIND, transfer_payload(TO, COIN)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        (first,) = world.ledger.mempool.of_sender(account(0).address)
        await trio.sleep(RESEND_S * (RAISE_TRIES + 1))
        (second,) = world.ledger.mempool.of_sender(account(0).address)
        assert second.transaction.hash != first.transaction.hash
        lose_everything(world)
        world.ledger.admit(first.transaction.raw, account(0).address)  # another pool kept it
        world.mint()
    assert [receipt.status for receipt in receipts] == [1]
    assert (nonce_of(world.store, account(0).address), balance_of(world.store, TO)) == (1, COIN)


async def test_impatience_has_an_end(world: World, autojump_clock: object) -> None:
    with pytest.raises(TransactionLost):
        await world.wallet(0).send(TRANSFER_KIND, transfer_payload(TO, COIN))
    (last,) = world.ledger.mempool.of_sender(account(0).address)
    assert last.transaction.max_fee_per_gas <= 3 * raised_fees(world.ledger.base_fee(), None)[0]


@given(st.lists(st.integers(1, 1 << 90), min_size=1, max_size=20))
def test_each_offer_may_replace_the_one_before(base_fees: list[int]) -> None:
    offer: Offer | None = None
    for base_fee in base_fees:
        fee, tip = raised_fees(base_fee, offer)
        assert fee >= tip + base_fee
        if offer is not None:
            assert 100 * fee >= 110 * offer.fee and 100 * tip >= 110 * offer.tip
        offer = Offer(0, fee, tip, b"")
