"""What can go wrong at a relay, by blame (network.md 10.3)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from state.primitives.errors import DekubeError, ProtocolError

__all__ = ["Refusal", "RelayProtocolError", "RelayRefused", "RelayUnreachable", "SettlementUnavailable"]


class Refusal(IntEnum):
    """Why a relay did not do what it was asked; the number is the wire form, the label that of metrics."""

    NO_RESERVATION = 1
    """The target has no reservation here, or lost it meanwhile."""
    RELAY_FULL = 2
    """A limit in sum is reached: another relay, or a later time."""
    CLIENT_LIMIT = 3
    """This client has as many circuits as one client may have."""
    HOST_LIMIT = 4
    """This client's host or network has as much as one host or network may have."""
    TARGET_LIMIT = 5
    """The target has as many circuits as one client may have."""
    TARGET_TIMEOUT = 6
    """One of the two ends did not open its data connection in time."""
    DECLINED = 7
    """The target does not want the circuit."""
    BAD_TOKEN = 8
    """No circuit waits for this token: wrong, used or expired."""
    TOO_FAST = 9
    """More requests in a time than one host may make."""
    RESTARTING = 10
    """The relay is about to end and takes nothing new."""
    UNPAID = 11
    """The client owes as much as this relay carries unpaid."""
    BAD_ROUTE = 12
    """A route that is not well signed, expired, used before, or does not pass here."""
    NEXT_UNREACHABLE = 13
    """The next relay of the route was not reached, or broke off."""

    @property
    def label(self) -> str:
        """The name for metrics and logs."""
        return self.name.lower()


RETRY_HELPS: Final = frozenset(
    {Refusal.RELAY_FULL, Refusal.CLIENT_LIMIT, Refusal.HOST_LIMIT, Refusal.TARGET_LIMIT, Refusal.TOO_FAST}
)


class SettlementUnavailable(DekubeError):
    """No node answers what the chain says of a payer, or takes a receipt."""

    code = "settlement_unavailable"


class RelayProtocolError(ProtocolError):
    """Bytes from a relay or its client that are no message, exceed a limit or make no sense now."""

    code = "relay_protocol_error"


class RelayRefused(DekubeError):
    """A relay answered no; ``refusal`` says why."""

    code = "relay_refused"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"the relay refused: {refusal.label}")
        self.refusal = refusal


class RelayUnreachable(DekubeError):
    """No connection to the relay, or it ended or fell silent while an answer was awaited."""

    code = "relay_unreachable"
