"""The replica over epochs, driven by hand: what it writes and says, in which order, what it keeps of strangers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from consensus import events as c
from consensus import replica as r
from consensus.events import ConsensusParameters, Epoch, Root
from consensus.guard import Guard
from consensus.inbound import ANSWER_BURST_BYTES, EARLY_OF_ONE_MAX, EARLY_OF_STRANGERS_MAX
from consensus.votes import Certificate
from consensus.wire import (
    SMALL_MESSAGE_BYTES_MAX,
    BlockReply,
    BlocksReply,
    Certificates,
    GetBlock,
    GetBlocks,
    GetCertificates,
    Message,
    Proposal,
    Status,
    Votes,
    decode_message,
    encode_message,
)
from state.primitives.blocks import (
    VERSION,
    Block,
    Header,
    encode_block,
    evidence_root,
    header_hash,
    transactions_root,
)
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote, VoteKey, vote_digest
from tests.consensus.world import GENESIS, ROOT, committee_of, vote_key

TIMES = ConsensusParameters(block_interval_ms=0, idle_ms=0, doppelganger_ms=0)
FOUR = committee_of(*((account, 0, 1) for account in range(4)))
FIVE = committee_of(*((account, 0, 1) for account in (4, 3, 2, 1, 0)))
WITHOUT = committee_of(*((account, 0, 1) for account in (0, 1, 2, 4)))
ROTATED = committee_of((0, 0, 1), (1, 0, 1), (2, 0, 1), (3, 1, 1))
FIRST = Epoch(0, 2, FOUR, b"r" * 32)
PEER = b"p" * 20


def replica_of(
    account: int | None = 3, *, epoch: Epoch = FIRST, root: Root = ROOT, guard: Guard | None = None
) -> r.Replica:
    key = None if account is None else vote_key(account)
    if key is not None and guard is None:
        guard = Guard(GENESIS, key.vote_key)
    replica = r.Replica(epoch=epoch, genesis_hash=GENESIS, root=root, parameters=TIMES, signer=key, guard=guard)
    replica.start(0)
    return replica


def block_of(epoch: Epoch, view: int, height: int, parent_hash: bytes, state_root: bytes) -> tuple[bytes, Block]:
    body = (view.to_bytes(8, "big"),)
    header = Header(
        VERSION, GENESIS, height, epoch.number, view, epoch.committee.leader(view), parent_hash, height,
        transactions_root(body), ZERO_HASH, state_root, evidence_root(()), b"", epoch.committee.hash, ZERO_HASH,
        b"", 0, 8, 1, 1,
    )  # fmt: skip
    return header_hash(header), Block(header, body)


def signed(committee: Committee, kind: int, candidate: Candidate, seat: int) -> Vote:
    account = next(
        n for n in range(5) for k in (0, 1) if vote_key(n, k).vote_key == committee.seats[seat].vote_key
    )
    number = 0 if vote_key(account).vote_key == committee.seats[seat].vote_key else 1
    signature = vote_key(account, number).sign_vote(vote_digest(GENESIS, kind, candidate))
    return Vote(kind, *candidate, seat, signature)


def certified(
    committee: Committee, kind: int, candidate: Candidate, seats: Sequence[int] = (0, 1, 2)
) -> Certificate:
    return Certificate.of(committee, [signed(committee, kind, candidate, seat) for seat in seats])


def hear(replica: r.Replica, message: Message, now_ms: int = 0, sender: bytes = PEER) -> list[r.Action]:
    inbound = replica.receive(sender, r.decode_inbound(encode_message(message)))
    return [] if inbound is None else replica.admit(inbound, now_ms)


def said(actions: list[r.Action]) -> list[Message]:
    return [decode_message(action.data) for action in actions if isinstance(action, r.Send | r.Broadcast)]


def ended(replica: r.Replica, now_ms: int = 0) -> tuple[list[r.Action], Certificate]:
    """Both blocks of the first epoch become final; the actions are those of the durable commit."""
    parent_hash, state, parent_view = ROOT.block_hash, ROOT.state_root, 0
    final = None
    for view in (1, 2):
        block_hash, block = block_of(FIRST, view, view, parent_hash, state)
        candidate = Candidate(0, view, parent_view, block_hash)
        leader = FOUR.leader(view)
        signature = signed(FOUR, NOTARIZE, candidate, leader).signature
        hear(replica, Proposal(candidate, signature, None, (), encode_block(block)), now_ms)
        replica.step(c.BlockChecked(block_hash, True), now_ms)
        state = bytes((view,)) * 32
        replica.step(c.BlockExecuted(block_hash, state, ZERO_HASH), now_ms)
        hear(replica, Certificates((certified(FOUR, NOTARIZE, candidate),)), now_ms)
        final = certified(FOUR, FINALIZE, candidate)
        actions = hear(replica, Certificates((final,)), now_ms)
        parent_hash, parent_view = block_hash, view
        (commit,) = [action for action in actions if isinstance(action, c.Commit)]
        actions = replica.committed(commit.block_hashes)
    assert final is not None
    return actions, final


def second(committee: Committee = FIVE) -> Epoch:
    return Epoch(1, 4, committee, b"q" * 32)


def test_a_guard_elsewhere_speaks_for_its_own_seat_alone() -> None:
    """A vote's seat is not under its signature: a record could make one key count for all of them."""
    own = 3
    replica = r.Replica(
        epoch=FIRST, genesis_hash=GENESIS, root=ROOT, parameters=TIMES, vote_key=FOUR.seats[own].vote_key
    )
    replica.start(0)
    vote = signed(FOUR, FINALIZE, Candidate(0, 1, 0, b"x" * 32), own)
    actions = replica.voter_ready(tuple([vote._replace(seat=seat) for seat in (0, 1, 2, 3, 99)]), (0, 0), 0)
    assert not any(isinstance(action, c.KeepCertificate | c.Commit | c.AskBlock) for action in actions)
    votes = [vote for message in said(actions) if isinstance(message, Votes) for vote in message.votes]
    assert {vote.seat for vote in votes} <= {own}


def test_the_next_epoch_is_asked_for_when_the_last_block_is_durable_and_once() -> None:
    replica = replica_of()
    actions, _ = ended(replica)
    assert [action for action in actions if isinstance(action, r.NextEpoch)] == [r.NextEpoch(1)]
    assert replica.core.has_ended
    assert not any(isinstance(action, r.NextEpoch) for action in replica.committed(()))
    assert replica.refuse_epoch("upgrade_required", "version 2") == [c.Halt("upgrade_required", "version 2")]


def test_an_epoch_begins_with_its_floor_on_disk_before_anything_is_said() -> None:
    guard = Guard(GENESIS, vote_key(3).vote_key)
    replica = replica_of(guard=guard)
    ended(replica)
    root = replica.core.root
    actions = replica.begin_epoch(second(), 0)
    assert guard.floor == (1, 0)
    assert actions[:2] == [r.Replace(r.GUARD, guard.image()), r.Replace(r.JOURNAL, b"")]
    assert replica.core.view == 1
    assert replica.core.root == root._replace(view=0, certificate=None)
    assert replica.seat == 1, "the own seat is found anew"
    assert [action.epoch for action in actions if isinstance(action, c.Build)] in ([], [1])


def test_what_was_verified_while_the_epoch_changed_counts_for_the_committee_that_signed_it() -> None:
    """A vote of the old committee is none of the new one's seat of that number, least of all of the own seat."""
    replica = replica_of()
    votes = [signed(FOUR, NULLIFY, Candidate(0, view, 0, ZERO_HASH), seat) for view in (1, 2) for seat in (0, 1)]
    block_hash, block = block_of(FIRST, 1, 1, ROOT.block_hash, ROOT.state_root)
    candidate = Candidate(0, 1, 0, block_hash)
    leader = FOUR.leader(1)
    messages: list[Message] = [
        Votes(tuple(votes)),
        Certificates((certified(FOUR, NOTARIZE, candidate),)),
        Proposal(candidate, signed(FOUR, NOTARIZE, candidate, leader).signature, None, (), encode_block(block)),
    ]
    inbound = [replica.receive(PEER, r.decode_inbound(encode_message(message))) for message in messages]
    ended(replica)
    replica.begin_epoch(second(), 0)
    assert FIVE.seats[1].vote_key == vote_key(3).vote_key, "the own seat has the number that was another's"
    before = replica.core.activity.heard()
    for received in inbound:
        assert received is not None
        replica.admit(received, 7)
    assert not replica.core.is_halted
    assert replica.core.activity.heard() == before
    assert replica.sizes() | {"votes": 0, "proposals": 0, "blocks": 0} == replica.sizes()
    # In the epoch of its own a fault is still a fault.
    fault = signed(FOUR, FINALIZE, Candidate(0, 1, 0, b"y" * 32), 1)  # after its NULLIFY above
    late = replica.receive(PEER, r.decode_inbound(encode_message(Votes((fault,)))))
    assert late is not None
    assert any(isinstance(action, c.FoundEquivocation) for action in replica.admit(late, 7))


def test_many_certificates_are_sent_in_messages_that_fit_and_not_for_nothing() -> None:
    """After many views without a block a question of 20 bytes is worth half a megabyte."""
    large = committee_of(*((account, 0, 1) for account in range(100)))
    seats = range(large.quorum)
    epoch = Epoch(0, 3_600, large, b"r" * 32)
    replica = replica_of(None, epoch=epoch)
    certificates = []
    for view in range(1, 65):
        null = Candidate(0, view, 0, ZERO_HASH)
        certificate = Certificate.of(large, [Vote(NULLIFY, *null, seat, b"s" * 64) for seat in seats])
        certificates.append(certificate)
        replica._run(replica.core.step(c.CertificateReceived(certificate), 0), 0)
    answers = hear(replica, GetCertificates(0, 1, 64))
    assert all(isinstance(action, r.Send) and not action.is_bulk for action in answers)
    assert max(len(action.data) for action in answers if isinstance(action, r.Send)) <= SMALL_MESSAGE_BYTES_MAX
    told = {known for message in said(answers) if isinstance(message, Certificates) for known in message[0]}
    assert told == set(certificates)
    asked = 1
    while hear(replica, GetCertificates(0, 1, 64)):
        asked += 1
    assert asked <= ANSWER_BURST_BYTES // (64 * 67 * 64) + 1
    assert hear(replica, GetCertificates(0, 1, 64), sender=b"q" * 20), "others are answered"
    assert hear(replica, GetCertificates(0, 1, 64), 60_000)


def test_a_block_that_is_held_is_not_sent_without_end() -> None:
    replica = replica_of()
    block_hash, block = block_of(FIRST, 1, 1, ROOT.block_hash, ROOT.state_root)
    block = block._replace(transactions=(bytes(100_000),))
    block = block._replace(
        header=block.header._replace(tx_root=transactions_root(block.transactions), tx_bytes=100_000)
    )
    block_hash = header_hash(block.header)
    candidate = Candidate(0, 1, 0, block_hash)
    signature = signed(FOUR, NOTARIZE, candidate, FOUR.leader(1)).signature
    hear(replica, Proposal(candidate, signature, None, (), encode_block(block)))
    sent = 0
    while answer := hear(replica, GetBlock(block_hash)):
        assert said(answer) == [BlockReply(encode_block(block))]
        sent += 100_000
    assert sent <= ANSWER_BURST_BYTES + 100_000
    assert hear(replica, GetBlock(b"?" * 32)) == []
    assert hear(replica, GetBlocks(1, 64)) == []
    other = b"q" * 20
    assert hear(replica, GetBlocks(1, 64), sender=other) == [r.ServeBlocks(other, 1, 64)]
    replica.served(other, ANSWER_BURST_BYTES, 0)
    assert hear(replica, GetBlocks(1, 64), sender=other) == []
    assert hear(replica, GetBlocks(1, 64), 5_000, sender=other) == [r.ServeBlocks(other, 1, 64)]


def test_a_tip_whose_certificate_is_gone_is_no_trap() -> None:
    """As after a rollback to a height whose certificate was pruned: a peer that kept it may send it."""
    block_hash, block = block_of(FIRST._replace(last_height=100), 7, 5, b"p" * 32, b"s" * 32)
    root, certificates = r.root_of(
        block_hash=block_hash, height=5, view=block.header.view, state_root=b"t" * 32, receipt_root=ZERO_HASH,
        certificate=None, epoch=0,
    )  # fmt: skip
    assert (root.view, root.certificate, certificates) == (7, None, ())
    replica = replica_of(None, epoch=FIRST._replace(last_height=100), root=root)
    assert replica.core.view == 8
    shown = Certificates((certified(FOUR, FINALIZE, Candidate(0, 7, 6, block_hash)),))
    assert not any(isinstance(action, c.Commit | c.Halt) for action in hear(replica, shown))
    assert replica.core.root == root
    timers = {
        action.name: action.delay_ms
        for action in replica.step(
            c.CertificateReceived(certified(FOUR, NULLIFY, Candidate(0, 8, 0, ZERO_HASH))), 0
        )
        if isinstance(action, c.SetTimer)
    }
    assert timers[c.LEADER] == TIMES.leader_ms, "views before the tip are no reason to be slow"


def without_a_seat() -> r.Replica:
    """A replica that has begun to listen, whose key has no seat in the first epoch."""
    key = vote_key(4)
    replica = r.Replica(
        epoch=FIRST, genesis_hash=GENESIS, root=ROOT, parameters=replace(TIMES, doppelganger_ms=30_000),
        signer=key, guard=Guard(GENESIS, key.vote_key),
    )  # fmt: skip
    replica.start(0)
    return replica


def test_who_starts_without_a_seat_still_listens_when_it_gets_one() -> None:
    """The other process with its key has been given the seat at the same moment."""
    replica = without_a_seat()
    assert replica.seat is None and not replica.core.is_listening
    ended(replica, 1_000)
    actions = replica.begin_epoch(second(), 1_000)
    assert replica.seat == 0 and replica.core.is_listening
    assert not any(isinstance(action, c.Build | c.CastVote) for action in actions)
    vote = signed(FIVE, NOTARIZE, Candidate(1, 1, 0, b"x" * 32), 0)
    assert [type(action) for action in hear(replica, Votes((vote,)), 2_000)] == [c.Halt]


def test_who_starts_without_a_seat_and_gets_one_later_votes_at_once() -> None:
    replica = without_a_seat()
    ended(replica, 61_000)
    replica.begin_epoch(second(), 61_000)
    assert replica.seat == 0 and not replica.core.is_listening


def test_who_is_not_seated_follows_and_comes_back() -> None:
    replica = replica_of()
    ended(replica)
    replica.begin_epoch(second(WITHOUT), 0)
    assert replica.seat is None
    actions = replica.step(c.TimerFired(c.LEADER), 0)
    assert actions == []


def test_who_was_silent_at_the_end_of_an_epoch_is_skipped_at_once_in_the_next() -> None:
    replica = replica_of()
    ended(replica, TIMES.silent_ms + 1)
    now_ms = TIMES.silent_ms + 2
    for seat in (0, 1):
        hear(replica, Votes((signed(FOUR, NOTARIZE, Candidate(0, 3, 2, b"x" * 32), seat),)), now_ms)
    same = committee_of(*((account, 0, 1) for account in (2, 0, 1, 3)))
    assert same.seats[same.leader(1)].address == FOUR.seats[2].address
    actions = replica.begin_epoch(second(same), now_ms)
    assert [(a.kind, a.reason) for a in actions if isinstance(a, c.CastVote)] == [(NULLIFY, "inactive")]
    assert replica.core.activity.missing_weight(now_ms) == 1


def test_a_rotated_key_votes_behind_its_own_guard() -> None:
    replica = replica_of()
    ended(replica)
    key, guard = vote_key(3, 1), Guard(GENESIS, vote_key(3, 1).vote_key)
    replica.begin_epoch(second(ROTATED), 0, signer=key, guard=guard)
    assert replica.seat == 3
    actions = replica.step(c.TimerFired(c.LEADER), 0)
    (votes,) = [message for message in said(actions) if isinstance(message, Votes)]
    assert votes.votes == (signed(ROTATED, NULLIFY, Candidate(1, 1, 0, ZERO_HASH), 3),)
    assert guard.votes() == votes.votes


def test_messages_of_the_next_epoch_are_kept_and_handed_in_again() -> None:
    replica = replica_of()
    early = Votes((signed(FIVE, NULLIFY, Candidate(1, 1, 0, ZERO_HASH), 0),))
    actions = hear(replica, early)
    assert actions == [c.SetTimer(c.SYNC, TIMES.pull_ms)]
    asked = said(replica.step(c.TimerFired(c.SYNC), 200))
    assert asked == [GetCertificates(0, 1, 64)], "who is ahead knows how this epoch ended"
    ended(replica)
    actions = replica.begin_epoch(second(), 300)
    again = [action for action in actions if isinstance(action, r.Redeliver)]
    assert [(action.sender, action.decoded.message) for action in again] == [(PEER, early)]
    inbound = replica.receive(PEER, again[0].decoded)
    assert inbound is not None
    assert inbound.events == (c.VoteReceived(early.votes[0]),)


def test_what_is_kept_of_the_next_epoch_is_bounded_for_each_sender_and_in_all() -> None:
    replica = replica_of()
    seats = [seat.address for seat in FOUR.seats]
    for number in range(200):
        vote = Vote(NULLIFY, 1, 1 + number, 0, ZERO_HASH, 0, bytes(64))
        hear(replica, Votes((vote,)), sender=seats[number % 3])
    assert replica.sizes()["early"] == 3 * EARLY_OF_ONE_MAX
    for number in range(1_000):
        hear(replica, Votes((vote,)), sender=number.to_bytes(20, "big"))
    assert replica.sizes()["early"] == 3 * EARLY_OF_ONE_MAX + EARLY_OF_STRANGERS_MAX
    assert replica.sizes()["sync_peers"] <= 256
    hear(replica, Votes((vote._replace(epoch=7),)), sender=b"z" * 20)
    ended(replica)
    kept = [a.decoded.message for a in replica.begin_epoch(second(), 0) if isinstance(a, r.Redeliver)]
    assert all(isinstance(message, Votes) and message.votes[0].epoch == 1 for message in kept)
    assert replica.sizes()["early"] == 0


def test_a_straggler_is_told_how_its_epoch_ended_at_a_bounded_pace() -> None:
    replica = replica_of()
    _, final = ended(replica)
    straggling = Votes((signed(FOUR, NULLIFY, Candidate(0, 3, 0, ZERO_HASH), 0),))
    assert said(hear(replica, straggling)) == [Certificates((final,))], (
        "also while the next epoch is not there yet"
    )
    replica.begin_epoch(second(), 0)
    assert said(hear(replica, straggling, 10)) == []
    assert said(hear(replica, straggling, 10, sender=b"o" * 20)) == [Certificates((final,))]
    assert said(hear(replica, GetCertificates(0, 3, 66), 5_000)) == [Certificates((final,))]
    answer = said(hear(replica, Certificates((final,)), 10_000))
    assert answer == [], "two that are ahead of each other would never cease"


def test_of_an_epoch_long_gone_only_the_own_height_is_told() -> None:
    replica = replica_of(epoch=Epoch(9, 100, FOUR, b"r" * 32), root=ROOT._replace(height=90))
    straggling = Votes((signed(FOUR, NULLIFY, Candidate(0, 3, 0, ZERO_HASH), 0),))
    assert said(hear(replica, straggling)) == [Status(9, 1, 90, ROOT.block_hash)]


def test_a_fault_in_the_epoch_before_still_shows() -> None:
    replica = replica_of()
    _, final = ended(replica)
    replica.begin_epoch(second(), 0)
    candidate = Candidate(0, 2, 1, final.block_hash)
    assert hear(replica, Votes((signed(FOUR, FINALIZE, candidate, 1),))) != []
    actions = hear(replica, Votes((signed(FOUR, NULLIFY, Candidate(0, 2, 0, ZERO_HASH), 1),)))
    assert [a.equivocation.type for a in actions if isinstance(a, c.FoundEquivocation)] == ["E3"]
    against = certified(FOUR, NULLIFY, Candidate(0, 2, 0, ZERO_HASH), (1, 2, 3))
    actions = hear(replica, Certificates((against,)))
    assert len([a for a in actions if isinstance(a, c.FoundEquivocation)]) == 2
    assert [a.code for a in actions if isinstance(a, c.Halt)] == ["safety"]


def test_a_block_built_for_an_epoch_that_has_ended_is_nothing() -> None:
    replica = replica_of()
    ended(replica)
    replica.begin_epoch(second(), 0)
    _, block = block_of(FIRST, 1, 1, ROOT.block_hash, ROOT.state_root)
    stale = c.Build(0, 1, 3, ROOT.block_hash, b"", b"")
    assert replica.built(stale, block, 0) == []
    assert replica.built(stale, None, 0) == []


def test_a_guard_of_a_life_that_got_further_makes_no_double_of_itself() -> None:
    """A database that was repaired begins below what its guard has voted for."""
    guard = Guard(GENESIS, vote_key(3).vote_key)
    own = signed(FIVE, NULLIFY, Candidate(1, 1, 0, ZERO_HASH), 1)
    guard.record(own)
    replica = replica_of(guard=guard)
    echo = signed(FOUR, NULLIFY, Candidate(0, 1, 0, ZERO_HASH), 3)
    assert not any(isinstance(action, c.Halt) for action in hear(replica, Votes((echo,))))
    assert said(replica.step(c.TimerFired(c.LEADER), 0)) == [], "and never votes below it"
    ended(replica)
    actions = replica.begin_epoch(second(), 0)
    assert guard.votes() == (own,)
    assert not any(isinstance(action, c.Halt) for action in actions + hear(replica, Votes((own,))))
    foreign = signed(FIVE, NULLIFY, Candidate(1, 2, 0, ZERO_HASH), 1)
    assert [a.code for a in hear(replica, Votes((foreign,))) if isinstance(a, c.Halt)] == ["doppelganger"]


def test_a_vote_recorded_with_another_seat_is_repeated_with_the_own_one() -> None:
    """After a fork the guard may hold a vote of the other chain, where the key had another seat in this epoch."""
    guard = Guard(GENESIS, vote_key(3).vote_key)
    null = Candidate(0, 1, 0, ZERO_HASH)
    own = signed(FOUR, NULLIFY, null, 3)
    guard.record(own._replace(seat=0))
    replica = replica_of(guard=guard)
    actions = replica.step(c.TimerFired(c.ADVANCE), 0)
    assert [vote for message in said(actions) if isinstance(message, Votes) for vote in message.votes] == [own]
    hear(replica, Votes((signed(FOUR, NULLIFY, null, 0), signed(FOUR, NULLIFY, null, 1))))
    assert replica.core.view == 2, "three seats have skipped the view"


def remote_of(account: int = 3) -> tuple[r.Replica, VoteKey]:
    key = vote_key(account)
    replica = r.Replica(epoch=FIRST, genesis_hash=GENESIS, root=ROOT, parameters=TIMES, vote_key=key.vote_key)
    replica.start(0)
    return replica, key


def proposal_of(view: int = 1) -> tuple[Candidate, Proposal, bytes]:
    block_hash, block = block_of(FIRST, view, 1, ROOT.block_hash, ROOT.state_root)
    candidate = Candidate(0, view, 0, block_hash)
    vote = signed(FOUR, NOTARIZE, candidate, FOUR.leader(view))
    return candidate, Proposal(candidate, vote.signature, None, (), encode_block(block)), block_hash


def test_a_guard_elsewhere_is_asked_after_the_block_is_durable_and_the_vote_leaves_after_it_came() -> None:
    replica, _ = remote_of()
    candidate, proposal, block_hash = proposal_of()
    hear(replica, proposal)
    assert not any(isinstance(a, r.RequestVote) for a in replica.step(c.BlockChecked(block_hash, True), 0))
    actions = replica.voter_ready((), (0, 0), 0)
    request = r.RequestVote(NOTARIZE, candidate, 3)
    kinds = [type(a) for a in actions if isinstance(a, r.Append | r.Sync | r.RequestVote)]
    assert kinds == [r.Append, r.Sync, r.RequestVote]
    assert request in actions
    assert said(actions) == []
    vote = signed(FOUR, NOTARIZE, candidate, 3)
    assert said(replica.voted(request, vote, 0)) == [Votes((vote,))]
    assert replica.voted(request, vote, 0) == [], "once"
    assert replica.core.own_votes() == (vote,)


def test_a_refusal_or_another_vote_than_was_asked_for_says_nothing() -> None:
    replica, _ = remote_of()
    replica.voter_ready((), (0, 0), 0)
    (request,) = [a for a in replica.step(c.TimerFired(c.LEADER), 0) if isinstance(a, r.RequestVote)]
    other = signed(FOUR, NULLIFY, Candidate(0, 2, 0, ZERO_HASH), 3)
    assert replica.voted(request, other, 0) == [r.Refused("mismatch")]
    hear(replica, Certificates((certified(FOUR, NULLIFY, Candidate(0, 1, 0, ZERO_HASH)),)))
    (request,) = [a for a in replica.step(c.TimerFired(c.LEADER), 0) if isinstance(a, r.RequestVote)]
    assert replica.vote_refused(request) == []
    assert replica.sizes()["requested"] == 0


def test_a_guard_that_was_away_is_asked_again_when_the_view_stands_still() -> None:
    replica, _ = remote_of()
    replica.voter_ready((), (0, 0), 0)
    (request,) = [a for a in replica.step(c.TimerFired(c.LEADER), 0) if isinstance(a, r.RequestVote)]
    assert replica.vote_refused(request, is_final=False) == []
    actions = replica.step(c.TimerFired(c.RETRANSMIT), 0)
    assert [a for a in actions if isinstance(a, r.RequestVote)] == [request]
    actions = replica.step(c.TimerFired(c.RETRANSMIT), 0)
    assert not any(isinstance(a, r.RequestVote) for a in actions), "one at a time"
    vote = signed(FOUR, NULLIFY, Candidate(0, 1, 0, ZERO_HASH), 3)
    assert said(replica.voted(request, vote, 0)) == [Votes((vote,))]


def test_a_proposal_by_a_guard_elsewhere_travels_with_its_block() -> None:
    replica, _ = remote_of(0)
    actions = replica.voter_ready((), (0, 0), 0)
    (build,) = [a for a in actions if isinstance(a, c.Build)]
    block_hash, block = block_of(FIRST, 1, 1, ROOT.block_hash, ROOT.state_root)
    actions = replica.built(build, block, 0)
    (request,) = [a for a in actions if isinstance(a, r.RequestVote)]
    vote = signed(FOUR, NOTARIZE, Candidate(0, 1, 0, block_hash), 0)
    (proposal,) = said(replica.voted(request, vote, 0))
    assert proposal == Proposal(vote.candidate, vote.signature, None, (), encode_block(block))


def test_the_floor_of_a_guard_elsewhere_follows_what_is_final() -> None:
    replica, _ = remote_of()
    replica.voter_ready((), (0, 0), 0)
    actions, _ = ended(replica)
    assert r.RaiseFloor(0, 2) in actions
    actions = replica.begin_epoch(second(), 0)
    assert r.RaiseFloor(1, 0) in actions
    assert not replica.core.is_listening


def test_windows_that_nobody_asked_for_are_not_looked_at() -> None:
    epoch = Epoch(0, 100, FOUR, b"r" * 32)
    replica = replica_of(epoch=epoch)
    parent_hash, blocks, final = ROOT.block_hash, [], None
    for view in range(1, 6):
        block_hash, block = block_of(epoch, view, view, parent_hash, bytes((view,)) * 32)
        final = certified(FOUR, FINALIZE, Candidate(0, view, view - 1, block_hash))
        blocks.append(encode_block(block))
        parent_hash = block_hash
    assert final is not None
    window = BlocksReply(1, final, tuple(blocks))
    assert hear(replica, window) == []
    actions = hear(replica, Status(0, 7, 5, parent_hash), 10_000)
    assert said(actions) == [GetBlocks(1, 5)]
    assert hear(replica, window, 10_000, sender=b"o" * 20) == [], "another was asked"
    with pytest.raises(DecodeError):
        foreign = certified(FIVE, FINALIZE, Candidate(1, 5, 4, parent_hash))
        hear(replica, window._replace(certificate=foreign), 10_000)
    assert replica.core.known_height == 0
    hear(replica, window, 10_100)
    assert replica.core.known_height == 5
    assert replica.progress(10_100).proven_height == 5


def test_a_peer_that_connects_or_lags_is_told_the_height() -> None:
    replica = replica_of(epoch=Epoch(9, 100, FOUR, b"r" * 32), root=ROOT._replace(height=90))
    own = Status(9, 1, 90, ROOT.block_hash)
    assert said(replica.connected(PEER)) == [own]
    assert said(hear(replica, Status(9, 1, 80, ROOT.block_hash))) == [own]
    assert said(hear(replica, Status(9, 1, 80, ROOT.block_hash))) == [], "at a bounded pace"
    assert said(hear(replica, Status(9, 1, 89, ROOT.block_hash), 9_000)) == []
    actions = replica.step(c.TimerFired(c.STATUS), 0)
    assert said(actions) == [own]
    (timer,) = [action for action in actions if isinstance(action, c.SetTimer)]
    assert 4_000 <= timer.delay_ms <= 6_000
