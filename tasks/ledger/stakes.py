"""What moves when a dispute ends: the liar's bond, bonds of challenges, fines (market.md 7.8).

S is the bond of a worker for one task. Only a proven lie takes all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from billing.errors import PaymentMissing
from billing.escrow import Pool, Purpose
from billing.prices import Role, share, share_up, split
from tasks.dispute.shares import CHALLENGE_BPS, OUTSIDER_BPS, WITNESS_BPS, challenge_bond, share_out
from tasks.ledger import registry, reputation
from tasks.ledger.audits import check_floor
from tasks.ledger.bonds import pay_from_bond
from tasks.ledger.disputes import (
    MOVE_GAS,
    SHOW_GAS,
    Challenger,
    DisputeEnding,
    DisputeRecord,
    SealedChallenge,
    forget_seal,
    load_seal,
)
from tasks.ledger.open_task import Case
from tasks.ledger.records import WindowRecord
from tasks.ledger.seats import is_checked
from tasks.ledger.settlement import pay_earned

__all__ = [
    "burn_challenge",
    "burn_for_silence",
    "burn_rest",
    "lock_challenge",
    "mark",
    "pay_resumption",
    "return_challenge",
    "share_lie",
    "slash_equal",
    "take_from_challenger",
    "worker_bond",
]


GAS_BPS_MAX: Final = 500
"""Part of S that the winner's gas may be, whatever the base fee was."""


def worker_bond(case: Case, window: WindowRecord) -> int:
    """Return S of the window's worker."""
    return case.vault.held(Pool.BOND, window.worker)


# Bonds of outsiders


def lock_challenge(case: Case, window: WindowRecord, sender: bytes, amount: int, earlier: int) -> int:
    """Lock the bond of a challenge after ``earlier`` others on the window; return it. Raises PaymentMissing."""
    due = challenge_bond(worker_bond(case, window), earlier)
    if amount < due:
        raise PaymentMissing(due=due, got=amount)
    case.vault.lock(Pool.CHALLENGE, sender, due, Purpose.CHALLENGE_BOND, owner=sender)
    return due


def return_challenge(case: Case, window: WindowRecord, number: int, seal: SealedChallenge) -> None:
    """Give an outsider its bond back."""
    case.vault.refund(
        Pool.CHALLENGE, seal.address, seal.bond, Purpose.BOND_RETURN, owner=seal.address, subject=window.number
    )
    forget_seal(case.state, window.task, window.number, number)


def burn_challenge(case: Case, window: WindowRecord, number: int, seal: SealedChallenge) -> None:
    """Burn the bond of a challenge that was not opened, or whose root is wrong."""
    case.vault.burn(Pool.CHALLENGE, seal.bond, Purpose.CHALLENGE_LOST, owner=seal.address, subject=window.number)
    forget_seal(case.state, window.task, window.number, number)


# A lost challenge


def take_from_challenger(case: Case, window: WindowRecord, dispute: DisputeRecord) -> None:
    """Take what a challenger that lost owes: half to the accused for its costs, the rest is burned.

    That is an outsider's bond, or 10 % of S of a drawn verifier. All of it is burned if the accused was silent. A
    re-run is no proof: it takes no machine below the least bond. A verifier's own silence does: otherwise one with
    the least bond would delay a window for nothing, and it had the time to resume.
    """
    was_silent = dispute.ending == DisputeEnding.RERUN_REFUTED
    if dispute.kind is Challenger.OUTSIDER:
        seal = load_seal(case.state, window.task, window.number, dispute.seal)
        paid = 0 if was_silent else seal.bond // 2
        _pay_from_seal(case, window, seal, paid)
        burn_challenge(case, window, dispute.seal, seal._replace(bond=seal.bond - paid))
        return
    node = registry.load_node(case.state, dispute.challenger)
    if node is None:
        return
    # What a sponsor takes back is at risk until it has it.
    whole = node.bond + node.sponsored
    spare = whole - case.parameters.node_bond_min if was_silent else whole
    owed = max(0, min(spare, share_up(worker_bond(case, window), CHALLENGE_BPS)))
    emit, height = case.scope.emit, case.scope.block.height
    paid = 0 if was_silent else owed // 2
    pay_from_bond(case.scope, dispute.challenger, window.worker, paid, Purpose.CHALLENGE_LOST)
    registry.fine_node(case.state, dispute.challenger, owed - paid, emit, height, case.parameters)
    mark(case, dispute.challenger)


def _pay_from_seal(case: Case, window: WindowRecord, seal: SealedChallenge, amount: int) -> None:
    pay_earned(
        case, Pool.CHALLENGE, window.worker, amount, Purpose.CHALLENGE_LOST, Role.COMPUTE, owner=seal.address,
        subject=window.number,
    )  # fmt: skip


# Silence


def burn_for_silence(case: Case, window: WindowRecord) -> None:
    """Burn a part of S of an accused that did not answer: no lie is proven, so nobody gains."""
    amount = share_up(worker_bond(case, window), case.parameters.dispute_silence_bps)
    case.vault.burn(Pool.BOND, amount, Purpose.WORKER_FINE, owner=window.worker, subject=window.number)


def pay_resumption(case: Case, window: WindowRecord, sender: bytes, to: bytes, amount: int) -> None:
    """Pay the other side for a game that goes on after its clock was missed. Raises PaymentMissing."""
    due = share_up(window.charge, case.parameters.dispute_resume_bps)
    if amount != due:
        raise PaymentMissing(due=due, got=amount)
    case.vault.lock(Pool.CHALLENGE, sender, due, Purpose.DISPUTE_RESUMED, owner=sender)
    role = Role.COMPUTE if to == window.worker else Role.VERIFY
    pay_earned(case, Pool.CHALLENGE, to, due, Purpose.DISPUTE_RESUMED, role, owner=sender, subject=window.number)


# A proven lie


def share_lie(
    case: Case,
    window: WindowRecord,
    dispute: DisputeRecord,
    verifiers: Sequence[bytes],
    outsider: bytes,
    fees: int,
    void: Sequence[WindowRecord] | None = None,
) -> None:
    """Divide S of the worker whose lie ``dispute`` has proven.

    ``void`` are the windows that the lie will void, by default all that are open behind ``window``.

    ``verifiers`` had found what the winner found, ``outsider`` is the earliest outsider with that root, or
    who showed that leaves do not fit, or empty.
    The part of verifiers is divided evenly. ``fees`` are those of the checks of void windows: as far as there is
    room for them they stay in the bond, and ``burn_rest`` takes what is left of them. Workers of later windows are
    paid for those that a verifier has found right: others may be nothing at all.
    """
    bond, owner = worker_bond(case, window), window.worker
    liar = registry.operator_of(case.state, owner)
    standing = [
        later
        for later in (case.open_windows() if void is None else void)
        if later.number > window.number
        and registry.operator_of(case.state, later.worker) != liar
        and is_checked(later)
    ]
    is_shown = dispute.kind is Challenger.WITNESS
    weight = SHOW_GAS if is_shown else dispute.moves // 2 * MOVE_GAS
    is_own = dispute.challenger == owner  # its own opening may show its lie
    gas = 0 if is_own else min(weight * dispute.base_fee, share(bond, GAS_BPS_MAX))
    parts = share_out(
        bond,
        verifiers=len(verifiers),
        has_outsider=bool(outsider),
        costs=gas + fees,
        successors=[later.charge for later in standing],
        outsider_bps=WITNESS_BPS if is_shown else OUTSIDER_BPS,
    )

    def pay(to: bytes, amount: int, role: Role, subject: int) -> None:
        pay_earned(case, Pool.BOND, to, amount, Purpose.LIE_PROVEN, role, owner=owner, subject=subject)

    each = split(sum(parts.verifiers), [1] * len(verifiers)) if verifiers else ()
    for address, part in zip(verifiers, each, strict=True):
        pay(address, part, Role.VERIFY, window.number)
    if outsider:
        pay(outsider, parts.outsider, Role.VERIFY, window.number)
    vault = case.vault
    vault.refund(Pool.BOND, vault.payer, parts.requester, Purpose.LIE_PROVEN, owner=owner, subject=window.number)
    to_winner = min(gas, parts.costs)
    pay(dispute.challenger, to_winner, Role.VERIFY, window.number)
    for later, part in zip(standing, parts.successors, strict=True):
        pay(later.worker, part, Role.COMPUTE, later.number)
    vault.burn(Pool.BOND, parts.burned, Purpose.LIE_PROVEN, owner=owner, subject=window.number)


def burn_rest(case: Case, window: WindowRecord, purpose: Purpose = Purpose.LIE_PROVEN) -> None:
    """Burn what is left of a worker's bond after the checks of its void windows were paid."""
    rest = worker_bond(case, window)
    case.vault.burn(Pool.BOND, rest, purpose, owner=window.worker, subject=window.number)


def slash_equal(case: Case, window: WindowRecord, addresses: Sequence[bytes]) -> None:
    """Slash machines that had revealed "equal" on a segment that was proven wrong; all of it is burned."""
    fine = case.parameters.dispute_equal_fees * check_floor(case.record.base_fee, case.parameters)
    for address in addresses:
        registry.fine_node(case.state, address, fine, case.scope.emit, case.scope.block.height, case.parameters)
        mark(case, address)


def mark(case: Case, address: bytes) -> None:
    """Count a failure, and have a machine with too small a bond be drawn no more."""
    reputation.mark_failure(case.state, address, case.now, case.scope.emit, case.parameters)
    node = registry.load_node(case.state, address)
    if node is not None:
        registry.index(case.state, node, case.parameters)
