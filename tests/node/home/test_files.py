"""Files that stand in a home or that a person names: whatever stands at their path, reading them ends."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from node.home import files
from node.home.files import read_bounded


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("size_bytes", [0, 9, 10, 11, 1 << 30])
def test_no_more_is_read_than_the_bound_and_a_byte_that_tells_of_more(tmp_path: Path, size_bytes: int) -> None:
    file = tmp_path / "file"
    with file.open("wb") as stream:
        stream.truncate(size_bytes)
    assert len(read_bounded(file, 10)) == min(size_bytes, 11)
    assert len(read_bounded(Path("/dev/zero"), 10)) == 11


def test_a_pipe_that_nobody_writes_to_is_an_error_and_not_an_empty_file(
    pipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "WRITER_S", 0.1)
    began = time.monotonic()
    with pytest.raises(OSError, match="this pipe has no writer"):
        read_bounded(pipe, 10)
    assert 0.1 <= time.monotonic() - began < 2


def test_a_pipe_is_read_to_its_end_by_however_slow_a_writer(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WRITER_S", 5.0)

    def write() -> None:
        time.sleep(0.05)  # after the reader has opened it
        with pipe.open("wb", buffering=0) as stream:
            for part in (b"a", b"bc"):
                time.sleep(0.15)
                stream.write(part)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_bounded(pipe, 10) == b"abc"
    writer.join()


def test_a_pipe_whose_writer_says_nothing_is_empty(pipe: Path) -> None:
    def write() -> None:
        with pipe.open("wb"):
            time.sleep(0.2)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_bounded(pipe, 10) == b""
    writer.join()


def test_a_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(OSError):
            read_bounded(path, 10)
