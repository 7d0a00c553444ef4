"""Results in custody: who keeps the output of a window, demands, pay, and what silence costs (market.md 11.5).

Custodians are drawn by the beacon from machines with role storage. Their receipts are transactions of their own. A
window is final only when its output is kept. Nothing here judges what lies in custody: see ``custody_lies``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from billing.errors import PaymentMissing
from billing.escrow import Pool, Purpose
from billing.prices import Role, share_up, work_price
from state.primitives.receipts import EventType
from state.view.accounts import balance_of
from tasks.custody.chunks import BlobCommitment, ChunkProof, check_chunk
from tasks.custody.looks import LOOKS_AT_ONCE, look
from tasks.errors import CustodyOff, CustodyRefused, NotYours, ProofMismatch, WrongPhase
from tasks.ledger import reputation
from tasks.ledger.custody_records import (
    DRAWN_MAX,
    INPUT_WINDOW,
    RECEIVERS_MAX,
    TRIED_MAX,
    CustodyPhase,
    CustodyRecord,
    Demand,
    DemandKind,
    Holder,
    Terms,
    count_hand_over,
    custody_count,
    find_custody,
    find_terms,
    forget_custody,
    is_unreliable,
    load_custody,
    save_custody,
    save_terms,
)
from tasks.ledger.deadlines import Draw, custody_slot, schedule_draw
from tasks.ledger.group_records import is_spare
from tasks.ledger.lifecycle import ENDED, Phase, Reason, WindowPhase
from tasks.ledger.matching import draw_seed, draw_verifiers, eligible_verifiers
from tasks.ledger.open_task import LEDGER_ADDRESS, Case
from tasks.ledger.parameters import DAY_MS, TaskParameters
from tasks.ledger.progress import arm_ended, enter_book, exclude, give_up_idle, hold_back, lose_worker
from tasks.ledger.records import WindowRecord
from tasks.ledger.registry import NodeRecord, NodeRole
from tasks.ledger.settlement import charge_blamed, pay_earned, refund_unreserved
from tasks.proofs import WindowProof
from tasks.spec import JobSpec

__all__ = [
    "ANSWER_GAS",
    "CUSTODY_EVENTS",
    "answer",
    "ask",
    "begin_custody",
    "begin_input",
    "bond_for",
    "check_custody",
    "custody_budget",
    "demand",
    "demand_price",
    "demand_stake",
    "drop_custody",
    "end",
    "hand_over_ms",
    "is_held_up",
    "on_custody_draw",
    "output_reserve",
    "part_with",
    "reserve_for",
    "settle",
    "sign_delivery",
    "step_custody",
    "take",
    "terms_of",
    "void_costs",
    "waits_unkept",
]

CUSTODIAN_DRAWN: Final = EventType(
    LEDGER_ADDRESS, "CustodianDrawn(bytes32 indexed task, uint256 number, address indexed custodian, uint256 bond)"
)
CUSTODY_TAKEN: Final = EventType(
    LEDGER_ADDRESS, "CustodyTaken(bytes32 indexed task, uint256 number, address indexed custodian)"
)
CUSTODY_UNKEPT: Final = EventType(LEDGER_ADDRESS, "CustodyUnkept(bytes32 indexed task, uint256 number)")
CUSTODY_DEMANDED: Final = EventType(
    LEDGER_ADDRESS,
    "CustodyDemanded(bytes32 indexed task, uint256 number, address indexed custodian, uint256 kind, "
    "uint256 chunk, address receiver)",
)
CUSTODY_SERVED: Final = EventType(
    LEDGER_ADDRESS, "CustodyServed(bytes32 indexed task, uint256 number, address indexed custodian, uint256 kind)"
)
CUSTODY_LOST: Final = EventType(
    LEDGER_ADDRESS, "CustodyLost(bytes32 indexed task, uint256 number, address indexed custodian)"
)
CUSTODY_ENDED: Final = EventType(LEDGER_ADDRESS, "CustodyEnded(bytes32 indexed task, uint256 number)")
CUSTODY_EVENTS: Final = (
    CUSTODIAN_DRAWN, CUSTODY_TAKEN, CUSTODY_UNKEPT, CUSTODY_DEMANDED, CUSTODY_SERVED, CUSTODY_LOST, CUSTODY_ENDED,
)  # fmt: skip

ANSWER_GAS: Final = 1_200_000
"""Weight of the answer to a demand: its bytes, a chunk with its paths."""
GAS_MARGIN: Final = 4
"""A demand pays for the answer's gas at so many times the base fee of its block."""
GIB: Final = 1 << 30
HOUR_MS: Final = 3_600_000
UNKEPT_MS_MAX: Final = 2 * DAY_MS
"""The longest that an output without a custodian waits for what is open after its window: suspended games too."""
_NOT_KEPT: Final = (CustodyPhase.DRAWING, CustodyPhase.SIGNING, CustodyPhase.UNKEPT)
_LEAVABLE: Final = frozenset({Phase.ASSIGNED, Phase.PREPARING, Phase.RUNNING})


# Terms and budget


def _keeping_price(size: int, time_ms: int, price_per_gib_hour: int) -> int:
    return size * time_ms * price_per_gib_hour // (GIB * HOUR_MS)


def reserve_for(size: int, parameters: TaskParameters) -> int:
    """Return what keeping a blob costs at most: all copies, until the end of their time."""
    whole = _keeping_price(size, parameters.custody_ms, parameters.custody_price_per_gib_hour) + 1
    return parameters.custody_copies * max(parameters.custody_fee_min, whole)


def output_reserve(size: int, parameters: TaskParameters) -> int:
    """Return what the custody of an output costs at most: keeping it, and the answer as that ends (R157)."""
    return reserve_for(size, parameters) + parameters.custody_fee_min


def custody_budget(spec: JobSpec, parameters: TaskParameters) -> int:
    """Return what the requester of a job locks for the custody of all its windows: a line of the quote."""
    return spec.windows * _reserve_of(spec, parameters) if parameters.custody_copies else 0


def _reserve_of(spec: JobSpec, parameters: TaskParameters) -> int:
    return output_reserve(spec.state_limit_bytes, parameters)


def ask(case: Case, sender: bytes, key_root: bytes, inputs: int, amount: int) -> None:
    """Take the requester's terms of custody, before the task has a worker.

    Raises CustodyOff, NotYours, WrongPhase, PaymentMissing, InsufficientBalance.
    """
    record, parameters = case.record, case.parameters
    if not parameters.custody_copies:
        raise CustodyOff("this chain has no custody")
    if sender != record.requester:
        raise NotYours("the sender is not the requester")
    if record.phase != Phase.MATCHING or record.ending or find_terms(case.state, record.id) is not None:
        raise WrongPhase(record.phase.name.lower())
    each = 0 if is_spare(case.state, record) else _reserve_of(case.spec, parameters)  # a spare proves no window
    due = each * case.spec.windows
    if amount != due:
        raise PaymentMissing(due=due, got=amount)
    case.vault.lock(Pool.CUSTODY, sender, due, Purpose.CUSTODY, owner=sender)
    terms = Terms(
        key_root, inputs, case.spec.windows, parameters.custody_price_per_gib_hour, each, 0, 0, 0,
    )  # fmt: skip
    save_terms(case.state, record.id, terms)


def terms_of(case: Case) -> Terms:
    """Return the terms of custody of a task. Raises CustodyOff."""
    terms = find_terms(case.state, case.record.id)
    if terms is None:
        raise CustodyOff("the task has no custody")
    return terms


def reserve_more(case: Case, amount: int, *, live: int = 0, demands: int = 0, looks: int = 0) -> None:
    """Note that ``amount`` more is reserved (less, if negative) of what the requester has locked."""
    terms = terms_of(case)
    save_terms(
        case.state, case.record.id,
        terms._replace(
            reserved=terms.reserved + amount, live=terms.live + live, demands=terms.demands + demands,
            looks=terms.looks + looks,
        ),
    )  # fmt: skip


# The window's part


def check_custody(case: Case, proof: WindowProof) -> None:
    """Check that a proof commits to its output as custody asks for it. Raises ProofMismatch, CustodyRefused."""
    if find_terms(case.state, case.record.id) is None:
        if proof.custody:
            raise ProofMismatch("the task has no custody")
        return
    if find_custody(case.state, proof.task, proof.window) is not None:  # a deadline that is due settles it
        raise CustodyRefused("the custody of an earlier proof of this window is not settled yet")
    size = case.spec.state_bytes(proof.result_step)
    if not proof.custody or proof.custody[0] != size:
        raise ProofMismatch(f"the output is committed to as {size} bytes in custody")


def bond_for(charge: int, parameters: TaskParameters) -> int:
    """Return what a custodian locks for what has to do with work at the price ``charge``."""
    return max(share_up(charge, parameters.custody_bond_bps), parameters.custody_fee_min)


def _is_last(case: Case, window: WindowRecord) -> bool:
    """Tell whether the output of a window is the result of its task, as far as that is known now."""
    return window.proof.diverged is not None or window.number + 1 >= case.record.target


def _is_result(case: Case, record: CustodyRecord) -> bool:
    return not record.is_input and _is_last(case, case.window(record.window))


def _needed(case: Case, record: CustodyRecord) -> int:
    """Return how many custodians have to sign: of a result one more for each that has not (R91).

    Else a worker hands it to friends alone, of which one is drawn sooner or later.
    """
    copies = case.parameters.custody_copies
    return copies + record.refused if _is_result(case, record) else copies


def _most(case: Case, record: CustodyRecord) -> int:
    """Return how many machines are drawn for a blob at most."""
    is_short = record.is_input or (record.holders and not _is_result(case, record))
    return DRAWN_MAX if is_short else TRIED_MAX


def _has_no_custodian(case: Case, record: CustodyRecord) -> bool:
    """Tell whether of those that could sign too few have: none, or of a result fewer than not (R90, R91)."""
    if record.is_input or record.tried < DRAWN_MAX:
        return False
    signed = record.tried - record.refused
    return not signed or (signed < record.refused and _is_result(case, record))


def _bond_of(case: Case, window: WindowRecord) -> int:
    """Return what a custodian locks for a window's output; the last one is the result of all windows."""
    bond, proof = bond_for(window.charge, case.parameters), window.proof
    if not _is_last(case, window):
        return bond
    before = proof.window * case.spec.window_units(0)
    price = work_price(before, case.record.price_per_tera_unit) + window.charge
    return max(bond, share_up(price, case.parameters.custody_last_bps))


def begin_input(case: Case, blob: BlobCommitment, reserve: int, bond: int) -> None:
    """Begin the custody of a task's data set."""
    record = CustodyRecord(
        case.record.id, INPUT_WINDOW, case.record.requester, CustodyPhase.DRAWING, blob, reserve, bond,
        case.scope.block.height, 0, 0, 0, 0, (), (), (), None, b"",
    )  # fmt: skip
    save_custody(case.state, _awaiting(case, record), case.now)
    reserve_more(case, reserve, live=1)


def begin_custody(case: Case, window: WindowRecord) -> None:
    """Begin the custody of a window that was just proved; after a void one with what that has left."""
    if not window.proof.custody:
        return
    terms, payer = terms_of(case), case.vault.payer
    reserve = min(terms.each, case.vault.held(Pool.CUSTODY, payer) - terms.reserved)
    bond = _bond_of(case, window)
    record = CustodyRecord(
        window.task, window.number, window.worker, CustodyPhase.DRAWING, BlobCommitment(*window.proof.custody),
        reserve, bond, case.scope.block.height, 0, 0, 0, 0, (), (), (), None, b"",
    )  # fmt: skip
    save_custody(case.state, _awaiting(case, record), case.now)
    reserve_more(case, reserve, live=1)


def is_held_up(case: Case, window: WindowRecord) -> bool:
    """Tell whether a window waits for receipts before it can be final."""
    if not window.proof.custody:
        return False
    record = find_custody(case.state, window.task, window.number)
    return record is not None and record.phase in _NOT_KEPT


def drop_custody(case: Case, window: WindowRecord, *, blamed: bytes, is_silent: bool) -> None:
    """Have the custody of a void window settled by a later deadline: many windows may be void at once.

    Who is to blame pays for it as for the checks. So the reserve of the next proof is whole.
    """
    record = find_custody(case.state, window.task, window.number) if window.proof.custody else None
    if record is None:
        return
    charge_blamed(case, window, _earned(case, record), blamed=blamed, is_silent=is_silent)
    if not record.prover:
        save_custody(case.state, record._replace(phase=CustodyPhase.VOID), case.now)


def void_costs(case: Case, windows: Sequence[WindowRecord]) -> int:
    """Return what the custodians of windows have earned so far."""
    records = (find_custody(case.state, one.task, one.number) for one in windows if one.proof.custody)
    return sum(_earned(case, record) for record in records if record is not None)


def _earned(case: Case, record: CustodyRecord) -> int:
    return min(record.reserve, sum(_pay_of(case, record, holder) for holder in record.holders))


# Draws and receipts


def hand_over_ms(size: int, parameters: TaskParameters) -> int:
    """Return the time to fetch a blob at the least bandwidth, and to sign for it."""
    return 1000 * size // parameters.seal_bytes_per_s + parameters.custody_sign_ms


def _drawn_nodes(
    case: Case, record: CustodyRecord, seed: bytes, barred: Sequence[bytes], count: int, since: int
) -> list[NodeRecord]:
    """Return machines that may hold or receive an output. Of bonds counts what stood at the height ``since``."""
    scope, parameters, day = case.scope, case.parameters, case.now // DAY_MS
    pool = eligible_verifiers(
        scope.parent, case.record, record.author, barred, seed, case.now, parameters, since,
        role=NodeRole.STORAGE,
    )  # fmt: skip
    pool = [node for node in pool if not is_unreliable(scope.parent, node.address, day, parameters)]
    return draw_verifiers(seed, pool, count, since, parameters)


def _parties(nodes: Sequence[NodeRecord]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(party for node in nodes for party in node.parties))


def _schedule(case: Case, record: CustodyRecord) -> None:
    """Have the beacon ``p.draw_blocks`` after this block draw for an output, or for a demand of it."""
    height = case.scope.block.height + case.parameters.draw_blocks
    schedule_draw(case.state, Draw(height, record.task, custody_slot(record.window)))


def _awaiting(case: Case, record: CustodyRecord) -> CustodyRecord:
    """Have custodians drawn: the register counts as it stands now."""
    _schedule(case, record)
    return record._replace(phase=CustodyPhase.DRAWING, height=case.scope.block.height, step_ms=0)


def on_custody_draw(case: Case, number: int) -> None:
    """Draw for an output whose height has come, if it still waits for that."""
    record, blocks, height = find_custody(case.state, case.record.id, number), case.parameters.draw_blocks, 0
    if record is None or record.prover or record.phase is CustodyPhase.VOID:
        return
    asked = record.demand
    if record.phase is CustodyPhase.DRAWING:
        height, draw = record.height, _draw
    elif asked is not None and not asked.is_drawn:
        height, draw = asked.height, _draw_demand
    else:
        return
    if case.scope.block.height < height + blocks:
        return
    after = draw(case, record)
    if after is None:
        settle(case, record)
    else:
        save_custody(case.state, after, case.now)


def _draw(case: Case, record: CustodyRecord) -> CustodyRecord | None:
    """Draw for what is missing. With nobody left to draw a worker keeps its output; None for an input.

    But if of ``DRAWN_MAX`` that could have signed for an output too few have, its window will not count (R90).
    """
    scope, parameters = case.scope, case.parameters
    room = _most(case, record) - record.drawn
    wanted = min(_needed(case, record) - len(record.holders), room)
    if _is_result(case, record) and record.refused > len(record.holders) + room:
        wanted = 0  # it has no custodian in any case
    seed = draw_seed(b"custodian-draw", scope.block.beacon, record.task, record.window, record.drawn)
    nodes = _drawn_nodes(case, record, seed, record.used, room, record.height) if wanted > 0 else []
    if nodes and is_unreliable(scope.parent, record.author, case.now // DAY_MS, parameters):
        wanted, parted = len(nodes), True  # as if so many had not signed
    else:
        parted = False
    # Without the bond a machine leaves its place without blame; the worker answers then, as for any that did not
    # sign.
    pending: list[bytes] = []
    seen = 0
    for node in nodes:
        if len(pending) == wanted:
            break
        seen += 1
        if balance_of(case.state, node.address) >= record.bond:
            pending.append(node.address)
    record = record._replace(
        drawn=record.drawn + seen, tried=record.tried + len(pending), used=(*record.used, *_parties(nodes[:seen]))
    )  # fmt: skip
    if not pending or parted:
        if record.is_input:
            return None
        if _has_no_custodian(case, record):
            return _unkept(case, record)
        return _kept(case, _with_author(case, record))
    for address in pending:
        scope.emit(CUSTODIAN_DRAWN(record.task, record.window, address, record.bond))
    return record._replace(
        phase=CustodyPhase.SIGNING, step_ms=case.now + hand_over_ms(record.blob.size, parameters),
        pending=tuple(pending),
    )  # fmt: skip


def _unkept(case: Case, record: CustodyRecord) -> CustodyRecord:
    """Note that too few of the machines that were drawn have signed for an output, and look at its window soon."""
    case.scope.emit(CUSTODY_UNKEPT(record.task, record.window))
    return record._replace(
        phase=CustodyPhase.UNKEPT, step_ms=case.now + 1, until_ms=case.now + UNKEPT_MS_MAX
    )  # fmt: skip


def waits_unkept(case: Case, record: CustodyRecord) -> bool:
    """Tell whether the window of an output without a custodian stays for now (R90).

    It is void after all checks and games about what is open from it on. Else a liar would hand over nothing, and
    its forged window would be void with that before somebody proves the lie.
    """
    if case.now >= record.until_ms:
        return False
    if record.window != case.record.final_windows:
        return True
    return not all(window.ripe for window in case.open_windows())


def _with_author(case: Case, record: CustodyRecord) -> CustodyRecord:
    """Have the worker keep its own output: somebody who was drawn has not signed for it."""
    return _taken(case, record, Holder(record.author, 0, case.now, 0, 0))


def _taken(case: Case, record: CustodyRecord, holder: Holder) -> CustodyRecord:
    case.scope.emit(CUSTODY_TAKEN(record.task, record.window, holder.address))
    pending = tuple(address for address in record.pending if address != holder.address)
    return record._replace(holders=(*record.holders, holder), pending=pending)


def _kept(case: Case, record: CustodyRecord) -> CustodyRecord:
    """Note that an output is kept; its window is final now if it waited for that alone.

    With its input kept a task enters the book.
    """
    if record.is_input:
        enter_book(case)
    else:
        window = case.window(record.window)
        if window.ripe and window.phase == WindowPhase.ACCEPTED and window.number == case.record.final_windows:
            case.put_window(window._replace(ripe=0, deadline_ms=case.now))
    return record._replace(phase=CustodyPhase.KEPT, step_ms=0, until_ms=case.now + case.parameters.custody_ms)


def _go_on(case: Case, record: CustodyRecord) -> CustodyRecord:
    """Draw for what is missing, or note that the output is kept.

    If one that was drawn did not sign, the worker answers for its output too: else it would choose its custodians.
    """
    if len(record.holders) >= _needed(case, record):
        is_chosen = record.drawn > len(record.holders) and not record.is_input
        return _kept(case, _with_author(case, record) if is_chosen else record)
    return _awaiting(case, record)


def _close_signing(case: Case, record: CustodyRecord) -> CustodyRecord:
    """Let go of custodians that did not sign in time: nobody can tell whose fault that is."""
    for address in record.pending:
        _count_receipt(case, record, address, is_done=False)
    return _go_on(case, record._replace(pending=()))


def _count_receipt(case: Case, record: CustodyRecord, taker: bytes, *, is_done: bool) -> None:
    """Count a hand-over by its author. Accounts of requesters are free: of an input none counts for a machine."""
    if record.is_input:
        count_hand_over(case.state, record.author, case.now // DAY_MS, is_done=is_done)
    else:
        _count(case, record.author, taker, is_done=is_done)


def _count(case: Case, giver: bytes, taker: bytes, *, is_done: bool) -> None:
    for side in (taker, giver):
        count_hand_over(case.state, side, case.now // DAY_MS, is_done=is_done)


def take(case: Case, number: int, sender: bytes, amount: int) -> None:
    """Take a custodian's receipt for the output of a window, with its bond.

    Raises CustodyUnknown, NotYours, PaymentMissing, InsufficientBalance.
    """
    record = load_custody(case.state, case.record.id, number)
    if record.phase is not CustodyPhase.SIGNING or sender not in record.pending:
        raise NotYours("the sender is not drawn to keep this output, or its time is over")
    if amount != record.bond:
        raise PaymentMissing(due=record.bond, got=amount)
    case.vault.lock(Pool.CUSTODY, sender, amount, Purpose.CUSTODY_BOND, owner=sender)
    _count_receipt(case, record, sender, is_done=True)
    record = _taken(case, record, Holder(sender, amount, case.now, 0, 0))
    save_custody(case.state, record if record.pending else _go_on(case, record), case.now)


# Demands


def demand_price(record: CustodyRecord, kind: DemandKind, base_fee: int, parameters: TaskParameters) -> int:
    """Return what a demand costs: the gas of the answer, or the bytes that a receiver takes over and serves."""
    if kind is DemandKind.CHUNK:
        return max(parameters.custody_fee_min, GAS_MARGIN * ANSWER_GAS * base_fee)
    by_bytes = record.blob.size * parameters.custody_delivery_price_per_gib // GIB
    return max(parameters.custody_fee_min, by_bytes)


def demand_stake(bond: int, kind: DemandKind, parameters: TaskParameters) -> int:
    """Return what the requester of an output loses with a delivery for which no receiver has signed.

    ``bond`` is a custodian's. Nobody can tell who did not deliver or did not sign, so both sides lose.
    """
    return share_up(bond, parameters.custody_stake_bps) if kind is DemandKind.DELIVERY else 0


def demand(case: Case, number: int, sender: bytes, holder: bytes, amount: int) -> None:
    """Ask a custodian for a chunk on chain; after it has answered once, for a delivery of the whole.

    Of ``amount`` what is due is locked. Raises NotYours, CustodyUnknown, CustodyRefused, PaymentMissing,
    InsufficientBalance.
    """
    record, parameters = load_custody(case.state, case.record.id, number), case.parameters
    if sender != case.record.requester:
        raise NotYours("the sender is not the requester")
    keeper = record.holder(holder)
    if record.phase is not CustodyPhase.KEPT or record.demand or record.prover or keeper is None:
        raise CustodyRefused("no such custodian, or a demand is not over yet")
    if terms_of(case).demands >= parameters.custody_demands_max:
        raise CustodyRefused(f"a task has {parameters.custody_demands_max} demands")
    kind = DemandKind.DELIVERY if keeper.asked else DemandKind.CHUNK
    price = demand_price(record, kind, case.scope.block.base_fee, parameters)
    stake = demand_stake(record.bond, kind, parameters)
    due = price + stake
    if amount < due:
        raise PaymentMissing(due=due, got=amount)
    case.vault.lock(Pool.CUSTODY, sender, due, Purpose.CUSTODY_DEMAND, owner=sender)
    reserve_more(case, due, demands=1)
    asked = Demand(kind, holder, price, stake, case.scope.block.height, -1, b"", 0, 0, ())
    _schedule(case, record)
    save_custody(case.state, record._replace(demand=asked), case.now)


def answer(case: Case, number: int, sender: bytes, proof: ChunkProof) -> None:
    """Take the chunk that was demanded. Raises CustodyUnknown, NotYours, CustodyRefused, ChunkInvalid."""
    record = load_custody(case.state, case.record.id, number)
    asked = record.demand
    if asked is None or asked.kind is not DemandKind.CHUNK or sender != asked.holder:
        raise NotYours("no chunk is demanded of the sender")
    if asked.chunk != proof.number:
        raise CustodyRefused(f"chunk {asked.chunk} is demanded")
    check_chunk(record.blob, proof)
    _serve(case, record, asked, sender)


def sign_delivery(case: Case, number: int, sender: bytes) -> None:
    """Take a receiver's receipt for a whole output. Raises CustodyUnknown, NotYours."""
    record = load_custody(case.state, case.record.id, number)
    asked = record.demand
    if asked is None or asked.receiver != sender or not asked.receiver:
        raise NotYours("the sender is not drawn to receive this output")
    _count(case, asked.holder, sender, is_done=True)
    _serve(case, record, asked, sender)


def _serve(case: Case, record: CustodyRecord, asked: Demand, earner: bytes) -> None:
    payer = case.vault.payer
    pay_earned(
        case, Pool.CUSTODY, earner, asked.amount, Purpose.CUSTODY_DEMAND, Role.STORAGE, owner=payer,
        subject=record.window,
    )  # fmt: skip
    _return_of(case, record, asked.stake)
    reserve_more(case, -asked.amount - asked.stake)
    keeper = record.holder(asked.holder)
    assert keeper is not None
    record = record.with_holder(keeper._replace(asked=keeper.asked + 1))._replace(demand=None)
    if record.phase is CustodyPhase.CLOSING:  # the end of the block settles it
        record = record._replace(until_ms=case.now)
    save_custody(case.state, record, case.now)
    case.scope.emit(CUSTODY_SERVED(record.task, record.window, asked.holder, int(asked.kind)))


def _return_of(case: Case, record: CustodyRecord, amount: int) -> None:
    payer = case.vault.payer
    case.vault.refund(Pool.CUSTODY, payer, amount, Purpose.UNSPENT, owner=payer, subject=record.window)


def _end_demand(case: Case, record: CustodyRecord, *, is_failed: bool = False) -> CustodyRecord:
    """Give the requester back what it locked for a demand that brought nothing, but for a lost stake."""
    asked = record.demand
    if asked is None:
        return record
    vault, payer = case.vault, case.vault.payer
    _return_of(case, record, asked.amount + (0 if is_failed else asked.stake))
    if is_failed:
        vault.burn(Pool.CUSTODY, asked.stake, Purpose.CUSTODY_LOST, owner=payer, subject=record.window)
    reserve_more(case, -asked.amount - asked.stake)
    return record._replace(demand=None)


def _draw_demand(case: Case, record: CustodyRecord) -> CustodyRecord:
    """Draw the chunk that a custodian has to post, or the machine that it has to deliver to."""
    scope, parameters, asked = case.scope, case.parameters, record.demand
    assert asked is not None
    seed = draw_seed(b"custody-demand", scope.block.beacon, record.task, record.window, asked.tries)
    if asked.kind is DemandKind.CHUNK:
        asked = asked._replace(
            chunk=int.from_bytes(seed, "big") % record.blob.chunks,
            deadline_ms=case.now + parameters.custody_answer_ms,
        )
        return _asked(case, record, asked)
    barred = (*record.used, *asked.used, *(holder.address for holder in record.holders))
    nodes = _drawn_nodes(case, record, seed, barred, 1, asked.height)
    if not nodes:  # there is nobody to deliver to
        return _end_demand(case, record)
    asked = asked._replace(
        receiver=nodes[0].address, used=(*asked.used, *_parties(nodes)),
        deadline_ms=case.now + hand_over_ms(record.blob.size, parameters),
    )  # fmt: skip
    return _asked(case, record, asked)


def _on_demand_due(case: Case, record: CustodyRecord, asked: Demand) -> CustodyRecord:
    if asked.kind is DemandKind.CHUNK:
        return _lose(case, _end_demand(case, record), asked.holder)
    return _missed(case, record, asked)


def _asked(case: Case, record: CustodyRecord, asked: Demand) -> CustodyRecord:
    chunk = max(0, asked.chunk)
    receiver = asked.receiver or bytes(len(asked.holder))
    case.scope.emit(
        CUSTODY_DEMANDED(record.task, record.window, asked.holder, int(asked.kind), chunk, receiver)
    )  # fmt: skip
    return record._replace(demand=asked)


def _missed(case: Case, record: CustodyRecord, asked: Demand) -> CustodyRecord:
    """Draw another receiver; the custodian's pay is lost, and with the last receiver its bond."""
    _count(case, asked.holder, asked.receiver, is_done=False)
    keeper = record.holder(asked.holder)
    assert keeper is not None
    record = record.with_holder(keeper._replace(failed=1))
    asked = asked._replace(
        tries=asked.tries + 1, receiver=b"", height=case.scope.block.height, deadline_ms=0
    )  # fmt: skip
    record = record._replace(demand=asked)
    if asked.tries < RECEIVERS_MAX:
        _schedule(case, record)
        return record
    return _lose(case, _end_demand(case, record, is_failed=True), asked.holder)


def _lose(case: Case, record: CustodyRecord, holder: bytes) -> CustodyRecord:
    """Burn the bond of a custodian that does not serve: nobody gains, so nobody has a reason to cause it."""
    keeper = record.holder(holder)
    assert keeper is not None
    vault, emit = case.vault, case.scope.emit
    if holder == record.author and not keeper.bond:
        for pool in (Pool.BOND, Pool.HOLD) if record.is_kept_alone else (Pool.BOND,):
            held = vault.held(pool, holder)
            vault.burn(pool, held, Purpose.CUSTODY_LOST, owner=holder, subject=record.window)
    else:
        vault.burn(Pool.CUSTODY, keeper.bond, Purpose.CUSTODY_LOST, owner=holder, subject=record.window)
    reputation.mark_failure(case.state, holder, case.now, emit, case.parameters)
    emit(CUSTODY_LOST(record.task, record.window, holder))
    if holder == record.author:
        part_with(case, holder, Reason.RESULT_LOST)
    return record._replace(holders=tuple(other for other in record.holders if other.address != holder))


def part_with(case: Case, worker: bytes, reason: Reason) -> None:
    """Have a worker that lost its bond run the task no more; what it has proved is settled as that stands."""
    if case.record.phase in ENDED:
        return
    exclude(case, worker)
    if case.record.worker == worker and case.record.phase in _LEAVABLE:
        lose_worker(case, reason)


# The end


def _pay_of(case: Case, record: CustodyRecord, holder: Holder) -> int:
    """Return what a custodian has earned; the worker earns nothing for what it keeps itself."""
    if holder.failed or not holder.bond:
        return 0
    by_time = _keeping_price(record.blob.size, case.now - holder.since_ms, terms_of(case).price_per_gib_hour)
    fee, reserve = case.parameters.custody_fee_min, record.reserve
    if not record.is_input and record.phase is not CustodyPhase.CLOSING:
        reserve = max(0, reserve - fee)  # for the answer as custody ends
    return min(reserve // _paid_of(case, record), max(fee, by_time))


def _paid_of(case: Case, record: CustodyRecord) -> int:
    """Return among how many the reserve is shared: one that lost its part leaves it to the requester."""
    return max(case.parameters.custody_copies, record.tried - record.refused)


def settle(case: Case, record: CustodyRecord) -> None:
    """Pay custodians, return their bonds, and give back what is left; the custody of the window is over.

    What is left of a void window stays for its next proof.
    """
    vault, state = case.vault, case.state
    payer = vault.payer
    record = _end_demand(case, record)
    left = record.reserve
    for holder in record.holders:
        amount = min(left, _pay_of(case, record, holder))
        left -= amount
        pay_earned(
            case, Pool.CUSTODY, holder.address, amount, Purpose.CUSTODY_PAY, Role.STORAGE, owner=payer,
            subject=record.window,
        )  # fmt: skip
        vault.refund(
            Pool.CUSTODY, holder.address, holder.bond, Purpose.BOND_RETURN, owner=holder.address,
            subject=record.window,
        )  # fmt: skip
    if record.is_input or case.window(record.window).phase == WindowPhase.FINAL:
        vault.refund(Pool.CUSTODY, payer, left, Purpose.UNSPENT, owner=payer, subject=record.window)
    reserve_more(case, -record.reserve, live=-1, looks=-(record.phase is CustodyPhase.CLOSING))
    forget_custody(state, record)
    case.scope.emit(CUSTODY_ENDED(record.task, record.window))
    if record.is_input:
        hold_back(case)
    elif not custody_count(state, record.task, record.author):
        give_up_idle(case, [record.author])
    if case.record.phase in ENDED:
        refund_unreserved(case)
        if not case.record.deadline_ms:
            arm_ended(case)


def end(case: Case, number: int, sender: bytes) -> None:
    """End the custody of a final window at its requester's request, who has the output or needs it no more.

    Raises NotYours, CustodyUnknown, WrongPhase.
    """
    record = load_custody(case.state, case.record.id, number)
    if sender != case.record.requester:
        raise NotYours("the sender is not the requester")
    window = case.window(number)
    if record.phase is not CustodyPhase.KEPT or record.prover or window.phase != WindowPhase.FINAL:
        raise WrongPhase(window.phase.name.lower())
    _close(case, record)


def _close(case: Case, record: CustodyRecord) -> None:
    """Settle a custody that is over; or ask a drawn custodian for a chunk before, whose answer its reserve pays.

    The beacon is that of this block, which its leader alone can know. The answer takes nothing of what was earned.
    """
    record = _end_demand(case, record)
    keepers = [one for one in record.holders if one.bond and not one.failed and not record.is_input]
    pays = [_pay_of(case, record, one) for one in keepers]
    seed = draw_seed(b"custody-end", case.scope.block.beacon, record.task, record.window)
    found = look(seed, [(pay, one.bond) for pay, one in zip(pays, keepers, strict=True)])
    if found is None or terms_of(case).looks >= LOOKS_AT_ONCE:
        settle(case, record)
        return
    price = demand_price(record, DemandKind.CHUNK, case.scope.block.base_fee, case.parameters)
    amount = min(price, record.reserve - _paid_of(case, record) * max(pays))
    asked = Demand(
        DemandKind.CHUNK, keepers[found[0]].address, amount, 0, case.scope.block.height,
        found[1] % record.blob.chunks, b"", 0, case.now + case.parameters.custody_answer_ms, (),
    )  # fmt: skip
    reserve_more(case, 0, looks=1)
    record = record._replace(phase=CustodyPhase.CLOSING, until_ms=0, reserve=record.reserve - amount)
    save_custody(case.state, _asked(case, record, asked), case.now)


def step_custody(case: Case, record: CustodyRecord) -> None:
    """Do what is due of the custody of a window, other than settling a proven lie."""
    if record.phase is CustodyPhase.VOID:
        settle(case, record)
        return
    asked = record.demand
    if asked is not None and 0 < asked.deadline_ms <= case.now:
        record = _on_demand_due(case, record, asked)
    if record.phase is CustodyPhase.CLOSING and record.demand is None:
        settle(case, record)
        return
    if 0 < record.step_ms <= case.now:
        record = _close_signing(case, record)
    if 0 < record.until_ms <= case.now:
        is_over = record.is_input or case.window(record.window).phase == WindowPhase.FINAL
        if is_over and record.demand is None:
            _close(case, record)
            return
        record = record._replace(until_ms=case.now + hand_over_ms(record.blob.size, case.parameters))
    if record.phase is CustodyPhase.KEPT and not record.holders:
        settle(case, record)
        return
    save_custody(case.state, record, case.now)
