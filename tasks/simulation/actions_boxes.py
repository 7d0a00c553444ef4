"""What agents can do about containers."""

from __future__ import annotations

from tasks.ledger.checkpoint_transitions import CHECKPOINT_TASK, MISS_CHECKPOINT
from tasks.ledger.meter_records import ContainerEnd
from tasks.ledger.metering_transitions import FINISH_TASK, METER_TASK, finish_values
from tasks.ledger.quorum_transitions import REVEAL_OUTPUT, SEAL_OUTPUT
from tasks.ledger.tampering import REPORT_TAMPERING, TamperSign, report_values
from tasks.simulation.actions import Action

__all__ = ["BoxActions"]


class BoxActions:
    """The transactions about containers. Nothing here reads the chain."""

    def meter(self, sender: bytes, task: bytes, seconds: int) -> Action:
        """Count the seconds of a container."""
        return Action(sender, METER_TASK, [task, seconds])

    def store(self, sender: bytes, task: bytes, seconds: int, blob: bytes, size_bytes: int) -> Action:
        """Name a checkpoint of a container."""
        return Action(sender, CHECKPOINT_TASK, [task, seconds, blob, size_bytes])

    def miss(self, sender: bytes, task: bytes, blob: bytes) -> Action:
        """Say that a checkpoint cannot be had."""
        return Action(sender, MISS_CHECKPOINT, [task, blob])

    def finish(self, sender: bytes, task: bytes, seconds: int, end: ContainerEnd) -> Action:
        """Say how a container ended."""
        return Action(sender, FINISH_TASK, finish_values(task, seconds, end))

    def seal_output(self, sender: bytes, task: bytes, seconds: int, seal: bytes) -> Action:
        """Seal what a container of a quorum has left."""
        return Action(sender, SEAL_OUTPUT, [task, seconds, seal])

    def reveal_output(self, sender: bytes, task: bytes, result: bytes, salt: bytes) -> Action:
        """Open a seal."""
        return Action(sender, REVEAL_OUTPUT, [task, result, salt])

    def report_tampering(self, sender: bytes, task: bytes) -> Action:
        """Say that somebody has tampered with a container on the sender's machine."""
        return Action(sender, REPORT_TAMPERING, report_values(task, TamperSign.EXEC))
