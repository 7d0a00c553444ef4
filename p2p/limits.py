"""What one node lets strangers cost it, in one place; times in seconds unless named otherwise."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

__all__ = ["NetworkLimits", "RateLimiter"]


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """Bounds of the network service (NETWORK.md, section 6, abuse limits)."""

    peers_in_max: int = 64
    peers_out_target: int = 12
    peers_per_ip_max: int = 8
    accepts_per_ip_per_s: float = 10.0
    accepts_per_ip_burst: float = 20.0
    accepts_per_s: float = 200.0
    half_open_max: int = 256
    handshake_timeout_s: float = 5.0
    dial_timeout_s: float = 10.0
    dials_max: int = 32
    redial_min_s: float = 0.25
    redial_max_s: float = 30.0
    redial_persistent_max_s: float = 5.0
    """Longest wait between attempts at peers that the node wants always (its committee)."""
    settled_s: float = 5.0
    """A connection that lived so long was a success; before, its back-off runs on."""
    ping_interval_s: float = 5.0
    idle_timeout_s: float = 20.0
    write_timeout_s: float = 20.0
    rekey_interval_s: float = 3_600.0
    ban_s: float = 3_600.0
    bans_max: int = 4_096
    outbox_bytes_max: int = 256 * 1024
    """Messages that wait for a connection to one address."""
    outbox_peers_max: int = 256
    outbox_s: float = 5.0
    requests_served_per_peer_max: int = 16
    requests_asked_per_peer_max: int = 64
    request_bytes_max: int = 64 * 1024
    serve_timeout_s: float = 30.0
    gossip_batch_max: int = 256
    gossip_batch_bytes_max: int = 256 * 1024
    """Payloads that a validator gets at once: it may work through them without giving others their turn."""
    loop_share_percent: int = 75
    """Most of the event loop's time that what one peer sends may take."""
    loop_debt_s: float = 0.1
    """How far a peer may be ahead of its share, in time, before its connection is read more slowly."""
    records_per_peer_per_s: float = 5.0
    records_per_peer_burst: float = 200.0
    exchange_interval_s: float = 60.0
    exchange_records_max: int = 50
    blob_serves_max: int = 8
    blob_requests_per_source: int = 2
    blob_piece_timeout_s: float = 60.0
    blob_source_failures_max: int = 4
    blob_busy_retries_max: int = 60


_KEYS_MAX: Final = 4_096


class RateLimiter:
    """Token buckets by key; the least recently seen key is forgotten, so memory is bounded."""

    __slots__ = ("_buckets", "_burst", "_per_s")

    def __init__(self, *, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def allows(self, key: object, now: float) -> bool:
        """Take one token of ``key`` if there is one."""
        tokens, since = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._per_s)
        allowed = tokens >= 1.0
        self._buckets[key] = (tokens - 1.0 if allowed else tokens), now
        if len(self._buckets) > _KEYS_MAX:
            self._buckets.popitem(last=False)
        return allowed
