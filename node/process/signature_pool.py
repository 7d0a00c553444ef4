"""Signature checks in other processes, outside the node's interpreter lock.

A batch has, for each signature, the digest (32 bytes) and the signature (65 bytes). The answer has 20 bytes for
each, zeros if no key can be recovered. A batch is split into parts that run in parallel. If a worker dies or
hangs, its part is computed in this process and the worker is replaced, so no answer is lost.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import BoundedSemaphore, Lock
from types import TracebackType
from typing import IO, Final, Self

import trio

from node.process.signature_worker import FRAME_BYTES_MAX
from state.primitives.keys import recover_addresses

__all__ = ["ENTRY_BYTES", "Recovery", "SignatureVerifier", "VerifierOptions", "default_workers"]

ENTRY_BYTES: Final = 97
_STOP_GRACE_S: Final = 5.0


def default_workers() -> int:
    """Return the number of workers for this machine: all cores but the one that executes, 1 to 8.

    With a worker on every core, workers and execution would compete. On two cores a second worker slows a replay
    by about 15 % (docs/benchmarks.md).
    """
    return max(1, min(8, len(os.sched_getaffinity(0)) - 1))


@dataclass(frozen=True, slots=True)
class VerifierOptions:
    """Options of the signature checks; with ``workers`` 0 they run in the node's own process."""

    workers: int = 0
    part_entries_min: int = 32
    """A batch is not split into smaller parts than this."""
    inline_entries_max: int = 2
    """Smaller batches are checked in this process: a message would cost more."""
    in_flight_max: int = 64
    """Parts that wait or run at the same time. Further callers wait."""
    answer_timeout_s: float = 30.0
    """A worker without an answer for this long is replaced (8,192 signatures take 0.5 s)."""


class _Worker:
    """One child process; used by one thread at a time."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", "node.process.signature_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the node, which then closes the pipe
            env={**os.environ, "PYTHONPATH": path},
            bufsize=0,
        )
        self.pid: int = self._process.pid

    def ask(self, batch: bytes, timeout_s: float) -> bytes | None:
        """Return the answer to one frame; None if this worker must be replaced."""
        if not self._send(memoryview(len(batch).to_bytes(4, "big") + batch), timeout_s):
            return None
        return self._receive(len(batch) // ENTRY_BYTES * 20, timeout_s)

    def _send(self, data: memoryview, timeout_s: float) -> bool:
        stdin = self._stdin.fileno()
        while data:
            if not _is_ready(stdin, select.POLLOUT, timeout_s):
                return False
            try:
                # A pipe that polls writable takes at least PIPE_BUF bytes without blocking.
                data = data[os.write(stdin, data[: select.PIPE_BUF]) :]
            except OSError:
                return False
        return True

    def _receive(self, size: int, timeout_s: float) -> bytes | None:
        stdout = self._stdout.fileno()
        parts = bytearray()
        while len(parts) < size:
            if not _is_ready(stdout, select.POLLIN, timeout_s):
                return None
            part = os.read(stdout, size - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def close(self, grace_s: float = _STOP_GRACE_S) -> None:
        """End the process by closing its pipe, or by a signal if it does not end."""
        try:
            self._stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()


def _is_ready(descriptor: int, event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    ready = poll.poll(timeout_s * 1000)
    return bool(ready) and bool(ready[0][1] & (event | select.POLLHUP))


class Recovery:
    """A batch under way."""

    __slots__ = ("_parts",)

    def __init__(self, parts: list[Future[bytes]]) -> None:
        self._parts = parts

    def result(self) -> bytes:
        """Block until the addresses are there; return them in the order of the batch."""
        return b"".join(part.result() for part in self._parts)

    async def wait(self) -> bytes:
        """Like ``result``, without blocking the event loop."""
        token = trio.lowlevel.current_trio_token()
        for part in self._parts:
            done = trio.Event()
            part.add_done_callback(partial(_wake, token, done))
            await done.wait()
        return self.result()


def _wake(token: trio.lowlevel.TrioToken, done: trio.Event, _part: Future[bytes]) -> None:
    try:
        token.run_sync_soon(done.set)
    except trio.RunFinishedError:
        pass


class SignatureVerifier:
    """Recovers transaction senders in ``options.workers`` child processes. A context manager."""

    def __init__(self, options: VerifierOptions) -> None:
        self._options = options
        self._threads: ThreadPoolExecutor | None = None
        self._idle: SimpleQueue[_Worker | None] = SimpleQueue()
        self._lock = Lock()
        self._is_closed = False
        self._room = BoundedSemaphore(options.in_flight_max)
        self._turn = trio.Semaphore(options.in_flight_max, max_value=options.in_flight_max)
        self.restarts = 0
        """Number of replaced workers."""
        if options.workers:
            self._threads = ThreadPoolExecutor(options.workers, thread_name_prefix="signatures")
            for _ in range(options.workers):
                self._idle.put(self._start())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    @property
    def workers(self) -> int:
        """Number of processes that check signatures; 0: this process does."""
        return self._options.workers

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the idle workers."""
        workers = [self._idle.get() for _ in range(self._idle.qsize())]
        for worker in workers:
            self._idle.put(worker)
        return tuple(worker.pid for worker in workers if worker is not None)

    def submit(self, batch: bytes) -> Recovery:
        """Start recovering a batch and return at once; blocks only while ``in_flight_max`` parts are under way.

        Raises SignatureInvalid if ``batch`` is not a whole number of entries.
        """
        if self._threads is None or len(batch) <= self._options.inline_entries_max * ENTRY_BYTES:
            return Recovery([_finished(recover_addresses(batch))])
        if len(batch) % ENTRY_BYTES:
            recover_addresses(batch)  # raises
        futures = []
        for part in self._cut(batch):
            self._room.acquire()
            future = self._threads.submit(self._run, part)
            future.add_done_callback(lambda _: self._room.release())
            futures.append(future)
        return Recovery(futures)

    def recover_sync(self, batch: bytes) -> bytes:
        """Return the addresses of a batch. Raises SignatureInvalid as ``submit`` does."""
        return self.submit(batch).result()

    async def recover(self, batch: bytes) -> bytes:
        """Return the addresses of a batch without blocking the event loop. Raises SignatureInvalid."""
        if len(batch) <= self._options.inline_entries_max * ENTRY_BYTES:
            return recover_addresses(batch)
        if self._threads is None:
            return await trio.to_thread.run_sync(recover_addresses, batch)
        async with self._turn:  # so that ``submit`` finds room, but for callers from other threads
            return await (await trio.to_thread.run_sync(self.submit, batch)).wait()

    def close(self) -> None:
        """Finish the batches under way and end the workers."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            for _ in range(self._options.workers):
                worker = self._idle.get()
                if worker is not None:
                    worker.close()

    def _cut(self, batch: bytes) -> list[bytes]:
        entries = len(batch) // ENTRY_BYTES
        parts = max(1, min(self._options.workers, entries // self._options.part_entries_min))
        size = min(-(-entries // parts) * ENTRY_BYTES, FRAME_BYTES_MAX)
        return [batch[at : at + size] for at in range(0, len(batch), size)]

    def _run(self, part: bytes) -> bytes:
        worker = self._idle.get()  # as many workers as threads, so this never waits
        try:
            answer = worker.ask(part, self._options.answer_timeout_s) if worker is not None else None
            if answer is not None:
                return answer
            if worker is not None:
                worker.close(grace_s=0)
            self.restarts += 1
            worker = self._start()
            return recover_addresses(part)
        finally:
            self._idle.put(worker)

    def _start(self) -> _Worker | None:
        """Start a worker; None if the system refuses. Its parts are then computed here."""
        try:
            return _Worker()
        except OSError:
            return None


def _finished(answer: bytes) -> Future[bytes]:
    future: Future[bytes] = Future()
    future.set_result(answer)
    return future
