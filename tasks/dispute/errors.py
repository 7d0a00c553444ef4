"""Errors of disputes; their codes are stable."""

from __future__ import annotations

from state.primitives.errors import ProtocolError

__all__ = ["MoveInconsistent", "MoveRefused", "NoMove"]


class MoveRefused(ProtocolError):
    """A move that is not due, not of the one whose turn it is, or not a move at all; the game stays as it was."""

    code = "move_refused"


class MoveInconsistent(ProtocolError):
    """A move that contradicts what its side or both sides are bound to. Who makes it loses the game."""

    code = "move_inconsistent"


class NoMove(Exception):
    """Honest software has nothing to say for its side: what it computed contradicts what it stands for.

    No rule was broken by a peer. The side stays silent and loses.
    """
