"""Coroutines that go on without a task: what they wait for, in which order they end, how they are given up."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.gateway.dispatch import Caller, Dispatcher, DispatchOptions, SuspendedCall, start
from rpc.gateway.fair_queue import FairQueue
from rpc.gateway.memory_quota import UNCOUNTED_BYTES_MAX
from rpc.methods.method import Method
from rpc.methods.schema import Param, natural
from rpc.protocol.errors import NodeUnavailable, RpcError

ASKER = Caller("somebody")


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


def dispatcher(handle: Callable[..., Any]) -> Dispatcher:
    param = Param("number", natural(0, 10**6), "")
    method = Method("do", "Does", handle, {"type": "string"}, (param,), has_min_height=False)
    return Dispatcher(
        None,  # type: ignore[arg-type]
        {"do": method},
        DispatchOptions(rate_per_s=0, requests_per_caller_max=1000),
        lambda: 0.0,
    )


CALL = '"jsonrpc":"2.0","method":"do"'
LONG = '"params":["' + "x" * 20_000 + '"]'
NOTICE = "{" + CALL + ',"params":[1]}'


@pytest.mark.parametrize(
    ("body", "told"),
    [
        # of a request
        ('{"jsonrpc":"2.0","id":7,"method":"do",' + LONG + "}", 7),
        (' { "id" : "a\\"b" , ' + CALL + "," + LONG + "}", 'a"b'),
        ('{"method":"do",' + LONG + ', "id": -5, "jsonrpc":"2.0" } ', -5),
        ("{" + CALL + "," + LONG + ',"id":3}', 3),
        ("{" + CALL + ',"params":[{"id":3}],' + LONG + "}", None),
        ("{" + CALL + "," + LONG + ',"params":[{"id":3}]}', None),
        ('{"id":{"id":3},' + CALL + "," + LONG + "}", None),
        ('{"id":99999999999999999999,' + CALL + "," + LONG + "}", None),
        ("", None),
        # of a batch: that of its first call
        ("[" + ",".join(['{"id":4,' + CALL + "}"] * 2_000) + "]", [4]),
        ("[" + ",".join(["{" + CALL + ',"params":[{"id":1}],"id":5}'] * 2_000) + "]", [5]),
        ("\n [ " + NOTICE + ", 1, " + NOTICE + ',{"id":6,' + CALL + "}" + "," * 20_000, [6]),
        ("[" + ",".join([NOTICE] * 2_000) + "]", [None]),
        ("[" + "[" * 100_000, [None]),
        ("[1" + ",1" * 100_000, [None]),
        ("[" + LONG, [None]),
        ("[ ]", None),
    ],
)  # fmt: skip
def test_what_is_refused_unread_is_told_to_whom_it_concerns(body: str, told: Any) -> None:
    async def handle(_node: object, number: int) -> str:
        raise AssertionError(number)

    answer = json.loads(dispatcher(handle).refuse(RpcError("limit_exceeded", "too much"), body.encode()))
    one = answer[0] if type(told) is list else answer
    assert (type(answer) is list, one["id"]) == (type(told) is list, told[0] if type(told) is list else told)
    assert one["error"]["code"] == -32005


@given(st.binary(max_size=200) | st.text('[]{}",: \\id0123456789ejsonrpc', max_size=200).map(str.encode))
def test_any_bytes_can_be_refused(body: bytes) -> None:
    answer = json.loads(dispatcher(lambda *_: None).refuse(RpcError("limit_exceeded", "too much"), body))
    assert type(answer) in (list, dict)


def test_where_a_failure_may_be_a_revert_each_refusal_is_listed_also_of_a_whole_batch() -> None:
    """The last answers to a batch are refused where all together are too large."""

    async def handle(_node: object, number: int) -> str:
        return "x" * number

    param = Param("number", natural(0, 10**6), "")
    for may_revert in (False, True):
        method = Method("do", "", handle, {}, (param,), has_min_height=False, may_revert=may_revert)
        options = DispatchOptions(rate_per_s=0, answer_bytes_max=UNCOUNTED_BYTES_MAX)
        it = Dispatcher(None, {"do": method}, options, lambda: 0.0)  # type: ignore[arg-type]

        async def main(it: Dispatcher = it, may_revert: bool = may_revert) -> None:
            answer = await it.answer(asked(UNCOUNTED_BYTES_MAX // 2, UNCOUNTED_BYTES_MAX // 2, 2**30), ASKER)
            assert answer is not None
            _, large, malformed = json.loads(answer)
            for one, code in ((large, -32005), (malformed, -32602)):
                assert one["error"]["code"] == code
                assert (type(one["error"]["data"]) is list) is may_revert

        run(main())


def asked(*numbers: int) -> bytes:
    return json.dumps(
        [{"jsonrpc": "2.0", "id": n, "method": "do", "params": [number]} for n, number in enumerate(numbers)]
    ).encode()


@pytest.mark.slow
@given(st.lists(st.integers(0, 5), max_size=40), st.randoms(use_true_random=False))
def test_a_batch_is_answered_in_its_order_whatever_ends_first(steps: list[int], random: Any) -> None:
    async def main() -> None:
        futures: list[asyncio.Future[None]] = []

        async def handle(_node: object, number: int) -> int:
            for step in range(number):
                if step % 2:
                    await asyncio.sleep(0)
                else:
                    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    futures.append(future)
                    await future
            if number == 5:
                raise NodeUnavailable
            return number

        answer = asyncio.ensure_future(dispatcher(handle).answer(asked(*steps), ASKER))
        while not answer.done():
            random.shuffle(futures)
            if futures:
                futures.pop().set_result(None)
            await asyncio.sleep(0)
        items = json.loads(answer.result() or b"")
        if not steps:
            assert items["error"]["data"]["reason"] == "invalid_request"
            return
        assert [item["id"] for item in items] == list(range(len(steps)))
        outcomes = [item["result"] if "result" in item else item["error"]["data"]["reason"] for item in items]
        assert outcomes == ["node_unavailable" if step == 5 else step for step in steps]

    run(main())


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_batch_that_is_given_up_gives_up_all_of_it(sleeps: bool) -> None:
    async def main() -> None:
        ended: list[int] = []

        async def handle(_node: object, number: int) -> int:
            try:
                if number == 1:
                    return number
                if sleeps:
                    for _ in range(10**6):
                        await asyncio.sleep(0)
                await asyncio.get_running_loop().create_future()
            finally:
                ended.append(number)
            raise AssertionError

        answering = start(dispatcher(handle).answer(asked(1, 2, 3), ASKER))
        assert isinstance(answering, SuspendedCall)
        told: list[bool] = []
        answering.then(lambda one: told.append(one.is_cancelled))
        for _ in range(3):
            await asyncio.sleep(0)
        assert ended == [1]
        answering.cancel()
        answering.cancel()
        for _ in range(6):
            await asyncio.sleep(0)
        assert sorted(ended) == [1, 2, 3]
        assert told == [True]
        assert answering.answer is None

    run(main())


def test_what_fails_while_it_waits_says_why() -> None:
    async def main() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def handle(_node: object, number: int) -> int:
            await future
            return number

        answering = start(dispatcher(handle).answer(asked(7)[1:-1], ASKER))
        assert isinstance(answering, SuspendedCall)
        told = asyncio.Event()
        answering.then(lambda _one: told.set())
        future.set_exception(NodeUnavailable())
        await told.wait()
        assert answering.answer is not None
        assert json.loads(answering.answer)["error"]["data"]["reason"] == "node_unavailable"
        answering.cancel()  # changes nothing any more
        assert not answering.is_cancelled

    run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_who_gives_up_as_what_it_waited_for_comes_does_not_go_on(fails: bool) -> None:
    async def main() -> None:
        complaints: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(context))
        futures: list[asyncio.Future[None]] = [loop.create_future()]
        went_on: list[int] = []

        async def handle(_node: object, number: int) -> int:
            try:
                await futures[0]
            except NodeUnavailable:
                pass
            went_on.append(number)
            return number

        it = dispatcher(handle)
        answering = start(it.answer(asked(7)[1:-1], ASKER))
        assert isinstance(answering, SuspendedCall)
        told: list[bool] = []
        answering.then(lambda one: told.append(one.is_cancelled))
        if fails:
            futures[0].set_exception(NodeUnavailable())
        else:
            futures[0].set_result(None)
        answering.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (went_on, told, answering.answer) == ([], [True], None)
        assert it._running == 0 and it._running_of == {}
        futures.clear()
        del answering
        gc.collect()
        assert complaints == []

    run(main())


def test_a_place_that_is_granted_to_one_who_gives_up_in_that_moment_is_given_back() -> None:
    async def main() -> None:
        turns = FairQueue(1, 0)
        inside: list[str] = []

        async def visit(caller: str) -> bytes:
            await turns.acquire(caller)
            try:
                inside.append(caller)
                await asyncio.get_running_loop().create_future()
            finally:
                turns.release(caller)
            raise AssertionError

        first, second, third = (start(visit(caller)) for caller in ("first", "second", "third"))
        assert (
            isinstance(first, SuspendedCall)
            and isinstance(second, SuspendedCall)
            and isinstance(third, SuspendedCall)
        )
        first.cancel()
        await asyncio.sleep(0)  # the place is the second one's, who has not noticed yet
        second.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert inside == ["first", "third"]
        assert second.is_cancelled and third.is_waiting
        third.cancel()
        await asyncio.sleep(0)
        await asyncio.wait_for(turns.acquire("anybody"), 1)

    run(main())
