"""The supervisor of job processes: starts them in a sandbox, watches them and cleans up (market.md 10)."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import trio

import tasks
from state.primitives.errors import DecodeError
from tasks.engines.datasets import Dataset
from tasks.engines.errors import EngineMissing
from tasks.engines.plan import TrainingPlan
from tasks.executor.control_groups import ControlGroups, JobGroup, open_groups
from tasks.executor.errors import IsolationMissing, JobFailed, JobStalled
from tasks.executor.job import (
    ChildFrame,
    Failed,
    Finished,
    FrameReader,
    Hello,
    Job,
    Order,
    Progress,
    Segment,
    Train,
    answer_limit,
    decode_child_frame,
    encode_frame,
)
from tasks.executor.linking import Links, RunLinks
from tasks.executor.measures import FILES, MEASURES, MEMORY, USER
from tasks.executor.pauses import Pauses
from tasks.executor.playing import MoreMoves, Play, Played

__all__ = [
    "CHILD_MODULE",
    "ENGINES",
    "Backend",
    "Capabilities",
    "Listener",
    "ProcessBackend",
    "ProcessOptions",
    "end_leftovers",
    "ignore_start",
]

CHILD_MODULE: Final = "tasks.executor.child"
ENGINES: Final = ("auto", "numpy", "torch")
"""auto: torch where it is installed and finds a GPU, else NumPy. torch: on the GPU where there is one."""
_RECEIVE_BYTES: Final = 1 << 16
_MEMORY_POLL_S: Final = 1.0
_LOOK_S: Final = 1.0
"""How often the processor time of a silent job is read."""
_EXIT_GRACE_S: Final = 5.0
_END_GRACE_S: Final = 1.0
"""From SIGTERM to SIGKILL, which a stopped process cannot put off either."""
_KILL_PATIENCE_S: Final = 10.0
"""How long a killed process is waited for: one that hangs in a driver must not hold up the node."""
_COMMAND_LIMIT_BYTES: Final = 16 * 1024
_JOB_MEMORY_MIB: Final = 4096
_SCRATCH_PREFIX: Final = "dekube-job-"
_WRITE_BYTES: Final = 1 << 24
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_STATES: Final = {"T": "stopped", "t": "traced", "D": "waiting for a device", "S": "asleep", "Z": "ended"}

MoveSource: TypeAlias = trio.MemoryReceiveChannel[MoreMoves]
"""Moves for a process that plays, each after its answer to those before."""
Listener: TypeAlias = Callable[[ChildFrame], Awaitable[None]]
"""Receives every frame of a job in order; its own run time does not count as the job's."""


def _memory_mib() -> int:
    """Return what one job may have: three quarters of the machine's memory, 4 GiB at least."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return max(_JOB_MEMORY_MIB, whole * 3 // 4)


@dataclass(frozen=True)
class ProcessOptions:
    """How jobs run as processes of this machine.

    ``niceness`` lets a validator of the same machine go first. ``isolation_required`` names those of the sandbox's
    measures without which no job may run; the others are taken where the machine grants them. A job that makes no
    step for ``no_progress_s`` is ended; one that is silent and uses no processor time (a stopped one, say) after
    ``quiet_s``.
    """

    engine: str = "auto"
    python: str = sys.executable
    child_module: str = CHILD_MODULE
    memory_mib: int = field(default_factory=_memory_mib)
    no_progress_s: float = 300.0
    quiet_s: float = 30.0
    wall_s: float = 24 * 3600.0
    log_bytes_max: int = 64 * 1024
    niceness: int = 10
    isolation_required: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Capabilities:
    """A backend's device and the isolation of its jobs."""

    device: str
    isolation: frozenset[str]

    @property
    def missing(self) -> frozenset[str]:
        """Measures that such a job should have had: not the user, nor the empty root of engines that load late.

        NumPy needs no control group: its address space is bounded.
        """
        spared = {USER, MEMORY} if self.device == "cpu:numpy" else {USER, FILES}
        return frozenset(MEASURES) - spared - self.isolation


class Backend(Protocol):
    """A way to run jobs: as processes now, in containers later.

    A job lives exactly as long as its ``run``: cancelling that is how a job is stopped, and nothing of it is left
    when ``run`` is over. So there is no handle that somebody could forget to clean up.
    """

    async def probe(self) -> Capabilities:
        """Tell what a job would get here. Raises what ``run`` raises."""

    async def run(self, order: Order, listener: Listener, more: MoveSource | None = None) -> None:
        """Run a job to its end. Raises JobFailed, JobStalled, IsolationMissing or EngineMissing.

        One that plays waits for ``more`` moves after each answer, until it is cancelled.
        """

    async def end_leftovers(self) -> int:
        """End the jobs that an earlier life of this node left running; return how many there were."""

    def pause(self) -> AbstractContextManager[None]:
        """Have all jobs stand still meanwhile, but for chains of speed trials."""


def ignore_start(_got: Capabilities) -> None:
    """Tell nobody."""


class ProcessBackend:
    """Jobs as processes of this machine, for the built-in kinds of work only."""

    def __init__(
        self, options: ProcessOptions, scratch: Path | None = None, *,
        on_start: Callable[[Capabilities], None] = ignore_start,
    ) -> None:  # fmt: skip
        """``on_start`` is told what each process got."""
        self._options, self._scratch = options, scratch
        self._on_start = on_start
        self._pauses = Pauses()
        self._groups: ControlGroups | None = None
        self._are_groups_open = False

    def pause(self) -> AbstractContextManager[None]:
        """See Backend."""
        return self._pauses.hold()

    async def probe(self) -> Capabilities:
        """See Backend: runs a job of one step."""
        heard: list[Hello] = []

        async def listen(message: ChildFrame) -> None:
            if isinstance(message, Hello):
                heard.append(message)

        await self.run(_probe_order(), listen)
        return Capabilities(heard[0].device, heard[0].isolation)

    async def run(self, order: Order, listener: Listener, more: MoveSource | None = None) -> None:
        """See Backend."""
        scratch = _make_scratch(self._scratch)
        ours, theirs = socket.socketpair()
        their_end, our_end = os.pipe()  # closed however this process ends
        model, group = None, None
        try:
            try:
                group = await trio.to_thread.run_sync(self._make_group)
                if not isinstance(order, RunLinks) and order.model:
                    model = await trio.to_thread.run_sync(_file_of, order.model)
                process = self._start(theirs.fileno(), their_end, scratch, model)
            finally:
                theirs.close()
                os.close(their_end)
                if model is not None:
                    os.close(model)
            try:
                joined = group if group is not None and _joins(group, process) else None
                ours.setblocking(False)
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
                is_trial = isinstance(order, RunLinks) and order.is_chain
                with ExitStack() as stack:
                    if not is_trial:
                        stack.enter_context(self._pauses.joined(process))
                    pauses = Pauses() if is_trial else self._pauses
                    heard = self._heard(listener)
                    await _Watch(self._options, order, process, stream, heard, more, pauses, joined).run()
            finally:
                await process.end()
        finally:
            ours.close()
            os.close(our_end)
            shutil.rmtree(scratch, ignore_errors=True)
            if group is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(group.remove)

    def _make_group(self) -> JobGroup | None:
        """Return a control group for a job; None where the system grants none. Blocking."""
        if not self._are_groups_open:
            self._groups, self._are_groups_open = open_groups(), True
            if self._groups is not None:
                self._groups.remove_leftovers()
        if self._groups is not None:
            with suppress(OSError):
                return self._groups.make(self._options.memory_mib << 20)
        return None

    def _heard(self, listener: Listener) -> Listener:
        async def heard(message: ChildFrame) -> None:
            if isinstance(message, Hello):
                self._on_start(Capabilities(message.device, message.isolation))
            await listener(message)

        return heard

    async def end_leftovers(self) -> int:
        """See Backend."""
        return 0 if self._scratch is None else await trio.to_thread.run_sync(end_leftovers, self._scratch)

    def _start(self, descriptor: int, lifeline: int, scratch: str, model: int | None) -> _Process:
        options = self._options
        return _Process(
            [
                options.python, "-P", "-s", "-B", "-m", options.child_module,
                str(descriptor), scratch, options.engine,
                str(options.memory_mib), str(int(options.wall_s) + 1), str(options.niceness),
                str(-1 if model is None else model),
            ],
            stdin=lifeline, pass_fds=(descriptor,) if model is None else (descriptor, model), cwd=scratch,
        )  # fmt: skip


class _Process:
    """A job's process, the first of a process group of its own.

    It is started in the thread of the event loop, which lives as long as the node: the kernel ends the process
    with the thread that forked it (``sandbox.end_with_parent``), and a thread of a pool may end long before.
    """

    def __init__(self, argv: list[str], *, stdin: int, pass_fds: tuple[int, ...], cwd: str) -> None:
        output, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                argv, stdin=stdin, stdout=theirs, stderr=subprocess.STDOUT, pass_fds=pass_fds, env=_environment(),
                cwd=cwd, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(theirs)
        self.pid: int = self._process.pid
        self.output = trio.lowlevel.FdStream(output)

    async def wait(self) -> int:
        """Wait until the process has ended, kill what is left of its group, and return its exit status."""
        if self._process.returncode is None:
            handle = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(handle)
            finally:
                os.close(handle)
            self.signal(signal.SIGKILL)
        return self._process.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the group; not once the exit status was read, for the number may be reused then."""
        if self._process.returncode is None:
            _signal_group(self.pid, number)

    async def end(self) -> None:
        """End the group: SIGTERM, and SIGKILL after a grace, also for members that outlive their first process."""
        with trio.CancelScope(shield=True):
            self.signal(signal.SIGTERM)
            with trio.move_on_after(_END_GRACE_S):
                await self.wait()
            self.signal(signal.SIGKILL)
            with trio.move_on_after(_KILL_PATIENCE_S):
                await self.wait()
            await self.output.aclose()


class _Watch:
    """One running process: its frames, its time, its memory, its log."""

    def __init__(
        self,
        options: ProcessOptions,
        order: Order,
        process: _Process,
        stream: trio.SocketStream,
        listener: Listener,
        more: MoveSource | None,
        pauses: Pauses,
        group: JobGroup | None,
    ) -> None:
        self._options, self._order, self._process = options, order, process
        self._stream, self._listener, self._more = stream, listener, more
        self._pauses, self._paused_s = pauses, pauses.total_s
        self._group = group
        self._is_waiting = False
        """It has answered, and was given no further moves."""
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
        if self._over_memory or (self._end is None and self._group is not None and self._group.memory_kills()):
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
        """Receive frames until the job reports its end or its socket closes."""
        limit_bytes = answer_limit(self._order)
        reader = FrameReader(limit_bytes)
        self._stall_at = trio.current_time() + self._options.no_progress_s
        while self._end is None:
            data = await self._receive()
            if not data:
                return
            try:
                messages = [decode_child_frame(body, limit_bytes) for body in reader.feed(data)]
            except DecodeError as error:
                raise JobFailed(reason="bad_frame", text=str(error)) from None
            for message in messages:
                await self._hear(message)

    async def _receive(self) -> bytes:
        """Return what the job sends next, nothing where it has closed its socket.

        Raises JobStalled when no new step came for too long, or sooner where the process uses no processor time.
        Looks are counted and not the clock: a machine that was suspended meanwhile says nothing of the job.
        """
        options = self._options
        quiet, used = 0.0, _processor_ticks(self._process.pid)
        while True:
            look_at = min(self._stall_at, trio.current_time() + _LOOK_S)
            with trio.move_on_at(look_at):
                try:
                    return await self._stream.receive_some(_RECEIVE_BYTES)
                except trio.BrokenResourceError:
                    return b""
            now = trio.current_time()
            if now - look_at > _LOOK_S:  # this process stood still, and has not read what the job sent
                self._stall_at = max(self._stall_at + now - look_at, now + _LOOK_S)
            if self._is_waiting or self._pauses.is_held:
                quiet, self._stall_at = 0.0, trio.current_time() + options.no_progress_s
                continue
            if trio.current_time() >= self._stall_at:
                raise JobStalled(f"no step for {options.no_progress_s:.0f} s after step {self._step}")
            before, used = used, _processor_ticks(self._process.pid)
            quiet = quiet + _LOOK_S if used == before else 0.0
            if quiet >= options.quiet_s:
                raise JobStalled(
                    f"neither a message nor processor time for {options.quiet_s:.0f} s after step {self._step} "
                    f"(state of the process: {_process_state(self._process.pid)})"
                )

    async def _hear(self, message: ChildFrame) -> None:
        if self._end is not None or isinstance(message, Hello) != (
            self._step < 0 and not isinstance(message, Failed)
        ):
            raise JobFailed(reason="bad_frame", text="out of turn")
        match message:
            case Hello(_, isolation):
                if self._group is not None:
                    isolation |= {MEMORY}
                    message = replace(message, isolation=isolation)
                missing = self._options.isolation_required - isolation
                if missing:
                    raise IsolationMissing(f"not granted here: {', '.join(sorted(missing))}")
                self._advance(0)
            case Played() if isinstance(self._order, Play) and not self._is_waiting:
                self._is_waiting = True
            case Played():
                raise JobFailed(reason="bad_frame", text="out of turn")
            case Links() if isinstance(self._order, RunLinks):
                self._advance(self._step + 1)
            case Links():
                raise JobFailed(reason="bad_frame", text="out of turn")
            case Progress(step) | Segment(step_to=step):
                if isinstance(self._order, RunLinks) or step > self._order.step_to:
                    raise JobFailed(reason="bad_frame", text="beyond the order")
                self._advance(step)
                if isinstance(message, Segment):
                    message = self._without_pauses(message)
            case Finished() | Failed():
                self._end = message
        started = trio.current_time()
        await self._listener(message)
        self._stall_at += trio.current_time() - started

    def _without_pauses(self, segment: Segment) -> Segment:
        """Return a segment whose time is without that in which its process had to stand still."""
        paused_s, self._paused_s = self._pauses.total_s - self._paused_s, self._pauses.total_s
        return replace(segment, compute_ms=max(1, segment.compute_ms - int(1000 * paused_s)))

    def _advance(self, step: int) -> None:
        """Grant more time, but only for a step that was not reported before."""
        if step > self._step:
            self._step = step
            self._stall_at = trio.current_time() + self._options.no_progress_s

    async def _send_order(self) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # gone: _listen says so
            await self._stream.send_all(encode_frame(self._order))
            if self._more is not None:
                async for moves in self._more:
                    self._is_waiting = False
                    await self._stream.send_all(encode_frame(moves))

    async def _drain_log(self) -> None:
        """Keep the beginning of what the job writes and drop the rest, so that it never waits for a reader."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for data in self._process.output:
                self._log += data[: self._options.log_bytes_max - len(self._log)]

    async def _watch_memory(self) -> None:
        """Kill a job that outgrows its memory: a device's driver maps too much for a limit of address space."""
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        while True:
            await trio.sleep(_MEMORY_POLL_S)
            with suppress(OSError, IndexError, ValueError):
                if _resident_pages(self._process.pid) * page_bytes > self._options.memory_mib << 20:
                    self._over_memory = True
                    self._process.signal(signal.SIGKILL)

    async def _last_words(self) -> str:
        status: int | None = None
        with trio.move_on_after(_EXIT_GRACE_S):
            await self._drain_log()
            status = await self._process.wait()
        text = self._log.decode("utf-8", "replace").strip()
        name = ""
        if status is not None and status < 0:
            with suppress(ValueError):
                name = f" ({signal.Signals(-status).name})"
        return f"exit status {status}{name}: {text[-300:]}"


def _joins(group: JobGroup, process: _Process) -> bool:
    """Put a process into its group. Tell whether the system allowed it."""
    try:
        group.add(process.pid)
    except OSError:
        return False
    return True


def _resident_pages(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1])


def _file_of(content: bytes) -> int:
    """Return the descriptor of a file in memory that holds ``content`` and cannot be changed. Blocking.

    A frame has a limit, and would be copied on both sides. The process needs no path for it, so its root stays
    empty. Raises OSError.
    """
    descriptor = os.memfd_create("dekube-model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", buffering=0, closefd=False) as file:
            view, at = memoryview(content), 0
            while at < len(view):
                at += file.write(view[at : at + _WRITE_BYTES]) or 0
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_scratch(parent: Path | None) -> str:
    """Make the empty directory that becomes the job's root; its user may look into it and no more."""
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    scratch = os.path.abspath(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=parent))
    os.chmod(scratch, 0o755)  # noqa: S103 - nothing is ever in it
    return scratch


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def _process_state(pid: int) -> str:
    state = [*_stat_fields(pid), "gone"][0]
    return _STATES.get(state, state)


def _processor_ticks(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0


def end_leftovers(root: Path) -> int:
    """Kill the process groups of jobs whose scratch folder is below ``root``; return how many there were.

    The kernel ends a job with its node. What it missed (the node was killed before the job had asked for that) is
    found by the folder in its command line. Jobs of this very process are not touched. Blocking.
    """
    below = os.path.abspath(root) + os.sep
    handles: list[int] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or not _is_job_below(int(entry), below):
            continue
        pid = int(entry)
        with suppress(OSError):  # gone meanwhile
            handle = os.pidfd_open(pid)
            if not _is_job_below(pid, below):  # the number is another process's by now
                os.close(handle)
                continue
            handles.append(handle)
            if os.getpgid(pid) == pid:
                _signal_group(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_PATIENCE_S
    for handle in handles:
        select.select([handle], [], [], max(0.0, deadline - time.monotonic()))
        os.close(handle)
    return len(handles)


def _is_job_below(pid: int, below: str) -> bool:
    """Tell whether a process is a job of another process whose scratch folder begins with ``below``."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(_COMMAND_LIMIT_BYTES).split(b"\0")
    except OSError:
        return False
    scratch, fields = os.fsencode(below), _stat_fields(pid)
    return (
        CHILD_MODULE.encode() in command
        and any(part.startswith(scratch) and os.fsencode(_SCRATCH_PREFIX) in part for part in command)
        and fields[:1] not in ([], ["Z"])
        and int(fields[1]) != os.getpid()
    )


def _environment() -> dict[str, str]:
    """Return the whole environment of a job: where the code is, and nothing of the node's."""
    packages = {str(Path(path).resolve().parent) for path in tasks.__path__}
    return {"PYTHONPATH": os.pathsep.join(sorted(packages)), "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}


def _probe_order() -> Train:
    from tasks.engines.training import initial_state  # NumPy only where a probe is asked for

    plan = TrainingPlan((2, 2), "relu", 1, 2, 1, 0, bytes(32), 1)
    dataset = Dataset(2, 2, 2, 0, 1, bytes(4), bytes(2))
    job = Job(plan, dataset.root(), initial_state(plan).root(plan), 1, 1, 1)
    return Train(job, dataset.encode(), None, 1, False)
