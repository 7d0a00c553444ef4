"""Blobs of a fine-tuning job's rows and frozen model: the tensors one after another (market.md R57).

Names, types and order follow from the job's shape, so the blob has nothing but contents. No NumPy here.
"""

from __future__ import annotations

from collections.abc import Mapping

from tasks.engines.errors import DatasetInvalid
from tasks.programs.finetune import FinetuneShape, row_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.programs.tensors import TensorType

__all__ = ["join_tensors", "read_model", "read_rows", "split_tensors"]


def join_tensors(kinds: Mapping[str, TensorType], contents: Mapping[str, bytes]) -> bytes:
    """Return the blob of tensors: their contents in the order of their names. Raises DatasetInvalid."""
    for name, kind in kinds.items():
        if len(contents.get(name, b"")) != kind.size_bytes:
            raise DatasetInvalid(f"{name} is not {kind.rows} by {kind.columns} values")
    return b"".join(contents[name] for name in sorted(kinds))


def split_tensors(kinds: Mapping[str, TensorType], blob: bytes) -> dict[str, bytes]:
    """Return the contents of a blob by name. Raises DatasetInvalid for one of another size."""
    size = sum(kind.size_bytes for kind in kinds.values())
    if len(blob) != size:
        raise DatasetInvalid(f"a blob of {len(blob)} bytes where its tensors have {size}")
    found: dict[str, bytes] = {}
    at = 0
    for name in sorted(kinds):
        end = at + kinds[name].size_bytes
        found[name] = blob[at:end]
        at = end
    return found


def read_rows(shape: FinetuneShape, blob: bytes) -> dict[str, bytes]:
    """Return the tensors of a job's rows. Raises DatasetInvalid."""
    return split_tensors(row_tensors(shape), blob)


def read_model(shape: FinetuneShape, blob: bytes) -> dict[str, bytes]:
    """Return the tensors of a job's frozen model. Raises DatasetInvalid."""
    return split_tensors(weight_tensors(shape.model), blob)
