"""The lane: a part of each block that is kept for transactions with a deadline in a game (market.md R42).

Who fills blocks with fees could make somebody miss a deadline. So all other transactions leave a part of a block
free. A transaction has a place there if it has a ticket: its kind's rule says so, from the state before the block.
A ticket cannot be forged or multiplied, so nobody fills the lane with other things.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from state.primitives.genesis import ChainParameters
from state.transition.rules import Checked, Rule, Ticket
from state.view import Reader

__all__ = ["LANE_PREDECESSORS_MAX", "MISFITS_MAX", "Room", "ticket_of", "urgent_first"]

LANE_GAS_PART: Final = 8
LANE_BYTES_PART: Final = 16
MISFITS_MAX: Final = 16_384
"""Transactions without room that a leader looks at. Smaller ones behind them may have room, so the limit is high:
few large ones that pay well shall not keep those out."""
LANE_PREDECESSORS_MAX: Final = 16
"""Earlier transactions of a sender that a leader includes for one that has a ticket."""


def ticket_of(state: Reader, checked: Checked) -> Ticket | None:
    """Return the ticket of a transaction for the block that follows ``state``, if it has one."""
    find = checked.rule.ticket
    return None if find is None else find(state, checked.payload, checked.transaction.sender)


class Room:
    """What a body uses of its limits: by transactions in the lane, and by all others.

    A transaction with a ticket is in the lane while that has room, one for each subject. ``state`` is that after
    the parent. A chain without kinds that have tickets has no lane, nor has one whose blocks are too small for it.
    """

    def __init__(self, state: Reader, chain: ChainParameters, rules: Iterable[Rule[Any]]) -> None:
        self._state, self._chain = state, chain
        self._subjects: set[bytes] = set()
        self._gas = self._size = self._count = 0
        self._lane_gas_used = self._lane_size = 0
        rules = tuple(rules)
        weights = [rule.gas for rule in rules if rule.ticket is not None]
        self._least_gas = min((rule.gas for rule in rules), default=0)
        self._lane_gas = chain.block_gas_limit // LANE_GAS_PART
        self._lane_count = self._lane_gas // min(weights) if weights else 0
        if not self._lane_count:
            self._lane_gas = 0
        self._lane_bytes = chain.body_bytes_max // LANE_BYTES_PART if self._lane_count else 0

    @property
    def gas_limit(self) -> int:
        """Weights in sum that transactions outside of the lane may have."""
        return self._chain.block_gas_limit - self._lane_gas

    @property
    def is_full(self) -> bool:
        """Tell whether no transaction has room outside of the lane."""
        is_counted = self._count >= self._chain.transactions_max - self._lane_count
        return is_counted or self._gas + self._least_gas > self.gas_limit

    def fits(self, checked: Checked) -> bool:
        """Tell whether a transaction has room."""
        if self._lane_subject(checked):
            return True
        return (
            self._count < self._chain.transactions_max - self._lane_count
            and self._gas + checked.rule.gas <= self.gas_limit
            and self._size + len(checked.transaction.raw) <= self._chain.body_bytes_max - self._lane_bytes
        )

    def add(self, checked: Checked) -> None:
        """Count a transaction, whether it has room or not."""
        gas, size = checked.rule.gas, len(checked.transaction.raw)
        if subject := self._lane_subject(checked):
            self._subjects.add(subject)
            self._lane_gas_used += gas
            self._lane_size += size
            return
        self._gas += gas
        self._size += size
        self._count += 1

    def excess(self) -> str:
        """Return which limit the counted transactions exceed, or nothing."""
        chain = self._chain
        if self._count > chain.transactions_max - self._lane_count:
            return f"{self._count} transactions, limit {chain.transactions_max - self._lane_count}"
        if self._gas > self.gas_limit:
            return f"weights of {self._gas} in sum, limit {self.gas_limit}"
        if self._size > chain.body_bytes_max - self._lane_bytes:
            return f"transactions of {self._size} bytes in sum, limit {chain.body_bytes_max - self._lane_bytes}"
        return ""

    def _lane_subject(self, checked: Checked) -> bytes:
        """Return the subject of a transaction that has room in the lane, or nothing."""
        if checked.rule.ticket is None or not self._lane_count or len(self._subjects) >= self._lane_count:
            return b""
        if self._lane_gas_used + checked.rule.gas > self._lane_gas:
            return b""
        if self._lane_size + len(checked.transaction.raw) > self._lane_bytes:
            return b""
        ticket = ticket_of(self._state, checked)
        return b"" if ticket is None or ticket.subject in self._subjects else ticket.subject


def urgent_first(state: Reader, transactions: Iterable[Checked]) -> tuple[list[Checked], list[Checked]]:
    """Return those that have tickets, the least time left before others, and all other transactions.

    What a sender sent before such a one comes with it, ``LANE_PREDECESSORS_MAX`` at most: nonces have an order.
    """
    offered = list(transactions)
    tickets = [
        (ticket.due_ms, at)
        for at, checked in enumerate(offered)
        if checked.rule.ticket is not None and (ticket := ticket_of(state, checked)) is not None
    ]
    if not tickets:
        return [], offered
    senders = {offered[at].transaction.sender for _, at in tickets}
    queues: dict[bytes, list[int]] = {sender: [] for sender in senders}
    for at, checked in enumerate(offered):
        if (queue := queues.get(checked.transaction.sender)) is not None:
            queue.append(at)
    first: dict[int, None] = {}
    for _, at in sorted(tickets):
        earlier = [place for place in queues[offered[at].transaction.sender] if place < at and place not in first]
        if len(earlier) <= LANE_PREDECESSORS_MAX:
            first.update(dict.fromkeys((*earlier, at)))
    rest = [checked for at, checked in enumerate(offered) if at not in first]
    return [offered[at] for at in first], rest
