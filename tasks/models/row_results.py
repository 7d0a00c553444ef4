"""Folders with what was found for each row: vectors of texts, or losses of rows (R84, R85).

All bytes of a folder follow from the specification and the proven state: whoever computed them, the folder is the
same. The state can be made of the files again, so its root tells whether they are what was proved.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from state.primitives.errors import DecodeError
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.errors import UnsupportedJob
from tasks.engines.evaluation_plan import EvaluationPlan
from tasks.engines.state import TrainingState
from tasks.kinds.embed import KIND_EMBED
from tasks.kinds.evaluate import KIND_EVALUATE
from tasks.models.errors import FolderInvalid
from tasks.models.receipts import FETCH_AGAIN, RECEIPT, json_bytes
from tasks.models.strict_json import JsonFault, read_object
from tasks.programs.embed import VECTORS
from tasks.programs.evaluate import COUNTS, LOSSES
from tasks.programs.operators.elementwise import ELEMENTWISE, EXP_ARGUMENT_MAX
from tasks.spec import SPEC_LIMIT_BYTES, JobSpec, decode_spec, encode_spec

__all__ = [
    "EVALUATION", "INDEX", "METRICS", "RECEIPT", "VECTOR_FILE", "Evaluation", "RowLoss", "RowReceipt",
    "check_row_folder", "evaluation_of", "is_of_rows", "row_folder", "vectors_of",
]  # fmt: skip

VECTOR_FILE: Final = "vectors.npy"
INDEX: Final = "index.json"
METRICS: Final = "metrics.jsonl"
EVALUATION: Final = "evaluation.json"
FILES: Final[Mapping[str, tuple[str, ...]]] = {
    KIND_EMBED: (VECTOR_FILE, INDEX, RECEIPT), KIND_EVALUATE: (METRICS, EVALUATION, RECEIPT)
}  # fmt: skip
"""Names of a folder's files by the kind of its task. Others in a folder are not checked."""
RECEIPT_BYTES_MAX: Final = 1 << 16
STEP_MAX: Final = 1 << 48
LINE_BYTES_MAX: Final = 1 << 10
"""Of a row in a file of losses."""
_TASK: Final = re.compile(r"0x[0-9a-f]{64}")
_BYTES: Final = re.compile(r"0x(?:[0-9a-f]{2})+")
_EXP: Final = next(one for one in ELEMENTWISE if one.name == "exp").reference
"""Of which all machines have the same bits."""


class RowLoss(NamedTuple):
    """The sum of the cross entropies of a row's trained tokens, and their number."""

    loss_sum: float
    tokens: int

    @property
    def loss(self) -> float:
        """Of a token."""
        return self.loss_sum / self.tokens if self.tokens else 0.0

    @property
    def perplexity(self) -> float | None:
        """e to the loss of a token; None beyond 2^115."""
        loss = self.loss
        return None if loss >= EXP_ARGUMENT_MAX else float(_EXP((loss,), ()))


class Evaluation(NamedTuple):
    """The losses of the rows that are done, in their order, of ``rows_in_all``."""

    rows: tuple[RowLoss, ...]
    rows_in_all: int

    @property
    def total(self) -> RowLoss:
        """The sums over all these rows: the loss of a token is never a mean of means."""
        return RowLoss(math.fsum(one.loss_sum for one in self.rows), sum(one.tokens for one in self.rows))


class RowReceipt(NamedTuple):
    """Where a folder comes from: its task, None outside of a chain, the job, the steps done, the state's root."""

    task: bytes | None
    spec: JobSpec
    step: int
    state_root: bytes

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return json_bytes({
            "version": 1, "kind": self.spec.kind, "task": None if self.task is None else "0x" + self.task.hex(),
            "spec": "0x" + encode_spec(self.spec).hex(), "step": self.step,
            "state_root": "0x" + self.state_root.hex(),
        })  # fmt: skip

    @classmethod
    def decode(cls, data: bytes) -> RowReceipt:
        """Read a receipt. Raises FolderInvalid."""
        if len(data) > RECEIPT_BYTES_MAX:
            raise FolderInvalid(f"a file of {len(data)} bytes, at most {RECEIPT_BYTES_MAX}", file=RECEIPT)
        match _object(data, RECEIPT):
            case {
                "version": 1, "kind": str(kind), "task": (str() | None) as task, "spec": str(raw),
                "step": int(step), "state_root": str(root), **rest,
            } if (
                not rest and type(step) is int and 0 <= step < STEP_MAX and _TASK.fullmatch(root)
                and (task is None or _TASK.fullmatch(task)) and _BYTES.fullmatch(raw)
            ):  # fmt: skip
                pass
            case _:
                raise FolderInvalid("not the receipt of vectors or losses", file=RECEIPT, remedy=FETCH_AGAIN)
        try:
            spec = decode_spec(bytes.fromhex(raw[2 : 2 + 2 * SPEC_LIMIT_BYTES]))
        except DecodeError as error:
            raise FolderInvalid(f"its job: {error}", file=RECEIPT, remedy=FETCH_AGAIN) from None
        if spec.kind != kind or kind not in FILES:
            raise FolderInvalid(f"a job of kind {spec.kind[:20]}", file=RECEIPT, remedy=FETCH_AGAIN)
        return cls(None if task is None else bytes.fromhex(task[2:]), spec, step, bytes.fromhex(root[2:]))


def is_of_rows(data: bytes) -> bool:
    """Tell whether a receipt is one of vectors or losses."""
    try:
        kind = read_object(data[:RECEIPT_BYTES_MAX].decode("utf-8")).get("kind")
    except (UnicodeDecodeError, JsonFault):
        return False
    return isinstance(kind, str) and kind in FILES


def _object(data: bytes, name: str) -> dict[str, Any]:
    try:
        return read_object(data.decode("utf-8"))
    except (UnicodeDecodeError, JsonFault):
        raise FolderInvalid("not valid JSON", file=name, remedy=FETCH_AGAIN) from None


def _done(plan: EmbeddingPlan | EvaluationPlan, step: int) -> int:
    return min(step * plan.batch, plan.shape.rows)


def _embedding(spec: JobSpec) -> EmbeddingPlan:
    plan = spec.plan()
    if not isinstance(plan, EmbeddingPlan):
        raise UnsupportedJob(f"a job of kind {spec.kind} has no vectors")
    return plan


def _evaluation(spec: JobSpec) -> EvaluationPlan:
    plan = spec.plan()
    if not isinstance(plan, EvaluationPlan):
        raise UnsupportedJob(f"a job of kind {spec.kind} has no losses")
    return plan


def vectors_of(spec: JobSpec, state: TrainingState) -> np.ndarray:
    """Return the vectors of the texts that are done, a row each, as float32.

    Raises UnsupportedJob for another kind of job.
    """
    plan = _embedding(spec)
    table = np.frombuffer(state.tensors[VECTORS], dtype="<f4").reshape(-1, plan.shape.model.width)
    return table[: _done(plan, state.step)]


def evaluation_of(spec: JobSpec, state: TrainingState) -> Evaluation:
    """Return the losses of the rows that are done. Raises UnsupportedJob for another kind of job."""
    plan = _evaluation(spec)
    sums, counts = (np.frombuffer(state.tensors[name], dtype="<f4").tolist() for name in (LOSSES, COUNTS))
    done = _done(plan, state.step)
    found = (RowLoss(loss, int(count)) for loss, count in zip(sums[:done], counts[:done], strict=True))
    return Evaluation(tuple(found), plan.shape.rows)


def row_folder(receipt: RowReceipt, state: TrainingState) -> dict[str, bytes]:
    """Return the files of a folder by name. Raises UnsupportedJob for a job of another kind."""
    spec = receipt.spec
    roots = {"model_root": "0x" + spec.model_root().hex(), "rows_root": "0x" + spec.dataset.root.hex()}
    if spec.kind == KIND_EMBED:
        shape, vectors = _embedding(spec).shape, vectors_of(spec, state)
        index = {
            "rows": len(vectors), "rows_in_all": shape.rows, "width": shape.model.width, "type": "float32",
            "pooling": shape.pooling, "normalised": shape.normalised, **roots,
        }  # fmt: skip
        content = _head(*vectors.shape) + vectors.tobytes()
        return {VECTOR_FILE: content, INDEX: json_bytes(index), RECEIPT: receipt.encode()}
    found = evaluation_of(spec, state)
    total = found.total
    sums = {
        "rows": len(found.rows), "rows_in_all": found.rows_in_all, **_told(total), **roots,
        "adapter_root": "0x" + spec.adapter_root().hex() if spec.adapter_root() else None,
    }  # fmt: skip
    lines = (json.dumps({"row": row, **_told(one)}, sort_keys=True) + "\n" for row, one in enumerate(found.rows))
    return {METRICS: "".join(lines).encode(), EVALUATION: json_bytes(sums), RECEIPT: receipt.encode()}


def _told(loss: RowLoss) -> dict[str, Any]:
    return {
        "loss": loss.loss, "loss_sum": loss.loss_sum, "perplexity": loss.perplexity, "tokens": loss.tokens
    }  # fmt: skip


def _head(rows: int, columns: int) -> bytes:
    """Return what a file of NumPy (version 1.0) begins with."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def check_row_folder(files: Mapping[str, bytes]) -> RowReceipt:
    """Return the receipt of a folder whose files all agree with it. Raises FolderInvalid, which names the file."""
    if RECEIPT not in files:
        raise FolderInvalid("the file is missing", file=RECEIPT, remedy=FETCH_AGAIN)
    receipt = RowReceipt.decode(files[RECEIPT])
    for name in FILES[receipt.spec.kind]:
        if name not in files:
            raise FolderInvalid("the file is missing", file=name, remedy=FETCH_AGAIN)
    spec, plan = receipt.spec, receipt.spec.plan()
    is_embedding = spec.kind == KIND_EMBED
    name = VECTOR_FILE if is_embedding else METRICS
    tensors = (
        _vectors(spec, receipt.step, files[name]) if is_embedding else _losses(spec, receipt.step, files[name])
    )
    state = TrainingState(receipt.step, tensors)
    if state.root(plan) != receipt.state_root:
        raise FolderInvalid(f"its values are not those of the state in {RECEIPT}", file=name, remedy=FETCH_AGAIN)
    for name, content in row_folder(receipt, state).items():
        if files[name] != content:
            raise FolderInvalid(f"other bytes than {RECEIPT} asks for", file=name, remedy=FETCH_AGAIN)
    return receipt


def _vectors(spec: JobSpec, step: int, data: bytes) -> dict[str, bytes]:
    """Return the tensors of a state. Raises FolderInvalid."""
    plan = _embedding(spec)
    done, width = _done(plan, step), plan.shape.model.width
    head = _head(done, width)
    if not data.startswith(head) or len(data) != len(head) + 4 * done * width:
        raise FolderInvalid(f"not {done} vectors of {width} numbers", file=VECTOR_FILE, remedy=FETCH_AGAIN)
    content = data[len(head) :]
    if done == plan.shape.rows:  # the last text fills the last batch
        content += content[-4 * width :] * (plan.shape.table_rows - done)
    return {VECTORS: content.ljust(plan.tensors()[VECTORS].size_bytes, b"\0")}


def _losses(spec: JobSpec, step: int, data: bytes) -> dict[str, bytes]:
    """Return the tensors of a state. Raises FolderInvalid."""
    plan = _evaluation(spec)
    done = _done(plan, step)
    lines = data.split(b"\n")
    if len(lines) != done + 1 or lines[-1]:
        raise FolderInvalid(f"not the losses of {done} rows", file=METRICS, remedy=FETCH_AGAIN)
    table = np.zeros((2, plan.shape.table_rows), dtype="<f4")
    for row, line in enumerate(lines[:-1]):
        match _object(line[:LINE_BYTES_MAX], METRICS):
            case {"loss_sum": float(loss), "tokens": int(tokens)} if type(tokens) is int and 0 <= tokens < 1 << 24:
                with np.errstate(over="ignore"):
                    table[:, row] = loss, tokens
            case _:
                raise FolderInvalid(f"row {row} is not the loss of a row", file=METRICS, remedy=FETCH_AGAIN)
    return {LOSSES: table[0].tobytes(), COUNTS: table[1].tobytes()}
