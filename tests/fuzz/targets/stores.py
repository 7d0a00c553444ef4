"""Decoders around stores: manifests of results, URLs, and notes of unfinished transfers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from rpc.client.stores.errors import StoreRefused
from rpc.client.stores.manifest import Entry, decode_manifest, encode_manifest
from rpc.client.stores.resuming import PART_BYTES, Note, Sent
from tasks.requests.sources import SourceInvalid, place_of
from tests.fuzz.targets.base import Target, of_text

HASH = "ab" * 32
NOTE = Note('"v"', 3 * PART_BYTES, frozenset())


def _notes(data: bytes) -> None:
    found = Note.read(data, NOTE.etag, NOTE.size_bytes)
    assert found.done <= {0, 1, 2}


def targets() -> Iterator[tuple[str, Target]]:
    yield "manifest of a result", Target(
        decode_manifest, (encode_manifest([Entry(PurePosixPath("a/b"), 5, HASH)], {"task": "0x12"}),),
        ("rpc.client.stores.manifest:decode_manifest",), (StoreRefused,), memory=120,
    )  # fmt: skip
    yield "notes of a download", Target(
        _notes, (NOTE.head + b"0\n2\n",), ("rpc.client.stores.resuming:Note.read",), ()
    )  # fmt: skip
    yield "note of an upload", Target(
        Sent.read, (Sent("upload", HASH, 5).encode(),),
        ("rpc.client.stores.resuming:Sent.read",), (),
    )  # fmt: skip
    yield "URL of a store", Target(
        of_text(place_of), (b"s3://bucket/a/b", b"file:///a%20b"), (), (SourceInvalid,)
    )  # fmt: skip
