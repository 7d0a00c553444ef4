"""GGUF files are read exactly or refused: nothing that a stranger writes does anything else."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.models.gguf import read_gguf
from tasks.models.llama import model_from_gguf
from tests.tasks.models.files import gguf, settings_of, tensors_of, text
from tests.tasks.programs.llamas import BIASED, TINY

RANDOM = np.random.default_rng(2)
VALUES = RANDOM.normal(0, 1, (3, 64))
FILE = gguf({"a": 5, "b": "text", "c": ["x", "y"], "d": True, "e": 0.5}, {"one": VALUES, "two": VALUES[0]})
MODEL = gguf(settings_of(TINY), tensors_of(TINY))


def test_settings_and_tensors_are_read() -> None:
    file = read_gguf(FILE)
    assert file.settings == {"a": 5, "b": "text", "c": ["x", "y"], "d": True, "e": 0.5}
    assert (file.values("one") == VALUES.astype(np.float32)).all()
    assert (file.values("one", 1, 1) == VALUES[1:2].astype(np.float32)).all()
    assert (file.values("two") == VALUES[:1].astype(np.float32)).all()


@pytest.mark.parametrize(("storage", "error"), [(0, 1e-7), (1, 1e-3), (30, 2e-2), (8, 0.02), (2, 0.35), (3, 0.2)])
def test_every_storage_type_is_expanded(storage: int, error: float) -> None:
    found = read_gguf(gguf({}, {"one": VALUES}, {"one": storage})).values("one")
    assert np.abs(found - VALUES).max() <= error * 1.5
    assert np.corrcoef(found.ravel(), VALUES.ravel())[0, 1] > 0.99


def test_blocks_of_four_bits_are_expanded_to_the_bit() -> None:
    codes = bytes(range(0, 256, 17)) * 1
    head = np.float16(0.25).tobytes() + np.float16(-1.5).tobytes()
    content = bytearray(gguf({}, {"one": np.ones((1, 32))}, {"one": 3}))
    content[-32:-12] = head + codes
    wanted = [byte % 16 * 0.25 - 1.5 for byte in codes] + [byte // 16 * 0.25 - 1.5 for byte in codes]
    assert read_gguf(bytes(content)).values("one").tolist() == [wanted]


@pytest.mark.parametrize("cut", [0, 3, 8, 20, 30, len(FILE) // 2, len(FILE) - 140, len(FILE) - 1000])
def test_a_file_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(ModelInvalid):
        read_gguf(FILE[:cut])


def changed(at: int, code: str, value: int) -> bytes:
    return FILE[:at] + struct.pack("<" + code, value) + FILE[at + struct.calcsize(code) :]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"GGML" + FILE[4:], "no GGUF"),
        (changed(4, "I", 2), "version 2"),
        (changed(8, "Q", 1 << 60), "tensors"),
        (changed(16, "Q", 1 << 60), "settings"),
        (changed(24, "Q", 1 << 60), "bytes of text"),
        (gguf({}, {"one": VALUES}).replace(struct.pack("<QIQ", 3, 0, 0), struct.pack("<QIQ", 3, 14, 0)),
         "storage type 14"),
        (gguf({}, {"one": VALUES[:, :33]}, {"one": 0}).replace(struct.pack("<QIQ", 3, 0, 0),
         struct.pack("<QIQ", 3, 8, 0)), "no whole number of blocks"),
        (gguf({"general.alignment": 3}, {"one": VALUES}), "power of two"),
        (gguf({"general.alignment": True}, {"one": VALUES}), "power of two"),
        (gguf({}, {"one": VALUES}).replace(struct.pack("<QQIQ", 64, 3, 0, 0), struct.pack("<QQIQ", 64, 0, 0, 0)),
         "no values"),
        (gguf({}, {"one": VALUES}).replace(struct.pack("<QIQ", 3, 0, 0), struct.pack("<QIQ", 3, 0, 1)), "aligned"),
        (FILE.replace(b"text", b"te\xff\xff"), "UTF-8"),
    ],
)  # fmt: skip
def test_what_breaks_the_format_is_refused(content: bytes, said: str) -> None:
    with pytest.raises((ModelInvalid, ModelUnsupported), match=said):
        read_gguf(content)


def test_two_tensors_may_not_share_bytes() -> None:
    content = gguf({}, {"one": VALUES, "two": VALUES})
    before = text("two") + struct.pack("<I2QI", 2, 64, 3, 0)
    start = struct.pack("<Q", VALUES.astype("<f4").nbytes)
    assert before + start in content
    with pytest.raises(ModelInvalid, match="overlaps"):
        read_gguf(content.replace(before + start, before + bytes(8)))


@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_change_gives_a_model_or_a_typed_error(changes: list[tuple[int, int]]) -> None:
    content = bytearray(MODEL)
    for at, value in changes:
        content[at] = value
    try:
        model_from_gguf(read_gguf(bytes(content)))
    except (ModelInvalid, ModelUnsupported):
        pass


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'"),
        ({"llama.rope.scaling.type": "yarn"}, "scaling 'yarn'"),
        ({"llama.rope.dimension_count": 4}, "dimension_count"),
        ({"llama.rope.freq_base": 10_000.5}, "rotary base 10000.5: a whole number"),
        ({"llama.rope.freq_base": 5}, "no positive number"),
        ({"llama.block_count": 3}, "blk.2"),
        ({"llama.block_count": 1}, "blk.1"),
        ({"llama.attention.head_count": 5}, "heads"),
        ({"llama.context_length": "64"}, "no integer"),
        ({"llama.embedding_length": 48}, "67 by 24, not 67 by 48"),
    ],
)
def test_a_model_that_no_program_computes_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises((ModelInvalid, ModelUnsupported), match=said):
        model_from_gguf(read_gguf(gguf(settings_of(TINY) | change, tensors_of(TINY))))


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**21])
@pytest.mark.parametrize("name", ["blk.0.attn_q.weight", "output_norm.weight"])
def test_n11_weights_beyond_the_range_are_refused(name: str, value: float) -> None:
    tensors = tensors_of(TINY)
    tensors[name] = tensors[name].copy()
    tensors[name].flat[5] = value if name.startswith("blk") or value != 2.0**21 else 2.0**100
    with pytest.raises(ModelInvalid):
        model_from_gguf(read_gguf(gguf(settings_of(TINY), tensors)))


def test_own_heads_and_biases_are_found() -> None:
    model = model_from_gguf(read_gguf(gguf(settings_of(BIASED, "qwen2"), tensors_of(BIASED, "qwen2"))))
    assert model.shape == BIASED


def test_a_llama_with_a_broken_rotary_base_is_no_gpt2() -> None:
    """With as many key heads as heads, and heads as wide as the model, a base of 0 would be one (R154)."""
    shape = replace(TINY, heads=3, key_heads=3)
    settings = settings_of(shape) | {"llama.rope.freq_base": 10_000.5}
    with pytest.raises(ModelUnsupported, match=r"rotary base 10000\.5: a whole number"):
        model_from_gguf(read_gguf(gguf(settings, tensors_of(shape))))
