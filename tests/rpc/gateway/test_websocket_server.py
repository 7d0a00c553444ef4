"""Subscriptions, text and binary frames, and clients that do not read."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest
import trio
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from rpc.gateway.dispatch import DispatchOptions
from rpc.gateway.method_table import DOCUMENT
from rpc.gateway.process import GatewayOptions
from rpc.gateway.subscriptions import NOTIFICATIONS, SLOW_READER, SessionOptions
from state.primitives.hashing import keccak
from state.transition.staking import STAKE_KIND, STAKED, STAKING_ADDRESS, stake_payload
from tests.rpc.harness import ALICE, BOB, COIN, Gateway, Node, gateway, hexed, served, transfer
from tests.rpc.validate import validate

COMPONENTS = DOCUMENT["components"]["schemas"]


class Socket:
    """A WebSocket client whose waiting happens in threads."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.news: list[Any] = []
        self.other: list[Any] = []
        """Answers to what was not a call."""
        self.calls = 0

    @classmethod
    async def open(cls, it: Gateway, **options: Any) -> Socket:
        return cls(await trio.to_thread.run_sync(lambda: connect(it.websocket_url, legacy=True, **options)))

    async def send(self, message: str | bytes) -> None:
        await trio.to_thread.run_sync(self.connection.send, message)

    async def receive(self) -> Any:
        return json.loads(await trio.to_thread.run_sync(lambda: self.connection.recv(10)))

    async def answer(self) -> Any:
        while "method" in (message := await self.receive()):
            self.news.append(message)
        return message

    async def call(self, method: str, *params: Any, binary: bool = False, **named: Any) -> Any:
        self.calls += 1
        identifier = f"call {self.calls}"
        request = json.dumps(
            {"jsonrpc": "2.0", "id": identifier, "method": method, "params": named or list(params)}
        )
        await self.send(request.encode() if binary else request)
        while (answer := await self.answer())["id"] != identifier:
            self.other.append(answer)
        return answer

    async def next_news(self) -> Any:
        message = self.news.pop(0) if self.news else await self.receive()
        assert "id" not in message
        assert message["method"] == "dekube_subscription"
        return message["params"]["subscription"], message["params"]["result"]

    async def close(self) -> None:
        await trio.to_thread.run_sync(self.connection.close)


async def test_nothing_is_told_of_a_subscription_before_the_answer_that_names_it(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint(3)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        socket_ = await Socket.open(it)
        raw = transfer(BOB, 0, ALICE.address, 1)
        waiting = {"hash": hexed(keccak(raw)), "timeout_ms": 30_000}
        calls = [
            ("eth_subscribe", ["newHeads"]),
            ("dekube_subscribe", {"kind": "heads", "from_height": 2}),
            ("eth_subscribe", ["newPendingTransactions"]),
            ("dekube_waitForReceipt", waiting),
        ]
        batch = [
            {"jsonrpc": "2.0", "id": number, "method": name, "params": params}
            for number, (name, params) in enumerate(calls)
        ]
        await socket_.send(json.dumps(batch))
        other = await Socket.open(it)
        await other.call("eth_subscribe", "newHeads")
        node.mint(2)
        for _ in range(2):  # told of blocks while the batch waits
            await other.receive()
        await it.call("dekube_sendTransaction", hexed(raw))
        node.mint(1)
        answers = await socket_.receive()
        assert isinstance(answers, list), "the answer comes first"
        heads, replay = answers[0]["result"], answers[1]["result"]["subscription"]
        told: dict[str, list[int]] = {heads: [], replay: []}
        while len(told[heads]) < 3 or len(told[replay]) < 5:
            params = (await socket_.receive())["params"]
            if params["subscription"] == heads:
                told[heads].append(int(params["result"]["number"], 16))
            elif params["subscription"] == replay:
                told[replay].append(params["result"]["header"]["height"])
        assert told == {heads: [4, 5, 6], replay: [2, 3, 4, 5, 6]}


async def test_what_is_refused_unread_is_answered_with_its_own_identifier_or_ends_the_connection(
    tmp_path: Path,
) -> None:
    """Clients over a WebSocket wait for the identifiers that they sent, and hear of nothing else."""
    node = Node(tmp_path / "db")
    node.mint()
    long = "x" * 100_000
    options = GatewayOptions("", dispatch=DispatchOptions(rate_per_s=1, burst=3, batch_max=10))
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:
        socket_ = await Socket.open(it)
        call = {"jsonrpc": "2.0", "method": "eth_chainId", "params": []}
        await socket_.send(json.dumps([call, *(call | {"id": number} for number in range(7, 30))]))
        [answer] = await socket_.receive()
        assert (answer["id"], answer["error"]["code"]) == (7, -32600)
        for request in (
            call | {"id": 40, "params": [long]},
            {"jsonrpc": "2.0", "id": 40, "method": "eth_chainId", "params": [long]},
            [call | {"id": 40}, call | {"id": 41, "params": [long]}],
        ):
            await socket_.send(json.dumps(request))
            answer = await socket_.receive()
            one = answer[0] if type(request) is list else answer
            assert (one["id"], one["error"]["code"]) == (40, -32005)
        await socket_.send(json.dumps([call | {"params": [long], "id": 50}]))
        with pytest.raises(ConnectionClosed) as caught:
            await socket_.receive()
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1013, "limit exceeded: too many requests")


@pytest.mark.slow
async def test_heads_events_and_tasks_in_order_without_gaps(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint(3)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s") as it:
        socket_ = await Socket.open(it)
        answer = await socket_.call("dekube_subscribe", "heads", binary=True)
        heads = answer["result"]["subscription"]
        assert answer["result"]["from_height"] == 4
        node.mint(5)
        for height in range(4, 9):
            identifier, result = await socket_.next_news()
            assert (identifier, result["header"]["height"]) == (heads, height)
            validate(result, NOTIFICATIONS["Heads"], COMPONENTS)
        # The same hash over HTTP at once.
        block = (await it.call("dekube_getBlock", result["at"]["hash"]))["block"]
        assert block["height"] == 8

        # A replay joins the live stream without a gap or a repetition, whatever is made meanwhile.
        second = await Socket.open(it)
        replay = (await second.call("dekube_subscribe", kind="heads", from_height=2))["result"]["subscription"]
        node.mint(4)
        seen: list[int] = []
        while len(seen) < 11:
            identifier, result = await second.next_news()
            assert identifier == replay
            seen.append(result["header"]["height"])
        assert seen == list(range(2, 13))

        # Events by address and topic; none is no news.
        events = await second.call("dekube_subscribe", kind="events", address=hexed(STAKING_ADDRESS))
        other = await second.call("dekube_subscribe", kind="events", topic="0x" + "11" * 32)
        assert other["result"]["subscription"] != events["result"]["subscription"]
        assert (await second.call("dekube_unsubscribe", replay))["result"] == {"found": True}
        assert (await second.call("dekube_unsubscribe", replay))["result"] == {"found": False}
        # Who comes back and ends what an earlier connection began ends nothing else.
        third = await Socket.open(it)
        names = {(await third.call("dekube_subscribe", "heads"))["result"]["subscription"] for _ in range(3)}
        assert len(names | {heads, replay}) == 5
        assert (await third.call("dekube_unsubscribe", heads))["result"] == {"found": False}
        payload = stake_payload(2_000 * COIN, BOB, genesis_hash=node.runtime.genesis_hash, address=BOB.address)
        raw = transfer(BOB, 0, b"", 0, kind=STAKE_KIND, payload=payload, gas_limit=600_000)
        await it.call("dekube_sendTransaction", hexed(raw))
        node.mint(2)
        identifier, result = await second.next_news()
        assert identifier == events["result"]["subscription"]
        validate(result, NOTIFICATIONS["Events"], COMPONENTS)
        assert [item["event"]["name"] for item in result["items"]] == ["Staked"]
        assert result["items"][0]["event"]["topics"][0] == hexed(STAKED.topic)

        refused: tuple[dict[str, Any], ...] = (
            {"kind": "heads", "address": hexed(STAKING_ADDRESS)},
            {"kind": "blocks"},
            {"kind": "tasks", "task": "0x12"},
        )
        for bad in refused:
            assert (await second.call("dekube_subscribe", **bad))["error"]["code"] == -32602
        assert (await second.call("dekube_subscribe", kind="heads", from_height=0))["error"]["code"] == -32001
        assert "result" in await second.call("dekube_subscribe", kind="tasks", from_height=10**6)
        await socket_.close()
        await second.close()


async def test_a_hostile_or_broken_client_is_answered_or_closed(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint()
    options = GatewayOptions(
        "",
        cors=("https://wallet.example",),
        dispatch=DispatchOptions(body_bytes_max=10_000),
        session=SessionOptions(subscriptions_max=3),
    )
    rng = random.Random(3)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:
        socket_ = await Socket.open(it)
        for message in ("", "{", "[]", b"\xff", "[" * 5_000, "7", b"\0" * 100, '{"jsonrpc":"2.0","id":1}'):
            await socket_.send(message)
            assert (await socket_.answer())["error"]["code"] in (-32700, -32600)
        for _ in range(100):
            damaged = bytearray(b'{"jsonrpc":"2.0","id":1,"method":"dekube_subscribe","params":["heads"]}')
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            await socket_.send(bytes(damaged))
            assert "result" in await socket_.call("dekube_head")
        assert all(answer["error"]["code"] != -32603 for answer in socket_.other if "error" in answer)
        assert len(socket_.other) == 100
        answers = [await socket_.call("dekube_subscribe", "heads") for _ in range(4)]
        assert answers[-1]["error"]["data"]["reason"] == "limit_exceeded"
        with pytest.raises(ConnectionClosed):
            await socket_.send("x" * 20_000)
            await socket_.answer()
        with pytest.raises(InvalidStatus):
            await Socket.open(it, additional_headers={"host": "evil.example"})
        with pytest.raises(InvalidStatus):
            await Socket.open(it, origin="https://evil.example")
        await (await Socket.open(it, origin="https://wallet.example")).close()
        assert (await it.call("dekube_head"))["at"]["height"] == 1


async def test_who_reads_gets_all_of_it_however_much_a_block_tells(tmp_path: Path) -> None:
    """Thirty times what the queue holds in one block, and many blocks at once."""
    node = Node(tmp_path / "db")
    node.mint()
    options = GatewayOptions("", session=SessionOptions(queue_messages_max=8))
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:
        reader = await Socket.open(it)
        subscribed = [await reader.call("dekube_subscribe", "heads") for _ in range(30)]
        node.mint(20)
        heights: dict[str, list[int]] = {answer["result"]["subscription"]: [] for answer in subscribed}
        for _ in range(30 * 20):
            identifier, result = await reader.next_news()
            heights[identifier].append(result["header"]["height"])
        assert len(heights) == 30 and all(seen == list(range(2, 22)) for seen in heights.values())
        node.mint()
        for _ in range(30):
            identifier, result = await reader.next_news()
            assert result["header"]["height"] == 22
        await reader.close()


@pytest.mark.slow
async def test_a_client_that_does_not_read_is_closed_and_delays_nobody(tmp_path: Path) -> None:
    node = Node(tmp_path / "db")
    node.mint()
    session = SessionOptions(queue_messages_max=8, queue_bytes_max=64 * 1024, slow_reader_s=0.2)
    options = GatewayOptions("", session=session)
    async with served(node, tmp_path / "s") as backend, gateway(backend, tmp_path / "s", options) as it:
        slow = await trio.to_thread.run_sync(connect_slowly, it)
        good = await Socket.open(it)
        await good.call("dekube_subscribe", "heads")
        await slow.send("{}")
        subscribe = {"jsonrpc": "2.0", "id": 1, "method": "dekube_subscribe", "params": ["heads"]}
        for _ in range(30):
            await slow.send(json.dumps(subscribe))
        # Thirty subscriptions of one client that never reads: its socket fills, then its queue.
        with trio.fail_after(120):
            for height in range(2, 402):
                node.mint()
                _, result = await good.next_news()
                assert result["header"]["height"] == height
        with trio.fail_after(120):
            code = await trio.to_thread.run_sync(drain, slow.connection)
        assert code in (SLOW_READER, None)  # None: it did not read even that in time, and was cut off
        assert "dekube_rpc_websockets 1.0" in (await it.http.get(it.url + "/metrics")).text
        await good.close()


def connect_slowly(it: Gateway) -> Socket:
    raw = socket.create_connection(("127.0.0.1", it.port))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    # Whole messages stay in the socket: the client's own thread stops reading at its first queued ones.
    return Socket(connect(it.websocket_url, legacy=True, sock=raw, max_queue=1, close_timeout=1))


def drain(connection: ClientConnection) -> int | None:
    try:
        while True:
            connection.recv(10)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


@pytest.mark.slow
@pytest.mark.parametrize("is_torn", [True, False])
async def test_who_leaves_gives_back_the_places_of_its_requests(tmp_path: Path, is_torn: bool) -> None:
    """Also who has as many under way as may be, so that nobody listens to it."""
    limited = GatewayOptions(
        "",
        dispatch=DispatchOptions(rate_per_s=0, requests_per_caller_max=2),
        session=SessionOptions(requests_max=2),
    )
    async with (
        served(Node(tmp_path / "db"), tmp_path / "s") as backend,
        gateway(backend, tmp_path / "s", limited) as it,
    ):
        chain_id = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId"}
        socket_ = await Socket.open(it)
        nowhere = {"hash": hexed(bytes(32)), "timeout_ms": 60_000}
        for number in range(3):
            request = {"jsonrpc": "2.0", "id": number, "method": "dekube_waitForReceipt", "params": nowhere}
            await socket_.send(json.dumps(request))
        with trio.fail_after(30):
            while "result" in await it.raw(chain_id):
                pass
            if is_torn:
                socket_.connection.socket.shutdown(socket.SHUT_RDWR)
            else:
                socket_.connection.close_timeout = 1
                await socket_.close()
            while "error" in await it.raw(chain_id):
                pass
