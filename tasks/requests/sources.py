"""Where inputs come from and results go to: a path, or the URL of a store. Names only; nothing is read here."""

from __future__ import annotations

import posixpath
import re
import unicodedata
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from state.primitives.errors import ConfigError

__all__ = [
    "BlobPlace",
    "LocalPlace",
    "ObjectPlace",
    "OutputPlace",
    "SourceInvalid",
    "StoragePlace",
    "is_output",
    "is_url",
    "located",
    "output_of",
    "place_of",
]  # fmt: skip

KEY_BYTES_MAX: Final = 1_024
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_BLOB: Final = "blob:"
_BLOB_NAME: Final = re.compile(r"(?:0x)?([0-9a-f]{64})")
_TASK: Final = "task:"
_OUTPUT: Final = re.compile(r"(?:0x)?([0-9a-f]{64})(?:/([^\0\\]{1,1024}))?")
_EXPECTED: Final = "s3://BUCKET/PREFIX, file:///PATH, blob:NAME or a path expected"


class SourceInvalid(ConfigError):
    """The URL of a store is malformed, or of a store that is not known."""

    code = "store_url_invalid"


class LocalPlace(NamedTuple):
    """A file or folder of this machine."""

    path: str


class ObjectPlace(NamedTuple):
    """An object or a prefix of an S3 bucket; ``key`` has no slash at its ends.

    With ``is_folder`` the URL ended with a slash: only a prefix is meant.
    """

    bucket: str
    key: str
    is_folder: bool

    @property
    def url(self) -> str:
        """The URL."""
        return f"s3://{self.bucket}/{self.key}" + ("/" if self.is_folder and self.key else "")


class BlobPlace(NamedTuple):
    """A blob of the network: one file."""

    name: bytes


class OutputPlace(NamedTuple):
    """What the container of a task has left: its whole output folder, or the file or folder at ``path`` in it."""

    task: bytes
    path: str

    def __str__(self) -> str:
        return f"{_TASK}0x{self.task.hex()}" + (f"/{self.path}" if self.path else "")


StoragePlace: TypeAlias = LocalPlace | ObjectPlace | BlobPlace


def is_url(source: str) -> bool:
    """Whether a source is the URL of a store, rather than a path."""
    return _SCHEME.match(source) is not None or source.startswith(_BLOB)


def is_output(source: str) -> bool:
    """Whether a source of a mount is what a task has left."""
    return source.startswith(_TASK)


def output_of(source: str) -> OutputPlace:
    """Return what a source with ``is_output`` names. Raises SourceInvalid."""
    found = _OUTPUT.fullmatch(source, len(_TASK))
    path = "" if found is None else found[2] or ""
    if found is None or (path and any(part in ("", ".", "..") for part in path.split("/"))):
        raise SourceInvalid(
            "task:: the ID of a task expected, then /PATH of a file or folder of its output, or none"
        )
    return OutputPlace(bytes.fromhex(found[1]), path)


def located(file: str, source: str) -> str:
    """Return a source that a job file names: a relative path starts at the folder of the file."""
    return source if is_url(source) or is_output(source) else posixpath.join(posixpath.dirname(file), source)


def place_of(source: str) -> StoragePlace:
    """Return what a source names. Raises SourceInvalid; its text never repeats a part that may be a password."""
    if not is_url(source):
        return LocalPlace(source)
    if source.startswith(_BLOB):
        name = _BLOB_NAME.fullmatch(source, len(_BLOB))
        if name is None:
            raise SourceInvalid(f"blob:: 64 hex digits expected; {_EXPECTED}")
        return BlobPlace(bytes.fromhex(name[1]))
    scheme, _, rest = source.partition("://")
    match scheme.lower():
        case "s3":
            return _object_place(rest)
        case "file":
            return _file_place(source)
        case _:
            raise SourceInvalid(f"{scheme[:20]}://: not a store that is known; {_EXPECTED}")


def _object_place(rest: str) -> ObjectPlace:
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise SourceInvalid(f"s3://: not the name of a bucket; {_EXPECTED}. Keys stand in the environment")
    is_folder, key = not key or key.endswith("/"), key.removesuffix("/")
    parts = key.split("/") if key else []
    bad = len(key.encode(errors="replace")) > KEY_BYTES_MAX or any(part in ("", ".", "..") for part in parts)
    if bad or any(unicodedata.category(sign) in ("Cc", "Cs") for sign in key):
        raise SourceInvalid(f"s3://{bucket}/...: not a key; {_EXPECTED}")
    return ObjectPlace(bucket, key, is_folder)


def _file_place(source: str) -> LocalPlace:
    try:
        parts = urlsplit(source)
    except ValueError:
        raise SourceInvalid(f"file://: not a URL; {_EXPECTED}") from None
    path = unquote(parts.path)
    is_plain = not parts.query and not parts.fragment and parts.netloc in ("", "localhost")
    if not is_plain or not path.startswith("/") or "\0" in path:
        raise SourceInvalid(f"file://: a path of this machine expected; {_EXPECTED}")
    return LocalPlace(path)
