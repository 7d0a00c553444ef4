"""What proves that a task cannot be run: a blob that is not the data set that the task names (market.md 5.5).

A claim opens a few chunks of the blob under its name. Every validator judges it. Each way in which a blob can fail
to be the data set has such a claim: its size, a byte that the job fixes, a label beyond the classes, a node that
does not follow from what stands below it, tops that do not make the task's root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from state.primitives.codec import Value
from state.primitives.errors import DecodeError, ProtocolError
from state.primitives.hashing import HASH_BYTES
from state.primitives.manifests import (
    BLOB_CHUNK_BYTES,
    BLOB_PIECES_MAX,
    PIECE_BYTES,
    blob_name,
    chunks_of,
    piece_hash,
    pieces_digest,
)
from state.primitives.merkle import (
    MerkleProof,
    MerkleTree,
    ancestor_of,
    leaf_hash,
    root_of_top,
    verify_merkle_proof,
)
from tasks.engines.dataset_layout import NODE_LEVELS, TENSORS, Layout, NodePlace
from tasks.engines.datasets import DATASET_BLOB_BYTES_MAX
from tasks.programs.states import data_root
from tasks.programs.tensors import leaves_of
from tasks.spec import ClassifierPart, JobSpec

__all__ = [
    "CHUNKS_MAX",
    "BlobChunk",
    "ClaimUnproven",
    "Fault",
    "InputClaim",
    "Shown",
    "check_claim",
    "claim_from_value",
    "claim_of_size",
    "claim_to_value",
    "find_fault",
    "first_fault",
    "is_fault",
    "layout_of",
    "read_chunks",
    "say_divergence",
    "say_fault",
]

CHUNKS_MAX: Final = 4
"""Chunks that a claim opens: a node and what it follows from may each lie in two."""
PIECE_CHUNKS: Final = PIECE_BYTES // BLOB_CHUNK_BYTES
PATH_MAX: Final = PIECE_CHUNKS.bit_length()
_PIECES_MAX: Final = -(-DATASET_BLOB_BYTES_MAX // PIECE_BYTES) + 1
"""A cipher has one piece more at most: the hashes of its plain chunks follow it."""
_OFFSET_LIMIT: Final = BLOB_PIECES_MAX * PIECE_BYTES
_SIZE_LIMIT: Final = _OFFSET_LIMIT + 1


class ClaimUnproven(ProtocolError):
    """A claim that does not show what it says; the task goes on."""

    code = "claim_unproven"


class Fault(IntEnum):
    """Why a blob is not the data set of a job. Numbers are stable."""

    SIZE = 1
    """It is longer or shorter than the data set."""
    FORM = 2
    """A byte that the job fixes is another one."""
    LABEL = 3
    """A label is not below the number of classes."""
    NODE = 4
    """A node does not follow from the nodes or leaves below it."""
    ROOT = 5
    """The tops of both trees do not make the root that the task names."""
    GARBAGE = 6
    """The cipher of an input with a key is not one of the plain bytes that its requester committed to."""


class BlobChunk(NamedTuple):
    """Chunk ``number`` of a blob, with its path to the hash of its piece."""

    number: int
    content: bytes
    siblings: tuple[bytes, ...]


class InputClaim(NamedTuple):
    """A fault of the data set of a task, and the chunks of its blob that show it.

    ``size`` and ``pieces`` are what the blob's name covers. ``hashes`` are those of all pieces; of a fault of the
    size there are none. ``place`` is the node, or ``(0, 0, offset)`` of a byte or label, or zeros.
    """

    task: bytes
    fault: Fault
    place: NodePlace
    size: int
    pieces: bytes
    hashes: tuple[bytes, ...]
    chunks: tuple[BlobChunk, ...]


_NOWHERE: Final = NodePlace(0, 0, 0)
PlainOf = Callable[[int, bytes], bytes]


def layout_of(spec: JobSpec) -> Layout:
    """Return the layout of a classifier's data set. Raises ClaimUnproven: blobs of other kinds are not judged."""
    if not isinstance(spec.part, ClassifierPart):
        raise ClaimUnproven(f"no claim is judged about the blobs of a job of the kind {spec.kind}")
    named, widths = spec.part.dataset, spec.part.model.widths
    return Layout(named.rows, widths[0], widths[-1], named.shift, named.samples)


# Encoding


def claim_to_value(claim: InputClaim) -> list[Value]:
    """Return a claim as a codec value."""
    chunks: list[Value] = [[chunk.number, chunk.content, list(chunk.siblings)] for chunk in claim.chunks]
    return [
        claim.task, int(claim.fault), list(claim.place), claim.size, claim.pieces, b"".join(claim.hashes), chunks,
    ]  # fmt: skip


def claim_from_value(value: Any) -> InputClaim:
    """Return the claim of a decoded codec value. Raises DecodeError."""
    match value:
        case [
            bytes(task), (1 | 2 | 3 | 4 | 5) as fault, [int(tensor), int(stage), int(number)], int(size),
            bytes(pieces), bytes(joined), list(chunks),
        ] if (
            len(task) == len(pieces) == HASH_BYTES and 0 <= tensor < len(TENSORS) and 0 <= stage <= HASH_BYTES
            and 0 <= number < _OFFSET_LIMIT and 0 <= size < _SIZE_LIMIT
            and len(joined) % HASH_BYTES == 0 and len(joined) <= _PIECES_MAX * HASH_BYTES
            and len(chunks) <= CHUNKS_MAX
        ):  # fmt: skip
            hashes = tuple(joined[at : at + HASH_BYTES] for at in range(0, len(joined), HASH_BYTES))
            place = NodePlace(tensor, stage, number)
            return InputClaim(task, Fault(fault), place, size, pieces, hashes, tuple(map(_chunk, chunks)))
        case _:
            raise DecodeError("not a claim about a data set")


def _chunk(value: Any) -> BlobChunk:
    match value:
        case [int(number), bytes(content), list(siblings)] if (
            0 <= number < _OFFSET_LIMIT // BLOB_CHUNK_BYTES and 0 < len(content) <= BLOB_CHUNK_BYTES
            and len(siblings) <= PATH_MAX
            and all(type(item) is bytes and len(item) == HASH_BYTES for item in siblings)
        ):  # fmt: skip
            return BlobChunk(number, content, tuple(siblings))
        case _:
            raise DecodeError("not a chunk of a blob")


# Judging


class Shown(Protocol):
    """Bytes of a blob that were shown to be its own."""

    def read(self, start: int, stop: int) -> bytes:
        """Return some bytes of the blob. Raises ClaimUnproven if they were not shown."""


class _Shown:
    """The chunks of a blob that a claim has shown to stand under its name."""

    def __init__(self, claim: InputClaim, plain_of: PlainOf | None) -> None:
        """Raises ClaimUnproven for a chunk that does not stand under the name."""
        if pieces_digest(claim.hashes) != claim.pieces or len(claim.hashes) != -(-claim.size // PIECE_BYTES):
            raise ClaimUnproven("the hashes of the pieces are not those that the name covers")
        self._chunks: dict[int, bytes] = {}
        for number, content, siblings in claim.chunks:
            piece, at = divmod(number, PIECE_CHUNKS)
            if piece >= len(claim.hashes):
                raise ClaimUnproven(f"the blob has no chunk {number}")
            left = min(PIECE_BYTES, claim.size - piece * PIECE_BYTES)
            path = MerkleProof(at, -(-left // BLOB_CHUNK_BYTES), siblings)
            if not verify_merkle_proof(claim.hashes[piece], content, path):
                raise ClaimUnproven(f"chunk {number} does not stand under the name of the blob")
            self._chunks[number] = content if plain_of is None else plain_of(number, content)

    def read(self, start: int, stop: int) -> bytes:
        """Return some bytes of the blob. Raises ClaimUnproven if they were not shown."""
        return read_chunks(self._chunks, BLOB_CHUNK_BYTES, start, stop)


def read_chunks(chunks: Mapping[int, bytes], chunk_bytes: int, start: int, stop: int) -> bytes:
    """Return bytes of chunks that were shown. Raises ClaimUnproven if they were not."""
    found = bytearray()
    while start < stop:
        number, at = divmod(start, chunk_bytes)
        part = chunks.get(number, b"")[at : at + stop - start]
        if not part:
            raise ClaimUnproven(f"byte {start} was not shown")
        found += part
        start += len(part)
    return bytes(found)


def check_claim(
    spec: JobSpec, claim: InputClaim, plain_of: PlainOf | None = None, *, blob_bytes: int | None = None
) -> None:
    """Return if a claim proves that a task's blob is not its data set. Raises ClaimUnproven.

    ``plain_of`` decrypts chunk ``number`` where the blob is a cipher of the data set. ``blob_bytes`` is the size
    that the blob must have, by default that of the data set.
    """
    if blob_name(claim.size, claim.pieces) != spec.dataset.blob:
        raise ClaimUnproven("another blob than the task's data set")
    layout = layout_of(spec)
    wanted = layout.size if blob_bytes is None else blob_bytes
    if claim.fault is Fault.SIZE:
        if claim.size == wanted:
            raise ClaimUnproven("the blob has the size of the data set")
        return
    if claim.size != wanted:
        raise ClaimUnproven("the fault of this blob is its size")
    shown = _Shown(claim, plain_of)
    if not is_fault(spec, claim.fault, claim.place, shown):
        raise ClaimUnproven("what is shown is no fault")


def is_fault(spec: JobSpec, fault: Fault, place: NodePlace, shown: Shown) -> bool:
    """Tell whether bytes of a blob of the right size show a fault of a job's data set. Raises ClaimUnproven."""
    layout = layout_of(spec)
    match fault:
        case Fault.FORM:
            at = place.number
            wanted = next(
                (part[at - start] for start, part in layout.fixed() if 0 <= at - start < len(part)), None
            )
            return wanted is not None and shown.read(at, at + 1)[0] != wanted
        case Fault.LABEL:
            at = place.number
            is_label = layout.labels_at <= at < layout.labels_at + layout.rows
            return is_label and shown.read(at, at + 1)[0] >= layout.classes
        case Fault.NODE:
            if not 1 <= place.stage <= len(layout.stages(place.tensor)):
                return False
            if place.number >= layout.width(place.tensor, place.stage):
                return False
            below = [
                _node(layout, place._replace(stage=place.stage - 1, number=at), shown)
                for at in layout.children(place)
            ]
            return ancestor_of(below, NODE_LEVELS) != shown.read(*layout.node_span(place))
        case Fault.ROOT:
            return _root(layout, shown) != spec.dataset.root
        case _:
            return False


def _node(layout: Layout, place: NodePlace, shown: Shown) -> bytes:
    if place.stage:
        return shown.read(*layout.node_span(place))
    return leaf_hash(shown.read(*layout.leaf_span(place.tensor, place.number)))


def _root(layout: Layout, shown: Shown) -> bytes:
    kinds = layout.types()
    tops = [_node(layout, _top(layout, tensor), shown) for tensor in range(len(TENSORS))]
    return data_root({
        name: (kind, root_of_top(kind.leaves, top)) for name, kind, top in zip(TENSORS, kinds, tops, strict=True)
    })  # fmt: skip


def _top(layout: Layout, tensor: int) -> NodePlace:
    return NodePlace(tensor, len(layout.stages(tensor)), 0)


# Finding


def find_fault(
    task: bytes, spec: JobSpec, content: bytes, cipher: bytes | None = None, *, blob_bytes: int | None = None
) -> InputClaim | None:
    """Return the claim against a blob that is not the data set of a job; None if it is.

    Where the blob is a ``cipher``, ``content`` is what it decrypts to, and ``blob_bytes`` the size that it must
    have. Takes up to three seconds for the largest.
    """
    blob = content if cipher is None else cipher
    hashes = tuple(piece_hash(blob[at : at + PIECE_BYTES]) for at in range(0, len(blob), PIECE_BYTES))
    wrong = claim_of_size(task, spec, len(blob), pieces_digest(hashes), blob_bytes=blob_bytes)
    if wrong is not None:
        return wrong
    found = first_fault(spec, content)
    if found is None:
        return None
    fault, place, spans = found
    numbers = sorted({at // BLOB_CHUNK_BYTES for start, stop in spans for at in (start, stop - 1)})
    chunks = tuple(_open(blob, number) for number in numbers)
    return InputClaim(task, fault, place, len(blob), pieces_digest(hashes), hashes, chunks)


def claim_of_size(
    task: bytes, spec: JobSpec, size: int, pieces: bytes, *, blob_bytes: int | None = None
) -> InputClaim | None:
    """Return the claim against a blob of another size than it must have; None if it has that size."""
    if size == (layout_of(spec).size if blob_bytes is None else blob_bytes):
        return None
    return InputClaim(task, Fault.SIZE, _NOWHERE, size, pieces, (), ())


def _open(content: bytes, number: int) -> BlobChunk:
    piece, at = divmod(number, PIECE_CHUNKS)
    chunks = chunks_of(content[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES])
    return BlobChunk(number, chunks[at], MerkleTree(chunks).siblings(at))


_Span = tuple[int, int]
_Found = tuple[Fault, NodePlace, Sequence[_Span]]


def first_fault(spec: JobSpec, content: bytes) -> _Found | None:
    """Return a fault of a blob that has the size of a job's data set, and the spans of bytes that show it."""
    layout = layout_of(spec)
    for start, part in layout.fixed():
        for at, wanted in enumerate(part, start):
            if content[at] != wanted:
                return Fault.FORM, NodePlace(0, 0, at), [(at, at + 1)]
    labels = content[layout.labels_at : layout.labels_at + layout.rows]
    if rest := labels.translate(None, bytes(range(layout.classes))):
        at = layout.labels_at + labels.index(rest[:1])
        return Fault.LABEL, NodePlace(0, 0, at), [(at, at + 1)]
    trees = _trees(layout, content)
    for tensor, tree in enumerate(trees):
        for place, node in _nodes(layout, tensor, tree):
            span = layout.node_span(place)
            if content[span[0] : span[1]] != node:
                below = layout.children(place)
                first = _span(layout, place._replace(stage=place.stage - 1, number=below[0]))[0]
                last = _span(layout, place._replace(stage=place.stage - 1, number=below[-1]))[1]
                return Fault.NODE, place, [span, (first, last)]
    kinds = layout.types()
    root = data_root({name: (kind, tree.root) for name, kind, tree in zip(TENSORS, kinds, trees, strict=True)})
    if root != spec.dataset.root:
        spans = [_span(layout, _top(layout, tensor)) for tensor in range(len(TENSORS))]
        return Fault.ROOT, _NOWHERE, spans
    return None


def _span(layout: Layout, place: NodePlace) -> _Span:
    return layout.node_span(place) if place.stage else layout.leaf_span(place.tensor, place.number)


def _trees(layout: Layout, content: bytes) -> list[MerkleTree]:
    features, labels = layout.types()
    parts = (
        (features, content[layout.features_at : layout.features_at + features.size_bytes]),
        (labels, content[layout.labels_at : layout.labels_at + layout.rows]),
    )
    return [MerkleTree(leaves_of(kind, part)) for kind, part in parts]


def _nodes(layout: Layout, tensor: int, tree: MerkleTree) -> Iterator[tuple[NodePlace, bytes]]:
    """Yield the nodes that the blob has to have of a tree, the lowest first: below a wrong one all are right."""
    top = len(tree.levels) - 1
    for stage in range(1, len(layout.stages(tensor)) + 1):
        for number, node in enumerate(tree.levels[min(top, stage * NODE_LEVELS)]):
            yield NodePlace(tensor, stage, number), node


def say_fault(spec: JobSpec, fault: Fault, place: NodePlace, size: int) -> str:
    """Return what is wrong with a data set of ``size`` bytes, in plain words for its requester."""
    layout, at = layout_of(spec), place.number
    match fault:
        case Fault.SIZE:
            return f"the file has {size} bytes, the job's data set has {layout.size}: is it a data set at all?"
        case Fault.FORM:
            return f"byte {at} is not the one that the job's rows, features, classes, shift and samples demand"
        case Fault.LABEL:
            return f"the label of row {at - layout.labels_at} is not below {layout.classes}"
        case Fault.NODE:
            return f"node {at} of stage {place.stage} does not follow from the {TENSORS[place.tensor]}"
        case Fault.GARBAGE:
            return f"chunk {at} of the cipher is not the one of the plain bytes under the plain root"
        case _:
            return "its features and labels have another root than dataset.root"


def say_divergence(spec: JobSpec, step: int, store: int, row: int, column: int) -> str:
    """Return in which value a job diverges, in plain words for its requester."""
    program = spec.program()
    names = {number: name for name, number in program.stores.items()}
    call = program.call_of(store)
    limit = f"2^{call.attributes[0]}" if call is not None and call.attributes else "its limit"
    name = names.get(store, "the gradient")
    return (
        f"training diverges in step {step + 1}: value {row}, {column} of {name} is not below {limit}; "
        f"the result is the state after {step} steps; a lower learning rate may help"
    )
