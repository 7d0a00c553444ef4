"""What clients of several gateways saw, held against the chain: a pure function, with its own rules of transfers.

Every block that anybody is shown is final, so the order of everything is that of heights: an account has one
balance and one nonce after each. A member may be behind; it may not be wrong, go back, or answer with less than
the height that it was told to wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["ChainBlock", "Final", "History", "Read", "Transfer", "check"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """A transaction of a block, as its bytes say it."""

    hash: bytes
    sender: bytes
    nonce: int
    to: bytes
    value: int
    gas: int
    fee_cap: int
    tip: int


@dataclass(frozen=True, slots=True)
class ChainBlock:
    """A block as one member shows it at the end."""

    height: int
    hash: bytes
    parent_hash: bytes
    base_fee: int
    transfers: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class Final:
    """A member said that a transfer is final, and where."""

    member: str
    transfer: bytes
    height: int
    block: bytes
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Read:
    """A member said what an account has after a block from ``low`` to ``high``; its answer may name it."""

    member: str
    account: bytes
    low: int
    high: int
    begun_s: float
    ended_s: float
    balance: int | None = None
    nonce: int | None = None
    block: bytes | None = None
    is_newest: bool = True
    """The newest was asked for, not what was at a height."""
    height_min: int = 0
    """What the member was told to wait for."""


@dataclass(slots=True)
class History:
    """What all clients saw; each adds to lists of its own, which are joined at the end."""

    sent: dict[bytes, str] = field(default_factory=dict)
    """Transfers that a member may have taken, by hash: who signed them, for people."""
    finals: list[Final] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    told: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Height and hash of the blocks of which a subscriber heard, as they came."""
    refusals: list[str] = field(default_factory=list)
    """Answers that no client may ever get."""

    def add(self, other: History) -> None:
        """Take in what another client saw."""
        self.sent |= other.sent
        self.finals += other.finals
        self.reads += other.reads
        self.told |= other.told
        self.refusals += other.refusals


@dataclass(slots=True)
class _Ledger:
    """Balances and nonces after each height, from the genesis on."""

    now: dict[bytes, int]
    nonces: dict[bytes, int] = field(default_factory=dict)
    after: dict[bytes, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """Of each account: balance and nonce after the heights at which they changed."""
    places: dict[bytes, tuple[int, bool]] = field(default_factory=dict)
    """Of each transfer: height, and whether its money moved."""

    def apply(self, block: ChainBlock) -> list[str]:
        faults = []
        for transfer in block.transfers:
            name = f"transfer {transfer.hash.hex()} at {block.height}"
            if transfer.hash in self.places:
                faults.append(f"{name} stands at {self.places[transfer.hash][0]} already")
                continue
            if transfer.nonce != (due := self.nonces.get(transfer.sender, 0)):
                faults.append(f"{name} has nonce {transfer.nonce}, {due} is due")
            price = min(transfer.fee_cap, block.base_fee + transfer.tip)
            if price < block.base_fee:
                faults.append(f"{name} does not pay the base fee")
            left = self.now.get(transfer.sender, 0) - transfer.gas * price
            moves = left >= transfer.value
            self.now[transfer.sender] = left - transfer.value * moves
            self.now[transfer.to] = self.now.get(transfer.to, 0) + transfer.value * moves
            self.nonces[transfer.sender] = transfer.nonce + 1
            self.places[transfer.hash] = block.height, moves
            if left < 0:
                faults.append(f"{name} cannot pay its fee")
            for account in (transfer.sender, transfer.to):
                self.after.setdefault(account, {})[block.height] = self.now[account], self.nonces.get(account, 0)
        return faults

    def during(self, account: bytes, low: int, high: int, genesis: int) -> list[tuple[int, int]]:
        """Return what the account had after ``low`` and after each change up to ``high``."""
        changes = self.after.get(account, {})
        before = max((height for height in changes if height <= low), default=None)
        found = [(genesis, 0) if before is None else changes[before]]
        return found + [changes[height] for height in sorted(changes) if low < height <= high]


def check(history: History, chain: Sequence[ChainBlock], genesis: Mapping[bytes, int]) -> list[str]:
    """Return what is wrong with a history, in words; nothing where it is the chain's.

    ``chain`` is all blocks from height 1 on; ``genesis`` what the accounts that are read had before it. Their
    balances must change by transfers alone.
    """
    ledger = _Ledger(dict(genesis))
    faults = [*history.refusals]
    for number, block in enumerate(chain, 1):
        if block.height != number:
            faults.append(f"block {block.height} in the place of {number}")
        if number > 1 and block.parent_hash != chain[number - 2].hash:
            faults.append(f"block {number} does not stand on the one below it")
        faults += ledger.apply(block)
    faults += [
        f"transfer {item.hex()} of {who} is nowhere"
        for item, who in history.sent.items()
        if item not in ledger.places
    ]
    for final in history.finals:
        faults += _check_final(final, chain, ledger)
    for read in history.reads:
        faults += _check_read(read, chain, ledger, genesis)
    for who, told in history.told.items():
        faults += _check_told(who, told, chain)
    return faults + _check_order(history.reads)


def _is_at(chain: Sequence[ChainBlock], height: int, block: bytes) -> bool:
    return 0 < height <= len(chain) and chain[height - 1].hash == block


def _check_final(final: Final, chain: Sequence[ChainBlock], ledger: _Ledger) -> list[str]:
    name = f"{final.member}: transfer {final.transfer.hex()} final at {final.height}"
    if not _is_at(chain, final.height, final.block):
        return [f"{name} in a block that is not the chain's"]
    place = ledger.places.get(final.transfer)
    if place is None or place[0] != final.height:
        return [f"{name}, and the chain has it at {place and place[0]}"]
    return [] if place[1] == final.succeeded else [f"{name} with another outcome"]


def _check_read(
    read: Read, chain: Sequence[ChainBlock], ledger: _Ledger, genesis: Mapping[bytes, int]
) -> list[str]:
    name = f"{read.member}: {read.account.hex()} at {read.low}..{read.high}"
    if not 0 <= read.low <= read.high <= len(chain):
        return [f"{name}: the chain has {len(chain)} blocks"]
    if read.low < read.height_min:
        return [f"{name}: {read.height_min} was to be waited for"]
    if read.block is not None and read.low > 0 and not _is_at(chain, read.low, read.block):
        return [f"{name}: block {read.block.hex()} is not the chain's"]
    possible = ledger.during(read.account, read.low, read.high, genesis.get(read.account, 0))
    for balance, nonce in possible:
        if read.balance in (None, balance) and read.nonce in (None, nonce):
            return []
    return [f"{name}: balance {read.balance}, nonce {read.nonce}; the chain says {possible}"]


def _check_told(who: str, told: Sequence[tuple[int, bytes]], chain: Sequence[ChainBlock]) -> list[str]:
    """Every block from the first on, in order, once, and the chain's."""
    for due, (height, block) in enumerate(told, 1):
        if height != due:
            return [f"{who}: told of {height} where {due} is due"]
        if not _is_at(chain, height, block):
            return [f"{who}: told of block {block.hex()} at {height}, which is not the chain's"]
    return []


def _check_order(reads: Sequence[Read]) -> list[str]:
    """No member shows an older head to a client after another client had a newer answer."""
    faults = []
    for member in {read.member for read in reads}:
        own = [read for read in reads if read.member == member and read.is_newest]
        ended = sorted(own, key=lambda read: read.ended_s)
        seen = number = 0
        for read in sorted(own, key=lambda read: read.begun_s):
            while number < len(ended) and ended[number].ended_s < read.begun_s:
                seen = max(seen, ended[number].low)
                number += 1
            if read.high < seen:
                faults.append(f"{member}: went back from {seen} to {read.high}")
    return faults
