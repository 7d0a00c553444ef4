"""The relay of votes and the fetching of proposals between nodes that lack connections to each other."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import trio

from consensus.events import ConsensusParameters, Epoch
from consensus.guard import Guard
from consensus.guard_log import VoteDirectory
from consensus.ports import BuildRequest
from consensus.service import ConsensusService, VotingKey
from consensus.vote_relay import encode_statement, encode_wanted
from consensus.votes import Certificate
from consensus.wire import (
    GetBlock,
    GetCertificates,
    Proposal,
    Status,
    encode_message,
)
from node.consensus.agreement import KIND_CONSENSUS, KIND_CONSENSUS_BULK, _NetworkPort
from node.consensus.vote_relay import (
    KIND_PROPOSAL,
    KIND_PROPOSAL_WANTED,
    PROPOSALS_MAX,
    TOPIC_CONSENSUS,
    VoteRelayService,
)
from p2p.base.endpoint import Endpoint
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from state.primitives.blocks import encode_block
from state.primitives.committee import Committee, Seat
from state.primitives.votes import NOTARIZE, NULLIFY, Candidate, Vote, vote_digest
from tests.consensus.world import GENESIS, PARAMETERS, ROOT, Epochs, HashChain, assert_one_chain, vote_key
from tests.p2p.helpers import NOW_MS, identity

SEATS = 4
PATIENT = replace(PARAMETERS, leader_ms=2_000, advance_ms=4_000, retransmit_ms=1_500, status_ms=1_000)
HASTY = replace(PATIENT, leader_ms=600, advance_ms=900, retransmit_ms=300, retransmit_ms_max=1_500)
SEATED = Committee(
    Seat(identity(number).address, vote_key(number).vote_key, vote_key(number).vrf_key, 1)
    for number in range(SEATS)
)
EPOCH_BLOCKS = 5


def address(number: int) -> bytes:
    return identity(number).address


async def until(look: Callable[[], bool]) -> None:
    while not look():  # noqa: ASYNC110 - many things end in it
        await trio.sleep(0.01)


class Node:
    """One seat, or a node that follows, with its network; consensus and vote_relay as the node wires them."""

    def __init__(self, number: int, path: Path, parameters: ConsensusParameters) -> None:
        self.number = number
        config = NetworkConfig(listen=(("127.0.0.1", 0),))
        self.network = Network(config, identity(number), now_ms=lambda: NOW_MS)
        self.port = _NetworkPort(self.network)
        self.blamed: list[bytes] = []
        self.chain = HashChain(Epochs(EPOCH_BLOCKS, lambda _: SEATED))
        self.directory: VoteDirectory | None = None
        keys: tuple[VotingKey, ...] = ()
        if number < SEATS:
            self.directory = VoteDirectory(path / str(number))
            self.directory.create_guard(Guard(GENESIS, vote_key(number).vote_key))
            keys = (VotingKey(vote_key(number), self.directory),)
        epoch, root, certificates = self.chain.root()
        self.service = ConsensusService(
            epoch=epoch, genesis_hash=GENESIS, root=root, certificates=certificates, parameters=parameters,
            chain=self.chain, network=self.port, wall_ms=lambda: time.time_ns() // 1_000_000, keys=keys,
        )  # fmt: skip
        self.vote_relay = VoteRelayService(
            self.network, self.service, genesis_hash=GENESIS, following=lambda _: SEATED
        )
        self.service.listener = self.port.vote_relay = self.vote_relay
        for kind in (KIND_CONSENSUS, KIND_CONSENSUS_BULK):
            self.network.on_message(kind, self._receive)
        self.network.on_peer(lambda peer, is_there: self.service.connected(peer) if is_there else None)

    async def _receive(self, peer: bytes, body: bytes) -> None:
        self.service.receive(peer, body)

    def count(self, name: str) -> int:
        return self.network.counters[f"vote_relay_{name}"]

    async def connected(self, other: Node) -> None:
        self.network.bans.lift(other.network.identity.address)
        other.network.bans.lift(self.network.identity.address)
        self.network.connect(other.network.identity.address, Endpoint(*other.network.bound[0]))
        await until(lambda: self.network.is_connected(other.network.identity.address))


@asynccontextmanager
async def network_of(
    path: Path,
    edges: Iterable[tuple[int, int]],
    *,
    count: int = SEATS,
    votes: bool = True,
    parameters: ConsensusParameters = PATIENT,
) -> AsyncIterator[list[Node]]:
    """Run so many nodes, of which only these pairs may connect."""
    with trio.fail_after(150):
        nodes = [Node(number, path, parameters) for number in range(count)]
        seats = tuple(address(number) for number in range(SEATS))
        try:
            async with trio.open_nursery() as nursery:
                for node in nodes:
                    node.network.set_persistent(seats)
                    node.port.seat(seats, is_seated=node.number < SEATS)
                    await nursery.start(node.network.run)
                    nursery.start_soon(node.vote_relay.run)
                for one, other in combinations(nodes, 2):
                    one.network.ban(other.network.identity.address, "apart")
                    other.network.ban(one.network.identity.address, "apart")
                for first, second in edges:
                    await nodes[first].connected(nodes[second])
                for node in nodes if votes else ():
                    nursery.start_soon(node.service.run)
                yield nodes
                nursery.cancel_scope.cancel()
        finally:
            for node in nodes:
                if node.directory is not None:
                    node.directory.close()


async def grown(nodes: Sequence[Node], height: int) -> None:
    for node in nodes:
        await node.chain.wait_height(height)
    assert_one_chain(*(node.chain for node in nodes))


async def test_a_full_mesh_publishes_nothing(tmp_path: Path) -> None:
    async with network_of(tmp_path, combinations(range(SEATS), 2)) as nodes:
        await grown(nodes, 2 * EPOCH_BLOCKS + 1)
        for node in nodes:
            assert node.count("published") == node.count("forward") == node.count("proposals_asked") == 0


@pytest.mark.parametrize(
    ("edges", "count"),
    [
        (((0, 1), (1, 2), (2, 3)), SEATS),  # a line
        (((0, 4), (1, 4), (2, 4), (3, 4)), SEATS + 1),  # no two seats: all have one node that follows
    ],
)
async def test_seats_that_are_connected_by_others_agree_over_epochs(
    tmp_path: Path, edges: tuple[tuple[int, int], ...], count: int
) -> None:
    async with network_of(tmp_path, edges, count=count) as nodes:
        await grown(nodes, 2 * EPOCH_BLOCKS + 2)
        assert sum(node.count("proposals_taken") for node in nodes) > 0
        assert sum(node.count("forward") for node in nodes) > 0
        assert sum(node.count("reject") + node.count("proposals_false") for node in nodes) == 0
        assert all(not node.network.bans.left_s().keys() - {address(n) for n in range(count)} for node in nodes)


async def test_what_was_lost_is_said_again_and_goes_all_the_way(tmp_path: Path) -> None:
    """While the line is cut in the middle every half hears itself: what it said then must be heard later."""
    async with network_of(tmp_path, ((0, 1), (1, 2), (2, 3)), parameters=HASTY) as nodes:
        await grown(nodes, 2)
        nodes[1].network.ban(address(2), "cut")
        nodes[2].network.ban(address(1), "cut")
        await until(lambda: not nodes[1].network.is_connected(address(2)))
        await until(lambda: not nodes[2].network.is_connected(address(1)))
        halted = [node.service.status().view for node in nodes]
        before = [node.count("published") for node in nodes]
        # At least one repeat of everybody's stays in its half.
        await until(lambda: all(node.count("published") >= at + 6 for node, at in zip(nodes, before, strict=True)))
        assert all(node.service.status().view <= at + 1 for node, at in zip(nodes, halted, strict=True))
        height = max(len(node.chain.final) for node in nodes)
        await nodes[1].connected(nodes[2])
        await grown(nodes, height + 3)


async def test_who_passes_a_forged_vote_on_loses_points_and_the_seat_does_not(tmp_path: Path) -> None:
    async with network_of(tmp_path, ((0, 4), (0, 1)), count=SEATS + 1) as nodes:
        honest, liar = nodes[0].network, nodes[4].network
        await until(lambda: nodes[0].vote_relay._core.has_seat() and TOPIC_CONSENSUS in _topics(liar, address(0)))
        candidate = Candidate(0, 2, 1, b"b" * 32)
        liar.publish(TOPIC_CONSENSUS, encode_statement(Vote(NOTARIZE, *candidate, 1, bytes(64))))
        await until(lambda: nodes[0].count("reject") > 0)
        told = {peer.address: peer.score for peer in honest.peers()}
        assert told[address(4)] < 0 <= told[address(1)]
        assert nodes[1].count("reject") == 0, "it went no further"
        liar.publish(TOPIC_CONSENSUS, b"nonsense")
        await until(lambda: nodes[0].count("reject") > 1)


def _topics(network: Network, peer: bytes) -> set[str]:
    known = network.parts.gossip.core._peers.get(peer)
    return set() if known is None else known.topics


async def proposal_of(node: Node, view: int) -> Proposal:
    leader = SEATED.leader(view)
    request = BuildRequest(ROOT.block_hash, 0, view, leader, 1, b"", SEATED.hash, b"")
    block = await node.chain.build(request)
    assert block is not None
    candidate = Candidate(0, view, 0, block.hash)
    signature = vote_key(leader).sign_vote(vote_digest(GENESIS, NOTARIZE, candidate))
    return Proposal(candidate, signature, None, (), encode_block(block))


@asynccontextmanager
async def lacking_one(path: Path, view: int) -> AsyncIterator[tuple[list[Node], Proposal]]:
    """A seat without its leader asks a node that does not know the proposal; its other neighbour does."""
    edges = ((0, 4), (0, 1)) if SEATED.leader(view) != 1 else ((0, 4), (0, 2))
    async with network_of(path, edges, count=SEATS + 1, votes=False) as nodes:
        proposal = await proposal_of(nodes[0], view)
        candidate, knows = proposal.candidate, nodes[edges[1][1]]
        for node in (nodes[0], knows):
            node.vote_relay.entered(node.chain.epochs.get(0), view)
        knows.vote_relay.proposed(candidate, encode_message(proposal))
        vote = Vote(NOTARIZE, *candidate, SEATED.leader(view), proposal.signature)
        for teller in (nodes[4], knows):
            nodes[0].vote_relay.heard(vote, teller.network.identity.address)
        assert nodes[0].count("proposals_asked") == 1
        yield nodes, proposal


def view_led_by_others(own: int) -> int:
    return next(view for view in range(2, 20) if SEATED.leader(view) != own)


async def test_somebody_else_is_asked_for_a_proposal_where_no_answer_comes(tmp_path: Path) -> None:
    async with lacking_one(tmp_path, view_led_by_others(0)) as (nodes, _):
        await until(lambda: nodes[0].count("proposals_taken") == 1)


async def test_somebody_else_is_asked_at_once_when_the_asked_one_is_lost(tmp_path: Path) -> None:
    async with lacking_one(tmp_path, view_led_by_others(0)) as (nodes, _):
        asked: list[int] = []
        nodes[0].network.on_peer(lambda peer, is_there: asked.append(nodes[0].count("proposals_asked")))
        nodes[0].network.ban(address(4), "gone")
        await until(lambda: len(asked) == 1)
        assert asked == [2]
        await until(lambda: nodes[0].count("proposals_taken") == 1)


async def test_who_is_asked_has_one_answer_and_keeps_no_others_back(tmp_path: Path) -> None:
    async with lacking_one(tmp_path, view_led_by_others(0)) as (nodes, _):
        for number in range(16):
            body = b"nonsense" + bytes((number,))
            assert nodes[4].network.send(address(0), TrafficClass.BLOCK, KIND_PROPOSAL, body)
        await until(lambda: nodes[0].count("proposals_taken") == 1)
        assert nodes[0].count("proposals_false") <= 1
        assert nodes[0].count("proposals_asked") == 2


async def test_fetched_proposals_and_votes_are_verified_beside_each_other(tmp_path: Path) -> None:
    async with network_of(tmp_path, (), votes=False) as nodes:
        proposal = await proposal_of(nodes[0], 2)
        service = nodes[0].service
        with trio.fail_after(60):
            async with service._threads_of_relayed:
                assert await service.take_proposal(address(1), encode_message(proposal), (proposal.candidate,))


async def test_later_proposals_do_not_push_out_the_present_one(tmp_path: Path) -> None:
    async with network_of(tmp_path, (), votes=False) as nodes:
        vote_relay = nodes[0].vote_relay
        vote_relay.entered(nodes[0].chain.epochs.get(0), 7)
        present = Candidate(0, 7, 6, b"b" * 32)
        views = (7, 5, *range(8, 8 + 2 * PROPOSALS_MAX))
        for view in views:
            vote_relay.proposed(present._replace(view=view, parent_view=view - 1), b"proposal")
        assert sorted(known.view for known in vote_relay._proposals) == list(range(7, 7 + PROPOSALS_MAX))


async def test_who_votes_on_in_an_epoch_that_is_over_is_told_by_gossip_too(tmp_path: Path) -> None:
    async with (
        network_of(tmp_path, combinations(range(SEATS), 2), votes=False) as nodes,
        trio.open_nursery() as nursery,
    ):
        for node in nodes[:SEATS]:
            node.chain.epoch = never  # type: ignore[method-assign]
            nursery.start_soon(node.service.run)
        await grown(nodes[:SEATS], EPOCH_BLOCKS)
        core = nodes[0].service._replica.core
        await until(lambda: core.has_ended)
        final = core.final_certificate
        assert final is not None
        nodes[0].network.ban(address(3), "apart")
        nodes[3].network.ban(address(0), "apart")
        await until(lambda: not nodes[0].network.is_connected(address(3)))
        await until(lambda: not nodes[3].network.is_connected(address(0)))
        candidate = Candidate(0, final.view + 1, 0, bytes(32))
        vote = Vote(NULLIFY, *candidate, 3, vote_key(3).sign_vote(vote_digest(GENESIS, NULLIFY, candidate)))
        before = nodes[0].count("published")

        def is_told() -> bool:
            nodes[0].service.take_relayed(address(1), vote)  # the pace of answers may pass over some
            return nodes[0].count("published") > before

        await until(is_told)
        nursery.cancel_scope.cancel()


async def never(number: int) -> Epoch:
    await trio.sleep_forever()


async def test_a_false_proposal_is_not_taken_and_costs_its_server_nothing(tmp_path: Path) -> None:
    """A leader can put a certificate into it that is false, and that the server had no use for."""
    async with network_of(tmp_path, ((0, 1),), votes=False) as nodes:
        service = nodes[0].service
        good = await proposal_of(nodes[0], 2)
        candidate = good.candidate
        null = Certificate(NULLIFY, 0, 1, 0, bytes(32), b"\x07", bytes(3 * 64))
        forged = (
            b"nonsense",
            encode_message(good._replace(nulls=(null,))),
            encode_message(good._replace(signature=bytes(64))),
            encode_message(GetBlock(candidate.block_hash)),
        )
        for data in forged:
            assert not await service.take_proposal(address(1), data, (candidate,))
        data = encode_message(good)
        assert not await service.take_proposal(address(1), data, ()), "another one was asked for"
        assert await service.take_proposal(address(1), data, (candidate,))
        assert nodes[0].network.peers()[0].score == 0


async def test_questions_go_to_who_is_there(tmp_path: Path) -> None:
    async with network_of(tmp_path, ((0, 1), (0, 4)), count=SEATS + 1, votes=False) as nodes:
        vote_relay = nodes[0].vote_relay
        vote_relay.entered(nodes[0].chain.epochs.get(0), 7)
        for question in (GetBlock(b"b" * 32), GetCertificates(0, 1, 5)):
            data = encode_message(question)
            assert vote_relay.route(address(1), data) == address(1)
            assert vote_relay.route(address(2), data) == address(1), "a seat goes before one that only follows"
        candidate = Candidate(0, 7, 6, b"b" * 32)
        digest = vote_digest(GENESIS, NOTARIZE, candidate)
        vote = Vote(NOTARIZE, *candidate, 1, vote_key(1).sign_vote(digest))
        vote_relay.heard(vote, address(1))
        assert vote_relay.route(address(3), encode_message(GetBlock(b"b" * 32))) == address(1)
        status = encode_message(Status(0, 7, 3, b"b" * 32))
        assert vote_relay.route(address(3), status) == address(3)


async def test_nobody_sends_a_proposal_that_was_not_asked_for(tmp_path: Path) -> None:
    async with network_of(tmp_path, ((0, 1), (0, 4)), count=SEATS + 1, votes=False) as nodes:
        vote_relay = nodes[0].vote_relay
        vote_relay.entered(nodes[0].chain.epochs.get(0), 7)
        candidate = Candidate(0, 7, 6, b"b" * 32)
        await vote_relay._on_proposal(address(1), encode_message(Proposal(candidate, bytes(64), None, (), b"")))
        assert not vote_relay._answers
        await vote_relay._on_wanted(address(4), encode_wanted(candidate))
        assert not vote_relay._waiting, "nobody is known to have voted for it"
        gone: list[bytes] = []
        nodes[0].network.on_peer(lambda peer, is_there: None if is_there else gone.append(peer))
        for kind in (KIND_PROPOSAL, KIND_PROPOSAL_WANTED):
            assert nodes[4].network.send(address(0), TrafficClass.CONSENSUS, kind, b"nonsense")
        # What is no question ends the connection of who asks it.
        await until(lambda: gone == [address(4)])
