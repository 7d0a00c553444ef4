"""What a target of the fuzzer is, and the runs that most decoders share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError

Raises = tuple[type[Exception], ...]
MALFORMED: Raises = (DecodeError,)


@dataclass(frozen=True)
class Target:
    """One decoder: ``run`` reads bytes, checks what comes back and raises nothing but ``raises``."""

    run: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    covers: tuple[str, ...]
    raises: Raises = MALFORMED
    cost: int = 1
    """How many times fewer inputs it gets with every run of the tests; in a campaign all get as many."""
    memory: int = 40
    """Peak bytes allowed for each byte of input; what is fixed is allowed on top."""


def canonical(decoder: Callable[[bytes], Any], encoder: Callable[[Any], bytes]) -> Callable[[bytes], object]:
    """Return a run that demands the very bytes back."""

    def run(data: bytes) -> None:
        value = decoder(data)
        assert encoder(value) == data, "a value with two spellings"

    return run


def of_value(reader: Callable[[Any], Any], writer: Callable[[Any], Any]) -> Callable[[bytes], object]:
    """Return a run for a reader of decoded values."""
    return canonical(lambda data: reader(decode(data, limit_bytes=1 << 20)), lambda value: encode(writer(value)))


def of_text(reader: Callable[[str], object]) -> Callable[[bytes], object]:
    """Return a run for a reader of text."""
    return lambda data: reader(data.decode("utf-8", "replace"))


@cache
def scratch() -> Path:
    """A folder in memory where there is one, for readers that take a path."""
    shm = Path("/dev/shm")
    folder = tempfile.TemporaryDirectory(prefix="fuzz-", dir=shm if shm.is_dir() else None)
    _keep.append(folder)
    return Path(folder.name)


_keep: list[Any] = []


def of_file(name: str, reader: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a run for a reader of a file."""
    path = scratch() / name

    @cache
    def file() -> int:
        found = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.fchmod(found, 0o600)
        return found

    def run(data: bytes) -> object:
        overwrite(file(), data)
        return reader(path)

    return run


def overwrite(file: int, data: bytes) -> None:
    """Make ``data`` the content of a file that is open: a tenth of the cost of a new file."""
    os.pwrite(file, data, 0)
    os.ftruncate(file, len(data))
