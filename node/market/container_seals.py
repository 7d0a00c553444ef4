"""The machine's side of sealed containers: its key, secrets and mounts that it opens, results that it seals (R99).

Checkpoints are sealed under the key of the run that makes them, so that the next machine opens them (R127).

The key of a task lies encrypted under the node's account. Secrets are opened again for each use, and no plain byte
of them is written to a disk.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

import structlog
import trio

from node.market.inputs import Inputs, InputUnavailable, Supply
from node.market.task_keys import TaskKeys
from p2p.blob.store import BlobStore
from state.primitives.errors import DekubeError
from tasks.custody.container_keys import (
    LOG,
    OUTPUT,
    checkpoint_plain_size,
    earlier_key,
    image_key,
    mount_key,
    open_checkpoint,
    result_plain_size,
    seal_checkpoint,
    seal_result,
)
from tasks.custody.keys import KEY_BYTES
from tasks.custody.secrets import NO_SECRETS, ContainerSecrets, open_secrets
from tasks.custody.streams import SALT_BYTES, open_stream
from tasks.executor.containers.disks import overwrite
from tasks.executor.containers.log_entries import LogEntry
from tasks.executor.containers.masking import masked, masked_parts
from tasks.kinds.container import LOG_BYTES_MAX, ContainerPart, Mount
from tasks.kinds.folders import unpack

__all__ = [
    "ContainerSeals", "RunKey", "checkpoint_limit", "log_limit", "masked_entries", "output_limit", "put_mount",
    "with_reason", "write_plain",
]  # fmt: skip

_log = structlog.get_logger("containers")

_NO_KEY: Final = "the key of the task: neither its requester's node nor who holds shares of it hands it on"
PIN: Final = "secrets"
PIECE_BYTES: Final = 1 << 20
REASON_BYTES_MAX: Final = 400


def output_limit(part: ContainerPart) -> int:
    """Return the most bytes of a packed output: sealed ones are a little larger."""
    most = part.storage.output_bytes_max
    return result_plain_size(most) if part.is_private else most


def log_limit(part: ContainerPart) -> int:
    """Return the last bytes of a log that are kept."""
    return result_plain_size(LOG_BYTES_MAX) if part.is_private else LOG_BYTES_MAX


def checkpoint_limit(part: ContainerPart) -> int:
    """Return the most bytes of a packed checkpoint; 0 for a container without one."""
    if part.checkpoint is None:
        return 0
    return checkpoint_plain_size(part.checkpoint.bytes_max) if part.is_private else part.checkpoint.bytes_max


class RunKey(NamedTuple):
    """The key that a machine has of a sealed container, and the number of its run."""

    key: bytes
    run: int

    @property
    def first(self) -> bytes:
        """The key of the first run: mounts and secrets are sealed under it."""
        return earlier_key(self.key, self.run)

    def seal(self, plain: Path) -> None:
        """Seal a packed checkpoint in its place. Blocking. Raises OSError."""
        with _replacing(plain) as (source, target):
            salt = secrets.token_bytes(SALT_BYTES)
            for piece in seal_checkpoint(self.key, self.run, salt, _pieces(source)):
                target.write(piece)

    def open(self, sealed: Path, place: Path, limit_bytes: int, disk_limit_bytes: int) -> None:
        """Unpack a sealed checkpoint to ``place``. Blocking. Raises StreamInvalid, ArchiveInvalid, OSError."""
        packed = place.with_name(f"{place.name}.tar")
        try:
            with sealed.open("rb") as source, _private_file(packed) as target:
                for piece in open_checkpoint(self.key, self.run, _pieces(source)):
                    target.write(piece)
            with packed.open("rb") as file:
                unpack(file, place, limit_bytes=limit_bytes, disk_limit_bytes=disk_limit_bytes)
        finally:
            overwrite([packed])
            packed.unlink(missing_ok=True)


class ContainerSeals:
    """What a machine opens and seals of containers of others."""

    def __init__(self, keys: TaskKeys, inputs: Inputs, blobs: BlobStore) -> None:
        self._keys, self._inputs, self._blobs = keys, inputs, blobs

    async def lack_of_key(self, task: bytes) -> str:
        """Return that the key of a sealed container cannot be had in time, or is wrong; else an empty text."""
        if self._keys.sealed(task) is None or await self._keys.obtain_in_time(task):
            return ""
        return _NO_KEY

    async def _key(self, task: bytes) -> RunKey:
        """Return the key of a task. Raises InputUnavailable."""
        if not await self._keys.obtain(task):
            raise InputUnavailable(_NO_KEY)
        run = self._keys.run(task)
        key = await trio.to_thread.run_sync(self._keys.task_key, task)
        if key is None or run != self._keys.run(task):
            raise InputUnavailable("the key of the task: another machine has it by now")
        return RunKey(key, run)

    async def secrets(self, task: bytes, part: ContainerPart, supply: Supply) -> ContainerSecrets:
        """Return the secrets of a container. Raises InputUnavailable, SecretsInvalid."""
        if part.sealed is None or not part.sealed.size_bytes:
            return NO_SECRETS
        name = part.sealed.blob
        self._blobs.pin(name, PIN)
        sealed = await self._inputs.fetch(name, supply, part.sealed.size_bytes)
        return open_secrets((await self._key(task)).first, sealed)

    async def mount_key(self, task: bytes, number: int, mount: Mount) -> bytes | None:
        """Return the key of a mount, None where it is public. Raises InputUnavailable."""
        return mount_key((await self._key(task)).first, number) if mount.form.is_sealed else None

    async def image_key(self, task: bytes, part: ContainerPart) -> bytes | None:
        """Return the key of an image that comes as a blob, None where it is public. Raises InputUnavailable."""
        return image_key((await self._key(task)).first) if part.is_private else None

    async def checkpoint_key(self, task: bytes, part: ContainerPart) -> RunKey | None:
        """Return what seals and opens checkpoints, None where they are public. Raises InputUnavailable."""
        return await self._key(task) if part.is_private else None

    async def seal_file(self, task: bytes, part: ContainerPart, plain: Path) -> None:
        """Seal a packed output in its place, if the container is private. Raises OSError."""
        if part.is_private:
            await trio.to_thread.run_sync(self._seal_file, task, part, plain)

    def _seal_file(self, task: bytes, part: ContainerPart, plain: Path) -> None:
        with _replacing(plain) as (source, target):
            for piece in _sealed(task, part, OUTPUT, _pieces(source)):
                target.write(piece)

    async def keep_log(self, task: bytes, part: ContainerPart, log: bytes) -> tuple[bytes, int]:
        """Keep the last bytes of a log, sealed if the container is private; return their name and size."""
        kept = log[-log_limit(part) :]
        if not kept:
            return b"", 0
        if part.is_private:
            kept = b"".join(_sealed(task, part, LOG, [kept]))
        return await trio.to_thread.run_sync(self._blobs.add, kept), len(kept)

    async def forget(self, task: bytes, part: ContainerPart) -> None:
        """Forget the key and the secrets of a container that has ended here."""
        if part.sealed is None:
            return
        if part.sealed.size_bytes:
            self._blobs.unpin(part.sealed.blob, PIN)
        try:
            await trio.to_thread.run_sync(self._keys.forget, task)
        except (DekubeError, OSError) as error:  # ``TaskKeys.tidy`` removes it later
            _log.warning("the key of a container could not be removed", task=task, error=str(error))


def masked_entries(values: tuple[bytes, ...], entries: tuple[LogEntry, ...]) -> tuple[LogEntry, ...]:
    """Return the entries of a log with the values masked; they may lie across entries of a stream."""
    found = list(entries)
    for stream in {entry.stream for entry in entries}:
        places = [at for at, entry in enumerate(entries) if entry.stream == stream]
        for at, text in zip(places, masked_parts(values, [entries[at].text for at in places]), strict=True):
            found[at] = found[at]._replace(text=text)
    return tuple(found)


def with_reason(log: bytes, why: str, values: tuple[bytes, ...]) -> bytes:
    """Return a log with why no output is kept; a reason may name a file of the container, so it is masked too."""
    return log + b"\n[no output is kept: " + masked(values, why.encode())[:REASON_BYTES_MAX] + b"]\n"


def _sealed(task: bytes, part: ContainerPart, what: str, content: Iterable[bytes]) -> Iterator[bytes]:
    assert part.sealed is not None
    content_key, salt = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(SALT_BYTES)
    return seal_result(part.sealed, content_key, salt, content, task=task, what=what)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(PIECE_BYTES):
        yield data


@contextmanager
def _replacing(plain: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file, and a private one that takes its place at the end."""
    sealed = plain.with_name(plain.name + ".sealed")
    try:
        with plain.open("rb") as source, _private_file(sealed) as target:
            yield source, target
        overwrite([plain])
        sealed.replace(plain)
    finally:
        sealed.unlink(missing_ok=True)


def _private_file(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def write_plain(source: Path, target: Path, key: bytes | None) -> None:
    """Write the plain bytes of a blob to ``target``. Blocking. Raises StreamInvalid, OSError."""
    if key is None:
        shutil.copyfile(source, target)
        return
    with source.open("rb") as sealed, _private_file(target) as plain:
        for piece in open_stream(key, _pieces(sealed)):
            plain.write(piece)


def put_mount(source: Path, place: Path, mount: Mount, key: bytes | None) -> None:
    """Put what a mount's blob ``source`` has to ``place``. Raises StreamInvalid, ArchiveInvalid, OSError."""
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    if not mount.form.is_folder:
        write_plain(source, place, key)
        place.chmod(0o644)
        return
    packed = source if key is None else place.with_name(f"{place.name}.tar")
    try:
        if key is not None:
            write_plain(source, packed, key)
        with packed.open("rb") as file:
            unpack(file, place, limit_bytes=mount.size_bytes)
    finally:
        if key is not None:
            overwrite([packed])
            packed.unlink(missing_ok=True)
    place.chmod(0o755)
