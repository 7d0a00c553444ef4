"""The WebSocket without I/O, against the library's other side: messages in pieces, pings, refusals, ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.http11 import Request
from websockets.server import ServerProtocol

from rpc.client import GatewayUnreachable
from rpc.client.websocket import WebSocketConnection


def connected() -> tuple[WebSocketConnection, ServerProtocol]:
    client, server = WebSocketConnection("ws://gateway:8545/"), ServerProtocol()
    server.receive_data(client.outgoing())
    [request] = server.events_received()
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    assert not client.is_open
    client.receive(b"".join(server.data_to_send()))
    assert client.is_open
    return client, server


def taken(client: WebSocketConnection) -> list[bytes]:
    found = []
    while (message := client.next_message()) is not None:
        found.append(message)
    return found


@given(
    messages=st.lists(st.lists(st.text(max_size=20), min_size=1, max_size=4), max_size=5),
    size=st.integers(1, 50),
    pings=st.booleans(),
)
def test_messages_are_whole_however_they_come(messages: list[list[str]], size: int, pings: bool) -> None:
    client, server = connected()
    for parts in messages:
        server.send_text(parts[0].encode(), fin=len(parts) == 1)
        for number, part in enumerate(parts[1:], 2):
            if pings:
                server.send_ping(b"there?")
            server.send_continuation(part.encode(), fin=number == len(parts))
    data = b"".join(server.data_to_send())
    for at in range(0, len(data), size):
        client.receive(data[at : at + size])
    assert taken(client) == ["".join(parts).encode() for parts in messages]
    answered = client.outgoing()
    assert bool(answered) == (pings and any(len(parts) > 1 for parts in messages))
    client.send(b"question")
    server.receive_data(answered + client.outgoing())
    assert [frame.data for frame in server.events_received()][-1] == b"question"  # type: ignore[union-attr]


def test_what_came_before_the_end_is_heard_and_the_end_is_told() -> None:
    client, server = connected()
    server.send_text(b"last")
    server.send_close(4008, "too slow")
    client.receive(b"".join(server.data_to_send()))
    assert taken(client) == [b"last"]
    with pytest.raises(GatewayUnreachable, match="4008 too slow"):
        client.receive(b"")
    with pytest.raises(GatewayUnreachable):
        client.send(b"more")


def test_what_ends_with_its_handshake_was_never_open() -> None:
    client, server = WebSocketConnection("ws://gateway:8545/"), ServerProtocol()
    server.receive_data(client.outgoing())
    [request] = server.events_received()
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    server.send_text(b"unasked")
    server.send_close(1000, "enough")
    with pytest.raises(GatewayUnreachable, match="1000 enough"):
        client.receive(b"".join(server.data_to_send()))


def test_an_end_without_a_word_is_told_each_time_that_nothing_is_left() -> None:
    client, server = connected()
    server.send_text(b"last")
    client.receive(b"".join(server.data_to_send()))
    client.receive(b"")
    assert taken(client) == [b"last"]
    for _ in range(2):
        with pytest.raises(GatewayUnreachable, match="the connection ended"):
            client.receive(b"")


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 404 Not Item\r\ncontent-length: 0\r\n\r\n",
     b"HTTP/1.1 200 OK\r\n\r\n", b"\xff" * 100 + b"\r\n",
     b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_websocket_is_refused(answer: bytes) -> None:
    client = WebSocketConnection("ws://gateway:8545/")
    client.outgoing()
    with pytest.raises(GatewayUnreachable):
        client.receive(answer)
        client.receive(b"")


def test_broken_frames_end_the_connection() -> None:
    client, _ = connected()
    with pytest.raises(GatewayUnreachable):
        client.receive(b"\xff" * 50)
