"""Errors of keys, wraps and chunks; their codes are stable."""

from __future__ import annotations

from state.primitives.errors import ProtocolError

__all__ = ["ChunkInvalid", "KeyInvalid", "SecretsInvalid", "SharesInvalid", "StreamInvalid", "WrapInvalid"]


class KeyInvalid(ProtocolError):
    """A key that is not the one the task commits to."""

    code = "key_invalid"


class WrapInvalid(ProtocolError):
    """A wrapped key that the holder of the one-time key cannot open, or that is for another purpose."""

    code = "wrap_invalid"


class ChunkInvalid(ProtocolError):
    """A chunk that is not the one its blob commits to."""

    code = "chunk_invalid"


class SharesInvalid(ProtocolError):
    """Shares that do not make the task's key: too few, of another task, or false."""

    code = "shares_invalid"


class StreamInvalid(ProtocolError):
    """A sealed stream that was cut or changed, or is under another key."""

    code = "stream_invalid"


class SecretsInvalid(ProtocolError):
    """Secrets of a container with a name, a size or a form that no machine takes; no value is told."""

    code = "secrets_invalid"
