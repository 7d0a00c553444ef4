"""Blobs over HTTP for requesters without a node: downloads, whole or by range, and uploads (rpc.md 9).

Nobody has to believe the gateway: a blob is named by the hash of its manifest, and each piece has its hash there.
Nothing of a blob is kept here but its manifest; at most one piece of each request is in memory.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar
from urllib.parse import parse_qsl

import orjson

from rpc.gateway.limits import caller_limiter
from rpc.protocol.errors import RpcError
from rpc.protocol.grants import read_grant
from rpc.protocol.requests import BlobRequests
from state.primitives.bounded_cache import BoundedCache
from state.primitives.errors import DekubeError
from state.primitives.heads import Head
from state.primitives.manifests import MANIFEST_BYTES_MAX, PIECE_BYTES, Manifest, blob_id

_P = ParamSpec("_P")
_A = TypeVar("_A")

__all__ = ["PREFIX", "BlobEndpoint", "BlobOptions", "read_range"]

PREFIX: Final = "/blobs"
CHUNK_BYTES: Final = 128 * 1024
CHUNK_DEADLINE_S: Final = 30.0
"""A client that takes longer to read a chunk is disconnected."""
BODY_DEADLINE_S: Final = 60.0
"""Time to upload a piece or a manifest: about 17 KiB a second."""
PIECES_AT_NODE_MAX: Final = 4
"""Pieces that the node reads or writes for this gateway at once, so that other requests are served."""
PACE_S_MAX: Final = 10.0
AGAIN_S: Final = 1
OFF_S: Final = 60.0
"""How long the gateway remembers that the node accepts no uploads."""
QUERY_CHARACTERS_MAX: Final = 512
MANIFESTS_BYTES_MAX: Final = 16 * 1024 * 1024
_RANGE: Final = re.compile(r"bytes=([0-9]{0,16})-([0-9]{0,16})")
_NAME: Final = re.compile(r"(?:0x)?([0-9a-f]{64})")
_PIECE: Final = re.compile(r"[0-9]{1,6}")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BlobOptions:
    """Bounds of blobs over the gateway; for one caller, 0 means no limit (behind a proxy)."""

    requests_max: int = 64
    """Running downloads and uploads: as many pieces may be in memory."""
    requests_per_caller_max: int = 8
    bytes_per_s: int = 32 * 1024 * 1024
    """Rate of one caller, both directions together."""


class BlobNode(Protocol):
    """What the blob endpoint needs of the node."""

    @property
    def head(self) -> Head:
        """The newest finalised block."""
        ...

    @property
    def description(self) -> Any:
        """What does not change."""
        ...

    def request(
        self, function: Callable[Concatenate[Any, _P], _A], *args: _P.args, **kwargs: _P.kwargs
    ) -> Awaitable[_A]:
        """Send a declared request to the node."""
        ...


class _Answered(DekubeError):
    """Ends a request with an answer other than content: ``status``, and an error or a document."""

    code = "answered"

    def __init__(self, status: int, document: Any, *, closes: bool = False, again_s: int = 0) -> None:
        super().__init__(str(status))
        self.status = status
        self.document = document
        self.closes = closes
        self.headers = {"retry-after": str(again_s)} if again_s else {}


STATUS_OF_REASON: Final = {
    "not_found": 404,
    "blob_unavailable": 404,
    "task_unknown": 404,
    "method_not_allowed": 405,
    "grant_invalid": 401,
    "uploads_off": 403,
    "balance_too_low": 403,
    "upload_unknown": 404,
    "blob_too_large": 413,
    "account_quota": 429,
    "caller_quota": 429,
    "day_quota": 429,
    "uploads_full": 503,
    "limit_exceeded": 429,
    "range_not_satisfiable": 416,
    "internal_error": 500,
    "store_error": 503,
    "node_unavailable": 503,
}


# Requests


def read_range(text: str, size: int) -> tuple[int, int] | None:
    """Return first byte and end of the one range that ``text`` asks of ``size`` bytes; None: all is to be sent.

    Raises RpcError ``range_not_satisfiable``. What is no single range of bytes is ignored, as HTTP has it.
    """
    found = _RANGE.fullmatch(text.strip())
    if found is None or found[1] == found[2] == "":
        return None
    if not found[1]:
        first, end = max(0, size - int(found[2])), size
    else:
        first, end = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
        if found[2] and int(found[2]) < first:
            return None
    if first >= end:
        raise RpcError("range_not_satisfiable", f"the blob has {size} bytes", size=size)
    return first, end


class BlobEndpoint:
    """Answers requests below ``PREFIX``."""

    def __init__(
        self, node: BlobNode, options: BlobOptions, clock: Callable[[], float], observe: Callable[[str, str], None]
    ) -> None:
        self._node = node
        self._options = options
        self._clock = clock
        self._observe = observe
        self._manifests: BoundedCache[bytes, Manifest] = BoundedCache(MANIFESTS_BYTES_MAX)
        self._rates = caller_limiter(options.bytes_per_s, options.bytes_per_s)
        self._under_way: Counter[str] = Counter()
        self._off_until = 0.0
        self._at_node = asyncio.Semaphore(PIECES_AT_NODE_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: str) -> None:
        """Answer one request."""
        method, parts = scope["method"], scope["path"].removeprefix(PREFIX).strip("/").split("/")
        name = "blob_" + method.lower() if method in ("GET", "HEAD", "POST", "PUT") else "blob"
        outcome = "ok"
        try:
            async with self._place(caller):
                match method, parts:
                    case "GET" | "HEAD", [text]:
                        await self._content(scope, send, _name_of(text), caller)
                    case "GET", [text, "manifest"]:
                        await self._send_manifest(scope, send, _name_of(text))
                    case "POST", [""]:
                        await self._begin(scope, receive, caller)
                    case "PUT", [text, number]:
                        await self._put(scope, receive, _name_of(text), _number_of(number), caller)
                    case _, [""] | [_] | [_, _]:
                        raise RpcError("method_not_allowed", f"method {method} is not allowed for this path")
                    case _:
                        raise RpcError(
                            "not_found", "unknown path; there are GET /blobs/ID and GET /blobs/ID/manifest"
                        )
        except _Answered as answer:
            await _say(send, answer.status, answer.document, answer.headers, closes=answer.closes)
        except TimeoutError:
            outcome = "too_slow"
            scope["state"]["drop"]()
        except ConnectionError:
            outcome = "left"
        except DekubeError as error:
            known = error if isinstance(error, RpcError) else RpcError(error.code, str(error))
            outcome = known.reason
            status = STATUS_OF_REASON.get(outcome, 400)
            headers = {"retry-after": str(AGAIN_S)} if status in (429, 503) else {}
            closes = method in ("POST", "PUT")  # what is left of a body is not read
            await _say(send, status, {"error": known.to_json()}, headers, closes=closes)
        finally:
            self._observe(name, outcome)

    @asynccontextmanager
    async def _place(self, caller: str) -> AsyncIterator[None]:
        limit = self._options.requests_per_caller_max
        if self._under_way.total() >= self._options.requests_max or (limit and self._under_way[caller] >= limit):
            text = "limit exceeded: too many blobs under way"
            raise RpcError("limit_exceeded", text, retry_after_s=AGAIN_S)
        self._under_way[caller] += 1
        try:
            yield
        finally:
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]

    async def _pace(self, caller: str, size_bytes: int) -> None:
        """Wait until the caller's rate allows ``size_bytes`` more."""
        while True:
            wait_s = self._rates.spend(caller, size_bytes, self._clock())
            if not wait_s:
                return
            await asyncio.sleep(min(wait_s, PACE_S_MAX))

    # Out

    async def _manifest(self, scope: Scope, name: bytes) -> Manifest:
        """Return the manifest of a blob that the node has; raise the answer with the blob's status otherwise."""
        task, window = _query_of(scope)
        found = await self._node.request(BlobRequests.blob_fetch, name, task, window)
        if found.state != "complete":
            document = {"state": found.state, "pieces_done": found.pieces_done, "pieces": found.pieces}
            raise _Answered(202, document, again_s=AGAIN_S)
        manifest = Manifest.decode(found.manifest)
        self._manifests.put(name, manifest, len(found.manifest))
        return manifest

    async def _send_manifest(self, scope: Scope, send: Send, name: bytes) -> None:
        data = (self._manifests.get(name) or await self._manifest(scope, name)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": _headers(name, len(data))})
        await _send_body(send, data, more=False)

    async def _content(self, scope: Scope, send: Send, name: bytes, caller: str) -> None:
        manifest = self._manifests.get(name)
        if manifest is None or scope["method"] == "HEAD":
            manifest = await self._manifest(scope, name)
        asked = read_range(_header(scope, b"range"), manifest.size_bytes)
        first, end = asked or (0, manifest.size_bytes)
        if scope["method"] == "HEAD":
            first, end, asked = 0, manifest.size_bytes, None
        numbers = range(first // PIECE_BYTES, -(-end // PIECE_BYTES)) if end > first else range(0)
        piece = b""
        if numbers and scope["method"] == "GET":
            piece = await self._piece(scope, name, numbers[0])  # before anything is promised
        headers = _headers(name, end - first)
        if asked is not None:
            headers.append((b"content-range", f"bytes {first}-{end - 1}/{manifest.size_bytes}".encode()))
        status = 200 if asked is None else 206
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["method"] == "HEAD" or not numbers:
            await send({"type": "http.response.body"})
            return
        for number in numbers:
            if number != numbers[0]:
                if scope["state"]["is_disconnected"]():  # the node need not read the rest
                    raise ConnectionError
                try:
                    piece = await self._piece(scope, name, number)
                except DekubeError:
                    scope["state"][
                        "drop"
                    ]()  # the head has promised more: the client has to see that it is cut off
                    raise ConnectionError from None
            at = number * PIECE_BYTES
            part = piece[max(first - at, 0) : end - at]
            await self._pace(caller, len(part))
            await _send_body(send, part, more=number != numbers[-1])

    async def _piece(self, scope: Scope, name: bytes, number: int) -> bytes:
        async with self._at_node:
            piece = await self._node.request(BlobRequests.blob_piece, name, number)
        if piece is not None:
            return piece
        await self._manifest(scope, name)  # it went meanwhile: this says so, or fetches it again
        raise RpcError(
            "limit_exceeded", "the blob is not complete at this node; try again later", retry_after_s=AGAIN_S
        )

    # In

    async def _begin(self, scope: Scope, receive: Receive, caller: str) -> None:
        grant = _header(scope, b"authorization")
        if not grant:
            raise RpcError(
                "grant_invalid", "header authorization: a signature of the uploading account is missing"
            )
        if self._clock() < self._off_until:
            raise RpcError("uploads_off", "this gateway accepts no uploads")
        data = await self._read_body(scope, receive, MANIFEST_BYTES_MAX, caller)
        name = blob_id(data)
        account = read_grant(
            grant, genesis_hash=self._node.description.genesis_hash, blob=name, height=self._node.head.height
        )
        try:
            upload = await self._node.request(BlobRequests.upload_begin, data, account, caller)
        except RpcError as error:
            if error.reason == "uploads_off":
                self._off_until = self._clock() + OFF_S  # no bodies are read for nothing meanwhile
            raise
        raise _Answered(200, {"blob": "0x" + name.hex(), "pieces": upload.pieces, "missing": upload.missing})

    async def _put(self, scope: Scope, receive: Receive, name: bytes, number: int, caller: str) -> None:
        if not await self._node.request(BlobRequests.upload_lacks, name, number):
            raise _Answered(200, {"complete": None}, closes=True)
        piece = await self._read_body(scope, receive, PIECE_BYTES, caller)
        async with self._at_node:
            is_complete = await self._node.request(BlobRequests.upload_put, name, number, piece)
        raise _Answered(200, {"complete": is_complete})

    async def _read_body(self, scope: Scope, receive: Receive, limit_bytes: int, caller: str) -> bytes:
        """Return the body. Raises RpcError for one that is too long, TimeoutError, ConnectionError."""
        length = _header(scope, b"content-length")
        if length and (not length.isdigit() or len(length) > 9 or int(length) > limit_bytes):
            raise RpcError(
                "blob_too_large", f"Content-Length missing, malformed or above {limit_bytes}", limit=limit_bytes
            )
        chunks: list[bytes] = []
        size = 0
        async with asyncio.timeout(BODY_DEADLINE_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > limit_bytes:
                    text = f"Content-Length missing, malformed or above {limit_bytes}"
                    raise RpcError("blob_too_large", text, limit=limit_bytes)
                if not message.get("more_body"):
                    break
        await self._pace(caller, size)
        return b"".join(chunks)


def _headers(name: bytes, size_bytes: int) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % size_bytes),
        (b"accept-ranges", b"bytes"),
        (b"etag", b'"%s"' % name.hex().encode()),
        (b"cache-control", b"public, max-age=31536000, immutable"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"sandbox"),  # uploaded content must not act as a page of this origin
        (b"content-disposition", b"attachment"),
    ]


async def _send_body(send: Send, data: bytes, *, more: bool) -> None:
    """Send a piece in chunks. Raises TimeoutError for a reader that is too slow."""
    for at in range(0, len(data), CHUNK_BYTES):
        is_last = at + CHUNK_BYTES >= len(data)
        async with asyncio.timeout(CHUNK_DEADLINE_S):
            chunk = data[at : at + CHUNK_BYTES]
            await send({"type": "http.response.body", "body": chunk, "more_body": more or not is_last})


async def _say(send: Send, status: int, document: Any, headers: dict[str, str], *, closes: bool) -> None:
    body = orjson.dumps(document)
    lines = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    lines += [(name.encode(), value.encode()) for name, value in headers.items()]
    if closes:
        lines.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def _name_of(text: str) -> bytes:
    found = _NAME.fullmatch(text)
    if found is None:
        raise RpcError("invalid_params", "invalid params: blob: expected 64 hex digits", param="blob")
    return bytes.fromhex(found[1])


def _number_of(text: str) -> int:
    if _PIECE.fullmatch(text) is None:
        raise RpcError("invalid_params", "invalid params: piece: expected a number", param="piece")
    return int(text)


def _query_of(scope: Scope) -> tuple[bytes | None, int | None]:
    """Return the task and the window of its work that a query names."""
    text = scope.get("query_string", b"").decode("latin-1")
    if len(text) > QUERY_CHARACTERS_MAX:
        raise RpcError("invalid_params", "invalid params: expected task and window", param="task")
    given = dict(parse_qsl(text, max_num_fields=8)) if text.count("&") < 8 else {}
    task, window = given.get("task"), given.get("window")
    found = None if task is None else _NAME.fullmatch(task)
    if task is not None and found is None:
        raise RpcError("invalid_params", "invalid params: task: expected its ID", param="task")
    if window is not None and _PIECE.fullmatch(window) is None:
        raise RpcError("invalid_params", "invalid params: window: expected a number", param="window")
    return None if found is None else bytes.fromhex(found[1]), None if window is None else int(window)


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
