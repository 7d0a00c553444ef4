"""Files of rows that are not JSON lines: CSV, plain text and NumPy's arrays, as JSON lines.

A row keeps the line that it begins in, so whoever reads the lines names the line of the file. Of an array the line
is the number of the row, from 1. Nothing is dropped: blank lines give no row, everything else gives one or is
refused with its line.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from tasks.models.errors import RowsInvalid
from tasks.models.rows import FILE_BYTES_MAX, LINE_BYTES_MAX
from tasks.models.strict_json import JsonFault, read_object

__all__ = ["RECORD_BYTES_MAX", "TABLES", "is_table", "lines_of"]

_SEPARATORS: Final = {".csv": ",", ".tsv": "\t"}
ARRAY: Final = ".npy"
TEXT: Final = ".txt"
TABLES: Final = (*_SEPARATORS, ARRAY, TEXT)
"""Ends of names of files that become JSON lines; any other file has them already."""
COLUMNS_MAX: Final = 16
"""Columns of a table: more than any kind of job has fields."""
RECORD_BYTES_MAX: Final = 1 << 21
"""Bytes of a record of a table, over all its lines: as much as ``COLUMNS_MAX`` fields of the library's length."""
NUMBERS_MAX: Final = 1 << 24
"""Numbers of an array: as many tokens as the data of a job may have."""
HEADER_BYTES_MAX: Final = 4_096
"""Of an array: its shape and type stand in it."""
_BOM: Final = b"\xef\xbb\xbf"
_SAVE: Final = "save one with numpy.save(FILE, rows.astype('int32'))"


def is_table(name: str, *, is_text: bool = False) -> bool:
    """Tell whether a file of this name becomes JSON lines. With ``is_text`` a plain text stays one."""
    end = posixpath.splitext(name)[1].lower()
    return end in TABLES and not (is_text and end == TEXT)


def lines_of(data: bytes, name: str, field: str) -> bytes:
    """Return the JSON lines of a file; ``field`` is that of a line of plain text.

    Tables of ``.csv`` and ``.tsv`` have the names of fields in their first line. Arrays of ``.npy`` have numbers
    of tokens: a row in each row, or one row. Other files are returned as they are. Raises RowsInvalid with line
    and column.
    """
    end = posixpath.splitext(name)[1].lower()
    if end not in TABLES:
        return data
    if len(data) > FILE_BYTES_MAX:
        raise RowsInvalid(f"a file of more than {FILE_BYTES_MAX} bytes")
    rows = _array_rows(data) if end == ARRAY else _text_rows(data, field)
    if end in _SEPARATORS:
        rows = _table_rows(data.removeprefix(_BOM), _SEPARATORS[end])
    made, line = io.BytesIO(), 1
    for number, fields in rows:
        made.write(b"\n" * (number - line))
        line = number
        made.write(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode())
        if made.tell() > FILE_BYTES_MAX:
            raise RowsInvalid(f"more than {FILE_BYTES_MAX} bytes as JSON lines: divide the file", number)
    return made.getvalue()


def _lines(data: bytes) -> Iterator[str]:
    """Yield the lines of a file with their ends. Raises RowsInvalid."""
    for number, line in enumerate(io.BytesIO(data), 1):
        if len(line) > LINE_BYTES_MAX:
            raise RowsInvalid(f"a line of {len(line)} bytes, at most {LINE_BYTES_MAX}", number)
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RowsInvalid("bytes that are no UTF-8", number, error.start + 1) from None


def _text_rows(data: bytes, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and row of each line of a text that is not blank. Raises RowsInvalid for JSON lines."""
    is_first = True
    for number, line in enumerate(_lines(data.removeprefix(_BOM)), 1):
        text = line.removesuffix("\n").removesuffix("\r")
        if not text.strip():
            continue
        if is_first and _is_object(text):  # else the braces and names of fields would be learned as text
            remedy = f'name a file of JSON lines .jsonl; a text of such lines has rows {{"{field}": ...}} there'
            raise RowsInvalid(f"a JSON object in a file of plain text: {remedy}", number)
        is_first = False
        yield number, {field: text}


def _is_object(text: str) -> bool:
    try:
        read_object(text)
    except JsonFault:
        return False
    return True


def _table_rows(data: bytes, separator: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the first line and the fields of each record of a table."""
    records = _records(data, separator)
    first, names = next(records, (1, []))
    if not names:
        raise RowsInvalid("a table without a first line: the names of its columns stand there", 1)
    if len(names) > COLUMNS_MAX or len(set(names)) < len(names) or not all(name.strip() for name in names):
        what = ", ".join(names)[:80]
        raise RowsInvalid(f"columns {what}: up to {COLUMNS_MAX} different names expected", first)
    for line, record in records:
        if len(record) != len(names):
            counted = f"{len(record)} field{'s' * (len(record) != 1)} in a table of {len(names)} columns"
            raise RowsInvalid(f'{counted}: put "quotes" around a text with {separator!r} in it', line)
        yield line, dict(zip(names, record, strict=True))


def _records(data: bytes, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line and the texts of each record that is not blank."""
    taken = 0

    def lines() -> Iterator[str]:
        """Yield lines, up to RECORD_BYTES_MAX of a record: a quoted text may go on to the end of the file."""
        nonlocal taken
        for text in _lines(data):
            taken += len(text.encode())
            if taken > RECORD_BYTES_MAX:
                what = f"a record of more than {RECORD_BYTES_MAX} bytes"
                raise RowsInvalid(f"{what}: a quote may be open; JSON lines take longer rows", line)
            yield text

    reader = csv.reader(lines(), delimiter=separator, strict=True)
    while True:
        line, taken = reader.line_num + 1, 0
        try:
            record = next(reader, None)
        except csv.Error as error:
            remedy = "a quote within a quoted text is doubled"
            if "field limit" in str(error):  # that of the whole process: others may rely on it
                remedy = "JSON lines take longer texts"
            raise RowsInvalid(f"not a table: {error}; {remedy}", line) from None
        if record is None:
            return
        if record:
            yield line, record


def _array_rows(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and tokens of each row of an array."""
    values = _array(data)
    for number, row in enumerate(values.reshape(1, -1) if values.ndim == 1 else values, 1):
        yield number, {"input_ids": row.tolist()}


def _array(data: bytes) -> np.ndarray:
    """Return the integers of a file of NumPy. Nothing in it is run or unpickled. Raises RowsInvalid."""
    content = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(content)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, turned, kind = readers[version](content, max_header_size=HEADER_BYTES_MAX)
    except Exception as error:  # the library's parser of a header raises many kinds
        raise RowsInvalid(f"not an array of NumPy: {str(error)[:80] or 'its header'}; {_SAVE}") from None
    if kind.kind not in "iu" or len(shape) not in (1, 2):
        raise RowsInvalid(
            f"an array of {kind} with {len(shape)} dimensions; integers with 1 or 2 expected: {_SAVE}"
        )
    if not all(type(size) is int and size >= 0 for size in shape):
        raise RowsInvalid(f"an array of the shape {shape}: no array has it; {_SAVE}")
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
    if not 0 < count <= NUMBERS_MAX:
        raise RowsInvalid(f"an array of {count} numbers; 1 to {NUMBERS_MAX} expected: divide it")
    found = data[content.tell() :]
    if len(found) != count * kind.itemsize:
        wanted = count * kind.itemsize
        raise RowsInvalid(f"{len(found)} bytes of numbers, and its shape has {wanted}: the file is cut or damaged")
    return np.frombuffer(found, kind).reshape(shape, order="F" if turned else "C")
