"""The core of SDBFT: rules R1 to R9 as a state machine; events in, effects out, no I/O, no clock (consensus.md 4).

Signatures and shapes are verified before an event arrives; the shell performs the effects in order. Long work
(build, check, execute) is an effect whose answer is an event: the core never waits. ``Core`` routes events between
its parts, each in a module of this folder with its own state:

- ``block_tree``: the held blocks; ``certificates``, ``vote_table``, ``own_votes``: the votes. - ``current_view``:
the view and its time-outs; ``seat_activity``: when seats were last heard. - ``voting``, ``proposing``,
``committing``: this seat's votes and proposals, and final blocks. - ``execution``, ``proposal_checks``: the
shell's work on blocks. - ``fetching``, ``retransmission``: requests for missing data, and repetition. -
``doppelganger``: a second process with the same key.

Easily missed consequences of the rules:

- A vote implies that its sender has a certificate of the previous view, so certificates are not announced. A
replica without it requests it from the sender after ``pull_ms``. - A seat votes FINALIZE even after a quorum did,
while the block is not committed here: FINALIZE votes count for downtime. - Certificates of committed views are
kept for ``EVIDENCE_VIEWS``: a conflicting one convicts more than W/3. - Certificates and voted blocks are durable
before a vote that rests on them is sent (``KeepCertificate``, and the block of a vote). Otherwise a crash of all
replicas at once could lose a notarised block for ever, or the only proof that a view ended.

A replica that catches up holds thousands of blocks and certificates. So no event visits all of them: indexes find
what a block or a certificate makes possible, and each block is visited a bounded number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from consensus.core.block_tree import BlockTree
from consensus.core.certificates import CertificateTable
from consensus.core.committing import Committer
from consensus.core.current_view import CurrentView
from consensus.core.doppelganger import DoppelgangerCheck
from consensus.core.execution import Execution
from consensus.core.fetching import BlockFetch, CertificateFetch, SeatRotation
from consensus.core.limits import EVIDENCE_VIEWS, VIEWS_AHEAD
from consensus.core.outbox import Outbox
from consensus.core.own_votes import OwnVoteRecord
from consensus.core.proposal_checks import ProposalChecks
from consensus.core.proposing import Proposer
from consensus.core.retransmission import Retransmission
from consensus.core.seat_activity import SeatActivity
from consensus.core.setup import Setup
from consensus.core.vote_table import VoteTable
from consensus.core.voting import Voter
from consensus.events import (
    ADVANCE,
    FETCH,
    IDLE,
    LEADER,
    NOTHING_RESTORED,
    PULL,
    RETRANSMIT,
    WATCH,
    BlockBuilt,
    BlockChecked,
    BlockEarly,
    BlockExecuted,
    BlockReceived,
    BlocksReceived,
    BuildFailed,
    CertificateReceived,
    ConsensusParameters,
    Effect,
    Epoch,
    Event,
    FoundEquivocation,
    FoundFork,
    KeepCertificate,
    MempoolChanged,
    OwnVotesKnown,
    ProposalReceived,
    PushCertificate,
    Restored,
    Root,
    Start,
    TimerFired,
    VoteReceived,
    WindowsFailed,
)
from consensus.evidence import evidence_of_certificates
from consensus.guard import DoppelgangerWatch
from consensus.votes import Certificate
from consensus.wire import NULLS_MAX
from state.primitives.blocks import Header
from state.primitives.committee import Committee
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate, Vote

__all__ = ["Core"]

_CONTRADICTION: Final = "certificates of epoch {}, view {} contradict each other: a third of the weight is faulty"


class Core:
    """One replica in one epoch. ``seat`` is None for an observer, which follows and never votes.

    After the epoch's last block, that block is proposed again until it is final (consensus.md R16). Then the core
    has ended and only looks for faults. ``watches_own_seat`` halts on a vote of the own seat that the own guard
    has not made (doppelganger), above ``floor_view``, up to which the guard has no record. During ``watch``, or
    while the own votes are unknown, the core listens and casts no vote. ``heard_ms`` has when seats were last
    heard before this epoch, ``waited_ms`` since when others are waited for.
    """

    voter_type: ClassVar[type[Voter]] = Voter
    proposer_type: ClassVar[type[Proposer]] = Proposer
    block_fetch_type: ClassVar[type[BlockFetch]] = BlockFetch
    """Tests replace parts by versions with seeded bugs."""

    def __init__(
        self,
        *,
        epoch: Epoch,
        genesis_hash: bytes,
        seat: int | None,
        root: Root,
        parameters: ConsensusParameters,
        restored: Restored = NOTHING_RESTORED,
        watches_own_seat: bool = True,
        watch: DoppelgangerWatch | None = None,
        knows_own_votes: bool = True,
        floor_view: int = 0,
        heard_ms: Mapping[int, int] | None = None,
        waited_ms: Mapping[int, int] | None = None,
        has_transactions: bool = True,
    ) -> None:
        self._committee: Committee = epoch.committee
        self._epoch = epoch.number
        self._seat = seat
        self._restored = restored
        self._now_ms = 0
        setup = Setup(epoch, epoch.committee, genesis_hash, seat, parameters)
        self._idle_ms = parameters.idle_ms
        self._outbox = outbox = Outbox()
        self._tree = tree = BlockTree(root, epoch.last_height)
        self._certificates = certificates = CertificateTable(tree)
        self._votes = VoteTable(epoch.committee)
        self._own = own = OwnVoteRecord()
        self._view = view = CurrentView(setup, certificates, outbox, root_view=root.view)
        self.activity = SeatActivity(setup, heard_ms, waited_ms)
        """When seats were last heard; the shell may read it."""
        self._doppelganger = doppelganger = DoppelgangerCheck(
            seat,
            own,
            tree,
            outbox,
            halts=watches_own_seat,
            watch=watch,
            knows_own_votes=knows_own_votes,
            floor_view=floor_view,
        )
        rotation = SeatRotation(setup)
        self._block_fetch = self.block_fetch_type(setup, tree, certificates, rotation, outbox)
        self._certificate_fetch = CertificateFetch(setup, view, tree, certificates, rotation, outbox)
        self._execution = Execution(tree, certificates, self._block_fetch, outbox)
        checks = ProposalChecks(outbox)
        self._voter = self.voter_type(
            setup,
            view=view,
            tree=tree,
            certificates=certificates,
            execution=self._execution,
            checks=checks,
            certificate_fetch=self._certificate_fetch,
            own=own,
            doppelganger=doppelganger,
            outbox=outbox,
        )
        self._proposer = self.proposer_type(
            setup,
            view=view,
            tree=tree,
            certificates=certificates,
            execution=self._execution,
            checks=checks,
            certificate_fetch=self._certificate_fetch,
            votes=self._votes,
            own=own,
            doppelganger=doppelganger,
            outbox=outbox,
            has_transactions=has_transactions,
        )
        self._committer = Committer(
            tree=tree,
            certificates=certificates,
            execution=self._execution,
            fetch=self._block_fetch,
            checks=checks,
            own=own,
            voter=self._voter,
            outbox=outbox,
        )
        self._retransmission = Retransmission(
            setup,
            view=view,
            certificates=certificates,
            own=own,
            proposer=self._proposer,
            rotation=rotation,
            outbox=outbox,
        )

    # Queries of the shell.

    @property
    def view(self) -> int:
        """The current view."""
        return self._view.number

    @property
    def epoch(self) -> int:
        """The epoch this core serves."""
        return self._epoch

    @property
    def committee(self) -> Committee:
        """The committee of the epoch."""
        return self._committee

    @property
    def has_ended(self) -> bool:
        """Whether the epoch's last block is committed."""
        return self._tree.has_ended

    @property
    def is_over(self) -> bool:
        """Whether the epoch's last block is known to be final, so that remaining votes do not matter."""
        return self._certificates.is_epoch_over

    @property
    def is_listening(self) -> bool:
        """Whether this seat casts no vote yet."""
        return self._doppelganger.is_listening

    @property
    def root(self) -> Root:
        """The last committed block."""
        return self._tree.root

    @property
    def final_certificate(self) -> Certificate | None:
        """The newest FINALIZE certificate known, whether or not its block is here."""
        return self._certificates.final

    @property
    def is_halted(self) -> bool:
        """Whether the core has stopped for good."""
        return self._outbox.is_halted

    @property
    def known_height(self) -> int:
        """The height of the newest block known to be final; more than the root's while behind."""
        return self._certificates.known_height

    def wants_vote(self, vote: Vote) -> bool:
        """Tell whether a vote could change anything (consensus.md R8), before its signature is verified."""
        view = self._view.number
        if vote.epoch != self._epoch or vote.view < view - EVIDENCE_VIEWS:
            return False
        if vote.view > view + VIEWS_AHEAD:
            # Too far ahead to be counted, but it tells that this replica is behind.
            return vote.view > self._certificate_fetch.hinted_view + 1
        votes = self._votes.sets.get(vote.view)
        return votes is None or votes.is_wanted(vote)

    def wants_certificate(self, certificate: Certificate) -> bool:
        """Tell whether a certificate is new and still of use."""
        if certificate.epoch != self._epoch:
            return False
        if certificate.view <= self._tree.root.view:
            return bool(self._certificates.conflicts(certificate))
        known = self._certificates.of_kind(certificate.kind).get(certificate.view)
        return known is None or known.candidate != certificate.candidate

    def wants_proposal(self, candidate: Candidate) -> bool:
        """Tell whether a proposal is for a view that can still use it."""
        view = self._view.number
        return (
            candidate.epoch == self._epoch
            and view <= candidate.view <= view + NULLS_MAX
            and candidate.view not in self._voter.proposals
        )

    def wants_block(self, block_hash: bytes) -> bool:
        """Tell whether a block was requested."""
        return self._block_fetch.is_asked(block_hash)

    def is_held(self, block_hash: bytes) -> bool:
        """Tell whether the block is held above the root."""
        return block_hash in self._tree.headers

    def certificates(self, from_view: int, to_view: int) -> tuple[Certificate, ...]:
        """Return what is held for these views, and the certificates that prove the newest state."""
        return self._certificates.between(from_view, to_view, self._certificates.newest(self._view.number))

    def all_certificates(self) -> tuple[Certificate, ...]:
        """Return every certificate above the root, in the order of views."""
        return self._certificates.all()

    def own_votes(self) -> tuple[Vote, ...]:
        """Return the signed own votes above the root."""
        return self._own.all()

    def is_late(self, vote: Vote) -> bool:
        """Tell whether a vote arrives after the decision that it could have helped."""
        if vote.kind == FINALIZE:
            final = self._certificates.final
            return final is not None and vote.view <= final.view
        return vote.view < self._view.number

    def sizes(self) -> dict[str, int]:
        """Return how many views of votes, proposals, blocks and requests are kept."""
        return {
            "votes": len(self._votes),
            "proposals": len(self._voter.proposals),
            "headers": len(self._tree.headers),
            "fetching": len(self._block_fetch),
            "missing": len(self._execution.missing),
            **self._certificates.sizes(),
            "cast": len(self._own),
        }

    # The one way in.

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event at a monotonic time and return what to do, in order."""
        if self._outbox.is_halted:
            return []
        self._now_ms = now_ms
        if self._tree.has_ended:
            return self._step_ended(event)
        match event:
            case VoteReceived(vote, is_own):
                self._on_vote(vote, is_own)
            case CertificateReceived(certificate):
                self._absorb(certificate, is_formed=False)
            case ProposalReceived(vote, header):
                self._on_proposal(vote, header)
            case TimerFired(name):
                self._on_timer(name)
            case BlockExecuted(block_hash, state_root, receipt_root):
                self._on_executed(block_hash, state_root, receipt_root)
            case BlockChecked(block_hash, is_valid):
                self._voter.check_answered(block_hash, is_valid=is_valid)
            case BlockEarly(block_hash):
                self._voter.check_is_early(block_hash)
            case BlockReceived(block_hash, header):
                self._on_block(block_hash, header)
            case BlocksReceived(certificate, blocks):
                self._on_blocks(certificate, blocks)
            case BlockBuilt(view, block_hash, header):
                self._proposer.built(view, block_hash, header)
            case BuildFailed(view):
                if view == self._view.number:
                    self._voter.nullify("build")
            case MempoolChanged(has_transactions):
                self._on_mempool(has_transactions)
            case OwnVotesKnown(votes, floor_view):
                self._on_own_votes(votes, floor_view)
            case WindowsFailed():
                self._block_fetch.windows_failed()
                self._execution.ask_missing()
                self._progress()
            case Start():
                self._on_start()
            case _:
                raise AssertionError(event)
        return self._outbox.take()

    def _step_ended(self, event: Event) -> list[Effect]:
        """After the last block nothing is decided here, but faults are still detected."""
        view = self._view.number
        match event:
            case VoteReceived(vote, False) if vote.view >= view - EVIDENCE_VIEWS:
                if vote.view <= view + VIEWS_AHEAD and vote.seat != self._seat:
                    equivocation = self._votes.of(vote.view).add(vote).equivocation
                    if equivocation is not None:
                        self._outbox.emit(FoundEquivocation(equivocation))
            case CertificateReceived(certificate) if certificate.view <= self._tree.root.view:
                self._absorb(certificate, is_formed=False)
            case _:
                pass
        return self._outbox.take()

    # Start.

    def listen(self, watch: DoppelgangerWatch) -> None:
        """Cast no vote until the watch is over; call it before Start."""
        self._doppelganger.listen(watch)

    def _on_start(self) -> None:
        self.activity.start(self._now_ms)
        self._doppelganger.start(self._now_ms)
        restored, self._restored = self._restored, Restored()
        root_view = self._tree.root.view
        own = [vote for vote in restored.own if vote.view > root_view and vote.epoch == self._epoch]
        for vote in own:
            self._own.bind(vote.kind, vote.candidate)
            self._own.keep(vote)
        for block_hash, header in restored.headers:
            self._execution.hold(block_hash, header)
        certificates, view = self._certificates, root_view
        for certificate in restored.certificates:
            if certificate.epoch != self._epoch:
                continue
            if certificate.view <= root_view:
                certificates.restore_past(certificate)
            elif certificate.view not in certificates.of_kind(certificate.kind):
                self._committer.register(certificate)
                view = max(view, certificate.view)
                certificates.raise_final(certificate)
        self._voter.open_notarized()
        for certified in (*certificates.notarized.values(), *certificates.finalized.values()):
            self._execution.require(certified)
        self._enter(view + 1)
        # Counted again only now: a certificate that they complete is absorbed by a replica that is in a view.
        for vote in own:
            if vote.view > self._tree.root.view:
                self._on_vote(vote, True)
        self._voter.try_finalize_open()
        self._progress()
        # The others learn at once where this replica is, and answer with what it missed.
        self._retransmission.send()

    # Votes.

    def _on_vote(self, vote: Vote, is_own: bool) -> None:
        seat, view, current = vote.seat, vote.view, self._view.number
        if seat == self._seat and not is_own:
            self._doppelganger.compare(vote)
            return
        if seat >= self._committee.size:
            return  # the guard recorded it on another chain, whose committee of this epoch was larger
        self.activity.heard_ms[seat] = self._now_ms
        if is_own:
            self._own.keep(vote)
        elif view > current:
            # Its sender has a certificate for every view up to the one before, or one that skips them.
            self._certificate_fetch.hint(view - 1, seat)
        if view > current + VIEWS_AHEAD or view < current - EVIDENCE_VIEWS:
            return
        _, certificate, equivocation = self._votes.of(view).add(vote)
        if equivocation is not None:
            self._outbox.emit(FoundEquivocation(equivocation))
        if view == current and seat == self._committee.leader(view) and not is_own:
            # The leader itself gave the view up, or made it impossible to agree: no need to wait for the time-out.
            if vote.kind == NULLIFY:
                self._voter.nullify("leader_nullify")
            elif equivocation is not None and vote.kind == NOTARIZE:
                self._voter.nullify("equivocation")
        if certificate is not None:
            self._absorb(certificate, is_formed=True)

    def _on_own_votes(self, votes: tuple[Vote, ...], floor_view: int) -> None:
        if self._doppelganger.knows_own_votes:
            return
        self._doppelganger.learn_own_votes(floor_view)
        own = [vote for vote in votes if vote.epoch == self._epoch and vote.view > self._tree.root.view]
        for vote in own:
            self._own.bind(vote.kind, vote.candidate)
        for vote in own:
            self._on_vote(vote, True)
        if own and not self._outbox.is_halted and not self._tree.has_ended:
            self._retransmission.send()  # some may never have left
        self._begin_voting()

    def _begin_voting(self) -> None:
        """Voting may begin: set time-outs again that expired while this seat only listened."""
        if not self._doppelganger.is_listening and not self._outbox.is_halted:
            self._view.arm()
            self._voter.try_finalize_open()
            self._progress()

    # Certificates.

    def _absorb(self, certificate: Certificate, *, is_formed: bool) -> None:
        """Process a certificate, received or formed from votes. It may end the view or make a block final."""
        kind, view = certificate.kind, certificate.view
        certificates, outbox = self._certificates, self._outbox
        if certificate.epoch != self._epoch:
            return
        conflicts = certificates.conflicts(certificate)
        if conflicts:
            self._report_faults(certificate, conflicts)
            outbox.halt("safety", _CONTRADICTION.format(self._epoch, view))
            return
        if view <= self._tree.root.view or view in certificates.of_kind(kind):
            return
        self._committer.register(certificate)
        if not is_formed and self._doppelganger.compare_certificate(certificate):
            return
        if certificates.is_contradiction(view):
            outbox.halt("safety", _CONTRADICTION.format(self._epoch, view))
            return
        outbox.emit(KeepCertificate(certificate, is_formed))
        certificates.raise_final(certificate)
        if kind == NOTARIZE:
            self._voter.open_view(view)
        if kind != NULLIFY:
            self._execution.require(certificate)
        # Before the next view is entered: there this seat may have to give up the view that it can still finalise.
        if kind == NOTARIZE:
            self._voter.try_finalize(view)
        if kind == FINALIZE:
            self._committer.try_commit()
        if self._tree.has_ended:
            return
        if view >= self._view.number:
            self._enter(view + 1)
            if kind == NULLIFY:
                # The next leader has to show this certificate in its proposal; the others form it from votes.
                leader = self._committee.leader(self._view.number)
                if leader != self._seat:
                    outbox.emit(PushCertificate(leader, (certificate,)))
        elif not outbox.is_halted:
            self._proposer.try_propose()
            self._voter.try_notarize()

    def _report_faults(self, certificate: Certificate, conflicts: tuple[Certificate, ...]) -> None:
        for conflict in conflicts:
            for fault in evidence_of_certificates(conflict, certificate):
                self._outbox.emit(FoundEquivocation(fault))

    # Views.

    def _enter(self, view: int) -> None:
        """Begin a view, whose predecessor has a certificate (consensus.md R2)."""
        leader = self._view.enter(view)
        if self._doppelganger.entered_view(self._now_ms):
            self._voter.try_finalize_open()
            if self._outbox.is_halted:
                return
        self._voter.entered_view()
        self._certificate_fetch.entered_view()
        self._view.has_idle_time = self._proposer.waits_for_transactions
        self._view.arm(self._idle_ms if self._view.has_idle_time else 0)
        self._retransmission.entered_view()
        self._committer.drop_candidates(view)
        self._votes.entered_view(view)
        if self.activity.is_silent(leader, self._now_ms):
            self._voter.nullify("inactive")
        self._proposer.try_propose()
        self._voter.try_notarize()

    def _on_timer(self, name: str) -> None:
        if name == LEADER:
            self._voter.leader_timed_out(is_proposing=self._proposer.has_proposed)
        elif name == ADVANCE:
            self._voter.nullify("advance")
        elif name == RETRANSMIT:
            self._retransmission.timer_fired()
        elif name == FETCH:
            self._block_fetch.timer_fired()
            self._execution.ask_missing()
            self._block_fetch.rearm()
        elif name == PULL:
            self._certificate_fetch.timer_fired()
        elif name == WATCH:
            if self._doppelganger.timer_fired(self._now_ms):
                self._begin_voting()
        elif name == IDLE:
            self._proposer.idle_fired()

    def _on_mempool(self, has_transactions: bool) -> None:
        self._proposer.has_transactions = has_transactions
        if not has_transactions:
            return
        if self._view.has_idle_time:
            # The leader need not wait any more, so its time is counted from now.
            self._view.has_idle_time = False
            if self._view.number not in self._voter.proposals or self._voter.holds_early:
                self._view.arm()
        self._proposer.try_propose()

    # Blocks.

    def _on_proposal(self, vote: Vote, header: Header) -> None:
        view, block_hash = vote.view, vote.block_hash
        if vote.seat == self._seat:
            self._doppelganger.compare(vote)
            return
        self._on_vote(vote, False)  # it may end the current view
        current = self._view.number
        if self._outbox.is_halted or not current <= view <= current + VIEWS_AHEAD or view in self._voter.proposals:
            return
        self._voter.add_proposal(vote.candidate)
        if block_hash != self._tree.root.block_hash:
            self._execution.hold(block_hash, header)
        if view == current:
            self._voter.try_notarize()
        self._progress_block(block_hash)

    def _on_block(self, block_hash: bytes, header: Header) -> None:
        if self._block_fetch.is_asked(block_hash):
            self._execution.hold(block_hash, header)
            self._progress_block(block_hash)

    def _on_blocks(self, certificate: Certificate, blocks: tuple[tuple[bytes, Header], ...]) -> None:
        root = self._tree.root
        above = [(block_hash, header) for block_hash, header in blocks if header.height > root.height]
        if not above or above[-1][0] != certificate.block_hash:
            return
        lowest = above[0][1]
        if lowest.parent_hash != root.block_hash and lowest.parent_hash not in self._tree.headers:
            if lowest.height == root.height + 1:
                # A FINALIZE quorum stands on another block than this node's last committed one.
                self._report_faults(certificate, self._certificates.conflicts(certificate))
                self._outbox.emit(FoundFork(certificate))
                self._outbox.halt("safety", f"the final block {lowest.height} does not follow this node's chain")
            return
        for block_hash, header in above:
            self._execution.hold(block_hash, header)
        for block_hash, _ in above:
            self._resume(block_hash)
        if not self._outbox.is_halted:
            self._absorb(certificate, is_formed=False)
        if not self._outbox.is_halted:
            self._progress()

    def _on_executed(self, block_hash: bytes, state_root: bytes, receipt_root: bytes) -> None:
        children = self._execution.finished(block_hash, state_root, receipt_root)
        if children is None:
            return
        self._committer.executed(block_hash)
        for child in children:
            self._voter.try_finalize_block(child)
        if not self._outbox.is_halted:
            self._progress()

    def _progress_block(self, block_hash: bytes) -> None:
        if block_hash in self._tree.headers:
            self._resume(block_hash)
            self._progress()

    def _resume(self, block_hash: bytes) -> None:
        """A block has arrived: do what waited for it."""
        self._execution.resume(block_hash)
        self._voter.try_finalize_block(block_hash)

    def _progress(self) -> None:
        """Something arrived: retry everything that may have waited for it."""
        if self._execution.missing and self._block_fetch.is_far:
            self._block_fetch.report_gap()
        if not self._outbox.is_halted:
            self._committer.try_commit()
        if not self._outbox.is_halted and not self._tree.has_ended:
            self._proposer.try_propose()
            self._voter.try_notarize()
