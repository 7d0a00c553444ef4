"""What the reserved relays measured of their paths to other relays; it predicts the round trip of longer paths."""

from __future__ import annotations

from itertools import pairwise

import trio

from p2p.base.endpoint import Endpoint
from relay.client.control_link import ControlLink
from relay.client.links import ControlLinks
from relay.client.reputation import RelayReputation
from relay.client.reservations import Reservations
from relay.protocol.errors import RelayProtocolError, RelayUnreachable
from relay.protocol.link_state import LINK_STATE_S, LinkState
from relay.protocol.wire import AskLinkState, LinkStateReply
from state.primitives.errors import DecodeError

__all__ = ["LinkStates"]


class LinkStates:
    """The newest link state of each reserved relay."""

    def __init__(self, reservations: Reservations, links: ControlLinks, reputation: RelayReputation) -> None:
        self.by_relay: dict[bytes, LinkState] = {}
        self._reservations = reservations
        self._links = links
        self._reputation = reputation

    def estimate(self, path: Endpoint) -> float | None:
        """Return the round trip in seconds to the last relay of ``path``; None: a part was never measured."""
        hops = path.hops
        first = hops[0].relay if hops else None
        rtt_s = None if first is None else self._reputation.rtt_s(first)
        if first is None or rtt_s is None:
            return None
        for before, after in pairwise(hops):
            state = None if before.relay is None else self.by_relay.get(before.relay)
            measured = None if state is None else dict(state.links).get(after.relay or b"")
            if measured is None:
                return None
            rtt_s += measured.rtt_us / 1_000_000
        return rtt_s

    async def run(self) -> None:
        """Ask the reserved relays for their link states until cancelled."""
        while True:
            for reservation in self._reservations.held:
                link = self._links.get(reservation.endpoint)
                if link is not None and link.error is None:
                    await self._ask(link)
            with trio.move_on_after(LINK_STATE_S):
                await self._reservations.wait_changed()

    async def _ask(self, link: ControlLink) -> None:
        try:
            answer = await link.ask(AskLinkState)
            match answer:
                case LinkStateReply(_, data):
                    state = LinkState.decode(data)
                    state.check(link.relay, link.channel.certificate)
                    self.by_relay[link.relay] = state
                case _:
                    raise RelayProtocolError("the answer does not fit the request")
        except RelayUnreachable:
            return
        except (DecodeError, RelayProtocolError) as error:
            link.fail(RelayProtocolError(str(error)))
