"""Who is sent what of a compact proposal, and when the whole one follows: both ends, without I/O.

The leader decides. Members say that they have the proposal, or what they lack; whoever lacks much, and whoever is
silent for too long, is sent the whole message, all of them together, so that relays and a swap carry it as they
carry any block. A member that needed it whole is spared the detour for a while: a mute or poor one costs its wait
once, and nobody else waits for it. A receiver rebuilds one form of a leader and view; what the leader does not
answer it asks of one more seat, and then gives up and asks for the whole.

The shell passes monotonic seconds in, calls ``tick`` every TICK_S while ``is_active``, and does the effects in
order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from node.consensus.compact import (
    Form,
    Have,
    Rebuild,
    Some,
    WantSome,
    WantWhole,
    Word,
    bits_of,
    message_hash,
    numbers_of,
)

__all__ = [
    "TICK_S",
    "CompactParameters",
    "Deliver",
    "Effect",
    "Receiver",
    "Say",
    "SendSome",
    "SendWhole",
    "Sender",
]

TICK_S: Final = 0.02
_FAR_S: Final = float("inf")
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class CompactParameters:
    """Times in seconds and bounds of what is under way."""

    silence_s: float = 0.3
    """Without news for so long and two round trips, those who are silent are sent the whole message."""
    rtt_s_max: float = 0.3
    """Round trips that are longer speak of a receiver that is busy, not far away."""
    latest_s: float = 0.8
    """Nobody waits longer for the whole message to leave, whatever others say meanwhile."""
    standstill_s: float = 0.1
    """A tick that comes later than this found the node busy: its own time is not held against the silent, ..."""
    standstill_s_max: float = 0.5
    """... up to so much for each message."""
    gather_s: float = 0.03
    """How long those who ask for the whole message are gathered, so that one upload serves them."""
    whole_s: float = 30.0
    """How long a member that needed a whole message gets the next ones whole at once."""
    keep_s: float = 10.0
    """How long questions about a message are answered."""
    kept_max: int = 4
    """Own messages that are kept for questions, the newest ones."""
    answers_share: int = 2
    """All answers about a message together are at most this part of it; beyond, one upload of all is cheaper."""
    missing_share: int = 8
    """Who lacks more than this part of the transactions asks for the whole message; no answer is larger either."""
    answer_s: float = 0.15
    """How long an answer may take beyond two round trips."""
    asks_max: int = 2
    pending_max: int = 8
    """Forms that are being rebuilt at once."""
    held_max: int = 2
    """Rebuilt bodies out of which other seats are helped."""
    repeat_s: float = 1.0
    """A whole message that comes so soon after it was rebuilt here is one that crossed our word, and goes."""
    remember_max: int = 512


class Say(NamedTuple):
    """Send a word about a form."""

    address: bytes
    word: Word


class SendSome(NamedTuple):
    """Send transactions that were asked for."""

    address: bytes
    answer: Some


class SendWhole(NamedTuple):
    """Bring the whole message to these members."""

    data: bytes
    addresses: tuple[bytes, ...]


class Deliver(NamedTuple):
    """A message is whole: it is as if its sender had sent it so."""

    sender: bytes
    data: bytes


Effect: TypeAlias = Say | SendSome | SendWhole | Deliver


@dataclass(slots=True)
class _Body:
    """Transactions that may be asked for; everybody is answered once."""

    transactions: Sequence[bytes]
    answer_bytes_max: int
    bytes_left: int
    answered: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, transactions: Sequence[bytes], size_bytes: int, parameters: CompactParameters) -> _Body:
        return cls(transactions, size_bytes // parameters.missing_share, size_bytes // parameters.answers_share)

    def answer(self, address: bytes, ask: WantSome) -> Some | None:
        numbers = numbers_of(ask.bits)
        if not numbers or numbers[-1] >= len(self.transactions) or address in self.answered:
            return None
        raws = tuple([self.transactions[number] for number in numbers])
        size = sum(map(len, raws))
        if size > min(self.answer_bytes_max, self.bytes_left):
            return None
        self.answered.add(address)
        self.bytes_left -= size
        return Some(ask.root, raws)


@dataclass(slots=True)
class _Sent:
    data: bytes
    body: _Body
    rtt_s: dict[bytes, float]
    """Of every member that has not been served yet: neither has it the message, nor was it sent whole."""
    members: frozenset[bytes]
    began: float
    news: float
    slack_s: float = 0.0
    asking: dict[bytes, None] = field(default_factory=dict)
    flush_at: float = _FAR_S


class Sender:
    """The leader's end."""

    def __init__(self, parameters: CompactParameters, counters: Counter[str]) -> None:
        self._parameters = parameters
        self._counters = counters
        self._sent: OrderedDict[bytes, _Sent] = OrderedDict()
        self._whole_until: OrderedDict[bytes, float] = OrderedDict()
        self._ticked = _FAR_S

    @property
    def is_active(self) -> bool:
        """Whether ``tick`` has anything to do."""
        return any(sent.rtt_s for sent in self._sent.values())

    def split(self, addresses: Iterable[bytes], now: float) -> tuple[list[bytes], list[bytes]]:
        """Return who of these is sent the form, and who the whole message at once."""
        compact: list[bytes] = []
        whole: list[bytes] = []
        for address in addresses:
            (whole if self._whole_until.get(address, 0.0) > now else compact).append(address)
        return compact, whole

    def sent(
        self, root: bytes, data: bytes, transactions: Sequence[bytes], rtt_s: Mapping[bytes, float], now: float
    ) -> None:
        """Take notice of a form that has left for the members named by ``rtt_s``, with their round trips."""
        parameters = self._parameters
        if not self.is_active:
            self._ticked = now
        body = _Body.of(transactions, len(data), parameters)
        sent = _Sent(data, body, dict(rtt_s), frozenset(rtt_s), now, now)
        _remember(self._sent, root, sent, parameters.kept_max)

    def knows(self, root: bytes) -> bool:
        """Tell whether that is a message of our own that questions are answered about."""
        return root in self._sent

    def word(self, address: bytes, word: Word, now: float) -> list[Effect]:
        """Take what somebody says about a form."""
        sent = self._sent.get(word.root)
        if sent is None or address not in sent.members:
            return []
        match word:
            case Have():
                if sent.rtt_s.pop(address, None) is not None:
                    sent.news = now
                sent.asking.pop(address, None)
                self._whole_until.pop(address, None)
                return []
            case WantSome():
                answer = sent.body.answer(address, word)
                if answer is None:
                    self._want_whole(sent, address, now)
                    return []
                sent.news = now
                self._counters["answered"] += 1
                return [SendSome(address, answer)]
            case WantWhole():
                self._want_whole(sent, address, now)
                return []
            case _:
                raise AssertionError(word)

    def _want_whole(self, sent: _Sent, address: bytes, now: float) -> None:
        if address in sent.rtt_s and address not in sent.asking:
            sent.asking[address] = None
            sent.flush_at = min(sent.flush_at, now + self._parameters.gather_s)

    def tick(self, now: float) -> list[Effect]:
        """Serve those who ask for whole messages or have been silent for too long."""
        parameters = self._parameters
        stood_s = now - self._ticked
        self._ticked = now
        effects: list[Effect] = []
        for root, sent in list(self._sent.items()):
            if not sent.rtt_s:
                if now > sent.began + parameters.keep_s:
                    del self._sent[root]
                continue
            if stood_s > parameters.standstill_s:
                lost_s = min(stood_s, parameters.standstill_s_max - sent.slack_s)
                sent.slack_s += lost_s
                sent.news += lost_s
            silent = [address for address in sent.rtt_s if address not in sent.asking]
            if silent:
                rtt_s = min(max(sent.rtt_s[address] for address in silent), parameters.rtt_s_max)
                latest = sent.began + sent.slack_s + parameters.latest_s
                if now >= min(sent.news + parameters.silence_s + 2 * rtt_s, latest):
                    self._counters["silent"] += len(silent)
                    sent.asking |= dict.fromkeys(silent)
                    sent.flush_at = now
            if sent.asking and now >= sent.flush_at:
                addresses = tuple(sent.asking)
                sent.asking.clear()
                sent.flush_at = _FAR_S
                for address in addresses:
                    del sent.rtt_s[address]
                    self._whole_until.pop(address, None)
                    _remember(self._whole_until, address, now + parameters.whole_s, parameters.remember_max)
                self._counters["whole"] += len(addresses)
                effects.append(SendWhole(sent.data, addresses))
        return effects


@dataclass(slots=True)
class _Pending:
    sender: bytes
    rebuild: Rebuild
    rtt_s: float = 0.0
    helpers: list[bytes] = field(default_factory=list)
    asked: set[bytes] = field(default_factory=set)
    deadline: float = _FAR_S


class _Done(NamedTuple):
    sender: bytes
    size_bytes: int
    at: float


class Receiver:
    """A member's end."""

    def __init__(self, parameters: CompactParameters, counters: Counter[str]) -> None:
        self._parameters = parameters
        self._counters = counters
        self._pending: OrderedDict[bytes, _Pending] = OrderedDict()
        self._held: OrderedDict[bytes, _Body] = OrderedDict()
        self._done: OrderedDict[bytes, _Done] = OrderedDict()
        self._slots: OrderedDict[tuple[bytes, int, int], None] = OrderedDict()

    @property
    def is_active(self) -> bool:
        """Whether ``tick`` has anything to do."""
        return any(pending.deadline < _FAR_S for pending in self._pending.values())

    @property
    def pending_count(self) -> int:
        """Forms that are not whole yet."""
        return len(self._pending)

    def form(self, sender: bytes, form: Form, now: float) -> tuple[Rebuild | None, list[Effect]]:
        """Take a form of the leader of its view; returned is what to fill from the pool, if it is worth that.

        A leader has one proposal in a view, so a second form costs it a whole message and us nothing.
        """
        done = self._done.get(form.root)
        if done is not None and now < done.at + self._parameters.repeat_s:
            return None, [Say(sender, Have(form.root))]
        if form.root in self._pending:
            return None, []
        candidate = form.proposal.candidate
        slot = sender, candidate.epoch, candidate.view
        if slot in self._slots:
            return None, [Say(sender, WantWhole(form.root))]
        _remember(self._slots, slot, None, self._parameters.remember_max)
        effects: list[Effect] = []
        before = next((root for root, pending in self._pending.items() if pending.sender == sender), None)
        if before is not None or len(self._pending) >= self._parameters.pending_max:
            effects.append(self._give_up(before or next(iter(self._pending))))
        pending = self._pending[form.root] = _Pending(sender, Rebuild(form))
        return pending.rebuild, effects

    def filled(self, root: bytes, helpers: Sequence[bytes], rtt_s: float, now: float) -> list[Effect]:
        """Ask for what the pool did not have: of the leader, and of ``helpers`` in turn if it is silent."""
        pending = self._pending.get(root)
        if pending is None or not pending.rebuild.missing:
            return []
        parameters, rebuild = self._parameters, pending.rebuild
        self._counters["missing"] += len(rebuild.missing)
        if len(rebuild.missing) * parameters.missing_share > rebuild.form.header.tx_count:
            return [self._give_up(root)]
        pending.rtt_s = min(rtt_s, parameters.rtt_s_max)
        pending.helpers = [pending.sender, *helpers][: parameters.asks_max]
        return [self._ask(root, pending, now)]

    def _ask(self, root: bytes, pending: _Pending, now: float) -> Effect:
        if not pending.helpers:
            return self._give_up(root)
        address = pending.helpers.pop(0)
        pending.asked.add(address)
        pending.deadline = now + self._parameters.answer_s + 2 * pending.rtt_s
        self._counters["asked"] += 1
        return Say(address, WantSome(root, bits_of(pending.rebuild.missing)))

    def _give_up(self, root: bytes) -> Effect:
        self._counters["gave_up"] += 1
        return Say(self._pending.pop(root).sender, WantWhole(root))

    def some(self, address: bytes, answer: Some) -> Rebuild | None:
        """Take an answer; returned is what is complete now."""
        pending = self._pending.get(answer.root)
        if pending is None or address not in pending.asked or not pending.rebuild.missing:
            return None
        if not pending.rebuild.supply(answer.raws):
            return None
        pending.deadline = _FAR_S
        return pending.rebuild

    def finished(self, root: bytes, data: bytes | None, now: float) -> list[Effect]:
        """Deliver what came of a complete rebuild; None where it is not what the leader hashed."""
        pending = self._pending.get(root)
        if pending is None:
            return []
        if data is None:
            self._counters["mismatch"] += 1
            return [self._give_up(root)]
        del self._pending[root]
        self._counters["rebuilt"] += 1
        _remember(self._done, root, _Done(pending.sender, len(data), now), self._parameters.remember_max)
        body = _Body.of(pending.rebuild.transactions, len(data), self._parameters)
        _remember(self._held, root, body, self._parameters.held_max)
        return [Deliver(pending.sender, data), Say(pending.sender, Have(root))]

    def help(self, address: bytes, ask: WantSome) -> list[Effect]:
        """Answer another seat out of a body that was rebuilt here."""
        body = self._held.get(ask.root)
        answer = None if body is None else body.answer(address, ask)
        if answer is None:
            return []
        self._counters["helped"] += 1
        return [SendSome(address, answer)]

    def whole(self, sender: bytes, data: bytes, now: float) -> bool:
        """Take notice of a whole message; False for one that was delivered a moment ago.

        Later it is passed on: its sender repeats it because it seems to have been lost behind this point.
        """
        known = sender, len(data)
        is_pending = any((p.sender, p.rebuild.form.size_bytes) == known for p in self._pending.values())
        repeat_s = self._parameters.repeat_s
        is_recent = any((d.sender, d.size_bytes) == known and now < d.at + repeat_s for d in self._done.values())
        if not is_pending and not is_recent:
            return True
        root = message_hash(data)
        if self._pending.pop(root, None) is not None:
            _remember(self._done, root, _Done(sender, len(data), now), self._parameters.remember_max)
            return True
        done = self._done.get(root)
        return done is None or now >= done.at + repeat_s

    def tick(self, now: float) -> list[Effect]:
        """Ask elsewhere what has not been answered."""
        late = [(root, pending) for root, pending in self._pending.items() if now >= pending.deadline]
        return [self._ask(root, pending, now) for root, pending in late]


def _remember(kept: OrderedDict[_K, _V], key: _K, value: _V, limit: int) -> None:
    kept[key] = value
    while len(kept) > limit:
        kept.popitem(last=False)
