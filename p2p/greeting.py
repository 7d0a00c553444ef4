"""The first words on a stream: a handshake and what the connection is for, in time, and counted where it fails.

Both ways use it, ``p2p.dialling`` out and ``p2p.accepting`` in; before it is done neither end has any right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from p2p.channel import Hello
from p2p.handshake import Handshake, Session
from p2p.identity import Identity, Purpose
from p2p.link import Link, shake_hands
from state.primitives.errors import ProtocolError

__all__ = ["Greeter"]

_Said = TypeVar("_Said")


class Greeter:
    """Greets under the node's ``identity`` of the moment; all it returns is None where the peer failed to."""

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
        """Return the session of a stream that we opened, to the address ``expected`` where that is known."""
        return await self._shake(stream, purpose, is_initiator=True, expected=expected)

    async def accepted(self, stream: trio.abc.Stream, purpose: Purpose) -> Session | None:
        """Return the session of a stream that came in."""
        return await self._shake(stream, purpose, is_initiator=False, expected=None)

    async def hear(self, link: Link) -> Hello | None:
        """Return what a connection is for."""
        return await self._in_time(link.hear_hello())

    async def _shake(
        self, stream: trio.abc.Stream, purpose: Purpose, *, is_initiator: bool, expected: bytes | None
    ) -> Session | None:
        handshake = Handshake(
            self._identity(), purpose, is_initiator=is_initiator, now_ms=self._now_ms(), expected=expected
        )
        return await self._in_time(shake_hands(stream, handshake))

    async def _in_time(self, words: Awaitable[_Said]) -> _Said | None:
        try:
            with trio.fail_after(self._timeout_s):
                return await words
        except ProtocolError as error:
            self._counters[error.code] += 1
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            self._counters["handshake_failed"] += 1
        return None
