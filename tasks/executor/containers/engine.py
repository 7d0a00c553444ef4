"""The Engine API of Docker, over its Unix socket: bounded answers, typed errors, cancellable calls."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

import httpx
import trio

from tasks.executor.containers.answers import answer_json, error_text, read_answer
from tasks.executor.containers.errors import EngineError, EngineUnavailable
from tasks.executor.containers.log_entries import LogEntry
from tasks.executor.containers.log_lines import parse_entry
from tasks.executor.containers.log_stream import LogFrames
from tasks.executor.containers.own_calls import OwnCalls

__all__ = ["API_NEWEST", "API_OLDEST", "Engine", "RegistryLogin", "decode_answer"]

API_OLDEST: Final = (1, 41)
"""Docker 20.10."""
API_NEWEST: Final = (1, 44)
LINE_BYTES_MAX: Final = 1 << 20
CALL_S: Final = 120.0
CONNECT_S: Final = 10.0
SILENCE_S: Final = 300.0
"""A pull that says nothing for so long has failed."""
LOAD_S: Final = 3_600.0
"""How long an engine may take to unpack an image that it was sent."""
_INDEX_SERVER: Final = "https://index.docker.io/v1/"


class RegistryLogin:
    """User and password for a registry; shown nowhere."""

    def __init__(self, registry: str, user: str, password: str) -> None:
        self._registry, self._user, self._password = registry, user, password

    def header(self) -> str:
        """Return the header with which the engine logs in."""
        server = _INDEX_SERVER if self._registry == "docker.io" else self._registry
        value = {"username": self._user, "password": self._password, "serveraddress": server}
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()

    def pair(self) -> tuple[str, str]:
        """Return user and password."""
        return self._user, self._password

    def __repr__(self) -> str:
        return f"RegistryLogin({self._registry!r})"


class Engine:
    """One engine. Every call raises EngineUnavailable, or EngineError for an answer that is an error."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.own_calls = OwnCalls()
        """Calls that the engine will tell of as events: the watchdog knows them by that."""
        self._http: httpx.AsyncClient | None = None
        self._prefix = ""

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(uds=self.socket), base_url="http://engine", trust_env=False,
                timeout=httpx.Timeout(CALL_S, connect=CONNECT_S),
                headers={"Accept-Encoding": "identity"},
            )  # fmt: skip
        return self._http

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, *, timeout_s: float = CALL_S, **options: Any
    ) -> AsyncIterator[httpx.Response]:
        if not self._prefix and path != "/version":
            await self.negotiate()
        timeout = httpx.Timeout(None if math.isinf(timeout_s) else timeout_s, connect=CONNECT_S)
        try:
            async with self._client().stream(method, self._prefix + path, timeout=timeout, **options) as answer:
                if answer.status_code >= 400:
                    raise EngineError(answer.status_code, error_text(await read_answer(answer)))
                yield answer
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"{self.socket}: {error or type(error).__name__}") from None

    async def negotiate(self) -> Mapping[str, Any]:
        """Choose the version of the API that both know, and return what the engine says of itself."""
        self._prefix = ""
        async with self._open("GET", "/version") as answer:
            found = decode_answer(await read_answer(answer))
        newest, oldest = _version(found.get("ApiVersion")), _version(found.get("MinAPIVersion", "1.12"))
        chosen = min(newest, API_NEWEST)
        if chosen < API_OLDEST or chosen < oldest:
            raise EngineUnavailable(f"the engine's API is {newest}; known here: {API_OLDEST} to {API_NEWEST}")
        self._prefix = f"/v{chosen[0]}.{chosen[1]}"
        return found

    async def get(self, path: str, **params: str) -> Any:
        """Return a decoded answer."""
        async with self._open("GET", path, params=params) as answer:
            return answer_json(await read_answer(answer))

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = CALL_S, **params: str
    ) -> Any:
        """Order something and return the decoded answer, None for an empty one."""
        async with self._open("POST", path, params=params, json=body, timeout_s=timeout_s) as answer:
            found = await read_answer(answer)
            return answer_json(found) if found else None

    async def delete(self, path: str, **params: str) -> None:
        """Remove something."""
        async with self._open("DELETE", path, params=params) as answer:
            await read_answer(answer)

    async def stat(self, container: str, path: str) -> None:
        """Look for a path in a container. Raises EngineError with status 404 if it is not there."""
        async with self._open("HEAD", f"/containers/{container}/archive", params={"path": path}):
            pass

    async def pull(
        self, repository: str, digest: str, login: RegistryLogin | None
    ) -> AsyncIterator[dict[str, Any]]:
        """Pull an image and yield what the engine tells of it, line by line. Ending the loop ends the pull."""
        headers = {} if login is None else {"X-Registry-Auth": login.header()}
        params = {"fromImage": repository, "tag": digest}
        async with self._open(
            "POST", "/images/create", params=params, headers=headers, timeout_s=SILENCE_S
        ) as answer:
            rest = b""
            async for data in answer.aiter_raw():
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > LINE_BYTES_MAX:
                    raise EngineError(200, "a line of the pull is too long")
                for line in filter(bytes.strip, lines):
                    yield decode_answer(line)

    async def load(self, archive: AsyncIterator[bytes]) -> None:
        """Send an archive of an image, and wait until it is loaded."""
        async with self._open(
            "POST", "/images/load", params={"quiet": "1"}, content=archive, timeout_s=LOAD_S,
            headers={"Content-Type": "application/x-tar"},
        ) as answer:  # fmt: skip
            said = await read_answer(answer)
            for line in filter(bytes.strip, said.split(b"\n")):
                if "error" in (found := decode_answer(line)):
                    raise EngineError(200, str(found["error"])[:300])

    async def ask_registry(self, reference: str, login: RegistryLogin | None) -> None:
        """Ask the image's registry for its manifest. Raises EngineError where it gives none to this login."""
        headers = {} if login is None else {"X-Registry-Auth": login.header()}
        async with self._open("GET", f"/distribution/{quoted(reference)}/json", headers=headers) as answer:
            await read_answer(answer)

    async def archive(self, container: str, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the tar of a folder of a container."""
        self.own_calls.expect(container, "archive-path")
        try:
            async with self._open("GET", f"/containers/{container}/archive", params={"path": path}) as answer:
                async for data in answer.aiter_raw():
                    yield data
        except EngineError:
            self.own_calls.forget(container, "archive-path")
            raise

    async def events(
        self, container: str, since_ns: int, *, until_ns: int | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield what is asked of a container, since a time of the engine; 0: from now on.

        With ``until_ns`` the stream ends there, otherwise with the engine.
        """
        params = {"filters": json.dumps({"type": ["container"], "container": [container]})}
        for name, at_ns in (("since", since_ns), ("until", until_ns)):
            if at_ns:
                params[name] = f"{at_ns // 10**9}.{at_ns % 10**9:09d}"
        timeout_s = math.inf if until_ns is None else CALL_S
        async with self._open("GET", "/events", params=params, timeout_s=timeout_s) as answer:
            rest = b""
            async for data in answer.aiter_raw():
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > LINE_BYTES_MAX:
                    raise EngineError(200, "an event is too long")
                for line in filter(bytes.strip, lines):
                    yield decode_answer(line)

    async def log(self, container: str, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield what a container wrote; with ``follow`` also what it still writes."""
        params = {"stdout": "1", "stderr": "1", "follow": "1" if follow else "0"}
        frames = LogFrames()
        path = f"/containers/{container}/logs"
        async with self._open("GET", path, params=params, timeout_s=math.inf if follow else CALL_S) as answer:
            async for data in answer.aiter_raw():
                if found := frames.feed(data):
                    yield found
                await trio.lowlevel.checkpoint()

    async def entries(self, container: str, since_s: int) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries of a container's log from a second of the engine's clock on."""
        params = {"stdout": "1", "stderr": "1", "timestamps": "1", "since": str(since_s)}
        frames = LogFrames()
        async with self._open("GET", f"/containers/{container}/logs", params=params) as answer:
            async for data in answer.aiter_raw():
                for stream, line in frames.frames(data):
                    yield parse_entry(stream, line)
                await trio.lowlevel.checkpoint()


def quoted(name: str) -> str:
    """Return a name as one part of a path, slashes and colons kept."""
    return quote(name, safe="/:@")


def decode_answer(data: bytes) -> dict[str, Any]:
    """Return an object of the engine. Raises EngineError for anything else."""
    found = answer_json(data)
    if not isinstance(found, dict):
        raise EngineError(200, "an answer that is not an object")
    return found


def _version(text: object) -> tuple[int, int]:
    try:
        major, minor = str(text).split(".")
        return int(major), int(minor)
    except ValueError:
        raise EngineUnavailable(f"the engine's version {str(text)[:40]!r} is not a version") from None
