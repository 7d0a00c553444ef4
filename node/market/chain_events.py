"""What happens in the market of the whole chain: events counted by name, and log lines about the account's tasks.

The counts are of blocks that this node has followed since its start. Their names are labels of a metric.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from node.chain.block_tree import Executed
from state.primitives.errors import DekubeError
from state.primitives.receipts import Event, EventType
from state.view import Reader
from tasks.ledger.custody import CUSTODY_LOST
from tasks.ledger.events import EVENTS
from tasks.ledger.group_records import GROUP_PHASE, GroupPhase, load_group
from tasks.ledger.lifecycle import Reason
from tasks.ledger.records import load_task

__all__ = ["ChainEvents"]

_log = structlog.get_logger("market")

_TOLD: Final = frozenset({GROUP_PHASE.topic, CUSTODY_LOST.topic})
"""Events that the log shows if they are about tasks of this account."""


class ChainEvents:
    """Counts the events of final blocks. ``requester`` is this node's account; ``state`` is that of the chain."""

    def __init__(self, state: Reader, requester: bytes) -> None:
        self._state, self._requester = state, requester
        self._counts = Counter[str](dict.fromkeys((kind.name for kind in EVENTS.values()), 0))

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each event came since the start."""
        return self._counts

    def on_commit(self, blocks: Sequence[Executed]) -> None:
        """Take the events of final blocks into account."""
        for block in blocks:
            for events in block.execution.events:
                for event in events:
                    self._take(event)

    def _take(self, event: Event) -> None:
        kind = EVENTS.get((event.address, event.topics[0]))
        if kind is None:  # of a later version of the rules
            return
        self._counts[kind.name] += 1
        if kind.topic in _TOLD:
            self._tell(kind, event)

    def _tell(self, kind: EventType, event: Event) -> None:
        values = kind.decode(event)
        try:
            if kind.topic == GROUP_PHASE.topic:
                group = load_group(self._state, event.topics[1])
                if group.requester == self._requester:
                    phase, reason = GroupPhase(int(values["phase"])), Reason(int(values["reason"]))
                    _log.info(
                        "a group of this account is in another phase", group=group.id, phase=phase.name.lower(),
                        reason=reason.name.lower(), lost=group.lost, ended=group.ended, members=group.members,
                    )  # fmt: skip
            elif load_task(self._state, event.topics[1]).requester == self._requester:
                _log.warning(
                    "a custodian of a task of this account has lost its bond", task=event.topics[1],
                    window=values["number"], custodian=values["custodian"],
                )  # fmt: skip
        except DekubeError:  # the record is gone already
            return
