"""What is known of the tasks of a file at their requester's home: durable before anything is submitted."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from node.home.files import read_bounded, write_whole
from state.primitives.errors import ConfigError, StoreError
from tasks.requests.arrays import MEMBERS_MAX, NAME, STEPS_MAX

__all__ = ["MemberRecord", "WorkflowRecord", "WorkflowStore", "read_record"]

VERSION: Final = 1
RECORD_BYTES_MAX: Final = 1 << 26
SUFFIX: Final = ".json"
HEX_MAX: Final = 1 << 18
TEXT_MAX: Final = 4096
AMOUNT_DIGITS_MAX: Final = 40


@dataclass
class MemberRecord:
    """A task of a file. ``create`` and ``custody`` are what was signed, ``cost`` the most that it costs."""

    step: str
    name: str
    task: str = ""
    create: str = ""
    custody: str = ""
    cost: int = 0
    is_created: bool = False


@dataclass
class WorkflowRecord:
    """The tasks of a file, and the terms that a restart goes on with."""

    name: str
    file: str
    digest: str
    account: str
    chain_id: int
    seed: str
    prices: dict[str, int] = field(default_factory=dict)
    """Highest price per 10^12 work units of each step, as it was last planned."""
    members: list[MemberRecord] = field(default_factory=list)
    lost: int = 0
    """The most that transactions cost which were refused."""
    is_cancelled: bool = False

    @property
    def spent(self) -> int:
        """The most that everything costs that was signed so far."""
        return self.lost + sum(member.cost for member in self.members)

    def of_step(self, step: str) -> list[MemberRecord]:
        """Return the tasks of a step, in their order."""
        return [member for member in self.members if member.step == step]


class WorkflowStore:
    """The records of a home, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise ConfigError(f"{name[:40]!r}: a name has letters, digits and -_, 32 at most")
        return self._folder / (name + SUFFIX)

    def names(self) -> list[str]:
        """Return the names of all records. Raises StoreError for a folder that cannot be read."""
        try:
            return sorted(path.stem for path in self._folder.iterdir() if path.suffix == SUFFIX)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"{error.filename}: {error.strerror}") from None

    def find(self, name: str) -> WorkflowRecord | None:
        """Return a record; None if there is none. Raises StoreError for a damaged one."""
        path = self._path(name)
        try:
            data = read_bounded(path, RECORD_BYTES_MAX)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None
        try:
            return read_record(data)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(f"{path}: damaged ({error}); its tasks are in `dekube task list --mine`") from None

    def save(self, record: WorkflowRecord) -> None:
        """Write a record durably. Raises StoreError."""
        path = self._path(record.name)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(path, json.dumps({"version": VERSION, **asdict(record)}, indent=1) + "\n")
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from None

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep other processes from posting the same tasks. Raises ConfigError if one does."""
        path = self._path(name).with_suffix(".lock")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"another command works on {name}; wait for it") from None
            yield


def read_record(data: bytes) -> WorkflowRecord:
    """Return the record in the bytes of a file. Raises ValueError, TypeError or KeyError for others."""
    document = json.loads(data)
    if not isinstance(document, dict) or document.pop("version", None) != VERSION:
        raise ValueError("another version")
    members = document.pop("members")
    if not isinstance(members, list) or len(members) > MEMBERS_MAX * STEPS_MAX:
        raise ValueError("not a list of tasks")
    found = WorkflowRecord(**document, members=[MemberRecord(**member) for member in members])
    for value, limit in (
        (found.name, TEXT_MAX), (found.file, TEXT_MAX), (found.digest, 64), (found.account, 64), (found.seed, 64),
    ):  # fmt: skip
        _text(value, limit)
    if not isinstance(found.prices, dict):
        raise ValueError("prices")
    for amount in (found.chain_id, found.lost, *found.prices.values(), *(member.cost for member in found.members)):
        if type(amount) is not int or not 0 <= amount < 10**AMOUNT_DIGITS_MAX:
            raise ValueError("not an amount")
    for member in found.members:
        for value, limit in ((member.step, 64), (member.name, TEXT_MAX)):
            _text(value, limit)
        for value in (member.task, member.create, member.custody):
            bytes.fromhex(_text(value, HEX_MAX))
        if type(member.is_created) is not bool or bool(member.task) != bool(member.create):
            raise ValueError("not a task")
    for value in (found.seed, found.digest, found.account):
        bytes.fromhex(value)
    if type(found.is_cancelled) is not bool:
        raise ValueError("is_cancelled")
    return found


def _text(value: Any, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError("not a text")
    return value
