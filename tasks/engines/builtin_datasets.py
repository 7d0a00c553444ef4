"""Built-in data sets, made from files that other packages install."""

from __future__ import annotations

import gzip
from hashlib import shake_256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from state.primitives.errors import ConfigError
from tasks.engines.datasets import Dataset

__all__ = ["DATASETS", "make_dataset"]

DIGITS_TEST_ROWS: Final = 360
DIGITS_FILE: Final = "datasets/data/digits.csv.gz"
"""Where scikit-learn has its digits."""


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
