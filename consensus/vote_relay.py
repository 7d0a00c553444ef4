"""What seats say, passed on by others: for seats that have no connection to each other. Pure.

In a healthy network every seat hears every other one itself, and nothing of this costs a byte. A seat that lacks
the connection to another one which is alive publishes its votes and certificates as well; whoever takes part in
the gossip, with a seat or without, judges them before they go on. One word of a seat is passed on for each kind
and view, near the present view only, so the most that a faulty seat can have carried is known.
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
    "REPEATS_AFAR_OF_ONE_PER_S_MAX",
    "REPEATS_AFAR_PER_S_MAX",
    "REPEATS_PER_S_MAX",
    "REPEAT_MS",
    "SOURCES_MAX",
    "VIEWS_AHEAD_MAX",
    "VIEWS_BEHIND_MAX",
    "Hearsay",
    "Judged",
    "Opinion",
    "Said",
    "decode_said",
    "decode_wanted",
    "encode_said",
    "encode_wanted",
]

PAYLOAD_BYTES_MAX: Final = 16 * 1024
REPEAT_NUMBER_MAX: Final = 2**16
VIEWS_AHEAD_MAX: Final = 16
"""How far above its own view a node passes words on: it may be behind those whom it connects."""
VIEWS_BEHIND_MAX: Final = 16
"""The same below: who hears the others late, and is heard again by this, may be behind."""
ALIVE_VIEWS: Final = 8
"""A seat is taken for alive while no more views have passed since it was heard, or since the start."""
REPEAT_MS: Final = 1_000
"""How soon the same word may be passed on again: it is said again because it was lost somewhere."""
REPEATS_PER_S_MAX: Final = 512
"""Words that replicas of the present view wait for and that are passed on again, whoever says them again: anybody
may. A hundred seats say less of such words in all, so nobody who repeats some of them keeps the others back."""
REPEATS_AFAR_PER_S_MAX: Final = 128
"""The same of other words, which are of use to nodes that stand elsewhere; ..."""
REPEATS_AFAR_OF_ONE_PER_S_MAX: Final = 64
"""... and so many of these for one peer that brings them."""
SOURCES_MAX: Final = 8
"""Peers remembered as knowing of a candidate."""
WANTED_BYTES_MAX: Final = 64

Said: TypeAlias = "Vote | Certificate"


class Opinion(Enum):
    """What becomes of a payload."""

    FORWARD = "forward"
    IGNORE = "ignore"
    """Too far off, or enough of the like: nobody's fault."""
    REJECT = "reject"
    """No honest node has passed this on."""


class Judged(NamedTuple):
    """A payload that was looked at. ``opinion`` None: it depends on the signatures, see ``Hearsay.settle``."""

    opinion: Opinion | None
    said: Said | None = None
    checks: tuple[Check, ...] = ()


class _Word:
    """What is known to have been said of one kind in one view, by one seat or as a certificate."""

    __slots__ = ("forwarded_ms", "has_conflict", "published", "said")

    def __init__(self, said: Said) -> None:
        self.said = said
        self.forwarded_ms: int | None = None
        self.published = 0
        self.has_conflict = False


_IGNORED: Final = Judged(Opinion.IGNORE)
_REJECTED: Final = Judged(Opinion.REJECT)
_NOBODY: Final = -1
"""In the place of a seat, for certificates."""


def encode_said(said: Said, repeat: int = 0) -> bytes:
    """Return the payload that carries one vote or certificate; ``repeat`` gives each time its own name."""
    message: Message = Votes((said,)) if isinstance(said, Vote) else Certificates((said,))
    return encode([repeat % REPEAT_NUMBER_MAX, encode_message(message)])


def decode_said(payload: bytes) -> Said:
    """Return what a payload carries; nothing is verified. Raises DecodeError."""
    match decode(payload, limit_bytes=PAYLOAD_BYTES_MAX):
        case [int(repeat), bytes(inner)] if 0 <= repeat < REPEAT_NUMBER_MAX:
            message = decode_message(inner)
        case _:
            raise DecodeError("not a word of a seat")
    match message:
        case Votes((vote,)):
            return vote
        case Certificates((certificate,)):
            return certificate
        case _:
            raise DecodeError("not one vote or certificate")


def encode_wanted(candidate: Candidate) -> bytes:
    """Return the question for the proposal of a candidate."""
    return encode(list(candidate))


def decode_wanted(data: bytes) -> Candidate:
    """Return whose proposal is asked for. Raises DecodeError."""
    match decode(data, limit_bytes=WANTED_BYTES_MAX):
        case [int(epoch), int(view), int(parent_view), bytes(block_hash)] if (
            0 <= epoch < 2**32 and 0 <= parent_view < view < 2**48 and len(block_hash) == HASH_BYTES
        ):
            return Candidate(epoch, view, parent_view, block_hash)
        case _:
            raise DecodeError("not a candidate")


class Hearsay:
    """What one node knows to have been said lately, and what of it goes on. ``own`` is its address."""

    def __init__(self, genesis_hash: bytes, own: bytes) -> None:
        self._genesis_hash = genesis_hash
        self._own = own
        self._epoch = -1
        self._view = 0
        self._committees: dict[int, Committee] = {}
        self._words: dict[tuple[int, int], dict[tuple[int, int], _Word]] = {}
        """By epoch and view, then by kind and seat."""
        self._last_view: list[int] = []
        """Of each seat, the view of this epoch in which it was heard last."""
        self._sources: dict[Candidate, list[bytes]] = {}
        self._repeats_s = 0
        self._repeats = Counter[bytes | None]()
        """In that second, how many: of the words that are waited for (None), and of others by who brought them."""

    # What the node tells.

    @property
    def epoch(self) -> int:
        """The present epoch; -1 before the first."""
        return self._epoch

    @property
    def view(self) -> int:
        """The present view."""
        return self._view

    def entered(
        self, epoch: int, view: int, committee: Committee, following: Committee | None
    ) -> tuple[Said, ...]:
        """Take notice of the present view; the committees are those of this epoch and, if it is known, the next.

        Returns what was said for views that the replica begins to listen to with this one: it has let it pass.
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
            word.said
            for known in range(max(listened + 1, view), view + VIEWS_AHEAD + 1)
            for word in self._words.get((epoch, known), {}).values()
        )
        first = epoch, view - VIEWS_BEHIND_MAX
        for old in [at for at in self._words if at < first]:
            del self._words[old]
        for gone in [candidate for candidate in self._sources if candidate[:2] < first]:
            del self._sources[gone]
        return early

    def heard(self, vote: Vote, sender: bytes) -> None:
        """Take notice of a verified vote, whoever brought it."""
        if not self._is_near(vote.epoch, vote.view):
            return
        words = self._words.setdefault((vote.epoch, vote.view), {})
        word = words.setdefault((vote.kind, vote.seat), _Word(vote))
        if vote.epoch == self._epoch and vote.seat < len(self._last_view):
            self._last_view[vote.seat] = self._view  # of whatever view it speaks: it does so now
        if vote.kind == NOTARIZE and word.said == vote:
            sources = self._sources.setdefault(vote.candidate, [])
            if sender not in sources and sender != self._own and len(sources) < SOURCES_MAX:
                sources.append(sender)

    def certified(self, certificate: Certificate) -> None:
        """Take notice of who voted for a verified certificate."""
        if certificate.epoch == self._epoch:
            bits = int.from_bytes(certificate.bitmap, "little")
            for seat, last in enumerate(self._last_view):
                if bits >> seat & 1 and last < certificate.view:
                    self._last_view[seat] = certificate.view

    # What it asks.

    def lacking(self, connected: Container[bytes]) -> tuple[bytes, ...]:
        """Return the seats of this epoch that are alive, as far as is known, and not connected."""
        committee = self._committees.get(self._epoch)
        if committee is None:
            return ()
        return tuple(
            seat.address
            for seat, last in zip(committee.seats, self._last_view, strict=True)
            if seat.address not in connected and seat.address != self._own and self._view - last <= ALIVE_VIEWS
        )

    def sits(self) -> bool:
        """Tell whether this node has a seat in this epoch."""
        committee = self._committees.get(self._epoch)
        return committee is not None and committee.seat_of(self._own) is not None

    def is_seat(self, address: bytes) -> bool:
        """Tell whether an address has a seat in this epoch."""
        committee = self._committees.get(self._epoch)
        return committee is not None and committee.seat_of(address) is not None

    def sources(self, candidate: Candidate) -> tuple[bytes, ...]:
        """Return who told of a candidate, the first first."""
        return tuple(self._sources.get(candidate, ()))

    def holders(self, block_hash: bytes) -> tuple[bytes, ...]:
        """Return who is known to have a block, for it has voted NOTARIZE for it and said so itself."""
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
        """Tell whether an address is known to have voted NOTARIZE for a candidate, so that it has the block."""
        committee = self._committees.get(candidate.epoch)
        seat = None if committee is None else committee.seat_of(address)
        word = None if seat is None else self._words.get(candidate[:2], {}).get((NOTARIZE, seat))
        return word is not None and word.said.candidate == candidate

    def leader(self, epoch: int, view: int) -> bytes | None:
        """Return the address that leads a view, as far as this node knows."""
        committee = self._committees.get(epoch)
        return None if committee is None else committee.seats[committee.leader(view)].address

    def is_current(self, candidate: Candidate) -> bool:
        """Tell whether a replica in the present view would take the proposal of a candidate."""
        return candidate.epoch == self._epoch and self._view <= candidate.view <= self._view + VIEWS_AHEAD

    def candidates(self) -> tuple[Candidate, ...]:
        """Return those that are current."""
        return tuple(filter(self.is_current, self._sources))

    # Saying it oneself.

    def publish(self, message: Message) -> list[bytes]:
        """Return the payloads that carry votes or certificates of this node; nothing for other messages.

        What was published before gets another name, or nobody would pass it on a second time.
        """
        said: tuple[Said, ...]
        match message:
            case Votes(votes):
                said = votes
            case Certificates(certificates):
                said = certificates
            case _:
                return []
        payloads = []
        for one in said:
            if not self._is_near(one.epoch, one.view):
                continue
            word = self._words.setdefault((one.epoch, one.view), {}).setdefault(_slot(one), _Word(one))
            if _content(word.said) != _content(one):
                continue
            payloads.append(encode_said(word.said, word.published))
            word.published += 1
        return payloads

    # Judging what others say.

    def judge(self, payload: bytes, sender: bytes, now_ms: int) -> Judged:
        """Look at a payload of a peer; what is known already, or is wrong in itself, costs no signature."""
        try:
            said = decode_said(payload)
            if not self._is_near(said.epoch, said.view):
                return _IGNORED
            word = self._words.get((said.epoch, said.view), {}).get(_slot(said))
            if word is not None:
                if word.said == said:
                    return Judged(self._again(word, sender, now_ms), said)
                if word.has_conflict or isinstance(said, Certificate) or _content(word.said) == _content(said):
                    return _IGNORED
            committee = self._committees[said.epoch]
            if isinstance(said, Vote):
                return Judged(None, said, (vote_check(committee, self._genesis_hash, said),))
            return Judged(None, said, certificate_checks(committee, self._genesis_hash, said))
        except DecodeError:
            return _REJECTED

    def settle(self, said: Said, sender: bytes, now_ms: int) -> tuple[Opinion, bool]:
        """Take what was judged, its signatures valid: whether it goes on, and whether it is news here.

        A second, other vote of a seat is a fault of that seat: news, but passed on as evidence alone.
        """
        if not self._is_near(said.epoch, said.view):
            return Opinion.IGNORE, False
        words = self._words.setdefault((said.epoch, said.view), {})
        word = words.get(_slot(said))
        if word is None:
            word = words[_slot(said)] = _Word(said)
            word.forwarded_ms = now_ms
            self._note(said, sender)
            return Opinion.FORWARD, True
        if word.said == said:  # it came by another way while its signature was verified
            return self._again(word, sender, now_ms), False
        is_news = not word.has_conflict and _content(word.said) != _content(said)
        word.has_conflict = True
        return Opinion.IGNORE, is_news

    def _note(self, said: Said, sender: bytes) -> None:
        if isinstance(said, Vote):
            self.heard(said, sender)
        else:
            self.certified(said)

    def _again(self, word: _Word, sender: bytes, now_ms: int) -> Opinion:
        """Whether a known word goes on: once at first, then as often as its repeats are of use."""
        if word.forwarded_ms is not None and (
            now_ms - word.forwarded_ms < REPEAT_MS or not self._may_repeat(word.said, sender, now_ms)
        ):
            return Opinion.IGNORE
        word.forwarded_ms = now_ms
        return Opinion.FORWARD

    def _may_repeat(self, said: Said, sender: bytes, now_ms: int) -> bool:
        """Take from the repeats of this second: words that are waited for have a part of their own."""
        if self._repeats_s != now_ms // 1_000:
            self._repeats_s = now_ms // 1_000
            self._repeats.clear()
        is_here = said.epoch == self._epoch
        # FINALIZE is said when the view has passed already.
        is_final = said.kind == FINALIZE and said.view == self._view - 1
        if is_here and (is_final or self._view <= said.view <= self._view + VIEWS_AHEAD):
            self._repeats[None] += 1
            return self._repeats[None] <= REPEATS_PER_S_MAX
        if is_here and said.view < self._view and isinstance(said, Vote) and said.kind != FINALIZE:
            return False  # who is behind is helped by the certificate of that view
        afar = self._repeats.total() - self._repeats[None]
        if afar >= REPEATS_AFAR_PER_S_MAX or self._repeats[sender] >= REPEATS_AFAR_OF_ONE_PER_S_MAX:
            return False
        self._repeats[sender] += 1
        return True

    def _is_near(self, epoch: int, view: int) -> bool:
        if epoch not in self._committees:
            return False
        if epoch == self._epoch:
            return self._view - VIEWS_BEHIND_MAX <= view <= self._view + VIEWS_AHEAD_MAX
        return epoch == self._epoch + 1 and view <= VIEWS_AHEAD_MAX


def _slot(said: Said) -> tuple[int, int]:
    return said.kind, said.seat if isinstance(said, Vote) else _NOBODY


def _content(said: Said) -> tuple[int, int, int, int, bytes]:
    """What is said, without who says it and the signatures."""
    return said[0], said[1], said[2], said[3], said[4]
