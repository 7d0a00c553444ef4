"""Writing GGUF: adapters for llama.cpp. Equal adapters give equal bytes.

llama.cpp adds ``alpha / rank * B A`` to a weight of the same name. Its files of the Llama family have the two rows
of each rotated pair of queries and keys side by side, so the rows of B of these are moved too.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import numpy as np

from tasks.models.adapters import Receipt, parameters_of
from tasks.models.gguf import Setting
from tasks.models.llama import gguf_place, rotated_heads, side_by_side

__all__ = ["adapters_gguf", "write_gguf"]

ALIGNMENT: Final = 32
_HEAD: Final = struct.Struct("<4sIQQ")
_VERSION: Final = 3
_SINGLE: Final = 0
"""The storage type of float32."""
_TEXT, _WORD, _FLOAT = 8, 4, 6


def write_gguf(settings: Mapping[str, Setting], tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return a file with settings (texts, integers below 2^32, float32) and float32 matrices, in their order."""
    head, body = bytearray(_HEAD.pack(b"GGUF", _VERSION, len(tensors), len(settings))), bytearray()
    for key, value in settings.items():
        head += _text(key) + _setting(value)
    for name, values in tensors.items():
        rows, columns = values.shape
        head += _text(name) + struct.pack("<IQQIQ", 2, columns, rows, _SINGLE, len(body))
        body += values.astype("<f4").tobytes()
        body += bytes(-len(body) % ALIGNMENT)
    return bytes(head) + bytes(-len(head) % ALIGNMENT) + bytes(body)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _setting(value: Setting) -> bytes:
    match value:
        case str():
            return struct.pack("<I", _TEXT) + _text(value)
        case int():
            return struct.pack("<II", _WORD, value)
        case float():
            return struct.pack("<If", _FLOAT, value)
        case _:
            raise AssertionError("not a setting that is written")


def adapters_gguf(receipt: Receipt, adapters: bytes) -> bytes:
    """Return the adapters of a checked folder as a file for llama.cpp; ``adapters`` is its safetensors file.

    Raises FolderInvalid for other adapters than those of the receipt.
    """
    shape, tensors = receipt.shape, dict[str, np.ndarray]()
    is_turned = not shape.model.biased and not shape.model.is_gpt2
    architecture = "gpt2" if shape.model.is_gpt2 else "llama" if is_turned else "qwen2"
    for name, (kind, content) in parameters_of(shape, adapters).items():
        _, _, layer, target, matrix = name.split("/")
        values = np.frombuffer(content, dtype="<f4").reshape(kind.rows, kind.columns)
        heads = rotated_heads(shape.model, target)
        if matrix == "b" and heads and is_turned:
            values = side_by_side(values, heads)
        tensors[f"{gguf_place(f'layer/{layer}/{target}')}.lora_{matrix}"] = values
    settings: dict[str, Setting] = {
        "general.architecture": architecture, "general.type": "adapter", "general.name": receipt.base,
        "adapter.type": "lora", "adapter.lora.alpha": float(shape.alpha),
    }  # fmt: skip
    return write_gguf(settings, tensors)
