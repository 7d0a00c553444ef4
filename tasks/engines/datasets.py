"""Datasets as canonical bytes: rows of small unsigned features with a label, split for training and testing.

See market.md 4.5.

The requester makes the blob; workers and verifiers fetch it by its content address and read it strictly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.merkle import merkle_root
from tasks.engines.errors import DatasetInvalid

__all__ = ["DATASET_BYTES_MAX", "Dataset"]

DATASET_BYTES_MAX: Final = 64 * 1024 * 1024
ROWS_MAX: Final = 1 << 22
COLUMNS_MAX: Final = 4096
SHIFT_MAX: Final = 8
LEAF_BYTES: Final = 64 * 1024
"""Rows are hashed together up to so many bytes: millions of tiny rows must not cost millions of leaves."""
ITEMS: Final = 10
"""The data set and its nine fields: no stranger's bytes make more objects than that."""
_VERSION: Final = 1


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
                and len(features) == rows * columns and len(labels) == rows
            ):  # fmt: skip
                if labels.translate(None, bytes(range(classes))):
                    raise DatasetInvalid("a label beyond the classes")
                return cls(name, rows, columns, classes, shift, train_rows, features, labels)
            case _:
                raise DatasetInvalid("not a dataset")

    def root(self) -> bytes:
        """Return the Merkle root over the header and stretches of rows, each its features and then its labels."""
        width = self.columns
        step = max(1, LEAF_BYTES // (width + 1))
        leaves = [encode([
            _VERSION, self.name, self.rows, width, self.classes, self.shift, self.train_rows,
        ])]  # fmt: skip
        leaves += [
            self.features[at * width : (at + step) * width] + self.labels[at : at + step]
            for at in range(0, self.rows, step)
        ]
        return merkle_root(leaves)
