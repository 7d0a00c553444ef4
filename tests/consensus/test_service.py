"""Four services on trio with real files, real signatures and a chain of hashes, joined in memory."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from consensus.block_serving import SERVES_OF_ONE_MAX, SERVES_OF_STRANGERS_MAX
from consensus.halts import ConsensusHalted
from consensus.inbound import EARLY_OF_STRANGERS_MAX
from consensus.votes import Certificate
from consensus.wire import (
    BlockReply,
    BlocksReply,
    Certificates,
    GetBlock,
    GetBlocks,
    GetCertificates,
    Proposal,
    Status,
    Votes,
    decode_certificate,
    encode_message,
)
from state.primitives.blocks import Block, encode_block, evidence_root, header_hash, transactions_root
from state.primitives.votes import FINALIZE, NOTARIZE, Candidate, Vote, vote_digest
from tests.consensus.test_epochs import Figures
from tests.consensus.world import (
    FOUR,
    GENESIS,
    PARAMETERS,
    Epochs,
    Member,
    Switchboard,
    address_of,
    assert_one_chain,
    vote_key,
)


async def test_four_services_agree_and_a_restarted_one_catches_up(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            scopes = [await nursery.start(member.live) for member in members]
            await members[0].chain.wait_height(5)
            scopes[3].cancel()
            board.services.pop(members[3].address)
            behind = len(members[3].chain.final)
            await members[0].chain.wait_height(behind + 12)
            await nursery.start(members[3].live)
            await members[3].chain.wait_height(behind + 14)
            nursery.cancel_scope.cancel()
    assert_one_chain(*(member.chain for member in members))
    assert not board.blamed
    _, _, certificate, _ = members[0].chain.final[0]
    assert certificate is not None
    assert FOUR.weight_of(decode_certificate(certificate).bitmap) >= 3
    # Who votes FINALIZE holds what notarized the block: that goes to the chain with it.
    notarized = {
        (one.view, one.block_hash) for member in members for one in member.chain.views if one.kind == NOTARIZE
    }
    finals = [(header.view, block_hash) for block_hash, _, _, header in members[0].chain.final]
    assert set(finals) <= notarized


async def test_a_clock_that_is_ahead_costs_the_next_leader_no_view(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    for member in members:
        member.parameters = replace(PARAMETERS, leader_ms=1_500, advance_ms=3_000, block_interval_ms=100)
    members[2].ahead_ms = 1_900
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(9)
            nursery.cancel_scope.cancel()
    assert [header.view for *_, header in members[0].chain.final[:9]] == list(range(1, 10))
    times = [header.time_ms for *_, header in members[0].chain.final]
    assert times == sorted(set(times))


async def test_how_far_ahead_a_block_may_be_is_what_the_chain_says(tmp_path: Path) -> None:
    """A block above the chain's bound is waited for, not refused; one below it is voted for at once."""
    for bound_ms, ahead_ms, held_ms in ((300, 1_100, 800), (5_000, 4_000, 0)):
        board = Switchboard()
        members = [Member(tmp_path / str(bound_ms), number, board) for number in range(4)]
        for member in members:
            member.parameters = replace(PARAMETERS, leader_ms=2_000, advance_ms=4_000, block_interval_ms=100)
            member.chain.ahead_ms_max = bound_ms
        members[2].ahead_ms = ahead_ms
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for member in members:
                    await nursery.start(member.live)
                begun_s = trio.current_time()
                await members[0].chain.wait_height(5)
                lasted_s = trio.current_time() - begun_s
                nursery.cancel_scope.cancel()
        leaders = [header.proposer_seat for *_, header in members[0].chain.final[:5]]
        assert len(set(leaders[:4])) == 4, "each leader's block was taken"
        assert held_ms / 1000 <= lasted_s < held_ms / 1000 + 1.9


async def test_no_block_is_made_before_the_genesis_time(tmp_path: Path) -> None:
    """Also where one validator alone decides, whom nobody's clock holds back."""
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    genesis_ms = time.time_ns() // 1_000_000 + 1_500
    for member in members:
        member.chain.times[member.chain.root()[1].block_hash] = genesis_ms
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(1)
            assert time.time_ns() // 1_000_000 >= genesis_ms
            nursery.cancel_scope.cancel()


async def test_garbage_is_blamed_on_its_sender_and_harms_nobody(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    stranger = b"s" * 20
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            for data in (b"", b"\xff" * 100, b"\x00" * 100_000, b"\x82\x05\x40"):
                members[0].service.receive(stranger, data)
            await members[0].chain.wait_height(3)
            nursery.cancel_scope.cancel()
    assert board.blamed == [stranger] * 4


async def test_an_observer_follows_without_a_vote(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    observer = Member(tmp_path, 9, board, keys=0)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(4)
            await nursery.start(observer.live)
            await observer.chain.wait_height(8)
            nursery.cancel_scope.cancel()
    assert_one_chain(observer.chain, members[0].chain)
    assert observer.service.status().seat is None


async def test_a_divergent_state_halts_loudly(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(4)]
    members[2].chain.is_wrong = True
    figures = members[2].metrics = Figures()
    with trio.fail_after(120), pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
    halted = caught.value
    error: BaseException = halted
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConsensusHalted)
    assert error.reason == "state_divergence"
    assert figures.gauges["state_divergence",] == 1


async def test_one_asker_cannot_keep_others_from_catching_up(tmp_path: Path, nursery: trio.Nursery) -> None:
    """A question is a few bytes, its answer megabytes from the disk."""
    member = Member(tmp_path, 0, Switchboard())
    asked, release = 0, trio.Event()

    async def blocks(from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        nonlocal asked
        asked += 1
        await release.wait()
        return []

    member.chain.blocks = blocks  # type: ignore[method-assign]
    await nursery.start(member.live)
    for number in range(20):
        member.service.receive(b"g" * 20, encode_message(GetBlocks(1 + number, 1)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert asked == SERVES_OF_ONE_MAX
    member.service.receive(b"m" * 20, encode_message(GetBlocks(1, 1)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert asked == SERVES_OF_ONE_MAX + 1
    for number in range(20):
        member.service.receive(b"%20d" % number, encode_message(GetBlocks(1, 1)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert asked == SERVES_OF_STRANGERS_MAX
    member.service.receive(address_of(1), encode_message(GetBlocks(1, 1)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert asked == SERVES_OF_STRANGERS_MAX + 1, "strangers leave room for who has a seat"
    release.set()
    await trio.testing.wait_all_tasks_blocked(0.05)
    member.service.receive(b"g" * 20, encode_message(GetBlocks(1, 1)))
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert asked == SERVES_OF_STRANGERS_MAX + 2


async def test_who_asks_for_what_is_kept_no_more_is_told_so_and_stays_behind(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    """A node that was away for longer than its peers keep blocks must not take itself for synced."""
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(3)]

    async def nothing(from_height: int, count_max: int) -> list[tuple[bytes, bytes, bytes | None]]:
        return []

    for member in members:
        member.chain.blocks = nothing  # type: ignore[method-assign]
        member.chain.oldest_height = lambda: 10**6  # type: ignore[method-assign]
        await nursery.start(member.live)
    with trio.fail_after(120):
        await members[0].chain.wait_height(8)
        late = Member(tmp_path, 3, board)
        await nursery.start(late.live)
        late.service.connected(address_of(0))
        for _ in range(200):
            if late.service.progress().oldest_height:
                break
            for member in members:
                member.service.connected(address_of(3))
            await trio.sleep(0.05)
    progress = late.service.progress()
    assert (progress.oldest_height, progress.height) == (10**6, 0)
    assert progress.claimed_height >= 8


async def test_a_seat_that_contradicts_itself_often_is_told_of_once(tmp_path: Path) -> None:
    """Hundreds of its votes fit into one message; each would cost its proof on the event loop, and a line."""
    board = Switchboard()
    members = [Member(tmp_path, number, board) for number in range(3)]
    faulty = vote_key(3)
    votes = [
        Vote(NOTARIZE, *candidate, 3, faulty.sign_vote(vote_digest(GENESIS, NOTARIZE, candidate)))
        for view in (1, 2, 3)
        for candidate in (Candidate(0, view, 0, b"x" * 32), Candidate(0, view, 0, b"y" * 32))
    ]
    figures = Figures()
    members[0].metrics = figures
    with trio.fail_after(120), capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            await nursery.start(members[0].live)
            members[0].service.receive(b"s" * 20, encode_message(Votes(tuple(votes))))
            await trio.testing.wait_all_tasks_blocked(0.1)
            nursery.cancel_scope.cancel()
    assert figures.counts["equivocations_total", "E1"] == 3
    assert [found.first.seat for found in members[0].found] == [3]
    assert sum(line["event"] == "equivocation" for line in lines) == 1


async def test_the_noise_of_strangers_stops_nobody(tmp_path: Path) -> None:
    """Everything that has the right shape, from as many names as one likes, over epochs."""
    rng = random.Random(3)
    board, epochs = Switchboard(), Epochs(6)
    members = [Member(tmp_path, number, board, epochs) for number in range(4)]

    def junk() -> bytes:
        epoch, view = rng.choice((0, 1, 2, 3, 4, 2**32 - 1)), rng.choice((1, 2, 5, 9, 2**47))
        candidate = Candidate(epoch, view, rng.randrange(view), rng.randbytes(32))
        kinds = (NOTARIZE, FINALIZE)
        votes = [
            Vote(rng.choice(kinds), *candidate, rng.randrange(100), bytes(64)) for _ in range(rng.choice((1, 20)))
        ]
        certificate = Certificate(
            rng.choice(kinds), *candidate, rng.choice((b"\x07", b"\x0f", b"\x17")), bytes(192)
        )
        header = block.header._replace(height=rng.randrange(1, 30), epoch=epoch % 9, view=view)
        raw, known = encode_block(Block(header, block.transactions)), header_hash(header)
        messages = (
            Votes(tuple(votes)),
            Certificates((certificate,) * rng.choice((1, 190))),
            GetCertificates(epoch, view, view + 63),
            GetBlock(rng.randbytes(32)),
            GetBlocks(rng.randrange(1, 100), 64),
            Status(epoch, view, rng.choice((0, 5, 2**40)), bytes(32)),
            BlockReply(raw),
            BlocksReply(header.height, certificate._replace(kind=FINALIZE, block_hash=known), (raw,)),
            Proposal(candidate._replace(block_hash=known), bytes(64), certificate, (), raw),
        )
        return encode_message(rng.choice(messages))

    async def shout(name: bytes) -> None:
        while True:
            for member in members:
                member.service.receive(name, rng.choice(noise))
            await trio.sleep(0.05)

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(1)
            body = (bytes(60_000),)
            block = Block(
                members[0]
                .chain.final[0][3]
                ._replace(
                    tx_root=transactions_root(body), tx_bytes=60_000, tx_count=1, evidence_root=evidence_root(())
                ),
                body,
            )
            noise = [junk() for _ in range(500)]
            for number in range(10):
                nursery.start_soon(shout, b"stranger %11d" % number)
            for member in members:
                await member.chain.wait_height(20)
            sizes = [member.service._replica.sizes() for member in members]
            nursery.cancel_scope.cancel()
    assert_one_chain(*(member.chain for member in members))
    assert not set(board.blamed) & {member.address for member in members}
    for size in sizes:
        assert size["early"] <= EARLY_OF_STRANGERS_MAX + 100
        assert size["sync_peers"] <= 256 and size["blocks"] < 40 and size["answered"] <= 600
