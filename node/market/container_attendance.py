"""What a node does beside a running container: serve its socket, measure its use, search its log for a counter.

None of it decides anything but the counter (market.md R108). So an engine that does not answer is only logged.
"""

from __future__ import annotations

import time
from typing import Final, Self

import structlog
import trio

from node.market.cancellation import DAMAGE
from node.market.container_live import Live
from node.market.container_socket import Answer, Handler, JobSocket
from node.market.gpu_use import gpu_use
from state.primitives.errors import DekubeError
from tasks.executor.containers.backend import ContainerBackend
from tasks.executor.containers.log_entries import LogPlace
from tasks.executor.containers.progress_pattern import ProgressPattern
from tasks.executor.containers.progress_report import decode_report

__all__ = ["Attendance"]

_log = structlog.get_logger("containers")

USAGE_S: Final = 5.0
SEARCH_S: Final = 2.0
SEARCH_BYTES_MAX: Final = 512 << 10
"""Bytes of the log that one search looks at. A container that writes faster is read with gaps."""


class Attendance:
    """Attends one container, within its context; what it finds is in ``live``."""

    def __init__(self, backend: ContainerBackend, task: bytes, live: Live, *, pattern: str = "") -> None:
        self._backend, self._task, self._live = backend, task, live
        self._pattern = pattern
        self._told = False
        folder = backend.socket_folder(task)
        self._socket = None if folder is None else JobSocket(folder, self._routes())

    def __enter__(self) -> Self:
        """Make the socket, before the container starts or is taken up."""
        if self._socket is not None:
            try:
                self._socket.open()
            except OSError as error:  # a full disk, say: the container runs without a socket
                _log.warning("a container has no socket", task=self._task, error=str(error))
                self._socket = None
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()

    def _routes(self) -> dict[tuple[str, str], Handler]:
        return {("POST", "/progress"): self._note, ("GET", "/"): self._tell}

    def _note(self, body: bytes) -> Answer:
        self._live.note_report(decode_report(body), now_ms())
        return Answer(200, {"progress": self._live.progress})

    def _tell(self, _body: bytes) -> Answer:
        return Answer(
            200, {"task": self._task.hex(), "up_s": int(self._live.up_s), "progress": self._live.progress}
        )

    async def run(self) -> None:
        """Attend until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._socket is not None:
                nursery.start_soon(self._socket.run)
            nursery.start_soon(self._measure)
            if self._pattern:
                nursery.start_soon(self._search, ProgressPattern(self._pattern))

    async def _measure(self) -> None:
        while True:
            try:
                usage = await self._backend.usage(self._task)
                if usage is not None:
                    self._live.note_usage(usage)
                    self._live.gpus = await gpu_use(usage.gpus)
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:
                self._say("the use of a container could not be measured", error)
            await trio.sleep(USAGE_S)

    async def _search(self, pattern: ProgressPattern) -> None:
        place = LogPlace()
        while True:
            try:
                part = await self._backend.log(self._task, place, SEARCH_BYTES_MAX)
            except DAMAGE:
                raise
            except (DekubeError, OSError) as error:
                self._say("the log of a container could not be searched", error)
            else:
                place = part.place
                for entry in part.entries:
                    if (counter := pattern.feed(entry.text)) is not None:
                        self._live.note_counter(counter, now_ms())
            await trio.sleep(SEARCH_S)

    def _say(self, event: str, error: Exception) -> None:
        if not self._told:
            self._told = True
            _log.warning(event, task=self._task, error=str(error))


def now_ms() -> int:
    """Return the time of this machine in milliseconds since 1970: it is shown, and decides nothing."""
    return time.time_ns() // 1_000_000
