"""The API server of a cluster over HTTPS: bounded answers, typed errors, cancellable calls."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx
import trio

from tasks.executor.containers.answers import AnswerTooLarge, answer_json, error_text, read_answer
from tasks.executor.containers.errors import EngineError, EngineUnavailable
from tasks.executor.containers.kubernetes.access import ClusterAccess

__all__ = ["Answer", "ClusterApi", "decode_object"]

ITEMS_PAGE: Final = 200
PAGES_MAX: Final = 200
CALL_S: Final = 30.0
CONNECT_S: Final = 10.0
CAUSES_MAX: Final = 8
REASON_SHOWN: Final = 400


@dataclass(frozen=True)
class Answer:
    """An object of the API, and the time of the server when it answered."""

    found: dict[str, Any]
    at: datetime


class ClusterApi:
    """One API server. Every call raises EngineUnavailable, or EngineError for an answer that is an error."""

    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self._http: httpx.AsyncClient | None = None
        self._context: ssl.SSLContext | None = None
        self._authority = ""
        self._retired: list[httpx.AsyncClient] = []
        """Connections to a server whose authority has changed since."""

    @property
    def context(self) -> ssl.SSLContext:
        """The settings of TLS."""
        if self._context is None:
            self._authority = self.access.authority()
            self._context = self.access.context()
        return self._context

    async def aclose(self) -> None:
        """Close the connections."""
        for http in (*self._retired, *filter(None, [self._http])):
            await http.aclose()
        self._retired, self._http = [], None

    def _renew(self) -> None:
        """Take an authority that has changed meanwhile, from the next call on."""
        if self._context is None or self.access.authority() == self._authority:
            return
        self._retired += filter(None, [self._http])  # others may still read from it
        self._http = self._context = None

    def headers(self) -> dict[str, str]:
        """Return what shows the server who asks."""
        token = self.access.bearer()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            proxy = self.access.proxy
            self._http = httpx.AsyncClient(
                proxy=None if proxy is None else proxy.of_library(),
                verify=self.context, base_url=self.access.server, trust_env=False, follow_redirects=False,
                timeout=httpx.Timeout(CALL_S, connect=CONNECT_S), headers={"Accept-Encoding": "identity"},
            )  # fmt: skip
        return self._http

    @asynccontextmanager
    async def _open(self, method: str, path: str, **options: Any) -> AsyncIterator[httpx.Response]:
        headers = self.headers() | options.pop("headers", {})
        if self.access.server_name:
            options["extensions"] = {"sni_hostname": self.access.server_name}
        try:
            async with self._client().stream(method, path, headers=headers, **options) as answer:
                if answer.status_code == 429 or answer.status_code >= 500:
                    raise EngineUnavailable(f"{self.access.server}: {error_text(await read_answer(answer))}")
                if not 200 <= answer.status_code < 300:
                    raise EngineError(answer.status_code, error_text(await read_answer(answer)))
                yield answer
        except httpx.HTTPError as error:
            if isinstance(error, httpx.ConnectError):
                self._renew()
            raise EngineUnavailable(f"{self.access.server}: {_reason(error)}") from None

    async def look(self, path: str, **params: str) -> Answer:
        """Return an object with the server's time."""
        async with self._open("GET", path, params=params) as answer:
            found = decode_object(await read_answer(answer))
            try:
                at = parsedate_to_datetime(answer.headers.get("Date", "")).astimezone(UTC)
            except (ValueError, TypeError, OverflowError):
                raise EngineError(answer.status_code, "an answer without its time") from None
            return Answer(found, at)

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        """Return an object."""
        async with self._open("GET", path, params=params) as answer:
            return decode_object(await read_answer(answer))

    async def find(self, path: str) -> dict[str, Any] | None:
        """Return an object, None if there is none."""
        try:
            return await self.get(path)
        except EngineError as error:
            if error.status == 404:
                return None
            raise

    async def pages(
        self, path: str, *, size: int = ITEMS_PAGE, pages_max: int = PAGES_MAX, **params: str
    ) -> AsyncGenerator[list[dict[str, Any]], None]:  # fmt: skip
        """Yield the objects of a list, ``size`` at a time, or fewer where so many exceed the limit of an answer.

        ``pages_max`` bounds the objects: so many pages of ``size``.
        """
        asked = {name: text for name, text in params.items() if text}
        left = size * pages_max
        while left > 0:
            try:
                page = await self.get(path, **asked, limit=str(size))
            except AnswerTooLarge:
                if size == 1:
                    raise
                size //= 2
                continue
            left -= size
            items = page.get("items")
            yield [one for one in items if isinstance(one, dict)] if isinstance(items, list) else []
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return
            asked["continue"] = str(following)
        raise EngineError(200, "a list of more objects than are read")

    async def list(self, path: str, selector: str = "") -> list[dict[str, Any]]:
        """Return the objects of a list, read page by page."""
        found: list[dict[str, Any]] = []
        async for page in self.pages(path, labelSelector=selector):
            found += page
        return found

    async def create(self, path: str, body: Mapping[str, Any], **params: str) -> dict[str, Any]:
        """Create an object and return what the server made of it."""
        async with self._open("POST", path, params=params, json=body) as answer:
            return decode_object(await read_answer(answer))

    async def delete(self, path: str, **options: Any) -> bool:
        """Delete an object, with these options; return whether there was one."""
        try:
            async with self._open("DELETE", path, json={"propagationPolicy": "Background", **options}) as answer:
                await read_answer(answer)
        except EngineError as error:
            if error.status == 404:
                return False
            if error.status != 409:  # 409: it is being removed already
                raise
        return True

    async def log(self, path: str, **params: str) -> AsyncGenerator[bytes, None]:
        """Yield what a container of a pod wrote."""
        async with self._open("GET", path, params=params) as answer:
            async for data in answer.aiter_raw():
                yield data
                await trio.lowlevel.checkpoint()


def _reason(error: BaseException) -> str:
    """Return what an error of a connection comes from: the library says nothing of refused certificates itself."""
    found: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if found is None or str(found):
            break
        found = found.__cause__ or found.__context__
    return str(found or "")[:REASON_SHOWN] or type(error).__name__


def decode_object(data: bytes) -> dict[str, Any]:
    """Return an object of the API. Raises EngineError for anything else."""
    found = answer_json(data)
    if not isinstance(found, dict) or not isinstance(found.get("metadata", {}), dict):
        raise EngineError(200, "an answer that is not an object")
    return found
