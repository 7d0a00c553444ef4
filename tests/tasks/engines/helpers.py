"""Small jobs on made-up data: no download, the same on every machine."""

from __future__ import annotations

from hashlib import shake_256

from tasks.engines.datasets import Dataset
from tasks.engines.plan import TrainingPlan

SEED = bytes(range(32))
RELU = TrainingPlan((12, 16, 4), "relu", 16, 90, 70, 8, SEED, 3_000_000, weight_decay_nano=10_000_000)
SILU = TrainingPlan((12, 20, 9, 4), "silu", 10, 90, 70, 8, SEED, 5_000_000, weight_decay_nano=1_000_000)


def made_up_dataset(columns: int = 12, classes: int = 4, rows: int = 90, train_rows: int = 70) -> Dataset:
    """Rows whose label is the position of their largest feature among the first ``classes``."""
    features = shake_256(b"made up").digest(rows * columns)
    rows_of = [features[at * columns : (at + 1) * columns] for at in range(rows)]
    labels = bytes(max(range(classes), key=row.__getitem__) for row in rows_of)
    return Dataset(rows, columns, classes, 8, train_rows, features, labels)
