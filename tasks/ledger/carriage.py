"""What relays are paid (market.md 8.5): out of deposits for carriage, else out of their payers' earnings.

A relay brings its payers' receipts on chain (``billing.relay``). It is paid at once what the payer's *deposit*
covers. What that leaves is *due* until the payer is paid for a window of work: of that pay the role RELAY takes
its part by weight, split evenly among those to whom something is due, each up to that. So a receipt moves money
of nobody but its signer, and no more than the deposit and a small part of the earnings of the next 30 days: a
stolen node key spends nothing else that an account has, and what a payer signs to a relay of its own, however
much, takes no more than one equal part of those earnings away from the others.

A deposit is taken back by saying so: it is paid out when no receipt that was signed before can be settled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from billing.errors import ReceiptInvalid
from billing.escrow import add_earnings
from billing.prices import ROLE_WEIGHTS, Role, split
from billing.relay import CHANNEL_LIFE_MS, CLOCK_SKEW_MS_MAX, RECEIPT_LIFE_MS, Receipt
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from state.primitives.receipts import Event, EventType
from state.transition.calls import CallForm
from state.transition.rules import BlockContext, Context, Holding, Rule
from state.view import Overlay, Reader, Table
from state.view.accounts import InsufficientBalance, credit, debit
from state.view.records import items_of, read_record
from tasks.errors import NothingDue, NotYours
from tasks.ledger.deadlines import CARRIAGE_SLOT, Due, cancel, schedule
from tasks.ledger.parameters import TaskParameters
from tasks.ledger.registration import payout_of
from tasks.ledger.registry import REGISTRY_ADDRESS, NodeRole, NodeStatus, load_node, node_subject, require_node

__all__ = [
    "CARRIAGE_EVENTS",
    "CARRIAGE_HOLDING",
    "FUND_CARRIAGE",
    "NO_DEPOSIT",
    "SETTLE_CARRIAGE",
    "WITHDRAWAL_MS",
    "WITHDRAW_CARRIAGE",
    "Acknowledged",
    "CarriageStanding",
    "Deposit",
    "carriage_rules",
    "carriage_standing",
    "deposit_of",
    "dues_of",
    "on_withdrawal_due",
    "pay_dues",
    "share_pay",
]

SETTLE_CARRIAGE: Final = 0x2C
FUND_CARRIAGE: Final = 0x2D
WITHDRAW_CARRIAGE: Final = 0x2E
ACKNOWLEDGED: Final = EventType(
    REGISTRY_ADDRESS,
    "CarriageAcknowledged(address indexed relay, address indexed payer, uint256 size, uint256 due)",
)
PAID: Final = EventType(
    REGISTRY_ADDRESS,
    "CarriagePaid(address indexed relay, address indexed payer, uint256 amount, uint256 deposit)",
)
FUNDED: Final = EventType(
    REGISTRY_ADDRESS, "CarriageFunded(address indexed payer, uint256 amount, uint256 deposit)"
)
ANNOUNCED: Final = EventType(
    REGISTRY_ADDRESS, "CarriageWithdrawal(address indexed payer, uint256 amount, uint256 releaseMs)"
)
RETURNED: Final = EventType(
    REGISTRY_ADDRESS, "CarriageReturned(address indexed payer, uint256 amount, uint256 deposit)"
)
CARRIAGE_EVENTS: Final = (ACKNOWLEDGED, PAID, FUNDED, ANNOUNCED, RETURNED)

AMOUNT_LIMIT: Final = 1 << 127
WITHDRAWAL_MS: Final = RECEIPT_LIFE_MS + CLOCK_SKEW_MS_MAX + 24 * 3_600_000
"""From the word that a deposit is withdrawn to its payment: every receipt that was signed before has ended then,
and relays that ask once in a while what a payer is good for have long heard of it."""
RELAYS_PER_PAYER_MAX: Final = 16
CERTIFICATE_LIMIT_BYTES: Final = 256
RECORD_LIMIT_BYTES: Final = 256
DUE_LIMIT: Final = 1 << 126
DUE_LIFE_MS: Final = 30 * 24 * 3_600_000
"""What is due lapses so long after the payer's last word, so that no signature binds for ever."""
_CARRIAGE: Final = bytes([Table.CARRIAGE])

CertificateCheck = Callable[[bytes, bytes, int], tuple[bytes, bytes]]
"""(certificate, genesis hash, time in ms) -> (account, its node's signing address). Raises ProtocolError."""


class Evidence(NamedTuple):
    """A receipt and the certificate that says whose key has signed it."""

    receipt: Receipt
    certificate: bytes


class _Record(NamedTuple):
    """What a payer has acknowledged to a relay: the newest channel, what it came to, and what of all is due."""

    channel: bytes
    opened_ms: int
    sequence: int
    size_bytes: int
    amount: int
    due: int
    settled_ms: int
    """When its newest receipt was settled."""

    def due_at(self, now_ms: int) -> int:
        """Return what is due and has not lapsed."""
        return self.due if now_ms < self.settled_ms + DUE_LIFE_MS else 0

    def is_over(self, now_ms: int) -> bool:
        """Tell whether it may be forgotten: nothing is due, and no receipt that it settled can come again."""
        return not self.due_at(now_ms) and self.opened_ms <= now_ms - CHANNEL_LIFE_MS


_NOTHING: Final = _Record(b"", -1, 0, 0, 0, 0, 0)


class Deposit(NamedTuple):
    """What a payer has put down for carriage: ``amount`` in all, and what of it is paid back at ``release_ms``."""

    amount: int
    withdrawing: int
    release_ms: int

    @property
    def free(self) -> int:
        """What is not being withdrawn: relays give credit on this."""
        return self.amount - self.withdrawing


NO_DEPOSIT: Final = Deposit(0, 0, 0)


class Acknowledged(NamedTuple):
    """What a payer has acknowledged to one relay: the newest channel that was settled, and what is still due."""

    relay: bytes
    channel: bytes
    opened_ms: int
    size_bytes: int
    amount: int
    due: int


class CarriageStanding(NamedTuple):
    """What a payer is good for."""

    deposit: Deposit
    is_earning: bool
    """Whether it is a registered, bonded machine that computes, so that dues can be paid out of its pay."""
    has_room: bool
    """Whether a relay that is not among ``relays`` could settle a receipt of it."""
    relays: tuple[Acknowledged, ...]


def _record(data: bytes) -> _Record:
    return read_record(
        data,
        lambda value: _Record(*items_of(value, bytes, int, int, int, int, int, int)),
        what="what was carried",
        limit_bytes=RECORD_LIMIT_BYTES,
    )


def _load(state: Reader, payer: bytes, relay: bytes) -> _Record:
    data = state.get(_CARRIAGE + payer + relay)
    return _NOTHING if data is None else _record(data)


def _save(state: Overlay, payer: bytes, relay: bytes, record: _Record) -> None:
    state.put(_CARRIAGE + payer + relay, encode(list(record)))


def _scan(state: Reader, payer: bytes) -> list[tuple[bytes, _Record]]:
    prefix = _CARRIAGE + payer
    entries = state.scan(prefix + b"\0", prefix + b"\xff" * (ADDRESS_BYTES + 1), RELAYS_PER_PAYER_MAX)
    return [(key[-ADDRESS_BYTES:], _record(value)) for key, value in entries]


def _deposit(data: bytes) -> Deposit:
    return read_record(
        data,
        lambda value: Deposit(*items_of(value, int, int, int)),
        what="a deposit for carriage",
        limit_bytes=RECORD_LIMIT_BYTES,
    )


def deposit_of(state: Reader, payer: bytes) -> Deposit:
    """Return what ``payer`` has put down for carriage. Raises RecordDamaged."""
    data = state.get(_CARRIAGE + payer)  # the key ends where those of its relays go on
    return NO_DEPOSIT if data is None else _deposit(data)


def _save_deposit(state: Overlay, payer: bytes, before: Deposit, after: Deposit) -> None:
    """Write a deposit and keep its place in the queue; one without money has no record, none withdrawn no time."""
    if not after.withdrawing:
        after = after._replace(release_ms=0)
    if before.release_ms != after.release_ms:
        if before.release_ms:
            cancel(state, _release(payer, before))
        if after.release_ms:
            schedule(state, _release(payer, after))
    if after.amount:
        state.put(_CARRIAGE + payer, encode(list(after)))
    else:
        state.delete(_CARRIAGE + payer)


def _release(payer: bytes, deposit: Deposit) -> Due:
    return Due(deposit.release_ms, node_subject(payer), CARRIAGE_SLOT)


def _held(data: bytes) -> int:
    return read_record(data, _money_in, what="an entry of carriage", limit_bytes=RECORD_LIMIT_BYTES)


def _money_in(value: Any) -> int:
    match value:
        case [int(amount), int(), int()]:
            return amount
        case [bytes(), *_]:
            return 0  # what was acknowledged is no money yet
        case _:
            raise DecodeError("neither a deposit nor what was carried")


CARRIAGE_HOLDING: Final = Holding(Table.CARRIAGE, _held)
"""For the runtime's sum over all money."""


def on_withdrawal_due(state: Overlay, payer: bytes, block: BlockContext, emit: Callable[[Event], None]) -> None:
    """Pay out what ``payer`` withdraws, if it is time for it."""
    deposit = deposit_of(state, payer)
    if not 0 < deposit.release_ms <= block.steady_ms:
        return
    _save_deposit(state, payer, deposit, Deposit(deposit.free, 0, 0))
    credit(state, payer, deposit.withdrawing)
    emit(RETURNED(payer, deposit.withdrawing, deposit.free))


def carriage_standing(state: Reader, payer: bytes, now_ms: int, parameters: TaskParameters) -> CarriageStanding:
    """Return what ``payer`` is good for."""
    node = load_node(state, payer)
    known = _scan(state, payer)
    return CarriageStanding(
        deposit_of(state, payer),
        is_earning=node is not None
        and node.status == NodeStatus.ACTIVE
        and bool(node.profile.roles & NodeRole.COMPUTE)
        and node.backing >= parameters.node_bond_min,
        has_room=len(known) < RELAYS_PER_PAYER_MAX or any(record.is_over(now_ms) for _, record in known),
        relays=tuple(
            Acknowledged(
                relay, record.channel, record.opened_ms, record.size_bytes, record.amount, record.due_at(now_ms)
            )
            for relay, record in known
        ),
    )


def dues_of(state: Reader, payer: bytes, now_ms: int) -> dict[bytes, int]:
    """Return what ``payer`` owes to relays out of its earnings, by relay."""
    dues = {relay: record.due_at(now_ms) for relay, record in _scan(state, payer)}
    return {relay: due for relay, due in dues.items() if due}


def share_pay(pay: int, dues: dict[bytes, int]) -> list[tuple[bytes, int]]:
    """Return what each relay gets of ``pay``: of the role's part by weight as much as the others, up to its due.

    Not by the dues themselves: they are the payer's own word, and one huge promise to a relay of its own would
    leave nothing for those who carried. What the smaller dues leave goes to the larger ones.
    """
    _, left = split(pay, [ROLE_WEIGHTS[Role.COMPUTE], ROLE_WEIGHTS[Role.RELAY]])
    parts: dict[bytes, int] = {}
    for at, relay in enumerate(sorted(dues, key=lambda relay: (dues[relay], relay))):
        parts[relay] = min(dues[relay], left // (len(dues) - at))
        left -= parts[relay]
    return [(relay, parts[relay]) for relay in sorted(parts) if parts[relay]]


def pay_dues(state: Overlay, payer: bytes, relay: bytes, amount: int) -> None:
    """Note that ``amount`` of what is due was paid."""
    record = _load(state, payer, relay)
    if record.due < amount:
        raise AssertionError(f"{amount} paid to a relay to which {record.due} is due")
    _save(state, payer, relay, record._replace(due=record.due - amount))


def _decode(payload: list[Any]) -> Evidence:
    match payload:
        case [bytes(receipt), bytes(certificate)] if len(certificate) <= CERTIFICATE_LIMIT_BYTES:
            return Evidence(Receipt.decode(receipt), certificate)
        case _:
            raise DecodeError("[receipt, certificate] expected")


def _decode_fund(payload: list[Any]) -> int:
    match payload:
        case [int(amount)] if 0 < amount < AMOUNT_LIMIT:
            return amount
        case _:
            raise DecodeError("[amount] expected")


def _decode_withdraw(payload: list[Any]) -> int:
    match payload:
        case [int(amount)] if 0 <= amount < AMOUNT_LIMIT:
            return amount
        case _:
            raise DecodeError("[amount] expected")


def _fund(state: Overlay, amount: int, context: Context) -> None:
    deposit = deposit_of(state, context.sender)
    after = deposit._replace(amount=deposit.amount + amount)
    debit(state, context.sender, amount)
    _save_deposit(state, context.sender, deposit, after)
    context.emit(FUNDED(context.sender, amount, after.amount))


def _withdraw(state: Overlay, amount: int, context: Context) -> None:
    """Announce that ``amount`` is to be paid back, in place of what was announced before; 0 takes that back."""
    deposit = deposit_of(state, context.sender)
    if amount > deposit.amount:
        raise InsufficientBalance(balance=deposit.amount, needed=amount)
    if amount == deposit.withdrawing == 0:
        raise NothingDue("nothing is being withdrawn")
    # What is announced anew waits anew, or a small word of long ago would let everything go at once.
    release_ms = context.block.steady_ms + WITHDRAWAL_MS if amount else 0
    _save_deposit(state, context.sender, deposit, Deposit(deposit.amount, amount, release_ms))
    context.emit(ANNOUNCED(context.sender, amount, release_ms))


def _spend(state: Overlay, payer: bytes, deposit: Deposit, amount: int) -> Deposit:
    """Take ``amount`` out of a deposit, first of what is withdrawn: others give credit on the rest."""
    withdrawing = max(0, deposit.withdrawing - amount)
    after = Deposit(deposit.amount - amount, withdrawing, deposit.release_ms if withdrawing else 0)
    _save_deposit(state, payer, deposit, after)
    return after


def carriage_rules(check_certificate: CertificateCheck) -> tuple[Rule[Any], ...]:
    """Return the kinds of transactions of relays and payers; ``check_certificate`` knows node certificates."""

    def settle(state: Overlay, evidence: Evidence, context: Context) -> None:
        receipt, block = evidence.receipt, context.block
        if receipt.relay != context.sender:
            raise NotYours(context.sender.hex())
        node = require_node(state, context.sender)
        if node.status != NodeStatus.ACTIVE or not node.profile.roles & NodeRole.RELAY:
            raise NotYours("not a registered relay")
        payer, signer = check_certificate(evidence.certificate, block.genesis_hash, block.time_ms)
        receipt.check(
            genesis_hash=block.genesis_hash, relay=context.sender, payer=payer, signer=signer, now_ms=block.time_ms
        )
        now_ms = block.time_ms  # receipts and channels have the times of clocks
        record = _load(state, payer, receipt.relay)
        forgotten: bytes | None = None
        if receipt.channel != record.channel:
            if receipt.opened_ms <= record.opened_ms:
                raise NothingDue("a channel older than one that was settled")
            if record is _NOTHING and len(known := _scan(state, payer)) >= RELAYS_PER_PAYER_MAX:
                forgotten = next((relay for relay, other in known if other.is_over(now_ms)), None)
                if forgotten is None:
                    raise ReceiptInvalid(f"its payer owes {RELAYS_PER_PAYER_MAX} relays already")
            record = record._replace(
                channel=receipt.channel, opened_ms=receipt.opened_ms, sequence=0, size_bytes=0, amount=0
            )
        elif receipt.opened_ms != record.opened_ms:
            raise ReceiptInvalid("a channel that began at another time")
        new = receipt.amount - record.amount
        if receipt.sequence <= record.sequence or receipt.size_bytes <= record.size_bytes or new <= 0:
            raise NothingDue("no more than was settled before")
        due = record.due_at(now_ms) + new
        if due >= DUE_LIMIT:
            raise ReceiptInvalid("more than anybody can owe")
        size_bytes = receipt.size_bytes - record.size_bytes
        deposit = deposit_of(state, payer)
        paid = min(due, deposit.amount)
        due -= paid
        if forgotten is not None:
            state.delete(_CARRIAGE + payer + forgotten)
        _save(
            state, payer, receipt.relay,
            record._replace(
                sequence=receipt.sequence, size_bytes=receipt.size_bytes, amount=receipt.amount, due=due,
                settled_ms=now_ms,
            ),
        )  # fmt: skip
        context.emit(ACKNOWLEDGED(receipt.relay, payer, size_bytes, due))
        if paid:
            left = _spend(state, payer, deposit, paid)
            to = payout_of(state, receipt.relay)
            credit(state, to, paid)
            add_earnings(state, receipt.relay, Role.RELAY, paid)
            context.emit(PAID(to, payer, paid, left.amount))

    return (
        Rule(
            SETTLE_CARRIAGE, "settle_carriage", 300_000, _decode, lambda _: 0, settle, checks_first=True,
            touches=lambda evidence: (evidence.receipt.payer,),
            call=CallForm(REGISTRY_ADDRESS, "settleCarriage(bytes receipt, bytes certificate)"),
        ),
        Rule(
            FUND_CARRIAGE, "fund_carriage", 60_000, _decode_fund, lambda amount: amount, _fund, checks_first=True,
            call=CallForm(REGISTRY_ADDRESS, "fundCarriage()", value_at=0),
        ),
        Rule(
            WITHDRAW_CARRIAGE, "withdraw_carriage", 80_000, _decode_withdraw, lambda _: 0, _withdraw,
            checks_first=True, call=CallForm(REGISTRY_ADDRESS, "withdrawCarriage(uint256 amount)"),
        ),
    )  # fmt: skip
