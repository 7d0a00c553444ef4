"""When and on what this seat proposes a block as the leader of a view (consensus.md R1)."""

from __future__ import annotations

from typing import NamedTuple

from consensus.core.block_tree import BlockTree
from consensus.core.certificates import CertificateTable
from consensus.core.current_view import CurrentView
from consensus.core.doppelganger import DoppelgangerCheck
from consensus.core.execution import Execution
from consensus.core.fetching import CertificateFetch
from consensus.core.outbox import Outbox
from consensus.core.own_votes import OwnVoteRecord
from consensus.core.proposal_checks import ProposalChecks
from consensus.core.setup import Setup
from consensus.core.vote_table import VoteTable
from consensus.events import IDLE, Build, Propose, SetTimer
from consensus.votes import Certificate
from consensus.wire import NULLS_MAX
from state.primitives.blocks import Header
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate

__all__ = ["Parent", "Proposer"]


class Parent(NamedTuple):
    """The block below a proposal, its certificate, and the nullifications of the skipped views since."""

    block_hash: bytes
    view: int
    justify: Certificate | None
    nulls: list[Certificate]


class Proposer:
    """Requests a block on the newest certified and executed block, and proposes it."""

    def __init__(
        self,
        setup: Setup,
        *,
        view: CurrentView,
        tree: BlockTree,
        certificates: CertificateTable,
        execution: Execution,
        checks: ProposalChecks,
        certificate_fetch: CertificateFetch,
        votes: VoteTable,
        own: OwnVoteRecord,
        doppelganger: DoppelgangerCheck,
        outbox: Outbox,
        has_transactions: bool,
    ) -> None:
        self._epoch = setup.epoch
        self._committee = setup.committee
        self._seat = setup.seat
        self._idle_ms = setup.parameters.idle_ms
        self._view = view
        self._tree = tree
        self._certificates = certificates
        self._execution = execution
        self._checks = checks
        self._certificate_fetch = certificate_fetch
        self._votes = votes
        self._own = own
        self._doppelganger = doppelganger
        self._outbox = outbox
        self.has_transactions = has_transactions
        self._building_view = 0
        self._proposed_view = 0
        self._idle_over_view = 0
        self._idle_armed_view = 0

    @property
    def has_proposed(self) -> bool:
        """Whether this seat proposed in the current view."""
        return self._proposed_view == self._view.number

    @property
    def waits_for_transactions(self) -> bool:
        """Whether a leader waits before it proposes an empty block."""
        return not self.has_transactions and self._idle_ms > 0

    def idle_fired(self) -> None:
        """The wait for a transaction is over: propose an empty block."""
        if self._building_view < self._view.number:
            self._idle_over_view = self._view.number
            self.try_propose()

    def try_propose(self) -> None:
        """Request a block if this seat leads the view and everything below the block is here."""
        view = self._view.number
        if self._seat is None or self._proposed_view == view or self._committee.leader(view) != self._seat:
            return
        if self._doppelganger.is_listening or self._certificates.is_epoch_over:
            return
        cast = self._own.cast(view)
        if self._building_view == view or NOTARIZE in cast or NULLIFY in cast:
            return
        parent = self._choose_parent()
        if parent is None:
            return
        if self._tree.height_of(parent.block_hash) == self._tree.last_height:
            # Nothing may stand on the epoch's last block: the same block is proposed again (consensus.md R16).
            self._propose(Candidate(self._epoch.number, view, parent.view, parent.block_hash), parent)
            return
        if self.waits_for_transactions and self._idle_over_view != view:
            if self._idle_armed_view != view:
                self._idle_armed_view = view
                self._outbox.emit(SetTimer(IDLE, self._idle_ms))
            return
        self._building_view = view
        bitmap = self._voters_bitmap(parent.block_hash)
        epoch = self._epoch
        self._outbox.emit(Build(epoch.number, view, self._seat, parent.block_hash, bitmap, epoch.randomness))

    def _choose_parent(self) -> Parent | None:
        """The newest certified and executed block after which every view is nullified.

        None if a certificate for that is missing; it is then requested.
        """
        nulls: list[Certificate] = []
        view = self._view.number - 1
        while view > self._tree.root.view:
            certified = self._certificates.for_block(view)
            if certified is not None and certified.block_hash in self._execution.results:
                return Parent(certified.block_hash, view, certified, nulls)
            null = self._certificates.nullified.get(view)
            if null is None:
                self._certificate_fetch.lack(view)
                return None
            nulls.append(null)
            view -= 1
        root = self._tree.root
        return Parent(root.block_hash, root.view, root.certificate, nulls)

    def built(self, view: int, block_hash: bytes, header: Header) -> None:
        """Propose a built block, unless the view, the own vote or the parent changed meanwhile."""
        if view != self._view.number or self._building_view != view:
            return
        cast = self._own.cast(view)
        parent = self._choose_parent()
        if parent is None or NOTARIZE in cast or NULLIFY in cast:
            return
        if header.parent_hash != parent.block_hash:  # a newer parent was certified meanwhile
            self._building_view = 0
            self.try_propose()
            return
        self._execution.hold(block_hash, header)
        self._checks.accept(block_hash)
        self._propose(Candidate(self._epoch.number, view, parent.view, block_hash), parent)
        self._execution.drive(block_hash)

    def _propose(self, candidate: Candidate, parent: Parent) -> None:
        self._proposed_view = candidate.view
        # The proposal is the leader's NOTARIZE vote: it binds like any other.
        self._own.bind(NOTARIZE, candidate)
        self._outbox.emit(Propose(candidate, parent.justify, tuple(parent.nulls[:NULLS_MAX])))

    def _voters_bitmap(self, parent_hash: bytes) -> bytes:
        """The seats whose FINALIZE for the parent's parent is here; empty if they are less than a quorum.

        This gives a slow seat one more block interval than the parent's own certificate. A leader that has just
        started knows too little to report.
        """
        grandparent = self._tree.origin_of(parent_hash)
        origin = self._tree.origin_of(grandparent[0]) if grandparent is not None else None
        if grandparent is None or origin is None:
            return b""
        block_hash, view = grandparent[0], origin[1]
        final = self._certificates.finalized.get(view) or self._certificates.past_finalized(view)
        bits = 0
        if final is not None and final.block_hash == block_hash:
            bits = int.from_bytes(final.bitmap, "little")
        votes = self._votes.sets.get(view)
        if votes is not None:
            for seat in range(self._committee.size):
                vote = votes.get(FINALIZE, seat)
                if vote is not None and vote.block_hash == block_hash:
                    bits |= 1 << seat
        bitmap = bits.to_bytes((self._committee.size + 7) // 8, "little")
        return bitmap if self._committee.weight_of(bitmap) >= self._committee.quorum else b""
