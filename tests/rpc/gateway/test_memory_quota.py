"""The ledger of held bytes, and rationed callers: nothing large is read, what is malformed costs."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.gateway import app
from rpc.gateway.dispatch import VALUES_MAX, Caller, Dispatcher, DispatchOptions
from rpc.gateway.limits import DEBT_BURSTS, caller_limiter
from rpc.gateway.memory_quota import STEP_BYTES, UNCOUNTED_BYTES_MAX, HeldBytes, MemoryQuota, shrink_to_fit
from rpc.gateway.subscriptions import _notification
from rpc.methods.method import Method
from rpc.methods.schema import Param, natural
from rpc.protocol.errors import RpcError

ASKER = Caller("somebody")
LIMIT, OF_ONE = 20 * STEP_BYTES, 8 * STEP_BYTES
SIZES = st.integers(0, 12 * STEP_BYTES) | st.sampled_from(
    [0, 1, UNCOUNTED_BYTES_MAX, UNCOUNTED_BYTES_MAX + 1, STEP_BYTES]
)


@given(st.lists(st.tuples(st.integers(0, 9), SIZES)))
def test_the_ledger_is_the_sum_of_its_holders_and_below_its_limits(steps: list[tuple[int, int]]) -> None:
    memory_quota = MemoryQuota(LIMIT, OF_ONE)
    held = [HeldBytes(memory_quota, f"caller {number % 3}") for number in range(10)]
    for number, size in steps:
        before = held[number].counted
        if held[number].resize(size):
            assert size - UNCOUNTED_BYTES_MAX <= held[number].counted < size + STEP_BYTES
        else:
            assert held[number].counted == before < size
        assert memory_quota.bytes == sum(item.counted for item in held) <= LIMIT
        for caller in range(3):
            assert sum(item.counted for item in held[caller::3]) <= OF_ONE
    for item in held:
        assert item.resize(0)
    assert memory_quota.bytes == 0
    assert not memory_quota._of, "nobody is remembered who holds nothing"


def test_without_limits_nothing_is_refused() -> None:
    assert HeldBytes(MemoryQuota(), "a").resize(2**50)


@given(st.lists(st.integers(0, 10**6)))
def test_debts_are_bounded(costs: list[int]) -> None:
    rates = caller_limiter(5, 100)
    for cost in costs:
        rates.add_debt("a", cost, 0.0)
    assert rates.spend("a", 1, (DEBT_BURSTS * 100 + 1) / 5) == 0


def dispatcher(handle: Callable[..., Any], memory_quota: MemoryQuota | None = None, **options: Any) -> Dispatcher:
    param = Param("number", natural(0, 10**6), "")
    method = Method("do", "Does", handle, {"type": "string"}, (param,), has_min_height=False)
    return Dispatcher(
        None,  # type: ignore[arg-type]
        {"do": method},
        DispatchOptions(**options),
        lambda: 0.0,
        memory_quota=memory_quota,
    )


async def length(_node: object, number: int) -> str:
    return "x" * number


def reasons(it: Dispatcher, *bodies: bytes) -> list[str]:
    async def main() -> list[str]:
        found = []
        for body in bodies:
            for answer in [json.loads(await it.answer(body, ASKER) or b"")]:
                found += [item.get("error", {"data": {"reason": "ok"}})["data"]["reason"] for item in _all(answer)]
        return found

    return asyncio.run(main())


def _all(answer: Any) -> list[Any]:
    return answer if isinstance(answer, list) else [answer]


def asked(*numbers: int) -> bytes:
    return json.dumps(
        [{"jsonrpc": "2.0", "id": n, "method": "do", "params": [number]} for n, number in enumerate(numbers)]
    ).encode()


def test_who_is_rationed_has_nothing_large_read() -> None:
    malformed = b"[" * 20_000
    it = dispatcher(length, rate_per_s=1, burst=3)
    assert reasons(it, malformed, malformed, malformed) == ["parse_error", "limit_exceeded", "limit_exceeded"]


def test_what_is_malformed_costs_like_a_question() -> None:
    for wrong in (b"{}", b"{", b"7", b"[]", b"[7]", b'{"id":[]}', b'{"jsonrpc":"2.0","method":"nothing","id":1}'):
        it = dispatcher(length, rate_per_s=1, burst=5)
        found = reasons(it, *[wrong] * 6, asked(1))
        assert found[-1] == "limit_exceeded" and "limit_exceeded" not in found[:5], wrong


def test_more_values_than_a_batch_has_are_not_read() -> None:
    it = dispatcher(length, rate_per_s=0)
    assert reasons(it, b"[" + b"{}," * VALUES_MAX + b"{}]") == ["invalid_request"]
    assert reasons(it, b"[" * (VALUES_MAX + 1)) == ["invalid_request"]
    assert reasons(it, b"[" * 20_000) == ["parse_error"]


@pytest.mark.parametrize("sign", ["😀", "é", "\\ud83d\\ude00"])
def test_a_body_is_counted_with_what_its_text_takes_when_it_is_read(sign: str) -> None:
    memory_quota = MemoryQuota(0, 8 * STEP_BYTES)
    it = dispatcher(length, memory_quota, rate_per_s=0)

    def body(kilobytes: int, sign: str) -> bytes:
        text = "a" * (kilobytes * 1024) + sign
        return f'[{{"jsonrpc":"2.0","id":1,"method":"do","params":[1],"x":"{text}"}}]'.encode()

    assert reasons(it, body(300, ""), body(80, sign)) == ["ok", "ok"]
    assert reasons(it, body(300, sign)) == ["limit_exceeded"]
    assert memory_quota.bytes == 0


def test_large_answers_cost_by_their_length() -> None:
    it = dispatcher(length, rate_per_s=1, burst=100)
    assert reasons(it, asked(90_000), asked(1), asked(90_000), asked(1)) == ["ok", "ok", "ok", "limit_exceeded"]


def test_the_answers_of_a_batch_are_bounded_as_they_come() -> None:
    memory_quota = MemoryQuota(0, 4 * STEP_BYTES)
    it = dispatcher(length, memory_quota, rate_per_s=0)
    sizes = [STEP_BYTES - 1_000] * 6
    assert reasons(it, asked(*sizes)) == ["ok"] * 4 + ["limit_exceeded"] * 2
    assert memory_quota.bytes == 0

    async def later(_node: object, number: int) -> str:
        await asyncio.sleep(0)
        return "x" * number

    it = dispatcher(later, memory_quota, rate_per_s=0)
    assert reasons(it, asked(*sizes)) == ["ok"] * 4 + ["limit_exceeded"] * 2
    assert memory_quota.bytes == 0
    it = dispatcher(later, rate_per_s=0, answer_bytes_max=100_000)
    assert reasons(it, asked(60_000, 60_000, 10, 60_000)) == ["ok", "limit_exceeded", "ok", "limit_exceeded"]


def test_a_large_body_is_held_while_it_is_answered() -> None:
    memory_quota = MemoryQuota(0, 4 * STEP_BYTES)
    seen = []

    async def look(_node: object, number: int) -> str:
        seen.append(memory_quota.bytes)
        return str(number)

    it = dispatcher(look, memory_quota, rate_per_s=0)
    assert reasons(it, asked(1), asked(1) + b" " * 100_000, asked(1) + b" " * 300_000) == [
        "ok",
        "ok",
        "limit_exceeded",
    ]
    assert seen == [0, 2 * STEP_BYTES]
    assert memory_quota.bytes == 0


def test_names_of_hosts_are_kept_only_if_they_may_be_ours() -> None:
    app._kept_name_of.cache_clear()
    for number in range(4):
        assert app._name_of(b"x" * 60_000 + b"%d:80" % number) == ""
    assert app._kept_name_of.cache_info().currsize == 0
    assert [app._name_of(name) for name in (b"LocalHost:80", b"[::1]:80", b"a")] == ["localhost", "[::1]", "a"]


def memory_of(make: Callable[[], bytes], count: int = 200) -> float:
    """Return the memory that one of ``count`` results takes."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [make() for _ in range(count)]
        return (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    finally:
        tracemalloc.stop()


def test_an_answer_takes_the_memory_that_is_counted() -> None:
    """The encoder leaves its buffer as long as it grew: 4 KiB for a refusal of 150 bytes."""
    asked = dispatcher(lambda _node, number: number)
    error = RpcError("limit_exceeded", "limit exceeded: too many requests", retry_after_s=0.1)
    makers: tuple[Callable[[], bytes], ...] = (
        lambda: asked.refuse(error),
        lambda: asked._say(1, "x" * 300, ASKER),
        lambda: _notification("dekube_subscription", "0x1", b'"0x00"'),
    )
    for make in makers:
        assert memory_of(make) < 2 * len(make()) + 200
    refused = asked.refuse(error)
    assert shrink_to_fit(refused) == refused and shrink_to_fit(b"") == b""
