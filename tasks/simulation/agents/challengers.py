"""Outsiders that challenge windows: an honest watcher, and those that want disputes and not their outcome."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from state.primitives.hashing import digest
from tasks.dispute.game import Side
from tasks.ledger.lifecycle import WindowPhase
from tasks.ledger.queries import DisputeDuty
from tasks.simulation.actions import Account, Action, Challenge, seal_of
from tasks.simulation.agents.base import Agent, units_of
from tasks.simulation.agents.players import false_play, move_of
from tasks.simulation.agents.plot import Plot
from tasks.simulation.dice import Dice
from tasks.simulation.market import View
from tasks.simulation.work import CHECK, Costs, OffChain

__all__ = ["CUT_AT", "BreakShower", "CopyingChallenger", "FalseChallenger", "LineCutter", "Watcher"]

CUT_AT: Final = ("game", "opening", "sealing", "revealing")
"""When a line is cut: of the accused whose move is due, of a worker that has to open, of drawn verifiers."""
_OPENED_FROM: Final = 4
"""Room in what is offered for the bond of a challenge: others may seal in the same block."""


class Outsider(Agent):
    """Seals challenges, opens those that are called, and plays their games."""

    def __init__(self, account: Account, off: OffChain) -> None:
        super().__init__(account)
        self.off: Final = off
        self._sealed: dict[bytes, Challenge] = {}
        self._looked: set[tuple[bytes, int, int]] = set()
        self._wakes: set[int] = set()

    def act(self, view: View) -> list[Action]:
        """Challenge, open, play."""
        self._wakes = {at for at in self._wakes if at > view.time_ms}
        actions: list[Action] = []
        for task, number in view.live_windows():
            window = view.window(task, number)
            if (task, number, window.height) not in self._looked and self.is_time(window.phase):
                self._looked.add((task, number, window.height))
                actions += self._challenge(view, task, number)
            for called, seal in view.called(task, number, self.address):
                if seal in self._sealed:
                    actions.append(view.open_challenge(self.address, called, self._sealed[seal]))
        for duty in view.disputes(self.address):
            actions += self.play(view, duty)
        return actions

    def wake_ms(self) -> Iterable[int]:
        """Return when it wants to move again."""
        return self._wakes

    def wait(self, until_ms: int) -> None:
        """Ask to be asked again at a time."""
        self._wakes.add(until_ms)

    def is_time(self, _phase: WindowPhase) -> bool:
        """Tell whether it looks at a window in this phase. It looks at each once."""
        return True

    def finds(self, view: View, task: bytes, number: int) -> Iterable[int]:
        """Return the segments of a window that it challenges."""
        raise NotImplementedError

    def secret(self) -> bytes:
        """Return the secret of what it claims to have computed; empty for the truth."""
        return b""

    def _challenge(self, view: View, task: bytes, number: int) -> list[Action]:
        leaves = self.off.leaves(task, number, self.address, CHECK)
        if leaves is None:
            return []
        actions: list[Action] = []
        price = _OPENED_FROM * view.challenge_price(task, number)
        for segment in self.finds(view, task, number):
            leaf = leaves[segment]
            end = self.off.run(view.job(task), task, leaf.state_root_before, leaf.step_from, self.secret()).end
            salt = digest(b"sim-challenge", self.address + len(self._sealed).to_bytes(4, "big"))
            challenge = Challenge(task, number, segment, end.work_digest, end.state_root, end.loss_total, salt)
            self._sealed[seal_of(challenge, self.address)] = challenge
            actions.append(view.challenge(self.address, challenge, price))
        return actions

    def play(self, view: View, duty: DisputeDuty) -> list[Action]:
        """Return its move, if there is one."""
        dispute = view.dispute(duty)
        if duty.resume_price is not None:
            return [view.resume_dispute(self.address, duty)]
        move = move_of(view, self.off, duty, dispute)
        return [] if move is None else [view.move(self.address, duty, move)]


class Watcher(Outsider):
    """Runs segments of windows again that nobody asked it for, and challenges the first that is wrong."""

    rate = 1.0
    """Share of the windows that it looks at."""
    segments = 4
    """Segments that it runs again."""

    def __init__(self, account: Account, costs: Costs, off: OffChain, dice: Dice) -> None:
        super().__init__(account, off)
        self.costs: Final = costs
        self._dice = dice

    def finds(self, view: View, task: bytes, number: int) -> Iterable[int]:
        """Return the first wrong segment of some drawn ones."""
        job = view.job(task)
        leaves = self.off.leaves(task, number, self.address, CHECK)
        if leaves is None or not self._dice.chance(self.rate):
            return ()
        drawn = sorted({self._dice.below(len(leaves)) for _ in range(self.segments)})
        self.spent += self.costs.cost(units_of(job, number, drawn))
        for at in drawn:
            leaf = leaves[at]
            end = self.off.run(job, task, leaf.state_root_before, leaf.step_from).end
            if end.state_root != leaf.state_root_after:
                return (at,)
        return ()


class FalseChallenger(Outsider):
    """Challenges right or wrong windows with roots of its own invention, for what disputes do to others.

    As a slot flooder it fills the games of the plot's own forged windows. Otherwise it freezes windows of others.
    """

    seals = 1
    way = "prompt"
    for_own = False
    """Whether it challenges windows of its plot, and not those of others."""
    rate = 1.0
    """Share of those windows that it challenges."""
    when = WindowPhase.PROVED

    def __init__(self, account: Account, off: OffChain, plot: Plot, dice: Dice) -> None:
        super().__init__(account, off)
        self.plot = plot
        self._dice = dice

    def is_time(self, phase: WindowPhase) -> bool:
        """Look at a window when it is in the chosen phase."""
        return phase == self.when

    def secret(self) -> bytes:
        """Return a secret of its own: what it claims is another forgery than the worker's."""
        return self.address

    def finds(self, view: View, task: bytes, number: int) -> Iterable[int]:
        """Return as many segments as it seals challenges, from the last one on."""
        window = view.window(task, number)
        if (window.worker in self.plot.members) is not self.for_own or not self._dice.chance(self.rate):
            return ()
        return [-1 - at % window.proof.segments + window.proof.segments for at in range(self.seals)]

    def play(self, view: View, duty: DisputeDuty) -> list[Action]:
        """Play in its way."""
        return false_play(view, self.off, self.address, duty, self.way, self.secret(), self.wait)


class CopyingChallenger(Outsider):
    """Runs nothing, and challenges what a verifier has found wrong with that verifier's root."""

    def __init__(self, account: Account, off: OffChain, plot: Plot) -> None:
        super().__init__(account, off)
        self.plot = plot

    def is_time(self, phase: WindowPhase) -> bool:
        """Look when verdicts are revealed: the worker has to open then, or a game runs."""
        return phase in (WindowPhase.OPENING, WindowPhase.DISPUTED)

    def finds(self, view: View, task: bytes, number: int) -> Iterable[int]:
        """Return the lowest segment in which a verifier found another state than the worker claims."""
        leaves = self.off.leaves(task, number, self.address, CHECK)
        findings = [found for seat in view.window(task, number).verifiers for found in seat.findings or ()]
        wrong = [
            found.segment for found in findings
            if leaves is not None and found.state_root_after != leaves[found.segment].state_root_after
        ]  # fmt: skip
        return sorted(wrong)[:1]


class LineCutter(FalseChallenger):
    """Cuts the lines of machines when something is due from them; the cuts cost it nothing here."""

    cut_at = "game"
    cut_ms = 120_000
    cuts_max = 4

    def __init__(self, account: Account, off: OffChain, plot: Plot, dice: Dice) -> None:
        super().__init__(account, off, plot, dice)
        self._cut: set[tuple[bytes, bytes, int]] = set()

    def act(self, view: View) -> list[Action]:
        """Challenge, and cut."""
        actions = super().act(view)
        for task, number in view.live_windows():
            for victim in self._victims(view, task, number):
                place = victim, task, number
                if victim in self.plot.members or place in self._cut or len(self._cut) >= self.cuts_max:
                    continue
                self._cut.add(place)
                self.off.cut_until_ms[victim] = view.time_ms + self.cut_ms
        return actions

    def _victims(self, view: View, task: bytes, number: int) -> list[bytes]:
        window = view.window(task, number)
        match self.cut_at, window.phase:
            case "game", WindowPhase.DISPUTED:
                accused = view.disputes(window.worker)
                return [window.worker] if any(duty.side is Side.ACCUSED for duty in accused) else []
            case "opening", WindowPhase.OPENING:
                return [window.worker]
            case ("sealing", WindowPhase.SEALING) | ("revealing", WindowPhase.REVEALING):
                return [seat.address for seat in window.verifiers]
            case _:
                return []


class BreakShower(Agent):
    """Shows where leaves of its own plot do not fit, once strangers check them: a part of the bond comes back."""

    def __init__(self, account: Account, plot: Plot) -> None:
        super().__init__(account)
        self._plot = plot
        self._shown: set[tuple[bytes, int]] = set()

    def act(self, view: View) -> list[Action]:
        """Show it while verdicts are revealed."""
        actions: list[Action] = []
        for place in view.live_windows():
            window = view.window(*place)
            made = self._plot.made_of(window)
            if made is None or window.phase != WindowPhase.REVEALING or place in self._shown:
                continue
            if all(seat.address in self._plot.members for seat in window.verifiers):
                continue
            broken = view.find_break(*place, made.leaves)
            if broken is not None:
                self._shown.add(place)
                actions.append(view.show_break(self.address, *place, broken))
        return actions
