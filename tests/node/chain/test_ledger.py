"""The ledger: what it shows of the chain, what it admits, and that nobody waits for what has happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from node.chain.block_tree import BodyInvalid, Executed, decode_body
from state.primitives.errors import DecodeError, InvalidTransaction
from state.primitives.keys import SecretKey, recover_addresses
from state.primitives.transactions import decode_transaction, sign_transaction
from state.transition.errors import InsufficientFunds, InvalidPayload, UnknownKind
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload
from tasks.ledger.transitions import CREATE_TASK
from tests.node.world import COIN, START_MS, World
from tests.p2p.helpers import account

TO = b"t" * 20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def transfer(key: SecretKey, nonce: int, *, fee: int) -> bytes:
    return sign_transaction(
        key, chain_id=7, nonce=nonce, kind=TRANSFER_KIND, payload=transfer_payload(TO, COIN),
        gas_limit=TRANSFER_GAS, max_fee_per_gas=fee,
    )  # fmt: skip


def test_the_head_before_any_block_is_the_genesis(world: World) -> None:
    head = world.ledger.head()
    assert (head.height, head.time_ms, head.base_fee) == (0, START_MS, world.runtime.chain.base_fee_initial)
    assert head.base_fee_next == world.ledger.base_fee()


def test_a_commit_moves_the_head_and_tells_listeners_after_the_ledger_shows_it(world: World) -> None:
    seen: list[tuple[int, int]] = []

    def listen(blocks: object) -> None:
        assert isinstance(blocks, list | tuple)
        assert all(isinstance(block, Executed) for block in blocks)
        seen.append((len(blocks), world.ledger.head().height))

    world.ledger.add_listener(listen)
    executed = world.mint()
    world.mint()
    world.ledger.on_commit([])
    assert seen == [(1, 1), (1, 2)]
    assert world.ledger.head().hash != executed.block_hash


async def test_who_waits_for_a_height_is_woken_by_it_and_not_before(world: World) -> None:
    reached: list[int] = []

    async def wait(height: int) -> None:
        reached.append((await world.ledger.wait_head(height)).height)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 0)
        nursery.start_soon(wait, 1)
        await trio.testing.wait_all_tasks_blocked()
        world.mint()
        await trio.testing.wait_all_tasks_blocked()
        assert reached == [1]
        world.mint()
    assert reached == [1, 2]
    assert (await world.ledger.wait_head(0)).height == 2


async def test_a_receipt_is_there_at_once_for_what_is_final(world: World) -> None:
    raw = transfer(account(0), 0, fee=10**12)
    name = await world.ledger.submit_own(raw, account(0).address)
    assert await world.ledger.submit_own(raw, account(0).address) == name
    world.mint()
    with trio.move_on_after(0):
        receipt = await world.ledger.wait_receipt(name)
    assert receipt.status == 1
    with trio.move_on_after(0.01) as scope:
        await world.ledger.wait_receipt(b"?" * 32)
    assert scope.cancelled_caught


def test_gossip_is_kept_below_the_base_fee_but_not_far_below(world: World) -> None:
    base_fee = world.ledger.base_fee()
    for fee, number, is_kept in ((base_fee - 1, 0, True), (base_fee // 3, 1, False)):
        transaction = decode_transaction(transfer(account(number), 0, fee=fee))
        transaction.recover_sender()
        if is_kept:
            assert world.ledger.admit_gossip(transaction)
            assert not world.ledger.admit_gossip(transaction), "known already"
        else:
            with pytest.raises(InvalidTransaction):
                world.ledger.admit_gossip(transaction)
        with pytest.raises(InvalidTransaction):
            world.ledger.admit(transfer(account(number + 2), 0, fee=fee), account(number + 2).address)


def test_a_transaction_of_a_block_leaves_the_pool_and_the_next_nonce_counts_it(world: World) -> None:
    me = account(0)
    changes: list[int] = []
    world.ledger.on_pool_changed = lambda: changes.append(world.ledger.mempool.pending_count)
    for nonce in range(3):
        world.ledger.admit(transfer(me, nonce, fee=10**12), me.address)
    assert world.ledger.pending_nonce(me.address) == 3
    executed = world.mint()
    assert len(executed.senders) == 3 or set(executed.senders) == {me.address}
    assert (len(world.ledger.mempool), world.ledger.pending_nonce(me.address)) == (0, 3)
    assert changes[-1] == 0


def test_a_block_is_not_offered_what_its_parent_already_holds(world: World) -> None:
    me = account(0)
    world.ledger.admit(transfer(me, 0, fee=10**12), me.address)
    tip = world.store.tip
    taken = world.ledger.take(10, world.ledger.room_after(tip.block_hash))
    block, checked = world.chain.build(
        tip.block_hash, epoch=0, view=1, seat=0, time_ms=START_MS + 1, voters_bitmap=b"",
        vrf_proof=world.prove(tip.block_hash, 1), transactions=taken,
    )  # fmt: skip
    world.chain.execute(block, checked)
    assert len(taken) == 1
    assert world.ledger.take(10, world.ledger.room_after(block.hash)) == []


def create(key: SecretKey, specification: bytes, *, gas: int, fee: int) -> bytes:
    return sign_transaction(
        key, chain_id=7, nonce=0, kind=CREATE_TASK, payload=[specification], gas_limit=gas, max_fee_per_gas=fee
    )


def test_a_specification_is_read_only_for_who_could_pay_for_its_gas(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody could have every validator read specifications, 2 ms each, with keys that own nothing."""
    read: list[bytes] = []
    rule = world.runtime.rules[CREATE_TASK]

    def decode(payload: list[Any]) -> Any:
        read.append(payload[0])
        return rule.decode(payload)

    monkeypatch.setitem(world.runtime.rules, CREATE_TASK, replace(rule, decode=decode))
    raw = create(account(99), b"no specification", gas=rule.gas, fee=10**10)
    with pytest.raises(InsufficientFunds):
        world.ledger.admit(raw, account(99).address)
    transaction = decode_transaction(raw)
    transaction.recover_sender()
    with pytest.raises(InsufficientFunds):
        world.ledger.admit_gossip(transaction)
    assert not read
    rich = account(1)
    with pytest.raises(InvalidPayload):
        world.ledger.admit(create(rich, b"no specification", gas=rule.gas, fee=10**10), rich.address)
    assert read == [b"no specification"]


def test_a_kind_that_is_not_there_has_no_weight(world: World) -> None:
    assert world.ledger.gas_of(TRANSFER_KIND) == TRANSFER_GAS
    with pytest.raises(UnknownKind):
        world.ledger.gas_of(0xFFFF)


def test_of_many_admitted_together_each_fails_alone_and_who_builds_looks_once(world: World) -> None:
    passed_on: list[bytes] = []
    looked: list[int] = []
    world.ledger.on_admitted = passed_on.append
    world.ledger.on_pool_changed = lambda: looked.append(len(world.ledger.mempool))
    good = [transfer(account(n), 0, fee=10**12) for n in range(3)]
    cheap = transfer(account(3), 0, fee=world.runtime.chain.base_fee_min)
    with world.ledger.admission() as admit:
        names = [admit(raw, account(n).address) for n, raw in enumerate(good)]
        for raw, sender in ((good[0], account(0).address), (cheap, account(3).address), (good[1][:-1], b"")):
            with pytest.raises((InvalidTransaction, DecodeError)):
                admit(raw, sender)
    assert names == [decode_transaction(raw).hash for raw in good]
    assert passed_on == good
    assert looked == [3]


def test_a_sender_that_a_gateway_made_up_convinces_no_other_validator(world: World, tmp_path: Path) -> None:
    thief, victim = SecretKey(b"x" * 32), account(1).address
    world.ledger.admit(transfer(thief, 0, fee=10**10), victim)
    tip = world.store.tip
    block, _ = world.chain.build(
        tip.block_hash, epoch=0, view=1, seat=0, time_ms=START_MS + 1_000, voters_bitmap=b"\1",
        vrf_proof=world.prove(tip.block_hash, 1),
        transactions=world.ledger.take(9, world.ledger.room_after(tip.block_hash)),
    )  # fmt: skip
    assert len(block.transactions) == 1
    other = World(tmp_path / "other")
    try:
        body = decode_body(other.runtime, block.transactions, other.ledger.find)
        checked = body.resolve(recover_addresses(body.batch))
        assert [each.transaction.sender for each in checked] == [thief.address]
        with pytest.raises(BodyInvalid) as refused:
            other.chain.check(block, checked, now_ms=None)
        assert refused.value.reason == "insufficient_funds"
    finally:
        other.store.close()
