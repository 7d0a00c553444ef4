"""Reading GGUF, the file format of llama.cpp: settings, and tensors in a few storage types.

The file comes from outside. Every count, length and offset is checked against a limit and against the file before
anything is allocated for it. Values are expanded exactly: a scale and an offset of 11 bits and integers of 8 bits
at most fit binary64.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from tasks.models.contents import Content
from tasks.models.errors import ModelInvalid, ModelUnsupported

__all__ = ["GgufFile", "GgufTensor", "Setting", "read_gguf"]

SETTINGS_MAX: Final = 1 << 10
TENSORS_MAX: Final = 1 << 13
KEY_BYTES_MAX: Final = 1 << 8
TEXT_BYTES_MAX: Final = 1 << 20
ARRAY_ITEMS_MAX: Final = 1 << 21
ALIGNMENT_MAX: Final = 1 << 16
DIMENSION_MAX: Final = 1 << 28
_AGAIN: Final = "Fetch it again: it is cut off or damaged"
_MAGIC: Final = b"GGUF"
_VERSION: Final = 3
_ALIGNMENT: Final = "general.alignment"
_TEXT, _ARRAY, _TRUTH = 8, 9, 7
_NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_BLOCK: Final = 32

Item: TypeAlias = int | float | bool | str
Setting: TypeAlias = Item | list[Item]


class _Storage(NamedTuple):
    """Values and bytes of a block of a storage type."""

    values: int
    size: int


_STORAGES: Final = {
    0: _Storage(1, 4),  # F32
    1: _Storage(1, 2),  # F16
    2: _Storage(_BLOCK, 18),  # Q4_0
    3: _Storage(_BLOCK, 20),  # Q4_1
    8: _Storage(_BLOCK, 34),  # Q8_0
    30: _Storage(1, 2),  # BF16
}


class GgufTensor(NamedTuple):
    """A matrix in the file: rows, columns, storage type, and where its bytes begin."""

    rows: int
    columns: int
    storage: int
    start: int

    @property
    def size(self) -> int:
        """Bytes in the file."""
        kind = _STORAGES[self.storage]
        return self.rows * self.columns // kind.values * kind.size


@dataclass(frozen=True)
class GgufFile:
    """The settings and tensors of a file whose structure was checked."""

    settings: Mapping[str, Setting]
    tensors: Mapping[str, GgufTensor]
    content: Content

    def values(self, name: str, first: int = 0, count: int | None = None) -> np.ndarray:
        """Return rows of a tensor as binary64, exactly. Raises ModelInvalid if there is no such tensor."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelInvalid(f"the file has no tensor {name}")
        rows = tensor.rows - first if count is None else min(count, tensor.rows - first)
        part = tensor._replace(rows=rows)
        start = tensor.start + tensor._replace(rows=first).size
        with np.errstate(invalid="ignore"):  # whoever freezes the values refuses what is not finite
            return _expanded(part, self.content[start : start + part.size])


class _Reader:
    """Reads numbers and texts one after another; what is cut off is an error."""

    def __init__(self, content: Content) -> None:
        self.content, self.at = content, 0

    def number(self, code: str) -> int | float:
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack("<" + code, self.bytes(size))
        found: int | float = value
        return found

    def count(self, code: str, limit: int, what: str) -> int:
        value = self.number(code)
        if not isinstance(value, int) or value > limit:
            raise ModelInvalid(f"{value} {what} at byte {self.at}; at most {limit} are allowed")
        return value

    def bytes(self, size: int) -> bytes:
        if self.at + size > len(self.content):
            raise ModelInvalid(f"the file ends within {size} bytes at {self.at}", remedy=_AGAIN)
        found = bytes(self.content[self.at : self.at + size])
        self.at += size
        return found

    def text(self, limit: int) -> str:
        size = self.count("Q", limit, "bytes of text")
        try:
            return self.bytes(size).decode()
        except UnicodeDecodeError:
            raise ModelInvalid(f"not UTF-8 text before byte {self.at}") from None

    def setting(self) -> Setting:
        kind = self.count("I", max(_NUMBERS), "as a type")
        if kind != _ARRAY:
            return self.item(kind)
        kind, count = self.count("I", max(_NUMBERS), "as a type"), self.count("Q", ARRAY_ITEMS_MAX, "items")
        return [self.item(kind) for _ in range(count)]

    def item(self, kind: int) -> Item:
        if kind == _TEXT:
            return self.text(TEXT_BYTES_MAX)
        if kind not in _NUMBERS:
            raise ModelInvalid(f"a setting of type {kind} at byte {self.at}")
        value = self.number(_NUMBERS[kind])
        if kind == _TRUTH:
            if value not in (0, 1):
                raise ModelInvalid(f"a truth value of {value} at byte {self.at}")
            return bool(value)
        return value


def read_gguf(content: Content) -> GgufFile:
    """Return what a file holds. Raises ModelInvalid, or ModelUnsupported for another version or storage type."""
    reader = _Reader(content)
    if reader.bytes(len(_MAGIC)) != _MAGIC:
        raise ModelInvalid("no GGUF file", remedy=_AGAIN)
    if (version := reader.number("I")) != _VERSION:
        raise ModelUnsupported(f"GGUF version {version}; only {_VERSION} is read")
    count = reader.count("Q", TENSORS_MAX, "tensors")
    settings: dict[str, Setting] = {}
    for _ in range(reader.count("Q", SETTINGS_MAX, "settings")):
        key = reader.text(KEY_BYTES_MAX)
        if key in settings:
            raise ModelInvalid(f"two settings {key}")
        settings[key] = reader.setting()
    tensors: dict[str, GgufTensor] = {}
    for _ in range(count):
        name = reader.text(KEY_BYTES_MAX)
        if name in tensors:
            raise ModelInvalid(f"two tensors {name}")
        tensors[name] = _tensor(reader, name)
    alignment = settings.get(_ALIGNMENT, _BLOCK)
    if type(alignment) is not int or not 1 <= alignment <= ALIGNMENT_MAX or alignment & (alignment - 1):
        raise ModelInvalid(f"{_ALIGNMENT} is no power of two up to {ALIGNMENT_MAX}")
    return GgufFile(
        settings, _placed(tensors, -(-reader.at // alignment) * alignment, alignment, content), content
    )


def _tensor(reader: _Reader, name: str) -> GgufTensor:
    """Return a tensor whose start is counted from the end of the head."""
    dimensions = [
        reader.count("Q", DIMENSION_MAX, "columns") for _ in range(reader.count("I", 2, f"dimensions of {name}"))
    ]
    storage, start = reader.number("I"), reader.count("Q", len(reader.content), "as an offset")
    if storage not in _STORAGES:
        raise ModelUnsupported(f"{name} has storage type {storage}; F32, F16, BF16, Q4_0, Q4_1 and Q8_0 are read")
    if not dimensions or min(dimensions) < 1:
        raise ModelInvalid(f"{name} has no values")
    columns, rows = [*dimensions, 1][:2]
    if columns % _STORAGES[int(storage)].values:
        raise ModelInvalid(f"{name} has rows of {columns} values, no whole number of blocks")
    return GgufTensor(rows, columns, int(storage), start)


def _placed(
    tensors: Mapping[str, GgufTensor], head: int, alignment: int, content: Content
) -> dict[str, GgufTensor]:
    """Return tensors with their places in the file. Raises ModelInvalid where they overlap or are cut off."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda one: one[1].start):
        if tensor.start < end or tensor.start % alignment:
            raise ModelInvalid(f"{name} overlaps another tensor or is not aligned")
        end = tensor.start + tensor.size
        if head + end > len(content):
            raise ModelInvalid(f"the file ends within {name}", remedy=_AGAIN)
    return {name: tensor._replace(start=head + tensor.start) for name, tensor in tensors.items()}


def _expanded(tensor: GgufTensor, content: bytes | memoryview) -> np.ndarray:
    match tensor.storage:
        case 0:
            found = np.frombuffer(content, dtype="<f4").astype(np.float64)
        case 1:
            found = np.frombuffer(content, dtype="<f2").astype(np.float64)
        case 30:
            found = (np.frombuffer(content, dtype="<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
        case 8:
            blocks = np.frombuffer(content, dtype=[("scale", "<f2"), ("values", "i1", _BLOCK)])
            found = blocks["values"] * blocks["scale"].astype(np.float64)[:, None]
        case 2:
            blocks = np.frombuffer(content, dtype=[("scale", "<f2"), ("values", "u1", _BLOCK // 2)])
            found = (_halves(blocks["values"]) - 8.0) * blocks["scale"].astype(np.float64)[:, None]
        case _:
            blocks = np.frombuffer(
                content, dtype=[("scale", "<f2"), ("low", "<f2"), ("values", "u1", _BLOCK // 2)]
            )
            scale, low = (blocks[part].astype(np.float64)[:, None] for part in ("scale", "low"))
            found = _halves(blocks["values"]) * scale + low
    return found.reshape(tensor.rows, tensor.columns)


def _halves(values: np.ndarray) -> np.ndarray:
    """Return the lower four bits of all bytes of a block, then the upper ones."""
    return np.concatenate((values & 15, values >> 4), axis=1).astype(np.float64)
