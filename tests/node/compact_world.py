"""Proposals with made-up transactions, and pools that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from consensus.votes import Certificate
from consensus.wire import Proposal, encode_message
from node.consensus.compact import CompactProposal, make_compact_proposal
from state.primitives.blocks import Block, Header, encode_block, evidence_root, header_hash, transactions_root
from state.primitives.hashing import keccak
from state.primitives.votes import NOTARIZE, NULLIFY, Candidate

VIEW = 9


def transactions(count: int, seed: int = 1, size_bytes: int = 150) -> tuple[bytes, ...]:
    """Return bytes that look like transactions from afar."""
    random = Random(seed)
    return tuple([random.randbytes(size_bytes) for _ in range(count)])


def header_of(raws: Sequence[bytes], evidence: Sequence[bytes] = (), view: int = VIEW) -> Header:
    h = bytes(range(32))
    return Header(
        1, h, 3, 1, view, 2, h, 1_700_000_000_000, transactions_root(raws), h, h, evidence_root(tuple(evidence)),
        b"v" * 80, h, bytes(32), b"\1", 7, sum(map(len, raws)), len(raws), 1,
    )  # fmt: skip


def proposal_of(raws: Sequence[bytes], evidence: Sequence[bytes] = (), view: int = VIEW) -> bytes:
    """Return the bytes of a proposal with certificates and a block of these transactions."""
    header = header_of(raws, evidence, view)
    block = encode_block(Block(header, tuple(raws), tuple(evidence)))
    candidate = Candidate(1, view, view - 2, header_hash(header))
    justify = Certificate(NOTARIZE, 1, view - 2, view - 3, bytes(range(32)), b"\7", b"s" * 192)
    null = Certificate(NULLIFY, 1, view - 1, 0, bytes(32), b"\7", b"n" * 192)
    return encode_message(Proposal(candidate, b"l" * 64, justify, (null,), block))


class SomePool:
    """A pool of these transactions."""

    def __init__(self, raws: Iterable[bytes] = (), young: Iterable[bytes] = ()) -> None:
        self.known = {keccak(raw): raw for raw in raws}
        self.fresh = frozenset(keccak(raw) for raw in young)

    def hashes(self) -> Sequence[bytes]:
        return list(self.known)

    def young(self) -> frozenset[bytes]:
        return self.fresh

    def raw_of(self, transaction_hash: bytes) -> bytes | None:
        return self.known.get(transaction_hash)

    def hash_of(self, raw: bytes) -> bytes | None:
        transaction_hash = keccak(raw)
        return transaction_hash if transaction_hash in self.known else None


def form_of(raws: Sequence[bytes], young: Iterable[bytes] = (), view: int = VIEW) -> tuple[CompactProposal, bytes]:
    """Return the form of a proposal whose leader has all its transactions, and the whole of it."""
    data = proposal_of(raws, view=view)
    pool = SomePool(raws, young)
    made = make_compact_proposal(data, pool.hash_of, pool.young())
    assert made is not None
    return made[0], data
