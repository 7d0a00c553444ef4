"""The manifest of a stored result: its files with sizes and SHA-256 hashes. It is written last. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

import orjson

from rpc.client.stores.errors import StoreRefused
from tasks.kinds.folders import ENTRIES_MAX, ArchiveInvalid, check_name

__all__ = ["MANIFEST_BYTES_MAX", "MANIFEST_NAME", "Entry", "decode_manifest", "encode_manifest"]

MANIFEST_NAME: Final = "dekube-manifest.json"
MANIFEST_BYTES_MAX: Final = 32 << 20
FORMAT: Final = 1
SIZE_MAX: Final = 1 << 48
_HEX: Final = frozenset("0123456789abcdef")


class Entry(NamedTuple):
    """A file of a result."""

    path: PurePosixPath
    size_bytes: int
    sha256: str


def encode_manifest(entries: Sequence[Entry], about: Mapping[str, str]) -> bytes:
    """Return the manifest of files; ``about`` says what they are, for people."""
    files = [
        {"path": str(entry.path), "size_bytes": entry.size_bytes, "sha256": entry.sha256}
        for entry in sorted(entries, key=lambda entry: entry.path.parts)
    ]
    return json.dumps({"format": FORMAT, "about": dict(about), "files": files}, indent=1).encode() + b"\n"


def decode_manifest(data: bytes) -> dict[PurePosixPath, Entry]:
    """Return the files that a manifest names. Raises StoreRefused."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise StoreRefused(f"{MANIFEST_NAME}: more than {MANIFEST_BYTES_MAX} bytes")
    try:
        document = orjson.loads(data)
    except (ValueError, RecursionError):
        raise StoreRefused(f"{MANIFEST_NAME}: not JSON") from None
    match document:
        case {"format": int(form), "files": list() as files} if form == FORMAT and len(files) <= ENTRIES_MAX:
            found = [_entry(item) for item in files]
        case _:
            raise StoreRefused(f"{MANIFEST_NAME}: not a manifest of format {FORMAT}")
    if len({entry.path for entry in found}) != len(found):
        raise StoreRefused(f"{MANIFEST_NAME}: a file is there twice")
    return {entry.path: entry for entry in found}


def _entry(item: Any) -> Entry:
    match item:
        case {"path": str(path), "size_bytes": int(size), "sha256": str(sha256)} if (
            0 <= size < SIZE_MAX and type(size) is int and len(sha256) == 64 and set(sha256) <= _HEX
        ):
            try:
                check_name(PurePosixPath(path))
            except ArchiveInvalid as error:
                raise StoreRefused(f"{MANIFEST_NAME}: {error}") from None
            return Entry(PurePosixPath(path), size, sha256)
        case _:
            raise StoreRefused(f"{MANIFEST_NAME}: not a file with a size and a hash")
