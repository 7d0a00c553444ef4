from __future__ import annotations

from collections.abc import Iterable, Sequence

import trio
from trio.testing import wait_all_tasks_blocked

from p2p.base.limits import NetworkLimits
from p2p.gossip.core import Deliver, Verdict
from p2p.gossip.validation import GossipItem, TopicValidation


async def test_what_is_withdrawn_is_not_judged_and_batches_keep_their_bounds() -> None:
    batches: list[list[bytes]] = []
    verdicts: list[bytes] = []
    gate = trio.Semaphore(0)

    async def validate(items: Sequence[GossipItem]) -> Sequence[Verdict]:
        batches.append([item.payload for item in items])
        await gate.acquire()
        return [Verdict.ACCEPT] * len(items)

    def judged(found: Iterable[tuple[bytes, Verdict]]) -> None:
        verdicts.extend(identifier for identifier, _ in found)

    limits = NetworkLimits(gossip_batch_max=3, gossip_batch_bytes_max=10)
    validation = TopicValidation(validate, limits, judged)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(validation.run)
        validation.put(Deliver("tx", b"p", b"1", b"first"))
        await wait_all_tasks_blocked()
        for identifier, payload in (
            (b"2", b"a"),
            (b"3", b"gone"),
            (b"4", b"b" * 9),
            (b"5", b"c"),
            (b"6", b"d" * 99),
        ):
            validation.put(Deliver("tx", b"p", identifier, payload))
        validation.withdraw(b"3")
        validation.withdraw(b"1")  # its turn has come
        for _ in range(4):
            gate.release()
            await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert batches == [[b"first"], [b"a", b"b" * 9], [b"c"], [b"d" * 99]]
    assert verdicts == [b"1", b"2", b"4", b"5", b"6"]
