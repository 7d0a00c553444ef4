"""A data set that no peer has is found by asking everybody, and only by whom the chain lets ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

from node.home.options import NodeOptions
from node.home.paths import Home
from node.market.blob_search import (
    AGAIN_S,
    ANSWERS_MAX,
    HOLDERS_MAX,
    KIND_BLOB_HELD,
    TOPIC_BLOB,
    WAIT_S,
    BlobSearch,
    Question,
    decode_question,
    encode_question,
    is_due,
)
from node.market.duties import DutyService
from node.market.inputs import Supply
from p2p.base.errors import BlobUnavailable
from p2p.base.limits import NetworkLimits
from p2p.blob.transfer import METHOD_MANIFEST, METHOD_PIECE
from p2p.gossip.core import Verdict
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from state.primitives.address import format_address
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
from tasks.ledger.records import load_spec
from tests.node.market.test_duties import REQUESTER, Market
from tests.node.world import Machine, World
from tests.p2p.helpers import NOW_MS, account, identity
from tests.tasks.executor.helpers import BLOB, make_spec

ASKER, HOLDER = 1, 6
LINE = (ASKER, 4, 5, HOLDER)


class Node:
    """A node that follows the chain, dials nobody but the one before it, and has a store."""

    def __init__(self, world: World, number: int, before: Node | None, path: Path) -> None:
        bootstrap = () if before is None else (before.endpoint(),)
        self.network = Network(
            NetworkConfig(
                listen=(("127.0.0.1", 0),), bootstrap=bootstrap, blob_dir=path / f"blobs {number}",
                limits=NetworkLimits(peers_out_target=len(bootstrap)),
            ),
            identity(number),
            now_ms=lambda: NOW_MS,
        )  # fmt: skip
        self.address = self.network.identity.address
        self.search = BlobSearch(self.network, world.store, Random(number))

    def endpoint(self) -> str:
        host, port = self.network.bound[0]
        return f"{format_address(self.address)}@{host}:{port}"


async def until(look: Callable[[], bool]) -> None:
    while not look():  # noqa: ASYNC110 - many things end in it
        await trio.sleep(0.01)


@asynccontextmanager
async def line(tmp_path: Path, numbers: Sequence[int]) -> AsyncIterator[tuple[World, bytes, bytes, list[Node]]]:
    """Yield a world with a task of machine ``ASKER``, its data set, and nodes each connected to its neighbours."""
    with trio.fail_after(120):
        world = World(tmp_path)
        market = Market(
            world, Machine(world, ASKER, "compute", alone=True), Machine(world, 2, "verify", alone=True)
        )
        async with trio.open_nursery() as nursery:
            await market.start(nursery, make_spec(10, 10, 10))
            await world.mint_until(lambda: market.record.worker == account(ASKER).address)
            nodes: list[Node] = []
            for number in numbers:
                nodes.append(Node(world, number, nodes[-1] if nodes else None, tmp_path))
                await nursery.start(nodes[-1].network.run)
                nursery.start_soon(nodes[-1].search.run)
            for at, node in enumerate(nodes):
                await node.network.wait_peers((at > 0) + (at + 1 < len(nodes)))
                await until(
                    lambda node=node: all(  # type: ignore[misc]
                        TOPIC_BLOB in peer.topics for peer in node.network.parts.gossip.core._peers.values()
                    )
                )
            yield world, market.task, load_spec(world.store, market.task).dataset.blob, nodes
            nursery.cancel_scope.cancel()
        world.store.close()


async def test_a_holder_that_is_three_nodes_away_is_found_and_left_again(tmp_path: Path) -> None:
    async with line(tmp_path, LINE) as (_, task, blob, nodes):
        asker, holder = nodes[0], nodes[-1]
        assert asker.network.blobs is not None and holder.network.blobs is not None
        with pytest.raises(BlobUnavailable):
            await asker.network.fetch_blob(blob, [peer.address for peer in asker.network.peers()])
        assert holder.network.blobs.add(BLOB) == blob
        await until(lambda: holder.network.record(asker.address) is not None)
        assert not asker.network.is_connected(holder.address)
        await asker.search.fetch(task, blob, DATASET_BLOB_BYTES_MAX)
        assert asker.network.blobs.read(blob) == BLOB
        await until(lambda: not asker.network.is_connected(holder.address))
        assert {peer.address for peer in asker.network.peers()} == {nodes[1].address}


async def test_a_worker_gets_a_data_set_that_no_peer_of_its_has(tmp_path: Path) -> None:
    async with line(tmp_path, (ASKER, 4, HOLDER)) as (world, task, blob, nodes):
        asker, holder = nodes[0], nodes[-1]
        assert holder.network.blobs is not None and holder.network.blobs.add(BLOB) == blob
        await until(lambda: holder.network.record(asker.address) is not None)
        home = Home(tmp_path / "worker")
        home.jobs.mkdir(parents=True)
        duties = DutyService(
            world.ledger, world.wallet(ASKER), asker.network, NodeOptions(roles=("compute",)), home=home,
            secret=b"s" * 32, is_synced=lambda: True,
        )  # fmt: skip
        duties.search_with(asker.search)
        assert (
            await duties._inputs.dataset(load_spec(world.store, task), Supply(duties._inputs.peers), task) == BLOB
        )


async def test_what_the_chain_does_not_bear_out_goes_no_further(tmp_path: Path) -> None:
    async with line(tmp_path, (ASKER, 4)) as (world, task, blob, nodes):
        asker, peer = nodes[0].address, b"p" * 20
        good = Question(task, blob, asker, 1)
        assert is_due(world.store, good)
        for wrong in (
            good._replace(task=b"?" * 32), good._replace(blob=b"?" * 32), good._replace(asker=b"?" * 20),
            good._replace(asker=account(REQUESTER).address),
        ):  # fmt: skip
            assert not is_due(world.store, wrong)
            assert await nodes[1].search.validate(peer, encode_question(wrong)) is Verdict.IGNORE
        assert await nodes[1].search.validate(peer, b"nonsense") is Verdict.REJECT
        # One question for a task and machine goes on in a while, whatever its number.
        told = [await nodes[1].search.validate(peer, encode_question(good._replace(number=n))) for n in range(20)]
        assert told == [Verdict.ACCEPT, *[Verdict.IGNORE] * 19]


def held(holder: Node, asker: Node, blob: bytes) -> None:
    assert holder.network.send(asker.address, TrafficClass.GOSSIP, KIND_BLOB_HELD, blob)


class Gate:
    """Stands before a method that a node serves: who asks waits until it is open."""

    def __init__(self, node: Node, method: str, blob: bytes) -> None:
        self.asked, self.open = trio.Event(), trio.Event()
        served = node.network.parts.served[method]

        async def handler(peer: bytes, body: bytes) -> bytes:
            if body.startswith(blob):
                self.asked.set()
                await self.open.wait()
            return await served.handler(peer, body)

        node.network.parts.served[method] = replace(served, handler=handler)


async def test_who_says_to_have_it_and_shows_nothing_holds_up_nobody(tmp_path: Path) -> None:
    async with line(tmp_path, (ASKER, 4, 5)) as (_, task, blob, nodes):
        asker, liar, holder = nodes
        assert holder.network.blobs is not None and asker.network.blobs is not None
        await until(lambda: holder.network.record(asker.address) is not None)
        gate = Gate(liar, METHOD_MANIFEST, blob)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asker.search.fetch, task, blob, DATASET_BLOB_BYTES_MAX)
            await until(lambda: blob in asker.search._looking)
            limits = asker.network.limits  # as many as may come, and more than are asked for pieces at once
            for number in range(2 * (limits.peers_in_max + HOLDERS_MAX)):
                await asker.search._on_held(bytes((number,)) * 20, blob)
            held(liar, asker, blob)
            await gate.asked.wait()
            holder.network.blobs.add(BLOB)
            held(holder, asker, blob)
        assert asker.network.blobs.read(blob) == BLOB and not asker.search._looking


async def test_who_shows_the_manifest_and_brings_no_piece_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.market.blob_search.QUIET_S", 0.1)
    async with line(tmp_path, (ASKER, 4, 5)) as (_, task, blob, nodes):
        asker, liar, holder = nodes
        assert asker.network.blobs is not None and liar.network.blobs is not None
        assert holder.network.blobs is not None and liar.network.blobs.add(BLOB) == blob
        await until(lambda: holder.network.record(asker.address) is not None)
        gate = Gate(liar, METHOD_PIECE, blob)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asker.search.fetch, task, blob, DATASET_BLOB_BYTES_MAX)
            await until(lambda: blob in asker.search._looking)
            held(liar, asker, blob)
            await gate.asked.wait()
            holder.network.blobs.add(BLOB)
            held(holder, asker, blob)
        assert asker.network.blobs.read(blob) == BLOB


async def test_two_searches_at_once_share_a_holder_who_stays_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.market.blob_search.WAIT_S", 60.0)
    async with line(tmp_path, LINE) as (_, task, blob, nodes):
        asker, holder = nodes[0], nodes[-1]
        assert asker.network.blobs is not None and holder.network.blobs is not None
        other = holder.network.blobs.add(b"another data set")
        await until(lambda: holder.network.record(asker.address) is not None)
        gone: list[bytes] = []
        asker.network.on_peer(lambda address, is_there: None if is_there else gone.append(address))
        gate, is_here = Gate(holder, METHOD_PIECE, other), trio.Event()

        async def fetch_first() -> None:
            await asker.search.fetch(task, blob, DATASET_BLOB_BYTES_MAX)
            is_here.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch_first)
            await until(lambda: blob in asker.search._looking)
            nursery.start_soon(asker.search.fetch, task, other, DATASET_BLOB_BYTES_MAX)
            nursery.start_soon(asker.search.fetch, task, other, DATASET_BLOB_BYTES_MAX)  # waits for the one before
            await until(lambda: other in asker.search._looking)
            holder.network.blobs.add(BLOB)
            held(holder, asker, other)
            await gate.asked.wait()
            held(holder, asker, blob)
            await is_here.wait()
            assert other in asker.search._looking, "its own wait goes on"
            await asker.network.request(holder.address, METHOD_MANIFEST, other)
            assert not gone, "it still serves"
            gate.open.set()
        assert asker.network.blobs.is_complete(blob) and asker.network.blobs.is_complete(other)
        await until(lambda: gone == [holder.address])


async def test_only_answers_to_a_question_count_and_not_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.market.blob_search.CHECK_S", 0.1)
    monkeypatch.setattr("node.market.blob_search.WAIT_S", 3.0)
    async with line(tmp_path, (ASKER, 4)) as (_, task, blob, nodes):
        search = nodes[0].search
        await search._on_held(b"x" * 20, blob)
        async with trio.open_nursery() as nursery:

            async def fetch() -> None:
                with pytest.raises(BlobUnavailable):
                    await search.fetch(task, blob, DATASET_BLOB_BYTES_MAX)

            nursery.start_soon(fetch)
            nursery.start_soon(fetch)
            await until(lambda: blob in search._looking)
            looking = search._looking[blob]
            assert not looking.answers
            await search._on_held(b"x" * 20, b"?" * 32)
            held(nodes[1], nodes[0], blob)
            await until(lambda: looking.answers == {nodes[1].address})
            for number in range(2 * ANSWERS_MAX):
                await search._on_held(number.to_bytes(20, "big"), blob)
            assert len(looking.answers) == ANSWERS_MAX
        assert not search._looking and nodes[0].network.counters["blob_questions"] == 1
        assert nodes[0].network.is_connected(nodes[1].address), "it was there before"


def test_a_search_that_fails_lasts_until_its_question_would_be_passed_on_again() -> None:
    assert WAIT_S > AGAIN_S


def test_questions_decode_strictly() -> None:
    question = Question(b"t" * 32, b"b" * 32, b"a" * 20, 7)
    assert decode_question(encode_question(question)) == question
    for wrong in (b"", encode([*question, 1]), encode([*question[:3], -1]), encode([b"t", *question[1:]])):
        with pytest.raises(DecodeError):
            decode_question(wrong)
