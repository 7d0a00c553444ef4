"""Machines that keep a container for a requester who is away: what they fetch, for how long, and from whom."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from node.market import key_shares
from node.market.container_checkpoints import ContainerCheckpoints
from node.market.container_copies import KEPT_MS, ContainerCopies, Copy, NoRoomForCopy
from node.market.container_seals import ContainerSeals
from node.market.inputs import Inputs
from node.market.key_shares import METHOD_KEEP_SHARE, ShareBook, encode_kept
from node.market.machine import describe_machine
from p2p.base.errors import RequestRefused
from state.primitives.codec import Value
from state.primitives.hashing import digest
from state.view.accounts import load_account
from tasks.custody.shares import share_hash, split_key
from tasks.kinds.container import (
    Checkpoint,
    ContainerPart,
    ExitKind,
    Image,
    Metering,
    Mount,
    MountForm,
    Process,
    Storage,
)
from tasks.ledger.checkpoint_records import load_checkpoints
from tasks.ledger.checkpoint_transitions import CHECKPOINT_TASK
from tasks.ledger.lifecycle import Phase
from tasks.ledger.meter_records import ContainerEnd
from tasks.ledger.metering_transitions import FINISH_TASK, finish_values
from tasks.ledger.records import load_task
from tasks.ledger.transitions import (
    ACCEPT_TASK,
    CANCEL_TASK,
    CREATE_TASK,
    REGISTER_NODE,
    START_TASK,
    node_payload,
    task_id_of,
)
from tasks.spec import Requirements, container_job, encode_spec
from tests.node.world import COIN, Machine, World, world_with
from tests.p2p.helpers import account

REQUESTER, WORKER, OUTSIDER, KEEPERS = 0, 1, 2, (3, 4)
RATE = 10**9
PUBLIC_INPUT = b"a public input " * 9


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = world_with(tmp_path, monkeypatch, {})
    yield made
    made.store.close()


class Keeping:
    """Nodes of which one says that it runs a container: what it stores is chosen by the test."""

    def __init__(self, world: World) -> None:
        self.world = world
        roles = {REQUESTER: "verify", WORKER: "compute", OUTSIDER: "verify", **dict.fromkeys(KEEPERS, "storage")}
        self.machines = {number: Machine(world, number, role) for number, role in roles.items()}

    async def start(self, nursery: trio.Nursery) -> None:
        for machine in self.machines.values():
            await nursery.start(machine.network.run)
        for number in (REQUESTER, OUTSIDER, *KEEPERS):
            await nursery.start(self.machines[number].run)
        for number in (WORKER, *KEEPERS):
            machine = self.machines[number]
            profile = describe_machine(machine.wallet.address, machine.options, RATE, containers=number == WORKER)
            await self.send(number, REGISTER_NODE, node_payload(profile, 100 * COIN))

    async def send(self, number: int, kind: int, payload: list[Value]) -> None:
        async with trio.open_nursery() as sending:
            sending.start_soon(self.world.wallet(number).send, kind, payload)
            await self.world.mint_until(lambda: not sending.child_tasks)

    async def post(self) -> bytes:
        blob = self.add(REQUESTER, PUBLIC_INPUT)
        part = ContainerPart(
            Image("example.test/image", digest(b"image", b"")), Process((), (), 0),
            Storage(
                tuple(Mount(path, blob, len(PUBLIC_INPUT), MountForm.FILE) for path in ("/again", "/input")),
                "/output", 1 << 20, 32,
            ), 1,
            Metering("reserved", 3_600, 8), Checkpoint("/state", 10, 1 << 20),
        )  # fmt: skip
        spec = container_job(
            part, ticks=12, tick_s=10, max_price_per_tera_unit=10**16, requirements=Requirements(0, 64, RATE),
            match_ms=600_000,
        )  # fmt: skip
        nonce = load_account(self.world.store, account(REQUESTER).address).nonce
        await self.send(REQUESTER, CREATE_TASK, [encode_spec(spec)])
        return task_id_of(account(REQUESTER).address, nonce)

    def add(self, number: int, content: bytes) -> bytes:
        blobs = self.machines[number].network.blobs
        assert blobs is not None
        return blobs.add(content)

    def has(self, number: int, blob: bytes) -> bool:
        blobs = self.machines[number].network.blobs
        return blobs is not None and blobs.is_complete(blob)

    def drop(self, number: int, blob: bytes) -> None:
        blobs = self.machines[number].network.blobs
        assert blobs is not None
        blobs.remove(blob)

    async def until(self, number: int, blob: bytes, *, here: bool = True) -> None:
        await self.world.mint_until(lambda: self.has(number, blob) is here)


async def test_a_public_container_is_kept_without_a_key_until_a_week_after_its_end(world: World) -> None:
    keeping = Keeping(world)
    async with trio.open_nursery() as nursery:
        await keeping.start(nursery)
        task = await keeping.post()
        await check_strangers_are_refused(keeping, task)
        requester = keeping.machines[REQUESTER].duties
        assert requester is not None
        held = await requester.shares.share_out(task, 1, len(KEEPERS))
        assert set(held) == {account(number).address for number in KEEPERS}
        for number in KEEPERS:
            assert keeping.has(number, load_blob(keeping)), "the mount came before the promise"

        await world.mint_until(lambda: load_task(world.store, task).phase is Phase.ASSIGNED)
        await keeping.send(WORKER, ACCEPT_TASK, [task, 0])
        await keeping.send(WORKER, START_TASK, [task, digest(b"machine", account(WORKER).address)])
        named = [keeping.add(WORKER, b"state %d " % at * 99) for at in range(3)]
        for at, blob in enumerate(named, 1):
            world.mint(after_ms=11_000)
            await keeping.send(WORKER, CHECKPOINT_TASK, [task, 10 * at, blob, len(b"state 0 " * 99)])
            for number in (REQUESTER, *KEEPERS):
                await keeping.until(number, blob)
        for number in KEEPERS:
            assert keeping.has(number, named[1]), "the last two are kept"
            await keeping.until(number, named[0], here=False)

        output, logs = keeping.add(WORKER, b"output " * 99), keeping.add(WORKER, b"log " * 99)
        end = ContainerEnd(ExitKind.EXITED, 0, output, 7 * 99, logs, 4 * 99, b"")
        await keeping.send(WORKER, FINISH_TASK, finish_values(task, 30, end))
        for number in KEEPERS:
            await keeping.until(number, output)
            await keeping.until(number, logs)
            await keeping.until(number, named[2], here=False)
        keeping.drop(WORKER, output)
        network = keeping.machines[OUTSIDER].network
        sources = [account(number).address for number in (WORKER, *KEEPERS)]
        assert (await network.fetch_blob(output, sources, limit_bytes=1 << 20)).exists()
        world.mint(after_ms=KEPT_MS)
        for number in KEEPERS:
            await keeping.until(number, output, here=False)
            assert not [*keeping.machines[number].home.root.rglob("*.share")]
        nursery.cancel_scope.cancel()


async def test_a_container_that_left_nothing_takes_no_room_after_its_end(world: World) -> None:
    """Else tasks that cost nothing, cancelled at once, would fill the files of all that keep, for a week."""
    keeping = Keeping(world)
    async with trio.open_nursery() as nursery:
        await keeping.start(nursery)
        task = await keeping.post()
        requester = keeping.machines[REQUESTER].duties
        assert requester is not None
        await requester.shares.share_out(task, 1, len(KEEPERS))
        homes = [keeping.machines[number].home.root for number in KEEPERS]
        assert all([*home.rglob("*.share")] for home in homes)
        await keeping.send(REQUESTER, CANCEL_TASK, [task])
        await world.mint_until(lambda: not any([*home.rglob("*.share")] for home in homes))
        nursery.cancel_scope.cancel()


async def test_a_copy_that_was_begun_goes_on_in_the_room_that_it_has(world: World) -> None:
    """What keeps a copy counts it from its first byte: an interrupted fetch needs no room a second time."""
    keeping, content = Keeping(world), b"state " * 99
    async with trio.open_nursery() as nursery:
        await keeping.start(nursery)
        task, machine = await keeping.post(), keeping.machines[OUTSIDER]
        await world.mint_until(lambda: load_task(world.store, task).phase is Phase.ASSIGNED)
        await keeping.send(WORKER, ACCEPT_TASK, [task, 0])
        await keeping.send(WORKER, START_TASK, [task, digest(b"machine", account(WORKER).address)])
        blob = keeping.add(WORKER, content)
        world.mint(after_ms=11_000)
        await keeping.send(WORKER, CHECKPOINT_TASK, [task, 10, blob, len(content)])

        blobs, made = machine.network.blobs, keeping.machines[WORKER].network.blobs
        assert blobs is not None and made is not None

        def room() -> int:
            begun = blobs.manifest(blob)
            return len(content) - 1 if begun is None else 0

        copies = ContainerCopies(
            world.store, blobs, Inputs(machine.network, machine.wallet.address), lambda: [task], lambda: 0,
            purpose="kept", room=room,
        )  # fmt: skip
        [wanted] = copies.look()
        with pytest.raises(NoRoomForCopy):
            await copies.fetch(wanted)
        manifest = made.manifest(blob)
        assert manifest is not None
        blobs.begin(manifest.encode(), name=blob)  # a fetch that was cut off
        await copies.fetch(wanted)
        assert blobs.is_complete(blob)
        nursery.cancel_scope.cancel()


async def test_two_copies_at_once_have_room_for_both_or_one_waits(world: World) -> None:
    """A copy takes its room before its first piece is here: else two that begin at once pass one check."""
    keeping, size = Keeping(world), 600
    async with trio.open_nursery() as nursery:
        await keeping.start(nursery)
        keeper = keeping.machines[KEEPERS[0]].duties
        assert keeper is not None
        blobs = [keeping.add(WORKER, bytes([at]) * size) for at in range(2)]
        kept, copies = keeper.shares.kept_bytes, keeper.shares.copies
        copies._room = lambda: kept + size + 100 - keeper.shares.kept_bytes
        refused: list[bytes] = []

        async def fetch(blob: bytes) -> None:
            try:
                await copies.fetch(Copy(blob, blob, size, account(WORKER).address))
            except NoRoomForCopy:
                refused.append(blob)

        async with trio.open_nursery() as fetching:
            for blob in blobs:
                fetching.start_soon(fetch, blob)
        assert len(refused) == 1, "both passed one check"
        assert [keeping.has(KEEPERS[0], blob) for blob in blobs].count(True) == 1
        assert keeper.shares.kept_bytes == kept, "room stays taken after the fetch"
        await copies.fetch(Copy(refused[0], refused[0], size, account(WORKER).address))
        nursery.cancel_scope.cancel()


async def test_each_machine_that_may_keep_a_container_is_asked_for_its_blobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 20 machines with role storage the first ones may keep nothing: whoever keeps it is among those asked."""
    keeping = Keeping(world)
    stored = [SimpleNamespace(address=bytes([at]) * 20) for at in range(100)]
    monkeypatch.setattr(key_shares, "candidates", lambda _store, _role, _task, most: stored[:most])
    async with trio.open_nursery() as nursery:
        for machine in keeping.machines.values():
            await nursery.start(machine.network.run)
        await nursery.start(keeping.machines[OUTSIDER].run)
        outsider = keeping.machines[OUTSIDER].duties
        assert outsider is not None
        placed = outsider.shares._machines(bytes(32))
        assert placed == outsider._inputs.keepers(bytes(32)) and len(placed) == 64
        nursery.cancel_scope.cancel()


class Folders:
    """A back end whose containers have nothing but a folder with one file."""

    content = b""

    async def snapshot(self, _task: bytes, _request: object, packed: str) -> None:
        with tarfile.open(packed, "w") as file:
            info = tarfile.TarInfo("state")
            info.size = len(self.content)
            file.addfile(info, BytesIO(self.content))


async def stores(keeping: Keeping, nursery: trio.Nursery) -> tuple[bytes, Any, Folders]:
    """Run a container at the machine, and return it with what stores its checkpoints."""
    world, machine, folders = keeping.world, keeping.machines[WORKER], Folders()
    await keeping.start(nursery)
    task = await keeping.post()
    await world.mint_until(lambda: load_task(world.store, task).phase is Phase.ASSIGNED)
    await keeping.send(WORKER, ACCEPT_TASK, [task, 0])
    await keeping.send(WORKER, START_TASK, [task, digest(b"machine", account(WORKER).address)])
    blobs, inputs = machine.network.blobs, Inputs(machine.network, machine.wallet.address)
    assert blobs is not None
    keys: Any = None  # a public container has none
    backend: Any = folders
    made = ContainerCheckpoints(
        world.ledger,
        machine.wallet,
        inputs,
        blobs,
        backend,
        world.path / "notes",
        ContainerSeals(keys, inputs, blobs),
    )
    return task, made, folders


async def test_a_machine_keeps_the_checkpoints_that_the_chain_knows(world: World) -> None:
    """One that was stored as it leaves takes the place of the last one: the one before is the chain's still."""
    keeping = Keeping(world)
    async with trio.open_nursery() as nursery:
        task, checkpoints, folders = await stores(keeping, nursery)
        blobs, named = keeping.machines[WORKER].network.blobs, list[bytes]()
        assert blobs is not None
        for held_s, after_ms in ((10, 11_000), (20, 10_000), (22, 2_000)):
            folders.content = b"%d" % held_s
            world.mint(after_ms=after_ms)
            async with trio.open_nursery() as sending:
                sending.start_soon(checkpoints.store, task, None, lambda held_s=held_s: held_s)
                await world.mint_until(lambda: not sending.child_tasks)
            latest = load_checkpoints(world.store, task).latest
            assert latest is not None
            named.append(latest.blob)
        found = load_checkpoints(world.store, task)
        assert found.latest is not None and found.before is not None
        assert (found.latest.blob, found.before.blob) == (named[2], named[0])
        for blob in named:
            blobs.discard(blob)
        assert blobs.is_complete(named[0]) and blobs.is_complete(named[2]), "the next machine may need it"
        nursery.cancel_scope.cancel()


async def test_a_last_checkpoint_waits_for_a_block_that_has_seen_its_seconds(world: World) -> None:
    """Else a program that saved as it was told to end would have saved for nothing, where blocks are slow."""
    keeping = Keeping(world)
    async with trio.open_nursery() as nursery:
        task, checkpoints, folders = await stores(keeping, nursery)
        world.mint(after_ms=11_000)
        async with trio.open_nursery() as sending:
            sending.start_soon(checkpoints.store, task, None, lambda: 10)
            await world.mint_until(lambda: not sending.child_tasks)
        stored_ms, folders.content = world.ledger.head().steady_ms, b"saved at the end"

        def seconds() -> int:
            """Return what blocks have seen: nothing came after the checkpoint that covers 10 s."""
            return min(13, 10 + (world.ledger.head().steady_ms - stored_ms) // 1000)

        async with trio.open_nursery() as sending:
            sending.start_soon(checkpoints.store_last, task, None, seconds, 13)
            await trio.testing.wait_all_tasks_blocked()
            world.mint(after_ms=13_000)
            await world.mint_until(lambda: not sending.child_tasks)
        found = load_checkpoints(world.store, task)
        assert found.covered_s == 13 and found.latest is not None
        blobs = keeping.machines[WORKER].network.blobs
        assert blobs is not None and b"saved at the end" in blobs.read(found.latest.blob)
        nursery.cancel_scope.cancel()


def load_blob(keeping: Keeping) -> bytes:
    return keeping.add(REQUESTER, PUBLIC_INPUT)


async def check_strangers_are_refused(keeping: Keeping, task: bytes) -> None:
    """Nobody but the requester has a container kept, and with as many shares as it has keys."""
    ask = keeping.machines[OUTSIDER].network.request
    keeper = account(KEEPERS[0]).address
    with pytest.raises(RequestRefused, match="not_entitled"):
        await ask(keeper, METHOD_KEEP_SHARE, encode_kept(task, ()))
    [share] = split_key(b"k" * 32, 1, 1, b"r" * 16)
    book = ShareBook(task, 1, (share_hash(task, share),), b"")
    book = book._replace(signature=account(REQUESTER).sign(book.digest))
    ask = keeping.machines[REQUESTER].network.request
    with pytest.raises(RequestRefused, match="shares_invalid"):
        await ask(keeper, METHOD_KEEP_SHARE, encode_kept(task, [(book, share)]))
