"""A registry of the cluster's owner, to which this node pushes images that come as archives (OCI distribution)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import IO, Any, Final
from urllib.parse import urljoin

import httpx
import trio

from tasks.executor.containers.errors import ContainerRefused, EngineUnavailable, ImageUnavailable
from tasks.executor.containers.kubernetes.registry_login import PushLogin
from tasks.kinds.container import ARCHIVED
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
    """The part of a registry below one path. ``logins`` are the owner's, by registry.

    Raises ContainerRefused for a URL that is none, and for logins without one for this registry.
    """

    def __init__(self, url: str, logins: Mapping[str, tuple[str, str]] | None = None) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            shown = "one with a login" if "@" in url else repr(url[:80])
            raise ContainerRefused(f"executor.kubernetes.registry: https://HOST/PATH expected, not {shown}")
        self._base, self.place, self._path = found["base"], f"{found['host']}{found['path']}", found["path"][1:]
        self._login: PushLogin | None = None
        if logins is not None:
            if found["host"] not in logins:
                raise ContainerRefused(f"executor.kubernetes.logins: no login for {found['host']}")
            self._login = PushLogin(self._base, *logins[found["host"]])

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password with which pods pull, None for a registry that needs none."""
        return None if self._login is None else self._login.pair

    def repository(self, name: str) -> str:
        """Return what pods pull from, without scheme."""
        return f"{self.place}/{name}"

    @asynccontextmanager
    async def _open(self, method: str, name: str, url: str, **options: Any) -> AsyncIterator[httpx.Response]:
        """Open a request for a repository, a second time with the login that the registry asks for.

        A stream of content is sent once: its upload was begun before, with the login.
        """
        timeout = httpx.Timeout(options.pop("timeout_s", CALL_S), connect=CALL_S)
        shown = options.pop("headers", {})
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=timeout) as client:
                for is_last in (False, True):
                    headers = shown | ({} if self._login is None else self._login.headers(name))
                    async with client.stream(method, url, headers=headers, **options) as answer:
                        challenge = answer.headers.get("WWW-Authenticate", "")
                        is_asked = answer.status_code == 401 and self._login is not None and bool(challenge)
                        if is_last or not is_asked or not isinstance(options.get("content", b""), bytes):
                            yield answer
                            return
                    assert self._login is not None
                    if not await self._login.answer(client, name, challenge):
                        raise ImageUnavailable("it refuses the login of executor.kubernetes.logins")
        except ImageUnavailable as error:
            raise ImageUnavailable(f"the registry {self.place}: {error}") from None
        except EngineUnavailable as error:
            raise EngineUnavailable(f"the registry {self.place}: {error}") from None
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"the registry {self.place}: {error or type(error).__name__}") from None

    async def _order(
        self, method: str, name: str, url: str, expected: tuple[int, ...], **options: Any
    ) -> httpx.Headers:  # fmt: skip
        async with self._open(method, name, url, **options) as answer:
            status, headers = answer.status_code, answer.headers
        if status in expected:
            return headers
        why = f"{method} is answered with {status}"
        if status == 401:
            why = "it needs a login (executor.kubernetes.logins)"
            if self._login is not None:
                why = "it refuses the login of executor.kubernetes.logins"
        elif status == 403:
            why = f"it refuses {'to be asked' if method == 'GET' else 'a push'} ({status})"
        raise ImageUnavailable(f"the registry {self.place}: {why}")

    def _of(self, name: str, what: str) -> str:
        return f"{self._base}/v2/{self._path}/{name}/{what}"

    async def check(self) -> None:
        """Raise EngineUnavailable or ImageUnavailable unless a registry answers that takes a push.

        An upload is begun and taken back: nothing else shows whether this node may push.
        """
        await self._order("GET", "", f"{self._base}/v2/", (200,))
        place = await self._upload(ARCHIVED)
        async with self._open("DELETE", ARCHIVED, place):  # some registries take nothing back, and forget it later
            pass

    async def has(self, name: str, what: str) -> bool:
        """Whether a repository has ``manifests/DIGEST`` or ``blobs/DIGEST``.

        Raises EngineUnavailable, and ImageUnavailable for a refused login.
        """
        async with self._open("HEAD", name, self._of(name, what), headers={"Accept": ACCEPTED}) as answer:
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
            "PUT", name, self._of(name, manifest), (201,), content=image.manifest,
            headers={"Content-Type": image.media_type},
        )  # fmt: skip
        if not await self.has(name, manifest):
            raise ImageUnavailable(f"the registry {self.place} does not have the image that it took")

    async def _put(self, name: str, digest: str, size: int, pieces: Iterator[bytes]) -> None:
        """Send a blob in one request."""
        place = await self._upload(name)

        async def content() -> AsyncIterator[bytes]:
            while (piece := await trio.to_thread.run_sync(partial(next, pieces, None))) is not None:
                yield piece

        await self._order(
            "PUT", name, f"{place}{'&' if '?' in place else '?'}digest={digest}", (201,), content=content(),
            timeout_s=SENT_S, headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
        )  # fmt: skip

    async def _upload(self, name: str) -> str:
        """Begin an upload; return its place."""
        begun = await self._order("POST", name, self._of(name, "blobs/uploads/"), (202,))
        place: str = urljoin(f"{self._base}/", begun.get("Location", ""))
        if not place.startswith(f"{self._base}/"):  # it could lead anywhere in the owner's network
            raise ImageUnavailable(f"the registry {self.place} sends uploads elsewhere")
        return place

    async def remove(self, name: str, digest: bytes) -> bool:
        """Delete a manifest; tell whether it is gone. Registries may refuse that.

        Raises EngineUnavailable, and ImageUnavailable for a refused login.
        """
        async with self._open("DELETE", name, self._of(name, f"manifests/sha256:{digest.hex()}")) as answer:
            return answer.status_code in (200, 202, 404)
