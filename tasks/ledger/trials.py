"""Speed trials of machines: when one is due, its record, its check, the rate that counts (market.md R47 to R49).

A trial has a record under the machine's address. The chain begins it, the machine commits to what it did, a later
beacon draws a verifier and links, the machine shows these, and the verifier says whether they are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from billing.errors import PaymentMissing
from billing.escrow import add_earnings
from billing.prices import Role
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.receipts import Event, EventType
from state.transition.rules import BlockContext
from state.view import Overlay, Reader, Table
from state.view.accounts import balance_of, credit, debit
from state.view.records import items_of, read_record
from tasks.errors import BadEvidence, NothingDue, NotYours, TrialsOff, WrongPhase
from tasks.ledger.capacity import bounded_fine
from tasks.ledger.check_fund import FUND_ADDRESS
from tasks.ledger.deadlines import TRIAL_DRAW_SLOT, TRIAL_SLOT, Due, cancel, schedule, trials_due
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registry import (
    REGISTRY_ADDRESS,
    NodeRecord,
    NodeRole,
    candidates,
    candidates_within,
    fine_node,
    is_available,
    load_node,
    node_subject,
    require_node,
    wake_at,
)
from tasks.ledger.reputation import mark_failure
from tasks.trials import SAMPLES_MAX, ShownLink, link_units, positions_of, shows, width_of

__all__ = [
    "TRIALS_PER_BLOCK_MAX", "TRIAL_EVENTS", "TRIAL_LIMIT_BYTES", "TrialPhase", "TrialRecord", "ask_trial",
    "commit_trial", "find_trial", "forget_trial", "judge_trial", "measured_node", "measured_rate", "on_change",
    "show_trial", "step_trials",
]  # fmt: skip

TRIAL_LIMIT_BYTES: Final = 1536
TRIALS_PER_BLOCK_MAX: Final = 8
"""Steps of trials in a block that are due by time, as many by height, and trials that begin by lot."""
CHECKS_MAX: Final = 3
"""Verifiers that are drawn for a trial, one after the other."""
RENEW_NUMERATOR, RENEW_DENOMINATOR = 5, 6
"""Part of a rate's validity after which a trial begins in any case."""
_SPREAD: Final = 1 << 64
_TABLE: Final = bytes([Table.TRIAL])

TRIAL_BEGUN: Final = EventType(
    REGISTRY_ADDRESS, "TrialBegun(address indexed node, bytes32 seed, uint256 width, uint256 until)"
)
TRIAL_DRAWN: Final = EventType(REGISTRY_ADDRESS, "TrialDrawn(address indexed node, address indexed verifier)")
TRIAL_ENDED: Final = EventType(REGISTRY_ADDRESS, "TrialEnded(address indexed node, uint256 rate, uint256 reason)")
TRIAL_EVENTS: Final = (TRIAL_BEGUN, TRIAL_DRAWN, TRIAL_ENDED)


class TrialPhase(IntEnum):
    """Where the trial of a machine stands."""

    IDLE = 0
    RUNNING = 1
    """The machine computes."""
    DRAWING = 2
    """It has committed to a chain; a later beacon draws who checks which links."""
    SHOWING = 3
    """The machine shows the drawn links."""
    JUDGING = 4
    """The verifier runs them again."""


class TrialEnding(IntEnum):
    """How a trial ended."""

    CHECKED = 1
    UNCHECKED = 2
    """Nobody could be drawn, or nobody who was drawn said anything."""
    MISSED = 3
    """The machine did not commit to anything in time."""
    NOT_SHOWN = 4
    """It did not show what it had committed to."""
    WRONG = 5
    """Two verifiers found a link that is wrong."""
    DOUBTED = 6
    """One verifier did, and nobody else said anything."""


class TrialRecord(NamedTuple):
    """The trial of a machine, and what its last one measured.

    ``height`` is that of the present phase. ``counted_ms`` is the time that counts for ``links``. ``lot`` decides
    which of them are checked, ``shown`` has their states before and after, one behind the other. ``used`` are the
    verifiers drawn, the present one last; ``against`` is the one that found a wrong link. ``rate`` was measured at
    ``measured_ms``, 0 for never; ``is_checked`` tells whether a verifier agreed. ``begun_ms`` is when the last
    trial began, ``due_ms`` when the next step is due, 0 for a step that waits for a height.
    """

    address: bytes
    phase: TrialPhase
    height: int
    begun_ms: int
    due_ms: int
    seed: bytes
    width: int
    links: int
    root: bytes
    counted_ms: int
    lot: bytes
    shown: bytes
    used: tuple[bytes, ...]
    against: bytes
    rate: int
    measured_ms: int
    is_checked: int

    @property
    def verifier(self) -> bytes:
        """Who is to judge now."""
        return self.used[-1] if self.used else b""


def _idle(address: bytes) -> TrialRecord:
    return TrialRecord(address, TrialPhase.IDLE, 0, 0, 0, b"", 0, 0, b"", 0, b"", b"", (), b"", 0, 0, 0)


def find_trial(state: Reader, address: bytes) -> TrialRecord | None:
    """Return the trial of a machine, or None. Raises RecordDamaged."""
    data = state.get(_TABLE + address)
    if data is None:
        return None
    return read_record(
        data, lambda value: _trial(address, value), what=f"the trial of 0x{address.hex()}",
        limit_bytes=TRIAL_LIMIT_BYTES,
    )  # fmt: skip


def _trial(address: bytes, value: Any) -> TrialRecord:
    (
        phase,
        height,
        begun,
        due,
        seed,
        width,
        links,
        root,
        counted,
        lot,
        shown,
        used,
        against,
        rate,
        at,
        checked,
    ) = items_of(value, int, int, int, int, bytes, int, int, bytes, int, bytes, bytes, list, bytes, int, int, int)
    names = items_of(used, *[bytes] * len(used))
    if not all(len(name) == ADDRESS_BYTES for name in names) or len(against) not in (0, ADDRESS_BYTES):
        raise DecodeError("not an address")
    if len(shown) > 2 * HASH_BYTES * SAMPLES_MAX or len(shown) % (2 * HASH_BYTES):
        raise DecodeError("not states of links")
    return TrialRecord(
        address, TrialPhase(phase), height, begun, due, seed, width, links, root, counted, lot, shown,
        tuple(names), against, rate, at, checked,
    )  # fmt: skip


def _save(state: Overlay, before: TrialRecord, after: TrialRecord) -> None:
    subject = node_subject(after.address)
    if before.due_ms != after.due_ms:
        if before.due_ms:
            cancel(state, Due(before.due_ms, subject, TRIAL_SLOT))
        if after.due_ms:
            schedule(state, Due(after.due_ms, subject, TRIAL_SLOT))
    state.put(_TABLE + after.address, encode([int(after.phase), *after[2:12], list(after.used), *after[13:]]))


def forget_trial(state: Overlay, address: bytes) -> None:
    """Forget the trial of a machine that has retired."""
    record = find_trial(state, address)
    if record is None:
        return
    if record.due_ms:
        cancel(state, Due(record.due_ms, node_subject(address), TRIAL_SLOT))
    if record.phase is TrialPhase.DRAWING:
        cancel(state, Due(record.height, node_subject(address), TRIAL_DRAW_SLOT))
    state.delete(_TABLE + address)


# The rate that counts


def measured_rate(state: Reader, node: NodeRecord, now_ms: int, parameters: TaskParameters) -> int | None:
    """Return the rate of a machine that counts now; None where there is none, and it is matched with nothing.

    It is what its last trial measured, and at most what the machine says of itself.
    """
    if not parameters.trial_ms:
        return node.profile.rate
    record = find_trial(state, node.address)
    if record is None or not record.rate or now_ms - record.measured_ms > parameters.trial_valid_ms:
        return None
    return min(record.rate, node.profile.rate) if node.profile.rate else record.rate


def measured_node(
    state: Reader, node: NodeRecord, now_ms: int, parameters: TaskParameters
) -> NodeRecord | None:  # fmt: skip
    """Return a machine with the rate that counts in the place of what it says; None where there is none."""
    rate = measured_rate(state, node, now_ms, parameters)
    if rate is None:
        return None
    return node if rate == node.profile.rate else node._replace(profile=node.profile._replace(rate=rate))


# When a trial begins


def _begin(state: Overlay, node: NodeRecord, block: BlockContext, emit: Callable[[Event], None],
           parameters: TaskParameters) -> None:  # fmt: skip
    before = find_trial(state, node.address) or _idle(node.address)
    seed = digest(b"trial", block.beacon + node.address)
    width = width_of(node.profile.rate, parameters.trial_ms)
    until_ms = block.steady_ms + parameters.trial_ms + parameters.trial_step_ms
    record = before._replace(
        phase=TrialPhase.RUNNING, height=block.height, begun_ms=block.steady_ms, due_ms=until_ms, seed=seed,
        width=width, links=0, root=b"", counted_ms=0, lot=b"", shown=b"", used=(), against=b"",
    )  # fmt: skip
    _save(state, before, record)
    emit(TRIAL_BEGUN(node.address, seed, width, until_ms))


def on_change(
    state: Overlay, before: NodeRecord | None, node: NodeRecord, now_ms: int, parameters: TaskParameters
) -> None:
    """Have a trial begin at the end of the block, if a machine is new or is not what it was.

    A price, a version or an endpoint is no such change; nor is a lower rate.
    """
    if not parameters.trial_ms or not node.profile.roles & NodeRole.COMPUTE:
        return
    record = find_trial(state, node.address)
    if record is not None and (record.phase is not TrialPhase.IDLE or not _is_other(before, node)):
        return
    record = record or _idle(node.address)
    _save(state, record, record._replace(due_ms=max(now_ms, _next_ms(record, parameters))))


def _is_other(before: NodeRecord | None, node: NodeRecord) -> bool:
    if before is None:
        return True
    old, new = before.profile, node.profile
    same = (old.gpus, old.cores, old.memory_mib, old.pcie_lanes) == (
        new.gpus, new.cores, new.memory_mib, new.pcie_lanes,
    )  # fmt: skip
    return not same or new.rate > old.rate


def _next_ms(record: TrialRecord, parameters: TaskParameters) -> int:
    return record.begun_ms + parameters.trial_pause_ms if record.begun_ms else 0


def ask_trial(state: Overlay, sender: bytes, block: BlockContext, parameters: TaskParameters) -> None:
    """Have a trial of the sender's machine begin: once in each pause. Raises TrialsOff, NodeUnknown, WrongPhase,
    NothingDue.
    """
    if not parameters.trial_ms:
        raise TrialsOff("this chain has no speed trials")
    node = require_node(state, sender)
    record = find_trial(state, sender) or _idle(sender)
    if record.phase is not TrialPhase.IDLE or not node.profile.roles & NodeRole.COMPUTE:
        raise WrongPhase(record.phase.name.lower())
    if _next_ms(record, parameters) > block.steady_ms:
        raise NothingDue("the pause after the last trial is not over")
    _save(state, record, record._replace(due_ms=block.steady_ms))


def _by_lot(state: Reader, block: BlockContext, parameters: TaskParameters) -> list[NodeRecord]:
    """Return the machines whose place in the index the beacon hits: each in one of ``trial_blocks`` blocks.

    That does not depend on how many machines there are, and nobody knows before the block.
    """
    seed = digest(b"trial-lot", block.beacon)
    return candidates_within(
        state, NodeRole.COMPUTE, seed, _SPREAD // parameters.trial_blocks, TRIALS_PER_BLOCK_MAX
    )


def step_trials(
    state: Overlay, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Do what is due of trials at the end of a block: a bounded number of steps, the earliest first."""
    if not parameters.trial_ms:
        return
    for due in trials_due(state, TRIAL_DRAW_SLOT, block.height, TRIALS_PER_BLOCK_MAX):
        cancel(state, due)
        _draw(state, due.subject[-ADDRESS_BYTES:], block, emit, parameters)
    for due in trials_due(state, TRIAL_SLOT, block.steady_ms, TRIALS_PER_BLOCK_MAX):
        _on_due(state, due.subject[-ADDRESS_BYTES:], block, emit, parameters)
    for node in _by_lot(state, block, parameters):
        record = find_trial(state, node.address) or _idle(node.address)
        may_begin = record.phase is TrialPhase.IDLE and _next_ms(record, parameters) <= block.steady_ms
        if may_begin and is_available(node, block.steady_ms, parameters):
            _begin(state, node, block, emit, parameters)


def _on_due(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    record, node = find_trial(state, address), load_node(state, address)
    assert record is not None and node is not None, "a trial that is due is of a machine"
    match record.phase:
        case TrialPhase.IDLE if is_available(node, block.steady_ms, parameters):
            _begin(state, node, block, emit, parameters)
        case TrialPhase.IDLE:  # it is off, and asks when it is back
            _save(state, record, record._replace(due_ms=0))
        case TrialPhase.RUNNING:
            _end(state, record, TrialEnding.MISSED, block, emit, parameters)
        case TrialPhase.SHOWING:
            _fine(state, address, parameters.trial_fine, block, emit, parameters)
            _end(state, record, TrialEnding.NOT_SHOWN, block, emit, parameters)
        case TrialPhase.JUDGING:
            _draw_verifier(state, record, block, emit, parameters)
        case TrialPhase.DRAWING:
            raise AssertionError("a draw waits for a height")


# Its course


def commit_trial(
    state: Overlay, sender: bytes, links: int, root: bytes, amount: int, block: BlockContext,
    parameters: TaskParameters,
) -> None:  # fmt: skip
    """Take what a machine has computed in its trial, and the fees of its check.

    The time that counts is from the block that began it to this one, less ``trial_slack_ms`` for blocks and lines,
    and ``trial_ms`` at least. Raises NotYours, WrongPhase, PaymentMissing, InsufficientBalance.
    """
    record = find_trial(state, sender)
    if record is None or record.phase is not TrialPhase.RUNNING:
        raise WrongPhase("no trial runs")
    if amount != 2 * parameters.trial_fee:
        raise PaymentMissing(due=2 * parameters.trial_fee, got=amount)
    debit(state, sender, amount)
    credit(state, FUND_ADDRESS, amount)
    counted_ms = max(parameters.trial_ms, block.steady_ms - record.begun_ms - parameters.trial_slack_ms)
    height = block.height + parameters.draw_blocks
    _save(
        state, record,
        record._replace(
            phase=TrialPhase.DRAWING, height=height, due_ms=0, links=links, root=root, counted_ms=counted_ms
        ),
    )  # fmt: skip
    schedule(state, Due(height, node_subject(sender), TRIAL_DRAW_SLOT))


def _draw(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    record = find_trial(state, address)
    assert record is not None and record.phase is TrialPhase.DRAWING, "the draw of a trial is of a commitment"
    lot = digest(b"trial-draw", block.beacon + address)
    _draw_verifier(state, record._replace(lot=lot), block, emit, parameters)


def _draw_verifier(
    state: Overlay, record: TrialRecord, block: BlockContext, emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:  # fmt: skip
    """Draw the next verifier of a trial; without one it ends as far as it was checked."""
    stored = find_trial(state, record.address)
    node = require_node(state, record.address)
    assert stored is not None
    barred = {*node.parties, *(party for used in record.used for party in _parties(state, used))}
    seed = digest(b"trial-verifier", block.beacon + record.address)
    pool: list[NodeRecord] = []
    if len(record.used) < CHECKS_MAX:
        pool = [
            other
            for other in candidates(state, NodeRole.VERIFY, seed, parameters.candidates_max)
            if is_available(other, block.steady_ms, parameters) and barred.isdisjoint(other.parties)
        ]
    if not pool:
        ending = TrialEnding.DOUBTED if record.against else TrialEnding.UNCHECKED
        if record.phase is TrialPhase.DRAWING:
            ending = TrialEnding.UNCHECKED
        _end(state, record, ending, block, emit, parameters)
        return
    drawn = min(pool, key=lambda other: digest(b"trial-seat", seed + other.address))
    phase = TrialPhase.SHOWING if not record.shown else TrialPhase.JUDGING
    after = record._replace(
        phase=phase, height=block.height, due_ms=block.steady_ms + parameters.trial_step_ms,
        used=(*record.used, drawn.address),
    )  # fmt: skip
    _save(state, stored, after)
    emit(TRIAL_DRAWN(record.address, drawn.address))


def _parties(state: Reader, address: bytes) -> Sequence[bytes]:
    node = load_node(state, address)
    return (address,) if node is None else node.parties


def show_trial(
    state: Overlay, sender: bytes, links: Sequence[ShownLink], block: BlockContext, parameters: TaskParameters
) -> None:
    """Take the links that were drawn of the sender's trial. Raises WrongPhase, BadEvidence."""
    record = find_trial(state, sender)
    if record is None or record.phase is not TrialPhase.SHOWING:
        raise WrongPhase("no links are asked for")
    wanted = positions_of(record.lot, record.links, parameters.trial_samples)
    if tuple(link.position for link in links) != wanted:
        raise BadEvidence(f"the links {list(wanted)} are asked for")
    if not all(shows(link, record.root, record.links, record.seed) for link in links):
        raise BadEvidence("a link does not stand under the root of the chain")
    shown = b"".join(link.before + link.after for link in links)
    due_ms = block.steady_ms + parameters.trial_step_ms
    _save(
        state, record, record._replace(phase=TrialPhase.JUDGING, height=block.height, due_ms=due_ms, shown=shown)
    )


def judge_trial(
    state: Overlay, sender: bytes, machine: bytes, is_right: bool, block: BlockContext,
    emit: Callable[[Event], None], parameters: TaskParameters,
) -> None:  # fmt: skip
    """Take the verifier's word on the links of a trial; the second one decides where the first found one wrong.

    Raises WrongPhase, NotYours.
    """
    record = find_trial(state, machine)
    if record is None or record.phase is not TrialPhase.JUDGING:
        raise WrongPhase("no trial of the machine is to be judged")
    if sender != record.verifier:
        raise NotYours("the sender is not the verifier that was drawn")
    _pay(state, sender, parameters)
    if is_right:
        if record.against:
            _fine(state, record.against, parameters.trial_fine, block, emit, parameters)
        _end(state, record, TrialEnding.CHECKED, block, emit, parameters)
    elif record.against:
        _fine(state, machine, parameters.trial_fine, block, emit, parameters)
        _end(state, record, TrialEnding.WRONG, block, emit, parameters)
    else:
        _draw_verifier(state, record._replace(against=sender), block, emit, parameters)


def _pay(state: Overlay, verifier: bytes, parameters: TaskParameters) -> None:
    """Pay a verifier what the machine paid into the check fund for it."""
    node = require_node(state, verifier)
    fee = min(parameters.trial_fee, balance_of(state, FUND_ADDRESS))
    debit(state, FUND_ADDRESS, fee)
    credit(state, node.payout, fee)
    add_earnings(state, verifier, Role.VERIFY, fee)


def _fine(
    state: Overlay, address: bytes, fine: int, block: BlockContext, emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:  # fmt: skip
    """Count a failure, and burn a fine of a machine's bond: bounded in a day, never below the least bond (R9)."""
    mark_failure(state, address, block.steady_ms, emit, parameters)
    taken = bounded_fine(state, address, fine, block.steady_ms, parameters)
    fine_node(state, address, taken, emit, block.height, parameters)


def _end(
    state: Overlay, record: TrialRecord, ending: TrialEnding, block: BlockContext, emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:  # fmt: skip
    """End a trial with the rate that it measured, or with none."""
    stored = find_trial(state, record.address)
    assert stored is not None
    rate = 0
    if ending in (TrialEnding.CHECKED, TrialEnding.UNCHECKED):
        rate = link_units(record.width) * record.links * 1000 // record.counted_ms
    renew_ms = parameters.trial_valid_ms * RENEW_NUMERATOR // RENEW_DENOMINATOR
    after = record._replace(
        phase=TrialPhase.IDLE, height=block.height, due_ms=block.steady_ms + renew_ms, lot=b"", shown=b"", used=(),
        against=b"", rate=rate, measured_ms=block.steady_ms, is_checked=int(ending is TrialEnding.CHECKED),
    )  # fmt: skip
    _save(state, stored, after)
    emit(TRIAL_ENDED(record.address, rate, int(ending)))
    if rate:
        wake_at(state, require_node(state, record.address), block.steady_ms)
