"""The journal: the certificates and blocks that the own votes rest on, kept until they are final. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from consensus.actions import Writes
from consensus.events import Epoch, Root
from consensus.guard import JOURNAL_BLOCK, JOURNAL_CERTIFICATE, journal_record, read_journal
from consensus.votes import Certificate, Verifier, certificate_checks
from consensus.wire import decode_certificate, encode_certificate
from state.primitives.blocks import Block, decode_block, header_hash
from state.primitives.errors import DecodeError

__all__ = ["Journal", "JournalContents", "restore_journal"]


class JournalContents(NamedTuple):
    """Content of a journal's file above the root. ``whole_bytes`` is where a torn or damaged record begins."""

    certificates: tuple[Certificate, ...]
    blocks: dict[bytes, tuple[Block, bytes]]
    whole_bytes: int


def restore_journal(
    data: bytes, root: Root, epoch: Epoch, genesis_hash: bytes, verify: Verifier
) -> JournalContents:
    """Return a journal's content of this epoch above the root. Certificates are verified, blocks are not."""
    records, whole = read_journal(data)
    certificates: list[Certificate] = []
    blocks: dict[bytes, tuple[Block, bytes]] = {}
    for kind, record in records:
        try:
            if kind == JOURNAL_CERTIFICATE:
                certificate = decode_certificate(record)
                if certificate.epoch != epoch.number or certificate.view <= root.view:
                    continue
                if verify(certificate_checks(epoch.committee, genesis_hash, certificate)):
                    certificates.append(certificate)
            else:
                block = decode_block(record)
                if block.header.height > root.height and block.header.epoch == epoch.number:
                    blocks[header_hash(block.header)] = (block, record)
        except DecodeError:
            continue  # written by a newer version, or damaged: it can be asked for again
    return JournalContents(tuple(certificates), blocks, whole)


class Journal:
    """The blocks in the journal's file, its growth, and whether its end is synced."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = set(blocks)
        self._grown_bytes = 0
        self._is_dirty = False

    def writes(self) -> Writes:
        """Begin the writes of a step."""
        return Writes(self._is_dirty)

    def wrote(self, writes: Writes) -> None:
        """Record a step's writes."""
        self._is_dirty = writes.is_journal_dirty
        self._grown_bytes += writes.journal_bytes

    def write_block(self, block_hash: bytes, raw: bytes, writes: Writes) -> None:
        """Write the block of an own vote, once: it must survive a crash of all replicas."""
        if block_hash not in self._blocks:
            self._blocks.add(block_hash)
            writes.to_journal(journal_record(JOURNAL_BLOCK, raw))

    def forget(self, block_hash: bytes) -> None:
        """Leave a block out of the next replacement file."""
        self._blocks.discard(block_hash)

    def is_large(self, compact_bytes: int) -> bool:
        """Tell whether the file has grown enough to be replaced."""
        return self._grown_bytes > compact_bytes

    def image(self, blocks: Mapping[bytes, tuple[Block, bytes]], certificates: Iterable[Certificate]) -> bytes:
        """Return the contents of a new file that replaces this one."""
        self._is_dirty = False
        self._grown_bytes = 0
        records = [
            journal_record(JOURNAL_BLOCK, raw)
            for block_hash, (_, raw) in blocks.items()
            if block_hash in self._blocks
        ]
        records += [
            journal_record(JOURNAL_CERTIFICATE, encode_certificate(certificate)) for certificate in certificates
        ]
        return b"".join(records)
