"""Reading and writing safetensors: a head of JSON, then the tensors' bytes one after another.

The file comes from outside. Its head is bounded, every tensor has exactly the bytes that its shape needs, and the
tensors lie one after another without an overlap, a gap or a rest: no file says two things to two readers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from tasks.models.contents import Content
from tasks.models.errors import ModelInvalid, ModelUnsupported
from tasks.models.strict_json import JsonFault, read_object

__all__ = ["SafetensorsFile", "StoredTensor", "read_safetensors", "write_safetensors"]

HEAD_BYTES_MAX: Final = 4 << 20
"""8,192 tensors have heads of 1.5 MB."""
TENSORS_MAX: Final = 1 << 13
NAME_BYTES_MAX: Final = 1 << 8
DIMENSION_MAX: Final = 1 << 28
NOTES_MAX: Final = 1 << 8
NOTE_BYTES_MAX: Final = 1 << 16
_LENGTH_BYTES: Final = 8
_MASK_DIMENSIONS: Final = 4
_NOTES: Final = "__metadata__"
_SIZES: Final = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8}
_AGAIN: Final = "The file is damaged: download it again"


class StoredTensor(NamedTuple):
    """A tensor of one or two dimensions as a matrix, its number type, and where its bytes begin in the file."""

    rows: int
    columns: int
    dtype: str
    start: int

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.rows * self.columns * _SIZES[self.dtype]


@dataclass(frozen=True)
class SafetensorsFile:
    """The tensors of a file whose structure was checked. ``notes`` are the texts that its writer left."""

    tensors: Mapping[str, StoredTensor]
    notes: Mapping[str, str]
    content: Content

    def values(self, name: str, first: int = 0, count: int | None = None) -> np.ndarray:
        """Return rows of a tensor as binary64, exactly. Raises ModelInvalid if there is no such tensor."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelInvalid(f"the file has no tensor {name}")
        rows = tensor.rows - first if count is None else min(count, tensor.rows - first)
        start = tensor.start + tensor._replace(rows=first).size
        part = self.content[start : start + tensor._replace(rows=rows).size]
        with np.errstate(invalid="ignore"):  # whoever freezes the values refuses what is not finite
            return _expanded(tensor.dtype, part).reshape(rows, tensor.columns)

    def content_of(self, name: str) -> bytes:
        """Return a tensor's bytes as they stand in the file."""
        tensor = self.tensors[name]
        return bytes(self.content[tensor.start : tensor.start + tensor.size])


def _expanded(dtype: str, content: bytes | memoryview) -> np.ndarray:
    match dtype:
        case "F32":
            return np.frombuffer(content, dtype="<f4").astype(np.float64)
        case "F16":
            return np.frombuffer(content, dtype="<f2").astype(np.float64)
        case "I64":  # numbers of places, as older encoders keep them
            return np.frombuffer(content, dtype="<i8").astype(np.float64)
        case _:
            return (np.frombuffer(content, dtype="<u2").astype("<u4") << 16).view("<f4").astype(np.float64)


def read_safetensors(content: Content) -> SafetensorsFile:
    """Return what a file holds. Raises ModelInvalid, or ModelUnsupported for a number type that is not read."""
    length = int.from_bytes(content[0:_LENGTH_BYTES], "little")
    if len(content) < _LENGTH_BYTES or length > len(content) - _LENGTH_BYTES:
        raise ModelInvalid("the file ends within its header", remedy=_AGAIN)
    if length > HEAD_BYTES_MAX:
        raise ModelInvalid(f"a header of {length} bytes, at most {HEAD_BYTES_MAX}", remedy=_AGAIN)
    start = _LENGTH_BYTES + length
    head = _head(bytes(content[_LENGTH_BYTES:start]))
    notes = _notes(head.pop(_NOTES, {}))
    if len(head) > TENSORS_MAX:
        raise ModelInvalid(f"{len(head)} tensors, at most {TENSORS_MAX}")
    tensors = {name: _tensor(name, value, start) for name, value in head.items()}
    end = start
    for name, tensor in sorted(tensors.items(), key=lambda one: one[1].start):
        if tensor.start != end:
            raise ModelInvalid(f"tensor {name} overlaps another one or leaves a gap before it", remedy=_AGAIN)
        end += tensor.size
    if end != len(content):
        raise ModelInvalid(f"tensors end at byte {end} of {len(content)}", remedy=_AGAIN)
    return SafetensorsFile(tensors, notes, content)


def _head(data: bytes) -> dict[str, Any]:
    if data[:1] != b"{":
        raise ModelInvalid("not a safetensors file: its header is not a JSON object", remedy=_AGAIN)
    try:
        return read_object(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise ModelInvalid("a header that is not UTF-8", remedy=_AGAIN) from None
    except JsonFault as fault:
        raise ModelInvalid(f"a header that is {fault}", remedy=_AGAIN) from None


def _notes(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > NOTES_MAX:
        raise ModelInvalid(f"{_NOTES} is not an object of at most {NOTES_MAX} texts")
    found = dict[str, str]()
    for name, text in value.items():
        if not isinstance(text, str) or len(text) > NOTE_BYTES_MAX:
            raise ModelInvalid(f"{_NOTES} holds something other than texts of at most {NOTE_BYTES_MAX} characters")
        found[str(name)] = text
    return found


def _tensor(name: str, value: Any, start: int) -> StoredTensor:
    """Return a tensor; its start is counted from that of the file."""
    if not 1 <= len(name) <= NAME_BYTES_MAX or not name.isascii() or not name.isprintable():
        raise ModelInvalid(f"a tensor's name that is not 1 to {NAME_BYTES_MAX} ASCII characters")
    match value:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [begin, end]} if len(value) == 3:
            pass
        case _:
            raise ModelInvalid(f"tensor {name} is not an object of dtype, shape and data_offsets", remedy=_AGAIN)
    if dtype not in _SIZES:
        raise ModelUnsupported(
            f"tensor {name} has numbers of type {dtype[:20]!r}; {', '.join(_SIZES)} are read",
            remedy="Save the model as bfloat16 or float32",
        )
    if not all(type(size) is int and 1 <= size <= DIMENSION_MAX for size in shape):
        raise ModelInvalid(f"tensor {name} has a dimension that is not a number from 1 to {DIMENSION_MAX}")
    if len(shape) == _MASK_DIMENSIONS and shape[:2] == [1, 1]:
        shape = shape[2:]  # a mask over pairs of places, as files of GPT-2 have
    if not 1 <= len(shape) <= 2:
        raise ModelUnsupported(f"tensor {name} has {len(shape)} dimensions; one or two are read")
    rows, columns = shape if len(shape) == 2 else (1, shape[0])
    if type(begin) is not int or type(end) is not int or begin < 0:
        raise ModelInvalid(f"tensor {name} has offsets that are not numbers", remedy=_AGAIN)
    found = StoredTensor(rows, columns, dtype, start + begin)
    if end - begin != found.size:
        raise ModelInvalid(f"tensor {name} has {end - begin} bytes, its shape needs {found.size}", remedy=_AGAIN)
    return found


def write_safetensors(tensors: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> bytes:
    """Return a file of float32 tensors: the same bytes for the same values, in the order of the names."""
    head: dict[str, object] = {_NOTES: dict(sorted(notes.items()))} if notes else {}
    parts, end = list[bytes](), 0
    for name in sorted(tensors):
        content = tensors[name].astype("<f4").tobytes()
        head[name] = {
            "dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [end, end + len(content)]
        }  # fmt: skip
        parts.append(content)
        end += len(content)
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text + b"".join(parts)
