"""Why a replica stopped for good, in the operator's words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from state.primitives.errors import DekubeError

__all__ = ["DOPPELGANGER", "STATE_DIVERGENCE", "ConsensusHalted", "doppelganger_message"]

DOPPELGANGER: Final = "doppelganger"
"""The reason of a halt because another process votes with the key."""
STATE_DIVERGENCE: Final = "state_divergence"
"""The reason of a halt because this node computed another state than a quorum."""


class ConsensusHalted(DekubeError):
    """The replica stopped for good. The message says why, and what the operator must check."""

    code = "consensus_halted"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason


def doppelganger_message(message: str, time_ms: int, *, now_ms: int, doppelganger_ms: int) -> str:
    """Return the operator's message about a vote that another process cast with this key.

    ``time_ms`` is that of the block that the vote is for, 0 if unknown.
    """
    when = f"was heard at {_moment(now_ms)}"
    if time_ms:
        ago_s = max(0, now_ms - time_ms) // 1000
        when = f"is in a certificate of a block of {_moment(time_ms)}, {ago_s} s ago"
    listens_s = doppelganger_ms // 1000
    before = f"It listens for {listens_s} s or more before it votes" if listens_s else "It votes at once"
    return (
        f"{message}. This node did not cast that vote, which {when}. It refuses to vote: two processes that "
        "vote with one key can contradict each other, and the stake is slashed for that. Find the other "
        "process and stop it. It may have ended already. Or this machine cast the vote, and its record of "
        "votes was lost or replaced by an older copy (`dekube node guard show` tells what the record knows). "
        f"Once no other machine runs with this key, start again: `dekube node run`. {before}"
    )


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
