"""Reading the market: tasks, nodes, bills, and what a worker or verifier has to do now. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, NamedTuple, TypeVar

from billing.escrow import LINES_PAGE_MAX, Line, Pool, Totals, Vault, bill_lines, escrow_totals
from billing.prices import Budget, share_up, work_price
from state.primitives.hashing import HASH_BYTES
from state.view import Overlay, Reader
from tasks.dispute.game import Side
from tasks.ledger.audits import bond_floor, check_fee, gas_price_of
from tasks.ledger.disputes import DisputePhase, DisputeRecord, load_dispute, load_docket, load_moves
from tasks.ledger.dockets import player_of
from tasks.ledger.lifecycle import Phase, WindowPhase
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.quorum_records import SEATS, QuorumPhase, SeatState, load_quorum, quorum_of, seat_number
from tasks.ledger.records import (
    HistoryEntry,
    JobReport,
    TaskRecord,
    WindowRecord,
    by_duty_key,
    by_phase_key,
    by_player_key,
    by_requester_key,
    by_task_of_worker_key,
    by_verifier_key,
    load_history,
    load_report,
    load_spec,
    load_task,
    load_window,
)
from tasks.ledger.registry import NodeRecord, load_node, scan_nodes
from tasks.ledger.seats import DELIVERY_PHASES, segments_to_check
from tasks.ledger.settlement import bond_at, bond_of, budget_of, check_budget, has_standing, may_open, rerun_price
from tasks.ledger.verification import delivery_salt
from tasks.spec import JobSpec

__all__ = [
    "MOVES_PAGE_MAX",
    "PAGE_MAX",
    "Action",
    "Bill",
    "CheckDuty",
    "CheckQuote",
    "DisputeDuty",
    "Page",
    "WorkDuty",
    "bill",
    "dispute_duties",
    "dispute_moves",
    "disputes",
    "find_node",
    "find_task",
    "list_nodes",
    "own_tasks",
    "quote",
    "quote_checks",
    "report_on",
    "task_history",
    "task_spec",
    "task_windows",
    "tasks_by_phase",
    "tasks_by_requester",
    "tasks_by_worker",
    "verification_duties",
    "work_duties",
]

PAGE_MAX: Final = 100
MOVES_PAGE_MAX: Final = 16
"""Moves of a dispute that one answer has."""
DUTIES_MAX: Final = 256
_Item = TypeVar("_Item")


class Page(NamedTuple, Generic[_Item]):
    """Some items, and the cursor that continues after them; None at the end."""

    items: tuple[_Item, ...]
    next_cursor: bytes | None


class Bill(NamedTuple):
    """An escrow's movements in order; ``totals`` are their sums, deposited = locked + paid + refunded + burned."""

    lines: tuple[Line, ...]
    totals: Totals


class CheckQuote(NamedTuple):
    """What a verifier is paid, what a window pays for its audit at most, and the least bonds of workers.

    ``base_fee`` is that of a block above which the draws of verifiers are put off.
    """

    fee: int
    window: int
    bond: int
    bond_new: int
    base_fee: int


class Action(Enum):
    """What is asked of a node now."""

    ACCEPT = "accept"
    START = "start"
    COMPUTE = "compute"
    METER = "meter"
    """Run the container, meter each tick, and say how it ended; no second counts after a stop (R94 to R96)."""
    OPEN = "open"
    SEAL = "seal"
    REVEAL = "reveal"
    SERVE = "serve"
    """Serve what a jury could not fetch, and say so."""
    PLAY = "play"
    """Make the move that is due in a dispute, or resume it."""
    WAIT = "wait"
    """Keep what was sealed of a container: the machines of its quorum are not ready (R114)."""
    SHOW = "show"
    """Say how the container ended: its result is that of the majority of its quorum (R115)."""


class WorkDuty(NamedTuple):
    """What a task asks of its worker.

    ACCEPT: lock ``bond``. START: fetch the inputs, then say so. COMPUTE: run ``window`` from ``state_root``, whose
    state lies in ``state_blob`` (zero: the job's own beginning) and submit its proof; not while ``blocked``. OPEN:
    open ``segments`` of ``window``. METER: see the
    meter's record. SERVE: serve the states before ``segments`` of ``window``, and all else that
    verifiers need, and say so.
    """

    task: bytes
    action: Action
    window: int
    deadline_ms: int
    bond: int
    state_root: bytes
    state_blob: bytes
    segments: tuple[int, ...]
    blocked: bool


class CheckDuty(NamedTuple):
    """What a window asks of a drawn verifier: SEAL after re-running ``segments``, then REVEAL what was sealed.

    ``height`` is another one for each draw of a window. With ``is_delivery`` nothing is re-run: the result is to
    be fetched, and its ``delivery_digest`` with ``salt`` to be found.
    """

    task: bytes
    window: int
    action: Action
    segments: tuple[int, ...]
    deadline_ms: int
    seal: bytes
    is_jury: bool
    height: int
    is_delivery: bool = False
    salt: bytes = b""


class DisputeDuty(NamedTuple):
    """What a dispute asks of a side now: a move, or to resume for ``resume_price`` where it missed its clock.

    The move has the number ``number``. A game takes no second move in the block at ``moved_height``.
    """

    task: bytes
    window: int
    game: int
    side: Side
    segment: int
    deadline_ms: int
    resume_price: int | None
    number: int
    moved_height: int


def find_task(state: Reader, task_id: bytes) -> TaskRecord:
    """Return a task. Raises TaskUnknown."""
    return load_task(state, task_id)


def task_spec(state: Reader, task_id: bytes) -> JobSpec:
    """Return the job of a task. Raises TaskUnknown."""
    return load_spec(state, task_id)


def task_history(state: Reader, task_id: bytes, *, start: int = 0, limit: int = PAGE_MAX) -> list[HistoryEntry]:
    """Return the task's changes of phase from number ``start``."""
    return load_history(state, task_id, start=start, limit=limit)


def task_windows(state: Reader, task_id: bytes, *, start: int = 0, limit: int = PAGE_MAX) -> list[WindowRecord]:
    """Return the windows of a task that are proved and count, from number ``start``. Raises TaskUnknown."""
    stop = min(load_task(state, task_id).next_window, start + limit)
    return [load_window(state, task_id, number) for number in range(start, stop)]


def _page(state: Reader, first: bytes, stop: bytes, cursor: bytes | None, limit: int) -> Page[TaskRecord]:
    limit = max(1, min(limit, PAGE_MAX))
    start = first + (b"" if cursor is None else cursor + b"\x00")
    keys = [key for key, _ in state.scan(start, stop, limit + 1)]
    items = tuple(load_task(state, key[-HASH_BYTES:]) for key in keys[:limit])
    return Page(items, keys[limit - 1][len(first) :] if len(keys) > limit else None)


def _pages(key: Callable[..., bytes], subject: bytes | int) -> tuple[bytes, bytes]:
    first = key(subject)[:-8]
    return first, first + b"\xff" * (8 + HASH_BYTES + 1)


def tasks_by_requester(state: Reader, requester: bytes, cursor: bytes | None, limit: int) -> Page[TaskRecord]:
    """Return tasks that ``requester`` created, the oldest first."""
    return _page(state, *_pages(by_requester_key, requester), cursor, limit)


def own_tasks(
    state: Reader, requester: bytes, after: bytes | None, limit: int
) -> tuple[list[bytes], bytes | None]:  # fmt: skip
    """Return ids of tasks that ``requester`` created, the oldest first, and the place of the last one.

    ``after`` is such a place, or None. With it only tasks are read that came later.
    """
    first, stop = _pages(by_requester_key, requester)
    start = first + (b"" if after is None else after + b"\x00")
    keys = [key for key, _ in state.scan(start, stop, limit)]
    return [key[-HASH_BYTES:] for key in keys], keys[-1][len(first) :] if keys else after


def tasks_by_worker(state: Reader, worker: bytes, cursor: bytes | None, limit: int) -> Page[TaskRecord]:
    """Return tasks that ``worker`` was ever given, the oldest first."""
    return _page(state, *_pages(by_task_of_worker_key, worker), cursor, limit)


def tasks_by_phase(state: Reader, phase: Phase, cursor: bytes | None, limit: int) -> Page[TaskRecord]:
    """Return tasks in ``phase``, the oldest first."""
    return _page(state, *_pages(by_phase_key, int(phase)), cursor, limit)


def find_node(state: Reader, address: bytes) -> NodeRecord | None:
    """Return a registered node, or None."""
    return load_node(state, address)


def list_nodes(state: Reader, cursor: bytes | None, limit: int) -> Page[NodeRecord]:
    """Return registered nodes in the order of their addresses."""
    limit = max(1, min(limit, PAGE_MAX))
    nodes = scan_nodes(state, cursor or b"", limit + 1)
    return Page(tuple(nodes[:limit]), nodes[limit - 1].address if len(nodes) > limit else None)


def bill(state: Reader, escrow_id: bytes) -> Bill:
    """Return the whole bill of a task (or of a node's bond). Raises EscrowUnknown."""
    totals = escrow_totals(state, escrow_id)
    lines: list[Line] = []
    while more := bill_lines(state, escrow_id, start=len(lines), limit=LINES_PAGE_MAX):
        lines += more
    return Bill(tuple(lines), totals)


def quote(spec: JobSpec, parameters: TaskParameters) -> Budget:
    """Return what creating ``spec`` would lock: of a quorum for all its machines."""
    budget = budget_of(spec, parameters)
    return Budget(*[SEATS * amount for amount in budget]) if spec.is_quorum else budget


def quote_checks(spec: JobSpec, base_fee: int, parameters: TaskParameters) -> CheckQuote:
    """Return what checks of a window of ``spec`` cost if it is matched at ``base_fee`` and its highest price."""
    if spec.is_metered:  # nobody checks it, and no bond stands for it
        return CheckQuote(0, 0, 0, 0, gas_price_of(base_fee))
    rerun = rerun_price(spec, 0, parameters.verifiers, spec.max_price_per_tera_unit, parameters)
    bond, bond_new = (
        max(
            bond_at(spec, spec.max_price_per_tera_unit, 0, parameters),
            bond_floor(base_fee, is_new=is_new, parameters=parameters),
        )
        for is_new in (False, True)
    )
    fee = check_fee(base_fee, rerun, parameters)
    return CheckQuote(fee, check_budget(spec, 0, parameters), bond, bond_new, gas_price_of(base_fee))


def report_on(state: Reader, spec_hash: bytes) -> JobReport | None:
    """Return what workers said of a job when they gave it up, or None."""
    return load_report(state, spec_hash)


def work_duties(state: Reader, worker: bytes, parameters: TaskParameters) -> list[WorkDuty]:
    """Return what is asked of ``worker`` now, openings first, for they have the shortest deadlines."""
    prefix = by_duty_key(worker)
    duties: list[WorkDuty] = []
    for key, _ in state.scan(prefix, prefix + b"\xff" * (HASH_BYTES + 1), DUTIES_MAX):
        task = load_task(state, key[-HASH_BYTES:])
        for number in task.open_windows:
            window = load_window(state, task.id, number)
            if window.worker != worker:
                continue
            is_asked = window.phase == WindowPhase.DOUBTED and window.unserved == 1
            if window.phase == WindowPhase.OPENING or is_asked:
                duties.append(
                    WorkDuty(
                        task.id, Action.SERVE if is_asked else Action.OPEN, number, window.deadline_ms, 0,
                        window.proof.state_root_in, window.proof.leaves_blob,
                        window.missed if is_asked else window.sampled, False,
                    )
                )  # fmt: skip
        if task.worker == worker:
            duties += _work(state, task, parameters)
    answers = (Action.OPEN, Action.SERVE)
    return sorted(duties, key=lambda duty: (duty.action not in answers, duty.deadline_ms, duty.task, duty.window))


def _work(state: Reader, task: TaskRecord, parameters: TaskParameters) -> list[WorkDuty]:
    if task.is_metered:
        return _container_work(state, task)
    number = task.next_window
    held, spec = _held_bond(state, task), load_spec(state, task.id)
    charge = work_price(spec.window_units(min(number, spec.windows - 1)), task.price_per_tera_unit)
    blocked = task.phase is Phase.RUNNING and not (
        may_open(task, spec, charge, held, parameters) and has_standing(held, task, parameters)
    )
    bond = 0
    match task.phase:
        case Phase.ASSIGNED:
            action = Action.ACCEPT
            bond = max(0, bond_of(task, spec, parameters) - held)
        case Phase.PREPARING:
            action = Action.START
        case Phase.RUNNING:
            action = Action.COMPUTE
        case _:
            return []
    blob = load_window(state, task.id, number - 1).proof.output_blob if number else bytes(HASH_BYTES)
    return [WorkDuty(task.id, action, number, task.deadline_ms, bond, task.state_root, blob, (), blocked)]


_CONTAINER_ACTIONS: Final = {
    Phase.ASSIGNED: Action.ACCEPT, Phase.PREPARING: Action.START, Phase.RUNNING: Action.METER,
}  # fmt: skip


def _container_work(state: Reader, task: TaskRecord) -> list[WorkDuty]:
    action, nothing = _CONTAINER_ACTIONS.get(task.phase), bytes(HASH_BYTES)
    deadline_ms = task.deadline_ms
    if task.phase is Phase.OUTPUT:
        action, deadline_ms = _quorum_work(state, task)
    if action is None:
        return []
    return [WorkDuty(task.id, action, 0, deadline_ms, 0, nothing, nothing, (), False)]


def _quorum_work(state: Reader, task: TaskRecord) -> tuple[Action, int]:
    """Return what a quorum asks of a machine that has sealed, and until when."""
    quorum = load_quorum(state, quorum_of(state, task.id))
    seat = quorum.seats[seat_number(state, task.id)]
    if quorum.phase is QuorumPhase.REVEALING and seat.state is SeatState.SEALED:
        return Action.REVEAL, quorum.until_ms
    is_asked = quorum.phase is QuorumPhase.SHOWING and seat.state is SeatState.REVEALED and seat.seal
    if is_asked and seat.result == quorum.result:
        return Action.SHOW, quorum.until_ms
    return Action.WAIT, 0


def _held_bond(state: Reader, task: TaskRecord) -> int:
    vault = Vault.load(Overlay(state), task.id, lambda _event: None, 0)
    return vault.held(Pool.BOND, task.worker)


def verification_duties(state: Reader, verifier: bytes) -> list[CheckDuty]:
    """Return the windows that ``verifier`` must seal or reveal a verdict on now, the most urgent first."""
    prefix = by_verifier_key(verifier)
    duties: list[CheckDuty] = []
    for key, _ in state.scan(prefix, prefix + b"\xff" * (HASH_BYTES + 5), DUTIES_MAX):
        task_id, number = key[-HASH_BYTES - 4 : -4], int.from_bytes(key[-4:], "big")
        window = load_window(state, task_id, number)
        is_delivery = window.phase in DELIVERY_PHASES
        is_jury = is_delivery or window.phase in (WindowPhase.JURY_SEALING, WindowPhase.JURY_REVEALING)
        reveals = window.phase in (
            WindowPhase.REVEALING, WindowPhase.JURY_REVEALING, WindowPhase.DELIVERY_REVEALING,
        )  # fmt: skip
        segments = segments_to_check(window)
        seat = next(seat for seat in (window.jurors if is_jury else window.verifiers) if seat.address == verifier)
        if not reveals and (seat.seal or window.vacant):
            continue  # sealed: nothing to do until the others have; vacant: the time to seal begins with the draw
        duties.append(
            CheckDuty(
                task_id, number, Action.REVEAL if reveals else Action.SEAL,
                segments, window.deadline_ms, seat.seal, is_jury,
                window.height, is_delivery, delivery_salt(window) if is_delivery else b"",
            )
        )  # fmt: skip
    return sorted(duties, key=lambda duty: (duty.deadline_ms, duty.task, duty.window))


def dispute_duties(state: Reader, player: bytes, parameters: TaskParameters) -> list[DisputeDuty]:
    """Return the disputes in which ``player`` has to move or may resume now, the most urgent first."""
    prefix = by_player_key(player)
    duties: list[DisputeDuty] = []
    for key, _ in state.scan(prefix, prefix + b"\xff" * (HASH_BYTES + 9), DUTIES_MAX):
        task, numbers = key[len(prefix) : -8], key[-8:]
        window, game = int.from_bytes(numbers[:4], "big"), int.from_bytes(numbers[4:], "big")
        dispute, record = load_dispute(state, task, window, game), load_window(state, task, window)
        side = dispute.clock.side
        if dispute.phase in (DisputePhase.OVER, DisputePhase.SILENT) or player != player_of(record, dispute, side):
            continue
        price = None
        if dispute.phase is DisputePhase.SUSPENDED:
            price = share_up(record.charge, parameters.dispute_resume_bps)
        duties.append(
            DisputeDuty(
                task,
                window,
                game,
                side,
                dispute.segment,
                dispute.deadline_ms,
                price,
                dispute.moves,
                dispute.moved_height,
            )
        )
    return sorted(duties, key=lambda duty: duty.deadline_ms)


def disputes(
    state: Reader, task_id: bytes, window: int, *, start: int = 0, limit: int = PAGE_MAX
) -> list[DisputeRecord]:
    """Return the disputes about a window that there ever were, from number ``start``."""
    stop = min(load_docket(state, task_id, window).games, start + limit)
    return [load_dispute(state, task_id, window, number) for number in range(start, stop)]


def dispute_moves(
    state: Reader, task_id: bytes, window: int, game: int, *, start: int = 0, limit: int = MOVES_PAGE_MAX
) -> list[bytes]:
    """Return encoded moves of a dispute from number ``start``; none once it is over."""
    if load_dispute(state, task_id, window, game).phase is DisputePhase.OVER:
        return []
    return load_moves(state, task_id, window, game, start=start, limit=min(limit, MOVES_PAGE_MAX))
