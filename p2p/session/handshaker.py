"""Runs handshakes on new streams within the time limit, receives the hello, and counts failures.

``p2p.path.dialling`` uses it for outbound streams, ``p2p.peers.inbound`` for inbound ones. Until it is done,
neither end has any rights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from p2p.base.errors import HandshakeFailed
from p2p.base.observed_address import OBSERVE_PREAMBLE, observed_answer
from p2p.secure.channel import Hello
from p2p.secure.handshake import Handshake, Session
from p2p.secure.identity import Identity, Purpose
from p2p.session.connection import Connection, run_handshake
from state.primitives.errors import ProtocolError

__all__ = ["Handshaker"]

_FIRST_BYTES_MAX: Final = 4_096
_Result = TypeVar("_Result")


class Handshaker:
    """Runs handshakes under the node's present ``identity``; every method returns None if the peer failed."""

    def __init__(
        self,
        identity: Callable[[], Identity],
        *,
        timeout_s: float,
        now_ms: Callable[[], int],
        counters: Counter[str],
    ) -> None:
        self._identity = identity
        self._timeout_s = timeout_s
        self._now_ms = now_ms
        self._counters = counters

    async def dialled(self, stream: trio.abc.Stream, purpose: Purpose, expected: bytes | None) -> Session | None:
        """Return the session of a stream that this node opened, to the address ``expected`` if known."""
        return await self._handshake(stream, purpose, is_initiator=True, expected=expected)

    async def accepted(
        self, stream: trio.abc.Stream, purpose: Purpose, *, seen: tuple[str, int] | None = None
    ) -> Session | None:
        """Return the session of an inbound stream.

        ``seen`` is the address from which it comes; it is the answer to ``OBSERVE_PREAMBLE``.
        """
        heard = b"" if seen is None else await self._within_limit(self._begin(stream, seen))
        if heard is None:
            return None
        return await self._handshake(stream, purpose, is_initiator=False, expected=None, heard=heard)

    async def _begin(self, stream: trio.abc.Stream, seen: tuple[str, int]) -> bytes | None:
        """Return the first bytes of a handshake; None: the stream requested its observed address and got the
        answer.
        """
        heard = bytes(await stream.receive_some(_FIRST_BYTES_MAX))
        if not heard:
            raise HandshakeFailed("the peer closed the stream during the handshake")
        if heard != OBSERVE_PREAMBLE:  # exactly: a handshake begins with more bytes, which are random
            return heard
        self._counters["observed"] += 1
        await stream.send_all(observed_answer(*seen))
        with trio.move_on_after(self._timeout_s / 2):  # as long as this stays open the mapping at its NAT lives
            await stream.receive_some(1)
        return None

    async def hear(self, connection: Connection) -> Hello | None:
        """Return the hello of a connection."""
        return await self._within_limit(connection.receive_hello())

    async def _handshake(
        self,
        stream: trio.abc.Stream,
        purpose: Purpose,
        *,
        is_initiator: bool,
        expected: bytes | None,
        heard: bytes = b"",
    ) -> Session | None:
        handshake = Handshake(
            self._identity(), purpose, is_initiator=is_initiator, now_ms=self._now_ms(), expected=expected
        )
        return await self._within_limit(run_handshake(stream, handshake, heard=heard))

    async def _within_limit(self, step: Awaitable[_Result]) -> _Result | None:
        try:
            with trio.fail_after(self._timeout_s):
                return await step
        except ProtocolError as error:
            self._counters[error.code] += 1
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._counters["handshake_failed"] += 1
        return None
