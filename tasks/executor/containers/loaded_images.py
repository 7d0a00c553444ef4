"""Images that come as archives: checked, loaded into an engine, and found again for their tasks (R147).

An engine knows an image by the digest of its manifest or of its configuration. Which one it is, and for whom the
image is here, stands in a file of this node.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple

import trio

from tasks.executor.containers.errors import DigestMismatch, ImageTooLarge, ImageUnavailable
from tasks.executor.containers.request import ContainerRequest
from tasks.kinds.image_archives import ArchivedImage, ImageInvalid, LayersTooLarge, engine_archive, read_image

__all__ = ["LoadedNotes", "checked_archive", "sent"]

KEYS_MAX: Final = 16
"""Archives, or keys of private tasks, that one image is known to have come for; the oldest are forgotten."""
NOTE_BYTES_MAX: Final = 1 << 14


class _Note(NamedTuple):
    """The id of an image's configuration, and for whom it was loaded."""

    config: str
    keys: tuple[str, ...]


class LoadedNotes:
    """Which images came as archives. Blocking: each is a small file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, digest: bytes) -> Path:
        return self._folder / f"{digest.hex()}.loaded"

    def _read(self, digest: bytes) -> _Note | None:
        try:
            with self._path(digest).open("rb") as file:
                config, *keys = json.loads(file.read(NOTE_BYTES_MAX))
        except (OSError, ValueError, TypeError):
            return None
        return _Note(str(config), tuple(map(str, keys)))

    def ids(self, request: ContainerRequest) -> tuple[str, ...]:
        """Return the ids that the image of a request may have here; none if it did not come for such a task."""
        note = self._read(request.image.digest)
        if note is None or request.archive.hex() not in note.keys:
            return ()
        return request.image.name, note.config

    def put(self, request: ContainerRequest, image: ArchivedImage) -> None:
        """Note that an image came for a task. Raises OSError."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        known, key = self._read(request.image.digest), request.archive.hex()
        others = [one for one in (known.keys if known else ()) if one != key]
        path = self._path(request.image.digest)
        new = path.with_suffix(".new")
        new.write_text(json.dumps([f"sha256:{image.config_digest.hex()}", *others[1 - KEYS_MAX :], key]))
        new.replace(path)

    def remove(self, digest: str) -> None:
        """Forget an image."""
        (self._folder / f"{digest}.loaded").unlink(missing_ok=True)


def checked_archive(request: ContainerRequest, file: IO[bytes], limit_bytes: int) -> ArchivedImage:
    """Return the image in an archive, all of it compared with its hashes. Blocking.

    Raises ImageUnavailable for an archive that is none, ImageTooLarge, DigestMismatch.
    """
    try:
        found = read_image(file, unpacked_max=limit_bytes)
    except LayersTooLarge as error:
        raise ImageTooLarge(f"{request.image.reference}: {error}: {limit_bytes}") from None
    except ImageInvalid as error:
        raise ImageUnavailable(f"{request.image.reference}: {error}") from None
    if found.digest != request.image.digest:
        raise DigestMismatch(f"{request.image.reference}: the archive has sha256:{found.digest.hex()}")
    return found


async def sent(image: ArchivedImage, file: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield what an engine loads, read from the archive that was checked."""
    pieces: Iterator[bytes] = engine_archive(image, file)
    while (piece := await trio.to_thread.run_sync(partial(next, pieces, None))) is not None:
        if piece:
            yield piece
