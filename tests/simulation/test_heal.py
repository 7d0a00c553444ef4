"""Every two-way split of 4 to 7 nodes, rings, one-way links, loss, slowness: progress soon after the heal."""

from __future__ import annotations

import pytest

from consensus.simulation.heal import breaks, run_break

BREAKS = tuple(breaks())
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_progress_comes_within_two_time_outs_of_the_heal(part: int) -> None:
    for broken in BREAKS[part::PARTS]:
        run_break(broken)


def test_every_two_way_split_is_there() -> None:
    for size, count in ((4, 7), (5, 15), (6, 31), (7, 63)):
        splits = [broken.sides for broken in BREAKS if (broken.kind, broken.size) == ("split", size)]
        assert len({frozenset((sides, tuple(not side for side in sides))) for sides in splits}) == count


def test_nothing_is_final_in_a_half_and_all_goes_on_in_a_quorum() -> None:
    for broken in BREAKS:
        if broken.kind == "split" and broken.size == 4:
            held = max(sum(broken.sides), 4 - sum(broken.sides))
            # A leader of the other side costs its view: what a quorum of three makes final is less, not nothing.
            assert (run_break(broken).heights_while_broken > 2) == (held >= 3), broken
