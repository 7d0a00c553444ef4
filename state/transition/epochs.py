"""Epochs: their committees, randomness and versions as records of the state (consensus.md 8.5, 10.1, 11.2, 12).

Each block adds its leader's VRF output to the randomness and what it has seen to the tally of its epoch: one small
record. The last block of epoch e, after everything else in it, judges the downtime of the seats, selects the
committee of e + 2 from the stakes that were frozen at the end of e - 1, fixes the version of e + 2, and freezes
the present stakes. So the signers of the last block of e have known the committee of e + 1 for a whole epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from state.primitives.address import ADDRESS_BYTES
from state.primitives.codec import Value, encode
from state.primitives.committee import SEATS_MAX, Committee
from state.primitives.errors import DecodeError, InvalidBlock
from state.primitives.genesis import ChainParameters, Genesis, genesis_hash
from state.primitives.hashing import HASH_BYTES, digest
from state.primitives.keys import VOTE_KEY_BYTES
from state.primitives.receipts import Event, EventType
from state.primitives.vrf import VRF_KEY_BYTES, vrf_output
from state.transition.jail import FOREVER, JailRecord, is_jailed, load_jail, save_jail
from state.transition.rules import BlockContext
from state.transition.selection import (
    CANDIDATES_MAX,
    Candidate,
    Selection,
    draw_seats,
    limit_growth,
    seated,
    select,
)
from state.transition.slashing import bonded, take_bonded
from state.transition.staking import (
    NOTICE_EPOCHS,
    STAKING_ADDRESS,
    begin_withdrawals,
    delete_committee,
    largest_stakes,
    load_committee,
    load_stake,
    save_committee,
)
from state.view import Overlay, Reader, Table
from state.view.accounts import burn
from state.view.records import items_of, number_of, read_record

__all__ = [
    "ABSENT_SHARE",
    "DOWNTIME_DIVISOR",
    "EPOCH_BEGAN",
    "FIRST_VERSION",
    "JAILED",
    "JAIL_TIMES_MAX",
    "LEADER_SLOTS_MIN",
    "LOTTERY_TOO_LARGE",
    "NOTICE_EPOCHS",
    "OUT_SHARE",
    "SKIPPED_VIEWS_MAX",
    "VERSION_SCHEDULED",
    "EpochInfo",
    "Tally",
    "UpgradeRequired",
    "add_randomness",
    "begin_epochs",
    "check_voters",
    "end_epoch",
    "epoch_of",
    "first_height",
    "genesis_committee",
    "genesis_randomness",
    "is_down",
    "last_height",
    "load_epoch",
    "load_tally",
    "record_block",
]

_T = TypeVar("_T")
FIRST_VERSION: Final = 1
SKIPPED_VIEWS_MAX: Final = 1_024
"""Views without a block before a block that count as missed by their leaders; older ones are forgotten."""
LEADER_SLOTS_MIN: Final = 2
"""A seat that missed fewer views than this as their leader is not judged by them."""
JAIL_TIMES_MAX: Final = 12
"""Consecutive downtimes after which the jail time no longer doubles: 4,096 epochs, half a year of hours."""
ABSENT_SHARE: Final = (2, 3)
"""A seat is down if its votes are missing from more than this share of the counted blocks."""
OUT_SHARE: Final = (1, 4)
"""Maximum share of the stake that downtime may exclude; always at least one operator."""
DOWNTIME_DIVISOR: Final = 10_000
"""The part of its bonded stake that downtime costs a seat: 0.01 %."""
SIGNAL_SHARE: Final = (4, 5)
"""The part of a committee's weight that has to signal a version before it is scheduled."""
_FROZEN_PART: Final = 256
_RECORD_LIMIT_BYTES: Final = 64 * 1024

EPOCH_BEGAN: Final = EventType(
    STAKING_ADDRESS,
    "EpochBegan(uint256 indexed epoch, bytes32 committeeHash, uint256 seats, uint256 weight, uint256 version)",
)
COMMITTEE_SELECTED: Final = EventType(
    STAKING_ADDRESS,
    "CommitteeSelected(uint256 indexed epoch, bytes32 committeeHash, uint256 seats, uint256 weight, "
    "uint256 anchors, uint256 lotteryWeight)",
)
LOTTERY_TOO_LARGE: Final = EventType(
    STAKING_ADDRESS, "LotteryTooLarge(uint256 indexed epoch, uint256 lotteryWeight, uint256 weight)"
)
JAILED: Final = EventType(
    STAKING_ADDRESS,
    "Jailed(address indexed validator, uint256 indexed epoch, uint256 untilEpoch, uint256 times, uint256 burned)",
)
VERSION_SCHEDULED: Final = EventType(
    STAKING_ADDRESS, "VersionScheduled(uint256 indexed version, uint256 indexed epoch)"
)

_CHAIN: Final = bytes([Table.CHAIN])
_EPOCH: Final = _CHAIN + b"epoch"
_SELECTED: Final = _CHAIN + b"selected"
_TALLY: Final = _CHAIN + b"tally"
_FROZEN: Final = _CHAIN + b"frozen"


class UpgradeRequired(InvalidBlock):
    """The chain uses a protocol version that this software does not know; install a newer version."""

    code = "upgrade_required"

    def __init__(self, *, version: int, known: Iterable[int]) -> None:
        self.version = version
        self.known = tuple(sorted(known))
        super().__init__(
            f"the chain goes on in version {version} of its protocol; this node knows {self.known}: upgrade it"
        )


class EpochInfo(NamedTuple):
    """What an epoch is made of; known when its first block can be built.

    ``randomness`` is what the chain had gathered when the epoch before it ended: leaders prove their VRF over it.
    ``lottery_weight`` is the part of the committee's weight that was drawn.
    """

    epoch: int
    last_height: int
    committee: Committee
    randomness: bytes
    version: int
    lottery_weight: int = 0


class Tally(NamedTuple):
    """What the blocks of an epoch have shown so far; the four lists have one number for each seat.

    ``randomness`` is what the chain has gathered, ``view`` that of the newest block. ``blocks`` are those whose
    leader told which FINALIZE votes it had seen, and ``finalised`` in how many of them each seat's was. ``led``
    and ``missed`` are views with and without a block by their leader; ``signals`` is the lowest version that all
    of a seat's blocks signalled, 0 for one without a block.
    """

    view: int
    blocks: int
    randomness: bytes
    finalised: list[int]
    led: list[int]
    missed: list[int]
    signals: list[int]


class _Record(NamedTuple):
    """The randomness before an epoch, its version, and that of the next epoch."""

    randomness: bytes
    version: int
    version_next: int


# Heights


def epoch_of(height: int, chain: ChainParameters) -> int:
    """Return the epoch of the block at ``height`` (from 1)."""
    return (height - 1) // chain.epoch_blocks


def first_height(epoch: int, chain: ChainParameters) -> int:
    """Return the height of an epoch's first block."""
    return epoch * chain.epoch_blocks + 1


def last_height(epoch: int, chain: ChainParameters) -> int:
    """Return the height of an epoch's last block, the boundary."""
    return (epoch + 1) * chain.epoch_blocks


# Records


def load_epoch(state: Reader, epoch: int, chain: ChainParameters) -> EpochInfo | None:
    """Return what is known of ``epoch``; None for one that cannot begin yet, or is forgotten."""
    record, committee = _load_record(state, epoch), load_committee(state, epoch)
    if record is None or committee is None:
        return None
    weight = state.get(_key(_SELECTED, epoch))
    lottery = 0 if weight is None else number_of(weight, 16, what=f"the lottery's weight in epoch {epoch}")
    return EpochInfo(
        epoch, last_height(epoch, chain), committee, record.randomness, record.version, lottery_weight=lottery
    )


def load_tally(state: Reader, epoch: int) -> Tally | None:
    """Return what the blocks of ``epoch`` have shown; None for one that has not begun, or is forgotten."""
    data = state.get(_key(_TALLY, epoch))
    return None if data is None else _record_of(data, _tally, f"the tally of epoch {epoch}")


def _tally(value: Any) -> Tally:
    tally = Tally(*items_of(value, int, int, HASH_BYTES, list, list, list, list))
    seats = len(tally.finalised)
    for numbers in tally[3:]:
        items_of(numbers, *[int] * seats)
    return tally


def _record_of(data: bytes, make: Callable[[Any], _T], what: str) -> _T:
    return read_record(data, make, what=what, limit_bytes=_RECORD_LIMIT_BYTES)


def _key(table: bytes, number: int) -> bytes:
    return table + number.to_bytes(4, "big")


def _save_tally(state: Overlay, epoch: int, tally: Tally) -> None:
    value: list[Value] = [tally.view, tally.blocks, tally.randomness, *(tuple(numbers) for numbers in tally[3:])]
    state.put(_key(_TALLY, epoch), encode(value))


def _new_tally(committee: Committee, randomness: bytes) -> Tally:
    zeros = [0] * committee.size
    return Tally(0, 0, randomness, zeros, zeros, zeros, zeros)


def _load_record(state: Reader, epoch: int) -> _Record | None:
    data = state.get(_key(_EPOCH, epoch))
    if data is None:
        return None
    return _record_of(data, lambda value: _Record(*items_of(value, HASH_BYTES, int, int)), f"epoch {epoch}")


def _save_record(state: Overlay, epoch: int, record: _Record) -> None:
    state.put(_key(_EPOCH, epoch), encode(record))


def _save_selection(state: Overlay, epoch: int, selection: Selection) -> None:
    save_committee(state, epoch, selection.committee)
    if selection.lottery_weight:
        state.put(_key(_SELECTED, epoch), selection.lottery_weight.to_bytes(16, "big"))


def _forget(state: Overlay, epoch: int) -> None:
    delete_committee(state, epoch)
    for table in (_EPOCH, _SELECTED, _TALLY):
        state.delete(_key(table, epoch))


# The genesis


def genesis_randomness(genesis: Genesis) -> bytes:
    """Return the randomness before the first epoch, which nobody can choose more freely than the genesis."""
    return digest(b"randomness", genesis_hash(genesis))


def genesis_committee(genesis: Genesis, seats_max: int, epoch: int = 0) -> Committee:
    """Return the committee of epoch 0 or 1, which come from the founding stakes; ``seats_max`` of the chain."""
    return _founding(genesis, genesis_randomness(genesis), seats_max, epoch).committee


def _founding(genesis: Genesis, randomness: bytes, seats_max: int, epoch: int) -> Selection:
    candidates = [Candidate(*validator) for validator in genesis.validators]
    return select(candidates, epoch=epoch, randomness=randomness, seats_max=seats_max)


def begin_epochs(state: Overlay, genesis: Genesis, chain: ChainParameters) -> None:
    """Write the records of the first epochs over the founding stakes, which are in ``state``."""
    randomness = genesis_randomness(genesis)
    first, second = (_founding(genesis, randomness, chain.validators_max, epoch) for epoch in (0, 1))
    _save_selection(state, 0, first)
    _save_selection(state, 1, second)
    _save_record(state, 0, _Record(randomness, FIRST_VERSION, FIRST_VERSION))
    _save_tally(state, 0, _new_tally(first.committee, randomness))
    _freeze(state, NOTICE_EPOCHS - 1)


# A block


def add_randomness(randomness: bytes, vrf_proof: bytes) -> bytes:
    """Return the randomness after a block whose leader gave ``vrf_proof``. Raises InvalidBlock for no proof."""
    try:
        return digest(b"randomness", randomness + vrf_output(vrf_proof))
    except DecodeError as error:
        raise InvalidBlock(f"VRF proof: {error}") from None


def check_voters(committee: Committee, voters_bitmap: bytes) -> None:
    """Check that ``voters_bitmap`` is empty or one of ``committee``. Raises InvalidBlock."""
    if voters_bitmap and (
        len(voters_bitmap) != (committee.size + 7) // 8
        or int.from_bytes(voters_bitmap, "little") >> committee.size
    ):
        raise InvalidBlock("a bitmap of voters of another committee")


def record_block(
    state: Overlay, epoch: EpochInfo, chain: ChainParameters, *, height: int, view: int, seat: int,
    voters_bitmap: bytes, signal: int, vrf_proof: bytes,
) -> bytes:  # fmt: skip
    """Add a block to the tally of its epoch; return the randomness with it. Raises InvalidBlock.

    The bitmap tells of the block's grandparent, so in the first two blocks of an epoch, whose grandparent another
    committee voted on, it counts nothing; nor does one of less than a quorum, which says that nothing is final.
    """
    tally = load_tally(state, epoch.epoch)
    committee = epoch.committee
    assert tally is not None, "an epoch begins with its tally"
    check_voters(committee, voters_bitmap)
    if not 0 <= seat < committee.size:
        raise InvalidBlock(f"no seat {seat} in the committee of epoch {epoch.epoch}")
    if view <= tally.view:
        raise InvalidBlock(f"view {view} after view {tally.view}")
    for skipped in range(max(tally.view + 1, view - SKIPPED_VIEWS_MAX), view):
        tally.missed[committee.leader(skipped)] += 1
    tally.led[seat] += 1
    tally.signals[seat] = min(tally.signals[seat], signal) if tally.led[seat] > 1 else signal
    blocks = tally.blocks
    is_told = committee.weight_of(voters_bitmap) >= committee.quorum
    if is_told and height >= first_height(epoch.epoch, chain) + 2:
        blocks += 1
        bits, finalised = int.from_bytes(voters_bitmap, "little"), tally.finalised
        for voter in range(committee.size):
            finalised[voter] += bits >> voter & 1
    randomness = add_randomness(tally.randomness, vrf_proof)
    _save_tally(state, epoch.epoch, tally._replace(view=view, blocks=blocks, randomness=randomness))
    return randomness


# The boundary


def end_epoch(state: Overlay, block: BlockContext, emit: Callable[[Event], None]) -> None:
    """In the last block of an epoch, and after all else in it, prepare the epochs that follow."""
    epoch, chain = block.epoch, block.chain
    if block.height != last_height(epoch, chain):
        return
    tally, committee = load_tally(state, epoch), load_committee(state, epoch)
    following, record = load_committee(state, epoch + 1), _load_record(state, epoch)
    assert tally is not None and committee is not None, "an epoch that ends has begun"
    assert following is not None and record is not None, "the next one was prepared at the boundary before"
    _judge(state, epoch, committee, tally, chain, emit)
    version = record.version_next
    if _is_signalled(committee, tally, version + 1):
        version += 1
        emit(VERSION_SCHEDULED(version, epoch + 2))
    _save_record(state, epoch + 1, _Record(tally.randomness, record.version_next, version))
    _save_tally(state, epoch + 1, _new_tally(following, tally.randomness))
    selection = _select_after(state, epoch + 2, following, tally.randomness, chain)
    selected = selection.committee
    _save_selection(state, epoch + 2, selection)
    _freeze(state, epoch + NOTICE_EPOCHS)
    if epoch >= chain.evidence_epochs:
        _forget(state, epoch - chain.evidence_epochs)
    emit(EPOCH_BEGAN(epoch + 1, following.hash, following.size, following.weight, record.version_next))
    emit(
        COMMITTEE_SELECTED(
            epoch + 2, selected.hash, selected.size, selected.weight, selection.anchors, selection.lottery_weight
        )
    )
    if selection.is_tail_large:
        emit(LOTTERY_TOO_LARGE(epoch + 2, selection.lottery_weight, selected.weight))


def is_down(tally: Tally, seat: int, chain: ChainParameters) -> bool:
    """Tell whether a seat's votes were missing from most blocks, or a block from each of its views.

    A faulty leader can keep a seat from finalising its own block, by telling that seat alone that the view is
    skipped, and it can deny the votes for the block of another. So a faulty third can make an honest seat look
    absent from two thirds of the blocks, and no more; and it can speak for a dead one in a third, and no more.
    Of fewer than ``downtime_blocks_min`` blocks nothing is concluded.
    """
    absent = tally.blocks - tally.finalised[seat]
    part, whole = ABSENT_SHARE
    if tally.blocks >= chain.downtime_blocks_min and absent * whole > tally.blocks * part:
        return True
    return tally.led[seat] == 0 and tally.missed[seat] >= LEADER_SLOTS_MIN


def _judge(
    state: Overlay, epoch: int, committee: Committee, tally: Tally, chain: ChainParameters,
    emit: Callable[[Event], None],
) -> None:  # fmt: skip
    """Jail the seats that were down; forgive those that were not.

    A jailed operator is judged only after it had a seat again. Of the seats that were down the most absent are
    jailed first, up to OUT_SHARE of the stake; the others pay and keep their seats. Leaders are known an epoch
    ahead, so an attacker that silences one machine at a time could otherwise remain alone in the committee.
    """
    down: list[tuple[int, int, bytes, int]] = []
    for seat, (operator, *_) in enumerate(committee.seats):
        jail = load_jail(state, operator)
        if jail is not None and epoch + 2 < jail.until_epoch:
            continue
        if is_down(tally, seat, chain):
            down.append((tally.finalised[seat], seat, operator, jail.times if jail else 0))
        elif jail is not None:
            save_jail(state, operator, None)
    if not down:
        return
    out, total = _stake_out(state, epoch + 2)
    part, whole = OUT_SHARE
    for _, _, operator, times in sorted(down):
        amount = take_bonded(state, operator, bonded(state, operator) // DOWNTIME_DIVISOR)
        burn(state, amount)
        record = load_stake(state, operator)
        stake = record.amount if record else 0
        until, times = epoch + 2, min(times + 1, JAIL_TIMES_MAX)
        if not out or (out + stake) * whole <= total * part:
            until += 2**times
            out += stake
        save_jail(state, operator, JailRecord(until, times))
        emit(JAILED(operator, epoch, until, times, amount))


def _stake_out(state: Reader, epoch: int) -> tuple[int, int]:
    """Return the stake that is jailed temporarily in ``epoch``, and all stake that is not jailed permanently."""
    out = total = 0
    for address, record in largest_stakes(state, CANDIDATES_MAX):
        jail = load_jail(state, address)
        if jail is not None and jail.until_epoch == FOREVER:
            continue
        total += record.amount
        if jail is not None and epoch < jail.until_epoch:
            out += record.amount
    return out, total


def _is_signalled(committee: Committee, tally: Tally, version: int) -> bool:
    part, whole = SIGNAL_SHARE
    weight = sum(
        weight for weight, signal in zip(committee.weights, tally.signals, strict=True) if signal >= version
    )
    return weight * whole >= committee.weight * part


def _select_after(
    state: Reader, epoch: int, before: Committee, randomness: bytes, chain: ChainParameters
) -> Selection:
    """Return the committee of ``epoch``: the frozen stakes, the seats of those jailed since then left empty.

    A jail never empties a committee. If nobody is left, those sit who are jailed for a while; if everybody is out
    for ever, or has left, the members of ``before`` sit on: a chain that could not go on would help nobody. What
    is new since ``before`` has no more than a third of the weight (``limit_growth``).
    """
    seats_max = min(chain.validators_max, SEATS_MAX)
    last = [Candidate(*member) for member in before.seats]
    candidates = _load_frozen(state) or last
    drawn = draw_seats(candidates, epoch=epoch, randomness=randomness, seats_max=seats_max)
    for until in (epoch, FOREVER - 1):
        absent = {candidate.address for candidate in candidates if is_jailed(state, candidate.address, until)}
        selection = seated(drawn, absent)
        if selection is not None:
            return limit_growth(
                selection, before, seats_max=seats_max, out=lambda who: is_jailed(state, who, FOREVER - 1)
            )
    return select(last, epoch=epoch, randomness=randomness, seats_max=seats_max)


def _freeze(state: Overlay, epoch: int) -> None:
    """Keep the largest stakes and their keys as they are, without the jailed, for the selection of ``epoch``."""
    largest = largest_stakes(state, CANDIDATES_MAX)
    begin_withdrawals(state, sum(record.amount for _, record in largest))
    candidates: list[Value] = [
        [address, record.vote_key, record.vrf_key, record.amount]
        for address, record in largest
        if not is_jailed(state, address, epoch)
    ]
    for part in range(-(-CANDIDATES_MAX // _FROZEN_PART)):
        taken = candidates[part * _FROZEN_PART : (part + 1) * _FROZEN_PART]
        key = _FROZEN + bytes([part])
        if taken:
            state.put(key, encode(taken))
        elif state.get(key) is not None:
            state.delete(key)


def _load_frozen(state: Reader) -> list[Candidate]:
    return [
        candidate
        for _, data in state.scan(_FROZEN, _FROZEN + b"\xff", CANDIDATES_MAX)
        for candidate in _record_of(data, _candidates, "the stakes that were frozen")
    ]


def _candidates(value: Any) -> list[Candidate]:
    if type(value) is not list:
        raise DecodeError("a list expected")
    return [Candidate(*items_of(entry, ADDRESS_BYTES, VOTE_KEY_BYTES, VRF_KEY_BYTES, int)) for entry in value]
