"""What is stored of a container, whose pay waits for that, and which machines ran it (market.md 2.2, R103)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record

__all__ = ["RUNS_KEPT", "WORDS_NEEDED", "Checkpoints", "Run", "Stored", "load_checkpoints", "save_checkpoints"]

CHECKPOINTS_LIMIT_BYTES: Final = 1_152
RUNS_KEPT: Final = 16
"""The last machines of a container of which the record tells."""
MISSED_MAX: Final = 3
"""Checkpoints of which the record tells."""
WORDS_NEEDED: Final = 2
"""So many machines in turn have to say that a checkpoint cannot be had (R156)."""
DOUBTERS_MAX: Final = WORDS_NEEDED * MISSED_MAX
"""Machines that may say so before one starts."""
_TASK: Final = bytes([Table.TASK])
_CHECKPOINT_PART: Final = b"\x05"


class Stored(NamedTuple):
    """A checkpoint that ``worker`` has named, at ``seconds`` of the task. An empty ``blob`` is an empty folder."""

    blob: bytes
    size_bytes: int
    seconds: int
    worker: bytes


class Run(NamedTuple):
    """What a machine did: ``seconds`` that were counted, of which ``lost`` were neither kept nor paid."""

    worker: bytes
    seconds: int
    lost: int


class Checkpoints(NamedTuple):
    """Checkpoints and runs of a container.

    ``until_ms``: its machine has offered to stay until then; 0: it has not. ``latest`` and ``before`` are the last
    two checkpoints, ``base`` the one that the last run began with. ``covered_s`` seconds of that run are stored.
    ``closing`` of the pay of the machine of ``latest``, for ``closing_s`` seconds, waits for what follows on it;
    ``open`` is the last machine's, and waits for the next checkpoint. ``prepared`` waits for the preparation that
    run ``prepared_run``, from 1, has earned. ``missed`` checkpoints are given up: ``WORDS_NEEDED`` machines
    have said that they cannot have them. Of the next one ``doubted`` machines have said so. The ``doubters`` are
    not matched before another machine has started, or a search has found none. ``gone`` runs are no longer in
    ``runs``.
    """

    until_ms: int = 0
    latest: Stored | None = None
    before: Stored | None = None
    base: Stored | None = None
    covered_s: int = 0
    closing: int = 0
    closing_s: int = 0
    open: int = 0
    prepared: int = 0
    prepared_run: int = 0
    missed: int = 0
    doubted: int = 0
    doubters: tuple[bytes, ...] = ()
    gone: int = 0
    runs: tuple[Run, ...] = ()

    @property
    def wanted(self) -> Stored | None:
        """The checkpoint that the next machine begins with, but for those that cannot be had."""
        known = list(dict.fromkeys(one for one in (self.latest, self.before, self.base) if one is not None))
        return known[self.missed] if self.missed < len(known) else None

    @property
    def last(self) -> bytes:
        """The machine of the last run, or nothing."""
        return self.runs[-1].worker if self.runs else b""

    @property
    def is_preparation_open(self) -> bool:
        """Whether the pay of a preparation waits for a first checkpoint; else it waits with ``closing``."""
        return self.prepared_run == self.gone + len(self.runs) and not self.covered_s

    @property
    def waits(self) -> int:
        """All pay that waits."""
        return self.closing + self.open + self.prepared


def load_checkpoints(state: Reader, task: bytes) -> Checkpoints:
    """Return what is stored of a container; nothing for one that no machine had yet. Raises RecordDamaged."""
    data = state.get(_TASK + task + _CHECKPOINT_PART)
    if data is None:
        return Checkpoints()
    what = f"checkpoints of task {task.hex()}"
    return read_record(data, _checkpoints, what=what, limit_bytes=CHECKPOINTS_LIMIT_BYTES)


def _checkpoints(value: Any) -> Checkpoints:
    until_ms, latest, before, base, *numbers, doubters, gone, runs = items_of(
        value, int, list, list, list, *[int] * 8, list, int, list
    )
    covered_s, closing, closing_s, open_, prepared, prepared_run, missed, doubted = numbers
    found = Checkpoints(
        until_ms, _stored(latest), _stored(before), _stored(base), covered_s, closing, closing_s, open_, prepared,
        prepared_run, missed, doubted, tuple(map(_doubter, doubters)), gone, tuple(map(_run, runs)),
    )  # fmt: skip
    if not (0 <= missed <= MISSED_MAX and 0 <= doubted < WORDS_NEEDED and len(doubters) <= DOUBTERS_MAX):
        raise DecodeError("not the checkpoints of a container")
    return found


def _stored(value: list[Any]) -> Stored | None:
    if not value:
        return None
    blob, size_bytes, seconds, worker = items_of(value, bytes, int, int, bytes)
    if len(blob) not in (0, HASH_BYTES) or len(worker) != ADDRESS_BYTES:
        raise DecodeError("not a checkpoint")
    return Stored(blob, size_bytes, seconds, worker)


def _doubter(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != ADDRESS_BYTES:
        raise DecodeError("not the address of a machine")
    return value


def _run(value: Any) -> Run:
    worker, seconds, lost = items_of(value, bytes, int, int)
    if len(worker) != ADDRESS_BYTES:
        raise DecodeError("not the run of a machine")
    return Run(worker, seconds, lost)


def save_checkpoints(state: Overlay, task: bytes, found: Checkpoints) -> None:
    """Write what is stored of a container; of its runs the last ones."""
    gone = max(0, len(found.runs) - RUNS_KEPT)
    stored: list[Value] = [[] if one is None else list(one) for one in found[1:4]]
    runs: list[Value] = [list(run) for run in found.runs[gone:]]
    value: list[Value] = [
        found.until_ms, *stored, *found[4:-3], list(found.doubters), found.gone + gone, runs,
    ]  # fmt: skip
    state.put(_TASK + task + _CHECKPOINT_PART, encode(value))
