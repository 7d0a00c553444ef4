"""Requesters that want something else than the result."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.ledger.lifecycle import ENDED, Phase
from tasks.simulation.actions import Account, Action
from tasks.simulation.agents.base import Requester
from tasks.simulation.agents.keepers import ends_of_custody
from tasks.simulation.agents.plot import Plot
from tasks.simulation.market import View
from tasks.simulation.work import OffChain
from tasks.spec import JobSpec

__all__ = ["GriefingRequester"]


class GriefingRequester(Requester):
    """Cancels at a chosen phase, offers inputs that nobody can fetch, or demands results that it has."""

    cancels_in: Phase | None = None
    cancels_after_windows = 0
    reposts = 0
    """How often it posts a job again that it has cancelled."""
    withholds_inputs = False
    demands = False
    accuses = False
    """Whether verifiers of its plot call the windows of its tasks unavailable while they are checked."""

    def __init__(
        self, account: Account, jobs: Sequence[JobSpec], off: OffChain, plot: Plot, *, keeps: bool = False
    ) -> None:
        """With ``keeps`` it asks for custody of its outputs."""
        super().__init__(account, jobs, off)
        self.plot = plot
        self._keeps = keeps
        self._asked: set[tuple[bytes, str]] = set()
        self._ended: set[tuple[bytes, int]] = set()

    def beside(self, view: View, task: bytes, job: JobSpec) -> list[Action]:
        """Ask for custody with the task."""
        return [view.ask_custody(self.address, task, job)] if self._keeps else []

    def on_post(self, task: bytes) -> None:
        """Withhold the inputs; have the task's results called unavailable."""
        if self.withholds_inputs:
            self.off.withheld_inputs.add(task)
        if self.demands or self.accuses:
            self.plot.accused.add(task)

    def tend(self, view: View, task: bytes) -> list[Action]:
        """Cancel or demand once."""
        record = view.task(task)
        if (
            record.phase == self.cancels_in
            and record.next_window >= self.cancels_after_windows
            and self._once(task, "cancel")
        ):
            if self.reposts > 0:
                self.reposts -= 1
                self._jobs.append(view.job(task))
            return [view.cancel(self.address, task)]
        if self.demands and record.phase in ENDED and record.final_windows and self._once(task, "demand"):
            return [view.demand(self.address, task, view.demand_price(record))]
        if self._keeps and record.phase == Phase.SETTLED and not self.demands:
            return ends_of_custody(view, self.address, task, self._ended)  # as an honest one does, for its gas
        return super().tend(view, task)

    def _once(self, task: bytes, what: str) -> bool:
        if (task, what) in self._asked:
            return False
        self._asked.add((task, what))
        return True
