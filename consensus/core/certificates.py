"""The certificates of one epoch: those above the last committed block, and the newest ones up to it.

Certificates up to the root's view are kept for ``EVIDENCE_VIEWS`` views: a later one that conflicts with them
proves a fault of more than a third of the weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from consensus.core.block_tree import BlockTree
from consensus.core.limits import EVIDENCE_VIEWS
from consensus.min_key_dict import MinKeyDict
from consensus.votes import Certificate
from consensus.wire import VIEWS_MAX
from state.primitives.blocks import Header
from state.primitives.votes import FINALIZE, NOTARIZE, NULLIFY

__all__ = ["CertificateTable"]


class CertificateTable:
    """The first certificate of each kind and view.

    Other parts read ``final`` and the mappings by view; only this table changes them.
    """

    def __init__(self, tree: BlockTree) -> None:
        self._tree = tree
        certificate = tree.root.certificate
        self.final = certificate
        """The newest FINALIZE certificate known; its block may be missing here."""
        self._notarized: MinKeyDict[int, Certificate] = MinKeyDict()
        self._nullified: MinKeyDict[int, Certificate] = MinKeyDict()
        self._finalized: MinKeyDict[int, Certificate] = MinKeyDict()
        self.notarized: Mapping[int, Certificate] = self._notarized
        self.nullified: Mapping[int, Certificate] = self._nullified
        self.finalized: Mapping[int, Certificate] = self._finalized
        # The last block of an epoch is proposed again in later views, so that one block may have several
        # certificates of one kind.
        self._notarized_views: dict[bytes, list[int]] = {}
        self._finalized_views: dict[bytes, list[int]] = {}
        self._newest_notarized = 0
        self._past: MinKeyDict[tuple[int, int], Certificate] = MinKeyDict()
        """Certificates up to the root's view, by view and kind."""
        if certificate is not None:
            self._past[tree.root.view, certificate.kind] = certificate

    @property
    def final_view(self) -> int:
        """The newest view that is known to be final."""
        return self.final.view if self.final is not None else self._tree.root.view

    @property
    def final_header(self) -> Header | None:
        """The header of the newest final block; None when that block is missing, or is the root."""
        return self._tree.headers.get(self.final.block_hash) if self.final is not None else None

    @property
    def is_epoch_over(self) -> bool:
        """Whether the epoch's last block is known to be final, so that remaining votes do not matter."""
        if self._tree.has_ended:
            return True
        header = self.final_header
        return header is not None and header.height == self._tree.last_height

    @property
    def known_height(self) -> int:
        """The height of the newest block known to be final; more than the root's while behind."""
        header, root_height = self.final_header, self._tree.root.height
        return root_height if header is None else max(root_height, header.height)

    def of_kind(self, kind: int) -> Mapping[int, Certificate]:
        """Return the certificates of a kind above the root, by view."""
        if kind == NOTARIZE:
            return self._notarized
        return self._nullified if kind == NULLIFY else self._finalized

    def for_block(self, view: int) -> Certificate | None:
        """Return the certificate that names the block of a view: its NOTARIZE, else its FINALIZE certificate."""
        return self._notarized.get(view) or self._finalized.get(view)

    def is_certified(self, block_hash: bytes) -> bool:
        """Tell whether a certificate above the root names the block."""
        return block_hash in self._notarized_views or block_hash in self._finalized_views

    def is_newly_certified(self, block_hash: bytes) -> bool:
        """Tell whether a certificate names the block that is no older than the newest final one."""
        final_view = self.final_view
        views = (*self._notarized_views.get(block_hash, ()), *self._finalized_views.get(block_hash, ()))
        return any(view >= final_view for view in views)

    def notarized_views(self, block_hash: bytes) -> Sequence[int]:
        """Return the views above the root that notarised the block."""
        return self._notarized_views.get(block_hash, ())

    def finalized_views(self, block_hash: bytes) -> Sequence[int]:
        """Return the views above the root that finalised the block."""
        return self._finalized_views.get(block_hash, ())

    def register(self, certificate: Certificate) -> None:
        """Keep a certificate above the root if it is the first of its kind and view."""
        kind, view, block_hash = certificate.kind, certificate.view, certificate.block_hash
        if kind == NOTARIZE:
            self._notarized[view] = certificate
            self._newest_notarized = max(self._newest_notarized, view)
            self._notarized_views.setdefault(block_hash, []).append(view)
        elif kind == FINALIZE:
            self._finalized[view] = certificate
            self._finalized_views.setdefault(block_hash, []).append(view)
        else:
            self._nullified[view] = certificate

    def raise_final(self, certificate: Certificate) -> None:
        """Take note of a FINALIZE certificate, if it is the newest."""
        if certificate.kind == FINALIZE and (self.final is None or certificate.view > self.final.view):
            self.final = certificate

    def restore_past(self, certificate: Certificate) -> None:
        """Keep a certificate of an earlier run that is not above the root, if its age allows."""
        if certificate.view >= self._tree.root.view - EVIDENCE_VIEWS:
            self._past.setdefault((certificate.view, certificate.kind), certificate)

    def retire(self, view: int) -> tuple[Certificate, ...]:
        """Move the certificates up to the new root's view to the past ones; return the NULLIFY certificates."""
        nullified: tuple[Certificate, ...] = ()
        for kind, table in ((NOTARIZE, self._notarized), (NULLIFY, self._nullified), (FINALIZE, self._finalized)):
            taken = table.take(view)
            for old, certificate in taken:
                self._past[old, kind] = certificate
                views = self._notarized_views if kind == NOTARIZE else self._finalized_views
                if kind != NULLIFY:
                    views[certificate.block_hash].remove(old)
                    if not views[certificate.block_hash]:
                        del views[certificate.block_hash]
            if kind == NULLIFY:
                nullified = tuple([certificate for _, certificate in taken])
        self._past.take((view - EVIDENCE_VIEWS, 0))
        return nullified

    def past_finalized(self, view: int) -> Certificate | None:
        """Return the FINALIZE certificate of a view up to the root's."""
        return self._past.get((view, FINALIZE))

    def conflicts(self, certificate: Certificate) -> tuple[Certificate, ...]:
        """Return the kept certificates that, together with this one, prove faults of more than W/3."""
        kind, view = certificate.kind, certificate.view
        is_past = view <= self._tree.root.view
        found = []
        for other in (NOTARIZE, NULLIFY, FINALIZE):
            known = self._past.get((view, other)) if is_past else self.of_kind(other).get(view)
            if known is None:
                continue
            is_double = other == kind and known.candidate != certificate.candidate
            if is_double or {kind, other} == {NULLIFY, FINALIZE}:
                found.append(known)
        return tuple(found)

    def is_contradiction(self, view: int) -> bool:
        """Tell whether a NOTARIZE and a FINALIZE certificate of a view name different candidates.

        No seat need have equivocated: a vote of one kind for one block and of the other kind for another block is
        no evidence. So no seat can be convicted, but two blocks have a quorum.
        """
        notarized, final = self._notarized.get(view), self._finalized.get(view)
        return notarized is not None and final is not None and notarized.candidate != final.candidate

    def newest(self, view: int) -> tuple[Certificate, ...]:
        """Return the certificates that prove the newest state to a replica that is behind ``view``."""
        newest = (self.final, self._notarized.get(self._newest_notarized), self._nullified.get(view - 1))
        return tuple([certificate for certificate in newest if certificate is not None])

    def between(self, from_view: int, to_view: int, newest: Iterable[Certificate]) -> tuple[Certificate, ...]:
        """Return what is held for at most ``VIEWS_MAX`` views, and the ``newest`` ones, each once."""
        found: dict[tuple[int, int], Certificate] = {}
        for view in range(from_view, min(to_view, from_view + VIEWS_MAX - 1) + 1):
            for table in (self._notarized, self._nullified):
                if (certificate := table.get(view)) is not None:
                    found[certificate.kind, view] = certificate
        for certificate in newest:
            found[certificate.kind, certificate.view] = certificate
        return tuple(found.values())

    def all(self) -> tuple[Certificate, ...]:
        """Return every certificate above the root, in the order of views."""
        tables = (self._notarized, self._nullified, self._finalized)
        return tuple(sorted((found for table in tables for found in table.values()), key=lambda found: found.view))

    def sizes(self) -> dict[str, int]:
        """Return how many certificates are kept above the root and below it."""
        count = len(self._notarized) + len(self._nullified) + len(self._finalized)
        return {"certificates": count, "past": len(self._past)}
