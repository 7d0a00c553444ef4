"""Machines that run containers: an honest one, and those that bill without work, leave, or agree on a lie."""

from __future__ import annotations

from typing import Final

from state.primitives.hashing import digest
from tasks.kinds.container import ExitKind
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.meter_records import ContainerEnd, MeterRecord
from tasks.ledger.queries import Action as Asked
from tasks.ledger.queries import WorkDuty
from tasks.ledger.quorum_records import QuorumPhase, QuorumRecord, output_result, output_seal
from tasks.simulation.actions import Account, Action, Offer
from tasks.simulation.agents.base import Machine
from tasks.simulation.agents.plot import Plot
from tasks.simulation.boxes import STORED_BYTES, Run, ended_with
from tasks.simulation.market import View
from tasks.simulation.work import Costs, OffChain
from tasks.spec import container_of

__all__ = ["LIES", "STORES", "WAYS_OUT", "Host", "IdleHost", "LeavingHost", "MissingHost", "QuorumFriend"]

WAYS_OUT: Final = ("gives up", "silent", "reports", "names and leaves")
"""How a machine leaves a container: it says so, says nothing, reports that somebody has tampered with it, or names
a checkpoint in the same block."""
STORES: Final = ("real", "stale", "garbage", "nothing", "unstorable")
"""What an idle machine names as checkpoints: what was done, the first one again, what nobody can fetch, nothing.

Or it says that its folder cannot be stored."""
LIES: Final = ("always", "paired", "copies")
"""When a member of a quorum lies: always, if a friend has a seat too, or by what another one sealed."""


class Host(Machine):
    """An honest machine that runs containers beside what others do. Each method is a decision.

    It meters each tick, stores as often as the job says, and says how the container ended.
    """

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain) -> None:
        super().__init__(account, offer, costs, off)
        self._running: set[bytes] = set()
        self._sealed: dict[bytes, ContainerEnd] = {}

    # Decisions

    def effort(self, _view: View, _task: bytes, _run: Run) -> float:
        """Return how many seconds of work it has the container do in a second."""
        return 1 / max(1, len(self._running))

    def fakes(self, _run: Run) -> bool:
        """Tell whether the log shows work that is not done."""
        return False

    def stores(self, run: Run) -> float | None:
        """Return the seconds of work in the checkpoint that it names; None if nobody can fetch that."""
        return run.done_s

    def parts(self, _view: View, _task: bytes, _run: Run) -> str:
        """Return how it leaves the container now, or nothing."""
        return ""

    def ends(self, view: View, task: bytes, run: Run) -> ContainerEnd | None:
        """Return the end of the container, if it has ended: here with the right output."""
        done = run.done_s + 1e-6 >= self.off.boxes.needs_s[self._first(view, task)]
        return ended_with(self._first(view, task), ExitKind.EXITED) if done else None

    @staticmethod
    def _first(view: View, task: bytes) -> bytes:
        quorum = view.quorum(task)
        return task if quorum is None else quorum.id

    # What it sends

    def act(self, view: View) -> list[Action]:
        """Do what is asked of it; know which containers run."""
        duties = view.work(self.address)
        self._running = {duty.task for duty in duties if duty.action == Asked.METER}
        return super().act(view)

    def work(self, view: View, duty: WorkDuty) -> list[Action]:
        """Return what a container gets of it now."""
        if not view.job(duty.task).is_metered:
            return super().work(view, duty)
        task = duty.task
        match duty.action:
            case Asked.ACCEPT:
                return [view.accept(self.address, duty)]
            case Asked.START:
                if task not in self._prepared and self.prepares():
                    self._prepared.add(task)
                    units = view.job(task).inputs_bytes() * view.parameters.fetch_units_per_byte
                    self.spent += self.costs.cost(units)
                wanted = view.checkpoints(task).wanted
                has_none = wanted is not None and wanted.blob not in self.off.boxes.blobs
                if wanted is not None and wanted.blob and (has_none or self.misses(view, task)):
                    return [view.miss(self.address, task, wanted.blob)]
                return [view.start(self.address, duty)]
            case Asked.METER:
                return self._meter(view, task)
            case Asked.REVEAL:
                return self.reveal(view, task)
            case Asked.SHOW:
                return [view.finish(self.address, task, view.meter_of(task).own_seconds, self._sealed[task])]
            case _:
                return []

    def reveal(self, view: View, task: bytes) -> list[Action]:
        """Open its seal."""
        return [view.reveal_output(self.address, task, _result(self._sealed[task]), self._salt(task))]

    def _salt(self, task: bytes) -> bytes:
        return digest(b"sim-box-salt", self.address + task)

    def _meter(self, view: View, task: bytes) -> list[Action]:
        meter, boxes = view.meter_of(task), self.off.boxes
        run = boxes.begin(view.state, task, view.time_ms)
        worked_s = run.advance(view.time_ms, 0.0)
        quorum, job = view.quorum(task), view.job(task)
        first = self._first(view, task)
        boxes.worked_s[first] = boxes.worked_s.get(first, 0.0) + worked_s
        self.spent += self.costs.cost(int(worked_s * job.step_units))
        if meter.stop_ms:
            return self._stopped(view, task, meter, quorum)
        way = self.parts(view, task, run)
        most = meter.own_seconds + job.schedule.total_steps - meter.seconds
        passed_s = min((view.time_ms - meter.began_ms) // 1000, most)
        if way == "names and leaves" and passed_s > view.checkpoints(task).covered_s:
            return [self._store(view, task, run, passed_s), *self._part(view, task, "gives up")]
        if way:
            return self._part(view, task, way)
        end = self.ends(view, task, run)
        if end is not None:
            return self._end(view, task, passed_s, end, quorum)
        run.effort, run.is_faked = self.effort(view, task, run), self.fakes(run)
        return self._count(view, task, meter, run, passed_s)

    def _count(self, view: View, task: bytes, meter: MeterRecord, run: Run, passed_s: int) -> list[Action]:
        """Store what is due, or meter the ticks that have passed."""
        job, found = view.job(task), view.checkpoints(task)
        plan, boxes = container_of(job).checkpoint, self.off.boxes
        wakes = [meter.own_seconds + job.tick_s]
        if plan is not None and found.covered_s + plan.every_s <= passed_s and self.names(run):
            return [self._store(view, task, run, passed_s)]
        if plan is not None:
            wakes.append(found.covered_s + plan.every_s)
        ticks = (passed_s - meter.own_seconds) // job.tick_s
        if ticks > 0:
            return [view.meter(self.address, task, meter.own_seconds + ticks * job.tick_s)]
        left_s = boxes.needs_s[self._first(view, task)] - run.done_s
        if run.effort and left_s > 0:
            self.wait(view.time_ms + int(1000 * left_s / run.effort) + 1)
        for at in wakes:
            if meter.began_ms + 1000 * at > view.time_ms:
                self.wait(meter.began_ms + 1000 * at)
        return []

    def _store(self, view: View, task: bytes, run: Run, passed_s: int) -> Action:
        if not self.can_store():
            return view.store(self.address, task, passed_s, b"", 0)
        content = self.stores(run)
        blob = digest(b"sim-stored", self.address + task + passed_s.to_bytes(8, "big"))
        if content is not None:
            self.off.boxes.blobs[blob] = content
        return view.store(self.address, task, passed_s, blob, STORED_BYTES)

    def misses(self, _view: View, _task: bytes) -> bool:
        """Tell whether it says of a checkpoint that it could have that it cannot."""
        return False

    def names(self, _run: Run) -> bool:
        """Tell whether it names checkpoints."""
        return True

    def can_store(self) -> bool:
        """Tell whether its checkpoints have names; else it says that the folder cannot be stored (R103)."""
        return True

    def _stopped(self, view: View, task: bytes, meter: MeterRecord, quorum: QuorumRecord | None) -> list[Action]:
        left = view.job(task).schedule.total_steps - meter.seconds
        passed_s = (min(view.time_ms, meter.stop_ms) - meter.began_ms) // 1000
        seconds = max(meter.own_seconds, min(passed_s, meter.own_seconds + left))
        if quorum is not None and quorum.is_blind:  # its time is used up
            return self._end(view, task, seconds, ended_with(quorum.id, ExitKind.STOPPED), quorum)
        return [view.finish(self.address, task, seconds, ended_with(task, ExitKind.STOPPED, b"stopped"))]

    def _part(self, view: View, task: bytes, way: str) -> list[Action]:
        match way:
            case "gives up":
                return [view.give_up(self.address, task, Reason.WORKER_LEFT)]
            case "reports":
                return [view.report_tampering(self.address, task)]
            case _:
                return []

    def _end(
        self, view: View, task: bytes, seconds: int, end: ContainerEnd, quorum: QuorumRecord | None
    ) -> list[Action]:  # fmt: skip
        if quorum is None or not quorum.is_blind:
            return [view.finish(self.address, task, seconds, end)]
        self._sealed[task] = end
        seal = self.seals(view, task, quorum) or output_seal(task, self.address, _result(end), self._salt(task))
        return [view.seal_output(self.address, task, seconds, seal)]

    def seals(self, _view: View, _task: bytes, _quorum: QuorumRecord) -> bytes:
        """Return the seal that it sends in place of its own, or nothing."""
        return b""


def _result(end: ContainerEnd) -> bytes:
    return output_result(end.kind, end.code, end.output, end.output_bytes)


class IdleHost(Host):
    """Bills containers that it runs for a part of their work, or several at once with one device."""

    works = 0.0
    """The part of the work that it has done before it idles."""
    is_faking = True
    """Whether its log goes on."""
    stored = "stale"
    exits = True
    """Whether it says in time that the container has ended well, with an output of its own."""

    def effort(self, view: View, task: bytes, run: Run) -> float:
        """Work up to its part, and idle from there on."""
        needed_s = self.off.boxes.needs_s[self._first(view, task)]
        return super().effort(view, task, run) if run.done_s < self.works * needed_s else 0.0

    def fakes(self, run: Run) -> bool:
        """Show work in the log where that is its way."""
        return self.is_faking

    def stores(self, run: Run) -> float | None:
        """Store as it is set."""
        return {"real": run.done_s, "stale": run.base_s}.get(self.stored)

    def names(self, run: Run) -> bool:
        """Name checkpoints but where it stores nothing."""
        return self.stored != "nothing"

    def can_store(self) -> bool:
        """Say that it cannot where that is its way."""
        return self.stored != "unstorable"

    def ends(self, view: View, task: bytes, run: Run) -> ContainerEnd | None:
        """End in the time that the work would have taken."""
        first = self._first(view, task)
        honest_s = self.off.boxes.needs_s[first] - run.base_s
        if not self.exits or view.time_ms - run.began_ms < 1000 * honest_s:
            return super().ends(view, task, run)
        return super().ends(view, task, run) or ended_with(first, ExitKind.EXITED, self.address)


class LeavingHost(IdleHost):
    """Leaves its containers a while before or after a checkpoint, or before the time that it has offered.

    Where it stores nothing that is real, it fetches no mounts either.
    """

    after = 1
    """Checkpoints after which it leaves; 0: before the first."""
    offset = 0.5
    """How far into the next interval it leaves, as a part of it."""
    way = "gives up"
    works = 1.0
    exits = False
    stored = "real"

    def prepares(self) -> bool:
        """Fetch the mounts of what it means to run."""
        return self.stored == "real"

    def parts(self, view: View, task: bytes, run: Run) -> str:
        """Leave at its time."""
        plan = container_of(view.job(task)).checkpoint
        every_s = view.job(task).tick_s * 2 if plan is None else plan.every_s
        at_ms = run.began_ms + int(1000 * every_s * (self.after + self.offset))
        if view.time_ms < at_ms:
            self.wait(at_ms)
            return ""
        return self.way


class MissingHost(Host):
    """Says of checkpoints of others that it cannot have them, to do and bill their intervals again."""

    times = 1
    """How many checkpoints it misses before it begins."""

    def misses(self, view: View, task: bytes) -> bool:
        """Miss as many as are set, whoever has stored them."""
        return view.checkpoints(task).missed < self.times


class QuorumFriend(Host):
    """A member of quorums that agrees with its friends on an output that nobody computed."""

    lies = "always"
    waits = 1.0
    """When it seals, in parts of the time of the work."""

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain, plot: Plot) -> None:
        super().__init__(account, offer, costs, off)
        self.plot = plot
        self._tried: set[bytes] = set()

    def _is_lie(self, view: View, task: bytes) -> bool:
        quorum = view.quorum(task)
        if quorum is None or self.lies != "paired":
            return quorum is not None
        seats = [seat.machine for seat in quorum.seats]
        workers = {view.task(seat).worker for seat in view.seats_of(quorum.id)} | set(seats)
        return len((workers & self.plot.members) - {b""}) > 1

    def effort(self, view: View, task: bytes, run: Run) -> float:
        """Run nothing that it lies about."""
        return 0.0 if self._is_lie(view, task) else super().effort(view, task, run)

    def ends(self, view: View, task: bytes, run: Run) -> ContainerEnd | None:
        """End as an honest one, or in its time with the lie of its friends."""
        if not self._is_lie(view, task):
            return super().ends(view, task, run)
        first = self._first(view, task)
        at_ms = run.began_ms + int(1000 * self.waits * self.off.boxes.needs_s[first])
        if view.time_ms < at_ms:
            self.wait(at_ms)
            return None
        name = self.address if self.lies == "copies" else b"lie"
        return ended_with(first, ExitKind.EXITED, name)

    def seals(self, view: View, task: bytes, quorum: QuorumRecord) -> bytes:
        """Repeat the seal of another member, where that is its way."""
        others = [seat.seal for seat in quorum.seats if seat.seal and seat.machine != self.address]
        return others[0] if self.lies == "copies" and others else b""

    def reveal(self, view: View, task: bytes) -> list[Action]:
        """Open its seal, or try to with the result that another member has revealed."""
        quorum = view.quorum(task)
        if self.lies != "copies" or quorum is None or quorum.phase is not QuorumPhase.REVEALING:
            return super().reveal(view, task)
        known = [seat.result for seat in quorum.seats if seat.result and seat.machine != self.address]
        if not known or view.task(task).phase is not Phase.OUTPUT or task in self._tried:
            return []
        self._tried.add(task)
        return [view.reveal_output(self.address, task, known[0], self._salt(task))]
