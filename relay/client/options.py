"""Options of the relay client: durations, limits and the highest price that this node pays."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RelayClientOptions"]


@dataclass(frozen=True, slots=True)
class RelayClientOptions:
    """Durations in seconds and limits of the relay client."""

    reservations: int = 3
    """Number of relays at which to hold a reservation: two in use and one spare."""
    reservation_s: int = 3_600
    connect_s_max: float = 10
    """Time limit to connect to a relay and finish the handshake, and to open a data connection."""
    answer_s_max: float = 10
    ping_s: float = 10
    """Interval between pings; a relay that stays silent for ``answer_s_max`` after one is dead."""
    busy_ping_s: float = 1
    """Interval between pings while circuits run through the relay."""
    busy_silent_s: float = 2.5
    """Such a relay is dead when neither it nor a circuit sends anything for this long after a ping."""
    link_idle_s: float = 60
    """A link to a relay without a reservation is closed this long after its last use."""
    links_max: int = 64
    """Relays connected to at once; relays to reserve at are not limited by it."""
    backoff_s_min: float = 0.25
    backoff_s_max: float = 15
    incoming_max: int = 32
    """Incoming circuits being opened at once; further ones are declined."""
    parked: int = 2
    """Data connections kept parked at each reserved relay that is in use."""
    parked_s: float = 600
    """A relay counts as in use for this long after the last circuit through it began."""
    choose_s: float = 30
    """Interval at which the choice of relays is reviewed."""
    event_loop_percent_max: int = 75
    """Share of the event loop's time that the messages of one relay may take, ..."""
    event_loop_burst_s: float = 0.1
    """Time above that share before the relay is read more slowly (``p2p.base.limits.EventLoopLimiter``)."""
    price_per_gib_max: int = 10**18
    """This node neither uses nor pays a relay with a higher price. The default is one token."""
