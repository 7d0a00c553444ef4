"""Fork evidence from this node's records, within the age limit of evidence (consensus.md R6).

A FINALIZE certificate of another chain convicts seats together with a certificate of this chain for the same view.
That is the NULLIFY certificate if this chain skipped the view, else its own FINALIZE certificate. If the block of
that view became final through a later view's certificate, this chain has neither. Then the NOTARIZE certificates
of both chains convict. The store keeps all three kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from consensus.core.limits import EVIDENCE_VIEWS
from consensus.evidence import evidence_of_certificates
from consensus.votes import Certificate, certificate_checks, verify_checks
from consensus.wire import decode_certificate, encode_certificate
from state.primitives.blocks import decode_header
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.votes import NOTARIZE, NULLIFY, Equivocation
from state.store import Store, ViewCertificate, ViewCertificates

__all__ = ["ForkUnproven", "certificates_of", "check_certificate", "convict", "kept", "to_keep"]


class ForkUnproven(ProtocolError):
    """The certificates are not of their committee, or contradict neither each other nor this node's chain."""

    code = "fork_unproven"


def to_keep(certificates: Iterable[Certificate]) -> ViewCertificates:
    """Return certificates of the views up to a final one as the store keeps them."""
    found = [*certificates]

    def of(kind: int) -> list[ViewCertificate]:
        return [
            ViewCertificate(known.epoch, known.view, encode_certificate(known))
            for known in found
            if known.kind == kind
        ]

    return ViewCertificates(of(NULLIFY), of(NOTARIZE))


def kept(store: Store, epoch: int, view: int) -> tuple[Certificate, ...]:
    """Return the stored certificates of skipped views that a replica at ``view`` still checks for faults.

    Views with a block are left out: a user must submit proof of a fork in them. Otherwise a chain that its
    operators agreed to continue would stop again at a certificate that is already known.
    """
    found = store.views.nullified_from(epoch, max(0, view - EVIDENCE_VIEWS))
    return tuple(decode_certificate(known.certificate) for known in found)


def check_certificate(certificate: Certificate, committee: Committee | None, genesis_hash: bytes) -> None:
    """Check the votes and the weight of a certificate. Raises ForkUnproven."""
    if committee is None:
        raise ForkUnproven(f"no committee of epoch {certificate.epoch} is known here")
    try:
        checks = certificate_checks(committee, genesis_hash, certificate)
    except DecodeError as error:
        raise ForkUnproven(str(error)) from None
    if not verify_checks(checks):
        raise ForkUnproven("a vote of the certificate was not signed by its seat")


def convict(records: Store, certificates: Sequence[Certificate]) -> tuple[Equivocation, ...]:
    """Return one fault for each seat that verified certificates convict, with each other or with ``records``."""
    found: dict[tuple[int, int], Equivocation] = {}
    halves = [*certificates]
    for certificate in certificates:
        halves += _of_this_chain(records, certificate.epoch, certificate.view)
    for number, one in enumerate(halves):
        for other in halves[:number]:
            if (one.epoch, one.view) == (other.epoch, other.view):
                for equivocation in evidence_of_certificates(other, one):
                    vote = equivocation.first
                    found.setdefault((vote.epoch, vote.seat), equivocation)
    return tuple(found.values())


def certificates_of(store: Store, from_height: int, *, epochs_max: int | None = None) -> Iterator[Certificate]:
    """Yield all stored certificates of the views above the block below ``from_height``, epoch by epoch.

    Certificates of another chain are compared with these.
    """
    first, view = store.epoch_of(from_height), 0
    epoch = first
    below = store.height(from_height - 1)
    if below is not None and below.header and store.epoch_of(below.height) == epoch:
        view = decode_header(below.header).view + 1
    while epoch * store.epoch_blocks < store.tip.height and (epochs_max is None or epoch < first + epochs_max):
        final: dict[bytes, None] = {}
        low, high = epoch * store.epoch_blocks + 1, min((epoch + 1) * store.epoch_blocks, store.tip.height)
        for height in range(max(low, from_height, store.oldest_block), high + 1):
            final[store.certificate(height) or b""] = None
        for raw in final:
            if raw:
                yield decode_certificate(raw)
        for kept_views in (store.views.nullified_from, store.views.notarized_from):
            for one in kept_views(epoch, view):
                yield decode_certificate(one.certificate)
        epoch, view = epoch + 1, 0


def _of_this_chain(records: Store, epoch: int, view: int) -> Iterable[Certificate]:
    for kept_certificate in (records.views.nullified(epoch, view), records.views.notarized(epoch, view)):
        if kept_certificate is not None:
            yield decode_certificate(kept_certificate)
    final = _final_of(records, epoch, view)
    if final is not None:
        yield final


def _final_of(records: Store, epoch: int, view: int) -> Certificate | None:
    """Return this chain's FINALIZE certificate of a view.

    Views rise with heights, so it is stored with the last block whose view is not higher.
    """
    low = max(epoch * records.epoch_blocks + 1, records.oldest_block)
    high = min((epoch + 1) * records.epoch_blocks, records.tip.height)
    found = 0
    while low <= high:
        middle = (low + high) // 2
        record = records.height(middle)
        if record is None or not record.header:
            return None
        if decode_header(record.header).view <= view:
            found, low = middle, middle + 1
        else:
            high = middle - 1
    stored = records.certificate(found) if found else None
    certificate = decode_certificate(stored) if stored else None
    return (
        certificate if certificate is not None and (certificate.epoch, certificate.view) == (epoch, view) else None
    )
