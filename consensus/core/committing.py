"""Commits: when a block becomes final on this node, and what is dropped with it (consensus.md R6)."""

from __future__ import annotations

from consensus.core.block_tree import BlockTree
from consensus.core.certificates import CertificateTable
from consensus.core.execution import Execution
from consensus.core.fetching import BlockFetch
from consensus.core.limits import CATCH_UP_COMMIT_BLOCKS, KEPT_CANDIDATE_VIEWS
from consensus.core.outbox import Outbox
from consensus.core.own_votes import OwnVoteRecord
from consensus.core.proposal_checks import ProposalChecks
from consensus.core.voting import Voter
from consensus.events import Commit, DropBlocks, EpochEnded, Root
from consensus.votes import Certificate
from state.primitives.votes import FINALIZE, NULLIFY

__all__ = ["Committer"]


class Committer:
    """Commits the block of the highest FINALIZE certificate once it and its ancestors are executed."""

    def __init__(
        self,
        *,
        tree: BlockTree,
        certificates: CertificateTable,
        execution: Execution,
        fetch: BlockFetch,
        checks: ProposalChecks,
        own: OwnVoteRecord,
        voter: Voter,
        outbox: Outbox,
    ) -> None:
        self._tree = tree
        self._certificates = certificates
        self._execution = execution
        self._fetch = fetch
        self._checks = checks
        self._own = own
        self._voter = voter
        self._outbox = outbox
        self._committable: Certificate | None = None
        """The highest of the FINALIZE certificates whose block is executed."""

    def register(self, certificate: Certificate) -> None:
        """Keep a certificate above the root, the first of its kind and view."""
        self._certificates.register(certificate)
        block_hash = certificate.block_hash
        if certificate.kind == FINALIZE and block_hash in self._execution.results:
            self._may_commit(certificate)
        if certificate.kind != NULLIFY:
            self._tree.mark_certified(block_hash)

    def executed(self, block_hash: bytes) -> None:
        """Take note that a block is executed, and so are its ancestors above the root."""
        for view in self._certificates.finalized_views(block_hash):
            self._may_commit(self._certificates.finalized[view])

    def _may_commit(self, certificate: Certificate) -> None:
        if self._committable is None or certificate.view > self._committable.view:
            self._committable = certificate

    def try_commit(self) -> None:
        """Commit what can be committed."""
        certificate = self._committable
        if certificate is None or self._more_come_first(certificate):
            return
        path = self._tree.path(certificate.block_hash)
        if path is not None:
            self._commit(certificate, path)

    def _more_come_first(self, certificate: Certificate) -> bool:
        """Whether a commit waits for further blocks that are being executed; each of them triggers another
        attempt.
        """
        header = self._tree.headers.get(certificate.block_hash)
        if header is None or not self._execution.is_running:
            return False
        height, root_height = header.height, self._tree.root.height
        return height - root_height < CATCH_UP_COMMIT_BLOCKS < self._certificates.known_height - root_height

    def _commit(self, certificate: Certificate, path: list[bytes]) -> None:
        tree, before = self._tree, self._tree.root
        block_hash, view = certificate.block_hash, certificate.view
        results = self._execution.results[block_hash]
        height = before.height + len(path)
        self._committable = None
        nullified = self._certificates.retire(view)
        self._outbox.emit(Commit(certificate, tuple(path), height, nullified))
        tree.advance(Root(block_hash, height, view, results[0], results[1], certificate), path)
        self._fetch.committed()
        self._own.retire(view)
        self._voter.committed(view)
        self._forget(tree.dead_below_root(before.height))
        if before.block_hash != block_hash:  # the epoch's last block may become final again
            self._execution.forget_result(before.block_hash)
        if tree.has_ended:
            self._outbox.emit(EpochEnded(certificate))
        elif self._fetch.is_far:
            self._fetch.report_gap()  # windows bring what is missing, which may be much
        else:
            self._execution.ask_missing()

    def drop_candidates(self, view: int) -> None:
        """Drop candidates of old views that have no certificate and no vote of this seat."""
        tree = self._tree
        if len(tree.uncertified) <= 2 * KEPT_CANDIDATE_VIEWS:
            return
        # An own NOTARIZE vote promises that others can get the block here, while a certificate for it may appear.
        promised = []
        for block_hash in tree.uncertified:
            at = tree.headers[block_hash].view
            if (
                at > tree.root.view
                and at not in self._certificates.nullified
                and self._own.promises(at, block_hash)
            ):
                promised.append(block_hash)
        dead = tree.stale_candidates(view - KEPT_CANDIDATE_VIEWS, promised)
        self._execution.release_above(dead)
        self._forget(dead)

    def _forget(self, dead: tuple[bytes, ...]) -> None:
        for block_hash in dead:
            self._tree.remove(block_hash)
            self._execution.forget(block_hash)
            self._checks.forget(block_hash)
        if dead:
            self._outbox.emit(DropBlocks(dead))
