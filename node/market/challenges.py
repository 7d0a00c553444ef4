"""Challenges of this node as an outsider: re-run the segments of a window, seal what differs, open it when called.

The seal and what it hides are on disk before they are on chain. The game that follows is played like any other
(``node.market.disputes``). See market.md 7.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import trio

from billing.escrow import Pool, Vault
from node.chain.ledger import NodeLedger
from node.market.inputs import Inputs, Supply
from node.market.promises import write_durably
from node.market.wallet import Wallet
from state.primitives.codec import decode, encode
from state.primitives.errors import DecodeError, DekubeError
from state.primitives.hashing import HASH_BYTES, digest
from state.view import Overlay
from tasks.dispute.shares import challenge_bond
from tasks.errors import TaskUnknown, WindowUnknown
from tasks.executor.service import Executor
from tasks.ledger.dispute_transitions import OPEN_CHALLENGE, SEAL_CHALLENGE, SHOW_BREAK
from tasks.ledger.disputes import challenge_seal, has_proof, load_docket, load_seal
from tasks.ledger.lifecycle import LIVE_WINDOW, WindowPhase
from tasks.ledger.records import load_spec, load_task, load_window
from tasks.ledger.seats import DELIVERY_PHASES
from tasks.proofs import Break, Code, LeavesBroken, break_to_value

__all__ = ["ChallengeRefused", "Challenges", "TooEarly", "WindowKey", "decode_found"]

_log = structlog.get_logger("disputes")

ROWS_MAX: Final = 256
"""Windows under check, or with their result, that are remembered."""
FETCH_S: Final = 120.0
RECORD_LIMIT_BYTES: Final = 256
_NAME: Final = re.compile(r"([0-9a-f]{64})-([0-9]{1,10})")


class ChallengeRefused(DekubeError):
    """A window cannot be challenged: it is not open, or this machine finds what its worker found."""

    code = "challenge_refused"


class TooEarly(DekubeError):
    """The chain does not take a proof about this window yet; it is tried again."""

    code = "too_early"


class WindowKey(NamedTuple):
    """Names a window."""

    task: bytes
    window: int


class _Found(NamedTuple):
    """What a seal hides."""

    segment: int
    work_digest: bytes
    state_root_after: bytes
    loss_bits: int
    salt: bytes


@dataclass
class _Row:
    """Where the check of a window stands, for its owner."""

    is_check_only: bool
    state: str = "checking"
    """checking, agrees, differs, sealed, opened, shown or failed."""
    segments: int = 0
    done: int = 0
    segment: int | None = None
    detail: str = ""


class Challenges:
    """Does what the owner of this node asks for, and what its seals ask for afterwards."""

    def __init__(
        self, ledger: NodeLedger, wallet: Wallet, inputs: Inputs, executor: Executor, folder: Path, *,
        secret: bytes,
    ) -> None:  # fmt: skip
        self._ledger, self._wallet, self._inputs, self._executor = ledger, wallet, inputs, executor
        self._folder, self._secret = folder, secret
        self._rows: dict[WindowKey, _Row] = {}
        self._sealed: dict[WindowKey, _Found] = {}
        self._unsure: set[WindowKey] = set()
        """Seals of an earlier run of the node, which may have stopped before they were on chain."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in folder.iterdir():
            self._take_up(path)

    def _take_up(self, path: Path) -> None:
        match = _NAME.fullmatch(path.name)
        try:
            if match is None:
                raise DecodeError("not a challenge")
            found = decode_found(path.read_bytes())
        except (OSError, DecodeError):  # half written when the node stopped: nothing of it is on chain
            path.unlink(missing_ok=True)
            return
        key = WindowKey(bytes.fromhex(match[1]), int(match[2]))
        self._sealed[key] = found
        self._unsure.add(key)

    # The owner

    def ask(self, task: bytes, number: int | None, *, is_check_only: bool) -> list[WindowKey]:
        """Check the open windows of a task, or one of them. Raises TaskUnknown, ChallengeRefused."""
        open_windows = load_task(self._ledger.store, task).open_windows
        wanted = [WindowKey(task, at) for at in open_windows if number in (None, at) and self._is_open(task, at)]
        if not wanted:
            what = "has no window that can be challenged" if number is None else f"window {number} is not open"
            raise ChallengeRefused(f"task {task.hex()}: {what}")
        for key in wanted:
            if key not in self._sealed:
                self._rows[key] = _Row(is_check_only)
        while len(self._rows) > ROWS_MAX:
            self._rows.pop(next(iter(self._rows)))
        return wanted

    def rows(self, task: bytes) -> list[dict[str, Any]]:
        """Return where the checks of a task's windows stand, for display."""
        return [
            {
                "window": key.window, "state": row.state, "segments": row.segments, "done": row.done,
                "segment": row.segment, "detail": row.detail,
            }
            for key, row in sorted(self._rows.items())
            if key.task == task
        ]  # fmt: skip

    def _is_open(self, task: bytes, number: int) -> bool:
        try:
            phase = load_window(self._ledger.store, task, number).phase
        except (TaskUnknown, WindowUnknown):
            return False
        return phase in LIVE_WINDOW and phase not in DELIVERY_PHASES

    # The chain

    def to_check(self) -> Iterator[WindowKey]:
        """Return the windows whose check is not done, or whose seal an earlier run of the node did not hand in."""
        for key in self._unsure:
            if self._is_open(*key) and not any(self._own_seals(key, self._sealed[key])):
                self._rows.setdefault(key, _Row(is_check_only=False))
        self._unsure.clear()
        yield from [key for key, row in self._rows.items() if row.state == "checking"]

    def to_open(self) -> Iterator[tuple[WindowKey, int]]:
        """Return the sealed challenges that are called, with their numbers; forget those that are settled."""
        state, own = self._ledger.store, self._wallet.address
        for key, found in list(self._sealed.items()):
            docket = load_docket(state, *key)
            seal = self._seal(key, found)
            for number, _ in docket.called:
                challenge = load_seal(state, *key, number)
                if (challenge.address, challenge.seal) == (own, seal):
                    yield key, number
            if not self._is_open(*key):
                self._forget(key)

    async def check(self, key: WindowKey) -> None:
        """Re-run the segments of a window; seal the first that differs, or show leaves that do not fit.

        Raises InputUnavailable, as a check; TooEarly if the leaves cannot be shown yet.
        """
        row = self._rows[key]
        try:
            found = await self._find(key, row)
        except LeavesBroken as error:
            row.segment, row.detail = error.shown.segment, str(error)
            if row.is_check_only:
                row.state = "differs"
            elif not self._is_open(*key):
                row.state = "failed"
            else:
                await self._show(key, error.shown, row)
                row.state = "shown"
            return
        except DekubeError as error:
            row.detail = str(error)
            if not self._is_open(*key):
                row.state = "failed"
            raise
        row.detail = ""
        if found is None:
            row.state = "agrees"
        elif row.is_check_only:
            row.state, row.segment = "differs", found.segment
        else:
            row.segment = found.segment
            await self._send_seal(key, found)
            row.state = "sealed"

    async def _show(self, key: WindowKey, shown: Break, row: _Row) -> None:
        """Prove that leaves of a window do not fit, unless that is proven already. Raises TooEarly."""
        store = self._ledger.store
        if load_window(store, *key).phase in (WindowPhase.PROVED, WindowPhase.SEALING):
            row.detail = f"segment {shown.segment} does not fit; that is shown once all verdicts are sealed"
            raise TooEarly(row.detail)
        if not has_proof(store, *key):
            await self._wallet.send(SHOW_BREAK, [*key, *break_to_value(shown)])
            _log.warning("leaves were shown that do not fit", task=key.task, window=key.window)

    async def _find(self, key: WindowKey, row: _Row) -> _Found | None:
        store = self._ledger.store
        spec, window = load_spec(store, key.task), load_window(store, *key)
        supply = Supply(partial(self._inputs.holders, window), trio.current_time() + FETCH_S)
        await self._inputs.unlock(*key)
        leaves = await self._inputs.leaves(spec, window, supply)
        inputs = await self._inputs.all_of(spec, supply, key.task)
        row.segments, row.done = len(leaves), 0
        for leaf in leaves:
            supply = Supply(partial(self._inputs.holders, window), trio.current_time() + FETCH_S)
            state = await self._inputs.segment_state(*key, leaf, supply, spec)
            verdict = await self._executor.verify_segment(
                key.task, spec, inputs.dataset, leaf, state, model=inputs.model
            )
            row.done += 1
            if verdict.code is Code.COMPUTED and verdict.mismatches:
                finding = verdict.finding
                salt = digest(b"challenge-salt", self._secret + encode([*key, leaf.segment]))
                return _Found(leaf.segment, finding.work_digest, finding.state_root_after, finding.loss_bits, salt)
        return None

    def _seal(self, key: WindowKey, found: _Found) -> bytes:
        return challenge_seal(
            *key, found.segment, found.work_digest, found.state_root_after, found.loss_bits,
            self._wallet.address, found.salt,
        )  # fmt: skip

    async def _send_seal(self, key: WindowKey, found: _Found) -> None:
        if any(self._own_seals(key, found)):  # an earlier run of the node had handed it in
            return
        await trio.to_thread.run_sync(write_durably, self._path(key), encode(list(found)))
        self._sealed[key] = found
        bond = self._bond(key)
        try:
            await self._wallet.send(SEAL_CHALLENGE, [*key, self._seal(key, found), bond])
        except DekubeError:
            if not any(self._own_seals(key, found)):
                self._forget(key)
            raise
        _log.warning("a challenge was sealed", task=key.task, window=key.window, segment=found.segment)

    def _bond(self, key: WindowKey) -> int:
        """Return what a challenge costs now. A seal of somebody else that comes first may double it."""
        store = self._ledger.store
        window, docket = load_window(store, *key), load_docket(store, *key)
        vault = Vault.load(Overlay(store), key.task, lambda _event: None, 0)
        return challenge_bond(vault.held(Pool.BOND, window.worker), docket.seals - docket.first_seal)

    def _own_seals(self, key: WindowKey, found: _Found) -> Iterator[int]:
        docket, seal = load_docket(self._ledger.store, *key), self._seal(key, found)
        for number in range(docket.first_seal, docket.seals):
            try:
                if load_seal(self._ledger.store, *key, number).seal == seal:
                    yield number
            except DekubeError:  # settled
                continue

    async def open(self, key: WindowKey, number: int) -> None:
        """Open a sealed challenge that is called; its game begins."""
        found = self._sealed[key]
        await self._wallet.send(OPEN_CHALLENGE, [*key, number, *found])
        if key in self._rows:
            self._rows[key].state = "opened"
        _log.warning("a challenge was opened", task=key.task, window=key.window, segment=found.segment)

    def _path(self, key: WindowKey) -> Path:
        return self._folder / f"{key.task.hex()}-{key.window}"

    def _forget(self, key: WindowKey) -> None:
        self._sealed.pop(key, None)
        self._path(key).unlink(missing_ok=True)


def decode_found(data: bytes) -> _Found:
    """Read what a seal hides. Raises DecodeError."""
    match decode(data, limit_bytes=RECORD_LIMIT_BYTES):
        case [int(segment), bytes(work), bytes(root), int(loss_bits), bytes(salt)] if (
            len(work) == len(root) == len(salt) == HASH_BYTES and 0 <= loss_bits < 1 << 64
        ):
            return _Found(segment, work, root, loss_bits, salt)
    raise DecodeError("not a challenge")
