"""The ASGI application: who may ask, what a path stands for, and bounded bodies.

It is for programs of this machine: it names no origin to browsers, and answers host names of the loopback alone.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from node.api.errors import ApiError, unsupported, wrong
from node.api.reading import read_json
from node.api.records import BATCH, TUNING
from node.api.requests import ENDPOINTS, OTHER_ENDPOINTS
from node.api.service import Answer, Service
from node.api.store import FILE_BYTES_MAX, Store

__all__ = ["HOSTS", "PREFIX", "Guard", "make_app"]

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

PREFIX: Final = "/v1"
HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
BODY_BYTES_MAX: Final = 1 << 20
"""A request that is no upload."""
FORM_BYTES_MAX: Final = FILE_BYTES_MAX + (1 << 16)
"""An upload: one file and its other fields."""
FORM_FIELDS_MAX: Final = 8
FORM_FIELD_BYTES_MAX: Final = 4_096
UPLOADS_MAX: Final = 4
"""Uploads at once; further ones are refused. Each takes disk, and memory while its lines are checked."""
BODY_DEADLINE_S: Final = 20.0
UPLOAD_DEADLINE_S: Final = 600.0
PRICE_HEADER: Final = "x-dekube-price"
_ASKED_DIRECTLY: Final = (*ENDPOINTS, *OTHER_ENDPOINTS, "/v1/realtime/sessions", "/v1/audio/speech")


class Guard:
    """Lets requests with the key through. A web page that points its own name at this machine gets nothing."""

    def __init__(self, application: Callable[[Scope, Receive, Send], Awaitable[None]], key: str) -> None:
        self._application, self._key = application, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        headers = {name: value for name, value in scope["headers"] if name in (b"host", b"authorization")}
        error = None
        if not _is_local(headers.get(b"host", b"")):
            error = ApiError("Unknown host name.", status=403, reason="host_unknown")
        elif scope["path"] != "/healthz" and not self._knows(headers.get(b"authorization")):
            text = "Incorrect API key provided. `dekube api key` shows where the key is."
            error = ApiError(text, status=401, reason="invalid_api_key")
        named = _with_number(send)
        if error is None:
            await self._application(scope, receive, named)
        else:
            await _refused(error)(scope, receive, named)

    def _knows(self, given: bytes | None) -> bool:
        scheme, _, key = (given or b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


def _with_number(send: Send) -> Send:
    """Return ``send`` with a number for the request, which clients show with errors."""
    number = f"req_{secrets.token_hex(12)}".encode()

    async def numbered(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", number)]
        await send(message)

    return numbered


def _is_local(host: bytes) -> bool:
    text = host.decode("latin-1").lower()
    name, _, port = text.rpartition(":")
    return (name if name and port.isdigit() else text) in HOSTS


def make_app(service: Service, store: Store) -> FastAPI:
    """Return the application behind the guard."""
    app = FastAPI(title="dekube api", docs_url=None, redoc_url=None, openapi_url=None)
    _add_files(app, service, store)
    _add_tuning(app, service)
    _add_batches(app, service)
    _add_models(app, service)
    for path in _ASKED_DIRECTLY:
        app.add_api_route(path, _refuse_direct, methods=["POST"])

    @app.get("/healthz")
    async def healthz() -> Response:
        return _json({"status": "ok"})

    app.add_exception_handler(ApiError, _on_error)
    app.add_exception_handler(HTTPException, _on_path)
    app.add_exception_handler(Exception, _on_fault)
    return app


def _add_files(app: FastAPI, service: Service, store: Store) -> None:
    room = anyio.Semaphore(UPLOADS_MAX)

    @app.post("/v1/files")
    async def upload(request: Request) -> Response:
        try:
            room.acquire_nowait()
        except anyio.WouldBlock:
            raise ApiError(
                f"{UPLOADS_MAX} files are being uploaded.", status=429, kind="requests",
                reason="rate_limit_exceeded", retry_after_s=5,
            ) from None  # fmt: skip
        try:
            file, size, fields = await _form(request)
            try:
                named = partial(service.upload, file.file, size, file.filename or "", fields.get("purpose"))
                return await _answered(named)
            finally:
                await file.close()
        finally:
            room.release()

    @app.get("/v1/files")
    async def files(request: Request) -> Response:
        return await _answered(partial(service.files, dict(request.query_params)))

    @app.get("/v1/files/{number}")
    async def file(number: str) -> Response:
        return await _answered(partial(service.file, number))

    @app.get("/v1/files/{number}/content")
    async def content(number: str) -> Response:
        found = await anyio.to_thread.run_sync(store.file, number)
        kind = "application/json" if found.name.endswith(".json") else "application/octet-stream"
        return FileResponse(store.path(number), media_type=kind, filename=found.name)

    @app.delete("/v1/files/{number}")
    async def delete(number: str) -> Response:
        return await _answered(partial(service.delete_file, number))


def _add_tuning(app: FastAPI, service: Service) -> None:
    place = "/v1/fine_tuning/jobs"

    @app.post(place)
    async def create(request: Request) -> Response:
        return await _answered(partial(service.create_tuning, await _body(request)))

    @app.get(place)
    async def jobs(request: Request) -> Response:
        return await _answered(partial(service.jobs, TUNING, dict(request.query_params)))

    @app.get(place + "/{number}")
    async def job(number: str) -> Response:
        return await _answered(partial(service.job, TUNING, number))

    @app.post(place + "/{number}/cancel")
    async def cancel(number: str) -> Response:
        return await _answered(partial(service.cancel, TUNING, number))

    @app.get(place + "/{number}/events")
    async def events(number: str, request: Request) -> Response:
        return await _answered(partial(service.events, number, dict(request.query_params)))

    @app.get(place + "/{number}/checkpoints")
    async def checkpoints(number: str, request: Request) -> Response:
        return await _answered(partial(service.checkpoints, number, dict(request.query_params)))

    @app.post(place + "/{number}/pause")
    @app.post(place + "/{number}/resume")
    async def pause(number: str) -> Response:
        raise unsupported("Jobs cannot be paused; cancel them, or let them go on.")


def _add_batches(app: FastAPI, service: Service) -> None:
    @app.post("/v1/batches")
    async def create(request: Request) -> Response:
        return await _answered(partial(service.create_batch, await _body(request)))

    @app.get("/v1/batches")
    async def batches(request: Request) -> Response:
        return await _answered(partial(service.jobs, BATCH, dict(request.query_params)))

    @app.get("/v1/batches/{number}")
    async def batch(number: str) -> Response:
        return await _answered(partial(service.job, BATCH, number))

    @app.post("/v1/batches/{number}/cancel")
    async def cancel(number: str) -> Response:
        return await _answered(partial(service.cancel, BATCH, number))


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        return await _answered(service.models)

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        return await _answered(partial(service.model, name))

    @app.delete("/v1/models/{name:path}")
    async def delete(name: str) -> Response:
        return await _answered(partial(service.delete_model, name))

    @app.get("/v1/dekube/budget")
    async def budget() -> Response:
        return await _answered(service.budget)


async def _refuse_direct(request: Request) -> Response:
    raise ApiError(
        f"{request.url.path} is served as batches only: POST /v1/batches with endpoint {' or '.join(ENDPOINTS)}.",
        reason="unsupported_endpoint",
    )


async def _answered(do: Callable[[], Answer]) -> Response:
    """Do what may wait in a thread; return its answer."""
    found = await anyio.to_thread.run_sync(do)
    return _json(found.body, price=found.price)


def _json(body: Any, status: int = 200, *, price: str | None = None) -> Response:
    headers = {} if price is None else {PRICE_HEADER: price}
    return Response(orjson.dumps(body), status, headers, "application/json")


def _refused(error: ApiError) -> Response:
    return Response(orjson.dumps(error.to_json()), error.status, error.headers(), "application/json")


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _refused(error)


async def _on_path(request: Request, error: Exception) -> Response:
    """Answer for a path or a method that is not served."""
    assert isinstance(error, HTTPException)
    text = f"Unknown request URL: {request.method} {request.url.path[:200]}."
    return _refused(ApiError(text, status=error.status_code, reason="unknown_url"))


async def _on_fault(_request: Request, error: Exception) -> Response:
    _log.error("a request failed", error=repr(error)[:500])
    return _refused(ApiError("The server had an error.", status=500, kind="server_error", retry=False))


async def _body(request: Request) -> dict[str, Any]:
    """Return the object in a request's body. Raises ApiError."""
    data = bytearray()
    async for piece in _bounded(request, BODY_BYTES_MAX, BODY_DEADLINE_S):
        data += piece
    return read_json(bytes(data))


async def _bounded(request: Request, most: int, deadline_s: float) -> AsyncGenerator[bytes, None]:
    size = 0
    try:
        async with asyncio.timeout(deadline_s):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise ApiError(f"A body of more than {most} bytes.", status=413, reason="body_too_large")
                yield piece
    except TimeoutError:
        raise ApiError("The body takes too long.", status=408, reason="timeout", retry=False) from None


async def _form(request: Request) -> tuple[UploadFile, int, dict[str, str]]:
    """Return the file of a form, its size, and the form's other fields. Raises ApiError."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise wrong("A file is sent as multipart/form-data.", reason="invalid_content_type")
    parser = MultiPartParser(
        request.headers, _bounded(request, FORM_BYTES_MAX, UPLOAD_DEADLINE_S), max_files=1,
        max_fields=FORM_FIELDS_MAX, max_part_size=FORM_FIELD_BYTES_MAX,
    )  # fmt: skip
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise wrong(f"The form is not valid: {error.message[:200]}", reason="invalid_form") from None
    file, fields = None, dict[str, str]()
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            file = value if name == "file" else None
        else:
            fields[name] = value
    if file is None:
        raise wrong("Missing required parameter: 'file'.", "file", "missing_required_parameter")
    for name in fields:
        if name.startswith("expires_after"):
            await file.close()
            raise unsupported("Files are kept until they are deleted.", "expires_after")
        if name != "purpose":
            await file.close()
            raise wrong(f"Unknown parameter: '{name[:80]}'.", name[:80], "unknown_parameter")
    return file, file.size or 0, fields
