"""The programs of the helper of a pod, run here: connections over one link, and the folder of checkpoints."""

from __future__ import annotations

import io
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from tasks.executor.containers.kubernetes import exec_stream, helper_agent, helper_folder, helper_socket
from tasks.executor.containers.kubernetes.link import (
    CLOSE,
    DATA,
    END,
    OPEN,
    PING,
    USAGE,
    Frame,
    FrameReader,
    decode_use,
    encode_frame,
)
from tasks.executor.containers.kubernetes.scripts import agent_command, serve_command
from tasks.executor.containers.outputs import pack_outputs

FRAMES = st.lists(
    st.one_of(
        st.builds(Frame, st.integers(1, 2**32 - 1), st.sampled_from([OPEN, END, CLOSE]), st.just(b"")),
        st.builds(Frame, st.integers(1, 2**32 - 1), st.just(DATA), st.binary(min_size=1, max_size=64)),
        st.builds(Frame, st.just(0), st.just(USAGE), st.sampled_from([b"", bytes(16)])),
    ),
    max_size=8,
)


@given(FRAMES, st.integers(1, 40))
def test_frames_are_the_same_however_they_arrive(frames: list[Frame], size: int) -> None:
    whole, reader = b"".join(map(encode_frame, frames)), FrameReader()
    found = [one for at in range(0, len(whole), size) for one in reader.feed(whole[at : at + size])]
    assert found == frames


@pytest.mark.parametrize(
    "frame", [Frame(1, 0), Frame(1, PING), Frame(1, 7), Frame(0, OPEN), Frame(1, USAGE), Frame(1, DATA),
              Frame(1, DATA, bytes(4_097)), Frame(1, OPEN, b"x"), Frame(0, USAGE, bytes(17))],
)  # fmt: skip
def test_n50_no_other_frame_is_taken(frame: Frame) -> None:
    with pytest.raises(DecodeError):
        FrameReader().feed(encode_frame(frame))


@pytest.mark.parametrize("data", [bytes(15), b"\xff" * 16, bytes(8) + b"\xff" * 8])
def test_n50_no_other_use_is_taken(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_use(data)


class Pod:
    """The helper's server in a thread, with sockets of this machine."""

    def __init__(self, folder: Path) -> None:
        self.door, self.link = str(folder / "job.sock"), str(folder / "link.sock")
        self.server = helper_socket.Server(
            helper_socket.listen(self.door), helper_socket.listen(self.link), lambda: bytes(16)
        )
        self.is_over = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.is_over:
            self.server.step()

    def close(self) -> None:
        self.is_over = True
        with connected(self.link):
            self.thread.join(20)


def connected(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(20)
    made.connect(path)
    return made


class Node:
    """The node's end of a link."""

    def __init__(self, pod: Pod) -> None:
        self.socket, self.reader, self.frames = connected(pod.link), FrameReader(), list[Frame]()

    def next(self) -> Frame:
        """Return the next frame that says something of a connection."""
        while True:
            while self.frames:
                if (found := self.frames.pop(0)).kind != USAGE:
                    return found
            self.frames = self.reader.feed(self.socket.recv(1 << 16))

    def say(self, frame: Frame) -> None:
        self.socket.sendall(encode_frame(frame))


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()


def test_a_connection_goes_over_the_link_and_ends_on_both_sides(pod: Pod) -> None:
    early = connected(pod.door)  # nobody is there yet: it waits
    early.sendall(b"question")
    node = Node(pod)
    assert [node.next(), node.next()] == [Frame(1, OPEN), Frame(1, DATA, b"question")]
    node.say(Frame(1, DATA, b"answer"))
    node.say(Frame(1, END))
    assert early.recv(99) == b"answer" and early.recv(99) == b""
    early.close()
    assert node.next() == Frame(1, END)
    node.say(Frame(1, CLOSE))
    with connected(pod.door) as other:
        assert node.next() == Frame(1, CLOSE) and node.next() == Frame(2, OPEN)
        node.socket.close()  # the node is gone: so is every connection
        assert other.recv(99) == b""
    with connected(pod.door) as third:
        later = Node(pod)
        third.sendall(b"again")
        assert later.next().kind == OPEN and later.next().data == b"again"
        Node(pod)  # another link takes its place
        assert later.socket.recv(1 << 16) in (b"", encode_frame(Frame(0, USAGE, bytes(16))))


def test_n50_what_waits_in_the_helper_is_bounded(pod: Pod) -> None:
    """A container that floods is not read while the node does not read; an answer that nobody takes is dropped."""
    node = Node(pod)
    flood = connected(pod.door)
    flood.settimeout(1)
    with pytest.raises(TimeoutError):
        while True:
            flood.sendall(bytes(1 << 16))
    assert len(pod.server.link_out) <= helper_socket.LINK_BYTES_MAX + 2 * helper_socket.CHUNK_BYTES
    others = [connected(pod.door) for _ in range(helper_socket.CLIENTS_MAX)]
    received = 0
    while received < 1 << 16:
        received += len(node.next().data)
    flood.close()
    number = 1
    for _ in range(64):
        node.say(Frame(number, DATA, bytes(4_096)))
    while (found := node.next()) != Frame(number, CLOSE):
        assert found.kind in (OPEN, DATA, END, CLOSE)
    assert len(pod.server.clients) <= helper_socket.CLIENTS_MAX
    for one in others:
        one.close()


def _archive(root: Path, offset: int = 0) -> bytes:
    read, write = os.pipe()
    found = list[bytes]()

    def drain() -> None:
        with os.fdopen(read, "rb") as file:
            found.append(file.read())

    thread = threading.Thread(target=drain)
    thread.start()
    code = helper_folder.archive(str(root), write, offset)
    os.close(write)
    thread.join()
    assert code == 0
    return found[0]


def test_a_folder_of_the_same_state_is_the_same_archive_and_holds_what_is_whole(tmp_path: Path) -> None:
    root = tmp_path / "checkpoint"
    (root / "inner" / "deep").mkdir(parents=True)
    (root / "inner" / "deep" / "b").write_bytes(bytes(100_000))
    (root / "a").write_bytes(b"a")
    (root / "c.tmp").write_bytes(b"half")
    os.symlink("/etc/passwd", root / "link")
    os.mkfifo(root / "pipe")
    before, whole = helper_folder.state_of(str(root)), _archive(root)
    (root / "c.tmp").write_bytes(b"half more")
    assert helper_folder.state_of(str(root)) == before and _archive(root) == whole
    for offset in (1, 511, 700, len(whole) - 1, len(whole)):
        assert _archive(root, offset) == whole[offset:]
    packed = io.BytesIO()
    outputs = pack_outputs(io.BytesIO(whole), packed, 1 << 20, leaves_unfinished=True)
    assert set(outputs.left_out) == {"link", "pipe"}
    packed.seek(0)
    with tarfile.open(fileobj=packed) as found:
        assert found.getnames() == ["a", "inner", "inner/deep", "inner/deep/b"]
    (root / "a").write_bytes(b"b")
    assert helper_folder.state_of(str(root)) != before
    states = {before, helper_folder.state_of(str(root))}
    (root / "a.tmp").write_bytes(b"b")
    os.rename(root / "a.tmp", root / "a")  # the same bytes, another file
    assert helper_folder.state_of(str(root)) not in states


def test_what_a_pod_runs_is_in_the_pod() -> None:
    command = serve_command(stays=True)
    assert command[4] == Path(helper_socket.__file__).read_text()
    assert command[5] == Path(helper_agent.__file__).read_text()
    assert agent_command(stays=False)[5] == Path(helper_folder.__file__).read_text()
    assert "$" not in command[4] + command[5], "a kubelet would expand it"


def test_a_stopped_agent_is_noticed_before_its_stream_counts_as_broken() -> None:
    """Else the node would try again for minutes what a container has stopped."""
    assert helper_agent.SILENCE_S + helper_agent.TRIES * helper_agent.TRY_S < exec_stream.SILENCE_S
