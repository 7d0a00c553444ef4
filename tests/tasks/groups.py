"""A group in the market without a network: how it is posted, watched and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tasks.ledger import queries
from tasks.ledger.group_records import GroupPhase, GroupRecord, group_id_of, load_group, seat_task
from tasks.ledger.group_transitions import ADD_SEATS, CREATE_GROUP
from tasks.ledger.groups import SEATS_PER_STEP, seats_budget
from tasks.ledger.records import TaskRecord
from tasks.spec import JobSpec, encode_spec
from tests.tasks.toywork import start_root
from tests.tasks.world import REQUESTER, World, spec

DAY_MS: Final = 24 * 3_600_000


def root_of(seat: int) -> bytes:
    return start_root(7.0 + seat)


def seat_groups(members: int, spares: int) -> list[list[bytes]]:
    """What each transaction after the first adds."""
    roots = [*(root_of(seat) for seat in range(1, members)), *[b""] * spares]
    return [roots[at : at + SEATS_PER_STEP] for at in range(0, len(roots), SEATS_PER_STEP)]


def add_rest(
    world: World, group: bytes, job: JobSpec, members: int, spares: int, sender: bytes = REQUESTER
) -> str | None:  # fmt: skip
    """Add the seats after seat 0; return the first refusal."""
    for roots in seat_groups(members, spares):
        last = sum(not root for root in roots)
        due = seats_budget(job, len(roots) - last, last, world.parameters)
        refusal = world.send(sender, ADD_SEATS, [group, list(roots), due])
        if refusal is not None:
            return refusal
    return None


def create(world: World, members: int, spares: int = 0, *, job: JobSpec | None = None) -> bytes:
    """Create a group with all its seats."""
    job = job or spec(match_ms=DAY_MS)
    group = group_id_of(REQUESTER, world.nonces.get(REQUESTER, 0))
    assert world.send(REQUESTER, CREATE_GROUP, [encode_spec(job), members, spares]) is None
    assert add_rest(world, group, job, members, spares) is None
    return group


def seat(world: World, group: bytes, number: int) -> TaskRecord:
    return queries.find_task(world.state, seat_task(group, number))


def seats(world: World, group: bytes) -> list[TaskRecord]:
    return [seat(world, group, number) for number in range(load_group(world.state, group).seats)]


def run(
    world: World, group: bytes, *, until: Callable[[GroupRecord], bool] | None = None, blocks: int = 400
) -> GroupRecord:  # fmt: skip
    """Let the market run until ``until`` holds of a group, or it has ended."""
    for _ in range(blocks):
        for step in (world.block, world.act):
            step()
            record = load_group(world.state, group)
            if (until or (lambda record: record.phase is GroupPhase.ENDED))(record):
                return record
    raise AssertionError(f"not within {blocks} blocks: {load_group(world.state, group)}")
