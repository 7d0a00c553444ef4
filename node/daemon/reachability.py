"""How peers reach this node, with the reason, for its owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from p2p.base.endpoint import Endpoint
from p2p.path.endpoint_status import EndpointStatus

__all__ = ["Reachability", "RelayOutage", "assess_reachability"]


class RelayOutage(NamedTuple):
    """A relay at which the node wants a reservation and cannot get one."""

    relay: str
    since: str
    """Date and time in UTC."""
    since_ms: int
    why: str

    def __str__(self) -> str:
        return f"{self.relay} is down since {self.since} UTC ({self.why})"


class Reachability(NamedTuple):
    """How peers reach the node.

    ``how`` is direct, relays, unconfirmed (advertised, but no peer reported whether the address answers), none or
    outbound. ``outbound``: the node is configured to dial only. ``none`` is a fault.
    """

    how: str
    why: str
    endpoints: dict[str, str]
    """Own endpoints and the status of each: public, closed or unknown."""
    relays: tuple[str, ...]
    """The relays at which this node has reservations."""
    relays_down: tuple[RelayOutage, ...] = ()


def assess_reachability(
    *,
    listens: bool,
    configured: Sequence[Endpoint],
    verdicts: Mapping[Endpoint, EndpointStatus],
    relays: Sequence[Endpoint],
    down: Sequence[RelayOutage] = (),
) -> Reachability:
    """Return how a node with these endpoints and reservations is reached.

    ``listens``: it accepts connections. ``relays``: relays with a reservation. ``down``: relays that refused one
    or did not answer.
    """
    public = [str(endpoint) for endpoint, verdict in verdicts.items() if verdict is EndpointStatus.PUBLIC]
    closed = [str(endpoint) for endpoint, verdict in verdicts.items() if verdict is EndpointStatus.CLOSED]
    is_advertised = any(verdicts.get(endpoint) is not EndpointStatus.CLOSED for endpoint in configured)
    if not listens:
        why = "accepts no connection (p2p.listen is empty)"
    elif public:
        why = f"peers of two networks have dialled {' and '.join(public)}"
    elif closed:
        why = f"peers of two networks could not dial {' and '.join(closed)}"
    elif configured:
        why = f"no peers of two networks have tried {' and '.join(map(str, configured))} yet"
    else:
        why = "no peers of two networks have said yet where it is (p2p.advertise)"
    if public:
        how = "direct"
    elif relays:
        how = "relays"
    elif is_advertised:
        how = "unconfirmed"
    else:
        how = "none" if listens or down else "outbound"
        if down:
            why += "; " + "; ".join(map(str, down))
        else:
            why += "; no relay is known (p2p.relays, or one on the chain)"
    endpoints = {str(endpoint): verdict.value for endpoint, verdict in verdicts.items()}
    return Reachability(how, why, endpoints, tuple(map(str, relays)), tuple(down))
