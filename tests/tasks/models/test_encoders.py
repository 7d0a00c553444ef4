"""Encoders from a folder: the vectors that transformers computes, texts as tokens, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpc.client.jobs import make_job
from tasks.engines.input_blobs import split_tensors
from tasks.engines.passing import RowPass
from tasks.engines.state import TrainingState
from tasks.models.encoders import EncoderFiles, encoder_tokens, pooling_of
from tasks.models.errors import ModelError, ModelInvalid, ModelUnsupported
from tasks.models.huggingface import CONFIG
from tasks.models.opening import POOLING, open_embedder
from tasks.models.row_results import evaluation_of, vectors_of
from tasks.models.safetensors import read_safetensors, write_safetensors
from tasks.programs.bert_shape import BertShape
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of
from tests.tasks.models.checkpoints import write_folder
from tests.tasks.passed import ENCODER, encoder_weights
from tests.tasks.programs.engines import engine
from tests.tasks.programs.llamas import TINY

OUTER = {
    "embedding": "embeddings.word_embeddings.weight", "positions": "embeddings.position_embeddings.weight",
    "type": "embeddings.token_type_embeddings.weight", "norm": "embeddings.LayerNorm.weight",
    "norm_bias": "embeddings.LayerNorm.bias",
}  # fmt: skip
PARTS = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "output": "attention.output.dense", "attention_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense", "down": "output.dense", "hidden_norm": "output.LayerNorm",
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "##b", "##c"]


def config_of(shape: BertShape = ENCODER, **changes: Any) -> dict[str, Any]:
    values = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": shape.vocabulary,
        "hidden_size": shape.width, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "intermediate_size": shape.hidden, "max_position_embeddings": shape.context,
        "layer_norm_eps": shape.epsilon_nano * 1e-9, "hidden_act": "gelu", "type_vocab_size": 2,
        "position_embedding_type": "absolute",
    }  # fmt: skip
    return {key: value for key, value in (values | changes).items() if value != "absent"}


def tensors_of(shape: BertShape = ENCODER) -> dict[str, np.ndarray]:
    """Return the tensors of a file, by the names of the field."""
    found = dict[str, np.ndarray]()
    for name, values in encoder_weights(shape).items():
        if name in OUTER:
            found[OUTER[name]] = values if values.shape[0] > 1 else values[0]
            continue
        _, layer, part = name.split("/")
        end = "bias" if part.endswith("_bias") else "weight"
        place = f"encoder.layer.{layer}.{PARTS[part.removesuffix('_bias')]}.{end}"
        found[place] = values if values.shape[0] > 1 else values[0]
    types = np.stack((found[OUTER["type"]], found[OUTER["type"]] + 1.0))
    found[OUTER["type"]] = types
    found["pooler.dense.weight"] = np.zeros((shape.width, shape.width))
    found["pooler.dense.bias"] = np.zeros(shape.width)
    return found


def tokeniser() -> bytes:
    """A tokeniser of word pieces, with tokens around each text, and settings that would cut and fill texts."""
    special = [{"id": at, "content": WORDS[at], "special": True, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False} for at in range(4)]  # fmt: skip
    around = [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    ]  # fmt: skip
    return json.dumps({
        "version": "1.0",
        "truncation": {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": {
            "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
            "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": None,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: at for at, word in enumerate(WORDS)}},
    }).encode()  # fmt: skip


def write_encoder(folder: Path, shape: BertShape = ENCODER, **changes: Any) -> Path:
    (folder / CONFIG).write_text(json.dumps(config_of(shape, **changes)))
    (folder / "model.safetensors").write_bytes(write_safetensors(tensors_of(shape), {"format": "pt"}))
    (folder / "tokenizer.json").write_bytes(tokeniser())
    return folder


def made(folder: Path, rows: list[dict[str, Any]], kind: str = "embed", **fields: Any) -> Any:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    request = request_of({"kind": kind, "model": str(folder), "data": "rows.jsonl", **fields})
    return make_job(request, seed=bytes(32), max_price_per_tera_unit=1, data=data)


def done(job: Any) -> TrainingState:
    plan = job.spec.plan()
    model, rows = (
        split_tensors(kinds, blob)
        for kinds, blob in ((plan.weight_tensors(), job.model), (plan.row_tensors(), job.rows))
    )
    run = RowPass(plan, model, rows, engine("numpy"), plan.first_state())
    run.run_steps(plan.steps)
    return run.state()


@pytest.mark.slow
def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    """Without the normalisation, of the mean of all tokens, in float32."""
    transformers = pytest.importorskip("transformers", reason="extra peft IS NOT INSTALLED: NO VECTORS COMPARED")
    import torch

    write_encoder(tmp_path)
    texts = [[2, 4, 7, 5, 3], [2, 3], [9, 8, 30, 39, 1, 1, 0]]
    job = made(tmp_path, [{"input_ids": text} for text in texts], normalise=False, batch=2)
    found = vectors_of(job.spec, done(job))
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    for text, vector in zip(texts, found, strict=True):
        with torch.no_grad():
            wanted = model(input_ids=torch.tensor([text])).last_hidden_state[0].mean(0).numpy()
        cosine = float(vector @ wanted / np.linalg.norm(vector) / np.linalg.norm(wanted))
        assert cosine >= 0.9999
        assert np.abs(vector - wanted).max() < 2e-3 * np.abs(wanted).max()


def test_the_loss_is_that_of_transformers_in_float32(tmp_path: Path) -> None:
    """The weights are frozen with 15 bits, and such random ones are larger than a trained model's."""
    transformers = pytest.importorskip("transformers", reason="extra peft IS NOT INSTALLED: NO LOSSES COMPARED")
    import torch

    write_folder(tmp_path, TINY)
    rows = [{"input_ids": [1, 5, 9, 66]}, {"input_ids": [3, 4, 5, 6, 7], "labels": [-100, -100, 5, -100, 7]}]
    job = made(tmp_path, rows, kind="evaluate")
    found = evaluation_of(job.spec, done(job))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    for row, one in zip(rows, found.rows, strict=True):
        tokens = torch.tensor([row["input_ids"]])
        labels = torch.tensor([row.get("labels", row["input_ids"])])
        with torch.no_grad():
            wanted = float(model(input_ids=tokens, labels=labels).loss)
        assert one.loss == pytest.approx(wanted, rel=3e-4)
    assert [one.tokens for one in found.rows] == [3, 2]


def test_texts_get_the_tokens_that_the_file_puts_around_them() -> None:
    pytest.importorskip("tokenizers", reason="extra models IS NOT INSTALLED: NO TEXTS READ")
    tokens = encoder_tokens(tokeniser(), len(WORDS))
    assert tokens.encode("Abc a x") == [2, 4, 7, 8, 4, 1, 3]
    assert tokens.encode("") == [2, 3]
    assert tokens.encode("abc a", 4) == [2, 4, 7, 3]
    assert tokens.encode("abc a") == [2, 4, 7, 8, 4, 3]  # cutting one text cuts no other
    with pytest.raises(ModelInvalid, match="vocabulary of 5"):
        encoder_tokens(tokeniser(), 5)
    for wrong in (b"\xff", b"[]", b'{"model": {"type": "Unigram"}}', b'{"model": {"type": "WordPiece"}}'):
        with pytest.raises(ModelError):
            encoder_tokens(wrong, 9)


def test_a_long_text_is_refused_or_cut(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="extra models IS NOT INSTALLED: NO TEXTS READ")
    write_encoder(tmp_path)
    rows = [{"text": "a"}, {"text": "a b c " * 9}]
    with pytest.raises(RequestInvalid, match=r"line 2: 29 tokens, at most 16.*long_rows"):
        made(tmp_path, rows)
    job = made(tmp_path, rows, long_rows="truncate")
    assert job.spec.part.dataset.length == 16 and "line 2 was cut to 16 tokens" in job.notes
    tokens = np.frombuffer(split_tensors(job.spec.plan().row_tensors(), job.rows)["tokens"], "<i4").reshape(2, 16)
    assert tokens[1, -1] == 3 and (tokens[0, 3:] == 0).all()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a"}, "fields prompt; text or input_ids"), ({"text": 7}, "text: a text expected"),
        ({"input_ids": []}, "a text without a token"), ({"input_ids": [40]}, "input_ids: 40 at place 0"),
        ({"input_ids": [-1]}, "input_ids"), ({}, "fields none"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_text_is_named(tmp_path: Path, row: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestInvalid, match=f"line 2: {said}"):
        made(write_encoder(tmp_path), [{"input_ids": [1]}, row])


def test_pooling_and_normalisation_are_what_the_files_say(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    with open_embedder(tmp_path) as opened:
        assert (opened.pooling, opened.normalised, opened.shape) == ("mean", True, ENCODER)
    (tmp_path / POOLING).parent.mkdir()
    (tmp_path / POOLING).write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    with open_embedder(tmp_path) as opened:
        assert (opened.pooling, opened.normalised) == ("cls", False)
    (tmp_path / "modules.json").write_text('[{"type": "sentence_transformers.models.Normalize"}]')
    with open_embedder(tmp_path) as opened:
        assert (opened.pooling, opened.normalised) == ("cls", True)
    part = made(tmp_path, [{"input_ids": [1]}]).spec.part
    assert part.pooling == ("cls", 1)
    part = made(tmp_path, [{"input_ids": [1]}], pooling="last", normalise=False).spec.part
    assert part.pooling == ("last", 0)
    for wrong in (b"{}", b'{"pooling_mode_max_tokens": true}', b"[]"):
        with pytest.raises(ModelError):
            pooling_of(wrong, POOLING)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"hidden_act": "relu"}, ModelUnsupported), ({"position_embedding_type": "other"}, ModelUnsupported),
        ({"is_decoder": True}, ModelUnsupported), ({"num_attention_heads": 3}, ModelUnsupported),
        ({"layer_norm_eps": "absent"}, ModelInvalid), ({"layer_norm_eps": 0}, ModelInvalid),
        ({"hidden_size": 12}, ModelInvalid), ({"num_hidden_layers": 3}, ModelInvalid),
        ({"num_hidden_layers": 1}, ModelUnsupported), ({"vocab_size": 41}, ModelInvalid),
    ],
    ids=str,
)  # fmt: skip
def test_settings_that_no_program_computes_are_refused(changes: dict[str, Any], error: type[ModelError]) -> None:
    file = read_safetensors(write_safetensors(tensors_of(), {}))
    with pytest.raises(error):
        EncoderFiles(json.dumps(config_of(**changes)).encode(), {"w": file}).model()


def test_names_with_and_without_a_head_are_read() -> None:
    plain = read_safetensors(write_safetensors(tensors_of(), {}))
    held = {f"bert.{name}": values for name, values in tensors_of().items()}
    held["cls.predictions.bias"] = np.zeros(40)
    other = read_safetensors(write_safetensors(held, {}))
    config = json.dumps(config_of()).encode()
    assert (
        EncoderFiles(config, {"w": plain}).model().contents()
        == EncoderFiles(config, {"w": other}).model().contents()
    )
    with pytest.raises(ModelUnsupported, match="classifier"):
        EncoderFiles(
            config, {"w": read_safetensors(write_safetensors({**held, "classifier.bias": np.zeros(2)}, {}))}
        )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pooling": "max"}, "pooling"), ({"normalise": 1}, "normalise: true or false"), ({"batch": -1}, "batch"),
        ({"epochs": 2}, "epochs is not a known field"), ({"adapter": "task:0x" + "ab" * 32}, "the result of"),
        ({"long_rows": "drop"}, "long_rows"), ({"max_length": 99}, "texts of 99 tokens"),
    ],
)  # fmt: skip
def test_fields_that_are_wrong_are_named(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestInvalid, match=said):
        made(write_encoder(tmp_path), [{"input_ids": [1]}], **fields)
