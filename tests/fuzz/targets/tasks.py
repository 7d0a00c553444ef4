"""Decoders of the tasks: specifications, proofs, jobs and their journal."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import digest
from state.primitives.merkle import merkle_root
from tasks.claims import BlobChunk, claim_from_value, claim_of_size, claim_to_value
from tasks.custody.chunks import chunk_proof_from_value, chunk_proof_to_value
from tasks.custody.inputs import plain_claim_from_value, plain_claim_to_value
from tasks.custody.keys import key_proof_from_value, key_proof_to_value
from tasks.custody.layout import (
    leaf_evidence_from_value,
    leaf_evidence_to_value,
    plain_chunk_from_value,
    plain_chunk_to_value,
)
from tasks.dispute.commitments import StepRecord
from tasks.dispute.game import Side
from tasks.engines.datasets import Dataset
from tasks.engines.errors import DatasetInvalid, StateInvalid, UnsupportedJob
from tasks.engines.generating import first_state as decoding_state
from tasks.engines.input_blobs import join_tensors, read_adapter, read_model, read_rows
from tasks.engines.state import TrainingState
from tasks.engines.training import initial_state
from tasks.executor.job import (
    Cancel,
    Failed,
    Finished,
    FrameReader,
    Hello,
    Job,
    Progress,
    Segment,
    Train,
    child_frame_limit,
    decode_child_frame,
    decode_parent_frame,
    encode_frame,
)
from tasks.executor.journal import Journal
from tasks.executor.linking import Links, RunLinks
from tasks.executor.playing import MoreMoves, Play, Played
from tasks.kinds.folders import ArchiveInvalid, pack, unpack
from tasks.kinds.image_archives import read_image
from tasks.ledger.registry import profile_from_value, profile_to_value
from tasks.ledger.screening import read_dataset_facts
from tasks.models.adapters import Receipt, check_folder
from tasks.models.errors import FolderInvalid, ModelInvalid, ModelUnsupported, RowsInvalid
from tasks.models.gguf import read_gguf
from tasks.models.huggingface import Checkpoint, ends_of, shards_of
from tasks.models.prompts import prompts_of
from tasks.models.rows import examples_of, make_rows
from tasks.models.safetensors import read_safetensors, write_safetensors
from tasks.models.trained import TrainedReceipt, check_model_folder
from tasks.programs.finetune import FinetuneShape, row_tensors
from tasks.programs.generate import GenerateShape, prompt_tensors
from tasks.programs.llama_shape import weight_tensors
from tasks.proofs import (
    LEAF_LIMIT_BYTES,
    Break,
    ShownLeaf,
    break_from_value,
    break_to_value,
    decode_leaves,
    encode_leaf,
    encode_leaves,
    findings_from_value,
    findings_to_value,
    is_break,
    opening_from_value,
    opening_to_value,
    window_proof_from_value,
    window_proof_to_value,
)
from tasks.spec import classifier_plan, decode_spec, encode_spec
from tests.fuzz.targets.base import Target, canonical, of_value, scratch
from tests.fuzz.targets.samples import (
    BROKEN,
    CHUNK,
    DIVERGED_PROOF,
    EVALUATED_PROOF,
    FINDINGS,
    JOB,
    KEY_PROOF,
    LEAVES,
    OPENING,
    PLAIN,
    PLAIN_CLAIM,
    PROFILE,
    PROOF,
    STATE_LEAF,
)
from tests.tasks.containers import STORED, WITH_SECRETS, container, part
from tests.tasks.executor.helpers import BLOB, DATA, make_spec
from tests.tasks.generated import asked, generated, sampled
from tests.tasks.images import docker_save, layout
from tests.tasks.models.checkpoints import config_of, safetensors, tensors_of
from tests.tasks.models.files import gguf
from tests.tasks.models.test_adapters import FOLDER, MADE
from tests.tasks.models.test_trained import FOLDER as TRAINED_FOLDER
from tests.tasks.models.test_trained import MADE as TRAINED
from tests.tasks.programs.llamas import TINY
from tests.tasks.trained import trained
from tests.tasks.tuned import tuned

RECORD = StepRecord(bytes(32), bytes(32), 0)
CLAIM = claim_of_size(bytes(32), make_spec(), 1, bytes(32))
assert CLAIM is not None
CLAIM_VALUE = claim_to_value(CLAIM._replace(hashes=(bytes(32),), chunks=(BlobChunk(0, b"chunk", (bytes(32),)),)))
RUN = Job.of(make_spec())
SHARED_MODEL = safetensors(tensors_of(TINY))
STATE = initial_state(classifier_plan(make_spec()))
SEGMENT = Segment(0, 5, STATE.root(RUN.plan), STATE.root(RUN.plan), b"w" * 32, 7, 12, STATE.encode())


def _read_tuning_blob(shape: FinetuneShape, data: bytes) -> None:
    """Take bytes as the blob of rows and as that of a model: the same tensors make the same bytes."""
    for read, kinds in ((read_rows, row_tensors(shape)), (read_model, weight_tensors(shape.model))):
        with suppress(DatasetInvalid):
            assert join_tensors(kinds, read(shape, data)) == data


def _read_prompts(shape: GenerateShape, data: bytes) -> None:
    """Take bytes as the blob of prompts: the same tensors make the same bytes."""
    with suppress(DatasetInvalid):
        assert join_tensors(prompt_tensors(shape), read_rows(shape, data)) == data


def read_job_frames(data: bytes) -> None:
    """Cut and read frames between supervisor and job, at either end."""
    for body in FrameReader(1 << 20).feed(data):
        for reader in (decode_parent_frame, lambda b: decode_child_frame(b, child_frame_limit(RUN.plan))):
            try:
                message = reader(body)
            except (DecodeError, UnsupportedJob):
                continue
            assert encode_frame(message)[4:] == body


JOURNAL_FILES = ("order", "start", "delivered", "segment-0000000000000000")
ORDER = digest(b"job-journal", RUN.encode()) + RUN.encode()


@cache
def _journal() -> Path:
    directory = scratch() / "journal" / (b"\x11" * 32).hex()
    directory.mkdir(parents=True, exist_ok=True)  # another process of the campaign may have made it
    return directory


def _write(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # four an input: a file object costs twice
    try:
        os.write(file, content)
    finally:
        os.close(file)


def read_job_journal(data: bytes) -> None:
    """Take up a journal whose files have right checksums over any bytes: damage counts as not written."""
    directory = _journal()
    body = digest(b"job-journal", data) + data
    # What is damaged is removed by the journal, so that a file may have to be made anew.
    for name, content in zip(
        JOURNAL_FILES, (digest(b"job-journal", ORDER) + ORDER, body, body, body), strict=True
    ):
        _write(directory / name, content)
    journal = Journal(directory.parent)
    for entry in journal.entries():
        assert 0 <= entry.step <= RUN.total_steps
    _write(directory / JOURNAL_FILES[0], body)
    journal.entries()


def judge_leaf(data: bytes) -> None:
    """Bytes that stand under a segment root are judged, whatever they are."""
    proof = PROOF._replace(segment_root=merkle_root([data]), segments=1, state_root_out=LEAVES[0].state_root_after)
    broken = is_break(JOB, proof, Break(0, ShownLeaf(data, ()), None))
    if not broken:  # only what a worker alone may say is another: losses, seal, and where the state lies
        assert decode(data, limit_bytes=LEAF_LIMIT_BYTES)[:5] == list(LEAVES[0][:5])


def _model_file(data: bytes) -> None:
    file = read_gguf(data)
    for name in file.tensors:
        file.values(name)


def _model_files() -> tuple[bytes, ...]:
    settings = {"general.name": "a model", "a.size": 64, "a.scale": 0.5, "a.words": ["x", "y"], "a.so": True}
    values = np.arange(128.0).reshape(2, 64)
    whole = {f"t{storage}": values for storage in (0, 1, 2, 3, 8, 30)}
    return (
        gguf(settings, {"one": values}, {"one": 3}),
        gguf({}, whole, {name: int(name[1:]) for name in whole}),
    )


def _shared_model_file(data: bytes) -> None:
    file = read_safetensors(data)
    for name in file.tensors:
        file.values(name)


def _shared_model_files() -> tuple[bytes, ...]:
    values = {f"model.layers.{at}.weight": np.arange(6.0).reshape(2, 3) for at in range(3)}
    return (
        safetensors(values, dict(zip(values, ("F32", "F16", "BF16"), strict=True))),
        write_safetensors({"one": np.ones(4, dtype=np.float32)}, {"format": "pt"}),
    )


def _model_settings(data: bytes) -> None:
    Checkpoint(data, {"model.safetensors": read_safetensors(SHARED_MODEL)})


def _model_index(data: bytes) -> None:
    shards_of(data)
    ends_of(("config.json", data))


class _Letters:
    """A token for each byte."""

    ends = frozenset({256})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def _rows(data: bytes) -> None:
    make_rows(examples_of(data, _Letters(), 100), 32, "truncate")


def _packed() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "folder").mkdir()
        (Path(place) / "folder" / "file").write_bytes(b"content")
        return pack(Path(place), limit_bytes=1 << 16)


PACKED: Final = _packed()


def _unpacked(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        unpack(io.BytesIO(data), Path(place) / "made", limit_bytes=1 << 16)
        assert [path.name for path in Path(place).iterdir()] == ["made"]


def _prompts(data: bytes) -> None:
    prompts_of(data, _Letters(), 100, 32, 2)


def targets() -> Iterator[tuple[str, Target]]:
    yield (
        "job specification",
        Target(
            canonical(decode_spec, encode_spec),
            (encode_spec(JOB), *(encode_spec(make()[0]) for make in (tuned, generated, asked, trained, sampled))),
            ("tasks.spec:decode_spec", "tasks.kinds.fields:read_fields"),
        ),
    )
    yield "container specification", Target(
        canonical(decode_spec, encode_spec),
        (
            encode_spec(container(process=part().process._replace(egress=("*.a.b:1", "c.d:443")))),
            *(
                encode_spec(container(checkpoint=one, sealed=seal))
                for one in (None, STORED)
                for seal in (None, WITH_SECRETS)
            ),
        ),
        ("tasks.spec:decode_spec",),
    )  # fmt: skip
    yield "packed folder", Target(
        _unpacked, (PACKED,), ("tasks.kinds.folders:unpack",), (ArchiveInvalid,),
    )  # fmt: skip
    yield "archive of an image", Target(
        lambda data: read_image(io.BytesIO(data), unpacked_max=1 << 20),
        (layout((PACKED, b"")), docker_save((PACKED, PACKED))),
        ("tasks.kinds.image_archives:read_image", "tasks.kinds.image_archives:_Archive.read",
         "tasks.kinds.image_archives:_json"), (ArchiveInvalid,),
    )  # fmt: skip
    yield "leaves", Target(
        canonical(decode_leaves, encode_leaves), (encode_leaves(LEAVES),),
        ("tasks.proofs:decode_leaves", "tasks.proofs:_leaf_from_value"),
    )  # fmt: skip
    yield "window proof", Target(
        of_value(window_proof_from_value, window_proof_to_value),
        tuple(encode(window_proof_to_value(one)) for one in (PROOF, DIVERGED_PROOF, EVALUATED_PROOF)),
        (
            "tasks.proofs:window_proof_from_value", "tasks.proofs:_custody_from_value",
            "tasks.proofs:_losses_from_value",
            "tasks.programs.divergence:divergence_from_value",
        ),
    )  # fmt: skip
    yield "findings", Target(
        of_value(findings_from_value, findings_to_value), (encode(findings_to_value(FINDINGS)),),
        ("tasks.proofs:findings_from_value",),
    )  # fmt: skip
    yield "opening", Target(
        of_value(opening_from_value, opening_to_value), (encode(opening_to_value(OPENING)),),
        ("tasks.proofs:opening_from_value",),
    )  # fmt: skip
    yield "broken leaves", Target(
        of_value(break_from_value, break_to_value), (encode(break_to_value(BROKEN)),),
        ("tasks.proofs:break_from_value", "tasks.proofs:_shown", "tasks.proofs:_path"),
    )  # fmt: skip
    yield "leaf that is shown", Target(judge_leaf, (encode_leaf(LEAVES[0]),), ("tasks.proofs:_read_leaf",))
    yield "claim about an input with a key", Target(
        of_value(plain_claim_from_value, plain_claim_to_value), (encode(plain_claim_to_value(PLAIN_CLAIM)),),
        ("tasks.custody.inputs:plain_claim_from_value",),
    )  # fmt: skip
    yield "chunk in custody", Target(
        of_value(chunk_proof_from_value, chunk_proof_to_value), (encode(chunk_proof_to_value(CHUNK)),),
        ("tasks.custody.chunks:chunk_proof_from_value", "tasks.custody.chunks:siblings_of"),
    )  # fmt: skip
    yield "path of a custody key", Target(
        of_value(key_proof_from_value, key_proof_to_value), (encode(key_proof_to_value(KEY_PROOF)),),
        ("tasks.custody.keys:key_proof_from_value",),
    )  # fmt: skip
    yield "plain chunk", Target(
        of_value(plain_chunk_from_value, plain_chunk_to_value), (encode(plain_chunk_to_value(PLAIN)),),
        ("tasks.custody.layout:plain_chunk_from_value",),
    )  # fmt: skip
    yield "leaf of a state", Target(
        of_value(leaf_evidence_from_value, leaf_evidence_to_value),
        (encode(leaf_evidence_to_value(STATE_LEAF)), encode([])),
        ("tasks.custody.layout:leaf_evidence_from_value",),
    )  # fmt: skip
    yield "claim about a data set", Target(
        of_value(claim_from_value, claim_to_value), (encode(CLAIM_VALUE),),
        ("tasks.claims:claim_from_value", "tasks.claims:_chunk"),
    )  # fmt: skip
    yield "node profile", Target(
        of_value(profile_from_value, profile_to_value), (encode(profile_to_value(PROFILE)),),
        ("tasks.ledger.registry:profile_from_value", "tasks.ledger.registry:_gpu"),
    )  # fmt: skip
    yield (
        "model file",
        Target(
            _model_file,
            _model_files(),
            tuple(f"tasks.models.gguf:{name}" for name in ("read_gguf", "_expanded", "_Reader.number")),
            (ModelInvalid, ModelUnsupported),
            memory=160,
        ),
    )
    yield "model file of safetensors", Target(
        _shared_model_file, _shared_model_files(),
        tuple(f"tasks.models.safetensors:{name}" for name in ("read_safetensors", "_expanded")),
        (ModelInvalid, ModelUnsupported), memory=160,
    )  # fmt: skip
    yield "receipt of adapters", Target(
        lambda data: Receipt.decode(data), (MADE.encode(),),
        tuple(f"tasks.models.adapters:{name}" for name in ("Receipt.decode", "_shape")),
        (FolderInvalid,), memory=160,
    )  # fmt: skip
    yield "receipt of a trained model", Target(
        lambda data: TrainedReceipt.decode(data), (TRAINED.encode(),),
        tuple(f"tasks.models.{name}" for name in ("trained:TrainedReceipt.decode", "receipts:root_of")),
        (FolderInvalid,), memory=160,
    )  # fmt: skip
    yield "folder of a trained model", Target(
        lambda data: check_model_folder(TRAINED_FOLDER | {"model.safetensors": data}),
        (TRAINED_FOLDER["model.safetensors"],),
        ("tasks.models.trained:check_model_folder", "tasks.models.trained:_parameters"),
        (FolderInvalid,), memory=160,
    )  # fmt: skip
    yield "folder of adapters", Target(
        lambda data: check_folder(FOLDER | {"adapter_model.safetensors": data}),
        (FOLDER["adapter_model.safetensors"],), ("tasks.models.adapters:check_folder",),
        (FolderInvalid,), memory=160,
    )  # fmt: skip
    yield "settings of a model", Target(
        _model_settings, (json.dumps(config_of(TINY)).encode(),),
        ("tasks.models.strict_json:read_object",), (ModelInvalid, ModelUnsupported), memory=160,
    )  # fmt: skip
    yield "index of a model's files", Target(
        _model_index,
        (b'{"metadata": {"total_size": 8}, "weight_map": {"a": "model-1.safetensors"}, "eos_token_id": [1, 2]}',),
        (), (ModelInvalid,), memory=160,
    )  # fmt: skip
    yield (
        "training rows",
        Target(
            _rows,
            (
                b'{"prompt": "a", "completion": "b"}\n{"text": "c"}\n',
                b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
                b'{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}\n',
            ),
            ("tasks.models.rows:_decoded",),
            (RowsInvalid,),
            memory=160,
        ),
    )
    yield "prompts' file", Target(
        _prompts,
        (
            b'{"prompt": "a"}\n{"input_ids": [5, 6]}\n',
            b'{"messages": [{"role": "user", "content": "a"}]}\n',
            b'{"prompt": "a", "temperature": 0.5, "top_p": 1, "top_k": 3, "seed": 1}\n'
            b'{"prompt": "a", "max_new_tokens": 2, "stop": "b"}\n',
        ),
        ("tasks.models.prompts:prompts_of",), (RowsInvalid,), memory=160,
    )  # fmt: skip
    yield (
        "dataset",
        Target(
            canonical(Dataset.decode, Dataset.encode),
            (BLOB,),
            ("tasks.engines.datasets:Dataset.decode",),
            (DatasetInvalid,),
        ),
    )
    shape, made = tuned()[1].shape, tuned()[2]
    yield "rows and model of a tuning job", Target(
        lambda data: _read_tuning_blob(shape, data),
        (
            join_tensors(row_tensors(shape), made.data),
            join_tensors(weight_tensors(shape.model), made.model),
        ),
        ("tasks.engines.input_blobs:read_rows", "tasks.engines.input_blobs:read_model"),
    )  # fmt: skip
    plan, decoded = generated()[1:]
    yield "prompts of a decoding job", Target(
        lambda data: _read_prompts(plan.shape, data), (join_tensors(prompt_tensors(plan.shape), decoded.data),),
        ("tasks.engines.input_blobs:read_rows",),
    )  # fmt: skip
    _, tuned_plan, tuned_job = asked()
    assert tuned_job.adapter is not None
    yield "adapters of a decoding job", Target(
        canonical(lambda data: read_adapter(tuned_plan.shape, data), TrainingState.encode),
        (tuned_job.adapter.encode(),), ("tasks.engines.input_blobs:read_adapter",), (DatasetInvalid,),
    )  # fmt: skip
    yield "state of a decoding job", Target(
        canonical(lambda data: TrainingState.decode(data, plan), TrainingState.encode),
        (decoding_state(plan).encode(),), ("tasks.engines.state:TrainingState.decode",), (StateInvalid,),
    )  # fmt: skip
    yield (
        "blob that a job names",
        Target(read_dataset_facts, (BLOB,), ("tasks.ledger.screening:read_dataset_facts",)),
    )
    yield "training state", Target(
        canonical(lambda data: TrainingState.decode(data, RUN.plan), TrainingState.encode), (STATE.encode(),),
        ("tasks.engines.state:TrainingState.decode",), (StateInvalid,),
    )  # fmt: skip
    yield "job", Target(
        canonical(Job.decode, Job.encode),
        (RUN.encode(), *(Job.of(make()[0]).encode() for make in (tuned, generated, asked, trained, sampled))),
        ("tasks.executor.job:Job.decode",),
        (DecodeError, UnsupportedJob),
    )  # fmt: skip
    job_frames = (
        Train(RUN, BLOB, None, 5, True), Cancel(), Hello("cpu:numpy", frozenset({"net"})), Progress(5), SEGMENT,
        Finished(3, DATA.rows), Failed("reason", "text"), MoreMoves((b"one", b"two")), Played(b"three"),
        RunLinks(bytes(32), 64, (bytes(32),) * 2, is_chain=False), Links((bytes(32),) * 3),
        Play(make_spec(), BLOB, b"state", bytes(32), 0, 5, Side.CHALLENGER, RECORD, bytes(32), (b"one",)),
    )  # fmt: skip
    yield "job frames", Target(
        read_job_frames, tuple(encode_frame(message) for message in job_frames),
        (
            "tasks.executor.job:decode_parent_frame", "tasks.executor.job:decode_child_frame",
            "tasks.executor.job:FrameReader.feed", "tasks.executor.playing:play_from",
            "tasks.executor.playing:moves_from", "tasks.executor.linking:run_links_from",
            "tasks.executor.linking:links_from",
        ),
    )  # fmt: skip
    segment = encode_frame(SEGMENT)[4:]
    stored = encode(decode(segment, limit_bytes=1 << 20)[1:])
    yield "job journal", Target(
        read_job_journal, (stored, encode(1), STATE.encode(), RUN.encode()),
        (
            "tasks.executor.journal:Journal.entries", "tasks.executor.journal:TaskJournal._load_delivered",
            "tasks.executor.journal:TaskJournal._check_start", "tasks.executor.journal:TaskJournal._load_segments",
            "tasks.executor.journal:TaskJournal._load_segment", "tasks.executor.journal:TaskJournal._read_segment",
            "tasks.executor.journal:_read", "tasks.executor.journal:TaskJournal.load_start",
        ),
        (), cost=30, memory=400,
    )  # fmt: skip
