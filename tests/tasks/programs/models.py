"""What a run of a classifier's program starts from."""

from __future__ import annotations

import numpy as np

from tasks.engines.datasets import Dataset
from tasks.engines.weights import initial_weights
from tasks.programs.program import Program, SourceKind
from tests.tasks.engines.helpers import SEED


def first_state(program: Program) -> dict[str, bytes]:
    """Weights as tasks begin with, zero biases and moments."""
    found: dict[str, bytes] = {}
    for source in program.sources:
        if source.kind == SourceKind.STATE:
            group, layer, part = source.key.split("/")
            found[source.key] = bytes(source.type.size_bytes)
            if (group, part) == ("parameter", "weight"):
                weights = initial_weights(SEED, int(layer), source.type.columns, source.type.rows)
                found[source.key] = (weights.astype("<f4") + np.float32(0)).tobytes()
    return found


def contents_of(data: Dataset) -> dict[str, bytes]:
    return data.contents
