"""Honest agents: a machine that computes and verifies, and a requester. Strategic ones override decisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from state.primitives.hashing import digest
from tasks.dispute.game import Side
from tasks.ledger.custody_queries import CustodyAction, CustodyDuty
from tasks.ledger.disputes import DisputeRecord
from tasks.ledger.lifecycle import Phase, Reason
from tasks.ledger.queries import Action as Asked
from tasks.ledger.queries import CheckDuty, DisputeDuty, WorkDuty
from tasks.ledger.registry import NodeRole
from tasks.ledger.trials import TrialPhase, TrialRecord
from tasks.proofs import Code, Finding, delivery_digest
from tasks.simulation.actions import JUNK_BLOB, Account, Action, Offer
from tasks.simulation.agents.players import move_of
from tasks.simulation.market import View
from tasks.simulation.work import (
    CHECK,
    JURY,
    KEEP,
    RESULT,
    Costs,
    Made,
    OffChain,
    Use,
    make_output,
    make_window,
)
from tasks.spec import JobSpec
from tasks.trials import LINKS_MAX, first_state, link_units, next_state, positions_of, root_of, show

__all__ = ["Agent", "Machine", "Requester", "computed", "unavailable", "units_of"]

UNAVAILABLE: Final = bytes(32)
KEEPING_PARTS: Final = 2
"""Keeping an output costs a half of the least pay of a custodian."""


class Agent:
    """A policy for some accounts. ``spent`` is the cost of the work that it did."""

    def __init__(self, *accounts: Account) -> None:
        self.accounts: Final = accounts
        self.address: Final = accounts[0].address
        self.spent = 0

    def act(self, view: View) -> list[Action]:
        """Return what it does in the next block."""
        raise NotImplementedError

    def wake_ms(self) -> Iterable[int]:
        """Return when it wants to be asked again, though nothing happens on chain."""
        return ()


def units_of(job: JobSpec, window: int, segments: Iterable[int]) -> int:
    """Return the work units of some segments of a window."""
    return sum(job.segment_units(window, segment) for segment in segments)


def unavailable(segments: Iterable[int]) -> tuple[Finding, ...]:
    """Return the findings that say that nothing could be fetched."""
    return tuple(Finding(segment, Code.UNAVAILABLE, UNAVAILABLE, UNAVAILABLE, 0) for segment in segments)


def computed(made: Made, segments: Iterable[int]) -> tuple[Finding, ...]:
    """Return the findings that agree with a window, which only those can give who know its work digests."""
    return tuple(
        Finding(at, Code.COMPUTED, made.digests[at], made.leaves[at].state_root_after, made.leaves[at].loss_bits)
        for at in segments
    )


def _is_used(view: View, address: bytes) -> bool:
    node = view.node(address)
    return node is not None and (node.busy_slots > 0 or node.bad > 0)


class Machine(Agent):
    """An honest machine: it takes what it is offered, computes all of it, and re-runs what it is drawn for.

    It does one window and one check at a time. Each method is a decision that a strategy may take in another way.
    """

    def __init__(self, account: Account, offer: Offer, costs: Costs, off: OffChain) -> None:
        super().__init__(account)
        self.account: Final = account
        self.offer = offer
        self.costs: Final = costs
        self.off: Final = off
        self.made: Final[dict[tuple[bytes, int], Made]] = {}
        self._work_ready: dict[tuple[bytes, int, bytes], int] = {}
        self._check_ready: dict[tuple[bytes, int, int, bool], int] = {}
        self._findings: dict[tuple[bytes, int, int, bool], tuple[Finding, ...]] = {}
        self._prepared: set[bytes] = set()
        self._chains: dict[bytes, tuple[bytes, ...]] = {}
        self._trial_ready: dict[bytes, int] = {}
        self._work_free_ms = 0
        self._check_free_ms = 0
        self._wakes: set[int] = set()
        self._is_registered = False
        self.predecessor: bytes | None = None
        """The machine after which it registers: once that one has work, or has failed."""

    def act(self, view: View) -> list[Action]:
        """Do what is asked of it now."""
        self._wakes = {at for at in self._wakes if at > view.time_ms}
        cut_ms = self.off.cut_until_ms.get(self.address, 0)
        if view.time_ms < cut_ms:
            self.wait(cut_ms)
            return []
        if not self._is_registered:
            if self.predecessor is not None and not _is_used(view, self.predecessor):
                return []
            self._is_registered = True
            return [view.register(self.account, self.offer)]
        actions: list[Action] = []
        for work in view.work(self.address):
            actions += self.work(view, work)
        for check in view.checks(self.address):
            actions += self.check(view, check)
        for game in view.disputes(self.address):
            actions += self.play(view, game)
        for output in view.keeping(self.address):
            actions += self.keep(view, output)
        if view.parameters.trial_ms:
            actions += self.trials(view)
        return actions

    def wake_ms(self) -> Iterable[int]:
        """Return when its computing ends."""
        return self._wakes

    def wait(self, until_ms: int) -> None:
        """Ask to be asked again at a time."""
        self._wakes.add(until_ms)

    # Decisions of a worker

    def forges(self, _view: View, _duty: WorkDuty, _segments: int) -> Iterable[int]:
        """Return which segments of a window it does not run."""
        return ()

    def takes_ms(self, honest_ms: int) -> int:
        """Return how long it takes for a window that takes ``honest_ms`` where all of it is run."""
        return honest_ms

    def prepares(self) -> bool:
        """Tell whether it fetches the inputs of a task."""
        return True

    def serves(self, _who: bytes, _use: Use) -> bool:
        """Tell whether it gives what it made to somebody who asks."""
        return True

    answers_missed = True
    """Whether it says that it serves what a jury could not fetch."""

    def leaves(self, view: View, duty: WorkDuty) -> Reason | None:
        """Return why it gives a task up where it stands, or None."""
        if duty.action == Asked.START and duty.task in self.off.withheld_inputs:
            return Reason.INPUT_UNAVAILABLE
        return None

    def ignores(self, _view: View, _duty: WorkDuty) -> bool:
        """Tell whether it does nothing where it is asked."""
        return False

    # A worker

    def work(self, view: View, duty: WorkDuty) -> list[Action]:
        """Return what a task gets of it now."""
        if self.ignores(view, duty):
            return []
        if duty.action in (Asked.ACCEPT, Asked.START, Asked.COMPUTE):
            reason = self.leaves(view, duty)
            if reason is not None:
                return [view.give_up(self.address, duty.task, reason)]
        match duty.action:
            case Asked.ACCEPT:
                return [view.accept(self.address, duty)]
            case Asked.START if view.job(duty.task).dataset.blob == JUNK_BLOB:
                self._prepare(view, duty.task)
                return [view.claim_junk(self.address, duty.task, view.job(duty.task))]
            case Asked.START:
                self._prepare(view, duty.task)
                return [view.start(self.address, duty)]
            case Asked.COMPUTE:
                return [] if duty.blocked else self._compute(view, duty)
            case Asked.SERVE:
                return [view.serve(self.address, duty)] if self.answers_missed else []
            case _:
                return [view.open(self.address, self.made[duty.task, duty.window], duty.segments)]

    def _prepare(self, view: View, task: bytes) -> None:
        record, job = view.task(task), view.job(task)
        known = record.group[:-1] or task  # seats of a group have the same inputs
        if known not in self._prepared and self.prepares():
            self._prepared.add(known)
            self.spent += self.costs.cost(view.fetch_units(job))

    def _compute(self, view: View, duty: WorkDuty) -> list[Action]:
        job, number = view.job(duty.task), duty.window
        place = duty.task, number, duty.state_root
        segments = job.window_segments(number)
        if place not in self._work_ready:
            begun_ms = max(view.time_ms, self._work_free_ms)
            honest_ms = self.costs.time_ms(job.window_units(number))
            self._work_free_ms = self._work_ready[place] = begun_ms + self.takes_ms(honest_ms)
        ready_ms = self._work_ready[place]
        if view.time_ms < ready_ms:
            self.wait(ready_ms)
            return []
        forged = frozenset(self.forges(view, duty, segments))
        honest = [segment for segment in range(segments) if segment not in forged]
        self.spent += self.costs.cost(units_of(job, number, honest))
        secret = digest(b"sim-secret", self.address + number.to_bytes(4, "big"))
        made = self.make(job, duty, secret, forged)
        if view.has_custody(duty.task):
            output = make_output(job, made, job.windows, is_garbage=self.garbage, is_other=self.other_bytes)
            self.off.outputs[duty.task, number] = output
            self.off.hands_out[self.address, duty.task, number] = self.serves(b"", RESULT)
            made = made._replace(custody=output.commitment if self.commits else None)
        self.made[duty.task, number] = made
        self.off.publish(made, self.serves)
        return [view.submit(self.address, made)]

    def make(self, job: JobSpec, duty: WorkDuty, secret: bytes, forged: frozenset[int]) -> Made:
        """Return the window that it proves."""
        return make_window(self.off, job, duty.task, duty.window, duty.state_root, secret, forged)

    # A custodian

    garbage = False
    """Whether it commits to outputs that nobody can decrypt."""
    other_bytes = False
    """Whether it commits to outputs that are no states."""
    commits = True
    """Whether it commits to outputs where custody asks for that."""

    def hands_out(self, _place: tuple[bytes, int]) -> bool:
        """Tell whether it gives an output that it keeps to who asks."""
        return True

    def keep(self, view: View, duty: CustodyDuty) -> list[Action]:
        """Keep an output and sign for it, post a chunk of it, or take one over from its custodian."""
        place = duty.task, duty.window
        output = self.off.outputs[place]
        match duty.action:
            case CustodyAction.SIGN:
                if self.off.leaves(*place, self.address, KEEP) is None:
                    return []
                self.spent += view.parameters.custody_fee_min // KEEPING_PARTS
                self.off.hands_out[self.address, *place] = self.hands_out(place)
                return [view.take_custody(self.address, duty)]
            case CustodyAction.ANSWER:
                is_kept = (self.address, *place) in self.off.hands_out
                return [view.answer_demand(self.address, duty, output)] if is_kept else []
            case _:
                custody = view.custody(*place)
                if custody is None or custody.demand is None:
                    return []
                if not self.off.hands_out.get((custody.demand.holder, *place)):
                    return []
                self.off.received.add(place)
                return [view.receive_custody(self.address, duty)]

    # A machine in a speed trial, and its verifier

    is_tried = True
    """Whether it takes part in speed trials of its own."""

    def trial_rate(self, _view: View) -> int:
        """Return at which rate it does the links of a trial, or seems to."""
        return self.costs.rate

    def link(self, _machine: bytes, seed: bytes, before: bytes) -> bytes:
        """Return the result of a link of a machine's trial, as it says."""
        return digest(b"sim-link", seed + before)

    def trials(self, view: View) -> list[Action]:
        """Compute links, show those that are drawn, and judge those of others."""
        record, actions = view.trial(self.address), list[Action]()
        if record is None or record.phase is TrialPhase.IDLE:
            if self.is_tried and self.offer.roles & NodeRole.COMPUTE and view.asks_trial(self.address):
                actions.append(view.ask_trial(self.address))
        elif record.phase is TrialPhase.RUNNING and self.is_tried:
            actions += self._compute_links(view, record)
        elif record.phase is TrialPhase.SHOWING and record.seed in self._chains:
            wanted = positions_of(record.lot, record.links, view.parameters.trial_samples)
            actions.append(view.show_trial(self.address, show(self._chains[record.seed], wanted)))
        for other in view.to_judge(self.address):
            results = [self.link(other.address, other.seed, before) for before, _ in other.shown_links]
            actions.append(view.judge_trial(self.address, other.address, results))
        return actions

    def _compute_links(self, view: View, record: TrialRecord) -> list[Action]:
        trial_ms, seed = view.parameters.trial_ms, record.seed
        ready_ms = self._trial_ready.setdefault(seed, view.time_ms + trial_ms)
        if view.time_ms < ready_ms:
            self.wait(ready_ms)
            return []
        if seed in self._chains:
            return []
        count = self.trial_rate(view) * trial_ms // 1000 // link_units(record.width)
        states = [first_state(seed)]
        for _ in range(max(1, min(count, LINKS_MAX))):
            states.append(next_state(states[-1], self.link(self.address, seed, states[-1])))
        self._chains[seed] = tuple(states)
        amount = 2 * view.parameters.trial_fee
        return [view.commit_trial(self.address, len(states) - 1, root_of(states), amount)]

    # A verifier

    def find(self, view: View, duty: CheckDuty) -> tuple[Finding, ...] | None:
        """Return what it reports; None to say nothing. An honest one runs each segment and pays for it."""
        use = RESULT if duty.is_delivery else JURY if duty.is_jury else CHECK
        leaves = self.off.leaves(duty.task, duty.window, self.address, use)
        if leaves is None:
            return unavailable(duty.segments)
        if not duty.is_delivery and view.find_break(duty.task, duty.window, leaves) is not None:
            return tuple(Finding(at, Code.BROKEN, UNAVAILABLE, UNAVAILABLE, 0) for at in duty.segments)
        if duty.is_delivery:
            root = leaves[-1].state_root_after
            return (Finding(duty.segments[0], Code.COMPUTED, delivery_digest(duty.salt, root), root, 0),)
        self.spent += self.costs.cost(units_of(view.job(duty.task), duty.window, duty.segments))
        job, findings = view.job(duty.task), []
        for at in duty.segments:
            end = self.off.run(job, duty.task, leaves[at].state_root_before, leaves[at].step_from).end
            found = Finding(at, Code.COMPUTED, end.work_digest, end.state_root, end.loss_total)
            findings.append(found.against(leaves[at]))
        return tuple(findings)

    def check_ms(self, view: View, duty: CheckDuty) -> int:
        """Return how long a check keeps it busy."""
        if duty.is_delivery:
            return 0
        return self.costs.time_ms(units_of(view.job(duty.task), duty.window, duty.segments))

    def check(self, view: View, duty: CheckDuty) -> list[Action]:
        """Return its seal when it has run the segments, and its findings when they are asked for."""
        place = duty.task, duty.window, duty.height, duty.is_jury
        nonce = digest(b"sim-nonce", self.address + duty.task + duty.height.to_bytes(8, "big"))
        if duty.action == Asked.REVEAL:
            findings = self._findings.get(place)
            if findings is None:
                return []
            return [*self._show(view, duty, findings), view.reveal(self.address, duty, findings, nonce)]
        if place not in self._check_ready:
            begun_ms = max(view.time_ms, self._check_free_ms)
            self._check_free_ms = self._check_ready[place] = begun_ms + self.check_ms(view, duty)
        ready_ms = self._check_ready[place]
        if view.time_ms < ready_ms:
            if ready_ms < duty.deadline_ms:
                self.wait(ready_ms)
            return []
        found = self.find(view, duty)
        if found is None:
            return []
        self._findings[place] = found
        return [view.seal(self.address, duty, found, nonce)]

    def _show(self, view: View, duty: CheckDuty, findings: Sequence[Finding]) -> list[Action]:
        """Show where the leaves of a window do not fit; only then such findings can be revealed."""
        leaves = self.off.leaves(duty.task, duty.window, self.address, CHECK)
        if leaves is None or findings[0].code != Code.BROKEN:
            return []
        broken = view.find_break(duty.task, duty.window, leaves)
        return [] if broken is None else [view.show_break(self.address, duty.task, duty.window, broken)]

    # A side of a dispute

    def answers(self, _dispute: DisputeRecord) -> bool:
        """Tell whether it plays a dispute in which it is the accused."""
        return True

    def play(self, view: View, duty: DisputeDuty) -> list[Action]:
        """Return the move that is due, if honest software has one for this side."""
        dispute = view.dispute(duty)
        if duty.side is Side.ACCUSED and not self.answers(dispute):
            return []
        if duty.resume_price is not None:
            return [view.resume_dispute(self.address, duty)]
        if dispute.opened is None:
            return [view.open_segment(self.address, duty, self.made[duty.task, duty.window])]
        move = move_of(view, self.off, duty, dispute)
        return [] if move is None else [view.move(self.address, duty, move)]


class Requester(Agent):
    """An honest requester: it posts its jobs, goes on after a pause, and waits."""

    RESUMES_MAX = 2
    from_height = 0
    """It posts nothing before."""

    def __init__(self, account: Account, jobs: Sequence[JobSpec], off: OffChain) -> None:
        super().__init__(account)
        self.off: Final = off
        self.tasks: Final[list[bytes]] = []
        self._jobs = list(jobs)
        self._resumes: dict[bytes, int] = {}
        self._looks_ms: int | None = None

    def act(self, view: View) -> list[Action]:
        """Post what is left to post; resume what pauses."""
        is_early = view.height < self.from_height
        self._looks_ms = view.time_ms + 1 if is_early else None
        # The bonds of machines count from the next epoch of draws on.
        if is_early or view.height < view.parameters.draw_blocks:
            return []
        known = tuple(self.tasks)
        return self._post(view) + [action for task in known for action in self.tend(view, task)]

    def wake_ms(self) -> Iterable[int]:
        """Look at each block until it posts."""
        return () if self._looks_ms is None else (self._looks_ms,)

    def _post(self, view: View) -> list[Action]:
        # First among its transactions of the block: the id of a task has the nonce in it.
        if not self._jobs:
            return []
        job = self._jobs.pop(0)
        task = view.next_task_id(self.address)
        self.on_post(task)
        self.tasks.append(task)
        return [view.create(self.address, job), *self.beside(view, task, job)]

    def beside(self, _view: View, _task: bytes, _job: JobSpec) -> list[Action]:
        """Return what it sends together with a new task."""
        return []

    def on_post(self, task: bytes) -> None:
        """Do what belongs to a new task off the chain."""

    def tend(self, view: View, task: bytes) -> list[Action]:
        """Return what it does about one of its tasks."""
        if view.task(task).phase == Phase.PAUSED and self._resumes.get(task, 0) < self.RESUMES_MAX:
            self._resumes[task] = self._resumes.get(task, 0) + 1
            return [view.resume(self.address, task)]
        return []
