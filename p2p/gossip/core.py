"""The gossip protocol without I/O: a mesh for each topic, announcements beyond the mesh, no forwarding before
validation.

The hash of a message is its id, so equal payloads from several peers are one message. The core takes events and
returns effects in the order in which the caller must carry them out. Time is the caller's, in seconds of any
monotonic clock.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

from p2p.base.randomness import RandomSource
from p2p.gossip.validation_queue import PendingPayload, ValidationQueue
from state.primitives.codec import Value, decode, encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import digest

__all__ = [
    "MESSAGE_ID_BYTES",
    "Deliver",
    "Disconnect",
    "Effect",
    "Gossip",
    "GossipParameters",
    "Send",
    "Verdict",
    "Withdraw",
    "message_id",
]

MESSAGE_ID_BYTES: Final = 20
BODY_BYTES_MAX: Final = 256 * 1024
"""Above a full batch or the longest list of ids. Longer messages only cost time to decode."""
PAYLOADS_MAX: Final = 1_024
"""Payloads in one message. Each costs a hash, however short it is."""
TOPIC_CHARACTERS_MAX: Final = 32
PAYLOAD_BYTES_MAX: Final = BODY_BYTES_MAX - 1024
TOPICS_MAX: Final = 32
"""Topics that one peer may subscribe to."""
PENDING_SENDERS_MAX: Final = 64
"""Remembered senders of a message that is being validated."""
BACKOFFS_MAX: Final = 4_096
"""Peers of one topic, including departed ones, that are excluded from the mesh for a while."""
DEPARTED_SCORES_MAX: Final = 1_024
"""Departed peers whose bad score is remembered, so that reconnecting does not reset it."""


class Verdict(Enum):
    """The result of validating a payload."""

    ACCEPT = "accept"
    """Valid: forward it."""
    IGNORE = "ignore"
    """Neither valid nor the sender's fault (a duplicate, or a state that this node lacks): do not forward."""
    LATER = "later"
    """Not checked for lack of room: do not forward, and accept it when it arrives again."""
    REJECT = "reject"
    """Invalid in a way that the sender could see: do not forward, count it against the sender."""


class _Op(IntEnum):
    SUBSCRIBE = 0
    PUBLISH = 1
    IHAVE = 2
    IWANT = 3
    GRAFT = 4
    PRUNE = 5
    IDONTWANT = 6


@dataclass(frozen=True, slots=True)
class GossipParameters:
    """Sizes, times and limits (network.md 6)."""

    mesh: int = 6
    mesh_min: int = 4
    mesh_max: int = 10
    mesh_outbound_min: int = 2
    lazy_min: int = 6
    lazy_share_percent: int = 25
    heartbeat_s: float = 0.7
    cache_beats: int = 6
    announce_beats: int = 3
    cache_bytes_max: int = 32 * 1024 * 1024
    seen_generation_s: float = 60.0
    seen_ids_max: int = 400_000
    """Of one generation. Under a flood, ids are remembered for a shorter time."""
    ids_max: int = 5_000
    """In one IHAVE or IWANT, and requested from one peer per heartbeat."""
    answers_per_id_max: int = 3
    promise_s: float = 3.0
    prune_backoff_s: float = 60.0
    pending_bytes_max: int = 16 * 1024 * 1024
    """Payloads that wait for their verdict. When full, the senders with most payloads lose some."""
    pending_of_peer_max: int = 4_096
    large_bytes: int = 1_024
    """From this size on, the mesh is told that this node has it (IDONTWANT)."""
    unwanted_ids_max: int = 1_000
    batch_bytes_max: int = 64 * 1024
    score_half_life_s: float = 600.0
    score_cap: float = 100.0
    reject_points: float = 10.0
    broken_promise_points: float = 1.0
    malformed_points: float = 20.0
    overflow_points: float = 1.0
    """For a heartbeat in which a peer sent more than may wait for validation."""
    netgroup_free: int = 3
    """Peers of one /24 (or IPv6 /48) without penalty, ..."""
    netgroup_points: float = 4.0
    """... and the penalty for all of them for each further one."""
    disconnect_score: float = -50.0
    ban_score: float = -100.0


class Send(NamedTuple):
    """Send these bytes to a peer, class GOSSIP."""

    peer: bytes
    body: bytes


class Deliver(NamedTuple):
    """Validate this payload, then call ``Gossip.verdict`` with its id."""

    topic: str
    peer: bytes
    message_id: bytes
    payload: bytes


class Disconnect(NamedTuple):
    """Drop this peer; ban it if ``ban`` is set."""

    peer: bytes
    ban: bool


class Withdraw(NamedTuple):
    """Do not validate this delivered payload, if validation has not begun."""

    topic: str
    message_id: bytes


Effect: TypeAlias = "Send | Deliver | Withdraw | Disconnect"


def message_id(topic: str, payload: bytes) -> bytes:
    """Return the id of a message: equal for equal topic and payload, regardless of the sender."""
    return digest(b"gossip message", topic.encode() + b"\0" + payload)[:MESSAGE_ID_BYTES]


@dataclass(slots=True)
class _Peer:
    outbound: bool
    topics: set[str] = field(default_factory=set)
    score: float = 0.0
    promises: dict[bytes, float] = field(default_factory=dict)
    """Ids requested from it, with the deadline of each."""
    answered: dict[bytes, int] = field(default_factory=dict)
    """Ids sent to it on request, with counts; cleared as the cache moves on."""
    unwanted: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    ids_asked: int = 0
    """In this heartbeat."""
    has_overflowed: bool = False
    """In this heartbeat."""
    network: str | None = None
    """Its public network, if known."""


@dataclass(slots=True)
class _Topic:
    payload_bytes_max: int
    mesh: set[bytes] = field(default_factory=set)
    backoff: dict[bytes, float] = field(default_factory=dict)

    def back_off(self, peer: bytes, until: float) -> None:
        """Exclude a peer for a while; of too many, the oldest is forgotten."""
        self.backoff.pop(peer, None)
        self.backoff[peer] = until
        if len(self.backoff) > BACKOFFS_MAX:
            del self.backoff[next(iter(self.backoff))]


class Gossip:
    """The gossip of one node. ``random`` chooses mesh peers; simulations pass a seeded source."""

    def __init__(self, *, random: RandomSource, now: float, parameters: GossipParameters | None = None) -> None:
        self.parameters = parameters or GossipParameters()
        self._random = random
        self._peers: dict[bytes, _Peer] = {}
        self._departed_scores: OrderedDict[bytes, float] = OrderedDict()
        self._topics: dict[str, _Topic] = {}
        self._seen: set[bytes] = set()
        self._seen_before: set[bytes] = set()
        self._seen_since = now
        self._cache: dict[bytes, tuple[str, bytes]] = {}
        self._history: deque[list[tuple[str, bytes]]] = deque([[]])
        self._cache_bytes = 0
        self._netgroups: Counter[str] = Counter()
        self._waiting = ValidationQueue(
            limit_bytes=self.parameters.pending_bytes_max, payloads_each_max=self.parameters.pending_of_peer_max
        )
        self._beat_at = now

    # -- topics and peers ------------------------------------------------------------------------------------

    def subscribe(self, topic: str, payload_bytes_max: int) -> list[Effect]:
        """Join a topic whose payloads have at most this size."""
        assert 0 < len(topic) <= TOPIC_CHARACTERS_MAX and len(self._topics) < TOPICS_MAX
        assert 0 < payload_bytes_max <= PAYLOAD_BYTES_MAX
        self._topics[topic] = _Topic(payload_bytes_max)
        return [Send(peer, self._subscription()) for peer in self._peers]

    def peer_joined(self, peer: bytes, *, outbound: bool, network: str | None = None) -> list[Effect]:
        """Add a connection, with its public ``network`` if known; the first message to it lists the own topics."""
        self._peers[peer] = _Peer(outbound, score=self._departed_scores.pop(peer, 0.0), network=network)
        if network is not None:
            self._netgroups[network] += 1
        return [Send(peer, self._subscription())]

    def peer_left(self, peer: bytes) -> None:
        """Remove a connection. Its messages that are being validated stay."""
        known = self._peers.pop(peer, None)
        if known is not None and known.network is not None:
            self._netgroups[known.network] -= 1
            if not self._netgroups[known.network]:
                del self._netgroups[known.network]
        if known is not None and known.score < 0:
            self._departed_scores[peer] = known.score
            if len(self._departed_scores) > DEPARTED_SCORES_MAX:
                self._departed_scores.popitem(last=False)
        for topic in self._topics.values():
            topic.mesh.discard(peer)

    def score(self, peer: bytes) -> float:
        """Return the score of a peer; 0 for one that is not connected."""
        known = self._peers.get(peer)
        return 0.0 if known is None else self._worth(known)

    def _worth(self, peer: _Peer) -> float:
        """Return the score less the penalty for a netgroup with many peers; the penalty ends when they leave."""
        if peer.network is None:
            return peer.score
        netgroup = max(self._netgroups[peer.network] - self.parameters.netgroup_free, 0)
        return peer.score - netgroup * self.parameters.netgroup_points

    def penalise(self, peer: bytes, points: float) -> list[Effect]:
        """Take points from a peer for an event elsewhere (a full queue, a bad answer)."""
        known = self._peers.get(peer)
        if known is None:
            return []
        known.score -= points
        if known.score > self.parameters.disconnect_score:
            return []
        return [Disconnect(peer, known.score <= self.parameters.ban_score)]

    def mesh(self, topic: str) -> frozenset[bytes]:
        """Return the peers that get every message of a topic at once."""
        return frozenset(self._topics[topic].mesh)

    # -- messages --------------------------------------------------------------------------------------------

    def publish(self, topic: str, payloads: Sequence[bytes]) -> list[Effect]:
        """Send own messages to every peer of the topic, not only to the mesh: the first hop must not fail."""
        limit = self._topics[topic].payload_bytes_max
        fresh = []
        for payload in payloads:
            assert len(payload) <= limit, f"payload of {len(payload)} bytes, topic {topic} allows {limit}"
            identifier = message_id(topic, payload)
            if not self._is_seen(identifier):
                self._remember(identifier)
                self._store(topic, identifier, payload)
                fresh.append((identifier, payload))
        targets = [a for a, p in self._peers.items() if topic in p.topics and self._worth(p) >= 0]
        return self._forward(topic, fresh, targets)

    def verdict(self, verdicts: Iterable[tuple[bytes, Verdict]]) -> list[Effect]:
        """Apply the verdicts on delivered messages; accepted ones are stored and forwarded in batches."""
        effects: list[Effect] = []
        accepted: dict[tuple[str, frozenset[bytes]], list[tuple[bytes, bytes]]] = {}
        for identifier, verdict in verdicts:
            pending = self._waiting.pop(identifier)
            if pending is None:
                continue
            peer = self._peers.get(pending.first)
            if verdict is Verdict.ACCEPT:
                if peer is not None:
                    peer.score = min(peer.score + 1.0, self.parameters.score_cap)
                self._store(pending.topic, identifier, pending.payload)
                had_it = frozenset((*pending.others, pending.first))
                accepted.setdefault((pending.topic, had_it), []).append((identifier, pending.payload))
            elif verdict is Verdict.LATER:
                self._unsee(identifier)
            elif verdict is Verdict.REJECT:
                for sender in (pending.first, *pending.others):
                    effects += self.penalise(sender, self.parameters.reject_points)
        for (topic, had_it), messages in accepted.items():
            targets = [a for a in self._topics[topic].mesh if a not in had_it]
            effects += self._forward(topic, messages, targets)
        return effects

    def receive(self, sender: bytes, body: bytes, now: float) -> list[Effect]:
        """Process one gossip message of a connected peer.

        Never raises: a malformed one costs its sender points.
        """
        peer = self._peers.get(sender)
        if peer is None:
            return []
        try:
            return self._receive(sender, peer, body, now)
        except DecodeError:
            return self.penalise(sender, self.parameters.malformed_points)

    def _receive(self, sender: bytes, peer: _Peer, body: bytes, now: float) -> list[Effect]:
        match decode(body, limit_bytes=BODY_BYTES_MAX):
            case [_Op.PUBLISH, str(topic), list(payloads)] if len(payloads) <= PAYLOADS_MAX:
                return self._on_publish(sender, peer, topic, _all_bytes(payloads, None))
            case [_Op.SUBSCRIBE, list(topics)] if len(topics) <= TOPICS_MAX:
                return self._on_subscribe(sender, peer, topics)
            case [_Op.IHAVE, str(topic), list(ids)]:
                return self._on_ihave(sender, peer, topic, self._ids(ids), now)
            case [_Op.IWANT, list(ids)]:
                return self._on_iwant(sender, peer, self._ids(ids))
            case [_Op.GRAFT, str(topic)]:
                return self._on_graft(sender, peer, topic, now)
            case [_Op.PRUNE, str(topic), int(backoff_s)]:
                mesh = self._topics.get(topic)
                if mesh is not None:
                    mesh.mesh.discard(sender)
                    mesh.back_off(sender, now + max(1, min(backoff_s, 3_600)))
                return []
            case [_Op.IDONTWANT, list(ids)]:
                for identifier in self._ids(ids)[: self.parameters.unwanted_ids_max]:
                    peer.unwanted[identifier] = None
                while len(peer.unwanted) > self.parameters.unwanted_ids_max:
                    peer.unwanted.popitem(last=False)
                return []
            case [int(op), *_] if op > max(_Op):
                return []  # of a later version
            case _:
                raise DecodeError("not a gossip message")

    def _on_publish(self, sender: bytes, peer: _Peer, topic: str, payloads: list[bytes]) -> list[Effect]:
        known = self._topics.get(topic)
        if known is None:
            return []
        effects: list[Effect] = []
        for payload in payloads:
            if len(payload) > known.payload_bytes_max:
                raise DecodeError(f"payload of {len(payload)} bytes in topic {topic}")
            identifier = message_id(topic, payload)
            peer.promises.pop(identifier, None)
            waiting = self._waiting.get(identifier)
            if waiting is not None:
                if sender != waiting.first and len(waiting.others) < PENDING_SENDERS_MAX:
                    waiting.others.add(sender)
                continue
            if self._is_seen(identifier):
                continue
            admission = self._waiting.admit(identifier, PendingPayload(topic, payload, sender))
            for gone_topic, gone in admission.evicted:
                self._unsee(gone)
                effects.append(Withdraw(gone_topic, gone))
            if not admission.is_queued:
                peer.has_overflowed |= admission.is_own_fault
                continue  # not marked as seen: it may come again when there is room
            self._remember(identifier)
            effects.append(Deliver(topic, sender, identifier, payload))
            if len(payload) >= self.parameters.large_bytes:
                said = encode([_Op.IDONTWANT, [identifier]])
                effects += [Send(other, said) for other in known.mesh if other != sender]
        return effects

    def _on_subscribe(self, sender: bytes, peer: _Peer, topics: list[object]) -> list[Effect]:
        names = set()
        for name in topics:
            if not isinstance(name, str) or not 0 < len(name) <= TOPIC_CHARACTERS_MAX:
                raise DecodeError("not a topic")
            names.add(name)
        peer.topics = names
        for name, topic in self._topics.items():
            if name not in names:
                topic.mesh.discard(sender)
        # Young meshes grow at once, so that a small network need not wait for its first heartbeat.
        effects: list[Effect] = []
        for name in sorted(names):
            own = self._topics.get(name)
            if (
                own is not None
                and sender not in own.mesh
                and len(own.mesh) < self.parameters.mesh
                and own.backoff.get(sender, 0.0) <= self._beat_at
                and self._worth(peer) >= 0
            ):
                own.mesh.add(sender)
                effects.append(Send(sender, encode([_Op.GRAFT, name])))
        return effects

    def _on_ihave(self, sender: bytes, peer: _Peer, topic: str, ids: list[bytes], now: float) -> list[Effect]:
        if topic not in self._topics or self._worth(peer) < 0:
            return []
        room = min(self.parameters.ids_max - peer.ids_asked, self.parameters.ids_max - len(peer.promises))
        wanted: list[bytes] = []
        for identifier in ids:
            if len(wanted) >= room:
                break
            if self._is_seen(identifier) or identifier in peer.promises:
                continue
            wanted.append(identifier)
        if not wanted:
            return []
        peer.ids_asked += len(wanted)
        peer.promises.update(dict.fromkeys(wanted, now + self.parameters.promise_s))
        return [Send(sender, encode([_Op.IWANT, list[Value](wanted)]))]

    def _on_iwant(self, sender: bytes, peer: _Peer, ids: list[bytes]) -> list[Effect]:
        if self._worth(peer) < 0:
            return []
        answers: dict[str, list[tuple[bytes, bytes]]] = {}
        for identifier in ids:
            held = self._cache.get(identifier)
            times = peer.answered.get(identifier, 0)
            if held is None or times >= self.parameters.answers_per_id_max:
                continue
            peer.answered[identifier] = times + 1
            answers.setdefault(held[0], []).append((identifier, held[1]))
        effects: list[Effect] = []
        for topic, messages in answers.items():
            effects += self._forward(topic, messages, [sender])
        return effects

    def _on_graft(self, sender: bytes, peer: _Peer, topic: str, now: float) -> list[Effect]:
        known = self._topics.get(topic)
        if known is None or sender in known.mesh:
            return []
        peer.topics.add(topic)
        if len(peer.topics) > TOPICS_MAX:
            raise DecodeError("too many topics")
        is_unworthy = known.backoff.get(sender, 0.0) > now or self._worth(peer) < 0
        if is_unworthy or len(known.mesh) >= self.parameters.mesh_max:
            return [self._prune(topic, known, sender, now)]
        known.mesh.add(sender)
        return []

    # -- time ------------------------------------------------------------------------------------------------

    def heartbeat(self, now: float) -> list[Effect]:
        """Repair the meshes, announce to peers outside them, count broken promises, expire old entries."""
        effects: list[Effect] = []
        decay = 0.5 ** (max(now - self._beat_at, 0.0) / self.parameters.score_half_life_s)
        self._beat_at = now
        for address in self._departed_scores:
            self._departed_scores[address] *= decay
        for address, peer in list(self._peers.items()):
            peer.score *= decay
            peer.ids_asked = 0
            broken = [i for i, deadline in peer.promises.items() if deadline <= now]
            for identifier in broken:
                del peer.promises[identifier]
            if broken:
                # One heartbeat of silence is one fault, however many ids it concerns: a slow line is not malice.
                effects += self.penalise(address, self.parameters.broken_promise_points)
            if peer.has_overflowed:
                peer.has_overflowed = False
                effects += self.penalise(address, self.parameters.overflow_points)
        for name, topic in self._topics.items():
            effects += self._mend(name, topic, now)
            effects += self._announce(name, topic)
        self._age(now)
        return effects

    def _mend(self, name: str, topic: _Topic, now: float) -> list[Effect]:
        effects: list[Effect] = []
        parameters = self.parameters
        topic.backoff = {a: until for a, until in topic.backoff.items() if until > now}
        unworthy = [address for address in sorted(topic.mesh) if self._worth(self._peers[address]) < 0]
        effects += [self._prune(name, topic, address, now) for address in unworthy]
        candidates = [
            address
            for address, peer in sorted(self._peers.items())
            if name in peer.topics
            and address not in topic.mesh
            and address not in topic.backoff
            and self._worth(peer) >= 0
        ]
        self._random.shuffle(candidates)
        if len(topic.mesh) < parameters.mesh_min:
            grafted = candidates[: parameters.mesh - len(topic.mesh)]
        else:
            outbound = sum(self._peers[a].outbound for a in topic.mesh)
            lacking = max(parameters.mesh_outbound_min - outbound, 0)
            grafted = [a for a in candidates if self._peers[a].outbound][:lacking]
        for address in grafted:
            topic.mesh.add(address)
            effects.append(Send(address, encode([_Op.GRAFT, name])))
        if len(topic.mesh) > parameters.mesh_max:
            # The best stay, and outbound peers: those are of our choosing, an attacker's come in.
            ranked = sorted(topic.mesh, key=lambda a: (self.score(a), self._random.random()), reverse=True)
            kept = ranked[: parameters.mesh]
            for address in ranked[parameters.mesh :]:
                outbound = sum(self._peers[a].outbound for a in kept)
                if self._peers[address].outbound and outbound < parameters.mesh_outbound_min:
                    kept.append(address)
                else:
                    effects.append(self._prune(name, topic, address, now))
        return effects

    def _announce(self, name: str, topic: _Topic) -> list[Effect]:
        ids = [i for beat in list(self._history)[: self.parameters.announce_beats] for t, i in beat if t == name]
        if not ids:
            return []
        others = [
            address
            for address, peer in sorted(self._peers.items())
            if name in peer.topics and address not in topic.mesh and self._worth(peer) >= 0
        ]
        count = max(self.parameters.lazy_min, len(others) * self.parameters.lazy_share_percent // 100)
        self._random.shuffle(others)
        said = encode([_Op.IHAVE, name, list[Value](ids[-self.parameters.ids_max :])])
        return [Send(address, said) for address in others[:count]]

    def _age(self, now: float) -> None:
        self._history.appendleft([])
        while len(self._history) > self.parameters.cache_beats:
            self._forget(self._history.pop())
        for peer in self._peers.values():
            peer.answered = {i: n for i, n in peer.answered.items() if i in self._cache}
        if now - self._seen_since >= self.parameters.seen_generation_s:
            self._turn_generation(now)

    # -- helpers ---------------------------------------------------------------------------------------------

    def _subscription(self) -> bytes:
        return encode([_Op.SUBSCRIBE, list[Value](sorted(self._topics))])

    def _prune(self, name: str, topic: _Topic, address: bytes, now: float) -> Send:
        topic.mesh.discard(address)
        topic.back_off(address, now + self.parameters.prune_backoff_s)
        return Send(address, encode([_Op.PRUNE, name, int(self.parameters.prune_backoff_s)]))

    def _forward(self, topic: str, messages: list[tuple[bytes, bytes]], targets: list[bytes]) -> list[Effect]:
        if not messages:
            return []
        effects: list[Effect] = []
        whole: list[bytes] | None = None  # the batches of those who want everything, which is nearly everybody
        for address in targets:
            peer = self._peers.get(address)
            if peer is None:
                continue
            if peer.unwanted and any(identifier in peer.unwanted for identifier, _ in messages):
                wanted = [payload for identifier, payload in messages if identifier not in peer.unwanted]
                bodies = self._batches(topic, wanted)
            else:
                if whole is None:
                    whole = self._batches(topic, [payload for _, payload in messages])
                bodies = whole
            effects += [Send(address, body) for body in bodies]
        return effects

    def _batches(self, topic: str, payloads: list[bytes]) -> list[bytes]:
        bodies, batch, size = [], list[Value](), 0
        for payload in payloads:
            if batch and (size + len(payload) > self.parameters.batch_bytes_max or len(batch) == PAYLOADS_MAX):
                bodies.append(encode([_Op.PUBLISH, topic, batch]))
                batch, size = [], 0
            batch.append(payload)
            size += len(payload)
        if batch:
            bodies.append(encode([_Op.PUBLISH, topic, batch]))
        return bodies

    def _is_seen(self, identifier: bytes) -> bool:
        return identifier in self._seen or identifier in self._seen_before

    def _remember(self, identifier: bytes) -> None:
        if len(self._seen) >= self.parameters.seen_ids_max:
            self._turn_generation(self._beat_at)
        self._seen.add(identifier)

    def _unsee(self, identifier: bytes) -> None:
        self._seen.discard(identifier)
        self._seen_before.discard(identifier)

    def _turn_generation(self, now: float) -> None:
        self._seen_before, self._seen, self._seen_since = self._seen, set(), now

    def _store(self, topic: str, identifier: bytes, payload: bytes) -> None:
        if identifier in self._cache:
            return
        self._cache[identifier] = topic, payload
        self._cache_bytes += len(payload)
        self._history[0].append((topic, identifier))
        while self._cache_bytes > self.parameters.cache_bytes_max and len(self._history) > 1:
            self._forget(self._history.pop())
        if self._cache_bytes > self.parameters.cache_bytes_max:  # all of one heartbeat: the oldest half goes
            beat = self._history[0]
            half = (len(beat) + 1) // 2
            self._forget(beat[:half])
            del beat[:half]

    def _forget(self, beat: list[tuple[str, bytes]]) -> None:
        for _, identifier in beat:
            held = self._cache.pop(identifier, None)
            if held is not None:
                self._cache_bytes -= len(held[1])

    def _ids(self, values: list[object]) -> list[bytes]:
        if len(values) > self.parameters.ids_max:
            raise DecodeError("too many ids")
        return _all_bytes(values, MESSAGE_ID_BYTES)


def _all_bytes(values: list[object], size: int | None) -> list[bytes]:
    found = [value for value in values if isinstance(value, bytes) and (size is None or len(value) == size)]
    if len(found) != len(values):
        raise DecodeError("byte strings expected")
    return found
