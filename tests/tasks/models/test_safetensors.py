"""Safetensors files are read exactly or refused: no file says two things to two readers."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.models.errors import ModelError, ModelInvalid, ModelUnsupported
from tasks.models.safetensors import HEAD_BYTES_MAX, read_safetensors, write_safetensors
from tests.tasks.models.checkpoints import file_of, head_and_body, safetensors

RANDOM = np.random.default_rng(4)
VALUES = {"one": RANDOM.normal(0, 1, (3, 8)), "two": RANDOM.normal(0, 1, 5)}
HEAD, BODY = head_and_body(VALUES)
FILE = file_of(HEAD, BODY)


@pytest.mark.parametrize(("dtype", "error"), [("F32", 1e-7), ("F16", 1e-3), ("BF16", 2e-2)])
def test_every_number_type_is_expanded(dtype: str, error: float) -> None:
    file = read_safetensors(safetensors(VALUES, dict.fromkeys(VALUES, dtype)))
    assert np.abs(file.values("one") - VALUES["one"]).max() <= error * 3
    assert (file.values("one", 1, 1) == file.values("one")[1:2]).all()
    assert file.values("two").shape == (1, 5)


def test_what_is_written_is_read_and_has_one_form() -> None:
    single = {name: values.astype(np.float32) for name, values in VALUES.items()}
    content = write_safetensors(single, {"format": "pt"})
    assert content == write_safetensors(dict(reversed(single.items())), {"format": "pt"})
    file = read_safetensors(content)
    assert file.notes == {"format": "pt"}
    assert all(file.content_of(name) == values.tobytes() for name, values in single.items())


def test_the_library_of_the_field_reads_what_is_written() -> None:
    library = pytest.importorskip("safetensors.numpy", reason="safetensors IS NOT INSTALLED: NOT COMPARED")
    single = {name: values.astype(np.float32) for name, values in VALUES.items()}
    found = library.load(write_safetensors(single, {"format": "pt"}))
    assert all((found[name] == values).all() for name, values in single.items())
    assert read_safetensors(library.save(single)).tensors.keys() == single.keys()


def changed(tensor: str, field: str, value: Any) -> bytes:
    head = copy.deepcopy(HEAD)
    head[tensor][field] = value
    return file_of(head, BODY)


@pytest.mark.parametrize("cut", [0, 3, 7, 8, 20, len(FILE) - len(BODY) - 1, len(FILE) - 1])
def test_a_file_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(ModelInvalid):
        read_safetensors(FILE[:cut])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (FILE + b"\0", "tensors end at byte"),
        (file_of(b"[]", b""), "not a JSON object"),
        (file_of(b" {}", b""), "not a JSON object"),
        (file_of(b'{"a": 1,}', b""), "not valid JSON"),
        (file_of(b'{"a": NaN}', b""), "not a JSON number"),
        (file_of(b"{" + b'"a": ' + b"[" * 100_000, b""), "not valid JSON"),
        (file_of(b"{\xff}", b""), "UTF-8"),
        (file_of(json.dumps(HEAD).encode()[:-1] + b', "two": 1}', BODY), "duplicate name"),
        ((HEAD_BYTES_MAX + 1).to_bytes(8, "little") + bytes(HEAD_BYTES_MAX + 1), "at most"),
        ((1 << 63).to_bytes(8, "little") + FILE[8:], "ends within"),
        (file_of(HEAD | {"__metadata__": {"a": 1}}, BODY), "__metadata__"),
        (file_of(HEAD | {"three": 5}, BODY), "three is not an object"),
        (file_of({"": HEAD["one"]}, BODY), "name"),
        (changed("two", "dtype", "F8_E4M3"), "F8_E4M3"),
        (changed("two", "dtype", "I32"), "I32"),
        (changed("two", "shape", []), "0 dimensions"),
        (changed("two", "shape", [1, 1, 5]), "3 dimensions"),
        (changed("two", "shape", [True]), "dimension"),
        (changed("two", "shape", [5.0]), "dimension"),
        (changed("two", "shape", [True, 1, 1, 5]), "dimension that is not"),
        (changed("two", "shape", [1, 1.0, 1, 5]), "dimension that is not"),
        (changed("two", "shape", [0, 5]), "dimension"),
        (changed("two", "shape", [1 << 40]), "dimension"),
        (changed("two", "shape", [6]), "its shape needs 24"),
        (changed("two", "data_offsets", [96, 116.0]), "are not numbers"),
        (changed("two", "data_offsets", [96]), "is not an object"),
        (changed("two", "data_offsets", [-4, 16]), "are not numbers"),
        (changed("two", "data_offsets", [0, 20]), "overlaps"),
        (changed("two", "data_offsets", [92, 112]), "overlaps"),
        (changed("two", "data_offsets", [100, 120]), "gap"),
        (changed("two", "more", 1), "is not an object"),
    ],
)
def test_what_breaks_the_format_is_refused(content: bytes, said: str) -> None:
    with pytest.raises((ModelInvalid, ModelUnsupported), match=said):
        read_safetensors(content)


@given(st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=300, deadline=None)
def test_any_change_gives_a_file_or_a_typed_error(changes: list[tuple[int, int]]) -> None:
    content = bytearray(FILE)
    for at, value in changes:
        content[at] = value
    try:
        file = read_safetensors(bytes(content))
    except ModelError:
        return
    for name in file.tensors:
        file.values(name)
    assert sum(tensor.size for tensor in file.tensors.values()) == len(BODY)
