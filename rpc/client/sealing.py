"""Sealed containers from the requester's side: mounts and secrets are sealed, results are opened (R98 to R100)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Final, NamedTuple

from rpc.client.errors import NoResult
from rpc.client.packing import PackedFile, written
from state.primitives.hashing import HASH_BYTES
from state.primitives.keys import SecretKey
from tasks.custody.container_keys import (
    container_key,
    container_key_hash,
    image_key,
    mount_key,
    open_result,
    seal_terms,
)
from tasks.custody.errors import SecretsInvalid, StreamInvalid, WrapInvalid
from tasks.custody.secrets import ContainerSecrets, encode_secrets, seal_secrets
from tasks.custody.streams import SALT_BYTES, seal_stream, stream_size
from tasks.kinds.container import ContainerPart, SealTerms
from tasks.requests.errors import RequestInvalid

__all__ = ["Sealing", "is_own", "open_results", "pieces_of", "seal_contents", "with_placeholders"]

PIECE_BYTES: Final = 1 << 20


class Sealing(NamedTuple):
    """What of a container will be sealed, once the account that posts it is known."""

    is_private: bool
    secrets: ContainerSecrets


def with_placeholders(part: ContainerPart, sealing: Sealing) -> ContainerPart:
    """Return a part with the sizes and forms that sealing gives it: what it costs follows from that.

    Raises RequestInvalid for more secrets than a blob has.
    """
    size_bytes = 0
    try:
        if sealing.secrets:
            size_bytes = stream_size(len(encode_secrets(sealing.secrets)))
    except SecretsInvalid as error:
        raise RequestInvalid(str(error), field="secrets", code=error.code) from None
    blob = (b"\xff" if size_bytes else b"\0") * HASH_BYTES
    mounts = part.storage.mounts
    if sealing.is_private:
        mounts = tuple(
            mount._replace(size_bytes=stream_size(mount.size_bytes), form=mount.form.sealed)
            if not mount.form.is_sealed
            else mount
            for mount in mounts
        )
    image = part.image
    if image.blob and sealing.is_private and not part.is_private:
        image = image._replace(size_bytes=stream_size(image.size_bytes))
    nothing = bytes(HASH_BYTES)
    terms = SealTerms(nothing, nothing, nothing, int(sealing.is_private), blob, size_bytes)
    return part._replace(image=image, storage=part.storage._replace(mounts=mounts), sealed=terms)


def seal_contents(
    part: ContainerPart, blobs: Sequence[PackedFile], sealing: Sealing, key: SecretKey
) -> tuple[ContainerPart, tuple[PackedFile, ...]]:
    """Return the part of a container, and the blobs that its machine fetches, sealed for an account's task.

    ``blobs`` are those of the mounts, and behind them an image's.
    Each call gives another key: what a machine has read of one task opens nothing of another.
    """
    salt = secrets.token_bytes(SALT_BYTES)
    later = part.later_runs  # ``with_placeholders`` has said what is sealed
    task_key = container_key(key.secret, salt, later)
    contents, mounts, image = list(blobs), list(part.storage.mounts), part.image
    if sealing.is_private:
        for number, mount in enumerate(mounts):
            contents[number] = _sealed(blobs[number], mount_key(task_key, number))
            mounts[number] = mount._replace(blob=contents[number].blob, size_bytes=contents[number].size_bytes)
        if image.blob:
            contents[-1] = _sealed(blobs[-1], image_key(task_key))
            image = image._replace(blob=contents[-1].blob, size_bytes=contents[-1].size_bytes)
    blob, size_bytes = bytes(HASH_BYTES), 0
    if sealing.secrets:
        sealed = seal_secrets(task_key, secrets.token_bytes(SALT_BYTES), sealing.secrets)
        contents.append(written(lambda file: file.write(sealed)))
        blob, size_bytes = contents[-1].blob, len(sealed)
    terms = seal_terms(
        key.secret, salt, is_private=sealing.is_private, blob=blob, size_bytes=size_bytes, later=later
    )  # fmt: skip
    storage = part.storage._replace(mounts=tuple(mounts))
    return part._replace(image=image, storage=storage, sealed=terms), tuple(contents)


def _sealed(content: PackedFile, key: bytes) -> PackedFile:
    """Return a new file with the sealed content of another."""

    def write(target: IO[bytes]) -> None:
        with content.path.open("rb") as source:
            for piece in seal_stream(key, secrets.token_bytes(SALT_BYTES), pieces_of(source)):
                target.write(piece)

    return written(write)


def pieces_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of an open file."""
    while data := file.read(PIECE_BYTES):
        yield data


def is_own(part: ContainerPart, key: SecretKey) -> bool:
    """Tell whether the task of a sealed container is an account's."""
    assert part.sealed is not None
    first = container_key(key.secret, part.sealed.salt, part.later_runs)
    return container_key_hash(first) == part.sealed.key_hash


def open_results(
    part: ContainerPart, key: SecretKey | None, sealed: Iterable[bytes], *, task: bytes, what: str
) -> Iterable[bytes]:
    """Return the plain pieces of an output or a log; those of a public container as they are.

    Raises NoResult without its requester's key, or for anything that does not open.
    """
    if not part.is_private:
        return sealed
    assert part.sealed is not None
    if key is None:
        raise NoResult("the container is private: the key of its requester's account opens what it left")
    if not is_own(part, key):
        raise NoResult("the container is private, and this account is not its requester's")
    return _opened(part.sealed, key, sealed, task, what)


def _opened(terms: SealTerms, key: SecretKey, sealed: Iterable[bytes], task: bytes, what: str) -> Iterator[bytes]:
    try:
        yield from open_result(key.secret, terms, sealed, task=task, what=what)
    except (WrapInvalid, StreamInvalid) as error:
        raise NoResult(f"the {what} of the container does not open: {error}") from None
