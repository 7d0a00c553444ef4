"""The channel between a node and a signer on another machine: the peers' handshake with its own purpose."""

from __future__ import annotations

import time
from typing import Final

import trio

from p2p.base.errors import FrameInvalid, HandshakeFailed
from p2p.secure.handshake import Handshake, Session
from p2p.secure.identity import Identity, Purpose
from p2p.secure.record import RECORD_PLAINTEXT_BYTES_MAX, RecordReader, seal
from p2p.session.connection import run_handshake

__all__ = ["SealedStream", "secured"]

RECEIVE_BYTES: Final = 16 * 1024


class SealedStream(trio.abc.Stream):
    """An encrypted and authenticated byte stream, after a finished handshake."""

    def __init__(self, stream: trio.abc.Stream, session: Session) -> None:
        self._stream = stream
        self._cipher = session.send
        self._reader = RecordReader(session.receive)
        self._rest = session.rest
        self._plain = bytearray()
        self.address = session.address
        """The account that the other end proved."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; one task at a time."""
        view = memoryview(data)
        for at in range(0, len(view), RECORD_PLAINTEXT_BYTES_MAX):
            await self._stream.send_all(seal(self._cipher, bytes(view[at : at + RECORD_PLAINTEXT_BYTES_MAX])))

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until sending might not block."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes; none at the end. Raises trio.BrokenResourceError for bytes that are not authentic."""
        while not self._plain:
            data = self._rest or await self._stream.receive_some(RECEIVE_BYTES)
            self._rest = b""
            if not data:
                return b""
            try:
                for plain in self._reader.receive(bytes(data)):
                    self._plain += plain
            except FrameInvalid as error:
                raise trio.BrokenResourceError(str(error)) from None
        size = len(self._plain) if max_bytes is None else max_bytes
        taken = bytes(self._plain[:size])
        del self._plain[:size]
        return taken

    async def aclose(self) -> None:
        """Close the underlying stream."""
        await self._stream.aclose()


async def secured(
    stream: trio.abc.Stream, identity: Identity, *, is_initiator: bool, expected: bytes | None = None
) -> SealedStream:
    """Perform the handshake over ``stream``.

    Raises HandshakeFailed; the stream is then closed, as after a cancellation.
    """
    handshake = Handshake(
        identity, Purpose.SIGNER, is_initiator=is_initiator, now_ms=time.time_ns() // 1_000_000, expected=expected
    )
    try:
        return SealedStream(stream, await run_handshake(stream, handshake))
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError | trio.ClosedResourceError):
            raise HandshakeFailed("the connection was lost during the handshake") from None
        raise
