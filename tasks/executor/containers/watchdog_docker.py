"""What a Docker engine and /proc tell of one container, as observations for its watchdog.

Three looks go on side by side: the engine's events, the processes, and the settings. An engine that restarts is
waited for; what happened meanwhile is asked for, as far as the engine remembers it, and the gap is told.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import trio

from tasks.executor.containers.engine import Engine
from tasks.executor.containers.errors import EngineError, EngineUnavailable, SettingsDiffer
from tasks.executor.containers.settings import check_settings
from tasks.executor.containers.watchdog import EngineCall, Gap, Observation, Settings
from tasks.executor.containers.watchdog_processes import look_at_processes, sees_container

__all__ = ["ContainerWatch", "OnSeen", "differences"]

PROCESSES_S: Final = 1.0
SETTINGS_S: Final = 10.0
AGAIN_S: Final = 1.0
KNOWN_EVENTS: Final = 512
"""Events that are remembered, to know them again after a new connection: an engine keeps 256."""
LIMIT_SETTINGS: Final = frozenset(
    {
        "Memory", "MemorySwap", "NanoCpus", "PidsLimit", "OomScoreAdj", "RestartPolicy", "Ulimits", "ShmSize",
        "LogConfig",
    }
)  # fmt: skip
"""What an owner may change with ``docker update``, or what only bounds: no data of the job is read or changed."""
OnSeen: TypeAlias = Callable[[Observation], None]


def differences(body: Mapping[str, Any], found: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is not as ordered: of what may be read or changed, and of limits; empty for what is."""
    kept = {name: value for name, value in body["HostConfig"].items() if name not in LIMIT_SETTINGS}
    limits = {name: value for name, value in body["HostConfig"].items() if name in LIMIT_SETTINGS}
    told = []
    # The mounts are compared by the whole check: they stand in both orders.
    for part in (kept, limits | {"Mounts": body["HostConfig"]["Mounts"]}):
        try:
            check_settings({**body, "HostConfig": part}, found)
            told.append("")
        except SettingsDiffer as error:
            told.append(str(error)[:200])
    return told[0], "" if told[0] else told[1]


class ContainerWatch:
    """Looks at one container by its id; ``order`` is the body that it was ordered with.
    Without an order settings are not looked at.

    ``began_ns`` is the machine's time when the container was ordered: events since then are asked for. 0: it ran
    before this watch, and nobody knows whose calls the earlier ones were, so none is asked for.
    """

    def __init__(
        self, engine: Engine, container: str, init: int, order: Mapping[str, Any] | None, *, began_ns: int = 0
    ) -> None:
        self._engine, self._container, self._init, self._order = engine, container, init, order
        self._since_ns = began_ns
        self._from_ns = began_ns or time.time_ns()
        self._known: deque[tuple[int, str, str]] = deque(maxlen=KNOWN_EVENTS)

    @property
    def is_adopted(self) -> bool:
        """Whether the container ran before this watch."""
        return not self._since_ns

    def namespace(self) -> str:
        """Return the name of the container's namespace of processes, empty if it cannot be told."""
        try:
            return os.readlink(f"/proc/{self._init}/ns/pid")
        except OSError:
            return ""

    async def run(self, on_seen: OnSeen) -> None:
        """Look until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_events, on_seen)
            nursery.start_soon(self._look_at_processes, on_seen)
            if self._order is not None:
                nursery.start_soon(self._look_at_settings, self._order, on_seen)

    async def catch_up(self, on_seen: OnSeen) -> None:
        """Take the events until now: what was asked in the last moment counts too."""
        since_ns = min(self._since_ns or self._from_ns, time.time_ns())
        try:
            async for event in self._engine.events(self._container, since_ns, until_ns=time.time_ns()):
                self._take(event, on_seen)
        except (EngineUnavailable, EngineError) as error:
            on_seen(Gap("the engine's events", 0, str(error)))

    async def _follow_events(self, on_seen: OnSeen) -> None:
        lost_at: float | None = None
        why = ""
        while True:
            try:
                if lost_at is not None:
                    await self._engine.negotiate()
                    on_seen(Gap("the engine's events", trio.current_time() - lost_at, why))
                    lost_at = None
                async for event in self._engine.events(self._container, self._since_ns):
                    self._take(event, on_seen)
                why = "the stream ended"
            except (EngineUnavailable, EngineError) as error:
                why = str(error)
            if lost_at is None:
                lost_at = trio.current_time()
            await trio.sleep(AGAIN_S)

    def _take(self, event: Mapping[str, Any], on_seen: OnSeen) -> None:
        """Hand on an event once: what the engine repeats after a new connection is known by time and name."""
        actor = event.get("Actor")
        at_ns, action = event.get("timeNano"), event.get("Action")
        if not isinstance(at_ns, int) or not isinstance(action, str) or not isinstance(actor, Mapping):
            return
        if actor.get("ID") != self._container:
            return
        attributes = actor.get("Attributes")
        exec_id = str(attributes.get("execID", "")) if isinstance(attributes, Mapping) else ""
        key = (at_ns, action, exec_id)
        if key in self._known:
            return
        self._known.append(key)
        self._since_ns = at_ns  # not the largest: clocks are set back
        is_own = self._engine.own_calls.take(self._container, action.partition(":")[0])
        on_seen(EngineCall(action, is_own=is_own))

    async def _look_at_processes(self, on_seen: OnSeen) -> None:
        is_blind = False
        while True:
            if await trio.to_thread.run_sync(sees_container, self._init, self._container):
                is_blind = False
                if (found := await trio.to_thread.run_sync(look_at_processes, self._init)) is not None:
                    on_seen(found)
            elif not is_blind:
                is_blind = True
                on_seen(Gap("its processes", 0, "it has ended, or this node numbers processes otherwise"))
            await trio.sleep(PROCESSES_S)

    async def _look_at_settings(self, order: Mapping[str, Any], on_seen: OnSeen) -> None:
        while True:
            try:
                told = await self._engine.get("/version")
                found = await self._engine.get(f"/containers/{self._container}/json")
                if isinstance(told, Mapping) and isinstance(found, Mapping):
                    on_seen(Settings(str(told.get("Version", "")), *differences(order, found)))
            except (EngineUnavailable, EngineError):
                pass  # the events tell of the gap
            await trio.sleep(SETTINGS_S)
