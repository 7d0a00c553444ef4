"""Snapshots of a peer and of its connections, for operators, metrics and path selection."""

from __future__ import annotations

from dataclasses import dataclass

from p2p.base.tcp_info import TcpInfo
from p2p.secure.identity import Role

__all__ = ["ConnectionStats", "PeerInfo"]


@dataclass(frozen=True, slots=True)
class ConnectionStats:
    """The figures of one connection of a peer."""

    is_control: bool
    path: str
    """The dialled endpoint, or the origin of an inbound connection."""
    is_outbound: bool
    age_s: float
    rtt_ms: float | None
    """Measured by pings from end to end."""
    bytes_in: int
    bytes_out: int
    tcp: TcpInfo | None


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A peer's data for an operator."""

    address: bytes
    roles: Role
    is_outbound: bool
    remote: str
    rtt_ms: float | None
    score: float
    age_s: float
    bytes_in: int
    bytes_out: int
    bulk_connections: int = 0
    """Bulk connections beside the control connection."""
    moves: int = 0
    """Number of migrations to another connection."""
    is_attached: bool = True
    """Whether a connection carries the conversation now."""
    host: str | None = None
    """The IP address of the other end, if the control connection is direct."""
