"""Decoders of jobs that pass over rows once: their bytes, encoders' settings, texts, folders of results."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import partial

import numpy as np

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.engines.embedding_plan import EmbeddingPlan
from tasks.engines.errors import DatasetInvalid, UnsupportedJob
from tasks.engines.evaluation_plan import EvaluationPlan
from tasks.engines.pass_plan import adapter_plan_of
from tasks.engines.plan_values import plan_from_value, plan_to_value
from tasks.engines.starting import state_left
from tasks.engines.state import TrainingState
from tasks.models.embedding import texts_of
from tasks.models.encoders import EncoderFiles, pooling_of
from tasks.models.errors import FolderInvalid, ModelInvalid, ModelUnsupported, RowsInvalid
from tasks.models.row_results import METRICS, RECEIPT, VECTOR_FILE, RowReceipt, check_row_folder, row_folder
from tasks.models.rows import fitted_pairs, pair_rows_of, pairs_of
from tasks.models.safetensors import read_safetensors, write_safetensors
from tasks.models.tables import lines_of
from tasks.programs.errors import ProgramInvalid
from tests.fuzz.targets.base import Target
from tests.tasks.passed import ADAPTER, Passed, embedded, evaluated
from tests.tasks.programs.generations import made_adapter
from tests.tasks.tuned import TINY

LEFT = made_adapter(TINY, ADAPTER, 5)
START_ROOT = LEFT.root(adapter_plan_of(TINY, ADAPTER))
EMBEDDED, EVALUATED, ADAPTED = embedded(), evaluated(), evaluated(adapter=ADAPTER)
LIMIT = 1 << 16
CONFIG = {
    "model_type": "bert", "vocab_size": 9, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 5, "max_position_embeddings": 8, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
}  # fmt: skip


def _array_file() -> bytes:
    content = io.BytesIO()
    np.save(content, np.array([[1, 2], [3, 4]], "u1"))
    return content.getvalue()


ARRAY_FILE = _array_file()
NO_TENSORS = read_safetensors(write_safetensors({}, {}))


def _folder(job: Passed) -> dict[str, bytes]:
    state = job.plan.first_state()
    done = TrainingState(2, state.tensors)
    return row_folder(RowReceipt(b"\x07" * 32, job.spec, 2, done.root(job.plan)), done)


VECTORS, LOSSES = _folder(EMBEDDED), _folder(EVALUATED)


def _plan_of(data: bytes) -> None:
    """Take bytes as the shape of a job: it is refused, or its bytes are the same again."""
    value = decode(data, limit_bytes=LIMIT)
    if not isinstance(value, list):
        raise DecodeError("not a shape")
    for kind in (EmbeddingPlan, EvaluationPlan):
        try:
            plan = plan_from_value(kind, value)
        except (DecodeError, UnsupportedJob, ProgramInvalid):
            continue
        assert encode(plan_to_value(plan)) == data


def _pairs(data: bytes) -> None:
    pair_rows_of(*fitted_pairs(pairs_of(data, _Letters(), 100), 32, "truncate"))


def _started(data: bytes) -> None:
    state_left(TINY, ADAPTER, START_ROOT, data)


def _adapter(data: bytes) -> None:
    ADAPTED.plan.read_adapter(data)


def _settings(data: bytes) -> None:
    for read in (
        lambda: EncoderFiles(data, {"model.safetensors": NO_TENSORS}),
        lambda: pooling_of(data, "config.json"),
    ):
        try:
            read()
        except (ModelInvalid, ModelUnsupported):
            continue


class _Letters:
    """A token for each byte."""

    ends = frozenset({256})

    def encode(self, text: str, most: int | None = None) -> list[int]:
        return list(text.encode())[:most]


def targets() -> Iterator[tuple[str, Target]]:
    yield "shape of a pass", Target(
        _plan_of, tuple(encode(plan_to_value(job.plan)) for job in (EMBEDDED, EVALUATED, ADAPTED, embedded(TINY))),
        ("tasks.engines.plan_values:plan_from_value", "tasks.engines.plan_values:_read",
         "tasks.engines.plan_values:_read_choice"),
    )  # fmt: skip
    yield "adapters of a pass", Target(
        _adapter, (LEFT.encode(),),
        ("tasks.engines.pass_plan:PassPlan.read_adapter",), (DatasetInvalid,), memory=160,
    )  # fmt: skip
    yield "settings of an encoder", Target(
        _settings,
        (json.dumps(CONFIG).encode(), b'{"word_embedding_dimension": 4, "pooling_mode_mean_tokens": true}'),
        ("tasks.models.huggingface:read_settings",), memory=160,
    )  # fmt: skip
    yield "texts' file", Target(
        lambda data: list(texts_of(data, _Letters(), 100, 32)).clear(),
        (b'{"text": "a"}\n{"input_ids": [5, 6]}\n',), ("tasks.models.embedding:texts_of",), (RowsInvalid,),
        memory=160,
    )  # fmt: skip
    for end, seed in ((".csv", b'text,prompt\n"a, ""b""",c\n\nd,e\n'), (".npy", ARRAY_FILE), (".txt", b"a\n\nb")):
        yield f"rows in a file {end}", Target(
            partial(lines_of, name=f"rows{end}", field="text"), (seed,), ("tasks.models.tables:_array",),
            (RowsInvalid,), memory=160,
        )  # fmt: skip
    yield "pairs' file", Target(
        _pairs,
        (
            b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n',
            b'{"prompt_input_ids": [5], "chosen_input_ids": [6], "rejected_input_ids": [7, 8]}\n',
            b'{"input": {"messages": [{"role": "user", "content": "a"}]}, "preferred_output": '
            b'[{"role": "assistant", "content": "b"}], "non_preferred_output": []}\n',
        ),
        ("tasks.models.rows:pairs_of",), (RowsInvalid,), memory=160,
    )  # fmt: skip
    yield "state to start from", Target(
        _started, (LEFT.encode(),), ("tasks.engines.starting:state_left",),
        (DatasetInvalid,), memory=160,
    )  # fmt: skip
    yield "receipt of rows", Target(
        lambda data: RowReceipt.decode(data), (VECTORS[RECEIPT], LOSSES[RECEIPT]),
        ("tasks.models.row_results:RowReceipt.decode", "tasks.models.row_results:_object"), (FolderInvalid,),
        memory=160,
    )  # fmt: skip
    yield "folder of vectors", Target(
        lambda data: check_row_folder(VECTORS | {VECTOR_FILE: data}), (VECTORS[VECTOR_FILE],),
        ("tasks.models.row_results:_vectors",), (FolderInvalid,), memory=160,
    )  # fmt: skip
    yield "folder of losses", Target(
        lambda data: check_row_folder(LOSSES | {METRICS: data}), (LOSSES[METRICS],),
        ("tasks.models.row_results:_losses",), (FolderInvalid,), memory=160,
    )  # fmt: skip
