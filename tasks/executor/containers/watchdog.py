"""The watchdog of one container: how severe an observation is, and what follows from it. Pure; it knows no clock.

Only what reads or changes the job's memory or files is tampering. What takes processor or card away makes the job
yield or leave, as the owner has configured. Everything else is information: it is written down, and has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import Final, TypeAlias, assert_never

__all__ = [
    "CALM_S",
    "LEAVE_AFTER_S",
    "Cause",
    "Effect",
    "EngineCall",
    "Gap",
    "Leave",
    "Note",
    "Observation",
    "Policy",
    "Processes",
    "Settings",
    "Severity",
    "Share",
    "Sign",
    "Tampered",
    "Use",
    "Watchdog",
    "Yielding",
]

CALM_S: Final = 60.0
"""How long nobody else must have used the machine before a container has its whole share again."""
LEAVE_AFTER_S: Final = 120.0
"""How long others must have used it without a pause before the container leaves, where the owner wants that."""
BUSY_LOOKS: Final = 2
"""Looks in a row that must find use by others: one look may meet a monitor that asks once."""
GPU_PERMILLE_MIN: Final = 150
"""Part of a card's time that counts as use: a desktop that only draws its windows takes less."""
GPU_MEMORY_MIB_MIN: Final = 1_024
"""Memory of a card that others hold and that counts as use."""
LOAD_PERMILLE_MIN: Final = 500
"""Part of all cores that others use and that counts as load."""
NOTE_CHARS: Final = 200


class Severity(IntEnum):
    """How severe an observation is."""

    INFO = 1
    YIELD = 2
    PAUSE = 3
    """The container is to leave the machine: a frozen one would keep memory and cards, and earn nothing."""
    TAMPER = 4


class Sign(StrEnum):
    """What counts as tampering; the names are those of the report on chain."""

    EXEC = "exec"
    COPY = "copy"
    COMMIT = "commit"
    EXPORT = "export"
    CHECKPOINT = "checkpoint"
    TRACER = "tracer"
    STRANGER = "stranger"
    DRIFT = "drift"


SIGN_OF_CALL: Final = {
    "exec_create": Sign.EXEC,
    "exec_start": Sign.EXEC,
    "archive-path": Sign.COPY,
    "extract-to-dir": Sign.COPY,
    "copy": Sign.COPY,
    "commit": Sign.COMMIT,
    "export": Sign.EXPORT,
    "checkpoint": Sign.CHECKPOINT,
}
"""Calls of an engine that read or change memory or files of a container."""
QUIET_CALLS: Final = frozenset({"create", "start", "die", "exec_die", "health_status", "mount", "unmount"})
"""What an engine says of each container's ordinary life; it is not even written down."""


class Cause(StrEnum):
    """Why the machine is wanted by others."""

    DESKTOP = "desktop"
    GPU = "gpu"
    LOAD = "load"


class Yielding(StrEnum):
    """What the owner wants when others use the machine."""

    IGNORE = "ignore"
    YIELD = "yield"
    LEAVE = "leave"


@dataclass(frozen=True)
class Policy:
    """The owner's wishes, by cause."""

    desktop: Yielding = Yielding.YIELD
    gpu: Yielding = Yielding.YIELD
    load: Yielding = Yielding.YIELD

    def of(self, cause: Cause) -> Yielding:
        """Return what is wanted for a cause."""
        return {Cause.DESKTOP: self.desktop, Cause.GPU: self.gpu, Cause.LOAD: self.load}[cause]


# What is seen


@dataclass(frozen=True)
class EngineCall:
    """A call about the container that the engine tells of. ``is_own``: this node made it."""

    action: str
    is_own: bool = False


@dataclass(frozen=True)
class Processes:
    """Process ids of strangers in the container, and pairs of a traced process and its tracer outside."""

    strangers: tuple[int, ...] = ()
    tracers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Settings:
    """What of the container's settings is not as ordered.

    ``drift`` concerns what may be read or changed, ``limits`` sizes and shares; both empty: all as ordered.
    ``version`` is the engine's: another one may only write the same settings in another way.
    """

    version: str
    drift: str = ""
    limits: str = ""


@dataclass(frozen=True)
class Gap:
    """Nothing was seen of ``what`` for some seconds."""

    what: str
    seconds: float
    why: str = ""


@dataclass(frozen=True)
class Use:
    """How others use the machine; None where that cannot be told."""

    desktop: bool | None = None
    gpu_permille: int | None = None
    gpu_memory_mib: int | None = None
    load_permille: int | None = None

    def causes(self) -> frozenset[Cause]:
        """Return what counts as use."""
        found = set()
        if self.desktop:
            found.add(Cause.DESKTOP)
        if (self.gpu_permille or 0) >= GPU_PERMILLE_MIN or (self.gpu_memory_mib or 0) >= GPU_MEMORY_MIB_MIN:
            found.add(Cause.GPU)
        if (self.load_permille or 0) >= LOAD_PERMILLE_MIN:
            found.add(Cause.LOAD)
        return frozenset(found)


Observation: TypeAlias = EngineCall | Processes | Settings | Gap | Use


# What follows


@dataclass(frozen=True)
class Note:
    """Write it down."""

    severity: Severity
    text: str


class Share(Enum):
    """Give the container the least share of the processor, or its whole share again."""

    LEAST = "least"
    WHOLE = "whole"


@dataclass(frozen=True)
class Leave:
    """Leave the task: others use the machine, and its owner wants the job to go then."""

    why: str


@dataclass(frozen=True)
class Tampered:
    """Kill the container, wipe its disk, report this machine. It is the last effect of a watchdog."""

    sign: Sign
    text: str


Effect: TypeAlias = Note | Share | Leave | Tampered


@dataclass
class Watchdog:
    """Takes observations in the order in which they were made, at times of any clock that never goes back.

    ``is_adopted``: the container ran before this watch.
    """

    policy: Policy = field(default_factory=Policy)
    is_adopted: bool = False
    _is_over: bool = False
    _share: Share = Share.WHOLE
    _settings: Settings | None = None
    _busy_looks: dict[Cause, int] = field(default_factory=dict)
    _busy_since: dict[Cause, float] = field(default_factory=dict)
    _calm_since: float | None = None

    def step(self, seen: Observation, now_s: float) -> list[Effect]:
        """Return what follows from an observation; nothing after tampering or leaving."""
        if self._is_over:
            return []
        match seen:
            case EngineCall():
                effects = self._on_call(seen)
            case Processes():
                effects = self._on_processes(seen)
            case Settings():
                effects = self._on_settings(seen)
            case Gap(what, seconds, why):
                effects = [_note(f"nothing was seen of {what} for {seconds:.0f} s{why and ': ' + why}")]
            case Use():
                effects = self._on_use(seen, now_s)
            case _:
                assert_never(seen)
        for effect in effects:
            if isinstance(effect, Tampered | Leave):
                self._is_over = True
        return effects

    def _on_call(self, seen: EngineCall) -> list[Effect]:
        action = seen.action.partition(":")[0].strip()
        if seen.is_own or action in QUIET_CALLS:
            return []
        sign = SIGN_OF_CALL.get(action)
        if sign is None:
            return [_note(f"the engine tells of: {action}")]  # the node's own stop is one of these, too
        return [Tampered(sign, f"the engine was asked by others: {action}"[:NOTE_CHARS])]

    def _on_processes(self, seen: Processes) -> list[Effect]:
        if seen.tracers:
            traced, tracer = seen.tracers[0]
            return [Tampered(Sign.TRACER, f"process {tracer} traces process {traced} of the container")]
        if seen.strangers:
            return [Tampered(Sign.STRANGER, f"process {seen.strangers[0]} has entered the container")]
        return []

    def _on_settings(self, seen: Settings) -> list[Effect]:
        before, self._settings = self._settings, seen
        effects: list[Effect] = []
        if seen.limits and (before is None or before.limits != seen.limits):
            effects.append(_note(f"limits are not as ordered: {seen.limits}"))
        if not seen.drift or (before is not None and before.drift == seen.drift):
            return effects
        is_known = before is not None and before.version == seen.version
        if is_known or (before is None and not self.is_adopted):
            return [*effects, Tampered(Sign.DRIFT, f"settings are not as ordered: {seen.drift}"[:NOTE_CHARS])]
        return [*effects, _note(f"this engine tells settings in another way: {seen.drift}")]

    def _on_use(self, seen: Use, now_s: float) -> list[Effect]:
        causes = frozenset(cause for cause in seen.causes() if self.policy.of(cause) is not Yielding.IGNORE)
        for cause in Cause:
            if cause not in causes:
                self._busy_looks.pop(cause, None)
                self._busy_since.pop(cause, None)
                continue
            self._busy_looks[cause] = self._busy_looks.get(cause, 0) + 1
            self._busy_since.setdefault(cause, now_s)
        busy = sorted(cause for cause, looks in self._busy_looks.items() if looks >= BUSY_LOOKS)
        for cause in busy:
            is_leaving = self.policy.of(cause) is Yielding.LEAVE
            if is_leaving and now_s - self._busy_since[cause] >= LEAVE_AFTER_S:
                return [Note(Severity.PAUSE, f"others use the machine: {cause}"), Leave(str(cause))]
        if causes:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = now_s
        if busy and self._share is Share.WHOLE:
            self._share = Share.LEAST
            return [Note(Severity.YIELD, f"others use the machine: {', '.join(busy)}"), Share.LEAST]
        is_calm = self._calm_since is not None and now_s - self._calm_since >= CALM_S
        if is_calm and self._share is Share.LEAST:
            self._share = Share.WHOLE
            return [Note(Severity.YIELD, "nobody else uses the machine any more"), Share.WHOLE]
        return []


def _note(text: str) -> Note:
    return Note(Severity.INFO, text[:NOTE_CHARS])
