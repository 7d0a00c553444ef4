"""The programs of the helper of a pod, run here: connections over one link, and the folder of checkpoints."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from state.primitives.errors import DecodeError
from tasks.executor.containers.backend import End, Ended
from tasks.executor.containers.errors import BadOutputs, EngineUnavailable, FolderChanges
from tasks.executor.containers.kubernetes import (
    bounds,
    checkpoints,
    exec_stream,
    helper_agent,
    helper_folder,
    helper_socket,
)
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
from tasks.executor.containers.kubernetes.states import Pod as SeenPod
from tasks.executor.containers.kubernetes.states import read_pod
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


def _run(work: Callable[[int], int]) -> tuple[int, bytes]:
    """Run a program of the helper with a pipe; return its exit code and what it wrote."""
    read, write = os.pipe()
    found = list[bytes]()

    def drain() -> None:
        with os.fdopen(read, "rb") as file:
            found.append(file.read())

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        code = work(write)
    finally:
        os.close(write)
        thread.join()
    return code, found[0]


def _snapshot(root: Path, copy: Path, *, room: int = 1 << 30, wipes: bool = False) -> tuple[int, str, bytes]:
    copy.mkdir(exist_ok=True)
    code, said = _run(lambda target: helper_folder.snapshot(str(root), str(copy), room, target, wipes))
    name, _, archive = said.lstrip(b"\n").partition(b"\n")
    return code, name.decode(), archive


def test_a_copy_is_the_folder_without_what_is_not_whole(tmp_path: Path) -> None:
    root, copy = tmp_path / "checkpoint", tmp_path / "copy"
    (root / "inner" / "deep").mkdir(parents=True)
    (root / "inner" / "deep" / "b").write_bytes(bytes(100_000))
    (root / "a").write_bytes(b"a")
    (root / "a").chmod(0o755)
    (root / "c.tmp").write_bytes(b"half")
    os.link(root / "a", root / "again")
    os.symlink("/etc/passwd", root / "link")
    os.mkfifo(root / "pipe")
    code, name, whole = _snapshot(root, copy)
    assert code == 0
    packed = io.BytesIO()
    outputs = pack_outputs(io.BytesIO(whole), packed, 1 << 20, leaves_unfinished=True)
    assert set(outputs.left_out) == {"link", "pipe"}
    packed.seek(0)
    with tarfile.open(fileobj=packed) as found:
        assert found.getnames() == ["a", "again", "inner", "inner/deep", "inner/deep/b"]
        assert found.getmember("a").mode == 0o755 and found.getmember("inner/deep/b").mode == 0o644
    (root / "a").write_bytes(b"later")
    for offset in (1, 511, 700, len(whole) - 1, len(whole)):
        head = f"{name}\n".encode()
        assert _run(partial(helper_folder.rest, str(copy), name, offset)) == (0, head + whole[offset:])
    code, other, later = _snapshot(root, copy, wipes=True)
    assert (code, other != name, b"later" in later) == (0, True, True)
    assert _run(partial(helper_folder.rest, str(copy), name, 5)) == (helper_folder.NO_COPY, b"")
    assert not any(one.read_bytes() == b"a" for one in copy.iterdir()), "what is old is gone"


def test_a_folder_is_stored_whose_program_writes_all_the_time(tmp_path: Path) -> None:
    """Three commands that each read all of it would find it changed, whatever they did."""
    root, copy = tmp_path / "checkpoint", tmp_path / "copy"
    root.mkdir()
    (root / "large").write_bytes(os.urandom(8 << 20))
    writes = (
        "import os, time\nnumber = 0\nwhile True:\n number += 1\n"
        " for name in 'ab':\n"
        "  open('new.tmp', 'w').write(str(number)); os.rename('new.tmp', name)\n"
        " time.sleep(0.3)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", writes], cwd=root)
    try:
        while not (root / "b").exists():
            time.sleep(0.05)
        for _ in range(3):
            code, _, whole = _snapshot(root, copy)
            assert code == 0
            with tarfile.open(fileobj=io.BytesIO(whole)) as found:
                a, b, large = (found.extractfile(f"checkpoint/{name}") for name in ("a", "b", "large"))
                assert a and b and large and large.read() == (root / "large").read_bytes()
                assert int(a.read()) - int(b.read()) in (0, 1), "of two moments"
    finally:
        writer.kill()
        writer.wait()


def test_a_folder_that_never_rests_and_one_without_room_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = tmp_path / "checkpoint", tmp_path / "copy"
    root.mkdir()
    monkeypatch.setattr(helper_folder, "PASSES_S", 0.1)
    (root / "a").write_bytes(bytes(5_000))
    assert _snapshot(root, copy, room=8_191 + 512)[0] == helper_folder.TOO_LARGE
    assert _snapshot(root, copy, room=8_192 + 512)[0] == 0
    (root / "a").chmod(0)
    copied, count = helper_folder.copy_changed, 0

    def disturbed(*arguments: Any) -> bool:
        nonlocal count
        count += 1
        (root / f"{count}").write_bytes(b"new")
        return copied(*arguments)

    monkeypatch.setattr(helper_folder, "copy_changed", disturbed)
    assert _snapshot(root, copy)[0] == helper_folder.CHANGED and count >= helper_folder.PASSES_MIN
    monkeypatch.setattr(helper_folder, "NAMES_BYTES_MAX", 1)
    assert _snapshot(root, copy)[0] == helper_folder.TOO_LARGE


def test_names_count_as_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has a place of its own in the pod, and an escape for each letter beyond ASCII."""
    root, copy = tmp_path / "checkpoint", tmp_path / "copy"
    root.mkdir()
    (root / ("ü" * 10)).touch()
    monkeypatch.setattr(helper_folder, "NAMES_BYTES_MAX", 62)
    code, name, _ = _snapshot(root, copy)
    listed = (copy / f"{helper_folder.INDEX}{name}").read_bytes()
    assert code == 0 and len(listed) > 62
    monkeypatch.setattr(helper_folder, "NAMES_BYTES_MAX", 61)
    assert _snapshot(root, copy)[0] == helper_folder.TOO_LARGE


class _Pod:
    """A helper that a container has taken over: it says what the test wants, in the commands of one snapshot."""

    def __init__(self, *said: tuple[list[bytes], int | Exception]) -> None:
        self.said, self.asked = list(said), list[tuple[str, ...]]()

    @asynccontextmanager
    async def command(self, _api: object, _pod: str, _name: str, words: Sequence[str]) -> AsyncIterator[object]:
        self.asked.append(tuple(words[-3:]))
        parts, end = self.said.pop(0)

        class Told:
            code: int | None = None
            told = b""

            async def output(self) -> AsyncIterator[bytes]:
                for part in parts:
                    yield part
                if isinstance(end, Exception):
                    raise end
                self.code = end

        yield Told()


async def _fetched(pod: _Pod, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(checkpoints, "run_command", pod.command)
    file = io.BytesIO()
    await checkpoints.fetch_checkpoint(cast(Any, None), "/pods/a", file, 10, 4_608, 30.0, wipes=True)
    return file.getvalue()


NAME = b"0123456789abcdef"


async def test_a_checkpoint_goes_on_at_the_missing_byte_of_its_copy(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    cut = EngineUnavailable("cut")
    pod = _Pod(
        ([b"\n", b"\n0123"], cut), ([b"\n" + NAME[:4], NAME[4:] + b"\nabc"], cut), ([NAME + b"\nd"], cut),
        ([], helper_folder.NO_COPY), ([NAME[::-1] + b"\n", b"whole"], 0),
    )  # fmt: skip
    assert await _fetched(pod, monkeypatch) == b"whole"
    begin, name = ("snapshot", "4608", "1"), NAME.decode()
    assert pod.asked == [begin, begin, ("rest", name, "3"), ("rest", name, "4"), begin]


@pytest.mark.parametrize(
    ("said", "code", "error"),
    [
        ([b"\n" * 2_000], 0, BadOutputs), ([b"\n"] * 2_000, 0, BadOutputs), ([b"0" * 17], 0, BadOutputs),
        ([b"../../etc/passwd\n"], 0, BadOutputs), ([], 0, BadOutputs), ([NAME], 0, BadOutputs),
        ([NAME + b"\n" + bytes(11 + (64 << 20))], 0, BadOutputs), ([], helper_folder.TOO_LARGE, BadOutputs),
        ([], helper_folder.CHANGED, FolderChanges), ([NAME + b"\nabc"], 75, BadOutputs),
    ],
)  # fmt: skip
async def test_n81_a_helper_that_was_taken_over_keeps_nobody(
    said: list[bytes], code: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(error):
        await _fetched(_Pod((said, code)), monkeypatch)


async def test_n81_a_copy_that_is_removed_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = _Pod(*[([NAME + b"\nab"], helper_folder.NO_COPY)] * checkpoints.COPIES_MAX)
    with pytest.raises(FolderChanges, match="gone"):
        await _fetched(pod, monkeypatch)
    other = _Pod(([NAME + b"\nab"], EngineUnavailable("cut")), ([NAME[::-1] + b"\ncd"], 0))
    monkeypatch.setattr(checkpoints, "AGAIN_S", 0.0)
    with pytest.raises(BadOutputs, match="another"):
        await _fetched(other, monkeypatch)


def test_files_are_counted_where_they_hide(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    (root / "a" / "b").mkdir(parents=True)
    for number in range(20):
        (root / "a" / "b" / str(number)).touch()
    (root / "link").symlink_to(tmp_path)
    assert not helper_agent.has_more_files(str(root), 23) and helper_agent.has_more_files(str(root), 22)
    deep = root
    for _ in range(helper_agent.DEPTH_MAX + 1):
        deep /= "d"
        deep.mkdir()
    assert helper_agent.has_more_files(str(root), 1 << 20), "nobody looks into it, so nobody counts"


def test_n82_files_below_a_path_that_no_kernel_takes_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    handle = os.open(root, os.O_RDONLY)
    for _ in range(20):  # 5,000 bytes in all
        os.mkdir("n" * 250, dir_fd=handle)
        below = os.open("n" * 250, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    for number in range(30):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)
    assert helper_agent.has_more_files(str(root), 49) and not helper_agent.has_more_files(str(root), 50)
    assert not helper_agent.has_more_files(str(tmp_path / "gone"), 0)
    shutil.rmtree(root)


def test_a_count_that_fails_is_not_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = helper_agent.FilesWatch(0)
    for counts, is_ended in ((_no_count, False), (lambda *_: False, False), (lambda *_: True, True)):
        monkeypatch.setattr(helper_agent, "has_more_files", counts)
        watch.again_at = 0.0
        assert not watch.look()
        found = False
        while watch.child:
            time.sleep(0.01)
            found = watch.look()
        assert found is is_ended


def test_n82_threads_count_as_processes() -> None:
    begun = threading.Barrier(41)
    ends = threading.Event()

    def last() -> None:
        begun.wait()
        ends.wait()

    before = helper_agent.threads_of(str(os.getpid()))
    threads = [threading.Thread(target=last) for _ in range(40)]
    for one in threads:
        one.start()
    begun.wait()
    try:
        assert helper_agent.threads_of(str(os.getpid())) == before + 40
        assert helper_agent.processes() >= before + 40
    finally:
        ends.set()
        for one in threads:
            one.join()


def test_n82_a_container_with_too_many_processes_or_files_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal is looked at here and given in tests/kubernetes/test_abuse.py: it ends all that a user has."""
    ended = list[tuple[int, int]]()
    monkeypatch.setattr(helper_agent, "WHY", str(tmp_path / "why"))
    monkeypatch.setattr(os, "getuid", lambda: 1_000)
    monkeypatch.setattr(os, "geteuid", lambda: 1_000)
    monkeypatch.setattr(os, "kill", lambda *signalled: ended.append(signalled))
    helper_agent.end_others("files 7")
    helper_agent.end_others("processes 9")
    assert (tmp_path / "why").read_text() == "files 7", "the first bound counts"
    assert ended == [(-1, signal.SIGKILL)] * 2
    monkeypatch.setattr(os, "getuid", lambda: 0)
    helper_agent.end_others("files 7")
    assert len(ended) == 2, "an agent with the rights of root would end its whole machine"
    monkeypatch.setattr(helper_agent, "DISK", str(tmp_path))
    watch = helper_agent.FilesWatch(0)
    assert not watch.look() and not watch.child
    watch.again_at = 0.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fork", _no_process)
        assert not watch.look() and not watch.child
    watch.again_at = 0.0
    found = watch.look()
    while watch.child:
        time.sleep(0.01)
        found = watch.look()
    assert found and watch.again_at > time.monotonic() + 5


def test_n82_what_has_ended_is_not_ended_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first process that reaps nobody keeps a bomb in the list; the agent still hands over why it ended."""
    stats = {"/proc/self/root/": (1, 1), "/proc/7/root/": (1, 1), "/proc/9/root/": (1, 2)}

    def stat(path: str) -> os.stat_result:
        if path not in stats:
            raise FileNotFoundError(path)
        device, number = stats[path]
        return os.stat_result((0, number, device, 0, 0, 0, 0, 0, 0, 0))

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        patched.setattr(os, "listdir", lambda _path: ["1", "7", "8", "9", "self"])
        assert helper_agent.has_others()
        del stats["/proc/9/root/"]
        assert not helper_agent.has_others() and helper_agent.processes() == 4


def _no_count(_root: str, _files_max: int) -> bool:
    raise MemoryError


def _no_process() -> int:
    raise BlockingIOError("no more processes")


def _pod(code: int, reason: str = "Error") -> SeenPod:
    ended = {"exitCode": code, "reason": reason, "startedAt": "2026-01-01T00:00:00Z"}
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    statuses = [{"name": "main", "state": {"terminated": ended}}]
    statuses += [{"name": name, "state": running} for name in ("outputs", "files")]
    found = {"metadata": {"name": "a", "uid": "1"}, "status": {"phase": "Running", "containerStatuses": statuses}}
    return read_pod(found, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("said", "code", "bound"),
    [
        ([b"files 70000"], 0, "files 70000"), ([b"processes", b" 4200"], 0, "processes 4200"), ([], 1, ""),
        ([b"files -1"], 0, ""), ([b"files 1\n[paid]"], 0, ""), ([b"x" * 64], 0, ""), ([b"files 7"], 75, ""),
    ],
)  # fmt: skip
async def test_n82_a_passed_bound_is_named_and_nothing_else_is_believed(
    said: list[bytes], code: int, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_arguments: object) -> tuple[int, bytes]:
        return code, b"".join(said)

    monkeypatch.setattr(bounds, "answer_to", answer)
    assert await bounds.passed_bound(cast(Any, None), "/pods/a", _pod(137)) == bound
    for pod in (_pod(0), _pod(1), _pod(143), _pod(137, "OOMKilled")):
        assert await bounds.passed_bound(cast(Any, None), "/pods/a", pod) == ""
    killed = Ended(End.SIGNALLED, 9, 5.0)
    assert bounds.named_end(killed, bound).end is (End.OUT_OF_DISK if "files" in bound else End.SIGNALLED)
    assert (bound.partition(" ")[2].encode() in bounds.shown_bound(bound)) and bool(bound) == bool(
        bounds.shown_bound(bound)
    )


def test_what_a_pod_runs_is_in_the_pod() -> None:
    command = serve_command(stays=True)
    assert command[4] == Path(helper_socket.__file__).read_text()
    assert command[5] == Path(helper_agent.__file__).read_text()
    assert agent_command(stays=False, processes_max=1, files_max=1)[5] == Path(helper_folder.__file__).read_text()
    assert "$" not in command[4] + command[5], "a kubelet would expand it"


def test_a_stopped_agent_is_noticed_before_its_stream_counts_as_broken() -> None:
    """Else the node would try again for minutes what a container has stopped."""
    assert helper_agent.SILENCE_S + helper_agent.TRIES * helper_agent.TRY_S < exec_stream.SILENCE_S
