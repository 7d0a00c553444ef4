"""Keys of a container whose inputs, secrets or results are sealed (R98, R99).

The task's key goes to the machine that runs the container, as keys of private tasks do. Results are sealed to a
public key of the requester: no machine opens what another one made, also after it has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from state.primitives.codec import encode
from state.primitives.hashing import digest
from tasks.custody.errors import KeyInvalid, StreamInvalid
from tasks.custody.keys import KEY_BYTES
from tasks.custody.streams import open_stream, plain_size, seal_stream, stream_size
from tasks.custody.wraps import OVERHEAD_BYTES, public_key_of, unwrap_result_key, wrap_result_key
from tasks.kinds.container import SealTerms

__all__ = [
    "LOG",
    "OUTPUT",
    "check_container_key",
    "container_key",
    "container_key_hash",
    "mount_key",
    "open_result",
    "part_key",
    "result_plain_size",
    "result_size",
    "results_public_key",
    "seal_result",
    "seal_terms",
    "secrets_key",
]

OUTPUT: Final = "output"
LOG: Final = "log"
RESULT_HEAD_BYTES: Final = OVERHEAD_BYTES + KEY_BYTES


def container_key(secret: bytes, salt: bytes) -> bytes:
    """Return the key of a container's task, from the secret of its requester's account and a fresh salt."""
    return _expand(digest(b"task-key-secret", secret), ["dekube container key", salt])


def container_key_hash(key: bytes) -> bytes:
    """Return what the specification commits to instead of the key."""
    return digest(b"container-key", key)


def check_container_key(key: bytes, terms: SealTerms) -> None:
    """Raise KeyInvalid unless ``key`` is the one that a container's specification commits to."""
    if len(key) != KEY_BYTES or container_key_hash(key) != terms.key_hash:
        raise KeyInvalid("the key is not the one that the container commits to")


def seal_terms(secret: bytes, salt: bytes, *, is_private: bool, blob: bytes, size_bytes: int) -> SealTerms:
    """Return what stands in a specification: of the key, of the results' key, and of the sealed secrets."""
    key_hash = container_key_hash(container_key(secret, salt))
    return SealTerms(salt, key_hash, results_public_key(secret, salt), int(is_private), blob, size_bytes)


def part_key(key: bytes, purpose: str, number: int = 0) -> bytes:
    """Return the key of one part of a container."""
    return _expand(key, ["dekube container part", purpose, number])


def mount_key(key: bytes, number: int) -> bytes:
    """Return the key of a mount, by its place in the specification."""
    return part_key(key, "mount", number)


def secrets_key(key: bytes) -> bytes:
    """Return the key of the sealed secrets."""
    return part_key(key, "secrets")


def _results_secret(secret: bytes, salt: bytes) -> bytes:
    return _expand(digest(b"task-key-secret", secret), ["dekube container results", salt])


def results_public_key(secret: bytes, salt: bytes) -> bytes:
    """Return the public key that results are sealed to."""
    return public_key_of(_results_secret(secret, salt))


def result_plain_size(sealed: int) -> int:
    """Return the most plain bytes of a result that has ``sealed`` bytes at most."""
    return plain_size(sealed - RESULT_HEAD_BYTES)


def result_size(size: int) -> int:
    """Return the bytes of a sealed result of ``size`` plain bytes."""
    return RESULT_HEAD_BYTES + stream_size(size)


def seal_result(
    terms: SealTerms, content_key: bytes, salt: bytes, content: Iterable[bytes], *, task: bytes, what: str
) -> Iterator[bytes]:
    """Yield a result sealed to its requester; ``content_key`` and ``salt`` are fresh. Raises WrapInvalid."""
    yield wrap_result_key(content_key, terms.results_key, task=task, what=what)
    yield from seal_stream(content_key, salt, content)


def open_result(
    secret: bytes, terms: SealTerms, sealed: Iterable[bytes], *, task: bytes, what: str
) -> Iterator[bytes]:
    """Yield a plain result, with the secret of its requester's account. Raises WrapInvalid, StreamInvalid."""
    parts = iter(sealed)
    head = b""
    while len(head) < RESULT_HEAD_BYTES:
        part = next(parts, None)
        if part is None:
            raise StreamInvalid("the sealed result is shorter than its key")
        head += part
    one = _results_secret(secret, terms.salt)
    key = unwrap_result_key(head[:RESULT_HEAD_BYTES], one, task=task, what=what)

    def rest() -> Iterator[bytes]:
        yield head[RESULT_HEAD_BYTES:]
        yield from parts

    yield from open_stream(key, rest())


def _expand(key: bytes, info: list[str | int | bytes]) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=encode([*info])).derive(key)
