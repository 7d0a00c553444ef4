"""A fork that shows late: the certificates that this chain rests on are the other half of its proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from consensus.evidence import evidence_of_certificates
from consensus.metrics import NoMetrics
from consensus.votes import Certificate
from consensus.wire import encode_certificate
from node.chain.evidence import EvidenceService
from node.chain.forks import ForkUnproven, check_certificate, convict
from node.chain.ledger import NodeLedger
from node.chain.mempool import MempoolOptions
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote, vote_digest
from state.store import ViewCertificate, ViewCertificates
from state.transition.evidence import decode_evidence
from state.transition.staking import load_committee
from tests.node.chain.test_block_tree import GENESIS, SIGNERS, Node

OWN = b"\xcc" * 20
ELSEWHERE = b"e" * 32


def certified(node: Node, kind: int, candidate: Candidate, seats: Sequence[int]) -> Certificate:
    committee = load_committee(node.store, candidate.epoch)
    assert committee is not None
    digest = vote_digest(node.runtime.genesis_hash, kind, candidate)
    votes = [
        Vote(kind, *candidate, seat, SIGNERS[committee.seats[seat].address].sign_vote(digest)) for seat in seats
    ]
    return Certificate.of(committee, votes)


class Forked:
    """A chain of blocks in the views 1, 3 and 4, of which 2 was skipped, and what another chain made final."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node = node = Node(path)
        committee = load_committee(node.store, 0)
        assert committee is not None
        self.seats = range(committee.size)
        # The smallest quorum of this chain: who did not sign it is not convicted.
        self.first = list(self.seats)
        for seat in self.seats:
            if sum(committee.weights[known] for known in self.first if known != seat) >= committee.quorum:
                self.first.remove(seat)
        null = certified(node, NULLIFY, Candidate(0, 2, 0, bytes(32)), self.first)
        kept = [ViewCertificate(0, 2, encode_certificate(null))]
        for view in (1, 3, 4):
            block = node.grow(node.tip_hash, view=view)
            final = certified(node, FINALIZE, Candidate(0, view, max(0, view - 1), block.block_hash), self.first)
            views = ViewCertificates(kept if view == 3 else ())
            node.chain.commit(block.block_hash, encode_certificate(final), views)

    def restart(self) -> None:
        self.node.store.close()
        self.node = Node(self.path)

    def service(self) -> EvidenceService:
        ledger = NodeLedger(self.node.store, self.node.chain, self.node.runtime, MempoolOptions())
        return EvidenceService(
            ledger, lambda _: None, records=self.node.store, reporter=OWN, path=self.path / "evidence",
            metrics=NoMetrics(),
        )  # fmt: skip

    def foreign(self, view: int, kind: int = FINALIZE) -> Certificate:
        return certified(self.node, kind, Candidate(0, view, view - 1, ELSEWHERE), list(self.seats))


@pytest.fixture
def forked(tmp_path: Path) -> Iterator[Forked]:
    made = Forked(tmp_path / "chain")
    yield made
    made.node.store.close()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("view", "fault"), [(2, "E3"), (1, "E2"), (3, "E2"), (4, "E2")])
def test_one_certificate_of_another_chain_convicts_with_what_is_kept(
    forked: Forked, view: int, fault: str, is_restarted: bool
) -> None:
    if is_restarted:
        forked.restart()
    service = forked.service()
    found = service.examine([forked.foreign(view)])
    assert sorted(one.first.seat for one in found) == forked.first
    assert {one.type for one in found} == {fault}
    submitted = service.submit_fork(found, b"\xdd" * 20)
    assert [one.is_new for one in submitted] == [1] * len(forked.first)
    assert {decode_evidence(raw).reporter for raw in service.pending} == {b"\xdd" * 20}
    again = service.submit_fork(service.examine([forked.foreign(view)]), None)
    assert [one.is_new for one in again] == [0] * len(forked.first)
    # What was found is in the block of the next leader.
    block, _ = forked.node.choose(forked.node.tip_hash, [], view=6, evidence=service.take())
    assert len(block.evidence) == len(forked.first)


def test_what_consensus_finds_is_told_with_the_node_as_reporter(forked: Forked) -> None:
    service = forked.service()
    service.found_fork(forked.foreign(2))
    assert {decode_evidence(raw).reporter for raw in service.pending} == {OWN}
    assert len(service.pending) == len(forked.first)


def test_two_certificates_convict_without_any_record(forked: Forked) -> None:
    one, other = forked.foreign(9), certified(
        forked.node, FINALIZE, Candidate(0, 9, 8, b"o" * 32), forked.first
    )  # fmt: skip
    found = forked.service().examine([one, other])
    assert found == evidence_of_certificates(one, other)
    with pytest.raises(ForkUnproven):
        forked.service().examine([one, one])


def test_what_convicts_nobody_or_is_forged_is_refused(forked: Forked) -> None:
    service = forked.service()
    own = forked.node.store.certificate(3)
    assert own is not None
    genuine = forked.foreign(2)
    forged = genuine._replace(signatures=bytes(64) + genuine.signatures[64:])
    small = certified(forked.node, FINALIZE, Candidate(0, 2, 1, ELSEWHERE), [0])
    wrong: list[list[Certificate]] = [
        [forked.foreign(5)],
        [forked.foreign(2, NOTARIZE)],
        [forged],
        [genuine, forged],
        [small],
        [genuine._replace(epoch=1)],
        [genuine._replace(epoch=900)],
        [genuine._replace(bitmap=b"\xff\xff")],
    ]
    for certificates in wrong:
        with pytest.raises(ForkUnproven) as refused:
            service.examine(certificates)
        assert refused.value.code == "fork_unproven"
    assert service.pending == ()
    with pytest.raises(ForkUnproven):
        check_certificate(genuine, None, forked.node.runtime.genesis_hash)
    assert convict(forked.node.store, []) == ()


def test_a_chain_of_another_genesis_proves_nothing(forked: Forked, tmp_path: Path) -> None:
    other = Node(tmp_path / "other", founded=replace(GENESIS, name="another"))
    try:
        candidate = Candidate(0, 2, 1, ELSEWHERE)
        with pytest.raises(ForkUnproven):
            forked.service().examine([certified(other, FINALIZE, candidate, list(forked.seats))])
    finally:
        other.store.close()
