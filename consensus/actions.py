"""Actions that a replica requests from its shell, and the safe order of its writes. Pure.

The shell performs actions in order: first ``Append`` and ``Sync`` to the journal, then to the guard, and only then
messages.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from consensus import events as c
from consensus.inbound import Decoded
from state.primitives.votes import Candidate

__all__ = [
    "GUARD",
    "JOURNAL",
    "Action",
    "Append",
    "Broadcast",
    "NextEpoch",
    "RaiseFloor",
    "Redeliver",
    "Refused",
    "Replace",
    "RequestVote",
    "Send",
    "ServeBlock",
    "ServeBlocks",
    "Sync",
    "Writes",
]

GUARD: Final = "guard"
JOURNAL: Final = "journal"


class Append(NamedTuple):
    """Append to a log (GUARD or JOURNAL)."""

    log: str
    data: bytes


class Sync(NamedTuple):
    """Wait until a log is on disk."""

    log: str


class Replace(NamedTuple):
    """Replace the content of a log, durably."""

    log: str
    data: bytes


class Send(NamedTuple):
    """Send a message to one address; ``is_bulk`` for messages that carry blocks."""

    address: bytes
    data: bytes
    is_bulk: bool = False


class Broadcast(NamedTuple):
    """Send a message to all other seats and to observers."""

    data: bytes
    is_bulk: bool = False


class ServeBlock(NamedTuple):
    """Look up a final block and send it as BlockReply."""

    address: bytes
    block_hash: bytes


class ServeBlocks(NamedTuple):
    """Look up a window of final blocks and send it as BlocksReply."""

    address: bytes
    from_height: int
    count_max: int


class NextEpoch(NamedTuple):
    """The previous epoch has ended durably. Answer with ``begin_epoch`` or ``refuse_epoch``."""

    number: int


class Redeliver(NamedTuple):
    """Process this message again now: it arrived before its epoch had begun."""

    sender: bytes
    decoded: Decoded


class RequestVote(NamedTuple):
    """Request a vote from the guard in another process.

    Answer each with ``voted`` or ``vote_refused``, in order.
    """

    kind: int
    candidate: Candidate
    seat: int


class RaiseFloor(NamedTuple):
    """Tell the guard in another process that everything up to this view is final."""

    epoch: int
    view: int


class Refused(NamedTuple):
    """The guard refused a vote that the core requested, or signed another one; for the metric only."""

    rule: str


Action: TypeAlias = (
    Append
    | Sync
    | Replace
    | Send
    | Broadcast
    | ServeBlock
    | ServeBlocks
    | NextEpoch
    | Redeliver
    | RequestVote
    | RaiseFloor
    | Refused
    | c.Build
    | c.Check
    | c.Execute
    | c.Commit
    | c.DropBlocks
    | c.SetTimer
    | c.EnterView
    | c.CastVote
    | c.KeepCertificate
    | c.FoundEquivocation
    | c.FoundFork
    | c.Resend
    | c.EpochEnded
    | c.Halt
)


class Writes:
    """The writes of one step in their only safe order.

    A vote's record is written to the guard when everything that the vote rests on is durable. What follows from
    the vote (a certificate that it completed) is written to the journal when the vote's record is durable.
    """

    def __init__(self, is_journal_dirty: bool) -> None:
        self._actions: list[Action] = []
        self._is_guard_dirty = False
        self.is_journal_dirty = is_journal_dirty
        self.journal_bytes = 0
        self.guard_bytes = 0

    def to_journal(self, data: bytes) -> None:
        """Append to the journal, after the preceding votes are durable."""
        if self._is_guard_dirty:
            self._actions.append(Sync(GUARD))
            self._is_guard_dirty = False
        self._append(JOURNAL, data)
        self.journal_bytes += len(data)
        self.is_journal_dirty = True

    def to_guard(self, data: bytes) -> None:
        """Append a vote's record, after everything that it rests on is durable."""
        if self.is_journal_dirty:
            self._actions.append(Sync(JOURNAL))
            self.is_journal_dirty = False
        self._append(GUARD, data)
        self.guard_bytes += len(data)
        self._is_guard_dirty = True

    def sync_journal(self) -> None:
        """Sync the journal before a vote is requested from another process, which has the guard."""
        if self.is_journal_dirty:
            self._actions.append(Sync(JOURNAL))
            self.is_journal_dirty = False

    def finish(self) -> list[Action]:
        """Return the writes; after them every vote is durable."""
        if self._is_guard_dirty:
            self._actions.append(Sync(GUARD))
        return self._actions

    def _append(self, log: str, data: bytes) -> None:
        match self._actions[-1:]:
            case [Append(last, before)] if last == log:
                self._actions[-1] = Append(log, before + data)
            case _:
                self._actions.append(Append(log, data))
