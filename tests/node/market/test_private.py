"""A private task: its requester's node hands its key to the worker alone, and nobody's store has a plain byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from billing.escrow import Purpose
from node.market import task_keys
from node.market.key_shares import METHOD_KEEP_SHARE, METHOD_SHARE, ShareBook
from node.market.task_keys import METHOD_TASK_KEY, METHOD_WINDOW_KEYS, KeysMissing, NotEntitled, TaskKeys
from p2p.base.errors import RequestRefused
from state.primitives.codec import Value, encode
from state.primitives.genesis import read_parameters
from tasks.custody.chunks import BlobCommitment
from tasks.custody.errors import SharesInvalid
from tasks.custody.keys import KeyCommitments, derive_key, input_key_name, window_key_name
from tasks.custody.sealed import open_output, seal_input, task_key_of
from tasks.custody.shares import share_hash, split_key
from tasks.custody.wraps import public_key_of
from tasks.engines.state import TrainingState
from tasks.kinds.verifiers import Verifiers
from tasks.ledger.custody import custody_budget
from tasks.ledger.custody_records import find_custody
from tasks.ledger.custody_transitions import ASK_CUSTODY
from tasks.ledger.lifecycle import Phase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import require_node
from tasks.ledger.transitions import CREATE_TASK, SUBMIT_WINDOW, task_id_of
from tasks.proofs import Code
from tasks.spec import JobSpec, encode_spec
from testnet.scenarios.swindle import SwindlersDuties
from tests.node.market.test_custody import CUSTODY
from tests.node.market.test_duties import Market
from tests.node.world import Machine, World, world_with
from tests.p2p.helpers import account
from tests.tasks.executor.helpers import BLOB, make_spec

SECRET = account(9).secret
PIECE = 48
"""Plain bytes that are looked for: encrypted ones do not have so many in common with them."""


class PrivateMarket(Market):
    """A market whose requester, the last machine, has put its data set in encrypted."""

    root: bytes | None = None
    dataset = BLOB
    task_spec: JobSpec

    async def begin(self, nursery: trio.Nursery, own: trio.Nursery | None = None) -> None:
        """Start the networks, post the task and ask for custody, then register the machines but the last.

        The network of the requester runs in ``own``.
        """
        for machine in self.machines:
            await (nursery if own is None or machine is not self.machines[-1] else own).start(machine.network.run)
        requester = self.machines[-1]
        spec = self.job()
        self.key = task_key_of(SECRET, spec)
        sealed = seal_input(derive_key(self.key, input_key_name(0)), spec.dataset.root, self.dataset)
        assert requester.network.blobs is not None
        blob = requester.network.blobs.add(sealed.blob)
        requester.network.blobs.pin(blob)
        self.task_spec = spec = spec.changed(dataset=spec.dataset._replace(blob=blob))
        parameters = read_parameters(TaskParameters, "tasks", self.world.runtime.genesis)
        await self.post_sealed(spec, self.root or KeyCommitments(self.key, 1, spec.windows).root, parameters)
        async with trio.open_nursery() as registering:
            for machine in self.machines[:-1]:
                registering.start_soon(machine.register)
            await self.world.mint_until(lambda: not registering.child_tasks)

    async def post_sealed(self, spec: JobSpec, key_root: bytes, parameters: TaskParameters) -> None:
        """Post the task, and ask for its custody."""
        wallet = self.machines[-1].wallet
        self.task = task_id_of(wallet.address, 0)
        async with trio.open_nursery() as sending:
            posting: list[Value] = [encode_spec(spec)]
            sending.start_soon(wallet.send, CREATE_TASK, posting)
            await self.world.mint_until(lambda: not sending.child_tasks)
            amount = custody_budget(spec, parameters)
            asking: list[Value] = [self.task, key_root, 1, amount]
            sending.start_soon(wallet.send, ASK_CUSTODY, asking)
            await self.world.mint_until(lambda: not sending.child_tasks)

    def job(self) -> JobSpec:
        """Return the job before its data set is encrypted."""
        return make_spec(20, 5, 10)

    def result(self, number: int, machine: Machine) -> bytes:
        """Return the output of a window as a machine has it, opened by its requester."""
        window = self.window(number)
        assert window is not None and machine.network.blobs is not None
        blob = machine.network.blobs.read(window.proof.output_blob)
        key = derive_key(self.key, window_key_name(number))
        return open_output(BlobCommitment(*window.proof.custody), key, blob)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return world_with(tmp_path, monkeypatch, CUSTODY)


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def stored_bytes(machine: Machine) -> bytes:
    """Return every byte of every file of a node's home."""
    return b"\xff".join(path.read_bytes() for path in files_in(machine.home.root))


@pytest.mark.slow
async def test_a_private_task_is_done_checked_and_kept_and_no_machine_stores_a_plain_byte(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    keepers = [Machine(world, number, "storage") for number in (3, 4, 5)]
    requester = Machine(world, 9, "relay")
    market = PrivateMarket(world, worker, verifier, *keepers, requester)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        plan = market.task_spec.plan()
        states = []
        for number in range(2):
            custody = find_custody(world.store, market.task, number)
            assert custody is not None and custody.holders and all(holder.bond for holder in custody.holders)
            holder = next(k for k in keepers if k.wallet.address == custody.holders[0].address)
            states.append(market.result(number, holder))
            state, window = TrainingState.decode(states[-1], plan), market.window(number)
            assert window is not None and state.root(plan) == window.proof.state_root_out
        # What its worker has in plain is in the job's folder, and goes with it; so does the key.
        await world.mint_until(lambda: not [*worker.home.root.rglob("*.key"), *files_in(worker.home.jobs)])
        contents = [BLOB[at : at + PIECE] for at in range(len(BLOB) // 2, len(BLOB) - PIECE, 997)]
        for plain in states:
            contents += [plain[at : at + PIECE] for at in range(len(plain) // 2, len(plain), 997)]
        for machine in market.machines:
            found = stored_bytes(machine)
            assert not [content for content in contents if len(content) == PIECE and content in found]
        nursery.cancel_scope.cancel()
    world.store.close()


@pytest.mark.parametrize("root", [None, b"k" * 32], ids=["its requester is off", "another root"])
async def test_a_worker_declines_a_task_whose_key_it_cannot_have(
    world: World, root: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_keys, "ASK_SHARE", 0.01)
    worker, requester = Machine(world, 1, "compute"), Machine(world, 9, "relay")
    market = PrivateMarket(world, worker, Machine(world, 2, "verify"), requester)
    market.root = root
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        bond = require_node(world.store, worker.wallet.address).bond
        await nursery.start(worker.run)
        if root is not None:
            await nursery.start(requester.run)
        await world.mint_until(lambda: worker.wallet.address in market.record.excluded)
        assert worker.duties is not None and worker.duties.market_events["task_declined"] == 1
        assert require_node(world.store, worker.wallet.address).bond == bond
        assert worker.network.blobs is not None and not worker.network.blobs.blobs(), "the key comes first"
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_a_worker_asks_again_for_the_key_of_a_requester_that_was_off(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_keys, "ASK_PAUSE_S", 0.2)
    monkeypatch.setattr(task_keys, "ASK_S", 0.5)
    worker, requester = Machine(world, 1, "compute"), Machine(world, 9, "relay")
    market = PrivateMarket(world, worker, Machine(world, 2, "verify"), requester)
    asked: list[bool] = []
    obtain = TaskKeys.obtain

    async def watched(keys: TaskKeys, task: bytes) -> bool:
        asked.append(await obtain(keys, task))
        return asked[-1]

    monkeypatch.setattr(TaskKeys, "obtain", watched)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        await nursery.start(worker.run)
        await world.mint_until(lambda: len(asked) > 1)
        await nursery.start(requester.run)
        await world.mint_until(lambda: market.record.phase not in (Phase.MATCHING, Phase.ASSIGNED))
        assert market.record.worker == worker.wallet.address and asked[:2] == [False, False] and asked[-1]
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_a_worker_proves_with_the_input_key_that_a_private_data_set_is_another(world: World) -> None:
    worker, requester = Machine(world, 1, "compute"), Machine(world, 9, "relay")
    market = PrivateMarket(world, worker, Machine(world, 2, "verify"), requester)
    market.dataset = BLOB[:-1] + bytes([BLOB[-1] ^ 1])
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in (worker, requester):
            await nursery.start(machine.run)
        duties = worker.duties
        assert duties is not None
        await world.mint_until(
            lambda: market.record.phase == Phase.FAILED and duties.market_events["task_claimed"] == 1
        )
        assert Purpose.PREPARATION in market.paid(worker)
        nursery.cancel_scope.cancel()
    world.store.close()


async def test_keys_go_to_those_alone_whom_the_chain_has_assigned(world: World) -> None:
    worker, stranger = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    requester = Machine(world, 9, "relay")
    market = PrivateMarket(world, worker, stranger, requester)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        await nursery.start(requester.run)
        await world.mint_until(lambda: market.record.phase == Phase.ASSIGNED)
        ask = encode([market.task, 0, public_key_of(b"1" * 32)])
        own = requester.wallet.address
        answer = await worker.network.request(own, METHOD_TASK_KEY, ask)
        assert market.key not in answer
        for method, body, code in (
            (METHOD_TASK_KEY, ask, "not_entitled"),
            (METHOD_WINDOW_KEYS, ask, "window_unknown"),
            (METHOD_TASK_KEY, b"?", "decode_error"),
            (METHOD_TASK_KEY, encode([b"x" * 32, 0, b"1" * 32]), "task_unknown"),
        ):
            with pytest.raises(RequestRefused) as caught:
                await stranger.network.request(own, method, body)
            assert code in str(caught.value)
        nursery.cancel_scope.cancel()
    world.store.close()


@pytest.mark.slow
async def test_a_worker_joins_shares_of_the_key_where_the_requester_is_offline(world: World) -> None:
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    keepers = [Machine(world, number, "storage") for number in (3, 4, 5)]
    requester = Machine(world, 9, "relay")
    market = PrivateMarket(world, worker, verifier, *keepers, requester)
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as own:
            await market.begin(nursery, own)
            for machine in (*keepers, requester):
                await (own if machine is requester else nursery).start(machine.run)
            assert requester.duties is not None
            with pytest.raises(SharesInvalid):
                await requester.duties.shares.share_out(market.task, 3, 2)
            with pytest.raises(KeysMissing):
                await requester.duties.shares.share_out(market.task, 2, 4)
            held = await requester.duties.shares.share_out(market.task, 2, 3)
            assert set(held) == {keeper.wallet.address for keeper in keepers}
            ask = encode([market.task, 0, public_key_of(b"1" * 32)])
            with pytest.raises(RequestRefused, match="not_entitled"):
                await verifier.network.request(held[0], METHOD_SHARE, ask)
            with pytest.raises(RequestRefused, match="not_entitled"):
                await verifier.network.request(held[0], METHOD_KEEP_SHARE, kept_request(market.task))
            own.cancel_scope.cancel()
        assert requester.network.blobs is not None
        requester.network.blobs.remove(market.task_spec.dataset.blob)
        for machine in (worker, verifier):
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        plan = market.task_spec.plan()
        custody, window = find_custody(world.store, market.task, 1), market.window(1)
        assert custody is not None and window is not None
        holder = next(keeper for keeper in keepers if custody.holder(keeper.wallet.address))
        state = TrainingState.decode(market.result(1, holder), plan)
        assert state.root(plan) == window.proof.state_root_out
        await world.mint_until(lambda: not [*keepers[0].home.root.rglob("*.share")])
        nursery.cancel_scope.cancel()
    world.store.close()


class NamedMarket(PrivateMarket):
    """One whose requester lets machine 2 alone verify."""

    def job(self) -> JobSpec:
        return super().job().changed(verifiers=Verifiers(0, (account(2).address,)))


def has_one_proof_out(machine: Machine) -> None:
    """Have no proof of the machine leave it after the first: its line is cut for them."""
    send, sent = machine.wallet.send, list[int]()

    async def cut(kind: int, payload: list[Value], **more: Any) -> Any:
        if kind == SUBMIT_WINDOW and sent:
            await trio.sleep_forever()
        sent.extend([kind] * (kind == SUBMIT_WINDOW))
        return await send(kind, payload, **more)

    machine.wallet.send = cut  # type: ignore[method-assign]


@pytest.mark.slow
async def test_a_requester_that_was_killed_opens_two_verified_windows_of_two_workers_the_next_day(
    world: World,
) -> None:
    """Its node is killed after creation, and the first worker after its window. Those it named alone verify."""
    first, second = Machine(world, 1, "compute"), Machine(world, 6, "compute")
    verifier, stranger = Machine(world, 2, "verify"), Machine(world, 7, "verify")
    keepers = [Machine(world, number, "storage") for number in (3, 4, 5)]
    market = NamedMarket(world, verifier, stranger, *keepers, requester := Machine(world, 9, "relay"))
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as own:
            await market.begin(nursery, own)
            for machine in (*keepers, requester):
                await (own if machine is requester else nursery).start(machine.run)
            assert requester.duties is not None
            await requester.duties.shares.share_out(market.task, 2, 3)
            own.cancel_scope.cancel()
        assert requester.network.blobs is not None
        requester.network.blobs.remove(market.task_spec.dataset.blob)
        for machine in (verifier, stranger):
            await nursery.start(machine.run)
        async with trio.open_nursery() as life:
            has_one_proof_out(first)
            await join(market, first, life)
            await world.mint_until(lambda: market.record.final_windows == 1, timeout_s=120)
            life.cancel_scope.cancel()
        for _ in range(24):
            if market.record.worker != first.wallet.address:
                break
            world.mint(after_ms=3_600_000)
        assert market.record.worker != first.wallet.address, "its time to prove the next window is over"
        await join(market, second, nursery)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        windows = [window for number in range(2) if (window := market.window(number)) is not None]
        assert [window.worker for window in windows] == [first.wallet.address, second.wallet.address]
        for window in windows:
            assert [seat.address for seat in window.verifiers] == [verifier.wallet.address] and not window.jurors
            assert {found.code for seat in window.verifiers for found in seat.findings or ()} == {Code.COMPUTED}
        world.mint(after_ms=24 * 3_600_000)
        plan = market.task_spec.plan()
        for number, window in enumerate(windows):
            custody = find_custody(world.store, market.task, number)
            assert custody is not None
            holder = next(keeper for keeper in keepers if custody.holder(keeper.wallet.address))
            state = TrainingState.decode(market.result(number, holder), plan)
            assert state.root(plan) == window.proof.state_root_out
        nursery.cancel_scope.cancel()
    world.store.close()


async def join(market: Market, machine: Machine, nursery: trio.Nursery) -> None:
    """Start the node of a machine and put it into the registry."""
    await nursery.start(machine.network.run)
    async with trio.open_nursery() as registering:
        registering.start_soon(machine.register)
        await market.world.mint_until(lambda: not registering.child_tasks)
    await nursery.start(machine.run)


@pytest.mark.slow
async def test_a_verifier_whom_the_worker_does_not_know_as_drawn_yet_asks_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block with the draw came first. One refusal was a verdict, so an honest window went to a jury."""
    worker, verifier = Machine(world, 1, "compute"), Machine(world, 2, "verify")
    keepers = [Machine(world, number, "storage") for number in (3, 4, 5)]
    market = PrivateMarket(world, worker, verifier, *keepers, requester := Machine(world, 9, "relay"))
    serve, refused = TaskKeys._serve_window_keys, list[bytes]()

    async def serve_late(keys: TaskKeys, peer: bytes, body: bytes) -> bytes:
        if len(refused) < 4:
            refused.append(peer)
            raise NotEntitled("not drawn to check the window")
        return await serve(keys, peer, body)

    monkeypatch.setattr(TaskKeys, "_serve_window_keys", serve_late)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in (worker, verifier, *keepers, requester):
            await nursery.start(machine.run)
        await world.mint_until(lambda: market.record.phase == Phase.SETTLED, timeout_s=120)
        nursery.cancel_scope.cancel()
    assert refused == 4 * [verifier.wallet.address]
    windows = [window for number in range(2) if (window := market.window(number)) is not None]
    assert len(windows) == 2 and not any(window.jurors for window in windows)
    seats = [seat for window in windows for seat in window.verifiers]
    assert {finding.code for seat in seats for finding in seat.findings or ()} == {Code.COMPUTED}
    world.store.close()


def kept_request(task: bytes) -> bytes:
    """Return a request to keep a share that fits its book, of an account that is not the task's requester."""
    [share] = split_key(b"k" * 32, 1, 1, b"r" * 16)
    book = ShareBook(task, 1, (share_hash(task, share),), b"")
    return encode([task, [1, list(book.hashes), account(2).sign(book.digest)], list(share)])


@pytest.mark.slow
async def test_a_verifier_shows_garbage_in_custody_and_its_worker_pays(world: World) -> None:
    swindler = Machine(world, 1, "compute", duties=SwindlersDuties)
    verifier, requester = Machine(world, 2, "verify"), Machine(world, 9, "relay")
    keepers = [Machine(world, number, "storage") for number in (3, 4, 5)]
    market = PrivateMarket(world, swindler, verifier, *keepers, requester)
    async with trio.open_nursery() as nursery:
        await market.begin(nursery)
        for machine in market.machines:
            await nursery.start(machine.run)
        await world.mint_until(lambda: swindler.wallet.address in market.record.excluded, timeout_s=120)
        assert market.record.final_windows == 0
        await world.mint_until(lambda: verifier.duties is not None and verifier.duties.lies_shown >= 1)
        assert Purpose.LIE_PROVEN in market.paid(verifier), "a share of the liar's bond for who shows the lie"
        nursery.cancel_scope.cancel()
    world.store.close()
