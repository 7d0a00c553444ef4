"""The log of a service: structured lines, written to standard error by a thread of their own.

A log that cannot be written must not end or delay the service. A line that cannot be written (full partition,
reader that went away) is dropped and counted, and every later line is tried again. A reader that does not read
blocks the thread only; lines wait in a bounded queue, and are dropped and counted when it is full.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TextIO, cast

import structlog

__all__ = [
    "LOG_OUTPUT", "LogCollector", "LogFailure", "LogOutput", "configure_structlog", "open_standard_descriptors",
    "set_log_level",
]  # fmt: skip

QUEUE_LINES_MAX: Final = 1_024
LINE_BYTES_MAX: Final = 16 * 1_024
"""A longer line is cut: a traceback may be long, a line without end is a bug."""
STALLED_S: Final = 2.0
"""A write that has not ended for so long counts as failing."""
FLUSH_S: Final = 1.0
"""How long a process that ends waits for its last lines to be written."""
POLL_MS: Final = 500
"""How often a write to a full non-blocking pipe is tried again."""
CUT: Final = b" ... (cut)\n"

_METHODS: Final = ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log", "msg")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class LogFailure(NamedTuple):
    """Why the log cannot be written now."""

    since_ms: int
    """Unix time of the first failure since a line was written last."""
    reason: str


class LogOutput:
    """Writes text to a file descriptor in a thread of its own; ``write`` never blocks and never raises.

    Any thread and any signal handler may call ``write``: it takes no lock (``SimpleQueue.put`` is reentrant).
    """

    def __init__(self, descriptor: int = 2, *, queue_lines_max: int = QUEUE_LINES_MAX) -> None:
        self._descriptor = descriptor
        self._queue_lines_max = queue_lines_max
        self._queue: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._failed: LogFailure | None = None
        self._began_s: float | None = None
        """Monotonic time at which the write under way began."""
        self._is_torn = False
        """A part of a line was written: the next one begins on a line of its own."""
        self._dropped_here = 0
        self._dropped_by_thread = 0
        self._told = 0

    @property
    def dropped(self) -> int:
        """Lines that were not written since the process started."""
        return self._dropped_here + self._dropped_by_thread

    def failure(self) -> LogFailure | None:
        """Return why lines cannot be written now; None while they are written."""
        if self._failed is not None:
            return self._failed
        began_s = self._began_s
        if began_s is not None and (stalled_s := time.monotonic() - began_s) > STALLED_S:
            return LogFailure(int((time.time() - stalled_s) * 1_000), "its reader does not read")
        return None

    def describe(self) -> dict[str, Any]:
        """Return how the log is, for an operator: lines dropped, and why since when."""
        failure = self.failure()
        return {"dropped": self.dropped, "failing": None if failure is None else failure._asdict()}

    def write(self, text: str) -> None:
        """Queue a line with its end. A line that finds the queue full is dropped."""
        if self._thread is None:
            self._start()
        if self._queue.qsize() >= self._queue_lines_max:
            self._dropped_here += 1
            return
        data = text.encode("utf-8", "backslashreplace")
        self._queue.put(data if len(data) <= LINE_BYTES_MAX else data[: LINE_BYTES_MAX - len(CUT)] + CUT)

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until what was queued before has been written or dropped, at most ``timeout_s``."""
        if self._thread is None:
            return
        done = threading.Event()
        self._queue.put(done)
        done.wait(timeout_s)

    def _start(self) -> None:
        if not self._starting.acquire(blocking=False):
            return  # another thread, or the code that a signal handler interrupted, is about to start it
        try:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="log", daemon=True)
                thread.start()
                self._thread = thread
                atexit.register(self.flush)
        except RuntimeError:
            pass  # no thread to be had now: the next line tries again
        finally:
            self._starting.release()

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            if self._try(item) and self.dropped > self._told:
                self._tell_dropped()

    def _tell_dropped(self) -> None:
        dropped = self.dropped
        if self._try(f"(log: {dropped - self._told} lines could not be written)\n".encode()):
            self._told = dropped

    def _try(self, line: bytes) -> bool:
        self._began_s = time.monotonic()
        try:
            self._write_whole(b"\n" + line if self._is_torn else line)
        except OSError as error:
            self._dropped_by_thread += 1
            if self._failed is None:
                self._failed = LogFailure(time.time_ns() // 1_000_000, error.strerror or type(error).__name__)
            return False
        finally:
            self._began_s = None
        self._failed = None
        return True

    def _write_whole(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                written = os.write(self._descriptor, rest)
            except BlockingIOError:  # somebody made the pipe non-blocking
                self._wait_writable()
                continue
            rest = rest[written:]
            self._is_torn = bool(rest)

    def _wait_writable(self) -> None:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLOUT)
        poll.poll(POLL_MS)


LOG_OUTPUT: Final = LogOutput()
"""The output of this process."""


class LogCollector:
    """Prometheus metrics of a process's log; register it in any registry."""

    def __init__(self, output: LogOutput = LOG_OUTPUT) -> None:
        self._output = output

    def collect(self) -> Iterator[Any]:
        """Yield the families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        failure = self._output.failure()
        yield CounterMetricFamily(
            "dekube_log_lines_dropped", "Log lines that could not be written", value=self._output.dropped
        )
        yield GaugeMetricFamily(
            "dekube_log_failing_since_seconds",
            "Unix time since when the log cannot be written, 0 while it is written",
            value=0.0 if failure is None else failure.since_ms / 1_000,
        )


class _Stderr(io.TextIOBase):
    """Standard error for loggers: through LOG_OUTPUT, or through what stands in its place for now.

    A progress bar on a terminal replaces ``sys.stderr`` for a while, to stay below the lines; so do tests.
    """

    def write(self, text: str) -> int:
        stream = sys.stderr
        if stream is None or stream is sys.__stderr__:
            LOG_OUTPUT.write(text)
        else:
            try:
                stream.write(text)
                stream.flush()
            except OSError:
                LOG_OUTPUT.write(text)  # which counts it
        return len(text)

    def flush(self) -> None:
        """Do nothing: lines are written whole."""


_STDERR: Final = _Stderr()


class _LineLogger:
    """What structlog writes to. It takes no lock, so that a signal handler may log."""

    def msg(self, message: str) -> None:
        _STDERR.write(message + "\n")

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _Logger(structlog.make_filtering_bound_logger(logging.INFO)):  # type: ignore[misc]
    """A logger whose level may change while it is in use: what is not logged costs one empty call."""

    level = "info"


def open_standard_descriptors() -> None:
    """Open /dev/null in place of each standard descriptor that is closed.

    Call it before any file is opened: error messages would be written into a database that got descriptor 2.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def configure_structlog(level: str, log_format: str) -> None:
    """Set up logging of this process once, at its start, onto standard error.

    ``log_format``: text, json, or auto: text on a terminal.
    """
    set_log_level(level)
    as_text = log_format == "text" or (log_format == "auto" and sys.stderr is not None and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer(default=str)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _printable,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=_Logger,
        logger_factory=lambda *_: _LineLogger(),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=logging.WARNING, stream=cast(TextIO, _STDERR), format="%(levelname)s %(name)s %(message)s"
    )


def set_log_level(level: str) -> str:
    """Log ``level`` and above from now on, and return what was the level before."""
    before, _Logger.level = _Logger.level, level
    filtered = structlog.make_filtering_bound_logger(getattr(logging, level.upper()))
    for name in _METHODS:
        setattr(_Logger, name, getattr(filtered, name))
    return before


def _printable(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Show bytes as hex, and escape text that could forge lines or control a terminal."""
    for name, value in event.items():
        if isinstance(value, bytes):
            event[name] = "0x" + value.hex()
        elif isinstance(value, str) and not value.isprintable():
            event[name] = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], value)
    return event
