"""The history of an account explains its money: what it names adds up to what the account gained and lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from billing.escrow import BILLING_EVENTS, Purpose
from rpc.gateway.method_table import DOCUMENT, METHOD_TABLE
from rpc.gateway.node.client import NodeClientOptions
from rpc.gateway.process import GatewayOptions
from state.primitives.hashing import keccak
from state.primitives.receipts import EventType
from state.primitives.signing import sign_dynamic
from state.store import StoreOptions
from state.transition.epochs import JAILED
from state.transition.slashing import SLASHED, bonded
from state.transition.staking import (
    STAKE_GAS,
    STAKE_KIND,
    STAKED,
    UNBONDED,
    UNSTAKE_GAS,
    UNSTAKE_KIND,
    stake_payload,
    unstake_payload,
)
from state.view.accounts import balance_of, load_account
from tasks.ledger.account_changes import KINDS, Change, Holding, changes_of_events, named_in
from tasks.ledger.carriage import CARRIAGE_EVENTS
from tests.rpc.harness import (
    ALICE,
    BOB,
    CAROL,
    COIN,
    DAVE,
    VALIDATORS,
    Gateway,
    Node,
    gateway,
    hexed,
    mint,
    served,
    transfer,
)
from tests.rpc.methods.test_evidence import faults
from tests.rpc.methods.test_evidence import mint as mint_evidence
from tests.rpc.validate import validate
from tests.tasks.ledger.test_conservation import GAPS_MS, MANNERS, disturb
from tests.tasks.world import DKB, REQUESTER, World, spec

COMPONENTS: Final = DOCUMENT["components"]["schemas"]
EVERYBODY: Final = (*VALIDATORS, ALICE, BOB, CAROL, DAVE)
TIP: Final = 3


def summed(changes: Iterable[Change]) -> Counter[bytes]:
    sums: Counter[bytes] = Counter()
    for change in changes:
        if change.holding == Holding.BALANCE:
            sums[change.account] += change.amount
    return sums


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_events_of_any_market_explain_every_balance(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed=seed)
    for name in range(1, chance.randrange(4, 10)):
        world.add_machine(name, manners=chance.choice(MANNERS), slots=chance.randrange(1, 3))
    tasks = [world.create(spec())]
    for _ in range(70):
        if len(tasks) < 5 and chance.random() < 0.1:
            tasks.append(world.create(spec()))
        world.act()
        if chance.random() < 0.25:
            disturb(world, tasks, chance.choice(list(world.machines)), chance.randrange(1, 10**6))
        world.block(chance.choice(GAPS_MS))
    changes = changes_of_events(world.events, lambda _operator: bytes(20))
    assert {change.account for change in changes} <= set(named_in(world.events))
    sums = summed(changes)
    assert len({change.kind for change in changes}) > 3
    for account in (REQUESTER, *world.machines):
        funds = 1_000_000 * DKB if account == REQUESTER else 1_000 * DKB
        assert balance_of(world.state, account) == funds + sums[account]


async def pages(it: Gateway, who: bytes, limit: int) -> list[Any]:
    """Return the whole history of an account, page by page."""
    items: list[Any] = []
    cursor = None
    while True:
        page = await it.call("dekube_getAccountHistory", hexed(who), cursor, limit)
        validate(page, METHOD_TABLE["dekube_getAccountHistory"].result, COMPONENTS, "history")
        items += page["items"]
        cursor = page["next"]
        if cursor is None:
            return items


def act(node: Node, chance: random.Random, nonces: Counter[bytes]) -> None:
    """Hand in something of somebody: much of it is refused, and costs its fee."""
    key = chance.choice((ALICE, BOB, CAROL))
    nonce, to = nonces[key.address], chance.choice(EVERYBODY).address
    tip = chance.choice((0, TIP))
    match chance.randrange(5):
        case 0:
            raw = transfer(key, nonce, to, chance.randrange(5 * COIN), tip=tip)
        case 1:
            raw = sign_dynamic(
                key, chain_id=node.genesis.chain_id, nonce=nonce, to=to, value=chance.randrange(COIN), data=b"",
                gas_limit=30_000, max_fee_per_gas=2 * 10**9, max_priority_fee_per_gas=tip,
            )  # fmt: skip
        case 2:
            amount = chance.choice((0, COIN, 2_000 * COIN))
            payload = stake_payload(amount, key, genesis_hash=node.runtime.genesis_hash, address=key.address)
            raw = transfer(key, nonce, b"", 0, kind=STAKE_KIND, payload=payload, gas_limit=STAKE_GAS, tip=tip)
        case _:
            payload = unstake_payload(chance.choice((1, COIN, 1_000 * COIN)))
            raw = transfer(key, nonce, b"", 0, kind=UNSTAKE_KIND, payload=payload, gas_limit=UNSTAKE_GAS, tip=tip)
    node.submit(raw, key.address)
    nonces[key.address] += 1


def holdings(node: Node) -> dict[bytes, tuple[int, int]]:
    return {
        key.address: (balance_of(node.store, key.address), bonded(node.store, key.address)) for key in EVERYBODY
    }


def told(items: Iterable[Any], holding: str) -> int:
    return sum(
        int(change["amount"]) for item in items for change in item["changes"] if change["holding"] == holding
    )


@pytest.mark.slow
async def test_what_a_history_tells_adds_up_to_what_the_account_has(tmp_path: Path) -> None:
    chance = random.Random(1)
    node = Node(
        tmp_path / "chain", unbonding_ms=5_000, stake_min=COIN, epoch_blocks=4, evidence_epochs=20,
        block_interval_ms_min=1,
    )  # fmt: skip
    first = holdings(node)
    nonces: Counter[bytes] = Counter()
    try:
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            for _ in range(40):
                for _ in range(chance.randrange(4)):
                    act(node, chance, nonces)
                node.mint()
            for raw in faults(node):  # both reported by Bob
                mint_evidence(node, [raw])
            await it.call("dekube_head", min_height=node.store.tip.height)
            last = holdings(node)
            kinds: set[str] = set()
            for key in EVERYBODY:
                items = await pages(it, key.address, chance.choice((1, 3, 7)))
                gained, bound = (last[key.address][at] - first[key.address][at] for at in (0, 1))
                assert (told(items, "balance"), told(items, "bonded")) == (gained, bound)
                places = [(item["block"]["height"], item["block"]["index"]) for item in items]
                assert places == sorted(set(places), reverse=True)
                assert all(item["changes"] or item["events"] or item["transaction"] for item in items)
                kinds |= {change["kind"] for item in items for change in item["changes"]}
                # A cursor stays where it is, whatever comes meanwhile.
                assert items == await pages(it, key.address, 100)
            assert kinds == {"fee", "transfer", "tips", "stake", "unbonded", "slashed", "slash_reward"}
    finally:
        node.store.close()


def payments(node: Node, count: int) -> list[str]:
    """Make a block of each; return the hashes of the transactions."""
    raws = []
    for _ in range(count):
        raws.append(transfer(ALICE, load_account(node.store, ALICE.address).nonce, BOB.address, 1))
        node.submit(raws[-1], ALICE.address)
        node.mint()
    return [hexed(keccak(raw)) for raw in raws]


async def shown(it: Gateway, name: str) -> tuple[Any, Any, Any]:
    """Return what there is of a transaction by its hash."""
    receipt = await it.call("eth_getTransactionReceipt", name)
    native = (await it.call("dekube_getReceipt", name))["receipt"]
    return receipt, native, await it.call("eth_getTransactionByHash", name)


async def test_a_node_that_keeps_less_than_before_shows_no_places_of_what_is_gone(tmp_path: Path) -> None:
    """Of the heights that an archive has behind it no record says what the indexes hold of them."""
    node = Node(tmp_path / "chain", history_heights=2)
    names = payments(node, 20)
    node.store.close()
    node = Node(tmp_path / "chain", options=StoreOptions(block_heights=3), history_heights=2)
    names += payments(node, 4)
    try:
        assert node.store.oldest_block == 22
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            items = await pages(it, BOB.address, 2)
            assert [item["block"]["height"] for item in items] == [24, 23, 22]
            for name in names[:21]:
                assert await shown(it, name) == (None, None, None)
            assert None not in await shown(it, names[21])
    finally:
        node.store.close()


async def test_what_is_pruned_while_it_is_looked_at_ends_the_history(tmp_path: Path) -> None:
    node = Node(tmp_path / "chain", options=StoreOptions(block_heights=6), history_heights=2)
    payments(node, 6)
    find = node.view.history

    def slow(address: bytes, before: tuple[int, int] | None, limit: int) -> list[tuple[int, int]]:
        found = find(address, before, limit)
        trio.from_thread.run_sync(node.mint, 3)
        return found

    try:
        node.view.history = slow  # type: ignore[method-assign]
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
            page = await it.call("dekube_getAccountHistory", hexed(BOB.address), None, 5)
            assert [item["block"]["height"] for item in page["items"]] == [6, 5, 4]
            assert page["next"] is None
    finally:
        node.store.close()


async def test_what_is_pruned_after_it_was_seen_is_as_unknown_as_if_it_had_not_been(tmp_path: Path) -> None:
    node = Node(tmp_path / "chain", options=StoreOptions(block_heights=3), history_heights=2)
    [name] = payments(node, 1)
    options = GatewayOptions("", node=NodeClientOptions(block_bytes_max=1))
    try:
        async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:
            assert None not in await shown(it, name)
            await mint(it, node, 3)
            assert await shown(it, name) == (None, None, None)
    finally:
        node.store.close()


async def test_a_gateway_forgets_the_blocks_that_its_node_took_back(tmp_path: Path) -> None:
    node, path = Node(tmp_path / "chain"), tmp_path / "s"
    kept, gone = payments(node, 2)
    async with AsyncExitStack() as first:
        backend = await first.enter_async_context(served(node, path))
        async with gateway(backend, path) as it:
            before = await it.call("eth_getBlockByNumber", "0x2", False)
            for name in (kept, gone):
                assert None not in await shown(it, name)
            await mint(it, node, 2)
            assert await it.call("eth_getTransactionCount", hexed(ALICE.address), "0x2") == "0x2"
            live = await it.call("eth_newBlockFilter")
            assert await it.call("eth_getFilterChanges", live) == []
            await first.aclose()
            node.store.rollback(1)
            node.store.close()
            other = Node(tmp_path / "chain")
            other.mint(4)
            async with served(other, path) as again:
                with trio.fail_after(60):
                    await again.wait_gateway()
                await it.call("dekube_head", min_height=5)
                after, block = await it.call("eth_getBlockByNumber", "0x2", False), other.store.height(2)
                assert block is not None and hexed(block.block_hash) != before["hash"]
                assert (after["hash"], after["transactions"]) == (hexed(block.block_hash), [])
                assert await shown(it, gone) == (None, None, None)
                assert None not in await shown(it, kept)
                assert await it.call("eth_getTransactionCount", hexed(ALICE.address), "0x2") == "0x1"
                assert await it.call("eth_getBlockByHash", before["hash"], False) is None
                gone_filter = await it.error("eth_getFilterChanges", live)
                assert gone_filter["message"] == "filter not found", (
                    "else it would pass over what replaced its blocks"
                )
            other.store.close()


@pytest.mark.parametrize("event", [JAILED, SLASHED, UNBONDED, STAKED, *CARRIAGE_EVENTS, *BILLING_EVENTS])
def test_amounts_of_events_are_those_of_the_accounts_they_name(event: EventType) -> None:
    """Of each type one with different values: what is read of it is of a named account and one of its amounts."""
    values: list[int | bytes] = []
    for at, (name, kind, _) in enumerate(event.parameters):
        size = {"address": 20, "bytes32": 32}.get(kind)
        values.append(
            bytes([at + 1]) * size if size else int(Purpose.WINDOW_PAY) if name == "purpose" else 100 + at
        )
    made = event(*values)
    for change in changes_of_events([made], lambda operator: operator):
        assert change.account in named_in([made])
        assert abs(change.amount) in values
        assert change.kind in KINDS
