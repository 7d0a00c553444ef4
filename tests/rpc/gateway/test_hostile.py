"""Untrusted requests: any body, batch, filter or transaction gets the right code and harms no other client."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from rpc.gateway.connections import ConnectionOptions
from rpc.gateway.dispatch import DispatchOptions
from rpc.gateway.method_table import METHOD_TABLE
from rpc.gateway.process import GatewayOptions
from rpc.gateway.subscriptions import SessionOptions
from rpc.methods.schema import make_cursor
from rpc.protocol.errors import INTERNAL_ERROR
from state.primitives.codec import Value
from state.transition.staking import STAKING_ADDRESS
from tests.fuzz.mutate import mutate
from tests.rpc.harness import ALICE, BOB, CAROL, DAVE, Gateway, Node, gateway, hexed, mint, served, transfer
from tests.rpc.raw import Wire, call, post
from tests.rpc.test_ethereum import UNSTAKE, dynamic, legacy, who

CODES = {-32700, -32600, -32601, -32602, -32000, -32001, -32002, -32005, 3, 4}
CHAIN = call("eth_chainId")
NOWHERE = "0x" + "00" * 32
FREE = DispatchOptions(rate_per_s=0)


@dataclass
class Place:
    """A gateway under attack and what it says about it."""

    it: Gateway
    node: Node
    log: Path

    def logged(self, words: str) -> bool:
        return words in self.log.read_text()

    async def is_well(self) -> None:
        """Check that others are served, that nothing moved, and that no bug showed."""
        with trio.fail_after(120):
            assert await self.it.call("eth_chainId") == "0x7"
            for key in (ALICE, BOB, CAROL):
                assert await self.it.call("eth_getTransactionCount", who(key), "pending") == "0x0"
        assert len(self.node.pool) == 0
        assert not self.logged("connection to the node lost"), "one request has cut off all"
        text = self.log.read_text()
        assert "Traceback" not in text and "rpc method failed" not in text, text


@asynccontextmanager
async def attacked(
    path: Path, monkeypatch: pytest.MonkeyPatch, options: GatewayOptions | None = None
) -> AsyncIterator[Place]:
    node = Node(path / "db")
    node.mint(2)
    log = path / "log"
    popen: Any = subprocess.Popen
    with log.open("wb") as stream:
        monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: popen(*a, **k, stderr=stream))
        async with (
            served(node, path / "s") as backend,
            gateway(backend, path / "s", options or GatewayOptions("", dispatch=FREE)) as it,
        ):
            place = Place(it, node, log)
            yield place
            await place.is_well()


def check(body: bytes) -> None:
    """Check an answer to anything: JSON-RPC, and no code that says it was our fault."""
    if not body:
        return
    document = json.loads(body)
    for answer in document if isinstance(document, list) else [document]:
        assert answer["jsonrpc"] == "2.0"
        assert answer.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
        if "error" in answer:
            error = answer["error"]
            assert error["code"] in CODES and error["code"] != INTERNAL_ERROR, answer
            assert type(error["message"]) is str and len(error["message"]) < 2_000
            assert "Traceback" not in error["message"]


# Bodies

_TEXT = st.sampled_from(
    ["", "0x", "0x0", "0x00", "0x" + "f" * 64, "latest", "pending", "é\u2028", "x" * 300, "\0"]
)
_NUMBER = st.integers() | st.sampled_from([-1, 0, 2**31, 2**53, 2**63, 2**64, 10**30]) | st.floats(allow_nan=False)
_LEAF = st.none() | st.booleans() | _NUMBER | _TEXT | st.sampled_from([who(ALICE), NOWHERE, "0x1", "0x5208"])
_FIELDS = st.sampled_from(
    ["from", "to", "data", "input", "value", "gas", "address", "topics", "fromBlock", "toBlock", "blockHash", "x"]
)


def nested(depth: int) -> list[Value]:
    """Return arrays in each other."""
    inner: list[Value] = []
    for _ in range(depth):
        inner = [inner]
    return inner


DEEP = [transfer(ALICE, 0, b"", 0, payload=nested(depth)) for depth in range(1, 15)]
"""Payloads nested as deep as a transaction is read, and less."""
JUNK = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_FIELDS, inner, max_size=4), max_leaves=12
)
WAITS = {"dekube_waitForReceipt", "eth_sendRawTransactionSync"}
"""Take their time when they are asked rightly; in the corpus instead."""
METHODS = st.sampled_from([*sorted({*METHOD_TABLE} - WAITS), "", "eth_", "rpc.", "eth_sign", "x" * 1_000, "\0"])
REQUEST = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": _LEAF, "method": METHODS, "params": st.lists(JUNK, max_size=4) | JUNK}
)
BODY = (REQUEST | st.lists(REQUEST | JUNK, max_size=6) | JUNK).map(
    lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
)
CORPUS = [
    call("dekube_waitForReceipt", NOWHERE, 1),
    call("eth_sendRawTransactionSync", "0x00", 1),
    b"", b" ", b"null", b"[]", b"[[]]", b"[null]", b"{}", b'"', b"\xff\xfe{", b"\xef\xbb\xbf{}", b"[" * 100_000,
    b'{"a":' * 50_000, b"[" + b"1," * 5_000 + b"1]", b"1" * 100_000, b'"' + b"\\ud800" * 1_000 + b'"',
    b'{"jsonrpc":"2.0","id":1,"method":"eth_chainId","method":"eth_sign"}', b"nan", b"[1e999]", b"-" * 1_000,
    b'{"jsonrpc":"2.0","id":' + b"9" * 50_000 + b',"method":"eth_chainId"}',
    b'{"jsonrpc":"2.0","id":' + b"[" * 1_000 + b"]" * 1_000 + b',"method":"eth_chainId"}',
    b'{"jsonrpc":"2.0","id":1,"method":"eth_call","params":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"jsonrpc":"2.0","id":1,"method":"web3_sha3","params":["0x' + b"zz" * 40_000 + b'"]}',
    b'{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{"topics":[' + b"[]," * 5_000 + b"[]]}]}",
    b'{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{"fromBlock":"0x0","toBlock":"0x7fffffffffffffff"}]}',
    b'{"jsonrpc":"2.0","id":1,"method":"eth_feeHistory","params":["0x7fffffff","latest",[0,100]]}',
    b'{"jsonrpc":"2.0","id":1,"method":"dekube_getBlock","params":{"block":"' + b"0x" + b"00" * 32 + b'"}}',
]  # fmt: skip


CORPUS += [
    call(method, *params, hexed(b"\x81" * depth + b"\x80"))
    for depth in (*range(10, 24), 500)
    for method, params in (("dekube_estimate", (who(ALICE), 1)), ("dekube_estimate", (who(ALICE), 9)))
]
CORPUS += [call("dekube_simulateTransaction", hexed(raw)) for raw in DEEP]
CORPUS += [b"[" + b"{}," * 900_000 + b"{}]", b"[" + b",".join([b"{}"] * 1_000) + b"]"]


GOOD: list[tuple[str, Any]] = [
    ("dekube_getBalance", [who(ALICE), 0]),
    ("dekube_getBlock", ["latest", True]),
    ("dekube_getBlocks", [make_cursor(["blocks", 1]), 5]),
    ("dekube_getMempool", [make_cursor(["mempool", 5]), 5]),
    ("dekube_getAccountHistory", {"address": who(ALICE), "cursor": make_cursor(["history", b"a" * 20, 1, 1])}),
    ("dekube_estimate", [who(ALICE), 1, "0x80"]),
    ("dekube_getProof", ["0x01", 0]),
    ("dekube_subscribe", ["heads"]),
    ("rpc.discover", []),
    ("eth_getBalance", [who(ALICE), {"blockHash": NOWHERE}]),
    ("eth_call", [{"from": who(ALICE), "to": hexed(STAKING_ADDRESS), "data": hexed(UNSTAKE.encode(1))}, "0x1"]),
    ("eth_estimateGas", [{"from": who(ALICE), "to": who(BOB), "value": "0x1", "gas": "0x5208"}]),
    ("eth_getLogs", [{"fromBlock": "0x1", "toBlock": "0x2", "address": [who(BOB)], "topics": [None, [NOWHERE]]}]),
    ("eth_feeHistory", ["0x2", "latest", [20.0, 50]]),
    ("eth_getStorageAt", [who(BOB), "0x0", "latest"]),
    ("eth_getTransactionByBlockNumberAndIndex", ["0x1", "0x0"]),
    ("txpool_contentFrom", [who(BOB)]),
]
LEAVES: list[Any] = [
    None, True, -1, 0, 2**53, 2**70, 1e300, "", "0x", "x" * 300, [], {}, [[]], {"a": 1}, "\ud7ff"
]  # fmt: skip


def disturb(random: Random, value: Any) -> Any:
    """Return a request with some of its parts changed, most of it as it should be."""
    if random.random() < 0.1:
        return random.choice(LEAVES)
    if isinstance(value, dict):
        changed = {name: disturb(random, item) for name, item in value.items()}
        if random.random() < 0.1 and changed:
            changed[random.choice(list(changed)) + "x"] = random.choice(LEAVES)
        return changed
    if isinstance(value, list):
        return [disturb(random, item) for item in value]
    if isinstance(value, str) and value.startswith("0x") and random.random() < 0.3 and len(value) > 4:
        at = random.randrange(2, len(value))
        return value[:at] + random.choice("0123456789abcdefgX") + value[at + 1 :]
    return value


def bodies(count: int) -> list[bytes]:
    """Return bodies drawn from the grammar and damaged ones, the same at each run."""
    drawn: list[bytes] = []

    @given(st.lists(BODY, min_size=count // 20, max_size=count // 20))
    @settings(
        max_examples=20, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def draw(found: list[bytes]) -> None:
        drawn.extend(found)

    draw()
    random = Random("bodies")
    damaged = [mutate(random, random.choice(drawn) or b"{}", drawn[:50])[:8192] for _ in range(count // 2)]
    good = [{"jsonrpc": "2.0", "id": 1, "method": name, "params": params} for name, params in GOOD]
    near = [disturb(random, random.choice([*good, good[:3]])) for _ in range(count // 2)]
    return [*CORPUS, *drawn, *damaged, *(json.dumps(item).encode() for item in near)]


async def any_body_over_http(place: Place) -> None:
    sent = bodies(600)  # before: a connection that says nothing is closed
    async with await Wire.open(place.it) as wire:
        for body in sent:
            await wire.send(post(body))
            answer = await wire.answer()
            assert (answer.status, answer.headers["content-type"]) == (200, "application/json"), body[:200]
            check(answer.body)


async def any_frame_over_a_websocket(place: Place) -> None:
    def talk() -> None:
        random, rest = Random("frames"), bodies(300)
        closed = 0
        while rest:
            try:
                talk_over_one(random, rest)
            except ConnectionClosed as refused:
                # A message that is refused unread, and whose id cannot be found, could not be answered to anybody.
                assert refused.rcvd is not None and refused.rcvd.code in (1007, 1008, 1009), refused
                closed += 1
        assert closed < 30
        with connect(place.it.websocket_url) as socket, pytest.raises(ConnectionClosed):
            socket.send("x" * 5_000_000)  # longer than a message may be
            socket.recv(20)

    def talk_over_one(random: Random, rest: list[bytes]) -> None:
        with connect(place.it.websocket_url, max_size=None) as socket:
            while rest:
                body = rest.pop(0)
                as_text = None
                try:
                    as_text = body.decode()
                except UnicodeDecodeError:
                    pass  # not_text_over_a_websocket has those
                socket.send(as_text if as_text is not None and random.random() < 0.5 else body)
                socket.send(b'{"jsonrpc":"2.0","id":"mark","method":"eth_chainId"}')
                while True:
                    answer = socket.recv(20)
                    data = answer.encode() if isinstance(answer, str) else answer
                    if b'"id":"mark"' in data:
                        break
                    if b'"method":' not in data:
                        check(data)

    await trio.to_thread.run_sync(talk)


async def bytes_that_nobody_signed(place: Place) -> None:
    known = [
        dynamic(ALICE, 0, DAVE.address, 5, b"note"),
        legacy(BOB, 0, DAVE.address, 3),
        transfer(CAROL, 0, DAVE.address, 9),
    ]
    random = Random("raw")
    raws = sorted({mutate(random, random.choice(known), known)[:4_096] for _ in range(800)} - set(known))
    raws += [b"", b"\2", b"\xc0", b"\x44", b"\x44" + b"\x9f" * 100, b"\xf8" + b"\xff" * 60_000, b"\2" * 65_536]
    for method in ("eth_sendRawTransaction", "dekube_sendTransaction", "dekube_simulateTransaction"):
        requests = [
            {"jsonrpc": "2.0", "id": at, "method": method, "params": [hexed(raw)]} for at, raw in enumerate(raws)
        ]
        for first in range(0, len(requests), 400):
            for answer in await place.it.raw(requests[first : first + 400]):
                if method == "dekube_simulateTransaction" and "result" in answer:
                    continue  # somebody else's, of whom nothing is known
                assert answer["error"]["code"] in (-32000, 3), answer


async def filters_of_strangers(place: Place) -> None:
    names = ["eth_newFilter", "eth_newBlockFilter", "eth_newPendingTransactionFilter"]
    requests = [json.loads(call(names[at % 3], *[{}] * (at % 3 == 0), identifier=at)) for at in range(300)]
    made = await place.it.raw(requests)
    identifiers = [answer["result"] for answer in made if "result" in answer]
    assert len(identifiers) == 100
    assert {answer["error"]["code"] for answer in made if "error" in answer} == {-32005}
    random = Random("filters")
    for _ in range(100):
        guess = hex(random.getrandbits(128))
        assert await place.it.call("eth_uninstallFilter", guess) is False
    for identifier in identifiers:
        await place.it.call("eth_getFilterChanges", identifier)


@pytest.mark.slow
async def test_whatever_is_said_gets_its_code_and_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with attacked(tmp_path, monkeypatch) as place:
        for scenario in (
            filters_of_strangers,
            any_body_over_http,
            any_frame_over_a_websocket,
            bytes_that_nobody_signed,
        ):
            await scenario(place)
            await place.is_well()


# Connections


@pytest.mark.slow
async def test_garbage_instead_of_http_ends_that_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random("http")
    requests = [
        b"\0" * 100, b"\x16\x03\x01\x02\0\x01\0" + b"\x80" * 300, b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 200_000,
        b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000, b"POST /" + b"a" * 100_000,
        b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
        b"GET /%00%ff%zz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/accounts/%2e%2e/%2e%2e HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        post(b"{}", "upgrade: h2c", "connection: upgrade"),
        post(b"{}", "upgrade: websocket", "connection: upgrade"),
        b"DELETE / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ]  # fmt: skip
    known = [post(CHAIN), *requests[:4]]
    requests += [mutate(random, random.choice(known), known)[:16_384] for _ in range(150)]
    options = GatewayOptions("", dispatch=FREE, connections=ConnectionOptions(first_request_s=0.2))
    async with attacked(tmp_path, monkeypatch, options) as place:

        async def attack(request: bytes) -> None:
            async with await Wire.open(place.it) as wire:
                try:
                    await wire.send(request)
                    await wire.stream.send_eof()
                    while await wire.stream.receive_some(65536):
                        pass
                except (trio.BrokenResourceError, OSError):
                    pass  # closed in our face

        with trio.fail_after(120):
            for first in range(0, len(requests), 20):
                async with trio.open_nursery() as nursery:
                    for request in requests[first : first + 20]:
                        nursery.start_soon(attack, request)


@pytest.mark.slow
async def test_what_opens_nothing_ends_and_writes_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = GatewayOptions("", dispatch=FREE, connections=ConnectionOptions(first_request_s=0.2))
    async with attacked(tmp_path, monkeypatch, options) as place:
        async with await Wire.open(place.it) as wire:
            await wire.send(post(b"{}", "upgrade: websocket", "connection: upgrade"))
            assert await wire.is_closed()
        for _ in range(20):
            async with await Wire.open(place.it) as wire:
                await wire.send(b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n")
                assert (await wire.answer()).status == 400
        assert not place.log.read_text(), "anybody could fill the disk"


@pytest.mark.slow
async def test_who_dawdles_or_does_not_read_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers and bodies that never end, answers that nobody reads, sockets that say nothing."""
    options = GatewayOptions(
        "",
        dispatch=DispatchOptions(rate_per_s=0, requests_per_caller_max=0),
        connections=ConnectionOptions(connections_per_address_max=0, first_request_s=5.0),
        session=SessionOptions(queue_bytes_max=64 * 1024, queue_messages_max=64),
    )
    async with attacked(tmp_path, monkeypatch, options) as place:
        wires = [await Wire.open(place.it) for _ in range(60)]
        big = post(b"[" + b",".join([call("rpc.discover")] * 50) + b"]")
        for number, wire in enumerate(wires):
            if number % 4 == 0:
                await wire.send(b"POST / HTTP/1.1\r\nhost: localhost\r\nx: y")
            elif number % 4 == 1:
                await wire.send(post(b'{"jsonrpc"', length=4_000_000))
            elif number % 4 == 2:
                await wire.send(big)  # 15 answers of some MiB each, never read
        before = rss_mib(place.it.process.pid)
        for _ in range(5):
            for wire in wires[2::4]:
                with trio.move_on_after(0.05), suppress(trio.BrokenResourceError):  # the address holds too much
                    await wire.send(big)  # more questions behind the unread answer
            await place.is_well()
        await mint(place.it, place.node)
        assert (await place.it.call("eth_blockNumber")) == "0x3"
        # An answer of which nobody reads anything is held once; what is asked behind it is not read.
        assert rss_mib(place.it.process.pid) - before < 250
        for wire in wires:
            await trio.aclose_forcefully(wire.stream)


async def test_a_flood_from_one_address_leaves_others_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = GatewayOptions("", dispatch=DispatchOptions(rate_per_s=5, burst=200))
    async with attacked(tmp_path, monkeypatch, options) as place:
        codes = []
        async with await Wire.open(place.it) as wire:
            for _ in range(60):
                await wire.send(post(call("eth_call", {"to": who(BOB)}, "latest")))
                answer = (await wire.answer()).json
                codes.append(answer.get("error", {}).get("code"))
                if codes[-1] is not None:
                    assert "limit exceeded" in answer["error"]["message"]
                    assert answer["error"]["data"][0]["retry_after_s"] > 0
        assert set(codes) == {None, -32005}
        assert codes == sorted(codes, key=lambda code: code is not None), "first served, then not"
        # Another address has its own budget.
        stream = await trio.open_tcp_stream("127.0.0.1", place.it.port, local_address="127.0.0.2")
        async with Wire(stream) as other:
            await other.send(post(CHAIN))
            assert (await other.answer()).json["result"] == "0x7"
        # The budget comes back: enough of it for what is asked at the end.
        await trio.sleep(answer["error"]["data"][0]["retry_after_s"] + 2)


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
async def test_idle_websockets_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four hundred of them, as raw sockets: ten thousand stand in ``dekube bench rpc``."""
    options = GatewayOptions("", dispatch=FREE, connections=ConnectionOptions(connections_per_address_max=0))
    upgrade = (
        b"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    async with attacked(tmp_path, monkeypatch, options) as place:
        before = rss_mib(place.it.process.pid)
        wires = []
        for _ in range(400):
            wires.append(wire := await Wire.open(place.it))
            await wire.send(upgrade)
            assert (await wire.answer()).status == 101
        grown = rss_mib(place.it.process.pid) - before
        assert grown < 400 * 0.1, f"{grown:.1f} MiB for 400"
        await place.is_well()
        for wire in wires:
            await trio.aclose_forcefully(wire.stream)
