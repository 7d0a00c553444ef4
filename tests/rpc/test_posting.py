"""Transactions that are answered without a coroutine: as if there were one, whatever is asked."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from rpc.gateway.dispatch import Caller, Dispatcher, DispatchOptions, PendingAnswer, PendingTransaction
from rpc.gateway.method_table import METHOD_TABLE
from rpc.gateway.node.batcher import Batcher
from rpc.protocol.errors import NodeUnavailable, RpcError
from rpc.protocol.waiter import Waiter
from state.primitives.hashing import keccak
from state.primitives.heads import Head
from state.primitives.keys import SecretKey
from state.primitives.signing import sign_dynamic, sign_legacy
from state.primitives.transactions import sign_transaction
from state.transition.errors import CallRefused, NonceTooLow

ASKER = Caller("somebody")
KEY = SecretKey(b"\x01" * 32)
NATIVE, RAW = "dekube_sendTransaction", "eth_sendRawTransaction"
TABLE: Final = {name: METHOD_TABLE[name] for name in (NATIVE, RAW, "dekube_head")}
TO: Final = b"\x02" * 20


def _dynamic(nonce: int, value: int = 1, gas_limit: int = 21_000) -> bytes:
    return sign_dynamic(KEY, chain_id=7, nonce=nonce, to=TO, value=value, gas_limit=gas_limit, max_fee_per_gas=9)


def _native(nonce: int) -> bytes:
    return sign_transaction(
        KEY, chain_id=7, nonce=nonce, kind=1, payload=[TO, 1], gas_limit=21_000, max_fee_per_gas=9
    )


GOOD: Final = (
    _native(0), _native(1), _dynamic(2), _dynamic(3),
    sign_legacy(KEY, chain_id=7, nonce=4, to=TO, value=1, gas_limit=21_000, gas_price=9),
)  # fmt: skip
ODD: Final = (
    b"", b"\x44", GOOD[0][:-1], GOOD[2][:-1], GOOD[0][:-65] + bytes(65), b"\x44\x88" + bytes(80), b"\x7f" * 9,
    _dynamic(5, gas_limit=2**62), _dynamic(6, value=2**200),
)  # fmt: skip
REFUSALS: Final = (
    NodeUnavailable(), RpcError(CallRefused.code, "refused"), RpcError(NonceTooLow.code, "low", expected="3"),
    ZeroDivisionError(),
)  # fmt: skip

raws: Final = st.sampled_from([*GOOD, *GOOD, *ODD]).map(lambda raw: "0x" + raw.hex())
texts: Final = (
    raws | raws.map(str.upper) | raws.map(lambda text: text[:-1]) | st.sampled_from(["", "0x", "0x 1", "0xé"])
)
values: Final[st.SearchStrategy[Any]] = (
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | texts | st.just([]) | st.just({})
)
params: Final = (
    st.lists(raws, min_size=1, max_size=1) | st.lists(values, max_size=2) | values
    | st.dictionaries(st.sampled_from(["raw", "other"]), values, max_size=2)
)  # fmt: skip
plain: Final = st.fixed_dictionaries(
    {
        "jsonrpc": st.just("2.0"), "id": st.integers(0, 9) | st.text(max_size=3),
        "method": st.sampled_from([NATIVE, RAW]), "params": st.lists(raws, min_size=1, max_size=1),
    }
)  # fmt: skip
strange: Final = st.dictionaries(
    st.sampled_from(["jsonrpc", "id", "method", "params", "more"]),
    st.sampled_from(["2.0", NATIVE, RAW, "dekube_head", "x" * 300]) | params,
    max_size=5,
)
mixed: Final = st.tuples(plain, strange).map(lambda both: {**both[0], **dict(list(both[1].items())[:1])})
requests: Final = plain | strange | mixed | values


class FakeNode:
    """Says of each transaction what it was told to say; ``post`` says it later."""

    head = Head(5, b"h" * 32, 1, b"s" * 32, 1, 1, 0, 0)
    description = SimpleNamespace(parameters=(("chain.block_gas_limit", 10**9),))

    def __init__(self, refusals: dict[bytes, Exception]) -> None:
        self.refusals = refusals
        self.waiters: list[tuple[bytes, Waiter[bytes]]] = []

    async def read(self, _height: int, *keys: bytes) -> list[None]:
        return [None for _ in keys]

    async def submit(self, raw: bytes, _sender: bytes) -> bytes:
        if raw in self.refusals:
            raise self.refusals[raw]
        return keccak(raw)

    def post(self, raw: bytes, sender: bytes, waiter: Waiter[bytes]) -> None:
        assert sender == KEY.address
        self.waiters.append((raw, waiter))

    def tell(self, which: int) -> None:
        raw, waiter = self.waiters.pop(which % len(self.waiters))
        if not waiter.done():
            waiter.answered(self.refusals.get(raw) or keccak(raw))


class World:
    """A dispatcher above such a node, and what it counts."""

    def __init__(self, refusals: dict[bytes, Exception], options: DispatchOptions) -> None:
        self.node = FakeNode(refusals)
        self.observed: list[tuple[str, str]] = []
        self.dispatcher = Dispatcher(
            self.node,  # type: ignore[arg-type]
            TABLE,
            options,
            lambda: 1.0,
            lambda method, outcome: self.observed.append((method, outcome)),
        )

    @property
    def left(self) -> float:
        """Seconds until a caller who asks for very much more may ask again: what is left of its budget."""
        self.dispatcher.add_debt(ASKER.key, 10**6)
        return self.dispatcher.charge(ASKER.key, 1)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


refusals_of: Final = st.dictionaries(st.sampled_from(GOOD), st.sampled_from(REFUSALS), max_size=3)
limits: Final = st.builds(
    DispatchOptions,
    burst=st.sampled_from([1, 12, 20_000]),
    answer_bytes_max=st.sampled_from([120, 2**20]),
    requests_max=st.sampled_from([0, 100]),
    requests_per_caller_max=st.sampled_from([0, 100]),
)


@given(st.lists(requests, min_size=1, max_size=6), refusals_of, limits)
def test_the_short_way_answers_as_the_long_one(
    asked: list[Any], refusals: dict[bytes, Exception], options: DispatchOptions
) -> None:
    async def main() -> None:
        short, long = World(refusals, options), World(refusals, options)
        for request in asked:
            body = json.dumps(request).encode()
            begun = short.dispatcher.begin(body, ASKER)
            while isinstance(begun, PendingAnswer) and begun.is_waiting:
                if short.node.waiters:
                    short.node.tell(0)
                await asyncio.sleep(0)
            answer = begun.answer if isinstance(begun, PendingAnswer) else begun
            assert answer == await long.dispatcher.answer(body, ASKER)
            assert short.observed == long.observed
        assert short.left == long.left
        assert not long.node.waiters

    run(main())


@given(st.lists(plain | requests, min_size=1, max_size=12), refusals_of, st.lists(st.integers(0, 99)))
def test_a_batch_is_answered_as_its_calls_one_by_one_whoever_is_told_first(
    asked: list[Any], refusals: dict[bytes, Exception], order: list[int]
) -> None:
    async def main() -> None:
        short, long = World(refusals, DispatchOptions()), World(refusals, DispatchOptions())
        answering = asyncio.ensure_future(short.dispatcher.answer(json.dumps(asked).encode(), ASKER))
        while not answering.done():
            if short.node.waiters:
                short.node.tell(order.pop() if order else 0)
            await asyncio.sleep(0)
        alone = [await long.dispatcher._one(json.loads(json.dumps(request)), ASKER) for request in asked]
        found = [answer for answer in alone if answer is not None]
        assert answering.result() == (b"[%s]" % b",".join(found) if found else None)

    run(main())


def test_who_gives_up_is_not_told_and_holds_no_place() -> None:
    async def main() -> None:
        world = World({}, DispatchOptions(requests_max=2))
        call = {"jsonrpc": "2.0", "id": 1, "method": NATIVE, "params": ["0x" + GOOD[0].hex()]}
        body = json.dumps(call).encode()
        told: list[PendingAnswer] = []
        first, second = world.dispatcher.begin(body, ASKER), world.dispatcher.begin(body, ASKER)
        assert isinstance(first, PendingTransaction) and isinstance(second, PendingTransaction)
        refused = world.dispatcher.begin(body, ASKER)
        assert isinstance(refused, bytes) and b"limit_exceeded" in refused
        first.then(told.append)
        second.then(told.append)
        first.cancel()
        first.cancel()
        third = world.dispatcher.begin(body, ASKER)
        assert isinstance(third, PendingTransaction)
        while world.node.waiters:
            world.node.tell(0)
        assert told == [second]
        second.cancel()
        assert not second.is_cancelled and second.answer is not None and first.answer is None

    run(main())


def test_a_batch_that_is_given_up_gives_its_places_back() -> None:
    async def main() -> None:
        world = World({}, DispatchOptions(requests_max=2))
        call = {"jsonrpc": "2.0", "id": 1, "method": RAW, "params": ["0x" + GOOD[2].hex()]}
        answering = asyncio.ensure_future(world.dispatcher.answer(json.dumps([call, call]).encode(), ASKER))
        await asyncio.sleep(0)
        assert len(world.node.waiters) == 2
        answering.cancel()
        await asyncio.wait([answering])
        assert answering.cancelled()
        while world.node.waiters:
            world.node.tell(0)
        assert isinstance(world.dispatcher.begin(json.dumps(call).encode(), ASKER), PendingTransaction)

    run(main())


class Request:
    """Knows what it waits for, as a request of ``rpc.gateway.fast_path`` does, and is told when that is there."""

    def __init__(self, task: PendingAnswer) -> None:
        self.task = task
        self.answer: bytes | None = None
        self.is_there = asyncio.Event()
        task.then(self.answered)

    def answered(self, done: PendingAnswer) -> None:
        self.answer = done.answer
        self.is_there.set()


def test_what_was_answered_leaves_nothing_to_the_collector_of_cycles() -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": NATIVE, "params": ["0x" + GOOD[0].hex()]}

    async def main() -> None:
        world = World({}, DispatchOptions())
        for body in (json.dumps(call).encode(), json.dumps([call, call]).encode()):
            begun = world.dispatcher.begin(body, ASKER)
            assert isinstance(begun, PendingAnswer)
            request = Request(begun)
            while world.node.waiters:
                world.node.tell(0)
            await request.is_there.wait()
            assert request.answer is not None and b"0x" in request.answer
            gone = weakref.ref(request)
            del request, begun
            await asyncio.sleep(0)  # the loop itself still holds what it called last
            assert gone() is None
            assert not [found for found in gc.get_objects() if isinstance(found, PendingAnswer)]

    gc.collect()
    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


class Listener:
    """A waiter that notes what it is told, or fails."""

    def __init__(self, *, fails: bool = False, is_gone: bool = False) -> None:
        self.told: list[int | Exception] = []
        self.fails = fails
        self.is_gone = is_gone

    def done(self) -> bool:
        return self.is_gone

    def answered(self, answer: int | Exception) -> None:
        if self.fails:
            raise ZeroDivisionError
        self.told.append(answer)


def test_a_waiter_that_fails_keeps_nobody_from_being_told() -> None:
    async def main() -> None:
        asked: list[list[int]] = []

        async def ask(questions: Any) -> list[int | Exception]:
            asked.append(list(questions))
            listeners[2].is_gone = True
            return [-question if question else NodeUnavailable() for question in questions]

        batcher: Batcher[int, int] = Batcher(ask, frame_items_max=8, waiting_max=8)
        listeners = [Listener(), Listener(fails=True), Listener(), Listener(is_gone=True), Listener()]
        for question, listener in enumerate(listeners):
            batcher.submit(question, listener)
        future = batcher.ask(7)
        assert await future == -7
        assert asked == [[0, 1, 2, 4, 7]]
        assert isinstance(listeners[0].told[0], NodeUnavailable)
        assert [listener.told for listener in listeners[1:]] == [[], [], [], [-4]]
        for question in range(8):  # every place is free again
            batcher.submit(question, Listener())

    run(main())
