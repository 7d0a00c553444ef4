"""Images on an engine: pulled by digest, bounded in size, checked at each use, and removed when unused.

Only an image that this node pulled is ever removed. A tag with the node's address marks it. An image that was
there before has none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
import trio

from tasks.executor.containers.backend import OnPull, PullProgress
from tasks.executor.containers.engine import Engine, RegistryLogin, quoted
from tasks.executor.containers.errors import (
    DigestMismatch,
    EngineError,
    ImageTooLarge,
    ImageUnavailable,
    NoRoom,
)
from tasks.executor.containers.loaded_images import LoadedNotes, checked_archive, sent
from tasks.executor.containers.mirrors import NO_MIRRORS, Mirrors
from tasks.executor.containers.request import ContainerRequest, Image
from tasks.executor.containers.settings import ImageFacts, image_facts

__all__ = ["Images", "PullTotals"]

_log = structlog.get_logger("containers")

LAYERS_MAX: Final = 512
DISK_SPARE_BYTES: Final = 1 << 30
"""Of the engine's disk, what no image may take."""


class PullTotals:
    """Bytes of the layers of a pull: known, arrived."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[int, int]] = {}

    def take(self, line: Mapping[str, object]) -> PullProgress:
        """Take a line of the engine and return the sums. Raises ImageTooLarge for too many layers."""
        detail, name = line.get("progressDetail"), line.get("id")
        if line.get("status") == "Downloading" and isinstance(detail, dict) and isinstance(name, str):
            current, total = detail.get("current"), detail.get("total")
            if isinstance(current, int) and isinstance(total, int):
                if name not in self._layers and len(self._layers) >= LAYERS_MAX:
                    raise ImageTooLarge(f"more than {LAYERS_MAX} layers")
                self._layers[name] = current, max(total, current)
        sums = [sum(values) for values in zip(*self._layers.values(), strict=True)] or [0, 0]
        return PullProgress(*sums)


class Images:
    """The images of one node on one engine. ``folder`` keeps when each was last used."""

    def __init__(
        self, engine: Engine, node: bytes, folder: Path, logins: Mapping[str, RegistryLogin], *, bytes_max: int,
        kept_bytes_max: int, mirrors: Mirrors = NO_MIRRORS,
    ) -> None:  # fmt: skip
        self._mirrors = mirrors
        self._engine, self._folder, self._logins = engine, folder, logins
        self._own = f"dekube-{node.hex()[:16]}"
        self._bytes_max, self._kept_bytes_max = bytes_max, kept_bytes_max
        self._loaded = LoadedNotes(folder)

    async def find(self, request: ContainerRequest) -> ImageFacts | None:
        """Return the image of a request if it is here. Raises DigestMismatch if the engine names another one."""
        source = self._mirrors.source(request)
        names = tuple(dict.fromkeys((request.image.reference, request.image.name, source.reference)))
        if request.archive:
            names = await trio.to_thread.run_sync(self._loaded.ids, request)
        for name in names:
            try:
                found = image_facts(await self._engine.get(f"/images/{quoted(name)}/json"))
            except EngineError as error:
                if error.status != 404:
                    raise
                continue
            if not (found.image_id in names if request.archive else found.is_asked(request)):
                raise DigestMismatch(f"{name}: the engine has {found.image_id} under this name")
            return found
        return None

    async def bring(self, request: ContainerRequest, root: str, on_pull: OnPull) -> ImageFacts:
        """Return the image of a request, pulled if it is missing; ``root`` is the engine's folder.

        Raises ImageUnavailable, ImageTooLarge, DigestMismatch, NoRoom.
        """
        found, login = await self.find(request), self._login_of(request)
        if found is None and request.archive:
            raise ImageUnavailable(f"{request.image.reference}: it is gone from the engine")
        if found is None:
            if request.secrets.login is not None:  # written first: an image that it brings is never without
                await trio.to_thread.run_sync(self._note_login, request.image)
            source = self._mirrors.source(request)
            await self._pull(source, login, root, on_pull)
            await trio.to_thread.run_sync(self._note_reference, request.image.digest, source.reference)
            found = await self.find(request)
            if found is None:
                raise ImageUnavailable(f"{request.image.reference}: the engine does not have it after the pull")
            await self._engine.post(
                f"/images/{found.image_id}/tag", repo=self._own, tag=request.image.digest.hex()
            )
        elif self._login_mark(request.image).exists() and not request.archive:
            # The registry says whether this task may have it too: a pull of what is here might not ask.
            try:
                await self._engine.ask_registry(request.image.reference, login)
            except EngineError as error:
                raise ImageUnavailable(f"{request.image.reference}: {error}") from None
        if found.size_bytes > self._bytes_max:
            await self._remove(request.image.digest.hex())
            raise ImageTooLarge(f"{found.size_bytes} bytes unpacked, limit {self._bytes_max}")
        await trio.to_thread.run_sync(self._note_use, request)
        return found

    async def load(self, request: ContainerRequest, archive: Path, root: str) -> None:
        """Check an archive and load its image; ``root`` is the engine's folder.

        Raises ImageUnavailable, ImageTooLarge, DigestMismatch, NoRoom.
        """
        with await trio.to_thread.run_sync(archive.open, "rb") as file:
            image = await trio.to_thread.run_sync(checked_archive, request, file, self._bytes_max)
            # The engine unpacks the archive into a folder of its own before it stacks the layers.
            needed = request.archive_bytes + image.unpacked_bytes + DISK_SPARE_BYTES
            if _free_bytes(root) < needed:
                raise NoRoom(f"{needed} bytes are needed to load the image")
            if request.is_private:  # written first, as for a login: such an image goes with its task
                await trio.to_thread.run_sync(self._note_login, request.image)
            await self._engine.load(sent(image, file))
        await trio.to_thread.run_sync(self._loaded.put, request, image)
        found = await self.find(request)
        if found is None:
            raise ImageUnavailable(f"{request.image.reference}: the engine does not have it after it was loaded")
        await self._engine.post(f"/images/{found.image_id}/tag", repo=self._own, tag=request.image.digest.hex())

    def _login_of(self, request: ContainerRequest) -> RegistryLogin | None:
        """Return the login for a request's registry: that of its task, or the operator's."""
        own = request.secrets.login
        if own is None:
            return self._logins.get(self._mirrors.source(request).registry)
        return RegistryLogin(request.image.registry, *own)

    def _login_mark(self, image: Image) -> Path:
        return self._folder / f"{image.digest.hex()}.login"

    def _note_login(self, image: Image) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._login_mark(image).write_bytes(b"")

    async def release(self) -> None:
        """Remove images that logins of tasks have brought, unless a container needs them."""
        for mark in await trio.to_thread.run_sync(lambda: list(self._folder.glob("*.login"))):
            await self._remove(mark.stem)

    async def _pull(self, image: Image, login: RegistryLogin | None, root: str, on_pull: OnPull) -> None:
        totals = PullTotals()
        try:
            async for line in self._engine.pull(image.repository, image.name, login):
                if "error" in line:
                    raise _pull_error(image, str(line["error"]))
                now = totals.take(line)
                if now.total > self._bytes_max:
                    raise ImageTooLarge(f"more than {now.total} bytes to fetch, limit {self._bytes_max}")
                if _free_bytes(root) < DISK_SPARE_BYTES:
                    raise NoRoom(f"less than {DISK_SPARE_BYTES} bytes are free beside the image")
                on_pull(now)
        except EngineError as error:
            raise _pull_error(image, str(error)) from None

    def _note_use(self, request: ContainerRequest) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        used = self._folder / request.image.digest.hex()
        if request.archive or not used.exists():
            # What was loaded has the node's tag alone, and what was pulled a name of its registry too.
            self._note_reference(request.image.digest, "" if request.archive else request.image.reference)
        os.utime(used)

    def _note_reference(self, digest: bytes, reference: str) -> None:
        """Note the name under which the engine has an image: the registry's, or the mirror's."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / digest.hex()).write_text(reference, encoding="ascii")

    async def sweep(self) -> int:
        """Remove the longest unused own images until the rest fits the limit; return how many went."""
        kept = await self._own_images()
        removed = 0
        for digest, size in sorted(kept.items(), key=lambda one: self._used_at(one[0])):
            if sum(kept.values()) <= self._kept_bytes_max:
                break
            if await self._remove(digest):
                removed += 1
                kept[digest] -= size
        return removed

    async def _own_images(self) -> dict[str, int]:
        """Return the sizes of the images with this node's tag, by digest."""
        found = await self._engine.get("/images/json")
        own: dict[str, int] = {}
        for one in found if isinstance(found, list) else ():
            for tag in one.get("RepoTags") or ():
                name, _, digest = str(tag).rpartition(":")
                if name == self._own:
                    own[digest] = int(one.get("Size", 0))
        return own

    def _noted(self, digest: str) -> tuple[str, ...]:
        """Return the reference by which an image was pulled, if it is noted."""
        try:
            return tuple(filter(None, [(self._folder / digest).read_text(encoding="ascii")]))
        except (OSError, UnicodeError):
            return ()

    def _used_at(self, digest: str) -> float:
        try:
            return (self._folder / digest).stat().st_mtime
        except OSError:
            return 0.0

    async def _remove(self, digest: str) -> bool:
        """Remove an image that this node pulled, unless a container or another owner's tag needs it."""
        tag = f"{self._own}:{digest}"
        try:
            for name in (*await trio.to_thread.run_sync(self._noted, digest), tag):
                await self._engine.delete(f"/images/{quoted(name)}")
        except EngineError as error:
            if error.status not in (404, 409):
                raise
            return False
        (self._folder / digest).unlink(missing_ok=True)
        (self._folder / f"{digest}.login").unlink(missing_ok=True)
        self._loaded.remove(digest)
        _log.info("an image was removed", digest=digest)
        return True


def _pull_error(image: Image, text: str) -> DigestMismatch | ImageUnavailable:
    shown = " ".join(text.split())[:300]
    if "digest" in shown and ("verif" in shown or "mismatch" in shown or "unexpected" in shown):
        return DigestMismatch(f"{image.reference}: {shown}")
    return ImageUnavailable(f"{image.reference}: {shown}")


def _free_bytes(root: str) -> int:
    """Return what is free on the engine's disk; unlimited where this node cannot see it."""
    try:
        found = os.statvfs(root)
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize
