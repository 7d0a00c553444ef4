"""Adapters as a GGUF file: read back, added to a base of that layout, and loaded by llama.cpp."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasks.engines.state import TrainingState
from tasks.models.adapters import ADAPTERS, adapter_folder, receipt_of
from tasks.models.errors import FolderInvalid
from tasks.models.gguf import read_gguf
from tasks.models.gguf_writing import adapters_gguf, write_gguf
from tasks.programs.finetune import state_tensors
from tasks.programs.llama_shape import LlamaShape
from tests.tasks.models.files import gguf, laid_out, settings_of, tensors_of
from tests.tasks.models.test_adapters import FOLDER, MADE, SHAPE, STATE, merged
from tests.tasks.programs.llamas import BIASED, TINY, plain_logits

TOKENS = [3, 60, 11, 5, 42]


def test_what_is_written_is_read_back() -> None:
    values = np.arange(6.0).reshape(2, 3) / 8
    file = read_gguf(write_gguf({"a": "text", "b": 7, "c": 0.5}, {"one": values, "two": values[:1]}))
    assert file.settings == {"a": "text", "b": 7, "c": 0.5}
    assert (file.values("one") == values).all() and (file.values("two") == values[:1]).all()


def test_adapters_have_the_names_and_settings_of_llama_cpp() -> None:
    written = adapters_gguf(MADE, FOLDER[ADAPTERS])
    assert written == adapters_gguf(MADE, FOLDER[ADAPTERS])
    file = read_gguf(written)
    assert file.settings == {
        "general.architecture": "llama", "general.type": "adapter", "general.name": "a/base-1",
        "adapter.type": "lora", "adapter.lora.alpha": float(SHAPE.alpha),
    }  # fmt: skip
    assert len(file.tensors) == 2 * TINY.layers * len(SHAPE.targets)
    assert {"blk.0.attn_q.weight.lora_a", "blk.0.ffn_down.weight.lora_b"} <= file.tensors.keys()
    with pytest.raises(FolderInvalid):
        adapters_gguf(MADE, FOLDER[ADAPTERS][:-4])


@pytest.mark.parametrize(("model", "architecture"), [(TINY, "llama"), (BIASED, "qwen2")])
def test_a_base_with_the_adapters_added_is_the_tuned_model(model: LlamaShape, architecture: str) -> None:
    shape, random = replace(SHAPE, model=model), np.random.default_rng(9)
    tensors = {
        name: random.normal(0, 0.3, (kind.rows, kind.columns)).astype("<f4").tobytes()
        for name, kind in state_tensors(shape).items()
    }
    state = TrainingState(5, tensors)
    receipt = receipt_of(shape, state, base="b", model_root=b"m" * 32, rows_root=b"r" * 32, task=None)
    file = read_gguf(adapters_gguf(receipt, adapter_folder(receipt, tensors)[ADAPTERS]))
    assert file.settings["general.architecture"] == architecture
    base, wanted = tensors_of(model, architecture), laid_out(model, merged(shape, state), architecture)
    for name in file.tensors:
        if name.endswith(".lora_a"):
            place = name.removesuffix(".lora_a")
            added = file.values(f"{place}.lora_b") @ file.values(name) * (shape.alpha / shape.rank)
            assert np.allclose(base[place] + added, wanted[place], atol=1e-6), place
            assert not np.allclose(base[place], wanted[place], atol=1e-3), place


@pytest.mark.nightly
def test_llama_cpp_loads_the_adapters_and_gives_the_same_logits(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="llama-cpp-python IS NOT INSTALLED: ADAPTERS WERE NOT LOADED WITH LLAMA.CPP"
    )
    settings = settings_of(TINY) | {
        "tokenizer.ggml.model": "no_vocab", "llama.vocab_size": TINY.vocabulary,
        "llama.attention.value_length": TINY.head_width,
    }  # fmt: skip
    base, adapters = tmp_path / "base.gguf", tmp_path / "adapters.gguf"
    base.write_bytes(gguf(settings, tensors_of(TINY)))
    adapters.write_bytes(adapters_gguf(MADE, FOLDER[ADAPTERS]))
    wanted = plain_logits(TINY, merged(SHAPE, STATE), TOKENS)
    single = {"type_k": 0, "type_v": 0}  # float32 in the cache
    options = {"n_ctx": TINY.context, "logits_all": True, "verbose": False, "n_threads": 1, **single}
    for lora, is_close in ((str(adapters), True), (None, False)):
        model = llama_cpp.Llama(str(base), lora_path=lora, **options)
        model.eval(TOKENS)
        logits = np.array(model.scores[: len(TOKENS)])
        model.close()
        assert (np.abs(logits - wanted).max() < 1e-3 * np.abs(wanted).max()) == is_close
