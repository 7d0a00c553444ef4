"""Files that survive a power failure."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tasks.executor.containers.kubernetes.pushed_images import PushedImage, PushedNotes
from tasks.executor.durable import write_durably

PUSHED = PushedImage("0" * 32, True, bytes(32))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """What was synced, in order: whether it is a folder, and its number in the file system."""
    found, sync = list[tuple[bool, int]](), os.fsync

    def noted(handle: int) -> None:
        sync(handle)
        status = os.fstat(handle)
        found.append((stat.S_ISDIR(status.st_mode), status.st_ino))

    monkeypatch.setattr(os, "fsync", noted)
    return found


def test_a_file_is_synced_before_its_name(tmp_path: Path, synced: list[tuple[bool, int]]) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"second"):
        write_durably(path, content, b" part")
        assert path.read_bytes() == content + b" part" and list(tmp_path.iterdir()) == [path]
        assert synced == [(False, path.stat().st_ino), (True, tmp_path.stat().st_ino)]
        synced.clear()


def test_the_folder_of_notes_is_synced_where_it_is_new(tmp_path: Path, synced: list[tuple[bool, int]]) -> None:
    notes = PushedNotes(tmp_path / "pushed")
    path = notes.folder / f"{PUSHED.digest.hex()}-00"
    for _ in range(2):
        notes.write(path, PUSHED)
        assert notes.read(path) == PUSHED
    folder = (True, notes.folder.stat().st_ino)
    assert synced[0] == (True, tmp_path.stat().st_ino)
    assert [synced[2], synced[4]] == [folder, folder] and len(synced) == 5
