"""Light client: follows the chain by its epochs, and verifies untrusted data about it (consensus.md 14).

Pure. Uses only the standard library, the signature library and ``state`` below the store, so that a wallet can
include it: no database, event loop or network. The caller provides bytes and the time. A client trusts one
boundary block, that of the genesis or of a checkpoint, and with it the committee of the following epoch. From
there each epoch record transfers trust to the next committee. Headers are proven by a FINALIZE certificate, or by
their hashes up to a boundary block that was followed. Everything else is proven by a header.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from consensus.evidence import evidence_of_certificates
from consensus.votes import Certificate, certificate_checks, verify_checks
from consensus.wire import CERTIFICATE_LIMIT_BYTES, decode_certificate, encode_certificate
from state.primitives.blocks import (
    HEADER_LIMIT_BYTES,
    VERSION,
    Header,
    decode_header,
    encode_header,
    header_hash,
)
from state.primitives.codec import decode, encode
from state.primitives.committee import RECORD_LIMIT_BYTES as COMMITTEE_LIMIT_BYTES
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError, DekubeError, ProtocolError
from state.primitives.hashing import HASH_BYTES, keccak
from state.primitives.merkle import LEAVES_MAX, MerkleProof, verify_merkle_proof
from state.primitives.receipts import Receipt, decode_receipt
from state.primitives.votes import FINALIZE, Equivocation
from state.trie.proof import verify_proof
from state.view.accounts import ACCOUNT_BYTES, BALANCE_MASK, Account, account_key

__all__ = [
    "EPOCH_RECORD_LIMIT_BYTES",
    "HEADERS_MAX",
    "CertificateInvalid",
    "CommitteeUnknown",
    "EpochOutOfOrder",
    "EpochRecord",
    "Fork",
    "ForkFound",
    "HeaderAhead",
    "HeaderUnproven",
    "LightClient",
    "LightOptions",
    "ProofInvalid",
    "Proven",
    "RecordInvalid",
    "TrustExpired",
    "TrustedState",
    "Unreadable",
    "VersionUnknown",
    "checkpoint_root",
    "decode_epoch_record",
    "decode_merkle_proof",
    "encode_epoch_record",
    "encode_merkle_proof",
    "genesis_root",
    "trusting_period_ms",
    "verify_account",
    "verify_receipt",
    "verify_state",
    "verify_transaction",
]

EPOCH_RECORD_LIMIT_BYTES: Final = HEADER_LIMIT_BYTES + CERTIFICATE_LIMIT_BYTES + COMMITTEE_LIMIT_BYTES + 16
HEADERS_MAX: Final = 1 << 16
"""Headers that one proof may link; the epoch of a real chain has fewer blocks."""
SIBLINGS_MAX: Final = LEAVES_MAX.bit_length()
MERKLE_PROOF_LIMIT_BYTES: Final = SIBLINGS_MAX * (HASH_BYTES + 2) + 32
PROVEN_MAX: Final = 4096
"""Proven heights that are remembered, so that a second block at one of them is detected."""
RECORDS_MAX: Final = 16
"""Epoch records kept for the committees of earlier epochs."""


class RecordInvalid(ProtocolError):
    """An epoch record that does not follow from the trusted one: its sender is faulty or on another chain."""

    code = "epoch_record_invalid"


class CertificateInvalid(ProtocolError):
    """A certificate that is not a FINALIZE certificate of the committee for this block."""

    code = "certificate_invalid"


class HeaderUnproven(ProtocolError):
    """Headers that do not link to each other, to a certificate or to a known boundary block."""

    code = "header_unproven"


class HeaderAhead(DekubeError):
    """A block signed by its committee whose time is ahead of this clock: the clock is wrong, or the committee
    lies.
    """

    code = "header_ahead"


class ProofInvalid(ProtocolError):
    """A Merkle proof that does not prove the expected value under the header's root."""

    code = "proof_invalid"


class EpochOutOfOrder(ProtocolError):
    """A record of another epoch than the next one; a client never goes back and never skips."""

    code = "epoch_out_of_order"

    def __init__(self, *, expected: int, got: int) -> None:
        super().__init__(f"a record of epoch {got}, expected is {expected}")
        self.expected = expected
        self.got = got


class CommitteeUnknown(DekubeError):
    """The committee of that epoch is not available: follow the records up to it, or show the record before it."""

    code = "committee_unknown"

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the committee of epoch {epoch} is not known")
        self.epoch = epoch


class TrustExpired(DekubeError):
    """The trusted block is so old that its validators may have withdrawn their stake: a new root of trust is
    needed.
    """

    code = "trust_expired"

    def __init__(self, *, age_ms: int, period_ms: int) -> None:
        super().__init__(
            f"what is trusted is {age_ms // 3_600_000} h old, older than the trusting period of "
            f"{period_ms // 3_600_000} h: start again from a newer checkpoint of a source you trust"
        )
        self.age_ms = age_ms
        self.period_ms = period_ms


class VersionUnknown(DekubeError):
    """The chain uses a protocol version that this release does not know; this is not a fault."""

    code = "upgrade_required"

    def __init__(self, version: int) -> None:
        super().__init__(f"the chain runs version {version} of the protocol: a newer release is needed")
        self.version = version


class Unreadable(DekubeError):
    """A final block proves data that this release cannot read; this is not a fault."""

    code = "unreadable"


class EpochRecord(NamedTuple):
    """The header of an epoch's last block, its FINALIZE certificate, and the committee of the next epoch."""

    header: Header
    certificate: Certificate
    committee: Committee


class TrustedState(NamedTuple):
    """The boundary block before ``epoch``, and the committee whose votes count in that epoch.

    At epoch 0 the block is the genesis: height 0, and the hash of the genesis.
    """

    genesis_hash: bytes
    epoch_blocks: int
    epoch: int
    height: int
    block_hash: bytes
    time_ms: int
    committee: Committee


class Proven(NamedTuple):
    """A header that is part of the final chain, with its hash."""

    header: Header
    block_hash: bytes


class Fork(NamedTuple):
    """Two different final blocks at one height: more than a third of the committee broke the rules.

    ``certificates`` made them final, themselves or as ancestors; None if only the hash is kept.
    """

    height: int
    committee: Committee
    hashes: tuple[bytes, bytes]
    certificates: tuple[Certificate | None, Certificate | None]

    @property
    def equivocations(self) -> tuple[Equivocation, ...]:
        """Pairs of votes that convict a seat without further data.

        None if the certificates are of different views. Then the other half of the proof are the NULLIFY votes
        that let the later block skip the earlier one. Nodes that followed the later block have those.
        """
        one, other = self.certificates
        return () if one is None or other is None else evidence_of_certificates(one, other)

    @property
    def suspects(self) -> tuple[bytes, ...]:
        """Addresses of the seats that signed both certificates."""
        one, other = self.certificates
        if one is None or other is None or one.epoch != other.epoch:
            return ()
        both = {vote.seat for vote in one.votes()} & {vote.seat for vote in other.votes()}
        return tuple(self.committee.seats[seat].address for seat in sorted(both))


class ForkFound(DekubeError):
    """The client has seen two final blocks at one height and trusts nothing any more; ``fork`` is the proof."""

    code = "fork_found"

    def __init__(self, fork: Fork) -> None:
        super().__init__(f"two final blocks at height {fork.height}: this chain has forked, trust nobody about it")
        self.fork = fork


@dataclass(frozen=True, slots=True)
class LightOptions:
    """How long trust lasts, and the allowed clock difference.

    ``trusting_period_ms`` None never expires, for a root that its user trusts regardless of its age.
    """

    trusting_period_ms: int | None
    drift_ms: int = 2_000
    versions: tuple[int, ...] = (VERSION,)


def trusting_period_ms(unbonding_ms: int) -> int:
    """Return how long a committee can be trusted; its stake is slashable for a third longer."""
    return unbonding_ms * 2 // 3


# Records


def encode_epoch_record(record: EpochRecord) -> bytes:
    """Return the canonical bytes of a record."""
    return encode(
        [encode_header(record.header), encode_certificate(record.certificate), record.committee.encode()]
    )


def decode_epoch_record(data: bytes) -> EpochRecord:
    """Return the record of ``data``, unverified. Raises DecodeError."""
    match decode(data, limit_bytes=EPOCH_RECORD_LIMIT_BYTES):
        case [bytes(header), bytes(certificate), bytes(committee)]:
            return EpochRecord(decode_header(header), decode_certificate(certificate), Committee.decode(committee))
        case _:
            raise DecodeError("not an epoch record")


def encode_merkle_proof(proof: MerkleProof) -> bytes:
    """Return the canonical bytes of a Merkle proof."""
    return encode([proof.position, proof.leaves, list(proof.siblings)])


def decode_merkle_proof(data: bytes) -> MerkleProof:
    """Return the Merkle proof of ``data``, unverified. Raises DecodeError."""
    match decode(data, limit_bytes=MERKLE_PROOF_LIMIT_BYTES):
        case [int(position), int(leaves), list(siblings)] if (
            0 <= position < leaves <= LEAVES_MAX
            and len(siblings) <= SIBLINGS_MAX
            and all(type(sibling) is bytes and len(sibling) == HASH_BYTES for sibling in siblings)
        ):
            return MerkleProof(position, leaves, tuple(siblings))
        case _:
            raise DecodeError("not a Merkle proof")


# Roots of trust


def genesis_root(*, genesis_hash: bytes, time_ms: int, epoch_blocks: int, committee: Committee) -> TrustedState:
    """Return the state that trusts a genesis; ``committee`` is that of epoch 0."""
    return TrustedState(genesis_hash, epoch_blocks, 0, 0, genesis_hash, time_ms, committee)


def checkpoint_root(record: EpochRecord, *, height: int, block_hash: bytes) -> TrustedState:
    """Return the state that trusts the boundary block of ``height`` and ``block_hash``, from its epoch record.

    The hash covers all of it: header, chain and next committee. The number of blocks in an epoch follows from the
    height. The record's certificate cannot be checked, and need not be. Raises RecordInvalid.
    """
    header = record.header
    if header.height != height or header_hash(header) != block_hash:
        raise RecordInvalid("not the record of the checkpoint")
    epoch_blocks, rest = divmod(height, header.epoch + 1)
    if rest or not epoch_blocks:
        raise RecordInvalid("the checkpoint is not the last block of an epoch")
    if record.committee.hash != header.next_committee_hash:
        raise RecordInvalid("a committee that the checkpoint does not name")
    return TrustedState(
        header.genesis_hash,
        epoch_blocks,
        header.epoch + 1,
        height,
        block_hash,
        header.time_ms,
        record.committee,
    )


_Kept = TypeVar("_Kept")
_Final: TypeAlias = tuple[bytes, Certificate | None]
"""The hash of a block and the proof of its finality."""


class LightClient:
    """The trusted state, and how it advances.

    ``boundaries`` has the hash of the last block of each followed epoch, ``last`` the record of the newest of
    them, and ``fork`` the fork that ended trust, as an earlier client saved them. A method that raises leaves the
    client unchanged. After a fork each call raises ForkFound: people must decide.
    """

    def __init__(
        self,
        trusted: TrustedState,
        options: LightOptions,
        *,
        boundaries: Mapping[int, bytes] | None = None,
        last: EpochRecord | None = None,
        fork: Fork | None = None,
    ) -> None:
        self.options: Final = options
        self._trusted = trusted
        self._boundaries: dict[int, bytes] = dict(boundaries or {})
        if trusted.epoch:
            self._boundaries[trusted.epoch - 1] = trusted.block_hash
        self._epochs = {block_hash: epoch for epoch, block_hash in self._boundaries.items()}
        self._records: OrderedDict[int, EpochRecord] = OrderedDict()
        self._committees: OrderedDict[int, Committee] = OrderedDict({trusted.epoch: trusted.committee})
        self._proven: OrderedDict[int, tuple[bytes, Certificate | None]] = OrderedDict()
        self._fork = fork
        if last is not None:
            if header_hash(last.header) != self._boundaries.get(last.header.epoch):
                raise RecordInvalid("the last record is not that of a known boundary block")
            self._records[last.header.epoch] = last

    @property
    def trusted(self) -> TrustedState:
        """The newest boundary block that was followed, and the committee after it."""
        return self._trusted

    @property
    def boundaries(self) -> Mapping[int, bytes]:
        """The hash of the last block of each epoch that was followed."""
        return self._boundaries

    @property
    def last(self) -> EpochRecord | None:
        """The record of the newest boundary block; None while trust rests on the root alone."""
        return self._records.get(self._trusted.epoch - 1)

    @property
    def fork(self) -> Fork | None:
        """The proof that the chain forked, if it did."""
        return self._fork

    def committee(self, epoch: int) -> Committee | None:
        """Return the committee of an epoch if available: the current one, and recently used ones."""
        return self._trusted.committee if epoch == self._trusted.epoch else self._committees.get(epoch)

    def age_ms(self, now_ms: int) -> int:
        """Return how old the newest boundary block is."""
        return max(0, now_ms - self._trusted.time_ms)

    def check_trust(self, now_ms: int) -> None:
        """Raise TrustExpired if the root of trust is too old, ForkFound if the chain has forked."""
        if self._fork is not None:
            raise ForkFound(self._fork)
        period = self.options.trusting_period_ms
        if period is not None and self.age_ms(now_ms) > period:
            raise TrustExpired(age_ms=self.age_ms(now_ms), period_ms=period)

    # Epochs

    def follow(self, record: EpochRecord, now_ms: int) -> Fork | None:
        """Advance by one epoch, or return the proof that the chain forked and stay.

        Raises EpochOutOfOrder, RecordInvalid or CertificateInvalid, which are the sender's fault; HeaderAhead,
        TrustExpired, ForkFound and VersionUnknown, which are not.
        """
        self.check_trust(now_ms)
        trusted, header = self._trusted, record.header
        if header.epoch != trusted.epoch:
            raise EpochOutOfOrder(expected=trusted.epoch, got=header.epoch)
        block_hash = self._check_record(record, trusted.committee)
        if header.time_ms <= trusted.time_ms:
            raise RecordInvalid("a boundary block that is not after the one before it")
        self._check_time(header, now_ms)
        self._check_version(header)
        earlier = self._proven.get(header.height)
        if earlier is not None and earlier[0] != block_hash:
            return self._forked(header.height, trusted.committee, earlier, (block_hash, record.certificate))
        epoch = header.epoch
        self._boundaries[epoch] = block_hash
        self._epochs[block_hash] = epoch
        self._keep(self._records, epoch, record)
        self._keep(self._committees, epoch + 1, record.committee)
        self._trusted = trusted._replace(
            epoch=epoch + 1,
            height=header.height,
            block_hash=block_hash,
            time_ms=header.time_ms,
            committee=record.committee,
        )
        return None

    def compare(self, record: EpochRecord) -> Fork | None:
        """Compare the record of a followed epoch with the known one; keep its committee.

        Returns the proof of a fork if it is a different, equally valid record. Raises RecordInvalid or
        CertificateInvalid for a false one, and EpochOutOfOrder for an epoch that was not followed. Raises
        CommitteeUnknown if it differs and the data to decide is missing: compare the own records of that epoch and
        of the one before first.
        """
        if self._fork is not None:
            raise ForkFound(self._fork)
        header, epoch = record.header, record.header.epoch
        known = self._boundaries.get(epoch)
        if known is None:
            raise EpochOutOfOrder(expected=self._trusted.epoch - 1, got=epoch)
        block_hash, committee = header_hash(header), self.committee(epoch)
        if block_hash != known and (committee is None or epoch not in self._records):
            raise CommitteeUnknown(epoch)
        if committee is not None:
            self._check_record(record, committee)
        elif record.committee.hash != header.next_committee_hash:
            raise RecordInvalid("a committee that the header does not name")
        if block_hash == known:
            if committee is not None:
                self._keep(self._records, epoch, record)
            self._keep(self._committees, epoch + 1, record.committee)
            return None
        assert committee is not None
        ours = self._records[epoch]
        return self._forked(header.height, committee, (known, ours.certificate), (block_hash, record.certificate))

    def _check_record(self, record: EpochRecord, committee: Committee) -> bytes:
        """Return the hash of the boundary block if ``committee`` made it final."""
        header, certificate, following = record
        trusted = self._trusted
        if header.genesis_hash != trusted.genesis_hash:
            raise RecordInvalid("a record of another chain")
        if header.height != (header.epoch + 1) * trusted.epoch_blocks:
            raise RecordInvalid(f"height {header.height} is not the last of epoch {header.epoch}")
        if header.next_committee_hash != following.hash:
            raise RecordInvalid("a committee that the header does not name")
        block_hash = header_hash(header)
        self._check_certificate(header, block_hash, certificate, committee)
        return block_hash

    def _check_certificate(
        self, header: Header, block_hash: bytes, certificate: Certificate, committee: Committee
    ) -> None:
        if certificate.kind != FINALIZE or certificate.block_hash != block_hash:
            raise CertificateInvalid("not a FINALIZE certificate of this block")
        if certificate.epoch != header.epoch or header.committee_hash != committee.hash:
            raise CertificateInvalid("a certificate or a header of another committee")
        if certificate.view < header.view:
            raise CertificateInvalid("a certificate from before the block's first view")
        try:
            checks = certificate_checks(committee, header.genesis_hash, certificate)
        except DecodeError as error:
            raise CertificateInvalid(str(error)) from None
        if not verify_checks(checks):
            raise CertificateInvalid("a signature does not verify")

    def _check_time(self, header: Header, now_ms: int) -> None:
        if header.time_ms > now_ms + self.options.drift_ms:
            ahead_s = (header.time_ms - now_ms) / 1000
            raise HeaderAhead(f"block {header.height} is {ahead_s:.1f} s ahead of this clock: is the clock right?")

    def _check_version(self, header: Header) -> None:
        if header.version not in self.options.versions:
            raise VersionUnknown(header.version)

    @staticmethod
    def _keep(kept: OrderedDict[int, _Kept], epoch: int, value: _Kept) -> None:
        kept[epoch] = value
        while len(kept) > RECORDS_MAX:
            kept.popitem(last=False)

    def _forked(self, height: int, committee: Committee, first: _Final, second: _Final) -> Fork:
        self._fork = Fork(height, committee, (first[0], second[0]), (first[1], second[1]))
        return self._fork

    # Headers

    def verify_headers(
        self, headers: Sequence[Header], certificate: Certificate | None, now_ms: int
    ) -> tuple[Proven, ...] | Fork:
        """Return ``headers`` as proven, or the proof that the chain forked.

        They are consecutive and ascending. The last one is final by ``certificate``, or because it is a boundary
        block that was followed. Raises HeaderUnproven or CertificateInvalid for false ones; HeaderAhead,
        CommitteeUnknown, TrustExpired, ForkFound, VersionUnknown.
        """
        self.check_trust(now_ms)
        if not 0 < len(headers) <= HEADERS_MAX:
            raise HeaderUnproven(f"{len(headers)} headers, expected are 1 to {HEADERS_MAX}")
        trusted = self._trusted
        hashes = [header_hash(header) for header in headers]
        for below, block_hash, above in zip(headers, hashes, headers[1:], strict=False):
            if above.parent_hash != block_hash or above.height != below.height + 1:
                raise HeaderUnproven(f"the header of height {above.height} does not follow the one before it")
        last, last_hash = headers[-1], hashes[-1]
        if any(header.genesis_hash != trusted.genesis_hash for header in headers):
            raise HeaderUnproven("a header of another chain")
        if last.height < 1 or last.epoch != (last.height - 1) // trusted.epoch_blocks:
            raise HeaderUnproven(f"height {last.height} is not in epoch {last.epoch}")
        if last_hash not in self._epochs:
            if certificate is None:
                raise HeaderUnproven("neither a certificate nor a known boundary block")
            self._check_age(last, now_ms)
            committee = self.committee(last.epoch)
            if committee is None:
                raise CommitteeUnknown(last.epoch)
            self._check_certificate(last, last_hash, certificate, committee)
            self._check_time(last, now_ms)
        else:  # what was sent beside it was not checked, and must not stand as what made it final
            ours = self._records.get(last.epoch)
            certificate = None if ours is None else ours.certificate
        for header in headers:
            self._check_version(header)
        proven = tuple(map(Proven, headers, hashes))
        return self._contradicted(proven, certificate) or self._noted(proven, certificate)

    def _check_age(self, header: Header, now_ms: int) -> None:
        """Refuse old certificates of earlier epochs: an attacker with old keys could make them at no cost."""
        period = self.options.trusting_period_ms
        if header.epoch < self._trusted.epoch and period is not None and now_ms - header.time_ms > period:
            raise HeaderUnproven("a certificate that is too old to count; headers up to the boundary block do")

    def _contradicted(self, proven: Sequence[Proven], certificate: Certificate | None) -> Fork | None:
        """Return the fork between headers, or the parent of the lowest, and what was proven before."""
        lowest = proven[0].header
        blocks = [(header.height, block_hash) for header, block_hash in proven]
        for height, block_hash in ((lowest.height - 1, lowest.parent_hash), *blocks):
            known = self._known(height)
            if known is not None and known[0] != block_hash:
                committee = self.committee(proven[-1].header.epoch) or self._trusted.committee
                return self._forked(height, committee, known, (block_hash, certificate))
        return None

    def _known(self, height: int) -> _Final | None:
        """Return the proven block at a height, if any."""
        proven = self._proven.get(height)
        epoch, rest = divmod(height, self._trusted.epoch_blocks)
        boundary = None if rest else self._boundaries.get(epoch - 1)
        if proven is not None or boundary is None:
            return proven
        ours = self._records.get(epoch - 1)
        return boundary, None if ours is None else ours.certificate

    def _noted(self, proven: tuple[Proven, ...], certificate: Certificate | None) -> tuple[Proven, ...]:
        for header, block_hash in proven:
            self._proven[header.height] = (block_hash, certificate)
        while len(self._proven) > PROVEN_MAX:
            self._proven.popitem(last=False)
        return proven


# What a proven header proves


def verify_state(following: Header, key: bytes, value: bytes | None, proof: bytes) -> None:
    """Check that ``key`` had ``value`` (None: none) after the block before the proven header ``following``.

    Raises ProofInvalid.
    """
    if not verify_proof(following.state_root, key, value, proof):
        raise ProofInvalid(f"the value of key 0x{key.hex()} is not proven after height {following.height - 1}")


def verify_account(following: Header, address: bytes, record: bytes | None, proof: bytes) -> Account:
    """Return the account at ``address`` after the block before the proven header ``following``.

    ``record`` are its bytes in the state, None for an unused account. Raises ProofInvalid, Unreadable.
    """
    verify_state(following, account_key(address), record, proof)
    if record is None:
        return Account(0, 0)
    if len(record) != ACCOUNT_BYTES:
        raise Unreadable("the record of an account has another form")
    packed = int.from_bytes(record, "big")
    return Account(packed >> 128, packed & BALANCE_MASK)


def verify_transaction(header: Header, raw: bytes, proof: MerkleProof) -> bytes:
    """Return the hash of the transaction with the bytes ``raw``, which the proven ``header``'s block includes.

    Raises ProofInvalid.
    """
    if proof.leaves != header.tx_count or not verify_merkle_proof(header.tx_root, raw, proof):
        raise ProofInvalid(f"a transaction that is not proven to be in block {header.height}")
    return keccak(raw)


def verify_receipt(header: Header, following: Header, receipt: bytes, proof: MerkleProof) -> Receipt:
    """Return the receipt of the transaction at ``proof.position`` of the proven block of ``header``.

    ``following`` is the next header, also proven, which has the root of the receipts. Raises ProofInvalid,
    Unreadable.
    """
    if following.parent_hash != header_hash(header):
        raise ProofInvalid("the headers of a receipt do not follow each other")
    if proof.position >= header.tx_count or proof.leaves not in (header.tx_count, header.tx_count + 1):
        raise ProofInvalid(f"no receipt of a transaction of block {header.height}")
    if not verify_merkle_proof(following.receipt_root, receipt, proof):
        raise ProofInvalid(f"receipt {proof.position} of block {header.height} is not proven")
    try:
        return decode_receipt(receipt)
    except DecodeError as error:
        raise Unreadable(f"receipt {proof.position} of block {header.height}: {error}") from None
