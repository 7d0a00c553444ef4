"""Decides whether an authenticated connection may become a peer.

See network.md 4.5 and 12.

It closes nothing; ``p2p.peers.lifecycle`` carries the decision out. ``p2p.peers.handshake_limits`` bounds
connections before they are authenticated, ``p2p.peers.eviction`` chooses which inbound peer loses its slot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from p2p.base.limits import NetworkLimits
from p2p.base.netgroups import Origin
from p2p.peers.eviction import AdmissionDecision, DepartedPeers, InboundPeer, admit
from p2p.peers.roster import Roster
from p2p.secure.identity import NodeCertificate
from p2p.session.connection import Connection
from p2p.session.peer import Peer
from p2p.session.usefulness import Usefulness

__all__ = ["ConnectionPriority", "PeerAdmission", "replaces"]

_SIMULTANEOUS_S: Final = 5.0
_WELCOME: Final = AdmissionDecision()


class ConnectionPriority(NamedTuple):
    """The properties that decide which of two connections to one address is kept."""

    sequence: int
    """Sequence of the certificate."""
    static_key: bytes
    is_outbound: bool
    since: float

    @classmethod
    def of(cls, connected: Connection | Peer) -> ConnectionPriority:
        """Return the priority of a new connection, or of an existing peer."""
        certificate = connected.session.certificate
        return cls(certificate.sequence, certificate.static_key, connected.is_outbound, connected.since)


def replaces(
    new: ConnectionPriority, old: ConnectionPriority, *, is_old_attached: bool, own: bytes, other: bytes
) -> bool:
    """Whether the new one of two connections between ``own`` and ``other`` is kept.

    If both ends dialled at the same time, both must keep the same connection, in whichever order they see them:
    the one dialled by the lower address.
    """
    if new.sequence != old.sequence:
        return new.sequence > old.sequence  # a later certificate revokes
    if new.static_key != old.static_key or new.is_outbound == old.is_outbound or not is_old_attached:
        return True  # the newest handshake is the one that is alive
    if new.since - old.since > _SIMULTANEOUS_S:
        return True
    initiator = own if new.is_outbound else other
    return initiator == min(own, other)


class _Certificates(Protocol):
    """The part of the known certificates that admission uses."""

    def is_revoked(self, address: bytes, certificate: NodeCertificate) -> bool: ...
    def note_certificate(self, address: bytes, certificate: NodeCertificate) -> None: ...


class PeerAdmission:
    """Decides by the roster, by gossip scores and by the origins of connections.

    ``origin_of`` returns the origin of the name of a remote end. ``draw`` is a keyed hash of a block of addresses;
    see ``p2p.peers.eviction``.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        limits: NetworkLimits,
        certificates: _Certificates,
        score: Callable[[bytes], float],
        origin_of: Callable[[str], Origin],
        draw: Callable[[str], int],
    ) -> None:
        self.is_bonded: Callable[[bytes], bool] = lambda _address: False
        """Whether an address has a locked bond."""
        self._roster = roster
        self._limits = limits
        self._certificates = certificates
        self._score = score
        self._origin_of = origin_of
        self._draw = draw
        self._departed = DepartedPeers()

    def admit(self, connection: Connection, now: float) -> AdmissionDecision:
        """Decide whether a new connection may become a peer, and which peer it replaces."""
        roster, address, certificate = self._roster, connection.session.address, connection.session.certificate
        if address == roster.own:
            return AdmissionDecision("refused_self")
        if address in roster.bans:
            return AdmissionDecision("refused_banned")
        if self._certificates.is_revoked(address, certificate):
            return AdmissionDecision("refused_revoked")
        self._certificates.note_certificate(address, certificate)
        old = roster.peers.get(address)
        if old is not None:
            is_kept = replaces(
                ConnectionPriority.of(connection),
                ConnectionPriority.of(old),
                is_old_attached=old.is_attached,
                own=roster.own,
                other=address,
            )
            return _WELCOME if is_kept else AdmissionDecision("refused_duplicate")
        if connection.is_outbound or address in roster.persistent:
            return _WELCOME
        origin = self.origin(address, connection.remote)
        return admit(
            self._inbound_peers(), origin, now=now, slots_max=self._limits.peers_in_max,
            per_network_max=self._limits.peers_per_network_max, draw=self._draw,
            useful_periods=self._departed.periods(address, origin.block, now),
        )  # fmt: skip

    def _inbound_peers(self) -> list[InboundPeer]:
        """Return the inbound peers without a reserved slot."""
        return [
            InboundPeer(
                address, self.origin(address, peer.remote), peer.since, peer.usefulness.periods,
                self._score(address), peer.rtt_s,
            )
            for address, peer in self._roster.peers.items()
            if not peer.is_outbound and address not in self._roster.persistent and peer.closed_for is None
        ]  # fmt: skip

    def is_revoked(self, peer: Peer) -> bool:
        """Whether a later certificate of a peer is known."""
        return self._certificates.is_revoked(peer.address, peer.session.certificate)

    def origin(self, address: bytes, remote: str) -> Origin:
        """Return the origin of a peer. A bonded peer behind a relay counts as a block of its own."""
        origin = self._origin_of(remote)
        return origin.of_its_own(address) if origin.is_relayed and self.is_bonded(address) else origin

    def came(self, peer: Peer, now: float) -> Usefulness:
        """Return the usefulness with which an admitted peer starts."""
        return self._departed.take(peer.address, self.origin(peer.address, peer.remote).block, now)

    def left(self, peer: Peer, now: float) -> None:
        """Remember the usefulness of a peer that has left."""
        block = self.origin(peer.address, peer.remote).block
        self._departed.keep(peer.address, block, peer.usefulness, now)
