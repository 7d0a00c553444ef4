"""Keys of a task: one secret of its requester, and all others derived from it (market.md 11.1).

The task commits to all keys by a Merkle root over their hashes. A machine that is given a key checks it
before it fetches a byte, and every validator can judge a key that was revealed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.merkle import MerkleProof, MerkleTree, verify_merkle_proof
from tasks.custody.errors import KeyInvalid

__all__ = [
    "KEY_BYTES",
    "PUBLIC_TASK_KEY",
    "KeyCommitments",
    "KeyName",
    "KeyProof",
    "check_key",
    "derive_key",
    "input_key_name",
    "key_hash",
    "key_proof_from_value",
    "key_proof_to_value",
    "public_key_root",
    "window_key_name",
]

KEY_BYTES: Final = 32
PUBLIC_TASK_KEY: Final = bytes(KEY_BYTES)
"""The key of a task whose outputs are public: everybody knows it."""
INPUTS_MAX: Final = 64
"""Inputs of a task that have keys of their own."""
WINDOWS_MAX: Final = 10_000
KEYS_DEPTH_MAX: Final = 14
"""Hashes of the path of a key."""

_INPUT, _WINDOW = 1, 2


class KeyName(NamedTuple):
    """What a key is for: kind 1 is an input, kind 2 the output of a window; ``number`` is which one."""

    kind: int
    number: int


def input_key_name(number: int) -> KeyName:
    """Return the name of the key of an input. Raises KeyInvalid."""
    if not 0 <= number < INPUTS_MAX:
        raise KeyInvalid(f"input {number}: a task has up to {INPUTS_MAX} inputs with keys")
    return KeyName(_INPUT, number)


def window_key_name(number: int) -> KeyName:
    """Return the name of the key of a window's output. Raises KeyInvalid."""
    if not 0 <= number < WINDOWS_MAX:
        raise KeyInvalid(f"window {number}: a task has up to {WINDOWS_MAX} windows")
    return KeyName(_WINDOW, number)


def derive_key(task_key: bytes, name: KeyName) -> bytes:
    """Return the key of an input or a window: HKDF-Expand (RFC 5869) of the task's key. Raises KeyInvalid."""
    if len(task_key) != KEY_BYTES:
        raise KeyInvalid(f"a task's key has {KEY_BYTES} bytes")
    return HKDFExpand(algorithm=SHA256(), length=KEY_BYTES, info=encode(["dekube key", *name])).derive(task_key)


def key_hash(name: KeyName, key: bytes) -> bytes:
    """Return what a task commits to instead of a key."""
    return digest(b"task-key-hash", encode([*name, key]))


class KeyProof(NamedTuple):
    """The siblings that tie a key's hash to the root that stands in the task."""

    position: int
    keys: int
    siblings: tuple[bytes, ...]


def key_proof_to_value(proof: KeyProof) -> list[Value]:
    """Return ``proof`` as a codec value."""
    return [proof.position, proof.keys, list(proof.siblings)]


def key_proof_from_value(value: Any) -> KeyProof:
    """Return the proof of a decoded codec value. Raises DecodeError."""
    match value:
        case [int(position), int(keys), list(siblings)] if (
            0 <= position < keys <= INPUTS_MAX + WINDOWS_MAX and len(siblings) <= KEYS_DEPTH_MAX
            and all(type(item) is bytes and len(item) == HASH_BYTES for item in siblings)
        ):  # fmt: skip
            return KeyProof(position, keys, tuple(siblings))
    raise DecodeError("not the path of a key")


class KeyCommitments:
    """The tree over the hashes of a task's keys, as its requester makes it: inputs first, then windows."""

    def __init__(self, task_key: bytes, inputs: int, windows: int) -> None:
        """Raises KeyInvalid for no key at all or too many."""
        names = [input_key_name(at) for at in range(inputs)] + [window_key_name(at) for at in range(windows)]
        if not names:
            raise KeyInvalid("a task without keys commits to none")
        self._places = {name: at for at, name in enumerate(names)}
        self._tree = MerkleTree([key_hash(name, derive_key(task_key, name)) for name in names])

    @property
    def root(self) -> bytes:
        """What stands in the task."""
        return self._tree.root

    def proof(self, name: KeyName) -> KeyProof:
        """Return the proof of one key. Raises KeyInvalid for a name that the task does not have."""
        at = self._places.get(name)
        if at is None:
            raise KeyInvalid("the task has no such key")
        return KeyProof(at, self._tree.leaves, self._tree.siblings(at))


@lru_cache(maxsize=64)
def public_key_root(windows: int) -> bytes:
    """Return the root of keys of a task of ``windows`` windows whose outputs are public."""
    return KeyCommitments(PUBLIC_TASK_KEY, 0, windows).root


def check_key(root: bytes, inputs: int, windows: int, name: KeyName, key: bytes, proof: KeyProof) -> None:
    """Check that ``key`` is the one that a task of so many inputs and windows commits to. Raises KeyInvalid."""
    position = name.number if name.kind == _INPUT else inputs + name.number
    bound = inputs if name.kind == _INPUT else windows
    if name.kind not in (_INPUT, _WINDOW) or not 0 <= name.number < bound:
        raise KeyInvalid("the task has no such key")
    if len(key) != KEY_BYTES or (proof.position, proof.keys) != (position, inputs + windows):
        raise KeyInvalid("the proof is of another key")
    path = MerkleProof(proof.position, proof.keys, proof.siblings)
    if not verify_merkle_proof(root, key_hash(name, key), path):
        raise KeyInvalid("the key is not the one that the task commits to")


def names_hash(names: Sequence[KeyName]) -> bytes:
    """Return the hash of a list of names: what a wrap is bound to, besides task and holder."""
    data = digest(b"task-key-names", encode([list(name) for name in names]))
    assert len(data) == HASH_BYTES
    return data
