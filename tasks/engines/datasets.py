"""Datasets as canonical bytes: rows of small unsigned features with a label, split for training and testing.

See market.md 4.5.

The requester makes the blob; workers and verifiers fetch it by its content address and read it strictly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.engines.errors import DatasetInvalid
from tasks.programs.classifier import FEATURES, LABELS
from tasks.programs.operators.storage import SHIFT_MAX
from tasks.programs.states import data_root
from tasks.programs.tensors import LEAF_BYTES, ElementType, TensorType, tensor_root

__all__ = [
    "DATASET_BYTES_MAX",
    "DATASET_LEAVES_MAX",
    "ROWS_MAX",
    "SHIFT_MAX",
    "Dataset",
    "dataset_leaves",
]

DATASET_BYTES_MAX: Final = 64 * 1024 * 1024
DATASET_LEAVES_MAX: Final = 1 << 20
"""Leaves of a data set's tensors, of which hashing takes 1.4 s of a core."""
ROWS_MAX: Final = DATASET_LEAVES_MAX // 2
"""Each row has a leaf of features at least, and one for its label."""
COLUMNS_MAX: Final = 4096
ITEMS: Final = 10
"""The data set and its nine fields: no stranger's bytes make more objects than that."""
_VERSION: Final = 1


def dataset_leaves(rows: int, columns: int) -> int:
    """Return the leaves of a data set's tensors."""
    return rows * (-(-columns // LEAF_BYTES) + 1)


@dataclass(frozen=True)
class Dataset:
    """``rows`` rows of ``columns`` bytes, feature = byte / 2**shift; the first ``train_rows`` are for training."""

    name: str
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
            _VERSION, self.name, self.rows, self.columns, self.classes, self.shift, self.train_rows,
            self.features, self.labels,
        ])  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> Dataset:
        """Read a dataset blob. Raises DatasetInvalid on anything but one."""
        try:
            value = decode(data, limit_bytes=DATASET_BYTES_MAX, limit_items=ITEMS)
        except DecodeError as error:
            raise DatasetInvalid(str(error)) from None
        match value:
            case [
                1, str(name), int(rows), int(columns), int(classes), int(shift), int(train_rows),
                bytes(features), bytes(labels),
            ] if (
                len(name) <= 64 and 1 <= rows <= ROWS_MAX and 1 <= columns <= COLUMNS_MAX and 2 <= classes <= 256
                and 0 <= shift <= SHIFT_MAX and 1 <= train_rows <= rows
                and dataset_leaves(rows, columns) <= DATASET_LEAVES_MAX
                and len(features) == rows * columns and len(labels) == rows
            ):  # fmt: skip
                if labels.translate(None, bytes(range(classes))):
                    raise DatasetInvalid("a label beyond the classes")
                return cls(name, rows, columns, classes, shift, train_rows, features, labels)
            case _:
                raise DatasetInvalid("not a dataset")

    @property
    def contents(self) -> dict[str, bytes]:
        """The tensors of the data: features, and a column of labels."""
        return {FEATURES: self.features, LABELS: self.labels}

    def root(self) -> bytes:
        """Return the root that commits to features and labels (market.md 4.6)."""
        types = {
            FEATURES: TensorType(ElementType.UINT8, self.rows, self.columns),
            LABELS: TensorType(ElementType.UINT8, self.rows, 1),
        }
        contents = self.contents
        return data_root({name: (kind, tensor_root(kind, contents[name])) for name, kind in types.items()})
