"""Folders as blobs: the same files give the same bytes, and an archive of a stranger writes nothing elsewhere."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.kinds import folders
from tasks.kinds.folders import ArchiveInvalid, pack, unpack

MOST = 1 << 20


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def archive(*entries: tarfile.TarInfo, content: bytes = b"") -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(mode="w", fileobj=file) as made:
        for entry in entries:
            made.addfile(entry, io.BytesIO(content) if entry.isreg() else None)
    return io.BytesIO(file.getvalue())


def entry(name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.size = kind, target, size
    return found


signs = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="/\\:.")
names = st.text(signs, min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.lists(names, min_size=1, max_size=3).map(tuple), st.binary(max_size=2000), max_size=6))
def test_what_is_packed_is_unpacked(content: dict[tuple[str, ...], bytes]) -> None:
    with tempfile.TemporaryDirectory() as place:
        root, again = Path(place) / "a", Path(place) / "b"
        root.mkdir()
        try:
            for path, data in content.items():
                where = root.joinpath(*path)
                where.parent.mkdir(parents=True, exist_ok=True)
                where.write_bytes(data)
            packed = pack(root, limit_bytes=MOST)
        except (OSError, ArchiveInvalid):  # a name that a folder of this machine has already, or may not have
            return
        assert unpack(io.BytesIO(packed), again, limit_bytes=MOST) == len(files_of(root))
        assert files_of(again) == files_of(root)
        for place_of in again.rglob("*"):
            os.utime(place_of, (1, 1))
        assert pack(again, limit_bytes=MOST) == packed


def test_times_owners_and_modes_change_nothing_but_who_may_run_it(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    before = pack(tmp_path, limit_bytes=MOST)
    (tmp_path / "x").chmod(0o600)
    assert pack(tmp_path, limit_bytes=MOST) == before
    (tmp_path / "x").chmod(0o700)
    assert pack(tmp_path, limit_bytes=MOST) != before


def test_links_and_devices_are_not_packed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(ArchiveInvalid, match="no links"):
        pack(tmp_path, limit_bytes=MOST)
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ArchiveInvalid, match="regular files"):
        pack(tmp_path, limit_bytes=MOST)


def test_a_folder_that_is_too_large_is_not_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"1" * 20_000)
    with pytest.raises(ArchiveInvalid, match="more than"):
        pack(tmp_path, limit_bytes=10_000)
    monkeypatch.setattr(folders, "ENTRIES_MAX", 0)
    with pytest.raises(ArchiveInvalid, match="more than 0 files"):
        pack(tmp_path, limit_bytes=MOST)


@pytest.mark.parametrize(
    "made",
    [
        lambda: archive(entry("../x")), lambda: archive(entry("/x")), lambda: archive(entry("a/../../x")),
        lambda: archive(entry("a//b")), lambda: archive(entry("./x")), lambda: archive(entry("a\\b")),
        lambda: archive(entry("x", tarfile.SYMTYPE, target="/etc")),
        lambda: archive(entry("x", tarfile.LNKTYPE, target="/etc/passwd")),
        lambda: archive(entry("x", tarfile.CHRTYPE)), lambda: archive(entry("x", tarfile.FIFOTYPE)),
        lambda: archive(entry("x"), entry("x")), lambda: archive(entry("x"), entry("x/y")),
        lambda: archive(entry("d", tarfile.SYMTYPE, target="/"), entry("d/x")), lambda: archive(entry("con")),
        lambda: archive(entry("a\nb")), lambda: io.BytesIO(b"x" * 5_000), lambda: io.BytesIO(b"\x1f\x8b" * 600),
        lambda: io.BytesIO(archive(entry("x", size=600), content=b"y" * 600).getvalue()[:700]),
        lambda: archive(entry("a/" * 70 + "b")),
    ],
)  # fmt: skip
def test_an_archive_that_could_write_elsewhere_writes_nothing(
    made: Callable[[], io.BytesIO], tmp_path: Path
) -> None:
    target = tmp_path / "deep" / "target"
    with pytest.raises(ArchiveInvalid):
        unpack(made(), target, limit_bytes=MOST)
    assert list(tmp_path.rglob("*")) == []


def test_only_a_new_or_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(ArchiveInvalid, match="empty"):
        unpack(archive(entry("a")), tmp_path, limit_bytes=MOST)
    with pytest.raises(ArchiveInvalid, match="at most"):
        unpack(archive(entry("a")), tmp_path / "b", limit_bytes=100)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_bytes_write_outside_or_raise_anything_else(data: st.DataObject) -> None:
    raw = bytearray(archive(entry("a", tarfile.DIRTYPE), entry("a/b", size=5), content=b"12345").getvalue()[:2048])
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "t"
        try:
            unpack(io.BytesIO(bytes(raw)), target, limit_bytes=MOST)
        except ArchiveInvalid:
            pass
        assert {path.name for path in Path(place).iterdir()} <= {"t"}
