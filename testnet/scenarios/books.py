"""Who gained and lost what: from the bills of tasks and the bills of the machines' bonds. Gas is not in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from node.cli.output import show_amount
from rpc.client.results import Bill, BillLine

__all__ = ["FUND", "Books", "make_books", "verdict"]

FUND: Final = "fund of checks"
"""The account of the chain that pays checks that no requester pays."""


class Books(NamedTuple):
    """What each party gained, negative where it lost. ``burned`` went to nobody, ``locked`` is in the tasks."""

    gains: dict[bytes, int]
    burned: int
    locked: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing came from nowhere and nothing is missing."""
        return sum(self.gains.values()) + self.burned + self.locked == 0


def verdict(cheat: str | None, gains: Mapping[str, int], honest_lost: Sequence[str]) -> str:
    """Return in one sentence who lost for what it did, by the names of the parties."""
    if cheat is None:
        told = "Nobody cheated"
    elif gains.get(cheat, 0) < 0:
        told = f"{cheat} cheated and lost {show_amount(-gains[cheat])}"
    else:
        told = f"{cheat} CHEATED AND LOST NOTHING"
    others = (
        f"{' and '.join(honest_lost)} LOST WITHOUT A FAULT" if honest_lost else "no honest machine lost anything"
    )
    return f"{told}; {others}."


def make_books(tasks: Sequence[Bill], bonds: Mapping[bytes, Sequence[BillLine]]) -> Books:
    """Return the books of tasks. ``bonds`` are the new lines of each machine's bond, by its address.

    What a machine puts into its own bond, or takes back from it, is still its own.
    """
    gains: dict[bytes, int] = {}
    burned = 0

    def move(party: bytes | None, amount: int) -> None:
        assert party is not None
        gains[party] = gains.get(party, 0) + amount

    for line in (line for task in tasks for line in task.lines):
        match line.movement:
            case "locked":
                move(line.party, -line.amount)
            case "paid" | "refunded":
                move(line.party, line.amount)
            case "burned":
                burned += line.amount
            case _:
                pass  # from one pool to another
    for owner, lines in bonds.items():
        for line in lines:
            if line.movement == "paid":
                move(owner, -line.amount)
                move(line.party, line.amount)
            elif line.movement == "burned":
                move(owner, -line.amount)
                burned += line.amount
    return Books(gains, burned, sum(task.totals.locked for task in tasks))
