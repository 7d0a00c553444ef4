"""Names, listings, notes and manifests of stores: what a hostile server or a damaged file may say."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.client.stores.errors import StoreFull, StoreRefused, StoreTooLarge, of_file
from rpc.client.stores.listing import EMPTY_PAGES_MAX, Listing, path_of_key
from rpc.client.stores.manifest import Entry, decode_manifest, encode_manifest
from rpc.client.stores.resuming import PART_BYTES, Note, Sent, bounds, part_bytes_of, parts_of
from rpc.client.stores.threads import Stopped, settle
from tasks.kinds.folders import ENTRIES_MAX
from tasks.requests.sources import BlobPlace, LocalPlace, ObjectPlace, SourceInvalid, is_url, located, place_of

NAMES = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "C")), max_size=12)
HASH = "ab" * 32


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("data/rows.jsonl", LocalPlace("data/rows.jsonl")),
        ("/data:x", LocalPlace("/data:x")),
        ("file:///data/a%20b", LocalPlace("/data/a b")),
        ("blob:0x" + "ab" * 32, BlobPlace(b"\xab" * 32)),
        ("s3://bucket", ObjectPlace("bucket", "", True)),
        ("s3://bucket/", ObjectPlace("bucket", "", True)),
        ("S3://my.bucket/a/b", ObjectPlace("my.bucket", "a/b", False)),
        ("s3://bucket/a b?c#d/", ObjectPlace("bucket", "a b?c#d", True)),
    ],
)
def test_sources_are_paths_or_urls(source: str, place: object) -> None:
    assert place_of(source) == place


@pytest.mark.parametrize(
    "source",
    [
        "s3://", "s3:///key", "s3://B/x", "s3://user:password@bucket/x", "s3://bucket/a/../b", "s3://bucket//a",
        "s3://bucket/a//", "s3://bucket/\n", "s3://bucket/" + "x" * 1_025, "file://host/x", "file://relative",
        "file:///a?b", "blob:ab", "https://example.org/x", "gs://bucket/x",
    ],
)  # fmt: skip
def test_what_is_no_source_is_named_without_a_password(source: str) -> None:
    with pytest.raises(SourceInvalid) as caught:
        place_of(source)
    assert caught.value.code == "store_url_invalid" and "password" not in str(caught.value)


@given(NAMES)
def test_any_text_is_a_source_or_refused(text: str) -> None:
    for source in (text, "s3://bucket/" + text, "file:///" + text):
        try:
            place = place_of(source)
        except SourceInvalid:
            continue
        if isinstance(place, ObjectPlace):
            assert place_of(place.url) == place
        assert is_url(source) == (located("folder/job.yaml", source) == source) or source.startswith("/")


@given(NAMES, NAMES)
def test_a_key_never_leaves_its_folder(prefix: str, key: str) -> None:
    prefix = prefix + "/" if prefix else ""
    try:
        path = path_of_key(prefix, prefix + key)
    except StoreRefused:
        return
    assert not path.is_absolute() and ".." not in path.parts and str(path) == key


@pytest.mark.parametrize(
    "key", ["x/../y", "x//y", "/etc", "x/", "x/.", "y", "x/a\0", "x/con", "x/a\\b", "x/" + "n" * 256]
)
def test_keys_that_are_no_names_of_files_are_refused(key: str) -> None:
    with pytest.raises(StoreRefused):
        path_of_key("x/", key)


def test_two_names_that_are_one_file_somewhere_are_refused() -> None:
    for first, second in (("a/B", "A/b"), ("a", "a/b"), ("a/b", "A"), ("a", "a")):
        listing = Listing("")
        listing.add(first, 1, "v")
        with pytest.raises(StoreRefused):
            listing.add(second, 1, "v")


def test_a_listing_is_bounded() -> None:
    listing = Listing("", limit_bytes=10)
    listing.add("folder/", 0, "v")
    listing.add("a", 10, "v")
    with pytest.raises(StoreTooLarge):
        listing.add("b", 1, "v")
    for size, etag in ((-1, "v"), (1, "")):
        with pytest.raises(StoreRefused):
            Listing("").add("a", size, etag)
    many = Listing("")
    for number in range(ENTRIES_MAX):
        many.add(str(number), 0, "v")
    with pytest.raises(StoreTooLarge):
        many.add("one more", 0, "v")


def test_pages_without_end_are_refused() -> None:
    listing = Listing("")
    listing.turn("a", 1)
    with pytest.raises(StoreRefused):
        listing.turn("a", 1)
    empty = Listing("")
    with pytest.raises(StoreRefused):
        for number in range(EMPTY_PAGES_MAX + 1):
            empty.turn(str(number), 0)
    with pytest.raises(StoreRefused):
        listing.turn("x" * 9_000, 1)


@given(st.integers(0, 1 << 45))
def test_parts_cover_a_file_once(size: int) -> None:
    part = part_bytes_of(size)
    count = parts_of(size, part)
    assert count <= 10_000 and part % (1 << 20) == 0
    assert count == 0 or bounds(count - 1, size, part)[1] == size
    assert count < 2 or bounds(0, size, part)[1] == bounds(1, size, part)[0]


@given(st.sets(st.integers(0, 9)), st.integers(0, 200))
def test_notes_that_were_cut_tell_of_no_part_that_is_not_there(done: set[int], cut: int) -> None:
    size = 10 * PART_BYTES
    note = Note("v", size, frozenset())
    lines = note.head + b"".join(b"%d\n" % number for number in sorted(done))
    assert Note.read(lines, "v", size).done == done
    assert Note.read(lines[:cut], "v", size).done <= done
    assert not Note.read(lines, "other", size).done and not Note.read(lines, "v", size + 1).done


@given(st.binary(max_size=200))
def test_any_notes_are_read(data: bytes) -> None:
    note = Note("v", 3 * PART_BYTES, frozenset())
    assert Note.read(note.head + data, "v", 3 * PART_BYTES).done <= {0, 1, 2}
    assert Sent.read(data) is None or json.loads(data)
    sent = Sent("upload", HASH, 5)
    assert Sent.read(sent.encode()) == sent
    assert Sent.read(Sent("", HASH, 5).encode()) is None and Sent.read(Sent("u" * 3_000, HASH, 5).encode()) is None


def test_a_manifest_is_read_as_it_was_written() -> None:
    entries = [Entry(PurePosixPath("b"), 1, HASH), Entry(PurePosixPath("a/c"), 0, HASH)]
    assert decode_manifest(encode_manifest(entries, {"task": "0x"})) == {entry.path: entry for entry in entries}


@pytest.mark.parametrize(
    ("field", "value"),
    [("path", "../x"), ("path", "/x"), ("size_bytes", -1), ("size_bytes", True), ("sha256", "AB" * 32)],
)
def test_a_manifest_of_another_form_is_refused(field: str, value: object) -> None:
    entry = {"path": "a", "size_bytes": 1, "sha256": HASH, field: value}
    for data in (
        json.dumps({"format": 1, "files": [entry]}),
        json.dumps({"format": 2, "files": []}),
        "{",
        "[" * 9_999,
    ):
        with pytest.raises(StoreRefused):
            decode_manifest(data.encode())
    good = {"path": "a", "size_bytes": 1, "sha256": HASH}
    with pytest.raises(StoreRefused, match="twice"):
        decode_manifest(json.dumps({"format": 1, "files": [good, good]}).encode())


def test_a_full_disk_has_a_code_of_its_own() -> None:
    assert isinstance(of_file(Path("x"), OSError(28, "No space left on device")), StoreFull)


def test_the_failure_that_stopped_the_others_is_told() -> None:
    gate = threading.Event()

    def stopped() -> None:
        raise Stopped("stopped")

    def full() -> None:
        gate.wait()
        raise StoreFull("full")

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(full), pool.submit(stopped)]
        futures[1].add_done_callback(lambda _: gate.set())
        with pytest.raises(StoreFull):
            settle(futures)


PACK = """
import resource, sys
from pathlib import Path
from rpc.client.packing import pack_source
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
packed, _ = pack_source(Path(sys.argv[1]))
assert packed.size_bytes > 300 << 20
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_mount_is_packed_without_memory_for_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with (tmp_path / "data" / "large").open("wb") as file:
        file.truncate(300 << 20)
    done = subprocess.run([sys.executable, "-c", PACK, str(tmp_path / "data")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 << 10, "KiB for a mount of 300 MiB"
