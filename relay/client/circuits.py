"""The circuits of a node that run now: counted, watched for silence, and ended together with their relay."""

from __future__ import annotations

import math

import trio

from p2p.base.endpoint import Endpoint
from p2p.base.transport import TransportFault
from relay.client.background import BackgroundTasks
from relay.client.circuit_stream import CircuitStream
from relay.client.control_link import local_host
from relay.client.known_relays import KnownRelays
from relay.client.links import ControlLinks
from relay.client.payments import Payments
from relay.client.reputation import Fault, has_stalled

__all__ = ["ClientCircuits"]


class ClientCircuits:
    """All circuits of this node, dialled and incoming."""

    def __init__(
        self, known: KnownRelays, links: ControlLinks, payments: Payments, tasks: BackgroundTasks
    ) -> None:
        self._known = known
        self._links = links
        self._payments = payments
        self._tasks = tasks
        self._circuits: dict[CircuitStream, None] = {}

    @property
    def running(self) -> tuple[CircuitStream, ...]:
        """Circuits that run now."""
        return tuple(self._circuits)

    def begin(self, stream: trio.SocketStream, endpoint: Endpoint, target: bytes | None) -> CircuitStream:
        """Return the stream of a new circuit; ``target`` is the node dialled, None for an incoming circuit."""
        circuit = CircuitStream(stream, endpoint, target, self._closed, self._on_fault)
        self._circuits[circuit] = None
        self._payments.begin(circuit)
        return circuit

    def clear(self) -> None:
        """Stop watching the circuits; they go on."""
        self._circuits.clear()
        self._payments.clear()

    def _closed(self, circuit: CircuitStream) -> None:
        self._circuits.pop(circuit, None)
        self._payments.end(circuit)

    def _on_fault(self, circuit: CircuitStream, found: TransportFault) -> None:
        """Blame the relays of a circuit for what its end found wrong with it."""
        match found:
            case TransportFault.CHANGED:
                fault = Fault.BROKEN
            case TransportFault.SLOW:
                fault = Fault.SLOWED
            case TransportFault.SILENT if self._has_stalled(circuit):
                fault = Fault.STALLED
            case _:
                return
        if not self._known.is_leaving(circuit.endpoint):
            for hop in circuit.endpoint.hops:
                self._known.blame(
                    hop, fault, about=circuit.target or b"", among=len(circuit.endpoint.hops)
                )  # fmt: skip

    def _has_stalled(self, circuit: CircuitStream) -> bool:
        since, link = circuit.silent_since, self._links.get(circuit.endpoint.hops[0])
        if since is None or link is None:
            return False
        return has_stalled(silent_s=trio.current_time() - since, spoke_s=link.heard_at - since)

    def _through(self, endpoint: Endpoint) -> list[CircuitStream]:
        return [circuit for circuit in self._circuits if _crosses(circuit, endpoint)]

    def is_used(self, endpoint: Endpoint) -> bool:
        """Tell whether a circuit runs through this relay."""
        return any(_crosses(circuit, endpoint) for circuit in self._circuits)

    def heard_at(self, endpoint: Endpoint) -> float:
        """Return when bytes last arrived over a circuit through this relay."""
        return max((circuit.heard_at for circuit in self._through(endpoint)), default=-math.inf)

    def end_through(self, endpoint: Endpoint) -> None:
        """End the circuits through a relay that fell silent, so that their peers switch to another path now."""
        for circuit in self._through(endpoint):
            self._tasks.start(trio.aclose_forcefully, circuit)

    def end_from(self, lost_hosts: frozenset[str]) -> None:
        """End the circuits from addresses that this machine has lost."""
        for circuit in self.running:
            if local_host(circuit.socket) in lost_hosts:
                self._tasks.start(trio.aclose_forcefully, circuit)


def _crosses(circuit: CircuitStream, endpoint: Endpoint) -> bool:
    return any(hop.relay == endpoint.relay for hop in circuit.endpoint.hops)
