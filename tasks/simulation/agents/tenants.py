"""Requesters of containers: one that looks at what it pays for, and those that take work without pay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tasks.ledger.lifecycle import ENDED, Phase
from tasks.ledger.refusals import all_of_machine
from tasks.simulation.actions import Account, Action
from tasks.simulation.agents.base import Requester
from tasks.simulation.boxes import Terms, is_right
from tasks.simulation.market import View
from tasks.simulation.work import OffChain
from tasks.spec import JobSpec, container_of

__all__ = ["NEVER", "REFUSALS", "GreedyTenant", "RefusingTenant", "Tenant"]

LEAST_PART: Final = 0.75
"""A container that does less than this part of the work of its time is stopped."""
REFUSALS: Final = ("name", "machine", "end")
"""How good work is refused."""
NEVER: Final = 2.0
"""A part of the work that no checkpoint holds."""
REPOSTS: Final = 2
"""How often an honest requester posts a job again that it has stopped, of all its jobs."""


class Tenant(Requester):
    """Posts containers, and stops one whose log or whose checkpoints show that no work is done.

    Logs are the machine's word. A checkpoint is opened as soon as it is named, and is what it is.
    """

    def __init__(
        self, account: Account, jobs: Sequence[JobSpec], off: OffChain, terms: Terms, work_s: int
    ) -> None:
        super().__init__(account, jobs, off)
        self.terms: Final = terms
        self.work_s: Final = work_s
        self._looked: dict[bytes, tuple[int, int]] = {}
        self._opened: dict[bytes, tuple[int, int, float]] = {}
        self._reposts = REPOSTS
        self._stopped: set[bytes] = set()
        self._wakes: set[int] = set()

    def on_post(self, task: bytes) -> None:
        """Note how much work a task is."""
        self.off.boxes.needs_s[task] = self.work_s

    def act(self, view: View) -> list[Action]:
        """Post, and look at what runs."""
        self._wakes = {at for at in self._wakes if at > view.time_ms}
        return super().act(view)

    def wake_ms(self) -> Iterable[int]:
        """Return when it looks."""
        return [*super().wake_ms(), *self._wakes]

    def tend(self, view: View, task: bytes) -> list[Action]:
        """Look at a container that runs, and stop it if nothing is done in it."""
        record = view.task(task)
        if self.terms.opens and record.phase is not Phase.RUNNING and not view.quorum(task):
            name = self._false_part(view, task)
            if name:
                return [view.miss(self.address, task, name)]
        if record.phase is not Phase.RUNNING or record.ending or task in self._stopped or view.quorum(task):
            return super().tend(view, task)
        return self.stop(view, task) if self.is_idle(view, task) else []

    def _false_part(self, view: View, task: bytes) -> bytes:
        """Return what it refuses of a container whose machine has left, or that has ended; or nothing."""
        record, found = view.task(task), view.checkpoints(task)
        if record.phase in ENDED and found.waits:
            is_false = record.phase is Phase.SETTLED and not is_right(view.state, task)
            return all_of_machine(found.last) if is_false else b""
        if record.phase is not Phase.DEGRADED or found.latest is None or not found.closing:
            return b""
        run, held_s = self.off.boxes.runs[task], self.off.boxes.blobs.get(found.latest.blob, 0.0)
        if self._opened.get(task, (0, 0, 0.0))[:2] == (run.began_ms, found.covered_s):
            return b""
        began_ms, covered_s, content_s = self._opened.get(task, (0, 0, 0.0))
        if began_ms != run.began_ms:
            covered_s, content_s = 0, run.base_s
        wanted_s = min(found.covered_s - covered_s, self.off.boxes.needs_s[task] - content_s)
        self._opened[task] = run.began_ms, found.covered_s, held_s
        if held_s - content_s >= LEAST_PART * wanted_s:
            return b""
        # Where that machine could store nothing the last blob is another one's, and good.
        others = [one.blob for one in (found.before, found.base) if one is not None]
        blob = found.latest.blob
        return blob if blob and blob not in others else all_of_machine(found.latest.worker)

    def is_idle(self, view: View, task: bytes) -> bool:
        """Tell whether a look shows that a container does not do the work of its time."""
        run = self.off.boxes.begin(view.state, task, view.time_ms)
        if self.terms.opens and self._is_badly_stored(view, task):
            return True
        every_ms = 1000 * self.terms.looks * view.job(task).tick_s
        if not every_ms:
            return False
        began_ms, looks = self._looked.get(task, (0, 0))
        if began_ms != run.began_ms:
            looks = 0
        at_ms = run.began_ms + every_ms * (looks + 1)
        if view.time_ms < at_ms:
            self._wakes.add(at_ms)
            return False
        self._looked[task] = run.began_ms, looks + 1
        self._wakes.add(at_ms + every_ms)
        if run.is_faked:
            return False
        passed_s = (view.time_ms - run.began_ms) / 1000
        done_s = run.done_s - run.base_s + run.effort * (view.time_ms - run.at_ms) / 1000
        left_s = self.off.boxes.needs_s[task] - run.base_s
        return done_s < LEAST_PART * min(passed_s - view.job(task).tick_s, left_s)

    def _is_badly_stored(self, view: View, task: bytes) -> bool:
        """Open what is named: it has the work of its seconds, and comes in time."""
        plan, boxes = container_of(view.job(task)).checkpoint, self.off.boxes
        if plan is None:
            return False
        found, run = view.checkpoints(task), boxes.runs[task]
        late_ms = self._late_ms(view, task)
        if view.time_ms > late_ms:
            return True
        self._wakes.add(late_ms + 1)
        began_ms, covered_s, content_s = self._opened.get(task, (0, 0, 0.0))
        if began_ms != run.began_ms:
            covered_s, content_s = 0, run.base_s
        if found.covered_s == covered_s:
            return False
        held_s = boxes.blobs.get(found.latest.blob, 0.0) if found.latest is not None else 0.0
        self._opened[task] = run.began_ms, found.covered_s, held_s
        wanted_s = min(found.covered_s - covered_s, boxes.needs_s[task] - content_s)
        return held_s - content_s < LEAST_PART * wanted_s

    def _late_ms(self, view: View, task: bytes) -> int:
        job = view.job(task)
        plan = container_of(job).checkpoint
        every_s = 0 if plan is None else plan.every_s
        return view.meter_of(task).began_ms + 1000 * (view.checkpoints(task).covered_s + every_s + job.tick_s)

    def stop(self, view: View, task: bytes) -> list[Action]:
        """Refuse what is stored, so that another machine goes on; or end the container and post the job again."""
        if container_of(view.job(task)).checkpoint is not None:
            found, boxes = view.checkpoints(task), self.off.boxes
            late_ms = self._late_ms(view, task)
            if found.covered_s:
                held_s = boxes.blobs.get(found.latest.blob, 0.0) if found.latest is not None else 0.0
                # Where the last one has its work the machine is late with the next.
                is_late = held_s - boxes.runs[task].base_s >= LEAST_PART * min(
                    found.covered_s, boxes.needs_s[task] - boxes.runs[task].base_s
                )
                if not is_late:
                    return [view.miss(self.address, task, all_of_machine(found.last))]
            if view.time_ms < late_ms:
                self._wakes.add(late_ms)
                return []
            return [view.miss(self.address, task, bytes(32))]
        self._stopped.add(task)
        if self._reposts:
            self._reposts -= 1
            self._jobs.append(view.job(task))
        return [view.cancel(self.address, task)]


class RefusingTenant(Tenant):
    """Refuses good checkpoints, takes what they hold, and does the rest of the work itself."""

    at_part = 0.5
    """The part of the work that the checkpoint must hold."""
    by = "name"
    """What it refuses: the checkpoint by its name, all of the machine by its address, or that after the end."""
    pays = False
    """Whether it stops the container in place of refusing: what it takes is paid then."""
    rest_cost = 0
    """What all of the work costs where it does it itself."""

    def tend(self, view: View, task: bytes) -> list[Action]:
        """Take the work of a checkpoint, once."""
        record, found, boxes = view.task(task), view.checkpoints(task), self.off.boxes
        if record.phase is Phase.DEGRADED and task in self._stopped and not record.ending:
            return [view.cancel(self.address, task)]
        if self.by == "end" and not self.pays:
            if record.phase not in ENDED or task in self._stopped or not found.waits:
                return Requester.tend(self, view, task)
            self._stopped.add(task)
            return [view.miss(self.address, task, all_of_machine(found.last))]
        if record.phase is not Phase.RUNNING or record.ending or task in self._stopped:
            return Requester.tend(self, view, task)
        needed_s = boxes.needs_s[task]
        held_s = boxes.blobs.get(found.latest.blob, 0.0) if found.latest is not None else 0.0
        if not found.covered_s or held_s < self.at_part * needed_s:
            return []
        self._stopped.add(task)
        self.off.obtained.add(task)
        self.spent += int(self.rest_cost * max(0.0, 1 - held_s / needed_s))
        if self.pays:
            return [view.cancel(self.address, task)]
        if self.by == "machine":
            return [view.miss(self.address, task, all_of_machine(found.last))]
        return [view.miss(self.address, task, found.latest.blob if found.latest else bytes(32))]


class GreedyTenant(Tenant):
    """Stops a container when its work is done but not yet paid, with what it has stored; or stops all others."""

    at_part = 1.0
    """The part of the work after which it stops."""

    def is_idle(self, view: View, task: bytes) -> bool:
        """Stop at its time."""
        run, needed_s = self.off.boxes.begin(view.state, task, view.time_ms), self.off.boxes.needs_s[task]
        done_s = run.done_s + run.effort * (view.time_ms - run.at_ms) / 1000
        left_s = self.at_part * needed_s - done_s
        if left_s <= 0:
            return True
        self._wakes.add(view.time_ms + max(1, int(1000 * left_s)))
        return False

    def stop(self, view: View, task: bytes) -> list[Action]:
        """End the container, and take what is stored."""
        self._stopped.add(task)
        return [view.cancel(self.address, task)]
