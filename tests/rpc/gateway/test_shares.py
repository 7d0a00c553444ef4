"""What one address may take of the gateway: views, long lists, subscriptions and plain requests."""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from rpc.backend.store_view import POOL_BYTES_MAX, _first
from rpc.gateway.dispatch import Caller, Dispatcher, DispatchOptions
from rpc.gateway.memory_quota import HeldBytes, MemoryQuota
from rpc.gateway.method_table import METHOD_TABLE
from rpc.gateway.node.client import NodeClient
from rpc.gateway.process import GatewayOptions
from rpc.gateway.subscriptions import Selector, Session, SessionOptions, SubscriptionHub
from rpc.methods.log_filter import CHOICES_OF_FILTER, LogFilter
from rpc.methods.method import Method
from rpc.methods.poll_filters import FILTERS_MAX, PollFilters
from rpc.methods.queues import QueueKind
from rpc.methods.schema import STRING
from rpc.protocol.errors import RpcError
from rpc.protocol.requests import PoolRequests
from state.primitives.heads import Head
from tests.rpc.gateway.test_websocket_server import Socket
from tests.rpc.harness import ALICE, Node, gateway, served
from tests.rpc.raw import call
from tests.rpc.test_ethereum import who


def test_whatever_reads_the_state_in_a_thread_waits_for_its_turn() -> None:
    for method in METHOD_TABLE.values():
        source = inspect.getsource(method.handle)
        if any(name in source for name in ("node.query(", "_logs(", "node.block(", "find_block(")):
            assert method.queue is not None, method.name


@pytest.mark.parametrize("queue", list(QueueKind))
def test_of_a_batch_no_more_runs_at_once_than_one_may(queue: QueueKind) -> None:
    async def main() -> None:
        inside: Counter[bool] = Counter()
        most: Counter[bool] = Counter()
        order: list[bool] = []

        async def handle(_node: object, caller: str) -> bool:
            is_flood = caller == "flood"
            inside[is_flood] += 1
            most[is_flood] = max(most[is_flood], inside[is_flood])
            for _ in range(3):
                await asyncio.sleep(0)
            inside[is_flood] -= 1
            order.append(is_flood)
            return True

        method = Method("do", "Does", handle, STRING, has_min_height=False, needs_caller=True, queue=queue)
        options = DispatchOptions(
            rate_per_s=0, views_max=6, views_per_caller_max=2, blocks_max=6, blocks_per_caller_max=2,
            lookups_max=6, lookups_per_caller_max=2, listings_max=6, listings_per_caller_max=2,
        )  # fmt: skip
        dispatcher = Dispatcher(cast(Any, None), {"do": method}, options, lambda: 0.0)
        batch = b"[" + b",".join([call("do")] * 200) + b"]"
        flood = asyncio.ensure_future(dispatcher.answer(batch, Caller("flood")))
        await asyncio.sleep(0)
        answers = json.loads(await dispatcher.answer(batch[: batch.index(b"}") + 1] + b"]", Caller("one")) or b"")
        assert answers[0]["result"] is True and order.index(False) < 10
        answers = json.loads(await flood or b"")
        assert len(answers) == 200 and all(answer["result"] is True for answer in answers)
        assert most[True] == 2

    asyncio.run(main())


async def test_a_batch_of_more_views_than_there_are_places_is_answered(tmp_path: Path) -> None:
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    async with served(node, path) as backend, gateway(backend, path) as it:
        batch = [json.loads(call("dekube_getAccount", who(ALICE), identifier=at)) for at in range(200)]
        assert all("result" in answer for answer in await it.raw(batch))


async def test_of_hashes_that_nobody_knows_few_are_asked_for_at_once(tmp_path: Path) -> None:
    """The node answers one after the other: what one address has asked it for is what others wait for."""
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    options = GatewayOptions("", dispatch=DispatchOptions(rate_per_s=0, lookups_per_caller_max=8))
    asked: list[int] = []
    async with served(node, path) as backend, gateway(backend, path, options) as it:
        locate = backend._inline["locate"]

        def noting(params: list[Any]) -> Any:
            asked.append(len(params[0]))
            return locate(params)

        backend._inline["locate"] = noting
        for method in ("eth_getTransactionReceipt", "eth_getTransactionByHash", "dekube_getReceipt"):
            batch = [json.loads(call(method, f"0x{number:064x}")) for number in range(100)]
            assert len([answer["result"] for answer in await it.raw(batch)]) == 100
    assert sum(asked) >= 300 and max(asked) == 8


async def test_requests_beside_json_rpc_cost_units_too(tmp_path: Path) -> None:
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    options = GatewayOptions("", dispatch=DispatchOptions(rate_per_s=1e-9, burst=30))  # type: ignore[arg-type]
    async with served(node, path) as backend, gateway(backend, path, options) as it:
        paths = ("/nothing", "/metrics", "/docs", "/blobs/nothing", "/readyz", "/openrpc.json")
        found = [(await it.http.get(it.url + path)).status_code for path in 3 * paths]
        assert found[0] == 404 and found[1] == 200 and found[-len(paths) :] == [429] * len(paths)
        refused = await it.http.put(it.url + "/blobs/nothing/1", content=b"x" * 100_000)
        assert (refused.status_code, refused.headers["connection"]) == (429, "close")
        assert refused.json()["error"]["data"]["reason"] == "limit_exceeded"
        assert int(refused.headers["retry-after"]) >= 1
        assert (await it.http.get(it.url + "/healthz")).text == "ok\n"
        assert (await it.http.head(it.url + "/livez")).status_code == 200
        assert (await it.http.post(it.url + "/healthz")).status_code == 429


async def test_subscriptions_of_one_address_are_counted_over_its_connections(tmp_path: Path) -> None:
    node, path = Node(tmp_path / "db"), tmp_path / "s"
    options = GatewayOptions("", session=SessionOptions(subscriptions_per_address_max=3))
    async with served(node, path) as backend, gateway(backend, path, options) as it:
        first, second = await Socket.open(it), await Socket.open(it)
        one = (await first.call("eth_subscribe", "newHeads"))["result"]
        assert "result" in await first.call("eth_subscribe", "newPendingTransactions")
        assert "result" in await second.call("dekube_subscribe", "heads")
        for socket in (first, second):
            answer = await socket.call("eth_subscribe", "logs")
            assert (answer["error"]["code"], answer["error"]["data"]["limit"]) == (-32005, 3)
        assert (await first.call("eth_unsubscribe", one))["result"] is True
        large = {"topics": [[f"0x{number:064x}" for number in range(CHOICES_OF_FILTER)]]}
        assert "error" in await second.call("eth_subscribe", "logs", large), "it counts as two"
        assert "result" in await second.call("eth_subscribe", "logs")
        await first.close()
        with trio.fail_after(60):
            while "error" in await second.call("eth_subscribe", "logs"):
                pass
        await second.close()


def test_a_filter_of_many_choices_counts_as_many() -> None:
    clock = [0.0]
    filters = PollFilters(lambda: clock[0], secrets.randbits, 10)
    choices = frozenset(number.to_bytes(32, "big") for number in range(CHOICES_OF_FILTER * 4))
    large, small = LogFilter(choices, (None, choices)), LogFilter(frozenset(), (None,))
    assert (large.weight, small.weight) == (9, 1)
    made = filters.add("one", large, first=0, last=None, start=1)
    filters.add("one", small, first=0, last=None, start=1)
    with pytest.raises(RpcError):
        filters.add("one", small, first=0, last=None, start=1)
    filters.add("other", large, first=0, last=None, start=1)
    assert filters.remove(made)
    for _ in range(9):
        filters.add("one", None, first=0, last=None, start=1)
    clock[0] = 1e6
    filters.add("one", large, first=0, last=None, start=1)
    assert len(filters) == 1


def test_who_has_few_filters_finds_room_where_others_have_taken_all_of_it() -> None:
    filters = PollFilters(lambda: 0.0, secrets.randbits)

    def add(caller: str) -> int:
        return filters.add(caller, None, first=0, last=None, start=1)

    taken = [[add(f"hog {number}") for _ in range(100)] for number in range(FILTERS_MAX // 100)]
    filters.get(taken[0][0])  # polled: another of the same caller goes first
    mine = add("me")
    filters.get(mine)
    assert len(filters) == FILTERS_MAX
    with pytest.raises(RpcError):
        filters.get(taken[0][1])
    filters.get(taken[0][0])
    for _ in range(49):
        add("me")
    assert filters.get(mine).caller == "me"
    assert sum(filters.remove(identifier) for one in taken for identifier in one) == FILTERS_MAX - 50
    assert len(filters) == 50
    for number in range(FILTERS_MAX - 50):
        add(f"other {number}")
    with pytest.raises(RpcError):
        for _ in range(50):
            add("hog")  # as many as have most
    assert filters.get(mine)


def test_an_answer_about_the_mempool_is_bounded_in_bytes() -> None:
    def checked(size: int) -> Any:
        return SimpleNamespace(transaction=SimpleNamespace(raw=bytes(size), sender=b""))

    small, large = checked(100), checked(64 * 1024)
    assert len(_first([small] * 1_024)) == 1_024
    assert len(_first([small, *[large] * 1_024])) == POOL_BYTES_MAX // (64 * 1024)
    assert _first([]) == []


# The hub


class Source:
    """A link whose blocks come when they are let go; nothing of a block counts here but its height."""

    def __init__(self, height: int) -> None:
        self.height = height
        self.asked: dict[int, asyncio.Future[None]] = {}
        self.holds = False
        self.resets = 0
        self.polls = 0

    @property
    def head(self) -> Head:
        return Head(self.height, bytes(32), 0, bytes(32), 0, 0, 0, 1)

    def on_head(self, listener: Any) -> None:
        self.listener = listener

    def move(self, height: int) -> None:
        self.height = height
        self.listener(self.head)

    async def block(self, height: int) -> Any:
        if self.holds:
            self.asked[height] = asyncio.get_running_loop().create_future()
            await self.asked[height]
        return SimpleNamespace(height=height) if height <= self.height else None

    async def request(self, function: Any, _since: int, _limit: int) -> tuple[int, list[bytes]]:
        assert function == PoolRequests.pool_arrivals
        self.polls += 1
        if self.holds:
            self.asked[-1] = asyncio.get_running_loop().create_future()
            await self.asked[-1]
        return 1, []


class Heights:
    """Tells the height of each block."""

    envelope = "told"

    def __call__(self, loaded: Any, _link: NodeClient) -> list[int]:
        return [loaded.height]


def session(hub: SubscriptionHub, closed: list[int]) -> Session:
    return Session(
        hub, SessionOptions(), lambda code, _reason: closed.append(code), HeldBytes(MemoryQuota(), "somebody")
    )


def heights(of: Session) -> list[int]:
    return [json.loads(message)["params"]["result"] for message in of._queue]


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_who_subscribes_while_a_block_comes_for_those_who_left_is_told_its_own() -> None:
    async def main() -> None:
        link = Source(5)
        hub = SubscriptionHub(cast(NodeClient, link))
        running = asyncio.ensure_future(hub.run())
        old, new = session(hub, []), session(hub, [])
        old.start(cast(Selector, Heights()), None)
        link.holds = True
        link.move(8)
        await settle()
        assert list(link.asked) == [6]
        old.end()
        new.start(cast(Selector, Heights()), None)  # from 9 on
        link.holds = False
        link.asked[6].set_result(None)
        await settle()
        link.move(10)
        await settle()
        assert heights(new) == [9, 10]
        running.cancel()

    asyncio.run(main())


def test_many_subscriptions_are_told_in_turns_and_each_of_every_block() -> None:
    async def main() -> None:
        link = Source(5)
        hub = SubscriptionHub(cast(NodeClient, link))
        running = asyncio.ensure_future(hub.run())
        closed: list[int] = []
        sessions = [session(hub, closed) for _ in range(40)]
        for number, one in enumerate(sessions):
            one.start(cast(Selector, Heights()), 3 if number % 2 else None)
        link.move(7)
        await asyncio.sleep(0)
        late = session(hub, closed)  # while the block is told
        late.start(cast(Selector, Heights()), 2)
        sessions[10].end()
        for _ in range(20):
            await settle()
        link.move(8)
        for _ in range(20):
            await settle()
        assert heights(late) == [2, 3, 4, 5, 6, 7, 8]
        for number, one in enumerate(sessions):
            wanted = [] if number == 10 else [3, 4, 5, 6, 7, 8] if number % 2 else [6, 7, 8]
            assert heights(one) == wanted
        assert hub.weight_of("somebody") == 40 and not closed
        for one in (*sessions, late):
            one.end()
        assert hub.weight_of("somebody") == 0
        running.cancel()

    asyncio.run(main())


def test_a_replay_lets_others_have_their_turn_and_ends_where_blocks_are_gone() -> None:
    async def main() -> None:
        link = Source(900)
        hub = SubscriptionHub(cast(NodeClient, link))
        closed: list[int] = []
        one, other = session(hub, closed), session(hub, closed)
        one.start(cast(Selector, Heights()), 1)
        await settle()
        assert 0 < len(heights(one)) < 100
        link.height = 300  # another node, which is behind
        for _ in range(40):
            await settle()
        assert closed == [4009] and not other.is_closed
        assert hub.weight_of("somebody") == 0

    asyncio.run(main())


def test_who_listens_is_told_when_the_node_goes_on_from_other_blocks_than_were_told() -> None:
    async def main() -> None:
        link = Source(9)
        hub = SubscriptionHub(cast(NodeClient, link))
        running = asyncio.ensure_future(hub.run())
        closed: list[int] = []
        old, late, new = session(hub, closed), session(hub, closed), session(hub, [])
        old.start(cast(Selector, Heights()), None)
        link.holds = True
        late.start(cast(Selector, Heights()), 4)
        await settle()
        link.holds = False
        link.resets += 1
        link.move(12)
        await settle()
        assert closed == [4009, 4009]
        assert heights(old) == heights(late) == []
        new.start(cast(Selector, Heights()), None)
        link.move(13)
        await settle()
        assert heights(new) == [13]
        running.cancel()

    asyncio.run(main())


def test_who_listens_is_told_when_the_node_was_set_back() -> None:
    async def main() -> None:
        link = Source(9)
        hub = SubscriptionHub(cast(NodeClient, link))
        running = asyncio.ensure_future(hub.run())
        closed: list[int] = []
        old, new = session(hub, closed), session(hub, [])
        old.start(cast(Selector, Heights()), None)
        link.move(3)
        await settle()
        assert closed == [4009]
        new.start(cast(Selector, Heights()), None)
        link.move(5)
        await settle()
        assert heights(new) == [4, 5] and heights(old) == []
        running.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("is_batch", [False, True])
def test_who_leaves_as_the_node_answers_listens_to_nothing(is_batch: bool) -> None:
    """Else the subscription would keep its place, and the node be asked for nobody, for ever."""

    async def main() -> None:
        link = Source(5)
        hub = SubscriptionHub(cast(NodeClient, link))
        one = session(hub, [])
        it = Dispatcher(cast(Any, link), METHOD_TABLE, DispatchOptions(), asyncio.get_running_loop().time)
        link.holds = True
        call_ = {"jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": ["newPendingTransactions"]}
        body = json.dumps([call_] if is_batch else call_).encode()
        asking = asyncio.ensure_future(it.answer(body, Caller("somebody", one)))
        await settle()
        link.holds = False
        link.asked[-1].set_result(None)
        one.end()
        if is_batch:
            asking.cancel()
        await settle()
        assert asking.done()
        assert (hub.weight_of("somebody"), one.subscriptions, link.polls) == (0, {}, 1)

    asyncio.run(main())


def test_a_session_that_is_over_starts_no_subscription() -> None:
    async def main() -> None:
        hub = SubscriptionHub(cast(NodeClient, Source(5)))
        one = session(hub, [])
        one.end()
        with pytest.raises(RpcError) as refused:
            one.start(cast(Selector, Heights()), None)
        assert refused.value.reason == "connection_closed"
        assert hub.weight_of("somebody") == 0

    asyncio.run(main())
