"""Exchange of compact proposals, both ends, without I/O: who gets what, and when the whole proposal is sent.

The leader decides. Members report that they have the proposal, or what they lack. Members that lack much or are
silent for too long get the whole message, all of them together, so that relays carry it like any block. A member
that needed the whole message gets the next ones whole for a while. So a silent or badly connected member costs its
delay once and does not delay others.

A receiver rebuilds one compact proposal for each leader and view. What the leader does not answer it requests from
one other seat, and then it requests the whole message. The shell passes monotonic seconds, calls ``tick`` every
TICK_S while ``is_active``, and performs the effects in order.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from node.consensus.compact import (
    CompactControl,
    CompactProposal,
    HaveProposal,
    ProposalRequest,
    Rebuild,
    TransactionsReply,
    TransactionsRequest,
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
    "SendCompactControl",
    "SendProposal",
    "SendTransactions",
    "Sender",
]

TICK_S: Final = 0.02
_FAR_S: Final = float("inf")
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class CompactParameters:
    """Times in seconds, and limits of what is under way."""

    silence_s: float = 0.3
    """After this time and two round trips without a report, silent members get the whole message."""
    rtt_s_max: float = 0.3
    """Longer measured round trips mean a busy receiver, not a distant one."""
    latest_s: float = 0.8
    """Maximum delay of the whole message, whatever others report meanwhile."""
    standstill_s: float = 0.1
    """A later tick means that this node was busy; that time does not count against silent members, ..."""
    standstill_s_max: float = 0.5
    """... up to this for each message."""
    gather_s: float = 0.03
    """How long requests for the whole message are collected, so that one upload serves them."""
    whole_s: float = 30.0
    """How long a member that needed a whole message gets the next ones whole at once."""
    keep_s: float = 10.0
    """How long requests about a message are answered."""
    kept_max: int = 4
    """Newest own messages that are kept for requests."""
    answers_share: int = 2
    """Limit of all answers about a message together, as a share of it; above it, one upload to all is cheaper."""
    missing_share: int = 8
    """A member that lacks more than this share requests the whole message. No answer is larger either."""
    answer_s: float = 0.15
    """Time limit of an answer beyond two round trips."""
    asks_max: int = 2
    pending_max: int = 8
    """Compact proposals being rebuilt at the same time."""
    held_max: int = 2
    """Rebuilt bodies kept for requests of other seats."""
    repeat_s: float = 1.0
    """A whole message that arrives this soon after it was rebuilt here is dropped: it crossed the report."""
    remember_max: int = 512


class SendCompactControl(NamedTuple):
    """Send a control message about a compact proposal."""

    address: bytes
    control: CompactControl


class SendTransactions(NamedTuple):
    """Send requested transactions."""

    address: bytes
    answer: TransactionsReply


class SendProposal(NamedTuple):
    """Send the whole message to these members."""

    data: bytes
    addresses: tuple[bytes, ...]


class Deliver(NamedTuple):
    """A message is complete; treat it as sent whole by its sender."""

    sender: bytes
    data: bytes


Effect: TypeAlias = SendCompactControl | SendTransactions | SendProposal | Deliver


@dataclass(slots=True)
class _Body:
    """Transactions that may be requested; each member is answered once."""

    transactions: Sequence[bytes]
    answer_bytes_max: int
    bytes_left: int
    answered: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, transactions: Sequence[bytes], size_bytes: int, parameters: CompactParameters) -> _Body:
        return cls(transactions, size_bytes // parameters.missing_share, size_bytes // parameters.answers_share)

    def answer(self, address: bytes, ask: TransactionsRequest) -> TransactionsReply | None:
        numbers = numbers_of(ask.bits)
        if not numbers or numbers[-1] >= len(self.transactions) or address in self.answered:
            return None
        raws = tuple([self.transactions[number] for number in numbers])
        size = sum(map(len, raws))
        if size > min(self.answer_bytes_max, self.bytes_left):
            return None
        self.answered.add(address)
        self.bytes_left -= size
        return TransactionsReply(ask.root, raws)


@dataclass(slots=True)
class _Sent:
    data: bytes
    body: _Body
    rtt_s: dict[bytes, float]
    """For every member that was not served yet: it has not reported the message, and did not get it whole."""
    members: frozenset[bytes]
    began: float
    news: float
    slack_s: float = 0.0
    asking: dict[bytes, None] = field(default_factory=dict)
    flush_at: float = _FAR_S


class Sender:
    """The leader's side."""

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
        """Return the members that get the compact proposal, and those that get the whole message at once."""
        compact: list[bytes] = []
        whole: list[bytes] = []
        for address in addresses:
            (whole if self._whole_until.get(address, 0.0) > now else compact).append(address)
        return compact, whole

    def sent(
        self, root: bytes, data: bytes, transactions: Sequence[bytes], rtt_s: Mapping[bytes, float], now: float
    ) -> None:
        """Note that a compact proposal was sent to the members in ``rtt_s``, with their round trips."""
        parameters = self._parameters
        if not self.is_active:
            self._ticked = now
        body = _Body.of(transactions, len(data), parameters)
        sent = _Sent(data, body, dict(rtt_s), frozenset(rtt_s), now, now)
        _remember(self._sent, root, sent, parameters.kept_max)

    def knows(self, root: bytes) -> bool:
        """Tell whether this is an own message about which requests are answered."""
        return root in self._sent

    def control(self, address: bytes, control: CompactControl, now: float) -> list[Effect]:
        """Process a control message about a compact proposal."""
        sent = self._sent.get(control.root)
        if sent is None or address not in sent.members:
            return []
        match control:
            case HaveProposal():
                if sent.rtt_s.pop(address, None) is not None:
                    sent.news = now
                sent.asking.pop(address, None)
                self._whole_until.pop(address, None)
                return []
            case TransactionsRequest():
                answer = sent.body.answer(address, control)
                if answer is None:
                    self._want_whole(sent, address, now)
                    return []
                sent.news = now
                self._counters["answered"] += 1
                return [SendTransactions(address, answer)]
            case ProposalRequest():
                self._want_whole(sent, address, now)
                return []
            case _:
                raise AssertionError(control)

    def _want_whole(self, sent: _Sent, address: bytes, now: float) -> None:
        if address in sent.rtt_s and address not in sent.asking:
            sent.asking[address] = None
            sent.flush_at = min(sent.flush_at, now + self._parameters.gather_s)

    def tick(self, now: float) -> list[Effect]:
        """Serve members that requested whole messages or were silent for too long."""
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
                effects.append(SendProposal(sent.data, addresses))
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
    """The member's side."""

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
        """Compact proposals that are not complete yet."""
        return len(self._pending)

    def compact(self, sender: bytes, compact: CompactProposal, now: float) -> tuple[Rebuild | None, list[Effect]]:
        """Process a compact proposal of its view's leader; return the rebuild to fill from the pool, if it is
        worth it.

        A leader has one proposal in a view. A second compact proposal makes it send the whole message and costs
        this node nothing.
        """
        done = self._done.get(compact.root)
        if done is not None and now < done.at + self._parameters.repeat_s:
            return None, [SendCompactControl(sender, HaveProposal(compact.root))]
        if compact.root in self._pending:
            return None, []
        candidate = compact.proposal.candidate
        slot = sender, candidate.epoch, candidate.view
        if slot in self._slots:
            return None, [SendCompactControl(sender, ProposalRequest(compact.root))]
        _remember(self._slots, slot, None, self._parameters.remember_max)
        effects: list[Effect] = []
        before = next((root for root, pending in self._pending.items() if pending.sender == sender), None)
        if before is not None or len(self._pending) >= self._parameters.pending_max:
            effects.append(self._give_up(before or next(iter(self._pending))))
        pending = self._pending[compact.root] = _Pending(sender, Rebuild(compact))
        return pending.rebuild, effects

    def filled(self, root: bytes, helpers: Sequence[bytes], rtt_s: float, now: float) -> list[Effect]:
        """Request what the pool lacked: from the leader, and from ``helpers`` in turn if it is silent."""
        pending = self._pending.get(root)
        if pending is None or not pending.rebuild.missing:
            return []
        parameters, rebuild = self._parameters, pending.rebuild
        self._counters["missing"] += len(rebuild.missing)
        if len(rebuild.missing) * parameters.missing_share > rebuild.compact.header.tx_count:
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
        return SendCompactControl(address, TransactionsRequest(root, bits_of(pending.rebuild.missing)))

    def _give_up(self, root: bytes) -> Effect:
        self._counters["gave_up"] += 1
        return SendCompactControl(self._pending.pop(root).sender, ProposalRequest(root))

    def some(self, address: bytes, answer: TransactionsReply) -> Rebuild | None:
        """Process an answer; return what is complete now."""
        pending = self._pending.get(answer.root)
        if pending is None or address not in pending.asked or not pending.rebuild.missing:
            return None
        if not pending.rebuild.supply(answer.raws):
            return None
        pending.deadline = _FAR_S
        return pending.rebuild

    def finished(self, root: bytes, data: bytes | None, now: float) -> list[Effect]:
        """Deliver the result of a complete rebuild; None if it does not have the leader's hash."""
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
        return [Deliver(pending.sender, data), SendCompactControl(pending.sender, HaveProposal(root))]

    def help(self, address: bytes, ask: TransactionsRequest) -> list[Effect]:
        """Answer another seat's request from a body that was rebuilt here."""
        body = self._held.get(ask.root)
        answer = None if body is None else body.answer(address, ask)
        if answer is None:
            return []
        self._counters["helped"] += 1
        return [SendTransactions(address, answer)]

    def whole(self, sender: bytes, data: bytes, now: float) -> bool:
        """Process a whole message; return False for one that was delivered a moment ago.

        A later copy is passed on: its sender repeats it because it may have been lost after this point.
        """
        known = sender, len(data)
        is_pending = any((p.sender, p.rebuild.compact.size_bytes) == known for p in self._pending.values())
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
        """Request elsewhere what was not answered."""
        late = [(root, pending) for root, pending in self._pending.items() if now >= pending.deadline]
        return [self._ask(root, pending, now) for root, pending in late]


def _remember(kept: OrderedDict[_K, _V], key: _K, value: _V, limit: int) -> None:
    kept[key] = value
    while len(kept) > limit:
        kept.popitem(last=False)
