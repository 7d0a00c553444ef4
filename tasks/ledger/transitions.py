"""The kinds of transactions of the compute market: call forms, gas weights and handlers (market.md 5.3)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

from billing.errors import PaymentMissing
from billing.escrow import HOLDING, Pool, Purpose, check_touched_escrows
from state.primitives.codec import Value
from state.primitives.hashing import digest
from state.transition.calls import CallForm
from state.transition.rules import BlockHook, Context, Holding, Invariant, Rule
from state.view import Overlay
from state.view.accounts import balance_of
from tasks.errors import NothingDue, NotYours, WrongPhase
from tasks.ledger import registration
from tasks.ledger.block_end import end_block
from tasks.ledger.bonds import bond_rules, release_sponsor
from tasks.ledger.carriage import CARRIAGE_HOLDING
from tasks.ledger.check_fund import FUND_ADDRESS
from tasks.ledger.checkpoint_transitions import checkpoint_rules
from tasks.ledger.claim_transitions import claim_rules
from tasks.ledger.complaints import is_complaint
from tasks.ledger.creation import begin_task
from tasks.ledger.custody_transitions import custody_rules
from tasks.ledger.dispute_transitions import dispute_rules
from tasks.ledger.group_records import is_spare
from tasks.ledger.group_transitions import group_rules
from tasks.ledger.groups import stand_by
from tasks.ledger.lifecycle import Event, Phase, Reason, WindowPhase
from tasks.ledger.metering import begin_meter, check_proven
from tasks.ledger.metering_transitions import metering_rules
from tasks.ledger.open_task import LEDGER_ADDRESS, Case, Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.payloads import (
    Attestation,
    NewTask,
    NodeOffer,
    OpenedWindow,
    Payout,
    RevealedVerdict,
    SealedVerdict,
    SeatOf,
    TaskAmount,
    TaskReason,
    decode_amount,
    decode_create,
    decode_give_up,
    decode_nothing,
    decode_offer,
    decode_open,
    decode_payout,
    decode_proof,
    decode_reveal,
    decode_seal,
    decode_seat,
    decode_start,
    decode_task,
)
from tasks.ledger.progress import (
    arm_running,
    blame_worker,
    cancel_work,
    on_task_due,
    part_silently,
    report,
    resume,
    search,
    turn_down,
)
from tasks.ledger.proving import submit_window
from tasks.ledger.questions import QuestionOf, question_of
from tasks.ledger.quorum_transitions import quorum_rules
from tasks.ledger.quorums import begin_quorum, cancel_quorum, quorum_budget
from tasks.ledger.registry import REGISTRY_ADDRESS, NodeProfile, profile_to_value
from tasks.ledger.serving_transitions import serving_rules
from tasks.ledger.settlement import (
    bond_of,
    budget_of,
    check_affordable,
    check_measured,
)
from tasks.ledger.tampering import check_untampered, tamper_rules
from tasks.ledger.trial_transitions import trial_rules
from tasks.ledger.verification import (
    demand,
    on_window_due,
    open_window,
    reveal,
    seal,
)
from tasks.ledger.window_draws import decline_seat
from tasks.proofs import (
    WindowProof,
)

__all__ = [
    "ACCEPT_TASK",
    "CANCEL_TASK",
    "CREATE_TASK",
    "DECLINE_SEAT",
    "DEMAND_RESULT",
    "GIVE_UP_TASK",
    "HEARTBEAT",
    "HOLDINGS",
    "INVARIANTS",
    "OPEN_WINDOW",
    "POKE",
    "REGISTER_NODE",
    "RESUME_TASK",
    "RETIRE_NODE",
    "REVEAL_VERDICT",
    "SEAL_VERDICT",
    "SET_PAYOUT",
    "START_TASK",
    "SUBMIT_WINDOW",
    "SUSPEND_NODE",
    "TOP_UP_TASK",
    "UPDATE_NODE",
    "endowments",
    "hooks",
    "node_payload",
    "rules",
    "task_id_of",
]

REGISTER_NODE: Final = 0x10
UPDATE_NODE: Final = 0x11
RETIRE_NODE: Final = 0x12
SUSPEND_NODE: Final = 0x13
CREATE_TASK: Final = 0x20
CANCEL_TASK: Final = 0x21
ACCEPT_TASK: Final = 0x22
START_TASK: Final = 0x23
SUBMIT_WINDOW: Final = 0x24
SEAL_VERDICT: Final = 0x25
REVEAL_VERDICT: Final = 0x26
OPEN_WINDOW: Final = 0x27
POKE: Final = 0x28
TOP_UP_TASK: Final = 0x29
RESUME_TASK: Final = 0x2A
GIVE_UP_TASK: Final = 0x2B
DEMAND_RESULT: Final = 0x2F
DECLINE_SEAT: Final = 0x14
SET_PAYOUT: Final = 0x15
HEARTBEAT: Final = 0x19

_CALLS: Final = {
    REGISTER_NODE: CallForm(REGISTRY_ADDRESS, "registerNode(bytes profile)", value_at=1, nested=("profile",)),
    UPDATE_NODE: CallForm(REGISTRY_ADDRESS, "updateNode(bytes profile)", value_at=1, nested=("profile",)),
    RETIRE_NODE: CallForm(REGISTRY_ADDRESS, "retireNode()"),
    SUSPEND_NODE: CallForm(REGISTRY_ADDRESS, "suspendNode()"),
    HEARTBEAT: CallForm(REGISTRY_ADDRESS, "heartbeat()"),
    SET_PAYOUT: CallForm(REGISTRY_ADDRESS, "setPayout(address node, address payout)"),
    CREATE_TASK: CallForm(LEDGER_ADDRESS, "createTask(bytes specification)", is_payable=True),
    CANCEL_TASK: CallForm(LEDGER_ADDRESS, "cancelTask(bytes32 task)"),
    ACCEPT_TASK: CallForm(LEDGER_ADDRESS, "acceptTask(bytes32 task)", value_at=1),
    START_TASK: CallForm(LEDGER_ADDRESS, "startTask(bytes32 task, bytes32 machine)"),
    SUBMIT_WINDOW: CallForm(LEDGER_ADDRESS, "submitWindow(bytes proof)", nested=("proof",)),
    SEAL_VERDICT: CallForm(LEDGER_ADDRESS, "sealVerdict(bytes32 task, uint32 window, bytes32 seal)"),
    REVEAL_VERDICT: CallForm(
        LEDGER_ADDRESS, "revealVerdict(bytes32 task, uint32 window, bytes findings, bytes32 nonce)",
        nested=("findings",),
    ),
    OPEN_WINDOW: CallForm(
        LEDGER_ADDRESS, "openWindow(bytes32 task, uint32 window, bytes openings)", nested=("openings",)
    ),
    POKE: CallForm(LEDGER_ADDRESS, "poke(bytes32 task)"),
    TOP_UP_TASK: CallForm(LEDGER_ADDRESS, "topUpTask(bytes32 task)", value_at=1),
    RESUME_TASK: CallForm(LEDGER_ADDRESS, "resumeTask(bytes32 task)"),
    GIVE_UP_TASK: CallForm(LEDGER_ADDRESS, "giveUpTask(bytes32 task, uint8 reason)"),
    DEMAND_RESULT: CallForm(LEDGER_ADDRESS, "demandResult(bytes32 task)", value_at=1),
    DECLINE_SEAT: CallForm(LEDGER_ADDRESS, "declineSeat(bytes32 task, uint32 window)"),
}  # fmt: skip
"""How Ethereum's tools call each kind; the budget of a new task is sent with it."""

POKED_WINDOWS_MAX: Final = 3
"""Open windows of a task whose windows may be poked."""

HOLDINGS: Final[tuple[Holding, ...]] = (HOLDING, CARRIAGE_HOLDING)
INVARIANTS: Final[tuple[Invariant, ...]] = (check_touched_escrows,)


def task_id_of(sender: bytes, nonce: int) -> bytes:
    """Return the id of the task that ``sender`` creates with its transaction ``nonce``."""
    return digest(b"task", sender + nonce.to_bytes(8, "big"))


def node_payload(profile: NodeProfile, bond: int) -> list[Value]:
    """Return the payload of REGISTER_NODE and UPDATE_NODE."""
    return [profile_to_value(profile), bond]


def _free(_payload: Any) -> int:
    return 0


# Rules


class _Market:
    """The rules, bound to the chain's parameters."""

    def __init__(self, parameters: TaskParameters, question_of: QuestionOf) -> None:
        self._parameters = parameters
        self._question_of = question_of

    def scope(self, state: Overlay, context: Context, evidence: bytes | None = None) -> Scope:
        """Return what a transaction changes the state under."""
        return Scope(
            state, context.block, context.emit, self._parameters, actor=context.sender,
            evidence=context.transaction_hash if evidence is None else evidence, question_of=self._question_of,
        )  # fmt: skip

    def case(self, state: Overlay, context: Context, task_id: bytes, evidence: bytes | None = None) -> Case:
        """Open a task for the sender of a transaction. Raises TaskUnknown."""
        return Case.load(self.scope(state, context, evidence), task_id)

    def proven_case(
        self, state: Overlay, context: Context, task_id: bytes, evidence: bytes | None = None
    ) -> Case:  # fmt: skip
        """Open a task whose windows are proven. Raises TaskUnknown, KindMismatch."""
        case = self.case(state, context, task_id, evidence)
        check_proven(case)
        return case

    # Registry

    def register(self, state: Overlay, offer: NodeOffer, context: Context) -> None:
        if 0 < offer.bond < self._parameters.node_bond_min:  # nothing at all: somebody else bonds for it
            raise PaymentMissing(due=self._parameters.node_bond_min, got=offer.bond)
        check_untampered(state, context.sender, context.block.steady_ms)
        registration.register(
            state, context.sender, offer.profile, offer.bond, context.block, context.emit, self._parameters
        )  # fmt: skip

    def update(self, state: Overlay, offer: NodeOffer, context: Context) -> None:
        check_untampered(state, context.sender, context.block.steady_ms)
        registration.update(
            state, context.sender, offer.profile, offer.bond, context.block, context.emit, self._parameters
        )  # fmt: skip
        release_sponsor(state, context.sender, context.block, context.emit, self._parameters)

    def retire(self, state: Overlay, _payload: None, context: Context) -> None:
        registration.retire(state, context.sender, context.block, context.emit, self._parameters)

    def suspend(self, state: Overlay, _payload: None, context: Context) -> None:
        registration.suspend(state, context.sender, context.block, context.emit, self._parameters)

    def heartbeat(self, state: Overlay, _payload: None, context: Context) -> None:
        registration.heartbeat(state, context.sender, context.block, context.emit, self._parameters)

    def set_payout(self, state: Overlay, payload: Payout, context: Context) -> None:
        registration.set_payout(state, context.sender, payload.node, payload.payout, context.emit)

    # Requester

    def budget(self, task: NewTask) -> int:
        return quorum_budget(task.spec, budget_of(task.spec, self._parameters))

    def create(self, state: Overlay, task: NewTask, context: Context) -> None:
        check_affordable(task.spec, self._parameters)
        check_measured(task.spec, self._parameters)
        task.spec.plan().check()  # a job that could leave the exact range is refused here, where it is paid for
        task_id, budget = task_id_of(context.sender, context.nonce), budget_of(task.spec, self._parameters)
        begin = begin_quorum if task.spec.is_quorum else begin_task
        case = begin(self.scope(state, context), task_id, context.sender, task.spec, task.raw, budget)
        search(case)
        case.save()

    def _as_requester(self, state: Overlay, context: Context, task_id: bytes) -> Case:
        case = self.case(state, context, task_id)
        if context.sender != case.record.requester:
            raise NotYours("the sender is not the requester")
        return case

    def cancel(self, state: Overlay, task_id: bytes, context: Context) -> None:
        case = self._as_requester(state, context, task_id)
        record = case.record
        if record.group and (record.phase == Phase.MATCHING or is_spare(state, record)):
            raise WrongPhase("a part of its group alone")
        if record.is_metered and case.spec.is_quorum:
            cancel_quorum(case)
        else:
            cancel_work(case, Reason.REQUESTER_CANCELLED)
        case.save()

    def top_up(self, state: Overlay, payload: TaskAmount, context: Context) -> None:
        case = self._as_requester(state, context, payload.task)
        if case.record.phase in (Phase.SETTLED, Phase.FAILED, Phase.CANCELLED, Phase.EXPIRED):
            raise WrongPhase(case.record.phase.name.lower())
        case.vault.lock(Pool.VERIFICATION, context.sender, payload.amount, Purpose.TOP_UP)
        case.save()

    def resume(self, state: Overlay, task_id: bytes, context: Context) -> None:
        case = self._as_requester(state, context, task_id)
        resume(case)
        case.save()

    def demand(self, state: Overlay, payload: TaskAmount, context: Context) -> None:
        case = self._as_requester(state, context, payload.task)
        demand(case, context.sender, payload.amount)
        case.save()

    # Worker

    def _as_worker(self, state: Overlay, context: Context, task_id: bytes, evidence: bytes | None = None) -> Case:
        case = self.case(state, context, task_id, evidence)
        if context.sender != case.record.worker:
            raise NotYours("the sender is not the task's worker")
        registration.touch(state, context.sender, context.block.steady_ms, self._parameters)
        return case

    def _missing_bond(self, case: Case) -> int:
        """Return what the worker of a task has to lock to accept it."""
        record = case.record
        return max(0, bond_of(record, case.spec, self._parameters) - case.vault.held(Pool.BOND, record.worker))

    def _lacks_bond(self, case: Case) -> bool:
        """Tell whether the worker has too little to accept: it may have been matched with several tasks."""
        return balance_of(case.state, case.record.worker) < self._missing_bond(case)

    def accept(self, state: Overlay, payload: TaskAmount, context: Context) -> None:
        case = self._as_worker(state, context, payload.task)
        if case.record.phase != Phase.ASSIGNED:
            raise WrongPhase(case.record.phase.name.lower())
        due = self._missing_bond(case)
        if payload.amount != due:
            raise PaymentMissing(due=due, got=payload.amount)
        case.vault.lock(Pool.BOND, context.sender, due, Purpose.WORKER_BOND, owner=context.sender)
        case.advance(Event.ACCEPT, Reason.ACCEPTED)
        case.change(deadline_ms=case.now + self._parameters.prepare_ms)
        case.save()

    def start(self, state: Overlay, payload: Attestation, context: Context) -> None:
        case = self._as_worker(state, context, payload.task, payload.machine)
        if is_spare(state, case.record):
            stand_by(case)
            case.save()
            return
        case.advance(Event.START, Reason.STARTED)
        record = case.record
        case.change(started_ms=record.started_ms or case.now, attempts=record.attempts + 1)
        if record.is_metered:
            begin_meter(case)
        else:
            arm_running(case)
        case.save()

    def give_up(self, state: Overlay, payload: TaskReason, context: Context) -> None:
        case = self._as_worker(state, context, payload.task)
        is_against = is_complaint(case.record.phase, payload.reason)
        match case.record.phase:
            case Phase.STANDBY:  # what it has earned is lost
                turn_down(case, Reason.WORKER_LEFT)
            case Phase.ASSIGNED:
                is_excused = payload.reason != Reason.WORKER_LEFT or self._lacks_bond(case)
                turn_down(case, Reason.WORKER_DECLINED, is_excused=is_excused, is_against=is_against)
            case Phase.PREPARING:
                report(case, payload.reason)
                is_excused = payload.reason != Reason.WORKER_LEFT
                turn_down(case, payload.reason, is_excused=is_excused, is_against=is_against)
            case Phase.RUNNING if case.record.is_metered:
                part_silently(case, payload.reason)
            case Phase.RUNNING:
                report(case, payload.reason)
                blame_worker(case, payload.reason)
            case phase:
                raise WrongPhase(phase.name.lower())
        case.save()

    def submit(self, state: Overlay, proof: WindowProof, context: Context) -> None:
        case = self._as_worker(state, context, proof.task)
        check_proven(case)
        submit_window(case, proof)
        case.save()

    def open(self, state: Overlay, payload: OpenedWindow, context: Context) -> None:
        case = self.case(state, context, payload.task)
        open_window(case, payload.window, context.sender, payload.openings)
        registration.touch(state, context.sender, context.block.steady_ms, self._parameters)
        case.save()

    # Verifier

    def seal(self, state: Overlay, payload: SealedVerdict, context: Context) -> None:
        case = self.case(state, context, payload.task)
        seal(case, payload.window, context.sender, payload.seal)
        registration.touch(state, context.sender, context.block.steady_ms, self._parameters)
        case.save()

    def reveal(self, state: Overlay, payload: RevealedVerdict, context: Context) -> None:
        case = self.case(state, context, payload.task)
        reveal(case, payload.window, context.sender, payload.findings, payload.nonce)
        registration.touch(state, context.sender, context.block.steady_ms, self._parameters)
        case.save()

    def decline(self, state: Overlay, payload: SeatOf, context: Context) -> None:
        case = self.case(state, context, payload.task)
        decline_seat(case, payload.window, context.sender)
        registration.touch(state, context.sender, context.block.steady_ms, self._parameters)
        case.save()

    # Anybody, and the chain itself

    def poke(self, state: Overlay, task_id: bytes, context: Context) -> None:
        case = self.case(state, context, task_id)
        last = case.record.final_windows - 1
        # Where more are open, one deadline may void or pay them all: that is for the end of a block.
        windows = case.open_windows() if len(case.record.open_windows) <= POKED_WINDOWS_MAX else []
        windows += [] if last < 0 else [case.window(last)]
        # The end of a block settles games, proofs of a lie first: nothing that a liar pokes comes before. The void
        # of one window would drop the games of others.
        if any(window.phase == WindowPhase.DISPUTED for window in windows):
            windows = []
        due_window = next((window for window in windows if 0 < window.deadline_ms <= case.now), None)
        if 0 < case.record.deadline_ms <= case.now:
            on_task_due(case)
        elif due_window is not None:
            on_window_due(case, due_window.number)
        else:
            raise NothingDue(task_id.hex())
        case.save()


def rules(parameters: TaskParameters, question_of: QuestionOf = question_of) -> tuple[Rule[Any], ...]:
    """Return the market's kinds of transactions. ``question_of`` makes the questions of disputes."""
    market = _Market(parameters, question_of)
    own = (
        # A machine that changed looks at parked tasks, and eight may be assigned to it.
        Rule(REGISTER_NODE, "register_node", 3_000_000, decode_offer, lambda p: p.bond, market.register),
        Rule(UPDATE_NODE, "update_node", 3_000_000, decode_offer, lambda p: p.bond, market.update),
        Rule(RETIRE_NODE, "retire_node", 200_000, decode_nothing, _free, market.retire),
        Rule(SUSPEND_NODE, "suspend_node", 200_000, decode_nothing, _free, market.suspend),
        Rule(HEARTBEAT, "heartbeat", 130_000, decode_nothing, _free, market.heartbeat, checks_first=True),
        Rule(SET_PAYOUT, "set_payout", 150_000, decode_payout, _free, market.set_payout),
        # A program that no node has built before, and then a bid in a call, which looks at all of its machines.
        Rule(CREATE_TASK, "create_task", 16_000_000, decode_create, market.budget, market.create),
        Rule(CANCEL_TASK, "cancel_task", 550_000, decode_task, _free, market.cancel),
        Rule(ACCEPT_TASK, "accept_task", 280_000, decode_amount, lambda p: p.amount, market.accept),
        Rule(START_TASK, "start_task", 260_000, decode_start, _free, market.start),
        Rule(SUBMIT_WINDOW, "submit_window", 320_000, decode_proof, _free, market.submit),
        Rule(SEAL_VERDICT, "seal_verdict", 400_000, decode_seal, _free, market.seal),
        Rule(REVEAL_VERDICT, "reveal_verdict", 600_000, decode_reveal, _free, market.reveal),
        # Its payload is the largest: room in a block is paid for by weight alone.
        Rule(OPEN_WINDOW, "open_window", 1_000_000, decode_open, _free, market.open),
        # A deadline may void windows, and have verifiers drawn.
        Rule(POKE, "poke", 3_500_000, decode_task, _free, market.poke),
        Rule(TOP_UP_TASK, "top_up_task", 80_000, decode_amount, lambda p: p.amount, market.top_up),
        Rule(RESUME_TASK, "resume_task", 2_000_000, decode_task, _free, market.resume),
        Rule(GIVE_UP_TASK, "give_up_task", 450_000, decode_give_up, _free, market.give_up),
        # The draw of another machine is a part of what it does.
        Rule(DECLINE_SEAT, "decline_seat", 300_000, decode_seat, _free, market.decline),
        # What the chain does for it: a draw, and the verdicts' deadlines.
        Rule(DEMAND_RESULT, "demand_result", 300_000, decode_amount, lambda p: p.amount, market.demand),
    )
    proven = market.proven_case
    of_case = *claim_rules(proven), *dispute_rules(proven), *custody_rules(proven), *serving_rules(proven)
    of_case += *metering_rules(market.case), *checkpoint_rules(market.case), *tamper_rules(market.case)
    of_case += quorum_rules(market.case)
    of_groups = group_rules(parameters, market.scope)
    others = *bond_rules(parameters), *of_case, *trial_rules(parameters), *of_groups
    return (*(replace(rule, call=_CALLS[rule.kind]) for rule in own), *others)


def hooks(parameters: TaskParameters, question_of: QuestionOf = question_of) -> tuple[BlockHook, ...]:
    """Return what the market does at the end of each block."""
    return (partial(end_block, parameters=parameters, question_of=question_of),)


def endowments(parameters: TaskParameters) -> dict[bytes, int]:
    """Return what the genesis issues to accounts of the market: the float of the check fund."""
    return {FUND_ADDRESS: parameters.check_fund_float}
