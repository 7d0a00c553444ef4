"""REST of the gateway, through FastAPI: health, metrics, documents, and GET paths over the table of methods.

See rpc.md 2.3 and 5.4.
"""

from __future__ import annotations

import html
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from rpc.gateway.dispatch import Caller, Dispatcher
from rpc.gateway.limits import caller_key
from rpc.gateway.method_table import METHOD_TABLE
from rpc.gateway.metrics import Metrics
from rpc.gateway.node.client import NodeClient
from rpc.methods.method import Json, Method
from rpc.protocol.errors import NodeUnavailable, RpcError, as_rpc_error
from rpc.protocol.requests import LiveRequests
from state.primitives.address import format_address
from state.primitives.errors import DekubeError

__all__ = ["ReadinessOptions", "rest_api"]

STATUS_OF_REASON: Final = {
    "invalid_params": 400,
    "decode_error": 400,
    "not_found": 404,
    "height_unknown": 404,
    "task_unknown": 404,
    "escrow_unknown": 404,
    "pruned": 410,
    "limit_exceeded": 429,
    "internal_error": 500,
    "node_unavailable": 503,
    "height_not_reached": 503,
}
"""REST alone speaks in HTTP statuses; JSON-RPC answers 200, because wallets take others for a dead node."""
PAGE_HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'",
    "x-content-type-options": "nosniff",
}
FRONT_LINKS: Final = (
    ("/docs", "JSON-RPC methods"),
    ("/openrpc.json", "the same as an OpenRPC document"),
    ("/openapi.json", "REST paths"),
    ("/status", "state of the node"),
    ("/healthz", "health: this process answers"),
    ("/readyz", "readiness: the node follows the chain"),
    ("/metrics", "metrics for Prometheus"),
)


@dataclass(frozen=True, slots=True)
class ReadinessOptions:
    """When ``/readyz`` answers that the node is ready."""

    blocks_behind_max: int = 5
    peers_min: int = 1
    disk_mib_min: int = 256


def rest_api(
    node: NodeClient,
    dispatcher: Dispatcher,
    metrics: Metrics,
    readiness: ReadinessOptions,
    pages: Iterable[APIRouter] = (),
) -> FastAPI:
    """Return the REST application: readiness, metrics, documents, GET paths over the methods, and ``pages``."""
    calls = _Calls(dispatcher, metrics)
    api = FastAPI(title="DEKUBE node", docs_url=None, redoc_url=None)
    api.add_middleware(_HeadAsGet)
    api.add_exception_handler(405, _refuse_method)
    for method in METHOD_TABLE.values():
        for path in method.routes or ():
            _add_route(api, calls, path, method)

    @api.get("/", response_class=HTMLResponse)
    async def front() -> HTMLResponse:
        """Which chain this is, how far the node is, and where to go on."""
        return HTMLResponse(_front_page(node), headers=PAGE_HEADERS)

    @api.get("/readyz")
    async def readyz() -> Response:
        """The node answers, is close to the newest block, has peers enough and room on its disk."""
        ready, detail = await _readiness(node, readiness)
        return _json(detail, 200 if ready else 503)

    @api.get("/status")
    async def status(request: Request) -> Response:
        """How far this node is."""
        return await calls.answer(METHOD_TABLE["dekube_status"], {}, request)

    @api.get("/metrics", response_class=PlainTextResponse)
    async def expose() -> Response:
        """Counters of the gateway for Prometheus."""
        return Response(metrics.expose(), media_type=CONTENT_TYPE_LATEST)

    @api.get("/openrpc.json")
    async def openrpc(request: Request) -> Response:
        """The OpenRPC document."""
        return await calls.answer(METHOD_TABLE["rpc.discover"], {}, request)

    @api.get("/docs", response_class=HTMLResponse)
    async def docs() -> str:
        """Every method on one page."""
        return _DOCS

    for router in pages:
        api.include_router(router)
    return api


class _HeadAsGet:
    """Answers HEAD as GET (RFC 9110, 9.3.2): one route for both is one operation in the OpenAPI document.

    uvicorn sends no body, for its own scope says HEAD still.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        await self._app({**scope, "method": "GET"} if is_head else scope, receive, send)


async def _refuse_method(_request: Request, error: Exception) -> Response:
    """Answer 405; the routes know nothing of HEAD, which is allowed where GET is."""
    assert isinstance(error, HTTPException)
    allowed = dict(error.headers or {}).get("Allow", "").split(", ")
    if "GET" in allowed:
        allowed = sorted({*allowed, "HEAD"})
    return _json({"detail": error.detail}, 405, {"allow": ", ".join(allowed)})


def _add_route(api: FastAPI, calls: _Calls, path: str, method: Method) -> None:
    async def endpoint(request: Request) -> Response:
        given = {**request.query_params, **request.path_params}
        return await calls.answer(method, given, request)

    parameters = [
        {
            "name": param.name,
            "in": "path" if f"{{{param.name}}}" in path else "query",
            "required": param.required or f"{{{param.name}}}" in path,
            "description": param.text,
            "schema": param.type.schema,
        }
        for param in method.all_params
    ]
    api.add_api_route(
        path,
        endpoint,
        methods=["GET"],
        summary=method.summary,
        operation_id=path.strip("/").replace("/", "_").replace("{", "").replace("}", ""),
        openapi_extra={"parameters": parameters},
    )


class _Calls:
    """Calls methods of the table on behalf of GET requests."""

    def __init__(self, dispatcher: Dispatcher, metrics: Metrics) -> None:
        self._dispatcher = dispatcher
        self._metrics = metrics

    async def answer(self, method: Method, given: dict[str, str], request: Request) -> Response:
        """Return the response to a call of ``method`` with the parameters ``given`` as text."""
        caller = Caller(caller_key(request.client.host) if request.client else "")
        try:
            params = {name: _from_text(method, name, value) for name, value in given.items()}
            result = await self._dispatcher.call(method.name, params or None, caller)
        except DekubeError as error:
            known = as_rpc_error(error)
            self._metrics.observe(method.name, known.reason)
            status = STATUS_OF_REASON.get(known.reason, 400)
            headers = {"retry-after": "1"} if status in (429, 503) else None
            return _json({"error": known.to_json()}, status, headers)
        self._metrics.observe(method.name, "ok")
        response = _json(result, 404 if any(value is None for value in _subject(result)) else 200)
        self._dispatcher.charge_answer(caller, len(response.body))
        return response


def _subject(result: Json) -> list[Json]:
    """Return the one thing asked for, where an answer has just one beside its stamp: null then means 404."""
    parts = [value for name, value in result.items() if name != "at"] if type(result) is dict else []
    return parts if len(parts) == 1 else []


def _from_text(method: Method, name: str, value: str) -> Any:
    """Return what a path or query says as JSON: numbers and booleans are written as such."""
    param = next((param for param in method.all_params if param.name == name), None)
    schema = {} if param is None else param.type.schema
    kinds = {schema.get("type"), *(arm.get("type") for arm in schema.get("anyOf", ()))}
    if "integer" in kinds and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    if "boolean" in kinds and value in ("true", "false"):
        return value == "true"
    return value


async def _readiness(node: NodeClient, options: ReadinessOptions) -> tuple[bool, Json]:
    try:
        head, sync = node.head, await node.request(LiveRequests.sync)
    except (NodeUnavailable, RpcError) as error:
        return False, {"ready": False, "reason": as_rpc_error(error).reason}
    behind = max(sync.highest - head.height, 0)
    reason = None
    if behind > options.blocks_behind_max:
        reason = "behind"
    elif sync.peers < options.peers_min:
        reason = "few_peers"
    elif 0 <= sync.disk_free_mib < options.disk_mib_min:
        reason = "disk"
    return reason is None, {
        "ready": reason is None,
        "reason": reason,
        "height": head.height,
        "behind": behind,
        "peers": sync.peers,
        "disk_free_mib": None if sync.disk_free_mib < 0 else sync.disk_free_mib,
    }


def _json(value: Json, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, "application/json")


def _front_page(node: NodeClient) -> str:
    """Return the page at ``/``: it asks the node nothing, so it is there while the node is not."""
    title, rows = "DEKUBE node", []
    with suppress(NodeUnavailable):
        what = node.description
        title = f"{what.chain_name}: DEKUBE node"
        rows += [
            ("Chain", what.chain_name + (" (test network)" if what.testnet else "")),
            ("Chain ID", str(what.chain_id)),
            ("Genesis", "0x" + what.genesis_hash.hex()),
        ]
        head = node.head
        age_s = max(time.time_ns() // 1_000_000 - head.time_ms, 0) // 1_000
        rows += [
            ("Height", str(head.height)),
            ("Newest block", f"0x{head.hash.hex()}, {age_s} s old"),
            ("Node", f"{what.version}, address {format_address(what.address)}"),
        ]
    if not node.is_connected:
        rows.append(("Node", "does not answer; this page is the gateway's"))
    table = "".join(f"<tr><th>{html.escape(name)}<td>{html.escape(value)}" for name, value in rows)
    links = "".join(f"<li><a href='{path}'>{path}</a> {html.escape(text)}" for path, text in FRONT_LINKS)
    return (
        f"{_page_head(title)}<h1>{html.escape(title)}</h1><table>{table}</table>"
        f"<p>JSON-RPC: <code>POST /</code> or WebSocket <code>/ws</code>.</p><ul>{links}</ul>"
    )


def _page_head(title: str) -> str:
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>body{{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto"
        ";padding:0 1rem}code{background:#8882;padding:.1em .3em;border-radius:.2em}"
        "th{text-align:left;padding-right:1rem;vertical-align:top}td{overflow-wrap:anywhere}</style>"
    )


def _docs() -> str:
    rows = []
    for method in METHOD_TABLE.values():
        params = ", ".join(param.name if param.required else f"[{param.name}]" for param in method.all_params)
        notes = "".join(
            f"<li><code>{html.escape(param.name)}</code> {html.escape(param.text)}</li>" for param in method.params
        )
        rows.append(
            f"<h3 id='{method.name}'><code>{method.name}({html.escape(params)})</code></h3>"
            f"<p>{html.escape(method.summary)}</p><ul>{notes}</ul>"
        )
    return (
        _page_head("DEKUBE JSON-RPC") + "<h1>JSON-RPC</h1>"
        "<p>POST / or WebSocket /ws. The same as a document: <a href='/openrpc.json'>openrpc.json</a>; REST: "
        "<a href='/openapi.json'>openapi.json</a>.</p>" + "".join(rows)
    )


_DOCS: Final = _docs()
