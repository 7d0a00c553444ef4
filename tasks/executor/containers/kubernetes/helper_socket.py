"""A program of the helper container: the socket of the requester's container, and what that container uses.

The Python of the helper's image runs this file alone (3.9 or newer), so it imports nothing of this project. A pod
gets its text. ``serve`` listens for the container and for the node. Each connection of the container goes over one
link to the node, in frames: connection, kind, size, then so many bytes. Without a node nothing is accepted: the
container waits in the kernel. The node starts ``link`` in the same container: it joins its own input and output
with ``serve``.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator

SOCKET = "/dekube/socket/job.sock"
LINK = "/dekube/stage/link.sock"
HEAD = struct.Struct(">IBH")
USE = struct.Struct(">QQ")
OPEN, DATA, END, CLOSE, USAGE, PING = range(1, 7)
CLIENTS_MAX = 8
CHUNK_BYTES = 4_096
LINK_BYTES_MAX = 64 << 10
"""What waits for the link; beyond it no container's connection is read."""
CLIENT_BYTES_MAX = 64 << 10
"""What waits for a connection of the container; beyond it that one is closed."""
BEAT_S = 5.0
SILENCE_S = 60.0
"""A link on which the node says nothing for so long is gone."""
USE_FILE = "/dekube/agent/use"
FRESH_S = 20.0


class Client:
    """A connection of the container: what waits for it, and which sides have ended."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket, self.out = connection, bytearray()
        self.has_ended = self.is_ending = False


class Server:
    """Carries connections between the container and the node."""

    def __init__(self, door: socket.socket, link_door: socket.socket, used: Callable[[], bytes]) -> None:
        self.door, self.link_door, self.used = door, link_door, used
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
                self.tell(0, USAGE, self.used())
        reading, writing = [self.link_door], []
        if self.link is not None:
            reading.append(self.link)
            if self.link_out:
                writing.append(self.link)
            if len(self.link_out) < LINK_BYTES_MAX:
                reading += [self.door] if len(self.clients) < CLIENTS_MAX else []
                reading += [one.socket for one in self.clients.values() if not one.has_ended]
        writing += [one.socket for one in self.clients.values() if one.out]
        readable, writable, _ = select.select(reading, writing, [], BEAT_S)
        if self.link_door in readable:
            self.take_link()
        elif self.link is not None and self.link in readable:
            self.read_link()
        if self.link is not None and self.link in writable:
            self.write_link()
        for number, client in list(self.clients.items()):
            if client.socket in writable:
                self.write(number, client)
            if client.socket in readable and number in self.clients:
                self.read(number, client)
        if self.door in readable and self.link is not None:
            self.take()

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
        self.last += 1
        self.clients[self.last] = Client(connection)
        self.tell(self.last, OPEN)

    def read(self, number: int, client: Client) -> None:
        """Read what the container sends."""
        try:
            data = client.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close(number, client)
            return
        client.has_ended = not data
        self.tell(number, DATA if data else END, data)

    def write(self, number: int, client: Client) -> None:
        """Send what waits for the container."""
        try:
            del client.out[: client.socket.send(client.out)]
            if client.is_ending and not client.out:
                client.socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return
        except OSError:
            self.close(number, client)

    def close(self, number: int, client: Client) -> None:
        """Close a connection of the container, and say so."""
        del self.clients[number]
        client.socket.close()
        self.tell(number, CLOSE)

    def take_link(self) -> None:
        """Take a new link of the node: the one before is gone."""
        connection, _ = self.link_door.accept()
        self.drop_link()
        connection.setblocking(False)
        self.link, self.heard_at, self.beat_at = connection, time.monotonic(), 0.0

    def drop_link(self) -> None:
        """Close the link and all connections: the node that answers them is gone."""
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
            if client is None:
                continue
            client.out += body
            if kind == CLOSE or len(client.out) > CLIENT_BYTES_MAX:
                if client.out:
                    self.write(number, client)
                if number in self.clients:
                    self.close(number, client)
            elif kind == END:
                client.is_ending = True
                self.write(number, client)

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield the whole frames that have arrived."""
        while len(self.link_in) >= HEAD.size:
            number, kind, size = HEAD.unpack_from(self.link_in)
            if len(self.link_in) < HEAD.size + size:
                return
            body = bytes(self.link_in[HEAD.size : HEAD.size + size])
            del self.link_in[: HEAD.size + size]
            yield number, kind, body


def listen(path: str) -> socket.socket:
    """Return a socket that listens at a path, for every user of the pod."""
    if os.path.exists(path):
        os.unlink(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(path + ".new")
    os.chmod(path + ".new", 0o666)  # noqa: S103  any user of the pod; nobody else has the volume
    made.listen(CLIENTS_MAX)
    made.setblocking(False)
    os.rename(path + ".new", path)  # it is there when it listens, and not before
    return made


def use_told() -> bytes:
    """Return what the agent measured last (``helper_agent``); nothing if that is old, or has another form."""
    try:
        handle = os.open(USE_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return b""
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or abs(time.time() - found.st_mtime) > FRESH_S:
            return b""
        data = os.read(handle, USE.size + 1)
        return data if len(data) == USE.size else b""
    finally:
        os.close(handle)


def serve(how: str) -> None:
    """Carry connections until the pod ends; ``stay``: not before the pod's time to end is over."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "stay" else lambda *_: os._exit(0))
    server = Server(listen(SOCKET), listen(LINK), use_told)
    while True:
        server.step()


def copy(source: int, target: int) -> None:
    """Copy bytes until there are no more, or nobody takes them."""
    try:
        while data := os.read(source, LINK_BYTES_MAX):
            while data:
                data = data[os.write(target, data) :]
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
        serve(sys.argv[1])
