"""``dekube bench market``: the worst blocks that anybody can buy, and what checking and the chain cost a task."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import process_time
from typing import Final

from node.bench.market_programs import ProgramBlocks
from node.bench.market_shares import figures as shares
from node.bench.market_state import Disk
from state.transition.runtime import Execution
from tasks.ledger.open_task import WORKER_ASSIGNED

__all__ = ["run"]

BLOCKS: Final = (
    "payments", "heartbeats", "suspensions", "registrations", "updates", "creations", "proofs", "seals", "reveals",
    "openings", "moves", "receipts", "deadlines", "call", "scarce_call", "hopeless_call", "shared_call",
    "everything", "everything_called", "tuned_creations", "tuned_moves", "tuned_claims", "tuned_proofs",
)  # fmt: skip
"""Hostile blocks; the worst of them is the figure."""


def _matched(execution: Execution) -> int:
    topic = WORKER_ASSIGNED.topic
    return sum(event.topics[0] == topic for events in execution.events for event in events)


def run(*, tasks: int = 100_000, machines: int = 10_000, repeats: int = 3) -> dict[str, float]:
    """Fill a state with ``tasks`` parked tasks and ``machines`` machines; return the times of the worst blocks.

    ``matches_per_s`` counts the workers that a call assigns, by the time of the block in which it is.
    """
    with tempfile.TemporaryDirectory(prefix="dekube-market-") as name:
        disk = Disk(Path(name))
        try:
            begun_s = process_time()
            blocks = ProgramBlocks(disk, tasks, machines)
            figures: dict[str, float] = {
                "tasks": tasks, "machines": machines, "fill_s": round(process_time() - begun_s, 1),
            }  # fmt: skip
            for kind in BLOCKS:
                taken_ms, execution = blocks.execute(getattr(blocks, kind)(), repeats)
                figures[f"{kind}_block_ms"] = round(taken_ms, 1)
                if kind == "call":
                    figures["matches_per_s"] = round(1000 * _matched(execution) / taken_ms)
                    if not _matched(execution):
                        raise AssertionError("the call of the benchmark matched nothing")
        finally:
            disk.close()
    figures |= {name: round(value, 4) for name, value in shares().items()}
    times = [value for name, value in figures.items() if name.endswith("_block_ms")]
    return {"worst_block_ms": max(times), **figures}
