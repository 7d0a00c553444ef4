"""The kernel's figures of one TCP connection (``struct tcp_info`` of Linux)."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

__all__ = ["TCP_INFO_BYTES", "TcpInfo"]

TCP_INFO_BYTES: Final = 168
"""Size of the kernel's ``struct tcp_info`` up to the last field that is used here."""
_FIELDS: Final = Struct("=24xI40xI28xIQ8xQQ8xII4xIQ")
"""unacked, rtt, total_retrans, pacing_rate, bytes_acked, bytes_received, notsent_bytes, min_rtt, data_segs_out,
delivery_rate."""


class TcpInfo(NamedTuple):
    """The kernel's figures of a TCP connection to its next hop."""

    rtt_s: float
    min_rtt_s: float
    delivery_bytes_per_s: int
    retransmits: int
    """Retransmitted segments since the connection began."""
    segments: int
    """Sent data segments since then, including retransmissions."""
    unacked: int
    """Segments in flight."""
    notsent_bytes: int
    bytes_acked: int
    bytes_received: int

    @classmethod
    def unpack(cls, data: bytes) -> TcpInfo:
        """Return the figures of the kernel's first TCP_INFO_BYTES bytes."""
        unacked, rtt, retransmits, _pacing, acked, received, notsent, min_rtt, segments, rate = _FIELDS.unpack(
            data
        )
        return cls(rtt / 1e6, min_rtt / 1e6, rate, retransmits, segments, unacked, notsent, acked, received)
