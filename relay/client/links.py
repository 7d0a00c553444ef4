"""The control links of a node to its relays, opened when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from p2p.base.endpoint import Endpoint
from p2p.secure.identity import Identity
from relay.client.background import BackgroundTasks
from relay.client.control_link import ControlLink, ControlLinkOwner
from relay.client.known_relays import KnownRelays
from relay.client.options import RelayClientOptions
from relay.client.reputation import Fault
from relay.protocol.errors import RelayUnreachable

__all__ = ["ControlLinks"]

log = structlog.get_logger("relay")


class ControlLinks:
    """At most one control link for each endpoint of a relay."""

    def __init__(
        self,
        owner: ControlLinkOwner,
        known: KnownRelays,
        tasks: BackgroundTasks,
        make_identity: Callable[[], Identity],
        options: RelayClientOptions,
    ) -> None:
        self._owner = owner
        self._known = known
        self._tasks = tasks
        self._make_identity = make_identity
        self._options = options
        self._links: dict[Endpoint, ControlLink] = {}

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Endpoints that are connected now, or being connected to."""
        return tuple(self._links)

    def all(self) -> list[ControlLink]:
        """Return all links."""
        return list(self._links.values())

    def get(self, endpoint: Endpoint) -> ControlLink | None:
        """Return the link to this endpoint, if there is one."""
        return self._links.get(endpoint)

    async def open(self, endpoint: Endpoint, *, is_reserving: bool = False) -> ControlLink:
        """Return the open link to a relay, connecting first where there is none. Raises RelayUnreachable.

        Without ``is_reserving`` a link to another endpoint of the same relay serves as well. A link for a
        reservation stays open while idle.
        """
        link = self._links.get(endpoint)
        if link is None or link.error is not None:
            link = None if is_reserving else self._link_to_relay_of(endpoint)
        if link is None:
            if not self._tasks.is_running:
                raise RelayUnreachable("the relay client has ended")
            if len(self._links) >= self._options.links_max and not is_reserving:
                raise RelayUnreachable("connected to as many relays as allowed")
            link = self._links[endpoint] = ControlLink(
                self._owner, self._make_identity(), endpoint, self._options
            )  # fmt: skip
            self._tasks.start(self._run, link)
        link.is_reserving |= is_reserving
        await link.opened.wait()
        if link.error is not None:
            raise RelayUnreachable(f"{endpoint}: {link.error}")
        return link

    def _link_to_relay_of(self, endpoint: Endpoint) -> ControlLink | None:
        """Return an open link to the same relay at another endpoint."""
        for link in self._links.values():
            if link.relay == endpoint.relay and link.opened.is_set() and link.error is None:
                return link
        return None

    async def _run(self, link: ControlLink) -> None:
        try:
            await link.run()
        finally:
            if self._links.get(link.endpoint) is link:
                del self._links[link.endpoint]
            for parked in link.parked:
                parked.stream.socket.close()
            fault = link.fault
            is_to_blame = fault is not Fault.UNREACHABLE or self._known.connect_failed(link.endpoint)
            if link.has_no_route:
                self._known.connect_failed(link.endpoint)
            if fault is not None and is_to_blame and not self._known.is_leaving(link.endpoint):
                self._known.blame(link.endpoint, fault)

    def connect_in_background(self, endpoints: Iterable[Endpoint]) -> None:
        """Connect to relays, to learn their terms and pay them; a failure is only logged."""
        for endpoint in endpoints:
            if endpoint not in self._links:
                self._tasks.start(self.try_open, endpoint)

    async def try_open(self, endpoint: Endpoint) -> None:
        """Open a link if that succeeds."""
        try:
            await self.open(endpoint)
        except RelayUnreachable as error:
            log.debug("relay not reached", relay=str(endpoint), error=str(error))

    def end_from(self, lost_hosts: frozenset[str]) -> None:
        """End the links from addresses that this machine has lost; their relays are not blamed."""
        for link in self.all():
            if link.local_host in lost_hosts:
                link.fail(RelayUnreachable("the address of this machine has changed"))
