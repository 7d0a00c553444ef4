"""Decides which connection carries a conversation: numbers its migrations, and chooses between two connections.

Both ends may open a new connection at once, and an answer may be lost. So each migration has a generation, and the
higher generation counts. Of two connections of one generation both ends keep the same one.
"""

from __future__ import annotations

from p2p.secure.channel import GENERATION_MAX, Hello, HelloKind, conversation_of
from p2p.secure.handshake import Session

__all__ = ["Migration"]


class Migration:
    """The migrations of one conversation, which began with ``session``."""

    __slots__ = ("_attempted", "_certificate", "_own", "_peer", "conversation", "generation")

    def __init__(self, session: Session, *, own_address: bytes) -> None:
        self.conversation = conversation_of(session)
        self.generation = 0
        """Number of migrations of the conversation, including failed attempts."""
        self._attempted = 0
        self._certificate = session.certificate
        self._own = own_address
        self._peer = session.address

    def may_carry(self, hello: Hello, session: Session) -> bool:
        """Whether a connection is for this conversation: the same node, under a certificate that is not older."""
        ours, theirs = self._certificate, session.certificate
        return (
            hello.conversation == self.conversation
            and ours.static_key == theirs.static_key
            and ours.sequence <= theirs.sequence
        )

    def may_replace(self, hello: Hello, new: Session, present: Session) -> bool:
        """Whether the connection of ``new``, whose peer sent ``hello``, replaces that of ``present``."""
        if hello.generation != self.generation or not self.generation:
            return hello.generation > self.generation
        # Both ends migrated at once: both must keep the same connection, that of the lower address.
        return self._initiator_of(new) < self._initiator_of(present)

    def next_hello(self, received: int) -> Hello:
        """Return the hello of a connection that should carry the conversation; ``received`` records have arrived
        here.

        Each attempt counts: the peer may have accepted one whose answer was lost.
        """
        self._attempted = min(max(self._attempted, self.generation) + 1, GENERATION_MAX)
        return Hello(HelloKind.RESUME, self.conversation, self._attempted, received)

    def _initiator_of(self, session: Session) -> bytes:
        return self._own if session.is_initiator else self._peer
