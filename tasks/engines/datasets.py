"""Datasets as canonical bytes: rows of small unsigned features with a label, split for training and testing.

See market.md 4.5.

The requester makes the blob; workers and verifiers fetch it by its content address and read it strictly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.merkle import MerkleTree
from tasks.engines.dataset_layout import DATASET_VERSION, TENSORS, Layout, nodes_of
from tasks.engines.errors import DatasetInvalid
from tasks.programs.classifier import FEATURES, LABELS
from tasks.programs.operators.storage import SHIFT_MAX
from tasks.programs.states import data_root
from tasks.programs.tensors import LEAF_BYTES, TensorType, leaves_of

__all__ = [
    "DATASET_BLOB_BYTES_MAX",
    "DATASET_BYTES_MAX",
    "DATASET_LEAVES_MAX",
    "ROWS_MAX",
    "SHIFT_MAX",
    "Dataset",
    "dataset_leaves",
]

DATASET_BYTES_MAX: Final = 64 * 1024 * 1024
"""Features and labels."""
DATASET_BLOB_BYTES_MAX: Final = DATASET_BYTES_MAX + 2 * 1024 * 1024
"""The same with the nodes of their trees."""
DATASET_LEAVES_MAX: Final = 1 << 20
"""Leaves of a data set's tensors, of which hashing takes 1.4 s of a core."""
ROWS_MAX: Final = DATASET_LEAVES_MAX // 2
"""Each row has a leaf of features at least, and one for its label."""
COLUMNS_MAX: Final = 4096
ITEMS: Final = 10
"""More than a data set and its fields: no stranger's bytes make more objects than that."""


def dataset_leaves(rows: int, columns: int) -> int:
    """Return the leaves of a data set's tensors."""
    return rows * (-(-columns // LEAF_BYTES) + 1)


@dataclass(frozen=True)
class Dataset:
    """``rows`` rows of ``columns`` bytes, feature = byte / 2**shift; the first ``train_rows`` are for training."""

    rows: int
    columns: int
    classes: int
    shift: int
    train_rows: int
    features: bytes
    labels: bytes

    def encode(self) -> bytes:
        """Return the canonical bytes: what the dataset blob holds."""
        return encode([
            DATASET_VERSION, self.rows, self.columns, self.classes, self.shift, self.train_rows,
            self.features, self.labels, self._commitment[1],
        ])  # fmt: skip

    @classmethod
    def decode(cls, data: bytes, *, checks_nodes: bool = True) -> Dataset:
        """Read a dataset blob. Raises DatasetInvalid on anything but one.

        Without ``checks_nodes`` its bytes were read before: the trees of a large one take a second, and memory.
        """
        try:
            value = decode(data, limit_bytes=DATASET_BLOB_BYTES_MAX, limit_items=ITEMS)
        except DecodeError as error:
            raise DatasetInvalid(str(error)) from None
        match value:
            case [
                1, int(rows), int(columns), int(classes), int(shift), int(train_rows), bytes(features),
                bytes(labels), bytes(nodes),
            ] if (
                1 <= rows <= ROWS_MAX and 1 <= columns <= COLUMNS_MAX and 2 <= classes <= 256
                and 0 <= shift <= SHIFT_MAX and 1 <= train_rows <= rows
                and dataset_leaves(rows, columns) <= DATASET_LEAVES_MAX
                and len(features) == rows * columns and len(labels) == rows
                and rows * (columns + 1) <= DATASET_BYTES_MAX
                and len(nodes) == Layout(rows, columns, classes, shift, train_rows).node_bytes
            ):  # fmt: skip
                if labels.translate(None, bytes(range(classes))):
                    raise DatasetInvalid("a label beyond the classes")
                found = cls(rows, columns, classes, shift, train_rows, features, labels)
                if checks_nodes and found._commitment[1] != nodes:
                    raise DatasetInvalid("nodes that do not follow from features and labels")
                return found
            case _:
                raise DatasetInvalid("not a dataset")

    @property
    def contents(self) -> dict[str, bytes]:
        """The tensors of the data: features, and a column of labels."""
        return {FEATURES: self.features, LABELS: self.labels}

    @property
    def layout(self) -> Layout:
        """Where everything lies in the blob."""
        return Layout(self.rows, self.columns, self.classes, self.shift, self.train_rows)

    @cached_property
    def _commitment(self) -> tuple[bytes, bytes]:
        """The root of the data, and the nodes that stand in the blob."""
        named: dict[str, tuple[TensorType, bytes]] = {}
        nodes = b""
        for name, kind in zip(TENSORS, self.layout.types(), strict=True):
            tree = MerkleTree(leaves_of(kind, self.contents[name]))
            named[name] = kind, tree.root
            nodes += nodes_of(tree)
        return data_root(named), nodes

    def root(self) -> bytes:
        """Return the root that commits to features and labels (market.md 4.6)."""
        return self._commitment[0]
