"""Records of disputes in the state: the docket of a window, its games with their moves, and sealed challenges.

See market.md 7.8. Each move has a key of its own until its game is over; then moves are released over blocks.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES, digest
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.dispute.clock import Clock
from tasks.dispute.game import MOVES_MAX, Side
from tasks.dispute.records import GAME_LIMIT_BYTES
from tasks.errors import ChallengeUnknown, DisputeUnknown
from tasks.ledger.records import Opened

__all__ = [
    "DISPUTE_LIMIT_BYTES",
    "DOCKET_LIMIT_BYTES",
    "MOVE_GAS",
    "NO_DOCKET",
    "OUTSIDERS_AT_ONCE_MAX",
    "RUNNING_MAX",
    "SEALS_MAX",
    "SEAL_LIMIT_BYTES",
    "SHOW_GAS",
    "SILENT_MAX",
    "Challenger",
    "DisputeEnding",
    "DisputePhase",
    "DisputeRecord",
    "Docket",
    "Result",
    "SealedChallenge",
    "add_move",
    "challenge_seal",
    "forget_disputes",
    "forget_seal",
    "has_disputes",
    "has_proof",
    "load_dispute",
    "load_docket",
    "load_moves",
    "load_seal",
    "release_moves",
    "result_of",
    "save_dispute",
    "save_docket",
    "save_seal",
    "schedule_release",
]

MOVE_GAS: Final = 16_000_000
"""Weight of a move: its bytes, what judging the largest takes, and the program of a job that is not in memory."""
SHOW_GAS: Final = 500_000
"""Weight of a transaction that shows leaves which do not fit."""
OUTSIDERS_AT_ONCE_MAX: Final = 4
"""Challenges of outsiders that are called or played on a window at a time."""
SEALS_MAX: Final = 16
"""Sealed challenges of one proof of a window. Together they cost six times the bond of its worker."""
RUNNING_MAX: Final = 32
"""Games of a window at a time: of 8 verifiers, 15 jurors and 4 outsiders at most, and one broken chain."""
SILENT_MAX: Final = 39
"""Games of a window in which a side was silent: of 8 verifiers, 15 jurors and all outsiders."""
RELEASED_MOVES_MAX: Final = 128
"""Moves of ended games that a block deletes."""
FORGOTTEN_MAX: Final = 16
"""Records of disputes of an ended task that one deadline deletes; the next block goes on."""
DISPUTE_LIMIT_BYTES: Final = GAME_LIMIT_BYTES + 1024
DOCKET_LIMIT_BYTES: Final = 640
SEAL_LIMIT_BYTES: Final = 128
_TABLE: Final = bytes([Table.DISPUTE])
_RELEASE: Final = bytes([Table.DISPUTE_RELEASE])
_ABOVE: Final = b"\xff" * 11
"""Above what a key has after its task: window, part, number and move."""
_GAME_PART, _SEAL_PART, _MOVE_PART = b"\x01", b"\x02", b"\x03"


class DisputePhase(IntEnum):
    """Where a dispute stands."""

    OPENING = 1
    """An outsider challenges a segment that was not sampled: its worker opens the leaf first."""
    RUNNING = 2
    SUSPENDED = 3
    """A side missed its clock, and may resume."""
    OVER = 4
    SILENT = 5
    """The accused or a drawn verifier is silent: drawn machines run the segment again."""


class Challenger(IntEnum):
    """Who says that a segment is wrong."""

    VERIFIER = 1
    """A drawn verifier or juror, by its revealed finding."""
    OUTSIDER = 2
    """Anybody, by a sealed challenge with a bond."""
    WITNESS = 3
    """Anybody, by leaves that do not fit: that is judged at once."""


class DisputeEnding(IntEnum):
    """How a dispute ended; the first six are those of the game."""

    NONE = 0
    ELEMENT_WRONG = 1
    COMMITMENT_BROKEN = 2
    ACCUSED_INCONSISTENT = 3
    ELEMENT_RIGHT = 4
    CHALLENGER_INCONSISTENT = 5
    MOVES_EXHAUSTED = 6
    ACCUSED_SILENT = 7
    """The accused did not answer, and drawn machines did not decide."""
    CHALLENGER_SILENT = 8
    DROPPED = 9
    """The window ended otherwise."""
    SAME_ROOT = 10
    """The accused opened what the outsider had found."""
    RERUN_WRONG = 11
    """The accused did not answer, and two drawn machines found what the challenger had found."""
    RERUN_REFUTED = 12
    """The accused did not answer, but two drawn machines found something else than the challenger."""

    @property
    def is_proof(self) -> bool:
        """Whether it shows that the accused is dishonest: honest software never contradicts itself."""
        return self in (
            DisputeEnding.ELEMENT_WRONG, DisputeEnding.COMMITMENT_BROKEN, DisputeEnding.ACCUSED_INCONSISTENT,
        )  # fmt: skip

    @property
    def is_refuted(self) -> bool:
        """Whether the challenger has lost."""
        return self in (
            DisputeEnding.ELEMENT_RIGHT, DisputeEnding.CHALLENGER_INCONSISTENT, DisputeEnding.MOVES_EXHAUSTED,
            DisputeEnding.CHALLENGER_SILENT, DisputeEnding.SAME_ROOT, DisputeEnding.RERUN_REFUTED,
        )  # fmt: skip


class Result(Protocol):
    """What somebody found of a segment: a finding, an opening, or a dispute."""

    @property
    def work_digest(self) -> bytes:
        """Digest over the steps."""
        ...

    @property
    def state_root_after(self) -> bytes:
        """Root of the state after the segment."""
        ...

    @property
    def loss_bits(self) -> int:
        """Bits of the sum of losses."""
        ...


def result_of(found: Result) -> tuple[bytes, bytes, int]:
    """Return work digest, state root and sum of losses."""
    return found.work_digest, found.state_root_after, found.loss_bits


class DisputeRecord(NamedTuple):
    """One dispute about ``segment`` of a window. ``opened`` is what the accused committed to, None until opened.

    ``work_digest``, ``state_root_after`` and ``loss_bits`` are what the challenger found; zero of a witness.
    ``seal`` is the number of an outsider's sealed challenge. ``game`` is the encoded game, empty until it
    begins. ``resumed`` has a bit for each side that resumed. ``moved_height`` is the block of the last move.
    ``base_fee`` is that of the block that opened it.
    """

    task: bytes
    window: int
    number: int
    kind: Challenger
    challenger: bytes
    seal: int
    segment: int
    work_digest: bytes
    state_root_after: bytes
    loss_bits: int
    opened: Opened | None
    phase: DisputePhase
    ending: DisputeEnding
    game: bytes
    moves: int
    clock: Clock
    deadline_ms: int
    resumed: int
    moved_height: int
    opened_ms: int
    ended_ms: int
    base_fee: int

    def has_result_of(self, other: Result) -> bool:
        """Tell whether the challenger found this result."""
        return result_of(self) == result_of(other)


class Docket(NamedTuple):
    """What is disputed of a window. Numbers of games and seals go on when the window is proved again.

    Games from ``first_game`` and seals from ``first_seal`` on are of the present proof. Seals below ``next_call``
    were called; ``called`` are those of them that are not open yet, with the time until which they have to be.
    ``running`` are the games that are not settled. ``until_ms`` ends the time of challenges once the window was
    accepted; it was ``extended`` once or not. ``silent`` are the games in which a side did not answer and machines
    run the segment again. Once they did, games from ``rerun_from`` on are theirs; 0 before. ``rounds`` are those
    of verdicts before that.
    """

    games: int
    first_game: int
    seals: int
    first_seal: int
    next_call: int
    called: tuple[tuple[int, int], ...]
    running: tuple[int, ...]
    until_ms: int
    extended: int
    silent: tuple[int, ...]
    rerun_from: int
    rounds: int

    @property
    def is_idle(self) -> bool:
        """Whether no game runs and no seal waits; silent ones do not run."""
        return not self.running and not self.called and self.next_call == self.seals


NO_DOCKET: Final = Docket(0, 0, 0, 0, 0, (), (), 0, 0, (), 0, 0)


class SealedChallenge(NamedTuple):
    """An outsider's sealed challenge. ``games`` and ``is_early`` tell what was public when it was sealed."""

    address: bytes
    seal: bytes
    bond: int
    games: int
    is_early: int
    """1 if verifiers had revealed nothing of the window yet."""


def challenge_seal(
    task: bytes,
    window: int,
    segment: int,
    work_digest: bytes,
    state_root_after: bytes,
    loss_bits: int,
    address: bytes,
    salt: bytes,
) -> bytes:
    """Return the seal of an outsider's challenge; ``salt`` is 32 random bytes."""
    found: list[Value] = [segment, work_digest, state_root_after, loss_bits]
    return digest(b"challenge-seal", encode([task, window, *found, address, salt]))


def _key(task: bytes, window: int, part: bytes = b"", number: int | None = None) -> bytes:
    name = _TABLE + task + window.to_bytes(4, "big") + part
    return name if number is None else name + number.to_bytes(4, "big")


# Dockets


def load_docket(state: Reader, task: bytes, window: int) -> Docket:
    """Return the docket of a window; an empty one if nothing was ever disputed there. Raises RecordDamaged."""
    data = state.get(_key(task, window))
    if data is None:
        return NO_DOCKET
    return read_record(data, _docket, what="the docket of a window", limit_bytes=DOCKET_LIMIT_BYTES)


def _docket(value: Any) -> Docket:
    games, first_game, seals, first_seal, next_call, called, running, until_ms, extended, silent, *rerun = (
        items_of(value, int, int, int, int, int, list, list, int, int, list, int, int)
    )
    calls = tuple((seal, deadline_ms) for seal, deadline_ms in (items_of(item, int, int) for item in called))
    return Docket(
        games,
        first_game,
        seals,
        first_seal,
        next_call,
        calls,
        tuple(items_of(running, *[int] * len(running))),
        until_ms,
        extended,
        tuple(items_of(silent, *[int] * len(silent))),
        *rerun,
    )


def save_docket(state: Overlay, task: bytes, window: int, docket: Docket) -> None:
    """Write the docket of a window."""
    if len(docket.running) > RUNNING_MAX:
        raise AssertionError(f"{len(docket.running)} games run on one window")
    if len(docket.silent) > SILENT_MAX:
        raise AssertionError(f"{len(docket.silent)} games of one window wait for drawn machines")
    state.put(
        _key(task, window),
        encode([
            docket.games, docket.first_game, docket.seals, docket.first_seal, docket.next_call,
            [list(call) for call in docket.called],
            list(docket.running), docket.until_ms, docket.extended, list(docket.silent), docket.rerun_from,
            docket.rounds,
        ]),
    )  # fmt: skip


# Games and moves


def load_dispute(state: Reader, task: bytes, window: int, number: int) -> DisputeRecord:
    """Return a dispute. Raises DisputeUnknown, RecordDamaged."""
    data = state.get(_key(task, window, _GAME_PART, number))
    if data is None:
        raise DisputeUnknown(f"{task.hex()} window {window} dispute {number}")

    def make(value: Any) -> DisputeRecord:
        return _dispute(task, window, number, value)

    return read_record(data, make, what=f"dispute {number} of a window", limit_bytes=DISPUTE_LIMIT_BYTES)


def _dispute(task: bytes, window: int, number: int, value: Any) -> DisputeRecord:
    (
        kind, challenger, seal, segment, work_digest, root, loss_bits, opened, phase, ending, game, moves, clock,
        deadline_ms, resumed, moved_height, opened_ms, ended_ms, base_fee,
    ) = items_of(
        value, int, bytes, int, int, bytes, bytes, int, list, int, int, bytes, int, list,
        int, int, int, int, int, int,
    )  # fmt: skip
    side, since_ms, accused_ms, challenger_ms = items_of(clock, int, int, int, int)
    if (len(challenger), len(work_digest), len(root)) != (ADDRESS_BYTES, HASH_BYTES, HASH_BYTES):
        raise DecodeError("not a dispute")
    return DisputeRecord(
        task, window, number, Challenger(kind), challenger, seal, segment, work_digest, root, loss_bits,
        Opened(*items_of(opened, int, bytes, bytes, bytes, int)) if opened else None, DisputePhase(phase),
        DisputeEnding(ending), game, moves, Clock(Side(side), since_ms, accused_ms, challenger_ms), deadline_ms,
        resumed, moved_height, opened_ms, ended_ms, base_fee,
    )  # fmt: skip


def save_dispute(state: Overlay, dispute: DisputeRecord) -> None:
    """Write a dispute."""
    opened: list[Value] = [] if dispute.opened is None else list(dispute.opened)
    clock = dispute.clock
    state.put(
        _key(dispute.task, dispute.window, _GAME_PART, dispute.number),
        encode([
            int(dispute.kind), dispute.challenger, dispute.seal, dispute.segment, dispute.work_digest,
            dispute.state_root_after, dispute.loss_bits, opened, int(dispute.phase), int(dispute.ending),
            dispute.game, dispute.moves,
            [int(clock.side), clock.since_ms, clock.accused_left_ms, clock.challenger_left_ms],
            dispute.deadline_ms, dispute.resumed, dispute.moved_height, dispute.opened_ms, dispute.ended_ms,
            dispute.base_fee,
        ]),
    )  # fmt: skip


def has_proof(state: Reader, task: bytes, window: int) -> bool:
    """Tell whether a lie in a window is proven, and not settled yet."""
    running = load_docket(state, task, window).running
    return any(load_dispute(state, task, window, number).ending.is_proof for number in running)


def _move_key(task: bytes, window: int, game: int, move: int) -> bytes:
    return _key(task, window, _MOVE_PART, game) + bytes([move])


def add_move(state: Overlay, dispute: DisputeRecord, move: bytes) -> None:
    """Write the next move of a game."""
    state.put(_move_key(dispute.task, dispute.window, dispute.number, dispute.moves), move)


def load_moves(
    state: Reader, task: bytes, window: int, number: int, *, start: int = 0, limit: int = MOVES_MAX
) -> list[bytes]:
    """Return encoded moves of a game from ``start`` on; none of a game that is over, or damaged by its end."""
    first, stop = _move_key(task, window, number, start), _move_key(task, window, number, MOVES_MAX)
    return [value for _, value in state.scan(first, stop, min(limit, MOVES_MAX))]


def schedule_release(state: Overlay, dispute: DisputeRecord) -> None:
    """Have the moves of an ended game deleted."""
    if dispute.moves:
        place = dispute.window.to_bytes(4, "big") + dispute.number.to_bytes(4, "big")
        state.put(_RELEASE + dispute.task + place, b"\x01")


def release_moves(state: Overlay) -> None:
    """Delete moves of ended games, as many as a block may."""
    left = RELEASED_MOVES_MAX
    while left and (entries := state.scan(_RELEASE, bytes([Table.DISPUTE_RELEASE + 1]), 1)):
        key = entries[0][0]
        task, window, number = key[1:33], int.from_bytes(key[33:37], "big"), int.from_bytes(key[37:41], "big")
        first, stop = _move_key(task, window, number, 0), _move_key(task, window, number, MOVES_MAX)
        moves = state.scan(first, stop, left)
        for move, _ in moves:
            state.delete(move)
        left -= max(1, len(moves))  # the moves of a game may be gone with its other records
        if left or not moves:
            state.delete(key)


def has_disputes(state: Reader, task: bytes) -> bool:
    """Tell whether records of disputes of a task are left."""
    return bool(state.scan(_TABLE + task, _TABLE + task + _ABOVE, 1))


def forget_disputes(state: Overlay, task: bytes) -> None:
    """Delete records of disputes of an ended task, ``FORGOTTEN_MAX`` at most."""
    for key, _ in state.scan(_TABLE + task, _TABLE + task + _ABOVE, FORGOTTEN_MAX):
        state.delete(key)


# Sealed challenges


def load_seal(state: Reader, task: bytes, window: int, number: int) -> SealedChallenge:
    """Return a sealed challenge that is not settled. Raises ChallengeUnknown, RecordDamaged."""
    data = state.get(_key(task, window, _SEAL_PART, number))
    if data is None:
        raise ChallengeUnknown(f"{task.hex()} window {window} challenge {number}")
    return read_record(data, _seal, what=f"challenge {number} of a window", limit_bytes=SEAL_LIMIT_BYTES)


def _seal(value: Any) -> SealedChallenge:
    address, seal, bond, games, is_early = items_of(value, bytes, bytes, int, int, int)
    if (len(address), len(seal)) != (ADDRESS_BYTES, HASH_BYTES):
        raise DecodeError("not a sealed challenge")
    return SealedChallenge(address, seal, bond, games, is_early)


def save_seal(state: Overlay, task: bytes, window: int, number: int, seal: SealedChallenge) -> None:
    """Write a sealed challenge."""
    state.put(_key(task, window, _SEAL_PART, number), encode(list(seal)))


def forget_seal(state: Overlay, task: bytes, window: int, number: int) -> None:
    """Delete a sealed challenge that is settled."""
    state.delete(_key(task, window, _SEAL_PART, number))
