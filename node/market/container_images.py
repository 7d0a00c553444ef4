"""Images that come as blobs: fetched as inputs are, opened if they are sealed, handed to the back end (R147)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import trio

from node.market.container_live import Live
from node.market.container_seals import ContainerSeals, write_plain
from node.market.inputs import Inputs, Supply
from p2p.blob.store import BlobStore
from state.primitives.manifests import PIECE_BYTES
from tasks.executor.containers.backend import ContainerBackend, KeepsImages, LoadsImages, PullProgress
from tasks.executor.containers.disks import overwrite
from tasks.executor.containers.errors import ContainerRefused
from tasks.executor.containers.request import ContainerRequest
from tasks.kinds.container import ContainerPart

__all__ = ["ContainerImages"]

LOOK_S: Final = 1.0


class ContainerImages:
    """The images of containers that are not pulled; ``folder`` has plain ones while they are loaded."""

    def __init__(
        self, backend: ContainerBackend, inputs: Inputs, blobs: BlobStore, seals: ContainerSeals, folder: Path
    ) -> None:
        self._backend, self._inputs, self._blobs, self._seals = backend, inputs, blobs, seals
        self._folder = folder

    async def is_missing(self, request: ContainerRequest) -> bool:
        """Whether an image that comes as a blob has to be loaded. Raises EngineUnavailable, EngineError."""
        if not request.archive:
            return False
        return not isinstance(self._backend, LoadsImages) or not await self._backend.has_image(request)

    async def bring(
        self, task: bytes, part: ContainerPart, request: ContainerRequest, supply: Supply, live: Live
    ) -> None:
        """Have the image of a request in the engine or in the cluster's registry, pulled or loaded.

        Raises as ``prepare`` of the back end, and InputUnavailable.
        """
        if not request.archive:
            await self._backend.prepare(request, lambda progress: setattr(live, "pull", progress))
            return
        if not isinstance(self._backend, LoadsImages):
            raise ContainerRefused("images come from registries alone here")
        if request.is_private:  # a node that was killed may have left one
            await trio.to_thread.run_sync(_wipe, self._plain(task))
        if isinstance(self._backend, KeepsImages):
            await self._backend.keep_image(task, request)
        if not await self._backend.has_image(request):
            await self._fetch(part, supply, live)
            key = await self._seals.image_key(task, part)
            if key is None:
                await self._backend.load(request, self._blobs.path(part.image.blob))
            else:
                await self._load_sealed(task, part, request, key)
        await self._backend.prepare(request, lambda progress: setattr(live, "pull", progress))

    async def _fetch(self, part: ContainerPart, supply: Supply, live: Live) -> None:
        image = part.image

        async def look() -> None:
            while True:
                here = min(image.size_bytes, self._inputs.pieces_here(image.blob) * PIECE_BYTES)
                live.pull = PullProgress(here, image.size_bytes)
                await trio.sleep(LOOK_S)

        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            try:
                await self._inputs.obtain(image.blob, supply, image.size_bytes)
            except Exception as error:  # raised again below: out of the nursery it would come in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        live.pull = PullProgress(image.size_bytes, image.size_bytes)

    async def _load_sealed(self, task: bytes, part: ContainerPart, request: ContainerRequest, key: bytes) -> None:
        """Open a sealed archive into a file, which is overwritten as soon as the engine has the image."""
        plain = self._plain(task)
        try:
            await trio.to_thread.run_sync(write_plain, self._blobs.path(part.image.blob), plain, key)
            assert isinstance(self._backend, LoadsImages)
            await self._backend.load(request, plain)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_wipe, plain)

    def _plain(self, task: bytes) -> Path:
        return self._folder / f"{task.hex()[:32]}.tar.image"


def _wipe(plain: Path) -> None:
    try:
        overwrite([plain])
    finally:
        plain.unlink(missing_ok=True)
