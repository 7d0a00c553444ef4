"""``dekube bench market``: the worst blocks that anybody can buy, and what checking and the chain cost a task."""

from __future__ import annotations

import tempfile
from pathlib import Path
from time import process_time
from typing import Final

from node.bench.market_blocks import joined
from node.bench.market_ends import EndBlocks
from node.bench.market_shares import figures as shares
from node.bench.market_state import Disk
from state.transition.runtime import Execution
from tasks.ledger.open_task import WORKER_ASSIGNED

__all__ = ["run"]

BLOCKS: Final = (
    "payments", "heartbeats", "payouts", "terms", "withdrawals", "suspensions", "registrations", "updates",
    "creations", "new_groups", "new_seats", "additions", "acceptances", "starts", "cancellations", "departures",
    "proofs", "seals", "jury_seals", "reveals", "openings", "pokes", "moves", "challenges", "opened_challenges",
    "resumptions", "asks", "receipts", "deliveries", "endings", "mismatches", "carriage", "tuned_creations",
    "tuned_moves", "tuned_claims", "tuned_proofs", "trial_asks", "trial_commits", "trial_shows", "trial_words",
    "demands",
)  # fmt: skip
"""Blocks full of the dearest of one kind."""
HOOKS: Final = (
    "deadlines", "releases", "finals", "group_ends", "cancelled_groups", "call", "scarce_call", "hopeless_call",
    "shared_call", "group_call", "replaced_call", "draws", "late_demands", "trial_steps", "wakes", "full_end",
    "called_end", "drawn_end",
)  # fmt: skip
"""What the end of a block does by itself, at its dearest. It comes beside the transactions."""
BOTH: Final = ("everything", "everything_called")


def _matched(execution: Execution) -> int:
    topic = WORKER_ASSIGNED.topic
    return sum(event.topics[0] == topic for events in execution.events for event in events)


def run(*, tasks: int = 100_000, machines: int = 10_000, repeats: int = 3) -> dict[str, float]:
    """Fill a state with ``tasks`` parked tasks and ``machines`` machines; return the times of the worst blocks.

    The last of them, ``full``, joins the dearest transactions with the dearest end of a block.
    ``matches_per_s`` counts the workers that a call assigns, by the time of the block in which it is.
    """
    with tempfile.TemporaryDirectory(prefix="dekube-market-") as name:
        disk = Disk(Path(name))
        try:
            begun_s = process_time()
            blocks = EndBlocks(disk, tasks, machines)
            figures: dict[str, float] = {
                "tasks": tasks, "machines": machines, "fill_s": round(process_time() - begun_s, 1),
            }  # fmt: skip
            for kind in (*BLOCKS, *HOOKS, *BOTH):
                taken_ms, execution = blocks.execute(getattr(blocks, kind)(), repeats)
                figures[f"{kind}_block_ms"] = round(taken_ms, 1)
                if kind == "call":
                    figures["matches_per_s"] = round(1000 * _matched(execution) / taken_ms)
                    if not _matched(execution):
                        raise AssertionError("the call of the benchmark matched nothing")
            dearest = [max(kinds, key=lambda kind: figures[f"{kind}_block_ms"]) for kinds in (BLOCKS, HOOKS)]
            full = joined(*(getattr(blocks, kind)() for kind in dearest))
            figures["full_block_ms"] = round(blocks.execute(full, repeats)[0], 1)
        finally:
            disk.close()
    figures |= {name: round(value, 4) for name, value in shares().items()}
    times = [value for name, value in figures.items() if name.endswith("_block_ms")]
    return {"worst_block_ms": max(times), **figures}
