"""The tables of the state: one leading byte each, so that no two packages write the same key (chain.md 8.4)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["TABLES", "Table"]


class Table(IntEnum):
    """First byte of a state key; what follows is the table's own key."""

    CHAIN = 0x00
    """Singletons: base fee, totals, steady time; committees, tallies and randomness by epoch."""
    ACCOUNT = 0x01
    """address -> nonce (8) || balance (16)."""
    STAKE = 0x02
    """address -> stake record of a validator or node."""
    UNBONDING = 0x03
    """time_ms (8) || address || nonce (8) -> amount that returns then (16) || epoch of its withdrawal (4)."""
    VOTE_KEY = 0x04
    """vote key -> address that registered it; kept permanently, so that evidence finds the owner of an old key."""
    UNBONDING_OF = 0x05
    """address -> time_ms (8) || nonce (8) of each of its withdrawals: the index of UNBONDING by its owners."""
    SLASH = 0x06
    """address -> slashing of an operator: fault and penalty; kept permanently."""
    SLASH_WINDOW = 0x07
    """2^32 - 1 - epoch (4) || address -> nothing: the faults that still correlate, newest epoch first."""
    JAIL = 0x08
    """address -> until which epoch an operator may not sit, and how many times in a row."""
    STAKE_RANK = 0x09
    """2^128 - 1 - amount (16) || address -> nothing: the index of STAKE by amount, the largest first."""
    NODE = 0x10
    """address -> NodeRecord."""
    NODE_CLASS = 0x11
    """Index of matchable nodes."""
    NODE_PAST = 0x12
    """address -> record of work of a node that has retired: it has that again when its key registers again."""
    TRIAL = 0x13
    """address -> the speed trial of a machine, and the rate that its last one measured."""
    NODE_TAMPER = 0x14
    """address -> the last report of a machine that a job on it was tampered with; kept permanently."""
    TASK = 0x20
    """task id -> task record."""
    TASK_INDEX = 0x21
    """Indexes over tasks (by requester, by worker, by phase)."""
    WINDOW = 0x22
    """task id || window -> WindowProof and its verification."""
    DEADLINE = 0x23
    """time_ms (8) || task id -> event to fire."""
    PARKED = 0x24
    """class of requirement (3) || turn (1) || highest price, inverted (16) || task id -> nothing."""
    CALL = 0x25
    """Nothing -> when the last call was; class of requirement (3) -> what its last calls paid."""
    DISPUTE = 0x26
    """task id || window (4) -> docket; with a part and a number: its games, sealed challenges and moves."""
    DISPUTE_RELEASE = 0x27
    """task id || window (4) || game (4) -> nothing: its moves are to be deleted."""
    GROUP = 0x28
    """group id -> record; with a part and an address: the seat that a machine holds, and who holds none again."""
    CUSTODY = 0x2A
    """Terms of a task, windows in custody, counts by worker and misses of machines; the next byte tells which."""
    ESCROW = 0x30
    """task id -> escrow account."""
    EARNINGS = 0x31
    """address -> what billing paid to it, by role."""
    BILL = 0x32
    """escrow id || line number (4) -> one movement of that escrow."""
    ESCROW_SHARE = 0x34
    """escrow id || pool (1) || owner -> what the pool holds of the owner."""
    CARRIAGE = 0x33
    """payer || relay -> what the payer has acknowledged that the relay carried, and what of it is still due."""


TABLES: Final = frozenset(table.value for table in Table)
