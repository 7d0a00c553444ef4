"""When this seat votes: NOTARIZE, NULLIFY and FINALIZE (consensus.md R3, R4, R5)."""

from __future__ import annotations

from collections.abc import Mapping

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
from consensus.events import CastVote
from consensus.min_key_dict import MinKeyDict
from state.primitives.hashing import ZERO_HASH
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY, Candidate

__all__ = ["Voter"]


class Voter:
    """Judges proposals and casts the own seat's votes.

    An observer judges too, so that it executes early enough.
    """

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
        own: OwnVoteRecord,
        doppelganger: DoppelgangerCheck,
        outbox: Outbox,
    ) -> None:
        self._setup = setup
        self._seat = setup.seat
        self._epoch = setup.epoch.number
        self._view = view
        self._tree = tree
        self._certificates = certificates
        self._execution = execution
        self._checks = checks
        self._certificate_fetch = certificate_fetch
        self._own = own
        self._doppelganger = doppelganger
        self._outbox = outbox
        self._proposals: dict[int, Candidate] = {}
        self.proposals: Mapping[int, Candidate] = self._proposals
        """The first proposal of the leader for each view from the current one on; other parts only read it."""
        self._open: MinKeyDict[int, None] = MinKeyDict()
        """Notarised views in which this seat may still vote FINALIZE."""

    # Proposals.

    def add_proposal(self, candidate: Candidate) -> None:
        """Keep the first proposal of a view."""
        self._proposals[candidate.view] = candidate

    def entered_view(self) -> None:
        """Drop the proposals of past views."""
        for old in [known for known in self._proposals if known < self._view.number]:
            del self._proposals[old]

    @property
    def holds_early(self) -> bool:
        """Whether the proposal of this view has or had to wait for this node's clock.

        Only a certificate ends such a view before the leader's time-out, not this node's vote. Clocks differ: if
        the block's time is near the time-out, some seats would vote for the block and others against it. All would
        then wait for the end of the view, whenever this leader leads.
        """
        candidate = self._proposals.get(self._view.number)
        return candidate is not None and self._checks.is_early(candidate.block_hash)

    # NOTARIZE.

    def try_notarize(self) -> None:
        """Judge the proposal of the current view, and vote for or against it (consensus.md R3)."""
        view = self._view.number
        candidate = self._proposals.get(view)
        if candidate is None or self._outbox.is_halted:
            return
        cast = self._own.cast(view)
        if self._seat is not None and (NOTARIZE in cast or NULLIFY in cast):
            return
        if self._certificates.is_epoch_over:
            return
        is_valid = self._judge(candidate)
        if is_valid is None:
            return
        if not is_valid:
            self.nullify("invalid")
            return
        if self._seat is not None and not self._doppelganger.is_listening:
            self._cast(NOTARIZE, candidate)
        # Execution begins before the certificate: FINALIZE votes for the child need this block's result.
        self._execution.drive(candidate.block_hash)

    def _judge(self, candidate: Candidate) -> bool | None:
        """Whether the proposal may be voted for (consensus.md R3); None while information is missing."""
        view, parent_view, root = candidate.view, candidate.parent_view, self._tree.root
        certificates, results = self._certificates, self._execution.results
        if parent_view < root.view:
            return False  # it skips a final view, of which no nullification can exist
        if parent_view == root.view:
            parent_hash = root.block_hash
        else:
            certified = certificates.for_block(parent_view)
            if certified is None:
                self._certificate_fetch.lack(parent_view)
                return None
            parent_hash = certified.block_hash
        for skipped in range(view - 1, parent_view, -1):
            if skipped not in certificates.nullified:
                self._certificate_fetch.lack(skipped)
                return None
        if parent_hash not in results:
            if parent_hash in self._tree.headers:
                self._execution.drive(parent_hash)
            return None
        if self._tree.height_of(parent_hash) == self._tree.last_height:
            # Nothing may stand on the epoch's last block: it is proposed again until final (consensus.md R16).
            return candidate.block_hash == parent_hash
        header = self._tree.headers.get(candidate.block_hash)
        if header is None:
            return False if candidate.block_hash == root.block_hash else None
        if not self._follows(candidate, parent_hash):
            return False
        return self._checks.judge(candidate.block_hash)

    def _follows(self, candidate: Candidate, parent_hash: bytes) -> bool:
        """Whether the header of a held block is the one that this view's leader must make on this parent."""
        header = self._tree.headers[candidate.block_hash]
        committee = self._setup.committee
        return (
            header.view == candidate.view
            and header.parent_hash == parent_hash
            and header.height == self._tree.height_of(parent_hash) + 1
            and header.epoch == self._epoch
            and header.proposer_seat == committee.leader(candidate.view)
            and header.genesis_hash == self._setup.genesis_hash
            and header.committee_hash == committee.hash
            # The header carries the results of its parent, not its own: execution is one block behind agreement.
            and (header.state_root, header.receipt_root) == self._execution.results[parent_hash]
        )

    def check_answered(self, block_hash: bytes, *, is_valid: bool) -> None:
        """Process the answer of a check."""
        is_held = block_hash in self._tree.headers
        self._checks.answered(block_hash, is_valid=is_valid if is_held else None)
        if is_held:
            self.try_notarize()

    def _cast(self, kind: int, candidate: Candidate, reason: str = "") -> None:
        self._own.bind(kind, candidate)
        self._outbox.emit(CastVote(kind, candidate, reason))

    # NULLIFY.

    def nullify(self, reason: str) -> None:
        """Vote NULLIFY in the current view, unless this seat voted FINALIZE in it (consensus.md R4)."""
        view = self._view.number
        if self._seat is None or self._doppelganger.is_listening or self._certificates.is_epoch_over:
            return
        cast = self._own.cast(view)
        if NULLIFY in cast or FINALIZE in cast:
            return
        self._cast(NULLIFY, Candidate(self._epoch, view, 0, ZERO_HASH), reason)

    def check_is_early(self, block_hash: bytes) -> None:
        """This node's clock does not allow the block yet: nullify if the leader's time-out has passed."""
        if not self._checks.mark_early(block_hash):
            return
        if self._view.leader_timed_out == self._view.number and self.holds_early:
            self.nullify("early")

    def leader_timed_out(self, *, is_proposing: bool) -> None:
        """The leader's time-out passed: nullify if it has not proposed; ``is_proposing``: this node has."""
        self._view.leader_timed_out = self._view.number
        if self.holds_early:
            self.nullify("early")
        elif self._view.number not in self._proposals and not is_proposing:
            self.nullify("leader")

    # FINALIZE.

    def open_view(self, view: int) -> None:
        """A view was notarised: this seat may vote FINALIZE in it, also after the view is over."""
        self._open[view] = None

    def open_notarized(self) -> None:
        """Open all views that are notarised at the start."""
        self._open = MinKeyDict((view, None) for view in self._certificates.notarized)

    def try_finalize(self, view: int) -> None:
        """Vote FINALIZE in a view, also in a past one (consensus.md R5). A different result of the parent halts.

        The vote is cast even if the view is final without it, while the block is not committed here: FINALIZE
        votes count for downtime, and a slow seat is not an absent one.
        """
        if self._seat is None or self._doppelganger.is_listening or view not in self._open:
            return
        cast = self._own.cast(view)
        if NULLIFY in cast or FINALIZE in cast:
            self._open.pop(view, None)
            return
        certificate = self._certificates.notarized[view]
        header = self._tree.headers.get(certificate.block_hash)
        if header is None:
            if certificate.block_hash == self._tree.root.block_hash:  # the last block again, already final
                self._open.pop(view, None)
            return
        # The vote vouches for the parent's result, so it waits until this node has computed it.
        parent = self._execution.results.get(header.parent_hash)
        if parent is None:
            return
        if parent != (header.state_root, header.receipt_root):
            self._execution.halt_diverged(header)
            return
        self._open.pop(view, None)
        self._cast(FINALIZE, certificate.candidate)

    def try_finalize_open(self) -> None:
        """Retry all open views: this seat may vote from now on."""
        for view in sorted(self._open):
            self.try_finalize(view)

    def try_finalize_block(self, block_hash: bytes) -> None:
        """Retry the views that notarised a block: its parent was executed, or it arrived."""
        for view in tuple(self._certificates.notarized_views(block_hash)):
            self.try_finalize(view)

    def committed(self, root_view: int) -> None:
        """Close the views up to the root's view: their blocks are final."""
        self._open.take(root_view)
