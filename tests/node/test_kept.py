"""What a node's own users handed in is there again after a restart, and a damaged file harms nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from node import kept
from node.kept import KeptTransactions, decode_kept, encode_kept
from node.ledger import NodeLedger
from node.mempool import MempoolOptions
from state.primitives.errors import DecodeError
from state.primitives.keys import recover_addresses
from state.primitives.signing import sign_dynamic
from state.primitives.transactions import decode_transaction
from tests.node.test_ledger import transfer
from tests.node.world import World
from tests.p2p.helpers import account

FEE = 10**12
CHAIN = b"c" * 32
ITEMS = st.lists(st.tuples(st.integers(0, 2**63 - 1), st.binary(max_size=200)), max_size=20)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


@given(ITEMS)
def test_a_file_tells_what_it_was_given(items: list[tuple[int, bytes]]) -> None:
    assert decode_kept(encode_kept(CHAIN, items), CHAIN) == items


@given(ITEMS, st.data())
def test_no_byte_of_a_file_can_change_unseen(items: list[tuple[int, bytes]], data: st.DataObject) -> None:
    whole = encode_kept(CHAIN, items)
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    with pytest.raises(DecodeError):
        decode_kept(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :], CHAIN)
    with pytest.raises(DecodeError):
        decode_kept(whole[:at], CHAIN)
    with pytest.raises(DecodeError, match="another chain"):
        decode_kept(whole, b"d" * 32)


def test_a_file_is_bounded_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_MAX", 3)
    with pytest.raises(DecodeError):
        decode_kept(encode_kept(CHAIN, [(0, b"")] * 4), CHAIN)
    monkeypatch.setattr(kept, "FILE_LIMIT_BYTES", 80)
    with pytest.raises(DecodeError, match="more than 80 bytes"):
        decode_kept(encode_kept(CHAIN, [(0, bytes(40))]), CHAIN)


class Told:
    """Peers that come when they are told to, and what they are told."""

    def __init__(self) -> None:
        self.come = trio.Event()
        self.raws: list[bytes] = []


async def recover(batch: bytes) -> bytes:
    return recover_addresses(batch)


def restart(world: World) -> None:
    """Begin with an empty pool, as a node does."""
    world.ledger = NodeLedger(world.store, world.chain, world.runtime, MempoolOptions())


def keep(world: World, told: Told | None = None) -> KeptTransactions:
    told = told or Told()
    world.ledger.on_admitted = told.raws.append
    return KeptTransactions(
        world.ledger, world.path / "data" / "mempool", recover=recover, wait_peers=told.come.wait
    )


async def run_once(world: World, told: Told | None = None) -> None:
    """Start the node's part and end it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world, told).run)
        nursery.cancel_scope.cancel()


def raws_of(world: World) -> set[bytes]:
    return {checked.transaction.raw for _, checked in world.ledger.mempool.page(None, 1_000)}


def dynamic(number: int, nonce: int) -> bytes:
    return sign_dynamic(
        account(number), chain_id=7, nonce=nonce, to=account(1).address, value=1, data=b"", gas_limit=30_000,
        max_fee_per_gas=FEE, max_priority_fee_per_gas=1,
    )  # fmt: skip


async def test_what_waited_when_the_node_ended_waits_again(world: World) -> None:
    world.mint()
    world.mint()
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world).run)
        for number in range(3):
            for nonce in (1, 0, 5):  # the last one behind a gap
                world.ledger.admit(transfer(account(number), nonce, fee=FEE), account(number).address)
            world.ledger.admit(dynamic(number + 3, 0), account(number + 3).address)
        nursery.cancel_scope.cancel()
    before = raws_of(world)
    restart(world)
    assert not raws_of(world)
    await run_once(world)
    assert raws_of(world) == before
    assert world.ledger.pending_nonce(account(0).address) == 2
    world.mint()
    assert len(world.ledger.mempool) == 3, "those behind gaps; the others are final"


async def test_only_what_was_handed_in_here_is_kept(world: World) -> None:
    mine, own, of_a_peer = (transfer(account(number), 0, fee=FEE) for number in range(3))
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world).run)
        world.ledger.admit(mine, account(0).address)
        await world.ledger.submit_own(own, account(1).address)
        transaction = decode_transaction(of_a_peer)
        transaction.recover_sender()
        assert world.ledger.admit_gossip(transaction)
        nursery.cancel_scope.cancel()
    restart(world)
    await run_once(world)
    assert raws_of(world) == {mine}


async def test_what_is_kept_is_checked_as_if_it_came_now(world: World) -> None:
    """Not even the sender is believed, whom the gateway named: a file may come from anywhere."""
    final, forged, other = (transfer(account(number), 0, fee=FEE) for number in range(3))
    wrong = forged[:-65] + bytes(32) + forged[-33:]
    world.path.joinpath("data").mkdir()
    file = world.path / "data" / "mempool"
    file.write_bytes(encode_kept(world.runtime.genesis_hash, [(0, b"?"), (9, wrong), (0, final), (2**40, other)]))
    world.ledger.admit(final, account(0).address)
    world.mint()
    await run_once(world)
    assert raws_of(world) == {other}


@pytest.mark.parametrize("damage", ["cut", "bit", "chain", "long"])
async def test_a_damaged_file_is_set_aside_and_named(world: World, damage: str) -> None:
    world.path.joinpath("data").mkdir()
    file = world.path / "data" / "mempool"
    whole = encode_kept(world.runtime.genesis_hash, [(0, transfer(account(0), 0, fee=FEE))])
    match damage:
        case "cut":
            whole = whole[:-1]
        case "bit":
            whole = whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]
        case "chain":
            whole = encode_kept(b"d" * 32, [])
        case _:
            whole = bytes(kept.FILE_LIMIT_BYTES + 1)
    file.write_bytes(whole)
    with capture_logs() as lines:
        await run_once(world)
    aside = file.with_name("mempool.damaged")
    assert aside.read_bytes() == whole
    assert str(aside) in str(lines)
    assert decode_kept(file.read_bytes(), world.runtime.genesis_hash) == []


async def test_a_disk_that_refuses_ends_nothing(world: World) -> None:
    (world.path / "data").write_bytes(b"not a folder")
    with capture_logs() as lines:
        await _kept_until_the_end(world)
    assert "cannot be kept" in str(lines)


async def _kept_until_the_end(world: World) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world).run)
        world.ledger.admit(transfer(account(0), 0, fee=FEE), account(0).address)
        nursery.cancel_scope.cancel()


async def test_it_is_written_now_and_then_and_only_when_it_changed(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    file = world.path / "data" / "mempool"
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world).run)
        await trio.sleep(2 * kept.SAVE_S)
        assert not file.exists()
        raw = transfer(account(0), 0, fee=FEE)
        world.ledger.admit(raw, account(0).address)
        while not file.exists():  # noqa: ASYNC110  a file wakes nobody
            await trio.sleep(kept.SAVE_S)
        assert decode_kept(file.read_bytes(), world.runtime.genesis_hash) == [(0, raw)]
        written = file.stat().st_mtime_ns, file.stat().st_ino
        await trio.sleep(5 * kept.SAVE_S)
        assert (file.stat().st_mtime_ns, file.stat().st_ino) == written
        nursery.cancel_scope.cancel()


async def test_a_node_that_ends_while_it_brings_back_keeps_all(world: World) -> None:
    world.path.joinpath("data").mkdir()
    file = world.path / "data" / "mempool"
    whole = encode_kept(
        world.runtime.genesis_hash, [(0, transfer(account(0), nonce, fee=FEE)) for nonce in range(3)]
    )
    file.write_bytes(whole)
    waiting = keep(world)

    async def never(_batch: bytes) -> bytes:
        nursery.cancel_scope.cancel()
        await trio.sleep_forever()
        raise AssertionError

    waiting._recover = never
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.run)
    assert file.read_bytes() == whole


async def test_peers_are_told_of_what_still_waits(world: World, autojump_clock: trio.testing.MockClock) -> None:
    first, second = (transfer(account(number), 0, fee=FEE) for number in range(2))
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world).run)
        world.ledger.admit(first, account(0).address)
        world.ledger.admit(second, account(1).address)
        nursery.cancel_scope.cancel()
    restart(world)
    told = Told()
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world, told).run)
        await trio.sleep(10 * kept.HEARD_S)
        assert told.raws == []
        world.ledger.mempool.remove(decode_transaction(first).hash)
        told.come.set()
        await trio.sleep(2 * kept.HEARD_S)
        assert told.raws == [second]
        nursery.cancel_scope.cancel()
