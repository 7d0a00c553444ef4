"""Services over several epochs: committees change, nodes join late, keys rotate, guards sit elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from consensus.guard import GuardMissing
from consensus.halts import ConsensusHalted
from consensus.metrics import METRICS
from consensus.vote_requests import STALE_VIEWS
from consensus.wire import Status, decode_certificate, decode_message, encode_message
from state.primitives.address import format_address
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError, DekubeError, RecordDamaged
from state.primitives.votes import Candidate, Vote
from tests.consensus.world import (
    PARAMETERS,
    ElsewhereVoter,
    Epochs,
    Member,
    Switchboard,
    UpgradeRequired,
    address_of,
    assert_one_chain,
    committee_of,
    vote_key,
)

EPOCH_BLOCKS = 5


class Figures:
    """Metrics that remember, and know no name that METRICS lacks."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.gauges: dict[tuple[str, ...], float] = {}

    def _key(self, name: str, kind: str, labels: dict[str, str]) -> tuple[str, ...]:
        assert METRICS[name] == (kind, tuple(labels))
        return (name, *labels.values())

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        self.counts[self._key(name, "counter", labels)] += amount

    def set(self, name: str, value: float, **labels: str) -> None:
        self.gauges[self._key(name, "gauge", labels)] = value

    def observe(self, name: str, value: float) -> None:
        self._key(name, "histogram", {})

    def clear(self, name: str) -> None:
        self.gauges = {key: value for key, value in self.gauges.items() if key[0] != name}


class Outage(Figures):
    """Tells when half of the weight is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = trio.Event()

    def set(self, name: str, value: float, **labels: str) -> None:
        super().set(name, value, **labels)
        if name == "missing_weight_ratio" and value >= 0.5:
            self.seen.set()


def changing(number: int) -> Committee:
    """3 leaves after the first epoch and 4 joins; 0 rotates its key in the third; 3 is back in the fourth."""
    return (
        committee_of((0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1)),
        committee_of((1, 0, 2), (0, 0, 1), (2, 0, 1), (4, 0, 1)),
        committee_of((4, 0, 1), (0, 1, 2), (1, 0, 2), (2, 0, 2)),
        committee_of((0, 1, 1), (1, 0, 1), (2, 0, 1), (3, 0, 1), (4, 0, 1)),
    )[min(number, 3)]


async def test_committees_change_at_every_epoch_and_the_chain_goes_on(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS, changing)
    members = [Member(tmp_path, 0, board, epochs, keys=2)]
    members += [Member(tmp_path, account, board, epochs) for account in range(1, 5)]
    figures = members[0].metrics = Figures()
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            for member in members:
                await member.chain.wait_height(4 * EPOCH_BLOCKS + 2)
            assert [member.service.status().seat for member in members] == [0, 1, 2, 3, 4]
            nursery.cancel_scope.cancel()
    assert not board.blamed
    assert_one_chain(*(member.chain for member in members))
    proposers: set[tuple[int, bytes]] = set()
    for _, _, certificate, header in members[1].chain.final:
        epoch = epochs.of_height(header.height)
        assert (header.epoch, header.committee_hash) == (epoch.number, epoch.committee.hash)
        assert (header.next_committee_hash != bytes(32)) == (header.height == epoch.last_height)
        proposers.add((epoch.number, epoch.committee.seats[header.proposer_seat].vote_key))
        if certificate is not None:
            final = decode_certificate(certificate)
            assert final.epoch == epoch.number
            assert epoch.committee.weight_of(final.bitmap) >= epoch.committee.quorum
    for height in range(3, EPOCH_BLOCKS + 1):
        bitmap = members[1].chain.final[height - 1][3].voters_bitmap
        assert not bitmap or changing(0).weight_of(bitmap) >= changing(0).quorum
    assert any(header.voters_bitmap for *_, header in members[1].chain.final)
    first_two = [header for *_, header in members[1].chain.final if header.height % EPOCH_BLOCKS in (1, 2)]
    assert not any(header.voters_bitmap for header in first_two), "the voters then were another committee"
    assert (2, vote_key(0, 1).vote_key) in proposers, "the rotated key leads in its first epoch"
    assert figures.gauges["epoch",] == 4
    assert figures.gauges["missing_weight_ratio",] < 1
    voted = {key[1] for key in figures.gauges if key[0] == "seat_last_vote_view"}
    assert voted <= {format_address(address_of(account)) for account in range(5)}


async def test_a_late_joiner_catches_up_over_epochs_from_several_peers(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS, changing)
    members = [Member(tmp_path, 0, board, epochs, keys=2)]
    members += [Member(tmp_path, account, board, epochs) for account in (1, 2, 4)]
    late = Member(tmp_path, 3, board, epochs)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[1].chain.wait_height(6 * EPOCH_BLOCKS)
            await nursery.start(late.live)
            await late.chain.wait_height(6 * EPOCH_BLOCKS)
            progress = late.service.progress()
            await late.chain.wait_height(7 * EPOCH_BLOCKS + 2)
            assert late.service.status().seat == 3
            nursery.cancel_scope.cancel()
    assert progress.height >= 6 * EPOCH_BLOCKS
    assert progress.peers >= 2
    assert progress.blocks_per_s > 0
    assert not board.blamed
    assert_one_chain(late.chain, members[1].chain)
    served = [window for member in members for window in member.chain.served]
    assert served
    assert all((at - 1) // EPOCH_BLOCKS == (at + count - 2) // EPOCH_BLOCKS for at, count in served), served


async def test_who_claims_heights_and_serves_nothing_is_forgotten(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS)
    members = [Member(tmp_path, account, board, epochs) for account in range(3)]
    late = Member(tmp_path, 3, board, epochs)
    liar = b"l" * 20
    asked = 0

    def tap(source: bytes, target: bytes, data: bytes) -> bool:
        nonlocal asked
        if target == liar and source == late.address:
            asked += type(decode_message(data)).__name__ == "GetBlocks"
        return target == liar

    board.taps.append(tap)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(3 * EPOCH_BLOCKS)
            await nursery.start(late.live)
            late.service.receive(liar, encode_message(Status(2**20, 9, 2**40, b"x" * 32)))
            await late.chain.wait_height(3 * EPOCH_BLOCKS)
            assert late.service.status().highest_height < 2**30
            with trio.move_on_after(3):
                while late.service.progress().claimed_height >= 2**40:
                    late.service.receive(liar, encode_message(Status(2**20, 9, 2**40, b"x" * 32)))
                    await trio.sleep(0.1)
            assert late.service.progress().claimed_height < 2**40
            nursery.cancel_scope.cancel()
    assert asked <= 3
    assert_one_chain(late.chain, members[0].chain)


async def test_who_serves_a_false_window_is_banned_and_it_is_asked_for_elsewhere(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS)
    members = [Member(tmp_path, account, board, epochs) for account in range(4)]
    late = Member(tmp_path, 9, board, epochs, keys=0)
    spoiled = members[0].address

    def tap(source: bytes, target: bytes, data: bytes) -> bool:
        if source == spoiled and target == late.address:
            message = decode_message(data)
            if type(message).__name__ == "BlocksReply":
                certificate = message.certificate  # type: ignore[union-attr]
                false = certificate._replace(signatures=bytes(len(certificate.signatures)))
                late.service.receive(source, encode_message(message._replace(certificate=false)))  # type: ignore[call-arg]
                return True
        return False

    board.taps.append(tap)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[1].chain.wait_height(4 * EPOCH_BLOCKS)
            await nursery.start(late.live)
            late.service.receive(spoiled, encode_message(Status(0, 9, 2**20, b"x" * 32)))
            await late.chain.wait_height(4 * EPOCH_BLOCKS)
            nursery.cancel_scope.cancel()
    assert set(board.banned) == {spoiled}
    assert not board.blamed
    assert_one_chain(late.chain, members[1].chain)


async def test_a_straggler_in_an_old_epoch_is_told_how_it_ended(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS)
    members = [Member(tmp_path, account, board, epochs) for account in range(4)]
    slow = members[3].address

    def tap(source: bytes, target: bytes, data: bytes) -> bool:
        """Keep from one member all votes and certificates about the last block of the first epoch."""
        if target != slow or members[0].chain.epochs.of_height(len(members[3].chain.final) + 1).number:
            return False
        try:
            message = decode_message(data)
        except DecodeError:
            return False
        votes = getattr(message, "votes", ())
        return len(members[3].chain.final) >= EPOCH_BLOCKS - 2 and any(vote.epoch == 0 for vote in votes)

    board.taps.append(tap)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[3].chain.wait_height(2 * EPOCH_BLOCKS)
            nursery.cancel_scope.cancel()
    assert not board.blamed
    assert_one_chain(*(member.chain for member in members))


@pytest.mark.parametrize(
    ("refusal", "told"),
    [(UpgradeRequired("version 2"), ConsensusHalted), (RecordDamaged("a damaged record"), RecordDamaged)],
)
async def test_an_epoch_that_cannot_be_read_ends_the_node_under_the_name_of_its_cause(
    tmp_path: Path, refusal: DekubeError, told: type[DekubeError]
) -> None:
    board = Switchboard()
    old = Epochs(EPOCH_BLOCKS)
    members = [Member(tmp_path, account, board, Epochs(EPOCH_BLOCKS)) for account in range(3)]
    members.append(Member(tmp_path, 3, board, old))
    old.unknown_from, old.refusal = 1, refusal
    ends: list[DekubeError] = []

    async def live_old() -> None:
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(members[3].live)
        except* DekubeError as group:
            error: BaseException = group
            while isinstance(error, BaseExceptionGroup):
                [error] = error.exceptions
            assert isinstance(error, DekubeError)
            ends.append(error)
        del board.services[members[3].address]

    members[3].chain.epochs = old
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members[:3]:
                await nursery.start(member.live)
            nursery.start_soon(live_old)
            await members[0].chain.wait_height(2 * EPOCH_BLOCKS)
            nursery.cancel_scope.cancel()
    [error] = ends
    assert type(error) is told
    assert getattr(error, "reason", error.code) == refusal.code
    assert len(members[3].chain.final) == EPOCH_BLOCKS


async def test_a_guard_elsewhere_votes_over_epochs_and_may_be_away(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS)
    members = [Member(tmp_path, account, board, epochs, keys=0) for account in range(4)]
    for member in members:
        member.voters = (ElsewhereVoter(vote_key(member.account)),)
    voters = [member.voters[0] for member in members]
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(EPOCH_BLOCKS + 2)
            voters[3].is_away = True
            await members[0].chain.wait_height(2 * EPOCH_BLOCKS + 2)
            voters[3].is_away = False
            asked = len(voters[3].guard.votes())
            await members[3].chain.wait_height(3 * EPOCH_BLOCKS + 2)
            nursery.cancel_scope.cancel()
    assert asked <= 3 * 64
    assert not board.blamed
    assert_one_chain(*(member.chain for member in members))
    assert all(voter.guard.floor >= (3, 0) for voter in voters)
    assert all(voter.asked > 0 for voter in voters)


async def test_of_several_keys_elsewhere_the_one_with_the_seat_votes(tmp_path: Path) -> None:
    """A rotation costs no vote where both keys are with a signer; each votes in its own epochs alone."""

    def rotating(number: int) -> Committee:
        return committee_of((0, int(number >= 2), 1), (1, 0, 1), (2, 0, 1))

    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS, rotating)
    members = [Member(tmp_path, account, board, epochs, keys=int(account > 0)) for account in range(3)]
    old, new = ElsewhereVoter(vote_key(0, 0)), ElsewhereVoter(vote_key(0, 1))
    members[0].voters = (new, old)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            # All three votes are needed: without the key that has the seat there is no block.
            for member in members:
                await member.chain.wait_height(4 * EPOCH_BLOCKS + 2)
            assert members[0].service.status().seat is not None
            nursery.cancel_scope.cancel()
    assert not board.blamed
    assert_one_chain(*(member.chain for member in members))
    assert old.epochs == {0, 1} and new.epochs >= {2, 3}
    assert old.guard.floor < (2, 0) <= new.guard.floor


async def test_a_guard_elsewhere_is_not_asked_for_votes_that_are_long_final(tmp_path: Path) -> None:
    """However slow it is, what waits for it stays bounded."""
    board = Switchboard()
    members = [Member(tmp_path, account, board, keys=int(account > 0)) for account in range(4)]
    member, voter = members[0], ElsewhereVoter(vote_key(0))
    member.voters = (voter,)
    gate, most = trio.Event(), 0
    vote = voter.vote

    async def slow(kind: int, candidate: Candidate, seat: int) -> Vote:
        await gate.wait()
        return await vote(kind, candidate, seat)

    voter.vote = slow  # type: ignore[method-assign]
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for each in members:
                await nursery.start(each.live)
            await member.chain.wait_height(4 * STALE_VIEWS)
            assert member.service._vote_requests is not None
            most = member.service._vote_requests.waiting
            gate.set()
            await member.chain.wait_height(5 * STALE_VIEWS)
            nursery.cancel_scope.cancel()
    assert most > 2 * STALE_VIEWS
    assert voter.asked < most, "what is long final was left out"
    assert voter.asked > 0


async def test_a_second_process_with_the_key_is_found_before_it_votes(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS)
    members = [Member(tmp_path / "one", account, board, epochs) for account in range(4)]
    double = Member(tmp_path / "two", 3, Switchboard(), epochs)
    double.parameters = replace(PARAMETERS, doppelganger_ms=2_000, doppelganger_views=20)
    heard: list[bytes] = []

    def relay(source: bytes, target: bytes, data: bytes) -> bool:
        """What everybody says reaches the second process as well."""
        if target == members[0].address and double.address in double.board.services:
            double.board.services[double.address].receive(source, data)
        return False

    def listen(source: bytes, target: bytes, data: bytes) -> bool:
        heard.append(data)
        return True

    board.taps.append(relay)
    double.board.taps.append(listen)
    double.board.services[b"n" * 20] = None  # type: ignore[assignment]
    with trio.fail_after(120), pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(2)
            await nursery.start(double.live)
            await trio.sleep_forever()
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ConsensusHalted)
    assert error.reason == "doppelganger"
    assert {type(decode_message(data)).__name__ for data in heard} <= {
        "Status", "GetBlocks", "GetBlock", "GetCertificates", "Certificates", "BlockReply", "BlocksReply"
    }  # fmt: skip


async def test_a_network_whose_validators_all_listen_begins_by_time(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS)
    members = [Member(tmp_path, account, board, epochs) for account in range(4)]
    for member in members:
        member.parameters = replace(PARAMETERS, doppelganger_ms=300, doppelganger_views=20)
    by_address = {member.address: member for member in members}

    def tap(source: bytes, target: bytes, data: bytes) -> bool:
        if type(decode_message(data)).__name__ in ("Votes", "Proposal"):
            assert not by_address[source].service.status().is_listening
        return False

    board.taps.append(tap)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            assert all(member.service.status().is_listening for member in members)
            await members[0].chain.wait_height(EPOCH_BLOCKS + 1)
            assert not any(member.service.status().is_listening for member in members)
            nursery.cancel_scope.cancel()
    assert_one_chain(*(member.chain for member in members))


async def test_figures_and_lines_name_the_leader_that_failed(tmp_path: Path) -> None:
    board, epochs = Switchboard(), Epochs(EPOCH_BLOCKS)
    members = [Member(tmp_path, account, board, epochs) for account in range(3)]
    figures = members[0].metrics = Figures()
    with capture_logs() as lines, trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(2 * EPOCH_BLOCKS)
            nursery.cancel_scope.cancel()
    failed = [line for line in lines if line["event"] == "view nullified"]
    assert failed
    # On a machine that is busy with other things a leader that lives may be late too.
    assert (3, address_of(3)) in {(line["leader"], line["address"]) for line in failed}
    assert {line["reason"] for line in failed} & {"leader", "advance"}
    assert {line["epoch"] for line in failed} == {0, 1}
    assert figures.counts["nullifications_total", format_address(address_of(3))] > 0
    assert figures.counts["view_timeouts_total", "leader"] > 0
    assert figures.counts["epoch_tail_misses_total", format_address(address_of(3))] > 0
    assert figures.counts["certificates_total", "finalize", "formed"] > 0
    assert figures.gauges["missing_weight_ratio",] >= 0.25
    assert {line["event"] for line in lines} >= {"epoch ended", "epoch began"}


async def test_an_outage_shows_whose_votes_are_missing_although_no_view_ends(tmp_path: Path) -> None:
    board = Switchboard()
    members = [Member(tmp_path, account, board) for account in range(4)]
    figures = members[0].metrics = Outage()
    members[0].parameters = replace(PARAMETERS, silent_ms=500)
    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for member in members:
                await nursery.start(member.live)
            await members[0].chain.wait_height(3)
            board.down |= {members[2].address, members[3].address}
            await figures.seen.wait()
            nursery.cancel_scope.cancel()


async def test_a_key_without_its_record_never_votes(tmp_path: Path) -> None:
    member = Member(tmp_path, 0, Switchboard(), keys=1)
    (tmp_path / "0-0" / "votes.guard").write_bytes(b"")
    with pytest.raises(GuardMissing):
        await member.live()
    assert address_of(0) not in member.board.services
