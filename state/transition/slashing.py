"""The penalty of a proven fault (consensus.md 8.4): loss of stake, and permanently of seat and keys.

The penalty is a rate of what the operator had bonded when the fault was proven: 5 %, or three times the share of
weight that faulted within the window where that is more. When another fault comes to light, the rate of all of
them rises together: many small faults at once are an attack, a single one is more often an accident. Rates and
shares are parts of SHARE_ONE: a share is rounded up, a penalty down, so what rounding leaves is the operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import encode
from state.primitives.receipts import Event, EventType
from state.transition.jail import FOREVER, JailRecord, load_jail, save_jail
from state.transition.rules import BlockContext
from state.transition.staking import (
    STAKING_ADDRESS,
    load_stake,
    save_stake,
    save_unbonding,
    unbondings_of,
)
from state.transition.transfer import SYSTEM_PREFIX
from state.view import Overlay, Reader, Table
from state.view.accounts import burn, credit
from state.view.records import items_of, read_record

__all__ = [
    "EQUIVOCATED",
    "OFFENDERS_MAX",
    "PENALTY_MIN",
    "REWARD_DIVISOR",
    "SHARE_ONE",
    "SLASHED",
    "Offence",
    "SlashRecord",
    "bonded",
    "delete_old_offences",
    "is_tombstoned",
    "is_worse",
    "list_slashes",
    "load_slash",
    "punish",
    "rate_of",
    "share_of",
    "take_bonded",
]

SHARE_ONE: Final = 10**9
"""A share or a rate of 100 %."""
PENALTY_MIN: Final = SHARE_ONE // 20
CORRELATION: Final = 3
"""A third of the weight is what it takes to break the chain: together, that much loses everything."""
REWARD_DIVISOR: Final = 20
"""The reporter's part of what is taken; the rest is burned."""
OFFENDERS_MAX: Final = 512
"""Offenders of the window that are counted and topped up, those of the newest epochs first."""
FORGOTTEN_MAX: Final = 256
"""Faults that one block drops from the window; the rest wait for the next boundary."""
RECORD_LIMIT_BYTES: Final = 256

EQUIVOCATED: Final = EventType(
    STAKING_ADDRESS,
    "Equivocated(address indexed operator, address indexed reporter, uint256 fault, uint256 epoch, uint256 view)",
)
SLASHED: Final = EventType(
    STAKING_ADDRESS, "Slashed(address indexed operator, uint256 amount, uint256 total, uint256 reward)"
)

_SLASH: Final = bytes([Table.SLASH])
_WINDOW: Final = bytes([Table.SLASH_WINDOW])
_EPOCH_MAX: Final = 2**32 - 1
_INDEXED: Final = b"\1"
_NOBODY: Final = bytes(20)


class Offence(NamedTuple):
    """A proven fault: ``fault`` is the number of E1, E2 or E3; the weights are those of the fault's own epoch."""

    operator: bytes
    fault: int
    epoch: int
    view: int
    weight: int
    committee_weight: int
    reporter: bytes

    @property
    def share(self) -> int:
        """The seat's part of its committee."""
        return share_of(self.weight, self.committee_weight)


class SlashRecord(NamedTuple):
    """A slashing: operator, fault and amount; kept permanently.

    ``base`` is what was bonded when a fault was first proven, at ``height`` by ``reporter``; ``rate`` of it is the
    penalty so far, of which ``taken`` was still there, and ``rewarded`` of that went to ``reporter``. ``fault``,
    ``epoch``, ``view`` and ``share`` are those of the fault that weighs the most of all that were proven.
    """

    fault: int
    epoch: int
    view: int
    height: int
    share: int
    base: int
    rate: int
    taken: int
    rewarded: int
    reporter: bytes


# Records


def load_slash(state: Reader, operator: bytes) -> SlashRecord | None:
    """Return what an operator was slashed for; None when it never was. Raises RecordDamaged."""
    data = state.get(_SLASH + operator)
    return None if data is None else _slash_record(operator, data)


def _slash_record(operator: bytes, data: bytes) -> SlashRecord:
    return read_record(
        data,
        lambda value: SlashRecord(*items_of(value, *[int] * 9, ADDRESS_BYTES)),
        what=f"the slash of 0x{operator.hex()}",
        limit_bytes=RECORD_LIMIT_BYTES,
    )


def list_slashes(state: Reader, *, after: bytes = b"", limit: int) -> list[tuple[bytes, SlashRecord]]:
    """Return operators and what they were slashed for, in the order of their addresses, from behind ``after``."""
    start = _SLASH + after + b"\0" if after else _SLASH
    return [
        (key[1:], _slash_record(key[1:], data)) for key, data in state.scan(start, bytes([Table.SLASH + 1]), limit)
    ]


def is_tombstoned(state: Reader, operator: bytes) -> bool:
    """Tell whether an operator was proven faulty: it never gets a seat again, with none of its keys."""
    return state.get(_SLASH + operator) is not None


def is_worse(state: Reader, offence: Offence) -> bool:
    """Tell whether an offence weighs more than what its operator was punished for, if it was."""
    known = load_slash(state, offence.operator)
    return known is None or offence.share > known.share


def _save_slash(state: Overlay, operator: bytes, record: SlashRecord) -> None:
    state.put(_SLASH + operator, encode(record))


def _window_key(epoch: int) -> bytes:
    return _WINDOW + (_EPOCH_MAX - epoch).to_bytes(4, "big")


def _offenders(state: Reader, epoch_now: int, evidence_epochs: int) -> list[bytes]:
    """Return the operators whose faults still correlate, those of the newest epochs first."""
    oldest = max(0, epoch_now - evidence_epochs)
    found = state.scan(_WINDOW, _window_key(oldest) + b"\xff" * 21, OFFENDERS_MAX)
    return [key[5:] for key, _ in found]


# Bonded money


def bonded(state: Reader, address: bytes) -> int:
    """Return what can be taken from an account for a fault: its stake and what it withdraws of it."""
    record = load_stake(state, address)
    return (record.amount if record else 0) + sum(entry.amount for entry in unbondings_of(state, address))


def take_bonded(state: Overlay, address: bytes, amount: int) -> int:
    """Take up to ``amount`` from the stake, then from withdrawals, the earliest first; return what was there.

    The caller says where it goes. The free balance is never touched.
    """
    if amount < 0:
        raise AssertionError(f"a penalty of {amount}")
    left = amount
    record = load_stake(state, address)
    if record is not None and left:
        part = min(left, record.amount)
        save_stake(state, address, record._replace(amount=record.amount - part))
        left -= part
    for entry in unbondings_of(state, address) if left else ():
        part = min(left, entry.amount)
        save_unbonding(state, entry._replace(amount=entry.amount - part))
        left -= part
        if not left:
            break
    return amount - left


# Penalties


def share_of(weight: int, committee_weight: int) -> int:
    """Return a seat's part of its committee in parts of SHARE_ONE, rounded up."""
    return -(-weight * SHARE_ONE // committee_weight)


def rate_of(shares: Iterable[int]) -> int:
    """Return the penalty's rate, in parts of SHARE_ONE, for all whose ``shares`` faulted within the window."""
    return max(PENALTY_MIN, min(SHARE_ONE, CORRELATION * sum(shares)))


def punish(
    state: Overlay, offences: Iterable[Offence], block: BlockContext, emit: Callable[[Event], None]
) -> None:
    """Jail the operators of new offences permanently and raise all penalties within the window to the new rate.

    The sum taken does not depend on the order of the offences or their blocks, while the stake is still bonded
    and at most OFFENDERS_MAX are counted. Of the faults of one operator the one with the largest share counts,
    whenever it is proven: otherwise an operator would first report a fault from a time when its seat was small.
    """
    added: dict[bytes, SlashRecord] = {}
    for offence in offences:
        operator, fault, epoch, view, *_, reporter = offence
        known = load_slash(state, operator)
        if known is None:
            jail = load_jail(state, operator)
            save_jail(state, operator, JailRecord(FOREVER, jail.times if jail else 0))
            base = bonded(state, operator)
            record = SlashRecord(fault, epoch, view, block.height, offence.share, base, 0, 0, 0, reporter)
        elif offence.share > known.share:
            state.delete(_window_key(known.epoch) + operator)
            record = known._replace(fault=fault, epoch=epoch, view=view, share=offence.share)
        else:
            continue
        added[operator] = record
        _save_slash(state, operator, record)
        state.put(_window_key(epoch) + operator, _INDEXED)
        emit(EQUIVOCATED(operator, reporter, fault, epoch, view))
    records: dict[bytes, SlashRecord] = {}
    for operator in _offenders(state, block.epoch, block.chain.evidence_epochs):
        found = load_slash(state, operator)
        assert found is not None, "the window and the records change together"
        records[operator] = found
    rate = rate_of(record.share for record in records.values())
    for operator, record in (records | added).items():  # also the new ones that are no longer counted
        if rate > record.rate:
            _raise_penalty(state, operator, record, rate, emit)


def _raise_penalty(
    state: Overlay, operator: bytes, record: SlashRecord, rate: int, emit: Callable[[Event], None]
) -> None:
    due = record.base * rate // SHARE_ONE - record.base * record.rate // SHARE_ONE
    amount = take_bonded(state, operator, due)
    taken = record.taken + amount
    is_paid = record.reporter not in (operator, _NOBODY) and not record.reporter.startswith(SYSTEM_PREFIX)
    rewarded = taken // REWARD_DIVISOR if is_paid else 0
    reward = rewarded - record.rewarded
    credit(state, record.reporter, reward)
    burn(state, amount - reward)
    _save_slash(state, operator, record._replace(rate=rate, taken=taken, rewarded=rewarded))
    if amount:
        emit(SLASHED(operator, amount, taken, reward))


def delete_old_offences(state: Overlay, block: BlockContext, _emit: Callable[[Event], None]) -> None:
    """At the end of an epoch, drop the faults from the window that are too old to correlate with a new one."""
    epoch, is_inside = divmod(block.height, block.chain.epoch_blocks)
    oldest = epoch - block.chain.evidence_epochs
    if is_inside or oldest <= 0:
        return
    for key, _ in state.scan(_window_key(oldest - 1), bytes([Table.SLASH_WINDOW + 1]), FORGOTTEN_MAX):
        state.delete(key)
