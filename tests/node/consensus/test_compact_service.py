"""Compact proposals between networks over real connections."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import trio
import trio.testing

from node.consensus.agreement import KIND_CONSENSUS_BULK, YOUNG_S, _NetworkPort, _PoolPort
from node.consensus.compact import ProposalRequest, encode_bulk, encode_compact_control
from node.consensus.compact_exchange import CompactParameters
from node.consensus.compact_service import KIND_COMPACT, KIND_COMPACT_CONTROL, WHOLE_BYTES_MAX, CompactBlocks
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from state.primitives.address import format_address
from state.primitives.transactions import sign_transaction
from state.transition.transfer import TRANSFER_GAS, TRANSFER_KIND, transfer_payload
from tests.node.compact_world import SomePool, form_of, proposal_of, transactions
from tests.node.world import World
from tests.p2p.helpers import NOW_MS, account, identity

RAWS = transactions(1_000)
DATA = proposal_of(RAWS)
PATIENT = CompactParameters(silence_s=60, latest_s=60, answer_s=60)
"""Where nothing may depend on how busy this machine is."""


class Node:
    """A network, a pool, and what came to the consensus."""

    def __init__(self, number: int, first: str, raws: Iterable[bytes], parameters: CompactParameters) -> None:
        self.identity = identity(number)
        config = NetworkConfig(listen=(("127.0.0.1", 0),), bootstrap=(first,) if first else ())
        self.network = Network(config, self.identity, now_ms=lambda: NOW_MS)
        self.send, self.heard = trio.open_memory_channel[tuple[str, bytes, bytes]](math.inf)
        self.blamed: list[bytes] = []
        self.pool = SomePool(raws)
        self.port = _NetworkPort(self.network)
        self.compact = self.port.compact = CompactBlocks(
            self.network, self.pool, own=self.identity.address, kind=KIND_CONSENSUS_BULK,
            leads=lambda _sender, _epoch, view: view < 1_000,
            deliver=lambda sender, data: self.send.send_nowait(("rebuilt", sender, data)),
            blame=lambda sender, _: self.blamed.append(sender),
            in_thread=trio.to_thread.run_sync, random=Random(number), parameters=parameters,
        )  # fmt: skip
        self.network.on_message(KIND_CONSENSUS_BULK, self._hear)

    async def _hear(self, peer: bytes, body: bytes) -> None:
        if self.compact.came(peer, body):
            self.send.send_nowait(("whole", peer, body))

    def count(self, name: str) -> int:
        return self.network.counters[f"compact_{name}"]


@asynccontextmanager
async def network_of(
    pools: Sequence[Iterable[bytes]], *, followers: int = 0, parameters: CompactParameters = PATIENT,
) -> AsyncIterator[list[Node]]:  # fmt: skip
    """Run a node for each pool, the last ones without a seat, all of them connected."""
    with trio.fail_after(150):
        async with trio.open_nursery() as nursery:
            nodes: list[Node] = []
            first = ""
            for number, pool in enumerate(pools):
                nodes.append(Node(number, first, pool, parameters))
                await nursery.start(nodes[-1].network.run)
                nursery.start_soon(nodes[-1].compact.run)
                host, port = nodes[0].network.bound[0]
                first = f"{format_address(nodes[0].identity.address)}@{host}:{port}"
            seats = tuple(node.identity.address for node in nodes[: len(nodes) - followers])
            for node in nodes:
                node.network.set_persistent(seats)
                node.port.seat(seats)
            for node in nodes:
                await node.network.wait_peers(len(nodes) - 1 if node is nodes[0] else len(seats) - 1)
            await trio.testing.wait_all_tasks_blocked()
            yield nodes
            nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.01)


async def test_seats_and_followers_rebuild_what_their_pools_hold() -> None:
    async with network_of([RAWS, RAWS[::-1], [*transactions(300, 2), *RAWS], RAWS], followers=1) as nodes:
        leader = nodes[0].identity.address
        before = sum(info.bytes_out for info in nodes[0].network.peers())
        await nodes[0].port.broadcast(DATA, True)
        for node in nodes[1:]:
            assert await node.heard.receive() == ("rebuilt", leader, DATA)
        await until(lambda: all(node.count("rebuilt") == 1 for node in nodes[1:]))
        assert sum(info.bytes_out for info in nodes[0].network.peers()) - before < len(DATA) / 2
        assert nodes[0].count("whole") == 0
        # The same once more, because the view makes no progress, and one that is small.
        await trio.sleep(PATIENT.repeat_s)
        small = proposal_of(RAWS[:80])
        assert len(small) <= WHOLE_BYTES_MAX < len(DATA)
        for data in (DATA, small):
            await nodes[0].port.broadcast(data, True)
            for node in nodes[1:]:
                assert await node.heard.receive() == ("whole", leader, data)


async def test_who_lacks_little_asks_and_who_lacks_much_gets_it_whole() -> None:
    async with network_of([RAWS, RAWS[9:], RAWS[:500], RAWS]) as nodes:
        leader = nodes[0].identity.address
        await nodes[0].port.broadcast(DATA, True)
        for node, way in zip(nodes[1:], ("rebuilt", "whole", "rebuilt"), strict=True):
            assert await node.heard.receive() == (way, leader, DATA)
        await until(lambda: (nodes[1].count("asked"), nodes[2].count("gave_up")) == (1, 1))
        await until(lambda: (nodes[0].count("answered"), nodes[0].count("whole")) == (1, 1))
        # It is spared the detour with the next one.
        following = proposal_of(RAWS[::-1], view=12)
        await nodes[0].port.broadcast(following, True)
        for node, way in zip(nodes[1:], ("rebuilt", "whole", "rebuilt"), strict=True):
            assert await node.heard.receive() == (way, leader, following)
        assert nodes[2].count("gave_up") == 1


async def test_a_seat_that_says_nothing_is_sent_the_whole() -> None:
    parameters = replace(PATIENT, silence_s=0.05)
    async with network_of([RAWS, RAWS, RAWS], parameters=parameters) as nodes:
        nodes[2].port.seat(())  # so it heeds nobody's forms, like software that does not know them
        await nodes[0].port.broadcast(DATA, True)
        assert await nodes[2].heard.receive() == ("whole", nodes[0].identity.address, DATA)
        assert nodes[2].count("rebuilt") == 0
        assert (await nodes[1].heard.receive())[1:] == (nodes[0].identity.address, DATA)


async def test_another_seat_answers_for_a_leader_that_does_not() -> None:
    async with network_of([RAWS, RAWS, RAWS[3:]], parameters=replace(PATIENT, answer_s=0.05)) as nodes:
        leader = nodes[0].identity.address
        compact, data = form_of(RAWS)
        for node in nodes[1:]:  # by hand: the leader knows nothing of this message and answers no question
            assert nodes[0].network.send(
                node.identity.address, TrafficClass.BLOCK, KIND_COMPACT, encode_bulk(compact)
            )
            assert await node.heard.receive() == ("rebuilt", leader, data)
        await until(lambda: nodes[1].count("helped") == 1)


async def test_hostile_messages_cost_their_sender_and_nothing_else() -> None:
    async with network_of([RAWS, RAWS, RAWS, RAWS], followers=1) as nodes:
        seat, stranger, target = nodes[1], nodes[3], nodes[0]
        address = target.identity.address
        bulk = encode_bulk(form_of(RAWS)[0])
        for node, kind, data in (
            (seat, KIND_COMPACT, b"\xff" * 100),
            (seat, KIND_COMPACT, bulk[:-1]),
            (seat, KIND_COMPACT_CONTROL, b"\x80"),
            (stranger, KIND_COMPACT, bulk),
            (stranger, KIND_COMPACT_CONTROL, encode_compact_control(ProposalRequest(b"w" * 32))),
            (seat, KIND_COMPACT, encode_bulk(form_of(RAWS, view=2_000)[0])),  # a view that it does not lead
        ):
            assert node.network.send(address, TrafficClass.BLOCK, kind, data)
        await nodes[2].port.broadcast(DATA, True)
        for node in (target, seat):
            assert await node.heard.receive() == ("rebuilt", nodes[2].identity.address, DATA)
        await until(lambda: target.count("dropped") == 1 and len(target.blamed) == 3)
        assert set(target.blamed) == {seat.identity.address}
        await until(lambda: target.count("rebuilt") == 1)


async def test_the_pool_of_a_node_tells_what_is_young(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    world = World(tmp_path)
    port = _PoolPort(world.ledger)
    pool = world.ledger.mempool

    async def submit(number: int) -> bytes:
        key = account(number)
        raw = sign_transaction(
            key, chain_id=world.ledger.chain_id, nonce=0, kind=TRANSFER_KIND,
            payload=transfer_payload(b"t" * 20, 1), gas_limit=TRANSFER_GAS,
            max_fee_per_gas=2 * world.ledger.base_fee(),
        )  # fmt: skip
        await world.ledger.submit_own(raw, key.address)
        port.note(trio.current_time())
        return raw

    old = await submit(1)
    await trio.sleep(YOUNG_S + 0.01)
    assert port.young() == frozenset()
    new = await submit(2)
    hash_of = {raw: port.hash_of(raw) for raw in (old, new)}
    assert list(port.hashes()) == [hash_of[old], hash_of[new]]
    assert port.young() == {hash_of[new]}
    assert [port.raw_of(found) for found in port.hashes()] == [old, new]
    assert port.raw_of(bytes(32)) is None
    assert port.hash_of(b"unknown") is None
    assert len(pool) == 2
    world.store.close()
