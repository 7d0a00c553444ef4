"""Rules of the core that the schedules of the simulator reach rarely, each driven by hand."""

from __future__ import annotations

import pytest

from consensus import events as c
from consensus import replica as r
from consensus.core.core import Core
from consensus.core.limits import EVIDENCE_VIEWS
from consensus.events import ConsensusParameters, Epoch, Restored, Root
from consensus.guard import DoppelgangerWatch
from consensus.simulation.cluster import TIME_AHEAD_MS_MAX, Cluster, SimulatedNode, sim_parameters
from consensus.votes import Certificate
from state.primitives.blocks import VERSION, Header, decode_block, header_hash
from state.primitives.committee import Committee, Seat
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote

GENESIS = b"g" * 32
COMMITTEE = Committee(Seat(bytes([n + 1]) * 20, bytes([n + 1]) * 32, bytes([n + 1]) * 32, 1) for n in range(4))
ROOT = Root(b"0" * 32, 0, 0, b"s" * 32, ZERO_HASH)
TIMES = ConsensusParameters(block_interval_ms=0, idle_ms=0, doppelganger_ms=0)
NEVER = 10**9


def core_of(seat: int | None, *, last_height: int = NEVER, parameters: ConsensusParameters = TIMES) -> Core:
    core = Core(
        epoch=Epoch(1, last_height, COMMITTEE, b"r" * 32),
        genesis_hash=GENESIS,
        seat=seat,
        root=ROOT,
        parameters=parameters,
    )
    core.step(c.Start(), 0)
    return core


def header_of(view: int, height: int, parent_hash: bytes, state_root: bytes) -> tuple[bytes, Header]:
    header = Header(
        VERSION, GENESIS, height, 1, view, COMMITTEE.leader(view), parent_hash, height, ZERO_HASH, ZERO_HASH,
        state_root, ZERO_HASH, b"", COMMITTEE.hash, ZERO_HASH, b"", 0, 0, 0, 1,
    )  # fmt: skip
    return header_hash(header), header


def votes(kind: int, candidate: Candidate, seats: tuple[int, ...]) -> list[Vote]:
    return [Vote(kind, *candidate, seat, bytes(64)) for seat in seats]


def certificate(kind: int, candidate: Candidate, seats: tuple[int, ...] = (0, 1, 2)) -> Certificate:
    return Certificate.of(COMMITTEE, votes(kind, candidate, seats))


def null(view: int) -> Certificate:
    return certificate(NULLIFY, Candidate(1, view, 0, ZERO_HASH))


def nullify(core: Core, view: int) -> list[c.Effect]:
    return core.step(c.CertificateReceived(null(view)), 0)


def kinds_cast(effects: list[c.Effect]) -> list[int]:
    return [effect.kind for effect in effects if isinstance(effect, c.CastVote)]


def timers(effects: list[c.Effect]) -> dict[str, int]:
    return {effect.name: effect.delay_ms for effect in effects if isinstance(effect, c.SetTimer)}


def propose(core: Core, view: int, parent_view: int, block: tuple[bytes, Header]) -> list[c.Effect]:
    candidate = Candidate(1, view, parent_view, block[0])
    vote = Vote(NOTARIZE, *candidate, COMMITTEE.leader(view), bytes(64))
    effects = core.step(c.ProposalReceived(vote, block[1]), 0)
    if any(isinstance(effect, c.Check) for effect in effects):
        effects += core.step(c.BlockChecked(block[0], True), 0)
    return effects


def test_an_honest_view_takes_three_steps() -> None:
    core = core_of(3)
    block = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    candidate = Candidate(1, 1, 0, block[0])
    effects = propose(core, 1, 0, block)
    assert kinds_cast(effects) == [NOTARIZE]
    assert c.Execute(block[0]) in effects
    core.step(c.VoteReceived(Vote(NOTARIZE, *candidate, 3, bytes(64)), True), 0)
    effects = core.step(c.VoteReceived(votes(NOTARIZE, candidate, (1,))[0]), 0)
    assert kinds_cast(effects) == [FINALIZE]
    assert core.view == 2
    core.step(c.VoteReceived(Vote(FINALIZE, *candidate, 3, bytes(64)), True), 0)
    for vote in votes(FINALIZE, candidate, (0, 1)):
        effects = core.step(c.VoteReceived(vote), 0)
    assert not any(isinstance(effect, c.Commit) for effect in effects), "it is not executed yet"
    effects = core.step(c.BlockExecuted(block[0], b"t" * 32, ZERO_HASH), 0)
    assert [effect.height for effect in effects if isinstance(effect, c.Commit)] == [1]
    assert core.root.block_hash == block[0]


def test_a_recorded_vote_of_a_seat_that_this_committee_lacks_is_not_counted() -> None:
    """After a fork the guard may hold a vote of the other chain, whose committee of the epoch was larger."""
    core = core_of(3)
    assert core.step(c.VoteReceived(Vote(NULLIFY, 1, 1, 0, ZERO_HASH, 99, bytes(64)), True), 0) == []
    assert core.view == 1


def test_after_nullify_there_is_neither_notarize_nor_finalize() -> None:
    core = core_of(3)
    assert kinds_cast(core.step(c.TimerFired(c.ADVANCE), 0)) == [NULLIFY]
    block = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    assert kinds_cast(propose(core, 1, 0, block)) == []
    effects = core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 1, 0, block[0]))), 0)
    assert kinds_cast(effects) == []
    assert core.view == 2


def test_a_certificate_with_an_own_vote_that_the_guard_lacks_halts() -> None:
    """Catching up with a record of votes that was lost: the chain's certificates bear what the key has signed."""
    candidate = Candidate(1, 5, 4, b"b" * 32)
    foreign = [
        certificate(kind, candidate, (1, 2, 3)) for kind in (NOTARIZE, FINALIZE)
    ] + [certificate(NULLIFY, Candidate(1, 5, 0, ZERO_HASH), (1, 2, 3))]  # fmt: skip
    for received in foreign:
        effects = core_of(3).step(c.CertificateReceived(received), 0)
        assert [effect.code for effect in effects if isinstance(effect, c.Halt)] == ["doppelganger"]
        for seat in (0, None):
            effects = core_of(seat).step(c.CertificateReceived(received), 0)
            assert not any(isinstance(effect, c.Halt) for effect in effects)
    core = core_of(3)
    assert kinds_cast(core.step(c.TimerFired(c.ADVANCE), 0)) == [NULLIFY]
    effects = core.step(c.CertificateReceived(certificate(NULLIFY, Candidate(1, 1, 0, ZERO_HASH), (1, 2, 3))), 0)
    assert not any(isinstance(effect, c.Halt) for effect in effects), "its own"


def test_of_a_vote_of_another_process_the_time_of_its_block_is_told_where_it_is_known() -> None:
    core = core_of(3)
    block_hash, header = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    core.step(c.ProposalReceived(Vote(NOTARIZE, 1, 1, 0, block_hash, COMMITTEE.leader(1), bytes(64)), header), 0)
    effects = core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 1, 0, block_hash), (1, 2, 3))), 0)
    assert [e.time_ms for e in effects if isinstance(e, c.Halt)] == [header.time_ms]
    effects = core_of(3).step(c.VoteReceived(Vote(NULLIFY, 1, 1, 0, ZERO_HASH, 3, bytes(64))), 0)
    assert [e.time_ms for e in effects if isinstance(e, c.Halt)] == [0], "it was heard now"


def test_a_wrong_header_is_nullified_at_once() -> None:
    for change in (
        {"height": 2},
        {"view": 2},
        {"state_root": b"x" * 32},
        {"proposer_seat": 3},
        {"epoch": 2},
        {"genesis_hash": b"h" * 32},
        {"committee_hash": b"h" * 32},
        {"parent_hash": b"h" * 32},
    ):
        _, header = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
        wrong = header._replace(**change)
        assert kinds_cast(propose(core_of(3), 1, 0, (header_hash(wrong), wrong))) == [NULLIFY], change


def test_a_skipped_view_needs_its_nullification() -> None:
    core = core_of(3)
    nullify(core, 2)
    assert core.view == 3
    block = header_of(3, 1, ROOT.block_hash, ROOT.state_root)
    effects = propose(core, 3, 0, block)
    assert kinds_cast(effects) == []
    effects = core.step(c.TimerFired(c.PULL), 0)
    assert [(e.from_view, e.to_view) for e in effects if isinstance(e, c.AskCertificates)] == [(1, 1)]
    effects = nullify(core, 1)
    assert [e for e in effects if isinstance(e, c.Check)] == [c.Check(block[0])]


def test_back_off_grows_by_halves_to_its_cap_and_falls_with_finality_alone() -> None:
    core = core_of(3)
    delays = [timers(nullify(core, view))[c.LEADER] for view in range(1, 14)]
    assert delays[:4] == [2_000, 3_000, 4_500, 6_750]
    assert delays[-1] == 32_000
    block = header_of(14, 1, ROOT.block_hash, ROOT.state_root)
    candidate = Candidate(1, 14, 0, block[0])
    assert timers(core.step(c.CertificateReceived(certificate(NOTARIZE, candidate)), 0))[c.LEADER] == 32_000
    core.step(c.CertificateReceived(certificate(FINALIZE, candidate)), 0)
    assert timers(nullify(core, 15))[c.LEADER] == 2_000


def test_a_leader_with_nothing_to_say_waits_and_voters_give_it_the_time() -> None:
    parameters = ConsensusParameters(block_interval_ms=0, idle_ms=5_000, doppelganger_ms=0)
    core = core_of(3, parameters=parameters)
    core.step(c.MempoolChanged(False), 0)
    assert timers(nullify(core, 1))[c.LEADER] == 7_000
    assert timers(core.step(c.MempoolChanged(True), 0))[c.LEADER] == 2_000
    leader = core_of(COMMITTEE.leader(2), parameters=parameters)
    leader.step(c.MempoolChanged(False), 0)
    others = tuple(seat for seat in range(4) if seat != COMMITTEE.leader(2))
    skipped = certificate(NULLIFY, Candidate(1, 1, 0, ZERO_HASH), others)
    effects = leader.step(c.CertificateReceived(skipped), 0)
    assert timers(effects)[c.IDLE] == 5_000
    assert not any(isinstance(effect, c.Build) for effect in effects)
    assert any(isinstance(effect, c.Build) for effect in leader.step(c.TimerFired(c.IDLE), 5_000))
    leader = core_of(COMMITTEE.leader(2), parameters=parameters)
    leader.step(c.MempoolChanged(False), 0)
    leader.step(c.CertificateReceived(skipped), 0)
    assert any(isinstance(effect, c.Build) for effect in leader.step(c.MempoolChanged(True), 10))


def test_a_silent_leader_is_skipped_at_once_while_a_quorum_is_heard() -> None:
    core = core_of(3)
    quiet = COMMITTEE.leader(2)
    for seat in range(4):
        if seat != quiet:
            core.step(c.VoteReceived(Vote(NULLIFY, 1, 1, 0, ZERO_HASH, seat, bytes(64)), seat == 3), 11_000)
    assert core.view == 2
    later = core_of(3)
    for seat in (0, 1, 2):
        later.step(c.VoteReceived(Vote(NOTARIZE, 1, 1, 0, b"x" * 32, seat, bytes(64))), 100)
    assert kinds_cast(later.step(c.CertificateReceived(null(2)), 200)) == [], "nobody has been quiet for long"
    effects = core_of(3)
    for seat in (0, 2):
        effects.step(c.VoteReceived(Vote(NOTARIZE, 1, 1, 0, b"x" * 32, seat, bytes(64))), 12_000)
    effects.step(c.VoteReceived(Vote(NULLIFY, 1, 1, 0, ZERO_HASH, 3, bytes(64)), True), 12_000)
    assert COMMITTEE.leader(2) == 1
    cast = effects.step(c.CertificateReceived(null(1)), 12_000)
    assert [(e.kind, e.reason) for e in cast if isinstance(e, c.CastVote)] == [(NULLIFY, "inactive")]


def test_on_the_boundary_the_same_block_is_proposed_again_and_nothing_else_is_valid() -> None:
    core = core_of(3, last_height=1)
    block = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    propose(core, 1, 0, block)
    core.step(c.BlockExecuted(block[0], b"t" * 32, ZERO_HASH), 0)
    core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 1, 0, block[0]))), 0)
    child = header_of(2, 2, block[0], b"t" * 32)
    assert kinds_cast(propose(core, 2, 1, child)) == [NULLIFY]
    again = core_of(3, last_height=1)
    propose(again, 1, 0, block)
    again.step(c.BlockExecuted(block[0], b"t" * 32, ZERO_HASH), 0)
    again.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 1, 0, block[0]))), 0)
    assert kinds_cast(propose(again, 2, 1, block)) == [NOTARIZE]
    repeated = Candidate(1, 2, 1, block[0])
    again.step(c.CertificateReceived(certificate(NOTARIZE, repeated)), 0)
    effects = again.step(c.CertificateReceived(certificate(FINALIZE, repeated)), 0)
    assert [type(e) for e in effects if isinstance(e, c.Commit | c.EpochEnded)] == [c.Commit, c.EpochEnded]


def test_a_leader_proposes_the_boundary_block_again() -> None:
    leader = core_of(COMMITTEE.leader(2), last_height=1)
    block = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    propose(leader, 1, 0, block)
    leader.step(c.BlockExecuted(block[0], b"t" * 32, ZERO_HASH), 0)
    notarized = certificate(NOTARIZE, Candidate(1, 1, 0, block[0]))
    effects = leader.step(c.CertificateReceived(notarized), 0)
    assert [e for e in effects if isinstance(e, c.Propose)] == [
        c.Propose(Candidate(1, 2, 1, block[0]), notarized, ())
    ]


def test_certificates_that_contradict_each_other_halt() -> None:
    one, other = Candidate(1, 1, 0, b"a" * 32), Candidate(1, 1, 0, b"b" * 32)
    for first, second in (
        (certificate(NOTARIZE, one), certificate(NOTARIZE, other)),
        (certificate(NOTARIZE, one), certificate(FINALIZE, other)),
        (null(1), certificate(FINALIZE, one)),
    ):
        core = core_of(3)
        core.step(c.CertificateReceived(first), 0)
        effects = core.step(c.CertificateReceived(second), 0)
        assert [e.code for e in effects if isinstance(e, c.Halt)] == ["safety"]
        assert core.step(c.TimerFired(c.ADVANCE), 0) == []


def test_a_vote_of_the_own_seat_that_the_guard_never_made_halts() -> None:
    core = core_of(3)
    effects = core.step(c.VoteReceived(Vote(NULLIFY, 1, 1, 0, ZERO_HASH, 3, bytes(64))), 0)
    assert [e.code for e in effects if isinstance(e, c.Halt)] == ["doppelganger"]


def test_a_divergent_root_of_a_notarized_block_halts() -> None:
    core = core_of(3)
    block = header_of(1, 1, ROOT.block_hash, b"x" * 32)
    propose(core, 1, 0, block)
    effects = core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 1, 0, block[0]))), 0)
    assert [e.code for e in effects if isinstance(e, c.Halt)] == ["state_divergence"]


def test_what_is_kept_stays_bounded_through_a_thousand_nullified_views() -> None:
    core = core_of(3)
    for view in range(1, 1_001):
        for seat in range(4):
            core.step(c.VoteReceived(Vote(NULLIFY, 1, view, 0, ZERO_HASH, seat, bytes(64)), seat == 3), view)
    assert core.view == 1_001
    sizes = core.sizes()
    assert sizes["votes"] <= EVIDENCE_VIEWS + 3
    assert sizes["certificates"] == 1_000
    assert len(core.certificates(1, 10**6)) <= 64 + 3


def test_a_vote_for_a_view_that_nobody_reached_costs_some_questions_and_no_more() -> None:
    core = core_of(3)
    far = Vote(NULLIFY, 1, 10**12, 0, ZERO_HASH, 1, bytes(64))
    asked = core.step(c.VoteReceived(far), 0)
    questions = 0
    for _ in range(100):
        if c.PULL not in timers(asked):
            break
        asked = core.step(c.TimerFired(c.PULL), 0)
        questions += sum(isinstance(effect, c.AskCertificates) for effect in asked)
    assert 0 < questions <= 12
    assert core.sizes()["votes"] == 0


def test_a_replica_far_behind_catches_up_by_windows() -> None:
    cluster = Cluster(5, (1, 1, 1, 1), frozenset(range(4)), parameters=sim_parameters())
    cluster.start_all()
    cluster.crash(cluster.nodes[3], 10**9)
    cluster.run(12_000)
    assert cluster.oracle.height_max > cluster.oracle.height(3) + 150
    asked = []
    original = cluster._perform

    def watch(node: object, action: object) -> None:
        if type(action).__name__ == "ServeBlocks":
            asked.append(action)
        original(node, action)  # type: ignore[arg-type]

    cluster._perform = watch  # type: ignore[method-assign]
    cluster.start(cluster.nodes[3])
    goal = cluster.oracle.height_max
    assert cluster.run(cluster.now_ms + 2_000, lambda: cluster.oracle.height(3) >= goal)
    assert 3 <= len(asked) < 20


def test_the_interval_between_blocks_without_faults_is_two_delays() -> None:
    """The promise of 3.4: a block in each two delays, with the timers never acting."""
    cluster = Cluster(1, (1,) * 7, frozenset(range(7)), parameters=sim_parameters())
    cluster.network.latency_ms_min = cluster.network.latency_ms_max = 40
    cluster.start_all()
    cluster.run(10_000)
    assert cluster.oracle.height_max >= 10_000 / (2 * 40) * 0.9


def test_a_dead_validator_costs_one_time_out_in_its_views_until_it_is_skipped() -> None:
    cluster = Cluster(1, (1, 1, 1, 1), frozenset(range(4)), parameters=sim_parameters())
    cluster.start_all()
    cluster.run(500)
    cluster.crash(cluster.nodes[2], 10**9)
    cluster.run(4_500)
    before = cluster.oracle.height_max
    cluster.run(6_500)
    fast = cluster.oracle.height_max - before
    assert fast > 2_000 // 60, "a silent leader's views end in one exchange"


def built(core: Core, view: int, parent_view: int, block: tuple[bytes, Header], state: bytes) -> Candidate:
    """A block that is proposed, executed and notarised."""
    propose(core, view, parent_view, block)
    core.step(c.BlockExecuted(block[0], state, ZERO_HASH), 0)
    candidate = Candidate(1, view, parent_view, block[0])
    core.step(c.CertificateReceived(certificate(NOTARIZE, candidate)), 0)
    return candidate


def accused(effects: list[c.Effect]) -> list[tuple[str, int]]:
    return [
        (e.equivocation.type, e.equivocation.first.seat) for e in effects if isinstance(e, c.FoundEquivocation)
    ]


def test_conflicting_certificates_name_their_culprits_before_the_halt() -> None:
    one, other = Candidate(1, 1, 0, b"a" * 32), Candidate(1, 1, 0, b"b" * 32)
    core = core_of(3)
    core.step(c.CertificateReceived(certificate(NOTARIZE, one, (0, 1, 2))), 0)
    effects = core.step(c.CertificateReceived(certificate(NOTARIZE, other, (1, 2, 3))), 0)
    assert accused(effects) == [("E1", 1), ("E1", 2)]
    assert isinstance(effects[-1], c.Halt)


def test_a_certificate_against_what_is_final_names_its_culprits() -> None:
    core = core_of(3)
    block = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    candidate = built(core, 1, 0, block, b"t" * 32)
    core.step(c.CertificateReceived(certificate(FINALIZE, candidate, (0, 1, 2))), 0)
    assert core.root.block_hash == block[0]
    assert not core.wants_certificate(certificate(FINALIZE, candidate, (1, 2, 3)))
    against = certificate(NULLIFY, Candidate(1, 1, 0, ZERO_HASH), (1, 2, 3))
    assert core.wants_certificate(against)
    effects = core.step(c.CertificateReceived(against), 0)
    assert accused(effects) == [("E3", 1), ("E3", 2)]
    assert [e.code for e in effects if isinstance(e, c.Halt)] == ["safety"]


def test_a_commit_brings_the_nullifications_that_it_rests_on() -> None:
    core = core_of(3)
    for view in (1, 2):
        nullify(core, view)
    block = header_of(3, 1, ROOT.block_hash, ROOT.state_root)
    core.step(c.BlockExecuted(block[0], b"t" * 32, ZERO_HASH), 0)
    propose(core, 3, 0, block)
    core.step(c.BlockExecuted(block[0], b"t" * 32, ZERO_HASH), 0)
    nullify(core, 4)
    effects = core.step(c.CertificateReceived(certificate(FINALIZE, Candidate(1, 3, 0, block[0]))), 0)
    assert [effect.nullified for effect in effects if isinstance(effect, c.Commit)] == [(null(1), null(2))]


def test_after_a_restart_the_kept_nullifications_still_convict() -> None:
    kept = tuple(null(view) for view in (700, 800, 801))
    root = ROOT._replace(height=1, view=1_000)
    core = Core(
        epoch=Epoch(1, NEVER, COMMITTEE, b"r" * 32), genesis_hash=GENESIS, seat=None, root=root, parameters=TIMES,
        restored=Restored(certificates=kept),
    )  # fmt: skip
    core.step(c.Start(), 0)
    assert core.view == 1_001
    late = certificate(FINALIZE, Candidate(1, 800, 799, b"b" * 32), (1, 2, 3))
    assert core.wants_certificate(late)
    assert not core.wants_certificate(certificate(FINALIZE, Candidate(1, 700, 699, b"b" * 32), (1, 2, 3)))
    effects = core.step(c.CertificateReceived(late), 0)
    found = [effect.equivocation for effect in effects if isinstance(effect, c.FoundEquivocation)]
    assert [(one.type, one.first.seat) for one in found] == [("E3", 1), ("E3", 2)]
    assert [effect.code for effect in effects if isinstance(effect, c.Halt)] == ["safety"]


def test_a_window_of_another_chain_is_handed_on_as_a_fork_before_the_halt() -> None:
    root = ROOT._replace(height=1, view=900, block_hash=b"1" * 32)
    core = Core(
        epoch=Epoch(1, NEVER, COMMITTEE, b"r" * 32), genesis_hash=GENESIS, seat=None, root=root, parameters=TIMES,
        restored=Restored(certificates=(null(850),)),
    )  # fmt: skip
    core.step(c.Start(), 0)
    block = header_of(850, 2, b"2" * 32, b"t" * 32)
    late = certificate(FINALIZE, Candidate(1, 850, 849, block[0]), (1, 2, 3))
    effects = core.step(c.BlocksReceived(late, (block,)), 0)
    assert [type(effect) for effect in effects] == [c.FoundEquivocation, c.FoundEquivocation, c.FoundFork, c.Halt]
    assert effects[2] == c.FoundFork(late)


def test_a_vote_of_a_past_view_still_proves_a_fault() -> None:
    core = core_of(3)
    block = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    candidate = built(core, 1, 0, block, b"t" * 32)
    core.step(c.VoteReceived(votes(FINALIZE, candidate, (1,))[0]), 0)
    core.step(c.CertificateReceived(certificate(FINALIZE, candidate, (0, 1, 2))), 0)
    late = Vote(NULLIFY, 1, 1, 0, ZERO_HASH, 1, bytes(64))
    assert core.wants_vote(late)
    assert accused(core.step(c.VoteReceived(late), 0)) == [("E3", 1)]
    assert core.is_late(late)


def test_who_is_slower_than_the_quorum_still_finalises_before_it_commits() -> None:
    core = core_of(3)
    block = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    child = header_of(2, 2, block[0], b"t" * 32)
    propose(core, 1, 0, block)
    core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 1, 0, block[0]))), 0)
    propose(core, 2, 1, child)
    grandchild = Candidate(1, 2, 1, child[0])
    assert kinds_cast(core.step(c.CertificateReceived(certificate(NOTARIZE, grandchild)), 0)) == []
    core.step(c.CertificateReceived(certificate(FINALIZE, grandchild)), 0)
    effects = core.step(c.BlockExecuted(block[0], b"t" * 32, ZERO_HASH), 0)
    assert [e.candidate.view for e in effects if isinstance(e, c.CastVote) and e.kind == FINALIZE] == [2]
    effects = core.step(c.BlockExecuted(child[0], b"u" * 32, ZERO_HASH), 0)
    assert [type(e) for e in effects if isinstance(e, c.CastVote | c.Commit)] == [c.Commit]


def test_a_leader_names_who_finalised_the_parent_of_the_parent() -> None:
    parent_hash, state, parent_view = ROOT.block_hash, ROOT.state_root, 0
    leader = core_of(COMMITTEE.leader(3))
    for view in (1, 2):
        block = header_of(view, view, parent_hash, state)
        candidate = built(leader, view, parent_view, block, bytes((view,)) * 32)
        if view == 1:
            for vote in votes(FINALIZE, candidate, (0, 1, 3)):
                leader.step(c.VoteReceived(vote), 0)
        parent_hash, state, parent_view = block[0], bytes((view,)) * 32, view
    again = core_of(COMMITTEE.leader(3))
    builds = []
    parent_hash, state, parent_view = ROOT.block_hash, ROOT.state_root, 0
    for view in (1, 2):
        block = header_of(view, view, parent_hash, state)
        propose(again, view, parent_view, block)
        again.step(c.BlockExecuted(block[0], bytes((view,)) * 32, ZERO_HASH), 0)
        candidate = Candidate(1, view, parent_view, block[0])
        if view == 1:
            for vote in votes(FINALIZE, candidate, (0, 1, 3)):
                again.step(c.VoteReceived(vote), 0)
        effects = again.step(c.CertificateReceived(certificate(NOTARIZE, candidate)), 0)
        builds += [e for e in effects if isinstance(e, c.Build)]
        parent_hash, state, parent_view = block[0], bytes((view,)) * 32, view
    assert [(e.epoch, e.view, e.seat, e.voters_bitmap) for e in builds] == [(1, 3, COMMITTEE.leader(3), b"\x0b")]
    assert builds[0].randomness == b"r" * 32


def test_fewer_voters_than_a_quorum_are_no_testimony() -> None:
    leader = core_of(COMMITTEE.leader(3))
    first = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    candidate = built(leader, 1, 0, first, b"t" * 32)
    for vote in votes(FINALIZE, candidate, (0, 1)):
        leader.step(c.VoteReceived(vote), 0)
    second = header_of(2, 2, first[0], b"t" * 32)
    propose(leader, 2, 1, second)
    leader.step(c.BlockExecuted(second[0], b"u" * 32, ZERO_HASH), 0)
    effects = leader.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 2, 1, second[0]))), 0)
    assert [e.voters_bitmap for e in effects if isinstance(e, c.Build)] == [b""]


BOUNDARY = header_of(1, 1, ROOT.block_hash, ROOT.state_root)


def at_boundary(seat: int | None = 3) -> Core:
    """A core with the epoch's last block notarised in view 1, and executed."""
    core = core_of(seat, last_height=1)
    built(core, 1, 0, BOUNDARY, b"t" * 32)
    return core


def test_the_boundary_block_proposed_again_on_a_view_before_it_is_invalid() -> None:
    assert kinds_cast(propose(at_boundary(), 2, 0, BOUNDARY)) == [], "view 1 is not nullified: it waits"
    core = at_boundary()
    core.step(c.CertificateReceived(null(1)), 0)
    assert kinds_cast(propose(core, 2, 0, BOUNDARY)) == [NULLIFY], "its header is of another view"


def test_a_new_last_block_is_valid_where_the_old_one_was_skipped() -> None:
    core = at_boundary()
    core.step(c.CertificateReceived(null(1)), 0)
    other = header_of(2, 1, ROOT.block_hash, ROOT.state_root)
    assert kinds_cast(propose(core, 2, 0, other)) == [NOTARIZE]


def test_only_the_last_block_may_be_proposed_again() -> None:
    core = core_of(3, last_height=2)
    built(core, 1, 0, BOUNDARY, b"t" * 32)
    assert kinds_cast(propose(core, 2, 1, BOUNDARY)) == [NULLIFY]


def test_the_boundary_block_is_final_by_any_view_that_notarised_it() -> None:
    for final_view in (1, 2, 5):
        core = at_boundary()
        assert kinds_cast(propose(core, 2, 1, BOUNDARY)) == [NOTARIZE]
        effects = core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 2, 1, BOUNDARY[0]))), 0)
        assert [e.candidate.view for e in effects if isinstance(e, c.CastVote) and e.kind == FINALIZE] == [2]
        core.step(c.CertificateReceived(null(3)), 0)
        core.step(c.CertificateReceived(null(4)), 0)
        assert kinds_cast(propose(core, 5, 2, BOUNDARY)) == [NOTARIZE]
        core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 5, 2, BOUNDARY[0]))), 0)
        parent_view = {1: 0, 2: 1, 5: 2}[final_view]
        final = certificate(FINALIZE, Candidate(1, final_view, parent_view, BOUNDARY[0]))
        effects = core.step(c.CertificateReceived(final), 0)
        assert [type(e) for e in effects if isinstance(e, c.Commit | c.EpochEnded)] == [c.Commit, c.EpochEnded]
        assert core.root.view == final_view
        assert core.has_ended
        assert not [e for e in effects if isinstance(e, c.EnterView | c.CastVote | c.Propose)]


def test_a_leader_proposes_the_newest_notarised_view_of_the_boundary_block_with_the_skipped_ones() -> None:
    leader = core_of(COMMITTEE.leader(4), last_height=1)
    built(leader, 1, 0, BOUNDARY, b"t" * 32)
    propose(leader, 2, 1, BOUNDARY)
    again = certificate(NOTARIZE, Candidate(1, 2, 1, BOUNDARY[0]))
    leader.step(c.CertificateReceived(again), 0)
    effects = leader.step(c.CertificateReceived(null(3)), 0)
    assert [e for e in effects if isinstance(e, c.Propose)] == [
        c.Propose(Candidate(1, 4, 2, BOUNDARY[0]), again, (null(3),))
    ]


def test_after_the_last_block_is_known_to_be_final_nothing_is_voted_for() -> None:
    core = core_of(3, last_height=1)
    propose(core, 1, 0, BOUNDARY)
    candidate = Candidate(1, 1, 0, BOUNDARY[0])
    core.step(c.CertificateReceived(certificate(NOTARIZE, candidate)), 0)
    core.step(c.CertificateReceived(certificate(FINALIZE, candidate)), 0)
    assert core.is_over
    assert not core.has_ended, "it is not executed yet"
    assert kinds_cast(core.step(c.TimerFired(c.LEADER), 0) + core.step(c.TimerFired(c.ADVANCE), 0)) == []
    assert kinds_cast(propose(core, 2, 1, BOUNDARY)) == []
    assert any(isinstance(e, c.Resend) for e in core.step(c.TimerFired(c.RETRANSMIT), 0))
    effects = core.step(c.BlockExecuted(BOUNDARY[0], b"t" * 32, ZERO_HASH), 0)
    assert any(isinstance(e, c.EpochEnded) for e in effects)


def test_an_epoch_that_has_ended_still_shows_faults_and_does_nothing_else() -> None:
    core = at_boundary()
    candidate = Candidate(1, 1, 0, BOUNDARY[0])
    core.step(c.VoteReceived(votes(FINALIZE, candidate, (1,))[0]), 0)
    core.step(c.CertificateReceived(certificate(FINALIZE, candidate)), 0)
    assert core.has_ended
    for event in (
        c.TimerFired(c.LEADER), c.TimerFired(c.RETRANSMIT), c.MempoolChanged(True),
        c.CertificateReceived(null(2)), c.VoteReceived(Vote(NULLIFY, 1, 2, 0, ZERO_HASH, 0, bytes(64))),
    ):  # fmt: skip
        assert core.step(event, 0) == [], event
    late = Vote(NULLIFY, 1, 1, 0, ZERO_HASH, 1, bytes(64))
    assert accused(core.step(c.VoteReceived(late), 0)) == [("E3", 1)]


def listening(views: int = 2, wait_ms: int = 1_000, wait_ms_max: int = 2_000) -> Core:
    core = Core(
        epoch=Epoch(1, NEVER, COMMITTEE, b"r" * 32), genesis_hash=GENESIS, seat=3, root=ROOT, parameters=TIMES
    )
    core.listen(DoppelgangerWatch(views=views, wait_ms=wait_ms, wait_ms_max=wait_ms_max, now_ms=0))
    assert timers(core.step(c.Start(), 0))[c.WATCH] == wait_ms
    return core


def test_while_it_listens_a_seat_says_nothing_and_then_votes() -> None:
    core = listening()
    block = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    assert kinds_cast(propose(core, 1, 0, block)) == []
    core.step(c.BlockExecuted(block[0], b"t" * 32, ZERO_HASH), 0)
    assert (
        kinds_cast(core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 1, 0, block[0]))), 10)) == []
    )
    assert kinds_cast(core.step(c.TimerFired(c.LEADER), 500) + core.step(c.TimerFired(c.ADVANCE), 600)) == []
    effects = core.step(c.TimerFired(c.WATCH), 1_000)
    assert timers(effects) == {c.WATCH: 1_000}, "no views have passed: it waits until the latest"
    effects = core.step(c.TimerFired(c.WATCH), 2_000)
    assert [e.candidate.view for e in effects if isinstance(e, c.CastVote) and e.kind == FINALIZE] == [1]
    assert c.LEADER in timers(effects), "what ran out while it listened begins anew"
    assert kinds_cast(core.step(c.TimerFired(c.LEADER), 5_000)) == [NULLIFY]


def test_the_watch_ends_by_views_and_finds_a_double_in_any_of_them() -> None:
    for found_in in (1, 2, 3, 4):
        core = listening()
        for view in range(1, found_in):
            core.step(c.CertificateReceived(null(view)), 1_100)
        foreign = Vote(NULLIFY, 1, found_in, 0, ZERO_HASH, 3, bytes(64))
        if found_in <= 3:
            assert core.is_listening
        effects = core.step(c.VoteReceived(foreign), 1_200)
        assert [e.code for e in effects if isinstance(e, c.Halt)] == ["doppelganger"], found_in
    core = listening()
    for view in (1, 2, 3):
        assert core.is_listening
        core.step(c.CertificateReceived(null(view)), 1_100)
    assert not core.is_listening


def test_own_votes_that_the_guard_tells_later_are_no_strangers() -> None:
    core = Core(
        epoch=Epoch(1, NEVER, COMMITTEE, b"r" * 32), genesis_hash=GENESIS, seat=3, root=ROOT, parameters=TIMES,
        knows_own_votes=False,
    )  # fmt: skip
    core.step(c.Start(), 0)
    own = Vote(NULLIFY, 1, 2, 0, ZERO_HASH, 3, bytes(64))
    assert core.step(c.VoteReceived(own), 0) == [], "nothing is known yet, so nothing is strange"
    assert kinds_cast(core.step(c.TimerFired(c.LEADER), 0)) == []
    effects = core.step(c.OwnVotesKnown((own,), 1), 0)
    assert c.LEADER in timers(effects)
    core.step(c.VoteReceived(own), 0)
    core.step(c.VoteReceived(Vote(FINALIZE, 1, 1, 0, b"x" * 32, 3, bytes(64))), 0)
    assert not core.is_halted, "below its floor the guard knows nothing"
    effects = core.step(c.VoteReceived(Vote(FINALIZE, 1, 3, 0, b"x" * 32, 3, bytes(64))), 0)
    assert [e.code for e in effects if isinstance(e, c.Halt)] == ["doppelganger"]


def test_the_weight_that_is_not_heard_is_known() -> None:
    core = core_of(3)
    assert core.activity.missing_weight(0) == 3
    core.step(c.VoteReceived(Vote(NULLIFY, 1, 1, 0, ZERO_HASH, 0, bytes(64))), 1_000)
    assert core.activity.missing_weight(2_000) == 2
    assert core.activity.missing_weight(1_000 + TIMES.silent_ms) == 3


def test_a_fetched_block_is_executed_at_once_when_a_certified_one_stands_on_it() -> None:
    core = core_of(3)
    below = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    above = header_of(2, 2, below[0], b"t" * 32)
    effects = core.step(c.CertificateReceived(certificate(NOTARIZE, Candidate(1, 2, 1, above[0]))), 0)
    assert [effect.block_hash for effect in effects if isinstance(effect, c.AskBlock)] == [above[0]]
    effects = core.step(c.BlockReceived(*above), 0)
    assert [effect.block_hash for effect in effects if isinstance(effect, c.AskBlock)] == [below[0]]
    assert c.Execute(below[0]) in core.step(c.BlockReceived(*below), 0)
    assert c.Execute(above[0]) in core.step(c.BlockExecuted(below[0], b"t" * 32, ZERO_HASH), 0)


def early_proposal(core: Core) -> tuple[bytes, list[c.Effect]]:
    """Propose a block of view 1 whose time the voter's clock has not reached."""
    block_hash, header = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    vote = Vote(NOTARIZE, 1, 1, 0, block_hash, COMMITTEE.leader(1), bytes(64))
    effects = core.step(c.ProposalReceived(vote, header), 0)
    assert c.Check(block_hash) in effects
    return block_hash, core.step(c.BlockEarly(block_hash), 0)


def test_a_block_from_a_clock_ahead_does_not_stop_the_leaders_time_out() -> None:
    core = core_of(3)
    block_hash, effects = early_proposal(core)
    assert kinds_cast(effects) == [], "it may still come in time"
    effects = core.step(c.TimerFired(c.LEADER), 0)
    assert [effect for effect in effects if isinstance(effect, c.CastVote)] == [
        c.CastVote(NULLIFY, Candidate(1, 1, 0, ZERO_HASH), "early")
    ]
    assert kinds_cast(core.step(c.BlockChecked(block_hash, True), 0)) == [], "never both"


def test_a_block_from_a_clock_ahead_is_voted_for_when_its_time_comes_first() -> None:
    core = core_of(3)
    block_hash, _ = early_proposal(core)
    assert kinds_cast(core.step(c.BlockChecked(block_hash, True), 0)) == [NOTARIZE]
    assert kinds_cast(core.step(c.TimerFired(c.LEADER), 0)) == [NULLIFY], "only a certificate ends the view before"


def test_a_block_that_is_found_early_after_the_time_out_is_given_up_at_once() -> None:
    core = core_of(3)
    block_hash, header = header_of(1, 1, ROOT.block_hash, ROOT.state_root)
    core.step(c.ProposalReceived(Vote(NOTARIZE, 1, 1, 0, block_hash, COMMITTEE.leader(1), bytes(64)), header), 0)
    assert kinds_cast(core.step(c.TimerFired(c.LEADER), 0)) == [], "its check may only be slow"
    assert kinds_cast(core.step(c.BlockEarly(block_hash), 0)) == [NULLIFY]


def test_transactions_end_the_patience_of_an_idle_view_with_an_early_block() -> None:
    core = core_of(3, parameters=ConsensusParameters(block_interval_ms=0))
    core.step(c.MempoolChanged(False), 0)
    nullify(core, 1)
    parent_view, view = 0, 2
    block_hash, header = header_of(view, 1, ROOT.block_hash, ROOT.state_root)
    vote = Vote(NOTARIZE, 1, view, parent_view, block_hash, COMMITTEE.leader(view), bytes(64))
    core.step(c.ProposalReceived(vote, header), 0)
    core.step(c.BlockEarly(block_hash), 0)
    assert timers(core.step(c.MempoolChanged(True), 0))[c.LEADER] == 2_000


def test_a_leader_whose_clock_is_ahead_costs_the_others_no_more_than_a_leader_that_is_gone() -> None:
    """Its blocks would be allowed after its time-out and before the end of the view: nobody waits for them."""
    cluster = Cluster(5, (1, 1, 1, 1), frozenset(range(4)), parameters=sim_parameters())
    cluster.network.latency_ms_min = cluster.network.latency_ms_max = 5
    cluster.nodes[1].ahead_ms = 2_000 + 320
    cluster.start_all()
    cluster.run(10_000)
    epoch_view = cluster.nodes[0].machine.epoch_view(0)
    assert epoch_view is not None
    seat = [sitting.address for sitting in epoch_view.committee.seats].index(cluster.nodes[1].address)
    window = cluster.nodes[0].machine.window(1, 64)
    assert window is not None
    leaders = [decode_block(raw).header.proposer_seat for raw in window.blocks]
    assert len(leaders) > 30 and set(leaders) == {0, 1, 2, 3} - {seat}


class TimedCluster(Cluster):
    """Knows when each node entered each view, and when the time of the view's leader would be over."""

    def __init__(self, seed: int, *, leader: int, ahead_ms: int) -> None:
        super().__init__(seed, (1, 1, 1, 1), frozenset(range(4)), parameters=sim_parameters())
        self.entered: dict[tuple[int, int], tuple[int, int]] = {}
        self.network.latency_ms_max = 10
        for node, off_ms in zip(self.nodes, (-40, 0, 0, 40), strict=True):  # no two clocks are quite the same
            node.ahead_ms = ahead_ms if node.number == leader else off_ms

    def perform(self, node: SimulatedNode, actions: list[r.Action]) -> None:
        super().perform(node, actions)
        if (node.number, node.entered) not in self.entered:
            self.entered[node.number, node.entered] = self.now_ms, node.timers.get(c.LEADER, 0)

    def lasted(self, leader: int) -> tuple[list[int], list[int]]:
        """Return how long after the time-out each view of a leader ended, and how long the others' views lasted.

        As every node but the leader saw it. The time-out is the latest of any node: back-off may differ.
        """
        epoch_view = self.nodes[0].machine.epoch_view(0)
        assert epoch_view is not None
        addresses = [seat.address for seat in epoch_view.committee.seats]
        late_ms: list[int] = []
        others_ms: list[int] = []
        over_ms: dict[int, int] = {}
        for (number, view), (_, at_ms) in self.entered.items():
            over_ms[view] = max(over_ms.get(view, 0), at_ms if number != leader else 0)
        for (number, view), (at_ms, _) in self.entered.items():
            until_ms, _ = self.entered.get((number, view + 1), (0, 0))
            if not view or not until_ms or number == leader:
                continue
            if addresses[epoch_view.committee.leader(view)] == self.nodes[leader].address:
                late_ms.append(until_ms - over_ms[view])
            else:
                others_ms.append(until_ms - at_ms)
        return late_ms, others_ms


@pytest.mark.slow
def test_a_view_of_a_leader_with_a_clock_ahead_ends_by_the_ordinary_time_out() -> None:
    """Also where its blocks are allowed so near the time-out that some vote for them and the others against."""
    slack_ms, leader_ms = 60, sim_parameters().leader_ms  # what messages and checks take
    near = range(leader_ms - 60, leader_ms + 61, 15)
    for hold_ms in (-100, 0, 50, 100, *near, 300, 400, 10_000, 3_600_000):
        cluster = TimedCluster(hold_ms, leader=1, ahead_ms=TIME_AHEAD_MS_MAX + hold_ms)
        cluster.start_all()
        cluster.run(3_000)
        late_ms, others_ms = cluster.lasted(1)
        assert len(late_ms) > 10 and len(others_ms) > 30
        assert max(late_ms) <= slack_ms, f"held for {hold_ms} ms"
        assert max(others_ms) <= 2 * slack_ms, f"held for {hold_ms} ms: the others go on at full speed"
