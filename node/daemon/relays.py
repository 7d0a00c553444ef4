"""What the chain says of other nodes: its relays, and who has locked a bond."""

from __future__ import annotations

from typing import Final

from p2p.base.endpoint import Endpoint
from state.primitives.errors import DecodeError
from state.view import Reader
from tasks.ledger.registry import NodeRole, NodeStatus, candidates, load_node

__all__ = ["is_bonded", "registered_relays"]

REGISTERED_MAX: Final = 64
"""Relays of the chain's registry that a node looks at."""


def registered_relays(state: Reader, seed: bytes) -> list[Endpoint]:
    """Return the endpoints of relays that are registered on the chain, beginning where ``seed`` says.

    What a relay says of itself is a claim; one that names another relay's address is passed over.
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
    """Tell whether an address has registered a machine and locked a bond, and does not want it back."""
    node = load_node(state, address)
    return node is not None and node.status is NodeStatus.ACTIVE
