"""Custody: machines that keep outputs or pretend to, workers that hand over garbage, and requesters that fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.ledger.custody_queries import CustodyAction, CustodyDuty
from tasks.ledger.custody_records import CustodyPhase, CustodyRecord
from tasks.ledger.lifecycle import Phase
from tasks.ledger.queries import Action as Asked
from tasks.ledger.queries import WorkDuty
from tasks.simulation.actions import Account, Action, Offer
from tasks.simulation.agents.base import Machine, Requester
from tasks.simulation.agents.plot import Plot
from tasks.simulation.agents.workers import ForgingWorker
from tasks.simulation.dice import Dice
from tasks.simulation.market import View
from tasks.simulation.work import KEEP, RESULT, Costs, OffChain, Use
from tasks.spec import JobSpec

__all__ = ["KEEPER_WAYS", "FalseKeeper", "GarbageWorker", "KeepingRequester", "ends_of_custody"]

KEEPER_WAYS: Final = ("keeps", "keeps nothing", "serves nobody", "signs nothing")
"""What a custodian does: all that it signs for; signs and drops it; keeps it, and shows chunks on chain alone;
signs for nothing."""
DEMANDS_MAX: Final = 8
"""Demands of a requester for one result; then it gives up."""


class FalseKeeper(Machine):
    """A custodian that signs for outputs and does not do what that says, in a share of them."""

    way = "keeps nothing"
    rate = 1.0

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, dice: Dice) -> None:
        super().__init__(account, offer, costs, off)
        self._dice = dice
        self._ways: dict[tuple[bytes, int], str] = {}

    def way_of(self, place: tuple[bytes, int]) -> str:
        """Return what it does with an output."""
        if place not in self._ways:
            self._ways[place] = self.way if self._dice.chance(self.rate) else "keeps"
        return self._ways[place]

    def keep(self, view: View, duty: CustodyDuty) -> list[Action]:
        """Sign without fetching; answer what it can."""
        place = duty.task, duty.window
        if duty.action is CustodyAction.SIGN and self.way_of(place) == "keeps nothing":
            return [view.take_custody(self.address, duty)]
        if duty.action is CustodyAction.SIGN and self.way_of(place) == "signs nothing":
            return []
        return super().keep(view, duty)

    def hands_out(self, place: tuple[bytes, int]) -> bool:
        """Tell whether it gives a kept output to who asks."""
        return self.way_of(place) == "keeps"


class GarbageWorker(ForgingWorker):
    """Computes, commits to an output that nobody can decrypt, and gives the result to nobody."""

    garbage = True
    serves_results = False
    serves_keepers = True
    """Whether it hands its outputs to those that are drawn to keep them."""
    hoards_last = False
    """Whether it hands over all outputs but the last, which is the result."""

    def ignores(self, _view: View, duty: WorkDuty) -> bool:
        """Prove a window without a commitment once: where that is refused, it leaves the task by its silence."""
        return not self.commits and duty.action == Asked.COMPUTE and (duty.task, duty.window) in self.made

    def _compute(self, view: View, duty: WorkDuty) -> list[Action]:
        actions, place = super()._compute(view, duty), (duty.task, duty.window)
        if actions and self.hoards_last and duty.window + 1 < view.job(duty.task).windows:
            self.off.windows[place] = self.made[place], self._hands_over
        return actions

    @staticmethod
    def _hands_over(_who: bytes, use: Use) -> bool:
        return use != RESULT

    def serves(self, _who: bytes, use: Use) -> bool:
        """Serve verifiers, and custodians and its requester as it is set."""
        if use == KEEP:
            return self.serves_keepers
        return use != RESULT or self.serves_results


def ends_of_custody(view: View, requester: bytes, task: bytes, ended: set[tuple[bytes, int]]) -> list[Action]:
    """Return what ends the custody of a task's outputs, but of those that are ``ended``, which grows."""
    actions: list[Action] = []
    for window in range(view.task(task).final_windows):
        custody = view.custody(task, window)
        if custody is None or custody.phase is not CustodyPhase.KEPT or custody.demand is not None:
            continue
        if (task, window) not in ended:
            ended.add((task, window))
            actions.append(view.end_custody(requester, task, window))
    return actions


class KeepingRequester(Requester):
    """Asks for custody of its outputs, and fetches the last one: of the worker, of custodians, or by demands.

    A result that nobody gives it is worth a ransom to it, if the plot has it.
    """

    def __init__(self, account: Account, jobs: Sequence[JobSpec], off: OffChain, plot: Plot) -> None:
        super().__init__(account, jobs, off)
        self.plot = plot
        self._demands: dict[bytes, int] = {}
        self._shown: set[bytes] = set()
        self._ended: set[tuple[bytes, int]] = set()
        self.demands_part = 0.0
        """In which part of its tasks it demands a drawn output of a drawn custodian, though it has the result."""
        self.dice = Dice(account.address)
        self._looked: set[bytes] = set()

    def beside(self, view: View, task: bytes, job: JobSpec) -> list[Action]:
        """Ask for custody with the task."""
        return [view.ask_custody(self.address, task, job)]

    def tend(self, view: View, task: bytes) -> list[Action]:
        """Fetch the result of a task that has ended, then end its custody."""
        record = view.task(task)
        if record.phase != Phase.SETTLED:
            return super().tend(view, task)
        window = record.final_windows - 1
        custody = view.custody(task, window)
        if task in self.off.obtained or task in self.off.lost:
            return self._look(view, task) or self._end(view, task)
        if custody is None:  # its custodians lost it, or never had it
            is_served = self.off.leaves(task, window, self.address, RESULT) is not None
            (self.off.obtained if is_served else self.off.lost).add(task)
            return []
        if custody.phase is not CustodyPhase.KEPT:
            return []
        return self._fetch(view, task, window, custody)

    def _look(self, view: View, task: bytes) -> list[Action]:
        """Demand a drawn output of a drawn custodian, in a part of the tasks, before it ends their custody."""
        if task in self._looked or not self.demands_part:
            return []
        self._looked.add(task)
        kept = [view.custody(task, window) for window in range(view.task(task).final_windows)]
        open_ = [one for one in kept if one is not None and one.phase is CustodyPhase.KEPT and one.demand is None]
        if not open_ or not self.dice.chance(self.demands_part):
            return []
        custody = self.dice.pick(open_)
        holders = [holder.address for holder in custody.holders]
        return [view.demand_custody(self.address, custody, self.dice.pick(holders))] if holders else []

    def _fetch(self, view: View, task: bytes, window: int, custody: CustodyRecord) -> list[Action]:
        place, off = (task, window), self.off
        output = off.outputs[place]
        is_whole = not (output.is_garbage or output.is_other)
        if off.leaves(task, window, self.address, RESULT) is not None:
            off.obtained.add(task)
            return []
        holders = [holder.address for holder in custody.holders]
        if place in off.received or any(off.hands_out.get((holder, *place)) for holder in holders):
            if is_whole:
                off.obtained.add(task)
                return []
            if task not in self._shown:
                self._shown.add(task)
                show = view.reveal_mismatch if output.is_other else view.reveal_garbage
                return [show(self.address, output)]
            return self._give_up(task)
        if custody.demand is not None:
            return []
        asked = self._demands.get(task, 0)
        if not holders or asked >= DEMANDS_MAX:
            return self._give_up(task)
        self._demands[task] = asked + 1
        return [view.demand_custody(self.address, custody, holders[0])]

    def _give_up(self, task: bytes) -> list[Action]:
        self.off.lost.add(task)
        return []

    def _end(self, view: View, task: bytes) -> list[Action]:
        return ends_of_custody(view, self.address, task, self._ended)
