"""Work that is cancelled when the chain no longer requires it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from node.chain.ledger import NodeLedger
from state.primitives.errors import DekubeError, RecordDamaged
from state.store.errors import StoreDamaged
from state.trie.trie import TrieDamaged

__all__ = ["DAMAGE", "Abandoned", "work_while"]

DAMAGE: Final = (RecordDamaged, StoreDamaged, TrieDamaged)
"""Errors of a damaged database. They end the node, here as everywhere."""

_Result = TypeVar("_Result")


class Abandoned(Exception):
    """The chain no longer requires the work."""


async def work_while(
    ledger: NodeLedger, stands: Callable[[], bool], work: Callable[[], Awaitable[_Result]]
) -> _Result:
    """Do ``work`` while the chain requires it, then cancel it and free its resources.

    Raises Abandoned when it is cancelled, and otherwise what ``work`` raises. A damaged record is raised
    unchanged.
    """
    outcome: list[_Result] = []
    failure: Exception | None = None

    async def watch() -> None:
        nonlocal failure
        height = -1
        try:
            while stands():
                height = (await ledger.wait_head(height)).height
        except DAMAGE as error:
            failure = error
        except DekubeError:  # a record that is gone asks for nothing
            pass
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            outcome.append(await work())
        except Exception as error:  # raised again below: out of the nursery it would come in a group
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not outcome:
        raise Abandoned
    return outcome[0]
