"""Stake: kinds 0x02 and 0x03, unbonding, the record of validators and the committees of epochs (chain.md 6.5).

A validator's account stakes for a vote key and a VRF key and proves that it holds both. Staking nothing more, with
other keys, replaces them; stakes and keys count from the next freeze on (``state.transition.epochs``). A vote key
belongs to one account always, also after it was replaced, so that evidence against an old key finds its owner.
The last ``validators_min`` cannot withdraw all of their stake, and within an epoch no more than
``unstake_percent_max`` of all stake is withdrawn: a chain without validators would belong to the next staker
(docs/decisions/0060-epochs.md).
Withdrawn stake keeps its seat where one was selected already, and stays slashable in the table of unbonding until
``unbonding_ms`` of agreed time have passed and an epoch without that seat: a chain that stood still in between has
had no block to punish anybody in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

from state.primitives.address import ADDRESS_BYTES
from state.primitives.amounts import format_amount
from state.primitives.codec import Value, encode
from state.primitives.committee import Committee
from state.primitives.errors import DecodeError, ProtocolError, RecordDamaged
from state.primitives.genesis import ChainParameters
from state.primitives.hashing import digest
from state.primitives.keys import VOTE_KEY_BYTES, VOTE_SIGNATURE_BYTES, SecretKey, verify_vote
from state.primitives.receipts import Event, EventType
from state.primitives.vrf import VRF_KEY_BYTES, VRF_PROOF_BYTES, vrf_key_of, vrf_verify
from state.transition.calls import CallForm
from state.transition.jail import FOREVER, load_jail
from state.transition.rules import BlockContext, Context, Holding, Rule
from state.view import Overlay, Reader, Table
from state.view.accounts import AMOUNT_BYTES, BALANCE_MASK, SUPPLY_LIMIT, credit, debit
from state.view.records import items_of, read_record

__all__ = [
    "HOLDINGS",
    "NOTICE_EPOCHS",
    "RELEASES_MAX",
    "RULES",
    "STAKED",
    "STAKE_KIND",
    "STAKING_ADDRESS",
    "UNBONDED",
    "UNBONDINGS_MAX",
    "UNSTAKED",
    "UNSTAKE_KIND",
    "StakeRecord",
    "TooFewValidators",
    "Unbonding",
    "UnstakeLimitReached",
    "begin_withdrawals",
    "delete_committee",
    "largest_stakes",
    "list_stakes",
    "load_committee",
    "load_stake",
    "other_validators",
    "possession_digest",
    "release_unbonded",
    "save_committee",
    "save_stake",
    "save_unbonding",
    "stake_payload",
    "unbondings_of",
    "unstake_payload",
    "vote_key_owner",
    "withdrawable",
]

STAKE_KIND: Final = 0x02
STAKE_GAS: Final = 500_000
"""Two proofs of possession are checked, of which that of the VRF key takes as long as twenty transfers."""
UNSTAKE_KIND: Final = 0x03
UNSTAKE_GAS: Final = 60_000
NOTICE_EPOCHS: Final = 3
"""An operator that withdraws may still have a seat in this and the next two epochs, without stake."""
RELEASES_MAX: Final = 256
"""Withdrawals that one block pays out or puts off; the rest wait for the next blocks."""
OUT_FOR_EVER_MAX: Final = 256
"""Permanently jailed operators that a count of validators skips at most."""
UNBONDINGS_MAX: Final = 32
"""Withdrawals of one account that wait: a penalty visits every one of them."""
RECORD_LIMIT_BYTES: Final = 256

STAKING_ADDRESS: Final = bytes(18) + b"\x07\x04"
STAKED: Final = EventType(
    STAKING_ADDRESS, "Staked(address indexed validator, bytes32 indexed voteKey, uint256 amount, uint256 total)"
)
UNSTAKED: Final = EventType(
    STAKING_ADDRESS, "Unstaked(address indexed validator, uint256 amount, uint256 total, uint256 releaseTimeMs)"
)
UNBONDED: Final = EventType(STAKING_ADDRESS, "Unbonded(address indexed validator, uint256 amount)")

_STAKE: Final = bytes([Table.STAKE])
_STAKE_RANK: Final = bytes([Table.STAKE_RANK])
_RANK_MAX: Final = 2**128 - 1
_UNBONDING: Final = bytes([Table.UNBONDING])
_UNBONDING_OF: Final = bytes([Table.UNBONDING_OF])
_PLACE_BYTES: Final = 16
_EPOCH_BYTES: Final = 4
_INDEXED: Final = b"\1"
_VOTE_KEY: Final = bytes([Table.VOTE_KEY])
_COMMITTEE: Final = bytes([Table.CHAIN]) + b"committee"
_WITHDRAWN: Final = bytes([Table.CHAIN]) + b"withdrawn"
_PAGE: Final = 256


class PossessionNotProven(ProtocolError):
    """The signature or the proof does not show that the sender holds the vote key or the VRF key."""

    code = "vote_key_not_proven"


class VoteKeyTaken(ProtocolError):
    """Another account has, or had, this vote key."""

    code = "vote_key_taken"


class StakeTooSmall(ProtocolError):
    """What would be staked afterwards is neither nothing nor the minimum."""

    code = "stake_too_small"

    def __init__(self, *, stake: int, minimum: int) -> None:
        super().__init__(f"a stake of {format_amount(stake)}; the minimum is {format_amount(minimum)}")
        self.stake = stake
        self.minimum = minimum


class StakeInsufficient(ProtocolError):
    """More is withdrawn than is staked."""

    code = "stake_insufficient"

    def __init__(self, *, stake: int, amount: int) -> None:
        super().__init__(f"withdrawal of {format_amount(amount)} from a stake of {format_amount(stake)}")
        self.stake = stake
        self.amount = amount


class TooFewValidators(ProtocolError):
    """Fewer validators than the chain needs would be left: another has to stake first."""

    code = "too_few_validators"

    def __init__(self, *, left: int, minimum: int) -> None:
        super().__init__(f"{left} other validators, minimum {minimum}")
        self.left = left
        self.minimum = minimum


class UnstakeLimitReached(ProtocolError):
    """More would be withdrawn than one epoch allows: what is over can be withdrawn in the next."""

    code = "unstake_limit_reached"

    def __init__(self, *, amount: int, left: int) -> None:
        super().__init__(f"withdrawal of {amount}, {left} can still be withdrawn in this epoch")
        self.amount = amount
        self.left = left


class OperatorTombstoned(ProtocolError):
    """The sender was proven to have voted twice: it never gets a seat again, so it cannot stake."""

    code = "operator_tombstoned"


class TooManyUnbondings(ProtocolError):
    """As many withdrawals of the account wait as may; the next is possible when the earliest is paid out."""

    code = "too_many_unbondings"


class StakeRecord(NamedTuple):
    """A validator's stake and the keys it votes and draws with, registered at ``key_height``."""

    amount: int
    vote_key: bytes
    vrf_key: bytes
    key_height: int


class Unbonding(NamedTuple):
    """Withdrawn stake that returns to ``address`` in the first block at or after ``time_ms``, but not too early.

    ``nonce`` is that of the withdrawal's transaction, which tells two of one moment apart; ``epoch`` is when that
    was, for which it has to wait as well.
    """

    time_ms: int
    address: bytes
    nonce: int
    amount: int
    epoch: int = 0


# Records


def load_stake(state: Reader, address: bytes) -> StakeRecord | None:
    """Return the stake of ``address``, None when it has none. Raises RecordDamaged."""
    data = state.get(_STAKE + address)
    return None if data is None else _stake_record(data)


def _stake_record(data: bytes) -> StakeRecord:
    return read_record(
        data,
        lambda value: StakeRecord(*items_of(value, int, VOTE_KEY_BYTES, VRF_KEY_BYTES, int)),
        what="a stake",
        limit_bytes=RECORD_LIMIT_BYTES,
    )


def save_stake(state: Overlay, address: bytes, record: StakeRecord) -> None:
    """Write the stake of ``address``; a stake of nothing is removed, its vote key stays known."""
    before = load_stake(state, address)
    if before is not None and before.amount != record.amount:
        state.delete(_rank_key(before.amount, address))
    if record.amount:
        state.put(_rank_key(record.amount, address), _INDEXED)
        state.put(_STAKE + address, encode(record))
        state.put(_VOTE_KEY + record.vote_key, address)
    else:
        state.delete(_STAKE + address)


def _rank_key(amount: int, address: bytes) -> bytes:
    return _STAKE_RANK + (_RANK_MAX - amount).to_bytes(16, "big") + address


def vote_key_owner(state: Reader, vote_key: bytes) -> bytes | None:
    """Return the account that registered ``vote_key``, now or earlier."""
    owner = state.get(_VOTE_KEY + vote_key)
    if owner is not None and len(owner) != ADDRESS_BYTES:
        raise RecordDamaged(f"the record of the owner of vote key 0x{vote_key.hex()} is damaged")
    return owner


def list_stakes(state: Reader) -> list[tuple[bytes, StakeRecord]]:
    """Return every validator's address and stake, in the order of the addresses."""
    found: list[tuple[bytes, StakeRecord]] = []
    start, stop = _STAKE, bytes([Table.STAKE + 1])
    while page := state.scan(start, stop, _PAGE):
        found += [(key[1:], _stake_record(data)) for key, data in page]
        start = page[-1][0] + b"\0"
    return found


def largest_stakes(state: Reader, limit: int) -> list[tuple[bytes, StakeRecord]]:
    """Return up to ``limit`` validators and their stakes, the largest first, equal ones by address."""
    found: list[tuple[bytes, StakeRecord]] = []
    for key, _ in state.scan(_STAKE_RANK, bytes([Table.STAKE_RANK + 1]), limit):
        address = key[-ADDRESS_BYTES:]
        record = load_stake(state, address)
        assert record is not None, "the index and its table change together"
        found.append((address, record))
    return found


def begin_withdrawals(state: Overlay, staked: int) -> None:
    """Begin the epoch's sum of withdrawals, at an end of an epoch at which so much is ``staked``."""
    state.put(_WITHDRAWN, encode([staked, 0]))


def withdrawable(state: Reader, chain: ChainParameters) -> int:
    """Return how much stake can still be withdrawn in this epoch. Raises RecordDamaged."""
    staked, withdrawn = _withdrawals(state)
    return max(0, staked * chain.unstake_percent_max // 100 - withdrawn)


def _withdrawals(state: Reader) -> tuple[int, int]:
    """Return what was staked when the epoch began, and what was withdrawn since: 0 while there is no record."""
    data = state.get(_WITHDRAWN)
    if data is None:
        return 0, 0
    staked, withdrawn = read_record(
        data,
        lambda value: items_of(value, int, int),
        what="what was withdrawn in this epoch",
        limit_bytes=RECORD_LIMIT_BYTES,
    )
    return staked, withdrawn


def other_validators(state: Reader, address: bytes, limit: int) -> int:
    """Return how many others have stake and are not jailed for good; ``limit`` at most, of the largest stakes."""
    found, start, stop = 0, _STAKE_RANK, bytes([Table.STAKE_RANK + 1])
    for key, _ in state.scan(start, stop, limit + 1 + OUT_FOR_EVER_MAX):
        other = key[-ADDRESS_BYTES:]
        if other != address and not _is_out(state, other):
            found += 1
            if found == limit:
                break
    return found


def _is_out(state: Reader, address: bytes) -> bool:
    jail = load_jail(state, address)
    return jail is not None and jail.until_epoch == FOREVER


def unbondings_of(state: Reader, address: bytes) -> list[Unbonding]:
    """Return what ``address`` will get back, earliest first: at most UNBONDINGS_MAX."""
    found: list[Unbonding] = []
    for place in _places(state, address):
        key = _UNBONDING + place[:8] + address + place[8:]
        data = state.get(key)
        if data is None:
            raise RecordDamaged(f"the record of a withdrawal of 0x{address.hex()} is absent")
        found.append(_unbonding(key, data))
    return found


def save_unbonding(state: Overlay, unbonding: Unbonding) -> None:
    """Write what will return to an account; an amount of nothing is removed."""
    time_ms, address, nonce, amount, epoch = unbonding
    place = time_ms.to_bytes(8, "big") + nonce.to_bytes(8, "big")
    key = _UNBONDING + place[:8] + address + place[8:]
    places = _places(state, address)
    if amount:
        state.put(key, amount.to_bytes(AMOUNT_BYTES, "big") + epoch.to_bytes(_EPOCH_BYTES, "big"))
        if place not in places:
            state.put(_UNBONDING_OF + address, b"".join(sorted((*places, place))))
        return
    state.delete(key)
    left = b"".join(other for other in places if other != place)
    if left:
        state.put(_UNBONDING_OF + address, left)
    else:
        state.delete(_UNBONDING_OF + address)


def _places(state: Reader, address: bytes) -> list[bytes]:
    """Return time and nonce of each withdrawal of ``address``: one record, so that no block has to search."""
    data = state.get(_UNBONDING_OF + address) or b""
    if len(data) % _PLACE_BYTES:
        raise RecordDamaged(f"the record of the withdrawals of 0x{address.hex()} is damaged: {len(data)} bytes")
    return [data[at : at + _PLACE_BYTES] for at in range(0, len(data), _PLACE_BYTES)]


def _unbonding(key: bytes, data: bytes) -> Unbonding:
    if len(data) != AMOUNT_BYTES + _EPOCH_BYTES:
        raise RecordDamaged(f"the record of the withdrawal 0x{key[1:].hex()} is damaged: {len(data)} bytes")
    time, address, nonce = key[1:9], key[9 : 9 + ADDRESS_BYTES], key[9 + ADDRESS_BYTES :]
    amount, epoch = data[:AMOUNT_BYTES], data[AMOUNT_BYTES:]
    return Unbonding(
        int.from_bytes(time, "big"), address, int.from_bytes(nonce, "big"), int.from_bytes(amount, "big"),
        int.from_bytes(epoch, "big"),
    )  # fmt: skip


# Committees


def save_committee(state: Overlay, epoch: int, committee: Committee) -> None:
    """Write the committee of ``epoch``."""
    state.put(_committee_key(epoch), committee.encode())


def load_committee(state: Reader, epoch: int) -> Committee | None:
    """Return the committee of ``epoch``; None for one that is not selected yet, or is forgotten.

    Raises RecordDamaged.
    """
    data = state.get(_committee_key(epoch))
    return None if data is None else _committee(data)


def delete_committee(state: Overlay, epoch: int) -> None:
    """Forget the committee of ``epoch``."""
    state.delete(_committee_key(epoch))


def _committee_key(epoch: int) -> bytes:
    return _COMMITTEE + epoch.to_bytes(4, "big")


@lru_cache(maxsize=16)
def _committee(data: bytes) -> Committee:
    try:
        return Committee.decode(data)
    except DecodeError as error:
        raise RecordDamaged(f"the record of a committee is damaged: {error}") from None


# Kinds


class Stake(NamedTuple):
    """Add ``amount`` to the stake; vote with ``vote_key``, draw with ``vrf_key`` from the next selection on."""

    amount: int
    vote_key: bytes
    possession: bytes
    vrf_key: bytes
    vrf_possession: bytes


class Unstake(NamedTuple):
    """Withdraw ``amount`` of the sender's stake."""

    amount: int


def possession_digest(genesis_hash: bytes, address: bytes, vote_key: bytes) -> bytes:
    """Return what a vote key signs (BIP340), and its VRF key proves, to show that ``address`` may use them."""
    return digest(b"vote-pop", genesis_hash + address + vote_key)


def stake_payload(amount: int, vote_secret: SecretKey, *, genesis_hash: bytes, address: bytes) -> list[Value]:
    """Return the payload with which ``address`` stakes ``amount`` and votes with the key of ``vote_secret``."""
    signed = possession_digest(genesis_hash, address, vote_secret.vote_key)
    vrf = vrf_key_of(vote_secret)
    return [amount, vote_secret.vote_key, vote_secret.sign_vote(signed), vrf.public, vrf.prove(signed)]


def unstake_payload(amount: int) -> list[Value]:
    """Return the payload of kind 0x03."""
    return [amount]


def _decode_stake(payload: list[Any]) -> Stake:
    match payload:
        case [int(amount), bytes(vote_key), bytes(possession), bytes(vrf_key), bytes(vrf_possession)] if (
            0 <= amount < SUPPLY_LIMIT
            and (len(vote_key), len(possession)) == (VOTE_KEY_BYTES, VOTE_SIGNATURE_BYTES)
            and (len(vrf_key), len(vrf_possession)) == (VRF_KEY_BYTES, VRF_PROOF_BYTES)
        ):
            return Stake(amount, vote_key, possession, vrf_key, vrf_possession)
    raise DecodeError("not a stake: [amount, vote_key, possession, vrf_key, vrf_possession] expected")


def _decode_unstake(payload: list[Any]) -> Unstake:
    match payload:
        case [int(amount)] if 0 < amount < SUPPLY_LIMIT:
            return Unstake(amount)
    raise DecodeError("not an unstake: [amount] expected")


def _apply_stake(state: Overlay, stake: Stake, context: Context) -> None:
    sender, block = context.sender, context.block
    jail = load_jail(state, sender)
    if jail is not None and jail.until_epoch == FOREVER:
        raise OperatorTombstoned(f"0x{sender.hex()}")
    record = load_stake(state, sender)
    total = stake.amount + (record.amount if record else 0)
    if total < block.chain.stake_min:
        raise StakeTooSmall(stake=total, minimum=block.chain.stake_min)
    if vote_key_owner(state, stake.vote_key) not in (None, sender):
        raise VoteKeyTaken(stake.vote_key.hex())
    signed = possession_digest(block.genesis_hash, sender, stake.vote_key)
    if not verify_vote(stake.vote_key, signed, stake.possession):
        raise PossessionNotProven(stake.vote_key.hex())
    if vrf_verify(stake.vrf_key, signed, stake.vrf_possession) is None:
        raise PossessionNotProven(stake.vrf_key.hex())
    debit(state, sender, stake.amount)  # the last check, and the first write
    key_height = record.key_height if record and record.vote_key == stake.vote_key else block.height
    save_stake(state, sender, StakeRecord(total, stake.vote_key, stake.vrf_key, key_height))
    context.emit(STAKED(sender, stake.vote_key, stake.amount, total))


def _apply_unstake(state: Overlay, unstake: Unstake, context: Context) -> None:
    sender, block = context.sender, context.block
    record = load_stake(state, sender)
    staked = record.amount if record else 0
    if record is None or staked < unstake.amount:
        raise StakeInsufficient(stake=staked, amount=unstake.amount)
    total = staked - unstake.amount
    if 0 < total < block.chain.stake_min:
        raise StakeTooSmall(stake=total, minimum=block.chain.stake_min)
    if len(_places(state, sender)) >= UNBONDINGS_MAX:
        raise TooManyUnbondings(f"{UNBONDINGS_MAX} withdrawals wait")
    if not _is_out(state, sender):  # else it votes no more, and nobody waits for its stake
        minimum = block.chain.validators_min
        if total == 0 and (left := other_validators(state, sender, minimum)) < minimum:
            raise TooFewValidators(left=left, minimum=minimum)
        allowed = withdrawable(state, block.chain)
        if unstake.amount > allowed:
            raise UnstakeLimitReached(amount=unstake.amount, left=allowed)
        at_first, withdrawn = _withdrawals(state)
        state.put(_WITHDRAWN, encode([at_first, withdrawn + unstake.amount]))
    release_ms = block.time_ms + block.chain.unbonding_ms
    save_stake(state, sender, record._replace(amount=total))
    save_unbonding(state, Unbonding(release_ms, sender, context.nonce, unstake.amount, block.epoch))
    context.emit(UNSTAKED(sender, unstake.amount, total, release_ms))


def release_unbonded(state: Overlay, block: BlockContext, emit: Callable[[Event], None]) -> None:
    """Pay out the withdrawals that have matured, the earliest first, at most RELEASES_MAX per block.

    What was withdrawn so few epochs ago that its seat was still taken until now is put off to the earliest moment
    at which enough can have passed. Else a third of the weight could withdraw, keep the chain from going on for
    ``unbonding_ms``, and vote twice with seats behind which there is nothing any more.
    """
    chain = block.chain
    stop = _UNBONDING + (block.time_ms + 1).to_bytes(8, "big")
    for key, data in state.scan(_UNBONDING, stop, RELEASES_MAX):
        due = _unbonding(key, data)
        save_unbonding(state, due._replace(amount=0))
        blocks = (due.epoch + NOTICE_EPOCHS + 1) * chain.epoch_blocks - block.height
        if blocks >= 0:
            later_ms = block.time_ms + (blocks + 1) * max(1, chain.block_interval_ms_min)
            save_unbonding(state, due._replace(time_ms=later_ms))
            continue
        credit(state, due.address, due.amount)
        emit(UNBONDED(due.address, due.amount))


RULES: Final[tuple[Rule[Any], ...]] = (
    Rule(
        kind=STAKE_KIND, name="stake", gas=STAKE_GAS, decode=_decode_stake, moves=lambda stake: stake.amount,
        apply=_apply_stake, checks_first=True, call=CallForm(
            STAKING_ADDRESS, "stake(bytes32 voteKey, bytes possession, bytes32 vrfKey, bytes vrfPossession)",
            value_at=0,
        ),
    ),
    Rule(
        kind=UNSTAKE_KIND, name="unstake", gas=UNSTAKE_GAS, decode=_decode_unstake, moves=lambda _unstake: 0,
        apply=_apply_unstake, checks_first=True, call=CallForm(STAKING_ADDRESS, "unstake(uint256 amount)"),
    ),
)  # fmt: skip

HOLDINGS: Final = (
    Holding(Table.ACCOUNT, lambda value: int.from_bytes(value, "big") & BALANCE_MASK),
    Holding(Table.STAKE, lambda value: _stake_record(value).amount),
    Holding(Table.UNBONDING, lambda value: int.from_bytes(value[:AMOUNT_BYTES], "big")),
)
"""Tables with free, staked and unbonding money."""
