"""Keys of a container whose inputs, secrets, checkpoints or results are sealed (R98, R99, R127).

The task's key goes to the machine that runs the container, as keys of private tasks do. Results are sealed to a
public key of the requester: no machine opens what another one made, also after it has left. A checkpoint has to be
read by the next machine. So each run of a machine has a key of its own, from which the earlier ones follow, and no
later one: what is made after a machine has left does not open with what it knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
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
    "checkpoint_plain_size",
    "checkpoint_size",
    "container_key",
    "container_key_hash",
    "earlier_key",
    "image_key",
    "mount_key",
    "open_checkpoint",
    "open_result",
    "part_key",
    "result_plain_size",
    "result_size",
    "results_public_key",
    "seal_checkpoint",
    "seal_result",
    "seal_terms",
    "secrets_key",
]

OUTPUT: Final = "output"
LOG: Final = "log"
CHECKPOINT: Final = "checkpoint"
RUN_BYTES: Final = 1
"""The number of the run that made a checkpoint stands before its stream."""
RESULT_HEAD_BYTES: Final = OVERHEAD_BYTES + KEY_BYTES


def container_key(secret: bytes, salt: bytes, later: int = 0) -> bytes:
    """Return the key of a container's task, from the secret of its requester's account and a fresh salt.

    ``later``: how many runs may follow on the one whose key is wanted. With 0 it is that of the last run.
    """
    return earlier_key(_expand(digest(b"task-key-secret", secret), ["dekube container key", salt]), later)


def earlier_key(key: bytes, runs: int) -> bytes:
    """Return the key of the run that was ``runs`` before that of ``key``; there is no way back (R127)."""
    for _ in range(runs):
        key = _expand(key, ["dekube container run"])
    return key


def container_key_hash(key: bytes) -> bytes:
    """Return what the specification commits to instead of the key; ``key`` is that of the first run."""
    return digest(b"container-key", key)


def check_container_key(key: bytes, terms: SealTerms, run: int = 0) -> None:
    """Raise KeyInvalid unless ``key`` is that of run ``run`` which a container's specification commits to."""
    if len(key) != KEY_BYTES or container_key_hash(earlier_key(key, run)) != terms.key_hash:
        raise KeyInvalid("the key is not the one that the container commits to")


def seal_terms(
    secret: bytes, salt: bytes, *, is_private: bool, blob: bytes, size_bytes: int, later: int = 0
) -> SealTerms:  # fmt: skip
    """Return what stands in a specification: of the key, of the results' key, and of the sealed secrets.

    ``later`` runs of other machines may follow on the first one.
    """
    key_hash = container_key_hash(container_key(secret, salt, later))
    return SealTerms(salt, key_hash, results_public_key(secret, salt), int(is_private), blob, size_bytes)


def part_key(key: bytes, purpose: str, number: int = 0) -> bytes:
    """Return the key of one part of a container, from that of a run."""
    return _expand(key, ["dekube container part", purpose, number])


def mount_key(key: bytes, number: int) -> bytes:
    """Return the key of a mount, by its place in the specification."""
    return part_key(key, "mount", number)


def image_key(key: bytes) -> bytes:
    """Return the key of an image that comes as a blob."""
    return part_key(key, "image")


def secrets_key(key: bytes) -> bytes:
    """Return the key of the sealed secrets."""
    return part_key(key, "secrets")


def checkpoint_plain_size(sealed: int) -> int:
    """Return the most plain bytes of a checkpoint that has ``sealed`` bytes at most."""
    return plain_size(sealed - RUN_BYTES)


def checkpoint_size(size: int) -> int:
    """Return the bytes of a sealed checkpoint of ``size`` plain bytes."""
    return RUN_BYTES + stream_size(size)


def seal_checkpoint(key: bytes, run: int, salt: bytes, content: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a checkpoint of run ``run``, sealed under the ``key`` of that run; ``salt`` is fresh.

    Raises StreamInvalid.
    """
    yield run.to_bytes(RUN_BYTES, "big")
    yield from seal_stream(part_key(key, CHECKPOINT), salt, content)


def open_checkpoint(key: bytes, run: int, sealed: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the plain content of a checkpoint of this run or an earlier one, with the ``key`` of run ``run``.

    Raises StreamInvalid, also for one that a later run has made.
    """
    parts = iter(sealed)
    head = b""
    while len(head) < RUN_BYTES:
        part = next(parts, None)
        if part is None:
            raise StreamInvalid("the sealed checkpoint is empty")
        head += part
    made = int.from_bytes(head[:RUN_BYTES], "big")
    if made > run:
        raise StreamInvalid(f"a checkpoint of run {made} does not open with the key of run {run}")
    one = part_key(earlier_key(key, run - made), CHECKPOINT)
    yield from open_stream(one, chain((head[RUN_BYTES:],), parts))


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

    yield from open_stream(key, chain((head[RESULT_HEAD_BYTES:],), parts))


def _expand(key: bytes, info: list[str | int | bytes]) -> bytes:
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=encode([*info])).derive(key)
