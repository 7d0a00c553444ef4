"""A desktop that lends its machine: what a watchdog sees of its use in a week, drawn from one seed.

Engine events go through the code that reads them, and cards through the table of ``nvidia-smi pmon``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tasks.executor.containers.engine import Engine
from tasks.executor.containers.watchdog import Gap, Observation, Processes, Settings, Use
from tasks.executor.containers.watchdog_docker import ContainerWatch
from tasks.executor.containers.watchdog_use import read_process_table

DAY_S: Final = 86_400
WEEK_S: Final = 7 * DAY_S
LOOK_S: Final = 10
CONTAINER: Final = "c0ffee" * 10 + "beef"
OWN_PROCESS: Final = 4_242
HEADER: Final = """\
# gpu         pid   type     sm    mem    enc    dec    jpg    ofa     fb   ccpm    command
# Idx           #    C/G      %      %      %      %      %      %     MB     MB    name
"""
MONITORS: Final = (
    "top",
    "pause",
    "unpause",
    "update",
    "rename",
    "attach",
    "resize",
    "detach",
    "health_status: healthy",
)
"""What Portainer, ctop, Dozzle, an owner's hand and an engine's own checks let the engine tell of a container."""


@dataclass
class Session:
    """Somebody sits at the machine from ``begin`` to ``end``, and plays or draws with its card in between."""

    begin: int
    end: int
    games: list[tuple[int, int]] = field(default_factory=list)


def sessions_of(chance: random.Random) -> list[Session]:
    """Draw the sessions of a week: none on some days, a long evening on others."""
    found = []
    for day in range(7):
        if chance.random() < 0.2:
            continue
        begin = day * DAY_S + chance.randrange(7 * 3_600, 20 * 3_600)
        end = min((day + 1) * DAY_S - 3_600, begin + chance.randrange(1_200, 5 * 3_600))
        session = Session(begin, end)
        at = begin + 300
        while at + 900 < end and chance.random() < 0.7:
            session.games.append((at, at + chance.randrange(300, min(7_200, end - at))))
            at = session.games[-1][1] + 600
        found.append(session)
    return found


def cards(chance: random.Random, *, drawn: bool, game: bool) -> str:
    """Return the table of a card: the job, the windows of the desktop, a browser, a game."""
    rows = [(OWN_PROCESS, "C", 97, 18_000, "python")]
    if drawn:
        rows += [
            (1_745, "G", chance.randrange(5), 210, "Xorg"),
            (1_901, "G", chance.randrange(4), 160, "gnome-shell"),
        ]
        rows.append((2_511, "C+G", chance.randrange(6), 310, "firefox"))
    if game:
        rows.append((3_003, "C+G", chance.randrange(20, 98), 6_000, "game.exe with spaces"))
    if chance.random() < 0.05:
        rows.append((chance.randrange(5_000, 9_000), "C", 0, 3, "nvidia-smi"))
    return HEADER + "".join(
        f"    0 {process:>10} {kind:>6} {sm or '-':>6}  -  -  -  -  - {fb:>6}  0  {name}\n"
        for process, kind, sm, fb, name in rows
    )


def use_of(table: str, *, desktop: bool, load: int | None) -> Use:
    """Return what a look at the machine gives."""
    others = [row for row in read_process_table(table) if row.process != OWN_PROCESS]
    return Use(desktop, sum(row.permille for row in others), sum(row.memory_mib for row in others), load)


class Week:
    """The observations of a week with their times, in order."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.sessions = sessions_of(self._chance)
        self.engine = Engine("/nowhere")
        self.watch = ContainerWatch(self.engine, CONTAINER, 0, {}, began_ns=1)
        self._clock_off_s = 0
        self._version = "27.1.0"

    def event(self, at_s: float, action: str, **attributes: str) -> list[Observation]:
        """Return what the watch makes of an event of the engine."""
        seen: list[Observation] = []
        at_ns = int((1_800_000_000 + at_s + self._clock_off_s) * 10**9) + self._chance.randrange(10**6)
        told: dict[str, Any] = {
            "Type": "container", "Action": action, "timeNano": at_ns,
            "Actor": {"ID": CONTAINER, "Attributes": attributes},
        }  # fmt: skip
        self.watch._take(told, seen.append)
        return seen

    def _daily(self, at_s: int) -> Iterator[Observation]:
        chance = self._chance
        if chance.random() < 0.004:
            yield from self.event(at_s, chance.choice(MONITORS))
        if chance.random() < 0.0005:  # the clock is set by NTP, or by hand
            self._clock_off_s += chance.choice([-3_600, -5, -1, 1, 5, 3_600])
        if chance.random() < 0.0004:  # apt upgrades the engine, the lid closes, or the stream is cut
            self._version = f"27.{chance.randrange(9)}.{chance.randrange(9)}"
            yield Gap("the engine's events", chance.randrange(1, 40_000), "stopped")
            yield from self.event(at_s, "start")
        limits = "NanoCpus: 500000000" if chance.random() < 0.02 else ""
        # Another version of an engine may tell the same settings in other words.
        drift = "Ulimits: None" if self._version == "27.8.8" else ""
        yield Settings(self._version, drift, limits)
        yield Processes()

    def observations(self) -> Iterator[tuple[int, Observation]]:
        """Yield the week."""
        chance = self._chance
        for at_s in range(0, WEEK_S, LOOK_S):
            for seen in self._daily(at_s):
                yield at_s, seen
            session = next((one for one in self.sessions if one.begin <= at_s < one.end), None)
            game = session is not None and any(begin <= at_s < end for begin, end in session.games)
            load = chance.randrange(700, 950) if game else chance.randrange(250)
            if chance.random() < 0.001:  # somebody compiles for a moment
                load = 990
            table = cards(chance, drawn=session is not None, game=game)
            yield at_s, use_of(table, desktop=session is not None, load=load)
