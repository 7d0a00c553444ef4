"""The short way of plain requests: the order of answers, bodies in pieces, limits, clients that leave."""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import trio
from fastapi import APIRouter

from rpc.gateway.app import ALLOWED_HEADERS, allowed_headers
from rpc.gateway.connections import ConnectionOptions
from rpc.gateway.dispatch import DispatchOptions
from rpc.gateway.fast_path import BURST_MAX, CHUNK_BYTES
from rpc.gateway.method_table import METHOD_TABLE
from rpc.gateway.node.client import NodeClient
from rpc.gateway.process import GatewayOptions
from rpc.gateway.rest import _front_page, rest_api
from tests.rpc.harness import Gateway, Node, gateway, mint, served
from tests.rpc.raw import Wire, call, chunked, post

OPTIONS = GatewayOptions("", dispatch=DispatchOptions(rate_per_s=0, body_bytes_max=100_000))
NOWHERE = "0x" + "00" * 32
CHAIN = call("eth_chainId")


@asynccontextmanager
async def running(path: Path, options: GatewayOptions = OPTIONS) -> AsyncIterator[Gateway]:
    node = Node(path / "db")
    async with served(node, path / "s") as backend, gateway(backend, path / "s", options) as it:
        yield it


async def order_of_answers(it: Gateway) -> None:
    async with await Wire.open(it) as wire:
        slow = call("dekube_waitForReceipt", NOWHERE, 200, identifier="slow")
        get = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        await wire.send(post(slow) + post(CHAIN) + get + post(call("eth_blockNumber")) + get + post(CHAIN))
        assert (await wire.answer()).json["id"] == "slow"
        assert (await wire.answer()).json["result"] == "0x7"
        assert (await wire.answer()).body == b"ok\n"
        assert (await wire.answer()).json["result"] == "0x0"
        assert (await wire.answer()).body == b"ok\n"
        assert (await wire.answer()).json["result"] == "0x7"
        # More than are answered in one go, and another after them on the same connection.
        count = 3 * BURST_MAX
        await wire.send(b"".join(post(call("eth_chainId", identifier=number)) for number in range(count)))
        assert [(await wire.answer()).json["id"] for _ in range(count)] == list(range(count))
        await wire.send(get + post(CHAIN))
        assert (await wire.answer()).body == b"ok\n"
        assert (await wire.answer()).json["id"] == 1


async def bodies_in_pieces(it: Gateway) -> None:
    async with await Wire.open(it) as wire:
        for step in (1, 7, 40):
            request = post(CHAIN)
            for at in range(0, len(request), step):
                await wire.send(request[at : at + step])
                await trio.lowlevel.checkpoint()
            assert (await wire.answer()).json["result"] == "0x7"
        await wire.send(chunked(CHAIN[:5], CHAIN[5:]) + chunked(CHAIN))
        for _ in range(2):
            assert (await wire.answer()).json["result"] == "0x7"
        await wire.send(post(b""))
        assert (await wire.answer()).json["error"]["code"] == -32700
        await wire.send(post(b"[" + CHAIN + b',{"jsonrpc":"2.0","method":"eth_chainId"}]'))
        assert len((await wire.answer()).json) == 1
        await wire.send(post(b'{"jsonrpc":"2.0","method":"eth_chainId"}') + post(CHAIN))
        nothing = await wire.answer()
        assert (nothing.status, nothing.body) == (200, b"")
        assert (await wire.answer()).json["result"] == "0x7"


@pytest.mark.slow
async def test_the_heads_of_answers(tmp_path: Path) -> None:
    options = replace(OPTIONS, cors=("https://wallet.example",))
    async with running(tmp_path, options) as it, await Wire.open(it) as wire:
        await wire.send(post(CHAIN) + post(CHAIN, "origin: https://wallet.example") + post(CHAIN, "origin: x"))
        plain, ours, other = [await wire.answer() for _ in range(3)]
        assert plain.headers["content-type"] == "application/json"
        assert "date" in plain.headers
        assert ours.headers["access-control-allow-origin"] == "https://wallet.example"
        assert ours.headers["vary"] == "origin"
        assert "access-control-allow-origin" not in plain.headers | other.headers
        await wire.send(post(CHAIN, "connection: close"))
        last = await wire.answer()
        assert last.headers["connection"] == "close"
        assert await wire.is_closed()
    async with running(tmp_path / "2") as it:
        async with await Wire.open(it) as wire:
            await wire.send(post(CHAIN, version="1.0"))
            assert (await wire.answer()).json["result"] == "0x7"
            assert await wire.is_closed()
        async with await Wire.open(it) as wire:
            await wire.send(post(CHAIN).replace(b"host: localhost", b"host: evil.example"))
            assert (await wire.answer()).status == 403
        async with await Wire.open(it) as wire:
            await wire.send(post(b"", "expect: 100-continue", length=len(CHAIN)))
            assert (await wire.answer()).status == 100
            await wire.send(CHAIN)
            assert (await wire.answer()).json["result"] == "0x7"


async def bodies_over_the_limit(it: Gateway) -> None:
    for request in (post(b"[" * 10, length=100_001), chunked(*[b" " * 10_000] * 11)):
        async with await Wire.open(it) as wire:
            await wire.send(request)
            answer = await wire.answer()
            told = answer.json[0] if request.endswith(b"[") else answer.json  # as of a batch
            assert (answer.status, told["error"]["code"]) == (200, -32600)
            assert told["error"]["data"]["limit"] == 100_000
            assert await wire.is_closed()


# Clients that read only when they have sent all: of the standard library, and as raw sockets.


def of_http_client(port: int, body: bytes | Iterable[bytes]) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/", body)  # pieces go as they come
        return json.loads(connection.getresponse().read())


def of_urllib(port: int, body: bytes) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", body)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
        return json.load(response)


def of_socket(port: int, *pieces: bytes, pause_s: float = 0.0) -> Any:
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(pause_s)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    [head, body] = answer.split(b"\r\n\r\n")
    assert b"connection: close" in head
    return json.loads(body)


@pytest.mark.slow
async def test_who_sends_all_before_it_reads_is_told_what_is_refused(tmp_path: Path) -> None:
    options = replace(OPTIONS, dispatch=DispatchOptions(rate_per_s=0))
    limit = options.dispatch.body_bytes_max

    def ask(port: int) -> None:
        for size in (limit + 1, 5_000_000, 20_000_000):
            body = bytes(size)
            for answer in (
                of_http_client(port, body),
                of_http_client(port, (body[at : at + 100_000] for at in range(0, size, 100_000))),
                of_urllib(port, body),
                of_socket(port, post(body)),
                of_socket(port, chunked(*[body[:1_000_000]] * (1 + size // 1_000_000))),
                of_socket(port, post(body, version="1.0")),
                of_socket(port, post(body, "expect: 100-continue")),
            ):
                assert answer["error"]["code"] == -32600
                assert answer["error"]["message"] == "request too large"
                assert answer["error"]["data"]["limit"] == limit
        # A line that takes its time is waited for.
        slow = [post(bytes(limit + 1))[:-1_000_000], *[b"x" * 200_000] * 5]
        assert of_socket(port, *slow, pause_s=0.5)["error"]["code"] == -32600

    async with running(tmp_path, options) as it:
        await trio.to_thread.run_sync(ask, it.port)
        assert await it.call("eth_chainId") == "0x7"


async def test_who_holds_too_much_is_told_so_too(tmp_path: Path) -> None:
    doors = ConnectionOptions(held_bytes_per_address_max=1_000_000)

    def ask(port: int) -> None:
        for data in (post(bytes(4_000_000)), chunked(*[bytes(100_000)] * 40)):
            error = of_socket(port, data)["error"]
            assert (error["code"], error["data"]["reason"]) == (-32005, "limit_exceeded")

    options = replace(OPTIONS, dispatch=DispatchOptions(rate_per_s=0), connections=doors)
    async with running(tmp_path, options) as it:
        await trio.to_thread.run_sync(ask, it.port)


async def test_a_body_that_is_refused_is_not_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path) as it, await Wire.open(it) as wire:
        await wire.send(post(b"", "expect: 100-continue", length=100_001))
        answer = await wire.answer()
        assert (answer.status, answer.json["error"]["code"]) == (200, -32600)
        assert await wire.is_closed()


async def large_answers(it: Gateway) -> None:
    async with await Wire.open(it) as wire:
        document = call("rpc.discover")
        await wire.send(post(b"[" + b",".join([document] * 40) + b"]") + post(CHAIN))
        answer = await wire.answer()
        assert len(answer.body) > 4 * CHUNK_BYTES
        assert len(answer.json) == 40
        assert (await wire.answer()).json["result"] == "0x7"


@pytest.mark.slow
async def test_the_short_way_keeps_order_and_limits(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for scenario in (order_of_answers, bodies_in_pieces, bodies_over_the_limit, large_answers):
            await scenario(it)


PATHS = (
    "/", "/readyz", "/status", "/metrics", "/docs", "/openrpc.json", "/openapi.json", "/healthz", "/v1/chain",
    "/v1/blocks?limit=1", "/v1/blocks/77", "/v1/blocks/pending", "/v1/network", "/nothing", "/blobs/nothing",
)  # fmt: skip


def asked(method: str, path: str, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in ("host: localhost", *headers))
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()


async def all_bytes(it: Gateway, *requests: bytes) -> bytes:
    """Return what comes on one connection until its end."""
    async with await Wire.open(it) as wire:
        await wire.send(b"".join(requests))
        with trio.fail_after(120):
            return b"".join([part async for part in wire.stream])


def fields(head: bytes, *varying: bytes) -> list[bytes]:
    """Return status and headers but those that may be others in each answer."""
    return [line for line in head.split(b"\r\n") if line.split(b":")[0] not in (b"date", b"connection", *varying)]


@pytest.mark.slow
async def test_head_is_answered_as_get_without_the_body(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for path in PATHS:
            head, _, body = (await all_bytes(it, asked("GET", path, "connection: close"))).partition(b"\r\n\r\n")
            assert body and b"content-length: %d" % len(body) in head
            # Two in one piece, then a question: a byte of a body would stand before the next answer.
            bare = [asked("HEAD", path)] * 2
            *heads, last = (await all_bytes(it, *bare, post(CHAIN, "connection: close"))).split(b"\r\n\r\n")
            assert len(heads) == 3 and json.loads(last)["result"] == "0x7"
            varying = (b"content-length",) if path == "/metrics" else ()
            for found in heads[:2]:
                assert b"content-length: " in found
                assert fields(found, *varying) == fields(head, *varying), path
        assert (await it.http.head(it.url + "/openrpc.json")).headers["content-length"]


@pytest.mark.slow
async def test_head_costs_what_get_costs(tmp_path: Path) -> None:
    limited = replace(OPTIONS, dispatch=DispatchOptions(rate_per_s=1e-9, burst=400))  # type: ignore[arg-type]
    found: dict[str, list[int]] = {}
    for method in ("GET", "HEAD"):
        async with running(tmp_path / method, limited) as it:
            ask = partial(it.http.request, method)
            found[method] = [(await ask(it.url + path)).status_code for path in 4 * PATHS if path != "/healthz"]
    assert found["HEAD"] == found["GET"]
    assert found["GET"][0] == 200 and found["GET"][-1] == 429


async def test_a_question_beforehand_costs_a_unit(tmp_path: Path) -> None:
    limited = replace(OPTIONS, dispatch=DispatchOptions(rate_per_s=1e-9, burst=3))  # type: ignore[arg-type]
    async with running(tmp_path, limited) as it:
        asked = [await it.http.options(it.url + path) for path in 2 * ("/", "/v1/chain", "/healthz")]
        assert [answer.status_code for answer in asked][:3] == [204, 204, 204]
        assert {answer.headers["access-control-allow-origin"] for answer in asked} == {"*"}
        assert asked[0].headers["access-control-allow-methods"]
        assert asked[-1].status_code == 429 and asked[-1].headers["retry-after"]
        assert asked[-1].json()["error"]["code"] == -32005
        assert (await it.http.get(it.url + "/v1/chain")).status_code == 429
        assert (await it.http.get(it.url + "/healthz")).status_code == 200


async def status_of(it: Gateway, request: bytes) -> int:
    return int((await all_bytes(it, request)).split(b" ", 2)[1])


async def test_health_checks_without_a_name_or_under_another_are_answered(tmp_path: Path) -> None:
    """Load balancers ask by HTTP/1.0 without Host, under an address, or under the name of their service."""
    async with running(tmp_path, replace(OPTIONS, ready_peers_min=0)) as it:
        end = b"connection: close\r\n\r\n"
        for path in ("/", "/healthz", "/readyz", "/metrics", "/status"):
            line = f"GET {path} HTTP/1.".encode()
            assert await status_of(it, line + b"0\r\n\r\n") == 200, path
            assert await status_of(it, line + b"1\r\n" + end) == 200, path
            for host in (b"10.9.8.7", b"10.9.8.7:8545", b"[2001:db8::1]:80", b"[2001:db8::1]"):
                assert await status_of(it, line + b"1\r\nhost: " + host + b"\r\n" + end) == 200, (path, host)
            named = line + b"1\r\nhost: rpc.evil.example\r\n" + end
            assert await status_of(it, named) == (200 if path in ("/healthz", "/readyz") else 403), path
        assert await status_of(it, b"OPTIONS / HTTP/1.0\r\n\r\n") == 204
        assert await status_of(it, post(CHAIN, version="1.0").replace(b"host: localhost\r\n", b"")) == 200
        for host in (b"10.9.8.7.evil.example", b"evil.example:1:2", b"[evil.example]", b"1", b"x" * 600):
            assert await status_of(it, b"GET / HTTP/1.1\r\nhost: " + host + b"\r\n" + end) == 403, host


@pytest.mark.slow
async def test_without_a_host_it_listens_on_both_families(tmp_path: Path) -> None:
    async with running(tmp_path, replace(OPTIONS, listen=(":0", "127.0.0.1:0"))) as it:
        for host in ("127.0.0.1", "[::1]", "localhost"):
            assert (await it.http.get(f"http://{host}:{it.port}/healthz")).status_code == 200


async def test_the_page_at_the_root_says_chain_and_height_and_leads_on(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    async with (
        served(node, tmp_path / "s") as backend,
        gateway(backend, tmp_path / "s", replace(OPTIONS, ready_peers_min=0)) as it,
    ):
        await mint(it, node, 3)
        answer = await it.http.get(it.url + "/")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "<td>rpc test (test network)" in answer.text and "<th>Height<td>3" in answer.text
        assert "0x" + node.runtime.genesis_hash.hex() in answer.text
        links = re.findall("href='([^']+)'", answer.text)
        assert {"/docs", "/healthz", "/readyz", "/metrics"} <= set(links)
        assert {(await it.http.get(it.url + link)).status_code for link in links} == {200}
        assert b"404" not in (await all_bytes(it, asked("HEAD", "/", "connection: close"))).split(b"\r\n")[0]


def test_the_page_at_the_root_is_there_without_the_node_and_escapes_names() -> None:
    away = NodeClient(Path("/nowhere"))
    assert "does not answer" in _front_page(away)
    away._description = cast(Any, SimpleNamespace(
        chain_name="<script>", chain_id=7, testnet=0, genesis_hash=bytes(32), version="v", address=bytes(20)
    ))  # fmt: skip
    page = _front_page(away)
    assert "<script>" not in page and "&lt;script&gt;" in page and "does not answer" in page


def test_a_preflight_allows_the_headers_that_it_names_and_nothing_that_is_none() -> None:
    def told(value: bytes) -> bytes:
        return allowed_headers([(b"origin", b"x"), (b"access-control-request-headers", value)])

    for value in (b"x-requested-with", b"Content-Type, X-Requested-With", b"a,b , c"):
        assert told(value) == value
    for value in (b"", b"a b", b"a\r\nset-cookie: x", b"a,,b", b"\xff", b"a" * 3_000, b",".join([b"a"] * 65)):
        assert told(value) == ALLOWED_HEADERS
    assert allowed_headers([]) == ALLOWED_HEADERS


@pytest.mark.slow
async def test_who_may_not_is_told_what_is_allowed(tmp_path: Path) -> None:
    async with running(tmp_path) as it:
        for path in ("/status", "/v1/chain", "/openapi.json"):
            refused = await it.http.post(it.url + path)
            assert (refused.status_code, refused.json()) == (405, {"detail": "Method Not Allowed"})
            assert sorted(refused.headers["allow"].split(", ")) == ["GET", "HEAD"]


NOTHING = cast(Any, None)
"""Routes that are not called use none of the parts."""


async def test_a_page_of_get_has_head_and_one_of_post_has_not() -> None:
    page = APIRouter()
    page.add_api_route("/read", lambda: "read")
    page.add_api_route("/write", lambda: "write", methods=["POST"])
    api = rest_api(NOTHING, NOTHING, NOTHING, NOTHING, [page])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as client:
        assert (await client.head("/read")).headers["content-length"] == str(len('"read"'))
        refused = await client.head("/write")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.mark.filterwarnings("error")
def test_the_openapi_document_has_each_operation_once() -> None:
    paths = rest_api(NOTHING, NOTHING, NOTHING, NOTHING).openapi()["paths"]
    declared = {path for method in METHOD_TABLE.values() for path in method.routes or ()}
    assert paths.keys() > declared | {"/readyz", "/status", "/metrics", "/docs"}
    assert all(operations.keys() == {"get"} for operations in paths.values())
    ids = [operations["get"]["operationId"] for operations in paths.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
async def test_an_idle_connection_is_closed_and_one_that_waits_is_not(tmp_path: Path) -> None:
    async with (
        running(tmp_path, replace(OPTIONS, keep_alive_s=1)) as it,
        await Wire.open(it) as idle,
        await Wire.open(it) as waiting,
    ):
        await idle.send(post(CHAIN))
        assert (await idle.answer()).json["result"] == "0x7"
        slow = post(call("dekube_waitForReceipt", NOWHERE, 3_000))
        await waiting.send(post(CHAIN) + slow)
        assert (await waiting.answer()).json["result"] == "0x7"
        assert await idle.is_closed()
        assert (await waiting.answer()).json["result"]["receipt"] is None, "three times as long as one may be idle"
        await waiting.send(post(CHAIN))
        assert (await waiting.answer()).json["result"] == "0x7"
        assert await waiting.is_closed()


@pytest.mark.slow
async def test_who_leaves_gives_back_the_places_of_its_requests(tmp_path: Path) -> None:
    limited = DispatchOptions(rate_per_s=0, requests_per_caller_max=2)
    async with running(tmp_path, replace(OPTIONS, dispatch=limited)) as it:
        waiting = [await Wire.open(it) for _ in range(2)]
        for wire in waiting:
            await wire.send(post(call("dekube_waitForReceipt", NOWHERE, 60_000)))
        with trio.fail_after(120):
            while "result" in (await it.raw({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"})):
                pass
            for wire in waiting:
                await trio.aclose_forcefully(wire.stream)
            while "error" in (await it.raw({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"})):
                pass
