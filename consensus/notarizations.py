"""What a shell keeps of views that become final: the NOTARIZE certificates, halves of proofs of a fork. Pure.

A block may become final by the certificate of a later view alone. Where another chain has another block in its
view, what convicts are the NOTARIZE certificates of that view on either side, and after the commit the core has
them in memory alone.
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
        """Take in what the core keeps; of other kinds nothing is kept here."""
        if certificate.kind == NOTARIZE:
            self._found.setdefault((certificate.epoch, certificate.view), certificate)

    def take(self, commit: Commit) -> tuple[Certificate, ...]:
        """Return, and forget, those of the views up to the final one, in their order.

        Without the views that the commit shows to be nullified: that convicts whoever makes one of them final.
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
