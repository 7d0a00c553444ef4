"""Inputs and results in a real S3 server: large, cut and resumed, refused, changed, full and damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rpc.client.stores.bucket
import rpc.client.stores.fetching
from rpc.client.stores import fetch_source, put_folder
from rpc.client.stores.errors import (
    StoreChanged,
    StoreChecksum,
    StoreDenied,
    StoreFull,
    StoreMissing,
    StoreTooLarge,
    StoreUnreachable,
)
from rpc.client.stores.manifest import MANIFEST_NAME, decode_manifest
from state.primitives.errors import StoreError
from tests.s3_server import ACCESS, SECRET, Cutter, s3_server

pytestmark = [pytest.mark.s3, pytest.mark.slow]

LARGE = 100_000_000


class World:
    """A server with a bucket, and this user's cache."""

    def __init__(self, folder: Path, url: str) -> None:
        self.root, self.url = folder / "buckets", url
        self.bucket, self.cache, self.notes = self.root / "bucket", folder / "cache", folder / "notes"

    def put(self, key: str, data: bytes) -> None:
        """Write an object as another program does, without our metadata."""
        client: Any = rpc.client.stores.bucket.Bucket("bucket")._client
        client.put_object(Bucket="bucket", Key=key, Body=data)

    def fetch(self, source: str) -> Path:
        return fetch_source(source, cache=self.cache)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("s3")
    (folder / "buckets").mkdir()
    with s3_server(folder / "buckets") as url:
        yield folder, url


@pytest.fixture
def world(server: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    root, url = server
    use(monkeypatch, url)
    found = World(tmp_path, url)
    found.root = root / "buckets"
    found.bucket = found.root / "bucket"
    shutil.rmtree(found.bucket, ignore_errors=True)
    found.bucket.mkdir()
    return found


def use(monkeypatch: pytest.MonkeyPatch, url: str, secret: str = SECRET) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(rpc.client.stores.bucket, "PAUSE_S", 0.01)
    monkeypatch.setattr(rpc.client.stores.bucket, "TRIES", 2)


def content(size: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(b"%d" % seed).digest(1 << 20) * (size // (1 << 20)) + bytes(size % (1 << 20))


def test_a_hundred_megabytes_up_and_down_and_nothing_twice(world: World, tmp_path: Path) -> None:
    made = tmp_path / "made"
    (made / "inner").mkdir(parents=True)
    (made / "large.bin").write_bytes(content(LARGE))
    (made / "inner" / "small.txt").write_text("small")
    (made / "empty").touch()
    first = put_folder(made, "s3://bucket/results/one", about={"task": "0x12"}, notes=world.notes)
    assert (first.files, first.sent, first.size_bytes) == (3, 3, LARGE + 5)
    manifest = world.bucket / "results" / "one" / MANIFEST_NAME
    assert len(decode_manifest(manifest.read_bytes())) == 3
    again = put_folder(made, "s3://bucket/results/one", about={"task": "0x12"}, notes=world.notes)
    assert again.sent == 0
    found = world.fetch("s3://bucket/results/one")
    assert (found / "large.bin").read_bytes() == (made / "large.bin").read_bytes()
    assert sorted(path.name for path in found.rglob("*")) == ["empty", "inner", "large.bin", "small.txt"]
    before = (found / "large.bin").stat().st_ino
    assert (world.fetch("s3://bucket/results/one") / "large.bin").stat().st_ino == before  # from the cache
    single = world.fetch("s3://bucket/results/one/inner/small.txt")
    assert single.read_text() == "small" and single.name == "small.txt"


def test_a_download_that_is_cut_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("large.bin", content(LARGE, 1))
    cutter = Cutter(world.url, 60_000_000)
    use(monkeypatch, cutter.url)
    with pytest.raises(StoreUnreachable):
        world.fetch("s3://bucket/large.bin")
    kept = next(world.cache.rglob("*.notes")).read_bytes().splitlines()
    assert len(kept) > 2, "parts were kept"
    cutter.left = 1 << 60
    read = count_reads(monkeypatch)
    assert world.fetch("s3://bucket/large.bin").read_bytes() == content(LARGE, 1)
    assert len(read) == -(-LARGE // (8 << 20)) - (len(kept) - 1), "what was kept was fetched again"
    cutter.close()


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    real = rpc.client.stores.bucket.Bucket.read

    def read(self: object, key: str, etag: str, first: int, end: int, **options: object) -> bytes:
        found.append(first)
        return real(self, key, etag, first, end, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rpc.client.stores.bucket.Bucket, "read", read)
    return found


def test_an_upload_that_is_cut_goes_on(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "large.bin").write_bytes(content(LARGE, 2))
    cutter = Cutter(world.url, 60_000_000)
    use(monkeypatch, cutter.url)
    with pytest.raises(StoreUnreachable):
        put_folder(made, "s3://bucket/up", notes=world.notes)
    assert not (world.bucket / "up" / MANIFEST_NAME).exists()
    cutter.left = 1 << 60
    sent: list[int] = []
    real = rpc.client.stores.bucket.Bucket.send

    def send(self: rpc.client.stores.bucket.Bucket, key: str, upload: str, number: int, data: bytes) -> object:
        sent.append(number)
        return real(self, key, upload, number, data)

    monkeypatch.setattr(rpc.client.stores.bucket.Bucket, "send", send)
    assert put_folder(made, "s3://bucket/up", notes=world.notes).sent == 1
    assert sent and 1 not in sent, "the first part was sent again"
    assert (world.bucket / "up" / "large.bin").read_bytes() == (made / "large.bin").read_bytes()
    cutter.close()


@pytest.mark.parametrize("size", [LARGE, 5], ids=["large", "small"])
def test_an_unfinished_upload_of_other_content_is_given_up(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The store would keep its parts, and bill them."""
    made = tmp_path / "large.bin"
    made.write_bytes(content(LARGE, 2))
    cutter = Cutter(world.url, 60_000_000)
    use(monkeypatch, cutter.url)
    with pytest.raises(StoreUnreachable):
        put_folder(made, "s3://bucket/up", notes=world.notes)
    cutter.left = 1 << 60
    client: Any = rpc.client.stores.bucket.Bucket("bucket")._client
    assert len(client.list_multipart_uploads(Bucket="bucket")["Uploads"]) == 1
    made.write_bytes(content(size, 3))
    assert put_folder(made, "s3://bucket/up", notes=world.notes).sent == 1
    assert not client.list_multipart_uploads(Bucket="bucket").get("Uploads")
    assert (world.bucket / "up" / "large.bin").read_bytes() == made.read_bytes()
    assert not list(world.notes.iterdir())
    cutter.close()


def test_a_file_that_changes_while_it_is_sent_leaves_no_upload(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "large.bin"
    made.write_bytes(content(40 << 20, 2))
    real = rpc.client.stores.bucket.Bucket.send

    def send(self: rpc.client.stores.bucket.Bucket, key: str, upload: str, number: int, data: bytes) -> object:
        made.write_bytes(content(40 << 20, 3))
        return real(self, key, upload, number, data)

    monkeypatch.setattr(rpc.client.stores.bucket.Bucket, "send", send)
    with pytest.raises(StoreChanged):
        put_folder(made, "s3://bucket/up", notes=world.notes)
    client: Any = rpc.client.stores.bucket.Bucket("bucket")._client
    assert not client.list_multipart_uploads(Bucket="bucket").get("Uploads")
    assert not list(world.notes.iterdir()) and not (world.bucket / "up" / MANIFEST_NAME).exists()


def test_wrong_keys_and_missing_ones_are_named_and_never_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("rows", b"rows")
    use(monkeypatch, world.url, secret="wrong-secret-key")
    with pytest.raises(StoreDenied) as denied:
        world.fetch("s3://bucket/rows")
    assert denied.value.code == "store_denied" and "wrong-secret-key" not in str(denied.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreDenied, match="AWS_ACCESS_KEY_ID"):
        world.fetch("s3://bucket/rows")


def test_a_missing_bucket_object_or_server_is_named(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("s3://no-such-bucket/rows", "s3://bucket/rows", "s3://bucket/", "s3://no-such-bucket"):
        with pytest.raises(StoreMissing):
            world.fetch(source)
    (tmp_path / "one").write_text("1")
    with pytest.raises(StoreMissing):
        put_folder(tmp_path / "one", "s3://no-such-bucket/x", notes=world.notes)
    use(monkeypatch, "http://127.0.0.1:1")
    with pytest.raises(StoreUnreachable):
        world.fetch("s3://bucket/rows")


def test_an_object_that_changes_is_noticed_and_then_fetched_whole(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "large.bin"
    source.write_bytes(content(40 << 20, 3))
    put_folder(source, "s3://bucket/x", notes=world.notes)
    real = rpc.client.stores.bucket.Bucket.read
    changed: list[int] = []

    def read(
        self: rpc.client.stores.bucket.Bucket, key: str, etag: str, first: int, end: int, **more: object
    ) -> bytes:
        if first and key.endswith("large.bin") and not changed:
            changed.append(first)
            source.write_bytes(content(40 << 20, 4))
            put_folder(source, "s3://bucket/x", notes=world.notes)
        return real(self, key, etag, first, end, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(rpc.client.stores.bucket.Bucket, "read", read)
    monkeypatch.setattr(rpc.client.stores.fetching, "READS_AT_ONCE", 1)
    with pytest.raises(StoreChanged):
        world.fetch("s3://bucket/x/large.bin")
    assert world.fetch("s3://bucket/x/large.bin").read_bytes() == source.read_bytes()


def test_content_that_is_damaged_in_the_store_is_refused(world: World, tmp_path: Path) -> None:
    source = tmp_path / "rows.bin"
    source.write_bytes(content(20 << 20, 5))
    put_folder(source, "s3://bucket/x", notes=world.notes)
    with (world.bucket / "x" / "rows.bin").open("r+b") as file:
        file.seek(1_000)
        file.write(b"damage")
    with pytest.raises(StoreChecksum):
        world.fetch("s3://bucket/x")
    with pytest.raises(StoreChecksum):
        world.fetch("s3://bucket/x/rows.bin")
    assert not list(world.cache.rglob("rows.bin")), "nothing that is damaged is kept"


def test_a_manifest_that_names_another_hash_is_believed(world: World, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("rows")
    put_folder(tmp_path / "rows", "s3://bucket/x", notes=world.notes)
    manifest = world.bucket / "x" / MANIFEST_NAME
    document = json.loads(manifest.read_bytes())
    document["files"][0]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(document))
    with pytest.raises(StoreChecksum):
        world.fetch("s3://bucket/x")


def test_a_full_disk_is_named_here_and_there(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.decode()[:200]}")
    try:
        world.put("large.bin", content(40 << 20, 6))
        with pytest.raises(StoreFull) as full:
            fetch_source("s3://bucket/large.bin", cache=small / "cache")
        assert full.value.code == "store_full"
        made = tmp_path / "made.bin"
        made.write_bytes(content(40 << 20, 7))
        with pytest.raises(StoreFull):
            put_folder(made, str(small / "out"))
        assert not (small / "out" / MANIFEST_NAME).exists()
        (small / "buckets" / "bucket").mkdir(parents=True)
        with s3_server(small / "buckets") as url:
            use(monkeypatch, url)
            with pytest.raises(StoreFull):
                put_folder(made, "s3://bucket/x", notes=world.notes)
            assert not (small / "buckets" / "bucket" / "x" / MANIFEST_NAME).exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_more_than_the_limit_is_refused_before_it_is_fetched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("large.bin", bytes(1_000))
    found = rpc.client.stores.bucket.Bucket("bucket")
    with pytest.raises(StoreTooLarge):
        found.find("", is_folder=True, limit_bytes=999)


def test_a_file_that_left_the_store_leaves_the_cache(world: World) -> None:
    for name in ("a", "b"):
        world.put(f"x/{name}", name.encode())
    assert {path.name for path in world.fetch("s3://bucket/x").iterdir()} == {"a", "b"}
    (world.bucket / "x" / "b").unlink()
    assert {path.name for path in world.fetch("s3://bucket/x").iterdir()} == {"a"}


def test_errors_are_of_one_class() -> None:
    assert issubclass(StoreFull, StoreError)
