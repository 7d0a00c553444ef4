"""The events that this version declares, found by address and first topic."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from billing import escrow
from state.primitives.receipts import EventType
from state.transition import epochs, slashing, staking
from tasks.ledger import (
    bonds,
    carriage,
    checkpoints,
    claims,
    container_ends,
    custody,
    dockets,
    group_records,
    metering,
    open_task,
    quorum_records,
    registry,
    tampering,
    trials,
)

__all__ = ["EVENTS", "collect"]

_MODULES: Final[tuple[ModuleType, ...]] = (
    staking, epochs, slashing, bonds, carriage, checkpoints, claims, container_ends, custody, dockets,
    group_records, metering, open_task, quorum_records, registry, tampering, trials, escrow,
)  # fmt: skip


def collect(modules: tuple[ModuleType, ...]) -> Mapping[tuple[bytes, bytes], EventType]:
    """Return the event types that are attributes of ``modules``."""
    found: dict[tuple[bytes, bytes], EventType] = {}
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, EventType):
                found[value.address, value.topic] = value
    return found


EVENTS: Final = collect(_MODULES)
