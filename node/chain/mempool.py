"""The mempool: checked transactions that wait for a block, ordered by price. Pure, with bounded memory.

Each sender has a queue by nonce. The part without a gap after the account's next nonce is *pending* and may be
taken. The part behind a gap is *queued*. Both are bounded for each sender and in total, by count and by bytes.

When the pool is full, a new transaction evicts the last transaction of the sender whose last one is worth least,
if the new one is worth more. Only the end of a queue is evicted, so no gap appears. A transaction is worth at most
the cheapest transaction before it in its queue; behind a gap it is worth nothing. Otherwise high prices behind a
transaction that no block takes would fill the pool for free.

Adding costs O(log n). Taking k transactions of s senders costs O(s + k log s).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from state.primitives.errors import InvalidTransaction
from state.primitives.transactions import Transaction
from state.transition.errors import FeeCapTooLow, InsufficientFunds, NonceTooHigh, NonceTooLow
from state.transition.lane import LANE_PREDECESSORS_MAX
from state.transition.runtime import Checked
from state.view.accounts import Account

__all__ = [
    "Added",
    "AlreadyKnown",
    "Mempool",
    "MempoolFull",
    "MempoolOptions",
    "ReplacementUnderpriced",
    "SenderLimit",
]

NEWS_KEPT: Final = 4_096
"""Hashes of the newest arrivals, kept for queries of new transactions."""
_PERCENT: Final = 100
_SLACK: Final = 1024
_COMPACT_EVERY: Final = 64
"""Arrivals between two checks whether the heaps contain mostly removed entries."""
_NO_NONCES: Final[Mapping[bytes, int]] = {}
_WORTHLESS: Final = -1
_KEPT: Final = 1 << 128
"""Worth of the last transaction of a sender that has one for the lane: no fee is above it."""
LANE_KEPT_MAX: Final = 256
"""Transactions for the lane that are admitted when the pool is full, one for each subject."""


class AlreadyKnown(InvalidTransaction):
    """The same bytes are already in the pool."""

    code = "already_known"

    def __init__(self) -> None:
        super().__init__("already known")


class ReplacementUnderpriced(InvalidTransaction):
    """Another transaction has this nonce, and this one does not pay enough more to replace it."""

    code = "replacement_underpriced"

    def __init__(self, *, needed_fee: int, needed_tip: int) -> None:
        super().__init__(
            f"replacement transaction underpriced: maxFeePerGas {needed_fee} and maxPriorityFeePerGas "
            f"{needed_tip} needed"
        )
        self.needed_fee = needed_fee
        self.needed_tip = needed_tip


class MempoolFull(InvalidTransaction):
    """The pool is full of transactions that pay at least as much."""

    code = "mempool_full"

    def __init__(self) -> None:
        super().__init__("transaction underpriced: txpool is full")


class SenderLimit(InvalidTransaction):
    """The sender has reached its limit of transactions in the pool."""

    code = "sender_limit"

    def __init__(self, *, limit: int) -> None:
        super().__init__(f"account limit exceeded: {limit} transactions of one sender in the pool")
        self.limit = limit


@dataclass(frozen=True, slots=True)
class MempoolOptions:
    """Limits of the pool."""

    transactions_max: int = 50_000
    bytes_max: int = 64 * 1024 * 1024
    sender_transactions_max: int = 512
    nonce_gap_max: int = 64
    """How far beyond the sender's last pending nonce a transaction may be queued."""
    queued_max: int = 5_000
    """Queued transactions of all senders; a flood fills this limit first."""
    replacement_percent: int = 10
    """Minimum increase of a replacement, in fee cap and in tip."""
    expiry_heights: int = 1_800
    """Blocks after which a transaction that was not included leaves the pool."""


class Added(NamedTuple):
    """Result of an admission: whether the transaction is pending, and which ones were replaced or evicted."""

    pending: bool
    replaced: Checked | None
    evicted: Checked | None


_PENDING: Final = Added(True, None, None)
_QUEUED: Final = Added(False, None, None)


class _Entry:
    __slots__ = ("arrival", "checked", "fee", "lane", "local_since", "size", "tip")

    def __init__(self, checked: Checked, arrival: int, local_since: int | None, lane: bytes) -> None:
        transaction = checked.transaction
        self.checked = checked
        self.arrival = arrival
        self.local_since = local_since
        self.fee = transaction.max_fee_per_gas
        self.tip = transaction.max_priority_fee_per_gas
        self.size = len(transaction.raw)
        self.lane = lane
        """Subject of its ticket, empty for none or if another has it."""


class _Sender:
    """One sender's queue: ``entries`` by nonce. Those from ``nonce`` to ``pending_end`` have no gap."""

    __slots__ = ("cost", "entries", "lanes", "last", "lowest", "nonce", "pending_end", "weighed", "worth")

    def __init__(self, nonce: int) -> None:
        self.nonce = self.pending_end = nonce
        self.entries: dict[int, _Entry] = {}
        self.lanes = 0
        """Entries for the lane."""
        self.cost = 0
        self.last = -1
        self.lowest: int | None = None
        """The lowest fee cap of ``entries``; None if that entry was removed and the minimum was not computed
        again."""
        self.worth = _WORTHLESS
        """Of the last entry."""
        self.weighed = -1
        """Arrival number of the last entry when the worth was computed."""

    def advance(self) -> int:
        """Move ``pending_end`` over nonces that became contiguous; return by how many."""
        entries, before = self.entries, self.pending_end
        end = before
        while end in entries:
            end += 1
        self.pending_end = end
        return end - before

    def weigh(self) -> int:
        """Return the worth of the last entry. The queue must not be empty."""
        if self.last >= self.pending_end:
            return _WORTHLESS
        if self.lanes and len(self.entries) <= LANE_PREDECESSORS_MAX:
            return _KEPT
        return self.low()

    def low(self) -> int:
        """Return the lowest fee cap of the entries. The queue must not be empty. Rarely computed."""
        if self.lowest is None:
            self.lowest = min(entry.fee for entry in self.entries.values())
        return self.lowest

    def pop(self, nonce: int) -> _Entry:
        """Remove an entry and return it."""
        entry = self.entries.pop(nonce)
        self.cost -= entry.checked.cost_max
        self.lanes -= bool(entry.lane)
        if entry.fee == self.lowest:
            self.lowest = None
        return entry


class Mempool:
    """The pool. ``account_of`` reads the state after the newest final block, which has ``height``."""

    def __init__(
        self, options: MempoolOptions, account_of: Callable[[bytes], Account], *, height: int = 0
    ) -> None:
        self._options = options
        self._account_of = account_of
        self._senders: dict[bytes, _Sender] = {}
        self._by_hash: dict[bytes, _Entry] = {}
        self._by_raw: dict[bytes, Checked] = {}  # spares a voter the hash of what it knows
        self._lanes: dict[bytes, _Entry] = {}
        """Transactions for the lane by the subjects of their tickets."""
        self._bytes = 0
        self._queued = 0
        self._arrivals = 0
        self._news: deque[bytes] = deque(maxlen=NEWS_KEPT)
        """Hashes of the newest arrivals, including transactions that blocks have already taken."""
        self._height = height
        # The last transaction of each sender, of the least worth first and then the youngest. Entries that are no
        # longer a sender's last, or were worth something else, stay until they come up or until a rebuild.
        self._tails: list[tuple[int, int, bytes]] = []
        self._expiry: list[tuple[int, int, bytes]] = []  # height, arrival, hash; lazily cleaned in the same way
        self.on_local: Callable[[int, bytes], None] | None = None
        """Called for each local user's transaction with its arrival height and its bytes."""
        self.local_removed = 0
        """Local transactions removed by ``remove``."""

    # Queries

    def __len__(self) -> int:
        return len(self._by_hash)

    def __contains__(self, transaction_hash: object) -> bool:
        return transaction_hash in self._by_hash

    @property
    def size_bytes(self) -> int:
        """The bytes of all raw transactions in the pool."""
        return self._bytes

    @property
    def pending_count(self) -> int:
        """Number of transactions that can be taken now."""
        return len(self._by_hash) - self._queued

    @property
    def queued_count(self) -> int:
        """Number of transactions that wait for an earlier nonce."""
        return self._queued

    def get(self, transaction_hash: bytes) -> Checked | None:
        """Return the transaction with that hash; its signature is checked."""
        entry = self._by_hash.get(transaction_hash)
        return None if entry is None else entry.checked

    def find(self, raw: bytes) -> Checked | None:
        """Return the transaction with those very bytes, its signature checked."""
        return self._by_raw.get(raw)

    def pending_nonce(self, address: bytes) -> int:
        """Return the next nonce after the executed and the pending transactions of the sender."""
        nonce = self._account_of(address).nonce
        sender = self._senders.get(address)
        return nonce if sender is None else max(nonce, sender.pending_end)

    def of_sender(self, address: bytes) -> list[Checked]:
        """Return the transactions of ``address`` in the order of their nonces."""
        sender = self._senders.get(address)
        if sender is None:
            return []
        return [sender.entries[nonce].checked for nonce in sorted(sender.entries)]

    def queued(self, limit: int) -> list[Checked]:
        """Return up to ``limit`` queued transactions, each sender's in nonce order."""
        found: list[Checked] = []
        for sender in self._senders.values() if self._queued else ():
            if sender.last >= sender.pending_end:
                beyond = sorted(nonce for nonce in sender.entries if nonce >= sender.pending_end)
                found += [sender.entries[nonce].checked for nonce in beyond]
                if len(found) >= limit:
                    break
        return found[:limit]

    def arrivals(self, since: int, limit: int) -> tuple[int, list[bytes]]:
        """Return the number of arrivals, and the hashes of those after the first ``since``, including removed
        ones.

        At most the newest ``limit`` and ``NEWS_KEPT`` hashes, oldest first.
        """
        if since > self._arrivals:  # counted by a node that ended since
            since = 0
        count = min(self._arrivals - since, len(self._news), limit)
        newest = islice(reversed(self._news), count)
        return self._arrivals, list(newest)[::-1]

    def page(self, before: int | None, limit: int) -> list[tuple[int, Checked]]:
        """Return up to ``limit`` transactions with their arrival numbers, newest first.

        ``before`` selects those that arrived before that number, so new arrivals do not shift pages.
        """
        found: list[tuple[int, Checked]] = []
        for entry in reversed(self._by_hash.values()):
            if before is None or entry.arrival < before:
                found.append((entry.arrival, entry.checked))
                if len(found) == limit:
                    break
        return found

    def local(self, *, transactions_max: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return the bytes of local users' transactions, each with its arrival height.

        In order of arrival; if there are too many, the first ones.
        """
        found: list[tuple[int, bytes]] = []
        for entry in self._by_hash.values():
            if entry.local_since is not None:
                bytes_max -= entry.size
                if bytes_max < 0 or len(found) == transactions_max:
                    break
                found.append((entry.local_since, entry.checked.transaction.raw))
        return found

    def take(
        self, limit: int, *, base_fee: int = 0, next_nonces: Mapping[bytes, int] = _NO_NONCES
    ) -> list[Checked]:
        """Return up to ``limit`` pending transactions: best tip first, then earliest. None is removed.

        Those for the lane come before, with what their senders sent earlier; the leader orders them by their
        tickets. A sender's transactions keep their nonce order. ``next_nonces`` are those of senders with
        transactions in the unfinalised blocks below the new block.
        """
        heads: list[tuple[int, int, int, _Sender]] = []
        taken, after = self._take_lane(limit, base_fee, next_nonces) if self._lanes else ([], next_nonces)
        for address, sender in self._senders.items():
            nonce = after.get(address, sender.nonce) if after else sender.nonce
            if nonce < sender.pending_end:
                entry = sender.entries.get(nonce)
                if entry is not None and entry.fee >= base_fee:
                    tip = entry.tip if entry.tip < entry.fee - base_fee else entry.fee - base_fee
                    heads.append((-tip, entry.arrival, nonce, sender))
        heapq.heapify(heads)  # arrivals differ, so senders are never compared
        while heads and len(taken) < limit:
            _, _, nonce, sender = heads[0]
            taken.append(sender.entries[nonce].checked)
            entry = sender.entries.get(nonce + 1) if nonce + 1 < sender.pending_end else None
            if entry is not None and entry.fee >= base_fee:
                tip = entry.tip if entry.tip < entry.fee - base_fee else entry.fee - base_fee
                heapq.heapreplace(heads, (-tip, entry.arrival, nonce + 1, sender))
            else:
                heapq.heappop(heads)
        return taken

    def _take_lane(
        self, limit: int, base_fee: int, next_nonces: Mapping[bytes, int]
    ) -> tuple[list[Checked], Mapping[bytes, int]]:
        """Return transactions for the lane behind what their senders sent earlier, and the nonces after them."""
        taken: list[Checked] = []
        after = dict(next_nonces)
        for entry in self._lanes.values():
            transaction = entry.checked.transaction
            sender = self._senders[transaction.sender]
            first = after.get(transaction.sender, sender.nonce)
            queue = [sender.entries.get(nonce) for nonce in range(first, transaction.nonce + 1)]
            found = [each for each in queue if each is not None and each.fee >= base_fee]
            is_whole = 0 < len(found) == len(queue) <= LANE_PREDECESSORS_MAX + 1
            if is_whole and len(taken) + len(found) <= limit:
                taken += [each.checked for each in found]
                after[transaction.sender] = transaction.nonce + 1
        return taken, after

    # Changes

    def screen(self, transaction: Transaction, *, fee_floor: int = 0) -> None:
        """Refuse a transaction that ``add`` would refuse whatever its payload says.

        Raises AlreadyKnown, FeeCapTooLow, NonceTooLow, InsufficientFunds, NonceTooHigh, SenderLimit or
        ReplacementUnderpriced.
        """
        if transaction.hash in self._by_hash:
            raise AlreadyKnown
        fee_cap, nonce = transaction.max_fee_per_gas, transaction.nonce
        if fee_cap < fee_floor:
            raise FeeCapTooLow(fee_cap=fee_cap, base_fee=fee_floor)
        account = self._account_of(transaction.sender)
        if nonce < account.nonce:
            raise NonceTooLow(expected=account.nonce, got=nonce)
        sender = self._senders.get(transaction.sender)
        if sender is not None and account.nonce > sender.nonce:
            sender = None  # some of what it has here is in the chain now: ``add`` counts the rest
        old = sender.entries.get(nonce) if sender is not None else None
        spent = sender.cost if sender is not None else 0
        needed = spent + transaction.gas_limit * fee_cap - (old.checked.cost_max if old else 0)
        if needed > account.balance:
            raise InsufficientFunds(balance=account.balance, needed=needed)
        if old is not None:
            self._check_fees(old, fee_cap, transaction.max_priority_fee_per_gas)
        else:
            self._check_place(sender or _Sender(account.nonce), nonce)

    def add(
        self, checked: Checked, *, fee_floor: int = 0, local_since: int | None = None, lane: bytes = b""
    ) -> Added:
        """Admit a transaction with a known sender, or raise a subclass of InvalidTransaction.

        After an error the pool is unchanged. A fee cap below ``fee_floor`` is refused: the current base fee for
        local users, less for gossip. ``local_since`` is the arrival height of a local user's transaction; None for
        others. ``lane`` is the subject of its ticket: one for each subject is admitted also if the pool is full.
        """
        transaction = checked.transaction
        if transaction.hash in self._by_hash:
            raise AlreadyKnown
        if transaction.max_fee_per_gas < fee_floor:
            raise FeeCapTooLow(fee_cap=transaction.max_fee_per_gas, base_fee=fee_floor)
        address, nonce = transaction.sender, transaction.nonce
        account = self._account_of(address)
        sender = self._senders.get(address)
        if sender is None:
            sender = _Sender(account.nonce)
        elif account.nonce > sender.nonce:
            self._settle(address, sender, account)
        if nonce < account.nonce:
            raise NonceTooLow(expected=account.nonce, got=nonce)
        old = sender.entries.get(nonce)
        needed = sender.cost + checked.cost_max - (old.checked.cost_max if old else 0)
        if needed > account.balance:
            raise InsufficientFunds(balance=account.balance, needed=needed)
        if lane and (held := self._lanes.get(lane)) is not None and held is not old:
            lane = b""
        if len(self._lanes) >= LANE_KEPT_MAX or nonce > sender.pending_end:
            lane = b""
        entry = _Entry(checked, self._arrivals, local_since, lane)
        victim: bytes | None = None
        if old is not None:
            self._check_replacement(old, entry)
        else:
            victim = self._check_room(address, sender, entry)
        # Nothing raises from here on.
        self._arrivals += 1
        evicted = None if victim is None else self._remove(victim, self._senders[victim].last)
        if old is not None:
            self._forget(old)
            sender.lanes -= bool(old.lane)
            if old.fee == sender.lowest:
                sender.lowest = None
        if sender.lowest is not None and entry.fee < sender.lowest:
            sender.lowest = entry.fee
        self._senders[address] = sender
        sender.entries[nonce] = entry
        sender.cost += checked.cost_max - (old.checked.cost_max if old else 0)  # less now, if it lost its own last
        self._by_hash[transaction.hash] = entry
        if lane:
            self._lanes[lane] = entry
            sender.lanes += 1
        self._news.append(transaction.hash)
        self._by_raw[transaction.raw] = checked
        self._bytes += entry.size
        # It follows all of its sender's, as most do.
        if nonce > sender.last and nonce == sender.pending_end and not sender.lanes:
            sender.last = nonce
            sender.pending_end = nonce + 1
            sender.worth = min(sender.worth, entry.fee) if len(sender.entries) > 1 else entry.fee
            sender.weighed = entry.arrival
            heapq.heappush(self._tails, (sender.worth, -entry.arrival, address))
        else:
            if old is None:
                self._queued += 1 - sender.advance()
            sender.last = max(nonce, sender.last)
            self._weigh(address, sender)
        if local_since is None:
            since = self._height
        else:
            since = local_since
            if self.on_local is not None:
                self.on_local(since, transaction.raw)
        heapq.heappush(self._expiry, (since + self._options.expiry_heights, entry.arrival, transaction.hash))
        if not self._arrivals % _COMPACT_EVERY:
            self._compact()
        if old is None and evicted is None:
            return _PENDING if nonce < sender.pending_end else _QUEUED
        return Added(nonce < sender.pending_end, old.checked if old else None, evicted)

    def on_block(self, height: int, senders: Iterable[bytes]) -> list[Checked]:
        """Update after a block became final; ``account_of`` must already read its state.

        ``senders`` are those of its transactions. Included transactions are removed. Returns the transactions that
        were removed without inclusion: replaced, no longer payable, or expired.
        """
        self._height = height
        dropped: list[Checked] = []
        for address in set(senders):
            sender = self._senders.get(address)
            if sender is not None:
                dropped += self._settle(address, sender, self._account_of(address))
        while self._expiry and self._expiry[0][0] <= height:
            _, arrival, transaction_hash = heapq.heappop(self._expiry)
            entry = self._by_hash.get(transaction_hash)
            if entry is not None and entry.arrival == arrival:
                transaction = entry.checked.transaction
                dropped.append(self._remove(transaction.sender, transaction.nonce))
        self._compact()
        return dropped

    def remove(self, transaction_hash: bytes) -> Checked | None:
        """Remove a transaction, for example an inadmissible one, and return it; None if it is not in the pool."""
        entry = self._by_hash.get(transaction_hash)
        if entry is None:
            return None
        if entry.local_since is not None:
            self.local_removed += 1
        return self._remove(entry.checked.transaction.sender, entry.checked.transaction.nonce)

    def clear(self) -> int:
        """Remove all transactions; return their number."""
        count = len(self._by_hash)
        for transaction_hash in list(self._by_hash):
            self.remove(transaction_hash)
        self._news.clear()
        return count

    # The parts

    def _check_fees(self, old: _Entry, new_fee: int, new_tip: int) -> None:
        # Rounded down, as wallets do that raise a price by the least that is enough, but more than before.
        percent = _PERCENT + self._options.replacement_percent
        fee, tip = (max(value * percent // _PERCENT, value + (value > 0)) for value in (old.fee, old.tip))
        if new_fee < fee or new_tip < tip:
            raise ReplacementUnderpriced(needed_fee=fee, needed_tip=tip)

    def _check_replacement(self, old: _Entry, new: _Entry) -> None:
        self._check_fees(old, new.fee, new.tip)
        if self._bytes - old.size + new.size > self._options.bytes_max:
            raise MempoolFull

    def _check_place(self, sender: _Sender, nonce: int) -> None:
        options = self._options
        if nonce > sender.pending_end + options.nonce_gap_max:
            raise NonceTooHigh(expected=sender.pending_end, got=nonce)
        if len(sender.entries) >= options.sender_transactions_max:
            raise SenderLimit(limit=options.sender_transactions_max)

    def _check_room(self, address: bytes, sender: _Sender, new: _Entry) -> bytes | None:
        """Return the sender whose last transaction ``new`` evicts, None if there is room.

        Raises MempoolFull or SenderLimit.
        """
        options, nonce = self._options, new.checked.transaction.nonce
        self._check_place(sender, nonce)
        if nonce > sender.pending_end and self._queued >= options.queued_max:
            raise MempoolFull
        if new.lane:
            return None
        if len(self._by_hash) < options.transactions_max and self._bytes + new.size <= options.bytes_max:
            return None
        if nonce > sender.pending_end:
            raise MempoolFull  # nothing is worth less than what may never be taken
        # It follows all of its sender's, or it fills a gap: then what waits behind that one goes first anyway.
        worth = min(new.fee, sender.low()) if sender.entries else new.fee
        while self._tails:
            lowest, arrival, victim = self._tails[0]
            owner = self._senders.get(victim)
            if owner is None or owner.weighed != -arrival or owner.worth != lowest:
                heapq.heappop(self._tails)
                continue
            # A sender's next is worth no more than its own last pending one: that is never pushed out, for a gap.
            if lowest >= worth or self._bytes - owner.entries[owner.last].size + new.size > options.bytes_max:
                break
            return victim
        raise MempoolFull

    def _settle(self, address: bytes, sender: _Sender, account: Account) -> list[Checked]:
        """Update a queue to ``account``; return the transactions that were removed without inclusion."""
        dropped: list[Checked] = []
        if account.nonce > sender.nonce:
            for nonce in [nonce for nonce in sender.entries if nonce < account.nonce]:
                entry = sender.pop(nonce)
                if nonce >= sender.pending_end:
                    self._queued -= 1
                self._forget(entry)
            sender.nonce = account.nonce
            sender.pending_end = max(sender.pending_end, account.nonce)
            self._queued -= sender.advance()
        if not sender.entries:
            sender.last = -1
            self._senders.pop(address, None)
            return dropped
        self._weigh(address, sender)
        while sender.entries and sender.cost > account.balance:
            dropped.append(self._remove(address, sender.last))
        return dropped

    def _weigh(self, address: bytes, sender: _Sender) -> None:
        """Update the last transaction of a sender and its worth, after the queue changed."""
        worth, arrival = sender.weigh(), sender.entries[sender.last].arrival
        if worth != sender.worth or arrival != sender.weighed:
            sender.worth, sender.weighed = worth, arrival
            heapq.heappush(self._tails, (worth, -arrival, address))

    def _remove(self, address: bytes, nonce: int) -> Checked:
        """Remove one transaction from its queue; the following ones become queued."""
        sender = self._senders[address]
        entry = sender.pop(nonce)
        if nonce < sender.pending_end:
            self._queued += sender.pending_end - nonce - 1
            sender.pending_end = nonce
        else:
            self._queued -= 1
        self._forget(entry)
        if not sender.entries:
            sender.last = -1
            del self._senders[address]
        else:
            if nonce == sender.last:
                sender.last = max(sender.entries)
            self._weigh(address, sender)
        return entry.checked

    def _forget(self, entry: _Entry) -> None:
        del self._by_hash[entry.checked.transaction.hash]
        del self._by_raw[entry.checked.transaction.raw]
        self._bytes -= entry.size
        if entry.lane:
            del self._lanes[entry.lane]

    def _compact(self) -> None:
        """Rebuild a heap that contains mostly removed entries."""
        if len(self._tails) > 2 * len(self._senders) + _SLACK:
            self._tails = [(sender.worth, -sender.weighed, address) for address, sender in self._senders.items()]
            heapq.heapify(self._tails)
        if len(self._expiry) > 2 * len(self._by_hash) + _SLACK:
            self._expiry = [
                item for item in self._expiry
                if (entry := self._by_hash.get(item[2])) is not None and entry.arrival == item[1]
            ]  # fmt: skip
            heapq.heapify(self._expiry)
