"""Which gateway is asked, what is asked again, how a subscription goes on: rules without I/O."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpc.client import (
    AnswerMalformed,
    Call,
    ClientError,
    ClientOptions,
    GatewayUnreachable,
    OtherChain,
    TransactionRefused,
)
from rpc.client.api import GRACE_S, _sign, send, submit, wait_for
from rpc.client.block_stream import REPLAY_BATCH, REPLAY_MAX, notifications
from rpc.client.core import BATCH_MAX, Core, Flow, Post, http_url
from rpc.gateway.dispatch import DispatchOptions
from rpc.protocol.errors import RpcError
from state.primitives.errors import ConfigError
from state.primitives.hashing import keccak
from state.primitives.keys import SecretKey
from state.primitives.transactions import decode_transaction
from tests.rpc.client.answers import ADDRESS, HASH, at
from tests.rpc.client.world import Answer, World

RAW = b"\x44raw"
KEY = SecretKey(b"\x05" * 32)
RAW_HASH = "0x" + keccak(RAW).hex()


def head(height: int) -> Answer:
    def answer(method: str, params: Any) -> Any:
        least = params.get("min_height", 0) if isinstance(params, dict) else 0
        if least > height:
            raise RpcError("height_not_reached", "not yet", height=height, min_height=least)
        return {"at": at(height)}

    return answer


def dead(_method: str, _params: Any) -> Any:
    raise GatewayUnreachable("nobody")


def test_another_gateway_is_asked_and_may_not_be_older() -> None:
    world = World(head(7), head(9))
    assert world.run(world.core.call("dekube_head"))["at"]["height"] == 7
    world.all[0].answer = dead
    assert world.run(world.core.call("dekube_getBalance", address=ADDRESS))["at"]["height"] == 9
    assert world.all[1].asked == [("dekube_getBalance", {"min_height": 7, "address": ADDRESS})]
    world.run(world.core.call("dekube_head"))
    assert world.all[1].asked[-1] == ("dekube_head", {}), "it has shown that height itself"


def test_a_gateway_that_is_behind_is_left_for_one_that_is_not() -> None:
    world = World(dead, head(5), head(8))
    world.core.height = 8
    assert world.run(world.core.call("dekube_head"))["at"]["height"] == 8
    assert world.pauses == []


def chain_of(chain_id: int) -> Answer:
    def answer(method: str, _params: Any) -> Any:
        answers: dict[str, dict[str, Any]] = {
            "dekube_chainInfo": {
                "chain_id": chain_id, "name": "a", "genesis_hash": HASH, "testnet": True, "version": "1",
            },
            "dekube_quote": {
                "base_fee_next": "7", "max_fee_per_gas": "9", "max_priority_fee_per_gas": "1",
                "kinds": [{"kind": 1, "name": "transfer", "gas": 21_000, "fee": "5"}],
            },
            "dekube_getNonce": {"nonce": 3, "pending_nonce": 4},
        }  # fmt: skip
        return {"at": at(5), **answers[method]}

    return answer


def test_nothing_is_signed_for_another_chain_than_the_one_named() -> None:
    world = World(chain_of(6), options=ClientOptions(chain_id=5))
    with pytest.raises(OtherChain, match="gateway0:8545/ is of chain 6, and chain 5 is signed for"):
        world.run(_sign(world.core, KEY, 1, []))
    world.all[0].answer = chain_of(5)
    assert decode_transaction(world.run(_sign(world.core, KEY, 1, []))).chain_id == 5


def test_a_gateway_that_takes_over_cannot_have_another_chain_signed_for() -> None:
    world = World(chain_of(5), chain_of(6))
    assert decode_transaction(world.run(_sign(world.core, KEY, 1, []))).chain_id == 5
    world.all[0].answer = dead
    with pytest.raises(OtherChain):
        world.run(_sign(world.core, KEY, 1, []))


def test_parameters_by_place_are_passed_on_as_they_are() -> None:
    world = World(head(5))
    world.core.height = 9
    world.run(world.core.call("dekube_getBalance", ADDRESS))
    world.run(world.core.call("eth_blockNumber"))
    world.run(world.core.call("dekube_sendTransaction", raw="0x"))
    assert [params for _, params in world.all[0].asked] == [[ADDRESS], {}, {"raw": "0x"}]


def test_one_gateway_that_is_not_there_fails_at_once_and_several_after_their_rounds() -> None:
    world = World(dead)
    with pytest.raises(GatewayUnreachable):
        world.run(world.core.call("dekube_head"))
    assert world.pauses == []
    world = World(dead, dead)
    with pytest.raises(GatewayUnreachable):
        world.run(world.core.call("dekube_head"))
    assert [len(gateway.asked) for gateway in world.all] == [3, 3]
    assert world.pauses == [0.25, 0.5]


def test_a_ration_is_waited_for_and_another_limit_is_told() -> None:
    refusals = [2.5, 4]

    def rationed(_method: str, _params: Any) -> Any:
        if refusals:
            raise RpcError("limit_exceeded", "slowly", retry_after_s=refusals.pop(0))
        return {"at": at(1)}

    world = World(rationed)
    assert world.run(world.core.call("dekube_head")) == {"at": at(1)}
    assert world.pauses == [2.5, 4]

    def bounded(_method: str, _params: Any) -> Any:
        raise RpcError("limit_exceeded", "too wide", limit=10_000)

    world = World(bounded)
    with pytest.raises(ClientError) as caught:
        world.run(world.core.call("eth_getLogs", {}))
    assert caught.value.fields == {"limit": 10_000}
    assert len(world.all[0].asked) == 1


def test_of_a_batch_only_what_failed_for_now_is_asked_again() -> None:
    busy = [True]

    def answer(method: str, _params: Any) -> Any:
        if method == "dekube_head" and busy:
            raise RpcError("node_unavailable", f"wait {busy.pop()}")
        if method == "nope":
            raise RpcError("method_not_found", "no")
        return method

    world = World(answer)
    calls = [Call("dekube_sendTransaction", {"raw": "0x"}), Call("dekube_head"), Call("nope")]
    sent, newest, wrong = world.run(world.core.batch(calls))
    assert (sent, newest) == ("dekube_sendTransaction", "dekube_head")
    assert isinstance(wrong, ClientError)
    assert [method for method, _ in world.all[0].asked].count("dekube_sendTransaction") == 1
    assert world.run(world.core.batch([])) == []


@pytest.mark.parametrize(
    ("count", "parts"), [(1, 1), (BATCH_MAX, 1), (BATCH_MAX + 1, 2), (2 * BATCH_MAX + 500, 3)]
)
def test_a_batch_of_any_size_is_asked_in_parts_that_a_gateway_takes(count: int, parts: int) -> None:
    sizes: list[int] = []

    def watched(flow: Flow[Any]) -> Flow[Any]:
        answer = None
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as end:
                return end.value
            assert isinstance(effect, Post)
            sizes.append(len(orjson.loads(effect.body)))
            answer = yield effect

    world = World(lambda _method, params: params["n"])
    flow = world.core.batch([Call("dekube_head", {"n": number}) for number in range(count)])
    assert world.run(watched(flow)) == list(range(count))
    assert len(sizes) == parts
    assert max(sizes) <= DispatchOptions().batch_max


def test_two_flows_that_fail_at_one_gateway_turn_from_it_once() -> None:
    world = World(head(5), head(6), head(7))
    first = world.core.url
    world.core.leave_gateway(first)
    second = world.core.url
    world.core.leave_gateway(first)
    assert world.core.url == second != first


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://[",
        "://",
        "http://a..b:80",
        f"http://{'a' * 64}.b",
        "http://x/\u00e9",
        "http://x/a b",
        "http://x:0",
        "http://x/?key=1",
        "http://x/#a",
        "http://me@x",
        "me:pw@x",
    ],
)
def test_what_is_no_address_of_a_gateway_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        World.__new__(World).core = Core([url], World(head(1)).core.options)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("x", "http://x:8545/"), ("http://x", "http://x:80/"), ("https://x/rpc", "https://x:443/rpc"),
        ("http://[::1]:7", "http://[::1]:7/"), ("http://B\u00fccher.example", "http://b\u00fccher.example:80/"),
    ],
)  # fmt: skip
def test_an_address_of_a_gateway_is_made_whole(url: str, asked: str) -> None:
    assert http_url(url) == asked


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b"null", b"\xff", b"[1]", b'{"id":7,"result":1}'])
def test_what_is_no_answer_is_refused(document: bytes) -> None:
    world = World(head(1))
    flow = world.core.call("dekube_head")
    next(flow)
    with pytest.raises(AnswerMalformed):
        flow.send(document)


# Transactions


def receipt(succeeded: bool = True) -> dict[str, Any]:
    return {
        "transaction_hash": RAW_HASH, "block": at(5) | {"index": 0, "time_ms": 5}, "from": ADDRESS, "kind": 1,
        "kind_name": None, "succeeded": succeeded, "reason": None if succeeded else "stake_insufficient",
        "gas_used": 21000, "effective_gas_price": "1", "fee": "5", "events": [],
    }  # fmt: skip


def test_an_answer_that_was_lost_is_no_failure() -> None:
    def known(_method: str, _params: Any) -> Any:
        raise RpcError("already_known", "already known")

    assert World(known).run(submit(World(known).core, RAW)) == keccak(RAW)

    def final(method: str, _params: Any) -> Any:
        if method == "dekube_sendTransaction":
            raise RpcError("nonce_too_low", "nonce too low")
        return {"receipt": receipt()}

    world = World(final)
    assert world.run(submit(world.core, RAW)) == keccak(RAW)
    world.all[0].answer = lambda m, _: (
        (_ for _ in ()).throw(RpcError("nonce_too_low", m)) if "send" in m else {"receipt": None}
    )
    with pytest.raises(ClientError):
        world.run(submit(world.core, RAW))


def test_a_transaction_is_given_to_the_gateway_that_takes_over() -> None:
    pools: list[set[str]] = [set(), set()]

    def gateway(number: int) -> Answer:
        def answer(method: str, params: Any) -> Any:
            if method == "dekube_sendTransaction":
                pools[number].add(params["raw"])
                return {"hash": RAW_HASH}
            if number == 0:
                raise GatewayUnreachable("gone")  # with what it had not told anybody
            return {"receipt": receipt() if pools[1] else None, "pending": bool(pools[1])}

        return answer

    world = World(gateway(0), gateway(1))
    assert world.run(wait_for(world.core, RAW)).succeeded
    assert pools[0] == pools[1] == {"0x" + RAW.hex()}


def test_a_rule_that_refuses_and_a_wait_in_vain_are_told_apart() -> None:
    def refused(method: str, _params: Any) -> Any:
        return {"hash": RAW_HASH} if "send" in method else {"receipt": receipt(False), "pending": False}

    world = World(refused)
    with pytest.raises(TransactionRefused) as caught:
        world.run(wait_for(world.core, RAW))
    assert (caught.value.reason, caught.value.hash) == ("stake_insufficient", keccak(RAW))
    world.all[0].answer = lambda m, _: {"hash": RAW_HASH} if "send" in m else {"receipt": None, "pending": True}
    with pytest.raises(TransactionRefused) as caught:
        world.run(wait_for(world.core, RAW, timeout_s=30))
    assert caught.value.reason == ""
    assert world.now_s == pytest.approx(30)
    assert len(world.all[0].asked) < 200, "who says so at once is not asked without a pause"


@pytest.mark.parametrize("timeout_s", [0, 1, 12])
def test_a_wait_takes_no_longer_than_it_may(timeout_s: float) -> None:
    def receipt_waiters(method: str, params: Any) -> Any:
        world.now_s += params.get("timeout_ms", 0) / 1000
        return {"hash": RAW_HASH} if "send" in method else {"receipt": None, "pending": True}

    world = World(receipt_waiters)
    with pytest.raises(TransactionRefused):
        world.run(wait_for(world.core, RAW, timeout_s=timeout_s))
    assert world.now_s == pytest.approx(timeout_s)
    assert world.pauses == []

    def taken_and_gone(method: str, _params: Any) -> Any:
        world.all[0].is_silent = True
        return {"hash": RAW_HASH}

    world = World(taken_and_gone)
    with pytest.raises((TransactionRefused, GatewayUnreachable)):
        world.run(wait_for(world.core, RAW, timeout_s=timeout_s))
    assert world.now_s <= timeout_s + GRACE_S


class Pool:
    """A gateway with a mempool, whose blocks take everything when they are told to."""

    def __init__(self) -> None:
        self.raws: list[str] = []
        self.is_away = False

    def answer(self, method: str, params: Any) -> Any:
        if self.is_away:
            raise GatewayUnreachable("away")
        match method:
            case "dekube_sendTransaction":
                if params["raw"] in self.raws:
                    raise RpcError("already_known", "already known")
                self.raws.append(params["raw"])
                return {"hash": "0x" + keccak(bytes.fromhex(params["raw"][2:])).hex()}
            case "dekube_waitForReceipt":
                return {"receipt": receipt() | {"transaction_hash": params["hash"]}, "pending": False}
            case "dekube_getNonce":
                return {"at": at(5), "nonce": 3, "pending_nonce": 3 + len(self.raws)}
            case _:
                return chain_of(5)(method, params)

    @property
    def nonces(self) -> list[int]:
        return [decode_transaction(bytes.fromhex(raw[2:])).nonce for raw in self.raws]


def interleaved(world: World, flows: list[Flow[Any]], order: list[int]) -> list[Any]:
    """Return what the flows return, their effects performed in any order."""
    ready = {number: (flow, None, None) for number, flow in enumerate(flows)}
    results: list[Any] = [None] * len(flows)
    picks = itertools.chain(order, itertools.count())  # at the end in turns: none is forgotten
    while ready:
        number = sorted(ready)[next(picks) % len(ready)]
        flow, answer, error = ready[number]
        try:
            effect = flow.send(answer) if error is None else flow.throw(error)
        except StopIteration as end:
            results[number] = end.value
            del ready[number]
        except Exception as failed:
            results[number] = failed
            del ready[number]
        else:
            ready[number] = (flow, *world._perform(effect))  # type: ignore[assignment]
    return results


@given(st.lists(st.integers(0, 7), max_size=200))
def test_what_is_sent_at_the_same_time_is_sent_as_often(order: list[int]) -> None:
    pool = Pool()
    world = World(pool.answer)
    flows = [send(world.core, KEY, 1, []) for _ in range(3)] + [send(world.core, SecretKey(b"\x06" * 32), 1, [])]
    found = interleaved(world, flows, order)
    assert len({one.transaction_hash for one in found}) == len(set(pool.raws)) == 4
    assert not world.core._signing
    assert not world.core._nonces


def test_a_gateway_that_takes_over_may_not_know_what_is_under_way() -> None:
    first, second = Pool(), Pool()
    world = World(first.answer, second.answer)
    under_way = send(world.core, KEY, 1, [])
    answer: Any = None
    while not first.raws:
        answer, _ = world._perform(under_way.send(answer))
    under_way.send(answer)  # it asks for its receipt
    first.is_away = True
    world.run(send(world.core, KEY, 1, []))
    assert (first.nonces, second.nonces) == ([3], [4])
    under_way.close()
    assert not world.core._nonces


def test_what_is_refused_leaves_its_nonce_to_the_next() -> None:
    pool = Pool()

    def refuses(method: str, params: Any) -> Any:
        if method == "dekube_sendTransaction" and not refused:
            refused.append(1)
            raise RpcError("insufficient_funds", "no")
        return pool.answer(method, params)

    refused: list[int] = []
    world = World(refuses)
    found = interleaved(world, [send(world.core, KEY, 1, []) for _ in range(3)], [0, 1, 2] * 20)
    assert [type(one) for one in found].count(ClientError) == 1
    assert pool.nonces == [3, 4]


# Subscriptions


def header(height: int) -> dict[str, Any]:
    return at(height) | {
        "parent_hash": HASH, "epoch": 0, "time_ms": height, "base_fee": "5", "transactions_count": 0,
    }  # fmt: skip


def event() -> dict[str, Any]:
    return {"address": ADDRESS, "topics": [HASH], "data": "0x", "name": None, "values": None}


class Chain:
    """A chain whose blocks in ``loud`` have an event, and a gateway of it whose connections break when told to."""

    def __init__(self, newest: int, loud: set[int]) -> None:
        self.newest = newest
        self.loud = loud
        self.world = World(self.answer)

    def answer(self, method: str, params: Any) -> Any:
        match method:
            case "dial":
                self.world.all[0].said.clear()
                return None
            case "dekube_head":
                return {"at": at(self.newest)}
            case "dekube_getBlock":
                height = params["block"]
                more = {"gas_used": 0, "transactions": [], "events": [event()] if height in self.loud else []}
                return {"block": header(height) | more}
            case "dekube_getBlockReceipts":
                return {"receipts": []}
            case _:
                start = params.get("from_height", self.newest + 1)
                if start <= self.newest - 1000:
                    raise RpcError("limit_exceeded", "limit exceeded: 1000 blocks are replayed", limit=1000)
                self.say(range(start, self.newest + 1), params["kind"])
                return {"at": at(self.newest), "subscription": "0x1", "from_height": start}

    def say(self, heights: Any, kind: str) -> None:
        for height in heights:
            result: dict[str, Any] = {"at": at(height)}
            if kind == "heads":
                result["header"] = header(height)
            elif height in self.loud:
                result["items"] = [{"transaction_hash": None, "index": None, "event": event()}]
            else:
                continue
            self.world.all[0].said.append({"method": "dekube_subscription", "params": {"result": result}})


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["heads", "events"]),
    start=st.integers(1, 40),
    loud=st.sets(st.integers(1, 60), min_size=3),
    breaks=st.lists(st.integers(0, 4), max_size=12),
)
def test_each_block_is_told_once_and_in_order_however_often_the_connection_breaks(
    kind: str, start: int, loud: set[int], breaks: list[int]
) -> None:
    chain = Chain(60, loud)
    plain = chain.answer
    cuts = list(breaks)

    def cut(method: str, params: Any) -> Any:
        answered = plain(method, params)
        if method == "dekube_subscribe" and cuts:
            said = chain.world.all[0].said
            del said[cuts.pop(0) :]
            said.append(GatewayUnreachable("cut"))
        return answered

    chain.world.all[0].answer = cut
    expected = [h for h in range(start, 61) if kind == "heads" or h in loud]
    told = chain.world.take(notifications(chain.world.core, kind, from_height=start), len(expected))
    assert [news.at.height for news in told] == expected
    assert all((news.header is not None) == (kind == "heads") for news in told)


@pytest.mark.parametrize("kind", ["heads", "events"])
def test_what_is_too_long_ago_for_a_subscription_is_read_block_by_block(kind: str) -> None:
    loud = {3, 700, 1999, 2000}
    chain = Chain(2000, loud)
    expected = [h for h in range(2, 2001) if kind == "heads" or h in loud]
    told = chain.world.take(notifications(chain.world.core, kind, from_height=2), len(expected))
    assert [news.at.height for news in told] == expected
    subscribed = [params for method, params in chain.world.all[0].asked if method == "dekube_subscribe"]
    assert [params["from_height"] > 2000 - REPLAY_MAX for params in subscribed] == [True]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(["heads", "events"]), fails=st.sets(st.integers(0, 160), max_size=40))
def test_what_is_read_block_by_block_is_told_once_whatever_fails(kind: str, fails: set[int]) -> None:
    loud = {3, 26, 27, 700, 1999, 2000}
    chain = Chain(2000, loud)
    plain, asked = chain.answer, 0

    def failing(method: str, params: Any) -> Any:
        nonlocal asked
        if method in ("dekube_head", "dekube_getBlock"):
            asked += method == "dekube_head" or params["block"] % 25 == 2
            if asked in fails:
                fails.discard(asked)
                raise (
                    GatewayUnreachable("gone")
                    if asked % 2
                    else RpcError("limit_exceeded", "much", retry_after_s=0)
                )
        return plain(method, params)

    chain.world.all[0].answer = failing
    expected = [h for h in range(2, 2001) if kind == "heads" or h in loud]
    told = chain.world.take(notifications(chain.world.core, kind, from_height=2), len(expected))
    assert [one.at.height for one in told] == expected


@pytest.mark.parametrize("newest", [5, 2000])
def test_a_block_that_never_was_is_an_error_at_once(newest: int) -> None:
    chain = Chain(newest, set())
    plain = chain.answer

    def genesis(method: str, params: Any) -> Any:
        if method == "dekube_getBlock" and params["block"] == 0:
            return {"at": at(newest), "block": None}
        if method == "dekube_subscribe" and params.get("from_height") == 0:
            raise RpcError("pruned", "height 0 is pruned", oldest_height=1)
        return plain(method, params)

    chain.world.all[0].answer = genesis
    with pytest.raises(ClientError) as caught:
        chain.world.take(notifications(chain.world.core, "heads", from_height=0), 1)
    assert caught.value.reason == "pruned"
    assert chain.world.now_s == 0


def test_no_gateway_keeps_who_listens_beyond_the_time_it_has() -> None:
    for from_height in (None, 2):
        chain = Chain(2000, set())
        chain.world.all[0].is_silent = True
        assert (
            chain.world.take(notifications(chain.world.core, "heads", from_height=from_height, timeout_s=2)) == []
        )
        assert chain.world.now_s == pytest.approx(2)
    chain = Chain(100_000, set())
    plain = chain.answer

    def slow(method: str, params: Any) -> Any:
        chain.world.now_s += method == "dekube_head"
        return plain(method, params)

    chain.world.all[0].answer = slow
    assert (
        len(chain.world.take(notifications(chain.world.core, "heads", from_height=2, timeout_s=5)))
        <= 5 * REPLAY_BATCH
    )
    assert chain.world.now_s == pytest.approx(5, abs=1)


def test_a_silent_connection_is_asked_for_a_sign_of_life_and_left_when_it_gives_none() -> None:
    chain = Chain(5, {5})
    stream = notifications(chain.world.core, "events", from_height=5)
    assert [news.at.height for news in chain.world.take(stream, 1)] == [5]
    world = chain.world
    world.all[0].said = [None, None, None]  # the sign of life is put before these
    chain.newest, chain.loud = 9, {9}
    plain = chain.answer
    world.all[0].answer = lambda m, p: (
        (_ for _ in ()).throw(GatewayUnreachable("deaf"))
        if (m == "dekube_head" and world.now_s < 30)
        else plain(m, p)
    )

    assert [news.at.height for news in world.take(stream, 1)] == [9]


def test_a_subscription_ends_when_its_time_is_over() -> None:
    chain = Chain(5, set())

    def silent(method: str, params: Any) -> Any:
        if method != "dekube_subscribe":
            return chain.answer(method, params)
        chain.world.all[0].said.extend([None] * 9)
        return {"from_height": 6}

    chain.world.all[0].answer = silent
    assert chain.world.take(notifications(chain.world.core, "heads", timeout_s=50)) == []
    assert 50 <= chain.world.now_s < 60


def test_what_can_never_be_told_is_an_error_and_so_are_gateways_that_stay_away() -> None:
    def pruned(method: str, _params: Any) -> Any:
        if method == "dekube_head":
            return {"at": at(10)}
        if method == "dial":
            return None
        raise RpcError("pruned", "gone", oldest_height=5)

    world = World(pruned)
    with pytest.raises(ClientError) as caught:
        world.take(notifications(world.core, "heads", from_height=1), 1)
    assert caught.value.reason == "pruned"
    world = World(dead, dead)
    with pytest.raises(GatewayUnreachable):
        world.take(notifications(world.core, "heads"), 1)
    assert max(world.pauses) <= 5


def test_the_client_brings_nothing_of_the_node() -> None:
    heavy = {
        "trio",
        "httpx",
        "anyio",
        "plyvel",
        "numpy",
        "fastapi",
        "uvicorn",
        "websockets",
        "node",
        "p2p",
        "consensus",
    }
    code = f"import sys; from rpc.client import Client, TaskUpdate; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
