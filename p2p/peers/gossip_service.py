"""Runs ``p2p.gossip.core`` between peers and validators.

The core returns what to send, what to validate and which peers to drop; this module does it. The node provides a
validator for each topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import trio

from p2p.base.limits import NetworkLimits
from p2p.gossip.core import Deliver, Disconnect, Effect, Gossip, Send, Verdict, Withdraw
from p2p.gossip.validation import BatchValidator, TopicValidation
from p2p.peers.roster import Roster
from p2p.secure.frame import TrafficClass
from p2p.session.peer import KIND_GOSSIP

__all__ = ["GossipService"]


class GossipService:
    """The topics of one node. The first peer that delivers something valid is credited in the roster."""

    def __init__(
        self,
        core: Gossip,
        roster: Roster,
        *,
        limits: NetworkLimits,
        counters: Counter[str],
    ) -> None:
        self.core = core
        self._roster = roster
        self._limits = limits
        self._counters = counters
        self._validations: dict[str, TopicValidation] = {}

    def start(self, nursery: trio.Nursery) -> None:
        """Start the validators."""
        for validation in self._validations.values():
            nursery.start_soon(validation.run)

    def subscribe(self, topic: str, validator: BatchValidator, *, payload_bytes_max: int, earns: bool) -> None:
        """Join a topic. ``earns``: whether valid payloads credit the peer that delivered them first."""
        assert topic not in self._validations
        credit = self._roster.credit if earns else lambda _address: None
        self._validations[topic] = TopicValidation(validator, self._limits, self._judged, credit)
        self._apply(self.core.subscribe(topic, payload_bytes_max))

    def publish(self, topic: str, payloads: tuple[bytes, ...]) -> None:
        """Gossip own payloads; those seen before are not sent again."""
        self._apply(self.core.publish(topic, payloads))

    def receive(self, address: bytes, body: bytes) -> None:
        """Take a gossip message of a peer."""
        self._apply(self.core.receive(address, body, trio.current_time()))

    def joined(self, address: bytes, *, outbound: bool, network: str | None) -> None:
        """Add a peer; ``network`` is its netgroup, which limits its score."""
        self._apply(self.core.peer_joined(address, outbound=outbound, network=network))

    def left(self, address: bytes) -> None:
        """Remove a peer; its score is remembered."""
        self.core.peer_left(address)

    def penalise(self, address: bytes, points: float) -> None:
        """Take points from a peer; enough of them disconnect or ban it."""
        self._apply(self.core.penalise(address, points))

    def blame(self, address: bytes) -> None:
        """Take points from a peer for an answer that broke a rule."""
        self.penalise(address, self.core.parameters.reject_points)

    def blame_malformed(self, address: bytes) -> None:
        """Take points from a peer for malformed bytes, which no correct node sends."""
        self.penalise(address, self.core.parameters.malformed_points)

    def beat(self, now: float) -> None:
        """Run the heartbeat."""
        self._apply(self.core.heartbeat(now))

    def _judged(self, verdicts: Iterable[tuple[bytes, Verdict]]) -> None:
        self._apply(self.core.verdict(verdicts))

    def _apply(self, effects: list[Effect]) -> None:
        peers = self._roster.peers
        for effect in effects:
            match effect:
                case Send(address, body):
                    peer = peers.get(address)
                    if peer is not None:
                        peer.queue(TrafficClass.GOSSIP, KIND_GOSSIP, body)
                case Deliver():
                    self._validations[effect.topic].put(effect)
                case Withdraw(topic, message_id):
                    self._validations[topic].withdraw(message_id)
                case Disconnect(address, is_banned):
                    if address in self._roster.persistent:
                        self._counters["limited_persistent"] += 1  # its score limits it; it is heard all the same
                    elif is_banned:
                        self._roster.ban(address, "bad_score")
                    else:
                        self._roster.close(address, "bad_score")
