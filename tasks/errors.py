"""Why a transaction of the market is refused; codes are stable, receipts and RPC answers carry them."""

from __future__ import annotations

from state.primitives.errors import ProtocolError

__all__ = [
    "AlreadyRevealed",
    "AlreadySealed",
    "BadEvidence",
    "ChallengeClosed",
    "ChallengeUnknown",
    "DeclineTooLate",
    "DisputeUnknown",
    "GroupUnknown",
    "GroupsOff",
    "KindMismatch",
    "MachineTampered",
    "MeterAhead",
    "MeterMismatch",
    "MoveTooSoon",
    "NodeKnown",
    "NodeUnknown",
    "NotYours",
    "NothingDue",
    "OperatorUnproved",
    "ProofMismatch",
    "SeatsMismatch",
    "TaskUnknown",
    "TermsBound",
    "TermsMismatch",
    "TooManyDeclines",
    "TooManyOpenWindows",
    "TrialsOff",
    "WindowUnknown",
    "WrongPhase",
]


class TaskUnknown(ProtocolError):
    """No task has this id."""

    code = "task_unknown"


class GroupUnknown(ProtocolError):
    """No group has this id."""

    code = "group_unknown"


class KindMismatch(ProtocolError):
    """The transaction is for tasks of another kind: seconds are metered, or windows are proven."""

    code = "kind_mismatch"


class MeterAhead(ProtocolError):
    """The meter counts more seconds than the chain's time since the start allows."""

    code = "meter_ahead"

    def __init__(self, *, allowed: int, got: int) -> None:
        super().__init__(f"{got} seconds are metered, {allowed} have passed")
        self.allowed, self.got = allowed, got


class MeterMismatch(ProtocolError):
    """The meter does not go on from where it stands, or its end does not fit the task."""

    code = "meter_mismatch"


class GroupsOff(ProtocolError):
    """The chain's parameters allow no group, or none with so many members."""

    code = "groups_off"


class SeatsMismatch(ProtocolError):
    """Other seats than those that the group still lacks: too many, or a member without a root of its start."""

    code = "seats_mismatch"


class WindowUnknown(ProtocolError):
    """The task has no such window yet."""

    code = "window_unknown"


class NodeUnknown(ProtocolError):
    """The address has not registered a node, or retired it."""

    code = "node_unknown"


class NodeKnown(ProtocolError):
    """The address has registered a node already."""

    code = "node_known"


class OperatorUnproved(ProtocolError):
    """The account that is named as a node's operator has not signed that it is."""

    code = "operator_unproved"


class NotYours(ProtocolError):
    """The sender is not the one whose turn it is: not the requester, the worker or a drawn verifier."""

    code = "not_yours"


class WrongPhase(ProtocolError):
    """The task or window is in a phase in which this cannot happen."""

    code = "wrong_phase"

    def __init__(self, phase: str) -> None:
        super().__init__(f"not possible while {phase}")
        self.phase = phase


class ProofMismatch(ProtocolError):
    """A window proof that does not continue the task: other window, steps, state or counts than are due."""

    code = "proof_mismatch"


class TooManyOpenWindows(ProtocolError):
    """As many windows as are allowed are proved and not final; the next one has to wait."""

    code = "too_many_open_windows"


class AlreadySealed(ProtocolError):
    """The verifier has sealed its verdict on this window."""

    code = "already_sealed"


class AlreadyRevealed(ProtocolError):
    """The verifier has revealed its verdict on this window."""

    code = "already_revealed"


class TooManyDeclines(ProtocolError):
    """The verifier declined as many seats as it may in a day, or the window was drawn for too many machines."""

    code = "too_many_declines"


class DeclineTooLate(ProtocolError):
    """A seat can be declined shortly after its draw, before the verdict is sealed."""

    code = "decline_too_late"


class BadEvidence(ProtocolError):
    """A reveal that does not match its seal, or an opening that does not match the window's commitments."""

    code = "bad_evidence"


class NothingDue(ProtocolError):
    """No deadline of the task has passed."""

    code = "nothing_due"


class TermsBound(ProtocolError):
    """A sponsor has bonded on these terms: until its bond has returned they may only become better for it."""

    code = "terms_bound"


class TermsMismatch(ProtocolError):
    """The sender is not the sponsor that the machine accepts, or names other terms than those that stand."""

    code = "terms_mismatch"


class DisputeUnknown(ProtocolError):
    """The window has no such dispute."""

    code = "dispute_unknown"


class MoveTooSoon(ProtocolError):
    """A game takes one move in a block."""

    code = "move_too_soon"


class ChallengeUnknown(ProtocolError):
    """The window has no such sealed challenge, or it was not called."""

    code = "challenge_unknown"


class CheckTooDear(ProtocolError):
    """The check fund could never bear an audit of a window of the job: its windows are to be smaller."""

    code = "check_too_dear"


class ChallengeClosed(ProtocolError):
    """The window takes no more challenges: their time is over, or there are too many."""

    code = "challenge_closed"


class CustodyOff(ProtocolError):
    """The genesis of this chain has no custody, or the task has none."""

    code = "custody_off"


class CustodyUnknown(ProtocolError):
    """The window is not in custody: not yet, or no more."""

    code = "custody_unknown"


class CustodyRefused(ProtocolError):
    """What is sent is not what the custody of the window asks for now."""

    code = "custody_refused"


class MachineTampered(ProtocolError):
    """The machine has reported that a job on it was tampered with: it is off the market until ``until_ms``."""

    code = "machine_tampered"

    def __init__(self, *, until_ms: int) -> None:
        super().__init__(f"the machine has reported tampering and is suspended until {until_ms} ms")
        self.until_ms = until_ms


class TrialsOff(ProtocolError):
    """The genesis of this chain has no speed trials."""

    code = "trials_off"
