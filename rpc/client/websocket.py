"""A WebSocket without I/O: bytes in, messages out; the protocol itself is that of the library ``websockets``."""

from __future__ import annotations

from collections import deque
from typing import Final

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from rpc.client.errors import GatewayUnreachable

__all__ = ["MESSAGE_LIMIT_BYTES", "WebSocketConnection"]

MESSAGE_LIMIT_BYTES: Final = 64 * 1024 * 1024


class WebSocketConnection:
    """One WebSocket connection; the first bytes of ``outgoing`` are its handshake."""

    def __init__(self, url: str) -> None:
        self._protocol = ClientProtocol(parse_uri(url), max_size=MESSAGE_LIMIT_BYTES)
        self._protocol.send_request(self._protocol.connect())
        self._messages: deque[bytes] = deque()
        self._parts = bytearray()  # parts without content cost nothing

    @property
    def is_open(self) -> bool:
        """Whether the handshake is done."""
        return self._protocol.state is State.OPEN

    def outgoing(self) -> bytes:
        """Return the bytes to send now."""
        return b"".join(self._protocol.data_to_send())

    def send(self, text: bytes) -> None:
        """Send a message. Raises GatewayUnreachable when the connection is over."""
        try:
            self._protocol.send_text(text)
        except WebSocketException as error:
            raise GatewayUnreachable(f"the WebSocket is closed: {error}") from None

    def receive(self, data: bytes) -> None:
        """Take in bytes, none where the connection has ended. Raises GatewayUnreachable when it is over.

        What came before the end is to be taken first, but of one that ends with its handshake.
        """
        was_connecting = self._protocol.state is State.CONNECTING
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        if self._protocol.handshake_exc is not None:
            raise GatewayUnreachable(f"not a WebSocket of a gateway: {self._protocol.handshake_exc}")
        is_over = self._protocol.state in (State.CLOSING, State.CLOSED)
        if is_over and (was_connecting or not self._messages):
            close = self._protocol.close_rcvd
            why = "the connection ended" if close is None else f"{close.code} {close.reason}"
            raise GatewayUnreachable(f"the WebSocket is closed: {why}")

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._parts = bytearray()
        elif frame.opcode is not Opcode.CONT:
            return
        self._parts += frame.data
        if frame.fin:
            self._messages.append(bytes(self._parts))
            self._parts = bytearray()

    def next_message(self) -> bytes | None:
        """Return the next whole message, None where none has come yet."""
        return self._messages.popleft() if self._messages else None
