"""Checks a database of the chain: hashes, roots, certificates and epoch records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from consensus.votes import Certificate, certificate_checks, verify_checks
from consensus.wire import decode_certificate
from state.primitives.blocks import Header, decode_block, decode_header, header_hash, is_body_of
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError
from state.primitives.merkle import merkle_root
from state.primitives.votes import FINALIZE
from state.store import Store, StoreDamaged, Tip
from state.store.records import decode_epoch

__all__ = ["Audited", "audit_chain"]

_COMMITTEES_MAX: Final = 4


class Audited(NamedTuple):
    """Numbers of what was checked."""

    headers: int
    bodies: int
    certificates: int


class _Audit:
    def __init__(self, store: Store, founding: Committee) -> None:
        self.store = store
        self._founding = founding
        self._committees: dict[int, Committee] = {}
        self.bodies = self.certificates = 0

    def height(self, height: int, below: Tip | None) -> Tip:
        """Check the stored data of one height.

        ``below`` is the height before it; None at the first stored header.
        """
        record = self.store.height(height)
        if record is None:
            raise StoreDamaged(f"height {height}: its record is absent")
        if record.height != height or self.store.height_of(record.block_hash) != height:
            raise StoreDamaged(f"height {height}: the record is another height's, or its hash is not listed")
        if not height:
            return record
        try:
            header = decode_header(record.header)
            self._header(header, record, below)
            if height >= self.store.oldest_block:
                self._body(header, record)
            if height % self.store.epoch_blocks == 0:
                self._epoch(header, record)
        except DecodeError as error:
            raise StoreDamaged(f"height {height}: {error}") from None
        return record

    def _header(self, header: Header, record: Tip, below: Tip | None) -> None:
        height = record.height
        if header_hash(header) != record.block_hash or header.height != height:
            raise StoreDamaged(f"height {height}: the header has not the hash on record")
        if header.epoch != self.store.epoch_of(height):
            raise StoreDamaged(f"height {height}: the header is of epoch {header.epoch}")
        if below is None:
            return
        if header.parent_hash != below.block_hash:
            raise StoreDamaged(f"height {height}: the header does not follow that of height {below.height}")
        found = (header.state_root, header.receipt_root, header.base_fee)
        if found != (below.state_root, below.receipt_root, below.next_base_fee):
            raise StoreDamaged(f"height {below.height}: roots or fee on record are not those in the next header")

    def _body(self, header: Header, record: Tip) -> None:
        height, store = record.height, self.store
        raw, receipts = store.block(height), store.receipts(height)
        if raw is None or receipts is None:
            raise StoreDamaged(f"height {height}: the block or its receipts are absent")
        block = decode_block(raw)
        if block.header != header or not is_body_of(block):
            raise StoreDamaged(f"height {height}: the block is not its header's")
        leaves = receipts[0] if receipts[1] is None else (*receipts[0], receipts[1])
        if merkle_root(leaves) != record.receipt_root:
            raise StoreDamaged(f"height {height}: the receipts have another root")
        self.bodies += 1
        stored = store.certificate(height)
        if stored is None:
            raise StoreDamaged(f"height {height}: the certificate is absent")
        certificate = decode_certificate(stored)
        if certificate.block_hash == record.block_hash:
            self._certificate(height, certificate, header.epoch)

    def _epoch(self, header: Header, record: Tip) -> None:
        height = record.height
        stored = self.store.epoch_record(header.epoch)
        if stored is None:
            raise StoreDamaged(f"height {height}: the record of epoch {header.epoch} is absent")
        raw_header, raw_certificate, raw_committee = decode_epoch(stored)
        following = Committee.decode(raw_committee)
        if raw_header != record.header or following.hash != header.next_committee_hash:
            raise StoreDamaged(f"height {height}: the record of epoch {header.epoch} is not of its last block")
        certificate = decode_certificate(raw_certificate)
        if certificate.block_hash != record.block_hash:
            raise StoreDamaged(f"height {height}: the record of epoch {header.epoch} proves another block")
        self._certificate(height, certificate, header.epoch)

    def _certificate(self, height: int, certificate: Certificate, epoch: int) -> None:
        committee = self._committee(epoch)
        if committee is None:
            return  # of the epoch that ends where a synced database begins, unless its records reach further back
        is_final = certificate.kind == FINALIZE and certificate.epoch == epoch
        if not is_final or not verify_checks(certificate_checks(committee, self.store.genesis_hash, certificate)):
            raise StoreDamaged(f"height {height}: the certificate is not one of the committee of epoch {epoch}")
        self.certificates += 1

    def _committee(self, epoch: int) -> Committee | None:
        if not epoch:
            return self._founding
        known = self._committees.get(epoch)
        if known is None:
            stored = self.store.epoch_record(epoch - 1)
            if stored is None:
                if epoch > self.store.epoch_of(max(1, self.store.base)):
                    raise StoreDamaged(f"the record of epoch {epoch - 1} is absent")
                return None
            known = self._committees[epoch] = Committee.decode(decode_epoch(stored)[2])
            while len(self._committees) > _COMMITTEES_MAX:
                del self._committees[next(iter(self._committees))]
        return known


def audit_chain(store: Store, founding: Committee, progress: Callable[[int, int], None] | None = None) -> Audited:
    """Check every height of the database. ``founding`` is the committee of epoch 0.

    ``progress`` is called with the number of heights done and in total. Pruned data is not an error. Raises
    StoreDamaged, which names the height.
    """
    audit = _Audit(store, founding)
    below = None
    count = store.tip.height - store.base + 1
    for height in range(store.base, store.tip.height + 1):
        below = audit.height(height, below)
        if progress:
            progress(height - store.base + 1, count)
    if below != store.tip:
        raise StoreDamaged(f"height {store.tip.height}: the newest record is not the tip's")
    return Audited(count, audit.bodies, audit.certificates)
