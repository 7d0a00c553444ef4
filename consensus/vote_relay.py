"""Relays votes and certificates between seats that have no connection to each other. Pure (network.md R16).

In a healthy network each seat is connected to each other seat, and the relay costs no byte. A seat that is not
connected to another live seat also publishes its votes and certificates by gossip. Each node in the gossip judges
them before it forwards them. It forwards one vote of a seat for each kind and view, and only for
views near the current one. So the traffic that a faulty seat can cause is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from consensus.core.limits import VIEWS_AHEAD
from consensus.votes import Certificate, Check, certificate_checks, vote_check
from consensus.wire import Certificates, Message, Votes, decode_message, encode_message
from state.primitives.codec import decode, encode
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.votes import FINALIZE, NOTARIZE, Candidate, Vote

__all__ = [
    "ALIVE_VIEWS",
    "PAYLOAD_BYTES_MAX",
    "REPEATS_DISTANT_OF_ONE_PER_S_MAX",
    "REPEATS_DISTANT_PER_S_MAX",
    "REPEATS_PER_S_MAX",
    "REPEAT_MS",
    "SOURCES_MAX",
    "VIEWS_AHEAD_MAX",
    "VIEWS_BEHIND_MAX",
    "Judged",
    "Opinion",
    "Statement",
    "VoteRelay",
    "decode_statement",
    "decode_wanted",
    "encode_statement",
    "encode_wanted",
]

PAYLOAD_BYTES_MAX: Final = 16 * 1024
REPEAT_NUMBER_MAX: Final = 2**16
VIEWS_AHEAD_MAX: Final = 16
"""A node relays statements up to this many views above its own: it may be behind the seats that it connects."""
VIEWS_BEHIND_MAX: Final = 16
"""A node relays statements up to this many views below its own, for seats that are behind."""
ALIVE_VIEWS: Final = 8
"""A seat counts as alive until this many views have passed since it was heard, or since the start."""
REPEAT_MS: Final = 1_000
"""The same statement is not forwarded again sooner. Seats repeat statements because messages get lost."""
REPEATS_PER_S_MAX: Final = 512
"""Repeated statements of the current views that are forwarded in a second, from all senders. A hundred seats
make fewer, so a peer that repeats some of them does not keep the others back."""
REPEATS_DISTANT_PER_S_MAX: Final = 128
"""Repeated statements of other views that are forwarded in a second, for nodes that are behind or ahead."""
REPEATS_DISTANT_OF_ONE_PER_S_MAX: Final = 64
"""Of those, the most that come from one peer."""
SOURCES_MAX: Final = 8
"""Peers that are remembered for each candidate, as holders of its proposal."""
WANTED_BYTES_MAX: Final = 64

Statement: TypeAlias = "Vote | Certificate"
"""What a payload carries."""


class Opinion(Enum):
    """The decision about a payload."""

    FORWARD = "forward"
    IGNORE = "ignore"
    """The view is too far away, or enough repeats were forwarded; the sender is not to blame."""
    REJECT = "reject"
    """No honest node forwards this: the sender is to blame."""


class Judged(NamedTuple):
    """A decoded payload. ``opinion`` None: it depends on the signatures ``checks``, see ``VoteRelay.settle``."""

    opinion: Opinion | None
    statement: Statement | None = None
    checks: tuple[Check, ...] = ()


class _Entry:
    """The first statement of one seat and kind in one view, or the first certificate of one kind in it."""

    __slots__ = ("forwarded_ms", "has_conflict", "published", "statement")

    def __init__(self, statement: Statement) -> None:
        self.statement = statement
        self.forwarded_ms: int | None = None
        self.published = 0
        self.has_conflict = False


_IGNORED: Final = Judged(Opinion.IGNORE)
_REJECTED: Final = Judged(Opinion.REJECT)
_NOBODY: Final = -1
"""Stands in the place of the seat for certificates."""


def encode_statement(statement: Statement, repeat: int = 0) -> bytes:
    """Return the payload of a statement; ``repeat`` makes it differ, or gossip would drop it as known."""
    message: Message = Votes((statement,)) if isinstance(statement, Vote) else Certificates((statement,))
    return encode([repeat % REPEAT_NUMBER_MAX, encode_message(message)])


def decode_statement(payload: bytes) -> Statement:
    """Return the statement of a payload; signatures are not verified. Raises DecodeError."""
    match decode(payload, limit_bytes=PAYLOAD_BYTES_MAX):
        case [int(repeat), bytes(inner)] if 0 <= repeat < REPEAT_NUMBER_MAX:
            message = decode_message(inner)
        case _:
            raise DecodeError("payload: not [repeat, message]")
    match message:
        case Votes((vote,)):
            return vote
        case Certificates((certificate,)):
            return certificate
        case _:
            raise DecodeError("not one vote or certificate")


def encode_wanted(candidate: Candidate) -> bytes:
    """Return the request for the proposal of a candidate."""
    return encode(list(candidate))


def decode_wanted(data: bytes) -> Candidate:
    """Return the candidate whose proposal is requested. Raises DecodeError."""
    match decode(data, limit_bytes=WANTED_BYTES_MAX):
        case [int(epoch), int(view), int(parent_view), bytes(block_hash)] if (
            0 <= epoch < 2**32 and 0 <= parent_view < view < 2**48 and len(block_hash) == HASH_BYTES
        ):
            return Candidate(epoch, view, parent_view, block_hash)
        case _:
            raise DecodeError("not a candidate")


class VoteRelay:
    """The recent statements that one node knows, and which of them it forwards. ``own`` is its address."""

    def __init__(self, genesis_hash: bytes, own: bytes) -> None:
        self._genesis_hash = genesis_hash
        self._own = own
        self._epoch = -1
        self._view = 0
        self._committees: dict[int, Committee] = {}
        self._entries: dict[tuple[int, int], dict[tuple[int, int], _Entry]] = {}
        """By epoch and view, then by kind and seat."""
        self._last_view: list[int] = []
        """For each seat, the view of this epoch in which this node last heard it."""
        self._sources: dict[Candidate, list[bytes]] = {}
        self._repeats_s = 0
        self._repeats = Counter[bytes | None]()
        """Repeats forwarded in that second: of current views (None), of other views by the sending peer."""

    # Events of this node.

    @property
    def epoch(self) -> int:
        """The current epoch; -1 before the first."""
        return self._epoch

    @property
    def view(self) -> int:
        """The current view."""
        return self._view

    def entered(
        self, epoch: int, view: int, committee: Committee, following: Committee | None
    ) -> tuple[Statement, ...]:
        """Begin a view; the committees are those of this epoch and, if it is known, of the next one.

        Returns the statements of views that the replica admits from this view on. It ignored them before.
        """
        listened = self._view + VIEWS_AHEAD
        if epoch != self._epoch:
            listened = 0
            self._epoch, self._committees = epoch, {epoch: committee}
            if following is not None:
                self._committees[epoch + 1] = following
            self._last_view = [view] * committee.size
        self._view = view
        early = tuple(
            entry.statement
            for known in range(max(listened + 1, view), view + VIEWS_AHEAD + 1)
            for entry in self._entries.get((epoch, known), {}).values()
        )
        first = epoch, view - VIEWS_BEHIND_MAX
        for old in [at for at in self._entries if at < first]:
            del self._entries[old]
        for gone in [candidate for candidate in self._sources if candidate[:2] < first]:
            del self._sources[gone]
        return early

    def heard(self, vote: Vote, sender: bytes) -> None:
        """Take in a verified vote, whichever peer sent it."""
        if not self._is_near(vote.epoch, vote.view):
            return
        entries = self._entries.setdefault((vote.epoch, vote.view), {})
        entry = entries.setdefault((vote.kind, vote.seat), _Entry(vote))
        if vote.epoch == self._epoch and vote.seat < len(self._last_view):
            self._last_view[vote.seat] = self._view  # whatever the view of the vote, the seat is alive now
        if vote.kind == NOTARIZE and entry.statement == vote:
            sources = self._sources.setdefault(vote.candidate, [])
            if sender not in sources and sender != self._own and len(sources) < SOURCES_MAX:
                sources.append(sender)

    def certified(self, certificate: Certificate) -> None:
        """Note the seats that voted for a verified certificate."""
        if certificate.epoch == self._epoch:
            bits = int.from_bytes(certificate.bitmap, "little")
            for seat, last in enumerate(self._last_view):
                if bits >> seat & 1 and last < certificate.view:
                    self._last_view[seat] = certificate.view

    # Queries.

    def lacking(self, connected: Container[bytes]) -> tuple[bytes, ...]:
        """Return the addresses of the seats of this epoch that count as alive and are not connected."""
        committee = self._committees.get(self._epoch)
        if committee is None:
            return ()
        return tuple(
            seat.address
            for seat, last in zip(committee.seats, self._last_view, strict=True)
            if seat.address not in connected and seat.address != self._own and self._view - last <= ALIVE_VIEWS
        )

    def has_seat(self) -> bool:
        """Tell whether this node has a seat in this epoch."""
        committee = self._committees.get(self._epoch)
        return committee is not None and committee.seat_of(self._own) is not None

    def is_seat(self, address: bytes) -> bool:
        """Tell whether an address has a seat in this epoch."""
        committee = self._committees.get(self._epoch)
        return committee is not None and committee.seat_of(address) is not None

    def sources(self, candidate: Candidate) -> tuple[bytes, ...]:
        """Return the peers that sent a NOTARIZE vote for a candidate, in the order of arrival."""
        return tuple(self._sources.get(candidate, ()))

    def holders(self, block_hash: bytes) -> tuple[bytes, ...]:
        """Return the peers that voted NOTARIZE for a block and sent that vote themselves: they have the block."""
        return tuple(
            source
            for candidate, sources in self._sources.items()
            if candidate.block_hash == block_hash
            for source in sources
            if self.is_voter(source, candidate)
        )

    def knows(self, candidate: Candidate) -> bool:
        """Tell whether a seat is known to have voted for a candidate."""
        return candidate in self._sources

    def is_voter(self, address: bytes, candidate: Candidate) -> bool:
        """Tell whether the seat of an address voted NOTARIZE for a candidate, so that it has the block."""
        committee = self._committees.get(candidate.epoch)
        seat = None if committee is None else committee.seat_of(address)
        entry = None if seat is None else self._entries.get(candidate[:2], {}).get((NOTARIZE, seat))
        return entry is not None and entry.statement.candidate == candidate

    def leader(self, epoch: int, view: int) -> bytes | None:
        """Return the address that leads a view, as far as this node knows."""
        committee = self._committees.get(epoch)
        return None if committee is None else committee.seats[committee.leader(view)].address

    def is_current(self, candidate: Candidate) -> bool:
        """Tell whether a replica in the current view would take the proposal of a candidate."""
        return candidate.epoch == self._epoch and self._view <= candidate.view <= self._view + VIEWS_AHEAD

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the known candidates that are current."""
        return tuple(filter(self.is_current, self._sources))

    # Own statements.

    def publish(self, message: Message) -> list[bytes]:
        """Return the payloads that carry votes or certificates of this node; nothing for other messages.

        A statement that was published before gets another ``repeat``: gossip drops payloads that it knows.
        """
        statement: tuple[Statement, ...]
        match message:
            case Votes(votes):
                statement = votes
            case Certificates(certificates):
                statement = certificates
            case _:
                return []
        payloads = []
        for one in statement:
            if not self._is_near(one.epoch, one.view):
                continue
            entry = self._entries.setdefault((one.epoch, one.view), {}).setdefault(_slot(one), _Entry(one))
            if _content(entry.statement) != _content(one):
                continue
            payloads.append(encode_statement(entry.statement, entry.published))
            entry.published += 1
        return payloads

    # Statements of others.

    def judge(self, payload: bytes, sender: bytes, now_ms: int) -> Judged:
        """Judge a payload of a peer. One that is known already, or is malformed, costs no signature check."""
        try:
            statement = decode_statement(payload)
            if not self._is_near(statement.epoch, statement.view):
                return _IGNORED
            entry = self._entries.get((statement.epoch, statement.view), {}).get(_slot(statement))
            if entry is not None:
                if entry.statement == statement:
                    return Judged(self._again(entry, sender, now_ms), statement)
                if (
                    entry.has_conflict
                    or isinstance(statement, Certificate)
                    or _content(entry.statement) == _content(statement)
                ):
                    return _IGNORED
            committee = self._committees[statement.epoch]
            if isinstance(statement, Vote):
                return Judged(None, statement, (vote_check(committee, self._genesis_hash, statement),))
            return Judged(None, statement, certificate_checks(committee, self._genesis_hash, statement))
        except DecodeError:
            return _REJECTED

    def settle(self, statement: Statement, sender: bytes, now_ms: int) -> tuple[Opinion, bool]:
        """Take in a judged statement with valid signatures; return whether it is forwarded and whether it is new.

        A second, different vote of a seat is a fault of that seat. It is new, but only evidence spreads it.
        """
        if not self._is_near(statement.epoch, statement.view):
            return Opinion.IGNORE, False
        entries = self._entries.setdefault((statement.epoch, statement.view), {})
        entry = entries.get(_slot(statement))
        if entry is None:
            entry = entries[_slot(statement)] = _Entry(statement)
            entry.forwarded_ms = now_ms
            self._note(statement, sender)
            return Opinion.FORWARD, True
        if entry.statement == statement:  # it arrived by another path while its signature was verified
            return self._again(entry, sender, now_ms), False
        is_news = not entry.has_conflict and _content(entry.statement) != _content(statement)
        entry.has_conflict = True
        return Opinion.IGNORE, is_news

    def _note(self, statement: Statement, sender: bytes) -> None:
        if isinstance(statement, Vote):
            self.heard(statement, sender)
        else:
            self.certified(statement)

    def _again(self, entry: _Entry, sender: bytes, now_ms: int) -> Opinion:
        """Judge a statement that is known: it is forwarded once, then within the limits for repeats."""
        if entry.forwarded_ms is not None and (
            now_ms - entry.forwarded_ms < REPEAT_MS or not self._may_repeat(entry.statement, sender, now_ms)
        ):
            return Opinion.IGNORE
        entry.forwarded_ms = now_ms
        return Opinion.FORWARD

    def _may_repeat(self, statement: Statement, sender: bytes, now_ms: int) -> bool:
        """Count against the repeats of this second; statements of current views have a limit of their own."""
        if self._repeats_s != now_ms // 1_000:
            self._repeats_s = now_ms // 1_000
            self._repeats.clear()
        is_here = statement.epoch == self._epoch
        # A seat votes FINALIZE when the view is over already.
        is_final = statement.kind == FINALIZE and statement.view == self._view - 1
        if is_here and (is_final or self._view <= statement.view <= self._view + VIEWS_AHEAD):
            self._repeats[None] += 1
            return self._repeats[None] <= REPEATS_PER_S_MAX
        if is_here and statement.view < self._view and isinstance(statement, Vote) and statement.kind != FINALIZE:
            return False  # the certificate of that view helps a seat that is behind
        distant = self._repeats.total() - self._repeats[None]
        if distant >= REPEATS_DISTANT_PER_S_MAX or self._repeats[sender] >= REPEATS_DISTANT_OF_ONE_PER_S_MAX:
            return False
        self._repeats[sender] += 1
        return True

    def _is_near(self, epoch: int, view: int) -> bool:
        if epoch not in self._committees:
            return False
        if epoch == self._epoch:
            return self._view - VIEWS_BEHIND_MAX <= view <= self._view + VIEWS_AHEAD_MAX
        return epoch == self._epoch + 1 and view <= VIEWS_AHEAD_MAX


def _slot(statement: Statement) -> tuple[int, int]:
    return statement.kind, statement.seat if isinstance(statement, Vote) else _NOBODY


def _content(statement: Statement) -> tuple[int, int, int, int, bytes]:
    """The statement without its seats and signatures."""
    return statement[0], statement[1], statement[2], statement[3], statement[4]
