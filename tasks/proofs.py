"""Proofs of work: segments, windows, sealed work digests and sealed verdicts (market.md 7.1 and 7.3).

A worker commits to each segment of a window in a ``SegmentLeaf``; the leaves' Merkle root stands in the
``WindowProof`` on chain, the leaves themselves in a blob. A verifier re-runs sampled segments and seals its
findings before anyone opens anything. The work digest (over an intermediate tensor of each step) cannot be had
from public data, only by doing the work: the worker hides it in the leaf under a salt, revealed after the
verifiers' seals.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.merkle import MerkleProof, merkle_proof, merkle_root, verify_merkle_proof
from tasks.programs.divergence import Divergence, divergence_from_value, divergence_to_value
from tasks.spec import SEGMENTS_MAX, STEPS_MAX, WINDOWS_MAX, JobSpec

__all__ = [
    "LEAF_LIMIT_BYTES",
    "LEAVES_LIMIT_BYTES",
    "SAMPLED_MAX",
    "Break",
    "Code",
    "Finding",
    "LeavesBroken",
    "LeavesInvalid",
    "Opening",
    "SegmentLeaf",
    "ShownLeaf",
    "ShownLosses",
    "WindowProof",
    "break_from_value",
    "break_to_value",
    "check_leaves",
    "check_opening",
    "decode_leaves",
    "delivery_digest",
    "encode_leaf",
    "encode_leaves",
    "find_break",
    "findings_from_value",
    "findings_to_value",
    "is_break",
    "make_opening",
    "opening_fits",
    "opening_from_value",
    "opening_to_value",
    "segment_root",
    "verdict_seal",
    "window_proof_from_value",
    "window_proof_to_value",
    "work_seal",
]

LEAF_LIMIT_BYTES: Final = 512
LEAVES_LIMIT_BYTES: Final = SEGMENTS_MAX * LEAF_LIMIT_BYTES
SAMPLED_MAX: Final = 16
"""Segments of a window that are re-run at most."""
LOSSES_LIMIT_BYTES: Final = 512
LOSSES_PATH_MAX: Final = 24
"""Hashes of a path in the tree over a state."""
CUSTODY_SIZE_LIMIT: Final = 1 << 42
"""No blob in custody has so many bytes."""


class LeavesInvalid(ProtocolError):
    """Segment leaves that do not fit the window proof they were published for."""

    code = "leaves_invalid"


class LeavesBroken(LeavesInvalid):
    """Leaves under the segment root that do not fit each other or the job; ``shown`` proves it."""

    code = "leaves_broken"

    def __init__(self, shown: Break) -> None:
        super().__init__(f"leaf {shown.segment} does not fit the job, or does not start where the one before ends")
        self.shown = shown


class SegmentLeaf(NamedTuple):
    """One segment of a window: steps ``step_from`` (inclusive) to ``step_to`` (exclusive).

    ``segment`` counts from 0 in each window. ``state_blob`` is the content address of the state *before* the
    segment, from which a verifier starts. ``loss_bits`` is the IEEE 754 binary64 pattern of the sum of the
    steps' losses, as an integer. ``seal`` is ``work_seal(work_digest, salt)``.
    """

    segment: int
    step_from: int
    step_to: int
    state_root_before: bytes
    state_root_after: bytes
    loss_bits: int
    seal: bytes
    state_blob: bytes


class ShownLosses(NamedTuple):
    """The tensor of validation losses of the state that a window leaves, with the path to the state's root."""

    content: bytes
    siblings: tuple[bytes, ...]


class WindowProof(NamedTuple):
    """A worker's claim that it did a window: what is on chain (market.md 7.2).

    ``leaves_blob`` addresses ``encode_leaves(...)``. ``output_blob`` addresses the state after the window, which
    the next worker or the requester fetches. No clock of the worker is in it: the price follows from the steps.
    ``custody`` is size, plain root and cipher root of that state as it lies in custody (market.md 11.3), or empty
    for a task without custody. ``diverged`` claims that the last step diverges (R34): the window ends with it, and
    what it leaves is the state before that step. ``losses`` are those of evaluations, if the job has them (R86).
    """

    task: bytes
    window: int
    step_from: int
    step_to: int
    state_root_in: bytes
    state_root_out: bytes
    segment_root: bytes
    segments: int
    leaves_blob: bytes
    output_blob: bytes
    custody: tuple[int, bytes, bytes] | tuple[()] = ()
    diverged: Divergence | None = None
    losses: ShownLosses | None = None

    @property
    def result_root(self) -> bytes:
        """Root of the state that the window leaves, which ``output_blob`` addresses."""
        return self.state_root_out if self.diverged is None else self.diverged.state_before

    @property
    def result_step(self) -> int:
        """Steps that led to that state."""
        return self.step_to if self.diverged is None else self.diverged.step


class Code(IntEnum):
    """What a verifier found of a segment."""

    COMPUTED = 1
    """It re-ran the segment; the finding carries its work digest, state root and sum of losses."""
    UNAVAILABLE = 2
    """The leaves, the dataset, the state before the segment or the one after the window could not be fetched, or
    do not fit their roots."""
    BROKEN = 3
    """The leaves do not fit each other or the job (market.md R28). It counts once that was shown on chain."""
    DIFFERS = 4
    """As COMPUTED, and the worker's leaf has another state root or sum of losses."""


class Finding(NamedTuple):
    """A verifier's result for one sampled segment; all of it is zero when nothing was computed.

    Of a demanded result, ``work_digest`` is its ``delivery_digest``, ``state_root_after`` its root, and
    ``loss_bits`` 0.
    """

    segment: int
    code: Code
    work_digest: bytes
    state_root_after: bytes
    loss_bits: int

    @property
    def is_computed(self) -> bool:
        """Whether the segment was re-run."""
        return self.code in (Code.COMPUTED, Code.DIFFERS)

    def against(self, leaf: SegmentLeaf) -> Finding:
        """Return the finding with the code for what the worker's leaf says, of a segment that was re-run."""
        is_same = (self.state_root_after, self.loss_bits) == (leaf.state_root_after, leaf.loss_bits)
        return self._replace(code=Code.COMPUTED if is_same else Code.DIFFERS)


class ShownLeaf(NamedTuple):
    """The bytes of a leaf as the segment root covers them, and its path to that root."""

    content: bytes
    siblings: tuple[bytes, ...]


class Break(NamedTuple):
    """What proves that the leaves of a window do not fit (market.md R28).

    Either the leaf of ``segment`` alone does not fit the job, or it does not start where ``before`` ends.
    """

    segment: int
    leaf: ShownLeaf
    before: ShownLeaf | None


class Opening(NamedTuple):
    """A worker's opening of one sampled segment: its leaf, the path to the segment root, the seal's salt.

    ``before`` is the leaf of the segment before it; None for the first segment of a window.
    """

    leaf: SegmentLeaf
    siblings: tuple[bytes, ...]
    salt: bytes
    work_digest: bytes
    before: ShownLeaf | None


def work_seal(work_digest: bytes, salt: bytes) -> bytes:
    """Return the seal that hides ``work_digest`` under ``salt`` (32 random bytes, one for each segment)."""
    return digest(b"work-seal", salt + work_digest)


def verdict_seal(task: bytes, window: int, verifier: bytes, findings: Sequence[Finding], nonce: bytes) -> bytes:
    """Return the seal of a verifier's findings; ``nonce`` is 32 random bytes kept until the reveal."""
    return digest(b"verdict-seal", encode([task, window, verifier, findings_to_value(findings), nonce]))


def delivery_digest(salt: bytes, result: bytes) -> bytes:
    """Return what shows that one had the bytes of a ``result`` when ``salt`` was drawn (32 bytes, public)."""
    return digest(b"delivery", salt + result)


def encode_leaf(leaf: SegmentLeaf) -> bytes:
    """Return the canonical bytes of ``leaf``, which the segment root covers."""
    return encode(leaf)


def _leaf_from_value(value: Any) -> SegmentLeaf:
    match value:
        case [
            int(segment), int(step_from), int(step_to), bytes(before), bytes(after), int(loss_bits),
            bytes(seal), bytes(state_blob),
        ] if (
            0 <= segment < SEGMENTS_MAX and 0 <= step_from < step_to <= STEPS_MAX and 0 <= loss_bits < 2**64
            and {len(before), len(after), len(seal), len(state_blob)} == {HASH_BYTES}
        ):  # fmt: skip
            return SegmentLeaf(segment, step_from, step_to, before, after, loss_bits, seal, state_blob)
    raise DecodeError("not a segment leaf")


def encode_leaves(leaves: Sequence[SegmentLeaf]) -> bytes:
    """Return the canonical bytes of a window's leaves: the content of ``leaves_blob``."""
    return encode([list(leaf) for leaf in leaves])


def decode_leaves(data: bytes) -> tuple[SegmentLeaf, ...]:
    """Return the leaves of a blob; compare ``segment_root`` of them with the proof's. Raises DecodeError."""
    match decode(data, limit_bytes=LEAVES_LIMIT_BYTES):
        case list(items) if 0 < len(items) <= SEGMENTS_MAX:
            return tuple(_leaf_from_value(item) for item in items)
    raise DecodeError("not a list of segment leaves")


def check_leaves(spec: JobSpec, proof: WindowProof, leaves: Sequence[SegmentLeaf]) -> None:
    """Check that ``leaves`` are the ones ``proof`` commits to and chain from its first state to its last.

    Raises LeavesBroken, which has a proof against the worker; LeavesInvalid for leaves that are not the worker's.
    """
    if len(leaves) != proof.segments or segment_root(leaves) != proof.segment_root:
        raise LeavesInvalid("the leaves are not those under the segment root")
    shown = find_break(spec, proof, leaves)
    if shown is not None:
        raise LeavesBroken(shown)


def find_break(spec: JobSpec, proof: WindowProof, leaves: Sequence[SegmentLeaf]) -> Break | None:
    """Return the first place where the leaves of a window do not fit, or None."""
    for segment, leaf in enumerate(leaves):
        if not _fits_job(spec, proof, segment, leaf):
            return Break(segment, _show(leaves, segment), None)
        if segment and leaves[segment - 1].state_root_after != leaf.state_root_before:
            return Break(segment, _show(leaves, segment), _show(leaves, segment - 1))
    return None


def is_break(spec: JobSpec, proof: WindowProof, shown: Break) -> bool:
    """Tell whether ``shown`` proves that leaves under the segment root do not fit each other or the job."""
    segment, before = shown.segment, shown.before
    if not segment < proof.segments or not _is_under(proof, segment, shown.leaf):
        return False
    leaf = _read_leaf(shown.leaf)
    if leaf is None or not _fits_job(spec, proof, segment, leaf):
        return True
    if before is None or not segment or not _is_under(proof, segment - 1, before):
        return False
    return not _follows(leaf, before)


def _fits_job(spec: JobSpec, proof: WindowProof, segment: int, leaf: SegmentLeaf) -> bool:
    """Tell whether a leaf has its segment's steps, and begins or ends where the window does if it has to."""
    step_from, step_to = spec.segment_range(proof.window, segment)
    return (
        (leaf.segment, leaf.step_from, leaf.step_to) == (segment, step_from, min(step_to, proof.step_to))
        and (segment > 0 or leaf.state_root_before == proof.state_root_in)
        and (segment < proof.segments - 1 or leaf.state_root_after == proof.state_root_out)
    )


def _follows(leaf: SegmentLeaf, before: ShownLeaf) -> bool:
    earlier = _read_leaf(before)
    return earlier is not None and earlier.state_root_after == leaf.state_root_before


def _read_leaf(shown: ShownLeaf) -> SegmentLeaf | None:
    """Return a leaf; None for bytes that are none. A worker may commit to any bytes."""
    try:
        return _leaf_from_value(decode(shown.content, limit_bytes=LEAF_LIMIT_BYTES))
    except DecodeError:
        return None


def _is_under(proof: WindowProof, segment: int, shown: ShownLeaf) -> bool:
    path = MerkleProof(segment, proof.segments, shown.siblings)
    return verify_merkle_proof(proof.segment_root, shown.content, path)


def _show(leaves: Sequence[SegmentLeaf], segment: int) -> ShownLeaf:
    encoded = [encode_leaf(leaf) for leaf in leaves]
    return ShownLeaf(encoded[segment], merkle_proof(encoded, segment).siblings)


def segment_root(leaves: Sequence[SegmentLeaf]) -> bytes:
    """Return the Merkle root over the leaves of a window."""
    return merkle_root([encode_leaf(leaf) for leaf in leaves])


def make_opening(leaves: Sequence[SegmentLeaf], segment: int, work_digest: bytes, salt: bytes) -> Opening:
    """Return the opening of ``segment`` of a window's ``leaves``."""
    before = _show(leaves, segment - 1) if segment else None
    return Opening(leaves[segment], _show(leaves, segment).siblings, salt, work_digest, before)


def check_opening(proof: WindowProof, opening: Opening) -> bool:
    """Tell whether ``opening`` shows leaves under the proof's segment root, and what its seal hides."""
    leaf, before = opening.leaf, opening.before
    if leaf.segment and (before is None or not _is_under(proof, leaf.segment - 1, before)):
        return False
    return leaf.seal == work_seal(opening.work_digest, opening.salt) and _is_under(
        proof, leaf.segment, ShownLeaf(encode_leaf(leaf), opening.siblings)
    )


def opening_fits(spec: JobSpec, proof: WindowProof, opening: Opening) -> bool:
    """Tell whether the leaves of an opening that was checked fit each other and the job."""
    leaf, before = opening.leaf, opening.before
    return _fits_job(spec, proof, leaf.segment, leaf) and (before is None or _follows(leaf, before))


def window_proof_to_value(proof: WindowProof) -> Value:
    """Return ``proof`` as a codec value."""
    diverged: Value = [] if proof.diverged is None else divergence_to_value(proof.diverged)
    losses: list[Value] = []
    if proof.losses is not None:
        losses = [[proof.losses.content, list(proof.losses.siblings)]]
    return [*proof[:-3], list(proof.custody), diverged, *losses]


def window_proof_from_value(value: Any) -> WindowProof:
    """Return the proof of a decoded codec value. Raises DecodeError."""
    match value:
        case [
            bytes(task), int(window), int(step_from), int(step_to), bytes(root_in), bytes(root_out),
            bytes(segments_root), int(segments), bytes(leaves_blob), bytes(output_blob), list(custody),
            list(diverged), *losses,
        ] if (
            len(losses) <= 1 and
            0 <= window < WINDOWS_MAX and 0 <= step_from < step_to <= STEPS_MAX and 0 < segments <= SEGMENTS_MAX
            and {len(task), len(root_in), len(root_out), len(segments_root), len(leaves_blob), len(output_blob)}
            == {HASH_BYTES}
        ):  # fmt: skip
            return WindowProof(
                task, window, step_from, step_to, root_in, root_out, segments_root, segments, leaves_blob,
                output_blob, _custody_from_value(custody),
                divergence_from_value(diverged) if diverged else None,
                _losses_from_value(losses[0]) if losses else None,
            )  # fmt: skip
    raise DecodeError("not a window proof")


def _losses_from_value(value: Any) -> ShownLosses:
    match value:
        case [bytes(content), list(siblings)] if (
            0 < len(content) <= LOSSES_LIMIT_BYTES and len(siblings) <= LOSSES_PATH_MAX
            and all(type(one) is bytes and len(one) == HASH_BYTES for one in siblings)
        ):  # fmt: skip
            return ShownLosses(content, tuple(siblings))
    raise DecodeError("not losses of evaluations")


def _custody_from_value(value: list[Any]) -> tuple[int, bytes, bytes] | tuple[()]:
    match value:
        case []:
            return ()
        case [int(size), bytes(plain), bytes(cipher)] if (
            0 < size < CUSTODY_SIZE_LIMIT and len(plain) == len(cipher) == HASH_BYTES
        ):
            return size, plain, cipher
    raise DecodeError("not a commitment to a blob in custody")


def findings_to_value(findings: Sequence[Finding]) -> list[Value]:
    """Return ``findings`` as a codec value."""
    return [
        [
            finding.segment,
            int(finding.code),
            finding.work_digest,
            finding.state_root_after,
            finding.loss_bits,
        ]
        for finding in findings
    ]


def findings_from_value(value: Any) -> tuple[Finding, ...]:
    """Return the findings of a decoded codec value: one a segment, ascending. Raises DecodeError."""
    if not isinstance(value, list) or not 0 < len(value) <= SAMPLED_MAX:
        raise DecodeError(f"1 to {SAMPLED_MAX} findings expected")
    findings: list[Finding] = []
    for item in value:
        match item:
            case [int(segment), (1 | 2 | 3 | 4) as code, bytes(work_digest), bytes(after), int(loss_bits)] if (
                0 <= segment < SEGMENTS_MAX and len(work_digest) == len(after) == HASH_BYTES
                and 0 <= loss_bits < 2**64
            ):  # fmt: skip
                findings.append(Finding(segment, Code(code), work_digest, after, loss_bits))
            case _:
                raise DecodeError("not a finding")
    if any(a.segment >= b.segment for a, b in pairwise(findings)):
        raise DecodeError("findings are not in the order of their segments")
    return tuple(findings)


def opening_to_value(opening: Opening) -> Value:
    """Return ``opening`` as a codec value."""
    before: Value = [] if opening.before is None else _shown_value(opening.before)
    return [list(opening.leaf), list(opening.siblings), opening.salt, opening.work_digest, before]


def opening_from_value(value: Any) -> Opening:
    """Return the opening of a decoded codec value. Raises DecodeError."""
    match value:
        case [list(leaf), list(siblings), bytes(salt), bytes(work_digest), list(before)] if (
            len(salt) == len(work_digest) == HASH_BYTES
        ):
            opened = _leaf_from_value(leaf)
            if bool(before) != bool(opened.segment):
                raise DecodeError("the leaf before belongs to every segment but the first")
            return Opening(opened, _path(siblings), salt, work_digest, _shown(before) if before else None)
    raise DecodeError("not an opening")


def break_to_value(shown: Break) -> list[Value]:
    """Return ``shown`` as a codec value: the segment, then its leaf, and the leaf before if that is shown."""
    leaves = (shown.leaf,) if shown.before is None else (shown.leaf, shown.before)
    return [shown.segment, [_shown_value(leaf) for leaf in leaves]]


def break_from_value(value: Any) -> Break:
    """Return the break of a decoded codec value. Raises DecodeError."""
    match value:
        case [int(segment), [leaf, *rest]] if 0 <= segment < SEGMENTS_MAX and len(rest) <= 1:
            return Break(segment, _shown(leaf), _shown(rest[0]) if rest else None)
    raise DecodeError("not one or two leaves of a window")


def _shown_value(shown: ShownLeaf) -> Value:
    return [shown.content, list(shown.siblings)]


def _shown(value: Any) -> ShownLeaf:
    match value:
        case [bytes(content), list(siblings)] if 0 < len(content) <= LEAF_LIMIT_BYTES:
            return ShownLeaf(content, _path(siblings))
    raise DecodeError("not a leaf with its path")


def _path(value: list[Any]) -> tuple[bytes, ...]:
    if len(value) > SEGMENTS_MAX.bit_length() or not all(
        type(item) is bytes and len(item) == HASH_BYTES for item in value
    ):
        raise DecodeError("not a path")
    return tuple(value)
