"""NOTARIZE certificates of views that are not final yet, which the store then keeps as evidence. Pure.

A block may become final by the certificate of a later view alone. If a fork has another block in that block's
view, only the NOTARIZE certificates of that view on both chains prove the fault. After the commit the core has its
own one only in memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from consensus.events import Commit
from consensus.min_key_dict import MinKeyDict
from consensus.votes import Certificate
from state.primitives.votes import NOTARIZE

__all__ = ["Notarizations"]


class Notarizations:
    """NOTARIZE certificates of views that are not final yet: as many as the core holds itself."""

    def __init__(self, certificates: Iterable[Certificate] = ()) -> None:
        self._found: MinKeyDict[tuple[int, int], Certificate] = MinKeyDict()
        for certificate in certificates:
            self.add(certificate)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, certificate: Certificate) -> None:
        """Keep a certificate that the core keeps; other kinds are ignored."""
        if certificate.kind == NOTARIZE:
            self._found.setdefault((certificate.epoch, certificate.view), certificate)

    def take(self, commit: Commit) -> tuple[Certificate, ...]:
        """Remove the certificates of the views up to the final one, and return them in the order of views.

        Nullified views are left out: their NULLIFY certificate, which the commit has, is the evidence.
        """
        final = commit.certificate.epoch, commit.certificate.view
        skipped = {(known.epoch, known.view) for known in commit.nullified}
        return tuple(
            [
                one
                for _, one in self._found.take(final)
                if one.epoch == final[0] and (one.epoch, one.view) not in skipped
            ]
        )
