"""Attacks that make a record or a block larger than it may be, carried out with signed transactions."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing import escrow
from billing.escrow import OWNERS_PAGE_MAX, Movement, Pool, Purpose, Vault, add_earnings
from billing.prices import Role
from state.primitives.codec import encode
from state.view import EMPTY, Overlay, Reader, Table
from state.view.accounts import credit
from tasks.custody.chunks import BlobCommitment
from tasks.ledger import carriage, custody_records, parameters, records, registration, registry, tampering
from tasks.ledger.jobs import JobSizes
from tasks.ledger.lifecycle import Phase, Reason, WindowPhase
from tasks.ledger.records import HistoryEntry, JobReport, Opened, Seat, TaskRecord, WindowRecord
from tasks.ledger.registry import Gpu, NodeProfile, NodeRecord, NodeRole, NodeStatus
from tasks.ledger.serving import ENLARGED_JURY
from tasks.ledger.settlement import RELEASES_MAX
from tasks.ledger.transitions import GIVE_UP_TASK, RESUME_TASK
from tasks.ledger.window_draws import USED_MAX_TO_DECLINE
from tasks.programs.divergence import Divergence
from tasks.proofs import CUSTODY_SIZE_LIMIT, SAMPLED_MAX, Code, Finding
from tasks.spec import SEGMENTS_MAX
from tests.tasks.queued import QueuedWorld
from tests.tasks.world import QUICK, WORTH, leaves_of, proof_of, spec

WORK, CHECK = NodeRole.COMPUTE, NodeRole.VERIFY
OWNERS: Final = 24


def relay_of_workers(world: QueuedWorld, workers: int) -> bytes:
    """Have each of ``workers`` machines run one window of a task and leave it; returns the task."""
    for at in range(workers):
        world.sign_up(f"worker {at}", roles=WORK, price=WORTH // 2000 + at)
    for at in range(4):
        world.sign_up(f"verifier {at}", roles=CHECK)
    world.block()
    task = world.post(spec(total=20 * workers, match_ms=3_600_000))
    world.block()
    for window in range(workers - 1):
        while world.task(task).next_window == window:
            if world.task(task).phase == Phase.PAUSED:
                world.send(world.requester, RESUME_TASK, [task])
            world.act()
            world.block()
        world.send(world.task(task).worker, GIVE_UP_TASK, [task, int(Reason.WORKER_LEFT)])
        world.block()
    return task


def test_a1_a_task_of_many_workers_in_turn_does_not_halt_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker leaves a hold behind until the task ends: the record of all of them must not grow with them."""
    monkeypatch.setattr(escrow, "RECORD_LIMIT_BYTES", min(512, escrow.RECORD_LIMIT_BYTES))
    world = QueuedWorld(parameters=replace(QUICK, attempts_max=4, cool_down_ms=0, decline_ms=0))
    task = relay_of_workers(world, OWNERS)
    while world.task(task).phase != Phase.SETTLED:
        world.act()
        world.block()
    holds = [line for line in escrow.bill_lines(world.state, task) if line.purpose == Purpose.HOLD_RELEASE]
    assert 0 < len(holds) <= RELEASES_MAX
    for _ in range(40):
        world.block()
    lines = escrow.bill_lines(world.state, task)
    assert sum(line.purpose == Purpose.HOLD_RELEASE for line in lines) == OWNERS
    assert escrow.escrow_totals(world.state, task).locked == 0
    check_sizes(world.state)


def check_sizes(state: Reader) -> None:
    """Every record of the market is within its bound."""
    for prefix, limit in LIMITS.items():
        for key, value in state.scan(prefix, prefix[:-1] + bytes([prefix[-1] + 1]), 100_000):
            assert len(value) <= limit, key.hex()


# The largest record of each kind

AMOUNT: Final = (1 << 127) - 1
MS: Final = 1 << 48
MANY: Final = (1 << 32) - 1
LIMITS: Final = {
    bytes([Table.NODE]): registry.RECORD_LIMIT_BYTES,
    bytes([Table.NODE_PAST]): registry.RECORD_LIMIT_BYTES,
    bytes([Table.NODE_TAMPER]): tampering.TAMPER_LIMIT_BYTES,
    bytes([Table.TASK]): records.TASK_LIMIT_BYTES,
    bytes([Table.TASK_INDEX]): records.REPORT_LIMIT_BYTES,
    bytes([Table.WINDOW]): records.WINDOW_LIMIT_BYTES,
    bytes([Table.DEADLINE]): 1,
    bytes([Table.CUSTODY]): custody_records.CUSTODY_LIMIT_BYTES,
    bytes([Table.ESCROW]): escrow.RECORD_LIMIT_BYTES,
    bytes([Table.ESCROW_SHARE]): escrow.SHARE_LIMIT_BYTES,
    bytes([Table.EARNINGS]): escrow.LINE_LIMIT_BYTES,
    bytes([Table.BILL]): escrow.LINE_LIMIT_BYTES,
    bytes([Table.CARRIAGE]): carriage.RECORD_LIMIT_BYTES,
}
"""The tables that the market writes, with the bounds of their values (market.md 2.5)."""


def most(name: str) -> int:
    """The largest value that a genesis may give a parameter."""
    return parameters._BOUNDS[name][1]


def filled(record: type, **given: object) -> dict[str, object]:
    """Numbers as large as they get and hashes for the fields of ``record`` that are not given."""
    kinds: dict[object, object] = {int: MANY, bytes: b"h" * 32}
    return {name: given.get(name, kinds.get(kind, ())) for name, kind in get_type_hints(record).items()}


def largest_task() -> TaskRecord:
    excluded = (b"x" * 20,) * most("excluded_max")
    times = {name: MS for name in TaskRecord._fields if name.endswith("_ms")}
    fields = filled(
        TaskRecord, phase=Phase.EXPIRED, reason=Reason.RESULT_LOST, excluded=excluded,
        price_per_tera_unit=AMOUNT, group=b"g" * 33, sizes=JobSizes(*[MANY] * 5), **times,
    )  # fmt: skip
    return TaskRecord(**fields)  # type: ignore[arg-type]


DIVERGED = Divergence((1 << 40) - 1, 131_071, 1 << 19, 1 << 19, b"b" * 32)


def largest_window() -> WindowRecord:
    findings = tuple(
        Finding(255 - SAMPLED_MAX + at, Code.COMPUTED, b"p" * 32, b"s" * 32, (1 << 64) - 1)
        for at in range(SAMPLED_MAX)
    )
    draws, more = most("draws_max"), 3 * ENLARGED_JURY
    proof = proof_of(spec(), b"t" * 32, 0, leaves_of(spec(), 0, b"i" * 32))._replace(  # its decoder bounds it
        custody=((1 << 42) - 1, b"p" * 32, b"c" * 32),
        diverged=DIVERGED,
    )
    fields = filled(
        WindowRecord, phase=WindowPhase.VOID, reason=Reason.RESULT_LOST, proof=proof, deadline_ms=MS,
        charge=AMOUNT, fee=AMOUNT,
        sampled=(255,) * SAMPLED_MAX,
        opened=(Opened(255, b"b" * 32, b"s" * 32, b"p" * 32, (1 << 64) - 1),) * SAMPLED_MAX,
        verifiers=(Seat(b"v" * 20, b"s" * 32, findings),) * most("verifiers"),
        jurors=(Seat(b"v" * 20, b"s" * 32, findings),) * ENLARGED_JURY,
        missed=(255,) * SAMPLED_MAX,
        # Machines and their operators, of all draws and of the seats that were declined.
        used=(b"u" * 20,) * (3 * draws * (most("verifiers_sure") + most("jury")) + more + USED_MAX_TO_DECLINE),
        vacant=(MANY,) * ENLARGED_JURY,
        seen=tuple(range(SEGMENTS_MAX)),
    )  # fmt: skip
    return WindowRecord(**fields)  # type: ignore[arg-type]


def largest_custody() -> custody_records.CustodyRecord:
    parties = 3 * custody_records.TRIED_MAX
    asked = custody_records.Demand(
        custody_records.DemandKind.DELIVERY, b"h" * 20, AMOUNT, AMOUNT, MANY, 1 << 28, b"r" * 20, 2, MS,
        (b"r" * 20,) * 3 * custody_records.RECEIVERS_MAX,
    )  # fmt: skip
    return custody_records.CustodyRecord(
        b"t" * 32, 9_999, b"w" * 20, custody_records.CustodyPhase.KEPT,
        BlobCommitment(CUSTODY_SIZE_LIMIT - 1, b"p" * 32, b"c" * 32), AMOUNT, AMOUNT, MANY, MS, MS, 0, MANY,
        (b"p" * 20,) * custody_records.DRAWN_MAX,
        (custody_records.Holder(b"h" * 20, AMOUNT, MS, MANY, 1),) * custody_records.HOLDERS_MAX,
        (b"u" * 20,) * parties, asked, b"q" * 20, custody_records.TRIED_MAX,
    )  # fmt: skip


def largest_node() -> NodeRecord:
    profile = NodeProfile(b"o" * 20, NodeRole.COMPUTE, (Gpu("g", 1),), 1, 1, 1, 1, 1, 1, 0, (), "v")
    size = len(encode(registry.profile_to_value(profile)))
    profile = profile._replace(version="v" * (registry.PROFILE_LIMIT_BYTES - size))  # longer than a text may be
    fields = filled(NodeRecord, address=b"n" * 20, profile=profile, status=NodeStatus.ACTIVE)
    fields = {name: AMOUNT if value == MANY else value for name, value in fields.items()}
    return NodeRecord(**fields)  # type: ignore[arg-type]


def test_no_record_that_the_market_can_write_is_above_its_bound() -> None:
    state = Overlay(EMPTY)
    records.save_task(state, largest_task())
    records.save_window(state, largest_window())
    registry.save_node(state, largest_node())
    registration._save_past(state, largest_node())
    records.append_history(
        state, b"t" * 32,
        HistoryEntry(MANY, MANY, MS, 13, Phase.EXPIRED, Reason.RESULT_LOST, b"a" * 20, b"e" * 32),
    )  # fmt: skip
    records.save_report(state, b"s" * 32, JobReport(Reason.JOB_UNFIT, MANY, b"w" * 20, b"t" * 32, MANY))
    for role in Role:
        add_earnings(state, b"a" * 20, role, AMOUNT)
    carriage._save(
        state, b"p" * 20, b"r" * 20, carriage._Record(b"c" * 32, MS, 1 << 63, 1 << 63, AMOUNT, AMOUNT, MS)
    )
    carriage._save_deposit(state, b"p" * 20, carriage.NO_DEPOSIT, carriage.Deposit(AMOUNT, AMOUNT, MS))
    custody_records.save_custody(state, largest_custody(), MS)
    terms = custody_records.Terms(b"k" * 32, 64, MANY, AMOUNT, AMOUNT, AMOUNT, MANY, MANY, MANY)
    custody_records.save_terms(state, b"t" * 32, terms)
    custody_records.count_hand_over(state, b"n" * 20, MANY, is_done=True)
    assert custody_records.find_terms(state, b"t" * 32) == terms
    assert custody_records.find_custody(state, b"t" * 32, 9_999) == largest_custody()._replace(deadline_ms=MS)
    size = max(len(value or b"") for key, value in state.changes.items() if key[0] == Table.CUSTODY)
    assert size > custody_records.CUSTODY_LIMIT_BYTES // 2
    check_sizes(state)
    # Half of a bound at least is used by the largest, so that the bounds mean something.
    assert len(encode(records._task_value(largest_task()))) > records.TASK_LIMIT_BYTES // 4
    window = max(len(value or b"") for key, value in state.changes.items() if key[0] == Table.WINDOW)
    assert window > records.WINDOW_LIMIT_BYTES // 2
    assert records.load_window(state, b"h" * 32, MANY) == largest_window()
    assert records.load_task(state, b"h" * 32) == largest_task()


MOVES: Final = st.lists(
    st.tuples(st.sampled_from(Movement), st.sampled_from(Pool), st.integers(0, 300), st.integers(1, 1 << 100)),
    max_size=60,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(MOVES)
def test_no_sequence_of_movements_makes_a_record_of_an_escrow_larger(
    moves: list[tuple[Movement, Pool, int, int]],
) -> None:
    state, payer = Overlay(EMPTY), b"p" * 20
    credit(state, payer, 1 << 120)
    vault = Vault.create(state, b"e" * 32, payer, lambda _event: None, MANY)
    for movement, pool, name, amount in moves:
        owner = (
            bytes(12) + name.to_bytes(8, "big") if pool in (Pool.HOLD, Pool.BOND, Pool.CUSTODY) else escrow.NOBODY
        )
        held = min(amount, vault.held(pool, owner))
        match movement:
            case Movement.LOCKED:
                vault.lock(pool, payer, amount, Purpose.TOP_UP, owner=owner)
            case Movement.PAID:
                vault.pay(pool, payer, held, Purpose.WINDOW_PAY, Role.COMPUTE, owner=owner, subject=MANY)
            case Movement.REFUNDED:
                vault.refund(pool, payer, held, Purpose.UNSPENT, owner=owner)
            case Movement.BURNED:
                vault.burn(pool, held, Purpose.PROTOCOL_FEE, owner=owner)
            case Movement.HELD:
                target = bytes(12) + random.Random(name).randbytes(8)
                vault.hold(pool, Pool.HOLD, held, Purpose.WINDOW_HOLD, owner=owner, target_owner=target)
    check_sizes(state)
    if moves:
        escrow.check_escrows(state)
        escrow.check_touched_escrows(state)


def test_owners_are_read_a_page_at_a_time() -> None:
    state, payer = Overlay(EMPTY), b"p" * 20
    credit(state, payer, 10_000)
    vault = Vault.create(state, b"e" * 32, payer, lambda _event: None, 1)
    owners = [bytes(12) + name.to_bytes(8, "big") for name in range(2 * OWNERS_PAGE_MAX + 5)]
    for owner in owners:
        vault.lock(Pool.BOND, payer, 3, Purpose.WORKER_BOND, owner=owner)
    assert vault.owners(Pool.BOND, limit=1_000) == tuple(owners[:OWNERS_PAGE_MAX])
    assert vault.owners(Pool.BOND, after=owners[4], limit=2) == tuple(owners[5:7])
    assert vault.owners(Pool.HOLD) == ()
    assert vault.total(Pool.BOND) == 3 * len(owners)
    # A share that no line of the bill explains is noticed.
    below = Overlay(state)
    below.put(escrow._share_key(vault.id, Pool.BOND, owners[0]), encode(4))
    with pytest.raises(AssertionError, match="owners hold"):
        escrow.check_touched_escrows(below)
    with pytest.raises(AssertionError, match="owners hold"):
        escrow.check_escrow(below, vault.id)
