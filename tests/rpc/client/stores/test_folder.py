"""Results in a folder: what is there already, what changed, and the manifest that comes last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.cli.tasks.storing import put_result
from rpc.client.stores import fetch_source, put_folder, remove_unused
from rpc.client.stores.errors import StoreMissing, StoreRefused
from rpc.client.stores.manifest import MANIFEST_NAME, decode_manifest
from state.primitives.errors import StoreError
from tasks.requests.sources import SourceInvalid


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (tmp_path / "made" / "inner").mkdir(parents=True)
    (tmp_path / "made" / "inner" / "a").write_text("a")
    (tmp_path / "made" / "b").write_text("b" * 5_000)
    return tmp_path / "made"


def test_only_what_is_missing_is_written(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told: list[tuple[int, int]] = []
    first = put_folder(made, f"file://{out}", about={"task": "0x1"}, progress=lambda *done: told.append(done))
    assert (first.files, first.sent, first.size_bytes) == (2, 2, 5_001) and told[-1] == (5_001, 5_001)
    assert (out / "inner" / "a").read_text() == "a"
    assert [str(path) for path in decode_manifest((out / MANIFEST_NAME).read_bytes())] == ["b", "inner/a"]
    (out / "b").write_text("damaged")
    assert put_folder(made, str(out)).sent == 1
    assert (out / "b").read_text() == "b" * 5_000
    assert fetch_source(f"file://{out}") == out


def test_a_manifest_of_other_files_is_withdrawn_before_they_are_replaced(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    put_folder(made, str(out))
    (made / "b").write_text("other")
    (out / "b").unlink()
    (out / "b").mkdir()  # it cannot be replaced
    with pytest.raises(StoreError):
        put_folder(made, str(out))
    assert not (out / MANIFEST_NAME).exists()
    assert not [path for path in out.iterdir() if path.name.startswith(".")], "a half-written file was left"


def test_links_and_what_is_not_there_are_refused(made: Path, tmp_path: Path) -> None:
    (made / "link").symlink_to("/etc/passwd")
    with pytest.raises(StoreRefused, match="link"):
        put_folder(made, str(tmp_path / "out"))
    (made / "link").unlink()
    (made / "folders").symlink_to("/etc")
    with pytest.raises(StoreRefused, match="folders: only regular files"):
        put_folder(made, str(tmp_path / "out"))
    (made / "folders").unlink()
    os.mkfifo(made / "pipe")
    with pytest.raises(StoreRefused, match="pipe"):
        put_folder(made, str(tmp_path / "out"))
    with pytest.raises(StoreMissing):
        put_folder(tmp_path / "nothing", str(tmp_path / "out"))
    with pytest.raises(StoreMissing):
        fetch_source(str(tmp_path / "nothing"))
    for to in ("https://example.org/x", "blob:" + "ab" * 32, "s3://B"):
        with pytest.raises(SourceInvalid):
            put_folder(made / "b", to)


def test_a_folder_that_cannot_be_read_is_an_error(made: Path, tmp_path: Path) -> None:
    """Otherwise the manifest would be that of a whole result without its files."""
    inner = os.open(made, os.O_RDONLY)
    for _ in range(20):  # a path that is longer than any call takes
        os.mkdir("n" * 250, dir_fd=inner)
        outer, inner = inner, os.open("n" * 250, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    with pytest.raises(StoreError, match="too long"):
        put_folder(made, str(tmp_path / "out"))
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()


def test_the_cache_removes_what_is_old_and_its_own(tmp_path: Path) -> None:
    old, notes = ("a" * 32, "blob-" + "b" * 64), "c" * 32
    kept = ("photos", "d" * 32, "blob-x")
    for name in (*old, *kept):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / notes).touch()
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    remove_unused(tmp_path, but=tmp_path / ("d" * 32))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    os.utime(tmp_path / ("d" * 32))
    remove_unused(tmp_path)
    assert (tmp_path / ("d" * 32) / "file").exists()
    remove_unused(tmp_path / "none")


def test_the_command_tells_what_it_stored(made: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert put_result(made / "b", out, {}) == {"stored": out, "stored_files": 1, "sent": 1}
    assert put_result(made / "b", out, {}) == {"stored": out, "stored_files": 1, "sent": 0}
