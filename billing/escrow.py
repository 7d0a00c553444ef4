"""Escrow accounts: money locked for a purpose, divided into pools, and every movement of it as a line of a bill.

See market.md R1.

An escrow knows no tasks: its id is 32 bytes. Each change keeps ``locked + paid + refunded + burned = deposited``;
a change that would not is a bug and stops the node. The record has the sum of each pool, so its size is bounded.
What a pool holds of an owner has a key of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple

from billing.errors import EscrowUnknown
from billing.prices import Role
from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import encode
from state.primitives.errors import DecodeError
from state.primitives.hashing import HASH_BYTES
from state.primitives.receipts import Event, EventType
from state.transition.rules import Holding
from state.view import Overlay, Reader, Table
from state.view.accounts import burn, credit, debit
from state.view.records import items_of, read_record

__all__ = [
    "BILLING_ADDRESS",
    "BILLING_EVENTS",
    "HOLDING",
    "LINES_PAGE_MAX",
    "OWNERS_PAGE_MAX",
    "Line",
    "Movement",
    "Pool",
    "Purpose",
    "Totals",
    "Vault",
    "add_earnings",
    "bill_lines",
    "check_escrow",
    "check_escrows",
    "check_touched_escrows",
    "earnings_of",
    "escrow_totals",
]

BILLING_ADDRESS: Final = (0x0703).to_bytes(ADDRESS_BYTES, "big")
LOCKED: Final = EventType(
    BILLING_ADDRESS, "Locked(bytes32 indexed escrow, address indexed from, uint256 amount, uint256 purpose)"
)
PAID: Final = EventType(
    BILLING_ADDRESS, "Paid(bytes32 indexed escrow, address indexed to, uint256 amount, uint256 purpose)"
)
REFUNDED: Final = EventType(
    BILLING_ADDRESS, "Refunded(bytes32 indexed escrow, address indexed to, uint256 amount, uint256 purpose)"
)
BURNED: Final = EventType(BILLING_ADDRESS, "Burned(bytes32 indexed escrow, uint256 amount, uint256 purpose)")
BILLING_EVENTS: Final = (LOCKED, PAID, REFUNDED, BURNED)

RECORD_LIMIT_BYTES: Final = 320
SHARE_LIMIT_BYTES: Final = 40
LINE_LIMIT_BYTES: Final = 256
LINES_PAGE_MAX: Final = 1000
OWNERS_PAGE_MAX: Final = 64
"""Owners that one look into a pool returns, at most."""
NUMBERS_MAX: Final = 1 << 32
"""No line has so high a number."""
NOBODY: Final = bytes(ADDRESS_BYTES)
_ESCROW: Final = bytes([Table.ESCROW])
_SHARE: Final = bytes([Table.ESCROW_SHARE])
_BILL: Final = bytes([Table.BILL])
_EARNINGS: Final = bytes([Table.EARNINGS])


class Pool(IntEnum):
    """A part of an escrow; ``HOLD``, ``BOND``, ``CHALLENGE`` and ``CUSTODY`` are kept apart for each address."""

    PRICE = 1
    VERIFICATION = 2
    FEE = 3
    HOLD = 4
    BOND = 5
    CHALLENGE = 6
    """Bonds of outsiders that challenge a window."""
    CUSTODY = 7
    """What the requester locked for custody, and bonds of custodians."""
    CHECK = 8
    """What the check fund has put down for checks that were drawn."""


class Movement(IntEnum):
    """What a line does to the sums. ``HELD`` moves money between pools, so it changes none of them."""

    LOCKED = 1
    PAID = 2
    REFUNDED = 3
    BURNED = 4
    HELD = 5


_OWNED: Final = frozenset({Pool.HOLD, Pool.BOND, Pool.CHALLENGE, Pool.CUSTODY})
_SUMMED: Final = (Movement.LOCKED, Movement.PAID, Movement.REFUNDED, Movement.BURNED)


class Purpose(IntEnum):
    """Why money moved; stable numbers, they stand in events and bills."""

    PRICE = 1
    VERIFICATION = 2
    PROTOCOL_FEE = 3
    TOP_UP = 4
    WORKER_BOND = 5
    NODE_BOND = 6
    WINDOW_PAY = 7
    WINDOW_HOLD = 8
    HOLD_RELEASE = 9
    VERIFIER_FEE = 10
    JUROR_FEE = 11
    KILL_FEE = 12
    WORKER_FINE = 13
    VERIFIER_FINE = 14
    HOLD_FORFEIT = 15
    UNSPENT = 16
    BOND_RETURN = 17
    CARRIAGE = 18
    DEMAND = 19
    RESULT_LOST = 20
    SPONSOR_BOND = 21
    WITHHELD = 22
    CHALLENGE_BOND = 23
    CHALLENGE_LOST = 24
    LIE_PROVEN = 25
    DISPUTE_RESUMED = 26
    PREPARATION = 27
    CLAIM_GAS = 28
    CHECK_FUND = 29
    """What a window pays into the check fund."""
    CHECK = 30
    """What the check fund puts down for a drawn check, and takes back of it."""
    CLAIM_CHECK = 31
    """What a task pays the check fund back for the check of a claim that its job diverges."""
    NOT_SERVED = 32
    """All of the bond of a worker that serves a window to nobody."""
    STANDBY = 33
    """What a machine earned that stood by in a spare seat of a group; its hold where it was called."""
    METERED = 34
    """Pay for the seconds of a container."""
    SECONDS_HELD = 35
    """Pay for seconds of a container that no checkpoint holds yet, or that of its last one."""
    DISK = 36
    """Pay for the disk that a container has reserved, second by second."""
    CUSTODY = 40
    CUSTODY_PAY = 41
    CUSTODY_BOND = 42
    CUSTODY_LOST = 43
    CUSTODY_DEMAND = 44


class Line(NamedTuple):
    """One movement: ``party`` paid it (LOCKED) or received it; ``subject`` is the window it is about, or None."""

    number: int
    height: int
    movement: Movement
    purpose: Purpose
    pool: Pool
    party: bytes
    amount: int
    subject: int | None


class Totals(NamedTuple):
    """Sums of an escrow."""

    deposited: int
    locked: int
    paid: int
    refunded: int
    burned: int


class _Record(NamedTuple):
    payer: bytes
    lines: int
    deposited: int
    paid: int
    refunded: int
    burned: int
    pools: tuple[int, ...]
    """What each pool holds, in the order of ``Pool``."""


def _record(data: bytes) -> _Record:
    return read_record(data, _record_of, what="an escrow", limit_bytes=RECORD_LIMIT_BYTES)


def _record_of(value: Any) -> _Record:
    payer, lines, deposited, paid, refunded, burned, pools = items_of(value, bytes, *[int] * 5, list)
    return _Record(payer, lines, deposited, paid, refunded, burned, tuple(items_of(pools, *[int] * len(Pool))))


def _share_key(escrow_id: bytes, pool: int, owner: bytes = b"") -> bytes:
    return _SHARE + escrow_id + bytes([pool]) + owner


def _share(data: bytes) -> int:
    return read_record(data, _share_of, what="a share of an escrow", limit_bytes=SHARE_LIMIT_BYTES)


def _share_of(value: Any) -> int:
    if type(value) is not int or value <= 0:
        raise DecodeError("a positive amount expected")
    return value


class Vault:
    """One escrow opened for changes. Each method writes at once, so state and object never differ.

    ``emit`` takes the events; ``height`` stands in the bill's lines.
    """

    __slots__ = ("_emit", "_height", "_key", "_record", "_state", "id")

    def __init__(
        self, state: Overlay, escrow_id: bytes, record: _Record, emit: Callable[[Event], None], height: int
    ) -> None:
        self._state = state
        self.id = escrow_id
        self._key = _ESCROW + escrow_id
        self._record = record
        self._emit = emit
        self._height = height

    @classmethod
    def create(
        cls, state: Overlay, escrow_id: bytes, payer: bytes, emit: Callable[[Event], None], height: int
    ) -> Vault:
        """Open a new, empty escrow; what is left in the end goes back to ``payer``."""
        if len(escrow_id) != HASH_BYTES or state.get(_ESCROW + escrow_id) is not None:
            raise AssertionError(f"escrow {escrow_id.hex()} exists or has no proper id")
        return cls(state, escrow_id, _Record(payer, 0, 0, 0, 0, 0, (0,) * len(Pool)), emit, height)

    @classmethod
    def load(cls, state: Overlay, escrow_id: bytes, emit: Callable[[Event], None], height: int) -> Vault:
        """Open an escrow. Raises EscrowUnknown, RecordDamaged."""
        data = state.get(_ESCROW + escrow_id)
        if data is None:
            raise EscrowUnknown(escrow_id.hex())
        return cls(state, escrow_id, _record(data), emit, height)

    @classmethod
    def open(
        cls, state: Overlay, escrow_id: bytes, payer: bytes, emit: Callable[[Event], None], height: int
    ) -> Vault:
        """Open an escrow that may exist already."""
        if state.get(_ESCROW + escrow_id) is None:
            return cls.create(state, escrow_id, payer, emit, height)
        return cls.load(state, escrow_id, emit, height)

    @property
    def payer(self) -> bytes:
        """Who opened the escrow."""
        return self._record.payer

    def held(self, pool: Pool, owner: bytes = NOBODY) -> int:
        """Return what ``pool`` holds of ``owner``."""
        if pool not in _OWNED:
            return self._record.pools[pool - 1]
        data = self._state.get(_share_key(self.id, pool, owner))
        return 0 if data is None else _share(data)

    def total(self, pool: Pool) -> int:
        """Return what ``pool`` holds of all owners."""
        return self._record.pools[pool - 1]

    def owners(self, pool: Pool, *, after: bytes = b"", limit: int = OWNERS_PAGE_MAX) -> tuple[bytes, ...]:
        """Return up to ``limit`` owners above ``after`` whose money ``pool`` holds, in order."""
        if not self.total(pool):
            return ()
        start = _share_key(self.id, pool, after + b"\x00" if after else b"")
        entries = self._state.scan(start, _share_key(self.id, pool + 1), min(limit, OWNERS_PAGE_MAX))
        return tuple(key[-ADDRESS_BYTES:] for key, _ in entries)

    def lock(self, pool: Pool, source: bytes, amount: int, purpose: Purpose, *, owner: bytes = NOBODY) -> None:
        """Take ``amount`` from the free balance of ``source``. Raises InsufficientBalance before it writes."""
        if not amount:
            return
        debit(self._state, source, amount)
        self._change(pool, owner, amount)
        self._record = self._record._replace(deposited=self._record.deposited + amount)
        self._emit(LOCKED(self.id, source, amount, purpose))
        self._save(Movement.LOCKED, purpose, pool, source, amount, None)

    def pay(
        self, pool: Pool, to: bytes, amount: int, purpose: Purpose, role: Role | None, *,
        owner: bytes = NOBODY, subject: int | None = None, earner: bytes | None = None,
    ) -> None:  # fmt: skip
        """Pay ``amount`` out of ``pool`` to ``to``, as what ``earner`` (default: the same) earned in ``role``.

        Without a role nobody has earned it.
        """
        if not amount:
            return
        self._change(pool, owner, -amount)
        self._record = self._record._replace(paid=self._record.paid + amount)
        credit(self._state, to, amount)
        if role is not None:
            add_earnings(self._state, to if earner is None else earner, role, amount)
        self._emit(PAID(self.id, to, amount, purpose))
        self._save(Movement.PAID, purpose, pool, to, amount, subject)

    def refund(
        self, pool: Pool, to: bytes, amount: int, purpose: Purpose, *,
        owner: bytes = NOBODY, subject: int | None = None,
    ) -> None:  # fmt: skip
        """Return ``amount`` to ``to``, which locked it."""
        if not amount:
            return
        self._change(pool, owner, -amount)
        self._record = self._record._replace(refunded=self._record.refunded + amount)
        credit(self._state, to, amount)
        self._emit(REFUNDED(self.id, to, amount, purpose))
        self._save(Movement.REFUNDED, purpose, pool, to, amount, subject)

    def burn(
        self, pool: Pool, amount: int, purpose: Purpose, *, owner: bytes = NOBODY, subject: int | None = None
    ) -> None:
        """Take ``amount`` out of the supply."""
        if not amount:
            return
        self._change(pool, owner, -amount)
        self._record = self._record._replace(burned=self._record.burned + amount)
        burn(self._state, amount)
        self._emit(BURNED(self.id, amount, purpose))
        self._save(Movement.BURNED, purpose, pool, owner, amount, subject)

    def hold(
        self, pool: Pool, target: Pool, amount: int, purpose: Purpose, *,
        owner: bytes = NOBODY, target_owner: bytes = NOBODY, subject: int | None = None,
    ) -> None:  # fmt: skip
        """Move ``amount`` between two pools of this escrow."""
        if not amount:
            return
        self._change(pool, owner, -amount)
        self._change(target, target_owner, amount)
        self._save(Movement.HELD, purpose, target, target_owner, amount, subject)

    def _change(self, pool: Pool, owner: bytes, amount: int) -> None:
        held = self.held(pool, owner) + amount
        if held < 0 or (pool not in _OWNED and owner != NOBODY):
            raise AssertionError(f"escrow {self.id.hex()}: pool {pool.name} lacks {-held}, or has no owners")
        pools = list(self._record.pools)
        pools[pool - 1] += amount
        self._record = self._record._replace(pools=tuple(pools))
        if pool in _OWNED:
            key = _share_key(self.id, pool, owner)
            if held:
                self._state.put(key, encode(held))
            else:
                self._state.delete(key)

    def _save(
        self, movement: Movement, purpose: Purpose, pool: Pool, party: bytes, amount: int, subject: int | None
    ) -> None:
        number = self._record.lines
        record = self._record = self._record._replace(lines=number + 1)
        _check(self.id, record)
        self._state.put(
            self._key,
            encode([
                record.payer, record.lines, record.deposited, record.paid, record.refunded, record.burned,
                list(record.pools),
            ]),
        )  # fmt: skip
        self._state.put(
            _BILL + self.id + number.to_bytes(4, "big"),
            encode([self._height, int(movement), int(purpose), int(pool), party, amount, subject]),
        )


def _check(escrow_id: bytes, record: _Record) -> None:
    locked = sum(record.pools)
    if min(record.pools) < 0 or locked + record.paid + record.refunded + record.burned != record.deposited:
        raise AssertionError(f"escrow {escrow_id.hex()} does not balance: {record}")


def _locked(data: bytes) -> int:
    return sum(_record(data).pools)


HOLDING: Final = Holding(Table.ESCROW, _locked)
"""For the runtime's sum over all money."""


def escrow_totals(state: Reader, escrow_id: bytes) -> Totals:
    """Return the sums of an escrow. Raises EscrowUnknown."""
    data = state.get(_ESCROW + escrow_id)
    if data is None:
        raise EscrowUnknown(escrow_id.hex())
    record = _record(data)
    return Totals(record.deposited, sum(record.pools), record.paid, record.refunded, record.burned)


def bill_lines(
    state: Reader, escrow_id: bytes, *, start: int = 0, limit: int = LINES_PAGE_MAX
) -> tuple[Line, ...]:
    """Return lines of an escrow's bill from number ``start``, at most ``limit``."""
    prefix = _BILL + escrow_id
    entries = state.scan(
        prefix + start.to_bytes(4, "big"), prefix + b"\xff\xff\xff\xff", min(limit, LINES_PAGE_MAX)
    )
    return tuple(_line(key, value) for key, value in entries)


def _line(key: bytes, value: bytes) -> Line:
    number = int.from_bytes(key[-4:], "big")
    return read_record(
        value, partial(_line_of, number), what=f"line {number} of a bill", limit_bytes=LINE_LIMIT_BYTES
    )


def _line_of(number: int, value: Any) -> Line:
    match value:
        case [
            int(height), int(movement), int(purpose), int(pool), bytes(party), int(amount),
            (int() | None) as subject,
        ]:  # fmt: skip
            return Line(number, height, Movement(movement), Purpose(purpose), Pool(pool), party, amount, subject)
        case _:
            raise DecodeError("not a line")


def earnings_of(state: Reader, address: bytes) -> dict[Role, int]:
    """Return what ``address`` was ever paid, by role."""
    data = state.get(_EARNINGS + address)
    if data is None:
        return {}
    return read_record(data, _earnings, what=f"the earnings of 0x{address.hex()}", limit_bytes=LINE_LIMIT_BYTES)


def _earnings(value: Any) -> dict[Role, int]:
    if type(value) is not list:
        raise DecodeError("a list expected")
    return {Role(role): amount for role, amount in (items_of(entry, int, int) for entry in value)}


def add_earnings(state: Overlay, address: bytes, role: Role, amount: int) -> None:
    """Note that ``address`` was paid ``amount`` in ``role``."""
    earned = earnings_of(state, address)
    earned[role] = earned.get(role, 0) + amount
    state.put(_EARNINGS + address, encode([[int(kind), earned[kind]] for kind in sorted(earned)]))


def check_escrow(state: Reader, escrow_id: bytes) -> None:
    """Check one escrow against its bill, line by line, and against the shares of all owners.

    Raises AssertionError where they differ.
    """
    _check_since(state, escrow_id, None)
    record = _record(state.get(_ESCROW + escrow_id) or b"")
    for pool in _OWNED:
        held, start, stop = 0, _share_key(escrow_id, pool), _share_key(escrow_id, pool + 1)
        while entries := state.scan(start, stop, LINES_PAGE_MAX):
            held += sum(_share(value) for _, value in entries)
            start = entries[-1][0] + b"\x00"
        _check_shares(escrow_id, pool, held, record.pools[pool - 1])


def _check_shares(escrow_id: bytes, pool: int, held: int, booked: int) -> None:
    if held != booked:
        raise AssertionError(f"escrow {escrow_id.hex()}: owners hold {held} of pool {pool}, the record {booked}")


def _check_since(state: Reader, escrow_id: bytes, before: _Record | None) -> None:
    """Check an escrow against what was booked since ``before``; None is before its first line."""
    data = state.get(_ESCROW + escrow_id)
    if data is None:
        raise AssertionError(f"escrow {escrow_id.hex()} is gone")
    record = _record(data)
    _check(escrow_id, record)
    sums = dict.fromkeys(Movement, 0)
    count = 0
    if before is not None:
        sums |= zip(_SUMMED, (before.deposited, before.paid, before.refunded, before.burned), strict=True)
        count = before.lines
    while lines := bill_lines(state, escrow_id, start=count):
        for line in lines:
            sums[line.movement] += line.amount
        count += len(lines)
    booked = tuple(sums[movement] for movement in _SUMMED)
    if count != record.lines or booked != (record.deposited, record.paid, record.refunded, record.burned):
        raise AssertionError(f"escrow {escrow_id.hex()}: the bill says {booked}, the record {record}")


def _escrow_ids(state: Reader) -> Iterator[bytes]:
    start, stop = _ESCROW, bytes([Table.ESCROW + 1])
    while entries := state.scan(start, stop, LINES_PAGE_MAX):
        yield from (key[1:] for key, _ in entries)
        start = entries[-1][0] + b"\x00"


def check_touched_escrows(state: Overlay) -> None:
    """The invariant at each block: every escrow that its changes touch balances and agrees with its bill.

    What was booked before the block was checked then, so only the lines since are read, and none below may have
    changed: the bill of who pays for years is long. Raises AssertionError.
    """
    booked: dict[bytes, int] = {}
    held: Counter[tuple[bytes, int]] = Counter()
    """By how much the sum of a pool exceeds what was added for its owners: nothing, in the end."""
    for key, value in list(state.changes.items()):
        if key[:1] == _ESCROW and value is not None:
            data = state.base.get(key)
            before = None if data is None else _record(data)
            booked[key[1:]] = 0 if before is None else before.lines
            _check_since(state, key[1:], before)
            for pool in _OWNED:
                held[key[1:], pool] += _record(value).pools[pool - 1]
                held[key[1:], pool] -= 0 if before is None else before.pools[pool - 1]
        elif key[:1] == _SHARE:
            data = state.base.get(key)
            pool_of = key[1 : 1 + HASH_BYTES], key[1 + HASH_BYTES]
            held[pool_of] -= 0 if value is None else _share(value)
            held[pool_of] += 0 if data is None else _share(data)
    for (escrow_id, pool_number), missing in held.items():
        _check_shares(escrow_id, pool_number, -missing, 0)
    for key in state.changes:
        if key[:1] == _BILL and int.from_bytes(key[-4:], "big") < booked.get(key[1:-4], NUMBERS_MAX):
            raise AssertionError(f"a line of the bill of escrow {key[1:-4].hex()} was changed after its block")


def check_escrows(state: Reader) -> None:
    """The invariant over all escrows: each balances and agrees with its bill. Raises AssertionError."""
    for escrow_id in _escrow_ids(state):
        check_escrow(state, escrow_id)
