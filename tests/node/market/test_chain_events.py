"""Events of the chain's blocks: each is counted by its name, and what concerns own groups is logged."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from node.chain.block_tree import Executed
from node.market.chain_events import ChainEvents
from state.primitives.receipts import Event, EventType
from tasks.ledger.custody import CUSTODY_LOST
from tasks.ledger.events import EVENTS
from tasks.ledger.group_records import GROUP_PHASE, GROUP_SEAT, GroupPhase, seat_task
from tasks.ledger.lifecycle import Reason
from tests.tasks.groups import create
from tests.tasks.ledger.test_groups import market
from tests.tasks.world import REQUESTER


def block(*events: Event) -> Executed:
    parts: Iterable[Any] = ((event,) for event in events)
    return cast(Executed, SimpleNamespace(execution=SimpleNamespace(events=tuple(parts))))


def test_events_are_counted_by_name_and_those_of_own_groups_and_custody_are_logged() -> None:
    world = market(2)
    group = create(world, 2)
    moved = GROUP_PHASE(group, GroupPhase.MATCHING, GroupPhase.RUNNING, Reason.MATCHED)
    lost = CUSTODY_LOST(seat_task(group, 0), 0, b"c" * 20)
    other = EventType(REQUESTER, "Unknown(uint256 number)")(1)
    gone = GROUP_PHASE(b"g" * 32, GroupPhase.MATCHING, GroupPhase.RUNNING, Reason.MATCHED)
    own, foreign = ChainEvents(world.state, REQUESTER), ChainEvents(world.state, b"f" * 20)
    assert set(own.counts) == {kind.name for kind in EVENTS.values()} and not any(own.counts.values())
    with capture_logs() as logs:
        foreign.on_commit([block(moved, lost)])
    assert not logs
    with capture_logs() as logs:
        own.on_commit([block(GROUP_SEAT(group, seat_task(group, 1), 1), moved), block(lost, other, gone, moved)])
    assert {name: count for name, count in own.counts.items() if count} == {
        "GroupSeat": 1, "GroupPhase": 3, "CustodyLost": 1,
    }  # fmt: skip
    assert [line.get("phase") or line["window"] for line in logs] == ["running", 0, "running"]
