"""How machines come to the market, change and leave it (market.md 3.2).

Their records are in ``tasks.ledger.registry``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from billing.escrow import NOBODY, Pool, Purpose
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import encode
from state.primitives.errors import DecodeError, SignatureInvalid
from state.primitives.hashing import HASH_BYTES
from state.primitives.receipts import Event
from state.primitives.signing import personal_digest, recover_wallet_signature
from state.transition.rules import BlockContext
from state.view import Overlay, Reader, Table
from state.view.records import items_of, read_record
from tasks.errors import NodeKnown, NotYours, OperatorUnproved, WrongPhase
from tasks.ledger.deadlines import NODE_SLOT, SPONSOR_SLOT, Due, cancel, schedule
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.records import by_custodian_key, by_duty_key, by_player_key, by_verifier_key
from tasks.ledger.registry import (
    PAYOUT,
    RECORD_LIMIT_BYTES,
    REGISTERED,
    RETIRED,
    SEEN,
    SPONSOR_RETURNED,
    SUSPENDED,
    UPDATED,
    NodeProfile,
    NodeRecord,
    NodeRole,
    NodeStatus,
    bond_vault,
    grown,
    index,
    is_found,
    load_node,
    new_stake,
    node_subject,
    remove_node,
    require_node,
    save_node,
    wake_at,
)
from tasks.ledger.reputation import fade
from tasks.ledger.trials import forget_trial, leave_round, on_change

__all__ = [
    "heartbeat",
    "on_node_due",
    "operator_words",
    "payout_of",
    "register",
    "retire",
    "set_payout",
    "suspend",
    "touch",
    "update",
]

_PAST: Final = bytes([Table.NODE_PAST])
_PAST_FROM: Final = NodeRecord._fields.index("failures")


def _save_past(state: Overlay, node: NodeRecord) -> None:
    """Keep what a node did for when its key registers again; a key without outcomes leaves nothing."""
    past = node[_PAST_FROM:]
    if node.payout != node.address or any(node._replace(faded_ms=0)[_PAST_FROM:-1]):
        state.put(_PAST + node.address, encode(list(past)))


def _load_past(state: Reader, address: bytes) -> list[Any]:
    """Return what the key did in earlier registrations, and its payout address: zeros and its own for a new one.

    Raises RecordDamaged.
    """
    count = len(NodeRecord._fields) - 1 - _PAST_FROM
    data = state.get(_PAST + address)
    if data is None:
        return [*[0] * count, address]

    def make(value: Any) -> list[Any]:
        past = list(items_of(value, *[int] * count, bytes))
        if len(past[-1]) != ADDRESS_BYTES:
            raise DecodeError("not an address")
        return past

    what = f"the record of the retired node 0x{address.hex()}"
    return read_record(data, make, what=what, limit_bytes=RECORD_LIMIT_BYTES)


def operator_words(genesis_hash: bytes, node: bytes) -> bytes:
    """Return what an account signs (EIP-191, with any wallet) to be the operator of ``node`` on one chain."""
    return f"The DEKUBE machine 0x{node.hex()} is mine, on chain 0x{genesis_hash.hex()}.".encode()


def _check_operator(address: bytes, profile: NodeProfile, block: BlockContext) -> None:
    """Whoever could name anybody's account as its operator would choose who may not check it.

    Raises OperatorUnproved.
    """
    if profile.operator == address:
        if profile.consent:
            raise OperatorUnproved("a node that is its own operator needs no signature")
        return
    try:
        signer = recover_wallet_signature(
            personal_digest(operator_words(block.genesis_hash, address)), profile.consent
        )
    except SignatureInvalid as error:
        raise OperatorUnproved(str(error)) from None
    if signer != profile.operator:
        raise OperatorUnproved("another account signed")


def register(
    state: Overlay,
    address: bytes,
    profile: NodeProfile,
    bond: int,
    block: BlockContext,
    emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:
    """Register a node and lock its bond; a key that was registered before has its record of then.

    Below the least bond it is offered nothing and found by nobody until somebody bonds for it.

    Raises NodeKnown, OperatorUnproved, InsufficientBalance.
    """
    if load_node(state, address) is not None:
        raise NodeKnown(address.hex())
    _check_operator(address, profile, block)
    bond_vault(state, address, emit, block.height).lock(Pool.BOND, address, bond, Purpose.NODE_BOND, owner=address)
    zeros = [0] * (_PAST_FROM - 1 - NodeRecord._fields.index("busy_slots"))
    rest: list[Any] = [*zeros, NOBODY, *_load_past(state, address)]
    state.delete(_PAST + address)
    now_ms = block.steady_ms
    node = NodeRecord(address, profile, NodeStatus.ACTIVE, block.height, now_ms, now_ms, bond, *rest)
    node = new_stake(node._replace(asked_height=block.height), block.height, parameters)
    node = _with_payout(fade(node, block.steady_ms, parameters), emit)
    save_node(state, node)
    index(state, node, parameters)
    on_change(state, None, node, block.steady_ms, parameters)
    if is_found(node, parameters):  # others would take the turns of those that can be given a task
        wake_at(state, node, block.steady_ms)
    emit(REGISTERED(address, int(profile.roles), profile.price_per_tera_unit))


def update(
    state: Overlay,
    address: bytes,
    profile: NodeProfile,
    bond: int,
    block: BlockContext,
    emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> None:
    """Renew a node's record and add ``bond`` to what it has locked; ends its retirement or suspension.

    Raises NodeUnknown, OperatorUnproved, InsufficientBalance.
    """
    before = node = require_node(state, address)
    _check_operator(address, profile, block)
    bond_vault(state, address, emit, block.height).lock(Pool.BOND, address, bond, Purpose.NODE_BOND, owner=address)
    node = _asking(fade(node, block.steady_ms, parameters), profile.price_per_tera_unit, block.height)
    node = node._replace(
        profile=profile, status=NodeStatus.ACTIVE, seen_ms=block.steady_ms, renewed_ms=block.steady_ms,
        bond=node.bond + bond,
    )  # fmt: skip
    if (
        before.status != NodeStatus.ACTIVE
        or profile.operator != before.profile.operator
        or (profile.roles & ~before.profile.roles & (NodeRole.VERIFY | NodeRole.STORAGE))
    ):  # it could be drawn for nothing until now, or for other windows
        node = new_stake(node, block.height, parameters)
    elif bond:
        node = grown(node, before.backing, block.height, parameters)
    node = _with_payout(node, emit)
    save_node(state, node)
    index(state, node, parameters)
    on_change(state, before, node, block.steady_ms, parameters)
    if is_found(node, parameters):  # others would take the turns of those that can be given a task
        wake_at(state, node, block.steady_ms)
    emit(UPDATED(address, int(profile.roles), profile.price_per_tera_unit))


def _asking(node: NodeRecord, price: int, height: int) -> NodeRecord:
    """Note that another price stands from ``height`` on; of a block only its last one ever stood."""
    before = node.profile.price_per_tera_unit
    if price == before or node.asked_height == height:
        return node
    return node._replace(
        asked_height=height, asked_was=before, asked_was_height=node.asked_height, asked_first=node.asked_was
    )  # fmt: skip


def _with_payout(node: NodeRecord, emit: Callable[[Event], None]) -> NodeRecord:
    """Have a named operator paid, where the machine is paid itself."""
    if node.payout != node.address or node.profile.operator == node.address:
        return node
    emit(PAYOUT(node.address, node.profile.operator))
    return node._replace(payout=node.profile.operator)


def set_payout(
    state: Overlay, sender: bytes, address: bytes, payout: bytes, emit: Callable[[Event], None]
) -> None:
    """Have a node's earnings paid to ``payout`` from now on; only who is paid now can say so.

    The operator has no word in it, for the key of the machine can name another one. Raises NodeUnknown, NotYours.
    """
    node = require_node(state, address)
    if sender != node.payout:
        raise NotYours("the sender is not the machine's payout address")
    save_node(state, node._replace(payout=payout))
    emit(PAYOUT(address, payout))


def payout_of(state: Reader, address: bytes) -> bytes:
    """Return where the earnings of a node go: its own address where it has retired and never named another."""
    node = load_node(state, address)
    return _load_past(state, address)[-1] if node is None else node.payout


def suspend(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Offer a node nothing and draw it for nothing until it renews its record. Raises NodeUnknown, WrongPhase."""
    node = require_node(state, address)
    if node.status != NodeStatus.ACTIVE:
        raise WrongPhase(node.status.name.lower())
    node = node._replace(status=NodeStatus.SUSPENDED, seen_ms=block.steady_ms)
    save_node(state, node)
    index(state, node, parameters)
    leave_round(state, address)
    emit(SUSPENDED(address))


def retire(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Take a node off the market; its bond returns after a while. Raises NodeUnknown, WrongPhase."""
    node = require_node(state, address)
    if node.status == NodeStatus.RETIRING:
        raise WrongPhase("retiring")
    node = node._replace(status=NodeStatus.RETIRING, seen_ms=block.steady_ms)
    save_node(state, node)
    index(state, node, parameters)
    leave_round(state, address)
    schedule(state, Due(block.steady_ms + parameters.retire_ms, node_subject(address), NODE_SLOT))
    emit(RETIRED(address, 0))


def on_node_due(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Return the bonds of a retiring node and forget it, or wait on where it still has duties.

    What was withheld of its pay goes where that would have gone.
    """
    node = load_node(state, address)
    if node is None or node.status != NodeStatus.RETIRING or block.steady_ms < node.seen_ms + parameters.retire_ms:
        if node is not None and node.status == NodeStatus.RETIRING:  # it acted since: wait on from then
            schedule(state, Due(node.seen_ms + parameters.retire_ms, node_subject(address), NODE_SLOT))
        return
    if node.busy_slots or _has_duties(state, address):
        schedule(state, Due(block.steady_ms + parameters.retire_ms, node_subject(address), NODE_SLOT))
        return
    vault = bond_vault(state, address, emit, block.height)
    vault.refund(Pool.BOND, node.payout, node.withheld, Purpose.BOND_RETURN, owner=address)
    vault.refund(Pool.BOND, address, node.bond - node.withheld, Purpose.BOND_RETURN, owner=address)
    vault.refund(Pool.BOND, node.sponsor, node.sponsored, Purpose.BOND_RETURN, owner=node.sponsor)
    if node.sponsored:
        emit(SPONSOR_RETURNED(address, node.sponsor, node.sponsored))
    if node.leaves_ms:
        cancel(state, Due(node.leaves_ms, node_subject(address), SPONSOR_SLOT))
    _save_past(state, node)
    forget_trial(state, address)
    remove_node(state, address)
    emit(RETIRED(address, 1))


def _has_duties(state: Reader, address: bytes) -> bool:
    """Tell whether the node has windows that are not final, a verdict to give, a dispute to play, or custody."""
    firsts = (by_duty_key(address), by_verifier_key(address), by_player_key(address), by_custodian_key(address))
    return any(state.scan(first, first + b"\xff" * (HASH_BYTES + 9), 1) for first in firsts)


def heartbeat(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Note that a node is on that has nothing else to say.

    It is cheap also for who was away: when the chain has stood still all are, and who is back first is drawn. So
    none looks at parked tasks for it; that costs an update. Raises NodeUnknown, WrongPhase.
    """
    node = require_node(state, address)
    if node.status != NodeStatus.ACTIVE:
        raise WrongPhase(node.status.name.lower())
    touch(state, address, block.steady_ms, parameters)
    emit(SEEN(address))


def touch(state: Overlay, address: bytes, now_ms: int, parameters: TaskParameters) -> None:
    """Note that the node acted, and fade its counts."""
    node = load_node(state, address)
    if node is not None and node.seen_ms != now_ms:
        save_node(state, fade(node, now_ms, parameters)._replace(seen_ms=now_ms))
