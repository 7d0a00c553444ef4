"""A program of the helper container: the door of the node's proxy in the network of the pod (market.md R144).

The Python of the helper's image runs this file alone (3.9 or newer), so it imports nothing of this project. A pod
gets its text. ``serve`` listens on the pod's loopback. Each connection goes over one link to the node, in frames:
connection, kind, size, then so many bytes. The node's proxy reads requests, looks names up and connects; nothing
of that is here, and the pod sends no packet. Without a link nothing is accepted: connections wait in the kernel.

Each side sends at most a window of a connection ahead of what the other one has passed on (``CREDIT``). So a
connection whose reader is slow takes a window of memory, and holds up no other one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator

DOOR = ("127.0.0.1", 3128)
LINK = "/dekube/stage/egress.sock"
HEAD = struct.Struct(">IBH")
AMOUNT = struct.Struct(">I")
OPEN, DATA, END, CLOSE, CREDIT, PING = range(1, 7)
CLIENTS_MAX = 72
"""Connections at once: somewhat more than the node's proxy takes, so that it is the one that refuses."""
BACKLOG = 64
CHUNK_BYTES = 32 << 10
WINDOW_BYTES = 256 << 10
CREDIT_BYTES = WINDOW_BYTES // 4
"""So much is passed on before the other side is told."""
KERNEL_BYTES = 64 << 10
"""What the kernel may keep of a connection each way (it doubles that): left alone it would take megabytes."""
LINK_BYTES_MAX = 256 << 10
"""What waits for the link; beyond it no connection of the container is read."""
BEAT_S = 15.0
SILENCE_S = 60.0
"""A link on which the node says nothing for so long is gone."""
SLOW_S = 300.0
LINGER_S = 2.0
"""A closed connection waits so long for its reader, and for a writer that has not noticed: else its end would
take back what it has been sent."""


class Client:
    """A connection of the container: what waits for it, what it may still send, and which sides have ended.

    The node has closed it where ``until`` is not 0: it is closed here then at the latest.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.out = connection, bytearray()
        self.may_send, self.passed_on = WINDOW_BYTES, 0
        self.has_ended = self.is_ending = False
        self.until = 0.0


class Server:
    """Carries connections between the container and the node."""

    def __init__(self, door: socket.socket, link_door: socket.socket) -> None:
        self.door, self.link_door = door, link_door
        self.link: socket.socket | None = None
        self.link_in, self.link_out = bytearray(), bytearray()
        self.clients: dict[int, Client] = {}
        self.last = 0
        self.heard_at = self.beat_at = 0.0

    def step(self) -> None:
        """Wait for the next thing to do, and do it."""
        now = time.monotonic()
        if self.link is not None and now >= self.beat_at:
            self.beat_at = now + BEAT_S
            if now > self.heard_at + SILENCE_S:
                self.drop_link()
            else:
                self.tell(0, PING)
        for number, client in list(self.clients.items()):
            if client.until and now >= client.until:
                self.close(number, client)
        reading, writing, wait_s = [self.link_door], [], BEAT_S
        if self.link is not None:
            reading.append(self.link)
            if self.link_out:
                writing.append(self.link)
            if len(self.link_out) < LINK_BYTES_MAX:
                reading += [self.door] if len(self.clients) < CLIENTS_MAX else []
                reading += [one.socket for one in self.clients.values() if one.may_send and not one.has_ended]
        writing += [one.socket for one in self.clients.values() if one.out]
        if any(one.until for one in self.clients.values()):
            wait_s = LINGER_S
        readable, writable, _ = select.select(reading, writing, [], wait_s)
        if self.link_door in readable:
            self.take_link()
        elif self.link is not None and self.link in readable:
            self.read_link()
        for number, client in list(self.clients.items()):
            if client.socket in writable and number in self.clients:
                self.write(number, client)
            if client.socket in readable and number in self.clients:
                self.read(number, client)
        if self.door in readable and self.link is not None:
            self.take()
        if self.link is not None and self.link_out:
            self.write_link()

    def tell(self, number: int, kind: int, data: bytes = b"") -> None:
        """Send a frame to the node."""
        self.link_out += HEAD.pack(number, kind, len(data)) + data

    def take(self) -> None:
        """Accept a connection of the container."""
        try:
            connection, _ = self.door.accept()
        except OSError:
            return
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        self.last += 1
        self.clients[self.last] = Client(connection)
        self.tell(self.last, OPEN)

    def read(self, number: int, client: Client) -> None:
        """Read what the container sends."""
        try:
            data = client.socket.recv(min(CHUNK_BYTES, client.may_send))
        except BlockingIOError:
            return
        except OSError:
            self.close(number, client)
            return
        client.has_ended = not data
        if client.until:
            if client.has_ended and not client.out:
                self.close(number, client)
            return
        client.may_send -= len(data)
        self.tell(number, DATA if data else END, data)

    def write(self, number: int, client: Client) -> None:
        """Send what waits for the container."""
        try:
            sent = client.socket.send(client.out)
        except BlockingIOError:
            return
        except OSError:
            self.close(number, client)
            return
        del client.out[:sent]
        client.passed_on += sent
        if client.passed_on >= CREDIT_BYTES and not client.until:
            self.tell(number, CREDIT, AMOUNT.pack(client.passed_on))
            client.passed_on = 0
        if client.is_ending and not client.out:
            self.end(number, client)

    def end(self, number: int, client: Client) -> None:
        """Tell the container that the node sends no more."""
        try:
            client.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close(number, client)
            return
        if client.until and client.has_ended:
            self.close(number, client)
        elif client.until:
            client.until = time.monotonic() + LINGER_S

    def close(self, number: int, client: Client) -> None:
        """Close a connection of the container, and say so where the node has not said it."""
        del self.clients[number]
        client.socket.close()
        if not client.until:
            self.tell(number, CLOSE)

    def take_link(self) -> None:
        """Take a new link of the node: the one before is gone."""
        connection, _ = self.link_door.accept()
        self.drop_link()
        connection.setblocking(False)
        self.link, self.heard_at, self.beat_at = connection, time.monotonic(), 0.0
        self.last = 0

    def drop_link(self) -> None:
        """Close the link and all connections: the node that carries them is gone."""
        if self.link is not None:
            self.link.close()
        self.link = None
        self.link_in.clear()
        self.link_out.clear()
        for client in self.clients.values():
            client.socket.close()
        self.clients.clear()

    def write_link(self) -> None:
        """Send what waits for the node."""
        assert self.link is not None
        try:
            del self.link_out[: self.link.send(self.link_out)]
        except BlockingIOError:
            return
        except OSError:
            self.drop_link()

    def read_link(self) -> None:
        """Take what the node says."""
        assert self.link is not None
        try:
            data = self.link.recv(LINK_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop_link()
            return
        self.heard_at = time.monotonic()
        self.link_in += data
        for number, kind, body in self.frames():
            client = self.clients.get(number)
            if client is not None and not self.obey(number, client, kind, body):
                self.drop_link()
                return

    def obey(self, number: int, client: Client, kind: int, body: bytes) -> bool:
        """Do what the node says of a connection; return whether it kept to its window."""
        if kind == DATA:
            client.out += body
            return len(client.out) <= WINDOW_BYTES
        if kind == CREDIT and len(body) == AMOUNT.size:
            client.may_send = min(WINDOW_BYTES, client.may_send + AMOUNT.unpack(body)[0])
        elif kind in (END, CLOSE):
            client.is_ending = True
            if kind == CLOSE:
                client.until, client.may_send = time.monotonic() + SLOW_S, WINDOW_BYTES
            if not client.out:
                self.end(number, client)
        return True

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Cut what the node said into frames."""
        at = 0
        while len(self.link_in) - at >= HEAD.size:
            number, kind, size = HEAD.unpack_from(self.link_in, at)
            if len(self.link_in) - at < HEAD.size + size:
                break
            at += HEAD.size
            yield number, kind, bytes(self.link_in[at : at + size])
            at += size
        del self.link_in[:at]


def listen_for_container(at: tuple[str, int] = DOOR) -> socket.socket:
    """Return a socket that listens on the loopback of the pod."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)  # accepted connections have it too
    made.bind(at)
    made.listen(BACKLOG)
    made.setblocking(False)
    return made


def listen_for_link(path: str = LINK) -> socket.socket:
    """Return a socket that listens for the node's link. Its file is there when all of this program listens."""
    if os.path.exists(path):
        os.unlink(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(path + ".new")
    made.listen(2)
    made.setblocking(False)
    os.rename(path + ".new", path)
    return made


def serve() -> None:
    """Carry connections until the pod ends."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    door = listen_for_container()
    server = Server(door, listen_for_link())
    while True:
        server.step()


def copy(source: int, target: int) -> None:
    """Copy bytes until there are no more, or nobody takes them."""
    try:
        while data := os.read(source, LINK_BYTES_MAX):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(target, rest) :]
    except OSError:
        pass


def link() -> None:
    """Join this program's input and output with ``serve``; end with either."""
    joined = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    joined.connect(LINK)
    child = os.fork()
    if child == 0:
        os.close(1)  # else the command would not be over when this program's parent is
        os.close(2)
        copy(0, joined.fileno())
        joined.shutdown(socket.SHUT_RDWR)
        os._exit(0)
    os.close(0)
    copy(joined.fileno(), 1)
    os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "link":
        link()
    else:
        serve()
