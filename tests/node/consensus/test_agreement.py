"""Consensus in the node: what it says fits into the peers' connections, and the chain never holds up the loop."""

from __future__ import annotations

import threading
from math import ceil
from pathlib import Path

import pytest
import structlog.testing
import trio
import trio.testing

from consensus.core.limits import EVIDENCE_VIEWS
from consensus.ports import BuildRequest
from consensus.votes import Certificate
from consensus.wire import MESSAGE_LIMIT_BYTES, SMALL_MESSAGE_BYTES_MAX, encode_certificate
from node.chain.forks import to_keep
from node.consensus.agreement import _ChainPort, _NetworkPort, _root, tell_listening
from node.home.config import Checkpoint
from node.process.signature_pool import SignatureVerifier, VerifierOptions
from node.sync.start_plan import CheckpointMismatch
from node.telemetry.cpu_accounting import CpuAccounting
from p2p.secure.frame import TrafficClass
from p2p.service import Network, NetworkConfig
from p2p.session.mux import MuxLimits
from state.primitives.blocks import Block, encode_block
from state.primitives.votes import FINALIZE, NULLIFY, Candidate, Equivocation, Vote, vote_digest
from state.transition.staking import load_committee
from tests.node.world import START_MS, VALIDATOR, World
from tests.p2p.helpers import NOW_MS, identity


def test_every_message_of_consensus_fits_into_its_lane() -> None:
    limits = MuxLimits().classes
    assert limits[TrafficClass.CONSENSUS].message_bytes_max >= SMALL_MESSAGE_BYTES_MAX
    assert limits[TrafficClass.BLOCK].message_bytes_max >= MESSAGE_LIMIT_BYTES


class NoEvidence:
    def found(self, equivocation: Equivocation) -> None:
        raise AssertionError(equivocation)

    def found_fork(self, certificate: Certificate) -> None:
        raise AssertionError(certificate)

    def take(self) -> tuple[bytes, ...]:
        return ()


async def test_an_execution_that_takes_long_does_not_stop_the_event_loop(tmp_path: Path) -> None:
    """While it lasts the chain is locked; votes must be heard and peers answered all the same."""
    world = World(tmp_path)
    tip = world.store.tip
    request = BuildRequest(
        tip.block_hash, 0, 1, 0, START_MS + 1, b"", b"c" * 32, world.prove(tip.block_hash, 1)
    )  # fmt: skip
    is_held, may_end = threading.Event(), threading.Event()
    was_told: list[bool] = []

    def execute() -> None:
        with world.chain._lock:
            is_held.set()
            was_told.append(may_end.wait(10))

    with SignatureVerifier(VerifierOptions(workers=0)) as verifier, trio.fail_after(120):
        port = _ChainPort(world.ledger, verifier, CpuAccounting(), NoEvidence())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, execute)
            await trio.to_thread.run_sync(is_held.wait)
            nursery.start_soon(port.drop, (b"x" * 32,))
            nursery.start_soon(port.build, request)
            nursery.start_soon(port.epoch, 0)
            await trio.testing.wait_all_tasks_blocked(0.05)
            may_end.set()
    assert was_told == [True]
    world.store.close()


async def test_the_chain_passes_a_checkpoint_only_through_its_block(tmp_path: Path) -> None:
    """Blocks that lead to there are proven by keys that may be worth nothing any more: the operator decides."""
    world = World(tmp_path)
    committee = load_committee(world.store, 0)
    assert committee is not None

    def build(parent: bytes, view: int) -> Block:
        block, _ = world.chain.build(
            parent, epoch=0, view=view, seat=0, time_ms=START_MS + view, voters_bitmap=b"",
            vrf_proof=world.prove(parent, view), transactions=[],
        )  # fmt: skip
        world.chain.execute(block, [], raw=encode_block(block))
        return block

    first = build(world.store.tip.block_hash, 1)
    second = build(first.hash, 2)
    candidate = Candidate(0, 2, 1, second.hash)
    digest = vote_digest(world.runtime.genesis_hash, FINALIZE, candidate)
    final = encode_certificate(
        Certificate.of(committee, [Vote(FINALIZE, *candidate, 0, VALIDATOR.sign_vote(digest))])
    )
    with SignatureVerifier(VerifierOptions(workers=0)) as verifier:
        for height, block_hash in ((1, b"x" * 32), (2, b"x" * 32), (1, second.hash)):
            given = Checkpoint(height, block_hash)
            port = _ChainPort(world.ledger, verifier, CpuAccounting(), NoEvidence(), checkpoint=given)
            with pytest.raises(CheckpointMismatch):
                await port.commit(second.hash, final, ())
            assert world.store.tip.height == 0
        for given in (Checkpoint(2, second.hash), Checkpoint(1, first.hash), Checkpoint(3, b"x" * 32)):
            _ChainPort(world.ledger, verifier, CpuAccounting(), NoEvidence(), checkpoint=given)._check_checkpoint(
                second.hash
            )
        port = _ChainPort(
            world.ledger, verifier, CpuAccounting(), NoEvidence(), checkpoint=Checkpoint(1, first.hash)
        )  # fmt: skip
        await port.commit(second.hash, final, ())
    assert world.store.tip.height == 2
    world.store.close()


def test_a_restart_reads_the_nullifications_of_the_last_views_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    store, tip = world.store, world.store.tip
    committee = load_committee(store, 0)
    assert committee is not None

    def null(view: int) -> Certificate:
        digest = vote_digest(world.runtime.genesis_hash, NULLIFY, Candidate(0, view, 0, bytes(32)))
        vote = Vote(NULLIFY, 0, view, 0, bytes(32), 0, VALIDATOR.sign_vote(digest))
        return Certificate.of(committee, [vote])

    view = 2 * EVIDENCE_VIEWS
    block, _ = world.chain.build(
        tip.block_hash, epoch=0, view=view, seat=0, time_ms=START_MS + 1, voters_bitmap=b"",
        vrf_proof=world.prove(tip.block_hash, view), transactions=[],
    )  # fmt: skip
    world.chain.execute(block, [], raw=encode_block(block))
    candidate = Candidate(0, view, 0, block.hash)
    final = Certificate.of(
        committee,
        [Vote(FINALIZE, *candidate, 0, VALIDATOR.sign_vote(
            vote_digest(world.runtime.genesis_hash, FINALIZE, candidate)
        ))],
    )  # fmt: skip
    skipped = [null(known) for known in range(1, view)]
    world.chain.commit(block.hash, encode_certificate(final), to_keep(skipped))
    root, certificates = _root(world.ledger, 0)
    assert (root.view, root.certificate) == (view, final)
    assert certificates == tuple(skipped[-EVIDENCE_VIEWS:])
    store.close()


async def test_who_serves_false_blocks_is_kept_away_unless_it_sits() -> None:
    sitting, liar = b"s" * 20, b"l" * 20
    network = Network(NetworkConfig(), identity(0), now_ms=lambda: NOW_MS)
    network.set_persistent([sitting])
    port = _NetworkPort(network)
    port.blame(liar, "nonsense")
    assert not network.bans.left_s()
    for address in (sitting, liar):
        port.ban(address, "false blocks")
    assert list(network.bans.left_s()) == [liar]


async def test_what_a_seat_waits_for_before_it_votes_is_told(autojump_clock: trio.testing.MockClock) -> None:
    ends_s = trio.current_time() + 60
    with structlog.testing.capture_logs() as logs:
        await tell_listening(lambda: max(0, ceil(ends_s - trio.current_time())), 60)
    assert [line.get("at_most_s") for line in logs] == [59, None]
    assert trio.current_time() == ends_s
    with structlog.testing.capture_logs() as logs:
        await tell_listening(lambda: 0, 60)  # no seat
    assert logs == []
