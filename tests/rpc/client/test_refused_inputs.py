"""What is wrong with the files of a job is refused before anything is paid, with file, line and a remedy."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpc.client.jobs import make_job
from rpc.client.making import MadeJob
from tasks.models.errors import RowsInvalid
from tasks.models.rows import FILE_BYTES_MAX
from tasks.models.tables import RECORD_BYTES_MAX, lines_of
from tasks.requests.errors import RequestInvalid
from tasks.requests.reading import request_of
from tests.tasks.models.checkpoints import safetensors, tensors_of, write_folder
from tests.tasks.models.files import gguf, settings_of
from tests.tasks.models.files import tensors_of as gguf_tensors_of
from tests.tasks.tuned import TINY

ROW = '{"input_ids": [1, 2, 3]}\n'
GIBIBYTE = 1 << 30


def made(folder: Path, *, data: str = "rows.jsonl", model: str = "model", kind: str = "finetune") -> MadeJob:
    values: dict[str, Any] = {"kind": kind, "data": str(folder / data)}
    if kind == "train":
        values |= {"steps": 2, "batch": 1, "shape": {"preset": "tiny", "context": 4}}
    else:
        values |= {"model": str(folder / model)} | ({"new_tokens": 2} if kind == "generate" else {})
    return make_job(request_of(values), seed=bytes(32), max_price_per_tera_unit=9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_folder(tmp_path / "model", TINY)
    (tmp_path / "rows.jsonl").write_text(ROW * 16)
    return tmp_path


def npy(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values, allow_pickle=True)
    return content.getvalue()


def shaped(shape: str) -> bytes:
    """Return an array of two numbers that says of itself that it has another shape."""
    return npy(np.array([1, 2], "<i4")).replace(b"(2,), }".ljust(len(shape) + 3), f"{shape}, }}".encode())


def big(path: Path) -> None:
    """A table of 3 GB, of which the disk has the first MiB."""
    with path.open("wb") as file:
        file.write(b"text\n" + b"a line of text\n" * 1_000)
        file.truncate(3 * GIBIBYTE)


DATA: list[tuple[str, Callable[[Path], object], int | None, str]] = [
    ("rows.csv", big, 1_002, r"a file of 3221225472 bytes, at most 268435456: divide it before this line"),
    ("rows.jsonl", lambda path: path.write_text(ROW * 16 + '{"text": "ab"'), 17, "not valid JSON"),
    ("rows.jsonl", lambda path: path.write_text(ROW * 3 + '{"input_ids": [1, 40]}'), 4,
     "input_ids: 40 at place 1, the vocabulary has 40"),
    ("rows.npy", lambda path: path.write_bytes(npy(np.array([[1, 2], [3, 40]]))), 2,
     "40 at place 1, the vocabulary has 40"),
    ("rows.npy", lambda path: path.write_bytes(npy(np.ones((2, 2)))), None, r"float64.*save one with numpy.save"),
    ("rows.npy", lambda path: path.write_bytes(npy(np.array([[{}]]))), None, r"object.*save one with numpy.save"),
    ("rows.npy", lambda path: path.write_bytes(npy(np.ones((2, 2), int))[:-1]), None, "cut or damaged"),
    ("rows.npy", lambda path: path.write_bytes(b"\x93NUMPY\x01\x00" + b"\x10\x00" + b"(" * 16), None,
     "not an array.*numpy.save"),
    ("rows.npy", lambda path: path.write_bytes(shaped("(-1, -2)")), None, r"shape \(-1, -2\).*numpy.save"),
    ("rows.npy", lambda path: path.write_bytes(shaped("(True, 2)")), None, r"shape \(True, 2\).*numpy.save"),
    ("rows.csv", lambda path: path.write_text('text\n"two\nlines"\none,two\n'), 4,
     "2 fields in a table of 1 columns: put \"quotes\" around"),
    ("rows.csv", lambda path: path.write_text('text\nab\n"open\n'), 3, "not a table.*is doubled"),
    ("rows.csv", lambda path: path.write_text("text\n" + "a" * 200_000), 2, "not a table.*JSON lines take longer"),
    ("rows.csv", lambda path: path.write_bytes(b"text\nab\n\xff\n"), 3, "no UTF-8"),
    ("rows.csv", lambda path: path.write_text("text,text\na,b\n"), 1, "different names expected"),
    ("rows.csv", lambda path: path.write_text("question\nab\n"), 2, "fields question; prompt and completion"),
    ("rows.csv", lambda path: path.write_text("\n"), None, "names of its columns|without a row"),
    ("rows.csv", lambda path: path.write_text("text\n" + '"a\n",' * (RECORD_BYTES_MAX // 4)), 2,
     "a record of more than 2097152 bytes.*JSON lines"),
    ("rows.txt", lambda path: path.write_text("\n" + ROW * 16), 2,
     "a JSON object in a file of plain text.*[.]jsonl"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "write", "line", "said"), DATA)
def test_a_file_of_rows_is_refused_with_file_line_and_remedy(
    folder: Path, name: str, write: Callable[[Path], object], line: int | None, said: str
) -> None:
    write(folder / name)
    with pytest.raises(RequestInvalid, match=said) as caught:
        made(folder, data=name)
    error = caught.value
    assert (error.file, error.field, error.code) == (str(folder / name), "data", "rows_invalid")
    assert error.line == line or line is None
    assert str(error).startswith(str(folder / name))


def test_a_large_file_is_refused_in_the_memory_of_a_small_one(folder: Path) -> None:
    import tracemalloc

    big(folder / "rows.csv")
    tracemalloc.start()
    try:
        with pytest.raises(RequestInvalid):
            made(folder, data="rows.csv")
        assert tracemalloc.get_traced_memory()[1] < FILE_BYTES_MAX // 32
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_record_of_a_table_is_refused_before_all_of_it_is_held(folder: Path) -> None:
    """Millions of short fields with line ends in them, in one record: no line is long, and no field."""
    import tracemalloc

    content = b"text\n" + b'"\n",' * (FILE_BYTES_MAX // 64)
    tracemalloc.start()
    try:
        with pytest.raises(RowsInvalid, match="a record of more than"):
            lines_of(content, "rows.csv", "text")
        assert tracemalloc.get_traced_memory()[1] < len(content) + 64 * RECORD_BYTES_MAX
    finally:
        tracemalloc.stop()


def test_a_text_may_have_lines_that_only_look_like_json(folder: Path) -> None:
    """The first line decides: a text with an object further below stays one."""
    text = b"An object:\n" + ROW.encode() + b"[1, 2]\n"
    assert lines_of(text, "rows.txt", "text").count(b'{"text":') == 3
    assert lines_of(b"{ and no end\nab\n", "rows.txt", "text").count(b'{"text":') == 2


def without(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = tensors_of(TINY)
    change(tensors)
    (folder / "model" / "model.safetensors").write_bytes(safetensors(tensors))


def broken_weight(tensors: dict[str, np.ndarray]) -> None:
    values = tensors["model.layers.0.mlp.up_proj.weight"].copy()
    values[3, 2] = np.nan
    tensors["model.layers.0.mlp.up_proj.weight"] = values


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("model.layers.0.mlp.up_proj.weight"),
         r"model.safetensors: tensor model.layers.0.mlp.up_proj.weight is missing. Take all files"),
        (broken_weight, r"model.safetensors: .*up_proj.weight has nan at row 3, column 2.*another checkpoint"),
    ],
)  # fmt: skip
def test_weights_are_refused_with_file_place_and_remedy(folder: Path, change: Any, said: str) -> None:
    without(folder, change)
    with pytest.raises(RequestInvalid, match=said) as caught:
        made(folder)
    assert (caught.value.field, caught.value.code) == ("model", "model_invalid")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content[:200], r"small.gguf: the file ends within .*\. Fetch it again"),
        (lambda content: b"GGML" + content[4:], r"small.gguf: no GGUF file\. Fetch it again"),
        (lambda content: content[:-40], r"small.gguf: the file ends within .*\. Fetch it again"),
    ],
)
def test_a_broken_gguf_is_refused_with_file_and_remedy(folder: Path, change: Any, said: str) -> None:
    content = gguf(settings_of(TINY), gguf_tensors_of(TINY))
    (folder / "small.gguf").write_bytes(content)
    assert made(folder, model="small.gguf").spec.dataset.rows == 16
    (folder / "small.gguf").write_bytes(change(content))
    with pytest.raises(RequestInvalid, match=said) as caught:
        made(folder, model="small.gguf")
    assert (caught.value.field, caught.value.code) == ("model", "model_invalid")


def test_tables_and_arrays_give_the_rows_of_their_json_lines(folder: Path) -> None:
    rows = [[1, 2, 3], [4, 5, 6]]
    (folder / "same.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    for kind in ("finetune", "generate", "evaluate", "embed", "train"):
        wanted = made(folder, data="same.jsonl", kind=kind).spec if kind != "train" else None
        for number, values in enumerate((np.array(rows, "u1"), np.asfortranarray(np.array(rows, "<i8")))):
            (folder / f"{number}.npy").write_bytes(npy(values))
            found = made(folder, data=f"{number}.npy", kind=kind).spec
            assert wanted is None or found == wanted


def test_texts_and_tables_are_read_for_training_from_scratch(folder: Path) -> None:
    text = 'One "text".\nTwo, with\ttabs and é.'
    (folder / "rows.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in text.split("\n")))
    wanted = made(folder, kind="train").spec
    for name, content in {
        "rows.csv": 'text\r\n"One ""text""."\r\n\r\n"Two, with\ttabs and é."',
        "rows.tsv": '\ufefftext\n"One ""text""."\n"Two, with\ttabs and é."\n',
    }.items():
        (folder / name).write_text(content)
        assert made(folder, data=name, kind="train").spec == wanted
    (folder / "rows.txt").write_text(text)
    assert made(folder, data="rows.txt", kind="train").spec != wanted, "one text, with an end at its own end"
