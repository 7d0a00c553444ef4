"""Workers that earn or harm otherwise than by honest work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tasks.dispute.game import Side
from tasks.dispute.moves import ShowTrace
from tasks.ledger.disputes import DisputeRecord
from tasks.ledger.lifecycle import Reason
from tasks.ledger.queries import Action as Asked
from tasks.ledger.queries import DisputeDuty, WorkDuty
from tasks.simulation.actions import Account, Action, Offer
from tasks.simulation.agents.base import Machine
from tasks.simulation.agents.players import move_of
from tasks.simulation.agents.plot import Plot
from tasks.simulation.dice import Dice
from tasks.simulation.market import View
from tasks.simulation.work import RESULT, Costs, Made, OffChain, Use, make_claim, make_window
from tasks.spec import JobSpec

__all__ = [
    "ESCAPES",
    "Claimant",
    "CorneredLiar",
    "FalseClaimer",
    "ForgingWorker",
    "JunkWorker",
    "Quitter",
    "TornWorker",
    "Withholder",
]


ESCAPES: Final = ("plays", "silent", "resumes", "inconsistent", "unopened", "leaves")
"""What a forger does that is caught: play and lose, say nothing, resume once and say nothing, contradict itself,
not open, or leave the task."""


class PlottingWorker(Machine):
    """A worker whose friends know the secrets of its windows."""

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, plot: Plot) -> None:
        super().__init__(account, offer, costs, off)
        self.plot = plot

    def work(self, view: View, duty: WorkDuty) -> list[Action]:
        """Do as it does, and tell its friends what it made."""
        actions = super().work(view, duty)
        self.plot.made.update(self.made)
        return actions


class ForgingWorker(PlottingWorker):
    """Leaves out a share of the segments in a share of the windows, and takes the pay for all."""

    windows_share = 1.0
    segments_share = 1.0
    honest_first = 0
    """Windows of each task that it computes before."""
    is_frank = False
    """Whether it plays disputes about what it forged; silence costs less than a proven lie."""

    def __init__(
        self, account: Account, offer: Offer, costs: Costs, off: OffChain, plot: Plot, dice: Dice
    ) -> None:
        super().__init__(account, offer, costs, off, plot)
        self._dice = dice

    def prepares(self) -> bool:
        """Who computes nothing needs no inputs."""
        return min(self.windows_share, self.segments_share) < 1 or self.honest_first > 0

    def forges(self, _view: View, duty: WorkDuty, segments: int) -> Iterable[int]:
        """Return a share of the segments."""
        if duty.window < self.honest_first or not self._dice.chance(self.windows_share):
            return ()
        return [segment for segment in range(segments) if self._dice.chance(self.segments_share)]

    def answers(self, dispute: DisputeRecord) -> bool:
        """Play for what it has computed, and stay silent about what it forged."""
        return self.is_frank or dispute.segment not in self.made[dispute.task, dispute.window].forged


class Claimant(Machine):
    """Claims of every job that it diverges, in the first step that it is asked for."""

    is_frank = True
    """Whether it plays the dispute, which it loses; silence costs less than a proven lie."""

    def forges(self, _view: View, _duty: WorkDuty, segments: int) -> Iterable[int]:
        """Run nothing."""
        return range(segments)

    def takes_ms(self, _honest_ms: int) -> int:
        """Return that it takes no time."""
        return 0

    def make(self, job: JobSpec, duty: WorkDuty, secret: bytes, _forged: frozenset[int]) -> Made:
        """Return its claim."""
        return make_claim(self.off, job, duty.task, duty.window, duty.state_root, secret)

    def answers(self, _dispute: DisputeRecord) -> bool:
        """Tell whether it plays."""
        return self.is_frank


class CorneredLiar(ForgingWorker):
    """A forger that is caught, and takes one of its ways out."""

    escape = "silent"

    def ignores(self, view: View, duty: WorkDuty) -> bool:
        """Open nothing in which a sampled segment is forged, where that is its way out."""
        if self.escape != "unopened" or duty.action != Asked.OPEN:
            return False
        return not self.made[duty.task, duty.window].forged.isdisjoint(duty.segments)

    def leaves(self, view: View, duty: WorkDuty) -> Reason | None:
        """Give the task up as soon as it is accused, where that is its way out."""
        if self.escape == "leaves" and any(game.task == duty.task for game in view.disputes(self.address)):
            return Reason.WORKER_LEFT
        return super().leaves(view, duty)

    def play(self, view: View, duty: DisputeDuty) -> list[Action]:
        """Take its way out of a game about what it forged."""
        dispute = view.dispute(duty)
        if duty.side is not Side.ACCUSED or dispute.segment not in self.made[duty.task, duty.window].forged:
            return super().play(view, duty)
        match self.escape:
            case "plays":
                self.is_frank = True
            case "resumes" if duty.resume_price is not None:
                return [view.resume_dispute(self.address, duty)]
            case "inconsistent" if dispute.opened is not None and duty.resume_price is None:
                move = move_of(view, self.off, duty, dispute)
                if isinstance(move, ShowTrace):
                    return [view.move(self.address, duty, move._replace(trace_root=bytes(32)))]
            case _:
                return []
        return super().play(view, duty)


class FalseClaimer(Machine):
    """Says of good inputs that they are another file, for the pay of the preparation; then it leaves."""

    place = Asked.START
    rate = 1.0
    """Share of its tasks of which it says so."""

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, dice: Dice) -> None:
        super().__init__(account, offer, costs, off)
        self._dice = dice
        self._claims: dict[bytes, bool] = {}
        self._claimed: set[bytes] = set()

    def work(self, view: View, duty: WorkDuty) -> list[Action]:
        """Claim once, and give the task up if it still stands then."""
        task = duty.task
        if task not in self._claims:
            self._claims[task] = self._dice.chance(self.rate)
        if not self._claims[task] or duty.action != self.place or duty.window:
            return super().work(view, duty)
        if task in self._claimed:
            return [view.give_up(self.address, task, Reason.JOB_UNFIT)]
        self._claimed.add(task)
        return [view.claim_junk(self.address, task, view.job(task))]


class TornWorker(ForgingWorker):
    """Runs its segments, some of them from a state that nobody computed: each is right by itself."""

    def make(self, job: JobSpec, duty: WorkDuty, secret: bytes, forged: frozenset[int]) -> Made:
        """Return a window with gaps where others would forge; before its first segment there is none."""
        torn = forged - {0}
        return make_window(self.off, job, duty.task, duty.window, duty.state_root, secret, torn=torn)


class JunkWorker(ForgingWorker):
    """Proves windows at once, without work, for what they do to others."""

    def takes_ms(self, _honest_ms: int) -> int:
        """Take no time."""
        return 0


class Quitter(Machine):
    """Takes tasks and leaves them at a chosen place with a chosen reason."""

    place = Asked.START
    reason = Reason.WORKER_LEFT
    is_silent = False
    """Whether it lets the deadline pass instead of saying so."""
    from_window = 0
    """The first window at which it leaves."""
    rate = 1.0
    """Share of its tasks that it leaves."""

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, dice: Dice) -> None:
        super().__init__(account, offer, costs, off)
        self._dice = dice
        self._leaves: dict[bytes, bool] = {}

    def _is_left(self, duty: WorkDuty) -> bool:
        if duty.task not in self._leaves:
            self._leaves[duty.task] = self._dice.chance(self.rate)
        is_here = duty.action == self.place and duty.window >= self.from_window
        return self._leaves[duty.task] and is_here

    def leaves(self, view: View, duty: WorkDuty) -> Reason | None:
        """Leave at the chosen place."""
        return self.reason if not self.is_silent and self._is_left(duty) else super().leaves(view, duty)

    def ignores(self, _view: View, duty: WorkDuty) -> bool:
        """Say nothing at the chosen place."""
        return self.is_silent and self._is_left(duty)


class Withholder(ForgingWorker):
    """Serves what it made only to its friends, to everybody until the task ends, or to all."""

    serves_checks = False
    serves_results = False

    def serves(self, who: bytes, use: Use) -> bool:
        """Serve as it is set."""
        if who in self.plot.members:
            return True
        return self.serves_results if use == RESULT else self.serves_checks
