"""A cluster whose owner has a registry for images that come as archives: the node pushes them there (R147).

Nothing can be loaded into the machines of a cluster over its API. A private image has a repository of its own,
with a name that nobody can guess, until its container has started: a kubelet asks for it no more then.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from tasks.custody.secrets import ContainerSecrets
from tasks.executor.containers.backend import Ended, EngineFacts, OnLook, OnPull
from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable, ImageUnavailable
from tasks.executor.containers.kubernetes.backend import KubernetesBackend, KubernetesOptions
from tasks.executor.containers.kubernetes.image_registry import ImageRegistry
from tasks.executor.containers.kubernetes.pushed_images import PushedImage, PushedNotes
from tasks.executor.containers.loaded_images import checked_archive
from tasks.executor.containers.request import ContainerRequest, Image
from tasks.kinds.container import ARCHIVED

__all__ = ["ClusterWithRegistry"]

_log = structlog.get_logger("containers")

_GIB: Final = 1 << 30


class ClusterWithRegistry(KubernetesBackend):
    """One node's containers in one cluster, with images from archives too (``LoadsImages``)."""

    def __init__(self, options: KubernetesOptions, node: bytes, folder: Path, registry: ImageRegistry) -> None:
        super().__init__(options, node, folder)
        self._registry, self._notes = registry, PushedNotes(folder / "pushed")
        self._image_bytes_max = options.disk_gib * _GIB
        self._lock = trio.Lock()
        """Held while notes change, and while an image is deleted that no note has a user of."""
        self._needing: set[bytes] = set()
        """Tasks that began to need an image in this life of the node."""

    def _placed(self, request: ContainerRequest) -> ContainerRequest:
        """Return the request with the place of its image in the registry. Raises ImageUnavailable."""
        if not request.archive:
            return request
        pushed = self._notes.read(self._notes.path(request))
        if pushed is None:
            raise ImageUnavailable(f"{request.image.reference}: it is gone from the registry")
        image = Image(self._registry.repository(pushed.name), request.image.digest)
        return self._with_login(replace(request, image=image))

    def _with_login(self, request: ContainerRequest) -> ContainerRequest:
        """Return the request with the owner's login where its image is in the owner's registry."""
        if not request.archive or self._registry.login is None:
            return request
        own = request.secrets
        return replace(request, secrets=ContainerSecrets(own.variables, own.files, self._registry.login))

    async def probe(self) -> EngineFacts:
        """Tell what the cluster grants, and whether its registry answers (``ContainerBackend``)."""
        facts, why = await super().probe(), ""
        try:
            await self._registry.check()
        except (EngineUnavailable, ImageUnavailable) as error:
            _log.warning("images that come as files are not taken", error=str(error))
            why = str(error)
        self._facts = replace(facts, has_archives=not why, archives_lack=why)
        return self._facts

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

    async def keep_image(self, task: bytes, request: ContainerRequest) -> None:
        """Keep the image of a request for a task until its container has started (``KeepsImages``)."""
        if not request.archive:
            return
        self._needing.add(task)
        path, new = self._notes.path(request), _new(request)
        async with self._lock:
            await trio.to_thread.run_sync(self._notes.add_user, path, new, task)

    async def has_image(self, request: ContainerRequest) -> bool:
        """Whether the image of a request is in the registry (``LoadsImages``)."""
        pushed = await trio.to_thread.run_sync(self._notes.read, self._notes.path(request))
        if pushed is None or not pushed.is_checked:
            return False
        return await self._registry.has(pushed.name, f"manifests/{request.image.name}")

    async def load(self, request: ContainerRequest, archive: Path) -> None:
        """Check an archive and push its image (``LoadsImages``)."""
        await self.check(request)
        path = self._notes.path(request)
        with await trio.to_thread.run_sync(archive.open, "rb") as file:
            image = await trio.to_thread.run_sync(checked_archive, request, file, self._image_bytes_max)
            async with self._lock:
                # Where it was pushed before, even in part: another name would leave an image that no note names.
                known = await trio.to_thread.run_sync(self._notes.read, path)
                pushed = replace(known or _new(request), is_checked=True)
                # Noted first: what a node that is killed has pushed is removed by its next life.
                await trio.to_thread.run_sync(self._notes.write, path, pushed)
            await self._registry.push(pushed.name, image, file)

    async def prepare(self, request: ContainerRequest, on_pull: OnPull) -> None:
        """Bring the image to a machine of the cluster (``ContainerBackend``)."""
        await super().prepare(await trio.to_thread.run_sync(self._placed, request), on_pull)

    async def start(self, task: bytes, request: ContainerRequest) -> None:
        """Start the container; its private image leaves the registry with the last such start."""
        await super().start(task, await trio.to_thread.run_sync(self._placed, request))
        await self._release(task)

    async def watch(self, task: bytes, request: ContainerRequest, on_look: OnLook) -> Ended:
        """Look at the container until it ends; its login leaves the namespace at once (``ContainerBackend``)."""
        return await super().watch(task, self._with_login(request), on_look)

    async def remove(self, task: bytes) -> None:
        """Remove the container, and its private image if no other task needs it (``ContainerBackend``)."""
        try:
            await super().remove(task)
        finally:
            with trio.CancelScope(shield=True):  # bounded by the registry's own limit
                await self._release(task)

    async def sweep(self, kept: frozenset[bytes]) -> int:
        """Remove what no kept task needs (``ContainerBackend``)."""
        async with self._lock:
            await trio.to_thread.run_sync(self._notes.drop_users, kept | self._needing)
        await self._remove_unneeded()
        return await super().sweep(kept)

    async def _release(self, task: bytes) -> None:
        """Forget that a task needs its image."""
        self._needing.discard(task)
        async with self._lock:
            await trio.to_thread.run_sync(self._notes.drop_user, task)
        await self._remove_unneeded()

    async def _remove_unneeded(self) -> None:
        for path, _ in await trio.to_thread.run_sync(self._notes.unneeded):
            async with self._lock:
                # Looked at again: somebody may need it by now.
                left = dict(await trio.to_thread.run_sync(self._notes.unneeded))
                if path in left:
                    await self._remove_pushed(path, left[path])

    async def _remove_pushed(self, path: Path, pushed: PushedImage | None) -> None:
        try:
            is_last = pushed and not await trio.to_thread.run_sync(self._notes.is_shared, path, pushed)
            if pushed and is_last and not await self._registry.remove(pushed.name, pushed.digest):
                _log.warning("the registry does not delete images", registry=self._registry.place)
        except (EngineUnavailable, ImageUnavailable) as error:  # tried again by the next sweep
            _log.warning("an image could not be deleted", error=str(error))
            return
        await trio.to_thread.run_sync(partial(path.unlink, missing_ok=True))


def _new(request: ContainerRequest) -> PushedImage:
    """Return where an image is to be pushed: a private one where nobody can guess it."""
    name = secrets.token_hex(16) if request.is_private else ARCHIVED
    return PushedImage(name, request.is_private, request.image.digest)
