"""Typed results: a gateway's answers, read strictly into frozen dataclasses; ``document`` is the answer.

Amounts are integers of 10^-18 DKB, hashes and addresses bytes. Fields that an answer has beside those named here
are left in ``document``, so that a newer gateway may say more.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Final, TypeVar

from rpc.client.errors import AnswerMalformed

__all__ = [
    "Account",
    "Amount",
    "Answer",
    "BalanceChange",
    "Bill",
    "BillLine",
    "Block",
    "BlockPosition",
    "BlockRef",
    "ChainInfo",
    "Contract",
    "Custodian",
    "Custody",
    "CustodyDemand",
    "CustodyTerms",
    "Dispute",
    "EscrowTotals",
    "Event",
    "Execution",
    "Group",
    "GroupSeat",
    "Head",
    "Header",
    "HistoryEntry",
    "JobReport",
    "KindQuote",
    "LoggedEvent",
    "Machine",
    "Nonce",
    "Notification",
    "Objection",
    "Proof",
    "Quote",
    "Receipt",
    "ResultObject",
    "SignedAmount",
    "Task",
    "TaskChange",
    "TaskQuote",
    "Transaction",
    "Window",
    "read_result",
]

DIGITS_MAX: Final = 80
_HEX: Final = re.compile(r"0x(?:[0-9a-fA-F]{2})*")
_AMOUNT: Final = "a natural number in a string"
Amount = Annotated[int, _AMOUNT]
"""10^-18 DKB; a decimal string in the answer."""
_SIGNED_AMOUNT: Final = "an integer in a string"
SignedAmount = Annotated[int, _SIGNED_AMOUNT]
"""A signed amount; negative if the account paid it."""
_T = TypeVar("_T", bound="ResultObject")
_Reader = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class ResultObject:
    """Base of typed results."""

    document: Mapping[str, Any] = field(repr=False, compare=False)
    """The answer as received."""


@dataclass(frozen=True, kw_only=True)
class BlockRef(ResultObject):
    """Height and hash of the finalised block for which an answer holds."""

    height: int
    hash: bytes


@dataclass(frozen=True, kw_only=True)
class Answer(ResultObject):
    """An answer that holds for the block ``at``."""

    at: BlockRef


@dataclass(frozen=True, kw_only=True)
class ChainInfo(Answer):
    """Identity of the chain; ``testnet`` comes from the genesis."""

    chain_id: int
    name: str
    genesis_hash: bytes
    testnet: bool
    version: str


@dataclass(frozen=True, kw_only=True)
class Head(Answer):
    """The newest finalised block. Deadlines count in steady time: chain time less ``stood_still_ms``."""

    time_ms: int
    stood_still_ms: int = 0
    state_root: bytes
    base_fee: Amount
    base_fee_next: Amount

    @property
    def steady_ms(self) -> int:
        """Steady time of the block."""
        return self.time_ms - self.stood_still_ms


@dataclass(frozen=True, kw_only=True)
class Header(BlockRef):
    """A block's header."""

    parent_hash: bytes
    epoch: int
    time_ms: int
    base_fee: Amount
    transactions_count: int


@dataclass(frozen=True, kw_only=True)
class Event(ResultObject):
    """A log entry; ``name`` and ``values`` are None for an unknown event."""

    address: bytes
    topics: tuple[bytes, ...]
    data: bytes
    name: str | None
    values: Mapping[str, str] | None


@dataclass(frozen=True, kw_only=True)
class Block(Header):
    """A finalised block with the hashes of its transactions; ``events`` are those of the block itself."""

    gas_used: int
    transactions: tuple[bytes, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class BlockPosition(BlockRef):
    """Block and index of a transaction."""

    index: int
    time_ms: int


@dataclass(frozen=True, kw_only=True)
class Transaction(ResultObject):
    """A transaction; ``block`` is None while it is pending."""

    hash: bytes
    form: int
    nonce: int
    kind: int
    kind_name: str | None
    gas_limit: int
    max_fee_per_gas: Amount
    raw: bytes
    block: BlockPosition | None

    @property
    def sender(self) -> bytes:
        """The account that signed."""
        return _hex(self.document["from"]) if self.document.get("from") else b""


@dataclass(frozen=True, kw_only=True)
class Execution(ResultObject):
    """Result of an execution; ``reason`` is the stable code of a failure."""

    succeeded: bool
    reason: str | None
    gas_used: int
    fee: Amount
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Receipt(Execution):
    """Receipt of a finalised transaction."""

    transaction_hash: bytes
    block: BlockPosition
    kind: int
    kind_name: str | None


@dataclass(frozen=True, kw_only=True)
class BalanceChange(ResultObject):
    """A change of an account's money, to or from ``other`` or an escrow; ``holding`` is "balance" or "bonded"."""

    kind: str
    holding: str
    amount: SignedAmount
    other: bytes | None
    escrow: bytes | None


@dataclass(frozen=True, kw_only=True)
class HistoryEntry(ResultObject):
    """What touched an account: a transaction, or where that is None a block by itself.

    ``changes`` are those of the account, ``events`` those that name it.
    """

    block: BlockPosition
    transaction: Transaction | None
    succeeded: bool
    changes: tuple[BalanceChange, ...]
    events: tuple[Event, ...]

    def change_of(self, holding: str) -> int:
        """Return the sum of changes of ``holding``: "balance" or "bonded"."""
        return sum(change.amount for change in self.changes if change.holding == holding)


@dataclass(frozen=True, kw_only=True)
class Nonce(Answer):
    """Next nonce from the state, and the next one after pending transactions."""

    nonce: int
    pending_nonce: int


@dataclass(frozen=True, kw_only=True)
class Account(Nonce):
    """An account after the block ``at``."""

    address: bytes
    balance: Amount


@dataclass(frozen=True, kw_only=True)
class KindQuote(ResultObject):
    """Gas of a kind of transaction."""

    kind: int
    name: str
    gas: int


@dataclass(frozen=True, kw_only=True)
class Quote(Answer):
    """Current fees."""

    base_fee_next: Amount
    max_fee_per_gas: Amount
    max_priority_fee_per_gas: Amount
    kinds: tuple[KindQuote, ...]


@dataclass(frozen=True, kw_only=True)
class LoggedEvent(ResultObject):
    """An event of a block; ``transaction_hash`` is None for a block event."""

    transaction_hash: bytes | None
    index: int | None
    event: Event


@dataclass(frozen=True, kw_only=True)
class Notification(Answer):
    """A subscription's notification of one block: its ``header`` or its ``items``."""

    header: Header | None = None
    items: tuple[LoggedEvent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Contract(ResultObject):
    """A system contract."""

    address: bytes
    name: str
    abi: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Machine(ResultObject):
    """A registered machine; its earnings go to ``payout``.

    ``rate`` is what it claims to do, in work units a second on one GPU or core, 0 if unknown.
    ``price_per_device_hour`` is what an hour of one costs, by its price and the rate that its last speed trial
    measured, or without one by ``rate``. ``measured_rate`` is what counts for matching and
    deadlines: what speed trials measured, or the claim on a chain without them. With None it is offered nothing.
    ``owed_ms`` is the time that
    the checks take which it has to do, on one slow core and a slow line.
    ``bond`` is its own; of it ``withheld`` came out of its pay, ``withhold_bps`` of each until it is
    ``withhold_until``. ``sponsor`` may bond for it beside, and has: ``sponsored``, for ``sponsor_share_bps`` of
    its pay. ``backing`` is both without what the sponsor takes back. Only a ``present`` machine gets work.
    """

    address: bytes
    operator: bytes
    payout: bytes
    status: str
    roles: tuple[str, ...]
    price_per_tera_unit: Amount
    rate: int
    price_per_device_hour: Amount
    owed_ms: int
    bond: Amount
    slots: int
    busy_slots: int
    present: bool = True
    pcie_lanes: int = 0
    measured_rate: int | None = None
    backing: Amount = 0
    sponsor: bytes | None = None
    sponsored: Amount = 0
    sponsor_share_bps: int = 0
    withhold_bps: int = 0
    withhold_until: Amount = 0
    withheld: Amount = 0


@dataclass(frozen=True, kw_only=True)
class Task(ResultObject):
    """A task: ``phase`` it is in, and how many of its ``windows`` are proved and final.

    ``rate`` is the worker's when it was matched. A ``parked`` task waits for a machine that changes.
    ``open_charge`` is the price of the worker's windows that are proved and not final: its bond covers them.
    ``stage`` is the part of the life cycle that the phase is in: create, run, output or ended. A task of a group
    has its id in ``group``, and the number of its ``seat``.
    """

    id: bytes
    requester: bytes
    phase: str
    reason: str
    created_height: int
    changed_height: int
    worker: bytes | None
    price_per_tera_unit: Amount
    windows: int
    proved_windows: int
    final_windows: int
    history: int
    rate: int = 0
    parked: bool = False
    open_charge: Amount = 0
    stage: str = ""
    group: bytes | None = None
    seat: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it can change any more."""
        return self.phase in ("settled", "failed", "cancelled", "expired")


@dataclass(frozen=True, kw_only=True)
class GroupSeat(ResultObject):
    """A seat of a group: its task, and how far that is."""

    seat: int
    is_spare: bool
    task: bytes
    phase: str
    reason: str
    worker: bytes | None
    windows: int
    proved_windows: int
    final_windows: int


@dataclass(frozen=True, kw_only=True)
class Group(ResultObject):
    """A group of tasks. Machines of it have rates from ``rate_min`` to ``rate_max``, None before it is matched.

    ``lost`` members look for a machine; ``final_windows`` are those of all members.
    """

    id: bytes
    requester: bytes
    phase: str
    reason: str
    members: int
    spares: int
    rate_min: int | None
    rate_max: int | None
    lost: int
    paused: int
    ended: int
    standby: int
    final_windows: int
    seats: tuple[GroupSeat, ...]

    @property
    def has_ended(self) -> bool:
        """Whether all its members have ended."""
        return self.phase == "ended"


@dataclass(frozen=True, kw_only=True)
class TaskChange(ResultObject):
    """A change of a task's phase; ``actor`` is None where the end of a block acted."""

    number: int
    height: int
    time_ms: int
    after: str
    reason: str
    actor: bytes | None


@dataclass(frozen=True, kw_only=True)
class OutputCommitment(ResultObject):
    """What a worker committed to of an output in custody: its size, and roots over plain and cipher chunks."""

    size_bytes: int
    plain_root: bytes
    cipher_root: bytes


@dataclass(frozen=True, kw_only=True)
class Proof(ResultObject):
    """What a worker committed to for one window."""

    step_from: int
    step_to: int
    state_root_in: bytes
    state_root_out: bytes
    segment_root: bytes
    output_blob: bytes
    custody: OutputCommitment | None = None
    result_step: int | None = None
    result_root: bytes | None = None
    """The state that the window leaves, which is that before a step that diverges. None: an older gateway."""
    losses: bytes | None = None
    """Losses of evaluations: binary32 numbers. None: of a job that has none."""


@dataclass(frozen=True, kw_only=True)
class Window(ResultObject):
    """A window of work from its proof on."""

    number: int
    phase: str
    reason: str
    worker: bytes
    height: int
    proof: Proof
    charge: Amount


@dataclass(frozen=True, kw_only=True)
class Dispute(ResultObject):
    """A dispute about a segment of a window: ``turn`` moves until ``deadline_ms``, unless it has an ``ending``."""

    number: int
    kind: str
    challenger: bytes
    segment: int
    phase: str
    ending: str | None
    moves: int
    turn: str | None
    deadline_ms: int | None


@dataclass(frozen=True, kw_only=True)
class CustodyTerms(ResultObject):
    """What the requester of a task asked for. ``demands`` counts those that it made."""

    key_root: bytes
    inputs: int
    windows: int
    is_public: bool
    demands: int


@dataclass(frozen=True, kw_only=True)
class Custodian(ResultObject):
    """A machine that keeps an output; ``demands`` counts those that it answered."""

    address: bytes
    bond: Amount
    since_ms: int
    demands: int
    failed: bool


@dataclass(frozen=True, kw_only=True)
class CustodyDemand(ResultObject):
    """A demand that is not over: of a ``chunk``, or of a delivery to ``receiver``, once those are drawn."""

    kind: str
    custodian: bytes
    amount: Amount
    chunk: int | None
    receiver: bytes | None
    deadline_ms: int


@dataclass(frozen=True, kw_only=True)
class Custody(ResultObject):
    """The output of a window in custody, until ``until_ms`` once enough machines have signed for it."""

    worker: bytes
    phase: str
    size_bytes: int
    bond: Amount
    reserve: Amount
    until_ms: int | None
    custodians: tuple[Custodian, ...]
    demand: CustodyDemand | None
    is_proven_false: bool


@dataclass(frozen=True, kw_only=True)
class Objection(ResultObject):
    """Something that is known against a job: a stable code, and what is wrong and what to do."""

    code: str
    text: str


@dataclass(frozen=True, kw_only=True)
class JobReport(ResultObject):
    """What workers said of a job when they gave it up, the last of ``times`` at ``height``."""

    reason: str
    height: int
    worker: bytes
    task: bytes
    times: int


@dataclass(frozen=True, kw_only=True)
class CallPrices(ResultObject):
    """What the ``matches`` of a call of the market cost, per 10^12 work units."""

    time_ms: int
    matches: int
    lowest: Amount
    mean: Amount
    highest: Amount


@dataclass(frozen=True, kw_only=True)
class CheckQuote(ResultObject):
    """``fee`` is what a verifier of a window is paid, ``window`` what that pays for its audit at most.

    ``bond`` and ``bond_new`` are the least bonds of a worker and of a new one, at the highest price. Above
    ``base_fee`` draws of verifiers are put off.
    """

    fee: Amount
    window: Amount
    bond: Amount
    bond_new: Amount
    base_fee: Amount


@dataclass(frozen=True, kw_only=True)
class CustodyLine(ResultObject):
    """What the custody of the outputs (``what`` is "output") or of the data set ("input") locks if asked for.

    Each of ``blobs`` lies with ``copies`` machines for ``time_ms`` at most; what is not used returns.
    """

    what: str
    blobs: int
    copies: int
    size_bytes: int
    time_ms: int
    price_per_gib_hour: Amount
    amount: Amount


@dataclass(frozen=True, kw_only=True)
class TaskQuote(Answer):
    """What creating a task would lock, unused it comes back; and what is known against its job.

    ``limit`` is the job's highest price per 10^12 work units, ``calls`` are what such jobs paid of late.
    ``objections`` keep the job from being done: ``create_task`` refuses it. With ``notices`` it may wait.
    """

    price: Amount
    verification: Amount
    fee: Amount
    preparation: Amount
    custody: Amount
    custody_lines: tuple[CustodyLine, ...]
    spare: Amount = 0
    total: Amount
    limit: Amount
    checks: CheckQuote
    calls: tuple[CallPrices, ...]
    objections: tuple[Objection, ...]
    notices: tuple[Objection, ...]
    reported: JobReport | None


@dataclass(frozen=True, kw_only=True)
class BillLine(ResultObject):
    """A movement of money of a task."""

    number: int
    height: int
    movement: str
    purpose: str
    party: bytes | None
    amount: Amount
    window: int | None


@dataclass(frozen=True, kw_only=True)
class EscrowTotals(ResultObject):
    """Sums of a bill."""

    deposited: Amount
    locked: Amount
    paid: Amount
    refunded: Amount
    burned: Amount

    @property
    def is_exact(self) -> bool:
        """Whether all that came in is accounted for."""
        return self.locked + self.paid + self.refunded + self.burned == self.deposited


@dataclass(frozen=True)
class Bill:
    """The bill of a task: every line, and the sums."""

    lines: tuple[BillLine, ...]
    totals: EscrowTotals


def read_result(cls: type[_T], answer: Any) -> _T:
    """Return ``answer`` as a ``cls``. Raises AnswerMalformed."""
    if type(answer) is not dict:
        raise AnswerMalformed(f"not an answer of a gateway: {cls.__name__} expected")
    values: dict[str, Any] = {"document": answer}
    for name, read, is_required in _fields(cls):  # type: ignore[arg-type]  # classes are hashable
        if name in answer:
            try:
                values[name] = read(answer[name])
            except (ValueError, TypeError) as error:
                raise AnswerMalformed(f"{cls.__name__}.{name}: {str(error)[:80]}") from None
        elif is_required:
            raise AnswerMalformed(f"{cls.__name__} without {name}")
    return cls(**values)


@cache
def _fields(cls: type[ResultObject]) -> tuple[tuple[str, _Reader, bool], ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        (item.name, _reader(hints[item.name]), item.default is MISSING)
        for item in fields(cls)
        if item.name != "document"
    )


def _reader(kind: Any) -> _Reader:
    """Return what reads a value of a field's type."""
    if kind is Any:
        return lambda value: value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _amount if arguments[1] == _AMOUNT else _difference
    if origin is types.UnionType or origin is typing.Union:
        [inner] = [_reader(argument) for argument in arguments if argument is not types.NoneType]
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(map(item, _exactly(list, value)))
    if kind is bytes:
        return _hex
    if origin is not None:
        return lambda value: {_exactly(str, k): _exactly(str, v) for k, v in _exactly(dict, value).items()}
    if kind is int:
        return _natural
    if isinstance(kind, type) and issubclass(kind, ResultObject):
        return lambda value: read_result(kind, value)
    return lambda value: _exactly(kind, value)


def _exactly(kind: Any, value: Any) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{kind.__name__} expected")
    return value


def _natural(value: Any) -> int:
    number: int = _exactly(int, value)
    if number < 0:
        raise ValueError("a natural number expected")
    return number


def _amount(value: Any) -> int:
    text: str = _exactly(str, value)
    if not (text.isascii() and text.isdigit()) or len(text) > DIGITS_MAX:
        raise ValueError(f"{_AMOUNT} expected")
    return int(text)


def _difference(value: Any) -> int:
    text: str = _exactly(str, value)
    return -_amount(text[1:]) if text[:1] == "-" else _amount(text)


def _hex(value: Any) -> bytes:
    text: str = _exactly(str, value)
    if _HEX.fullmatch(text) is None:
        raise ValueError("0x and hex digits expected")
    return bytes.fromhex(text[2:])
