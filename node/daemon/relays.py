"""Data of the chain about other nodes: registered relays, and machines with a bond."""

from __future__ import annotations

from typing import Final

from p2p.base.endpoint import Endpoint
from state.primitives.errors import DecodeError
from state.view import Reader
from tasks.ledger.registry import NodeRole, NodeStatus, candidates, load_node

__all__ = ["is_bonded", "registered_relays"]

REGISTERED_MAX: Final = 64
"""Maximum number of relays that a node reads from the chain's registry."""


def registered_relays(state: Reader, seed: bytes) -> list[Endpoint]:
    """Return the endpoints of the relays registered on the chain, starting at a position chosen by ``seed``.

    The registry does not verify endpoints. An endpoint with another relay's address is skipped.
    """
    found: list[Endpoint] = []
    for node in candidates(state, NodeRole.RELAY, seed, REGISTERED_MAX):
        for text in node.profile.endpoints:
            try:
                endpoint = Endpoint.parse(text)
            except DecodeError:
                continue
            if endpoint.relay == node.address:
                found.append(endpoint)
    return found


def is_bonded(state: Reader, address: bytes) -> bool:
    """Tell whether an address has a registered machine with a locked bond that is not being withdrawn."""
    node = load_node(state, address)
    return node is not None and node.status is NodeStatus.ACTIVE
