"""Speed trials of machines: when one is due, its record, its check, the rate that counts (market.md R47 to R49).

A trial has a record under the machine's address. The chain begins it, the machine commits to what it did, a later
beacon draws a verifier and links, the machine shows these, and the verifier answers with the results it computes.

Trials by lot come in rounds: one machine cannot answer for several that are tried at the same time (R75).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from billing.errors import PaymentMissing
from billing.escrow import add_earnings
from billing.prices import Role
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
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
    place_of,
    require_node,
    wake_at,
)
from tasks.ledger.reputation import mark_failure
from tasks.trials import SAMPLES_MAX, ShownLink, are_right, link_units, positions_of, shows, width_of

__all__ = [
    "HALVINGS_MAX",
    "TRIALS_PER_BLOCK_MAX",
    "TRIAL_EVENTS",
    "TRIAL_LIMIT_BYTES",
    "TrialPhase",
    "TrialRecord",
    "ask_trial",
    "asks_from_ms",
    "commit_trial",
    "find_round",
    "find_trial",
    "forget_trial",
    "is_unproven",
    "judge_trial",
    "leave_round",
    "measured_node",
    "measured_rate",
    "on_change",
    "rounds_behind",
    "rounds_over",
    "show_trial",
    "step_trials",
    "trials_to_judge",
]

TRIAL_LIMIT_BYTES: Final = 1536
TRIALS_PER_BLOCK_MAX: Final = 8
"""Steps of trials in a block that are due by time, as many by height, and trials that begin in a round."""
CHECKS_MAX: Final = 5
"""Verifiers that are drawn for a trial, one after the other."""
ANSWERS_NEEDED: Final = 2
"""Equal answers of verifiers that decide."""
ROUND_ARCS: Final = 257
"""Parts of the index that a round visits in an order of its own. A prime: no distance is likelier."""
ROUND_LIMIT_BYTES: Final = 64
ROUNDS_LIMIT_BYTES: Final = 16
NEXT_ROUND_LIMIT_BYTES: Final = 16
MISSES_MAX: Final = 4
"""Rounds missed in a row, each of which doubles the pause until a machine may ask for a trial."""
HALVINGS_MAX: Final = 3
"""Rounds since the last one that a machine went through, each of which halves the rate that counts (R81)."""
RENEW_NUMERATOR, RENEW_DENOMINATOR = 5, 6
"""Part of a rate's validity after which a trial begins in any case."""
_SPREAD: Final = 1 << 64
_RIGHT: Final = b"\x01"
"""A verifier's answer for right links. Empty: it gave none in time. Otherwise the digest of its results."""
_TABLE: Final = bytes([Table.TRIAL])
_ROUND: Final = _TABLE
"""Key of the round of trials that is under way."""
_ROUNDS: Final = _TABLE + b"\x00"
"""Key of how many rounds are over."""
_NEXT_ROUND: Final = _TABLE + b"\x01"
"""Key of the time at which a round begins for machines that none has measured."""
_JUDGES: Final = b"\x00"
"""After a verifier's address: the machines whose trials it is to judge."""

TRIAL_BEGUN: Final = EventType(
    REGISTRY_ADDRESS, "TrialBegun(address indexed node, bytes32 seed, uint256 width, uint256 until)"
)
TRIAL_DRAWN: Final = EventType(REGISTRY_ADDRESS, "TrialDrawn(address indexed node, address indexed verifier)")
TRIAL_ENDED: Final = EventType(REGISTRY_ADDRESS, "TrialEnded(address indexed node, uint256 rate, uint256 reason)")
TRIAL_ROUND_ENDED: Final = EventType(REGISTRY_ADDRESS, "TrialRoundEnded(uint256 number)")
TRIAL_EVENTS: Final = (TRIAL_BEGUN, TRIAL_DRAWN, TRIAL_ENDED, TRIAL_ROUND_ENDED)


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
    """Nobody could be drawn, or no verifier answered, or one found the links right and others did not."""
    MISSED = 3
    """The machine did not commit to anything in time."""
    NOT_SHOWN = 4
    """It did not show what it had committed to."""
    WRONG = 5
    """Two verifiers computed the same, and it is not what the machine shows."""
    DOUBTED = 6
    """Verifiers found links wrong, but no two of them the same, and nobody found them right."""


class TrialRecord(NamedTuple):
    """The trial of a machine, and what its last one measured.

    ``height`` is that of the present phase. ``counted_ms`` is the time that counts for ``links``. ``lot`` decides
    which of them are checked, ``shown`` has their states before and after, one behind the other. ``used`` are the
    verifiers drawn, the present one last; ``answers`` are of those before it. ``rate`` was measured at
    ``measured_ms``, 0 for never; ``is_checked`` tells whether a verifier agreed. ``begun_ms`` is when the last
    trial began, ``due_ms`` when the next step is due, 0 for a step that waits for a height.

    ``in_round`` is the number of the round that the trial is one of, 0 for none. ``cap`` was measured at
    ``cap_ms`` in the last round that the machine went through, ``cap_before`` at ``cap_before_ms`` in the one
    before; no other trial gives it more than the better of them. ``last_round`` is the last round that it went
    through, or that was there before it. It failed in ``misses`` rounds since then.
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
    answers: tuple[bytes, ...]
    rate: int
    measured_ms: int
    is_checked: int
    in_round: int
    cap: int
    cap_ms: int
    misses: int
    last_round: int
    cap_before: int
    cap_before_ms: int

    @property
    def shown_links(self) -> tuple[tuple[bytes, bytes], ...]:
        """The states before and after each link that the machine shows."""
        states = [self.shown[at : at + HASH_BYTES] for at in range(0, len(self.shown), HASH_BYTES)]
        return tuple(zip(states[::2], states[1::2], strict=True))

    @property
    def verifier(self) -> bytes:
        """Who is to judge now; nobody while another verifier is still to be drawn."""
        return self.used[-1] if len(self.used) > len(self.answers) else b""


def _idle(address: bytes) -> TrialRecord:
    return TrialRecord(
        address, TrialPhase.IDLE, 0, 0, 0, b"", 0, 0, b"", 0, b"", b"", (), (), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    )  # fmt: skip


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
    head, (phase, *numbers) = items_of(value, list, list)
    seed, root, lot, shown, used, answers = items_of(head, bytes, bytes, bytes, bytes, list, list)
    (
        phase, height, begun, due, width, links, counted, rate, at, checked, *rounds,
    ) = items_of([phase, *numbers], *[int] * 17)  # fmt: skip
    names, said = items_of(used, *[bytes] * len(used)), items_of(answers, *[bytes] * len(answers))
    if not all(len(name) == ADDRESS_BYTES for name in names):
        raise DecodeError("not an address")
    if len(said) > len(names) or not all(len(each) in (0, len(_RIGHT), HASH_BYTES) for each in said):
        raise DecodeError("not answers of verifiers")
    if len(shown) > 2 * HASH_BYTES * SAMPLES_MAX or len(shown) % (2 * HASH_BYTES):
        raise DecodeError("not states of links")
    return TrialRecord(
        address, TrialPhase(phase), height, begun, due, seed, width, links, root, counted, lot, shown,
        tuple(names), tuple(said), rate, at, checked, *rounds,
    )  # fmt: skip


def _encoded(record: TrialRecord) -> bytes:
    texts: list[Value] = [
        record.seed, record.root, record.lot, record.shown, list(record.used), list(record.answers),
    ]  # fmt: skip
    numbers: list[Value] = [
        int(record.phase), record.height, record.begun_ms, record.due_ms, record.width, record.links,
        record.counted_ms, record.rate, record.measured_ms, record.is_checked, *record[-7:],
    ]  # fmt: skip
    return encode([texts, numbers])


def _judge_key(record: TrialRecord) -> bytes:
    """Return the key under which a verifier finds what it is to judge; none in other phases."""
    if record.phase is not TrialPhase.JUDGING or not record.verifier:
        return b""
    return _TABLE + record.verifier + _JUDGES + record.address


def trials_to_judge(state: Reader, verifier: bytes, limit: int) -> list[TrialRecord]:
    """Return up to ``limit`` trials that a machine is to judge now."""
    start, stop = (_TABLE + verifier + bytes([_JUDGES[0] + more]) for more in (0, 1))
    found = (find_trial(state, key[-ADDRESS_BYTES:]) for key, _ in state.scan(start, stop, limit))
    return [record for record in found if record is not None]


def _save(state: Overlay, before: TrialRecord, after: TrialRecord) -> None:
    subject = node_subject(after.address)
    if before.due_ms != after.due_ms:
        if before.due_ms:
            cancel(state, Due(before.due_ms, subject, TRIAL_SLOT))
        if after.due_ms:
            schedule(state, Due(after.due_ms, subject, TRIAL_SLOT))
    was, now = _judge_key(before), _judge_key(after)
    if was and was != now:
        state.delete(was)
    if now and now != was:
        state.put(now, b"\x01")
    state.put(_TABLE + after.address, _encoded(after))


def forget_trial(state: Overlay, address: bytes) -> None:
    """Forget the trial of a machine that has retired."""
    record = find_trial(state, address)
    if record is None:
        return
    if record.due_ms:
        cancel(state, Due(record.due_ms, node_subject(address), TRIAL_SLOT))
    if record.phase is TrialPhase.DRAWING:
        cancel(state, Due(record.height, node_subject(address), TRIAL_DRAW_SLOT))
    if key := _judge_key(record):
        state.delete(key)
    state.delete(_TABLE + address)


# The rate that counts


def measured_rate(state: Reader, node: NodeRecord, now_ms: int, parameters: TaskParameters) -> int | None:
    """Return the rate of a machine that counts now; None where there is none, and it is matched with nothing.

    It is what its last trial measured, and at most what the machine says of itself and what the better of the
    last two rounds that it went through measured. Each round since then halves it. Of a machine that none has
    measured an eighth counts: it was tried alone, and so may others of its device have been. A machine that says
    nothing has none: narrow links would flatter it.
    """
    if not parameters.trial_ms:
        return node.profile.rate
    record = find_trial(state, node.address)
    if record is None or not record.rate or now_ms - record.measured_ms > parameters.trial_valid_ms:
        return None
    rate = min(record.rate, node.profile.rate)
    caps = ((record.cap, record.cap_ms), (record.cap_before, record.cap_before_ms))
    valid = [cap for cap, at_ms in caps if cap and now_ms - at_ms <= parameters.trial_valid_ms]
    behind = HALVINGS_MAX if is_unproven(record, parameters) else rounds_behind(state, record)
    return min(rate, max(valid, default=rate)) >> min(behind, HALVINGS_MAX) or None


def is_unproven(record: TrialRecord, parameters: TaskParameters) -> bool:
    """Tell whether no round has measured a machine, where that counts (R81)."""
    return parameters.trial_first_ms > 0 and not record.cap_ms


def rounds_over(state: Reader) -> int:
    """Return how many rounds are over."""
    data = state.get(_ROUNDS)
    if data is None:
        return 0
    return int(
        read_record(data, lambda value: items_of(value, int)[0], what="rounds", limit_bytes=ROUNDS_LIMIT_BYTES)
    )


def _rounds_begun(state: Reader) -> int:
    return rounds_over(state) + (find_round(state) is not None)


def rounds_behind(state: Reader, record: TrialRecord) -> int:
    """Return how many rounds are over since the last one that a machine went through.

    Those do not count that came while it was in one.
    """
    is_within = record.in_round and record.phase is not TrialPhase.IDLE
    return max(0, (record.in_round - 1 if is_within else rounds_over(state)) - record.last_round)


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
           parameters: TaskParameters, *, in_round: int = 0) -> None:  # fmt: skip
    before = find_trial(state, node.address) or _idle(node.address)
    seed = digest(b"trial", block.beacon + node.address)
    width = width_of(node.profile.rate, parameters.trial_ms)
    until_ms = block.steady_ms + parameters.trial_ms + parameters.trial_step_ms
    record = before._replace(
        phase=TrialPhase.RUNNING, height=block.height, begun_ms=block.steady_ms, due_ms=until_ms, seed=seed,
        width=width, links=0, root=b"", counted_ms=0, lot=b"", shown=b"", used=(), answers=(),
        in_round=in_round,
    )  # fmt: skip
    _save(state, before, record)
    emit(TRIAL_BEGUN(node.address, seed, width, until_ms))


def on_change(
    state: Overlay, before: NodeRecord | None, node: NodeRecord, now_ms: int, parameters: TaskParameters
) -> None:
    """Have a trial begin at the end of the block, if a machine is new or is not what it was.

    A price, a version or an endpoint is no such change; nor is a lower rate.
    """
    if not parameters.trial_ms:
        return
    if not node.profile.roles & NodeRole.COMPUTE:
        leave_round(state, node.address)
        return
    record = find_trial(state, node.address)
    if record is not None and (record.phase is not TrialPhase.IDLE or not _is_other(before, node)):
        return
    record = record or _idle(node.address)._replace(last_round=_rounds_begun(state))  # those were before it
    _save(state, record, record._replace(due_ms=max(now_ms, _next_ms(record, parameters))))


def leave_round(state: Overlay, address: bytes) -> None:
    """Note that a machine goes off the market while a round is under way: it has missed that round (R72).

    Its trial stays as it is; without one it has no rate from now on, whether or not its turn has come.
    """
    record = find_trial(state, address)
    if record is None or record.phase is not TrialPhase.IDLE or find_round(state) is None:
        return
    _save(state, record, record._replace(rate=0, misses=min(record.misses + 1, MISSES_MAX)))


def _is_other(before: NodeRecord | None, node: NodeRecord) -> bool:
    if before is None:
        return True
    old, new = before.profile, node.profile
    if old.roles & NodeRole.ONLY_CONTAINERS:  # what it offers changes with what others leave it
        return not new.roles & NodeRole.ONLY_CONTAINERS or new.rate > old.rate
    same = (old.gpus, old.cores, old.memory_mib, old.pcie_lanes) == (
        new.gpus, new.cores, new.memory_mib, new.pcie_lanes,
    )  # fmt: skip
    return not same or new.rate > old.rate


def _next_ms(record: TrialRecord, parameters: TaskParameters) -> int:
    pause_ms = parameters.trial_pause_ms << min(record.misses, MISSES_MAX)
    return record.begun_ms + pause_ms if record.begun_ms else 0


def asks_from_ms(record: TrialRecord | None, parameters: TaskParameters) -> int:
    """Return from when on a machine may ask for a trial."""
    return 0 if record is None else _next_ms(record, parameters)


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


def _next_round_ms(state: Reader) -> int:
    """Return when a round begins for machines that none has measured, 0: none does."""
    data = state.get(_NEXT_ROUND)
    if data is None:
        return 0
    return int(
        read_record(
            data, lambda value: items_of(value, int)[0], what="the next round", limit_bytes=NEXT_ROUND_LIMIT_BYTES
        )
    )


class _Round(NamedTuple):
    """A round of trials under way: the ``arc`` of the index that is next, and from which ``place`` in it on."""

    seed: bytes
    arc: int
    place: int


def find_round(state: Reader) -> _Round | None:
    """Return the round of trials that is under way, or None. Raises RecordDamaged."""
    data = state.get(_ROUND)
    if data is None:
        return None
    return read_record(data, _round, what="the round of speed trials", limit_bytes=ROUND_LIMIT_BYTES)


def _round(value: Any) -> _Round:
    seed, arc, place = items_of(value, bytes, int, int)
    if len(seed) != HASH_BYTES or arc >= ROUND_ARCS or place >= _SPREAD:
        raise DecodeError("not a round of trials")
    return _Round(seed, arc, place)


_ARC_ENDS: Final = tuple(_SPREAD * at // ROUND_ARCS for at in range(ROUND_ARCS + 1))
_ARCS: Final = tuple(pairwise(_ARC_ENDS))


def _arc_at(seed: bytes, at: int) -> tuple[int, int]:
    """Return the part of the index that comes in its turn: any two arcs are near or far by the seed alone."""
    first, step = int.from_bytes(seed[:8], "big") % ROUND_ARCS, int.from_bytes(seed[8:16], "big")
    return _ARCS[(first + at * (1 + step % (ROUND_ARCS - 1))) % ROUND_ARCS]


def _go_round(
    state: Overlay, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> list[NodeRecord]:
    """Return the machines whose turn comes in this block.

    In one of ``trial_blocks`` blocks a round begins, and in time for machines that none has measured.
    """
    current = find_round(state)
    if current is None:
        drawn = int.from_bytes(digest(b"trial-lot", block.beacon)[:8], "big")
        wanted_ms = _next_round_ms(state)
        if drawn >= _SPREAD // parameters.trial_blocks and not 0 < wanted_ms <= block.steady_ms:
            return []
        if wanted_ms:
            state.delete(_NEXT_ROUND)
        current = _Round(digest(b"trial-round", block.beacon), 0, 0)
    found: list[NodeRecord] = []
    for at in range(current.arc, ROUND_ARCS):
        start, end = _arc_at(current.seed, at)
        if at == current.arc:
            start = max(start, current.place)
        room = TRIALS_PER_BLOCK_MAX - len(found)
        more = candidates_within(state, NodeRole.COMPUTE, start.to_bytes(8, "big"), end - start, room)
        found += more
        if len(more) == room:  # the next block goes on after the last of them
            place = place_of(more[-1].address) + 1
            state.put(_ROUND, encode([current.seed, at, min(place, _SPREAD - 1)]))
            return found
    if state.get(_ROUND) is not None:
        state.delete(_ROUND)
    number = rounds_over(state) + 1
    state.put(_ROUNDS, encode([number]))
    emit(TRIAL_ROUND_ENDED(number))
    return found


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
    number = rounds_over(state) + 1
    for node in _go_round(state, block, emit, parameters):  # no pause counts: nobody is passed over for one
        record = find_trial(state, node.address) or _idle(node.address)
        if record.phase is TrialPhase.IDLE and is_available(node, block.steady_ms, parameters):
            _begin(state, node, block, emit, parameters, in_round=number)
        elif record.phase is TrialPhase.RUNNING:  # else it would ask for one before its turn
            _save(state, record, record._replace(in_round=number))


def _on_due(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    record, node = find_trial(state, address), load_node(state, address)
    assert record is not None and node is not None, "a trial that is due is of a machine"
    match record.phase:
        case TrialPhase.IDLE if find_round(state) is not None:  # a trial of its own would be a way round it (R72)
            _save(state, record, record._replace(due_ms=block.steady_ms + parameters.trial_step_ms))
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
            silent = (b"",) if record.verifier else ()
            _draw_verifier(state, record._replace(answers=record.answers + silent), block, emit, parameters)
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
        _end_undecided(state, record, block, emit, parameters)
        return
    drawn = min(pool, key=lambda other: digest(b"trial-seat", seed + other.address))
    phase = TrialPhase.SHOWING if not record.shown else TrialPhase.JUDGING
    after = record._replace(
        phase=phase, height=block.height, due_ms=block.steady_ms + parameters.trial_step_ms,
        used=(*record.used, drawn.address),
    )  # fmt: skip
    _save(state, stored, after)
    emit(TRIAL_DRAWN(record.address, drawn.address))


def _end_undecided(
    state: Overlay, record: TrialRecord, block: BlockContext, emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:  # fmt: skip
    """End a trial that no two equal answers decide, and for which nobody else can be drawn."""
    said = {answer for answer in record.answers if answer}
    ending = TrialEnding.DOUBTED if said and _RIGHT not in said else TrialEnding.UNCHECKED
    if said == {_RIGHT}:
        ending = TrialEnding.CHECKED
        for verifier, answer in zip(record.used, record.answers, strict=True):
            if answer:
                _pay(state, verifier, parameters)
    _end(state, record, ending, block, emit, parameters)


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
    state: Overlay, sender: bytes, machine: bytes, digests: Sequence[bytes], block: BlockContext,
    emit: Callable[[Event], None], parameters: TaskParameters,
) -> None:  # fmt: skip
    """Take the digests of the results that a verifier computed for the links shown.

    Who did not compute them cannot answer that links are right. Two equal answers decide. Raises WrongPhase,
    NotYours, BadEvidence.
    """
    record = find_trial(state, machine)
    if record is None or record.phase is not TrialPhase.JUDGING:
        raise WrongPhase("no trial of the machine is to be judged")
    if sender != record.verifier:
        raise NotYours("the sender is not the verifier that was drawn")
    links = record.shown_links
    if len(digests) != len(links):
        raise BadEvidence(f"{len(digests)} results for {len(links)} links")
    is_right = are_right(links, digests)
    answer = _RIGHT if is_right else digest(b"trial-word", b"".join(digests))
    stored, record = record, record._replace(answers=(*record.answers, answer))
    by_answer: dict[bytes, list[bytes]] = {}
    for verifier, given in zip(record.used, record.answers, strict=True):
        by_answer.setdefault(given, []).append(verifier)
    by_answer.pop(b"", None)
    agreeing = by_answer.pop(answer)
    if len(agreeing) < ANSWERS_NEEDED:
        # The end of a block draws the next one: a draw reads many machines, of which few are in a block.
        _save(state, stored, record._replace(due_ms=block.steady_ms))
        return
    for verifier in agreeing:
        _pay(state, verifier, parameters)
    for others in by_answer.values():
        for verifier in others:
            _fine(state, verifier, parameters.trial_fine, block, emit, parameters)
    if not is_right:
        _fine(state, machine, parameters.trial_fine, block, emit, parameters)
    _end(state, record, TrialEnding.CHECKED if is_right else TrialEnding.WRONG, block, emit, parameters)


def _pay(state: Overlay, verifier: bytes, parameters: TaskParameters) -> None:
    """Pay a verifier what the machine paid into the check fund for it; one that has left gets nothing."""
    node = load_node(state, verifier)
    if node is None:
        return
    fee = min(parameters.trial_fee, balance_of(state, FUND_ADDRESS))
    debit(state, FUND_ADDRESS, fee)
    credit(state, node.payout, fee)
    add_earnings(state, verifier, Role.VERIFY, fee)


def _fine(
    state: Overlay, address: bytes, fine: int, block: BlockContext, emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:  # fmt: skip
    """Count a failure, and burn a fine of a machine's bond: bounded in a day, never below the least bond (R9)."""
    if load_node(state, address) is None:  # a verifier that has left since it answered
        return
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
        answers=(), rate=rate, measured_ms=block.steady_ms, is_checked=int(ending is TrialEnding.CHECKED),
    )  # fmt: skip
    if record.in_round and rate:
        after = after._replace(
            cap=rate, cap_ms=block.steady_ms, misses=0, last_round=_rounds_begun(state), cap_before=record.cap,
            cap_before_ms=record.cap_ms,
        )  # fmt: skip
    elif record.in_round:
        after = after._replace(misses=min(record.misses + 1, MISSES_MAX))
    _save(state, stored, after)
    if rate and is_unproven(after, parameters) and not _next_round_ms(state):
        state.put(_NEXT_ROUND, encode([block.steady_ms + parameters.trial_first_ms]))
    emit(TRIAL_ENDED(record.address, rate, int(ending)))
    if rate:
        wake_at(state, require_node(state, record.address), block.steady_ms)
