"""Groups of tasks: who posts them, who breaks them, and spares that do not stand by as they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.queries import Action as Asked
from tasks.ledger.queries import WorkDuty
from tasks.simulation.actions import Account, Action, Offer
from tasks.simulation.agents.base import Machine, Requester
from tasks.simulation.market import View
from tasks.simulation.work import Costs, OffChain
from tasks.spec import JobSpec

__all__ = ["SPARE_WAYS", "FalseSpare", "GroupRequester"]

SPARE_WAYS: Final = ("unprepared", "leaves at call", "leaves")
"""What a false spare does: say that it has prepared, leave when it is called, or leave while it stands by."""


class GroupRequester(Requester):
    """Posts each of its jobs as a group."""

    def __init__(
        self, account: Account, jobs: Sequence[JobSpec], off: OffChain, members: int, spares: int
    ) -> None:  # fmt: skip
        super().__init__(account, jobs, off)
        self._members, self._spares = members, spares

    def _post(self, view: View) -> list[Action]:
        if not self._jobs:
            return []
        tasks, actions = view.make_group(self.address, self._jobs.pop(0), self._members, self._spares)
        self.tasks.extend(tasks)
        return actions


class FalseSpare(Machine):
    """Takes a spare seat, and does not do what that is paid for. In other seats it is honest."""

    way = "unprepared"
    leaves_ms = 0
    """How long it stands by before it leaves, where that is its way."""

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain) -> None:
        super().__init__(account, offer, costs, off)
        self._stands: dict[bytes, int] = {}

    def act(self, view: View) -> list[Action]:
        """Act as others do, and leave a seat in which it stands by, where that is its way."""
        actions = super().act(view)
        if self.way == "leaves":
            for task, since_ms in list(self._stands.items()):
                if view.task(task).phase != Phase.STANDBY:
                    continue
                if view.time_ms < since_ms + self.leaves_ms:
                    self.wait(since_ms + self.leaves_ms)
                    continue
                del self._stands[task]
                actions.append(view.give_up(self.address, task, Reason.WORKER_LEFT))
        return actions

    def work(self, view: View, duty: WorkDuty) -> list[Action]:
        """Say of a spare seat that it has prepared; leave the seat of a member to which it is called."""
        is_spare = view.is_spare(view.task(duty.task))
        if duty.action == Asked.START and is_spare:
            self._stands[duty.task] = view.time_ms
            if self.way == "unprepared":
                return [view.start(self.address, duty)]
        if self._stands and not is_spare and self.way == "leaves at call":
            return [view.give_up(self.address, duty.task, Reason.WORKER_LEFT)]
        return super().work(view, duty)
