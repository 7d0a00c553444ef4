"""The vote guard: what a key has signed, and what it may still sign (consensus.md 7.1, 7.2). Pure.

Its record is a sequence of slots of one size. A slot never crosses a disk sector and ends in a byte that is not
zero. So the tail after a power failure (short, or filled with zeros) differs from a damaged slot. A torn slot
belongs to a vote that was never released, and is cut off. Damage means that a released vote may be unknown, and
the guard refuses to open.
"""

from __future__ import annotations

import struct
from binascii import crc32
from collections.abc import Iterator
from typing import Final, NamedTuple

from consensus.min_key_dict import MinKeyDict
from state.primitives.errors import DekubeError
from state.primitives.votes import FINALIZE, KINDS, NOTARIZE, NULLIFY, Candidate, Vote

__all__ = [
    "JOURNAL_BLOCK",
    "JOURNAL_CERTIFICATE",
    "SLOT_BYTES",
    "DoppelgangerWatch",
    "Guard",
    "GuardCorrupt",
    "GuardMissing",
    "GuardOutdated",
    "GuardRefused",
    "Watermark",
    "journal_record",
    "read_journal",
]

SLOT_BYTES: Final = 256
_MARK: Final = b"\xd5slot\xd5\xd5\xd5"
_HEADER, _FLOOR = 0, 4
_BODY: Final = struct.Struct(">BQIQQH32s64s")  # kind, sequence, epoch, view, parent view, seat, hash, signature
_CRC_AT: Final = SLOT_BYTES - len(_MARK) - 4
_FORMAT: Final = b"dekube vote guard 1"


class GuardCorrupt(DekubeError):
    """The guard's record is damaged, of another key or of another chain: voting could contradict an older vote."""

    code = "guard_corrupt"


class GuardMissing(DekubeError):
    """There is no guard record, and the operator has not stated that this key has never voted."""

    code = "guard_missing"


class GuardOutdated(DekubeError):
    """The record lacks votes that the key has signed: an old copy, or a new record."""

    code = "guard_outdated"


class GuardRefused(DekubeError):
    """A vote that the earlier votes of this key forbid; ``rule`` names which."""

    code = "guard_refused"

    def __init__(self, rule: str, kind: int, candidate: Candidate) -> None:
        super().__init__(f"{rule}: kind {kind} in epoch {candidate.epoch}, view {candidate.view}")
        self.rule = rule


class Watermark(NamedTuple):
    """The view up to which another machine must not sign with this key; it moves with the key."""

    genesis_hash: bytes
    vote_key: bytes
    epoch: int
    view: int


def _slot(body: bytes) -> bytes:
    padded = body.ljust(_CRC_AT, b"\0")
    return padded + crc32(padded).to_bytes(4, "big") + _MARK


class Guard:
    """The votes of one key on one chain above ``floor``. It never votes again in a view at or below the floor.

    A vote in an epoch raises the floor above all earlier ones: a committee's last block is final before the next
    committee votes, so a request for a vote in the old epoch is a fault.
    """

    def __init__(self, genesis_hash: bytes, vote_key: bytes, *, epoch: int = 0, view: int = 0) -> None:
        self._genesis_hash = genesis_hash
        self._vote_key = vote_key
        self._floor = (epoch, view)
        self._votes: MinKeyDict[tuple[int, int], dict[int, Vote]] = MinKeyDict()
        self._sequence = 0

    @property
    def floor(self) -> tuple[int, int]:
        """Epoch and view up to which every vote is refused."""
        return self._floor

    @property
    def is_fresh(self) -> bool:
        """Whether the record has no vote and no watermark: the key has never voted, or its record was lost."""
        return not self._votes and self._floor == (0, 0)

    def votes(self) -> tuple[Vote, ...]:
        """Return every vote above the floor, oldest view first."""
        return tuple(vote for _, kinds in sorted(self._votes.items()) for _, vote in sorted(kinds.items()))

    def watermark(self) -> Watermark:
        """Return what another machine must not sign at or below."""
        epoch, view = max([self._floor, *self._votes])
        return Watermark(self._genesis_hash, self._vote_key, epoch, view)

    def check(self, kind: int, candidate: Candidate) -> Vote | None:
        """Return the stored vote if the same vote was made before, None if it may be made now.

        The table is R3 to R5: NOTARIZE needs no own NOTARIZE and no NULLIFY in the view, NULLIFY no FINALIZE,
        FINALIZE no NULLIFY and no other FINALIZE. Raises GuardRefused otherwise.
        """
        if kind not in KINDS:
            raise GuardRefused("kind", kind, candidate)
        if candidate.view < 1:
            raise GuardRefused("view", kind, candidate)
        at = (candidate.epoch, candidate.view)
        if at <= self._floor:
            raise GuardRefused("floor", kind, candidate)
        made = self._votes.get(at, {})
        same = made.get(kind)
        if same is not None:
            if kind == NULLIFY or same.candidate == candidate:
                return same
            raise GuardRefused("second", kind, candidate)
        if kind == NOTARIZE and NULLIFY in made:
            raise GuardRefused("notarize_after_nullify", kind, candidate)
        if kind == NULLIFY and FINALIZE in made:
            raise GuardRefused("nullify_after_finalize", kind, candidate)
        if kind == FINALIZE and NULLIFY in made:
            raise GuardRefused("finalize_after_nullify", kind, candidate)
        return None

    def is_foreign(self, vote: Vote) -> bool:
        """Tell whether a verified vote of this key is missing in this record: another process has the key.

        The record has no votes at or below the floor, so no vote there counts as foreign.
        """
        at = (vote.epoch, vote.view)
        if at <= self._floor:
            return False
        made = self._votes.get(at, {}).get(vote.kind)
        return made is None or (vote.kind != NULLIFY and made.candidate != vote.candidate)

    def record(self, vote: Vote) -> bytes:
        """Record a checked and signed vote. The bytes must be on disk before the vote is sent."""
        self._keep(vote)
        return self._vote_slot(vote)

    def _keep(self, vote: Vote) -> None:
        if vote.epoch > self._floor[0]:
            self.raise_floor(vote.epoch, 0)
        self._votes.setdefault((vote.epoch, vote.view), {})[vote.kind] = vote

    def raise_floor(self, epoch: int, view: int) -> None:
        """Refuse everything up to ``view`` from now on; the floor never decreases."""
        if (epoch, view) > self._floor:
            self._floor = (epoch, view)
            self._votes.take(self._floor)

    def image(self) -> bytes:
        """Return a complete new record: header, floor and the votes above it."""
        self._sequence = 0
        header = _BODY.pack(_HEADER, self._next(), 0, 0, 0, 0, self._genesis_hash, self._vote_key.ljust(64, b"\0"))
        floor = _BODY.pack(_FLOOR, self._next(), *self._floor, 0, 0, bytes(32), bytes(64))
        return b"".join(
            [_slot(header + _FORMAT), _slot(floor), *[self._vote_slot(vote) for vote in self.votes()]],
        )

    @classmethod
    def load(cls, data: bytes, genesis_hash: bytes, vote_key: bytes) -> tuple[Guard, int]:
        """Return the guard of a record, and the number of bytes in complete slots.

        Raises GuardMissing for an empty record, GuardCorrupt for damage, another key or another chain.
        """
        guard = cls(genesis_hash, vote_key)
        if not data.strip(b"\0"):
            raise GuardMissing("the record of the vote guard is empty")
        at = 0
        while at < len(data):
            slot = data[at : at + SLOT_BYTES]
            if len(slot) < SLOT_BYTES or slot[-1] == 0:
                if len(data) - at > SLOT_BYTES and data[at + SLOT_BYTES :].strip(b"\0"):
                    raise GuardCorrupt(f"the vote guard has a hole at byte {at}")
                break
            guard._take(slot, at)
            at += SLOT_BYTES
        if at < 2 * SLOT_BYTES:
            raise GuardCorrupt("the vote guard has no header and floor")
        return guard, at

    def _take(self, slot: bytes, at: int) -> None:
        body, crc = slot[:_CRC_AT], int.from_bytes(slot[_CRC_AT : _CRC_AT + 4], "big")
        kind, sequence, epoch, view, parent_view, seat, block_hash, signature = _BODY.unpack_from(body)
        if crc != crc32(body) or not slot.endswith(_MARK) or sequence != self._next():
            raise GuardCorrupt(f"the vote guard is damaged at byte {at}")
        if (at == 0) != (kind == _HEADER) or (at == SLOT_BYTES) != (kind == _FLOOR) or kind > _FLOOR:
            raise GuardCorrupt(f"the vote guard has slot kind {kind} at byte {at}")
        if kind == _HEADER:
            if block_hash != self._genesis_hash or signature != self._vote_key.ljust(64, b"\0"):
                raise GuardCorrupt("the vote guard belongs to another chain or another key")
        elif kind == _FLOOR:
            self._floor = (epoch, view)
        elif view == 0:
            raise GuardCorrupt(f"the vote guard has a vote in no view at byte {at}")
        else:
            vote = Vote(kind, epoch, view, parent_view, block_hash, seat, signature)
            if (epoch, view) > self._floor:
                self._keep(vote)

    def _vote_slot(self, vote: Vote) -> bytes:
        return _slot(
            _BODY.pack(
                vote.kind,
                self._next(),
                vote.epoch,
                vote.view,
                vote.parent_view,
                vote.seat,
                vote.block_hash,
                vote.signature,
            )
        )

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


class DoppelgangerWatch:
    """How long a starting validator only listens: a vote of its own key that the guard lacks ends it. See
    consensus.md 7.4.

    It listens for ``wait_ms`` and for ``views`` whole views, not counting the one in which it starts, because it
    may have missed a vote in that. If the network passes no views, for example when all validators start together,
    the watch ends after ``wait_ms_max``.
    """

    def __init__(self, *, views: int, wait_ms: int, wait_ms_max: int, now_ms: int) -> None:
        self._views = views
        self._earliest_ms = now_ms + wait_ms
        self._latest_ms = now_ms + max(wait_ms, wait_ms_max)
        self._entered = 0

    @property
    def latest_ms(self) -> int:
        """Latest end of the watch; set a timer for it, and one for ``earliest_ms``."""
        return self._latest_ms

    @property
    def earliest_ms(self) -> int:
        """Earliest end of the watch, regardless of the number of views."""
        return self._earliest_ms

    def entered_view(self) -> None:
        """Note that the replica has entered another view, of this epoch or the next."""
        self._entered += 1

    def is_over(self, now_ms: int) -> bool:
        """Tell whether voting may begin."""
        # The first entry ends the view of the start, each further one ends a whole view.
        is_heard = self._entered > self._views or self._views == 0
        return now_ms >= self._latest_ms or (now_ms >= self._earliest_ms and is_heard)


JOURNAL_CERTIFICATE: Final = 1
JOURNAL_BLOCK: Final = 2
_JOURNAL_HEAD: Final = struct.Struct(">IIB")


def journal_record(kind: int, data: bytes) -> bytes:
    """Return one record of the journal: data that a vote rests on and that must survive a crash."""
    body = bytes((kind,)) + data
    return _JOURNAL_HEAD.pack(crc32(body), len(data), kind) + data


def read_journal(data: bytes) -> tuple[list[tuple[int, bytes]], int]:
    """Return the journal's records up to the first torn or damaged one, and their size in bytes."""
    records: list[tuple[int, bytes]] = []
    at = 0
    for kind, body, end in _journal_records(data):
        records.append((kind, body))
        at = end
    return records, at


def _journal_records(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    at = 0
    while len(data) - at >= _JOURNAL_HEAD.size:
        crc, size, kind = _JOURNAL_HEAD.unpack_from(data, at)
        start = at + _JOURNAL_HEAD.size
        body = data[start : start + size]
        if (
            len(body) < size
            or crc != crc32(bytes((kind,)) + body)
            or kind not in (JOURNAL_CERTIFICATE, JOURNAL_BLOCK)
        ):
            return
        at = start + size
        yield kind, body, at
