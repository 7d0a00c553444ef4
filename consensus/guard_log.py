"""Append-only files on a real disk: the vote guard's record and the journal, one writer each.

See consensus.md 7.2.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

from consensus.guard import JOURNAL_BLOCK, Guard, GuardMissing, journal_record, read_journal
from state.primitives.errors import StoreError

__all__ = ["GUARD_FILE", "JOURNAL_FILE", "FileLog", "Log", "VoteDirectory", "blocks_alone"]

GUARD_FILE: Final = "votes.guard"
JOURNAL_FILE: Final = "votes.journal"
LOCK_FILE: Final = "votes.lock"


class Log(Protocol):
    """A durable sequence of bytes."""

    def read(self) -> bytes:
        """Return the whole content."""
        ...

    def append(self, data: bytes) -> None:
        """Append; durable only after ``sync``."""
        ...

    def sync(self) -> None:
        """Return when everything appended is on disk."""
        ...

    def replace(self, data: bytes) -> None:
        """Replace the content with ``data``, durably and atomically."""
        ...


def blocks_alone(journal: bytes) -> bytes:
    """Return a journal without its certificates, after a fork: they may be of another chain.

    The blocks stay. They prove nothing by themselves, and a node that voted for one may have the last copy.
    """
    records, _ = read_journal(journal)
    return b"".join([journal_record(kind, data) for kind, data in records if kind == JOURNAL_BLOCK])


class FileLog:
    """A log in one file. After a failed write or sync it refuses all further ones.

    After a failed fsync the kernel may have dropped pages and report success later, so nothing after it can be
    trusted. Raises StoreError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_failed = False
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            _sync_directory(path.parent)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None

    def read(self) -> bytes:
        """Return the whole content."""
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise StoreError(f"{self._path}: {error.strerror}") from None

    def append(self, data: bytes) -> None:
        """Append; durable only after ``sync``."""
        with self._failing():
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]

    def sync(self) -> None:
        """Return when everything appended is on disk."""
        with self._failing():
            os.fdatasync(self._fd)

    def replace(self, data: bytes) -> None:
        """Replace the content with ``data``, durably and atomically."""
        beside = self._path.with_suffix(self._path.suffix + ".new")
        with self._failing():
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
                os.replace(beside, self._path)
                _sync_directory(self._path.parent)
            except BaseException:
                os.close(fd)
                raise
            os.close(self._fd)
            self._fd = fd

    def close(self) -> None:
        """Close the file without a sync."""
        with contextlib.suppress(OSError):
            os.close(self._fd)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        if self._is_failed:
            raise StoreError(f"{self._path}: an earlier write failed")
        try:
            yield
        except OSError as error:
            self._is_failed = True
            raise StoreError(f"{self._path}: {error.strerror}") from None


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class VoteDirectory:
    """The directory of a voter's guard and journal, locked for one process.

    ``guard`` and ``journal`` are the two logs. Either file is created when it is first used: a signer has no
    journal, and a node with a signer no guard. Raises StoreError if another process holds the lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_behind = False
        """Whether the record ends before the newest final block: it may be an older copy."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StoreError(f"{path}: another process votes with this guard") from None

    @cached_property
    def guard(self) -> FileLog:
        """The guard's record."""
        return FileLog(self._path / GUARD_FILE)

    @cached_property
    def journal(self) -> FileLog:
        """The data that the votes rest on."""
        return FileLog(self._path / JOURNAL_FILE)

    def create_guard(self, guard: Guard) -> None:
        """Create the record of a key that has never voted, or that votes only above an imported watermark.

        Raises StoreError if a record exists: it must never be lost.
        """
        if self.has_guard():
            raise StoreError(f"{self._path / GUARD_FILE}: there is a record already")
        self.guard.replace(guard.image())

    def has_guard(self) -> bool:
        """Whether a guard's record exists."""
        return (self._path / GUARD_FILE).exists() and bool(self.guard.read())

    def load_guard(self, genesis_hash: bytes, vote_key: bytes) -> Guard:
        """Return the guard, with its record rewritten: without a torn tail, and certainly on disk.

        The bytes read may be only in the kernel's memory, even after a failed sync, so a later successful sync
        would not prove anything. Raises GuardMissing, GuardCorrupt and StoreError.
        """
        if not self.has_guard():
            raise GuardMissing(f"{self._path / GUARD_FILE}: no record of this key's votes")
        data = self.guard.read()
        guard, _ = Guard.load(data, genesis_hash, vote_key)
        self.guard.replace(guard.image())
        return guard

    def close(self) -> None:
        """Close both logs and release the lock."""
        for name in ("guard", "journal"):
            if name in self.__dict__:
                self.__dict__[name].close()
        with contextlib.suppress(OSError):
            os.close(self._lock)
