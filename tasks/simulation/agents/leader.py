"""A leader that skips its own block where the next leader's beacon draws better verifiers for its friends."""

from __future__ import annotations

from tasks.simulation.agents.plot import Plot
from tasks.simulation.market import View

__all__ = ["DishonestLeader"]


class DishonestLeader:
    """Compares the block that it would publish with the one that comes if it is silent."""

    def __init__(self, plot: Plot) -> None:
        self.plot = plot
        self.skipped = 0

    def __call__(self, mine: View, without: View) -> int:
        """Return 1 to skip: where its block seats strangers on a friend's forged window and the other does not."""
        skips = self._strangers(without) < self._strangers(mine)
        self.skipped += skips
        return int(skips)

    def _strangers(self, view: View) -> int:
        seats = 0
        for (task, number), made in self.plot.made.items():
            if not made.forged or number not in view.task(task).open_windows:
                continue
            window = view.window(task, number)
            seats += sum(seat.address not in self.plot.members for seat in (*window.verifiers, *window.jurors))
        return seats
