"""A registry of the cluster's owner, to which this node pushes images that come as archives (OCI distribution)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import IO, Any, Final
from urllib.parse import urljoin

import httpx
import trio

from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable, ImageUnavailable
from tasks.kinds.image_archives import MANIFESTS, ArchivedImage, part_pieces

__all__ = ["ImageRegistry"]

_URL: Final = re.compile(
    r"(?P<base>https?://(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?))"
    r"(?P<path>(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*){1,8})",
    re.ASCII,
)
ACCEPTED: Final = ", ".join(MANIFESTS)
CALL_S: Final = 60.0
SENT_S: Final = 3_600.0
"""How long a registry may take for one layer."""


class ImageRegistry:
    """The part of a registry below one path. Raises ContainerRefused for a URL that is none."""

    def __init__(self, url: str) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            shown = "one with a login" if "@" in url else repr(url[:80])
            raise ContainerRefused(f"executor.kubernetes.registry: https://HOST/PATH expected, not {shown}")
        self._base, self.place, self._path = found["base"], f"{found['host']}{found['path']}", found["path"][1:]

    def repository(self, name: str) -> str:
        """Return what pods pull from, without scheme."""
        return f"{self.place}/{name}"

    @asynccontextmanager
    async def _open(self, method: str, url: str, **options: Any) -> AsyncIterator[httpx.Response]:
        timeout = httpx.Timeout(options.pop("timeout_s", CALL_S), connect=CALL_S)
        try:
            async with (
                httpx.AsyncClient(trust_env=False, timeout=timeout) as client,
                client.stream(method, url, **options) as answer,
            ):
                yield answer
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"the registry {self.place}: {error or type(error).__name__}") from None

    async def _order(self, method: str, url: str, expected: tuple[int, ...], **options: Any) -> httpx.Headers:
        async with self._open(method, url, **options) as answer:
            if answer.status_code not in expected:
                raise ImageUnavailable(
                    f"the registry {self.place}: {method} is answered with {answer.status_code}"
                )
            return answer.headers

    def _of(self, name: str, what: str) -> str:
        return f"{self._base}/v2/{self._path}/{name}/{what}"

    async def check(self) -> None:
        """Raise EngineUnavailable or ImageUnavailable unless a registry answers that needs no login."""
        await self._order("GET", f"{self._base}/v2/", (200,))

    async def has(self, name: str, what: str) -> bool:
        """Whether a repository has ``manifests/DIGEST`` or ``blobs/DIGEST``. Raises EngineUnavailable."""
        async with self._open("HEAD", self._of(name, what), headers={"Accept": ACCEPTED}) as answer:
            return answer.status_code == 200

    async def push(self, name: str, image: ArchivedImage, file: IO[bytes]) -> None:
        """Put an image into a repository; ``file`` is the archive that was checked.

        Raises ImageUnavailable, EngineUnavailable.
        """
        for layer in dict.fromkeys(image.layers):
            if not await self.has(name, f"blobs/{layer.name}"):
                await self._put(name, layer.name, layer.size_bytes, part_pieces(file, layer))
        config = f"sha256:{image.config_digest.hex()}"
        await self._put(name, config, len(image.config), iter([image.config]))
        manifest = f"manifests/sha256:{image.digest.hex()}"
        await self._order(
            "PUT", self._of(name, manifest), (201,), content=image.manifest,
            headers={"Content-Type": image.media_type},
        )  # fmt: skip
        if not await self.has(name, manifest):
            raise ImageUnavailable(f"the registry {self.place} does not have the image that it took")

    async def _put(self, name: str, digest: str, size: int, pieces: Iterator[bytes]) -> None:
        """Send a blob in one request."""
        begun = await self._order("POST", self._of(name, "blobs/uploads/"), (202,))
        place = urljoin(f"{self._base}/", begun.get("Location", ""))
        if not place.startswith(f"{self._base}/"):  # it could lead anywhere in the owner's network
            raise ImageUnavailable(f"the registry {self.place} sends uploads elsewhere")

        async def content() -> AsyncIterator[bytes]:
            while (piece := await trio.to_thread.run_sync(partial(next, pieces, None))) is not None:
                yield piece

        await self._order(
            "PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", (201,), content=content(),
            timeout_s=SENT_S, headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
        )  # fmt: skip

    async def remove(self, name: str, digest: bytes) -> bool:
        """Delete a manifest; tell whether it is gone. Registries may refuse that. Raises EngineUnavailable."""
        async with self._open("DELETE", self._of(name, f"manifests/sha256:{digest.hex()}")) as answer:
            return answer.status_code in (200, 202, 404)
