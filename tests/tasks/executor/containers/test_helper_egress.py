"""The egress of a pod without a cluster: the program of the helper, and the node's end of its link (R144)."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from tasks.executor.containers.kubernetes import helper_egress, link
from tasks.executor.containers.kubernetes.egress_link import (
    CHUNK_BYTES,
    CLOSE,
    CONNECTIONS_MAX,
    CREDIT,
    DATA,
    END,
    OPEN,
    PING,
    WINDOW_BYTES,
    EgressLink,
    check_egress_head,
    listen_for_link,
)
from tasks.executor.containers.kubernetes.link import Frame, FrameReader, encode_frame
from tasks.executor.containers.kubernetes.scripts import serve_command, wait_for_sockets

TASK = bytes(32)


def credit(number: int, amount: int) -> Frame:
    return Frame(number, CREDIT, amount.to_bytes(4, "big"))


@pytest.mark.parametrize(
    "frame", [Frame(1, 0), Frame(1, PING), Frame(1, 7), Frame(0, OPEN), Frame(0, PING, b"x"), Frame(1, DATA),
              Frame(1, DATA, bytes(CHUNK_BYTES + 1)), Frame(1, OPEN, b"x"), Frame(1, CREDIT, bytes(3)),
              Frame(1, CLOSE, b"x"), Frame(1, END, b"x"), Frame(0, CREDIT, bytes(4))],
)  # fmt: skip
def test_n66_no_other_frame_is_taken(frame: Frame) -> None:
    with pytest.raises(DecodeError):
        FrameReader(check_egress_head).feed(encode_frame(frame))


def test_both_ends_have_the_same_numbers() -> None:
    for name in ("OPEN", "DATA", "END", "CLOSE", "CREDIT", "PING"):
        assert getattr(helper_egress, name) == globals()[name]
    assert (helper_egress.WINDOW_BYTES, helper_egress.CHUNK_BYTES) == (WINDOW_BYTES, CHUNK_BYTES)
    assert helper_egress.CLIENTS_MAX == CONNECTIONS_MAX


def test_a_pod_without_names_has_no_door() -> None:
    text = Path(helper_egress.__file__).read_text()
    assert serve_command(stays=False)[7] == "" and "egress" not in wait_for_sockets(egress=False)
    assert serve_command(stays=False, egress=True)[7] == text and "egress.sock" in wait_for_sockets(egress=True)
    assert "$" not in text, "a kubelet would expand it"


class Pod:
    """The helper's server in a thread, with a door at another port."""

    def __init__(self, folder: Path) -> None:
        door = helper_egress.listen_for_container(("127.0.0.1", 0))
        self.link, self.port = str(folder / "link.sock"), door.getsockname()[1]
        self.server = helper_egress.Server(door, helper_egress.listen_for_link(self.link))
        self.is_over = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.is_over:
            self.server.step()

    def close(self) -> None:
        self.is_over = True
        with self.joined():
            self.thread.join(20)
        self.server.door.close()

    def joined(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(20)
        made.connect(self.link)
        return made

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), 20)


class Node:
    """The node's end of a link, frame by frame."""

    def __init__(self, pod: Pod) -> None:
        self.socket, self.frames = pod.joined(), list[Frame]()
        self.reader = FrameReader(check_egress_head)

    def next(self) -> Frame:
        """Return the next frame that says something of a connection."""
        while True:
            while self.frames:
                if (found := self.frames.pop(0)).kind != PING:
                    return found
            data = self.socket.recv(1 << 16)
            assert data, "the helper has closed the link"
            self.frames = self.reader.feed(data)

    def say(self, *frames: Frame) -> None:
        self.socket.sendall(b"".join(map(encode_frame, frames)))


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()


def test_a_connection_waits_for_its_link_and_ends_on_both_sides(pod: Pod) -> None:
    early = pod.connected()  # nobody is there yet: it waits
    early.sendall(b"question")
    node = Node(pod)
    assert [node.next(), node.next()] == [Frame(1, OPEN), Frame(1, DATA, b"question")]
    node.say(Frame(1, DATA, b"answer"), Frame(1, END))
    assert early.recv(99) == b"answer" and early.recv(99) == b""
    early.close()
    assert node.next() == Frame(1, END)
    node.say(Frame(1, CLOSE))
    with pod.connected() as other:
        assert node.next() == Frame(2, OPEN)
        node.socket.close()  # the node is gone: so is every connection
        assert other.recv(99) == b""
    with pod.connected() as third:
        later = Node(pod)
        third.sendall(b"again")
        assert (later.next(), later.next().data) == (Frame(1, OPEN), b"again")


def test_what_was_sent_before_a_close_arrives_whole(pod: Pod) -> None:
    """The proxy refuses a request whose body still comes: its answer must not be lost."""
    node = Node(pod)
    with pod.connected() as one:
        assert node.next() == Frame(1, OPEN)
        one.sendall(b"x" * 9_000)
        sent = [Frame(1, DATA, bytes([number]) * CHUNK_BYTES) for number in range(8)]
        node.say(*sent, Frame(1, END), Frame(1, CLOSE))
        one.sendall(b"y" * 9_000)
        got = b""
        while data := one.recv(1 << 16):
            got += data
        assert got == b"".join(frame.data for frame in sent)


def test_n66_each_connection_has_its_window_and_holds_up_no_other(pod: Pod) -> None:
    node = Node(pod)
    with pod.connected() as flood, pod.connected() as other:
        assert {node.next().kind, node.next().kind} == {OPEN}
        flood.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while True:
                flood.sendall(bytes(1 << 16))
        came = 0
        while came < WINDOW_BYTES:
            frame = node.next()
            assert (frame.connection, frame.kind) == (1, DATA)
            came += len(frame.data)
        assert came == WINDOW_BYTES
        other.sendall(b"me too")
        assert node.next() == Frame(2, DATA, b"me too")
        node.say(credit(1, 1_000))
        assert len(node.next().data) == 1_000
        # It reads nothing either: what the node sends waits here, and beyond the window the link goes.
        for _ in range(200):
            if pod.server.link is None:
                break
            try:
                node.say(Frame(1, DATA, bytes(CHUNK_BYTES)))
            except OSError:
                break
        assert other.recv(9) == b"", "a node that does not keep to the window is none"


async def test_a_connection_goes_to_the_proxy_and_back(pod: Pod, tmp_path: Path, linked: Any) -> None:
    """3 MB each way, with a reader that begins late: more than any window."""
    big = bytes(range(256)) * 12_000
    listening = trio.SocketListener(trio.socket.from_stdlib_socket(listen_for_link(tmp_path / "node")))
    got = list[bytes]()

    def ask() -> None:
        with pod.connected() as one:
            one.sendall(big)
            one.shutdown(socket.SHUT_WR)
            while data := one.recv(1 << 16):
                got.append(data)

    async def proxy(stream: trio.SocketStream) -> None:
        async with stream:
            asked = b"".join([bytes(data) async for data in stream])
            await stream.send_all(asked[::-1])

    async with linked(pod, tmp_path / "node") as made:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, proxy, [listening])
            await trio.to_thread.run_sync(ask)
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            while made._joined:  # noqa: ASYNC110
                await trio.sleep(0.01)
    assert b"".join(got) == big[::-1]


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A link whose command is the helper's own socket: all but the API server's stream is the product's."""

    @asynccontextmanager
    async def run(pod: Pod, folder: Path) -> AsyncIterator[EgressLink]:
        @asynccontextmanager
        async def run_command(*_: Any, **__: Any) -> AsyncIterator[Any]:
            async with await trio.open_unix_socket(pod.link) as stream:
                yield Spoken(stream)

        monkeypatch.setattr(link, "run_command", run_command)
        made = EgressLink(None, folder, TASK)  # type: ignore[arg-type]
        made.attach("/pod")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()

    return run


class Spoken:
    """What the API server's stream does, over a socket of this machine."""

    code, told = 0, b""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream, self.lock = stream, trio.Lock()

    async def write(self, data: bytes) -> None:
        async with self.lock:
            await self.stream.send_all(data)

    async def output(self) -> AsyncIterator[bytes]:
        async for data in self.stream:
            yield bytes(data)


class Liar:
    """A helper that says what a test wants it to say."""

    code, told = 0, b""

    def __init__(self, frames: list[Frame]) -> None:
        self.frames, self.said = frames, list[Frame]()

    async def write(self, data: bytes) -> None:
        self.said += FrameReader(check_egress_head).feed(data)

    async def output(self) -> AsyncIterator[bytes]:
        for frame in self.frames:
            yield encode_frame(frame)
            await trio.sleep(0.01)


async def carried(monkeypatch: pytest.MonkeyPatch, folder: Path, frames: list[Frame]) -> tuple[Liar, str]:
    """Return a liar after it has said its frames, and why the node has cut its link."""
    liar = Liar(frames)

    @asynccontextmanager
    async def run_command(*_: Any, **__: Any) -> AsyncIterator[Liar]:
        yield liar

    monkeypatch.setattr(link, "run_command", run_command)
    made = EgressLink(None, folder, TASK)  # type: ignore[arg-type]
    with pytest.raises(Exception) as raised:
        await made._carry_all()
    assert not made._joined
    return liar, str(raised.value)


FULL = [Frame(1, DATA, bytes(CHUNK_BYTES))] * (WINDOW_BYTES // CHUNK_BYTES)


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ([Frame(1, OPEN), Frame(1, OPEN)], "opens connection 1 after 1"),
        ([Frame(2, DATA, b"x")], "bytes of connection 2, which is not open"),
        ([Frame(1, OPEN), *FULL, Frame(1, DATA, b"x")], "more bytes of connection 1 than may come"),
        ([Frame(1, OPEN), Frame(1, END), Frame(1, DATA, b"x")], "more bytes of connection 1 than may come"),
        ([Frame(1, OPEN), credit(1, 1)], "more room in connection 1 than it has"),
        ([Frame(1, OPEN), Frame(1, CLOSE), *FULL, Frame(1, DATA, b"x")], "which is not open"),
    ],
)
async def test_n66_a_helper_that_lies_loses_its_link(
    frames: list[Frame], why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, told = await carried(monkeypatch, tmp_path, frames)
    assert why in told


async def test_n66_more_connections_than_may_be_are_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = [Frame(number, OPEN) for number in range(1, CONNECTIONS_MAX + 3)]
    liar, told = await carried(monkeypatch, tmp_path, opened)
    closed = [frame for frame in liar.said if frame.kind == CLOSE]
    assert closed == [Frame(CONNECTIONS_MAX + 1, CLOSE), Frame(CONNECTIONS_MAX + 2, CLOSE)]
    assert "has ended" in told


class Deaf(Liar):
    """A helper that reads nothing."""

    async def write(self, _data: bytes) -> None:
        await trio.sleep_forever()


async def test_n66_a_helper_that_reads_nothing_has_few_connections(autojump_clock: Any) -> None:
    made, command = EgressLink(None, Path("/nowhere"), TASK), Deaf([])  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(1):
            for number in range(1, 4 * CONNECTIONS_MAX):
                for kind in (OPEN, CLOSE):
                    await made._take(command, Frame(number, kind), nursery)  # type: ignore[arg-type]
                await trio.sleep(0.001)
        assert len(nursery.child_tasks) <= CONNECTIONS_MAX
        nursery.cancel_scope.cancel()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(range(1, 7)), st.integers(0, 40)), max_size=12))
def test_n66_whatever_a_helper_says_the_node_keeps_a_window(drawn: list[tuple[int, int, int]]) -> None:
    """Frames in any order end in an answer or a typed error, and never keep more than a window."""
    frames = [
        credit(number, size) if kind == CREDIT else Frame(number, kind, bytes(size))
        for number, kind, size in drawn
    ]
    data = b"".join(map(encode_frame, frames))

    async def run() -> None:
        made = EgressLink(None, Path("/nowhere"), TASK)  # type: ignore[arg-type]
        command: Any = Liar([])
        async with trio.open_nursery() as nursery:
            try:
                for frame in FrameReader(check_egress_head).feed(data):
                    await made._take(command, frame, nursery)
                    assert all(len(one.waiting) <= WINDOW_BYTES for one in made._joined.values())
            except DecodeError:
                pass
            nursery.cancel_scope.cancel()

    trio.run(run)
