"""Checks each new final block for events that concern the node's owner: relays, clock, slashing and upgrades."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from node.chain.block_tree import Executed
from node.daemon.peering import Peering
from node.daemon.relays import registered_relays
from node.daemon.upgrades import UpgradeWatch
from node.process.health_warnings import ClockWatch
from state.primitives.address import format_address
from state.store import Store
from state.transition.evidence import FAULTS
from state.transition.slashing import SlashRecord, bonded, load_slash

__all__ = ["HeadWatch", "slash_fields"]

_log = structlog.get_logger("node")

RELAYS_LOOK_BLOCKS: Final = 600
"""Interval, in blocks, at which a node looks for relays in the chain's registry, ..."""
RELAYS_SEEK_BLOCKS: Final = 30
"""... and the interval for a node that no peer can reach."""


class HeadWatch:
    """Listeners of new final blocks. Each logs what the owner has to know."""

    def __init__(
        self, store: Store, address: bytes, peering: Peering, clock: ClockWatch, upgrades: UpgradeWatch,
        is_synced: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._store = store
        self._address = address
        self._peering = peering
        self._clock = clock
        self._upgrades = upgrades
        self._is_synced = is_synced
        self._slash_logged: tuple[int, int, int] | None = None
        self._relays_looked_at = -RELAYS_LOOK_BLOCKS

    def look_for_relays(self, blocks: Sequence[Executed]) -> None:
        """Offer the registry's relays to the relay client from time to time; it reserves as many as it needs."""
        peering = self._peering
        has_enough = peering.relays.reservations or peering.reach.is_confirmed
        every = RELAYS_LOOK_BLOCKS if has_enough else RELAYS_SEEK_BLOCKS
        if blocks[-1].header.height < self._relays_looked_at + every:
            return
        self._relays_looked_at = blocks[-1].header.height
        peering.relays.offer(registered_relays(self._store, self._address))

    def look_at_clock(self, blocks: Sequence[Executed]) -> None:
        """Compare this machine's clock with the time of a new block."""
        if len(blocks) != 1 or not self._is_synced():
            return  # blocks that are synced are older than now
        if self._clock.note(blocks[0].header.time_ms, time.time_ns() // 1_000_000):
            _log.warning(
                "this machine's clock differs from the time of the blocks: set the clock",
                ahead_ms=self._clock.off_ms,
            )

    def look_for_slash(self, _blocks: Sequence[Executed]) -> None:
        """Log once that this validator was slashed."""
        slash = load_slash(self._store, self._address)
        if slash is not None and (slash.epoch, slash.view, slash.taken) != self._slash_logged:
            self._slash_logged = slash.epoch, slash.view, slash.taken
            _log.error(
                "this validator was slashed for two contradicting votes: it never votes again (`dekube slashes`)",
                **slash_fields(self._store, self._address, slash),
            )

    def look_for_upgrade(self, height: int) -> None:
        """Log that the validators signal a version of the protocol that this release does not know."""
        if not self._upgrades.note(height):
            return
        pending = self._upgrades.pending
        assert pending is not None
        if pending.last_height is None:
            text = "most validators signal a version that this release does not know: install a newer release"
        else:
            text = "this node ends after last_height: install a release that knows the version that follows"
        _log.warning(text, **pending._asdict())


def slash_fields(store: Store, address: bytes, slash: SlashRecord) -> dict[str, Any]:
    """Return the fault for which an account was slashed, and its remaining stake."""
    return {
        "fault": next(name for name, number in FAULTS.items() if number == slash.fault),
        "epoch": slash.epoch,
        "view": slash.view,
        "height": slash.height,
        "taken": str(slash.taken),
        "left": str(bonded(store, address)),
        "reporter": format_address(slash.reporter),
    }
