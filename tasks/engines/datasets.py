"""Datasets as canonical bytes: rows of small unsigned features with a label, split for training and testing.

See market.md 4.5.

The requester makes the blob; workers and verifiers fetch it by its content address and read it strictly.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from hashlib import shake_256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from state.primitives.codec import decode, encode
from state.primitives.errors import ConfigError, DecodeError
from state.primitives.merkle import merkle_root
from tasks.engines.errors import DatasetInvalid

__all__ = ["DATASETS", "DATASET_BYTES_MAX", "Dataset", "make_dataset"]

DATASET_BYTES_MAX: Final = 64 * 1024 * 1024
ROWS_MAX: Final = 1 << 22
COLUMNS_MAX: Final = 4096
SHIFT_MAX: Final = 8
LEAF_BYTES: Final = 64 * 1024
"""Rows are hashed together up to so many bytes: millions of tiny rows must not cost millions of leaves."""
ITEMS: Final = 10
"""The data set and its nine fields: no stranger's bytes make more objects than that."""
_VERSION: Final = 1
DIGITS_TEST_ROWS: Final = 360
DIGITS_FILE: Final = "datasets/data/digits.csv.gz"
"""Where scikit-learn has its digits."""


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


def make_digits() -> Dataset:
    """Make the dataset of handwritten digits that ships with scikit-learn (extra ``datasets``).

    The rows are shuffled once by a fixed rule, because neighbours come from the same writer; the last 360 of 1,797
    are for testing. Raises ConfigError where scikit-learn is missing.
    """
    labelled = _digit_rows()
    rows, columns = len(labelled), len(labelled[0]) - 1
    features = [row[:-1] for row in labelled]
    stream = shake_256(b"dekube digits").digest(8 * rows)
    order = sorted(range(rows), key=lambda row: stream[8 * row : 8 * row + 8])
    return Dataset(
        name="digits",
        rows=rows,
        columns=columns,
        classes=10,
        shift=4,
        train_rows=rows - DIGITS_TEST_ROWS,
        features=b"".join(features[row] for row in order),
        labels=bytes(labelled[row][-1] for row in order),
    )


def _digit_rows() -> list[bytes]:
    """Return the rows of scikit-learn's digits: 64 features and the label. Raises ConfigError where it is missing.

    Its own file is read where it lies: to import the package takes seconds, and what is read is the same.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ConfigError("the digits come with scikit-learn: pip install dekube-node[datasets]")
    try:
        with gzip.open(Path(package.origin).parent / DIGITS_FILE, "rt", encoding="ascii") as file:
            return [bytes(int(float(number)) for number in line.split(",")) for line in file]
    except (OSError, ValueError):
        from sklearn.datasets import load_digits  # a release that keeps it elsewhere

        bunch = load_digits()
        return [bytes([*map(int, row), int(label)]) for row, label in zip(bunch.data, bunch.target, strict=True)]


DATASETS: Final = {"digits": make_digits}
"""Datasets that can be made on the spot, by name."""


def make_dataset(name: str) -> Dataset:
    """Make the dataset called ``name``. Raises ConfigError for an unknown name or a missing extra."""
    maker = DATASETS.get(name)
    if maker is None:
        raise ConfigError(f"unknown dataset {name!r}; there is {', '.join(sorted(DATASETS))}")
    return maker()
