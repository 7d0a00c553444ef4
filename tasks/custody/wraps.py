"""Wrapping keys for one machine: HPKE (RFC 9180) to a fresh one-time key of the seat (market.md 11.2).

A worker gets the task's key, a verifier the keys of what it has to read, never the task's. A wrap is bound to the
task, the holder, and what it carries: it opens for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError
from tasks.custody.errors import WrapInvalid
from tasks.custody.keys import INPUTS_MAX, KEY_BYTES, KeyName, names_hash
from tasks.custody.shares import HOLDERS_MAX, Share

__all__ = [
    "OVERHEAD_BYTES",
    "PUBLIC_KEY_BYTES",
    "WRAP_BYTES_MAX",
    "public_key_of",
    "unwrap_keys",
    "unwrap_result_key",
    "unwrap_share",
    "unwrap_task_key",
    "wrap_keys",
    "wrap_result_key",
    "wrap_share",
    "wrap_task_key",
]

PUBLIC_KEY_BYTES: Final = 32
SECRET_BYTES: Final = 32
KEYS_MAX: Final = INPUTS_MAX + 8
"""Keys that one seat reads: all inputs, and the windows before and after what it checks."""
OVERHEAD_BYTES: Final = 48
"""The encapsulated key and the tag."""
WRAP_BYTES_MAX: Final = OVERHEAD_BYTES + 8 + KEYS_MAX * (KEY_BYTES + 16)

_SUITE: Final = hpke.Suite(hpke.KEM.X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.CHACHA20_POLY1305)
_TASK_KEY, _KEYS, _SHARE, _RESULT = b"task key", b"keys", b"share", b"result "


def public_key_of(secret: bytes) -> bytes:
    """Return the public half of a one-time secret of 32 random bytes. Raises WrapInvalid."""
    return _private(secret).public_key().public_bytes_raw()


def _private(secret: bytes) -> X25519PrivateKey:
    if len(secret) != SECRET_BYTES:
        raise WrapInvalid(f"a one-time secret has {SECRET_BYTES} bytes")
    return X25519PrivateKey.from_private_bytes(secret)


def _info(purpose: bytes, task: bytes, holder: bytes, names: Sequence[KeyName]) -> bytes:
    return encode(["dekube wrap", purpose, task, holder, names_hash(names)])


def _seal(content: bytes, public_key: bytes, info: bytes) -> bytes:
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise WrapInvalid(f"a one-time key has {PUBLIC_KEY_BYTES} bytes")
    try:
        return _SUITE.encrypt(content, X25519PublicKey.from_public_bytes(public_key), info)
    except ValueError:
        raise WrapInvalid("nothing can be wrapped to this one-time key") from None


def _open(wrap: bytes, secret: bytes, info: bytes) -> bytes:
    if not OVERHEAD_BYTES < len(wrap) <= WRAP_BYTES_MAX:
        raise WrapInvalid(f"a wrap of {len(wrap)} bytes")
    try:
        return _SUITE.decrypt(wrap, _private(secret), info)
    except (InvalidTag, ValueError):
        raise WrapInvalid("the wrap does not open with this one-time key for this purpose") from None


def wrap_task_key(task_key: bytes, public_key: bytes, *, task: bytes, worker: bytes) -> bytes:
    """Wrap a task's key for the worker that the chain has assigned. Raises WrapInvalid."""
    if len(task_key) != KEY_BYTES:
        raise WrapInvalid(f"a task's key has {KEY_BYTES} bytes")
    return _seal(task_key, public_key, _info(_TASK_KEY, task, worker, ()))


def unwrap_task_key(wrap: bytes, secret: bytes, *, task: bytes, worker: bytes) -> bytes:
    """Return the task's key. Raises WrapInvalid; the caller checks it against the task's root of keys."""
    key = _open(wrap, secret, _info(_TASK_KEY, task, worker, ()))
    if len(key) != KEY_BYTES:
        raise WrapInvalid(f"a task's key has {KEY_BYTES} bytes")
    return key


def wrap_share(share: Share, public_key: bytes, *, task: bytes, worker: bytes) -> bytes:
    """Wrap a share of a task's key for the worker that the chain has assigned. Raises WrapInvalid."""
    return _seal(encode([*share]), public_key, _info(_SHARE, task, worker, ()))


def unwrap_share(wrap: bytes, secret: bytes, *, task: bytes, worker: bytes) -> Share:
    """Return a share. Raises WrapInvalid; the caller checks it against the task's shares."""
    content = _open(wrap, secret, _info(_SHARE, task, worker, ()))
    try:
        value = decode(content, limit_bytes=WRAP_BYTES_MAX)
    except DecodeError as error:
        raise WrapInvalid(str(error)) from None
    match value:
        case [int(holder), bytes(point), bytes(salt)] if 0 <= holder < HOLDERS_MAX:
            return Share(holder, point, salt)
    raise WrapInvalid("not a share of a key")


def wrap_keys(keys: Mapping[KeyName, bytes], public_key: bytes, *, task: bytes, holder: bytes) -> bytes:
    """Wrap keys of inputs and windows for a seat. Raises WrapInvalid."""
    names = sorted(keys)
    if not 0 < len(names) <= KEYS_MAX or any(len(key) != KEY_BYTES for key in keys.values()):
        raise WrapInvalid(f"1 to {KEYS_MAX} keys of {KEY_BYTES} bytes")
    content = encode([[*name, keys[name]] for name in names])
    return _seal(content, public_key, _info(_KEYS, task, holder, names))


def unwrap_keys(
    wrap: bytes, secret: bytes, names: Sequence[KeyName], *, task: bytes, holder: bytes
) -> dict[KeyName, bytes]:
    """Return the keys of ``names``, which the seat has to read. Raises WrapInvalid."""
    names = sorted(names)
    content = _open(wrap, secret, _info(_KEYS, task, holder, names))
    keys: list[tuple[KeyName, bytes]] = []
    try:
        value = decode(content, limit_bytes=WRAP_BYTES_MAX)
    except DecodeError as error:
        raise WrapInvalid(str(error)) from None
    for item in value if isinstance(value, list) else ():
        match item:
            case [int(kind), int(number), bytes(key)] if len(key) == KEY_BYTES:
                keys.append((KeyName(kind, number), key))
            case _:
                raise WrapInvalid("not a key with its name")
    if [name for name, _ in keys] != names:
        raise WrapInvalid("the wrap carries other keys than the seat has to read, or not in their order")
    return dict(keys)


def wrap_result_key(content_key: bytes, public_key: bytes, *, task: bytes, what: str) -> bytes:
    """Wrap the key of a container's result, ``what`` it is, for its requester. Raises WrapInvalid."""
    if len(content_key) != KEY_BYTES:
        raise WrapInvalid(f"the key of a result has {KEY_BYTES} bytes")
    return _seal(content_key, public_key, _info(_RESULT + what.encode(), task, b"", ()))


def unwrap_result_key(wrap: bytes, secret: bytes, *, task: bytes, what: str) -> bytes:
    """Return the key of a container's result. Raises WrapInvalid."""
    key = _open(wrap, secret, _info(_RESULT + what.encode(), task, b"", ()))
    if len(key) != KEY_BYTES:
        raise WrapInvalid(f"the key of a result has {KEY_BYTES} bytes")
    return key
