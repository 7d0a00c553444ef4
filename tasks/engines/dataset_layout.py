"""Where everything lies in a data set's bytes, which follows from the job alone (market.md 4.5).

Beside features, labels and nodes no byte is free. The nodes are those of every fifth level of the trees over both
tensors. So whatever keeps a blob from being the data set of a root can be shown in a few kilobytes of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from state.primitives.codec import encode
from state.primitives.hashing import HASH_BYTES
from state.primitives.merkle import MerkleTree
from tasks.programs.classifier import FEATURES, LABELS
from tasks.programs.tensors import LEAF_BYTES, ElementType, TensorType

__all__ = ["DATASET_VERSION", "NODE_LEVELS", "TENSORS", "Layout", "NodePlace", "nodes_of", "stage_widths"]

DATASET_VERSION: Final = 1
NODE_LEVELS: Final = 5
"""Levels between the nodes that are kept: a node follows from 32 below it."""
TENSORS: Final = (FEATURES, LABELS)
_ITEMS: Final = 9
_ARRAY: Final = 0x80
_BYTES: Final = 0x40


def _bytes_head(size: int) -> bytes:
    """Return the canonical head of a byte string."""
    if size < 24:
        return bytes([_BYTES | size])
    for code, width in ((24, 1), (25, 2), (26, 4)):
        if size < 1 << 8 * width:
            return bytes([_BYTES | code]) + size.to_bytes(width, "big")
    raise ValueError(f"{size} bytes")


def stage_widths(leaves: int) -> list[int]:
    """Return how many nodes each stage of a tree has: stage 1 is level 5, stage 2 is level 10, up to one node."""
    widths = []
    while leaves > 1:
        leaves = -(-leaves >> NODE_LEVELS)
        widths.append(leaves)
    return widths


def nodes_of(tree: MerkleTree) -> bytes:
    """Return the nodes of a tree that stand in a data set, stage by stage."""
    top = len(tree.levels) - 1
    stages = range(1, len(stage_widths(tree.leaves)) + 1)
    return b"".join(b"".join(tree.levels[min(top, stage * NODE_LEVELS)]) for stage in stages)


class NodePlace(NamedTuple):
    """A node of the tree over tensor number ``tensor`` of TENSORS; stage 0 are the leaves."""

    tensor: int
    stage: int
    number: int


class Layout(NamedTuple):
    """The data set of a job: ``rows`` of ``columns`` bytes, labels below ``classes``, ``samples`` to train on."""

    rows: int
    columns: int
    classes: int
    shift: int
    samples: int

    def types(self) -> tuple[TensorType, TensorType]:
        """Return the types of features and labels."""
        return (
            TensorType(ElementType.UINT8, self.rows, self.columns), TensorType(ElementType.UINT8, self.rows, 1),
        )  # fmt: skip

    @property
    def node_bytes(self) -> int:
        """Bytes of the nodes of both trees."""
        return HASH_BYTES * sum(sum(stage_widths(kind.leaves)) for kind in self.types())

    def _heads(self) -> tuple[bytes, bytes, bytes]:
        fields = self.rows, self.columns, self.classes, self.shift, self.samples
        head = bytes([_ARRAY | _ITEMS]) + encode(DATASET_VERSION) + b"".join(map(encode, fields))
        features = head + _bytes_head(self.rows * self.columns)
        return features, _bytes_head(self.rows), _bytes_head(self.node_bytes)

    @property
    def features_at(self) -> int:
        """Where the features begin."""
        return len(self._heads()[0])

    @property
    def labels_at(self) -> int:
        """Where the labels begin."""
        first, second, _ = self._heads()
        return len(first) + self.rows * self.columns + len(second)

    @property
    def nodes_at(self) -> int:
        """Where the nodes begin."""
        return self.labels_at + self.rows + len(self._heads()[2])

    @property
    def size(self) -> int:
        """Bytes of the data set."""
        return self.nodes_at + self.node_bytes

    def fixed(self) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes that the job fixes, with their places."""
        first, second, third = self._heads()
        yield 0, first
        yield self.labels_at - len(second), second
        yield self.nodes_at - len(third), third

    def stages(self, tensor: int) -> list[int]:
        """Return how many nodes each stage of a tensor's tree has."""
        return stage_widths(self.types()[tensor].leaves)

    def width(self, tensor: int, stage: int) -> int:
        """Return how many nodes a stage has; stage 0 has the leaves. Raises IndexError for no such stage."""
        return self.stages(tensor)[stage - 1] if stage else self.types()[tensor].leaves

    def node_span(self, place: NodePlace) -> tuple[int, int]:
        """Return where a node of stage 1 or above begins and ends."""
        tensor, stage, number = place
        before = sum(self.stages(0)) if tensor else 0
        at = self.nodes_at + HASH_BYTES * (before + sum(self.stages(tensor)[: stage - 1]) + number)
        return at, at + HASH_BYTES

    def leaf_span(self, tensor: int, leaf: int) -> tuple[int, int]:
        """Return where a leaf of a tensor begins and ends."""
        kind = self.types()[tensor]
        begin = self.labels_at if tensor else self.features_at
        row, part = divmod(leaf, kind.leaves_per_row)
        at = begin + row * kind.row_bytes + part * LEAF_BYTES
        return at, min(at + LEAF_BYTES, begin + (row + 1) * kind.row_bytes)

    def children(self, place: NodePlace) -> range:
        """Return the numbers of the nodes of the stage below from which a node follows."""
        first = place.number << NODE_LEVELS
        return range(first, min(first + (1 << NODE_LEVELS), self.width(place.tensor, place.stage - 1)))
