"""A cluster whose owner has a registry for images that come as archives: the node pushes them there (R147).

Nothing can be loaded into the machines of a cluster over its API. A private image has a repository of its own,
with a name that nobody can guess, until its container has started: a kubelet asks for it no more then.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import structlog
import trio

from tasks.executor.containers.backend import EngineFacts, OnPull
from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable, ImageUnavailable
from tasks.executor.containers.kubernetes.backend import KubernetesBackend, KubernetesOptions
from tasks.executor.containers.kubernetes.image_registry import ImageRegistry
from tasks.executor.containers.loaded_images import checked_archive
from tasks.executor.containers.request import ContainerRequest, Image
from tasks.kinds.container import ARCHIVED

__all__ = ["ClusterWithRegistry"]

_log = structlog.get_logger("containers")

IMAGES_KEPT: Final = 16
"""Images of this node in the registry: the longest unused ones beyond are deleted."""
UNUSED_S: Final = 3_600.0
"""A private image whose container did not start is deleted after so long."""
_GIB: Final = 1 << 30


class _Pushed(NamedTuple):
    """An image in the registry: the name of its repository, and whether it is of a private container."""

    name: str
    is_private: bool
    digest: bytes


class ClusterWithRegistry(KubernetesBackend):
    """One node's containers in one cluster, with images from archives too (``LoadsImages``)."""

    def __init__(self, options: KubernetesOptions, node: bytes, folder: Path, registry: ImageRegistry) -> None:
        super().__init__(options, node, folder)
        self._registry, self._pushed = registry, folder / "pushed"
        self._image_bytes_max = options.disk_gib * _GIB

    def _note(self, request: ContainerRequest) -> Path:
        return self._pushed / f"{request.image.digest.hex()}-{request.archive.hex()}"

    def _placed(self, request: ContainerRequest) -> ContainerRequest:
        """Return the request with the place of its image in the registry. Raises ImageUnavailable."""
        if not request.archive:
            return request
        pushed = _read_note(self._note(request))
        if pushed is None:
            raise ImageUnavailable(f"{request.image.reference}: it is gone from the registry")
        return replace(request, image=Image(self._registry.repository(pushed.name), request.image.digest))

    async def probe(self) -> EngineFacts:
        """Tell what the cluster grants, and whether its registry answers (``ContainerBackend``)."""
        facts, has_archives = await super().probe(), True
        try:
            await self._registry.check()
        except (EngineUnavailable, ImageUnavailable) as error:
            _log.warning("images that come as files are not taken", error=str(error))
            has_archives = False
        return replace(facts, has_archives=has_archives)

    async def check(self, request: ContainerRequest) -> EngineFacts:
        """Return the cluster's facts, or raise (``ContainerBackend``)."""
        if request.archive:
            if request.archive_bytes > self._image_bytes_max:
                raise ContainerRefused(f"an image of {request.archive_bytes} bytes: more than disk_gib")
            image = Image(ARCHIVED, request.image.digest)
            return await super().check(replace(request, image=image, archive=b"", archive_bytes=0))
        if f"{request.image.repository}/".startswith(f"{self._registry.place}/"):
            raise ContainerRefused(f"{request.image.repository}: images there are for the tasks that brought them")
        return await super().check(request)

    async def has_image(self, request: ContainerRequest) -> bool:
        """Whether the image of a request is in the registry (``LoadsImages``)."""
        pushed = await trio.to_thread.run_sync(_read_note, self._note(request))
        return pushed is not None and await self._registry.has(pushed.name, f"manifests/{request.image.name}")

    async def load(self, request: ContainerRequest, archive: Path) -> None:
        """Check an archive and push its image (``LoadsImages``)."""
        await self.check(request)
        name = secrets.token_hex(16) if request.is_private else ARCHIVED
        # Where it was pushed before, even in part: another name would leave an image that no note names.
        known = await trio.to_thread.run_sync(_read_note, self._note(request))
        pushed = known or _Pushed(name, request.is_private, request.image.digest)
        with await trio.to_thread.run_sync(archive.open, "rb") as file:
            image = await trio.to_thread.run_sync(checked_archive, request, file, self._image_bytes_max)
            # Noted first: what a node that is killed has pushed is removed by its next life.
            await trio.to_thread.run_sync(_write_note, self._note(request), pushed)
            await self._registry.push(pushed.name, image, file)
        await self._sweep_pushed()

    async def prepare(self, request: ContainerRequest, on_pull: OnPull) -> None:
        """Bring the image to a machine of the cluster (``ContainerBackend``)."""
        await super().prepare(await trio.to_thread.run_sync(self._placed, request), on_pull)

    async def start(self, task: bytes, request: ContainerRequest) -> None:
        """Start the container; its private image leaves the registry then (``ContainerBackend``)."""
        await super().start(task, await trio.to_thread.run_sync(self._placed, request))
        if request.archive and request.is_private:
            await self._remove_pushed(self._note(request))

    async def sweep(self, kept: frozenset[bytes]) -> int:
        """Remove what no kept task needs (``ContainerBackend``)."""
        await self._sweep_pushed()
        return await super().sweep(kept)

    async def _sweep_pushed(self) -> None:
        for note in await trio.to_thread.run_sync(_unused, self._pushed):
            await self._remove_pushed(note)

    async def _remove_pushed(self, note: Path) -> None:
        pushed = await trio.to_thread.run_sync(_read_note, note)
        try:
            if pushed is not None and not await self._registry.remove(pushed.name, pushed.digest):
                _log.warning("the registry does not delete images", registry=self._registry.place)
        except EngineUnavailable as error:  # tried again by the next sweep
            _log.warning("an image could not be deleted", error=str(error))
            return
        await trio.to_thread.run_sync(lambda: note.unlink(missing_ok=True))


def _write_note(path: Path, pushed: _Pushed) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps([pushed.name, pushed.is_private, pushed.digest.hex()]))
    new.replace(path)


def _read_note(path: Path) -> _Pushed | None:
    """Return what a note says, and note that it was used."""
    try:
        name, is_private, digest = json.loads(path.read_text())
        os.utime(path)
        return _Pushed(str(name), bool(is_private), bytes.fromhex(digest))
    except (OSError, ValueError, TypeError):
        return None


def _unused(folder: Path) -> list[Path]:
    """Return the notes of images that nobody needs: old private ones, and public ones beyond the limit."""
    found: list[tuple[float, Path, bool]] = []
    for path in folder.glob("*-*"):
        try:
            at = path.stat().st_mtime
        except FileNotFoundError:  # its container has started meanwhile
            continue
        try:
            is_private = bool(json.loads(path.read_text())[1])
        except (OSError, ValueError, IndexError, TypeError):
            is_private = True
        found.append((at, path, is_private))
    old = [path for at, path, is_private in found if is_private and at < time.time() - UNUSED_S]
    public = sorted((at, path) for at, path, is_private in found if not is_private)
    return old + [path for _, path in public[: max(0, len(public) - IMAGES_KEPT)]]
