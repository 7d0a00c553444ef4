"""Who bonds for a machine that cannot yet, and how its pay makes its own bond (market.md 3.5).

A sponsor is an account that the machine's payout address has accepted, on terms that the machine's key cannot
change. What it locks is at risk after the machine's own bond, and no more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from billing.errors import PaymentMissing
from billing.escrow import NOBODY, Pool, Purpose, Vault
from billing.prices import BPS, Role, share
from state.primitives.address import ADDRESS_BYTES
from state.primitives.errors import DecodeError
from state.primitives.receipts import Event, EventType
from state.transition.calls import CallForm
from state.transition.rules import BlockContext, Context, Rule
from state.view import Overlay
from state.view.accounts import InsufficientBalance
from tasks.errors import NothingDue, NotYours, TermsBound, TermsMismatch, WrongPhase
from tasks.ledger.deadlines import SPONSOR_SLOT, Due, cancel, schedule
from tasks.ledger.open_task import Scope
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registration import payout_of
from tasks.ledger.registry import (
    REGISTRY_ADDRESS,
    SPONSOR_RETURNED,
    NodeRecord,
    NodeStatus,
    bond_id,
    bond_vault,
    grown,
    index,
    load_node,
    new_stake,
    node_subject,
    require_node,
    save_node,
    taken,
    wake_at,
)

__all__ = [
    "BOND_EVENTS",
    "SET_TERMS",
    "SHARE_BPS_MAX",
    "SPONSOR_NODE",
    "WITHDRAW_SPONSOR",
    "Terms",
    "bond_rules",
    "on_sponsor_due",
    "pay_from_bond",
    "pay_machine",
    "release_sponsor",
    "set_terms",
    "sponsor",
    "suffices",
    "withdraw",
]

SET_TERMS: Final = 0x16
SPONSOR_NODE: Final = 0x17
WITHDRAW_SPONSOR: Final = 0x18
TERMS: Final = EventType(
    REGISTRY_ADDRESS,
    "NodeTerms(address indexed node, address indexed sponsor, uint256 share, uint256 withhold, uint256 until)",
)
SPONSORED: Final = EventType(
    REGISTRY_ADDRESS,
    "NodeSponsored(address indexed node, address indexed sponsor, uint256 amount, uint256 total)",
)
LEAVING: Final = EventType(
    REGISTRY_ADDRESS,
    "SponsorLeaving(address indexed node, address indexed sponsor, uint256 amount, uint256 releaseMs)",
)
BOND_EVENTS: Final = (TERMS, SPONSORED, LEAVING)

SHARE_BPS_MAX: Final = 5_000
"""Most that a sponsor may get of a machine's pay. With what is withheld it is the whole pay at most."""


AMOUNT_LIMIT: Final = 1 << 127


class Terms(NamedTuple):
    """Who may bond for a machine (``NOBODY``: nobody), for which share of its pay; how its own bond grows.

    ``withhold_bps`` of its pay are added to its own bond until that is ``withhold_to``.
    """

    sponsor: bytes
    share_bps: int
    withhold_bps: int
    withhold_to: int

    @property
    def is_possible(self) -> bool:
        """Whether the shares are within their bounds."""
        return (
            0 <= self.share_bps <= SHARE_BPS_MAX * (self.sponsor != NOBODY)
            and 0 <= self.withhold_bps <= BPS - self.share_bps
            and 0 <= self.withhold_to < AMOUNT_LIMIT
        )

    @classmethod
    def of(cls, node: NodeRecord) -> Terms:
        """Return the terms that stand for a machine."""
        return cls(node.sponsor, node.share_bps, node.withhold_bps, node.withhold_to)


def suffices(node: NodeRecord, parameters: TaskParameters) -> bool:
    """Tell whether a machine's own bond is what it shall grow to, and enough for the market."""
    return node.bond >= max(parameters.node_bond_min, node.withhold_to)


def set_terms(state: Overlay, sender: bytes, address: bytes, terms: Terms, emit: Callable[[Event], None]) -> None:
    """Set on which terms somebody may bond for a machine; only who is paid what it earns can do so.

    Raises NodeUnknown, NotYours, TermsBound.
    """
    node = require_node(state, address)
    if sender != node.payout:
        raise NotYours("the sender is not the machine's payout address")
    if node.sponsored and (
        terms[:2] != Terms.of(node)[:2]
        or terms.withhold_bps < node.withhold_bps
        or terms.withhold_to < node.withhold_to
    ):
        raise TermsBound(f"0x{node.sponsor.hex()} has bonded on the terms that stand")
    sponsor, share_bps, withhold_bps, withhold_to = terms
    save_node(
        state,
        node._replace(
            sponsor=sponsor, share_bps=share_bps, withhold_bps=withhold_bps, withhold_to=withhold_to
        ),
    )  # fmt: skip
    emit(TERMS(address, *terms))


def sponsor(
    state: Overlay, sender: bytes, address: bytes, terms: Terms, amount: int, block: BlockContext,
    emit: Callable[[Event], None], parameters: TaskParameters,
) -> None:  # fmt: skip
    """Lock ``amount`` for a machine that accepts the sender, on the terms that stand.

    What the sender leaves locked is the least bond at least, so a share of pay is never had for a mite.
    Raises NodeUnknown, TermsMismatch, WrongPhase, PaymentMissing, InsufficientBalance.
    """
    node = require_node(state, address)
    if terms != Terms.of(node) or terms.sponsor != sender:
        raise TermsMismatch("the machine's payout address has not set these terms for the sender")
    if node.status == NodeStatus.RETIRING:
        raise WrongPhase("retiring")
    if suffices(node, parameters):
        raise WrongPhase("bonded enough by itself")
    due = max(1, parameters.node_bond_min + node.leaving - node.sponsored)
    if amount < due:
        raise PaymentMissing(due=due, got=amount)
    vault = bond_vault(state, address, emit, block.height)
    vault.lock(Pool.BOND, sender, amount, Purpose.SPONSOR_BOND, owner=sender)
    if not node.sponsored:  # another account is behind it from now on
        node = new_stake(node, block.height, parameters)
    node = grown(node, node.backing, block.height, parameters)._replace(sponsored=node.sponsored + amount)
    save_node(state, node)
    index(state, node, parameters)
    wake_at(state, node, block.steady_ms)
    emit(SPONSORED(address, sender, amount, node.sponsored))


def withdraw(
    state: Overlay, sender: bytes, address: bytes, amount: int, block: BlockContext,
    emit: Callable[[Event], None], parameters: TaskParameters,
) -> None:  # fmt: skip
    """Announce that a sponsor takes ``amount`` back, in place of what it announced before; 0 takes that back.

    It stands behind the machine no more, but is at risk until it has returned. Where the machine's own bond
    suffices all returns anyway, and no new word delays it.
    Raises NodeUnknown, NotYours, InsufficientBalance, NothingDue, WrongPhase, PaymentMissing.
    """
    node = require_node(state, address)
    if sender != node.sponsor or not node.sponsored:
        raise NotYours("the sender has no bond for this machine")
    if amount > node.sponsored:
        raise InsufficientBalance(balance=node.sponsored, needed=amount)
    if amount == node.leaving == 0:
        raise NothingDue("nothing is being taken back")
    if suffices(node, parameters):
        raise WrongPhase("bonded enough by itself")
    if amount and 0 < node.sponsored - amount < parameters.node_bond_min:
        raise PaymentMissing(due=parameters.node_bond_min, got=node.sponsored - amount)
    node = _leave(state, node, amount, block, emit, parameters)
    save_node(state, node)
    index(state, node, parameters)  # it looks at no parked tasks: an update weighs what that takes


def _leave(
    state: Overlay, node: NodeRecord, amount: int, block: BlockContext, emit: Callable[[Event], None],
    parameters: TaskParameters,
) -> NodeRecord:  # fmt: skip
    if node.leaves_ms:
        cancel(state, Due(node.leaves_ms, node_subject(node.address), SPONSOR_SLOT))
    leaves_ms = block.steady_ms + parameters.retire_ms if amount else 0
    if amount:
        schedule(state, Due(leaves_ms, node_subject(node.address), SPONSOR_SLOT))
    emit(LEAVING(node.address, node.sponsor, amount, leaves_ms))
    if amount < node.leaving:
        node = grown(node, node.backing, block.height, parameters)
    return node._replace(leaving=amount, leaves_ms=leaves_ms)


def release_sponsor(
    state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None], parameters: TaskParameters
) -> None:
    """Have the sponsor's bond return where the machine's own suffices."""
    node = require_node(state, address)
    if node.leaving < node.sponsored and suffices(node, parameters):
        node = _leave(state, node, node.sponsored, block, emit, parameters)
        save_node(state, node)
        index(state, node, parameters)


def on_sponsor_due(state: Overlay, address: bytes, block: BlockContext, emit: Callable[[Event], None]) -> None:
    """Return what a sponsor takes back, if it is time for it; with the last of it the terms end."""
    node = load_node(state, address)
    if node is None or not 0 < node.leaves_ms <= block.steady_ms:
        return
    amount, who = node.leaving, node.sponsor
    vault = bond_vault(state, address, emit, block.height)
    vault.refund(Pool.BOND, who, amount, Purpose.BOND_RETURN, owner=who)
    node = node._replace(sponsored=node.sponsored - amount, leaving=0, leaves_ms=0)
    if not node.sponsored:
        node = node._replace(sponsor=NOBODY, share_bps=0)
    save_node(state, node)
    emit(SPONSOR_RETURNED(address, who, amount))


def pay_machine(
    scope: Scope, vault: Vault, pool: Pool, machine: bytes, amount: int, purpose: Purpose, role: Role, *,
    owner: bytes = NOBODY, subject: int | None = None,
) -> None:  # fmt: skip
    """Pay what a machine earned: its sponsor's share, what its own bond grows by, and the rest as it wishes."""
    state, parameters = scope.state, scope.parameters
    node = load_node(state, machine)
    to_sponsor = to_bond = 0
    if node is not None and vault.id != bond_id(machine):
        to_sponsor = share(amount, node.share_bps) if node.sponsored else 0
        if node.status != NodeStatus.RETIRING:
            to_bond = min(share(amount, node.withhold_bps), max(0, node.withhold_to - node.bond))
    rest = amount - to_sponsor - to_bond
    for to, part in (
        (node.sponsor if node is not None else machine, to_sponsor), (machine, to_bond),
        (payout_of(state, machine), rest),
    ):  # fmt: skip
        vault.pay(pool, to, part, purpose, role, owner=owner, subject=subject, earner=machine)
    if node is None or not to_bond:
        return
    bonds = bond_vault(state, machine, scope.emit, scope.block.height)
    bonds.lock(Pool.BOND, machine, to_bond, Purpose.WITHHELD, owner=machine)
    lacked = node.backing < parameters.node_bond_min
    node = grown(node, node.backing, scope.block.height, parameters)
    node = node._replace(bond=node.bond + to_bond, withheld=node.withheld + to_bond)
    save_node(state, node)
    if lacked and node.backing >= parameters.node_bond_min:
        index(state, node, parameters)
        wake_at(state, node, scope.block.steady_ms)
    release_sponsor(state, machine, scope.block, scope.emit, parameters)


def pay_from_bond(scope: Scope, address: bytes, to: bytes, amount: int, purpose: Purpose) -> int:
    """Pay ``to``, a verifier, up to ``amount`` of what is locked for a node; return how much that was."""
    node = load_node(scope.state, address)
    if node is None:
        return 0
    left, parts = taken(node, amount)
    save_node(scope.state, left)
    index(scope.state, left, scope.parameters)
    for owner, part in parts:
        vault = bond_vault(scope.state, address, scope.emit, scope.block.height)
        pay_machine(scope, vault, Pool.BOND, to, part, purpose, Role.VERIFY, owner=owner)
    return sum(part for _, part in parts)


# Transactions


class _Payload(NamedTuple):
    """A machine; the terms for it or on which it is bonded for; an amount."""

    node: bytes
    terms: Terms
    amount: int = 0


def _decode_terms(payload: list[Any]) -> _Payload:
    match payload:
        case [bytes(node), bytes(who), int(part), int(kept), int(until)] if len(node) == len(who) == ADDRESS_BYTES:
            terms = Terms(who, part, kept, until)
            if who != node and terms.is_possible:
                return _Payload(node, terms)
    raise DecodeError("[node, sponsor, share, withheld share, until which bond] expected, shares in basis points")


def _decode_sponsor(payload: list[Any]) -> _Payload:
    match payload:
        case [bytes(node), int(part), int(kept), int(until), int(amount)] if (
            len(node) == ADDRESS_BYTES and 0 <= amount < AMOUNT_LIMIT
        ):
            terms = Terms(node, part, kept, until)  # the sponsor is the sender
            if terms.is_possible:
                return _Payload(node, terms, amount)
    raise DecodeError("[node, share, withheld share, until which bond, amount] expected")


def _decode_withdraw(payload: list[Any]) -> tuple[bytes, int]:
    match payload:
        case [bytes(node), int(amount)] if len(node) == ADDRESS_BYTES and 0 <= amount < AMOUNT_LIMIT:
            return node, amount
        case _:
            raise DecodeError("[node, amount] expected")


def bond_rules(parameters: TaskParameters) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions of sponsors and of whom they bond for."""

    def apply_terms(state: Overlay, payload: _Payload, context: Context) -> None:
        set_terms(state, context.sender, payload.node, payload.terms, context.emit)

    def apply_sponsor(state: Overlay, payload: _Payload, context: Context) -> None:
        terms = payload.terms._replace(sponsor=context.sender)
        sponsor(
            state, context.sender, payload.node, terms, payload.amount, context.block, context.emit, parameters
        )

    def apply_withdraw(state: Overlay, payload: tuple[bytes, int], context: Context) -> None:
        withdraw(state, context.sender, *payload, context.block, context.emit, parameters)

    return (
        Rule(
            SET_TERMS, "set_terms", 150_000, _decode_terms, lambda _: 0, apply_terms,
            touches=lambda payload: (payload.node,),
            call=CallForm(
                REGISTRY_ADDRESS,
                "setTerms(address node, address sponsor, uint32 share, uint32 withhold, uint256 until)",
            ),
        ),
        # The machine looks at parked tasks then, as after an update.
        Rule(
            SPONSOR_NODE, "sponsor_node", 3_000_000, _decode_sponsor, lambda p: p.amount, apply_sponsor,
            touches=lambda payload: (payload.node,),
            call=CallForm(
                REGISTRY_ADDRESS, "sponsorNode(address node, uint32 share, uint32 withhold, uint256 until)",
                value_at=4,
            ),
        ),
        Rule(
            WITHDRAW_SPONSOR, "withdraw_sponsor", 200_000, _decode_withdraw, lambda _: 0, apply_withdraw,
            touches=lambda payload: (payload[0],),
            call=CallForm(REGISTRY_ADDRESS, "withdrawSponsor(address node, uint256 amount)"),
        ),
    )  # fmt: skip
