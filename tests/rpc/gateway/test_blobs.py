"""Blobs over a real gateway: downloads, uploads by signature; hostile and slow clients harm no other client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import pytest
import trio
import uvloop
from uvicorn.config import Config
from uvicorn.server import ServerState

import rpc.gateway.blobs
from node.home.options import UploadOptions
from node.market.blobs import GatewayBlobs
from node.market.uploads import PARTIAL_MS
from p2p.blob.store import PieceInvalid
from p2p.service import Network, NetworkConfig
from rpc.backend.server import Backend
from rpc.client import AsyncClient, Client, ClientError, ClientOptions
from rpc.gateway.blobs import BlobEndpoint, BlobOptions, read_range
from rpc.gateway.connections import ConnectionLimiter, ConnectionOptions
from rpc.gateway.process import GatewayOptions
from rpc.gateway.protocols import make_protocols
from rpc.protocol.errors import RpcError
from rpc.protocol.grants import GRANT_BLOCKS_MAX, grant_digest, make_grant, read_grant
from rpc.protocol.records import BlobStatus
from rpc.protocol.requests import REQUESTS, BlobRequests, handler_of
from state.primitives.keys import SecretKey
from state.primitives.manifests import (
    MANIFEST_BYTES_MAX,
    PIECE_BYTES,
    Manifest,
    manifest_of,
    piece_hash,
)
from tests.p2p.helpers import NOW_MS, identity
from tests.rpc.gateway.test_heads import Echo
from tests.rpc.harness import ALICE, BOB, COIN, DAVE, Gateway, Node, gateway

UPLOADS: Final = UploadOptions(
    enabled=True, bytes_per_blob_max=8 * PIECE_BYTES, bytes_per_account_day_max=20 * PIECE_BYTES
)
CONTENT: Final = Random(3).randbytes(3 * PIECE_BYTES + 5)
PIECES: Final = [CONTENT[first : first + PIECE_BYTES] for first in range(0, len(CONTENT), PIECE_BYTES)]
MANIFEST: Final = Manifest(len(CONTENT), tuple(map(piece_hash, PIECES)))
BLOB: Final = MANIFEST.blob_id


class World:
    """A node with a store of blobs, and its gateway."""

    def __init__(self, path: Path, uploads: UploadOptions) -> None:
        self.path = path
        self.node = Node(path / "db")
        self.node.mint()
        self.uploads = uploads
        self.now_ms = 10**12
        self.start()
        self.it: Gateway

    def start(self) -> None:
        config = NetworkConfig(blob_dir=self.path / "blobs", blob_budget_bytes=32 * PIECE_BYTES)
        self.network = Network(config, identity(1), now_ms=lambda: NOW_MS)
        self.blobs = GatewayBlobs(
            self.network, self.node.store, self.uploads, self.path / "uploads", identity(1).address,
            now_ms=lambda: self.now_ms,
        )  # fmt: skip
        assert self.network.blobs is not None
        self.store = self.network.blobs

    def grant(
        self, *, key: SecretKey = ALICE, blob: bytes = BLOB, blocks: int = 10, genesis: bytes = b""
    ) -> dict[str, str]:
        until = self.node.store.tip.height + blocks
        signed = grant_digest(genesis or self.node.runtime.genesis_hash, blob, until)
        return {"authorization": make_grant(until, key.sign(signed))}

    async def begin(
        self, manifest: bytes = MANIFEST.encode(), headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        answer = await self.it.http.post(self.it.url + "/blobs", content=manifest, headers=headers or self.grant())
        return answer.status_code, answer.json()

    async def put(self, number: int | str, data: bytes, blob: bytes = BLOB) -> tuple[int, Any]:
        answer = await self.it.http.put(f"{self.it.url}/blobs/{blob.hex()}/{number}", content=data)
        return answer.status_code, answer.json()

    async def get(self, path: str = BLOB.hex(), **headers: str) -> httpx.Response:
        return await self.it.http.get(f"{self.it.url}/blobs/{path}", headers=headers)


@asynccontextmanager
async def serving(
    path: Path, uploads: UploadOptions = UPLOADS, options: BlobOptions | None = None
) -> AsyncIterator[World]:
    world = World(path, uploads)
    socket = path / "s"
    backend = Backend(world.node.view, world.node, socket, blobs=world.blobs)
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        nursery.start_soon(world.blobs.run)
        wanted = GatewayOptions(str(socket), blobs=options or BlobOptions())
        async with gateway(backend, socket, wanted) as world.it:
            yield world
        nursery.cancel_scope.cancel()
    world.node.store.close()


def reason(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["data"]["reason"]


@pytest.mark.slow
async def test_a_blob_goes_in_and_out_by_both_clients_and_what_is_there_is_not_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        file = tmp_path / "in"
        file.write_bytes(CONTENT)

        def block() -> None:
            with Client(world.it.url) as client:
                assert client.upload(file, key=ALICE) == BLOB
                told: list[tuple[int, int]] = []
                client.download(BLOB, tmp_path / "out", progress=lambda *done: told.append(done))
                assert told[-1] == (len(CONTENT), len(CONTENT))
            assert (tmp_path / "out").read_bytes() == CONTENT

        await trio.to_thread.run_sync(block)
        async with AsyncClient(world.it.url) as client:
            for number, content in enumerate((b"", b"x", bytes(PIECE_BYTES))):
                file.write_bytes(content)
                with file.open("rb") as source:
                    name = manifest_of(source).blob_id
                assert await client.upload(file, key=BOB) == name
                out = tmp_path / f"out {number}"
                assert await client.download(name, out) == len(content)
                assert out.read_bytes() == content
            file.write_bytes(CONTENT)
            writes = 0
            plain = world.store.write_piece

            def counting(name: bytes, index: int, data: bytes) -> bool:
                nonlocal writes
                writes += 1
                return plain(name, index, data)

            world.store.write_piece = counting  # type: ignore[method-assign]
            assert await client.upload(file, key=BOB) == BLOB
            assert writes == 0

        def on_asyncio() -> None:
            async def main() -> None:
                async with AsyncClient(world.it.url) as client:
                    assert await client.download(BLOB, tmp_path / "third") == len(CONTENT)

            asyncio.run(main())

        await trio.to_thread.run_sync(on_asyncio)
        assert (tmp_path / "third").read_bytes() == CONTENT


@pytest.mark.slow
async def test_ranges_heads_and_names(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        assert world.store.add(CONTENT) == BLOB
        whole = await world.get()
        assert (whole.status_code, whole.content) == (200, CONTENT)
        assert whole.headers["etag"] == f'"{BLOB.hex()}"'
        assert whole.headers["content-disposition"] == "attachment"
        size = len(CONTENT)
        for text, first, end in (
            ("bytes=0-0", 0, 1),
            (f"bytes={PIECE_BYTES - 2}-{PIECE_BYTES + 1}", PIECE_BYTES - 2, PIECE_BYTES + 2),
            ("bytes=5-", 5, size),
            ("bytes=-7", size - 7, size),
            (f"bytes=3-{size + 99}", 3, size),
        ):
            part = await world.get("0x" + BLOB.hex(), range=text)
            assert (part.status_code, part.content) == (206, CONTENT[first:end]), text
            assert part.headers["content-range"] == f"bytes {first}-{end - 1}/{size}"
        for text in (f"bytes={size}-", "bytes=-0"):
            assert (await world.get(range=text)).status_code == 416
        for text in ("bytes=2-1", "items=0-1", "bytes=0-1,5-6", "bytes=", "bytes=x-", "bytes=-"):
            assert (await world.get(range=text)).content == CONTENT, "what is no range is none"
        head = await world.it.http.head(f"{world.it.url}/blobs/{BLOB.hex()}")
        assert (head.status_code, head.headers["content-length"], head.content) == (200, str(size), b"")
        assert (await world.get(BLOB.hex() + "/manifest")).content == MANIFEST.encode()
        for path, status in (
            ("", 400), ("00", 400), (BLOB.hex().upper(), 400), ("00" * 32, 404), (f"{BLOB.hex()}/0", 405),
            (f"{BLOB.hex()}/0/1", 404), (f"{'00' * 32}/manifest", 404), (f"{'00' * 32}?task=1", 400),
            (f"{'00' * 32}?task={'11' * 32}", 404), (f"{'00' * 32}?task={'11' * 32}&window=-1", 400),
        ):  # fmt: skip
            assert (await world.get(path)).status_code == status, path
        assert (await world.it.http.delete(f"{world.it.url}/blobs/{BLOB.hex()}")).status_code == 405
        # A piece that was damaged on disk is not sent, and not a part of it either.
        data = tmp_path / "blobs" / BLOB.hex() / "data"
        data.write_bytes(CONTENT[: 2 * PIECE_BYTES] + b"!" + CONTENT[2 * PIECE_BYTES + 1 :])
        assert (await world.get(range="bytes=0-9")).content == CONTENT[:10]
        assert (await world.get(range=f"bytes={2 * PIECE_BYTES}-")).status_code == 404
        with pytest.raises(httpx.RemoteProtocolError):
            await world.get()


async def test_who_may_upload_what(tmp_path: Path) -> None:
    limits = replace(UPLOADS, bytes_per_account_day_max=6 * PIECE_BYTES)
    async with serving(tmp_path, limits) as world:
        for headers in (
            {"x": "y"},
            {"authorization": "Bearer x"},
            {"authorization": "Dekube zz"},
            {"authorization": "Dekube " + "00" * 500},
            world.grant(blob=b"o" * 32),
            world.grant(genesis=b"o" * 32),
            world.grant(blocks=GRANT_BLOCKS_MAX + 2),
            world.grant(blocks=-2),
        ):
            status = reason(await world.begin(headers=headers))
            # Another blob's or chain's signature is somebody's whom nobody knows: it owns nothing.
            assert status in ((401, "grant_invalid"), (403, "balance_too_low")), headers
        assert reason(await world.begin(headers=world.grant(key=DAVE))) == (403, "balance_too_low")
        assert reason(await world.begin(b"nonsense")) == (400, "decode_error")
        assert reason(await world.begin(bytes(MANIFEST_BYTES_MAX + 1)))[0] == 413
        large = Manifest(9 * PIECE_BYTES, (bytes(32),) * 9)
        assert reason(await world.begin(large.encode(), world.grant(blob=large.blob_id))) == (
            413,
            "blob_too_large",
        )
        assert reason(await world.put(0, PIECES[0])) == (404, "upload_unknown")
        assert world.store.used_bytes == 0, "nothing of all this is kept"

        begun = {"blob": "0x" + BLOB.hex(), "pieces": 4, "missing": [[0, 4]]}
        assert await world.begin() == (200, begun)
        assert await world.begin() == (200, begun), "the same again is no other"
        second = Manifest(3 * PIECE_BYTES, (b"h" * 32,) * 3)
        answer = await world.begin(second.encode(), world.grant(blob=second.blob_id))
        assert reason(answer) == (429, "account_quota")

        assert reason(await world.put(0, PIECES[1])) == (400, PieceInvalid.code)
        assert reason(await world.put(0, PIECES[0] + b"x"))[0] == 413
        assert reason(await world.put(0, b""))[1] == PieceInvalid.code
        assert reason(await world.put(4, b"x")) == (400, "decode_error")
        assert reason(await world.put("1" * 9, b"x"))[0] == 400
        assert await world.put(1, PIECES[1]) == (200, {"complete": False})
        assert (await world.begin())[1]["missing"] == [[0, 1], [2, 2]]
        assert await world.put(1, PIECES[1]) == (200, {"complete": None}), "it is here"
        assert (await world.get()).status_code == 404, "half a blob is none"
        for number in (0, 2, 3):
            await world.put(number, PIECES[number])
        assert (await world.get()).content == CONTENT
        counts = (await world.it.http.get(world.it.url + "/metrics")).text
        assert 'dekube_rpc_requests_total{method="blob_put",outcome="ok"}' in counts


@pytest.mark.slow
async def test_a_gateway_that_was_not_told_to_takes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, UploadOptions()) as world:
        assert reason(await world.begin()) == (403, "uploads_off")
        file = tmp_path / "file"
        file.write_bytes(b"x")

        def block() -> None:
            with Client(world.it.url, options=ClientOptions(pause_s=0.01)) as client:
                with pytest.raises(ClientError) as refused:
                    client.upload(file, key=ALICE)
                assert refused.value.reason == "uploads_off"

        await trio.to_thread.run_sync(block)


async def test_uploads_outlive_a_restart_and_are_let_go_of(tmp_path: Path) -> None:
    world = World(tmp_path, UPLOADS)
    assert world.blobs.upload_begin(MANIFEST.encode(), ALICE.address, "1") == (4, [(0, 4)])
    world.blobs.upload_put(BLOB, 2, PIECES[2])
    world.start()
    assert world.blobs.upload_begin(MANIFEST.encode(), ALICE.address, "1") == (4, [(0, 2), (3, 1)])
    for number in (0, 1, 3):
        world.blobs.upload_put(BLOB, number, PIECES[number])
    # It stays while others give way, and for its time.
    for number in range(40):
        world.store.add(number.to_bytes(4, "big") + bytes(PIECE_BYTES - 4))
    world.now_ms += UPLOADS.keep_s * 1000 - 1
    world.blobs.sweep()
    assert world.store.is_complete(BLOB)
    # Another account's upload of the same keeps it from going with the first one's.
    assert world.blobs.upload_begin(MANIFEST.encode(), BOB.address, "2") == (4, [])
    world.now_ms += 1
    world.blobs.sweep()
    assert world.store.is_complete(BLOB)
    world.now_ms += UPLOADS.keep_s * 1000
    world.blobs.sweep()
    assert world.store.manifest(BLOB) is None
    # One that the node itself wants to keep is no longer an upload, but there.
    world.blobs.upload_begin(MANIFEST.encode(), ALICE.address, "1")
    world.store.pin(BLOB)
    world.now_ms += PARTIAL_MS
    world.blobs.sweep()
    assert world.store.manifest(BLOB) is not None
    world.node.store.close()


async def test_a_damaged_book_is_begun_anew_and_names_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path, UPLOADS)
    world.blobs.upload_begin(MANIFEST.encode(), ALICE.address, "1")
    world.store.remove(BLOB)
    world.start()
    with pytest.raises(Exception, match="nobody has begun"):
        world.blobs.upload_put(BLOB, 0, PIECES[0])
    (tmp_path / "uploads").write_bytes(b"?")
    world.start()
    assert world.blobs.upload_begin(MANIFEST.encode(), ALICE.address, "1") == (4, [(0, 4)])
    world.node.store.close()


@pytest.mark.parametrize(
    "request_",
    [
        ("blob_fetch", []), ("blob_fetch", [b"", None, None]), ("blob_fetch", [BLOB, b"t", None]),
        ("blob_fetch", [BLOB, None, -1]), ("blob_piece", [BLOB, -1]), ("blob_piece", [b"", 0]),
        ("upload_begin", [b"", b"a" * 20, "x"]), ("upload_begin", [MANIFEST.encode(), b"a", "x"]),
        ("upload_lacks", [BLOB]), ("upload_put", [BLOB, 0, "x"]), ("upload_put", [BLOB]),
    ],
)  # fmt: skip
async def test_the_node_answers_nonsense_with_a_code(tmp_path: Path, request_: tuple[str, list[Any]]) -> None:
    from state.primitives.errors import DekubeError

    world = World(tmp_path, UPLOADS)
    with pytest.raises(DekubeError):
        handler_of(REQUESTS[getattr(BlobRequests, request_[0])], getattr(world.blobs, request_[0]))(request_[1])
    world.node.store.close()


# Dawdlers, without a socket: their deadlines are shorter here


class Asked:
    """What the application is called with, and what it said."""

    def __init__(
        self, method: str, path: str, *, reads: int = 10**9, writes: list[bytes] | None = None,
        leaves_after: int = 10**9,
    ) -> None:  # fmt: skip
        self.dropped = False
        self.said: list[dict[str, Any]] = []
        self._reads, self._writes = reads, writes or []
        self.scope: dict[str, Any] = {
            "type": "http", "method": method, "path": path, "headers": [], "query_string": b"",
            "state": {"drop": self._drop, "is_disconnected": lambda: len(self.said) >= leaves_after},
        }  # fmt: skip

    def _drop(self) -> None:
        self.dropped = True

    async def receive(self) -> dict[str, Any]:
        if not self._writes:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._writes.pop(0), "more_body": True}

    async def send(self, message: Any) -> None:
        if len(self.said) >= self._reads:
            await asyncio.Event().wait()
        self.said.append(message)

    async def through(self, door: BlobEndpoint, caller: str = "1") -> Asked:
        await door(self.scope, self.receive, self.send, caller)
        return self


class Link:
    """A node behind a link."""

    def __init__(self) -> None:
        self.pieces_out = 0

    async def request(self, function: Any, *params: Any) -> Any:
        if function == BlobRequests.blob_fetch:
            return BlobStatus("complete", MANIFEST.encode(), 0, 0)
        if function == BlobRequests.blob_piece:
            self.pieces_out += 1
            return PIECES[params[1]]
        assert function == BlobRequests.upload_lacks
        return True


def door(monkeypatch: pytest.MonkeyPatch, **options: int) -> tuple[BlobEndpoint, Link]:
    monkeypatch.setattr(rpc.gateway.blobs, "CHUNK_DEADLINE_S", 0.05)
    monkeypatch.setattr(rpc.gateway.blobs, "BODY_DEADLINE_S", 0.05)
    link = Link()
    made = BlobEndpoint(link, BlobOptions(**options), asyncio.get_running_loop().time, lambda *_: None)  # type: ignore[arg-type]
    return made, link


def test_who_does_not_read_or_write_is_dropped_and_holds_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made, link = door(monkeypatch)
        reader = await Asked("GET", f"/blobs/{BLOB.hex()}", reads=3).through(made)
        assert reader.dropped
        assert link.pieces_out == 1, "no piece is read that cannot be sent"
        writer = await Asked("PUT", f"/blobs/{BLOB.hex()}/0", writes=[b"x"]).through(made)
        assert writer.dropped
        assert not writer.said

    asyncio.run(main())


def test_for_who_has_left_no_more_pieces_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made, link = door(monkeypatch, requests_max=1)
        for pieces in (1, 2):
            link.pieces_out = 0
            chunks = (pieces - 1) * PIECE_BYTES // rpc.gateway.blobs.CHUNK_BYTES + 2  # and the head
            left = await Asked("GET", f"/blobs/{BLOB.hex()}", leaves_after=chunks).through(made)
            assert link.pieces_out == pieces
            assert not left.dropped
        stays = await Asked("GET", f"/blobs/{BLOB.hex()}").through(made)
        assert b"".join(part["body"] for part in stays.said[1:]) == CONTENT

    asyncio.run(main())


@pytest.mark.parametrize("is_kind", [True, False])
def test_a_client_that_goes_away_is_seen_to_have_gone(is_kind: bool) -> None:
    async def main() -> None:
        seen = asyncio.Event()

        async def application(scope: Any, _receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            assert not scope["state"]["is_disconnected"]()
            while not scope["state"]["is_disconnected"]():  # noqa: ASYNC110  the state has no event
                await asyncio.sleep(0)
            seen.set()

        protocol = make_protocols(ConnectionLimiter(ConnectionOptions()), Echo())[0]
        config = Config(application, log_config=None, lifespan="off")
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: protocol(config, ServerState(), {}, loop), "127.0.0.1", 0)  # type: ignore[call-arg]
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\nx")
        if is_kind:
            writer.close()
        else:
            writer.transport.abort()
        async with asyncio.timeout(30):
            await seen.wait()
        server.close()

    uvloop.run(main())


def test_places_and_pace_are_bounded_for_each_caller_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        made, _ = door(monkeypatch, requests_max=3, requests_per_caller_max=2, bytes_per_s=0)
        monkeypatch.setattr(rpc.gateway.blobs, "CHUNK_DEADLINE_S", 60)
        path = f"/blobs/{BLOB.hex()}"
        ask = partial(Asked, "GET", path, reads=1)
        holding = [asyncio.ensure_future(ask().through(made, caller)) for caller in ("1", "1", "2")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for caller in ("1", "3"):
            refused = await Asked("GET", path).through(made, caller)
            assert refused.said[0]["status"] == 429
            assert (b"retry-after", b"1") in refused.said[0]["headers"]
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        assert (await Asked("GET", path).through(made)).said[0]["status"] == 200

        slept: list[float] = []
        now = 0.0

        async def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds
            slept.append(seconds)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        link = Link()
        paced = BlobEndpoint(link, BlobOptions(bytes_per_s=PIECE_BYTES), lambda: now, lambda *_: None)  # type: ignore[arg-type]
        await Asked("GET", path).through(paced)
        await Asked("GET", path).through(paced)
        assert sum(slept) == pytest.approx(5, abs=0.1), "seven pieces, of which the first two pass at once"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [("bytes=0-", 0, "range_not_satisfiable"), ("bytes=-5", 3, (0, 3)), ("BYTES=0-1", 3, None), ("", 3, None)],
)
def test_ranges_of_small_things(text: str, size: int, expected: Any) -> None:
    if isinstance(expected, str):
        with pytest.raises(RpcError) as refused:
            read_range(text, size)
        assert refused.value.reason == expected
    else:
        assert read_range(text, size) == expected


def test_a_signature_is_for_one_blob_one_chain_and_a_while() -> None:
    genesis, blob = b"g" * 32, b"b" * 32
    grant = make_grant(50, ALICE.sign(grant_digest(genesis, blob, 50)))
    assert read_grant(grant, genesis_hash=genesis, blob=blob, height=50) == ALICE.address
    assert read_grant(grant, genesis_hash=genesis, blob=b"c" * 32, height=50) != ALICE.address
    assert read_grant(grant, genesis_hash=b"h" * 32, blob=blob, height=50) != ALICE.address
    for height in (51, 49 - GRANT_BLOCKS_MAX):
        with pytest.raises(RpcError):
            read_grant(grant, genesis_hash=genesis, blob=blob, height=height)
    assert COIN == 10**18
