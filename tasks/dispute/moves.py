"""Moves of a dispute and their bytes (market.md 7.7)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import LEAVES_MAX
from tasks.dispute.commitments import BITS_LIMIT, StepRecord, hashes, record_of, record_value
from tasks.programs.operators import FOLD_BITS_MAX
from tasks.programs.program import CALLS_MAX
from tasks.programs.tensors import DIMENSION_MAX, LEAF_BYTES

__all__ = [
    "Ask",
    "LeafOpening",
    "Move",
    "Name",
    "Nodes",
    "Partials",
    "Pick",
    "PickTerms",
    "ShowDiverged",
    "ShowRecords",
    "ShowTrace",
    "TensorOpening",
    "Tree",
    "decode_move",
    "encode_move",
]

MOVE_LIMIT_BYTES: Final = 32 * 1024
FANOUT: Final = 16
"""Children, partial folds or parts of an interval that one move shows."""
RECORDS_MAX: Final = FANOUT - 1
"""Records between the parts of an interval of steps."""
PATH_MAX: Final = LEAVES_MAX.bit_length()
TENSORS_MAX: Final = 8
"""Tensors that one move opens: an operator's inputs and its result."""
LEAVES_OPENED_MAX: Final = 64
CONTENT_LIMIT_BYTES: Final = 256
"""A leaf of any tree: values of a tensor, or a named root."""
FOLD_LIMIT: Final = 1 << (FOLD_BITS_MAX - 1)
"""Partial folds lie from -FOLD_LIMIT to below FOLD_LIMIT."""
TENSOR_NUMBER_MAX: Final = 2 * CALLS_MAX


class Tree:
    """Numbers of the trees that a challenger may ask for."""

    TRACE: Final = 1
    AFTER: Final = 2
    TENSOR: Final = 3


class LeafOpening(NamedTuple):
    """One leaf of a tensor with the path to the tensor's root."""

    leaf: int
    content: bytes
    siblings: tuple[bytes, ...]


class TensorOpening(NamedTuple):
    """A tensor's root with the path to where it stands, and some of its leaves."""

    tensor: int
    root: bytes
    siblings: tuple[bytes, ...]
    leaves: tuple[LeafOpening, ...]


class ShowRecords(NamedTuple):
    """The accused shows where its segment stood between the parts of the interval in question."""

    records: tuple[StepRecord, ...]


class Nodes(NamedTuple):
    """The accused shows nodes below the node in question; on the lowest level the contents of leaves."""

    nodes: tuple[bytes, ...]


class Pick(NamedTuple):
    """The challenger goes on below one of the shown nodes, or in one part of the interval in question."""

    child: int


class ShowTrace(NamedTuple):
    """The accused commits to the disputed step's trace.

    ``probe_root`` is the root of its probe, ``loss`` are the bits of its loss, with the path of that tensor in the
    trace.
    """

    trace_root: bytes
    probe_root: bytes
    loss: int
    loss_siblings: tuple[bytes, ...]


class ShowDiverged(NamedTuple):
    """The accused commits to the results before the store that diverged, and opens the value without a store."""

    results_root: bytes
    openings: tuple[TensorOpening, ...]


class Ask(NamedTuple):
    """The challenger was not served: the accused has to show a tree on chain. ``root`` and path are for TENSOR."""

    tree: int
    tensor: int
    root: bytes
    siblings: tuple[bytes, ...]


class Name(NamedTuple):
    """The challenger names the wrong element and opens it, and, unless it is a long fold, what it follows from."""

    tensor: int
    row: int
    column: int
    openings: tuple[TensorOpening, ...]


class Partials(NamedTuple):
    """The accused shows partial folds; the first time also what the element takes from the whole fold."""

    values: tuple[int, ...]
    openings: tuple[TensorOpening, ...]


class PickTerms(NamedTuple):
    """The challenger goes on in one block of a fold; in a shortest block it opens the terms."""

    child: int
    openings: tuple[TensorOpening, ...]


Move = ShowRecords | Nodes | Pick | ShowTrace | Ask | Name | Partials | PickTerms | ShowDiverged
_KINDS: Final[tuple[type[Move], ...]] = (
    Nodes, Pick, ShowTrace, Ask, Name, Partials, PickTerms, ShowRecords, ShowDiverged,
)  # fmt: skip


def _openings_value(openings: tuple[TensorOpening, ...]) -> Value:
    return [
        [
            opening.tensor,
            opening.root,
            list(opening.siblings),
            [[leaf.leaf, leaf.content, list(leaf.siblings)] for leaf in opening.leaves],
        ]
        for opening in openings
    ]


def encode_move(move: Move) -> bytes:
    """Return the canonical bytes of a move."""
    value: list[Value]
    match move:
        case Nodes(nodes):
            value = [list(nodes)]
        case Pick(child):
            value = [child]
        case ShowTrace(trace_root, probe_root, loss, siblings):
            value = [trace_root, probe_root, loss, list(siblings)]
        case Ask(tree, tensor, root, siblings):
            value = [tree, tensor, root, list(siblings)]
        case Name(tensor, row, column, openings):
            value = [tensor, row, column, _openings_value(openings)]
        case Partials(values, openings):
            value = [list(values), _openings_value(openings)]
        case PickTerms(child, openings):
            value = [child, _openings_value(openings)]
        case ShowDiverged(results_root, openings):
            value = [results_root, _openings_value(openings)]
        case ShowRecords(records):
            value = [[record_value(record) for record in records]]
    return encode([_KINDS.index(type(move)), *value])


def decode_move(data: bytes) -> Move:
    """Return the move of canonical bytes. Raises DecodeError."""
    match decode(data, limit_bytes=MOVE_LIMIT_BYTES):
        case [0, list(nodes)] if 0 < len(nodes) <= FANOUT and all(
            type(node) is bytes and 0 < len(node) <= CONTENT_LIMIT_BYTES for node in nodes
        ):
            return Nodes(tuple(nodes))
        case [1, int(child)] if 0 <= child < FANOUT:
            return Pick(child)
        case [2, bytes(trace), bytes(probe), int(loss), list(path)] if (
            len(trace) == len(probe) == HASH_BYTES and 0 <= loss < BITS_LIMIT
        ):
            return ShowTrace(trace, probe, loss, hashes(path, PATH_MAX))
        case [3, (Tree.TRACE | Tree.AFTER | Tree.TENSOR) as tree, int(tensor), bytes(root), list(path)] if (
            0 <= tensor < TENSOR_NUMBER_MAX and len(root) == HASH_BYTES
        ):
            return Ask(tree, tensor, root, hashes(path, PATH_MAX))
        case [4, int(tensor), int(row), int(column), list(openings)] if (
            0 <= tensor < TENSOR_NUMBER_MAX and 0 <= row < DIMENSION_MAX and 0 <= column < DIMENSION_MAX
        ):
            return Name(tensor, row, column, _openings(openings))
        case [5, list(values), list(openings)] if 0 < len(values) <= FANOUT and all(
            type(value) is int and -FOLD_LIMIT <= value < FOLD_LIMIT for value in values
        ):
            return Partials(tuple(values), _openings(openings))
        case [6, int(child), list(openings)] if 0 <= child < FANOUT:
            return PickTerms(child, _openings(openings))
        case [7, list(records)] if 0 < len(records) <= RECORDS_MAX:
            return ShowRecords(tuple(record_of(record) for record in records))
        case [8, bytes(results), list(openings)] if len(results) == HASH_BYTES:
            return ShowDiverged(results, _openings(openings))
    raise DecodeError("not a move of a dispute")


def _openings(value: list[Any]) -> tuple[TensorOpening, ...]:
    if len(value) > TENSORS_MAX:
        raise DecodeError(f"up to {TENSORS_MAX} tensors expected")
    openings: list[TensorOpening] = []
    left = LEAVES_OPENED_MAX
    for item in value:
        match item:
            case [int(tensor), bytes(root), list(path), list(leaves)] if (
                0 <= tensor < TENSOR_NUMBER_MAX and len(root) == HASH_BYTES and len(leaves) <= left
            ):
                left -= len(leaves)
                openings.append(
                    TensorOpening(tensor, root, hashes(path, PATH_MAX), tuple(_leaf(leaf) for leaf in leaves))
                )
            case _:
                raise DecodeError("not the opening of a tensor")
    return tuple(openings)


def _leaf(value: Any) -> LeafOpening:
    match value:
        case [int(leaf), bytes(content), list(path)] if 0 <= leaf < LEAVES_MAX and 0 < len(content) <= LEAF_BYTES:
            return LeafOpening(leaf, content, hashes(path, PATH_MAX))
    raise DecodeError("not the opening of a leaf")
