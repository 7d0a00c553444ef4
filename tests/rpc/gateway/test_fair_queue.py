"""FairQueue: no more places than there are, none lost, and nobody's line keeps others out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rpc.gateway.fair_queue import FairQueue

PLACES, OF_CALLER = 4, 2
STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "leave", "give up", "turn"]), st.integers(0, 3), st.integers(0, 30)),
    max_size=60,
)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


@given(STEPS)
def test_no_place_is_taken_twice_and_none_is_lost(steps: list[tuple[str, int, int]]) -> None:
    async def main() -> None:
        turns = FairQueue(PLACES, OF_CALLER)
        inside: Counter[str] = Counter()
        held: list[tuple[asyncio.Task[None], asyncio.Event]] = []

        async def visit(caller: str, end: asyncio.Event) -> None:
            await turns.acquire(caller)
            inside[caller] += 1
            try:
                await end.wait()
            finally:
                inside[caller] -= 1
                turns.release(caller)

        async def settle() -> None:
            for _ in range(4):
                await asyncio.sleep(0)

        for step, who, which in steps:
            if step == "come":
                end = asyncio.Event()
                held.append((asyncio.ensure_future(visit(str(who), end)), end))
            elif step == "turn":
                await settle()
            elif held:
                task, end = held.pop(which % len(held))
                if step == "leave":
                    end.set()
                else:
                    task.cancel()
            assert inside.total() <= PLACES and all(count <= OF_CALLER for count in inside.values())
        await settle()
        wanting = Counter[str]()
        for task, end in held:
            end.set()
            wanting["all"] += not task.done()
        await asyncio.gather(*(task for task, _ in held))  # nobody is forgotten
        assert not inside.total()
        again = [asyncio.ensure_future(turns.acquire(str(number))) for number in range(PLACES)]
        await settle()
        assert all(task.done() for task in again), "a place was lost"

    run(main())


def test_who_comes_late_and_alone_is_next() -> None:
    async def main() -> None:
        turns = FairQueue(2, 2)
        order: list[str] = []

        async def visit(caller: str) -> None:
            await turns.acquire(caller)
            order.append(caller)
            await asyncio.sleep(0)
            turns.release(caller)

        flood = [asyncio.ensure_future(visit("flood")) for _ in range(100)]
        await asyncio.sleep(0)
        await asyncio.gather(visit("late"), *flood)
        assert order.index("late") < 6
        assert len(order) == 101

    run(main())


def test_one_caller_leaves_places_for_others() -> None:
    async def main() -> None:
        turns = FairQueue(3, 2)
        mine = [asyncio.ensure_future(turns.acquire("mine")) for _ in range(5)]
        await asyncio.sleep(0)
        assert [task.done() for task in mine] == [True, True, False, False, False]
        await asyncio.wait_for(turns.acquire("other"), 1)
        for task in mine[2:]:
            task.cancel()
        await asyncio.gather(*mine[2:], return_exceptions=True)
        turns.release("other")
        turns.release("mine")
        await asyncio.wait_for(turns.acquire("mine"), 1)
        unbounded = FairQueue(3, 0)
        for _ in range(3):
            await asyncio.wait_for(unbounded.acquire("mine"), 1)

    run(main())
