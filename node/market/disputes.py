"""Plays the disputes of this machine, as the accused of a window or as its challenger (market.md 7.7).

The chain is the queue: at each head it says in which games this machine has to move. The move follows from the
records of the chain and from the segment as this machine computes it. So nothing of a game outlives a move, and a
node that restarts goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import structlog
import trio

from billing.prices import share_up
from node.chain.ledger import NodeLedger
from node.market.cancellation import work_while
from node.market.inputs import Inputs, Supply
from node.market.wallet import Wallet
from state.primitives.address import format_address
from state.primitives.amounts import format_amount
from state.primitives.codec import encode
from state.primitives.errors import DekubeError
from state.primitives.hashing import HASH_BYTES, digest
from state.view import Reader
from tasks.dispute.game import Side
from tasks.errors import DisputeUnknown
from tasks.executor.playing import Play
from tasks.executor.service import Executor
from tasks.ledger.dispute_transitions import MOVE, RESUME_DISPUTE
from tasks.ledger.disputes import DisputeEnding, DisputePhase, DisputeRecord, load_dispute, load_moves
from tasks.ledger.dockets import player_of
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.questions import question_of
from tasks.ledger.records import by_player_key, load_spec, load_window
from tasks.proofs import Opening, opening_to_value

__all__ = ["Disputes", "GameKey", "NothingToSay", "games_of"]

_log = structlog.get_logger("disputes")

GAMES_MAX: Final = 256
"""Games that are read from the chain for one machine."""

_DONE: Final = (DisputePhase.OVER, DisputePhase.SILENT)
"""Phases in which no move is due any more."""
Openings = Callable[[bytes, int, Sequence[int]], Awaitable[list[Opening]]]


class NothingToSay(DekubeError):
    """What this machine computes contradicts its side of a dispute."""

    code = "nothing_to_say"


class GameKey(NamedTuple):
    """Names a dispute on chain."""

    task: bytes
    window: int
    number: int

    @property
    def id(self) -> bytes:
        """The name as bytes."""
        return digest(b"dispute", encode(list(self)))


def games_of(state: Reader, player: bytes, limit: int = GAMES_MAX) -> list[GameKey]:
    """Return the games of ``player`` that are not settled."""
    prefix = by_player_key(player)
    keys = [key for key, _ in state.scan(prefix, prefix + b"\xff" * (HASH_BYTES + 9), limit)]
    return [
        GameKey(key[-HASH_BYTES - 8 : -8], int.from_bytes(key[-8:-4], "big"), int.from_bytes(key[-4:], "big"))
        for key in keys
    ]


class Disputes:
    """Does what the chain asks of a side of a dispute."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, executor: Executor, parameters: TaskParameters,
        *, openings: Openings, secret: bytes,
    ) -> None:  # fmt: skip
        """``openings`` opens segments of a window that this worker proved."""
        self._ledger, self._wallet, self._inputs, self._executor = ledger, wallet, inputs, executor
        self._parameters, self._openings, self._secret = parameters, openings, secret
        self._known: dict[GameKey, DisputePhase] = {}
        self._doubted: set[GameKey] = set()
        """Games in which this machine contradicted itself once."""
        self.results: Counter[str] = Counter()
        """Ended games since the start, by result: won, lost or dropped."""

    # Looking

    def look(self) -> list[DisputeRecord]:
        """Return the games in which this machine has to move, the most urgent first; tell the owner of changes."""
        state, own = self._ledger.store, self._wallet.address
        due: list[DisputeRecord] = []
        seen: dict[GameKey, DisputePhase] = {}
        for key in games_of(state, own):
            game = load_dispute(state, *key)
            seen[key] = game.phase
            if self._known.get(key) != game.phase:
                self._tell(game)
            if game.phase not in _DONE and self._plays(game, game.clock.side):
                due.append(game)
        for key in self._known.keys() - seen.keys():
            self._tell_end(key)
        self._known = seen
        self._doubted &= seen.keys()
        self._executor.keep_games({key.id for key in seen})
        return sorted(due, key=lambda game: game.deadline_ms)

    def counts(self) -> dict[str, int]:
        """Return how many games of this machine run and are suspended."""
        phases = Counter(self._known.values())
        suspended = phases[DisputePhase.SUSPENDED]
        return {"open": len(self._known) - suspended, "suspended": suspended}

    def rows(self) -> list[dict[str, Any]]:
        """Return the disputes of this machine for display."""
        store, now_ms = self._ledger.store, self._ledger.head().steady_ms
        rows = []
        for key in games_of(store, self._wallet.address):
            game, window = load_dispute(store, *key), load_window(store, key.task, key.window)
            is_accused = window.worker == self._wallet.address
            rows.append({
                "task": "0x" + key.task.hex(), "window": key.window, "number": key.number, "segment": game.segment,
                "side": "accused" if is_accused else "challenger",
                "other": format_address(game.challenger if is_accused else window.worker),
                "phase": game.phase.name.lower(), "our_turn": self._plays(game, game.clock.side),
                "moves": game.moves, "left_ms": max(0, game.deadline_ms - now_ms),
            })  # fmt: skip
        return rows

    def _plays(self, game: DisputeRecord, side: Side) -> bool:
        window = load_window(self._ledger.store, game.task, game.window)
        return player_of(window, game, side) == self._wallet.address

    def _tell(self, game: DisputeRecord) -> None:
        fields = {"task": game.task, "window": game.window, "game": game.number, "segment": game.segment}
        side = "accused" if self._plays(game, Side.ACCUSED) else "challenger"
        match game.phase:
            case DisputePhase.OPENING | DisputePhase.RUNNING:
                _log.warning("a dispute runs, and this node plays it", side=side, **fields)
            case DisputePhase.SUSPENDED:
                late = "this machine" if self._plays(game, game.clock.side) else "the other side"
                _log.warning("a dispute is suspended: a clock was missed", side=side, by=late, **fields)
            case DisputePhase.SILENT:
                late = "this machine" if self._plays(game, game.clock.side) else "the other side"
                _log.warning("drawn machines run a segment again after a silence", by=late, **fields)
            case DisputePhase.OVER:
                pass

    def _tell_end(self, key: GameKey) -> None:
        try:
            game = load_dispute(self._ledger.store, *key)
        except DisputeUnknown:
            return  # of a state that never became final
        loser = loser_of(game.ending)
        result = "dropped"
        if loser is not None:
            result = "lost" if self._plays(game, loser) else "won"
        self.results[result] += 1
        log = _log.warning if result == "lost" else _log.info
        log(
            f"a dispute is {result}", task=game.task, window=game.window, game=game.number,
            ending=game.ending.name.lower(), moves=game.moves,
        )  # fmt: skip

    # Playing

    async def play(self, game: DisputeRecord) -> None:
        """Send the move that is due, or resume first. Raises NothingToSay, and what a check raises."""
        key = GameKey(game.task, game.window, game.number)
        if not game.game:
            (opening,) = await self._openings(game.task, game.window, [game.segment])
            move = encode(opening_to_value(opening))
        else:
            move = await self._find_move(key, game.moves)
            if not move and key not in self._doubted:
                self._doubted.add(key)  # once more, from the beginning: one wrong bit is no reason to lose
                self._executor.forget_game(key.id)
                move = await self._find_move(key, game.moves)
        if not move:
            raise NothingToSay(
                f"window {game.window}, segment {game.segment}: this machine does not compute what it said"
            )
        now = load_dispute(self._ledger.store, *key)  # computing takes its time
        if now.phase is DisputePhase.SUSPENDED:
            await self._resume(now)
        elif self._stands(key, game.moves):
            await self._wallet.send(MOVE, [game.task, game.window, game.number, game.moves, move])
            _log.info(
                "move made", task=game.task, window=game.window, game=game.number, move=game.moves,
                size_bytes=len(move),
            )  # fmt: skip

    def _stands(self, key: GameKey, moves: int) -> bool:
        """Whether the move of that number is due, if not in time."""
        game = load_dispute(self._ledger.store, *key)
        return game.phase not in _DONE and game.moves == moves

    async def _resume(self, game: DisputeRecord) -> None:
        """Resume a game whose clock this machine missed, now that it can move."""
        window = load_window(self._ledger.store, game.task, game.window)
        amount = share_up(window.charge, self._parameters.dispute_resume_bps)
        await self._wallet.send(RESUME_DISPUTE, [game.task, game.window, game.number, amount])
        _log.warning(
            "a suspended dispute was resumed", task=game.task, window=game.window, game=game.number,
            paid=format_amount(amount),
        )  # fmt: skip

    async def _find_move(self, key: GameKey, number: int) -> bytes:
        """Return the move that is due. Raises Abandoned when it is due no more."""
        moves = tuple(load_moves(self._ledger.store, *key))
        play = partial(self._executor.play, key.task, key.id, moves, partial(self._order, key, moves))
        return await work_while(self._ledger, partial(self._stands, key, number), play)

    async def _order(self, key: GameKey, moves: tuple[bytes, ...]) -> Play:
        """Return the order for a process of the game, with what it computes from."""
        store = self._ledger.store
        game, spec, window = load_dispute(store, *key), load_spec(store, key.task), load_window(store, *key[:2])
        assert game.opened is not None
        until = trio.current_time() + max(0, game.deadline_ms - self._ledger.head().steady_ms) / 1000
        supply = Supply(partial(self._inputs.holders, window), until)
        await self._inputs.unlock(key.task, key.window)
        inputs = await self._inputs.all_of(spec, supply, key.task)
        leaves = await self._inputs.leaves(spec, window, supply)
        state = await self._inputs.segment_state(key.task, key.window, leaves[game.segment], supply, spec)
        question = question_of(spec, window, game.opened)
        secret = None if game.clock.side is Side.ACCUSED else digest(b"dispute-secret", self._secret + key.id)
        return Play(
            spec, inputs.dataset, state, question.start.state_root, question.step_from, question.steps,
            game.clock.side, question.end, secret, moves, question.diverged, inputs.model,
        )  # fmt: skip


def loser_of(ending: DisputeEnding) -> Side | None:
    """Return who lost a dispute that ended so; None if nobody did."""
    match ending:
        case (
            DisputeEnding.ELEMENT_WRONG | DisputeEnding.COMMITMENT_BROKEN | DisputeEnding.ACCUSED_INCONSISTENT
            | DisputeEnding.ACCUSED_SILENT | DisputeEnding.RERUN_WRONG
        ):  # fmt: skip
            return Side.ACCUSED
        case (
            DisputeEnding.ELEMENT_RIGHT | DisputeEnding.CHALLENGER_INCONSISTENT | DisputeEnding.MOVES_EXHAUSTED
            | DisputeEnding.CHALLENGER_SILENT | DisputeEnding.SAME_ROOT | DisputeEnding.RERUN_REFUTED
        ):  # fmt: skip
            return Side.CHALLENGER
        case DisputeEnding.NONE | DisputeEnding.DROPPED:
            return None
