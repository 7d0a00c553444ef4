"""Errors of relays and their clients, by who is to blame (network.md 10.3)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from state.primitives.errors import DekubeError, ProtocolError

__all__ = ["Refusal", "RelayProtocolError", "RelayRefused", "RelayUnreachable", "SettlementUnavailable"]


class Refusal(IntEnum):
    """Why a relay refused a request; the number is the wire form, the label is used in metrics and logs."""

    NO_RESERVATION = 1
    """The target has no reservation here, or lost it meanwhile."""
    RELAY_FULL = 2
    """A limit of the whole relay is reached: try another relay, or later."""
    CLIENT_LIMIT = 3
    """This client has the maximum number of circuits of one client."""
    HOST_LIMIT = 4
    """This client's host or network has reached a limit of one host or network."""
    TARGET_LIMIT = 5
    """The target has the maximum number of circuits of one client."""
    TARGET_TIMEOUT = 6
    """One end of the circuit did not open its data connection in time."""
    DECLINED = 7
    """The target declined the circuit."""
    BAD_TOKEN = 8
    """No circuit waits for this token: it is wrong, used or expired."""
    TOO_FAST = 9
    """This host sent requests faster than one host may."""
    RESTARTING = 10
    """The relay is shutting down and accepts nothing new."""
    UNPAID = 11
    """The client owes as much as this relay carries without payment."""
    BAD_ROUTE = 12
    """The route has a bad signature, is expired or used before, or does not include this relay."""
    NEXT_UNREACHABLE = 13
    """The next relay of the route was not reached, or closed the connection."""

    @property
    def label(self) -> str:
        """The name in metrics and logs."""
        return self.name.lower()


RETRY_HELPS: Final = frozenset(
    {Refusal.RELAY_FULL, Refusal.CLIENT_LIMIT, Refusal.HOST_LIMIT, Refusal.TARGET_LIMIT, Refusal.TOO_FAST}
)


class SettlementUnavailable(DekubeError):
    """No node answers for the chain, so a payer's funds are unknown and receipts cannot be settled."""

    code = "settlement_unavailable"


class RelayProtocolError(ProtocolError):
    """A relay or its client sent bytes that are no message, exceed a limit or are not allowed in this state."""

    code = "relay_protocol_error"


class RelayRefused(DekubeError):
    """A relay refused a request; ``refusal`` says why."""

    code = "relay_refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the relay refused: {refusal.label}")
        self.refusal = refusal


class RelayUnreachable(DekubeError):
    """The relay cannot be connected to, or its connection ended or fell silent before it answered."""

    code = "relay_unreachable"
