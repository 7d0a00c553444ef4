"""Blobs of rows or prompts, and of a frozen model: the tensors one after another; and their roots (R57, R77).

Names, types and order follow from the job's shape, so the blob has nothing but contents. No NumPy here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tasks.engines.errors import DatasetInvalid, StateInvalid
from tasks.engines.generating_plan import GeneratingPlan
from tasks.engines.state import TrainingState
from tasks.programs import decoder
from tasks.programs.decoder import DecoderShape
from tasks.programs.errors import SourceInvalid
from tasks.programs.finetune import FinetuneShape, row_tensors
from tasks.programs.generate import GenerateShape, prompt_tensors
from tasks.programs.llama_shape import frozen_bytes, frozen_tensors, weight_tensors
from tasks.programs.states import data_root
from tasks.programs.tensors import TensorType, tensor_root

__all__ = [
    "MODEL_SENT_BYTES_MAX",
    "check_adapter",
    "check_tensors",
    "join_tensors",
    "model_root",
    "read_adapter",
    "read_model",
    "read_rows",
    "rows_root",
    "split_tensors",
]

MODEL_SENT_BYTES_MAX: Final = 1 << 32
"""A frozen model that a job's process takes: 2 x 10^9 weights. Node and process hold it in memory."""


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


def check_tensors(kinds: Mapping[str, TensorType], root: bytes, blob: bytes) -> None:
    """Return if a blob holds the tensors of a root. Raises DatasetInvalid."""
    found = split_tensors(kinds, blob)
    if _root(kinds, found) != root:
        raise DatasetInvalid("its tensors have another root than the job names")


def _root(kinds: Mapping[str, TensorType], contents: Mapping[str, bytes]) -> bytes:
    """Return the root of tensors. Raises SourceInvalid where one is missing or has another size."""
    for name, kind in kinds.items():
        if len(contents.get(name, b"")) != kind.size_bytes:
            raise SourceInvalid(f"{name} is not {kind.rows} by {kind.columns} values")
    return data_root({name: (kind, tensor_root(kind, contents[name])) for name, kind in kinds.items()})


def _row_tensors(shape: FinetuneShape | GenerateShape | DecoderShape) -> Mapping[str, TensorType]:
    if isinstance(shape, DecoderShape):
        return decoder.row_tensors(shape)
    return row_tensors(shape) if isinstance(shape, FinetuneShape) else prompt_tensors(shape)


def read_rows(shape: FinetuneShape | GenerateShape | DecoderShape, blob: bytes) -> dict[str, bytes]:
    """Return the tensors of a job's rows or prompts. Raises DatasetInvalid."""
    return split_tensors(_row_tensors(shape), blob)


def rows_root(shape: FinetuneShape | GenerateShape | DecoderShape, contents: Mapping[str, bytes]) -> bytes:
    """Return the root of a job's rows or prompts. Raises SourceInvalid."""
    return _root(_row_tensors(shape), contents)


def read_model(shape: FinetuneShape | GenerateShape, blob: bytes) -> dict[str, bytes]:
    """Return the tensors of a job's frozen model, and of its adapters. Raises DatasetInvalid."""
    if isinstance(shape, FinetuneShape) or shape.adapter is None:
        return split_tensors(weight_tensors(shape.model), blob)
    kinds, size = frozen_tensors(shape.model, shape.adapter), frozen_bytes(shape.model, shape.adapter)
    return {**split_tensors(kinds, blob[:size]), **read_adapter(shape, blob[size:]).tensors}


def read_adapter(shape: GenerateShape, blob: bytes) -> TrainingState:
    """Return the state with the adapters of a job's model. Raises DatasetInvalid."""
    plan = GeneratingPlan(shape, bytes(32)).adapter_plan
    if plan is None:
        raise DatasetInvalid("adapters of a job that has none")
    try:
        return TrainingState.decode(blob, plan)
    except StateInvalid as error:
        raise DatasetInvalid(f"its adapters: {error}") from None


def check_adapter(shape: GenerateShape, root: bytes, blob: bytes) -> None:
    """Return if a blob holds the state of a root, after as many steps as the job says. Raises DatasetInvalid."""
    state, plan = read_adapter(shape, blob), GeneratingPlan(shape, bytes(32)).adapter_plan
    assert plan is not None and shape.adapter is not None
    if state.step != shape.adapter.step or state.root(plan) != root:
        raise DatasetInvalid("its adapters are not those the job names")


def model_root(shape: FinetuneShape | GenerateShape, contents: Mapping[str, bytes]) -> bytes:
    """Return the root of the frozen model, the same for all jobs that use it; empty if there is none (R89).

    Raises SourceInvalid.
    """
    if isinstance(shape, GenerateShape) and not frozen_tensors(shape.model, shape.adapter):
        return b""
    return _root(weight_tensors(shape.model), contents)
