"""What a node's own users handed in is there again after a restart, and a damaged file harms nobody."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from node.chain import local_transactions
from node.chain.ledger import NodeLedger
from node.chain.local_transactions import (
    LocalTransactions,
    decode_local_transactions,
    decode_log,
    encode_local_transactions,
    encode_log_part,
)
from node.chain.mempool import MempoolOptions
from state.primitives.errors import DecodeError
from state.primitives.keys import recover_addresses
from state.primitives.signing import sign_dynamic
from state.primitives.transactions import decode_transaction
from tests.node.chain.test_ledger import transfer
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """A clock that stands while a file is written: it would jump while a thread works."""

    async def at_once(function: Any, *arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    return autojump_clock


@given(ITEMS)
def test_a_file_tells_what_it_was_given(items: list[tuple[int, bytes]]) -> None:
    assert decode_local_transactions(encode_local_transactions(CHAIN, items), CHAIN) == items


@given(ITEMS, st.data())
def test_no_byte_of_a_file_can_change_unseen(items: list[tuple[int, bytes]], data: st.DataObject) -> None:
    whole = encode_local_transactions(CHAIN, items)
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    with pytest.raises(DecodeError):
        decode_local_transactions(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :], CHAIN)
    with pytest.raises(DecodeError):
        decode_local_transactions(whole[:at], CHAIN)
    with pytest.raises(DecodeError, match="another chain"):
        decode_local_transactions(whole, b"d" * 32)


@given(st.lists(ITEMS, max_size=5), st.data())
def test_a_log_says_what_was_appended_up_to_where_it_ends(parts: list[Any], data: st.DataObject) -> None:
    ends = [0]
    whole = b""
    for part in parts:
        whole += encode_log_part(CHAIN, part)
        ends.append(len(whole))
    assert decode_log(whole, CHAIN) == ([item for part in parts for item in part], len(whole))
    assert decode_log(whole, b"d" * 32) == ([], 0)
    cut = data.draw(st.integers(0, len(whole)))
    intact = max(at for at, end in enumerate(ends) if end <= cut)
    good = [item for part in parts[:intact] for item in part]
    assert decode_log(whole[:cut], CHAIN) == (good, ends[intact])
    assert decode_log(whole[:cut] + bytes(100), CHAIN)[0] == good, "as a file that grew and was not written"
    if whole:
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        intact = max(number for number, end in enumerate(ends) if end <= at)
        changed = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
        assert decode_log(changed, CHAIN)[1] == ends[intact]


def test_a_log_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    part = encode_log_part(CHAIN, [(0, b"x")] * 3)
    monkeypatch.setattr(local_transactions, "KEPT_MAX", 3)
    monkeypatch.setattr(local_transactions, "LOG_ITEMS_MAX", 9)
    assert len(decode_log(part * 10, CHAIN)[0]) == 9
    monkeypatch.setattr(local_transactions, "LOG_LIMIT_BYTES", len(part))
    assert decode_log(part * 2, CHAIN) == ([], 0)


def test_a_file_is_bounded_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_transactions, "KEPT_MAX", 3)
    with pytest.raises(DecodeError):
        decode_local_transactions(encode_local_transactions(CHAIN, [(0, b"")] * 4), CHAIN)
    monkeypatch.setattr(local_transactions, "FILE_LIMIT_BYTES", 80)
    with pytest.raises(DecodeError, match="more than 80 bytes"):
        decode_local_transactions(encode_local_transactions(CHAIN, [(0, bytes(40))]), CHAIN)


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


def keep(world: World, told: Told | None = None) -> LocalTransactions:
    told = told or Told()
    world.ledger.on_admitted = told.raws.append
    return LocalTransactions(
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
    file.write_bytes(
        encode_local_transactions(world.runtime.genesis_hash, [(0, b"?"), (9, wrong), (0, final), (2**40, other)])
    )
    world.ledger.admit(final, account(0).address)
    world.mint()
    await run_once(world)
    assert raws_of(world) == {other}


@pytest.mark.parametrize("damage", ["cut", "bit", "chain", "long"])
async def test_a_damaged_file_is_set_aside_and_named(world: World, damage: str) -> None:
    world.path.joinpath("data").mkdir()
    file = world.path / "data" / "mempool"
    whole = encode_local_transactions(world.runtime.genesis_hash, [(0, transfer(account(0), 0, fee=FEE))])
    match damage:
        case "cut":
            whole = whole[:-1]
        case "bit":
            whole = whole[:50] + bytes([whole[50] ^ 1]) + whole[51:]
        case "chain":
            whole = encode_local_transactions(b"d" * 32, [])
        case _:
            whole = bytes(local_transactions.FILE_LIMIT_BYTES + 1)
    file.write_bytes(whole)
    with capture_logs() as lines:
        await run_once(world)
    aside = file.with_name("mempool.damaged")
    assert aside.read_bytes() == whole
    assert str(aside) in str(lines)
    assert decode_local_transactions(file.read_bytes(), world.runtime.genesis_hash) == []


async def test_a_disk_that_refuses_ends_nothing(world: World) -> None:
    (world.path / "data").write_bytes(b"not a folder")
    with capture_logs() as lines:
        await _kept_until_the_end(world)
    assert "cannot be saved" in str(lines)


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
        await trio.sleep(2 * local_transactions.SAVE_S)
        assert not file.exists()
        raw = transfer(account(0), 0, fee=FEE)
        world.ledger.admit(raw, account(0).address)
        while not file.exists():  # noqa: ASYNC110  a file wakes nobody
            await trio.sleep(local_transactions.SAVE_S)
        assert decode_local_transactions(file.read_bytes(), world.runtime.genesis_hash) == [(0, raw)]
        written = file.stat().st_mtime_ns, file.stat().st_ino
        await trio.sleep(5 * local_transactions.SAVE_S)
        assert (file.stat().st_mtime_ns, file.stat().st_ino) == written
        nursery.cancel_scope.cancel()


def left(world: World, tmp_path: Path) -> Path:
    """Return a copy of the files of a node that is killed just now."""
    data = tmp_path / "killed"
    shutil.copytree(world.path / "data", data, dirs_exist_ok=True)
    return data


async def brought_back(world: World, data: Path) -> list[bytes]:
    """Return what a node that starts with the files of ``data`` has waiting, and end it in order."""
    restart(world)
    service = LocalTransactions(world.ledger, data / "mempool", recover=recover, wait_peers=Told().come.wait)
    async with trio.open_nursery() as nursery:
        await nursery.start(service.run)
        found = sorted(raws_of(world))
        nursery.cancel_scope.cancel()
    return found


async def test_a_kill_loses_what_came_within_the_last_second_at_most(
    world: World, tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    sent = []
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world).run)
        for nonce in range(90):
            sent.append(transfer(account(nonce % 3), nonce // 3, fee=FEE))
            world.ledger.admit(sent[-1], account(nonce % 3).address)
            await trio.sleep(0.9)  # past the whole file, which is written once meanwhile
            if nonce in (5, 60, 75, 89):
                killed = left(world, tmp_path / str(nonce))
                before, ledger = raws_of(world), world.ledger
                assert await brought_back(world, killed) == sorted(sent)
                assert set(sent) == before
                # The end in order has put one whole file in the place of both.
                assert [
                    item.raw
                    for item in decode_local_transactions(
                        (killed / "mempool").read_bytes(), world.runtime.genesis_hash
                    )
                ]
                assert not (killed / "mempool.log").exists()
                world.ledger = ledger
        nursery.cancel_scope.cancel()
    assert not (world.path / "data" / "mempool.log").exists()


async def test_a_log_that_ends_early_brings_back_its_beginning_and_is_replaced(
    world: World, tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    first, second, third = (transfer(account(number), 0, fee=FEE) for number in range(3))
    genesis = world.runtime.genesis_hash
    data = world.path / "data"
    data.mkdir()
    (data / "mempool").write_bytes(encode_local_transactions(genesis, [(0, first)]))
    part = encode_log_part(genesis, [(0, third)])
    (data / "mempool.log").write_bytes(encode_log_part(genesis, [(0, first), (0, second)]) + part[:-1])
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            await nursery.start(keep(world).run)
            assert raws_of(world) == {first, second}
            world.ledger.admit(third, account(2).address)
            await trio.sleep(1)
            killed = left(world, tmp_path)
            nursery.cancel_scope.cancel()
    assert f"'cut_bytes': {len(part) - 1}" in str(lines)
    assert await brought_back(world, killed) == sorted([first, second, third])


async def test_what_the_owner_drops_does_not_come_back_after_a_kill(
    world: World, tmp_path: Path, clock: trio.testing.MockClock
) -> None:
    first, second = (transfer(account(number), 0, fee=FEE) for number in range(2))
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world).run)
        for number, raw in enumerate((first, second)):
            world.ledger.admit(raw, account(number).address)
        await trio.sleep(1)
        world.ledger.mempool.remove(decode_transaction(first).hash)
        await trio.sleep(2 * local_transactions.SAVE_S_MIN)
        killed = left(world, tmp_path)
        nursery.cancel_scope.cancel()
    assert await brought_back(world, killed) == [second]


async def test_a_full_log_gives_way_to_the_whole_file(
    world: World, tmp_path: Path, clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_transactions, "KEPT_MAX", 4)
    monkeypatch.setattr(local_transactions, "LOG_ITEMS_MAX", 8)
    sent = []
    async with trio.open_nursery() as nursery:
        await nursery.start(keep(world).run)
        for number in range(4):
            sent.append(transfer(account(number), 0, fee=FEE))
            world.ledger.admit(sent[-1], account(number).address)
            await trio.sleep(1)
            assert await brought_back_by(world, left(world, tmp_path / str(number))) == len(sent)
        # More at once than there is room for, as behind a disk that does not answer: the whole file has them.
        monkeypatch.setattr(local_transactions, "KEPT_BYTES_MAX", 1_000_000)
        for number in range(3):
            for nonce in range(1, 4):
                world.ledger.admit(transfer(account(number), nonce, fee=FEE), account(number).address)
        await trio.sleep(2 * local_transactions.SAVE_S_MIN)
        assert decode_local_transactions(
            (world.path / "data" / "mempool").read_bytes(), world.runtime.genesis_hash
        )
        nursery.cancel_scope.cancel()


async def brought_back_by(world: World, data: Path) -> int:
    """Return how many transactions the files of a killed node have."""
    genesis = world.runtime.genesis_hash
    items = (
        decode_local_transactions((data / "mempool").read_bytes(), genesis) if (data / "mempool").exists() else []
    )
    if (data / "mempool.log").exists():
        items += decode_log((data / "mempool.log").read_bytes(), genesis)[0]
    return len({item.raw for item in items})


async def test_a_disk_that_refuses_is_named_once_and_tried_again(
    world: World, clock: trio.testing.MockClock
) -> None:
    (world.path / "data").write_bytes(b"not a folder")
    raw = transfer(account(0), 0, fee=FEE)
    with capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            await nursery.start(keep(world).run)
            world.ledger.admit(raw, account(0).address)
            await trio.sleep(10 * local_transactions.SAVE_S)
            assert len([line for line in lines if "cannot be saved" in line["event"]]) == 1
            (world.path / "data").unlink()
            await trio.sleep(2 * local_transactions.SAVE_S)
            file = world.path / "data" / "mempool"
            assert decode_local_transactions(file.read_bytes(), world.runtime.genesis_hash) == [(0, raw)]
            nursery.cancel_scope.cancel()


async def test_a_node_that_ends_while_it_brings_back_keeps_all(world: World) -> None:
    world.path.joinpath("data").mkdir()
    file = world.path / "data" / "mempool"
    whole = encode_local_transactions(
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


async def test_peers_are_told_of_what_still_waits(world: World, clock: trio.testing.MockClock) -> None:
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
        await trio.sleep(10 * local_transactions.HEARD_S)
        assert told.raws == []
        world.ledger.mempool.remove(decode_transaction(first).hash)
        told.come.set()
        await trio.sleep(2 * local_transactions.HEARD_S)
        assert told.raws == [second]
        nursery.cancel_scope.cancel()
