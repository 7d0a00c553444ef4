"""The supervisor of job processes: starts them shut in, watches, and leaves nothing behind (MARKET.md 7)."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import trio

import tasks
from state.primitives.errors import DecodeError
from tasks.datasets import Dataset
from tasks.engine.errors import EngineMissing
from tasks.engine.plan import TrainingPlan
from tasks.executor.errors import IsolationMissing, JobFailed, JobStalled
from tasks.executor.job import (
    ChildFrame,
    Failed,
    Finished,
    FrameReader,
    Hello,
    Job,
    Progress,
    Segment,
    Train,
    child_frame_limit,
    decode_child_frame,
    encode_frame,
)

__all__ = ["ENGINES", "Backend", "Capabilities", "Listener", "ProcessBackend", "ProcessOptions"]

ENGINES: Final = ("auto", "numpy", "torch")
"""auto: torch where it is installed and finds a GPU, else NumPy. torch: on the GPU where there is one."""
_RECEIVE_BYTES: Final = 1 << 16
_MEMORY_POLL_S: Final = 1.0
_EXIT_GRACE_S: Final = 5.0

Listener: TypeAlias = Callable[[ChildFrame], Awaitable[None]]
"""Hears every frame of a job in order; while it works the job's time does not run."""


@dataclass(frozen=True)
class ProcessOptions:
    """How jobs run as processes of this machine.

    ``niceness`` lets a validator of the same machine go first. ``isolation_required`` names those of the sandbox's
    measures without which no job may run; the others are taken where the machine grants them.
    """

    engine: str = "auto"
    python: str = sys.executable
    memory_mib: int = 4096
    no_progress_s: float = 300.0
    wall_s: float = 24 * 3600.0
    log_bytes_max: int = 64 * 1024
    niceness: int = 10
    isolation_required: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Capabilities:
    """What a backend offers here: a device, and the isolation that a job gets."""

    device: str
    isolation: frozenset[str]


class Backend(Protocol):
    """A way to run jobs: as processes now, in containers later.

    A job lives exactly as long as its ``run``: cancelling that is how a job is stopped, and nothing of it is left
    when ``run`` is over. So there is no handle that somebody could forget to clean up.
    """

    async def probe(self) -> Capabilities:
        """Tell what a job would get here. Raises what ``run`` raises."""

    async def run(self, order: Train, listener: Listener) -> None:
        """Run a job to its end. Raises JobFailed, JobStalled, IsolationMissing or EngineMissing."""


class ProcessBackend:
    """Jobs as processes of this machine, for the built-in kinds of work only."""

    def __init__(self, options: ProcessOptions, scratch: Path | None = None) -> None:
        self._options, self._scratch = options, scratch

    async def probe(self) -> Capabilities:
        """See Backend: runs a job of one step."""
        heard: list[Hello] = []

        async def listen(message: ChildFrame) -> None:
            if isinstance(message, Hello):
                heard.append(message)

        await self.run(_probe_order(), listen)
        return Capabilities(heard[0].device, heard[0].isolation)

    async def run(self, order: Train, listener: Listener) -> None:
        """See Backend."""
        scratch = _make_scratch(self._scratch)
        ours, theirs = socket.socketpair()
        their_end, our_end = os.pipe()  # closed however this process ends
        try:
            try:
                process = await self._start(theirs.fileno(), their_end, scratch)
            finally:
                theirs.close()
                os.close(their_end)
            try:
                ours.setblocking(False)
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
                await _Watch(self._options, order, process, stream, listener).run()
            finally:
                with trio.CancelScope(shield=True):
                    await _end(process)
        finally:
            ours.close()
            os.close(our_end)
            shutil.rmtree(scratch, ignore_errors=True)

    async def _start(self, descriptor: int, lifeline: int, scratch: str) -> trio.Process:
        options = self._options
        return await trio.lowlevel.open_process(
            [
                options.python, "-P", "-s", "-B", "-m", "tasks.executor.child",
                str(descriptor), scratch, options.engine,
                str(options.memory_mib), str(int(options.wall_s) + 1), str(options.niceness),
            ],
            stdin=lifeline,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(descriptor,),
            env=_environment(),
            cwd=scratch,
            start_new_session=True,
        )  # fmt: skip


class _Watch:
    """One running process: its frames, its time, its memory, its log."""

    def __init__(
        self,
        options: ProcessOptions,
        order: Train,
        process: trio.Process,
        stream: trio.SocketStream,
        listener: Listener,
    ) -> None:
        self._options, self._order, self._process = options, order, process
        self._stream, self._listener = stream, listener
        self._log = bytearray()
        self._over_memory = False
        self._step = -1
        self._stall_at = 0.0
        self._end: Finished | Failed | None = None

    async def run(self) -> None:
        failure: Exception | None = None
        with trio.move_on_after(self._options.wall_s) as wall:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_order)
                nursery.start_soon(self._drain_log)
                nursery.start_soon(self._watch_memory)
                try:
                    await self._listen()
                except Exception as error:  # raised again below: out of the nursery it would come in a group
                    failure = error
                nursery.cancel_scope.cancel()
        if wall.cancelled_caught:
            raise JobStalled(f"the job took more than {self._options.wall_s:.0f} s")
        if failure is not None:
            raise failure
        if self._over_memory:
            raise JobFailed(reason="out_of_memory", text=f"more than {self._options.memory_mib} MiB")
        match self._end:
            case Finished():
                return
            case Failed("engine_missing", text):
                raise EngineMissing(text)
            case Failed(reason, text):
                raise JobFailed(reason=reason, text=text)
            case None:
                raise JobFailed(reason="died", text=await self._last_words())

    async def _listen(self) -> None:
        """Hear the job out: until it says that it ended or until its socket closes."""
        reader = FrameReader(child_frame_limit(self._order.job.plan))
        self._stall_at = trio.current_time() + self._options.no_progress_s
        while self._end is None:
            with trio.move_on_at(self._stall_at) as waiting:
                try:
                    data = await self._stream.receive_some(_RECEIVE_BYTES)
                except trio.BrokenResourceError:
                    return
            if waiting.cancelled_caught:
                raise JobStalled(f"no step for {self._options.no_progress_s:.0f} s after step {self._step}")
            if not data:
                return
            try:
                messages = [decode_child_frame(body, self._order.job.plan) for body in reader.feed(data)]
            except DecodeError as error:
                raise JobFailed(reason="bad_frame", text=str(error)) from None
            for message in messages:
                await self._hear(message)

    async def _hear(self, message: ChildFrame) -> None:
        if self._end is not None or isinstance(message, Hello) != (
            self._step < 0 and not isinstance(message, Failed)
        ):
            raise JobFailed(reason="bad_frame", text="out of turn")
        match message:
            case Hello(_, isolation):
                missing = self._options.isolation_required - isolation
                if missing:
                    raise IsolationMissing(f"not granted here: {', '.join(sorted(missing))}")
                self._advance(0)
            case Progress(step) | Segment(step_to=step):
                if step > self._order.step_to:
                    raise JobFailed(reason="bad_frame", text="beyond the order")
                self._advance(step)
            case Finished() | Failed():
                self._end = message
        started = trio.current_time()
        await self._listener(message)
        self._stall_at += trio.current_time() - started

    def _advance(self, step: int) -> None:
        """Grant more time, but only for a step that was not reported before."""
        if step > self._step:
            self._step = step
            self._stall_at = trio.current_time() + self._options.no_progress_s

    async def _send_order(self) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # gone: _listen says so
            await self._stream.send_all(encode_frame(self._order))

    async def _drain_log(self) -> None:
        """Keep the beginning of what the job writes and drop the rest, so that it never waits for a reader."""
        assert self._process.stdout is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in self._process.stdout:
                self._log += data[: self._options.log_bytes_max - len(self._log)]

    async def _watch_memory(self) -> None:
        """Kill a job that outgrows its memory: a device's driver maps too much for a limit of address space."""
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        while True:
            await trio.sleep(_MEMORY_POLL_S)
            with suppress(OSError, IndexError, ValueError):
                if _resident_pages(self._process.pid) * page_bytes > self._options.memory_mib << 20:
                    self._over_memory = True
                    _kill(self._process)

    async def _last_words(self) -> str:
        with trio.move_on_after(_EXIT_GRACE_S):
            await self._drain_log()
            await self._process.wait()
        text = self._log.decode("utf-8", "replace").strip()
        return f"exit status {self._process.returncode}: {text[-300:]}"


def _resident_pages(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1])


def _make_scratch(parent: Path | None) -> str:
    """Make the empty directory that becomes the job's root; its user may look into it and no more."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    scratch = os.path.abspath(tempfile.mkdtemp(prefix="dekube-job-", dir=parent))
    os.chmod(scratch, 0o755)  # noqa: S103 - nothing is ever in it
    return scratch


async def _end(process: trio.Process) -> None:
    """Kill what is left of the job's group and wait until it is gone."""
    _kill(process)
    await process.wait()
    if process.stdout is not None:
        await process.stdout.aclose()


def _kill(process: trio.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Return the whole environment of a job: where the code is, and nothing of the node's."""
    packages = {str(Path(path).resolve().parent) for path in tasks.__path__}
    return {"PYTHONPATH": os.pathsep.join(sorted(packages)), "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}


def _probe_order() -> Train:
    from tasks.engine.training import initial_state  # NumPy only where a probe is asked for

    plan = TrainingPlan((2, 2), "relu", 1, bytes(32), 1)
    dataset = Dataset("probe", 2, 2, 2, 0, 1, bytes(4), bytes(2))
    job = Job(plan, 1, dataset.root(), initial_state(plan).root(plan), 1, 1, 1)
    return Train(job, dataset.encode(), None, 1, False)
